/*
 * kv_seq.c - a sequence's KV memory: a page table for each group and two copies of the recurrent
 * state, growing, forgetting and cutting.
 *
 * Pages [first, n) of a table are held. Between steps n covers the sequence's tokens, and `first`
 * is the page of the oldest token that a window, KV_ROLLBACK tokens back, still sees. The page that
 * the next token goes into is appended to in place when nobody else relies on what lies behind the
 * sequence's end, else copied first (kv_seq_grow).
 *
 * A step may not change what it reads: it reads state[now] and writes the other, and commit turns
 * them round (undo.c goes back to what it read). Either may be shared; a shared one is never
 * written but replaced.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"

/* ---- tables -----------------------------------------------------------------------------------
 */

void kv_table_put(struct kv_table *t, int32_t i, struct kv_page *p)
{
    QN_ASSERT(!t->held[i]);
    t->held[i] = p;
    t->pages[i] = p->data;
}

static void table_drop(struct exec *ex, struct kv_seq *s, int32_t g, int32_t i)
{
    struct kv_table *t = &s->tables[g];
    struct kv_page *p = t->held[i];
    t->held[i] = NULL;
    t->pages[i] = ex->kv.groups[g].zero_page;
    if (p->writer == s)
        p->writer = NULL;
    kv_page_give(ex, g, p);
}

/* Pages [n, ...) go back. */
static void drop_back(struct exec *ex, struct kv_seq *s, int32_t g, int32_t n)
{
    struct kv_table *t = &s->tables[g];
    while (t->n > n && t->n > t->first)
        table_drop(ex, s, g, --t->n);
    if (t->n > n) /* nothing is left: an empty table begins anew */
        t->n = n;
    if (t->first > t->n)
        t->first = t->n;
}

static void drop_front(struct exec *ex, struct kv_seq *s, int32_t g, int32_t first)
{
    struct kv_table *t = &s->tables[g];
    while (t->first < first && t->first < t->n)
        table_drop(ex, s, g, t->first++);
}

void kv_seq_set_state(struct exec *ex, struct kv_seq *s, struct kv_state *st)
{
    struct kv_state *was = s->own[s->now];
    kv_state_share(ex, st);
    s->own[s->now] = st;
    s->state[s->now] = st->data;
    kv_state_give(ex, was);
}

/* ---- life -------------------------------------------------------------------------------------
 */

static bool table_create(const struct exec *ex, int32_t g, struct kv_table *t)
{
    const struct kv_store *kv = &ex->kv;
    t->pages = malloc((size_t)kv->n_page_slots * sizeof *t->pages);
    t->held = calloc((size_t)kv->n_page_max, sizeof *t->held);
    if (!t->pages || !t->held)
        return false;
    for (int32_t i = 0; i < kv->n_page_slots; i++)
        t->pages[i] = kv->groups[g].zero_page;
    return true;
}

enum qn_status kv_seq_create(struct exec *ex, struct kv_seq **out, struct qn_err *err)
{
    struct kv_seq *s = calloc(1, sizeof *s);
    bool ok = s != NULL;
    for (int32_t g = 0; ok && g < ex->kv.n_group; g++)
        ok = table_create(ex, g, &s->tables[g]);
    if (!ok) {
        kv_seq_free(ex, s);
        QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for a sequence's page tables");
    }
    if (ex->kv.zero_state)
        kv_seq_set_state(ex, s, ex->kv.zero_state);
    *out = s;
    return QN_OK;
}

void kv_seq_clear(struct exec *ex, struct kv_seq *s)
{
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        drop_back(ex, s, g, 0);
    if (s->own[s->now] && s->own[s->now] != ex->kv.zero_state)
        kv_seq_set_state(ex, s, ex->kv.zero_state);
    s->len = s->pending = s->undo_n = 0;
}

void kv_seq_free(struct exec *ex, struct kv_seq *s)
{
    if (!s)
        return;
    pool_quiesce(ex->pool);
    for (int32_t g = 0; g < ex->kv.n_group; g++) {
        if (s->tables[g].pages && s->tables[g].held)
            drop_back(ex, s, g, 0);
        free(s->tables[g].pages);
        free(s->tables[g].held);
    }
    for (int i = 0; i < 2; i++)
        kv_state_give(ex, s->own[i]);
    free(s);
}

int32_t kv_seq_len(const struct kv_seq *s)
{
    return s->len;
}

int64_t kv_seq_bytes_held(const struct exec *ex, const struct kv_seq *s)
{
    const struct kv_store *kv = &ex->kv;
    int64_t bytes = 0;
    for (int32_t g = 0; g < kv->n_group; g++)
        bytes += (int64_t)(s->tables[g].n - s->tables[g].first) * (int64_t)kv->groups[g].page_bytes;
    for (int i = 0; i < 2; i++)
        if (s->own[i] && s->own[i] != kv->zero_state)
            bytes += (int64_t)kv->state_bytes;
    return bytes;
}

/* ---- cutting ----------------------------------------------------------------------------------
 */

bool kv_seq_can_truncate(const struct exec *ex, const struct kv_seq *s, int32_t n)
{
    if (n == s->len || n == 0)
        return true;
    if (n < 0 || n > s->len || (ex->kv.state_bytes && !undo_can(ex, s, n)))
        return false;
    for (int32_t g = 0; g < ex->kv.n_group; g++) {
        int32_t first = s->tables[g].first, oldest = n - ex->kv.groups[g].window + 1;
        if (first && oldest < first * KV_PAGE)
            return false;
    }
    return true;
}

void kv_seq_truncate(struct exec *ex, struct kv_seq *s, int32_t n)
{
    QN_ASSERT(n >= 0 && n <= s->len && kv_seq_can_truncate(ex, s, n));
    pool_quiesce(ex->pool);
    if (n == 0) {
        kv_seq_clear(ex, s);
        return;
    }
    if (ex->kv.state_bytes && n != s->len)
        undo_to(ex, s, n);
    s->len = n;
    s->pending = 0;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        drop_back(ex, s, g, kv_pages(n));
}

/* ---- growing ----------------------------------------------------------------------------------
 */

/* Whether the sequence's next token may not go into the page where it ends. A page that nobody else
 * holds is the sequence's own from here on. */
static bool must_copy(struct kv_seq *s, int32_t g)
{
    int32_t slot = s->len % KV_PAGE;
    if (!slot)
        return false;
    struct kv_page *p = s->tables[g].held[s->len / KV_PAGE];
    if (p->refs == 1) {
        p->writer = s;
        p->claimed = 0;
    }
    return p->writer != s || p->claimed > slot;
}

static bool state_missing(const struct exec *ex, const struct kv_seq *s)
{
    const struct kv_state *next = s->own[1 - s->now];
    return ex->kv.state_bytes && (!next || next->refs > 1);
}

/* Fails when growing to `want` pages would go past the budget. */
static enum qn_status check_budget(const struct exec *ex, struct kv_seq *s, int32_t want,
                                   struct qn_err *err)
{
    const struct kv_store *kv = &ex->kv;
    int64_t need = state_missing(ex, s) ? (int64_t)kv->state_bytes : 0;
    for (int32_t g = 0; g < kv->n_group; g++) {
        int32_t more = want > s->tables[g].n ? want - s->tables[g].n : 0;
        need += (int64_t)(more + must_copy(s, g)) * (int64_t)kv->groups[g].page_bytes;
    }
    if (!kv->budget_bytes || need <= kv->budget_bytes - kv->used_bytes)
        return QN_OK;
    int64_t alone = kv_seq_bytes_held(ex, s) + need;
    if (alone > kv->budget_bytes)
        QN_FAIL(err, QN_NO_MEMORY, "kv",
                "%d tokens take %lld bytes of KV memory; the budget is %lld: raise it or shorten "
                "the context",
                s->len, (long long)alone, (long long)kv->budget_bytes);
    QN_FAIL(err, QN_BUSY, "kv",
            "%lld more bytes of KV memory; %lld of the budget of %lld are in use", (long long)need,
            (long long)kv->used_bytes, (long long)kv->budget_bytes);
}

static bool grow_table(struct exec *ex, struct kv_seq *s, int32_t g, int32_t want)
{
    struct kv_table *t = &s->tables[g];
    while (t->n < want) {
        struct kv_page *p = kv_page_take(ex, g);
        if (!p)
            return false;
        p->writer = s;
        kv_table_put(t, t->n++, p);
    }
    return true;
}

/* The page where the sequence ends becomes its own. */
static bool copy_last(struct exec *ex, struct kv_seq *s, int32_t g)
{
    int32_t i = s->len / KV_PAGE;
    struct kv_page *p = kv_page_take(ex, g);
    if (!p)
        return false;
    memcpy(p->data, s->tables[g].held[i]->data, ex->kv.groups[g].page_bytes);
    p->writer = s;
    table_drop(ex, s, g, i);
    kv_table_put(&s->tables[g], i, p);
    return true;
}

static bool next_state(struct exec *ex, struct kv_seq *s)
{
    int next = 1 - s->now;
    if (!state_missing(ex, s))
        return true;
    struct kv_state *st = kv_state_take(ex);
    if (!st)
        return false;
    kv_state_give(ex, s->own[next]);
    s->own[next] = st;
    s->state[next] = st->data;
    return true;
}

enum qn_status kv_seq_grow(struct exec *ex, struct kv_seq *s, int32_t n, struct qn_err *err)
{
    if (n > ex->n_ctx - s->len)
        QN_FAIL(err, QN_BAD_INPUT, "kv",
                "context full: %d tokens held and %d more; one sequence holds %d", s->len, n,
                ex->n_ctx);
    int32_t want = kv_pages(s->len + n);
    QN_TRY(check_budget(ex, s, want, err));
    bool ok = next_state(ex, s);
    for (int32_t g = 0; ok && g < ex->kv.n_group; g++)
        ok = (!must_copy(s, g) || copy_last(ex, s, g)) && grow_table(ex, s, g, want);
    if (!ok) {
        kv_seq_cancel(ex, s);
        QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for KV pages of %d more tokens", n);
    }
    s->pending = n;
    return QN_OK;
}

void kv_seq_cancel(struct exec *ex, struct kv_seq *s)
{
    s->pending = 0;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        drop_back(ex, s, g, kv_pages(s->len));
}

/* What no later token sees goes back at once. A late worker may still read it: that is harmless
 * until the memory is unmapped, and kv_page_give does that behind a quiesce. */
void kv_seq_commit(struct exec *ex, struct kv_seq *s)
{
    s->len += s->pending;
    s->pending = 0;
    if (ex->kv.state_bytes)
        s->now = 1 - s->now;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        drop_front(ex, s, g, kv_first_page(&ex->kv.groups[g], s->len));
}
