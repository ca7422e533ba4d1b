/*
 * tok_merge.c - the byte pair merges of one word.
 *
 * Merge order is that of `tokenizers`: always the pair of lowest rank, leftmost first. Short words
 * use a plain scan over an array; longer ones a heap over a linked list; those of kilobytes go
 * window by window, so that what a merge touches stays in the processor's cache.
 *
 * Windows are exact. A row of tokens is the result for a word exactly when each pair of neighbours
 * is the result for the symbols of these two: as long as no merge has crossed a border between two
 * tokens, what happens on both sides is what happens there alone, in the same order; so the first
 * merge that crosses one would cross it in the pair alone as well. Inside a window all pairs are
 * such; where windows meet, the one pair is checked, and when it fails the place is moved back.
 */
#include "tok_int.h"

#include <stdlib.h>

enum { SMALL = 40 }; /* symbols; above it the heap wins (measured: equal near 60) */
enum {
    WINDOW = 4096, /* symbols */
    MARGIN = 192,  /* at the end of a window: what comes after it may change these */
};

static enum qn_status no_memory(struct qn_err *err)
{
    return err_set(err, QN_NO_MEMORY, "tok", "out of memory while tokenizing");
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

#define NONE UINT32_MAX

/* A word or a part of it, in work. A merged-away symbol has id NONE. */
struct part {
    uint32_t *id, *prev, *next; /* [cap] */
    struct heap h;              /* [3 cap] */
    size_t n, cap;
};

static void part_free(struct part *w)
{
    free(w->h.v);
    free(w->next);
    free(w->prev);
    free(w->id);
}

static bool part_fit(struct part *w, size_t n)
{
    if (n <= w->cap)
        return true;
    part_free(w);
    *w = (struct part){.id = malloc(n * sizeof *w->id),
                       .prev = malloc(n * sizeof *w->prev),
                       .next = malloc(n * sizeof *w->next),
                       .h.v = malloc(3 * n * sizeof *w->h.v),
                       .cap = n};
    if (w->id && w->prev && w->next && w->h.v)
        return true;
    w->cap = 0;
    return false;
}

static void part_begin(const struct tok *t, const uint32_t *id, size_t n, struct part *w)
{
    w->n = n;
    w->h.n = 0;
    memcpy(w->id, id, n * sizeof *id);
    for (size_t i = 0; i < n; i++) {
        w->prev[i] = i ? (uint32_t)i - 1 : NONE;
        w->next[i] = i + 1 < n ? (uint32_t)i + 1 : NONE;
        uint64_t v = i + 1 < n ? pair_value(t, id[i], id[i + 1]) : UINT64_MAX;
        if (v != UINT64_MAX)
            w->h.v[w->h.n++] = (v >> 32) << 32 | i;
    }
    for (size_t i = w->h.n / 2; i-- > 0;)
        heap_down(&w->h, i);
}

/* Each merge takes one symbol away and pushes at most two entries: the heap holds at most 3n. */
static void part_merge(const struct tok *t, const uint32_t *first, size_t n, struct part *w)
{
    uint32_t *id = w->id, *prev = w->prev, *next = w->next;
    part_begin(t, first, n, w);
    while (w->h.n) {
        uint64_t top = heap_pop(&w->h);
        uint32_t i = (uint32_t)top, j = id[i] == NONE ? NONE : next[i];
        if (j == NONE)
            continue;
        uint64_t v = pair_value(t, id[i], id[j]);
        if (v == UINT64_MAX || v >> 32 != top >> 32)
            continue;
        id[i] = (uint32_t)v;
        id[j] = NONE;
        next[i] = next[j];
        if (next[i] != NONE) {
            prev[next[i]] = i;
            v = pair_value(t, id[i], id[next[i]]);
            if (v != UINT64_MAX)
                heap_push(&w->h, (v >> 32) << 32 | i);
        }
        if (prev[i] != NONE) {
            v = pair_value(t, id[prev[i]], id[i]);
            if (v != UINT64_MAX)
                heap_push(&w->h, (v >> 32) << 32 | prev[i]);
        }
    }
}

/* ---- long words ------------------------------------------------------------------------------ */

struct row {
    struct syms s;
    struct ids *out;
    size_t base;    /* of this word's ids in out */
    uint32_t *from; /* [s.n] first symbol of each id */
};

/* Whether the symbols of two neighbours, alone, become just these two. */
static bool pair_holds(const struct tok *t, const struct row *r, struct part *w, size_t mid,
                       uint32_t right, size_t end)
{
    size_t n_out = r->out->n - r->base, begin = r->from[n_out - 1];
    part_merge(t, r->s.id + begin, end - begin, w);
    uint32_t a = w->next[0];
    return w->id[0] == (uint32_t)r->out->v[r->out->n - 1] && a == mid - begin &&
           w->id[a] == right && w->next[a] == NONE;
}

/* Appends the ids of a window that begins at symbol `at`, those that cannot change. Returns the
 * symbol after them; `at` itself when there are none. */
static size_t window_take(struct row *r, const struct part *w, size_t at)
{
    bool last = at + w->n == r->s.n;
    size_t end = at;
    for (uint32_t i = 0; i != NONE; i = w->next[i]) {
        size_t stop = w->next[i] == NONE ? w->n : w->next[i];
        if (!last && stop + MARGIN > w->n)
            break;
        r->from[r->out->n - r->base] = (uint32_t)(at + i);
        r->out->v[r->out->n++] = (int32_t)w->id[i];
        end = at + stop;
    }
    return end;
}

/* False: no memory. Room for all ids is there: one for each symbol. */
static bool merge_windows(const struct tok *t, struct row *r, size_t least, struct part *w)
{
    struct part pair = {0};
    size_t at = 0, window = least, back = 1;
    while (at < r->s.n) {
        size_t n = r->s.n - at < window ? r->s.n - at : window, n_out = r->out->n - r->base;
        if (!part_fit(w, n))
            break;
        part_merge(t, r->s.id + at, n, w);
        size_t end = at + (w->next[0] == NONE ? n : w->next[0]);
        if (n_out && !part_fit(&pair, end - r->from[n_out - 1]))
            break;
        if (n_out && !pair_holds(t, r, &pair, at, w->id[0], end)) {
            size_t drop = back < n_out ? back : n_out;
            r->out->n -= drop;
            at = r->from[n_out - drop];
            back *= 2;
            window *= 2;
            continue;
        }
        size_t to = window_take(r, w, at);
        bool more = to > at;
        window = more ? least : window * 2;
        back = more ? 1 : back;
        at = to;
    }
    part_free(&pair);
    return at >= r->s.n;
}

bool tok_word_merge_by(const struct tok *t, struct str word, size_t window, struct ids *out)
{
    struct row r = {
        .s = {malloc((word.n ? word.n : 1) * sizeof *r.s.id), 0}, .out = out, .base = out->n};
    struct part w = {0};
    if (r.s.id)
        syms_first(t, word.p, word.n, &r.s);
    r.from = malloc((r.s.n ? r.s.n : 1) * sizeof *r.from);
    bool done = r.s.id && r.from && ids_reserve(out, r.s.n) && merge_windows(t, &r, window, &w);
    if (!done)
        out->n = r.base;
    part_free(&w);
    free(r.from);
    free(r.s.id);
    return done;
}

static enum qn_status merge_large(const struct tok *t, const char *p, size_t n, struct ids *out,
                                  struct qn_err *err)
{
    if (n >= NONE / 2)
        return err_set(err, QN_BAD_INPUT, "tok", "one word of %zu bytes; at most 2 GiB", n);
    return tok_word_merge_by(t, (struct str){p, n}, WINDOW, out) ? QN_OK : no_memory(err);
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
