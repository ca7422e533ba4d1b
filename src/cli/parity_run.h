/*
 * parity_run.h - an engine beside a golden: how far its logits are from float32's, and whether they
 * depend on how the prompt was cut. For `quern parity`; main thread.
 */
#ifndef CLI_PARITY_RUN_H
#define CLI_PARITY_RUN_H

#include "model/golden.h"

/* What was compared of one prompt, or of all of them. */
struct parity_row {
    int32_t n_row;        /* rows of logits compared; 0 = the golden has none */
    double mean, max;     /* |logit - golden| */
    double kl;            /* mean KL(golden || engine), nats per row */
    double top1;          /* share of rows with the same arg max */
    double top_off;       /* worst |logprob - golden| of the listed ones; -1 = none listed */
    int32_t n_greedy;     /* greedy ids judged: up to the first near-tie */
    int32_t greedy_wrong; /* first wrong step before a near-tie; -1 = none */
    bool varies;          /* logits depended on the chunk size */
};

struct parity {
    struct parity_row rows[GOLDEN_PROMPTS_MAX], all;
    int32_t n;
    double nll, nll_golden; /* nats per token of the golden's text; NaN = it has none */
};

/* Runs every prompt. margin: a greedy step with a smaller one is a near-tie. progress may be NULL
 * (done in [0,1]); cancel is looked at between prompts and may be NULL. */
struct parity_params {
    double margin;
    void (*progress)(void *arg, double done);
    void *arg;
    bool (*cancelled)(void);
};
enum qn_status parity_run(struct qn_engine *e, const struct golden *g,
                          const struct parity_params *p, struct parity *out, struct qn_err *err);

#endif
