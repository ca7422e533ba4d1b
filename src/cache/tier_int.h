/*
 * tier_int.h - a tier as its files share it: tier.c (its life, and the way out) and tier_load.c
 * (the way back). Inside cache/ only.
 */
#ifndef CACHE_TIER_INT_H
#define CACHE_TIER_INT_H

#include <pthread.h>

#include "cache/dtree.h"
#include "cache/tier.h"

struct load; /* what is being read */

enum { DEMOTE_NOTES = 8 };
struct demote { /* tier_demote.c: what the tree's clock said when, the oldest first */
    int64_t at[DEMOTE_NOTES];
    uint64_t clock[DEMOTE_NOTES];
    int32_t n;
};

/* A tree and its records. */
struct side {
    struct tier *t;
    struct tier_tree is; /* `about` is not kept */
    struct dtree disk;
    /* The last thing that was tried: not again at once when it brought nothing. */
    const struct dnode *tried;
    int32_t tried_at;
    int64_t tried_us;
    struct demote demote;
};

struct tier {
    struct side sides[TIER_SIDES];
    int32_t n_side;
    struct store *store;
    struct tier_stats stats;

    uint64_t epoch;
    bool dirty, busy, flushing;
    bool checking;   /* the flush has the folder looked at first */
    int64_t damaged; /* records that the store has lost, as far as is known here */
    int32_t n_put;
    int64_t n_failed;         /* since the flush began */
    int64_t puts, puts_ended; /* so far */
    int64_t flush_to; /* the last put that the flush waits for; -1 = not all are handed over */
    int32_t waited;
    bool anywhere; /* lines can be gone on from at any token */
    /* When the tree was last looked at; for whole pages; for ends of lines. */
    int64_t look_us, pages_us, ends_us;
    int64_t idle_us; /* 0 = nothing leaves memory for being old */

    /* The reader: one thing at a time. Under mu what both threads touch. */
    pthread_t reader;
    bool reads;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    struct load *load; /* this thread's; the reader's while `reading` */
    bool reading, quit;
};

/* What a part of the side's tree is, seen from here. */
static inline const struct kv_prefix *side_kv(const struct side *sd, const void *part)
{
    return tier_kv(&sd->is, part);
}

static inline const void *side_tail(const struct side *sd, const void *part)
{
    return tier_tail(&sd->is, part);
}

/* Nodes are to be looked at again. */
void tier_again(struct tier *t);
/* A record turned out to be gone, with what continues it. */
void tier_forget(struct side *sd, struct dnode *n);
/* dtree_find of records that are there. */
bool tier_chain(struct side *sd, const struct ptree_line *line, bool most, struct dchain *out);
/* Whether memory could lose the node's part: it is on disk with all it continues, its end too if it
 * can be gone on from, and its tail if it is to have one there. */
bool tier_durable(struct side *sd, const struct ptree_node *node);

/* tier_demote.c: milliseconds until it wants to be called again; 0 = nothing to wait for. */
int32_t demote_tick(struct tier *t);

/* tier_load.c */
enum qn_status load_open(struct tier *t, struct qn_err *err);
void load_close(struct tier *t);
bool load_find(void *side, const struct ptree_line *line, int32_t n_usable);
/* Takes over what has been read. */
void load_tick(struct tier *t);
bool load_busy(const struct tier *t);

#endif
