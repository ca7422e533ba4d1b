/*
 * tier.h - the prompt cache on disk, behind the one in memory (ptree.h): what is kept there is
 * written behind, and where memory knows less of a line than the disk, the rest comes back.
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

struct tier_params {
    struct exec *ex;
    struct ptree *tree; /* its parts are kv_prefixes of ex */
    const char *dir;
    int64_t max_bytes;        /* 0 = no bound */
    struct record_name model; /* everything that must agree for a record to be of use */
    struct str about;
};

/* Becomes the tree's second tier. */
enum qn_status tier_open(const struct tier_params *p, struct tier **out, struct qn_err *err);
/* Before the tree and the exec go. What waits to be written is lost (tier_flush). NULL is fine. */
void tier_close(struct tier *t);

/* What has to be done now and then: takes back what is written, hands over what is new. busy:
 * sequences are running and must not be disturbed. Milliseconds until it wants to be called again;
 * 0 = not before something happens. */
int32_t tier_tick(struct tier *t, bool busy);

/* Whether a part of the line is on its way from the disk: ask again in a moment. When it says no,
 * everything worth having is in memory. */
bool tier_loading(struct tier *t, const struct ptree_line *line);

struct tier_flush {
    int64_t nodes, tokens;                 /* in memory */
    int64_t durable_nodes, durable_tokens; /* of these, on disk with all they continue */
    char error[160];                       /* why the rest is not; "" = nothing is known */
};
/* begin: everything that is in memory now is to become durable. True when as much as can be is;
 * *out says how much. Ask again until then, with tier_tick between. */
bool tier_flush(struct tier *t, bool begin, struct tier_flush *out);

struct tier_stats {
    struct store_stats store;
    int64_t restores, restored_tokens; /* from the disk since the start */
    int64_t restore_us;                /* they took */
    int64_t known_tokens;              /* on disk for this model */
};
void tier_stats(const struct tier *t, struct tier_stats *out);

#endif
