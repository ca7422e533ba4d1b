/*
 * ptree.h - a radix tree over tokens whose nodes hold parts of memory: what has been computed for
 * any line of tokens, shared where lines begin alike, apart for each namespace.
 *
 * A node holds tokens [from, end) of a line and the part of memory for them. Its end is `good` when
 * a sequence can go on behind it; between ends that depends on the memory (ptree_ops.usable). What
 * is behind a node is never there without it. The tree knows no engine: parts are void pointers
 * with a table of functions (pcache.c: runs of KV pages; the test: its own).
 *
 * One thread. Statistics too: whoever shows them elsewhere copies them there.
 */
#ifndef CACHE_PTREE_H
#define CACHE_PTREE_H

#include "base/err.h"

struct ptree;
struct ptree_node;

enum { PTREE_NS_MAX = 64 }; /* bytes of a namespace's name */

/* Tokens and whose they are. Lines of different namespaces share nothing. */
struct ptree_line {
    const char *ns; /* at most PTREE_NS_MAX bytes; NULL = "" */
    const int32_t *ids;
    int32_t n;
};

/* What parts are made of. `self` is ptree_create's. */
struct ptree_ops {
    /* The memory of tokens [from, n) of what `src` is (ptree_keep's). */
    enum qn_status (*make)(void *self, void *src, int32_t from, int32_t n, void **out,
                           struct qn_err *err);
    /* Of a part that begins at or before from and ends at or behind n. */
    enum qn_status (*part)(void *self, const void *p, int32_t from, int32_t n, void **out,
                           struct qn_err *err);
    void (*free)(void *self, void *p);
    /* A sequence can go on anywhere: all parts are complete. */
    bool (*anywhere)(void *self);
    /* With all parts before it a sequence can go on where p ends. */
    bool (*complete)(void *self, const void *p);
    /* Drops what only such a sequence needs; cannot fail. */
    void (*thin)(void *self, void *p);
    /* The largest m <= n where a sequence can go on; parts continue each other from 0. */
    int32_t (*usable)(void *self, const void *const *parts, int32_t n_part, int32_t n);
    /* Bytes that only parts of the tree hold: of all of it; of p, memory in several parts divided
     * among them; of p, what thin would drop. */
    int64_t (*idle_all)(void *self);
    int64_t (*idle)(void *self, const void *p);
    int64_t (*idle_end)(void *self, const void *p);
    /* A sequence holds some of p too. */
    bool (*in_use)(void *self, const void *p);
};

/* A second place for parts, told about what happens; each may be NULL. Nothing here may change the
 * tree except find. */
struct ptree_tier {
    void *self;
    /* A node is new, or its end has become good. */
    void (*kept)(void *self, struct ptree_node *node);
    /* A node's part (thin: only what its end needs) is about to go. */
    void (*evict)(void *self, struct ptree_node *node, bool thin);
    /* A lookup: only the first n_usable tokens of the line, fewer than wanted, can be had here.
     * Puts what the tier has into the tree (ptree_add); true when it did. */
    bool (*find)(void *self, const struct ptree_line *line, int32_t n_usable);
};

struct ptree_stats {
    int64_t n_node, n_token; /* nodes; tokens in them */
    int64_t lookups, hits;   /* hits: with at least a token */
    int64_t asked, found;    /* tokens of all lookups; of these, tokens that were usable */
    int64_t kept;            /* tokens put in */
    int64_t evicted;         /* tokens dropped */
    int64_t thinned;         /* ends dropped where the tokens stayed */
    int64_t lost;            /* keeps that failed for want of memory */
};

/* At most limit bytes stay idle (ptree_ops.idle_all). */
enum qn_status ptree_create(const struct ptree_ops *ops, void *self, int64_t limit,
                            struct ptree **out, struct qn_err *err);
void ptree_free(struct ptree *t); /* NULL is fine; the tier hears nothing */
void ptree_set_tier(struct ptree *t, const struct ptree_tier *tier); /* copied; NULL = none */
void ptree_stats(const struct ptree *t, struct ptree_stats *out);

struct ptree_found {
    int32_t n_match;          /* tokens of the line that are in the tree */
    int32_t n_usable;         /* of these, where a sequence can go on */
    const void *const *parts; /* [n_part] for [0, n_usable): valid until the next call */
    int32_t n_part;
};
/* At most `most` tokens are wanted; what is known of those behind helps where a window ends there.
 */
void ptree_find(struct ptree *t, const struct ptree_line *line, int32_t most,
                struct ptree_found *out);
/* What memory has alone of a line; nothing is counted or touched. */
void ptree_peek(struct ptree *t, const struct ptree_line *line, struct ptree_found *out);
/* The same; what it finds counts as used just now. */
void ptree_touch(struct ptree *t, const struct ptree_line *line, struct ptree_found *out);

/* Puts in what `src` holds of the line, as far as it is not there; its end becomes good if src's
 * memory is. Bits that are there already are kept. QN_NO_MEMORY: nothing of use was put in. */
enum qn_status ptree_keep(struct ptree *t, const struct ptree_line *line, void *src,
                          struct qn_err *err);
/* Same with a part for [from, line->n), which is taken, also on failure. QN_NOT_FOUND when the tree
 * does not hold the line's first `from` tokens. */
enum qn_status ptree_add(struct ptree *t, const struct ptree_line *line, int32_t from, void *part,
                         struct qn_err *err);

int64_t ptree_idle(const struct ptree *t); /* ptree_ops.idle_all */
/* Drops the least valuable until at most `bytes` are idle, or nothing is left that could go. */
void ptree_trim(struct ptree *t, int64_t bytes);
/* Lookups and keeps so far, and what was not in any of those since it was `clock`: leaves, and then
 * those that became leaves, go when no sequence holds them and may() says so. Tokens dropped. */
uint64_t ptree_clock(const struct ptree *t);
int64_t ptree_drop_unused(struct ptree *t, uint64_t clock,
                          bool (*may)(void *arg, struct ptree_node *leaf), void *arg);
/* Down to the tree's limit, and somewhat below so that it is not done at every turn. */
void ptree_settle(struct ptree *t);

/* Nodes do not reach over multiples of so many tokens. */
enum { PTREE_NODE_TOK = 512 };

/* ---- nodes, for a tier ----------------------------------------------------------------------- */

/* Each node, a parent before its children. fn may mark, nothing else. */
void ptree_each(struct ptree *t, void (*fn)(void *arg, struct ptree_node *node), void *arg);
int32_t ptree_node_from(const struct ptree_node *n);
int32_t ptree_node_end(const struct ptree_node *n);
bool ptree_node_good(const struct ptree_node *n);
bool ptree_node_leaf(const struct ptree_node *n);
const void *ptree_node_part(const struct ptree_node *n);
const char *ptree_node_ns(const struct ptree_node *n);
/* When a line last went through it, on the monotonic clock (clock_us). */
int64_t ptree_node_used_us(const struct ptree_node *n);
/* The line up to its end: ids has room for ptree_node_end. */
void ptree_node_line(const struct ptree_node *n, int32_t *ids);
/* The tier's own number; 0 at first. When a node is split both halves have it. */
uint64_t ptree_node_mark(const struct ptree_node *n);
void ptree_node_set_mark(struct ptree_node *n, uint64_t mark);

#endif
