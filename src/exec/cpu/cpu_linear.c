/*
 * cpu_linear.c - products of one input with up to LINEAR_MAX matrices as a single pool region.
 *
 * The input is quantized once per group size among the parts. A chunk is a run of blocks of one
 * part times a panel of at most PANEL rows; neighbouring chunks share the panel, so its activations
 * stay in the second-level cache while weights stream.
 */
#include <string.h>

#include "exec/cpu/cpu_ops.h"

enum { PANEL = 128, CHUNK_WEIGHTS = 16 << 10, QUANT_ROWS = 4 };
/* Chunks that a thread should have at least, so that all end at about the same time; rows that are
 * many for a kernel (kernels.gemm_q_many). */
enum { CHUNKS_THREAD = 3, MANY = 16 };

struct part {
    struct packed pk;
    float *dst; /* first row, first column of this part */
    const float *bias;
    size_t ldd;
    struct qact q;                 /* integer formats */
    int32_t blocks_chunk, n_chunk; /* per panel */
};

struct linear_args {
    const struct kernels *kern;
    const float *x;
    size_t ldx;
    int32_t n_row, n_part, n_panel, chunks_panel;
    bool reference;
    struct part part[LINEAR_MAX];
};
_Static_assert(sizeof(struct linear_args) <= POOL_ARGS_MAX, "job arguments");

struct piece { /* a chunk, resolved */
    const struct part *p;
    int32_t b0, b1, m0, nm;
};

static struct piece piece_of(const struct linear_args *a, int chunk)
{
    int32_t panel = chunk / a->chunks_panel, c = chunk % a->chunks_panel;
    const struct part *p = a->part;
    while (c >= p->n_chunk)
        c -= p++->n_chunk;
    struct piece w = {.p = p, .b0 = c * p->blocks_chunk, .m0 = panel * PANEL};
    w.b1 = w.b0 + p->blocks_chunk;
    if (w.b1 > pack_n_block(p->pk.n))
        w.b1 = pack_n_block(p->pk.n);
    w.nm = a->n_row - w.m0 < PANEL ? a->n_row - w.m0 : PANEL;
    return w;
}

static int32_t piece_cols(const struct piece *w)
{
    int32_t end = w->b1 * PACK_ROWS < w->p->pk.n ? w->b1 * PACK_ROWS : w->p->pk.n;
    return end - w->b0 * PACK_ROWS;
}

static int linear_regions(const void *args, int chunk, struct pool_region *r)
{
    struct piece w = piece_of(args, chunk);
    float *dst = w.p->dst + (size_t)w.m0 * w.p->ldd + (size_t)w.b0 * PACK_ROWS;
    r[0] = (struct pool_region){(char *)dst, w.nm, (size_t)piece_cols(&w) * sizeof(float),
                                w.p->ldd * sizeof(float)};
    return 1;
}

static void linear_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct linear_args *a = args;
    struct piece w = piece_of(a, chunk);
    const struct packed *pk = &w.p->pk;
    float *dst = (float *)r[0].p;
    size_t ldd = r[0].stride / sizeof(float);
    int32_t cols = piece_cols(&w);
    const float *x = a->x + (size_t)w.m0 * a->ldx;
    if (a->reference)
        ref_gemm(pk, w.b0 * PACK_ROWS, w.b0 * PACK_ROWS + cols, &(struct ref_rows){x, a->ldx, w.nm},
                 dst, ldd, work);
    else if (pack_is_int(pk->kind))
        a->kern->gemm_q(pk, w.b0, w.b1, &w.p->q, w.m0, w.nm, dst, ldd, work);
    else
        a->kern->gemm_f(pk, w.b0, w.b1, x, a->ldx, w.nm, dst, ldd, work);
    if (w.p->bias)
        for (int32_t m = 0; m < w.nm; m++)
            for (int32_t i = 0; i < cols; i++)
                dst[(size_t)m * ldd + (size_t)i] += w.p->bias[w.b0 * PACK_ROWS + i];
}

/* ---- quantizing the input ---------------------------------------------------------------------
 */

struct quant_args {
    const struct kernels *kern;
    const float *x;
    size_t ldx;
    struct qact q;
    int32_t n_row;
};

static int quant_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct quant_args *a = args;
    size_t m0 = (size_t)chunk * QUANT_ROWS, k = (size_t)a->q.k, ng = k / (size_t)a->q.group;
    int32_t n = a->n_row - (int32_t)m0 < QUANT_ROWS ? a->n_row - (int32_t)m0 : QUANT_ROWS;
    r[0] = (struct pool_region){(char *)(a->q.a + m0 * k), n, k * 2, k * 2};
    r[1] = (struct pool_region){(char *)(a->q.scale + m0 * ng), n, ng * 4, ng * 4};
    r[2] = (struct pool_region){(char *)(a->q.sum + m0 * ng), n, ng * 4, ng * 4};
    return 3;
}

static void quant_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct quant_args *a = args;
    for (int32_t i = 0; i < r[0].rows; i++) {
        struct qact q = a->q;
        q.a = (int16_t *)(r[0].p + (size_t)i * r[0].stride);
        q.scale = (float *)(r[1].p + (size_t)i * r[1].stride);
        q.sum = (float *)(r[2].p + (size_t)i * r[2].stride);
        a->kern->quantize(a->x + ((size_t)chunk * QUANT_ROWS + (size_t)i) * a->ldx, &q, 0);
    }
}

static void quantize_rows(struct exec *ex, const struct qact *q, const struct tensor *x)
{
    struct quant_args a = {ex->kern, x->p, (size_t)x->cols, *q, x->rows};
    if (x->rows < 2 * QUANT_ROWS) {
        for (int32_t m = 0; m < x->rows; m++)
            ex->kern->quantize(x->p + (size_t)m * (size_t)x->cols, q, m);
        return;
    }
    struct pool_job job = {quant_regions, quant_run, &a, sizeof a,
                           (x->rows + QUANT_ROWS - 1) / QUANT_ROWS};
    pool_run(ex->pool, &job);
}

/* The activations of x for a group size; quantized once per call. */
struct qact cpu_quantized(struct exec *ex, int32_t group, const struct tensor *x, bool *done)
{
    int slot = __builtin_ctz((unsigned)group) - 4;
    struct qact q = ex->qact[slot];
    QN_ASSERT(q.a && (size_t)x->rows * (size_t)x->cols <= ex->qact_values[slot]);
    q.k = x->cols;
    if (!done[slot])
        quantize_rows(ex, &q, x);
    done[slot] = true;
    return q;
}

/* ---- entry ------------------------------------------------------------------------------------
 */

static int32_t n_panel(int32_t rows)
{
    return (rows + PANEL - 1) / PANEL;
}

/* Blocks of a chunk: CHUNK_WEIGHTS, or up to what the kernel wants for many rows as long as there
 * are enough chunks for all threads. */
static int32_t blocks_chunk(const struct exec *ex, const struct packed *pk, int32_t rows)
{
    const int64_t n = pack_n_block(pk->n), bytes = (int64_t)pk->block_bytes;
    int64_t blocks = CHUNK_WEIGHTS / bytes, least = n / (POOL_CHUNK_MAX / 8) + 1;
    if (rows >= MANY && pack_is_int(pk->kind)) {
        int64_t many = ex->kern->gemm_q_many / bytes;
        int64_t fair = n * n_panel(rows) / (CHUNKS_THREAD * pool_n_thread(ex->pool));
        many = many < fair ? many : fair;
        blocks = blocks > many ? blocks : many;
    }
    return (int32_t)(blocks < least ? least : blocks);
}

void cpu_linear(struct exec *ex, const struct linear *parts, int32_t n, const struct tensor *x)
{
    QN_ASSERT(n >= 1 && n <= LINEAR_MAX);
    struct linear_args a = {.kern = ex->kern,
                            .x = x->p,
                            .ldx = (size_t)x->cols,
                            .n_row = x->rows,
                            .n_part = n,
                            .reference = ex->reference};
    bool done[QACT_GROUPS] = {false};
    if (x->rows == 0)
        return;
    for (int32_t i = 0; i < n; i++) {
        const struct packed *pk = &parts[i].w->pk;
        struct tensor *dst = parts[i].dst;
        QN_ASSERT(dst != x && pk->k == x->cols && parts[i].col + pk->n <= dst->cols);
        dst->rows = x->rows;
        struct part *p = &a.part[i];
        *p = (struct part){.pk = *pk,
                           .dst = dst->p + parts[i].col,
                           .ldd = (size_t)dst->cols,
                           .bias = parts[i].bias ? parts[i].bias->vec : NULL};
        if (!ex->reference && pack_is_int(pk->kind))
            p->q = cpu_quantized(ex, pk->group, x, done);
        p->blocks_chunk = blocks_chunk(ex, pk, x->rows);
        p->n_chunk = (pack_n_block(pk->n) + p->blocks_chunk - 1) / p->blocks_chunk;
        a.chunks_panel += p->n_chunk;
    }
    a.n_panel = n_panel(x->rows);
    struct pool_job job = {linear_regions, linear_run, &a, sizeof a, a.n_panel * a.chunks_panel};
    pool_run(ex->pool, &job);
}
