/*
 * store_index.c - records by name, and the tree that they form. A name is a hash already, so its
 * first bytes are the place in the table. The store's lock is held.
 */
#include <stdlib.h>

#include "store/store_int.h"

static size_t slot_of(const struct recs *ix, const struct record_name *name)
{
    uint64_t h;
    memcpy(&h, name->b, sizeof h);
    return (size_t)h & (ix->n_slot - 1);
}

struct entry *recs_find(const struct recs *ix, const struct record_name *name)
{
    if (!ix->n_slot)
        return NULL;
    for (size_t i = slot_of(ix, name);; i = (i + 1) & (ix->n_slot - 1)) {
        struct entry *e = ix->slots[i];
        if (!e || record_name_eq(&e->name, name))
            return e;
    }
}

static void place(struct recs *ix, struct entry *e)
{
    size_t i = slot_of(ix, &e->name);
    while (ix->slots[i])
        i = (i + 1) & (ix->n_slot - 1);
    ix->slots[i] = e;
}

static bool grow(struct recs *ix)
{
    struct recs big = {.n_slot = ix->n_slot ? ix->n_slot * 2 : 64, .n = ix->n};
    big.slots = calloc(big.n_slot, sizeof(struct entry *));
    if (!big.slots)
        return false;
    for (size_t i = 0; i < ix->n_slot; i++)
        if (ix->slots[i])
            place(&big, ix->slots[i]);
    free(ix->slots);
    *ix = big;
    return true;
}

bool recs_add(struct recs *ix, struct entry *e)
{
    if (2 * (ix->n + 1) > ix->n_slot && !grow(ix))
        return false;
    place(ix, e);
    ix->n++;
    return true;
}

/* The gap is closed by moving up what would no longer be found behind it. */
void recs_remove(struct recs *ix, const struct entry *e)
{
    size_t mask = ix->n_slot - 1, i = slot_of(ix, &e->name);
    while (ix->slots[i] != e)
        i = (i + 1) & mask;
    for (size_t j = (i + 1) & mask; ix->slots[j]; j = (j + 1) & mask) {
        size_t home = slot_of(ix, &ix->slots[j]->name);
        if (((j - home) & mask) >= ((j - i) & mask)) {
            ix->slots[i] = ix->slots[j];
            i = j;
        }
    }
    ix->slots[i] = NULL;
    ix->n--;
}

void recs_free(struct recs *ix)
{
    for (size_t i = 0; i < ix->n_slot; i++)
        free(ix->slots[i]);
    free(ix->slots);
    *ix = (struct recs){0};
}

void entry_adopt(struct entry *parent, struct entry *e)
{
    e->parent = parent;
    if (!parent)
        return;
    e->next = parent->child;
    if (e->next)
        e->next->link = &e->next;
    e->link = &parent->child;
    parent->child = e;
}

void entry_leave(struct entry *e)
{
    if (e->link) {
        *e->link = e->next;
        if (e->next)
            e->next->link = e->link;
    }
    e->parent = e->next = NULL;
    e->link = NULL;
}
