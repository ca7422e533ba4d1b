/*
 * ptree_evict.c - what has to go when the tree holds more than it may: leaves, and of other nodes
 * what only a sequence that goes on at their end needs.
 *
 * By value: what was not used for long, is large, and saves few tokens goes first. A node saves the
 * tokens between its end and the good end before it; a leaf that is not good saves nothing and goes
 * at once. What a sequence holds goes last, because it gives nothing back.
 */
#include <math.h>
#include <stdlib.h>

#include "base/fault.h"
#include "cache/ptree_int.h"

struct victim {
    struct ptree_node *node;
    bool leaf;
    double score; /* the highest goes first */
};

static int32_t tokens_saved(const struct ptree_node *n)
{
    const struct ptree_node *before = n->parent;
    while (!before->good)
        before = before->parent;
    return n->good ? n->end - before->end : 0;
}

/* False: n is not one that can go. */
static bool judge(const struct ptree *t, struct ptree_node *n, struct victim *v)
{
    const struct ptree_ops *ops = t->ops;
    bool leaf = !n->child;
    if (!leaf && !n->good)
        return false;
    int64_t bytes = leaf ? ops->idle(t->self, n->part) : ops->idle_end(t->self, n->part);
    if (!leaf && bytes <= 0)
        return false;
    uint64_t used = leaf && n->used > n->used_end ? n->used : n->used_end;
    int32_t saved = tokens_saved(n);
    v->node = n;
    v->leaf = leaf;
    if (leaf && ops->in_use(t->self, n->part))
        v->score = -1;
    else if (saved <= 0)
        v->score = INFINITY;
    else
        v->score = (double)(t->clock - used + 1) * (double)bytes / saved;
    return true;
}

static int by_score(const void *a, const void *b)
{
    double x = ((const struct victim *)a)->score, y = ((const struct victim *)b)->score;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* All that could go, the first to go first; NULL = none, or no memory. */
static struct victim *victims(struct ptree *t, size_t *n)
{
    struct victim *v =
        fault_point("cache.alloc") ? NULL : malloc(((size_t)t->stats.n_node + 1) * sizeof *v);
    *n = 0;
    for (struct ptree_node *r = v ? t->roots : NULL; r; r = r->next)
        for (struct ptree_node *x = ptree_after(r); x; x = ptree_after(x))
            *n += judge(t, x, &v[*n]);
    if (*n)
        qsort(v, *n, sizeof *v, by_score);
    return v;
}

static void evict(struct ptree *t, struct ptree_node *n)
{
    bool leaf = !n->child;
    if (t->tier.evict)
        t->tier.evict(t->tier.self, n, !leaf);
    if (leaf) {
        t->stats.evicted += n->end - n->from;
        ptree_drop_leaf(t, n);
        return;
    }
    t->ops->thin(t->self, n->part);
    n->good = false;
    t->stats.thinned++;
}

/* Without memory for the list: any leaf, so that nobody waits for what is only cached. */
static bool evict_any(struct ptree *t)
{
    struct ptree_node *n = t->roots;
    while (n && n->child)
        n = n->child;
    if (!n)
        return false;
    evict(t, n);
    return true;
}

void ptree_trim(struct ptree *t, int64_t bytes)
{
    while (t->roots && t->ops->idle_all(t->self) > bytes) {
        size_t n;
        struct victim *v = victims(t, &n);
        if (!v && !evict_any(t))
            break;
        /* Those in use only when there is nothing else. */
        bool last = n && v[0].score < 0;
        for (size_t i = 0; i < n && (last || v[i].score >= 0); i++) {
            if (t->ops->idle_all(t->self) <= bytes)
                break;
            if (v[i].leaf == !v[i].node->child) /* else it has become a leaf: judged anew */
                evict(t, v[i].node);
        }
        free(v);
        if (v && !n)
            break;
    }
}

uint64_t ptree_clock(const struct ptree *t)
{
    return t->clock;
}

static struct ptree_node *deepest(struct ptree_node *n)
{
    while (n->child)
        n = n->child;
    return n;
}

/* Children before their parents. */
static void drop_unused_below(struct ptree *t, struct ptree_node *root, uint64_t clock,
                              bool (*may)(void *arg, struct ptree_node *leaf), void *arg)
{
    struct ptree_node *n = deepest(root), *next;
    for (bool more = n != root; more; n = next) {
        next = n->next ? deepest(n->next) : n->parent;
        more = next != root; /* which evict takes along when it empties it */
        if (!n->child && n->used <= clock && n->used_end <= clock &&
            !t->ops->in_use(t->self, n->part) && may(arg, n))
            evict(t, n);
    }
}

int64_t ptree_drop_unused(struct ptree *t, uint64_t clock,
                          bool (*may)(void *arg, struct ptree_node *leaf), void *arg)
{
    int64_t before = t->stats.evicted;
    for (struct ptree_node *r = t->roots, *next; r; r = next) {
        next = r->next;
        drop_unused_below(t, r, clock, may, arg);
    }
    return t->stats.evicted - before;
}

void ptree_settle(struct ptree *t)
{
    if (t->ops->idle_all(t->self) > t->limit)
        ptree_trim(t, t->limit - t->limit / 32);
}
