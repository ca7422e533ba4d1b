/*
 * test_cache_pages.c - the tree over real KV pages against an oracle: random sequences over lines
 * that share beginnings step, are kept, freed and taken from the cache again, under a limit. What a
 * slot holds must be the hash of the tokens before it, whichever way it came there; what the tree
 * must know is a list of kept lines, from which the tier's hook takes what goes; all pages and
 * states are counted again from who holds them. With nothing forgotten, with windows, and with a
 * recurrent state. QUERN_CACHE_OPS sets the number of operations (100000 in a long run).
 */
#include <string.h>

#include "../check.h"
#include "base/hash.h"
#include "cache/ptree.h"
#include "exec/exec_int.h"

enum { SEQS = 5, ENTRIES = 500, N_CTX = 700, ROWS = 96, HOLDERS = 40000 };
enum { W1 = 20, W2 = 150 };

static const struct kind {
    const char *name;
    struct kv_layer layers[4];
    int n;
    bool window, state;
} kinds[] = {
    {"full", {{.n_head = 1, .dk = 16, .dv = 16}}, 1, false, false},
    {"windows",
     {{.n_head = 1, .dk = 16, .dv = 16},
      {.n_head = 2, .dk = 16, .dv = 16, .window = W1},
      {.n_head = 1, .dk = 32, .dv = 16, .window = W2}},
     3,
     true,
     false},
    {"windows and a state",
     {{.n_head = 1, .dk = 16, .dv = 16},
      {.n_head = 1, .dk = 32, .dv = 16, .window = W2},
      {.delta = {.n_k = 1, .n_v = 1, .dk = 16, .dv = 16, .taps = 2}}},
     3,
     true,
     true},
    {"state",
     {{.n_head = 1, .dk = 16, .dv = 16},
      {.delta = {.n_k = 1, .n_v = 1, .dk = 16, .dv = 16, .taps = 2}}},
     2,
     false,
     true},
};

struct live {
    struct kv_seq *s;
    int32_t n, ids[N_CTX];
};
struct entry {
    int32_t n, ids[N_CTX];
    bool end;
};
struct world {
    const struct kind *k;
    struct exec *ex;
    struct ptree *t;
    struct live live[SEQS];
    struct entry e[ENTRIES];
    int n_entry;
    int64_t n_reused, n_branch, n_evict;
};

static uint64_t seed;

static int32_t rnd(int32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((seed >> 33) % (uint64_t)n);
}

/* ---- the tree's parts, as pcache.c has them -------------------------------------------------- */

static enum qn_status make(void *ex, void *src, int32_t from, int32_t n, void **out,
                           struct qn_err *err)
{
    struct kv_prefix *p;
    QN_TRY(kv_prefix_create(ex, src, from, n, &p, err));
    kv_prefix_cached(ex, p);
    *out = p;
    return QN_OK;
}

static enum qn_status cut(void *ex, const void *of, int32_t from, int32_t n, void **out,
                          struct qn_err *err)
{
    struct kv_prefix *p;
    QN_TRY(kv_prefix_part(ex, of, from, n, &p, err));
    kv_prefix_cached(ex, p);
    *out = p;
    return QN_OK;
}

static void drop(void *ex, void *p)
{
    kv_prefix_free(ex, p);
}

static bool anywhere(void *ex)
{
    return kv_end_bytes(ex) == 0;
}

static bool complete(void *ex, const void *p)
{
    return kv_prefix_complete(ex, p);
}

static void thin(void *ex, void *p)
{
    kv_prefix_thin(ex, p);
}

static int32_t usable(void *ex, const void *const *parts, int32_t n_part, int32_t n)
{
    struct kv_chain c = {(const struct kv_prefix *const *)parts, n_part};
    return kv_chain_usable(ex, &c, n);
}

static int64_t idle_all(void *ex)
{
    return kv_bytes_idle(ex);
}

static int64_t idle(void *ex, const void *p)
{
    return kv_prefix_idle(ex, p);
}

static int64_t idle_end(void *ex, const void *p)
{
    return kv_prefix_idle_end(ex, p);
}

static bool in_use(void *ex, const void *p)
{
    return kv_prefix_in_use(ex, p);
}

static const struct ptree_ops ops = {
    make, cut, drop, anywhere, complete, thin, usable, idle_all, idle, idle_end, in_use,
};

/* ---- what slots hold ------------------------------------------------------------------------- */

static int32_t tag_of(const int32_t *ids, int32_t t)
{
    return (int32_t)hash64(ids, (size_t)(t + 1) * sizeof *ids, 5);
}

static float state_of(const int32_t *ids, int32_t n)
{
    return n ? (float)(tag_of(ids, n - 1) & 0xffff) + 1 : 0;
}

static uint8_t *slot(const struct world *w, const struct kv_seq *s, int layer, int32_t pos)
{
    const struct kv_layer *l = &w->k->layers[layer];
    size_t token = (size_t)l->n_head * (size_t)(l->dk + l->dv) * 2;
    return kv_at_token(w->ex, s, layer, pos) + (size_t)(pos % KV_PAGE) * token;
}

/* Everything that a token at position n would see. */
static void check_live(const struct world *w, const struct live *l)
{
    assert_int_equal(kv_seq_len(l->s), l->n);
    for (int i = 0; i < w->k->n; i++) {
        int32_t window = w->k->layers[i].window,
                t = window && l->n >= window ? l->n - window + 1 : 0;
        for (; w->k->layers[i].n_head && t < l->n; t += 1 + t % 3) {
            int32_t got, want = tag_of(l->ids, t);
            memcpy(&got, slot(w, l->s, i, t), sizeof got);
            if (got != want)
                fail_msg("%s: layer %d, token %d of %d: %x, not %x", w->k->name, i, t, l->n, got,
                         want);
        }
    }
    if (w->k->state && l->s->state[l->s->now][0] != state_of(l->ids, l->n))
        fail_msg("%s: state after %d tokens", w->k->name, l->n);
}

/* ---- the oracle ------------------------------------------------------------------------------ */

static int32_t common(const int32_t *a, int32_t na, const int32_t *b, int32_t nb)
{
    int32_t i = 0;
    while (i < na && i < nb && a[i] == b[i])
        i++;
    return i;
}

static void oracle_evict(void *self, struct ptree_node *node, bool only_end)
{
    struct world *w = self;
    int32_t ids[N_CTX], from = ptree_node_from(node), end = ptree_node_end(node);
    ptree_node_line(node, ids);
    for (int i = 0; i < w->n_entry; i++) {
        struct entry *e = &w->e[i];
        int32_t n = common(e->ids, e->n, ids, end);
        if (only_end && n == end && e->n == end)
            e->end = false;
        if (only_end || n <= from)
            continue;
        assert_int_equal(n, e->n);
        e->n = from;
        e->end = false;
    }
    w->n_evict++;
}

static bool covers(const struct entry *b, const struct entry *a)
{
    return b->n >= a->n && common(a->ids, a->n, b->ids, b->n) == a->n &&
           (!a->end || (b->end && b->n == a->n));
}

static struct entry *oracle_place(struct world *w)
{
    for (int i = 0; i < w->n_entry; i++)
        for (int k = 0; k < w->n_entry; k++)
            if (!w->e[i].n || (i != k && covers(&w->e[k], &w->e[i])))
                return &w->e[i];
    assert_true(w->n_entry < ENTRIES);
    return &w->e[w->n_entry++];
}

static void oracle_keep(struct world *w, const struct live *l)
{
    struct entry *e = oracle_place(w);
    e->n = l->n;
    e->end = w->k->state || w->k->window;
    memcpy(e->ids, l->ids, (size_t)l->n * sizeof *l->ids);
}

/* What a lookup for at most `most` tokens may say: with windows it can happen to be more than the
 * least. */
static void oracle_find(const struct world *w, const int32_t *ids, int32_t n, int32_t most,
                        int32_t *least, int32_t *match)
{
    *match = *least = 0;
    for (int i = 0; i < w->n_entry; i++) {
        const struct entry *e = &w->e[i];
        int32_t m = common(e->ids, e->n, ids, n);
        if (e->end && m == e->n && m <= most && m > *least)
            *least = m;
        m = m < most ? m : most;
        *match = m > *match ? m : *match;
    }
    if (!w->k->state && !w->k->window)
        *least = *match;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* Appends tokens of `more` to some sequences in one step. */
static void do_step(struct world *w)
{
    static const int32_t zero[ROWS];
    struct exec_span spans[SEQS];
    struct live *who[SEQS];
    struct qn_err err;
    int32_t n = 0, left = ROWS;
    for (int i = 0; i < SEQS; i++) {
        struct live *l = &w->live[i];
        int32_t k = rnd(3) ? 1 + rnd(rnd(2) ? 4 : 60) : 0;
        k = k < left ? k : left;
        k = k < N_CTX - l->n ? k : N_CTX - l->n;
        if (!l->s || k < 1)
            continue;
        for (int32_t j = 0; j < k; j++)
            l->ids[l->n + j] = rnd(3) ? 1 : rnd(3);
        spans[n] = (struct exec_span){l->s, zero, k, 0};
        who[n++] = l;
        left -= k;
    }
    if (!n)
        return;
    CHECK_OK(exec_begin(w->ex, spans, n, &err), err);
    for (int i = 0; i < n; i++) {
        struct live *l = who[i];
        for (int32_t t = l->n; t < l->n + spans[i].n; t++) {
            int32_t tag = tag_of(l->ids, t);
            for (int k = 0; k < w->k->n; k++)
                if (w->k->layers[k].n_head)
                    memcpy(slot(w, l->s, k, t), &tag, sizeof tag);
        }
        if (w->k->state)
            l->s->state[1 - l->s->now][0] = state_of(l->ids, l->n + spans[i].n);
    }
    exec_commit(w->ex);
    for (int i = 0; i < n; i++)
        who[i]->n += spans[i].n;
}

/* A line that begins like one that was kept, mostly. */
static int32_t make_line(const struct world *w, int32_t *ids)
{
    int32_t n = 0;
    if (w->n_entry && rnd(8)) {
        const struct entry *e = &w->e[rnd(w->n_entry)];
        n = rnd(3) ? e->n : rnd(e->n + 1);
        memcpy(ids, e->ids, (size_t)n * sizeof *ids);
    }
    for (int32_t more = rnd(3) ? rnd(20) : rnd(200); n < N_CTX && more > 0; more--)
        ids[n++] = rnd(3) ? 1 : rnd(3);
    return n;
}

static void do_find(struct world *w)
{
    struct live *l = &w->live[rnd(SEQS)];
    int32_t ids[N_CTX], least, match;
    struct ptree_found f;
    struct qn_err err;
    kv_seq_free(w->ex, l->s);
    l->s = NULL;
    int32_t n = make_line(w, ids), most = n && rnd(2) ? n - 1 : n;
    oracle_find(w, ids, n, most, &least, &match);
    ptree_find(w->t, &(struct ptree_line){NULL, ids, n}, most, &f);
    assert_int_equal(f.n_match, match);
    assert_in_range(f.n_usable, least, w->k->state ? least : match);
    struct kv_chain c = {(const struct kv_prefix *const *)f.parts, f.n_part};
    if (f.n_usable)
        CHECK_OK(kv_seq_from(w->ex, &c, f.n_usable, &l->s, &err), err);
    else
        CHECK_OK(kv_seq_create(w->ex, &l->s, &err), err);
    l->n = f.n_usable;
    memcpy(l->ids, ids, (size_t)n * sizeof *ids);
    check_live(w, l);
    w->n_reused += l->n > 0;
    w->n_branch += l->n > 0 && match < n;
}

static void do_keep(struct world *w)
{
    struct live *l = &w->live[rnd(SEQS)];
    struct qn_err err;
    if (!l->s || !l->n)
        return;
    oracle_keep(w, l);
    CHECK_OK(ptree_keep(w->t, &(struct ptree_line){NULL, l->ids, l->n}, l->s, &err), err);
}

static void do_free(struct world *w)
{
    struct live *l = &w->live[rnd(SEQS)];
    kv_seq_free(w->ex, l->s);
    l->s = NULL;
    l->n = 0;
}

/* ---- counting again -------------------------------------------------------------------------- */

struct census {
    struct world *w;
    struct {
        const void *p;
        int32_t refs, cached, held, held_cached;
        int64_t bytes;
    } at[HOLDERS];
};

static void hold(struct census *c, const void *p, int32_t refs, int32_t cached, bool by_tree,
                 size_t bytes)
{
    uint32_t i = (uint32_t)((uintptr_t)p >> 4) % HOLDERS;
    while (c->at[i].p && c->at[i].p != p)
        i = (i + 1) % HOLDERS;
    if (!c->at[i].p) {
        c->at[i].p = p;
        c->at[i].refs = refs;
        c->at[i].cached = cached;
        c->at[i].bytes = (int64_t)bytes;
    }
    c->at[i].held++;
    c->at[i].held_cached += by_tree;
}

static void hold_node(void *arg, struct ptree_node *node)
{
    struct census *c = arg;
    struct kv_store *kv = &c->w->ex->kv;
    const struct kv_prefix *p = ptree_node_part(node);
    assert_int_equal(p->from, ptree_node_from(node));
    assert_int_equal(p->end, ptree_node_end(node));
    assert_int_equal(ptree_node_good(node), kv_prefix_complete(c->w->ex, p));
    for (int32_t g = 0; g < kv->n_group; g++)
        for (int32_t i = 0; i < p->runs[g].n; i++)
            hold(c, p->runs[g].pages[i], p->runs[g].pages[i]->refs, p->runs[g].pages[i]->cached,
                 true, kv->groups[g].page_bytes);
    if (p->state)
        hold(c, p->state, p->state->refs, p->state->cached, true, kv->state_bytes);
}

static void check_accounts(struct world *w)
{
    static struct census c;
    const struct kv_store *kv = &w->ex->kv;
    int64_t used = 0, only_tree = 0;
    memset(&c, 0, sizeof c);
    c.w = w;
    ptree_each(w->t, hold_node, &c);
    for (int i = 0; i < SEQS; i++) {
        const struct kv_seq *s = w->live[i].s;
        for (int32_t g = 0; s && g < kv->n_group; g++)
            for (int32_t k = s->tables[g].first; k < s->tables[g].n; k++)
                hold(&c, s->tables[g].held[k], s->tables[g].held[k]->refs,
                     s->tables[g].held[k]->cached, false, kv->groups[g].page_bytes);
        for (int k = 0; s && k < 2; k++)
            if (s->own[k] && s->own[k] != kv->zero_state)
                hold(&c, s->own[k], s->own[k]->refs, s->own[k]->cached, false, kv->state_bytes);
    }
    for (int32_t i = 0; i < HOLDERS; i++) {
        if (!c.at[i].p)
            continue;
        assert_int_equal(c.at[i].refs, c.at[i].held);
        assert_int_equal(c.at[i].cached, c.at[i].held_cached);
        used += c.at[i].bytes;
        only_tree += c.at[i].held == c.at[i].held_cached ? c.at[i].bytes : 0;
    }
    assert_int_equal(kv_bytes_used(w->ex), used);
    assert_int_equal(kv_bytes_idle(w->ex), only_tree);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static int64_t n_operations(void)
{
    const char *v = getenv("QUERN_CACHE_OPS");
    return v ? atoll(v) : 3000;
}

static void operation(struct world *w, int64_t limit)
{
    int what = rnd(16);
    if (what < 6)
        do_step(w);
    else if (what < 9)
        do_find(w);
    else if (what < 14)
        do_keep(w);
    else if (what == 14)
        do_free(w);
    else if (rnd(12) == 0)
        ptree_trim(w->t, limit / 2);
}

static void run_kind(const struct kind *k)
{
    struct world *w = calloc(1, sizeof *w);
    struct exec_params p = {.n_thread = 1, .max_rows = ROWS, .n_ctx = N_CTX};
    struct qn_err err;
    seed = 3;
    w->k = k;
    CHECK_OK(exec_create(&p, &w->ex, &err), err);
    CHECK_OK(kv_setup(w->ex, k->layers, k->n, &err), err);
    int64_t limit = kv_seq_bytes(w->ex, N_CTX) * 4;
    CHECK_OK(ptree_create(&ops, w->ex, limit, &w->t, &err), err);
    ptree_set_tier(w->t, &(struct ptree_tier){.self = w, .evict = oracle_evict});
    for (int64_t i = 0; i < n_operations(); i++) {
        operation(w, limit);
        ptree_settle(w->t);
        assert_true(kv_bytes_idle(w->ex) <= limit);
        if (i % 8 == 0) {
            check_accounts(w);
            const struct live *l = &w->live[rnd(SEQS)];
            if (l->s)
                check_live(w, l);
        }
    }
    assert_true(w->n_reused > 100 && w->n_branch > 50 && w->n_evict > 20);
    for (int i = 0; i < SEQS; i++)
        kv_seq_free(w->ex, w->live[i].s);
    ptree_trim(w->t, 0);
    assert_int_equal(kv_bytes_idle(w->ex), 0);
    ptree_free(w->t);
    assert_int_equal(kv_bytes_used(w->ex), 0);
    exec_free(w->ex);
    free(w);
}

static void test_full(void **state)
{
    run_kind(&kinds[0]);
}

static void test_windows(void **state)
{
    run_kind(&kinds[1]);
}

static void test_windows_and_state(void **state)
{
    run_kind(&kinds[2]);
}

static void test_state(void **state)
{
    run_kind(&kinds[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_windows_and_state),
        cmocka_unit_test(test_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
