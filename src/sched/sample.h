/*
 * sample.h - from logits to a token. One sampler per generated answer; pure apart from its own
 * history. A draw depends on (seed, position) only, never on neighbours in a batch.
 *
 * Order (models.md section 7): logit_bias -> repetition -> presence -> frequency -> log-softmax in
 * float32 (this is what logprobs report) -> top_p -> min_p -> xtc -> top_k -> temperature -> draw.
 * temperature 0 takes the arg max (lowest id among equals) and skips the filters.
 */
#ifndef SCHED_SAMPLE_H
#define SCHED_SAMPLE_H

#include "base/err.h"

struct logit_bias {
    int32_t id;
    float bias;
};

struct sample_params {
    float temperature;    /* 0 = greedy; at most 2 on the wire */
    float top_p;          /* (0,1]; 1 = off */
    float min_p;          /* [0,1]; 0 = off */
    int32_t top_k;        /* 0 = off */
    float xtc_probability, xtc_threshold; /* 0 = off; threshold 0..0.5 */
    float repetition_penalty;             /* 1 = off; prompt and generated tokens */
    int32_t repetition_window;            /* last n tokens looked at; 0 = all */
    float presence_penalty, frequency_penalty; /* 0 = off; generated tokens only */
    uint64_t seed;
    const struct logit_bias *bias; /* borrowed during sampler_create only */
    int32_t n_bias;
    int32_t n_top; /* alternatives reported with each token: -1 = no logprobs at all, 0..20 */
};

struct sample_params sample_params_default(void); /* temperature 0.7, everything else off */
/* Range check with the field's name, value and limits in the message. */
enum qn_status sample_params_check(const struct sample_params *p, int32_t n_vocab,
                                   struct qn_err *err);

struct sampled {
    int32_t id;
    float logprob; /* of id; log-softmax after bias and penalties; 0 when n_top < 0 */
    int32_t n_top; /* filled, sorted: highest first, ties by lower id */
    struct {
        int32_t id;
        float logprob;
    } top[20];
};

struct sampler;
/* no_xtc: ids that xtc never removes (newline and EOS), borrowed during the call. */
enum qn_status sampler_create(const struct sample_params *p, int32_t n_vocab,
                              const int32_t *no_xtc, int32_t n_no_xtc, struct sampler **out,
                              struct qn_err *err);
void sampler_free(struct sampler *s);
void sampler_prompt(struct sampler *s, const int32_t *ids, int32_t n); /* prompt history */
/* logits: [n_vocab] float32, destroyed. position: index of the token being drawn in the answer.
 * NaN logits are QN_INTERNAL (the request fails, the server goes on). The drawn token joins the
 * history. */
enum qn_status sampler_draw(struct sampler *s, float *logits, int64_t position,
                            struct sampled *out, struct qn_err *err);

#endif
