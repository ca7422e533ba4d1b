/*
 * kv_parts.h - a tree's parts as prefixes of an engine's KV memory: what ptree.h asks of parts,
 * with all accounts of what is shared left to the KV store.
 *
 * The scheduler's thread.
 */
#ifndef CACHE_KV_PARTS_H
#define CACHE_KV_PARTS_H

#include "cache/ptree.h"
#include "exec/kv.h"

/* `self` is the exec, a part a struct kv_prefix marked with kv_prefix_cached, the source of
 * ptree_keep a struct kv_seq. */
extern const struct ptree_ops kv_parts_ops;

/* Parts that ptree_find gave, as the chain that they are; valid as long as they. */
static inline struct kv_chain kv_parts_chain(const void *const *parts, int32_t n_part)
{
    return (struct kv_chain){(const struct kv_prefix *const *)parts, n_part};
}

/* Fresh memory of a shape, unmarked; where the budget has none left the tree gives way. */
enum qn_status kv_parts_import(struct exec *ex, struct ptree *tree, const struct kv_shape *s,
                               struct kv_prefix **out, struct qn_err *err);

#endif
