/*
 * kv_prefix.c - memory that outlives a sequence: runs of pages of every group and perhaps a
 * recurrent state, and sequences made of such runs.
 *
 * A page may be in several runs: the page where one run ends inside is also the first page of the
 * run that goes on from there, and only the later run vouches for what lies behind.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"

void kv_prefix_free(struct exec *ex, struct kv_prefix *p)
{
    if (!p)
        return;
    for (int32_t g = 0; g < ex->kv.n_group; g++) {
        for (int32_t i = 0; p->runs[g].pages && i < p->runs[g].n; i++)
            kv_page_give(ex, g, p->runs[g].pages[i]);
        free(p->runs[g].pages);
    }
    kv_state_give(ex, p->state);
    free(p);
}

/* Pages [first, end) of `pages`, whose element 0 is page `base`; a sequence of n tokens relies on
 * them. */
static bool run_fill(struct kv_run *r, struct kv_page *const *pages, int32_t base, int32_t end,
                     int32_t n)
{
    if (end <= r->first)
        return true;
    r->pages = malloc((size_t)(end - r->first) * sizeof *r->pages);
    if (!r->pages)
        return false;
    for (int32_t i = r->first; i < end; i++) {
        struct kv_page *p = pages[i - base];
        kv_page_share(p, n - i * KV_PAGE < KV_PAGE ? n - i * KV_PAGE : KV_PAGE);
        r->pages[r->n++] = p;
    }
    return true;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static struct kv_prefix *prefix_new(int32_t from, int32_t n)
{
    struct kv_prefix *p = calloc(1, sizeof *p);
    if (p) {
        p->from = from;
        p->end = n;
    }
    return p;
}

static enum qn_status no_memory(struct exec *ex, struct kv_prefix *p, struct qn_err *err)
{
    kv_prefix_free(ex, p);
    QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for a list of pages");
}

enum qn_status kv_prefix_create(struct exec *ex, struct kv_seq *s, int32_t from, int32_t n,
                                struct kv_prefix **out, struct qn_err *err)
{
    QN_ASSERT(from >= 0 && from <= n && n <= s->len && !s->pending);
    struct kv_prefix *p = prefix_new(from, n);
    bool ok = p != NULL;
    for (int32_t g = 0; ok && g < ex->kv.n_group; g++) {
        const struct kv_table *t = &s->tables[g];
        int32_t first = larger(from / KV_PAGE, kv_first_page(&ex->kv.groups[g], n));
        p->runs[g].first = larger(first, t->first);
        ok = run_fill(&p->runs[g], t->held, 0, kv_pages(n), n);
    }
    if (!ok)
        return no_memory(ex, p, err);
    if (n == s->len && n && s->own[s->now]) {
        p->state = s->own[s->now];
        p->state->refs++;
        p->has_state = true;
    }
    *out = p;
    return QN_OK;
}

enum qn_status kv_prefix_part(struct exec *ex, const struct kv_prefix *p, int32_t from, int32_t n,
                              struct kv_prefix **out, struct qn_err *err)
{
    QN_ASSERT(from >= p->from && from <= n && n <= p->end);
    struct kv_prefix *q = prefix_new(from, n);
    bool ok = q != NULL;
    for (int32_t g = 0; ok && g < ex->kv.n_group; g++) {
        const struct kv_run *r = &p->runs[g];
        int32_t end = r->first + r->n < kv_pages(n) ? r->first + r->n : kv_pages(n);
        q->runs[g].first = larger(from / KV_PAGE, r->first);
        ok = run_fill(&q->runs[g], r->pages, r->first, end, n);
    }
    if (!ok)
        return no_memory(ex, q, err);
    if (n == p->end && p->state) {
        q->state = p->state;
        q->state->refs++;
        q->has_state = true;
    }
    *out = q;
    return QN_OK;
}

int32_t kv_prefix_from(const struct kv_prefix *p)
{
    return p->from;
}

int32_t kv_prefix_end(const struct kv_prefix *p)
{
    return p->end;
}

int64_t kv_prefix_own_bytes(const struct exec *ex, const struct kv_prefix *p)
{
    int64_t bytes = p->state && p->state->refs == 1 ? (int64_t)ex->kv.state_bytes : 0;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        for (int32_t i = 0; i < p->runs[g].n; i++)
            if (p->runs[g].pages[i]->refs == 1)
                bytes += (int64_t)ex->kv.groups[g].page_bytes;
    return bytes;
}

/* ---- chains -----------------------------------------------------------------------------------
 */

/* The last run that has page i of a group, for a sequence of the chain's first n tokens; NULL when
 * no run has all of its tokens. */
static const struct kv_run *chain_run(const struct kv_chain *c, int32_t g, int32_t i, int32_t n)
{
    int32_t need = (i + 1) * KV_PAGE < n ? (i + 1) * KV_PAGE : n;
    for (int32_t k = c->n_part - 1; k >= 0; k--) {
        const struct kv_prefix *p = c->parts[k];
        const struct kv_run *r = &p->runs[g];
        if (i >= r->first && i < r->first + r->n)
            return p->end >= need ? r : NULL;
    }
    return NULL;
}

static struct kv_page *chain_page(const struct kv_chain *c, int32_t g, int32_t i, int32_t n)
{
    const struct kv_run *r = chain_run(c, g, i, n);
    return r ? r->pages[i - r->first] : NULL;
}

/* The state after the chain's first n tokens; NULL = not there. */
static struct kv_state *chain_state(const struct kv_chain *c, int32_t n)
{
    for (int32_t k = c->n_part - 1; k >= 0; k--)
        if (c->parts[k]->end == n && c->parts[k]->state)
            return c->parts[k]->state;
    return NULL;
}

/* The first page of a group that token n sees. */
static int32_t needed_from(const struct kv_group *g, int32_t n)
{
    int32_t oldest = n - g->window + 1;
    return g->window && oldest > 0 ? oldest / KV_PAGE : 0;
}

/* n, or where the newest page that is missing for n begins: nothing between can be used. */
static int32_t pages_usable(const struct exec *ex, const struct kv_chain *c, int32_t n)
{
    int32_t usable = n;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        for (int32_t i = kv_pages(n) - 1; i >= needed_from(&ex->kv.groups[g], n); i--)
            if (!chain_run(c, g, i, n)) {
                usable = i * KV_PAGE < usable ? i * KV_PAGE : usable;
                break;
            }
    return usable;
}

/* n, or the next smaller length for which there is a state. */
static int32_t state_usable(const struct exec *ex, const struct kv_chain *c, int32_t n)
{
    int32_t usable = 0;
    if (!ex->kv.state_bytes)
        return n;
    for (int32_t k = 0; k < c->n_part; k++)
        if (c->parts[k]->end <= n && c->parts[k]->end > usable && c->parts[k]->has_state)
            usable = c->parts[k]->end;
    return usable;
}

int32_t kv_chain_usable(const struct exec *ex, const struct kv_chain *c, int32_t n)
{
    int32_t end = c->n_part ? c->parts[c->n_part - 1]->end : 0;
    QN_ASSERT(n >= 0 && (!c->n_part || c->parts[0]->from == 0));
    n = n < end ? n : end;
    for (;;) {
        int32_t m = pages_usable(ex, c, state_usable(ex, c, n));
        if (m == n)
            return n;
        n = m;
    }
}

void kv_seq_become(struct exec *ex, struct kv_seq *s, const struct kv_chain *c, int32_t n)
{
    QN_ASSERT(!s->pending && kv_chain_usable(ex, c, n) == n);
    pool_quiesce(ex->pool);
    kv_seq_clear(ex, s);
    for (int32_t g = 0; g < ex->kv.n_group; g++) {
        struct kv_table *t = &s->tables[g];
        int32_t end = kv_pages(n), first = end, least = kv_first_page(&ex->kv.groups[g], n);
        while (first > least && chain_page(c, g, first - 1, n))
            first--;
        t->first = first;
        t->n = end;
        for (int32_t i = first; i < end; i++) {
            struct kv_page *p = chain_page(c, g, i, n);
            kv_page_share(p, n - i * KV_PAGE < KV_PAGE ? n - i * KV_PAGE : KV_PAGE);
            kv_table_put(t, i, p);
        }
    }
    if (n && ex->kv.state_bytes)
        kv_seq_set_state(ex, s, chain_state(c, n));
    s->len = n;
}

enum qn_status kv_seq_from(struct exec *ex, const struct kv_chain *c, int32_t n,
                           struct kv_seq **out, struct qn_err *err)
{
    QN_TRY(kv_seq_create(ex, out, err));
    kv_seq_become(ex, *out, c, n);
    return QN_OK;
}

enum qn_status kv_seq_fork(struct exec *ex, struct kv_seq *src, int32_t n, struct kv_seq **out,
                           struct qn_err *err)
{
    struct kv_prefix *p;
    QN_ASSERT(kv_seq_can_truncate(ex, src, n));
    QN_TRY(kv_prefix_create(ex, src, 0, n, &p, err));
    const struct kv_prefix *part = p;
    enum qn_status st = kv_seq_from(ex, &(struct kv_chain){&part, 1}, n, out, err);
    kv_prefix_free(ex, p);
    return st;
}
