/*
 * tally.c - open addressing over a dense list of entries; see tally.h. Entries are never removed: a
 * generation sees at most as many distinct ids as its context has tokens.
 */
#include "sched/tally.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

void tally_free(struct tally *t)
{
    free(t->e);
    free(t->slot);
    *t = (struct tally){0};
}

static uint32_t slot_of(const struct tally *t, int32_t id)
{
    uint32_t i = ((uint32_t)id * 2654435769u >> 7) & (t->n_slot - 1);
    while (t->slot[i] >= 0 && t->e[t->slot[i]].id != id)
        i = (i + 1) & (t->n_slot - 1);
    return i;
}

static bool grow(struct tally *t)
{
    if (t->cap > INT32_MAX / 8)
        return false;
    int32_t cap = t->cap ? t->cap * 2 : 64;
    struct tally_entry *e =
        fault_point("sched.alloc") ? NULL : realloc(t->e, (size_t)cap * sizeof *e);
    if (!e)
        return false;
    t->e = e;
    uint32_t n_slot = (uint32_t)cap * 2;
    int32_t *slot = fault_point("sched.alloc") ? NULL : malloc(n_slot * sizeof *slot);
    if (!slot)
        return false;
    free(t->slot);
    t->slot = slot;
    t->n_slot = n_slot;
    t->cap = cap;
    memset(slot, 0xff, n_slot * sizeof *slot);
    for (int32_t k = 0; k < t->n; k++)
        slot[slot_of(t, t->e[k].id)] = k;
    return true;
}

bool tally_add(struct tally *t, int32_t id, int32_t d)
{
    if (t->n == t->cap && !grow(t))
        return false;
    uint32_t i = slot_of(t, id);
    if (t->slot[i] < 0) {
        t->slot[i] = t->n;
        t->e[t->n++] = (struct tally_entry){.id = id, .count = 0};
    }
    t->e[t->slot[i]].count += d;
    return true;
}
