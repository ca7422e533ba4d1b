/*
 * tok_bpe.c - one word to ids: look-ups, and a cache of short words before the merges
 * (tok_merge.c).
 *
 * The cache is shared by all threads without locks: a slot is guarded by a sequence number, a torn
 * or busy slot is a miss.
 */
#include "tok_int.h"

#include <stdlib.h>

bool ids_reserve(struct ids *a, size_t extra)
{
    size_t need;
    if (__builtin_add_overflow(a->n, extra, &need))
        return false;
    if (need <= a->cap)
        return true;
    size_t cap = a->cap + a->cap / 2 > need ? a->cap + a->cap / 2 : need;
    if (cap < 64)
        cap = 64;
    if (cap > SIZE_MAX / sizeof *a->v)
        return false;
    int32_t *v = realloc(a->v, cap * sizeof *v);
    if (!v)
        return false;
    a->v = v;
    a->cap = cap;
    return true;
}

void ids_free(struct ids *a)
{
    free(a->v);
    *a = (struct ids){0};
}

static enum qn_status no_memory(struct qn_err *err)
{
    return err_set(err, QN_NO_MEMORY, "tok", "out of memory while tokenizing");
}

int32_t tok_key_find(const struct tok *t, const char *p, size_t n)
{
    uint32_t at = (uint32_t)tok_hash(p, n) & t->key_mask;
    for (uint32_t k = 0; k <= t->key_mask; k++, at = (at + 1) & t->key_mask) {
        uint32_t id = t->key_map[at];
        if (id == 0 || id > (uint32_t)t->head->n_id)
            return -1;
        struct str s = tok_slice(t, SEC_KEY, t->key_off, (int32_t)id - 1);
        if (s.n == n && memcmp(s.p, p, n) == 0)
            return (int32_t)id - 1;
    }
    return -1;
}

const struct tok_merge *tok_merge_find(const struct tok *t, uint32_t left, uint32_t right)
{
    uint32_t at = tok_pair_slot(left, right, t->n_merge);
    for (uint32_t k = 0; k < t->n_merge; k++) {
        const struct tok_merge *m = &t->merges[at];
        if (m->left == left && m->right == right)
            return m->id < (uint32_t)t->head->n_id ? m : NULL;
        if (m->left == UINT32_MAX)
            return NULL;
        if (++at == t->n_merge)
            at = 0;
    }
    return NULL;
}

/* ---- the cache ------------------------------------------------------------------------------- */

static inline void key_words(const char *p, size_t n, uint64_t w[3])
{
    w[0] = w[1] = w[2] = 0;
    memcpy(w, p, n);
}

static inline uint32_t key_slot(const uint64_t w[3], size_t n)
{
    uint64_t h = (w[0] ^ n) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 32 ^ w[1]) * 0xD6E8FEB86659FD93u;
    h = (h ^ h >> 32 ^ w[2]) * 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 40) & (TOK_CACHE_SLOTS - 1);
}

/* Number of ids read into v, 0 = miss. The acquire loads keep the second look at seq last. */
static inline size_t cache_get(struct tok_slot *c, const uint64_t w[3], size_t n, int32_t *v)
{
    uint32_t seq = atomic_load_explicit(&c->seq, memory_order_acquire);
    uint32_t lens = atomic_load_explicit(&c->lens, memory_order_acquire);
    if ((seq & 1) || lens >> 8 != n)
        return 0;
    for (int i = 0; i < 3; i++)
        if (atomic_load_explicit(&c->key[i], memory_order_acquire) != w[i])
            return 0;
    uint64_t ids[4];
    for (int i = 0; i < 4; i++)
        ids[i] = atomic_load_explicit(&c->ids[i], memory_order_acquire);
    if (atomic_load_explicit(&c->seq, memory_order_relaxed) != seq)
        return 0;
    memcpy(v, ids, sizeof ids);
    return lens & 0xFF;
}

static void cache_put(struct tok_slot *c, const uint64_t w[3], size_t n, const int32_t *v,
                      size_t n_id)
{
    uint32_t seq = atomic_load_explicit(&c->seq, memory_order_relaxed);
    if ((seq & 1) || !atomic_compare_exchange_strong_explicit(
                         &c->seq, &seq, seq + 1, memory_order_acquire, memory_order_relaxed))
        return;
    uint64_t ids[4] = {0};
    memcpy(ids, v, n_id * sizeof *v);
    atomic_store_explicit(&c->lens, (uint32_t)(n << 8 | n_id), memory_order_release);
    for (int i = 0; i < 3; i++)
        atomic_store_explicit(&c->key[i], w[i], memory_order_release);
    for (int i = 0; i < 4; i++)
        atomic_store_explicit(&c->ids[i], ids[i], memory_order_release);
    atomic_store_explicit(&c->seq, seq + 2, memory_order_release);
}

/* A word without the cache: the whole-word shortcut, then the merges. */
static enum qn_status word_plain(const struct tok *t, const char *p, size_t n, struct ids *out,
                                 struct qn_err *err)
{
    int32_t id = tok_key_find(t, p, n);
    if (id >= 0 && ((t->head->flags & MODEL_IGNORE_MERGES) || (t->id_flags[id] & ID_WHOLE))) {
        if (!ids_reserve(out, 1))
            return no_memory(err);
        out->v[out->n++] = id;
        return QN_OK;
    }
    return tok_word_merge(t, p, n, out, err);
}

static enum qn_status word_cached(const struct tok *t, const char *p, size_t n, struct ids *out,
                                  struct qn_err *err)
{
    uint64_t w[3];
    key_words(p, n, w);
    struct tok_slot *c = &t->cache[key_slot(w, n)];
    if (!ids_reserve(out, TOK_CACHE_IDS))
        return no_memory(err);
    size_t got = cache_get(c, w, n, out->v + out->n);
    if (got) {
        out->n += got;
        return QN_OK;
    }
    size_t before = out->n;
    QN_TRY(word_plain(t, p, n, out, err));
    if (out->n - before <= TOK_CACHE_IDS && out->n > before)
        cache_put(c, w, n, out->v + before, out->n - before);
    return QN_OK;
}

/* Bytes from p on up to the first place where no token of the vocabulary crosses. */
static size_t cut(const struct tok *t, const char *p, size_t n)
{
    size_t len, i;
    uint32_t a = tok_cp((const uint8_t *)p, 0, n, &len);
    for (i = len; i < n; i += len) {
        uint32_t b = tok_cp((const uint8_t *)p, i, n, &len);
        uint32_t bit = tok_pair_hash(a, b) & (TOK_PAIR_BITS - 1);
        if (!(t->pairs[bit >> 6] >> (bit & 63) & 1))
            return i;
        a = b;
    }
    return n;
}

enum qn_status tok_word(const struct tok *t, const char *p, size_t n, struct ids *out,
                        struct qn_err *err)
{
    if (n == 0)
        return QN_OK;
    bool cuttable = (t->head->flags & (MODEL_CUTTABLE | MODEL_IGNORE_MERGES)) == MODEL_CUTTABLE;
    while (n) {
        size_t k = cuttable ? cut(t, p, n) : n;
        if (k <= TOK_CACHE_KEY && t->cache)
            QN_TRY(word_cached(t, p, k, out, err));
        else
            QN_TRY(word_plain(t, p, k, out, err));
        p += k;
        n -= k;
    }
    return QN_OK;
}
