/*
 * kv_prefix.c - memory that outlives a sequence: runs of pages of every group and perhaps a
 * recurrent state, and sequences made of such runs.
 *
 * A page may be in several runs: the page where one run ends inside is also the first page of the
 * run that goes on from there, and only the later run vouches for what lies behind.
 */
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "exec/exec_int.h"

static void run_drop(struct exec *ex, struct kv_prefix *p, int32_t g)
{
    struct kv_run *r = &p->runs[g];
    for (int32_t i = 0; r->pages && i < r->n; i++) {
        if (p->cached)
            kv_page_cache(ex, g, r->pages[i], -1);
        kv_page_give(ex, g, r->pages[i]);
    }
    free(r->pages);
    *r = (struct kv_run){.first = r->first};
}

static void state_drop(struct exec *ex, struct kv_prefix *p)
{
    if (p->state && p->cached)
        kv_state_cache(ex, p->state, -1);
    kv_state_give(ex, p->state);
    p->state = NULL;
    p->has_state = false;
}

void kv_prefix_free(struct exec *ex, struct kv_prefix *p)
{
    if (!p)
        return;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        run_drop(ex, p, g);
    state_drop(ex, p);
    free(p);
}

/* Pages [first, end) of `pages`, whose element 0 is page `base`; a sequence that ends with the
 * prefix relies on them. */
static bool run_fill(struct exec *ex, struct kv_prefix *x, int32_t g, struct kv_page *const *pages,
                     int32_t base, int32_t end)
{
    struct kv_run *r = &x->runs[g];
    if (end <= r->first)
        return true;
    r->pages = fault_point("kv.alloc") ? NULL : malloc((size_t)(end - r->first) * sizeof *r->pages);
    if (!r->pages)
        return false;
    for (int32_t i = r->first; i < end; i++) {
        struct kv_page *p = pages[i - base];
        int32_t slots = x->end - i * KV_PAGE;
        kv_page_share(ex, g, p, slots < KV_PAGE ? slots : KV_PAGE);
        r->pages[r->n++] = p;
    }
    return true;
}

/* The first page that a prefix [from, n) has of a group. */
static int32_t first_kept(const struct kv_group *g, int32_t from, int32_t n)
{
    return g->window ? kv_first_page(g, n) : from / KV_PAGE;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static struct kv_prefix *prefix_new(int32_t from, int32_t n)
{
    struct kv_prefix *p = fault_point("kv.alloc") ? NULL : calloc(1, sizeof *p);
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
        p->runs[g].first = larger(first_kept(&ex->kv.groups[g], from, n), t->first);
        ok = run_fill(ex, p, g, t->held, 0, kv_pages(n));
    }
    if (!ok)
        return no_memory(ex, p, err);
    if (n == s->len && n && s->own[s->now]) {
        p->state = s->own[s->now];
        kv_state_share(ex, p->state);
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
        q->runs[g].first = larger(first_kept(&ex->kv.groups[g], from, n), r->first);
        ok = run_fill(ex, q, g, r->pages, r->first, end);
    }
    if (!ok)
        return no_memory(ex, q, err);
    if (n == p->end && p->state) {
        q->state = p->state;
        kv_state_share(ex, q->state);
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

/* The first page of a group that token n sees. */
static int32_t needed_from(const struct kv_group *g, int32_t n)
{
    int32_t oldest = n - g->window + 1;
    return g->window && oldest > 0 ? oldest / KV_PAGE : 0;
}

/* ---- as a cache's -----------------------------------------------------------------------------
 */

void kv_prefix_cached(struct exec *ex, struct kv_prefix *p)
{
    QN_ASSERT(!p->cached);
    p->cached = true;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        for (int32_t i = 0; i < p->runs[g].n; i++)
            kv_page_cache(ex, g, p->runs[g].pages[i], 1);
    if (p->state)
        kv_state_cache(ex, p->state, 1);
}

bool kv_prefix_complete(const struct exec *ex, const struct kv_prefix *p)
{
    for (int32_t g = 0; g < ex->kv.n_group; g++) {
        const struct kv_run *r = &p->runs[g];
        if (ex->kv.groups[g].window && (r->first > needed_from(&ex->kv.groups[g], p->end) ||
                                        r->first + r->n < kv_pages(p->end)))
            return false;
    }
    return p->has_state || !ex->kv.state_bytes;
}

void kv_prefix_thin(struct exec *ex, struct kv_prefix *p)
{
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        if (ex->kv.groups[g].window)
            run_drop(ex, p, g);
    state_drop(ex, p);
}

/* Idle bytes of p in groups with a window or in all, and of its state. */
static int64_t idle_of(const struct exec *ex, const struct kv_prefix *p, bool windows_only)
{
    const struct kv_state *st = p->state;
    int64_t bytes =
        st && st->cached && st->refs == st->cached ? (int64_t)ex->kv.state_bytes / st->cached : 0;
    for (int32_t g = 0; g < ex->kv.n_group; g++) {
        const struct kv_run *r = &p->runs[g];
        for (int32_t i = 0; i < r->n && (!windows_only || ex->kv.groups[g].window); i++)
            if (r->pages[i]->cached && r->pages[i]->refs == r->pages[i]->cached)
                bytes += (int64_t)ex->kv.groups[g].page_bytes / r->pages[i]->cached;
    }
    return bytes;
}

int64_t kv_prefix_idle(const struct exec *ex, const struct kv_prefix *p)
{
    return idle_of(ex, p, false);
}

int64_t kv_prefix_idle_end(const struct exec *ex, const struct kv_prefix *p)
{
    return idle_of(ex, p, true);
}

bool kv_prefix_in_use(const struct exec *ex, const struct kv_prefix *p)
{
    if (p->state && p->state->refs > p->state->cached)
        return true;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        for (int32_t i = 0; i < p->runs[g].n; i++)
            if (p->runs[g].pages[i]->refs > p->runs[g].pages[i]->cached)
                return true;
    return false;
}

/* ---- chains -----------------------------------------------------------------------------------
 */

/* The last run that has page i of a group, which vouches for its tokens up to *end; NULL = none
 * has it. */
static const struct kv_run *chain_last(const struct kv_chain *c, int32_t g, int32_t i, int32_t *end)
{
    for (int32_t k = c->n_part - 1; k >= 0; k--) {
        const struct kv_prefix *p = c->parts[k];
        const struct kv_run *r = &p->runs[g];
        if (i >= r->first && i < r->first + r->n) {
            *end = p->end < (i + 1) * KV_PAGE ? p->end : (i + 1) * KV_PAGE;
            return r;
        }
    }
    return NULL;
}

/* Page i of a group for a sequence of the chain's first n tokens; NULL when no run has all of its
 * tokens. */
static struct kv_page *chain_page(const struct kv_chain *c, int32_t g, int32_t i, int32_t n)
{
    int32_t need = (i + 1) * KV_PAGE < n ? (i + 1) * KV_PAGE : n, end;
    const struct kv_run *r = chain_last(c, g, i, &end);
    return r && end >= need ? r->pages[i - r->first] : NULL;
}

/* The state after the chain's first n tokens; NULL = not there. */
static struct kv_state *chain_state(const struct kv_chain *c, int32_t n)
{
    for (int32_t k = c->n_part - 1; k >= 0; k--)
        if (c->parts[k]->end == n && c->parts[k]->state)
            return c->parts[k]->state;
    return NULL;
}

/* Up to which token page i of a group can serve sequences of at most n tokens. */
static int32_t page_reach(const struct kv_chain *c, int32_t g, int32_t i, int32_t n)
{
    int32_t need = (i + 1) * KV_PAGE < n ? (i + 1) * KV_PAGE : n, end;
    if (!chain_last(c, g, i, &end))
        return i * KV_PAGE;
    return end >= need ? n : end;
}

/* n, or how far the newest page reaches that is missing for n: nothing between can be used. */
static int32_t pages_usable(const struct exec *ex, const struct kv_chain *c, int32_t n)
{
    int32_t usable = n;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        for (int32_t i = kv_pages(n) - 1; i >= needed_from(&ex->kv.groups[g], n); i--) {
            int32_t reach = page_reach(c, g, i, n);
            if (reach < n) {
                usable = reach < usable ? reach : usable;
                break;
            }
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
            kv_page_share(ex, g, p, n - i * KV_PAGE < KV_PAGE ? n - i * KV_PAGE : KV_PAGE);
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
    QN_ASSERT(!ex->kv.state_bytes || n == 0 || n == src->len);
    QN_TRY(kv_prefix_create(ex, src, 0, n, &p, err));
    const struct kv_prefix *part = p;
    enum qn_status st = kv_seq_from(ex, &(struct kv_chain){&part, 1}, n, out, err);
    kv_prefix_free(ex, p);
    return st;
}

enum qn_status kv_chain_prefix(struct exec *ex, const struct kv_chain *c, int32_t from, int32_t n,
                               struct kv_prefix **out, struct qn_err *err)
{
    struct kv_seq *s;
    QN_TRY(kv_seq_from(ex, c, n, &s, err));
    enum qn_status st = kv_prefix_create(ex, s, from, n, out, err);
    kv_seq_free(ex, s);
    return st;
}
