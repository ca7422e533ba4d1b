/* pages_world.c - see pages_world.h. */
#include "pages_world.h"

#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "cache/kv_parts.h"
#include "cache/ptree_int.h"

enum { W1 = 20, W2 = 150, HOLDERS = 40000 };

#define STATE_LAYER                                                                                \
    {                                                                                              \
        .delta = {.n_k = 1, .n_v = 1, .dk = 16, .dv = 16, .taps = 2 }                              \
    }

const struct kind kinds[KINDS] = {
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
      STATE_LAYER},
     3,
     true,
     true},
    {"state", {{.n_head = 1, .dk = 16, .dv = 16}, STATE_LAYER}, 2, true, true},
    {"8 and 4 bits",
     {{.n_head = 1, .dk = 64, .dv = 64, .form = {.k_bits = 8, .v_bits = 4, .group = 64}},
      {.n_head = 2, .dk = 64, .dv = 64, .form = {.k_bits = 4, .v_bits = 4, .group = 64}}},
     2,
     false,
     false},
};

static const char *const spaces[SPACES] = {NULL, "other"};

/* ---- chance ---------------------------------------------------------------------------------- */

static uint64_t seed, n_drawn;

void rnd_seed(uint64_t salt)
{
    const char *v = getenv("QUERN_CACHE_SEED");
    seed = (v ? strtoull(v, NULL, 10) << 8 : 0) + salt;
    n_drawn = 0;
}

int32_t rnd(int32_t n)
{
    return (int32_t)(rng_u64(seed, 0, n_drawn++) % (uint64_t)n);
}

int64_t n_operations(int64_t usual)
{
    const char *v = getenv("QUERN_CACHE_OPS");
    return v ? atoll(v) : usual;
}

/* Ids behind the line's end, those from `known` on by chance; how many. */
static int32_t more_ids(struct line *l, int32_t known, int32_t more)
{
    int32_t n = l->n;
    for (; n < N_CTX && more > 0; n++, more--)
        if (n >= known)
            l->ids[n] = rnd(3) ? 1 : rnd(3);
    return n - l->n;
}

/* ---- what slots hold ------------------------------------------------------------------------- */

static int32_t tag_of(const struct line *l, int32_t t)
{
    return (int32_t)hash64(l->ids, (size_t)(t + 1) * sizeof *l->ids, 5 + (uint64_t)l->ns);
}

static float state_of(const struct line *l, int32_t n)
{
    return n ? (float)(tag_of(l, n - 1) & 0xffff) + 1 : 0;
}

/* Where a token's tag lies: of plain memory in the token's own bytes. Coded memory is not read as
 * such here: any place of a layer's page that tokens do not share will do. */
static uint8_t *slot(const struct world *w, const struct kv_seq *s, int layer, int32_t pos)
{
    const struct kv_layer *l = &w->k->layers[layer];
    size_t token = l->form.k_bits ? 4 : (size_t)l->n_head * (size_t)(l->dk + l->dv) * 2;
    return kv_at_token(w->ex, s, layer, pos) + (size_t)(pos % KV_PAGE) * token;
}

static void check_live(const struct world *w, const struct live *a)
{
    const struct line *l = &a->l;
    assert_int_equal(kv_seq_len(a->s), l->n);
    for (int i = 0; i < w->k->n; i++) {
        int32_t window = w->k->layers[i].window,
                t = window && l->n >= window ? l->n - window + 1 : 0;
        for (; w->k->layers[i].n_head && t < l->n; t += 1 + t % 3) {
            int32_t got, want = tag_of(l, t);
            memcpy(&got, slot(w, a->s, i, t), sizeof got);
            if (got != want)
                fail_msg("%s: layer %d, token %d of %d: %x, not %x", w->k->name, i, t, l->n, got,
                         want);
        }
    }
    if (w->k->state && a->s->state[a->s->now][0] != state_of(l, l->n))
        fail_msg("%s: state after %d tokens", w->k->name, l->n);
}

void world_look(const struct world *w)
{
    const struct live *a = &w->live[rnd(SEQS)];
    if (a->s)
        check_live(w, a);
}

/* ---- the oracle ------------------------------------------------------------------------------ */

static int32_t common(const struct line *a, const struct line *b)
{
    int32_t i = 0;
    while (a->ns == b->ns && i < a->n && i < b->n && a->ids[i] == b->ids[i])
        i++;
    return i;
}

/* Whether b says all that a says. */
static bool covers(const struct entry *b, const struct entry *a)
{
    return a->l.ns == b->l.ns && b->l.n >= a->l.n && common(&a->l, &b->l) == a->l.n &&
           (!a->end || (b->end && b->l.n == a->l.n));
}

/* An entry that is of no use any more, or a new one. */
static struct entry *place(struct known *k)
{
    for (int i = 0; i < k->n; i++)
        for (int j = 0; j < k->n; j++)
            if (!k->e[i].l.n || (i != j && covers(&k->e[j], &k->e[i])))
                return &k->e[i];
    assert_true(k->n < ENTRIES);
    return &k->e[k->n++];
}

void known_add(struct known *k, const struct line *l, bool end)
{
    struct entry *e = place(k);
    *e = (struct entry){.l = {.ns = l->ns, .n = l->n}, .end = end};
    memcpy(e->l.ids, l->ids, (size_t)l->n * sizeof *l->ids);
}

void known_find(const struct known *k, const struct kind *kind, const struct line *l, int32_t most,
                int32_t *least, int32_t *match)
{
    *match = *least = 0;
    for (int i = 0; i < k->n; i++) {
        const struct entry *e = &k->e[i];
        int32_t m = common(&e->l, l);
        if (e->end && m == e->l.n && m <= most && m > *least)
            *least = m;
        m = m < most ? m : most;
        *match = m > *match ? m : *match;
    }
    if (!kind->ends)
        *least = *match;
}

static void line_of(const struct ptree_node *node, struct line *l)
{
    l->ns = *ptree_node_ns(node) != 0;
    l->n = ptree_node_end(node);
    ptree_node_line(node, l->ids);
}

static void hear_evict(void *self, struct ptree_node *node, bool only_end)
{
    struct world *w = self;
    struct line l;
    int32_t from = ptree_node_from(node);
    line_of(node, &l);
    for (int i = 0; i < w->mem.n; i++) {
        struct entry *e = &w->mem.e[i];
        int32_t n = common(&e->l, &l);
        if (only_end && n == l.n && e->l.n == l.n)
            e->end = false;
        if (only_end || n <= from)
            continue;
        assert_int_equal(n, e->l.n); /* lines part at nodes, and nothing hangs on a leaf */
        e->l.n = from;
        e->end = false;
    }
    w->n_evict++;
    if (w->below.evict)
        w->below.evict(w->below.self, node, only_end);
}

static void hear_kept(void *self, struct ptree_node *node)
{
    struct world *w = self;
    struct line l;
    if (w->adopting) {
        line_of(node, &l);
        known_add(&w->mem, &l, w->k->ends && ptree_node_good(node));
    }
    if (w->below.kept)
        w->below.kept(w->below.self, node);
}

static bool hear_find(void *self, const struct ptree_line *line, int32_t n_usable)
{
    struct world *w = self;
    w->adopting = true;
    bool more = w->below.find && w->below.find(w->below.self, line, n_usable);
    w->adopting = false;
    return more;
}

void world_hook(struct world *w)
{
    w->below = w->t->tier;
    ptree_set_tier(w->t, &(struct ptree_tier){
                             .self = w, .kept = hear_kept, .evict = hear_evict, .find = hear_find});
}

/* ---- operations ------------------------------------------------------------------------------ */

static void live_end(struct world *w, struct live *a)
{
    kv_seq_free(w->ex, a->s);
    a->s = NULL;
    a->l.n = a->want = 0;
}

/* Spans of some tokens for some sequences, the tokens behind the lines' ends. */
static int32_t choose_spans(struct world *w, struct exec_span *spans, struct live **who)
{
    static const int32_t zero[ROWS];
    int32_t n = 0, left = ROWS;
    for (int i = 0; i < SEQS; i++) {
        struct live *a = &w->live[i];
        int32_t k = rnd(3) ? 1 + rnd(a->l.n < a->want ? ROWS : rnd(2) ? 4 : 60) : 0;
        k = a->s ? more_ids(&a->l, a->want, k < left ? k : left) : 0;
        if (k < 1)
            continue;
        spans[n] = (struct exec_span){a->s, zero, k, 0};
        who[n++] = a;
        left -= k;
    }
    return n;
}

static void write_slots(const struct world *w, struct live *a, int32_t n)
{
    for (int32_t t = a->l.n; t < a->l.n + n; t++) {
        int32_t tag = tag_of(&a->l, t);
        for (int k = 0; k < w->k->n; k++)
            if (w->k->layers[k].n_head)
                memcpy(slot(w, a->s, k, t), &tag, sizeof tag);
    }
    if (w->k->state)
        a->s->state[1 - a->s->now][0] = state_of(&a->l, a->l.n + n);
}

/* Beyond the budget what is only cached goes, then sequences; what was refused has changed none. */
static bool make_room(struct world *w, const struct qn_err *err)
{
    assert_true(w->ex->kv.budget_bytes && (err->code == QN_BUSY || err->code == QN_NO_MEMORY));
    for (int i = 0; i < SEQS; i++)
        if (w->live[i].s)
            check_live(w, &w->live[i]);
    if (kv_bytes_idle(w->ex))
        ptree_trim(w->t, rnd(2) ? 0 : kv_bytes_idle(w->ex) / 2);
    else
        live_end(w, &w->live[rnd(SEQS)]);
    w->n_busy++;
    return false;
}

static void do_step(struct world *w)
{
    struct exec_span spans[SEQS];
    struct live *who[SEQS];
    struct qn_err err = {0};
    int32_t n = choose_spans(w, spans, who);
    if (!n || (exec_begin(w->ex, spans, n, &err) != QN_OK && !make_room(w, &err)))
        return;
    for (int32_t i = 0; i < n; i++)
        write_slots(w, who[i], spans[i].n);
    exec_commit(w->ex);
    for (int32_t i = 0; i < n; i++)
        who[i]->l.n += spans[i].n;
}

void world_line(const struct known *k, struct line *l)
{
    l->n = 0;
    l->ns = rnd(4) == 0;
    if (k->n && rnd(8)) {
        const struct line *e = &k->e[rnd(k->n)].l;
        l->ns = rnd(12) ? e->ns : !e->ns; /* the same tokens of somebody else */
        l->n = rnd(3) ? e->n : rnd(e->n + 1);
        memcpy(l->ids, e->ids, (size_t)l->n * sizeof *l->ids);
    }
    l->n += more_ids(l, 0, rnd(3) ? rnd(20) : rnd(4) ? rnd(200) : rnd(N_CTX));
}

int32_t world_begin(struct world *w, const struct line *l, int32_t most)
{
    struct live *a = &w->live[rnd(SEQS)];
    struct ptree_found f;
    struct qn_err err;
    int32_t least, match;
    live_end(w, a);
    ptree_find(w->t, &(struct ptree_line){spaces[l->ns], l->ids, l->n}, most, &f);
    known_find(&w->mem, w->k, l, most, &least, &match);
    assert_int_equal(f.n_match, match);
    assert_in_range(f.n_usable, least, w->k->state ? least : match);
    struct kv_chain c = kv_parts_chain(f.parts, f.n_part);
    if (f.n_usable)
        CHECK_OK(kv_seq_from(w->ex, &c, f.n_usable, &a->s, &err), err);
    else
        CHECK_OK(kv_seq_create(w->ex, &a->s, &err), err);
    a->l = *l;
    a->want = l->n;
    a->l.n = f.n_usable;
    check_live(w, a);
    w->n_reused += f.n_usable > 0;
    w->n_branch += f.n_usable > 0 && match < l->n;
    return f.n_usable;
}

static void do_find(struct world *w)
{
    struct line l;
    world_line(&w->mem, &l);
    world_begin(w, &l, l.n && rnd(2) ? l.n - 1 : l.n);
}

static void do_keep(struct world *w)
{
    struct live *a = &w->live[rnd(SEQS)];
    struct qn_err err;
    if (!a->s || !a->l.n || (a->l.n < a->want && rnd(8)))
        return;
    known_add(&w->mem, &a->l, w->k->ends); /* first: what goes to make room may be this */
    CHECK_OK(ptree_keep(w->t, &(struct ptree_line){spaces[a->l.ns], a->l.ids, a->l.n}, a->s, &err),
             err);
}

/* Where a sequence may be cut: its last few tokens, mostly; with a state nowhere or at 0. */
static bool choose_cut(struct world *w, struct live *a, int32_t *n)
{
    if (!a->s)
        return false;
    int32_t back = rnd(3) ? rnd(KV_ROLLBACK + 1) : rnd(a->l.n + 1);
    if (w->k->state)
        back = rnd(4) ? 0 : a->l.n;
    *n = back < a->l.n ? a->l.n - back : 0;
    a->s->undo_n = 0; /* states are written by hand: there is no record of a layer's rows */
    return kv_seq_can_truncate(w->ex, a->s, *n);
}

static void do_cut(struct world *w)
{
    struct live *a = &w->live[rnd(SEQS)];
    int32_t n;
    if (!choose_cut(w, a, &n))
        return;
    kv_seq_truncate(w->ex, a->s, n);
    w->n_cut += n < a->l.n;
    a->l.n = a->want = n;
    check_live(w, a);
}

static void do_fork(struct world *w)
{
    struct live *from = &w->live[rnd(SEQS)], *a = &w->live[rnd(SEQS)];
    struct qn_err err;
    int32_t n;
    if (a == from || !choose_cut(w, from, &n))
        return;
    live_end(w, a);
    CHECK_OK(kv_seq_fork(w->ex, from->s, n, &a->s, &err), err);
    a->l = from->l;
    a->l.n = a->want = n;
    check_live(w, a);
    w->n_fork++;
}

/* A checkpoint is made, or gone back to by whoever wants. */
static void do_point(struct world *w)
{
    struct live *a = &w->live[rnd(SEQS)];
    struct point *p = &w->points[rnd(POINTS)];
    struct qn_err err;
    if (a->s && p->p && rnd(2)) {
        const struct kv_prefix *part = p->p;
        kv_seq_become(w->ex, a->s, &(struct kv_chain){&part, 1}, p->l.n);
        a->l = p->l;
        a->want = a->l.n;
        check_live(w, a);
        w->n_point++;
    } else if (a->s && a->l.n) {
        kv_prefix_free(w->ex, p->p);
        p->p = NULL;
        CHECK_OK(kv_prefix_create(w->ex, a->s, 0, a->l.n, &p->p, &err), err);
        p->l = a->l;
    } else {
        kv_prefix_free(w->ex, p->p);
        p->p = NULL;
    }
}

void world_operation(struct world *w)
{
    int what = rnd(20);
    if (what < 7)
        do_step(w);
    else if (what < 10)
        do_find(w);
    else if (what < 15)
        do_keep(w);
    else if (what == 15)
        live_end(w, &w->live[rnd(SEQS)]);
    else if (what == 16)
        do_cut(w);
    else if (what == 17)
        do_fork(w);
    else if (what == 18)
        do_point(w);
    else if (rnd(12) == 0)
        ptree_trim(w->t, w->limit / 2);
    ptree_settle(w->t);
    assert_true(kv_bytes_idle(w->ex) <= w->limit);
    if (w->ex->kv.budget_bytes)
        assert_true(kv_bytes_used(w->ex) <= w->ex->kv.budget_bytes);
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

static void hold_prefix(struct census *c, const struct kv_prefix *p, bool by_tree)
{
    const struct kv_store *kv = &c->w->ex->kv;
    for (int32_t g = 0; g < kv->n_group; g++)
        for (int32_t i = 0; i < p->runs[g].n; i++)
            hold(c, p->runs[g].pages[i], p->runs[g].pages[i]->refs, p->runs[g].pages[i]->cached,
                 by_tree, kv->groups[g].page_bytes);
    if (p->state)
        hold(c, p->state, p->state->refs, p->state->cached, by_tree, kv->state_bytes);
}

static void hold_node(void *arg, struct ptree_node *node)
{
    struct census *c = arg;
    const struct kv_prefix *p = ptree_node_part(node);
    assert_int_equal(p->from, ptree_node_from(node));
    assert_int_equal(p->end, ptree_node_end(node));
    assert_int_equal(ptree_node_good(node), kv_prefix_complete(c->w->ex, p));
    hold_prefix(c, p, true);
}

static void hold_seq(struct census *c, const struct kv_seq *s)
{
    const struct kv_store *kv = &c->w->ex->kv;
    for (int32_t g = 0; g < kv->n_group; g++)
        for (int32_t k = s->tables[g].first; k < s->tables[g].n; k++)
            hold(c, s->tables[g].held[k], s->tables[g].held[k]->refs, s->tables[g].held[k]->cached,
                 false, kv->groups[g].page_bytes);
    for (int k = 0; k < 2; k++)
        if (s->own[k] && s->own[k] != kv->zero_state)
            hold(c, s->own[k], s->own[k]->refs, s->own[k]->cached, false, kv->state_bytes);
}

void world_census(struct world *w)
{
    static struct census c;
    int64_t used = 0, only_tree = 0;
    memset(&c, 0, sizeof c);
    c.w = w;
    ptree_each(w->t, hold_node, &c);
    for (int i = 0; i < SEQS; i++)
        if (w->live[i].s)
            hold_seq(&c, w->live[i].s);
    for (int i = 0; i < POINTS; i++)
        if (w->points[i].p)
            hold_prefix(&c, w->points[i].p, false);
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
    w->n_census++;
}

/* ---- life ------------------------------------------------------------------------------------ */

void world_open(struct world *w, const struct kind *k, int64_t budget)
{
    struct exec_params p = {
        .n_thread = 1, .max_rows = ROWS, .n_ctx = N_CTX, .kv_budget_bytes = budget};
    struct qn_err err;
    w->k = k;
    CHECK_OK(exec_create(&p, &w->ex, &err), err);
    CHECK_OK(kv_setup(w->ex, k->layers, k->n, &err), err);
    w->limit = kv_seq_bytes(w->ex, N_CTX) * 4;
    CHECK_OK(ptree_create(&kv_parts_ops, w->ex, w->limit, &w->t, &err), err);
    world_hook(w);
}

void world_close(struct world *w)
{
    for (int i = 0; i < SEQS; i++)
        live_end(w, &w->live[i]);
    for (int i = 0; i < POINTS; i++) {
        kv_prefix_free(w->ex, w->points[i].p);
        w->points[i].p = NULL;
    }
    ptree_trim(w->t, 0);
    assert_int_equal(kv_bytes_idle(w->ex), 0);
    ptree_free(w->t);
    assert_int_equal(kv_bytes_used(w->ex), 0);
    exec_free(w->ex);
    w->mem.n = 0;
}
