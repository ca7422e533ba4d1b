/*
 * heads.h - the draft head's part of an engine's prompt cache: the head's own keys and values for
 * lines that were kept, and the model's state where each of them ended, so that a sequence that
 * begins in the cache has guesses as good as one that computed everything. A tree of its own beside
 * the model's: what is missing here costs guesses, never tokens.
 *
 * Row p of the head takes the model's state at p and token p+1, so a line of n tokens has n-1 rows;
 * its key is its tokens from the second on, in a namespace that has the first.
 *
 * The scheduler's thread.
 */
#ifndef CACHE_HEADS_H
#define CACHE_HEADS_H

#include "cache/tier.h"
#include "quern.h"

struct heads;

/* *out is NULL when the engine has no head. At most `bytes` stay idle. */
enum qn_status heads_create(struct qn_engine *e, int64_t bytes, struct heads **out,
                            struct qn_err *err);
void heads_free(struct heads *h); /* NULL is fine here and below */

/* The rows of the line's first n tokens as the tree's line; ns is room for its namespace. Two
 * namespaces that became one here would share guesses, not text; names too long to carry a first
 * token are told apart by 64 bits and their end. Any thread. */
struct ptree_line heads_rows(const struct qn_line *line, int32_t n, char ns[PTREE_NS_MAX + 1]);

/* s, which holds a part of the line from the cache, gets a context with the rows that are there.
 * Where all are there but the state behind them, s gives one token back, if it can, so that
 * computing it makes that state. No failure: without memory s has no context. */
void heads_resume(struct heads *h, const struct qn_line *line, struct qn_seq *s);
/* Keeps the rows of s's context, when none is missing, and the state of the line's last token. */
void heads_keep(struct heads *h, const struct qn_line *line, struct qn_seq *s);
void heads_trim(struct heads *h, int64_t bytes); /* as ptree_trim; INT64_MAX: as ptree_settle */
int64_t heads_bytes_idle(const struct heads *h);

/* For a second tier: the tree and what its parts are, with the state as their tail; not the model,
 * nor what it is about. */
struct tier_tree heads_tree(struct heads *h);
/* Whether rows of the line are on their way from the disk, for a sequence that will begin behind
 * its first len tokens. */
bool heads_loading(struct heads *h, struct tier *t, const struct qn_line *line, int32_t len);

#endif
