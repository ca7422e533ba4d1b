/* pair.h - a sequence of an engine with the context of its draft head. */
#ifndef TESTS_PAIR_H
#define TESTS_PAIR_H

#include "../check.h"
#include "quern.h"

struct pair {
    struct qn_engine *e;
    struct qn_seq *s;
    struct qn_mtp *m;
};

static inline struct pair pair_of(struct qn_engine *e)
{
    struct pair p = {.e = e};
    struct qn_err err;
    CHECK_OK(qn_seq_create(e, &p.s, &err), err);
    CHECK_OK(qn_mtp_create(p.s, &p.m, &err), err);
    return p;
}

static inline void pair_free(struct pair *p)
{
    qn_mtp_free(p->m);
    qn_seq_free(p->s);
}

/* Of the last n_logits rows logits are asked for, and so their states are left. */
static inline void pair_step(struct pair *p, const int32_t *ids, int32_t n, int32_t n_logits,
                             float *logits)
{
    struct qn_step_item it = {p->s, ids, n, n_logits, logits};
    struct qn_err err;
    CHECK_OK(qn_engine_step(p->e, &it, 1, &err), err);
}

#endif
