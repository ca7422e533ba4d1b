/*
 * dtree.h - which tokens the records on disk are about: a tree in memory, so that a lookup reads
 * nothing. A node is a record; where lines part, a record hangs at some place inside the one that
 * it continues. Two records may say the same tokens and differ in what else they hold.
 *
 * The scheduler's thread.
 */
#ifndef CACHE_DTREE_H
#define CACHE_DTREE_H

#include "exec/kv.h"
#include "store/record.h"

enum { DTREE_NS_MAX = 64 };

struct dnode {
    struct dnode *parent, *child, *next;
    struct record_name name;
    struct kv_shape shape;     /* from and end are in it */
    int32_t *ids;              /* [end - from] */
    bool tail;                 /* its record has the tail of where it ends (tier.h) */
    bool waits;                /* its record is not written yet */
    bool dead;                 /* gone, but its record is still in the writer's hands */
    char ns[DTREE_NS_MAX + 1]; /* of a root */
};

struct dtree {
    const struct exec *ex;
    struct dnode *roots;
    int64_t nodes, tokens;
};

/* A record behind parent (NULL: at token 0 of the namespace). NULL: no memory. */
struct dnode *dtree_add(struct dtree *t, const char *ns, struct dnode *parent,
                        const struct kv_shape *shape, const int32_t *ids);
/* It and all behind it go; those whose records wait are only marked dead. */
void dtree_drop(struct dtree *t, struct dnode *n);
void dnode_free(struct dnode *n); /* of a dead one */
void dtree_free(struct dtree *t);

/* The records of a line, from token 0, and their shapes as far as the line goes along with them. */
struct dchain {
    struct dnode **v;
    struct kv_shape *shapes;
    int32_t n;
    int32_t n_match;  /* tokens of the line that they have */
    int32_t n_usable; /* of these, where a sequence can go on */
    bool tail;        /* and a tail is there */
};
/* The chain that serves a sequence best; or, with `most`, the one that has most of the line. False:
 * no memory. Free with dchain_free. */
bool dtree_find(const struct dtree *t, const char *ns, const int32_t *ids, int32_t n, bool most,
                struct dchain *out);
void dchain_free(struct dchain *c);

#endif
