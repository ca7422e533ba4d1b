/*
 * logits.h - questions about one row of logits [n]. Pure functions, any thread.
 */
#ifndef MODEL_LOGITS_H
#define MODEL_LOGITS_H

#include <stdint.h>

/* The likeliest token; among equals the lowest id. n >= 1. */
int32_t logits_best(const float *x, int32_t n);
/* Its probability; best as logits_best says. */
float logits_best_prob(const float *x, int32_t n, int32_t best);
/* The logarithm of the sum of exp(x), summed in double: a token's log-probability is its logit
 * less this. */
double logits_log_sum(const float *x, int32_t n);

#endif
