/*
 * pcache.h - the prompt cache of an engine, beyond quern.h: what a second tier needs to put itself
 * behind it. The scheduler's thread.
 */
#ifndef CACHE_PCACHE_H
#define CACHE_PCACHE_H

#include "cache/ptree.h"
#include "quern.h"

struct exec;

/* Its tree, whose parts are struct kv_prefix of pcache_exec's; those given to ptree_add are to be
 * marked with kv_prefix_cached. */
struct ptree *pcache_tree(struct qn_cache *c);
struct exec *pcache_exec(const struct qn_cache *c);

#endif
