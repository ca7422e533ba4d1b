/*
 * tally.h - how often each token id was seen: a small hash from id to count whose entries can be
 * walked. Owned by one sampler, no locking. Start with {0}.
 */
#ifndef SCHED_TALLY_H
#define SCHED_TALLY_H

#include <stdbool.h>
#include <stdint.h>

struct tally_entry {
    int32_t id, count; /* count may have fallen back to 0 */
};

struct tally {
    struct tally_entry *e; /* [n] in order of first sight */
    int32_t n, cap;
    int32_t *slot; /* [n_slot] index into e, -1 = free; n_slot is a power of two */
    uint32_t n_slot;
};

void tally_free(struct tally *t);
/* Adds d (1 or -1) to the count of id >= 0. False when out of memory; nothing changes then. */
bool tally_add(struct tally *t, int32_t id, int32_t d);

#endif
