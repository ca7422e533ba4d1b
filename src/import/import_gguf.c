/*
 * import_gguf.c - the conversion: plan every tensor, declare the output, then stream row by row.
 *
 * The plan decides name, shape and dtype of everything before the first byte is written, because a
 * safetensors header comes first; it looks at the values where the dtype depends on them. Output
 * rows are produced in order; source rows may be permuted, which the map makes free.
 *
 * Rope: files of the llama architecture hold the rows of q and k in pairs (2i, 2i+1) that rotate
 * together; MLX pairs row i with row i + D/2. Row (head, half j, i) of the output is row
 * (head, 2i + j) of the file.
 */
#include "import/import_gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "import/gguf.h"
#include "import/gguf_arch.h"
#include "import/gguf_blocks.h"
#include "import/gguf_tok.h"

#define BATCH_BYTES ((size_t)1 << 20)

struct item { /* one tensor of the file */
    const struct gguf_tensor *src;
    struct arch_tensor map;
    int bits;
    enum mlx_dtype dtype;
    size_t out; /* index of its first output tensor: weight, then scales and biases */
    struct import_tensor *rep;
};

struct conv {
    const struct import_params *p;
    struct gguf g;
    struct arch_model m;
    struct item *item;
    size_t n_item;
    struct mlx_tensor *out;
    char (*name)[112]; /* of the output tensors */
    size_t n_out;
    struct mlx_out *o;
    struct import_report rep;
    double done;
    /* one row */
    float *w;       /* [row] values of the file */
    uint8_t *code;  /* [row] */
    float *sc, *bi; /* [row / 32] */
};

/* One stream of output bytes: collects rows, writes batches. */
struct sink {
    struct mlx_out *o;
    const struct mlx_tensor *t;
    uint8_t *buf;
    size_t n, cap;
    uint64_t at;
};

/* ---- numbers ------------------------------------------------------------------------------- */

static float round_to(enum mlx_dtype t, float v)
{
    if (t == MLX_F16)
        return half_to_float(float_to_half(v));
    if (t == MLX_BF16)
        return bfloat_to_float(float_to_bfloat(v));
    return v;
}

static bool holds(enum mlx_dtype t, const float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (round_to(t, v[i]) != v[i])
            return false;
    return true;
}

static void store(enum mlx_dtype t, const float *v, size_t n, uint8_t *out)
{
    if (t == MLX_F32) {
        memcpy(out, v, n * 4);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h = t == MLX_F16 ? float_to_half(v[i]) : float_to_bfloat(v[i]);
        memcpy(out + 2 * i, &h, 2);
    }
}

static bool all_finite(const float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return false;
    return true;
}

static enum mlx_dtype forced(enum import_dtype d)
{
    return d == IMPORT_F16 ? MLX_F16 : d == IMPORT_BF16 ? MLX_BF16 : MLX_F32;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static int64_t source_row(const struct item *it, int64_t n_row, int64_t r)
{
    if (!it->map.unpermute_heads)
        return r;
    int64_t d = n_row / it->map.unpermute_heads, at = r % d;
    return r / d * d + at % (d / 2) * 2 + at / (d / 2);
}

/* A vector counts as rows of one element when it is a permuted bias. */
static void geometry(const struct item *it, int64_t *n_row, int64_t *n_col)
{
    bool vec = it->map.is_bias && it->map.unpermute_heads;
    *n_row = vec ? it->src->dim[0] : it->src->n_row;
    *n_col = vec ? 1 : it->src->dim[0];
}

static enum qn_status bad_value(const struct conv *c, const struct item *it, int64_t row,
                                struct qn_err *err)
{
    QN_FAIL(err, QN_BAD_INPUT, "gguf",
            STR_FMT ": tensor " STR_FMT ", row %lld: a value or scale is infinite or not a number",
            STR_ARG(c->g.name), STR_ARG(it->src->name), (long long)row);
}

/* Loads output row r: values into c->w for unquantized tensors; codes, scales and biases in
 * float32 otherwise (c->w too when they were requantized). */
static enum qn_status load_row(struct conv *c, const struct item *it, int64_t r, struct qn_err *err)
{
    const struct blk_format *f = it->src->fmt;
    int64_t n_row, n_col;
    geometry(it, &n_row, &n_col);
    size_t n = (size_t)n_col, bytes = n / (size_t)f->n_elem * (size_t)f->n_bytes;
    const uint8_t *p = it->src->p + (size_t)source_row(it, n_row, r) * bytes;
    if (f->kind == BLK_AFFINE && it->bits) {
        blk_affine(f, p, n, c->code, c->sc, c->bi);
    } else {
        blk_dequant(f, p, n, c->w);
        for (size_t i = 0; it->map.minus_one && i < n; i++)
            c->w[i] -= 1;
        if (!all_finite(c->w, n))
            return bad_value(c, it, r, err);
        if (!it->bits)
            return QN_OK;
        affine_quantize(c->w, n, it->bits, c->code, c->sc, c->bi);
    }
    if (!all_finite(c->sc, n / AFFINE_GROUP) || !all_finite(c->bi, n / AFFINE_GROUP))
        return bad_value(c, it, r, err);
    return QN_OK;
}

/* Adds the row's errors for scales and biases (or values) stored as dtype t. A row whose numbers t
 * holds is exact without looking at each value: the affine image computes the file's own formula.
 */
static void measure(const struct conv *c, const struct item *it, size_t n, enum mlx_dtype t,
                    struct import_tensor *rep)
{
    bool affine = it->bits && it->src->fmt->kind == BLK_AFFINE;
    size_t step = it->bits ? AFFINE_GROUP : 1;
    if (affine ? holds(t, c->sc, n / step) && holds(t, c->bi, n / step)
               : !it->bits && holds(t, c->w, n))
        return;
    for (size_t i = 0; i < n; i += step) {
        float s = it->bits ? round_to(t, c->sc[i / step]) : 0;
        float b = it->bits ? round_to(t, c->bi[i / step]) : round_to(t, c->w[i]);
        for (size_t k = i; k < i + step; k++) {
            float q = it->bits ? (float)c->code[k] : 0;
            float want = affine ? c->sc[i / step] * q + c->bi[i / step] : c->w[k];
            double e = fabs((double)(s * q + b) - (double)want);
            rep->exact &= e == 0;
            rep->err_max = e > rep->err_max ? e : rep->err_max;
            rep->err_sq += e * e;
            rep->val_sq += (double)want * (double)want;
        }
    }
}

/* ---- the plan ---------------------------------------------------------------------------------
 */

/* float16 for scales unless a scale or bias of an exact mapping needs more. */
static enum qn_status scale_dtype(struct conv *c, struct item *it, struct qn_err *err)
{
    size_t groups = (size_t)it->src->dim[0] / AFFINE_GROUP;
    struct import_tensor half = {0}, full = {0};
    it->dtype = MLX_F16;
    for (int64_t r = 0; r < it->src->n_row; r++) {
        QN_TRY(load_row(c, it, r, err));
        if (it->src->fmt->kind == BLK_AFFINE) {
            if (!holds(MLX_F16, c->sc, groups) || !holds(MLX_F16, c->bi, groups)) {
                it->dtype = MLX_F32;
                return QN_OK;
            }
            continue;
        }
        measure(c, it, (size_t)it->src->dim[0], MLX_F16, &half);
        measure(c, it, (size_t)it->src->dim[0], MLX_F32, &full);
        if (c->p->cancel && atomic_load(c->p->cancel))
            QN_FAIL(err, QN_CANCELLED, "convert", "cancelled");
    }
    /* Small weights make float16 scales subnormal: pay for float32 only when it shows. */
    if (it->src->fmt->kind == BLK_REQUANT && !(half.err_sq <= 1.2 * full.err_sq))
        it->dtype = MLX_F32;
    return QN_OK;
}

static enum qn_status float_dtype(struct conv *c, struct item *it, struct qn_err *err)
{
    int type = it->src->fmt->type;
    int64_t n_row, n_col;
    bool half = true, brain = true;
    if (!it->map.minus_one && type != BLK_F32) {
        it->dtype = type == BLK_F16 ? MLX_F16 : type == BLK_BF16 ? MLX_BF16 : MLX_F32;
        if (it->src->fmt->kind == BLK_FLOAT)
            return QN_OK;
    }
    geometry(it, &n_row, &n_col);
    for (int64_t r = 0; r < n_row && (half || brain); r++) {
        QN_TRY(load_row(c, it, r, err));
        half = half && holds(MLX_F16, c->w, (size_t)n_col);
        brain = brain && holds(MLX_BF16, c->w, (size_t)n_col);
    }
    it->dtype = half ? MLX_F16 : brain ? MLX_BF16 : MLX_F32;
    return QN_OK;
}

static bool is_vector(const struct gguf_tensor *t)
{
    return t->n_row == 1 && t->n_dim == 1;
}

/* Memory for one row of the widest tensor: below a small multiple of the file's size. */
static enum qn_status alloc_row(struct conv *c, struct qn_err *err)
{
    size_t n = AFFINE_GROUP;
    for (size_t i = 0; i < c->g.n_tensor; i++)
        if ((size_t)c->g.tensor[i].dim[0] > n)
            n = (size_t)c->g.tensor[i].dim[0];
    c->w = malloc(n * sizeof *c->w);
    c->code = malloc(n);
    c->sc = malloc(n / AFFINE_GROUP * sizeof *c->sc);
    c->bi = malloc(n / AFFINE_GROUP * sizeof *c->bi);
    if (!c->w || !c->code || !c->sc || !c->bi)
        QN_FAIL(err, QN_NO_MEMORY, "convert", "no memory for rows of %zu values", n);
    return QN_OK;
}

static void add_out(struct conv *c, const struct item *it, const char *part, enum mlx_dtype dtype,
                    int64_t n_col)
{
    struct mlx_tensor *t = &c->out[c->n_out];
    snprintf(c->name[c->n_out], sizeof *c->name, "%s.%s", it->map.module, part);
    *t = (struct mlx_tensor){.name = c->name[c->n_out], .dtype = dtype, .n_dim = it->src->n_dim};
    for (int d = 0; d < t->n_dim; d++)
        t->dim[d] = it->src->dim[t->n_dim - 1 - d];
    t->dim[t->n_dim - 1] = n_col;
    c->n_out++;
}

static enum qn_status plan_item(struct conv *c, const struct gguf_tensor *src, struct qn_err *err)
{
    struct item *it = &c->item[c->n_item];
    *it = (struct item){.src = src, .out = c->n_out, .rep = &c->rep.t[c->n_item]};
    QN_TRY(arch_map(&c->m, src, &it->map, err));
    if (it->map.skip)
        return QN_OK;
    it->bits = is_vector(src) ? 0 : src->fmt->bits;
    if (is_vector(src) && it->map.unpermute_heads && src->fmt->kind != BLK_FLOAT)
        QN_FAIL(err, QN_UNSUPPORTED, "gguf", STR_FMT ": tensor " STR_FMT " is a bias stored as %s",
                STR_ARG(c->g.name), STR_ARG(src->name), src->fmt->name);
    if (c->p->dtype != IMPORT_AUTO)
        it->dtype = forced(c->p->dtype);
    else if (it->bits)
        QN_TRY(scale_dtype(c, it, err));
    else
        QN_TRY(float_dtype(c, it, err));
    int64_t n = src->dim[0];
    if (it->bits) {
        add_out(c, it, "weight", MLX_U32, n * it->bits / 32);
        add_out(c, it, "scales", it->dtype, n / AFFINE_GROUP);
        add_out(c, it, "biases", it->dtype, n / AFFINE_GROUP);
    } else {
        add_out(c, it, it->map.is_bias ? "bias" : "weight", it->dtype, n);
    }
    struct import_tensor *rep = it->rep;
    snprintf(rep->name, sizeof rep->name, "%s", c->name[it->out]);
    rep->format = src->fmt->name;
    rep->dtype = it->dtype;
    rep->bits = it->bits;
    rep->n_elem = src->n_elem;
    rep->exact = true;
    c->n_item++;
    return QN_OK;
}

static enum qn_status plan(struct conv *c, struct qn_err *err)
{
    size_t n = c->g.n_tensor;
    c->item = calloc(n + 1, sizeof *c->item);
    c->out = calloc(3 * n + 1, sizeof *c->out);
    c->name = calloc(3 * n + 1, sizeof *c->name);
    c->rep.t = calloc(n + 1, sizeof *c->rep.t);
    if (!c->item || !c->out || !c->name || !c->rep.t)
        QN_FAIL(err, QN_NO_MEMORY, "convert", "no memory to plan %zu tensors", n);
    QN_TRY(arch_check_complete(&c->m, err));
    QN_TRY(alloc_row(c, err));
    for (size_t i = 0; i < n; i++)
        QN_TRY(plan_item(c, &c->g.tensor[i], err));
    c->rep.n = c->n_item;
    return QN_OK;
}

/* ---- streaming ---------------------------------------------------------------------------------
 */

static enum qn_status sink_flush(struct sink *s, struct qn_err *err)
{
    QN_TRY(mlx_out_put(s->o, s->t, s->at, s->buf, s->n, err));
    s->at += s->n;
    s->n = 0;
    return QN_OK;
}

/* Room for n more bytes of the stream. */
static enum qn_status sink_room(struct sink *s, size_t n, uint8_t **out, struct qn_err *err)
{
    if (s->cap - s->n < n)
        QN_TRY(sink_flush(s, err));
    *out = s->buf + s->n;
    s->n += n;
    return QN_OK;
}

static enum qn_status sink_open(struct conv *c, struct sink *s, size_t out, size_t row_bytes,
                                struct qn_err *err)
{
    size_t cap = row_bytes > BATCH_BYTES ? row_bytes : BATCH_BYTES;
    *s = (struct sink){.o = c->o, .t = &c->out[out], .buf = malloc(cap), .cap = cap};
    if (!s->buf)
        QN_FAIL(err, QN_NO_MEMORY, "convert", "no memory for a batch of %zu bytes", cap);
    return QN_OK;
}

static enum qn_status put_row(struct conv *c, struct item *it, size_t n, struct sink s[3],
                              struct qn_err *err)
{
    uint8_t *p;
    size_t each = mlx_dtype_bytes(it->dtype), groups = n / AFFINE_GROUP;
    measure(c, it, n, it->dtype, it->rep);
    if (!it->bits) {
        QN_TRY(sink_room(&s[0], n * each, &p, err));
        store(it->dtype, c->w, n, p);
        return QN_OK;
    }
    QN_TRY(sink_room(&s[0], n * (size_t)it->bits / 8, &p, err));
    affine_pack(c->code, n, it->bits, p);
    QN_TRY(sink_room(&s[1], groups * each, &p, err));
    store(it->dtype, c->sc, groups, p);
    QN_TRY(sink_room(&s[2], groups * each, &p, err));
    store(it->dtype, c->bi, groups, p);
    return QN_OK;
}

static enum qn_status tick(struct conv *c, double bytes, struct qn_err *err)
{
    c->done += bytes;
    if (c->p->progress)
        c->p->progress(c->p->arg, c->done);
    if (c->p->cancel && atomic_load(c->p->cancel))
        QN_FAIL(err, QN_CANCELLED, "convert", "cancelled; nothing was left behind");
    return QN_OK;
}

static enum qn_status stream_rows(struct conv *c, struct item *it, struct sink s[3],
                                  struct qn_err *err)
{
    int64_t n_row, n_col;
    geometry(it, &n_row, &n_col);
    double row_bytes = (double)it->src->n_bytes / (double)n_row, pending = 0;
    for (int64_t r = 0; r < n_row; r++) {
        QN_TRY(load_row(c, it, r, err));
        QN_TRY(put_row(c, it, (size_t)n_col, s, err));
        pending += row_bytes;
        if (pending >= (double)BATCH_BYTES || r == n_row - 1) {
            QN_TRY(tick(c, pending, err));
            pending = 0;
        }
    }
    for (int i = 0; i < (it->bits ? 3 : 1); i++)
        QN_TRY(sink_flush(&s[i], err));
    return QN_OK;
}

static enum qn_status stream_item(struct conv *c, struct item *it, struct qn_err *err)
{
    struct sink s[3] = {0};
    size_t n = (size_t)it->src->dim[0], each = mlx_dtype_bytes(it->dtype);
    enum qn_status st = sink_open(c, &s[0], it->out, it->bits ? n : n * each, err);
    for (size_t i = 1; st == QN_OK && it->bits && i < 3; i++)
        st = sink_open(c, &s[i], it->out + i, n / AFFINE_GROUP * each, err);
    if (st == QN_OK)
        st = stream_rows(c, it, s, err);
    for (size_t i = 0; i < 3; i++) {
        it->rep->n_bytes += s[i].t ? s[i].t->n_bytes : 0;
        free(s[i].buf);
    }
    if (c->g.map.p)
        file_map_drop(&c->g.map, (size_t)(it->src->p - c->g.map.p), (size_t)it->src->n_bytes);
    c->rep.n_elem += it->src->n_elem;
    c->rep.n_bytes += it->rep->n_bytes;
    return st;
}

/* ---- the small files ---------------------------------------------------------------------------
 */

static void quant_facts(const struct conv *c, struct arch_quant *q, struct buf *over)
{
    int64_t bits[9] = {0}, kind[4] = {0};
    for (size_t i = 0; i < c->n_item; i++) {
        bits[c->item[i].bits] += c->item[i].bits != 0;
        kind[c->item[i].dtype] += c->item[i].src->n_elem;
    }
    *q = (struct arch_quant){.float_name = "float16"};
    for (int b = 1; b <= 8; b++)
        if (bits[b] > bits[q->default_bits])
            q->default_bits = b;
    if (kind[MLX_F32] > kind[MLX_F16] && kind[MLX_F32] > kind[MLX_BF16])
        q->float_name = "float32";
    else if (kind[MLX_BF16] > kind[MLX_F16])
        q->float_name = "bfloat16";
    for (size_t i = 0; i < c->n_item; i++) {
        const struct item *it = &c->item[i];
        if (!it->bits || it->bits == q->default_bits)
            continue;
        buf_addf(over, "%s\"%s\":{\"group_size\":%d,\"bits\":%d}", over->n ? "," : "",
                 it->map.module, AFFINE_GROUP, it->bits);
    }
    q->overrides_json = buf_str(over);
}

static enum qn_status put_file(struct conv *c, const char *name, struct buf *b, enum qn_status st,
                               struct qn_err *err)
{
    if (st == QN_OK)
        st = mlx_out_file(c->o, name, buf_str(b), err);
    buf_free(b);
    return st;
}

static enum qn_status write_configs(struct conv *c, struct qn_err *err)
{
    struct buf over = BUF_INIT, b = BUF_INIT;
    struct arch_quant q;
    quant_facts(c, &q, &over);
    enum qn_status st = buf_ok(&over, "config.json", err);
    if (st == QN_OK)
        st = arch_config(&c->m, &q, &b, err);
    st = put_file(c, "config.json", &b, st, err);
    buf_free(&over);
    QN_TRY(st);
    return put_file(c, "generation_config.json", &b, arch_generation_config(&c->m, &b, err), err);
}

static enum qn_status write_tokenizer(struct conv *c, struct qn_err *err)
{
    struct buf tok = BUF_INIT, cfg = BUF_INIT;
    enum qn_status st = gguf_tok_write(&c->g, c->m.n_vocab, c->m.n_ctx, &tok, &cfg, err);
    st = put_file(c, "tokenizer.json", &tok, st, err);
    return put_file(c, "tokenizer_config.json", &cfg, st, err);
}

/* ---- all of it ----------------------------------------------------------------------------------
 */

static enum qn_status run(struct conv *c, struct qn_err *err)
{
    double total = 0;
    QN_TRY(arch_open(&c->g, &c->m, err));
    for (size_t i = 0; i < c->g.n_tensor; i++)
        total += (double)c->g.tensor[i].n_bytes;
    if (c->p->start)
        c->p->start(c->p->arg, total);
    QN_TRY(plan(c, err));
    QN_TRY(mlx_out_create(c->p->dst, c->p->force, &c->o, err));
    QN_TRY(write_configs(c, err));
    QN_TRY(write_tokenizer(c, err));
    QN_TRY(mlx_out_declare(c->o, c->out, c->n_out, c->p->shard_max, err));
    for (size_t i = 0; i < c->n_item; i++)
        QN_TRY(stream_item(c, &c->item[i], err));
    return mlx_out_commit(c->o, err);
}

enum qn_status import_gguf(const struct import_params *p, struct import_report *rep,
                           struct qn_err *err)
{
    struct conv c = {.p = p};
    *rep = (struct import_report){0};
    QN_TRY(gguf_open(p->src, &c.g, err));
    enum qn_status st = run(&c, err);
    if (st == QN_OK) {
        *rep = c.rep;
        rep->arch = arch_model_type(&c.m);
        c.rep.t = NULL;
    }
    mlx_out_free(c.o);
    gguf_close(&c.g);
    free(c.item);
    free(c.out);
    free(c.name);
    free(c.rep.t);
    free(c.w);
    free(c.code);
    free(c.sc);
    free(c.bi);
    return st;
}

void import_report_free(struct import_report *rep)
{
    free(rep->t);
    *rep = (struct import_report){0};
}
