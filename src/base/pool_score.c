/*
 * pool_score.c - see pool_score.h. The leader's thread.
 */
#include "pool_score.h"

/* The team is often late and gains little. */
static bool poor(const struct pool_score *s)
{
    return s->hedges >= POOL_HEDGES_BUSY && s->alone_ns < POOL_GAIN_LEAST * s->timed_ns;
}

/* The end of a window: which way to take in the next one. */
static void decide(struct pool_score *s)
{
    double rate = (double)s->chunks / (double)(s->ns > 0 ? s->ns : 1);
    if (s->keep > 0)
        s->keep--;
    switch (s->mode) {
    case POOL_TEAM:
        s->team_rate = rate;
        if (poor(s) && s->keep == 0)
            s->mode = POOL_TRY_ALONE;
        break;
    case POOL_TRY_ALONE:
        s->alone_rate = rate;
        s->mode = rate > s->team_rate ? POOL_ALONE : POOL_TEAM;
        s->keep = POOL_KEEP_WINDOWS;
        break;
    case POOL_ALONE:
        s->alone_rate = rate;
        if (s->keep == 0)
            s->mode = POOL_TRY_TEAM;
        break;
    case POOL_TRY_TEAM:
        s->team_rate = rate;
        s->mode = poor(s) && rate < s->alone_rate ? POOL_ALONE : POOL_TEAM;
        s->keep = POOL_KEEP_WINDOWS;
        break;
    }
    s->regions = s->hedges = 0;
    s->chunks = s->ns = 0;
    s->alone_ns = s->timed_ns = 0;
}

void pool_score_add(struct pool_score *s, const struct pool_ran *r)
{
    s->hedges += r->hedges;
    s->chunks += r->chunks;
    s->ns += r->ns;
    if (r->chunk_ns > 0) {
        s->alone_ns += (double)r->chunk_ns * r->chunks;
        s->timed_ns += (double)r->ns;
    }
    if (++s->regions == POOL_WINDOW)
        decide(s);
}
