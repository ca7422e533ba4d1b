/*
 * tier_demote.c - what nobody has used for long leaves memory and stays on disk, from where it
 * comes back when it is asked for (tier_load.c). Only what is durable with all it continues, and
 * what no sequence holds. The scheduler's thread.
 *
 * A tree tells time in lookups. Every eighth of the wanted idle time what its clock says is noted;
 * what was not used since the note that is old enough was idle for that long, and at most an eighth
 * longer.
 */
#include <string.h>

#include "base/clock.h"
#include "cache/tier_int.h"

static bool may_go(void *side, struct ptree_node *leaf)
{
    return tier_durable(side, leaf);
}

/* Milliseconds until the side's next note; 0 = its tree is empty. */
static int32_t side_tick(struct side *sd)
{
    struct tier *t = sd->t;
    struct demote *d = &sd->demote;
    struct ptree_stats st;
    ptree_stats(sd->is.tree, &st);
    if (!st.n_node) {
        d->n = 0;
        return 0;
    }
    int64_t now = clock_us(), every = t->idle_us / DEMOTE_NOTES + 1;
    if (d->n && now - d->at[d->n - 1] < every)
        return (int32_t)((every - (now - d->at[d->n - 1])) / 1000) + 1;
    if (d->n && now - d->at[0] >= t->idle_us) {
        int64_t gone = ptree_drop_unused(sd->is.tree, d->clock[0], may_go, sd);
        if (sd == &t->sides[TIER_MODEL])
            t->stats.demoted_tokens += gone;
    }
    if (d->n == DEMOTE_NOTES) {
        memmove(d->at, d->at + 1, sizeof d->at - sizeof *d->at);
        memmove(d->clock, d->clock + 1, sizeof d->clock - sizeof *d->clock);
        d->n--;
    }
    d->at[d->n] = now;
    d->clock[d->n++] = ptree_clock(sd->is.tree);
    return (int32_t)(every / 1000) + 1;
}

int32_t demote_tick(struct tier *t)
{
    int32_t soonest = 0;
    for (int32_t i = 0; t->idle_us && i < t->n_side; i++) {
        int32_t ms = side_tick(&t->sides[i]);
        soonest = ms && (!soonest || ms < soonest) ? ms : soonest;
    }
    return soonest;
}
