/*
 * weight.c - from the bytes of a checkpoint to the packed layout of kernels.h.
 *
 * Integer codes keep their width, their scales and biases the checkpoint's type. MXFP4 and NVFP4
 * go to PACK_E2M1 with a bf16 scale, which holds theirs exactly; NVFP4 under a global scale has
 * float32 ones. MXFP8 becomes bf16, exactly.
 * Everything is a pure function of one (block, group) unit, spread over the pool.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"
#include "kernels/ref/ref.h"

static bool is_integer(enum weight_format f)
{
    return f == WEIGHT_AFFINE || f == WEIGHT_MXFP4 || f == WEIGHT_NVFP4;
}

static int32_t group_of(const struct weight_src *s)
{
    return s->format == WEIGHT_NVFP4 ? 16 : s->format == WEIGHT_MXFP4 ? 32 : s->group;
}

static bool has_global_scale(const struct weight_src *s)
{
    return s->global_scales || s->global_scale != 0;
}

/* ---- biases that need no memory -------------------------------------------------------------- */

/* Whether bias i is exactly -2^(bits-1) times scale i. Numbers that flush-to-zero would change do
 * not count. */
static bool centred_f32(float scale, float bias, int bits)
{
    return (scale == 0 || isnormal(scale)) && scale * -ldexpf(1, bits - 1) == bias;
}

static bool centred_at(const struct weight_src *s, size_t i)
{
    uint16_t scale, bias;
    float f, g;
    if (s->scale_type == SCALE_F32) {
        memcpy(&f, s->scales + 4 * i, 4);
        memcpy(&g, s->biases + 4 * i, 4);
        return centred_f32(f, g, s->bits);
    }
    memcpy(&scale, s->scales + 2 * i, 2);
    memcpy(&bias, s->biases + 2 * i, 2);
    if (s->scale_type == SCALE_BF16)
        return centred_f32(ref_bf16(scale), ref_bf16(bias), s->bits);
    int e = scale >> 10 & 31; /* most are normal and stay so: what remains takes long */
    if (e > 0 && e + s->bits - 1 < 31)
        return bias == (uint16_t)((scale ^ 0x8000) + ((s->bits - 1) << 10));
    return centred_f32(ref_f16(scale), ref_f16(bias), s->bits);
}

static bool is_centred(const struct weight_src *s)
{
    size_t n = (size_t)(s->n_stack ? s->n_stack : 1) * (size_t)s->n * (size_t)(s->k / s->group);
    for (size_t i = 0; i < n; i++)
        if (!centred_at(s, i))
            return false;
    return true;
}

/* centred: its biases are not kept. */
static struct packed shape_with(const struct weight_src *s, bool centred)
{
    struct packed pk = {.n = s->n, .k = s->k};
    if (is_integer(s->format)) {
        pk.kind = s->format != WEIGHT_AFFINE ? PACK_E2M1
                  : s->bits == 8             ? PACK_U8
                                             : (enum pack_kind)(PACK_U2 + s->bits - 2);
        pk.scale = s->format == WEIGHT_AFFINE                         ? s->scale_type
                   : s->format == WEIGHT_NVFP4 && has_global_scale(s) ? SCALE_F32
                                                                      : SCALE_BF16;
        pk.group = group_of(s);
        pk.centred = s->format == WEIGHT_AFFINE && centred;
    } else {
        pk.kind = s->format == WEIGHT_F32   ? PACK_F32
                  : s->format == WEIGHT_F16 ? PACK_F16
                                            : PACK_BF16;
    }
    pk.block_bytes = pack_block_bytes(&pk);
    return pk;
}

static struct packed shape_of(const struct weight_src *s)
{
    return shape_with(s, s->format == WEIGHT_AFFINE && is_centred(s));
}

static size_t bytes_of(const struct weight_src *s, const struct packed *pk)
{
    return (size_t)pack_n_block(s->n) * pk->block_bytes * (size_t)(s->n_stack ? s->n_stack : 1);
}

/* ---- one unit: the rows of block b, inputs of group g ---------------------------------------- */

struct pack_args {
    struct weight_src src;
    struct packed pk;
    uint8_t *dst;
    int32_t n_group;   /* units per block */
    int32_t unit_k;    /* inputs per unit */
    size_t unit_bytes; /* bytes of a unit */
    int64_t n_unit;
    int32_t units_chunk; /* units per pool chunk */
};

/* Four words of codes in rising order -> the order of kernels.h (both are unzips of neighbours):
 * nibbles k0..k7 -> k0 k2 k4 k6 k1 k3 k5 k7;  bytes k0..k3 -> k0 k2 k1 k3. */
typedef uint32_t words4 __attribute__((vector_size(16)));

static words4 bytes_pair(words4 x)
{
    words4 t = (x ^ x >> 8) & 0x0000FF00u;
    return x ^ t ^ t << 8;
}

static words4 nibbles_pair(words4 x)
{
    words4 t = (x ^ x >> 4) & 0x00F000F0u;
    return bytes_pair(x ^ t ^ t << 4);
}

/* 4 rows x 4 words, transposed: line i gets word i of each row. */
static void lines_4x4(uint8_t *line, const uint8_t *p, size_t row_bytes, int bits)
{
    words4 r[4], lo0, lo1, hi0, hi1, out[4];
    for (int i = 0; i < 4; i++) {
        memcpy(&r[i], p + (size_t)i * row_bytes, 16);
        r[i] = bits == 4 ? nibbles_pair(r[i]) : bytes_pair(r[i]);
    }
    lo0 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    lo1 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    hi0 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    hi1 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    out[0] = __builtin_shufflevector(lo0, lo1, 0, 1, 4, 5);
    out[1] = __builtin_shufflevector(lo0, lo1, 2, 3, 6, 7);
    out[2] = __builtin_shufflevector(hi0, hi1, 0, 1, 4, 5);
    out[3] = __builtin_shufflevector(hi0, hi1, 2, 3, 6, 7);
    for (int i = 0; i < 4; i++)
        memcpy(line + (size_t)i * 64, &out[i], 16);
}

/* 4- and 8-bit rows are already words of whole codes, four or more to a group. */
static void lines_words(const struct pack_args *a, int32_t b, int32_t g, uint8_t *line)
{
    const struct weight_src *s = &a->src;
    const int bits = pack_bits(a->pk.kind);
    size_t row_bytes = (size_t)s->k * (size_t)bits / 8;
    int32_t n = a->unit_k * bits / 32;
    const uint8_t *p = s->data + (size_t)b * PACK_ROWS * row_bytes + (size_t)g * (size_t)n * 4;
    int32_t rows = s->n - b * PACK_ROWS < PACK_ROWS ? s->n - b * PACK_ROWS : PACK_ROWS, r = 0;
    for (; rows - r >= 4; r += 4, p += 4 * row_bytes)
        for (int32_t i = 0; i < n; i += 4)
            lines_4x4(line + (size_t)i * 64 + (size_t)r * 4, p + (size_t)i * 4, row_bytes, bits);
    if (r == PACK_ROWS)
        return;
    uint8_t ragged[4][GROUP_MAX] = {{0}}; /* the last rows of a matrix, zeros behind */
    for (int32_t i = 0; i < rows - r; i++)
        memcpy(ragged[i], p + (size_t)i * row_bytes, (size_t)n * 4);
    for (; r < PACK_ROWS; r += 4) {
        for (int32_t i = 0; i < n; i += 4)
            lines_4x4(line + (size_t)i * 64 + (size_t)r * 4, ragged[0] + i * 4, GROUP_MAX, bits);
        memset(ragged, 0, sizeof ragged);
    }
}

/* 32 codes of a row (its bits/8 times 32 bytes at p) -> the row's words of a run of lines. */
static void run_words(uint32_t words[8], const uint8_t *p, int bits)
{
    const int per = 16 / bits, left = 16 - per * bits, most = 2 * per * bits;
    uint64_t have = 0;
    int n_have = 0, at[2] = {0, 0}; /* bits in hand; bits above the codes used, by half */
    memset(words, 0, 8 * sizeof *words);
    for (int i = 0; i < 32; i++) {
        while (n_have < bits) {
            have |= (uint64_t)*p++ << n_have;
            n_have += 8;
        }
        uint32_t code = (uint32_t)have & ((1u << bits) - 1);
        int half = i & 1, base = half * 16;
        have >>= bits;
        n_have -= bits;
        if (i < most) {
            words[i / 2 / per] |= code << (base + i / 2 % per * bits);
            continue;
        }
        for (int b = 0; b < bits; b++, at[half]++)
            words[at[half] / left] |= (code >> b & 1) << (base + per * bits + at[half] % left);
    }
}

/* Any width, in groups that are a multiple of 32. */
static void lines_runs(const struct pack_args *a, int32_t b, int32_t g, uint8_t *line)
{
    const struct weight_src *s = &a->src;
    const int bits = pack_bits(a->pk.kind);
    size_t row_bytes = (size_t)s->k * (size_t)bits / 8;
    for (int32_t i = 0; i < a->unit_k; i += 32, line += bits * 64)
        for (int32_t r = 0; r < PACK_ROWS; r++) {
            uint32_t words[8] = {0};
            size_t at = (size_t)(g * a->unit_k + i) * (size_t)bits / 8;
            if (b * PACK_ROWS + r < s->n)
                run_words(words, s->data + (size_t)(b * PACK_ROWS + r) * row_bytes + at, bits);
            for (int32_t w = 0; w < bits; w++)
                memcpy(line + w * 64 + r * 4, &words[w], 4);
        }
}

/* Groups of 16 codes of 4 bits: two words. */
static void lines_group16(const struct pack_args *a, int32_t b, int32_t g, uint8_t *line)
{
    const struct weight_src *s = &a->src;
    memset(line, 0, 128);
    for (int32_t r = 0; r < PACK_ROWS && b * PACK_ROWS + r < s->n; r++) {
        words4 w = {0};
        memcpy(&w, s->data + ((size_t)(b * PACK_ROWS + r) * (size_t)s->k + (size_t)g * 16) / 2, 8);
        w = nibbles_pair(w);
        memcpy(line + r * 4, &w, 4);
        memcpy(line + 64 + r * 4, (const char *)&w + 4, 4);
    }
}

static void put_scale(const struct pack_args *a, int32_t row, int32_t g, uint8_t *scale,
                      uint8_t *bias)
{
    const struct weight_src *s = &a->src;
    size_t at = (size_t)row * (size_t)a->n_group + (size_t)g, sb = pack_scale_bytes(a->pk.scale);
    if (s->format == WEIGHT_AFFINE) {
        memcpy(scale, s->scales + at * sb, sb);
        if (!a->pk.centred)
            memcpy(bias, s->biases + at * sb, sb);
        return;
    }
    float f = s->format == WEIGHT_MXFP4 ? ref_e8m0(s->scales[at]) : ref_e4m3(s->scales[at]);
    if (s->format == WEIGHT_NVFP4 && s->global_scale != 0)
        f = f * s->global_scale / 2688.0f;
    f *= 0.5f; /* codes stand for twice the value */
    uint16_t h = ref_to_bf16(f);
    memcpy(scale, sb == 4 ? (const void *)&f : &h, sb);
}

/* Scales and biases of two bytes, the usual case. */
static void put_halves(const struct pack_args *a, int32_t b, int32_t g, int32_t rows, uint8_t *p)
{
    size_t at = (size_t)b * PACK_ROWS * (size_t)a->n_group + (size_t)g;
    const uint8_t *s = a->src.scales + at * 2, *z = a->src.biases + at * 2;
    for (int32_t r = 0; r < rows; r++, s += a->n_group * 2, z += a->n_group * 2) {
        memcpy(p + r * 2, s, 2);
        if (!a->pk.centred)
            memcpy(p + (PACK_ROWS + r) * 2, z, 2);
    }
}

static void pack_unit_integer(const struct pack_args *a, int32_t b, int32_t g, uint8_t *p)
{
    size_t sb = pack_scale_bytes(a->pk.scale);
    size_t head = pack_head_bytes(a->pk.kind, a->pk.scale, a->pk.centred);
    int32_t rows = a->src.n - b * PACK_ROWS < PACK_ROWS ? a->src.n - b * PACK_ROWS : PACK_ROWS;
    if (rows < PACK_ROWS)
        memset(p, 0, head);
    if (a->src.format == WEIGHT_AFFINE && sb == 2)
        put_halves(a, b, g, rows, p);
    else
        for (int32_t r = 0; r < rows; r++)
            put_scale(a, b * PACK_ROWS + r, g, p + (size_t)r * sb,
                      p + (PACK_ROWS + (size_t)r) * sb);
    p += head;
    if (a->unit_k == 16)
        lines_group16(a, b, g, p);
    else if (pack_bits(a->pk.kind) == 4 || pack_bits(a->pk.kind) == 8)
        lines_words(a, b, g, p);
    else
        lines_runs(a, b, g, p);
}

static void float_at(const struct weight_src *s, int32_t row, int32_t k, uint8_t *dst)
{
    size_t at = (size_t)row * (size_t)s->k + (size_t)k;
    if (s->format == WEIGHT_MXFP8) {
        float scale = ref_e8m0(s->scales[at / 32]);
        uint16_t h = ref_to_bf16(ref_e4m3(s->data[at]) * scale);
        memcpy(dst, &h, 2);
    } else {
        size_t elem = s->format == WEIGHT_F32 ? 4 : 2;
        memcpy(dst, s->data + at * elem, elem);
    }
}

static void pack_unit_float(const struct pack_args *a, int32_t b, int32_t g, uint8_t *p)
{
    size_t elem = a->src.format == WEIGHT_F32 ? 4 : 2;
    int32_t k0 = g * a->unit_k, kn = a->src.k - k0 < a->unit_k ? a->src.k - k0 : a->unit_k;
    memset(p, 0, (size_t)kn * PACK_ROWS * elem);
    for (int32_t r = 0; r < PACK_ROWS && b * PACK_ROWS + r < a->src.n; r++)
        for (int32_t k = 0; k < kn; k++)
            float_at(&a->src, b * PACK_ROWS + r, k0 + k,
                     p + ((size_t)k * PACK_ROWS + (size_t)r) * elem);
}

/* ---- the pool job ---------------------------------------------------------------------------- */

/* Byte offset of a unit; floats may have a short last unit per block. */
static size_t unit_offset(const struct pack_args *a, int64_t u)
{
    return (size_t)(u / a->n_group) * a->pk.block_bytes + (size_t)(u % a->n_group) * a->unit_bytes;
}

static int pack_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct pack_args *a = args;
    int64_t u0 = (int64_t)chunk * a->units_chunk, u1 = u0 + a->units_chunk;
    size_t end =
        u1 >= a->n_unit ? (size_t)pack_n_block(a->src.n) * a->pk.block_bytes : unit_offset(a, u1);
    size_t begin = unit_offset(a, u0);
    r[0] = (struct pool_region){(char *)a->dst + begin, 1, end - begin, end - begin};
    return 1;
}

static void pack_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct pack_args *a = args;
    int64_t u0 = (int64_t)chunk * a->units_chunk, u1 = u0 + a->units_chunk;
    size_t begin = unit_offset(a, u0);
    for (int64_t u = u0; u < u1 && u < a->n_unit; u++) {
        uint8_t *p = (uint8_t *)r[0].p + (unit_offset(a, u) - begin);
        int32_t b = (int32_t)(u / a->n_group), g = (int32_t)(u % a->n_group);
        if (is_integer(a->src.format))
            pack_unit_integer(a, b, g, p);
        else
            pack_unit_float(a, b, g, p);
    }
}

static void pack_all(struct exec *ex, const struct weight_src *s, const struct packed *pk,
                     uint8_t *dst)
{
    enum { CHUNK_BYTES = 128 << 10, FLOAT_UNIT = 256 };
    struct pack_args a = {.src = *s, .pk = *pk, .dst = dst};
    bool integer = is_integer(s->format);
    a.unit_k = integer ? pk->group : FLOAT_UNIT;
    a.n_group = (s->k + a.unit_k - 1) / a.unit_k;
    a.unit_bytes = integer ? pack_group_bytes(pk)
                           : (size_t)FLOAT_UNIT * PACK_ROWS * (pk->kind == PACK_F32 ? 4 : 2);
    a.n_unit = (int64_t)pack_n_block(s->n) * a.n_group;
    int64_t per = CHUNK_BYTES / (int64_t)a.unit_bytes + 1;
    if (a.n_unit / per >= POOL_CHUNK_MAX)
        per = a.n_unit / POOL_CHUNK_MAX + 1;
    a.units_chunk = (int32_t)per;
    struct pool_job job = {pack_regions, pack_run, &a, sizeof a, (int)((a.n_unit + per - 1) / per)};
    pool_run(ex->pool, &job);
}

/* ---- loading --------------------------------------------------------------------------------- */

static enum qn_status weight_new(struct exec *ex, const struct weight_src *s, struct weight **out,
                                 struct qn_err *err)
{
    struct weight *w = calloc(1, sizeof *w);
    if (!w || !list_push((void ***)&ex->weights, &ex->n_weight, &ex->cap_weight, w)) {
        free(w);
        QN_FAIL(err, QN_NO_MEMORY, "weight", "%s: out of memory", s->name);
    }
    w->n = s->n;
    *out = w;
    return QN_OK;
}

/* Room for the quantized rows of a step times the inputs of a matrix, for each group size in use; a
 * row of a step is one for each matrix of a stack that it is given to. */
static enum qn_status qact_grow(struct exec *ex, const struct weight_src *s, int32_t group,
                                struct qn_err *err)
{
    int slot = __builtin_ctz((unsigned)group) - 4;
    struct qact *q = &ex->qact[slot];
    size_t rows = (size_t)ex->max_rows * (size_t)(s->n_stack ? s->active : 1);
    size_t n = rows * (size_t)s->k, ng = n / (size_t)group;
    if (q->a && ex->qact_values[slot] >= n)
        return QN_OK;
    ex->qact_values[slot] = n;
    pool_quiesce(ex->pool);
    free(q->a);
    free(q->scale);
    free(q->sum);
    q->a = aligned_alloc(64, (n * sizeof *q->a + 127) & ~(size_t)63);
    q->scale = calloc(ng, sizeof *q->scale);
    q->sum = calloc(ng, sizeof *q->sum);
    q->group = group;
    if (!q->a || !q->scale || !q->sum)
        QN_FAIL(err, QN_NO_MEMORY, "weight", "out of memory for activations of %zu x %d", rows,
                s->k);
    memset(q->a, 0, n * sizeof *q->a);
    return QN_OK;
}

enum qn_status weight_share(struct exec *ex, const struct weight *w, struct qn_err *err)
{
    QN_ASSERT(!w->n_stack && !w->vec);
    if (w->pk.kind != PACK_U4 && w->pk.kind != PACK_U8)
        return QN_OK;
    return qact_grow(ex, &(struct weight_src){.k = w->pk.k}, w->pk.group, err);
}

static enum qn_status check_src(const struct weight_src *s, struct qn_err *err)
{
    if (s->n < 1 || s->k < 1 || s->n > (1 << 28) || s->k > WEIGHT_DIM_MAX)
        QN_FAIL(err, QN_UNSUPPORTED, "weight", "%s: %d outputs of %d inputs is out of range",
                s->name, s->n, s->k);
    if (s->n_stack < 0 || s->n_stack > MOE_EXPERT_MAX || (s->n_stack && s->active < 1) ||
        (s->active > MOE_TOP_MAX && s->active != s->n_stack))
        QN_FAIL(err, QN_UNSUPPORTED, "weight", "%s: %d of %d matrices at a time; at most %d of %d",
                s->name, s->active, s->n_stack, MOE_TOP_MAX, MOE_EXPERT_MAX);
    if (!is_integer(s->format))
        return QN_OK;
    int32_t g = group_of(s);
    if ((g != 16 && g != 32 && g != 64 && g != 128) || s->k % g)
        QN_FAIL(err, QN_BAD_INPUT, "weight",
                "%s: %d inputs in groups of %d; groups are 32, 64 or 128 and divide the inputs",
                s->name, s->k, g);
    if (s->format == WEIGHT_AFFINE && (s->bits < 2 || s->bits == 7 || s->bits > 8 || g == 16))
        QN_FAIL(err, QN_BAD_INPUT, "weight", "%s: %d bits in groups of %d; bits are 2,3,4,5,6,8",
                s->name, s->bits, g);
    return QN_OK;
}

/* Matrix e of a stack as a source of its own. */
static struct weight_src stack_at(const struct weight_src *s, int32_t e)
{
    struct weight_src one = *s;
    size_t n = (size_t)s->n, k = (size_t)s->k, row = s->format == WEIGHT_F32 ? 4 * k : 2 * k;
    if (s->global_scales)
        memcpy(&one.global_scale, s->global_scales + 4 * (size_t)e, 4);
    if (e == 0)
        return one;
    if (s->scales) {
        size_t sb = s->format == WEIGHT_AFFINE ? pack_scale_bytes(s->scale_type) : 1;
        size_t step = (size_t)e * n * (k / (size_t)s->group) * sb;
        row = k * (size_t)s->bits / 8;
        one.scales += step;
        one.biases = s->biases ? s->biases + step : NULL;
    }
    one.data += (size_t)e * n * row;
    return one;
}

enum qn_status weight_load(struct exec *ex, const struct weight_src *s, struct weight **out,
                           struct qn_err *err)
{
    QN_TRY(check_src(s, err));
    size_t room = ex->region_bytes - ex->region_used;
    struct packed pk = shape_with(s, true); /* the least: too much of it is refused unread */
    size_t bytes = bytes_of(s, &pk);
    if (bytes <= room) {
        pk = shape_of(s);
        bytes = bytes_of(s, &pk);
    }
    if (bytes > room)
        QN_FAIL(err, QN_INTERNAL, "weight", "%s: %zu bytes do not fit into the reserved region",
                s->name, bytes);
    struct weight *w = NULL;
    QN_TRY(weight_new(ex, s, &w, err));
    if (is_integer(s->format))
        QN_TRY(qact_grow(ex, s, pk.group, err));
    uint8_t *dst = ex->region + ex->region_used;
    ex->region_used += bytes;
    w->n_stack = s->n_stack;
    w->stack_bytes = bytes / (size_t)(s->n_stack ? s->n_stack : 1);
    for (int32_t e = 0; e < (s->n_stack ? s->n_stack : 1); e++) {
        struct weight_src one = stack_at(s, e);
        pack_all(ex, &one, &pk, dst + (size_t)e * w->stack_bytes);
    }
    pk.p = dst;
    w->pk = pk;
    w->bytes = bytes;
    *out = w;
    return QN_OK;
}

enum qn_status weight_load_vec(struct exec *ex, const struct weight_src *s, struct weight **out,
                               struct qn_err *err)
{
    QN_TRY(check_src(s, err));
    if (is_integer(s->format) || s->format == WEIGHT_MXFP8)
        QN_FAIL(err, QN_UNSUPPORTED, "weight", "%s: a vector must be f32, f16 or bf16", s->name);
    struct weight *w = NULL;
    QN_TRY(weight_new(ex, s, &w, err));
    size_t n = (size_t)s->n * (size_t)s->k;
    w->vec = malloc(n * sizeof *w->vec);
    if (!w->vec)
        QN_FAIL(err, QN_NO_MEMORY, "weight", "%s: out of memory for %zu floats", s->name, n);
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        float *to = &w->vec[s->transpose ? i % (size_t)s->k * (size_t)s->n + i / (size_t)s->k : i];
        if (s->format == WEIGHT_F32) {
            memcpy(to, s->data + 4 * i, 4);
            continue;
        }
        memcpy(&h, s->data + 2 * i, 2);
        *to = s->format == WEIGHT_F16 ? ref_f16(h) : ref_bf16(h);
    }
    w->n = (int32_t)n;
    w->bytes = n * sizeof *w->vec;
    *out = w;
    return QN_OK;
}

void weight_free(struct weight *w)
{
    free(w->vec);
    free(w);
}

size_t weight_bytes(const struct weight *w)
{
    return w->bytes;
}

int32_t weight_rows(const struct weight *w)
{
    return w->n;
}
