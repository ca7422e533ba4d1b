/*
 * golden.h - reads a golden: prompts with the logits and greedy ids that float32 arithmetic gives
 * for a checkpoint, to compare an engine with (docs/parity.md draws the format). One file NAME.json
 * and, where whole rows of logits were kept, NAME.safetensors beside it. Nothing in them is
 * trusted.
 */
#ifndef MODEL_GOLDEN_H
#define MODEL_GOLDEN_H

#include "base/json.h"
#include "model/safetensors.h"
#include "quern.h"

enum { GOLDEN_PROMPTS_MAX = 64, GOLDEN_IDS_MAX = 1 << 20, GOLDEN_TOP_MAX = 64 };

struct golden_prompt {
    int32_t *ids, n_ids; /* at least 1 */
    int32_t *greedy, n_greedy;
    double *margins;     /* [n_greedy]: best logit less the second at each greedy step */
    const float *full;   /* [n_ids, n_vocab], or NULL */
    const float *decode; /* [n_decode, n_vocab]: logits after greedy token j, or NULL */
    int32_t n_decode, n_vocab;
    float *copy[2];                        /* of arrays that lie unaligned in their file; owned */
    int32_t top_id[GOLDEN_TOP_MAX], n_top; /* log-probabilities behind the prompt */
    double top_logprob[GOLDEN_TOP_MAX];
};

struct golden {
    struct golden_prompt p[GOLDEN_PROMPTS_MAX];
    int32_t n;
    int32_t *text, n_text; /* ids of a text with its likelihood; 0 = none */
    double *nll;           /* [n_text - 1] nats of token i + 1 */
    double kl;             /* mean KL the canonical arithmetic may have here; 0 = not stated */
    struct str kl_why;     /* the reason, stated with it; lives in doc */
    struct st *arrays;     /* NULL = none */
    struct json *doc;
};

/* PATH names the .json file; ".json" may be left out. Every id is below n_vocab (0 = not checked),
 * and arrays have n_vocab columns. On failure *g is closed. */
enum qn_status golden_open(const char *path, int32_t n_vocab, struct golden *g, struct qn_err *err);
void golden_close(struct golden *g); /* {0} is fine */

#endif
