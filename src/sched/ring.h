/*
 * ring.h - the bounded queue of one generation's events. One writer (the scheduler), one reader
 * (the client), both under the generation's lock. Each slot keeps its text memory for reuse.
 */
#ifndef SCHED_RING_H
#define SCHED_RING_H

#include "base/buf.h"
#include "sched/sched.h"

#define RING_CAP 64

struct ring_event {
    enum gen_kind kind;
    int32_t n_done;
    struct sampled token;
    struct buf text;
};

struct ring {
    struct ring_event e[RING_CAP];
    int32_t head, n;
};

static inline int32_t ring_room(const struct ring *r)
{
    return RING_CAP - r->n;
}

/* The next free slot, its text empty; counts as written at once. There must be room. */
struct ring_event *ring_push(struct ring *r);
/* The newest event not yet read, or NULL. */
struct ring_event *ring_last(struct ring *r);
/* The oldest event, valid until the next push; NULL when empty. */
struct ring_event *ring_pop(struct ring *r);
void ring_free(struct ring *r);

#endif
