/*
 * sched.c - the scheduler's life, what clients call, and its thread's loop: admit (admit.c), then
 * one step for all that run (round.c), until there is nothing to do; then sleep until poked.
 *
 * Invariant: see sched_int.h for who touches what.
 */
#include "sched/sched_int.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"

#define WHERE        SCHED_WHERE
#define LIVE_MORE    16 /* generations beside the lanes: paused, parked, waiting for a reader */
#define PAUSE_MAX_MS 30000

/* ---- life ---------------------------------------------------------------------------------- */

static void *main_loop(void *arg);

static enum qn_status set_up(struct sched *s, const struct sched_params *p, struct qn_err *err)
{
    QN_TRY(spec_create(&p->spec, &s->lm, s->n_lane, &s->spec, err));
    size_t lanes = (size_t)s->n_lane, row;
    s->run_max = s->n_lane + LIVE_MORE;
    s->run = calloc((size_t)s->run_max, sizeof *s->run);
    s->items = calloc(lanes, sizeof *s->items);
    s->who = calloc(lanes, sizeof *s->who);
    size_t rows = lanes + (size_t)spec_rows(s->spec);
    if (!__builtin_mul_overflow(rows * sizeof *s->rows, (size_t)s->lm.n_vocab, &row))
        s->rows = malloc(row);
    if (!s->run || !s->items || !s->who || !s->rows)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for %d lanes", s->n_lane);
    s->stats.spec_kind = spec_name(s->spec);
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
    sched_files_free(s);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->idle);
    ids_free(&s->newline);
    free(s->run);
    free(s->items);
    free(s->who);
    free(s->rows);
    free(s->echo_rows);
    spec_free(s->spec);
    free(s);
}

enum qn_status sched_create(const struct lm *lm, const struct tok *tok,
                            const struct sched_params *p, struct sched **out, struct qn_err *err)
{
    int32_t n_lane = p->n_lane ? p->n_lane : 1;
    if (n_lane < 1 || n_lane > lm->max_rows)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%d lanes; expected 1 to %d, the rows of one step",
                p->n_lane, lm->max_rows);
    if (p->queue_max < 0 || p->chunk < 0 || p->pause_max_ms < 0 || p->kv_budget < 0)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "queue limit %d, chunk %d, longest pause %d ms, KV budget %lld bytes; expected 0 "
                "or more",
                p->queue_max, p->chunk, p->pause_max_ms, (long long)p->kv_budget);
    struct sched *s = calloc(1, sizeof *s);
    if (!s)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for the scheduler");
    s->lm = *lm;
    s->tok = tok;
    s->n_lane = s->stats.n_lane = n_lane;
    s->queue_max = p->queue_max ? p->queue_max : 64;
    s->chunk = p->chunk && p->chunk < lm->max_rows ? p->chunk : lm->max_rows;
    s->paced = p->chunk == 0;
    s->kv_budget = lm->ops->seq_bytes ? p->kv_budget : 0;
    s->stats.kv_budget = s->kv_budget;
    s->stats.caches = lm->ops->cache_seq != NULL;
    s->stats.files = lm->ops->cache_file != NULL;
    s->pause_max_us = (p->pause_max_ms ? p->pause_max_ms : PAUSE_MAX_MS) * (int64_t)1000;
    clock_cond_init(&s->idle);
    clock_cond_init(&s->wake);
    clock_cond_init(&s->flushed);
    pthread_mutex_init(&s->mu, NULL);
    enum qn_status st = set_up(s, p, err);
    s->fit_tokens = sched_fit_tokens(s);
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
    pthread_cond_broadcast(&s->flushed);
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
    if (s->stats.waiting >= s->queue_max &&
        (fairq_waiting(&s->queue, g->p.client) >= s->queue_max / 8 ||
         s->stats.waiting >= 2 * (int64_t)s->queue_max))
        QN_FAIL(err, QN_BUSY, WHERE, "%d requests are waiting, the queue's limit; try again later",
                s->stats.waiting);
    if (!fairq_push(&s->queue, g->p.client, g->p.user, &g->node))
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory to queue a request");
    return QN_OK;
}

enum qn_status sched_submit(struct sched *s, const struct gen_params *p, struct gen **out,
                            struct qn_err *err)
{
    struct gen *g = NULL;
    enum qn_status st = gen_create(s, &s->lm, p, &g, err);
    if (st == QN_OK)
        st = sched_check_memory(s, g, err);
    pthread_mutex_lock(&s->mu);
    if (st == QN_OK)
        st = enqueue(s, g, err);
    if (st == QN_OK) {
        atomic_fetch_add(&g->refs, 1);
        if (p->share && !p->prompt_logprobs) {
            atomic_fetch_add(&p->share->refs, 1);
            g->p.share = p->share;
        }
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

void sched_tell_idle(struct sched *s)
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
        sched_tell_idle(s);
    }
    pthread_mutex_unlock(&s->mu);
    return queued;
}

/* ---- shares --------------------------------------------------------------------------------- */

struct gen_share *gen_share_create(struct sched *s)
{
    if (!s->lm.ops->seq_fork || fault_point("sched.alloc"))
        return NULL;
    struct gen_share *sh = calloc(1, sizeof *sh);
    if (!sh)
        return NULL;
    sh->s = s;
    atomic_init(&sh->refs, 1);
    return sh;
}

/* Its sequence is the thread's to free. */
void gen_share_unref(struct gen_share *sh)
{
    struct sched *s = sh->s;
    if (atomic_fetch_sub(&sh->refs, 1) != 1)
        return;
    pthread_mutex_lock(&s->mu);
    sh->next_dead = s->dead;
    s->dead = sh;
    s->signals++;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mu);
}

void gen_share_free(struct gen_share *sh)
{
    if (sh)
        gen_share_unref(sh);
}

/* ---- the thread ----------------------------------------------------------------------------- */

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
        sched_admit(s);
        sched_disk_tick(s);
        sched_files_tick(s);
        if (sched_round(s))
            continue;
        pthread_mutex_lock(&s->mu);
        while (s->signals == seen && !s->quit && (!s->look_us || clock_us() < s->look_us)) {
            if (s->look_us)
                wait_until(s, &s->wake, s->look_us);
            else
                pthread_cond_wait(&s->wake, &s->mu);
        }
        pthread_mutex_unlock(&s->mu);
    }
    sched_end_all(s);
    sched_free_shares(s);
    return NULL;
}
