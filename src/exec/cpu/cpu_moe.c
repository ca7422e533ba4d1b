/*
 * cpu_moe.c - routed experts: each row's choice, and the chosen experts' products.
 *
 * Rows are copied behind each other by expert, so that rows which share an expert share the reading
 * of its weights, and experts that nobody chose are not read. A row's result is the sum of its
 * experts' outputs by rising expert id, whoever else is in the step.
 */
#include <math.h>
#include <string.h>

#include "exec/cpu/cpu_ops.h"

enum { PANEL = 128, CHUNK_WEIGHTS = 16 << 10, ROWS_MAX = 256 };
/* products() ends: with whole matrices as chunks, two for each panel of each expert always fit. */
_Static_assert(2 * ((int)MOE_EXPERT_MAX + (int)ROWS_MAX * (int)MOE_TOP_MAX / (int)PANEL) <=
                   (int)POOL_CHUNK_MAX,
               "pieces");

/* ---- routing ----------------------------------------------------------------------------------
 */

/* Which of equal values is chosen first; both orders are mlx's argpartition, of x and of -x. */
enum ties { TIES_HIGH, TIES_LOW };

/* The k largest of x[n] into id by rising index. */
static void choose(const float *x, int32_t n, int32_t k, enum ties ties, int32_t *id)
{
    int32_t m = 0;
    for (int32_t e = 0; e < n; e++) {
        int32_t at = m; /* id[0..m) by falling rank */
        while (at > 0 && (x[e] > x[id[at - 1]] || (ties == TIES_HIGH && x[e] == x[id[at - 1]])))
            at--;
        if (at == k)
            continue;
        m += m < k;
        memmove(id + at + 1, id + at, (size_t)(m - 1 - at) * sizeof *id);
        id[at] = e;
    }
    for (int32_t i = 1; i < k; i++) /* by index */
        for (int32_t j = i, t; j > 0 && id[j - 1] > id[j]; j--) {
            t = id[j];
            id[j] = id[j - 1];
            id[j - 1] = t;
        }
}

/* softmax over all, or over the chosen, of the chosen; sums in double over rising index */
static void weigh(const float *x, const struct moe *moe, enum route_weights kind, const int32_t *id,
                  float *w)
{
    int32_t k = moe->shape.top_k, n = kind == ROUTE_OF_ALL ? moe->shape.n_expert : k;
    double top = -INFINITY, sum = 0;
    for (int32_t i = 0; i < k; i++)
        top = fmax(top, (double)x[id[i]]);
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[kind == ROUTE_OF_ALL ? i : id[i]] - top);
    for (int32_t i = 0; i < k; i++)
        w[i] = (float)(exp((double)x[id[i]] - top) / sum);
}

/* Sorted places: those of expert e are [first[e], first[e+1]), by rising row. */
static void sort_by_expert(struct moe *moe)
{
    int32_t n = moe->n_row * moe->shape.top_k, e_max = moe->shape.n_expert;
    memset(moe->first, 0, ((size_t)e_max + 1) * sizeof *moe->first);
    for (int32_t i = 0; i < n; i++)
        moe->first[moe->ids[i] + 1]++;
    for (int32_t e = 0; e < e_max; e++) {
        moe->first[e + 1] += moe->first[e];
        moe->next[e] = moe->first[e];
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t at = moe->next[moe->ids[i]]++;
        moe->place[i] = at;
        moe->row[at] = i / moe->shape.top_k;
    }
}

void cpu_route(struct exec *ex, struct moe *moe, const struct tensor *logits,
               enum route_weights kind)
{
    int32_t k = moe->shape.top_k;
    QN_ASSERT(logits->cols == moe->shape.n_expert && logits->rows <= ROWS_MAX);
    moe->n_row = logits->rows;
    for (int32_t r = 0; r < logits->rows; r++) {
        const float *x = logits->p + (size_t)r * (size_t)logits->cols;
        choose(x, logits->cols, k, TIES_HIGH, moe->ids + (size_t)r * (size_t)k);
        weigh(x, moe, kind, moe->ids + (size_t)r * (size_t)k, moe->weights + (size_t)r * (size_t)k);
    }
    sort_by_expert(moe);
}

void cpu_route_scaled(struct exec *ex, struct moe *moe, const struct tensor *logits,
                      const struct route_scales *s)
{
    int32_t n = moe->shape.n_expert, k = moe->shape.top_k;
    QN_ASSERT(logits->cols == n && logits->rows <= ROWS_MAX && s->expert->n == n);
    moe->n_row = logits->rows;
    for (int32_t r = 0; r < logits->rows; r++) {
        const float *x = logits->p + (size_t)r * (size_t)n;
        float scaled[MOE_EXPERT_MAX], *w = moe->weights + (size_t)r * (size_t)k;
        int32_t *id = moe->ids + (size_t)r * (size_t)k;
        for (int32_t e = 0; e < n; e++)
            scaled[e] = x[e] * s->logit_scale;
        choose(x, n, k, TIES_HIGH, id);
        weigh(scaled, moe, ROUTE_OF_CHOSEN, id, w);
        for (int32_t i = 0; i < k; i++)
            w[i] *= s->expert->vec[id[i]];
    }
    sort_by_expert(moe);
}

/* Sets b[] of all groups but the best n_keep to 0. */
static void keep_groups(float *b, int32_t n, const struct route_groups *g)
{
    float sum[ROUTE_GROUP_MAX];
    int32_t kept[ROUTE_GROUP_MAX], per = n / g->n_group, two[2], at = 0;
    for (int32_t i = 0; i < g->n_group; i++) {
        const float *x = b + i * per;
        choose(x, per, 2, TIES_HIGH, two);
        sum[i] = x[two[0]] + x[two[1]];
    }
    choose(sum, g->n_group, g->n_keep, TIES_HIGH, kept);
    for (int32_t i = 0; i < g->n_group; i++) {
        if (at < g->n_keep && kept[at] == i)
            at++;
        else
            memset(b + i * per, 0, (size_t)per * sizeof *b);
    }
}

static void route_row(struct moe *moe, int32_t row, const float *x, const struct route_groups *g)
{
    float s[MOE_EXPERT_MAX], b[MOE_EXPERT_MAX];
    int32_t n = moe->shape.n_expert, k = moe->shape.top_k;
    int32_t *id = moe->ids + (size_t)row * (size_t)k;
    float *w = moe->weights + (size_t)row * (size_t)k;
    double sum = 0;
    for (int32_t e = 0; e < n; e++) {
        s[e] = (float)(1 / (1 + exp(-(double)x[e])));
        b[e] = s[e] + g->bias->vec[e];
    }
    if (g->n_group > 1)
        keep_groups(b, n, g);
    choose(b, n, k, TIES_LOW, id);
    for (int32_t i = 0; i < k; i++)
        sum += (double)s[id[i]];
    for (int32_t i = 0; i < k; i++)
        w[i] = (float)((double)s[id[i]] / (g->normed ? sum : 1) * (double)g->scale);
}

void cpu_route_groups(struct exec *ex, struct moe *moe, const struct tensor *logits,
                      const struct route_groups *g)
{
    QN_ASSERT(logits->cols == moe->shape.n_expert && g->bias->n == logits->cols &&
              g->n_group >= 1 && g->n_group <= ROUTE_GROUP_MAX && g->n_keep >= 1 &&
              g->n_keep <= g->n_group && logits->cols % g->n_group == 0 &&
              (g->n_group == 1 || logits->cols / g->n_group >= 2));
    moe->n_row = logits->rows;
    for (int32_t r = 0; r < logits->rows; r++)
        route_row(moe, r, logits->p + (size_t)r * (size_t)logits->cols, g);
    sort_by_expert(moe);
}

/* ---- products ---------------------------------------------------------------------------------
 */

struct moe_part {
    struct packed pk; /* of expert 0 */
    size_t stack_bytes;
    float *dst;
    const float *bias; /* [n_expert, n] or NULL */
    struct qact q;
    int32_t blocks_chunk;
};
struct moe_args {
    const struct kernels *kern;
    const uint64_t *pieces;
    const float *x;
    size_t ldx, ldd;
    int32_t n_place; /* places there is memory for */
    bool reference;
    struct moe_part part[2];
};
_Static_assert(sizeof(struct moe_args) <= POOL_ARGS_MAX, "job arguments");

struct moe_piece {
    int32_t m0, nm, expert, chunk, part;
};

static uint64_t piece_code(const struct moe_piece *p)
{
    return (uint64_t)p->m0 | (uint64_t)p->nm << 20 | (uint64_t)p->expert << 30 |
           (uint64_t)p->chunk << 46 | (uint64_t)p->part << 63;
}

/* One load: a late worker may see another region's piece, never half of one. */
static struct moe_piece piece_at(const struct moe_args *a, int i)
{
    uint64_t c = __atomic_load_n(&a->pieces[i], __ATOMIC_RELAXED);
    return (struct moe_piece){.m0 = (int32_t)(c & 0xFFFFF),
                              .nm = (int32_t)(c >> 20 & 0x3FF),
                              .expert = (int32_t)(c >> 30 & 0xFFFF),
                              .chunk = (int32_t)(c >> 46 & 0x1FFFF),
                              .part = (int32_t)(c >> 63)};
}

static int moe_regions(const void *args, int i, struct pool_region *r)
{
    const struct moe_args *a = args;
    struct moe_piece w = piece_at(a, i);
    const struct moe_part *p = &a->part[w.part];
    int32_t c0 = w.chunk * p->blocks_chunk * PACK_ROWS, c1 = c0 + p->blocks_chunk * PACK_ROWS;
    c1 = c1 < p->pk.n ? c1 : p->pk.n;
    r[0] = (struct pool_region){(char *)(p->dst + (size_t)w.m0 * a->ldd + c0), w.nm,
                                (size_t)(c1 - c0) * sizeof(float), a->ldd * sizeof(float)};
    return 1;
}

/* The rectangle counts, not what the piece says by now: a late worker stays inside it. */
static void moe_run(const void *args, int i, const struct pool_region *r, void *work)
{
    const struct moe_args *a = args;
    struct moe_piece w = piece_at(a, i);
    const struct moe_part *p = &a->part[w.part];
    int32_t cols = (int32_t)(r[0].row_bytes / sizeof(float)), nm = r[0].rows;
    int32_t b0 = w.chunk * p->blocks_chunk, b1 = b0 + (cols + PACK_ROWS - 1) / PACK_ROWS;
    if (!p->dst || b1 > pack_n_block(p->pk.n) || w.m0 + nm > a->n_place || !nm ||
        (b1 == pack_n_block(p->pk.n) ? p->pk.n : b1 * PACK_ROWS) - b0 * PACK_ROWS != cols)
        return;
    struct packed pk = p->pk;
    pk.p += (size_t)w.expert * p->stack_bytes;
    float *dst = (float *)r[0].p;
    size_t ldd = r[0].stride / sizeof(float);
    const float *x = a->x + (size_t)w.m0 * a->ldx;
    if (a->reference)
        ref_gemm(&pk, b0 * PACK_ROWS, b0 * PACK_ROWS + cols, &(struct ref_rows){x, a->ldx, nm}, dst,
                 ldd, work);
    else if (pack_is_int(pk.kind))
        a->kern->gemm_q(&pk, b0, b1, &p->q, w.m0, nm, dst, ldd, work);
    else
        a->kern->gemm_f(&pk, b0, b1, x, a->ldx, nm, dst, ldd, work);
    if (!p->bias)
        return;
    const float *bias = p->bias + (size_t)w.expert * (size_t)pk.n + (size_t)b0 * PACK_ROWS;
    for (int32_t m = 0; m < nm; m++)
        for (int32_t c = 0; c < cols; c++)
            dst[(size_t)m * ldd + (size_t)c] += bias[c];
}

/* Fills the table of pieces; how many there are, counting on past its end. *reads: of matrices. */
static int32_t cut(struct moe *moe, const struct moe_args *a, int32_t n_part, int32_t *reads)
{
    int32_t n = 0;
    *reads = 0;
    for (int32_t e = 0; e < moe->shape.n_expert; e++)
        for (int32_t m0 = moe->first[e]; m0 < moe->first[e + 1]; m0 += PANEL)
            for (int32_t p = 0; p < n_part; p++) {
                int32_t left = moe->first[e + 1] - m0, per = a->part[p].blocks_chunk;
                struct moe_piece w = {m0, left < PANEL ? left : PANEL, e, 0, p};
                int32_t chunks = (pack_n_block(a->part[p].pk.n) + per - 1) / per;
                ++*reads;
                for (; w.chunk < chunks; w.chunk++, n++)
                    if (n < POOL_CHUNK_MAX)
                        __atomic_store_n(&moe->pieces[n], piece_code(&w), __ATOMIC_RELAXED);
            }
    return n;
}

struct stack_linear {
    const struct weight *w, *bias;
};

/* dst[place] = w[its expert] x[place]; the parts' outputs lie side by side. */
static void products(struct exec *ex, struct moe *moe, struct tensor *dst,
                     const struct stack_linear *parts, const struct tensor *x)
{
    int32_t n_part = parts[1].w ? 2 : 1, col = 0;
    bool done[QACT_GROUPS] = {false};
    struct moe_args a = {.kern = ex->kern,
                         .pieces = moe->pieces,
                         .x = x->p,
                         .ldx = (size_t)x->cols,
                         .ldd = (size_t)dst->cols,
                         .n_place = x->cap,
                         .reference = ex->reference};
    dst->rows = x->rows;
    for (int32_t i = 0; i < n_part; i++) {
        const struct weight *w = parts[i].w;
        struct moe_part *p = &a.part[i];
        QN_ASSERT(w->n_stack == moe->shape.n_expert && w->pk.k == x->cols &&
                  col + w->pk.n <= dst->cols);
        *p = (struct moe_part){.pk = w->pk, .stack_bytes = w->stack_bytes, .dst = dst->p + col};
        p->bias = parts[i].bias ? parts[i].bias->vec : NULL;
        if (!ex->reference && pack_is_int(w->pk.kind))
            p->q = cpu_quantized(ex, w->pk.group, x, done);
        int64_t blocks = CHUNK_WEIGHTS / (int64_t)w->pk.block_bytes;
        p->blocks_chunk = blocks < 1 ? 1 : (int32_t)blocks;
        col += w->pk.n;
    }
    int32_t n, reads;
    while ((n = cut(moe, &a, n_part, &reads)) > POOL_CHUNK_MAX)
        for (int32_t i = 0; i < n_part; i++)
            a.part[i].blocks_chunk *= 2;
    struct pool_job job = {moe_regions, moe_run, &a, sizeof a, n};
    moe->n_read += reads;
    pool_run(ex->pool, &job);
}

/* ---- rows in and out ------------------------------------------------------------------------ */

static void gather_one(const struct rows_job *j, int32_t place, float *const *out)
{
    memcpy(out[0], j->in[0] + (size_t)j->ids[place] * (size_t)j->in_cols[0],
           (size_t)j->out_cols[0] * sizeof(float));
}

/* out = sum of weight * y over the row's experts, by rising id */
static void combine_one(const struct rows_job *j, int32_t row, float *const *out)
{
    int32_t n = j->out_cols[0], k = j->n_head;
    const int32_t *place = j->ids + (size_t)row * (size_t)k;
    const float *w = j->coef + (size_t)row * (size_t)k;
    if (j->reference) {
        for (int32_t i = 0; i < n; i++) {
            double sum = 0;
            for (int32_t s = 0; s < k; s++)
                sum += (double)w[s] * (double)j->in[0][(size_t)place[s] * (size_t)n + (size_t)i];
            out[0][i] = (float)sum;
        }
        return;
    }
    memset(out[0], 0, (size_t)n * sizeof(float));
    for (int32_t s = 0; s < k; s++) {
        const float *y = j->in[0] + (size_t)place[s] * (size_t)n;
        for (int32_t i = 0; i < n; i++)
            out[0][i] += w[s] * y[i];
    }
}

static void rows_between(struct exec *ex, struct rows_job *j, const struct tensor *src,
                         struct tensor *dst)
{
    j->n_out = 1;
    j->n_row = dst->rows;
    j->reference = ex->reference;
    j->in[0] = src->p;
    j->in_cols[0] = src->cols;
    j->out[0] = dst->p;
    j->out_cols[0] = dst->cols;
}

void cpu_experts(struct exec *ex, struct tensor *dst, const struct tensor *x, struct moe *moe,
                 const struct experts *w)
{
    QN_ASSERT(dst != x && x->rows == moe->n_row && x->cols == moe->x->cols &&
              dst->cols == moe->y->cols);
    dst->rows = x->rows;
    if (x->rows == 0)
        return;
    moe->x->rows = x->rows * moe->shape.top_k;
    struct rows_job in = {.ids = moe->row};
    rows_between(ex, &in, x, moe->x);
    rows_run(ex, &in, gather_one);
    products(ex, moe, moe->gu,
             (struct stack_linear[]){{w->gate, w->gate_bias}, {w->up, w->up_bias}}, moe->x);
    cpu_glu(ex, moe->act, moe->gu, w->act);
    products(ex, moe, moe->y, (struct stack_linear[]){{w->down, w->down_bias}, {0}}, moe->act);
    struct rows_job back = {.ids = moe->place, .coef = moe->weights, .n_head = moe->shape.top_k};
    rows_between(ex, &back, moe->y, dst);
    rows_run(ex, &back, combine_one);
}
