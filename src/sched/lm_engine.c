/* lm_engine.c - the engine behind the scheduler's table of functions; see lm.h. */
#include "sched/lm.h"

static enum qn_status seq_create(void *self, void **seq, struct qn_err *err)
{
    struct qn_seq *q = NULL;
    enum qn_status st = qn_seq_create(self, &q, err);
    *seq = q;
    return st;
}

static void seq_free(void *self, void *seq)
{
    qn_seq_free(seq);
}

static enum qn_status seq_truncate(void *self, void *seq, int32_t n, struct qn_err *err)
{
    return qn_seq_truncate(seq, n, err);
}

static enum qn_status step(void *self, struct qn_step_item *items, int32_t n, struct qn_err *err)
{
    return qn_engine_step(self, items, n, err);
}

static int64_t seq_bytes(const void *self, int32_t n)
{
    return qn_seq_bytes(self, n);
}

static int64_t step_bytes(const void *self, int32_t n_logits)
{
    return qn_transient_bytes(self, n_logits);
}

static enum qn_status seq_fork(void *self, void *seq, void **out, struct qn_err *err)
{
    struct qn_seq *q = NULL;
    enum qn_status st = qn_seq_fork(seq, qn_seq_len(seq), &q, err);
    *out = q;
    return st;
}

struct lm lm_of_engine(struct qn_engine *e)
{
    static const struct lm_ops ops = {.seq_create = seq_create,
                                      .seq_free = seq_free,
                                      .seq_truncate = seq_truncate,
                                      .step = step,
                                      .seq_bytes = seq_bytes,
                                      .step_bytes = step_bytes,
                                      .seq_fork = seq_fork};
    const struct qn_model_info *info = qn_engine_info(e);
    return (struct lm){
        .ops = &ops,
        .self = e,
        .n_vocab = info->n_vocab,
        .n_ctx = info->n_ctx,
        .max_rows = qn_step_max_rows(e),
        .eos_ids = info->eos_ids,
        .n_eos = info->n_eos,
    };
}
