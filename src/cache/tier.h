/*
 * tier.h - the prompt cache on disk, behind the one in memory (ptree.h): what is kept there is
 * written behind, and where memory knows less of a line than the disk, the rest comes back. Of the
 * model's tree and of those that go with it (a draft head's), each with records of its own; the
 * folder, its bound, the writer and the reader are one.
 *
 * All calls from the scheduler's thread. Records are written by the store's thread and read by one
 * of the tier's own; neither touches anything but the bytes of pages that this thread holds for it.
 */
#ifndef CACHE_TIER_H
#define CACHE_TIER_H

#include "cache/ptree.h"
#include "exec/kv.h"
#include "store/store.h"

struct tier;

/* Parts that are more than a kv_prefix: with a tail, bytes of one size that belong to where they
 * end. A part of the tree is good where it has one. */
struct tier_parts {
    const struct kv_prefix *(*kv)(const void *part);
    const void *(*tail)(const void *part); /* NULL = it has none */
    /* A part for ptree_add; kv is taken, also on failure. tail may be NULL. */
    enum qn_status (*make)(void *self, struct kv_prefix *kv, const void *tail, void **out,
                           struct qn_err *err);
};

/* A tree, and how its records are known. */
struct tier_tree {
    struct exec *ex;
    struct ptree *tree;
    struct record_name model; /* everything that must agree for a record to be of use */
    struct str about;
    const struct tier_parts *parts; /* NULL: parts are kv_prefixes of ex */
    void *self;                     /* for parts->make */
    size_t tail_bytes;
};

/* What a part of such a tree is. */
static inline const struct kv_prefix *tier_kv(const struct tier_tree *t, const void *part)
{
    return t->parts ? t->parts->kv(part) : part;
}

static inline const void *tier_tail(const struct tier_tree *t, const void *part)
{
    return t->parts ? t->parts->tail(part) : NULL;
}

/* The model's tree comes first: it decides where the others' ends are worth a record too. */
enum { TIER_MODEL, TIER_HEAD, TIER_SIDES };
struct tier_params {
    struct tier_tree trees[TIER_SIDES];
    int32_t n_tree;
    const char *dir;
    int64_t max_bytes; /* 0 = no bound */
    int64_t idle_us;   /* what nobody used for so long leaves memory; 0 = only for want of it */
};

/* Becomes the trees' second tier. */
enum qn_status tier_open(const struct tier_params *p, struct tier **out, struct qn_err *err);
/* Before the trees and the execs go. What waits to be written is lost. NULL is fine. */
void tier_close(struct tier *t);

/* What has to be done now and then: takes back what is written, hands over what is new. busy:
 * sequences are running and must not be disturbed. Milliseconds until it wants to be called again;
 * 0 = not before something happens. */
int32_t tier_tick(struct tier *t, bool busy);

/* Whether a part of a tree's line is on its way from the disk: ask again in a moment. When it says
 * no, everything worth having is in memory. */
bool tier_loading(struct tier *t, int32_t tree, const struct ptree_line *line);

struct tier_flush {
    int64_t nodes, tokens;                 /* in memory; nodes of all trees, the model's tokens */
    int64_t durable_nodes, durable_tokens; /* of these, on disk with all they continue */
    char error[240];                       /* why the rest is not; "" = nothing is known */
};
/* begin: everything that is in memory now is to become durable. True when as much as can be is;
 * *out says how much. Ask again until then, with tier_tick between. */
bool tier_flush(struct tier *t, bool begin, struct tier_flush *out);

struct tier_stats {
    struct store_stats store;
    int64_t restores, restored_tokens; /* of the model, from the disk since the start */
    int64_t restore_us;                /* they took */
    int64_t restored_rows;             /* of the other trees' tokens */
    int64_t known_tokens;              /* on disk for this model */
    int64_t demoted_tokens;            /* that left memory for being idle */
};
void tier_stats(const struct tier *t, struct tier_stats *out);

#endif
