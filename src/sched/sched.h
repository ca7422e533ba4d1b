/*
 * sched.h - requests in, events out. The scheduler's own thread is the only one that touches the
 * model; any number of client threads submit generations and wait for their events.
 *
 * Life of a generation: sched_submit -> queued -> GEN_PROGRESS* (prompt read so far; GEN_PROMPT
 * among them) -> GEN_TOKEN* -> exactly one GEN_DONE or GEN_ERROR. Events wait in a bounded ring per
 * generation; a client that does not read them pauses its own generation only: another one takes
 * its lane until it reads again. Where too many are paused for others to start, the one paused
 * longest ends after a while (pause_max_ms).
 *
 * Fair: generations are taken round robin over clients and, within one, over its users. All running
 * ones advance together, one engine step at a time, long prompts in chunks between.
 */
/*
 * Memory is planned (kv_budget). A generation starts when its sequence fits at its planned length:
 * prompt and max_tokens; where max_tokens is open, what it holds and a reserve of RESERVE tokens,
 * which grows as the answer does. Nobody overtakes the one that waits for memory. When a reserve
 * cannot grow, a generation is parked: it gives its memory back, waits, and later reads its own
 * tokens again, which its client notices only as a delay. Paused ones are parked first, then the
 * youngest; so the oldest always gets to its end.
 */
#ifndef SCHED_SCHED_H
#define SCHED_SCHED_H

#include <pthread.h>

#include "base/buf.h"
#include "gram/gram.h"
#include "sched/lm.h"
#include "sched/sample.h"
#include "sched/spec.h"
#include "tok/tok.h"

struct sched;
struct gen;

struct sched_params {
    /* At most n_lane + 16 sequences exist at a time: the lanes', and those of paused generations.
     */
    int32_t n_lane; /* generations in one step, 1..lm.max_rows; 0 = 1, the serial lane */
    /* Waiting generations before QN_BUSY; 0 = 64. Clients with less than an eighth of it may queue
     * up to twice as many, so that one client alone cannot fill it for all. */
    int32_t queue_max;
    /* Prompt tokens per step, at most lm.max_rows; 0 = as many as keep running answers flowing, see
     * pace.h. */
    int32_t chunk;
    int64_t kv_budget; /* bytes that sequences may take together; 0 = no limit */
    /* Milliseconds that a paused generation may keep others waiting when there are no more
     * sequences; then the one paused longest ends with GEN_ERROR. 0 = 30000. */
    int32_t pause_max_ms;
    struct spec_params spec; /* guesses that make answers faster and never different */
};

/* Starts the thread. lm and tok are borrowed for the scheduler's life. */
enum qn_status sched_create(const struct lm *lm, const struct tok *tok,
                            const struct sched_params *p, struct sched **out, struct qn_err *err);
/* No new submissions (QN_BUSY) from here on; waits up to timeout_ms for running and queued ones.
 * Returns true when all ended. */
bool sched_drain(struct sched *s, int timeout_ms);
/* Cancels what still runs, stops the thread, frees. All gens must be freed before. */
void sched_free(struct sched *s);

#define GEN_STOP_MAX       16
#define GEN_STOP_BYTES_MAX 4096 /* of one stop string */
#define GEN_MARK_MAX       24
#define GEN_NS_MAX         64

/* A limit on reasoning; see think_watch.h. */
struct gen_thinking {
    int32_t budget; /* tokens */
    bool inside;    /* the prompt has opened it */
    struct str open, close;
    const int32_t *end; /* tokens that come when the budget is used up */
    int32_t n_end;
};

struct gen_params {
    const int32_t *prompt; /* copied */
    int32_t n_prompt;      /* >= 1, < lm.n_ctx */
    /* -1 = to the end of the context; clamped to what fits (n_ctx - n_prompt). 0 = GEN_DONE with
     * GEN_LENGTH and no token, without running the model unless prompt_logprobs asks for it. */
    int32_t max_tokens;
    struct sample_params sample; /* bias is copied */
    /* Copied; non-empty UTF-8. The match that begins first ends the text exactly before it; of two
     * that begin together the shorter counts; see stops.h. */
    struct str stop[GEN_STOP_MAX];
    int32_t n_stop;
    bool ignore_eos;
    bool keep_special; /* special tokens appear in the text */
    /* Tokens whose name appears in the text between the bytes 0xFE and 0xFF, which no UTF-8 has: so
     * a reader can tell the token from its name. */
    int32_t mark[GEN_MARK_MAX];
    int32_t n_mark;
    /* What the answer has to look like (references are taken); NULL = anything. It ends with
     * GEN_STOP_GRAMMAR when it is complete and cannot go on; ignore_eos means nothing then. */
    struct gram *grammar;
    struct gram_vocab *vocab;            /* of n_vocab tokens; with grammar */
    const struct gen_thinking *thinking; /* copied; NULL = no limit */
    /* Echo: one GEN_PROMPT event per prompt token before the answer. Its logprob is the model's own
     * (no bias, no penalties), with sample.n_top alternatives; the first token has none (n_top -1),
     * and none has when sample.n_top is -1. */
    bool prompt_logprobs;
    uint64_t client, user; /* fairness keys: what we know, what the client says; see fairq.h */
    /* Of several generations of one prompt the first reads it and the others begin with a copy of
     * what it read; NULL = reads it itself. No use with prompt_logprobs. */
    struct gen_share *share;
    /* Whose prompts may share what was computed: at most 64 bytes, copied; NULL = "". */
    const char *cache_ns;
    bool cache_off;        /* the prompt cache is neither asked nor told */
    struct gen_bell *bell; /* rung at each event, for who waits for several; NULL = none */
};

/* Rung by generations; whoever waits for any of several looks at all of them after each ring. Lives
 * until the last gen_free of those that know it has returned. */
struct gen_bell {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    uint64_t n; /* rings so far */
};
void gen_bell_init(struct gen_bell *b);
void gen_bell_free(struct gen_bell *b);
uint64_t gen_bell_count(struct gen_bell *b);
/* Waits until it has rung more than `seen` times, at most timeout_ms (>= 0). */
void gen_bell_wait(struct gen_bell *b, uint64_t seen, int timeout_ms);

/* Ties generations of the same prompt together. Kept until it is freed and they have ended. NULL:
 * no memory, or the model cannot (then each one reads the prompt). */
struct gen_share *gen_share_create(struct sched *s);
void gen_share_free(struct gen_share *sh); /* any thread; NULL is fine */

/* QN_BUSY when the queue is full or the scheduler is draining; QN_BAD_INPUT for parameters out of
 * range (the message names them), also for a prompt that leaves no room and for a length whose
 * memory could never be had (with the numbers). Any thread. The caller frees *out with gen_free. */
enum qn_status sched_submit(struct sched *s, const struct gen_params *p, struct gen **out,
                            struct qn_err *err);

enum gen_kind {
    GEN_NONE = 0, /* gen_wait timed out */
    GEN_PROGRESS, /* n_done of n_prompt tokens read */
    GEN_PROMPT,   /* one prompt token with its logprob (echo) */
    GEN_TOKEN, /* one generated token; text may be empty while bytes or a possible stop are held */
    GEN_DONE,
    GEN_ERROR,
};
enum gen_finish { GEN_STOP_EOS, GEN_STOP_STRING, GEN_LENGTH, GEN_CANCELLED, GEN_STOP_GRAMMAR };

struct gen_usage {
    int32_t prompt_tokens; /* all of the prompt, cached or not */
    int32_t cached_tokens; /* of these, tokens that did not have to be computed */
    /* Tokens really made: every GEN_TOKEN event (also those inside a stop string) plus the EOS
     * token when it ended the answer, which is counted but has no event of its own. */
    int32_t completion_tokens;
    int64_t queue_us, prefill_us, decode_us;
    struct spec_counts spec;
};

struct gen_event {
    enum gen_kind kind;
    int32_t n_done;       /* GEN_PROGRESS: prompt tokens read; GEN_PROMPT: this one's index + 1 */
    struct sampled token; /* GEN_TOKEN, GEN_PROMPT */
    struct str text;      /* GEN_TOKEN and GEN_DONE (what was held back): bytes that became certain,
                             valid UTF-8 apart from marks; lives until the next gen_wait here */
    enum gen_finish finish; /* GEN_DONE */
    int32_t stop_index;     /* which stop string, GEN_STOP_STRING; -1 otherwise */
    struct gen_usage usage; /* GEN_DONE */
    struct qn_err err;      /* GEN_ERROR */
};

/* Waits up to timeout_ms (-1 = for ever, 0 = only looks) for the next event. One thread per gen.
 * After the final event it returns that event again. Unread GEN_PROGRESS events merge. */
void gen_wait(struct gen *g, int timeout_ms, struct gen_event *ev);
/* Asks to stop at the next chunk or step boundary; a queued generation leaves at once. Any thread.
 * GEN_DONE with GEN_CANCELLED follows (text held back until then comes with it), unless the
 * generation ended first. */
void gen_cancel(struct gen *g);
/* Cancels if still running, without waiting for it. NULL is fine. */
void gen_free(struct gen *g);

/* All that the prompt cache holds in memory is to become durable on disk: *out says how much is.
 * Other work goes on meanwhile. False: not within timeout_ms. Any thread; without a disk cache *out
 * is empty. */
bool sched_cache_flush(struct sched *s, int timeout_ms, struct qn_cache_flush *out);

/* Saves a line of the prompt cache to a file of its own, or restores one (quern.h: pcache_file;
 * room is the scheduler's affair). Other work goes on meanwhile. False: not within timeout_ms; it
 * goes on. Any thread. */
bool sched_cache_file(struct sched *s, const struct cache_file_ask *ask, int timeout_ms,
                      struct cache_file_told *out);

/* Files of conversations. failed: asked for and refused, whatever the reason; told of the others
 * alone. */
struct sched_file_sums {
    int64_t done, failed;
    int64_t tokens, draft_tokens, bytes;
};

struct sched_stats {
    int32_t running, waiting, n_lane;
    /* submitted = finished + failed + cancelled + running + waiting; rejected ones (QN_BUSY,
     * QN_BAD_INPUT) are apart. */
    int64_t submitted, finished, failed, cancelled, rejected;
    int64_t prompt_tokens, completion_tokens; /* computed so far; cached ones are not */
    int64_t kv_budget, kv_planned;            /* bytes; kv_budget 0 = no limit */
    int64_t parked;                           /* how often one gave its memory back */
    bool caches;                              /* there is a prompt cache */
    struct qn_cache_stats cache;
    bool files; /* it keeps files of conversations */
    struct sched_file_sums saves, restores;
    const char *spec_kind; /* NULL = no guesses */
    struct spec_counts spec;
};
/* Any thread; a generation is counted as ended before its last event can be read. */
void sched_stats(struct sched *s, struct sched_stats *out);

#endif
