/*
 * cpu_heads.c - attention over a latent: a product per head, and putting keys, values and queries
 * together.
 *
 * The rows of a head lie behind each other once quantized, [head][row], so that a head is a matrix
 * product like any other. A chunk is a run of blocks of one head times a panel of at most PANEL
 * rows.
 */
#include <string.h>

#include "exec/cpu/cpu_ops.h"

enum { PANEL = 128, CHUNK_WEIGHTS = 16 << 10, QUANT_ROWS = 8 };

/* ---- a product per head -----------------------------------------------------------------------
 */

struct heads_args {
    const struct kernels *kern;
    struct packed pk; /* of head 0 */
    size_t stack_bytes;
    const float *x;
    float *dst;
    size_t ldx, ldd, slot; /* slot: from a head's input to the next one's */
    struct qact q;         /* integer formats: [head][row] */
    int32_t n_row, n_head, n_panel, n_run, blocks_run;
    int32_t chunk0; /* a region holds at most POOL_CHUNK_MAX chunks: this one's first */
    bool reference;
};
_Static_assert(sizeof(struct heads_args) <= POOL_ARGS_MAX, "job arguments");

struct heads_piece {
    int32_t head, b0, b1, m0, nm, cols;
};

static struct heads_piece heads_piece_of(const struct heads_args *a, int chunk)
{
    int32_t c = chunk + a->chunk0, run = c % a->n_run;
    struct heads_piece p = {.head = c / a->n_run / a->n_panel, .b0 = run * a->blocks_run};
    p.m0 = c / a->n_run % a->n_panel * PANEL;
    p.nm = a->n_row - p.m0 < PANEL ? a->n_row - p.m0 : PANEL;
    p.b1 = p.b0 + a->blocks_run;
    if (p.b1 > pack_n_block(a->pk.n))
        p.b1 = pack_n_block(a->pk.n);
    p.cols = (p.b1 * PACK_ROWS < a->pk.n ? p.b1 * PACK_ROWS : a->pk.n) - p.b0 * PACK_ROWS;
    return p;
}

static int heads_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct heads_args *a = args;
    struct heads_piece p = heads_piece_of(a, chunk);
    float *dst = a->dst + (size_t)p.m0 * a->ldd + (size_t)p.head * (size_t)a->pk.n +
                 (size_t)p.b0 * PACK_ROWS;
    r[0] = (struct pool_region){(char *)dst, p.nm, (size_t)p.cols * sizeof(float),
                                a->ldd * sizeof(float)};
    return 1;
}

static void heads_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct heads_args *a = args;
    struct heads_piece p = heads_piece_of(a, chunk);
    struct packed pk = a->pk;
    pk.p += (size_t)p.head * a->stack_bytes;
    float *dst = (float *)r[0].p;
    size_t ldd = r[0].stride / sizeof(float);
    const float *x = a->x + (size_t)p.m0 * a->ldx + (size_t)p.head * a->slot;
    if (a->reference)
        ref_gemm(&pk, p.b0 * PACK_ROWS, p.b0 * PACK_ROWS + p.cols,
                 &(struct ref_rows){x, a->ldx, p.nm}, dst, ldd, work);
    else if (pack_is_int(pk.kind))
        a->kern->gemm_q(&pk, p.b0, p.b1, &a->q, p.head * a->n_row + p.m0, p.nm, dst, ldd, work);
    else
        a->kern->gemm_f(&pk, p.b0, p.b1, x, a->ldx, p.nm, dst, ldd, work);
}

/* ---- quantizing the heads' inputs: chunks of QUANT_ROWS of the n_head * n_row rows ----------- */

static int quant_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct heads_args *a = args;
    size_t i0 = ((size_t)chunk + (size_t)a->chunk0) * QUANT_ROWS, k = (size_t)a->q.k;
    size_t ng = k / (size_t)a->q.group, left = (size_t)a->n_row * (size_t)a->n_head - i0;
    int32_t n = left < QUANT_ROWS ? (int32_t)left : QUANT_ROWS;
    r[0] = (struct pool_region){(char *)(a->q.a + i0 * k), n, k * 2, k * 2};
    r[1] = (struct pool_region){(char *)(a->q.scale + i0 * ng), n, ng * 4, ng * 4};
    r[2] = (struct pool_region){(char *)(a->q.sum + i0 * ng), n, ng * 4, ng * 4};
    return 3;
}

static void quant_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct heads_args *a = args;
    size_t i0 = ((size_t)chunk + (size_t)a->chunk0) * QUANT_ROWS, rows = (size_t)a->n_row;
    for (int32_t i = 0; i < r[0].rows; i++) {
        size_t at = i0 + (size_t)i;
        struct qact q = a->q;
        q.a = (int16_t *)(r[0].p + (size_t)i * r[0].stride);
        q.scale = (float *)(r[1].p + (size_t)i * r[1].stride);
        q.sum = (float *)(r[2].p + (size_t)i * r[2].stride);
        a->kern->quantize(a->x + at % rows * a->ldx + at / rows * a->slot, &q, 0);
    }
}

/* Any number of chunks, as regions of at most POOL_CHUNK_MAX. */
static void run_all(struct exec *ex, struct heads_args *a, struct pool_job job, int64_t n)
{
    for (int64_t at = 0; at < n; at += POOL_CHUNK_MAX) {
        a->chunk0 = (int32_t)at;
        job.n_chunk = (int)(n - at < POOL_CHUNK_MAX ? n - at : POOL_CHUNK_MAX);
        pool_run(ex->pool, &job);
    }
}

void cpu_linear_heads(struct exec *ex, struct tensor *dst, const struct weight *w,
                      const struct tensor *x)
{
    const struct packed *pk = &w->pk;
    int32_t h = w->n_stack, blocks = pack_n_block(pk->n);
    QN_ASSERT(dst != x && h >= 1 && x->cols % h == 0 && x->cols / h >= pk->k &&
              dst->cols == h * pk->n);
    dst->rows = x->rows;
    if (x->rows == 0)
        return;
    struct heads_args a = {.kern = ex->kern,
                           .pk = *pk,
                           .stack_bytes = w->stack_bytes,
                           .x = x->p,
                           .dst = dst->p,
                           .ldx = (size_t)x->cols,
                           .ldd = (size_t)dst->cols,
                           .slot = (size_t)(x->cols / h),
                           .n_row = x->rows,
                           .n_head = h,
                           .n_panel = (x->rows + PANEL - 1) / PANEL,
                           .reference = ex->reference};
    a.blocks_run = CHUNK_WEIGHTS / (int32_t)pk->block_bytes;
    a.blocks_run = a.blocks_run < 1 ? 1 : a.blocks_run;
    a.n_run = (blocks + a.blocks_run - 1) / a.blocks_run;
    if (!ex->reference && pack_is_int(pk->kind)) {
        int slot = __builtin_ctz((unsigned)pk->group) - 4;
        int64_t rows = (int64_t)x->rows * h;
        a.q = ex->qact[slot];
        a.q.k = pk->k;
        QN_ASSERT(a.q.a && (size_t)rows * (size_t)pk->k <= ex->qact_values[slot]);
        run_all(ex, &a, (struct pool_job){quant_regions, quant_run, &a, sizeof a, 0},
                (rows + QUANT_ROWS - 1) / QUANT_ROWS);
    }
    run_all(ex, &a, (struct pool_job){heads_regions, heads_run, &a, sizeof a, 0},
            (int64_t)h * a.n_panel * a.n_run);
}

/* ---- keys, values and queries -----------------------------------------------------------------
 */

/* What a step's rows need of a latent_op; rows_job carries the rest. */
static void rope_part(const struct rows_job *j, float *y, const float *x, int32_t row)
{
    const struct rope *t = j->rope;
    const float *cs = t->cs + (size_t)row * (size_t)t->dims;
    (j->reference ? ref_rope : j->kern->rope)(y, x, t->dims, t->dims, cs, t->interleaved);
}

static void latent_query_one(const struct rows_job *j, int32_t row, float *const *out)
{
    int32_t r = j->in_cols[0] / j->n_head, q = j->in_cols[1] / j->n_head, d = j->rope->dims;
    const float *latent = j->in[0] + (size_t)row * (size_t)j->in_cols[0];
    const float *x = j->in[1] + (size_t)row * (size_t)j->in_cols[1];
    float *y = out[0];
    for (int32_t h = 0; h < j->n_head; h++, latent += r, x += q, y += r + d) {
        memcpy(y, latent, (size_t)r * sizeof *y);
        rope_part(j, y + r, x + q - d, row);
    }
}

/* Token i of a span into KV memory. */
static void latent_append_row(struct exec *ex, const struct rows_job *j, const struct latent_op *a,
                              const struct span *sp, int32_t i)
{
    int32_t row = sp->row0 + i, pos = sp->pos + i, r = a->d_latent;
    const float *x = j->in[0] + (size_t)row * (size_t)j->in_cols[0];
    const struct kv_head head = kv_head_of(ex, a->layer, 0);
    float key[HEAD_DIM_MAX];
    (j->reference ? ref_rmsnorm : j->kern->rmsnorm)(key, x, a->norm->vec, 0, a->norm_eps, r);
    rope_part(j, key + r, x + r, row);
    kv_append(ex, sp->kv, &head, a->layer, pos, key, key);
}

void cpu_latent_append(struct exec *ex, struct tensor *q_out, const struct tensor *latent,
                       const struct tensor *q, const struct tensor *kv, const struct latent_op *a)
{
    const struct kv_layer *l = &ex->kv.layers[a->layer];
    int32_t dk = a->d_latent + a->d_rope;
    QN_ASSERT(l->n_head == 1 && l->dk == dk && l->dv == a->d_latent && kv->cols == dk &&
              a->rope->dims == a->d_rope && a->norm->n == a->d_latent &&
              q->cols == a->n_head * (a->d_nope + a->d_rope) &&
              latent->cols == a->n_head * a->d_latent && q_out->cols == a->n_head * dk);
    q_out->rows = q->rows;
    struct rows_job j = {.n_row = q->rows,
                         .n_out = 1,
                         .kern = ex->kern,
                         .rope = a->rope,
                         .n_head = a->n_head,
                         .reference = ex->reference};
    j.in[0] = latent->p;
    j.in_cols[0] = latent->cols;
    j.in[1] = q->p;
    j.in_cols[1] = q->cols;
    j.out[0] = q_out->p;
    j.out_cols[0] = q_out->cols;
    rows_run(ex, &j, latent_query_one);
    j.in[0] = kv->p;
    j.in_cols[0] = kv->cols;
    for (int32_t s = 0; s < ex->step.n_span; s++)
        for (int32_t i = 0; i < ex->step.spans[s].n; i++)
            latent_append_row(ex, &j, a, &ex->step.spans[s], i);
}
