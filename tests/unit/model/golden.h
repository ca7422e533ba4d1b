/*
 * golden.h - reads a golden: a tiny checkpoint's prompts, greedy ids and float32 logits as mlx-lm
 * computed them (tests/oracle says how), for the parity and invariance tests.
 */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include "base/json.h"
#include "model/safetensors.h"
#include "quern.h"

enum { GOLDEN_PROMPTS_MAX = 8 };

struct golden_prompt {
    int32_t *ids, n_ids;
    int32_t *greedy, n_greedy;
    double *margins;     /* [n_greedy] */
    const float *full;   /* [n_ids, n_vocab] */
    const float *decode; /* [n_decode, n_vocab]: logits after greedy token j */
    int32_t n_decode, n_vocab;
};

struct golden {
    struct golden_prompt p[GOLDEN_PROMPTS_MAX];
    int32_t n;
    struct st *arrays;
    struct json *doc;
};

/* NAME.json and NAME.safetensors in dir. */
enum qn_status golden_open(const char *dir, const char *name, struct golden *g, struct qn_err *err);
void golden_close(struct golden *g);

#endif
