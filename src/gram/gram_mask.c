/*
 * gram_mask.c - which tokens may come in a state: the vocabulary's trie is walked with the machine,
 * once per state that differs in what the walk looks at, and the bit sets are kept.
 *
 * A mask belongs to the top k frames of the stacks: the walk notes how deep it looked, so states
 * that differ only further down (another nesting depth, another caller) share it.
 * Everything happens under the lazy's lock.
 */
#include <stdlib.h>

#include "gram/gram_int.h"

#define WHERE     "grammar"
#define STEPS_MAX 1000000 /* work for one mask, about 0.1 s at worst */

/* The k that masks are looked up with; a mask that looked deeper is kept for whole stacks. */
static const int32_t depths[] = {1, 2, 3, 4, 6, 8, 12, -1};
#define N_DEPTHS ((int32_t)(sizeof depths / sizeof *depths))

enum qn_status lazy_create(struct gram *g, struct gram_vocab *v, struct lazy **out,
                           struct qn_err *err)
{
    struct lazy *z = calloc(1, sizeof *z);
    *out = NULL;
    if (!z)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for the grammar's states");
    atomic_init(&z->refs, 1);
    pthread_mutex_init(&z->mu, NULL);
    z->vocab = gram_vocab_ref(v);
    enum qn_status st = machine_init(&z->m, &g->prog, err);
    if (st != QN_OK) {
        lazy_unref(z);
        return st;
    }
    *out = z;
    return QN_OK;
}

void lazy_unref(struct lazy *z)
{
    if (!z || atomic_fetch_sub(&z->refs, 1) != 1)
        return;
    machine_free(&z->m);
    for (int32_t i = 0; i < z->masks_cap; i++)
        free(z->masks[i]);
    free(z->masks);
    gram_vocab_unref(z->vocab);
    pthread_mutex_destroy(&z->mu);
    free(z);
}

/* ---- kept masks ------------------------------------------------------------------------------ */

static struct mask *find(const struct lazy *z, const uint64_t key[2], int32_t k)
{
    if (z->masks_cap == 0)
        return NULL;
    for (uint64_t h = key[0];; h++) {
        struct mask *m = z->masks[h & (uint64_t)(z->masks_cap - 1)];
        if (!m || (m->k == k && m->key[0] == key[0] && m->key[1] == key[1]))
            return m;
    }
}

static void place(struct mask **v, int32_t cap, struct mask *m)
{
    uint64_t h = m->key[0];
    while (v[h & (uint64_t)(cap - 1)])
        h++;
    v[h & (uint64_t)(cap - 1)] = m;
}

static bool masks_room(struct lazy *z)
{
    if ((z->n_masks + 1) * 2 <= z->masks_cap)
        return true;
    int32_t cap = z->masks_cap ? z->masks_cap * 2 : 64;
    struct mask **v = calloc((size_t)cap, sizeof *v);
    if (!v)
        return false;
    for (int32_t i = 0; i < z->masks_cap; i++)
        if (z->masks[i])
            place(v, cap, z->masks[i]);
    free(z->masks);
    z->masks = v;
    z->masks_cap = cap;
    return true;
}

/* ---- the walk -------------------------------------------------------------------------------- */

static inline void set_ids(const struct trie *t, int32_t i, uint64_t *bits)
{
    for (int32_t k = t->tok[i]; k < t->tok[i + 1]; k++)
        bits[t->ids[k] >> 6] |= (uint64_t)1 << (t->ids[k] & 63);
}

/* A node's tokens stand between its tok and the next node's: tokens that end deeper come later. */
static void walk(struct lazy *z, const struct trie *t, int32_t state, uint64_t *bits, int32_t *low)
{
    struct machine *m = &z->m;
    int32_t *at = z->state_of;
    at[0] = state;
    for (int32_t i = 0; i < t->n;) {
        int32_t to = machine_step(m, at[t->depth[i] - 1], t->byte[i]);
        if (to < 0) {
            if (m->failed)
                return;
            i = t->skip[i];
            continue;
        }
        at[t->depth[i]] = to;
        if (m->states.v[to].low < *low)
            *low = m->states.v[to].low;
        set_ids(t, i, bits);
        i++;
    }
}

/* How many plain characters in a row surely lead on alike: PLAIN_MAX, or fewer when none may come
 * after that many; -1 when plain characters differ. */
static int32_t plain_run(struct lazy *z, int32_t state, int32_t *low)
{
    for (int32_t k = 0; k < PLAIN_MAX; k++) {
        int32_t to = machine_plain(&z->m, state);
        if (to == STATE_MIXED)
            return -1;
        if (to == STATE_DEAD)
            return k;
        if (z->m.states.v[to].low < *low)
            *low = z->m.states.v[to].low;
        if (to == state)
            return PLAIN_MAX;
        state = to;
    }
    return PLAIN_MAX;
}

static void fill(struct lazy *z, int32_t state, uint64_t *bits, int32_t *low)
{
    const struct gram_vocab *v = z->vocab;
    int32_t run = plain_run(z, state, low);
    if (run < 0) {
        walk(z, &v->all, state, bits, low);
        return;
    }
    walk(z, &v->rest, state, bits, low);
    for (int32_t k = 0; k < run; k++)
        for (int32_t w = 0; w < v->n_words; w++)
            bits[w] |= v->plain[(size_t)k * (size_t)v->n_words + (size_t)w];
}

static struct mask *compute(struct lazy *z, int32_t state)
{
    size_t words = (size_t)z->vocab->n_words;
    int32_t low = z->m.states.v[state].top;
    struct mask *m = masks_room(z) ? calloc(1, sizeof *m + words * sizeof *m->bits) : NULL;
    if (!m)
        return NULL;
    fill(z, state, m->bits, &low);
    if (z->m.failed) {
        free(m);
        return NULL;
    }
    int32_t need = z->m.states.v[state].top - low, i = 0;
    while (i < N_DEPTHS - 1 && (low < 0 || depths[i] < need))
        i++;
    m->k = depths[i];
    machine_key(&z->m, state, m->k, m->key);
    for (size_t w = 0; w < words && !m->any; w++)
        m->any = m->bits[w] != 0;
    place(z->masks, z->masks_cap, m);
    z->n_masks++;
    z->mask_bytes += (int64_t)(sizeof *m + words * sizeof *m->bits);
    return m;
}

const struct mask *lazy_mask(struct lazy *z, int32_t state)
{
    const struct mask *m = z->m.states.v[state].mask;
    if (m) {
        z->hits++;
        return m;
    }
    for (int32_t i = 0; i < N_DEPTHS && !m; i++) {
        uint64_t key[2];
        machine_key(&z->m, state, depths[i], key);
        m = find(z, key, depths[i]);
    }
    z->m.failed = NULL;
    z->m.steps = 0;
    z->m.steps_max = STEPS_MAX;
    z->hits += m != NULL;
    if (!m)
        m = compute(z, state);
    if (m)
        z->m.states.v[state].mask = m;
    return m;
}
