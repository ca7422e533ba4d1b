/*
 * saved.h - lines of the prompt cache saved to files of their own by name, and put back: what the
 * tree has of a line goes into one file (store/convfile.h), with the places to go on from on the
 * way, and comes back whole or not at all. What the draft head's tree has of it goes along; a
 * server without that head, or without room for its part, puts the model's back all the same.
 *
 * All calls from the scheduler's thread. A thread of its own reads and writes; it touches nothing
 * but files and the bytes of pages that this thread holds for it. One file at a time.
 */
#ifndef CACHE_SAVED_H
#define CACHE_SAVED_H

#include "cache/cache_file.h"
#include "cache/tier.h"
#include "store/convfile.h"

struct saved;

struct saved_params {
    struct tier_tree trees[TIER_SIDES]; /* the model's `about` goes into the files */
    int64_t limits[TIER_SIDES];         /* the trees' */
    int32_t n_tree;
    int32_t n_ctx;   /* of a sequence, in tokens */
    const char *dir; /* conv_folder's */
};

enum qn_status saved_open(const struct saved_params *p, struct saved **out, struct qn_err *err);
/* Ends what is under way. Before the tree and the exec go. NULL is fine. */
void saved_close(struct saved *s);

/* See pcache_file. */
bool saved_run(struct saved *s, const struct cache_file_ask *ask, struct cache_file_told *out);

#endif
