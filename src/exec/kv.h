/*
 * kv.h - KV memory beyond what a step needs (exec.h): how much a sequence takes, sequences that
 * share their beginning, and runs of memory that live without a sequence.
 *
 * Layers that forget alike (everything kept, or a window of W tokens) form a group with pages of
 * its own; a page is KV_PAGE tokens of a group's layers. Pages and recurrent states are counted by
 * reference. A page is written by one sequence only and only behind what others rely on; where that
 * does not hold, a sequence copies the page before it appends.
 *
 * The scheduler's thread alone; the functions that take a const struct exec may be called anywhere.
 */
#ifndef EXEC_KV_H
#define EXEC_KV_H

#include "exec/exec.h"

/* ---- amounts -------------------------------------------------------------------------------- */

/* The most bytes a sequence of n tokens can hold at any moment, nothing shared. */
int64_t kv_seq_bytes(const struct exec *ex, int32_t n);
/* Bytes of pages and states a sequence holds now; shared ones count in full. */
int64_t kv_seq_bytes_held(const struct exec *ex, const struct kv_seq *s);
/* Bytes in use by all sequences and prefixes, each page once; bytes kept for reuse beside them. */
int64_t kv_bytes_used(const struct exec *ex);
int64_t kv_bytes_free(const struct exec *ex);
/* Of the bytes in use, those that only a cache's prefixes hold (kv_prefix_cached). */
int64_t kv_bytes_idle(const struct exec *ex);

/* ---- sharing -------------------------------------------------------------------------------- */

/* A sequence of the first n tokens of src. kv_seq_can_truncate(src, n) must hold. */
enum qn_status kv_seq_fork(struct exec *ex, struct kv_seq *src, int32_t n, struct kv_seq **out,
                           struct qn_err *err);

/* The memory of tokens [from, n) of a sequence, counted by reference and immutable; with the
 * recurrent state after token n-1 when the sequence had just that many. It holds whole pages, from
 * the one that token `from` is in; of a window those that token n and the KV_ROLLBACK tokens before
 * it see, also in front of `from`: what goes on behind n needs no window of the prefixes before.
 * Nothing is copied. */
struct kv_prefix;
enum qn_status kv_prefix_create(struct exec *ex, struct kv_seq *s, int32_t from, int32_t n,
                                struct kv_prefix **out, struct qn_err *err);
/* The part of p for tokens [from, n), inside p's own; the state only when n is p's end. */
enum qn_status kv_prefix_part(struct exec *ex, const struct kv_prefix *p, int32_t from, int32_t n,
                              struct kv_prefix **out, struct qn_err *err);
void kv_prefix_free(struct exec *ex, struct kv_prefix *p); /* NULL is fine */
int32_t kv_prefix_from(const struct kv_prefix *p);
int32_t kv_prefix_end(const struct kv_prefix *p);
/* Bytes that freeing it would give back: what nobody else holds. */
int64_t kv_prefix_own_bytes(const struct exec *ex, const struct kv_prefix *p);

/* For caches. Marks p, once, as one of a cache's: parts of it are too. */
void kv_prefix_cached(struct exec *ex, struct kv_prefix *p);
/* A sequence can go on behind p, given the prefixes before it: windows are whole, and the state is
 * there where there is one. */
bool kv_prefix_complete(const struct exec *ex, const struct kv_prefix *p);
/* Gives back what only such a sequence needs: windows and state. */
void kv_prefix_thin(struct exec *ex, struct kv_prefix *p);
/* p's part of kv_bytes_idle, a page in several prefixes divided among them; of that, the part that
 * thin would drop. */
int64_t kv_prefix_idle(const struct exec *ex, const struct kv_prefix *p);
int64_t kv_prefix_idle_end(const struct exec *ex, const struct kv_prefix *p);
/* Others than a cache hold some of it. */
bool kv_prefix_in_use(const struct exec *ex, const struct kv_prefix *p);

/* Prefixes of one line of tokens, each beginning where the one before ends, the first at 0. */
struct kv_chain {
    const struct kv_prefix *const *parts;
    int32_t n_part;
};
/* The largest m <= n such that a sequence can go on behind the chain's first m tokens: pages of
 * every group are there for what token m sees, and the state where there is one. 0 at worst. */
int32_t kv_chain_usable(const struct exec *ex, const struct kv_chain *c, int32_t n);
/* A sequence of the chain's first n tokens. kv_chain_usable(n) must be n. */
enum qn_status kv_seq_from(struct exec *ex, const struct kv_chain *c, int32_t n,
                           struct kv_seq **out, struct qn_err *err);
/* s becomes the chain's first n tokens, whatever it was. kv_chain_usable(n) must be n. */
void kv_seq_become(struct exec *ex, struct kv_seq *s, const struct kv_chain *c, int32_t n);

#endif
