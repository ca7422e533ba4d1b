/*
 * bench_mask.h - what structured output costs a token: masks of a JSON Schema over a model's own
 * vocabulary, laid on logits and drawn from, beside the same draws without. Main thread.
 */
#ifndef CLI_BENCH_MASK_H
#define CLI_BENCH_MASK_H

#include "base/err.h"

struct bench_mask {
    int n_token;     /* of the answer; 0 = not measured */
    double first_us; /* a token more, in the first answer of a schema */
    double again_us; /* in the answers after it, which find its masks made; median of answers */
    double worst_us; /* the slowest token of the first */
    double start_us; /* the vocabulary, once for a server, and compiling the schema */
};

/* dir: the model's folder. One without a tokenizer leaves *out empty. */
enum qn_status bench_mask(const char *dir, int32_t n_vocab, struct bench_mask *out,
                          struct qn_err *err);

#endif
