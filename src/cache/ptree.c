/*
 * ptree.c - lines of tokens in and out; see ptree.h.
 *
 * A line is kept as nodes of at most NODE_TOK tokens, so that what has to go can go from the end in
 * pieces. Where lines part, a node is split; the upper half's end is good only if the memory
 * happens to allow it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "cache/ptree_int.h"

#define WHERE "cache"

enum { NODE_TOK = PTREE_NODE_TOK };

/* ---- nodes ------------------------------------------------------------------------------------
 */

static void *alloc(size_t n)
{
    return fault_point("cache.alloc") ? NULL : calloc(1, n);
}

static enum qn_status no_memory(struct qn_err *err)
{
    return err_set(err, QN_NO_MEMORY, WHERE, "no memory for a part of the prompt cache");
}

static void node_free(struct ptree *t, struct ptree_node *n)
{
    if (!n)
        return;
    if (n->part)
        t->ops->free(ptree_self(t), n->part);
    free(n->ids);
    free(n->ns);
    free(n);
}

static struct ptree_node *node_new(const int32_t *ids, int32_t from, int32_t end)
{
    struct ptree_node *n = alloc(sizeof *n);
    size_t bytes = (size_t)(end - from) * sizeof *n->ids;
    if (n)
        n->ids = alloc(bytes + 1);
    if (!n || !n->ids) {
        free(n);
        return NULL;
    }
    if (bytes)
        memcpy(n->ids, ids, bytes);
    n->from = from;
    n->end = end;
    return n;
}

static void link_child(struct ptree_node *parent, struct ptree_node *n)
{
    n->parent = parent;
    n->next = parent->child;
    parent->child = n;
}

/* The pointer that leads to n. */
static struct ptree_node **link_of(struct ptree *t, struct ptree_node *n)
{
    struct ptree_node **at = n->parent ? &n->parent->child : &t->roots;
    while (*at != n)
        at = &(*at)->next;
    return at;
}

static void root_drop(struct ptree *t, struct ptree_node *root)
{
    *link_of(t, root) = root->next;
    node_free(t, root);
}

void ptree_drop_leaf(struct ptree *t, struct ptree_node *n)
{
    struct ptree_node *parent = n->parent;
    *link_of(t, n) = n->next;
    t->stats.n_node--;
    t->stats.n_token -= n->end - n->from;
    node_free(t, n);
    if (!parent->parent && !parent->child)
        root_drop(t, parent);
}

struct ptree_node *ptree_after(struct ptree_node *n)
{
    if (n->child)
        return n->child;
    while (n->parent && !n->next)
        n = n->parent;
    return n->parent ? n->next : NULL;
}

/* ---- life -------------------------------------------------------------------------------------
 */

enum qn_status ptree_create(const struct ptree_ops *ops, void *self, int64_t limit,
                            struct ptree **out, struct qn_err *err)
{
    struct ptree *t = alloc(sizeof *t);
    if (!t)
        return no_memory(err);
    t->ops = ops;
    t->self = self;
    t->limit = limit;
    *out = t;
    return QN_OK;
}

static struct ptree_node *first_leaf(struct ptree_node *n)
{
    while (n->child)
        n = n->child;
    return n;
}

void ptree_free(struct ptree *t)
{
    if (!t)
        return;
    while (t->roots) {
        struct ptree_node *leaf = first_leaf(t->roots);
        if (leaf->parent)
            ptree_drop_leaf(t, leaf);
        else
            root_drop(t, leaf);
    }
    free(t->parts);
    free(t);
}

void ptree_set_tier(struct ptree *t, const struct ptree_tier *tier)
{
    t->tier = tier ? *tier : (struct ptree_tier){0};
}

int64_t ptree_idle(const struct ptree *t)
{
    return t->ops->idle_all(ptree_self(t));
}

void ptree_stats(const struct ptree *t, struct ptree_stats *out)
{
    *out = t->stats;
}

/* ---- walking ----------------------------------------------------------------------------------
 */

static struct ptree_node *root_find(const struct ptree *t, const char *ns)
{
    struct ptree_node *r = t->roots;
    while (r && strcmp(r->ns, ns ? ns : "") != 0)
        r = r->next;
    return r;
}

static enum qn_status root_make(struct ptree *t, const char *ns, struct ptree_node **out,
                                struct qn_err *err)
{
    size_t n = ns ? strlen(ns) : 0;
    *out = root_find(t, ns);
    if (*out)
        return QN_OK;
    if (n > PTREE_NS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "a namespace of %zu bytes; at most %d", n, PTREE_NS_MAX);
    struct ptree_node *r = node_new(NULL, 0, 0);
    if (r)
        r->ns = alloc(n + 1);
    if (!r || !r->ns) {
        node_free(t, r);
        return no_memory(err);
    }
    if (n)
        memcpy(r->ns, ns, n);
    r->good = true;
    r->next = t->roots;
    t->roots = r;
    *out = r;
    return QN_OK;
}

static int32_t same(const int32_t *a, const int32_t *b, int32_t n)
{
    int32_t i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static struct ptree_node *child_for(const struct ptree_node *n, int32_t id)
{
    struct ptree_node *c = n->child;
    while (c && c->ids[0] != id)
        c = c->next;
    return c;
}

/* How far a line is in the tree: its first m tokens, which end in `node`. */
struct walk {
    struct ptree_node *node;
    int32_t m;
};

static struct walk walk(struct ptree_node *root, const struct ptree_line *line)
{
    struct walk w = {root, 0};
    while (w.m == w.node->end && w.m < line->n) {
        struct ptree_node *c = child_for(w.node, line->ids[w.m]);
        if (!c)
            break;
        int32_t most = (line->n < c->end ? line->n : c->end) - c->from;
        w.m += same(c->ids, line->ids + w.m, most);
        w.node = c;
    }
    return w;
}

/* The parts from the root to n into t->parts; false = no memory. */
static bool chain(struct ptree *t, const struct ptree_node *n)
{
    int32_t depth = 0;
    for (const struct ptree_node *p = n; p->parent; p = p->parent)
        depth++;
    if (depth > t->cap_part) {
        size_t cap = (size_t)depth * 2;
        const void **v =
            fault_point("cache.alloc") ? NULL : realloc(t->parts, cap * sizeof(*t->parts));
        if (!v)
            return false;
        t->parts = v;
        t->cap_part = (int32_t)cap;
    }
    t->n_part = depth;
    for (; n->parent; n = n->parent)
        t->parts[--depth] = n->part;
    return true;
}

static int32_t usable(struct ptree *t, const struct walk *w, int32_t n)
{
    if (!w->m || !chain(t, w->node))
        return 0;
    return t->ops->usable(ptree_self(t), t->parts, t->n_part, n);
}

/* ---- lookup -----------------------------------------------------------------------------------
 */

static void touch(struct ptree *t, struct ptree_node *n, int32_t usable)
{
    for (; n->parent; n = n->parent) {
        if (n->from >= usable)
            continue;
        n->used = t->clock;
        n->used_us = t->clock_us;
        if (n->end >= usable)
            n->used_end = t->clock;
    }
}

static struct walk look(struct ptree *t, const struct ptree_line *line, int32_t most,
                        struct ptree_found *out)
{
    struct ptree_node *root = root_find(t, line->ns);
    struct walk w = {root, 0};
    if (root)
        w = walk(root, line);
    out->n_match = w.m < most ? w.m : most;
    out->n_usable = root ? usable(t, &w, out->n_match) : 0;
    return w;
}

void ptree_find(struct ptree *t, const struct ptree_line *line, int32_t most,
                struct ptree_found *out)
{
    *out = (struct ptree_found){0};
    t->clock++;
    t->clock_us = clock_us();
    struct walk w = look(t, line, most, out);
    struct ptree_line front = {line->ns, line->ids, most};
    if (out->n_usable < most && t->tier.find && t->tier.find(t->tier.self, &front, out->n_usable))
        w = look(t, line, most, out);
    t->stats.lookups++;
    t->stats.asked += most;
    if (!out->n_usable)
        return;
    t->stats.hits++;
    t->stats.found += out->n_usable;
    touch(t, w.node, out->n_usable);
    out->parts = t->parts;
    out->n_part = t->n_part;
}

void ptree_peek(struct ptree *t, const struct ptree_line *line, struct ptree_found *out)
{
    *out = (struct ptree_found){0};
    look(t, line, line->n, out);
    out->parts = out->n_usable ? t->parts : NULL;
    out->n_part = out->n_usable ? t->n_part : 0;
}

void ptree_touch(struct ptree *t, const struct ptree_line *line, struct ptree_found *out)
{
    *out = (struct ptree_found){0};
    t->clock++;
    struct walk w = look(t, line, line->n, out);
    if (out->n_usable)
        touch(t, w.node, out->n_usable);
    out->parts = out->n_usable ? t->parts : NULL;
    out->n_part = out->n_usable ? t->n_part : 0;
}

/* ---- keeping ----------------------------------------------------------------------------------
 */

/* Where parts come from: src's memory, or a part of it that begins at `from`. */
struct source {
    void *src, *part;
    int32_t from;
};

static enum qn_status take(struct ptree *t, const struct source *s, int32_t from, int32_t n,
                           void **out, struct qn_err *err)
{
    if (!s->part)
        return t->ops->make(ptree_self(t), s->src, from, n, out, err);
    if (from < s->from)
        QN_FAIL(err, QN_NOT_FOUND, WHERE, "tokens before %d are not in the cache", s->from);
    return t->ops->part(ptree_self(t), s->part, from, n, out, err);
}

static void set_good(struct ptree *t, struct ptree_node *n)
{
    n->good = t->ops->complete(ptree_self(t), n->part);
    if (!n->good)
        t->ops->thin(ptree_self(t), n->part);
}

static void tell_kept(struct ptree *t, struct ptree_node *n)
{
    if (t->tier.kept)
        t->tier.kept(t->tier.self, n);
}

/* Cuts n at token mid; *upper is the new node before it. */
static enum qn_status split(struct ptree *t, struct ptree_node *n, int32_t mid,
                            struct ptree_node **upper, struct qn_err *err)
{
    void *front = NULL, *back = NULL;
    int32_t cut = mid - n->from;
    struct ptree_node *u = node_new(n->ids, n->from, mid);
    enum qn_status st = u ? QN_OK : no_memory(err);
    if (st == QN_OK)
        st = t->ops->part(ptree_self(t), n->part, n->from, mid, &front, err);
    if (st == QN_OK)
        st = t->ops->part(ptree_self(t), n->part, mid, n->end, &back, err);
    if (st != QN_OK) {
        if (front)
            t->ops->free(ptree_self(t), front);
        node_free(t, u);
        return st;
    }
    t->ops->free(ptree_self(t), n->part);
    n->part = back;
    memmove(n->ids, n->ids + cut, (size_t)(n->end - mid) * sizeof *n->ids);
    n->from = mid;
    u->part = front;
    u->used = n->used;
    u->used_end = n->used;
    u->used_us = n->used_us;
    u->mark = n->mark;
    *link_of(t, n) = u;
    u->next = n->next;
    u->parent = n->parent;
    u->child = n;
    n->parent = u;
    n->next = NULL;
    set_good(t, u);
    t->stats.n_node++;
    *upper = u;
    return QN_OK;
}

/* The end of n becomes good when the source's memory allows it. */
static enum qn_status refresh(struct ptree *t, struct ptree_node *n, const struct source *s,
                              struct qn_err *err)
{
    void *part;
    struct ptree_node *upper;
    if (n->good)
        return QN_OK;
    if (n->from < s->from && s->from < n->end)
        QN_TRY(split(t, n, s->from, &upper, err));
    QN_TRY(take(t, s, n->from, n->end, &part, err));
    if (!t->ops->complete(ptree_self(t), part)) {
        t->ops->free(ptree_self(t), part);
        return QN_OK;
    }
    t->ops->free(ptree_self(t), n->part);
    n->part = part;
    n->good = true;
    tell_kept(t, n);
    return QN_OK;
}

/* Nodes for what the line has behind n; *last is its end's. */
static enum qn_status append(struct ptree *t, struct ptree_node *n, const struct ptree_line *line,
                             const struct source *s, struct ptree_node **last, struct qn_err *err)
{
    for (*last = n; n->end < line->n; *last = n) {
        int32_t from = n->end, end = (from / NODE_TOK + 1) * NODE_TOK;
        end = end < line->n ? end : line->n;
        struct ptree_node *c = node_new(line->ids + from, from, end);
        enum qn_status st = c ? take(t, s, from, end, &c->part, err) : no_memory(err);
        if (st != QN_OK) {
            node_free(t, c);
            return st;
        }
        link_child(n, c);
        c->used = c->used_end = t->clock;
        c->used_us = t->clock_us;
        t->stats.n_node++;
        t->stats.n_token += end - from;
        t->stats.kept += end - from;
        set_good(t, c);
        tell_kept(t, c);
        n = c;
    }
    return QN_OK;
}

static enum qn_status put(struct ptree *t, struct ptree_node *root, const struct ptree_line *line,
                          const struct source *s, struct qn_err *err)
{
    struct walk w = walk(root, line);
    struct ptree_node *n = w.node;
    if (w.m < n->end) {
        if (w.m == line->n && t->ops->anywhere(ptree_self(t))) {
            touch(t, n, w.m);
            return QN_OK;
        }
        QN_TRY(split(t, n, w.m, &n, err));
    }
    enum qn_status st = n->end == line->n ? refresh(t, n, s, err) : append(t, n, line, s, &n, err);
    touch(t, n, n->end);
    return st;
}

static enum qn_status keep(struct ptree *t, const struct ptree_line *line, const struct source *s,
                           struct qn_err *err)
{
    struct ptree_node *root;
    if (line->n < 1)
        return QN_OK;
    t->clock++;
    t->clock_us = clock_us();
    enum qn_status st = root_make(t, line->ns, &root, err);
    if (st == QN_OK) {
        st = put(t, root, line, s, err);
        if (!root->child)
            root_drop(t, root);
    }
    t->stats.lost += st == QN_NO_MEMORY;
    return st;
}

enum qn_status ptree_keep(struct ptree *t, const struct ptree_line *line, void *src,
                          struct qn_err *err)
{
    enum qn_status st = keep(t, line, &(struct source){.src = src}, err);
    ptree_settle(t);
    return st;
}

enum qn_status ptree_add(struct ptree *t, const struct ptree_line *line, int32_t from, void *part,
                         struct qn_err *err)
{
    enum qn_status st = keep(t, line, &(struct source){.part = part, .from = from}, err);
    t->ops->free(ptree_self(t), part);
    return st;
}

/* ---- nodes, for a tier ------------------------------------------------------------------------
 */

void ptree_each(struct ptree *t, void (*fn)(void *arg, struct ptree_node *node), void *arg)
{
    for (struct ptree_node *r = t->roots; r; r = r->next)
        for (struct ptree_node *n = ptree_after(r); n; n = ptree_after(n))
            fn(arg, n);
}

int32_t ptree_node_from(const struct ptree_node *n)
{
    return n->from;
}

int32_t ptree_node_end(const struct ptree_node *n)
{
    return n->end;
}

bool ptree_node_good(const struct ptree_node *n)
{
    return n->good;
}

bool ptree_node_leaf(const struct ptree_node *n)
{
    return !n->child;
}

const void *ptree_node_part(const struct ptree_node *n)
{
    return n->part;
}

const char *ptree_node_ns(const struct ptree_node *n)
{
    while (n->parent)
        n = n->parent;
    return n->ns;
}

void ptree_node_line(const struct ptree_node *n, int32_t *ids)
{
    for (; n->parent; n = n->parent)
        memcpy(ids + n->from, n->ids, (size_t)(n->end - n->from) * sizeof *ids);
}

int64_t ptree_node_used_us(const struct ptree_node *n)
{
    return n->used_us;
}

uint64_t ptree_node_mark(const struct ptree_node *n)
{
    return n->mark;
}

void ptree_node_set_mark(struct ptree_node *n, uint64_t mark)
{
    n->mark = mark;
}
