/*
 * spec.h - speculation: guesses of a drafter ride along in an answer's step, and those that the
 * model's own draws repeat are tokens gained. What is drawn, and how, is gen.c's alone: the draws
 * of a window are those of single steps, in order, and end at the first that differs from the
 * guess; the rows behind it are taken back. So no text, logprob or count of tokens depends on it.
 *
 * The scheduler's thread; see sched.h for what others see of it.
 */
#ifndef SCHED_SPEC_H
#define SCHED_SPEC_H

#include "sched/drafter.h"
#include "sched/spec_policy.h"

/* Rows of guesses in one step, over all answers: bounds the memory of their logits. */
#define SPEC_STEP_ROWS 48

enum spec_kind {
    SPEC_OFF,
    SPEC_NGRAM,
    SPEC_MTP,
    SPEC_MODEL,
    SPEC_DSPARK,
    SPEC_ASSISTANT,
    SPEC_CUSTOM
};

struct spec_params {
    enum spec_kind kind;
    int32_t n_draft;        /* most guesses of an answer in a step; 0 = the kind's own number */
    const struct lm *draft; /* SPEC_MODEL: borrowed */
    /* Windows are as long as the drafter makes them: no weighing of cost and gain. For tests and
     * measurements. */
    bool fixed;
    const struct drafter_ops *ops; /* SPEC_CUSTOM */
    void *self;
};

/* Guesses so far. */
struct spec_counts {
    int64_t rounds; /* windows verified */
    int64_t drafted, accepted;
    int64_t accepted_at[SPEC_DRAFT_MAX]; /* by place in the window */
};
/* A window verified; drafted 0: none. */
void spec_count(struct spec_counts *c, int32_t drafted, int32_t accepted);
void spec_counts_add(struct spec_counts *to, const struct spec_counts *c);
/* The member "speculation" of a JSON object; nothing when no window was verified. */
struct jw;
void spec_counts_json(struct jw *w, const struct spec_counts *c);

struct gen;
struct spec;
struct qn_step_item;

/* QN_BAD_INPUT, QN_UNSUPPORTED: the message says what does not go together. SPEC_OFF gives NULL. */
enum qn_status spec_create(const struct spec_params *p, const struct lm *lm, int32_t n_lane,
                           struct spec **out, struct qn_err *err);
void spec_free(struct spec *sp); /* NULL is fine */
/* Rows of logits beside one for each lane. NULL: 0. */
int32_t spec_rows(const struct spec *sp);
/* Memory of a generation of n tokens beside its sequence. Any thread. */
int64_t spec_bytes(const struct spec *sp, int32_t n_tokens);
const char *spec_name(const struct spec *sp); /* of the kind; NULL = none */

/* Everything below: NULL sp and generations without a context are fine. */

/* g has got a sequence; it is about to lose it. Without memory it goes on without guesses. */
void spec_begin(struct spec *sp, struct gen *g);
void spec_end(struct spec *sp, struct gen *g);
/* The line, which g's sequence holds, is being kept for others to go on from. */
struct qn_line;
void spec_keep(struct spec *sp, struct gen *g, const struct qn_line *line);
/* What was kept beside the prompt cache gives memory back down to so many bytes; returns those it
 * then has. */
int64_t spec_trim(struct spec *sp, int64_t bytes);
/* The same on disk (drafter.h); without one: 0, false, true. */
struct qn_cache_flush;
struct qn_disk_stats;
int32_t spec_disk_tick(struct spec *sp, bool busy);
bool spec_disk_loading(struct spec *sp, const struct qn_line *line);
bool spec_disk_flush(struct spec *sp, bool begin, struct qn_cache_flush *out);
void spec_disk_stats(struct spec *sp, struct qn_disk_stats *out); /* zeros */
/* Files of single conversations that are its own (drafter.h); spec_file only where it has any. */
struct cache_file_ask;
struct cache_file_told;
bool spec_has_files(const struct spec *sp);
bool spec_file(struct spec *sp, const struct cache_file_ask *ask, struct cache_file_told *out);
/* g's sequence has taken a chunk of its prompt. */
void spec_fed(struct spec *sp, struct gen *g);
/* Puts guesses behind the tokens of the planned answers (items of one token and one row of logits,
 * of who[n]), unless `plain`; their logits then lie in rows[n + spec_rows, n_vocab]. */
void spec_plan(struct spec *sp, struct qn_step_item *items, struct gen **who, int32_t n, bool plain,
               float *rows);
/* Takes them out again: there was no memory for them. True when there were any. */
bool spec_strip(struct spec *sp, struct qn_step_item *items, int32_t n);
/* drawn[n] came where g's step had a window of so many guesses (0 = none). Returns how many of the
 * window were accepted. */
int32_t spec_learn(struct spec *sp, struct gen *g, int32_t window, const int32_t *drawn, int32_t n);
/* What a step took; n_prompt: tokens of prompts in it. */
void spec_note(struct spec *sp, int32_t rows, int32_t n_prompt, int64_t us);

#endif
