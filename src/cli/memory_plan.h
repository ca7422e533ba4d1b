/*
 * memory_plan.h - what a model takes beside keys and values, the same for `quern serve` and
 * `quern fit`. Pure.
 */
#ifndef CLI_MEMORY_PLAN_H
#define CLI_MEMORY_PLAN_H

#include "quern.h"

/* The program itself: code, tokenizer, template, requests. */
enum { PROGRAM_BYTES = 64 << 20 };

struct memory_plan {
    int64_t weights, step, logits; /* bytes: the last two for steps of so many sequences */
};
/* step_bytes: qn_transient_bytes of n_seq rows of logits. */
static inline struct memory_plan memory_plan_of(const struct qn_model_info *info,
                                                int64_t step_bytes, int64_t n_seq)
{
    return (struct memory_plan){info->weight_bytes, step_bytes,
                                n_seq * info->n_vocab * (int64_t)sizeof(float)};
}
static inline int64_t memory_fixed(const struct memory_plan *p)
{
    return p->weights + p->step + p->logits + PROGRAM_BYTES;
}

#endif
