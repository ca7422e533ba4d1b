/*
 * pages_world.h - the tree over real KV pages against an oracle, for random tests. Sequences over
 * lines that share beginnings, in two namespaces, step, are cut, forked, remembered in checkpoints,
 * kept in the tree, freed, and begin again with what the tree has. What a slot holds must be the
 * hash of the namespace and the tokens before it, whichever way it came there; what the tree must
 * know is a list of kept lines, from which the tier's hook takes what goes; all pages and states
 * are counted again from who holds them.
 */
#ifndef TESTS_CACHE_PAGES_WORLD_H
#define TESTS_CACHE_PAGES_WORLD_H

#include "../check.h"
#include "cache/ptree.h"
#include "exec/exec_int.h"

enum { SEQS = 5, POINTS = 3, ENTRIES = 500, N_CTX = 700, ROWS = 96, SPACES = 2 };

struct kind {
    const char *name;
    struct kv_layer layers[4];
    int n;
    bool ends; /* lines can be gone on from at their ends alone: windows, states */
    bool state;
};
enum { KINDS = 5 };
extern const struct kind kinds[KINDS];

struct line {
    int ns;
    int32_t n, ids[N_CTX];
};
struct live { /* a sequence; s NULL = none */
    struct kv_seq *s;
    struct line l;
    int32_t want; /* ids behind l's end are what comes next, up to here */
};
struct point { /* a checkpoint; p NULL = none */
    struct kv_prefix *p;
    struct line l;
};

/* Lines that must be there. */
struct known {
    struct entry {
        struct line l;
        bool end; /* a sequence can go on there */
    } e[ENTRIES];
    int n;
};
void known_add(struct known *k, const struct line *l, bool end);
/* Of the line's first `most` tokens: how many are known, and how many of them must serve. */
void known_find(const struct known *k, const struct kind *kind, const struct line *l, int32_t most,
                int32_t *least, int32_t *match);

struct world {
    const struct kind *k;
    struct exec *ex;
    struct ptree *t;
    struct ptree_tier below; /* what hears of the tree's events behind the oracle */
    bool adopting;           /* what comes into the tree is not the world's own doing */
    int64_t limit;
    struct live live[SEQS];
    struct point points[POINTS];
    struct known mem;
    int64_t n_reused, n_branch, n_evict, n_fork, n_cut, n_point, n_busy, n_census;
};

/* Numbers below n. The seed is QUERN_CACHE_SEED, where it is set, mixed with salt. */
void rnd_seed(uint64_t salt);
int32_t rnd(int32_t n);
/* QUERN_CACHE_OPS, or what is usual. */
int64_t n_operations(int64_t usual);

/* An exec and a tree; budget: most bytes of KV memory, 0 = none. */
void world_open(struct world *w, const struct kind *k, int64_t budget);
/* The oracle goes in front of the tier that the tree has. */
void world_hook(struct world *w);
/* Sequences, checkpoints, the tree and its exec go; everything must have come back. */
void world_close(struct world *w);

/* A line that begins like a known one, mostly. */
void world_line(const struct known *k, struct line *l);
/* A sequence begins anew with what the tree has of l's first `most` tokens; how many it has. */
int32_t world_begin(struct world *w, const struct line *l, int32_t most);
/* One operation of any kind, with lines like those of mem. */
void world_operation(struct world *w);
/* Of one sequence, everything that its next token would see. */
void world_look(const struct world *w);
/* References and bytes. Nobody else may hold anything. */
void world_census(struct world *w);

#endif
