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

#include <sys/uio.h>

#include "base/buf.h"
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

/* A sequence of the first n tokens of src. kv_seq_can_truncate(src, n) must hold; with a recurrent
 * state n is 0 or all. */
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

/* For caches. Marks p, once, as one of a cache's (parts made of it are not). */
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
/* The most bytes that thin can drop of one prefix; bytes of a token in groups without a window. */
int64_t kv_end_bytes(const struct exec *ex);
int64_t kv_full_token_bytes(const struct exec *ex);
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
/* One prefix [from, n) of what a chain holds. kv_chain_usable(n) must be n. */
enum qn_status kv_chain_prefix(struct exec *ex, const struct kv_chain *c, int32_t from, int32_t n,
                               struct kv_prefix **out, struct qn_err *err);

/* ---- to files and back (kv_io.c) ------------------------------------------------------------ */

/* What memory a prefix has: small, and enough to make an empty one of the same kind. */
enum { KV_SHAPE_GROUPS = 4 };
struct kv_shape {
    int32_t from, end; /* tokens */
    struct {
        int32_t first, n; /* pages of a group */
    } runs[KV_SHAPE_GROUPS];
    bool state;
};
void kv_prefix_shape(const struct kv_prefix *p, struct kv_shape *out);
/* As bytes, and from bytes that nobody vouches for: false when no prefix of this exec can have
 * that shape. */
enum { KV_SHAPE_BYTES = 12 + 8 * KV_SHAPE_GROUPS };
void kv_shape_write(const struct kv_shape *s, uint8_t out[KV_SHAPE_BYTES]);
bool kv_shape_read(const struct exec *ex, const uint8_t *p, size_t n, struct kv_shape *out);
/* Pieces of memory of such a prefix (each page, then the state), and their bytes in all. */
int32_t kv_shape_parts(const struct exec *ex, const struct kv_shape *s);
int64_t kv_shape_bytes(const struct exec *ex, const struct kv_shape *s);
/* Bytes of piece i of them. */
int64_t kv_shape_part_bytes(const struct exec *ex, const struct kv_shape *s, int32_t i);

/* A prefix's memory as a list of pieces that do not change until the export is freed, so that
 * another thread may read them: full pages by reference, those still being filled as copies. Create
 * and free on the engine's thread. */
struct kv_export;
enum qn_status kv_export_create(struct exec *ex, const struct kv_prefix *p, struct kv_export **out,
                                struct qn_err *err);
const struct iovec *kv_export_parts(const struct kv_export *x, int32_t *n);
void kv_export_free(struct exec *ex, struct kv_export *x); /* NULL is fine */

/* A prefix with memory of its own for the pieces of an export of that shape to be read into. Until
 * all of them are there it may only be freed. QN_BUSY beyond the budget. */
enum qn_status kv_import_create(struct exec *ex, const struct kv_shape *s, struct kv_prefix **out,
                                struct qn_err *err);
void kv_import_parts(const struct exec *ex, struct kv_prefix *p, struct iovec *out);

/* The part of a shape up to token `end`; the state only when that is its end. */
void kv_shape_cut(struct kv_shape *s, int32_t end);
/* Without what only a sequence that goes on at its end needs: windows and state. */
void kv_shape_thin(const struct exec *ex, struct kv_shape *s);
/* The shape of all that a sequence needs to go on behind token n, of a prefix [from, n). */
void kv_shape_whole(const struct exec *ex, int32_t from, int32_t n, struct kv_shape *out);
/* Shapes of prefixes that continue each other from 0: what kv_chain_usable would say of them (0 at
 * least, also for want of memory); and which of them page i of a group is to be taken from for a
 * sequence of n tokens, -1 = none has it. */
int32_t kv_shapes_usable(const struct exec *ex, const struct kv_shape *s, int32_t n_shape,
                         int32_t n);
int32_t kv_shapes_page(const struct kv_shape *s, int32_t n_shape, int32_t g, int32_t i, int32_t n);
/* Groups of layers; and tokens that one sees, 0 = all. */
int32_t kv_n_group(const struct exec *ex);
int32_t kv_group_window(const struct exec *ex, int32_t g);

/* Everything that decides which bytes mean what in pages and states, as text. */
void kv_layout_describe(const struct exec *ex, struct buf *out);

#endif
