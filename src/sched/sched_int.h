/*
 * sched_int.h - the scheduler, as its files share it: sched.c (life, clients, the thread),
 * admit.c (who runs: starts, ends, memory), round.c (one step: plan, run, deliver). Inside sched/
 * only.
 *
 * Only the thread calls the lm and touches its own fields; mu guards the rest. No lock is held in a
 * step.
 */
#ifndef SCHED_SCHED_INT_H
#define SCHED_SCHED_INT_H

#include "sched/gen.h"
#include "sched/pace.h"

#define SCHED_WHERE "scheduler"
#define ECHO_ROWS   32 /* rows of prompt logits in one step: bounds their memory */
#define ECHO_MORE   4  /* events of an echo step beside its rows: first token, progress, answer */

struct sched {
    struct lm lm;
    const struct tok *tok;
    struct ids newline; /* ids of "\n", which xtc leaves alone */
    int32_t n_lane, queue_max, chunk;
    bool paced;         /* chunk is the most; pace decides */
    int64_t kv_budget;  /* 0 = memory is not planned */
    int32_t fit_tokens; /* the longest sequence that fits into it; n_ctx without a budget */
    int64_t pause_max_us;
    pthread_t thread;

    pthread_mutex_t mu;
    pthread_cond_t wake; /* to the thread: signals moved or quit */
    pthread_cond_t idle; /* to sched_drain: nothing runs or waits */
    pthread_cond_t flushed;
    int64_t flush_wanted, flush_done; /* flushes asked for and answered */
    struct qn_cache_flush flush_result;
    struct file_job *files; /* that wait */
    struct fairq queue;
    struct sched_stats stats;
    struct gen_share *dead; /* to be freed by the thread */
    uint64_t signals;
    bool draining, quit;

    /* The thread's own. */
    struct gen **run; /* [run_max] */
    int32_t n_run, run_max, turn;
    int64_t look_us;    /* when a paused generation has to make way; 0 = none has to */
    int64_t kv_planned; /* bytes promised to those that hold a sequence */
    int64_t order;      /* numbers generations as they start */
    int64_t n_ended;    /* sequences given back so far */
    int64_t flush_now;  /* the flush under way; 0 = none */
    bool flush_guesser; /* it has come to what guesses; of the model it has this: */
    struct qn_cache_flush flush_model;
    int64_t tick_us; /* of the disk cache: not before */
    bool tick_wanted;
    struct file_job *file_now;
    struct pace pace;
    int32_t depth;                      /* tokens read of the prompt that the step reads on */
    struct spec *spec;                  /* NULL = no guesses */
    struct qn_step_item *items;         /* [n_lane] the planned step */
    struct gen **who;                   /* [n_lane] whose item it is */
    int32_t n_item, n_decode, n_prompt; /* of the step: items, answers, prompt tokens */
    float *rows;                        /* [n_lane + spec_rows, n_vocab]: a step's logits */
    float *echo_rows;                   /* [ECHO_ROWS, n_vocab], made when first asked for */
};

/* Of the memory for what is kept, a second model's part. */
enum { SCHED_DRAFT_PART = 5 };

/* What generations of one prompt have in common. refs: the client and each of the generations. */
struct gen_share {
    struct sched *s;
    struct gen_share *next_dead; /* sched.mu */
    atomic_int refs;
    /* The thread's own. */
    enum { SHARE_OPEN, SHARE_READING, SHARE_READY, SHARE_BROKEN } state;
    struct gen *reader; /* SHARE_READING */
    void *seq;          /* SHARE_READY: holds the prompt, is never stepped */
    float *logits;      /* [n_vocab] after the prompt's last token */
    int64_t bytes;      /* of the plan */
    int32_t n_cached;   /* prompt tokens that the reader did not compute */
};

/* ---- admit.c -------------------------------------------------------------------------------- */

/* The most tokens of a lone sequence within the budget. */
int32_t sched_fit_tokens(const struct sched *s);
/* Refuses a length that can never fit, or cuts an open one: see gen_params.max_tokens. Any thread.
 */
enum qn_status sched_check_memory(const struct sched *s, struct gen *g, struct qn_err *err);
/* Ends the cancelled and those that keep others waiting; starts those that may. */
void sched_admit(struct sched *s);
/* Memory for g's next token, in what it has planned or more. False: g, or an older one's need, had
 * it parked; it takes no part in this round. */
bool sched_extend(struct sched *s, struct gen *g);
/* A step had no memory: parks the youngest but one. False when there is nothing to give. */
bool sched_give_memory(struct sched *s);
/* The reader has its prompt's logits: copies for the others. */
void sched_share_fill(struct sched *s, struct gen *g, const float *logits);
void sched_free_shares(struct sched *s);

void sched_fail(struct sched *s, struct gen *g, const struct qn_err *err);
void sched_finish(struct sched *s, struct gen *g, struct gen_verdict verdict);
void sched_finish_as(struct sched *s, struct gen *g, enum gen_finish why);
void sched_end_all(struct sched *s);
/* Under mu. */
void sched_tell_idle(struct sched *s);

/* ---- reuse.c: the prompt cache ------------------------------------------------------------- */

/* A sequence that holds the first *n_have tokens that g lacks. */
enum qn_status sched_reuse(struct sched *s, struct gen *g, void **seq, int32_t *n_have,
                           struct qn_err *err);
/* True when another one reads at this moment what g would read too: g then waits for it. */
bool sched_reuse_later(const struct sched *s, struct gen *g);
/* How many of g's next n tokens to read in one step, so that it stops where it should be kept. */
int32_t sched_reuse_cut(const struct sched *s, const struct gen *g, int32_t n);
/* g's sequence has grown: keeps it where that is worth while. */
void sched_keep(struct sched *s, struct gen *g);
/* Keeps what g's sequence holds. */
void sched_keep_all(struct sched *s, struct gen *g);
/* A step had no memory: the cache gives half of what it has. False when it has nothing. */
bool sched_reuse_yield(struct sched *s);
/* The cache gives memory back that is promised to generations; its numbers into the stats. */
void sched_reuse_settle(struct sched *s);

/* The cache's numbers into the stats. */
void sched_reuse_stats(struct sched *s);

/* ---- cache_disk.c: the prompt cache on disk ------------------------------------------------- */

/* Part of what g needs is being read: it waits. */
bool sched_disk_loading(struct sched *s, const struct gen *g);
/* Between steps. */
void sched_disk_tick(struct sched *s);

/* ---- conv_jobs.c: files of single conversations --------------------------------------------- */

/* Between steps. */
void sched_files_tick(struct sched *s);
void sched_files_free(struct sched *s);

/* ---- round.c -------------------------------------------------------------------------------- */

/* One step; false when there is nothing to do. */
bool sched_round(struct sched *s);
/* A token for g from its logits (destroyed), and what follows from it. */
void sched_token(struct sched *s, struct gen *g, float *logits);

#endif
