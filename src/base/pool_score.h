/*
 * pool_score.h - whether a team of threads pays (pool.c). On a machine whose processors are taken,
 * workers can cost more than they give: they compete with the leader for its own processor. The
 * leader keeps score over windows of regions. When many chunks had to be computed again and the
 * team gained little over what the leader's own chunks say of one thread, it tries a window alone,
 * and keeps the faster way for a while.
 *
 * The first test compares like with like, a region with itself; the trial alone compares windows of
 * different regions, which is why it decides only where both ways are close.
 */
#ifndef BASE_POOL_SCORE_H
#define BASE_POOL_SCORE_H

#include <stdbool.h>
#include <stdint.h>

enum { POOL_WINDOW = 128, POOL_KEEP_WINDOWS = 16, POOL_HEDGES_BUSY = POOL_WINDOW / 8 };
#define POOL_GAIN_LEAST 1.4 /* a team that gains less, and is often late, is on trial */

enum pool_mode { POOL_TEAM, POOL_TRY_ALONE, POOL_ALONE, POOL_TRY_TEAM };

struct pool_score { /* zeroed: a team */
    enum pool_mode mode;
    int regions, hedges, keep; /* keep: windows before the other way may be tried again */
    int64_t chunks, ns;
    double alone_ns, timed_ns;    /* of team regions with a chunk of the leader's: see below */
    double team_rate, alone_rate; /* chunks per ns */
};

static inline bool pool_score_alone(const struct pool_score *s)
{
    return s->mode == POOL_ALONE || s->mode == POOL_TRY_ALONE;
}

struct pool_ran {       /* a region that was run */
    int chunks, hedges; /* hedges: chunks that the leader computed because a worker was late */
    int64_t ns;
    int64_t chunk_ns; /* mean of the leader's own chunks; 0 = it had none, or ran alone */
};
void pool_score_add(struct pool_score *s, const struct pool_ran *r);

#endif
