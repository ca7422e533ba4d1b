/*
 * drafter.h - what guesses the next tokens of a generation, as a table of functions, so that kinds
 * of guessing (and a scripted one for tests) are interchangeable. A guess never changes what the
 * model says: spec.c keeps exactly those that the model's own draw repeats.
 *
 * All calls come from the scheduler's one thread.
 */
#ifndef SCHED_DRAFTER_H
#define SCHED_DRAFTER_H

#include "sched/lm.h"

/* Guesses for one answer in one step: with the token before them they can be taken back. */
#define SPEC_DRAFT_MAX (QN_ROLLBACK - 1)
/* Levels of sureness that a kind tells apart. */
#define SPEC_SURE QN_MTP_LEVELS

/* One generation's part of a call. */
struct draft {
    void *ctx;
    /* All tokens so far, the last of which the model has not seen yet. They only ever grow. */
    const int32_t *ids;
    int32_t n_ids;
    int32_t most;  /* guesses wanted, 1..SPEC_DRAFT_MAX */
    int32_t n;     /* guesses made, 0..most */
    int32_t *out;  /* [most] */
    uint8_t *sure; /* [most] 0..SPEC_SURE-1: the kind's own scale, higher is surer */
    /* Of drafters whose guesses cost time, made one after the other, odds[SPEC_SURE], how often
     * guesses of a sureness hold: there is no guess behind some that hold together less often than
     * `least`. NULL = all that are wanted. */
    const float *odds;
    float least;
};

struct drafter_ops {
    const char *name;
    int32_t n_draft; /* guesses at a time where nobody says */
    /* Guessing takes time that counts: how many are wanted is decided before. */
    bool costs;
    bool block;             /* that time is the same for any number: all are made */
    float prior[SPEC_SURE]; /* how often a guess of that sureness holds, before anything is known */
    /* A context for a generation whose sequence is seq. NULL contexts are passed back as they are.
     */
    enum qn_status (*open)(void *self, void *seq, void **ctx, struct qn_err *err);
    void (*close)(void *self, void *ctx);
    /* Guesses for all of d[n] together. On failure nothing is known about their n. */
    enum qn_status (*draft)(void *self, struct draft *d, int32_t n, struct qn_err *err);
    /* The sequence has taken ids[0..n_fed) so far (of a prompt; steps of an answer are not told).
     * May be NULL. */
    enum qn_status (*fed)(void *self, void *ctx, const int32_t *ids, int32_t n_fed,
                          struct qn_err *err);
    /* fed is told of answers too, once so many of their tokens are new to it; 0 = never. */
    int32_t lag;
    /* The sequence of a context just opened began with the line's first n tokens (line: those and
     * the next, where there is one), computed before: the context may have kept something too. May
     * be NULL. */
    void (*resume)(void *self, void *ctx, const struct qn_line *line, int32_t n);
    /* The sequence, which holds the line, is being kept for others to go on from. May be NULL. */
    void (*keep)(void *self, void *ctx, const struct qn_line *line);
    /* Gives back memory of what was kept until it is at most so many bytes; returns how many it
     * then is. May be NULL. */
    int64_t (*trim)(void *self, int64_t bytes);
    /* What was kept on disk too, as lm_ops has it; all NULL = nothing is. loading: of a line that a
     * sequence will begin with; flush: true when there is nothing to do. */
    int32_t (*tick)(void *self, bool busy);
    bool (*loading)(void *self, const struct qn_line *line);
    bool (*flush)(void *self, bool begin, struct qn_cache_flush *out);
    void (*disk_stats)(void *self, struct qn_disk_stats *out);
    /* What it keeps of single conversations, as lm_ops has it; NULL = in no file of its own. */
    bool (*file)(void *self, const struct cache_file_ask *ask, struct cache_file_told *out);
    /* Memory for a generation of n tokens beside its sequence; NULL: none worth planning. Any
     * thread. */
    int64_t (*bytes)(const void *self, int32_t n_tokens);
    void (*free)(void *self); /* may be NULL */
};

/* Looks for the longest run of tokens before the end that occurred earlier, and guesses what
 * followed there. No model, no self. */
extern const struct drafter_ops drafter_ngram;
/* The model's own draft head; self: the target's struct lm, which has one. */
extern const struct drafter_ops drafter_mtp;
/* A block drafter, loaded in a head's place; self likewise. */
extern const struct drafter_ops drafter_dspark;
/* A draft model of queries only, likewise. */
extern const struct drafter_ops drafter_assistant;
/* A second model; self: a struct spec_model, which goes with it. */
extern const struct drafter_ops drafter_model;
struct spec_model;
enum qn_status spec_model_create(const struct lm *draft, const struct lm *target,
                                 struct spec_model **out, struct qn_err *err);

#endif
