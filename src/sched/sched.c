/*
 * sched.c - the scheduler's thread: takes generations from the queue, puts the rows of all running
 * ones into engine steps, hands out what comes back.
 *
 * Each round: end what was cancelled, fill free lanes from the queue, plan a step (one row for each
 * generation that decodes, a chunk for those that still read their prompt, at most max_rows), run
 * it, deliver. The round robin over running generations starts one further each time.
 *
 * Invariant: only this thread calls the lm and touches `run`, the plan and the row buffers; mu
 * guards the queue, the places of generations, the statistics and the flags. No lock is held in a
 * step.
 */
#include "sched/sched.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "sched/gen.h"

#define WHERE        "scheduler"
#define ECHO_ROWS    32 /* rows of prompt logits in one step: bounds their memory */
#define ECHO_MORE    4  /* events of an echo step beside its rows: first token, progress, answer */
#define LIVE_MORE    16 /* paused generations that may hold a sequence beside the lanes */
#define PAUSE_MAX_MS 30000

struct sched {
    struct lm lm;
    const struct tok *tok;
    struct ids newline; /* ids of "\n", which xtc leaves alone */
    int32_t n_lane, queue_max, chunk;
    int64_t pause_max_us;
    pthread_t thread;

    pthread_mutex_t mu;
    pthread_cond_t wake; /* to the thread: signals moved or quit */
    pthread_cond_t idle; /* to sched_drain: nothing runs or waits */
    struct fairq queue;
    struct sched_stats stats;
    uint64_t signals;
    bool draining, quit;

    /* The thread's own. */
    struct gen **run; /* [n_lane + LIVE_MORE] */
    int32_t n_run, run_max, turn;
    int64_t look_us;            /* when a paused generation has to make way; 0 = none has to */
    struct qn_step_item *items; /* [n_lane] the planned step */
    struct gen **who;           /* [n_lane] whose item it is */
    int32_t n_item;
    float *rows;      /* [n_lane, n_vocab] */
    float *echo_rows; /* [ECHO_ROWS, n_vocab], made when first asked for */
};

/* ---- life ---------------------------------------------------------------------------------- */

static void *main_loop(void *arg);

static enum qn_status set_up(struct sched *s, struct qn_err *err)
{
    size_t lanes = (size_t)s->n_lane, row;
    s->run_max = s->n_lane + LIVE_MORE;
    s->run = calloc((size_t)s->run_max, sizeof *s->run);
    s->items = calloc(lanes, sizeof *s->items);
    s->who = calloc(lanes, sizeof *s->who);
    if (!__builtin_mul_overflow(lanes * sizeof *s->rows, (size_t)s->lm.n_vocab, &row))
        s->rows = malloc(row);
    if (!s->run || !s->items || !s->who || !s->rows)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for %d lanes", s->n_lane);
    return tok_encode(s->tok, STR_LIT("\n"), 0, &s->newline, err);
}

/* Signals are for the program's other threads. */
static enum qn_status start_thread(struct sched *s, struct qn_err *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&s->thread, NULL, main_loop, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "cannot start the scheduler's thread: %s", strerror(rc));
    pthread_setname_np(s->thread, "quern-sched");
    return QN_OK;
}

static void tear_down(struct sched *s)
{
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->idle);
    ids_free(&s->newline);
    free(s->run);
    free(s->items);
    free(s->who);
    free(s->rows);
    free(s->echo_rows);
    free(s);
}

enum qn_status sched_create(const struct lm *lm, const struct tok *tok,
                            const struct sched_params *p, struct sched **out, struct qn_err *err)
{
    int32_t n_lane = p->n_lane ? p->n_lane : 1;
    if (n_lane < 1 || n_lane > lm->max_rows)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%d lanes; expected 1 to %d, the rows of one step",
                p->n_lane, lm->max_rows);
    if (p->queue_max < 0 || p->chunk < 0 || p->pause_max_ms < 0)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "queue limit %d, chunk %d, longest pause %d ms; expected 0 or more", p->queue_max,
                p->chunk, p->pause_max_ms);
    struct sched *s = calloc(1, sizeof *s);
    if (!s)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for the scheduler");
    s->lm = *lm;
    s->tok = tok;
    s->n_lane = n_lane;
    s->queue_max = p->queue_max ? p->queue_max : 64;
    s->chunk = p->chunk && p->chunk < lm->max_rows ? p->chunk : lm->max_rows;
    s->pause_max_us = (p->pause_max_ms ? p->pause_max_ms : PAUSE_MAX_MS) * (int64_t)1000;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->idle, &attr);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&s->mu, NULL);
    enum qn_status st = set_up(s, err);
    if (st == QN_OK)
        st = start_thread(s, err);
    if (st != QN_OK) {
        tear_down(s);
        return st;
    }
    *out = s;
    return QN_OK;
}

void sched_free(struct sched *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->mu);
    s->quit = true;
    s->draining = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
    pthread_join(s->thread, NULL);
    tear_down(s);
}

/* Under mu: waits until then at the longest (cv's clock is the monotonic one). */
static void wait_until(struct sched *s, pthread_cond_t *cv, int64_t us)
{
    struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    pthread_cond_timedwait(cv, &s->mu, &t);
}

bool sched_drain(struct sched *s, int timeout_ms)
{
    int64_t until = clock_us() + (int64_t)timeout_ms * 1000;
    pthread_mutex_lock(&s->mu);
    s->draining = true;
    while (s->stats.running + s->stats.waiting > 0) {
        int64_t now = clock_us();
        if (timeout_ms >= 0 && now >= until)
            break;
        wait_until(s, &s->idle, timeout_ms < 0 ? now + 1000000 : until);
    }
    bool all = s->stats.running + s->stats.waiting == 0;
    pthread_mutex_unlock(&s->mu);
    return all;
}

void sched_stats(struct sched *s, struct sched_stats *out)
{
    pthread_mutex_lock(&s->mu);
    *out = s->stats;
    pthread_mutex_unlock(&s->mu);
}

/* ---- clients ------------------------------------------------------------------------------- */

void sched_poke(struct sched *s)
{
    pthread_mutex_lock(&s->mu);
    s->signals++;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
}

/* Under mu: g into the queue. */
static enum qn_status enqueue(struct sched *s, struct gen *g, struct qn_err *err)
{
    if (s->draining)
        QN_FAIL(err, QN_BUSY, WHERE, "the server is shutting down and takes no new requests");
    if (s->stats.waiting >= s->queue_max)
        QN_FAIL(err, QN_BUSY, WHERE, "%d requests are waiting, the queue's limit; try again later",
                s->stats.waiting);
    if (!fairq_push(&s->queue, g->p.client, &g->node))
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory to queue a request");
    return QN_OK;
}

enum qn_status sched_submit(struct sched *s, const struct gen_params *p, struct gen **out,
                            struct qn_err *err)
{
    struct gen *g = NULL;
    enum qn_status st = gen_create(s, &s->lm, p, &g, err);
    pthread_mutex_lock(&s->mu);
    if (st == QN_OK)
        st = enqueue(s, g, err);
    if (st == QN_OK) {
        atomic_fetch_add(&g->refs, 1);
        g->place = PLACE_QUEUED;
        s->stats.submitted++;
        s->stats.waiting++;
        s->signals++;
        pthread_cond_signal(&s->wake);
    } else {
        s->stats.rejected++;
    }
    pthread_mutex_unlock(&s->mu);
    if (st == QN_OK)
        *out = g;
    else if (g)
        gen_unref(g);
    return st;
}

/* Under mu. */
static void tell_idle(struct sched *s)
{
    if (s->stats.running + s->stats.waiting == 0)
        pthread_cond_broadcast(&s->idle);
}

bool sched_unqueue(struct sched *s, struct gen *g)
{
    pthread_mutex_lock(&s->mu);
    bool queued = g->place == PLACE_QUEUED;
    if (queued) {
        fairq_remove(&s->queue, &g->node);
        g->place = PLACE_ENDED;
        s->stats.waiting--;
        s->stats.cancelled++;
        tell_idle(s);
    }
    pthread_mutex_unlock(&s->mu);
    return queued;
}

/* ---- ends ---------------------------------------------------------------------------------- */

/* Takes g off the lanes and frees all it used, before its client can learn that it ended. */
static void retire(struct sched *s, struct gen *g, int64_t *counter)
{
    int64_t now = clock_us();
    g->usage.completion_tokens = g->n_made;
    if (g->first_us)
        g->usage.decode_us = now - g->first_us;
    else
        g->usage.prefill_us = now - g->start_us;
    for (int32_t i = 0; i < s->n_run; i++) {
        if (s->run[i] != g)
            continue;
        memmove(&s->run[i], &s->run[i + 1], (size_t)(s->n_run - i - 1) * sizeof s->run[0]);
        s->n_run--;
        break;
    }
    if (g->seq)
        s->lm.ops->seq_free(s->lm.self, g->seq);
    g->seq = NULL;
    gen_drop_work(g);
    pthread_mutex_lock(&s->mu);
    g->place = PLACE_ENDED;
    s->stats.running--;
    (*counter)++;
    tell_idle(s);
    pthread_mutex_unlock(&s->mu);
}

static void fail(struct sched *s, struct gen *g, const struct qn_err *err)
{
    log_line(LOG_WARN, "sched", "a generation failed after %d of %d prompt tokens and %d made: %s",
             g->n_fed, g->p.n_prompt, g->n_made, err->msg);
    retire(s, g, &s->stats.failed);
    gen_publish_error(g, err);
    gen_unref(g);
}

static void finish(struct sched *s, struct gen *g, struct gen_verdict verdict)
{
    struct buf text = BUF_INIT;
    struct qn_err err = {0};
    if (gen_flush(g, &verdict, &text, &err) != QN_OK) {
        buf_free(&text);
        fail(s, g, &err);
        return;
    }
    bool cancelled = verdict.finish == GEN_CANCELLED;
    retire(s, g, cancelled ? &s->stats.cancelled : &s->stats.finished);
    gen_publish_done(g, &verdict, &text);
    gen_unref(g);
}

static void finish_as(struct sched *s, struct gen *g, enum gen_finish why)
{
    finish(s, g, (struct gen_verdict){true, why, -1});
}

/* ---- starting ------------------------------------------------------------------------------ */

/*
 * The seam for a prefix cache: a sequence that already holds the first *n_have tokens of the prompt
 * (at most n_prompt - 1, since the last one's logits are needed; 0 with prompt_logprobs, which
 * needs them all). Without a cache it is a fresh one.
 */
static enum qn_status obtain_seq(struct sched *s, struct gen *g, void **seq, int32_t *n_have,
                                 struct qn_err *err)
{
    *n_have = 0;
    return s->lm.ops->seq_create(s->lm.self, seq, err);
}

static enum qn_status need_echo_rows(struct sched *s, struct qn_err *err)
{
    size_t bytes;
    if (s->echo_rows)
        return QN_OK;
    if (!__builtin_mul_overflow((size_t)s->lm.n_vocab, ECHO_ROWS * sizeof *s->echo_rows, &bytes) &&
        !fault_point("sched.alloc"))
        s->echo_rows = malloc(bytes);
    if (!s->echo_rows)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for %d rows of prompt logits", ECHO_ROWS);
    return QN_OK;
}

/* g has left the queue and is on a lane; it may end here. */
static void start(struct sched *s, struct gen *g)
{
    struct qn_err err = {0};
    g->start_us = clock_us();
    g->usage.queue_us = g->start_us - g->submit_us;
    s->run[s->n_run++] = g;
    if (g->p.max_tokens == 0 && !g->p.prompt_logprobs) {
        finish_as(s, g, GEN_LENGTH);
        return;
    }
    enum qn_status st = gen_start(g, &s->lm, s->tok, &s->newline, &err);
    if (st == QN_OK && g->p.prompt_logprobs)
        st = need_echo_rows(s, &err);
    if (st == QN_OK)
        st = obtain_seq(s, g, &g->seq, &g->n_fed, &err);
    if (st != QN_OK) {
        fail(s, g, &err);
        return;
    }
    g->usage.cached_tokens = g->n_fed;
    g->phase = PHASE_PREFILL;
    g->room = RING_CAP;
}

static struct gen *next_waiting(struct sched *s)
{
    pthread_mutex_lock(&s->mu);
    struct gen *g = (struct gen *)fairq_pop(&s->queue);
    if (g) {
        g->place = PLACE_RUNNING;
        s->stats.waiting--;
        s->stats.running++;
    }
    pthread_mutex_unlock(&s->mu);
    return g;
}

/* Fills lanes that nobody ready occupies; returns how many are occupied. */
static int32_t fill(struct sched *s, int32_t active)
{
    while (active < s->n_lane && s->n_run < s->run_max) {
        struct gen *g = next_waiting(s);
        if (!g)
            break;
        int32_t before = s->n_run;
        start(s, g);
        active += s->n_run - before;
    }
    return active;
}

/* With a lane free and no sequence left for those who wait: ends the generation paused longest, if
 * it has been so for pause_max_us; otherwise look_us says when that will be. True when one ended.
 */
static bool make_way(struct sched *s)
{
    struct gen *g = NULL;
    struct qn_err err = {0};
    pthread_mutex_lock(&s->mu);
    bool needed = s->stats.waiting > 0 && s->n_run == s->run_max;
    pthread_mutex_unlock(&s->mu);
    for (int32_t i = 0; needed && i < s->n_run; i++)
        if (s->run[i]->paused_us && (!g || s->run[i]->paused_us < g->paused_us))
            g = s->run[i];
    if (!g)
        return false;
    int64_t now = clock_us();
    if (now - g->paused_us < s->pause_max_us) {
        s->look_us = g->paused_us + s->pause_max_us;
        return false;
    }
    err_set(&err, QN_CANCELLED, WHERE, "the client did not read for %lld s while others waited",
            (long long)((now - g->paused_us) / 1000000));
    fail(s, g, &err);
    return true;
}

/* Ends the cancelled and those that keep others waiting; fills the lanes. */
static void admit(struct sched *s)
{
    int32_t active = 0;
    s->look_us = 0;
    for (int32_t i = s->n_run - 1; i >= 0; i--)
        if (atomic_load(&s->run[i]->cancel))
            finish_as(s, s->run[i], GEN_CANCELLED);
    for (int32_t i = 0; i < s->n_run; i++) {
        struct gen *g = s->run[i];
        g->room = gen_room(g, g->phase == PHASE_PREFILL ? ECHO_MORE : 1);
        active += g->room > 0;
        g->paused_us = g->room > 0 ? 0 : g->paused_us ? g->paused_us : clock_us();
    }
    do
        active = fill(s, active);
    while (active < s->n_lane && make_way(s));
}

/* ---- planning ------------------------------------------------------------------------------ */

/* The next chunk of g's prompt, at most `rows` tokens. */
static struct qn_step_item chunk_of(struct sched *s, struct gen *g, int32_t rows, float *out)
{
    int32_t left = g->p.n_prompt - g->n_fed;
    int32_t n = rows < s->chunk ? rows : s->chunk;
    n = n < left ? n : left;
    struct qn_step_item item = {.seq = g->seq, .ids = g->prompt + g->n_fed, .n_ids = n};
    if (g->p.prompt_logprobs) {
        item.n_logits = n;
        item.logits = s->echo_rows;
    } else if (n == left) {
        item.n_logits = 1;
        item.logits = out;
    }
    return item;
}

/*
 * Chooses up to n_lane ready generations, from s->turn on. Prompts share the rows that the decoding
 * ones leave, so nobody who decodes ever waits for more than one chunk. At most one echo at a time.
 */
static void plan(struct sched *s)
{
    int32_t decoding = 0;
    bool echo = false;
    s->n_item = 0;
    for (int32_t i = 0; i < s->n_run; i++)
        decoding += s->run[i]->phase == PHASE_DECODE && s->run[i]->room > 0;
    int32_t spare = s->lm.max_rows - (decoding < s->n_lane ? decoding : s->n_lane - 1);
    s->turn = s->n_run ? (s->turn + 1) % s->n_run : 0;
    for (int32_t k = 0; k < s->n_run && s->n_item < s->n_lane; k++) {
        struct gen *g = s->run[(s->turn + k) % s->n_run];
        float *out = s->rows + (size_t)s->n_item * (size_t)s->lm.n_vocab;
        struct qn_step_item item = {
            .seq = g->seq, .ids = &g->last_id, .n_ids = 1, .n_logits = 1, .logits = out};
        int32_t rows = spare;
        if (g->room == 0)
            continue;
        if (g->phase == PHASE_PREFILL) {
            if (g->p.prompt_logprobs) {
                if (echo)
                    continue;
                echo = true;
                int32_t most = g->room - ECHO_MORE + 1;
                rows = rows < ECHO_ROWS ? rows : ECHO_ROWS;
                rows = rows < most ? rows : most;
            }
            if (rows < 1)
                continue;
            item = chunk_of(s, g, rows, out);
            spare -= item.n_ids;
        }
        s->who[s->n_item] = g;
        s->items[s->n_item++] = item;
    }
}

/* ---- stepping ------------------------------------------------------------------------------ */

static void count(struct sched *s, int32_t prompt, int32_t made)
{
    pthread_mutex_lock(&s->mu);
    s->stats.prompt_tokens += prompt;
    s->stats.completion_tokens += made;
    pthread_mutex_unlock(&s->mu);
}

/* A token for g from its logits, and what follows from it. */
static void token(struct sched *s, struct gen *g, float *logits)
{
    struct gen_verdict verdict;
    struct qn_err err = {0};
    int32_t made = g->n_made;
    enum qn_status st = gen_token(g, &s->lm, logits, &verdict, &err);
    count(s, 0, g->n_made - made);
    if (st != QN_OK)
        fail(s, g, &err);
    else if (verdict.over)
        finish(s, g, verdict);
}

static enum qn_status echo_events(struct sched *s, struct gen *g, const struct qn_step_item *item,
                                  struct qn_err *err)
{
    if (g->n_fed == 0)
        QN_TRY(gen_emit_prompt(g, 0, NULL, err));
    for (int32_t i = 0; i < item->n_ids; i++) {
        int32_t at = g->n_fed + i + 1; /* row i tells about the token after it */
        if (at < g->p.n_prompt)
            QN_TRY(gen_emit_prompt(g, at, item->logits + (size_t)i * (size_t)s->lm.n_vocab, err));
    }
    return QN_OK;
}

static void prompt_chunk(struct sched *s, struct gen *g, const struct qn_step_item *item)
{
    struct qn_err err = {0};
    if (g->p.prompt_logprobs && echo_events(s, g, item, &err) != QN_OK) {
        fail(s, g, &err);
        return;
    }
    g->n_fed += item->n_ids;
    count(s, item->n_ids, 0);
    gen_emit_progress(g);
    if (g->n_fed < g->p.n_prompt)
        return;
    g->phase = PHASE_DECODE;
    g->first_us = clock_us();
    g->usage.prefill_us = g->first_us - g->start_us;
    if (g->p.max_tokens == 0)
        finish_as(s, g, GEN_LENGTH);
    else
        token(s, g, item->logits + (size_t)(item->n_logits - 1) * (size_t)s->lm.n_vocab);
}

static void deliver(struct sched *s, struct gen *g, const struct qn_step_item *item)
{
    if (g->phase == PHASE_PREFILL)
        prompt_chunk(s, g, item);
    else
        token(s, g, item->logits);
}

/* A step that fails has changed nothing, so its items can be tried one by one: only those that fail
 * alone end, the others do not notice. */
static void step(struct sched *s)
{
    struct qn_err err = {0};
    enum qn_status st = s->lm.ops->step(s->lm.self, s->items, s->n_item, &err);
    for (int32_t i = 0; i < s->n_item; i++) {
        if (st != QN_OK && s->n_item > 1)
            err.code = s->lm.ops->step(s->lm.self, &s->items[i], 1, &err);
        if (st != QN_OK && err.code != QN_OK)
            fail(s, s->who[i], &err);
        else
            deliver(s, s->who[i], &s->items[i]);
    }
}

static void end_all(struct sched *s)
{
    while (s->n_run > 0)
        finish_as(s, s->run[s->n_run - 1], GEN_CANCELLED);
    for (struct gen *g; (g = next_waiting(s)) != NULL;) {
        g->start_us = clock_us();
        g->usage.queue_us = g->start_us - g->submit_us;
        s->run[s->n_run++] = g;
        finish_as(s, g, GEN_CANCELLED);
    }
}

static void *main_loop(void *arg)
{
    struct sched *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->mu);
        uint64_t seen = s->signals;
        bool quit = s->quit;
        pthread_mutex_unlock(&s->mu);
        if (quit)
            break;
        admit(s);
        plan(s);
        if (s->n_item > 0) {
            step(s);
            continue;
        }
        pthread_mutex_lock(&s->mu);
        while (s->signals == seen && !s->quit && (!s->look_us || clock_us() < s->look_us)) {
            if (s->look_us)
                wait_until(s, &s->wake, s->look_us);
            else
                pthread_cond_wait(&s->wake, &s->mu);
        }
        pthread_mutex_unlock(&s->mu);
    }
    end_all(s);
    return NULL;
}
