/*
 * spec_ngram.c - guesses from the conversation itself: what followed the last tokens when they came
 * before. One index per generation over prompt and answer.
 *
 * Positions whose last three tokens hash alike form a chain, newest first; a second table knows the
 * newest place of each pair of tokens. A lookup compares a bounded number of places backwards, so
 * a token costs O(1), amortised over the doubling of the tables.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "sched/drafter.h"

#define LOOKS     24 /* places compared at most */
#define MATCH_MAX 32 /* tokens compared at most */
#define NONE      (-1)

struct ngram {
    int32_t *head3, *head2; /* [cap] by hash: newest position; cap a power of two */
    int32_t *prev;          /* [cap] position -> the one before in its chain */
    int32_t cap, n;         /* n: positions that are in */
};

static enum qn_status open(void *self, void *seq, void **ctx, struct qn_err *err)
{
    struct ngram *g = fault_point("sched.alloc") ? NULL : calloc(1, sizeof *g);
    if (!g)
        QN_FAIL(err, QN_NO_MEMORY, "ngram", "no memory for an index");
    *ctx = g;
    return QN_OK;
}

static void close_index(void *self, void *ctx)
{
    struct ngram *g = ctx;
    if (!g)
        return;
    free(g->head3);
    free(g->head2);
    free(g->prev);
    free(g);
}

static uint32_t slot(const struct ngram *g, const int32_t *last, int32_t n)
{
    uint64_t h = hash64(last - n + 1, (size_t)n * sizeof *last, (uint64_t)n);
    return (uint32_t)h & (uint32_t)(g->cap - 1);
}

static void put(struct ngram *g, const int32_t *ids, int32_t at)
{
    g->prev[at] = NONE;
    if (at >= 2) {
        uint32_t h = slot(g, ids + at, 3);
        g->prev[at] = g->head3[h];
        g->head3[h] = at;
    }
}

/* The pair that ends at `at` counts once a token follows it, so that a lookup finds an earlier one.
 */
static void put_pair(struct ngram *g, const int32_t *ids, int32_t at)
{
    if (at >= 1)
        g->head2[slot(g, ids + at, 2)] = at;
}

static bool resize(struct ngram *g, int32_t n)
{
    int32_t cap = g->cap ? g->cap : 256;
    while (cap < n && cap <= INT32_MAX / 2)
        cap *= 2;
    if (cap < n)
        return false;
    size_t bytes = (size_t)cap * sizeof(int32_t);
    bool fail = fault_point("sched.alloc");
    int32_t *head3 = fail ? NULL : malloc(bytes), *head2 = fail ? NULL : malloc(bytes),
            *prev = fail ? NULL : malloc(bytes);
    if (!head3 || !head2 || !prev) {
        free(head3);
        free(head2);
        free(prev);
        return false;
    }
    free(g->head3);
    free(g->head2);
    free(g->prev);
    memset(head3, 0xff, bytes);
    memset(head2, 0xff, bytes);
    *g = (struct ngram){.head3 = head3, .head2 = head2, .prev = prev, .cap = cap};
    return true;
}

/* All of ids[n] into the index. */
static bool take(struct ngram *g, const int32_t *ids, int32_t n)
{
    if (n > g->cap && !resize(g, n))
        return false;
    for (; g->n < n; g->n++) {
        put(g, ids, g->n);
        put_pair(g, ids, g->n - 1);
    }
    return true;
}

/* Tokens before a and before b that agree, those two included. */
static int32_t agree(const int32_t *ids, int32_t a, int32_t b)
{
    int32_t n = 0;
    while (n < MATCH_MAX && n <= a && ids[a - n] == ids[b - n])
        n++;
    return n;
}

/* The place before the last token that agrees longest with the end, the newest of equals. */
static int32_t find(const struct ngram *g, const int32_t *ids, int32_t n, int32_t *match)
{
    int32_t end = n - 1, best = NONE;
    *match = 1; /* a single token says nothing */
    int32_t at = g->prev[end];
    for (int32_t k = 0; at != NONE && k < LOOKS && *match < MATCH_MAX; k++, at = g->prev[at]) {
        int32_t len = agree(ids, at, end);
        if (len > *match) {
            *match = len;
            best = at;
        }
    }
    if (best == NONE && end >= 1) {
        at = g->head2[slot(g, ids + end, 2)];
        int32_t len = at == NONE ? 0 : agree(ids, at, end);
        if (len > *match) {
            *match = len;
            best = at;
        }
    }
    return best;
}

static uint8_t sureness(int32_t match)
{
    static const int32_t least[SPEC_SURE] = {2, 3, 4, 6, 9, 13, 19, 28};
    uint8_t s = 0;
    while (s + 1 < SPEC_SURE && match >= least[s + 1])
        s++;
    return s;
}

/* What follows may run into the guesses themselves: text that repeats. */
static enum qn_status draft(void *self, struct draft *d, int32_t n, struct qn_err *err)
{
    for (int32_t i = 0; i < n; i++) {
        struct draft *w = &d[i];
        struct ngram *g = w->ctx;
        int32_t match;
        w->n = 0;
        if (!take(g, w->ids, w->n_ids))
            QN_FAIL(err, QN_NO_MEMORY, "ngram", "no memory to index %d tokens", w->n_ids);
        int32_t at = find(g, w->ids, w->n_ids, &match);
        for (; at != NONE && w->n < w->most; w->n++) {
            int32_t next = at + 1 + w->n;
            w->out[w->n] = next < w->n_ids ? w->ids[next] : w->out[next - w->n_ids];
            w->sure[w->n] = sureness(match + w->n);
        }
    }
    return QN_OK;
}

const struct drafter_ops drafter_ngram = {
    .name = "ngram",
    .n_draft = SPEC_DRAFT_MAX,
    .prior = {0.2F, 0.35F, 0.5F, 0.65F, 0.75F, 0.85F, 0.9F, 0.95F},
    .open = open,
    .close = close_index,
    .draft = draft,
};
