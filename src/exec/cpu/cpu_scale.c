/*
 * cpu_scale.c - row-wise operations with factors: scaled sums of the residual stream, capped
 * logits, and the inputs that each layer gets of its own (Gemma's per-layer embeddings).
 */
#include "exec/cpu/cpu_ops.h"

static struct rows_job job_of(struct exec *ex, struct tensor *dst, const struct tensor *a,
                              const struct tensor *b)
{
    QN_ASSERT(dst != a && dst != b && (!b || b->rows == a->rows));
    dst->rows = a->rows;
    struct rows_job j = {
        .n_row = a->rows, .n_out = 1, .kern = ex->kern, .reference = ex->reference};
    j.in[0] = a->p;
    j.in_cols[0] = a->cols;
    j.in[1] = b ? b->p : NULL;
    j.in_cols[1] = b ? b->cols : 0;
    j.out[0] = dst->p;
    j.out_cols[0] = dst->cols;
    return j;
}

static const float *in_row(const struct rows_job *j, int i, int32_t row)
{
    return j->in[i] + (size_t)row * (size_t)j->in_cols[i];
}

static void add_scale_one(const struct rows_job *j, int32_t row, float *const *out)
{
    int32_t n = j->out_cols[0];
    j->kern->add(out[0], in_row(j, 0, row), in_row(j, 1, row), n);
    j->kern->scale(out[0], out[0], j->w->vec[0], n);
}

void cpu_add_scale(struct exec *ex, struct tensor *dst, const struct tensor *a,
                   const struct tensor *b, const struct weight *w)
{
    QN_ASSERT(dst->cols == a->cols && a->cols == b->cols && w->n == 1);
    struct rows_job j = job_of(ex, dst, a, b);
    j.w = w;
    rows_run(ex, &j, add_scale_one);
}

static void norm_heads_add_one(const struct rows_job *j, int32_t row, float *const *out)
{
    void (*norm)(float *, const float *, const float *, float, float, int32_t) =
        j->reference ? ref_rmsnorm : j->kern->rmsnorm;
    int32_t n = j->out_cols[0], d = j->w->n;
    for (int32_t i = 0; i < n; i += d)
        norm(out[0] + i, in_row(j, 0, row) + i, j->w->vec, 0, j->eps, d);
    j->kern->add(out[0], out[0], in_row(j, 1, row), n);
    j->kern->scale(out[0], out[0], j->scale, n);
}

void cpu_norm_heads_add(struct exec *ex, struct tensor *dst, const struct tensor *x,
                        const struct norm_heads *h)
{
    QN_ASSERT(dst->cols == x->cols && h->b->cols == x->cols && x->cols % h->w->n == 0);
    struct rows_job j = job_of(ex, dst, x, h->b);
    j.w = h->w;
    j.eps = h->eps;
    j.scale = h->scale;
    rows_run(ex, &j, norm_heads_add_one);
}

static void glu_at_one(const struct rows_job *j, int32_t row, float *const *out)
{
    glu_of(j->kern, j->reference, j->act)(out[0], in_row(j, 0, row), in_row(j, 1, row),
                                          j->out_cols[0]);
}

void cpu_glu_at(struct exec *ex, struct tensor *dst, const struct tensor *g, const struct tensor *u,
                int32_t col, enum glu act)
{
    QN_ASSERT(dst->cols == g->cols && col >= 0 && col + g->cols <= u->cols);
    struct rows_job j = job_of(ex, dst, g, u);
    j.in[1] += col;
    j.act = act;
    rows_run(ex, &j, glu_at_one);
}

/* ---- capped logits ---------------------------------------------------------------------------
 * A row may be a whole vocabulary: a chunk is a piece of one, not of rows. */

enum { CAP_PIECE = 16 << 10 };

struct cap_args {
    const struct kernels *kern;
    const float *x;
    float *dst;
    size_t n; /* values */
    float cap;
    bool reference;
};

static int cap_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct cap_args *a = args;
    size_t at = (size_t)chunk * CAP_PIECE, left = a->n - at;
    size_t bytes = (left < CAP_PIECE ? left : CAP_PIECE) * sizeof(float);
    r[0] = (struct pool_region){(char *)(a->dst + at), 1, bytes, bytes};
    return 1;
}

static void cap_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct cap_args *a = args;
    (a->reference ? ref_softcap : a->kern->softcap)((float *)r[0].p,
                                                    a->x + (size_t)chunk * CAP_PIECE, a->cap,
                                                    (int32_t)(r[0].row_bytes / sizeof(float)));
}

void cpu_softcap(struct exec *ex, struct tensor *dst, const struct tensor *x, float cap)
{
    QN_ASSERT(dst != x && dst->cols == x->cols && cap > 0);
    dst->rows = x->rows;
    size_t n = (size_t)x->rows * (size_t)x->cols, most = (size_t)CAP_PIECE * POOL_CHUNK_MAX;
    for (size_t at = 0; at < n; at += most) {
        struct cap_args a = {.kern = ex->kern,
                             .x = x->p + at,
                             .dst = dst->p + at,
                             .n = n - at < most ? n - at : most,
                             .cap = cap,
                             .reference = ex->reference};
        struct pool_job job = {cap_regions, cap_run, &a, sizeof a,
                               (int)((a.n + CAP_PIECE - 1) / CAP_PIECE)};
        pool_run(ex->pool, &job);
    }
}
