/*
 * cpu_rows.c - operations that treat each row by itself: embedding, norms, gated
 * activations, taking rows. Few
 * rows are done by the calling thread; many are spread over the pool, ROWS_CHUNK at a time.
 */
#include <string.h>

#include "exec/cpu/cpu_ops.h"

enum { ROWS_CHUNK = 8 };

void rows_run(struct exec *ex, struct rows_job *j,
              void (*one)(const struct rows_job *, int32_t row, float *const *out))
{
    j->one = one;
    j->n_chunk_rows = ROWS_CHUNK;
    if (j->n_row < 2 * ROWS_CHUNK) {
        for (int32_t r = 0; r < j->n_row; r++) {
            float *out[ROWS_OUT_MAX];
            for (int i = 0; i < j->n_out; i++)
                out[i] = j->out[i] + (size_t)r * (size_t)j->out_cols[i];
            one(j, r, out);
        }
        return;
    }
    struct pool_job job = {rows_regions, rows_chunk, j, sizeof *j,
                           (j->n_row + ROWS_CHUNK - 1) / ROWS_CHUNK};
    pool_run(ex->pool, &job);
}

static int32_t chunk_rows(const struct rows_job *j, int chunk)
{
    int32_t left = j->n_row - chunk * j->n_chunk_rows;
    return left < j->n_chunk_rows ? left : j->n_chunk_rows;
}

int rows_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct rows_job *j = args;
    for (int i = 0; i < j->n_out; i++) {
        size_t bytes = (size_t)j->out_cols[i] * sizeof(float);
        r[i] = (struct pool_region){(char *)j->out[i] +
                                        (size_t)chunk * (size_t)j->n_chunk_rows * bytes,
                                    chunk_rows(j, chunk), bytes, bytes};
    }
    return j->n_out;
}

void rows_chunk(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct rows_job *j = args;
    for (int32_t i = 0; i < chunk_rows(j, chunk); i++) {
        float *out[ROWS_OUT_MAX];
        for (int o = 0; o < j->n_out; o++)
            out[o] = (float *)(r[o].p + (size_t)i * r[o].stride);
        j->one(j, chunk * j->n_chunk_rows + i, out);
    }
}

/* ---- the operations -------------------------------------------------------------------------- */

static const float *in_row(const struct rows_job *j, int i, int32_t row)
{
    return j->in[i] + (size_t)row * (size_t)j->in_cols[i];
}

static void embed_one(const struct rows_job *j, int32_t row, float *const *out)
{
    const struct packed *w = &j->w->pk;
    int32_t id = j->ids[row];
    pack_row_f32(w, id >= 0 && id < w->n ? id : 0, out[0]);
    if (j->scale != 1.0f)
        for (int32_t i = 0; i < w->k; i++)
            out[0][i] *= j->scale;
}

void cpu_embed(struct exec *ex, struct tensor *dst, const struct weight *table, float scale)
{
    QN_ASSERT(dst->cols == table->pk.k);
    dst->rows = ex->step.n_row;
    struct rows_job j = {
        .n_row = dst->rows, .n_out = 1, .ids = ex->step.ids, .w = table, .scale = scale};
    j.out[0] = dst->p;
    j.out_cols[0] = dst->cols;
    rows_run(ex, &j, embed_one);
}

static void norm_one(const struct rows_job *j, int32_t row, float *const *out)
{
    void (*f)(float *, const float *, const float *, float, float, int32_t) =
        j->reference ? ref_rmsnorm : j->kern->rmsnorm;
    f(out[0], in_row(j, 0, row), j->w ? j->w->vec : NULL, j->add, j->eps, j->out_cols[0]);
}

void cpu_rmsnorm(struct exec *ex, struct tensor *y, const struct tensor *x, const struct weight *w,
                 float add, float eps)
{
    y->rows = x->rows;
    struct rows_job j = {.n_row = x->rows,
                         .n_out = 1,
                         .kern = ex->kern,
                         .w = w,
                         .add = add,
                         .eps = eps,
                         .reference = ex->reference};
    j.in[0] = x->p;
    j.in_cols[0] = x->cols;
    j.out[0] = y->p;
    j.out_cols[0] = y->cols;
    rows_run(ex, &j, norm_one);
}

static void add_norm_one(const struct rows_job *j, int32_t row, float *const *out)
{
    j->kern->add(out[0], in_row(j, 0, row), in_row(j, 1, row), j->out_cols[0]);
    void (*f)(float *, const float *, const float *, float, float, int32_t) =
        j->reference ? ref_rmsnorm : j->kern->rmsnorm;
    f(out[1], out[0], j->w ? j->w->vec : NULL, j->add, j->eps, j->out_cols[1]);
}

void cpu_add_rmsnorm(struct exec *ex, struct tensor *s, struct tensor *y, const struct tensor *a,
                     const struct tensor *b, const struct weight *w, float add, float eps)
{
    QN_ASSERT(s != a && s != b && y != a && y != b && a->rows == b->rows);
    s->rows = y->rows = a->rows;
    struct rows_job j = {.n_row = a->rows,
                         .n_out = 2,
                         .kern = ex->kern,
                         .w = w,
                         .add = add,
                         .eps = eps,
                         .reference = ex->reference};
    j.in[0] = a->p;
    j.in_cols[0] = a->cols;
    j.in[1] = b->p;
    j.in_cols[1] = b->cols;
    j.out[0] = s->p;
    j.out_cols[0] = s->cols;
    j.out[1] = y->p;
    j.out_cols[1] = y->cols;
    rows_run(ex, &j, add_norm_one);
}

static void add_one(const struct rows_job *j, int32_t row, float *const *out)
{
    j->kern->add(out[0], in_row(j, 0, row), in_row(j, 1, row), j->out_cols[0]);
}

void cpu_add(struct exec *ex, struct tensor *dst, const struct tensor *a, const struct tensor *b)
{
    QN_ASSERT(dst != a && dst != b && a->rows == b->rows && a->cols == b->cols &&
              dst->cols == a->cols);
    dst->rows = a->rows;
    struct rows_job j = {.n_row = a->rows, .n_out = 1, .kern = ex->kern};
    j.in[0] = a->p;
    j.in[1] = b->p;
    j.in_cols[0] = j.in_cols[1] = a->cols;
    j.out[0] = dst->p;
    j.out_cols[0] = dst->cols;
    rows_run(ex, &j, add_one);
}

glu_fn glu_of(const struct kernels *kern, bool reference, enum glu act)
{
    switch (act) {
    case GLU_GELU:
        return reference ? ref_geglu : kern->geglu;
    case GLU_CLAMPED:
        return reference ? ref_swiglu_clamped : kern->swiglu_clamped;
    default:
        return reference ? ref_swiglu : kern->swiglu;
    }
}

static void glu_one(const struct rows_job *j, int32_t row, float *const *out)
{
    int32_t n = j->out_cols[0];
    const float *g = in_row(j, 0, row);
    glu_of(j->kern, j->reference, j->act)(out[0], g, g + n, n);
}

void cpu_glu(struct exec *ex, struct tensor *dst, const struct tensor *gu, enum glu act)
{
    QN_ASSERT(gu->cols == 2 * dst->cols);
    dst->rows = gu->rows;
    struct rows_job j = {
        .n_row = gu->rows, .n_out = 1, .kern = ex->kern, .act = act, .reference = ex->reference};
    j.in[0] = gu->p;
    j.in_cols[0] = gu->cols;
    j.out[0] = dst->p;
    j.out_cols[0] = dst->cols;
    rows_run(ex, &j, glu_one);
}

void cpu_pick(struct exec *ex, struct tensor *dst, const struct tensor *src, const int32_t *rows,
              int32_t n)
{
    size_t cols = (size_t)src->cols;
    QN_ASSERT(dst != src && dst->cols == src->cols && n <= dst->cap);
    dst->rows = n;
    for (int32_t i = 0; i < n; i++) {
        QN_ASSERT(rows[i] >= 0 && rows[i] < src->rows);
        memcpy(dst->p + (size_t)i * cols, src->p + (size_t)rows[i] * cols, cols * sizeof(float));
    }
}

void cpu_take(struct exec *ex, struct tensor *dst, const struct tensor *src)
{
    cpu_pick(ex, dst, src, ex->step.wanted, ex->step.n_wanted);
}

void cpu_place(struct exec *ex, struct tensor *dst, int32_t col, const struct tensor *src)
{
    QN_ASSERT(dst != src && col >= 0 && col + src->cols <= dst->cols && src->rows <= dst->cap);
    dst->rows = src->rows;
    for (int32_t i = 0; i < src->rows; i++)
        memcpy(dst->p + (size_t)i * (size_t)dst->cols + col, src->p + (size_t)i * (size_t)src->cols,
               (size_t)src->cols * sizeof(float));
}

static void join_one(const struct rows_job *j, int32_t row, float *const *out)
{
    memcpy(out[0], in_row(j, 0, row), (size_t)j->in_cols[0] * sizeof(float));
    memcpy(out[0] + j->in_cols[0], in_row(j, 1, row), (size_t)j->in_cols[1] * sizeof(float));
}

void cpu_join(struct exec *ex, struct tensor *dst, const struct tensor *a, const struct tensor *b)
{
    QN_ASSERT(dst != a && dst != b && a->rows == b->rows && dst->cols == a->cols + b->cols);
    dst->rows = a->rows;
    struct rows_job j = {.n_row = a->rows, .n_out = 1, .kern = ex->kern};
    j.in[0] = a->p;
    j.in_cols[0] = a->cols;
    j.in[1] = b->p;
    j.in_cols[1] = b->cols;
    j.out[0] = dst->p;
    j.out_cols[0] = dst->cols;
    rows_run(ex, &j, join_one);
}
