/*
 * moe.c - the memory that routed experts need: choices of a step's rows, the rows in the order of
 * their experts, and the activations in that order. One serves all layers of a model.
 */
#include <stdlib.h>

#include "exec/exec_int.h"

void moe_free(struct moe *m)
{
    free(m->ids);
    free(m->place);
    free(m->row);
    free(m->first);
    free(m->next);
    free(m->weights);
    free(m->pieces);
    free(m);
}

static enum qn_status moe_fill(struct exec *ex, struct moe *m, struct qn_err *err)
{
    const struct moe_shape *s = &m->shape;
    size_t places = (size_t)ex->max_rows * (size_t)s->top_k;
    m->ids = calloc(places, sizeof *m->ids);
    m->place = calloc(places, sizeof *m->place);
    m->row = calloc(places, sizeof *m->row);
    m->weights = calloc(places, sizeof *m->weights);
    m->first = calloc((size_t)s->n_expert + 1, sizeof *m->first);
    m->next = calloc((size_t)s->n_expert, sizeof *m->next);
    m->pieces = calloc(POOL_CHUNK_MAX, sizeof *m->pieces);
    if (!m->ids || !m->place || !m->row || !m->weights || !m->first || !m->next || !m->pieces)
        QN_FAIL(err, QN_NO_MEMORY, "moe", "out of memory for the choices of %zu rows", places);
    QN_TRY(tensor_create_rows(ex, (int32_t)places, s->n_embd, &m->x, err));
    QN_TRY(tensor_create_rows(ex, (int32_t)places, 2 * s->n_ff, &m->gu, err));
    QN_TRY(tensor_create_rows(ex, (int32_t)places, s->n_ff, &m->act, err));
    return tensor_create_rows(ex, (int32_t)places, s->n_embd, &m->y, err);
}

enum qn_status moe_create(struct exec *ex, const struct moe_shape *s, struct moe **out,
                          struct qn_err *err)
{
    if (s->n_expert < 1 || s->n_expert > MOE_EXPERT_MAX || s->top_k < 1 || s->top_k > MOE_TOP_MAX ||
        s->top_k > s->n_expert)
        QN_FAIL(err, QN_UNSUPPORTED, "moe",
                "%d experts, %d of them for each token; at most %d and %d", s->n_expert, s->top_k,
                MOE_EXPERT_MAX, MOE_TOP_MAX);
    struct moe *m = calloc(1, sizeof *m);
    if (!m || !list_push((void ***)&ex->moes, &ex->n_moe, &ex->cap_moe, m)) {
        free(m);
        QN_FAIL(err, QN_NO_MEMORY, "moe", "out of memory");
    }
    m->shape = *s;
    *out = m;
    return moe_fill(ex, m, err);
}
