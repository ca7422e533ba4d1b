/*
 * lm.h - what the scheduler needs of a language model, as a table of functions, so that the engine
 * and a scripted test double are interchangeable. Mirrors quern.h; see there for the meaning of
 * each call. All calls come from the scheduler's one thread.
 */
#ifndef SCHED_LM_H
#define SCHED_LM_H

#include "cache/cache_file.h"
#include "quern.h"

/* Of a line, what a new sequence holds and what the cache knows. */
struct lm_reuse {
    int32_t n_have, n_match;
};

/* A line for the model's own draft head. */
struct lm_mtp_item {
    void *seq; /* holds all of the line but perhaps the last token */
    const int32_t *ids;
    int32_t n_ids;
    int32_t n_draft;   /* wanted behind the line, 0..QN_MTP_DRAFT_MAX; afterwards: made, or 0 */
    int32_t *drafts;   /* [n_draft] */
    float *probs;      /* [n_draft] */
    const float *odds; /* as in struct qn_mtp_item */
    float least;
};

struct lm_ops {
    enum qn_status (*seq_create)(void *self, void **seq, struct qn_err *err);
    void (*seq_free)(void *self, void *seq);
    enum qn_status (*seq_truncate)(void *self, void *seq, int32_t n, struct qn_err *err);
    /* items[i].seq is the void* of seq_create. */
    enum qn_status (*step)(void *self, struct qn_step_item *items, int32_t n, struct qn_err *err);
    /* Bytes of memory a sequence of n tokens takes. Any thread, unlike the others. NULL: memory is
     * not planned. */
    int64_t (*seq_bytes)(const void *self, int32_t n);
    /* Bytes of work memory of a step that wants n logits. Any thread. NULL: not known. */
    int64_t (*step_bytes)(const void *self, int32_t n_logits);
    /* A second sequence with the same tokens. NULL, or QN_UNSUPPORTED: cannot be. */
    enum qn_status (*seq_fork)(void *self, void *seq, void **out, struct qn_err *err);

    /* The prompt cache (quern.h: qn_cache); all NULL = there is none. A keep that fails is the
     * cache's affair. */
    enum qn_status (*cache_seq)(void *self, const struct qn_line *line, void **seq,
                                struct lm_reuse *reuse, struct qn_err *err);
    void (*cache_keep)(void *self, const struct qn_line *line, void *seq);
    void (*cache_trim)(void *self, int64_t bytes);
    /* After the last call. */
    void (*cache_stats)(void *self, struct qn_cache_stats *out);
    /* Its second tier, on disk; all NULL = there is none. */
    int32_t (*cache_tick)(void *self, bool busy);
    bool (*cache_loading)(void *self, const struct qn_line *line);
    bool (*cache_flush)(void *self, bool begin, struct qn_cache_flush *out);
    /* Files of single conversations; NULL = there are none. */
    bool (*cache_file)(void *self, const struct cache_file_ask *ask, struct cache_file_told *out);

    /* The model's own draft head (quern.h: qn_mtp); both NULL = none is loaded. A sequence's
     * context takes the tokens that it has not taken yet by itself, and goes with its sequence. */
    enum qn_status (*mtp_open)(void *self, void *seq, struct qn_err *err);
    enum qn_status (*mtp_step)(void *self, struct lm_mtp_item *items, int32_t n,
                               struct qn_err *err);
};

struct lm {
    const struct lm_ops *ops;
    void *self;
    int32_t n_vocab, n_ctx, max_rows; /* max_rows: most tokens one step accepts */
    const int32_t *eos_ids;
    int32_t n_eos;
    int32_t cache_interval, cache_reach; /* qn_cache_interval, qn_cache_reach */
    const uint8_t *fingerprint;          /* [32] pcache_fingerprint; NULL = not known. Any thread */
};

/* Whether a token ends answers. */
static inline bool lm_is_eos(const struct lm *lm, int32_t id)
{
    for (int32_t i = 0; i < lm->n_eos; i++)
        if (lm->eos_ids[i] == id)
            return true;
    return false;
}

/* The engine as an lm; borrowed for the lm's life. */
struct lm lm_of_engine(struct qn_engine *e);
/* mtp_step on an engine. */
enum qn_status lm_mtp_run(struct qn_engine *e, struct lm_mtp_item *items, int32_t n,
                          struct qn_err *err);
/* With its prompt cache, borrowed too. */
struct lm lm_of_cache(struct qn_cache *c);

#endif
