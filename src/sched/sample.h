/*
 * sample.h - from logits to a token. One sampler per generated answer; pure apart from its own
 * history. A draw depends on (seed, position) only, never on neighbours in a batch.
 *
 * Cost: greedy without logprobs is one pass over the row; nothing ever sorts the vocabulary.
 */
/*
 * Order: logit_bias -> repetition -> presence -> frequency -> log-softmax in float32 (this is what
 * logprobs report) -> top_p -> min_p -> xtc -> top_k -> temperature -> draw. The filters look at
 * probabilities before temperature:
 *   top_p  a token stays while the tokens above it hold less than top_p of the mass; tokens equal
 *          to the last one kept stay as well
 *   min_p  drops tokens less probable than min_p times the most probable
 *   xtc    with probability xtc_probability: of the tokens above xtc_threshold (share of what is
 *          left) only the least probable stays; ids in no_xtc are never dropped
 *   top_k  keeps the k highest of what is left, lower ids first among equals
 * temperature 0 takes the arg max (lowest id among equals) and skips the filters; temperatures
 * under 1e-5 act as 1e-5.
 */
#ifndef SCHED_SAMPLE_H
#define SCHED_SAMPLE_H

#include "base/err.h"

struct logit_bias {
    int32_t id;
    float bias; /* -100..100, added; an id named twice gets both */
};

struct sample_params {
    float temperature;                    /* 0 = greedy; 0..2 */
    float top_p;                          /* (0,1]; 1 = off */
    float min_p;                          /* [0,1]; 0 = off */
    int32_t top_k;                        /* 0 = off */
    float xtc_probability, xtc_threshold; /* 0 = off; threshold 0..0.5 */
    /* > 0; 1 = off. A positive logit is divided by it, a negative one multiplied, once for each
     * distinct token of the prompt and the answer. */
    float repetition_penalty;
    int32_t repetition_window; /* last n tokens looked at (prompt and answer); 0 = all */
    /* -2..2; 0 = off; generated tokens only: presence is subtracted once per distinct token,
     * frequency once per occurrence. */
    float presence_penalty, frequency_penalty;
    uint64_t seed;
    const struct logit_bias *bias; /* borrowed during sampler_create only */
    int32_t n_bias;
    int32_t n_top; /* alternatives reported with each token: -1 = no logprobs at all, 0..20 */
};

#define SAMPLE_TOP_MAX 20
/* The lowest logprob ever reported, in the place of -infinity (OpenAI's own convention). */
#define SAMPLE_LOGPROB_FLOOR (-9999.0f)

struct sample_params sample_params_default(void); /* temperature 0.7, everything else off */
/* Range check with the field's name, value and limits in the message. */
enum qn_status sample_params_check(const struct sample_params *p, int32_t n_vocab,
                                   struct qn_err *err);

struct sampled {
    int32_t id;
    float logprob; /* of id; log-softmax after bias and penalties; 0 when n_top < 0 */
    int32_t n_top; /* filled, sorted: highest first, ties by lower id; -1 = logprob is not set */
    struct {
        int32_t id;
        float logprob;
    } top[SAMPLE_TOP_MAX];
};

struct sampler;
/* Checks the parameters too. no_xtc: ids that xtc never removes (newline and EOS), borrowed during
 * the call; ids outside the vocabulary are ignored. */
enum qn_status sampler_create(const struct sample_params *p, int32_t n_vocab, const int32_t *no_xtc,
                              int32_t n_no_xtc, struct sampler **out, struct qn_err *err);
void sampler_free(struct sampler *s); /* NULL is fine */
/* Prompt history, for the repetition penalty. Lack of memory shows at the next draw. */
void sampler_prompt(struct sampler *s, const int32_t *ids, int32_t n);
/* The next draw or distribution (only that one) takes a token whose bit is set: bit id of
 * bits[id / 64], borrowed until then. Everything but the logprobs acts on what is allowed. */
void sampler_allow(struct sampler *s, const uint64_t *bits);
/* logits: [n_vocab] float32, destroyed. position: index of the token being drawn in the answer.
 * NaN or +infinite logits, or no finite one, are QN_INTERNAL (the request fails, the server goes
 * on). The drawn token joins the history. */
enum qn_status sampler_draw(struct sampler *s, float *logits, int64_t position, struct sampled *out,
                            struct qn_err *err);
/* The distribution that sampler_draw would draw from at this position: prob[n_vocab], 0 for tokens
 * that cannot come, the xtc coin of this position tossed. logits destroyed, history unchanged. */
enum qn_status sampler_dist(struct sampler *s, float *logits, int64_t position, float *prob,
                            struct qn_err *err);

/* The logprob of a known token (echo of a prompt): log-softmax of the logits as they are, without
 * bias and penalties. n_top as in sample_params. The history is not touched. */
enum qn_status sampler_score(struct sampler *s, const float *logits, int32_t id,
                             struct sampled *out, struct qn_err *err);

#endif
