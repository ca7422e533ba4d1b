/*
 * exec.c - creating and freeing an exec, its tensors and ropes; forwarding operations to the
 * backend's table.
 */
#include "exec/exec.h"

#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"

/* The largest output of a chunk and the work memory of a thread. A reference product keeps one row
 * of weights in it. */
enum { POOL_OUT = 2 << 20, POOL_WORK = 448 << 10 };
_Static_assert((int)POOL_WORK >= (int)ATTN_SCRATCH && (int)POOL_WORK >= (int)GEMM_SCRATCH &&
                   (int)POOL_WORK >= 4 * (int)WEIGHT_DIM_MAX,
               "work memory");

/* pool NULL = one of its own with n_thread. */
static enum qn_status create(const struct exec_params *p, const struct kernels *kern,
                             struct pool *pool, struct exec **out, struct qn_err *err)
{
    QN_ASSERT(p->max_rows >= 1 && p->n_ctx >= 1);
    struct exec *ex = calloc(1, sizeof *ex);
    if (!ex)
        QN_FAIL(err, QN_NO_MEMORY, "exec", "out of memory");
    ex->ops = &exec_cpu_ops;
    ex->kern = kern;
    ex->pool = pool;
    ex->beside = pool != NULL;
    ex->reference = p->reference;
    ex->max_rows = p->max_rows;
    ex->n_ctx = p->n_ctx;
    ex->kv.budget_bytes = p->kv_budget_bytes;
    size_t rows = (size_t)p->max_rows;
    struct step *s = &ex->step;
    s->ids = calloc(rows, sizeof *s->ids);
    s->pos = calloc(rows, sizeof *s->pos);
    s->wanted = calloc(rows, sizeof *s->wanted);
    s->spans = calloc(rows, sizeof *s->spans);
    enum qn_status st = QN_OK;
    if (!s->ids || !s->pos || !s->wanted || !s->spans)
        st = err_set(err, QN_NO_MEMORY, "exec", "out of memory for steps of %d rows", p->max_rows);
    if (st == QN_OK && !pool)
        st = pool_create(p->n_thread, POOL_OUT, POOL_WORK, &ex->pool, err);
    if (st != QN_OK) {
        exec_free(ex);
        return st;
    }
    *out = ex;
    return QN_OK;
}

enum qn_status exec_create(const struct exec_params *p, struct exec **out, struct qn_err *err)
{
    return create(p, kernels_get(p->isa), NULL, out, err);
}

enum qn_status exec_create_beside(struct exec *of, int32_t n_ctx, struct exec **out,
                                  struct qn_err *err)
{
    struct exec_params p = {.reference = of->reference, .max_rows = of->max_rows, .n_ctx = n_ctx};
    return create(&p, of->kern, of->pool, out, err);
}

static void qact_free(struct exec *ex)
{
    for (int i = 0; i < QACT_GROUPS; i++) {
        free(ex->qact[i].a);
        free(ex->qact[i].scale);
        free(ex->qact[i].sum);
    }
}

int64_t exec_transient_bytes(const struct exec *ex)
{
    int64_t n = (int64_t)pool_n_thread(ex->pool) * (POOL_OUT + POOL_WORK);
    n += pool_n_thread(ex->pool) > 1 ? ATTN_PARTS_BYTES : 0;
    for (int32_t i = 0; i < ex->n_tensor; i++)
        n += (int64_t)ex->tensors[i]->cap * ex->tensors[i]->cols * 4;
    for (int32_t i = 0; i < ex->n_rope; i++)
        n += (int64_t)ex->max_rows * ex->ropes[i]->dims * 4;
    for (int i = 0; i < QACT_GROUPS; i++) /* values of 2 bytes; a scale and a sum for each group */
        n += (int64_t)ex->qact_values[i] * 2 + (int64_t)(ex->qact_values[i] >> (i + 4)) * 8;
    if (ex->index)
        n += ((int64_t)ex->max_rows + ATTN_Q_MAX) *
                 (ex->index->row_list * 4 + ex->index->row_words * 8) +
             (int64_t)INDEX_SCORE_ROWS * ex->index->n_slot * 4;
    return n + undo_bytes(ex);
}

void exec_quiesce(struct exec *ex)
{
    pool_quiesce(ex->pool);
}

void exec_free(struct exec *ex)
{
    if (!ex)
        return;
    if (ex->beside)
        pool_quiesce(ex->pool);
    else
        pool_free(ex->pool);
    for (int32_t i = 0; i < ex->n_tensor; i++) {
        mem_free(ex->tensors[i]->p,
                 (size_t)ex->tensors[i]->cap * (size_t)ex->tensors[i]->cols * sizeof(float));
        free(ex->tensors[i]);
    }
    for (int32_t i = 0; i < ex->n_weight; i++)
        weight_free(ex->weights[i]);
    for (int32_t i = 0; i < ex->n_rope; i++) {
        free(ex->ropes[i]->inv_freq);
        free(ex->ropes[i]->cs);
        free(ex->ropes[i]);
    }
    for (int32_t i = 0; i < ex->n_moe; i++)
        moe_free(ex->moes[i]);
    free(ex->moes);
    index_free(ex->index);
    free(ex->tensors);
    free(ex->weights);
    free(ex->ropes);
    qact_free(ex);
    mem_free(ex->attn_parts, ATTN_PARTS_BYTES);
    undo_free(ex);
    kv_store_free(ex);
    if (ex->region)
        mem_free(ex->region, ex->region_bytes);
    free(ex->step.ids);
    free(ex->step.pos);
    free(ex->step.wanted);
    free(ex->step.spans);
    for (int32_t g = 0; g < KV_GROUP_MAX; g++)
        free(ex->step.tiles[g]);
    free(ex);
}

enum qn_status exec_reserve(struct exec *ex, size_t bytes, struct qn_err *err)
{
    QN_ASSERT(!ex->region);
    ex->region = mem_alloc_huge(bytes);
    if (!ex->region)
        QN_FAIL(err, QN_NO_MEMORY, "exec", "out of memory: the model's matrices need %zu bytes",
                bytes);
    ex->region_bytes = bytes;
    return QN_OK;
}

enum qn_status tensor_create(struct exec *ex, int32_t cols, struct tensor **out, struct qn_err *err)
{
    return tensor_create_rows(ex, ex->max_rows, cols, out, err);
}

enum qn_status tensor_create_rows(struct exec *ex, int32_t rows, int32_t cols, struct tensor **out,
                                  struct qn_err *err)
{
    struct tensor *t = calloc(1, sizeof *t);
    size_t bytes = (size_t)rows * (size_t)cols * sizeof(float);
    float *p = t ? mem_alloc(bytes) : NULL;
    if (!p || !list_push((void ***)&ex->tensors, &ex->n_tensor, &ex->cap_tensor, t)) {
        mem_free(p, bytes);
        free(t);
        QN_FAIL(err, QN_NO_MEMORY, "exec", "out of memory for activations of %d x %d floats", rows,
                cols);
    }
    t->p = p;
    t->cap = rows;
    t->cols = cols;
    *out = t;
    return QN_OK;
}

int32_t tensor_rows(const struct tensor *t)
{
    return t->rows;
}

void tensor_read(struct exec *ex, const struct tensor *t, int32_t row, int32_t n, float *dst)
{
    QN_ASSERT(row >= 0 && n >= 0 && row + n <= t->rows);
    memcpy(dst, t->p + (size_t)row * (size_t)t->cols, (size_t)n * (size_t)t->cols * sizeof *dst);
}

enum qn_status rope_create(struct exec *ex, const double *inv_freq, int32_t dims, double mscale,
                           bool interleaved, struct rope **out, struct qn_err *err)
{
    QN_ASSERT(dims >= 2 && dims % 2 == 0 && dims <= HEAD_DIM_MAX);
    struct rope *r = calloc(1, sizeof *r);
    double *f = calloc((size_t)dims / 2, sizeof *f);
    float *cs = calloc((size_t)ex->max_rows * (size_t)dims, sizeof *cs);
    if (!r || !f || !cs || !list_push((void ***)&ex->ropes, &ex->n_rope, &ex->cap_rope, r)) {
        free(r);
        free(f);
        free(cs);
        QN_FAIL(err, QN_NO_MEMORY, "exec", "out of memory for a rotary table");
    }
    memcpy(f, inv_freq, (size_t)dims / 2 * sizeof *f);
    *r = (struct rope){dims, interleaved, mscale, f, cs};
    *out = r;
    return QN_OK;
}

void op_embed(struct exec *ex, struct tensor *dst, const struct weight *table, float scale)
{
    ex->ops->embed(ex, dst, table, scale);
}

void op_rmsnorm(struct exec *ex, struct tensor *y, const struct tensor *x, const struct weight *w,
                float add, float eps)
{
    ex->ops->rmsnorm(ex, y, x, w, add, eps);
}

void op_add_rmsnorm(struct exec *ex, struct tensor *s, struct tensor *y, const struct tensor *a,
                    const struct tensor *b, const struct weight *w, float add, float eps)
{
    ex->ops->add_rmsnorm(ex, s, y, a, b, w, add, eps);
}

void op_linear(struct exec *ex, const struct linear *parts, int32_t n, const struct tensor *x)
{
    ex->ops->linear(ex, parts, n, x);
}

void op_linear_heads(struct exec *ex, struct tensor *dst, const struct weight *w,
                     const struct tensor *x)
{
    ex->ops->linear_heads(ex, dst, w, x);
}

void op_latent_append(struct exec *ex, struct tensor *q_out, const struct tensor *latent,
                      const struct tensor *q, const struct tensor *kv, const struct latent_op *a)
{
    ex->ops->latent_append(ex, q_out, latent, q, kv, a);
}

void op_index(struct exec *ex, struct index *ix, const struct index_op *a)
{
    ex->ops->index(ex, ix, a);
}

void op_join(struct exec *ex, struct tensor *dst, const struct tensor *a, const struct tensor *b)
{
    ex->ops->join(ex, dst, a, b);
}

void op_add(struct exec *ex, struct tensor *dst, const struct tensor *a, const struct tensor *b)
{
    ex->ops->add(ex, dst, a, b);
}

void op_rope_append(struct exec *ex, struct tensor *q_out, const struct tensor *qkv,
                    const struct attn_op *a)
{
    ex->ops->rope_append(ex, q_out, qkv, a);
}

void op_attn(struct exec *ex, struct tensor *dst, const struct tensor *q, const struct attn_op *a)
{
    ex->ops->attn(ex, dst, q, a);
}

void op_glu(struct exec *ex, struct tensor *dst, const struct tensor *gu, enum glu act)
{
    ex->ops->glu(ex, dst, gu, act);
}

void op_glu_at(struct exec *ex, struct tensor *dst, const struct tensor *g, const struct tensor *u,
               int32_t col, enum glu act)
{
    ex->ops->glu_at(ex, dst, g, u, col, act);
}

void op_route(struct exec *ex, struct moe *moe, const struct tensor *logits,
              enum route_weights kind)
{
    ex->ops->route(ex, moe, logits, kind);
}

void op_route_scaled(struct exec *ex, struct moe *moe, const struct tensor *logits,
                     const struct route_scales *s)
{
    ex->ops->route_scaled(ex, moe, logits, s);
}

void op_route_groups(struct exec *ex, struct moe *moe, const struct tensor *logits,
                     const struct route_groups *g)
{
    ex->ops->route_groups(ex, moe, logits, g);
}

void op_experts(struct exec *ex, struct tensor *dst, const struct tensor *x, struct moe *moe,
                const struct experts *w)
{
    ex->ops->experts(ex, dst, x, moe, w);
}

void op_delta_mix(struct exec *ex, struct tensor *mixed, struct tensor *gates,
                  const struct tensor *u, const struct tensor *ab, const struct delta_op *d)
{
    ex->ops->delta_mix(ex, mixed, gates, u, ab, d);
}

void op_delta(struct exec *ex, struct tensor *dst, const struct tensor *mixed,
              const struct tensor *gates, const struct delta_op *d)
{
    ex->ops->delta(ex, dst, mixed, gates, d);
}

void op_norm_gated(struct exec *ex, struct tensor *y, const struct tensor *x,
                   const struct tensor *z, const struct weight *w, float eps)
{
    ex->ops->norm_gated(ex, y, x, z, w, eps);
}

void op_gate(struct exec *ex, struct tensor *dst, const struct tensor *x, const struct tensor *g,
             const struct gate_at *at)
{
    ex->ops->gate(ex, dst, x, g, at);
}

void op_add_gated(struct exec *ex, struct tensor *dst, const struct tensor *a,
                  const struct tensor *b, const struct tensor *g)
{
    ex->ops->add_gated(ex, dst, a, b, g);
}

void op_add_scale(struct exec *ex, struct tensor *dst, const struct tensor *a,
                  const struct tensor *b, const struct weight *w)
{
    ex->ops->add_scale(ex, dst, a, b, w);
}

void op_norm_heads_add(struct exec *ex, struct tensor *dst, const struct tensor *x,
                       const struct norm_heads *n)
{
    ex->ops->norm_heads_add(ex, dst, x, n);
}

void op_softcap(struct exec *ex, struct tensor *dst, const struct tensor *x, float cap)
{
    ex->ops->softcap(ex, dst, x, cap);
}

void op_take(struct exec *ex, struct tensor *dst, const struct tensor *src)
{
    ex->ops->take(ex, dst, src);
}

void op_pick(struct exec *ex, struct tensor *dst, const struct tensor *src, const int32_t *rows,
             int32_t n)
{
    ex->ops->pick(ex, dst, src, rows, n);
}

void op_place(struct exec *ex, struct tensor *dst, int32_t col, const struct tensor *src)
{
    ex->ops->place(ex, dst, col, src);
}
