/*
 * gen.h - one generation, as gen.c and sched.c share it. Inside sched/ only.
 *
 * Who may touch what is written beside each group of fields. Lock order: sched.mu before gen.mu; a
 * reader lets go of gen.mu before it takes sched.mu. Two owners hold it: the client (sched_submit
 * to gen_free) and the scheduler (submission to its end); the last one frees.
 */
#ifndef SCHED_GEN_H
#define SCHED_GEN_H

#include <pthread.h>
#include <stdatomic.h>

#include "sched/fairq.h"
#include "sched/lm.h"
#include "sched/ring.h"
#include "sched/sample.h"
#include "sched/sched.h"
#include "sched/spec.h"
#include "sched/stops.h"
#include "tok/tok.h"

enum gen_phase {
    PHASE_PREFILL, /* its sequence lacks more than the last token */
    PHASE_DECODE,
    PHASE_PARKED, /* waits for memory, without a sequence */
    PHASE_WAITS,  /* for another one to read what their prompts share, without a sequence */
};
enum gen_place { PLACE_QUEUED, PLACE_RUNNING, PLACE_ENDED };

struct gen {
    struct fairq_node node; /* first: the queue's node is the generation. sched.mu */
    enum gen_place place;   /* sched.mu */
    atomic_int refs;
    atomic_bool cancel;

    /* Fixed at submission. */
    struct sched *s;
    struct gen_params p; /* p.sample.bias is an own copy; p.prompt and p.stop are unused */
    struct logit_bias *bias;
    bool open_end; /* max_tokens was left open */
    char cache_ns[GEN_NS_MAX + 1];
    int64_t submit_us;

    /* The scheduler's thread alone. */
    enum gen_phase phase;
    void *seq;
    struct sampler *sampler;
    struct stops *stops;
    const struct tok *tok;
    struct gram_run *grammar;  /* NULL = any text */
    struct think_watch *watch; /* NULL = no limit on reasoning */
    struct spec_gen *spec;     /* NULL = no guesses */
    struct detok *detok;
    struct buf piece; /* one token's bytes on their way from the detokenizer to the stops */
    int32_t *ids;     /* [n_ids] the prompt, then what was made */
    int32_t n_ids, cap_ids;
    int32_t n_fed; /* of ids: what the sequence holds */
    int32_t n_made;
    int32_t n_read, n_echoed; /* prompt tokens told about, also while they are read again */
    int32_t plan_tokens;      /* length its memory is planned for */
    int64_t plan_bytes;       /* its part of sched.kv_planned */
    int32_t n_began;          /* tokens its sequence held at first */
    int32_t n_kept;           /* of these, tokens that the prompt cache has */
    int32_t n_match, first_turn, last_turn; /* places to keep on the way; see reuse.c */
    int64_t wait_order; /* PHASE_WAITS for this one to read its first wait_at tokens; 0 = a share */
    int32_t wait_at;
    bool forked;                /* its sequence shares the prompt's memory with its share's */
    int64_t order;              /* of starts: the youngest has the highest */
    int64_t hold_until;         /* parked: not before so many sequences (sched.n_ended) are gone */
    int32_t room;               /* free places for events when this round began; 0 = paused */
    int64_t start_us, first_us; /* taken from the queue; first logits there */
    int64_t paused_us;          /* since when there has been no room; 0 = there is */
    struct gen_usage usage;

    /* Under mu. */
    pthread_mutex_t mu;
    pthread_cond_t cv;
    struct ring ring;
    bool paused; /* the scheduler found no room; the reader wakes it */
    bool ended;  /* the fields below are set and final */
    enum gen_kind end_kind;
    enum gen_finish finish;
    int32_t stop_index;
    struct buf end_text;
    struct gen_usage end_usage;
    struct qn_err end_err;

    /* The client's thread alone. */
    struct buf out; /* text of the event it reads */
};

/* Checks and copies the parameters. */
enum qn_status gen_create(struct sched *s, const struct lm *lm, const struct gen_params *p,
                          struct gen **out, struct qn_err *err);
void gen_unref(struct gen *g);

/* ---- the scheduler's side ------------------------------------------------------------------ */

/* Leaving the queue: makes what running needs apart from the sequence. */
enum qn_status gen_start(struct gen *g, const struct lm *lm, const struct tok *tok,
                         const struct ids *newline, struct qn_err *err);
/* Free places for events; 0, and the generation is marked as paused, when fewer than `need`. */
int32_t gen_room(struct gen *g, int32_t need);
void gen_emit_progress(struct gen *g);
/* The logprob of prompt[at] from the logits of the token before it (NULL for the first). */
enum qn_status gen_emit_prompt(struct gen *g, int32_t at, const float *logits, struct qn_err *err);

/* What the generation does after a token. */
struct gen_verdict {
    bool over;
    enum gen_finish finish;
    int32_t stop_index;
};
/* Draws the next token from its logits (destroyed) and tells the client. */
enum qn_status gen_token(struct gen *g, const struct lm *lm, float *logits,
                         struct gen_verdict *verdict, struct qn_err *err);
/* Flushes held text into `text`; a stop that completes or was waiting turns the verdict into
 * GEN_STOP_STRING, unless it was cancelled. */
enum qn_status gen_flush(struct gen *g, struct gen_verdict *verdict, struct buf *text,
                         struct qn_err *err);
/* Frees what gen_start made. */
void gen_drop_work(struct gen *g);
/* Last event; the client may read it from now on. text is taken, err may be NULL. */
void gen_publish_done(struct gen *g, const struct gen_verdict *verdict, struct buf *text);
void gen_publish_error(struct gen *g, const struct qn_err *err);

void gen_share_unref(struct gen_share *sh); /* any thread */

/* ---- sched.c, called from the client's side ------------------------------------------------ */

void sched_poke(struct sched *s); /* something changed: look again */
/* Takes g out of the queue when it is still there; true when it was. */
bool sched_unqueue(struct sched *s, struct gen *g);

#endif
