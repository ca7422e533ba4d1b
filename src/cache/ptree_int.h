/*
 * ptree_int.h - the tree, as its files share it: ptree.c (lines in and out) and ptree_evict.c (what
 * has to go). Inside cache/ only.
 */
#ifndef CACHE_PTREE_INT_H
#define CACHE_PTREE_INT_H

#include "cache/ptree.h"

struct ptree_node {
    struct ptree_node *parent, *child, *next; /* child: the first; next: the parent's next child */
    int32_t from, end;
    int32_t *ids;      /* [end - from] */
    void *part;        /* NULL in a root */
    bool good;         /* a sequence can go on behind it */
    uint64_t used;     /* when a line last went through it */
    uint64_t used_end; /* when its end was made, or last gone on from */
    int64_t used_us;   /* `used` on the monotonic clock */
    uint64_t mark;
    char *ns; /* of a root */
};

struct ptree {
    const struct ptree_ops *ops;
    void *self;
    struct ptree_tier tier;
    int64_t limit;
    struct ptree_node *roots; /* one of each namespace, with next */
    uint64_t clock;           /* lookups and keeps so far */
    int64_t clock_us;         /* when it last moved */
    struct ptree_stats stats;
    const void **parts; /* of the last lookup */
    int32_t n_part, cap_part;
};

static inline void *ptree_self(const struct ptree *t)
{
    return t->self;
}

/* A leaf goes; its root too when that is left empty. */
void ptree_drop_leaf(struct ptree *t, struct ptree_node *n);
/* The node after n, parents first; NULL = n was the last of its root. */
struct ptree_node *ptree_after(struct ptree_node *n);
#endif
