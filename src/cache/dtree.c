/* dtree.c - see dtree.h. Walks go by parent and next: a line may be thousands of records deep. */
#include "cache/dtree.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

static void *alloc(size_t n)
{
    return fault_point("cache.alloc") ? NULL : calloc(1, n);
}

static int32_t from_of(const struct dnode *n)
{
    return n->shape.from;
}

static int32_t end_of(const struct dnode *n)
{
    return n->shape.end;
}

void dnode_free(struct dnode *n)
{
    free(n->ids);
    free(n);
}

/* ---- growing and shrinking ------------------------------------------------------------------ */

static struct dnode *root_find(const struct dtree *t, const char *ns)
{
    struct dnode *r = t->roots;
    while (r && strcmp(r->ns, ns ? ns : "") != 0)
        r = r->next;
    return r;
}

static struct dnode *root_make(struct dtree *t, const char *ns)
{
    struct dnode *r = root_find(t, ns);
    size_t n = ns ? strlen(ns) : 0;
    if (r || n > DTREE_NS_MAX)
        return r;
    r = alloc(sizeof *r);
    if (!r)
        return NULL;
    if (n)
        memcpy(r->ns, ns, n);
    r->next = t->roots;
    t->roots = r;
    return r;
}

struct dnode *dtree_add(struct dtree *t, const char *ns, struct dnode *parent,
                        const struct kv_shape *shape, const int32_t *ids)
{
    size_t bytes = (size_t)(shape->end - shape->from) * sizeof *ids;
    struct dnode *up = parent ? parent : root_make(t, ns);
    struct dnode *n = up ? alloc(sizeof *n) : NULL;
    if (n)
        n->ids = alloc(bytes + 1);
    if (!n || !n->ids) {
        free(n);
        return NULL;
    }
    memcpy(n->ids, ids, bytes);
    n->shape = *shape;
    n->parent = up;
    n->next = up->child;
    up->child = n;
    t->nodes++;
    t->tokens += shape->end - shape->from;
    return n;
}

static void unlink_node(struct dnode *n)
{
    struct dnode **at = &n->parent->child;
    while (*at != n)
        at = &(*at)->next;
    *at = n->next;
}

void dtree_drop(struct dtree *t, struct dnode *n)
{
    struct dnode *top = n;
    unlink_node(top);
    for (;;) {
        while (n->child)
            n = n->child;
        struct dnode *up = n->parent;
        bool last = n == top;
        if (!last)
            up->child = n->next; /* the first child always */
        t->nodes--;
        t->tokens -= end_of(n) - from_of(n);
        if (n->waits)
            n->dead = true;
        else
            dnode_free(n);
        if (last)
            return;
        n = up;
    }
}

void dtree_free(struct dtree *t)
{
    while (t->roots) {
        struct dnode *r = t->roots;
        while (r->child)
            dtree_drop(t, r->child);
        t->roots = r->next;
        dnode_free(r);
    }
}

/* ---- looking -------------------------------------------------------------------------------- */

void dchain_free(struct dchain *c)
{
    free(c->v);
    free(c->shapes);
    *c = (struct dchain){0};
}

/* Up to where n goes along with the line; its beginning when not at all. */
static int32_t agree(const struct dnode *n, const int32_t *ids, int32_t n_ids)
{
    int32_t i = from_of(n), end = end_of(n) < n_ids ? end_of(n) : n_ids;
    while (i < end && n->ids[i - from_of(n)] == ids[i])
        i++;
    return i;
}

/* The chain that ends in `last`, which has the line up to token m. */
static bool chain_of(const struct dtree *t, struct dnode *last, int32_t m, struct dchain *out)
{
    int32_t depth = 0;
    for (const struct dnode *n = last; n->parent; n = n->parent)
        depth++;
    *out = (struct dchain){.n = depth, .n_match = m};
    out->v = alloc((size_t)depth * sizeof(*out->v));
    out->shapes = alloc((size_t)depth * sizeof(*out->shapes));
    if (!out->v || !out->shapes) {
        dchain_free(out);
        return false;
    }
    int32_t end = m;
    for (struct dnode *n = last; n->parent; n = n->parent) {
        out->v[--depth] = n;
        out->shapes[depth] = n->shape;
        kv_shape_cut(&out->shapes[depth], end);
        end = from_of(n);
    }
    out->n_usable = kv_shapes_usable(t->ex, out->shapes, out->n, m);
    out->tail = last->tail && m == end_of(last) && out->n_usable == m;
    return true;
}

static bool better(const struct dchain *a, const struct dchain *b, bool most)
{
    int32_t first = most ? a->n_match - b->n_match : a->n_usable - b->n_usable;
    int32_t second = most ? a->n_usable - b->n_usable : a->n_match - b->n_match;
    if (first != 0 || second != 0)
        return first > 0 || (first == 0 && second > 0);
    return a->tail && !b->tail;
}

/* One of the nodes that the line goes into; how far. */
struct step {
    struct dnode *n;
    int32_t m;
};

struct walk {
    struct step *v; /* the way to where the walk is */
    int32_t n, cap;
};

static bool push(struct walk *w, struct dnode *n, int32_t m)
{
    if (w->n == w->cap) {
        int32_t cap = w->cap ? 2 * w->cap : 64;
        struct step *v =
            fault_point("cache.alloc") ? NULL : realloc(w->v, (size_t)cap * sizeof(*w->v));
        if (!v)
            return false;
        w->v = v;
        w->cap = cap;
    }
    w->v[w->n++] = (struct step){n, m};
    return true;
}

/* The first of n and its later siblings that the line goes into. */
static struct dnode *next_match(struct dnode *n, int32_t reach, const int32_t *ids, int32_t n_ids,
                                int32_t *m)
{
    for (; n; n = n->next)
        if (from_of(n) <= reach && (*m = agree(n, ids, n_ids)) > from_of(n))
            return n;
    return NULL;
}

static bool weigh(const struct dtree *t, const struct step *s, bool most, struct dchain *best)
{
    struct dchain c;
    if (!chain_of(t, s->n, s->m, &c))
        return false;
    if (better(&c, best, most)) {
        dchain_free(best);
        *best = c;
    } else {
        dchain_free(&c);
    }
    return true;
}

bool dtree_find(const struct dtree *t, const char *ns, const int32_t *ids, int32_t n, bool most,
                struct dchain *out)
{
    struct walk w = {0};
    struct dnode *root = root_find(t, ns), *at = root ? root->child : NULL;
    int32_t reach = 0, m = 0;
    bool ok = true, fresh = true; /* fresh: nothing behind the last step has been seen */
    *out = (struct dchain){0};
    while (ok) {
        struct dnode *c = next_match(at, reach, ids, n, &m);
        if (c) {
            ok = push(&w, c, m);
            reach = m;
            at = c->child;
            fresh = true;
            continue;
        }
        if (!w.n)
            break;
        if (fresh)
            ok = weigh(t, &w.v[w.n - 1], most, out);
        at = w.v[--w.n].n->next;
        reach = w.n ? w.v[w.n - 1].m : 0;
        fresh = false;
    }
    free(w.v);
    if (!ok)
        dchain_free(out);
    return ok;
}
