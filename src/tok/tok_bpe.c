/*
 * tok_bpe.c - one word to ids: the byte pair merges, and a cache of short words.
 *
 * Merge order is that of `tokenizers`: always the pair of lowest rank, leftmost first. Short words
 * use a plain scan over an array; long ones a heap over a linked list (n log n, so that a megabyte
 * of one letter is no attack).
 *
 * The cache is shared by all threads without locks: a slot is guarded by a sequence number, a torn
 * or busy slot is a miss.
 */
#include "tok_int.h"

#include <stdlib.h>

enum { SMALL = 40 }; /* symbols; above it the heap wins (measured: equal near 60) */

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

/* ---- first symbols --------------------------------------------------------------------------- */

struct syms {
    uint32_t *id;
    size_t n;
};

static void syms_text(const struct tok *t, const char *p, size_t n, struct syms *s)
{
    bool pending = false; /* an unknown token waits for its neighbours to fuse with */
    const struct tok_head *h = t->head;
    for (size_t i = 0, len; i < n; i += len) {
        tok_cp((const uint8_t *)p, i, n, &len);
        int32_t id = tok_key_find(t, p + i, len);
        if (id >= 0) {
            if (pending)
                s->id[s->n++] = (uint32_t)h->unk;
            pending = false;
            s->id[s->n++] = (uint32_t)id;
            continue;
        }
        bool all = h->flags & MODEL_FALLBACK;
        for (size_t k = 0; all && k < len; k++)
            all = t->fallback[(uint8_t)p[i + k]] >= 0;
        for (size_t k = 0; all && k < len; k++)
            s->id[s->n++] = (uint32_t)t->fallback[(uint8_t)p[i + k]];
        if (all || h->unk < 0)
            continue;
        if (pending && !(h->flags & MODEL_FUSE_UNK))
            s->id[s->n++] = (uint32_t)h->unk;
        pending = true;
    }
    if (pending)
        s->id[s->n++] = (uint32_t)h->unk;
}

/* At most one symbol per byte of the word. */
static void syms_first(const struct tok *t, const char *p, size_t n, struct syms *s)
{
    s->n = 0;
    if (!(t->head->flags & MODEL_BYTES)) {
        syms_text(t, p, n, s);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(uint8_t)p[i]];
        if (id >= 0)
            s->id[s->n++] = (uint32_t)id;
    }
}

/* ---- merging --------------------------------------------------------------------------------- */

/* rank << 32 | id of the pair, or UINT64_MAX. */
static inline uint64_t pair_value(const struct tok *t, uint32_t a, uint32_t b)
{
    const struct tok_merge *m = tok_merge_find(t, a, b);
    return m ? (uint64_t)m->rank << 32 | m->id : UINT64_MAX;
}

static void merge_small(const struct tok *t, struct syms *s)
{
    uint64_t pair[SMALL];
    size_t n = s->n;
    for (size_t i = 0; i + 1 < n; i++)
        pair[i] = pair_value(t, s->id[i], s->id[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (pair[i] >> 32 < pair[best] >> 32)
                best = i;
        if (pair[best] == UINT64_MAX)
            break;
        s->id[best] = (uint32_t)pair[best];
        n--;
        memmove(&s->id[best + 1], &s->id[best + 2], (n - best - 1) * sizeof *s->id);
        if (best + 1 < n)
            memmove(&pair[best + 1], &pair[best + 2], (n - best - 2) * sizeof *pair);
        if (best > 0)
            pair[best - 1] = pair_value(t, s->id[best - 1], s->id[best]);
        if (best + 1 < n)
            pair[best] = pair_value(t, s->id[best], s->id[best + 1]);
    }
    s->n = n;
}

/* Binary min-heap of rank << 32 | position. */
struct heap {
    uint64_t *v;
    size_t n;
};

static void heap_down(struct heap *h, size_t i)
{
    uint64_t x = h->v[i];
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= h->n)
            break;
        if (c + 1 < h->n && h->v[c + 1] < h->v[c])
            c++;
        if (h->v[c] >= x)
            break;
        h->v[i] = h->v[c];
        i = c;
    }
    h->v[i] = x;
}

static void heap_push(struct heap *h, uint64_t x)
{
    size_t i = h->n++;
    while (i > 0 && h->v[(i - 1) / 2] > x) {
        h->v[i] = h->v[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->v[i] = x;
}

static uint64_t heap_pop(struct heap *h)
{
    uint64_t top = h->v[0];
    h->v[0] = h->v[--h->n];
    if (h->n)
        heap_down(h, 0);
    return top;
}

#define NONE UINT32_MAX

/* A merged-away symbol has id NONE. Each merge takes one symbol away and pushes at most two
 * entries, so the heap holds at most 3n. */
static void merge_heap(const struct tok *t, struct syms *s, uint32_t *prev, uint32_t *next,
                       struct heap *h)
{
    uint32_t n = (uint32_t)s->n;
    for (uint32_t i = 0; i < n; i++) {
        prev[i] = i ? i - 1 : NONE;
        next[i] = i + 1 < n ? i + 1 : NONE;
        uint64_t v = i + 1 < n ? pair_value(t, s->id[i], s->id[i + 1]) : UINT64_MAX;
        if (v != UINT64_MAX)
            h->v[h->n++] = (v >> 32) << 32 | i;
    }
    for (size_t i = h->n / 2; i-- > 0;)
        heap_down(h, i);
    while (h->n) {
        uint64_t top = heap_pop(h);
        uint32_t i = (uint32_t)top, j = s->id[i] == NONE ? NONE : next[i];
        if (j == NONE)
            continue;
        uint64_t v = pair_value(t, s->id[i], s->id[j]);
        if (v == UINT64_MAX || v >> 32 != top >> 32)
            continue;
        s->id[i] = (uint32_t)v;
        s->id[j] = NONE;
        next[i] = next[j];
        if (next[i] != NONE) {
            prev[next[i]] = i;
            v = pair_value(t, s->id[i], s->id[next[i]]);
            if (v != UINT64_MAX)
                heap_push(h, (v >> 32) << 32 | i);
        }
        if (prev[i] != NONE) {
            v = pair_value(t, s->id[prev[i]], s->id[i]);
            if (v != UINT64_MAX)
                heap_push(h, (v >> 32) << 32 | prev[i]);
        }
    }
    size_t k = 0;
    for (uint32_t i = 0; i < n; i++)
        if (s->id[i] != NONE)
            s->id[k++] = s->id[i];
    s->n = k;
}

static enum qn_status merge_large(const struct tok *t, const char *p, size_t n, struct ids *out,
                                  struct qn_err *err)
{
    if (n >= NONE / 2)
        return err_set(err, QN_BAD_INPUT, "tok", "one word of %zu bytes; at most 2 GiB", n);
    struct syms s = {malloc(n * sizeof *s.id), 0};
    uint32_t *prev = NULL, *next = NULL;
    struct heap h = {NULL, 0};
    enum qn_status st = QN_OK;
    if (s.id)
        syms_first(t, p, n, &s);
    if (!s.id ||
        (s.n && (!(prev = malloc(s.n * sizeof *prev)) || !(next = malloc(s.n * sizeof *next)) ||
                 !(h.v = malloc(3 * s.n * sizeof *h.v))))) {
        st = no_memory(err);
        goto done;
    }
    merge_heap(t, &s, prev, next, &h);
    if (!ids_reserve(out, s.n)) {
        st = no_memory(err);
        goto done;
    }
    for (size_t i = 0; i < s.n; i++)
        out->v[out->n++] = (int32_t)s.id[i];
done:
    free(h.v);
    free(next);
    free(prev);
    free(s.id);
    return st;
}

enum qn_status tok_word_merge(const struct tok *t, const char *p, size_t n, struct ids *out,
                              struct qn_err *err)
{
    if (n > SMALL)
        return merge_large(t, p, n, out, err);
    uint32_t id[SMALL];
    struct syms s = {id, 0};
    syms_first(t, p, n, &s);
    merge_small(t, &s);
    if (!ids_reserve(out, s.n))
        return no_memory(err);
    for (size_t i = 0; i < s.n; i++)
        out->v[out->n++] = (int32_t)id[i];
    return QN_OK;
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
