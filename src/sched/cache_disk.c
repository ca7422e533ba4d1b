/*
 * cache_disk.c - the scheduler's part in the prompt cache on disk, the model's and that of a model
 * that guesses: it calls its tick between steps, lets a generation wait while what it needs is read
 * (others go on), and runs flushes that clients ask for. The scheduler's thread, except
 * sched_cache_flush.
 */
#include <errno.h>

#include "base/clock.h"
#include "sched/sched_int.h"

enum { TICK_US = 20 * 1000, LOAD_US = 1000 };

static void look_at(struct sched *s, int64_t us)
{
    s->look_us = s->look_us && s->look_us < us ? s->look_us : us;
}

bool sched_disk_loading(struct sched *s, const struct gen *g)
{
    struct qn_line line = {g->cache_ns, g->ids, g->n_ids};
    if (!s->lm.ops->cache_loading || g->p.cache_off || g->p.prompt_logprobs)
        return false;
    bool model = s->lm.ops->cache_loading(s->lm.self, &line);
    if (!spec_disk_loading(s->spec, &line) && !model)
        return false;
    look_at(s, clock_us() + LOAD_US);
    return true;
}

/* The model's part of a flush, then that of what guesses. True: *out has both. */
static bool flush_both(struct sched *s, bool begin, struct qn_cache_flush *out)
{
    struct qn_cache_flush guesser;
    if (!s->flush_guesser) {
        if (!s->lm.ops->cache_flush(s->lm.self, begin, &s->flush_model))
            return false;
        s->flush_guesser = begin = true;
    }
    if (!spec_disk_flush(s->spec, begin, &guesser))
        return false;
    s->flush_guesser = false;
    *out = s->flush_model;
    out->nodes += guesser.nodes;
    out->durable_nodes += guesser.durable_nodes;
    if (!out->error[0])
        memcpy(out->error, guesser.error, sizeof out->error);
    return true;
}

/* A flush that somebody waits for: begun, asked about, answered. True while one is under way. */
static bool flush(struct sched *s)
{
    struct qn_cache_flush f = {0};
    pthread_mutex_lock(&s->mu);
    int64_t wanted = s->flush_wanted, done = s->flush_done;
    pthread_mutex_unlock(&s->mu);
    bool begin = !s->flush_now && wanted > done;
    if (begin)
        s->flush_now = wanted;
    if (!s->flush_now)
        return false;
    if (!flush_both(s, begin, &f))
        return true;
    pthread_mutex_lock(&s->mu);
    s->flush_done = s->flush_now;
    s->flush_result = f;
    pthread_cond_broadcast(&s->flushed);
    pthread_mutex_unlock(&s->mu);
    s->flush_now = 0;
    return false;
}

void sched_disk_tick(struct sched *s)
{
    int64_t now = clock_us();
    if (!s->lm.ops->cache_tick)
        return;
    if (s->flush_now || now >= s->tick_us) {
        int32_t ms = s->lm.ops->cache_tick(s->lm.self, s->n_run > 0);
        int32_t ms_guesser = spec_disk_tick(s->spec, s->n_run > 0);
        ms = !ms || (ms_guesser && ms_guesser < ms) ? ms_guesser : ms;
        s->tick_us = now + (ms * 1000 > TICK_US ? ms * 1000 : TICK_US);
        s->tick_wanted = ms > 0;
        sched_reuse_stats(s);
    } else {
        s->tick_wanted = true; /* something has happened since, and may have left work */
    }
    if (flush(s))
        look_at(s, now + LOAD_US);
    else if (s->tick_wanted)
        look_at(s, s->tick_us);
}

bool sched_cache_flush(struct sched *s, int timeout_ms, struct qn_cache_flush *out)
{
    struct timespec until = clock_in((int64_t)timeout_ms * 1000);
    *out = (struct qn_cache_flush){0};
    if (!s->lm.ops->cache_flush)
        return true;
    pthread_mutex_lock(&s->mu);
    int64_t mine = ++s->flush_wanted;
    s->signals++;
    pthread_cond_signal(&s->wake);
    while (s->flush_done < mine && !s->quit)
        if (pthread_cond_timedwait(&s->flushed, &s->mu, &until) == ETIMEDOUT)
            break;
    bool done = s->flush_done >= mine;
    if (done)
        *out = s->flush_result;
    pthread_mutex_unlock(&s->mu);
    return done;
}
