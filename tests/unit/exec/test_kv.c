/*
 * test_kv.c - KV memory against a simple oracle: thousands of random steps, cuts, forks, prefixes
 * and chains over two windows, full layers and a recurrent state. A token writes its own tag into
 * its slots, so what a sequence can see is compared tag by tag; references and bytes are counted
 * again from all that is alive. Then budgets, planning numbers, and windows under real attention.
 * QUERN_CACHE_OPS sets the number of operations of each run, QUERN_CACHE_SEED another beginning.
 */
#include <math.h>
#include <string.h>

#include "../check.h"
#include "base/hash.h"
#include "exec/exec_int.h"

enum { N_CTX = 700, ROWS = 96, SEQS = 7, PREFIXES = 9, TAPS = 2, STATE_LAYER = 3 };
enum { W1 = 20, W2 = 150 };

/* Layer 0 sees all, 1 and 2 a window each, 3 is recurrent (left out where a rig has no state). */
static const struct kv_layer layers[] = {
    {.n_head = 1, .dk = 16, .dv = 16},
    {.n_head = 2, .dk = 16, .dv = 16, .window = W1},
    {.n_head = 1, .dk = 32, .dv = 16, .window = W2},
    {.delta = {.n_k = 1, .n_v = 1, .dk = 16, .dv = 16, .taps = TAPS}},
};

struct line { /* a sequence as the oracle sees it */
    struct kv_seq *s;
    int32_t n, low[3]; /* tokens; of each layer the oldest that must be there */
    int32_t tag[N_CTX];
    float state[N_CTX + 1]; /* after so many tokens */
};
struct kept { /* a prefix */
    struct kv_prefix *p;
    int32_t from, n, low[3];
    bool has_state;
    int32_t tag[N_CTX];
    float state;
    int line; /* chains are made of prefixes of one line of tokens */
};
struct world {
    struct exec *ex;
    bool recurrent;
    struct line lines[SEQS];
    struct kept kept[PREFIXES];
    int counter[8];
};

static uint32_t seed;

static int32_t rnd(int32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int32_t)((uint64_t)(seed >> 4) * (uint64_t)n >> 28);
}

static int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static struct exec *make_exec(bool recurrent, int64_t budget)
{
    struct exec_params p = {
        .n_thread = 1, .max_rows = ROWS, .n_ctx = N_CTX, .kv_budget_bytes = budget};
    struct exec *ex = NULL;
    struct qn_err err;
    CHECK_OK(exec_create(&p, &ex, &err), err);
    CHECK_OK(kv_setup(ex, layers, recurrent ? 4 : 3, &err), err);
    ex->kv.free_max_bytes = 200000; /* so that pages go back to the system too */
    return ex;
}

/* ---- tags ------------------------------------------------------------------------------------ */

static uint8_t *slot(const struct world *w, const struct kv_seq *s, int layer, int32_t pos)
{
    const struct kv_layer *l = &layers[layer];
    size_t token = (size_t)l->n_head * (size_t)(l->dk + l->dv) * 2;
    return kv_at_token(w->ex, s, layer, pos) + (size_t)(pos % KV_PAGE) * token;
}

static float next_state(float was, int32_t tag)
{
    return fmodf(was * 3 + (float)(tag % 1000) + 1, 65536);
}

static void check_line(const struct world *w, const struct line *l)
{
    assert_int_equal(kv_seq_len(l->s), l->n);
    for (int i = 0; i < 3; i++)
        for (int32_t t = l->low[i]; t < l->n; t++) {
            int32_t got;
            memcpy(&got, slot(w, l->s, i, t), sizeof got);
            if (got != l->tag[t])
                fail_msg("layer %d, token %d of %d: %d, expected %d", i, t, l->n, got, l->tag[t]);
        }
    if (w->recurrent && l->s->state[l->s->now][0] != l->state[l->n])
        fail_msg("state after %d tokens", l->n);
}

/* The oldest token of each layer that a sequence of n tokens must still have: what token n sees,
 * KV_ROLLBACK back. */
static void lows(int32_t n, int32_t *low)
{
    low[0] = 0;
    low[1] = most(0, n - KV_ROLLBACK - W1 + 1);
    low[2] = most(0, n - KV_ROLLBACK - W2 + 1);
}

static bool oracle_can_cut(const struct world *w, const struct line *l, int32_t n)
{
    if (n == 0 || n == l->n)
        return true;
    if (w->recurrent)
        return false;
    for (int i = 1; i < 3; i++) {
        int32_t page = l->low[i] / KV_PAGE * KV_PAGE;
        if (page && n - (i == 1 ? W1 : W2) + 1 < page)
            return false;
    }
    return true;
}

/* ---- operations ------------------------------------------------------------------------------ */

static void append(struct world *w, struct line *l, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t t = l->n + i;
        l->tag[t] = (int32_t)(seed >> 1) + i;
        l->state[t + 1] = next_state(l->state[t], l->tag[t]);
        for (int k = 0; k < 3; k++)
            memcpy(slot(w, l->s, k, t), &l->tag[t], sizeof l->tag[t]);
    }
    if (w->recurrent)
        l->s->state[1 - l->s->now][0] = l->state[l->n + n];
}

static void committed(struct line *l, int32_t n)
{
    int32_t low[3];
    l->n += n;
    lows(l->n, low);
    for (int i = 0; i < 3; i++)
        l->low[i] = most(l->low[i], low[i]);
}

static void do_step(struct world *w)
{
    struct exec_span spans[SEQS];
    struct line *in[SEQS];
    static const int32_t ids[ROWS];
    int32_t n = 0, left = ROWS;
    for (int i = 0; i < SEQS; i++) {
        struct line *l = &w->lines[i];
        int32_t k = rnd(4) ? 1 + rnd(rnd(3) ? 3 : 60) : 0;
        k = k > left ? left : k;
        k = k > N_CTX - l->n ? N_CTX - l->n : k;
        if (!l->s || !k)
            continue;
        spans[n] = (struct exec_span){l->s, ids, k, 0};
        in[n++] = l;
        left -= k;
    }
    struct qn_err err;
    if (!n)
        return;
    enum qn_status st = exec_begin(w->ex, spans, n, &err);
    if (st != QN_OK) {
        assert_true(w->ex->kv.budget_bytes && (st == QN_BUSY || st == QN_NO_MEMORY));
        w->counter[0]++;
        return;
    }
    for (int i = 0; i < n; i++)
        append(w, in[i], spans[i].n);
    exec_commit(w->ex);
    for (int i = 0; i < n; i++)
        committed(in[i], spans[i].n);
}

static struct line *empty_line(struct world *w)
{
    struct line *l = &w->lines[rnd(SEQS)];
    kv_seq_free(w->ex, l->s);
    memset(l, 0, sizeof *l);
    return l;
}

static void do_create(struct world *w)
{
    struct line *l = empty_line(w);
    struct qn_err err;
    CHECK_OK(kv_seq_create(w->ex, &l->s, &err), err);
}

static void do_cut(struct world *w)
{
    struct line *l = &w->lines[rnd(SEQS)];
    if (!l->s)
        return;
    int32_t n = rnd(3) ? most(0, l->n - rnd(KV_ROLLBACK + 1)) : rnd(l->n + 1);
    bool can = oracle_can_cut(w, l, n);
    l->s->undo_n = 0; /* states are written by hand here: there is no record of a layer's rows */
    assert_int_equal(kv_seq_can_truncate(w->ex, l->s, n), can);
    if (!can)
        return;
    kv_seq_truncate(w->ex, l->s, n);
    l->n = n;
    for (int i = 0; i < 3; i++) /* pages in front stay away */
        l->low[i] = n ? l->low[i] : 0;
    w->counter[1] += n > 0;
}

static void do_fork(struct world *w)
{
    struct line *src = &w->lines[rnd(SEQS)], *l = empty_line(w);
    struct qn_err err;
    if (!src->s || src == l)
        return;
    int32_t n = rnd(2) ? src->n : rnd(src->n + 1), low[3];
    if (!oracle_can_cut(w, src, n))
        return;
    CHECK_OK(kv_seq_fork(w->ex, src->s, n, &l->s, &err), err);
    struct kv_seq *s = l->s;
    *l = *src;
    l->s = s;
    l->n = n;
    lows(n, low);
    for (int i = 0; i < 3; i++)
        l->low[i] = n ? most(src->low[i], low[i]) : 0;
    w->counter[2]++;
}

static struct kept *empty_kept(struct world *w)
{
    struct kept *k = &w->kept[rnd(PREFIXES)];
    kv_prefix_free(w->ex, k->p);
    memset(k, 0, sizeof *k);
    return k;
}

/* What a prefix vouches for begins at a page, or where the sequence's memory did. */
static void do_keep(struct world *w)
{
    struct line *l = &w->lines[rnd(SEQS)];
    struct kept *k = empty_kept(w);
    struct qn_err err;
    if (!l->s)
        return;
    k->n = rnd(3) ? l->n : rnd(l->n + 1);
    k->from = rnd(2) ? 0 : rnd(k->n + 1);
    CHECK_OK(kv_prefix_create(w->ex, l->s, k->from, k->n, &k->p, &err), err);
    lows(k->n, k->low);
    for (int i = 0; i < 3; i++)
        k->low[i] = most(most(k->low[i], l->low[i]), i ? 0 : k->from) / KV_PAGE * KV_PAGE;
    memcpy(k->tag, l->tag, sizeof k->tag);
    k->has_state = w->recurrent && k->n == l->n && k->n;
    k->state = l->state[k->n];
    w->counter[3]++;
}

static void do_part(struct world *w)
{
    struct kept *of = &w->kept[rnd(PREFIXES)], *k = empty_kept(w);
    struct qn_err err;
    if (!of->p || of == k)
        return;
    *k = *of;
    k->n = rnd(2) ? of->n : of->from + rnd(of->n - of->from + 1);
    k->from = of->from + rnd(k->n - of->from + 1);
    CHECK_OK(kv_prefix_part(w->ex, of->p, k->from, k->n, &k->p, &err), err);
    for (int i = 0; i < 3; i++)
        k->low[i] = most(of->low[i], i ? 0 : k->from / KV_PAGE * KV_PAGE);
    k->has_state = of->has_state && k->n == of->n;
    assert_int_equal(kv_prefix_from(k->p), k->from);
    assert_int_equal(kv_prefix_end(k->p), k->n);
}

/* A prefix leaves for a file and comes back: through bytes, into memory of its own. */
static void do_file(struct world *w)
{
    struct kept *k = &w->kept[rnd(PREFIXES)];
    struct kv_shape shape, again;
    uint8_t text[KV_SHAPE_BYTES];
    struct kv_export *x;
    struct kv_prefix *p;
    struct qn_err err;
    int32_t n;
    if (!k->p)
        return;
    kv_prefix_shape(k->p, &shape);
    kv_shape_write(&shape, text);
    assert_true(kv_shape_read(w->ex, text, sizeof text, &again));
    assert_memory_equal(&shape, &again, sizeof shape);
    if (kv_import_create(w->ex, &again, &p, &err) != QN_OK) {
        assert_int_equal(err.code, QN_BUSY);
        assert_true(w->ex->kv.budget_bytes > 0);
        return;
    }
    CHECK_OK(kv_export_create(w->ex, k->p, &x, &err), err);
    const struct iovec *from = kv_export_parts(x, &n);
    assert_int_equal(n, kv_shape_parts(w->ex, &shape));
    struct iovec *to = calloc((size_t)n + 1, sizeof *to);
    kv_import_parts(w->ex, p, to);
    int64_t bytes = 0;
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(from[i].iov_len, to[i].iov_len);
        memcpy(to[i].iov_base, from[i].iov_base, to[i].iov_len);
        bytes += (int64_t)to[i].iov_len;
    }
    assert_int_equal(bytes, kv_shape_bytes(w->ex, &shape));
    free(to);
    kv_export_free(w->ex, x);
    kv_prefix_free(w->ex, k->p);
    k->p = p;
    w->counter[5]++;
}

/* What shapes say of a chain must be what its prefixes do; a page is where the chain finds it. */
static void check_shapes(const struct world *w, const struct kv_chain *c, int32_t n)
{
    struct kv_shape s[PREFIXES];
    for (int i = 0; i < c->n_part; i++)
        kv_prefix_shape(c->parts[i], &s[i]);
    int32_t m = kv_chain_usable(w->ex, c, n);
    assert_int_equal(kv_shapes_usable(w->ex, s, c->n_part, n), m);
    for (int32_t g = 0; g < kv_n_group(w->ex); g++) {
        int32_t window = kv_group_window(w->ex, g);
        for (int32_t i = window ? most(0, m - window + 1) / KV_PAGE : 0; i < kv_pages(m); i++) {
            int32_t k = kv_shapes_page(s, c->n_part, g, i, m);
            assert_in_range(k, 0, c->n_part - 1);
            assert_true(i >= s[k].runs[g].first && i < s[k].runs[g].first + s[k].runs[g].n);
        }
    }
    /* a cut of a shape is the shape of a part */
    const struct kv_prefix *p = c->parts[0];
    struct kv_prefix *q;
    struct kv_shape cut = s[0], part;
    struct qn_err err;
    int32_t end = rnd(kv_prefix_end(p) + 1);
    CHECK_OK(kv_prefix_part(w->ex, p, 0, end, &q, &err), err);
    kv_prefix_shape(q, &part);
    kv_shape_cut(&cut, end);
    if (part.from == cut.from)
        assert_memory_equal(&part, &cut, sizeof cut);
    kv_prefix_free(w->ex, q);
}

/* ---- chains ---------------------------------------------------------------------------------- */

static bool covered(struct kept *const *parts, int n_part, int layer, int32_t t)
{
    for (int i = 0; i < n_part; i++)
        if (t >= parts[i]->low[layer] && t < parts[i]->n)
            return true;
    return false;
}

static bool oracle_usable(const struct world *w, struct kept *const *parts, int n_part, int32_t m)
{
    bool state = !w->recurrent || m == 0;
    for (int i = 0; i < n_part; i++)
        state = state || (parts[i]->has_state && parts[i]->n == m);
    for (int l = 0; state && l < 3; l++)
        for (int32_t t = l == 0 ? 0 : most(0, m - (l == 1 ? W1 : W2) + 1); t < m; t++)
            if (!covered(parts, n_part, l, t))
                return false;
    return state;
}

/* The prefixes that continue each other, from one that begins at 0; how many. */
static int find_chain(struct world *w, struct kept **parts)
{
    int n = 0;
    int32_t at = 0;
    for (int tries = 0; tries < 60 && n < PREFIXES; tries++) {
        struct kept *k = &w->kept[rnd(PREFIXES)];
        if (!k->p || k->from != at || (n && memcmp(k->tag, parts[n - 1]->tag, (size_t)at * 4) != 0))
            continue;
        bool used = false;
        for (int i = 0; i < n; i++)
            used = used || parts[i] == k;
        if (used)
            continue;
        parts[n++] = k;
        at = k->n;
    }
    return n;
}

static void do_chain(struct world *w)
{
    struct kept *parts[PREFIXES];
    const struct kv_prefix *p[PREFIXES];
    int n = find_chain(w, parts);
    if (!n)
        return;
    for (int i = 0; i < n; i++)
        p[i] = parts[i]->p;
    struct kv_chain c = {p, n};
    int32_t asked = rnd(2) ? parts[n - 1]->n : rnd(parts[n - 1]->n + 20), m = asked;
    m = m > parts[n - 1]->n ? parts[n - 1]->n : m;
    while (!oracle_usable(w, parts, n, m))
        m--;
    assert_int_equal(kv_chain_usable(w->ex, &c, asked), m);
    check_shapes(w, &c, asked);
    struct line *l = &w->lines[rnd(SEQS)];
    struct qn_err err;
    if (l->s && rnd(2)) {
        kv_seq_become(w->ex, l->s, &c, m);
    } else {
        l = empty_line(w);
        CHECK_OK(kv_seq_from(w->ex, &c, m, &l->s, &err), err);
    }
    l->n = m;
    memcpy(l->tag, parts[n - 1]->tag, sizeof l->tag);
    l->state[m] = 0;
    for (int i = 0; i < n; i++)
        if (parts[i]->has_state && parts[i]->n == m)
            l->state[m] = parts[i]->state;
    for (int i = 0; i < 3; i++) /* at least what is needed; a page more in front is as good */
        l->low[i] = l->s->tables[w->ex->kv.layer_group[i]].first * KV_PAGE;
    for (int i = 1; i < 3; i++)
        assert_true(l->low[i] <= most(0, m - (i == 1 ? W1 : W2) + 1));
    w->counter[4] += n > 1 && m > parts[0]->n;
}

/* ---- counting again -------------------------------------------------------------------------- */

struct census {
    const void *seen[SEQS * 64 + PREFIXES * 64];
    int32_t refs[SEQS * 64 + PREFIXES * 64], n;
    int64_t bytes;
};

static void count(struct census *c, const void *p, int32_t refs, size_t bytes)
{
    int32_t i = 0;
    while (i < c->n && c->seen[i] != p)
        i++;
    if (i == c->n) {
        c->seen[c->n] = p;
        c->refs[c->n++] = refs;
        c->bytes += (int64_t)bytes;
    }
    c->refs[i]--;
}

static void check_accounts(const struct world *w)
{
    const struct kv_store *kv = &w->ex->kv;
    static struct census c;
    c.n = 0;
    c.bytes = 0;
    for (int i = 0; i < SEQS; i++) {
        const struct kv_seq *s = w->lines[i].s;
        for (int32_t g = 0; s && g < kv->n_group; g++)
            for (int32_t k = s->tables[g].first; k < s->tables[g].n; k++)
                count(&c, s->tables[g].held[k], s->tables[g].held[k]->refs,
                      kv->groups[g].page_bytes);
        for (int k = 0; s && k < 2; k++)
            if (s->own[k] && s->own[k] != kv->zero_state)
                count(&c, s->own[k], s->own[k]->refs, kv->state_bytes);
    }
    for (int i = 0; i < PREFIXES; i++) {
        const struct kv_prefix *p = w->kept[i].p;
        for (int32_t g = 0; p && g < kv->n_group; g++)
            for (int32_t k = 0; k < p->runs[g].n; k++)
                count(&c, p->runs[g].pages[k], p->runs[g].pages[k]->refs, kv->groups[g].page_bytes);
        if (p && p->state)
            count(&c, p->state, p->state->refs, kv->state_bytes);
    }
    for (int32_t i = 0; i < c.n; i++)
        assert_int_equal(c.refs[i], 0);
    assert_int_equal(kv_bytes_used(w->ex), c.bytes);
    assert_true(kv_bytes_free(w->ex) <= kv->free_max_bytes);
    if (kv->budget_bytes)
        assert_true(kv_bytes_used(w->ex) <= kv->budget_bytes);
}

static void one_operation(struct world *w)
{
    switch (rnd(17)) {
    case 16:
        do_file(w);
        break;
    case 0:
        do_create(w);
        break;
    case 1:
    case 2:
        do_cut(w);
        break;
    case 3:
        do_fork(w);
        break;
    case 4:
    case 5:
        do_keep(w);
        break;
    case 6:
    case 7:
        do_part(w);
        break;
    case 8:
        do_chain(w);
        break;
    default:
        do_step(w);
        break;
    }
}

static void wander(bool recurrent, int64_t budget, uint32_t from, int n_op)
{
    static struct world w;
    memset(&w, 0, sizeof w);
    w.ex = make_exec(recurrent, budget);
    w.recurrent = recurrent;
    seed = from;
    for (int op = 0; op < n_op; op++) {
        one_operation(&w);
        for (int i = 0; i < SEQS; i++)
            if (w.lines[i].s)
                check_line(&w, &w.lines[i]);
        check_accounts(&w);
    }
    for (int i = 0; i < PREFIXES; i++)
        kv_prefix_free(w.ex, w.kept[i].p);
    for (int i = 0; i < SEQS; i++)
        kv_seq_free(w.ex, w.lines[i].s);
    assert_int_equal(kv_bytes_used(w.ex), 0);
    exec_free(w.ex);
    if (budget) /* it must have mattered */
        assert_true(w.counter[0] > n_op / 100);
    assert_true(w.counter[2] > n_op / 100 && w.counter[3] > n_op / 50 && w.counter[4] > 0 &&
                w.counter[5] > n_op / 100);
}

static uint32_t number(const char *name, uint32_t usual)
{
    const char *v = getenv(name);
    return v ? (uint32_t)strtoul(v, NULL, 10) : usual;
}

static void test_random(void **state)
{
    int n = (int)number("QUERN_CACHE_OPS", 1100);
    uint32_t from = number("QUERN_CACHE_SEED", 0) << 8;
    for (uint32_t i = from; i < from + 2; i++) {
        wander(false, 0, 11 + i, n);
        wander(true, 0, 21 + i, n);
        wander(false, 250000, 31 + i, n);
        wander(true, 250000, 41 + i, n);
    }
}

/* ---- planning -------------------------------------------------------------------------------- */

/* A sequence alone never holds more than was planned for its length, and reaches it. */
static void test_planned(void **state)
{
    static const int32_t ids[ROWS];
    for (int recurrent = 0; recurrent < 2; recurrent++)
        for (int32_t chunk = 1; chunk <= ROWS; chunk += 19) {
            struct exec *ex = make_exec(recurrent, 0);
            struct kv_seq *s;
            struct qn_err err;
            CHECK_OK(kv_seq_create(ex, &s, &err), err);
            assert_int_equal(kv_seq_bytes(ex, 0), 0);
            for (int32_t n = 0; n < N_CTX;) {
                int32_t k = N_CTX - n < chunk ? N_CTX - n : chunk;
                CHECK_OK(exec_begin(ex, &(struct exec_span){s, ids, k, 0}, 1, &err), err);
                n += k;
                assert_true(kv_bytes_used(ex) <= kv_seq_bytes(ex, n));
                exec_commit(ex);
                assert_int_equal(kv_seq_bytes_held(ex, s), kv_bytes_used(ex));
                if (n <= W1)
                    assert_int_equal(kv_bytes_used(ex),
                                     kv_seq_bytes(ex, n) -
                                         (n == k && recurrent ? (int64_t)ex->kv.state_bytes : 0));
            }
            kv_seq_free(ex, s);
            exec_free(ex);
        }
}

/* Windows hold window + rollback + one step, rounded to pages, however long the sequence. */
static void test_window_bounded(void **state)
{
    static const int32_t ids[ROWS];
    struct exec *ex = make_exec(false, 0);
    struct kv_seq *s;
    struct qn_err err;
    CHECK_OK(kv_seq_create(ex, &s, &err), err);
    for (int32_t n = 0; n < N_CTX; n++) {
        CHECK_OK(exec_begin(ex, &(struct exec_span){s, ids, 1, 0}, 1, &err), err);
        exec_commit(ex);
        for (int i = 1; i < 3; i++) {
            const struct kv_table *t = &s->tables[ex->kv.layer_group[i]];
            int32_t window = i == 1 ? W1 : W2;
            assert_true((t->n - t->first) * KV_PAGE < window + KV_ROLLBACK + 2 * KV_PAGE);
            for (int32_t k = 0; k < t->first; k++)
                assert_ptr_equal(t->pages[k], ex->kv.groups[ex->kv.layer_group[i]].zero_page);
        }
    }
    kv_seq_free(ex, s);
    exec_free(ex);
}

static void test_budget(void **state)
{
    static const int32_t ids[ROWS];
    struct exec *ex = make_exec(false, 0);
    int64_t page = kv_seq_bytes(ex, 1);
    exec_free(ex);
    ex = make_exec(false, 3 * page);
    struct kv_seq *a, *b;
    struct qn_err err;
    CHECK_OK(kv_seq_create(ex, &a, &err), err);
    CHECK_OK(kv_seq_create(ex, &b, &err), err);
    struct exec_span both[] = {{a, ids, 64, 0}, {b, ids, 20, 0}};
    CHECK_OK(exec_begin(ex, both, 2, &err), err);
    exec_commit(ex);
    struct exec_span more[] = {{b, ids, 1, 0}, {a, ids, 65, 0}}; /* b fits, a does not now */
    CHECK_FAILS(exec_begin(ex, more, 2, &err), QN_BUSY, err, "in use");
    assert_int_equal(kv_bytes_used(ex), 2 * page);
    assert_int_equal(kv_seq_len(a), 64);
    assert_int_equal(kv_seq_len(b), 20);
    more[1].n = 64;
    CHECK_OK(exec_begin(ex, more, 2, &err), err);
    exec_commit(ex);
    more[1].n = 90; /* a alone, of full layers, is more than the budget */
    for (int i = 0; i < 3; i++) {
        kv_seq_free(ex, b);
        CHECK_OK(kv_seq_create(ex, &b, &err), err);
        enum qn_status st = exec_begin(ex, &more[1], 1, &err);
        if (st != QN_OK) {
            assert_int_equal(st, QN_NO_MEMORY);
            break;
        }
        exec_commit(ex);
        assert_true(i < 2);
    }
    kv_seq_free(ex, a);
    kv_seq_free(ex, b);
    exec_free(ex);
}

/* ---- windows under attention ----------------------------------------------------------------- */

enum { HEADS = 4, D = 32, QKV = (HEADS + 2) * D };

struct view { /* one layer of one head, with or without memory of its window */
    struct exec *ex;
    struct kv_seq *s;
    struct tensor *qkv, *q, *out;
};

static struct view make_view(int32_t window, enum cpu_isa isa)
{
    struct view v = {0};
    struct exec_params p = {.n_thread = 2, .isa = isa, .max_rows = ROWS, .n_ctx = N_CTX};
    struct kv_layer l = {.n_head = 1, .dk = D, .dv = D, .window = window};
    struct qn_err err;
    CHECK_OK(exec_create(&p, &v.ex, &err), err);
    CHECK_OK(kv_setup(v.ex, &l, 1, &err), err);
    CHECK_OK(kv_seq_create(v.ex, &v.s, &err), err);
    CHECK_OK(tensor_create(v.ex, QKV, &v.qkv, &err), err);
    CHECK_OK(tensor_create(v.ex, HEADS * D, &v.q, &err), err);
    CHECK_OK(tensor_create(v.ex, HEADS * D, &v.out, &err), err);
    return v;
}

static void attend(struct view *v, const float *x, int32_t n, int32_t window)
{
    static const int32_t ids[ROWS];
    struct attn_op a = {
        .n_head = HEADS, .n_kv = 1, .dk = D, .dv = D, .window = window, .scale = 0.3f};
    struct qn_err err;
    CHECK_OK(exec_begin(v->ex, &(struct exec_span){v->s, ids, n, 0}, 1, &err), err);
    v->qkv->rows = n;
    memcpy(v->qkv->p, x, (size_t)n * QKV * sizeof *x);
    op_rope_append(v->ex, v->q, v->qkv, &a);
    op_attn(v->ex, v->out, v->q, &a);
    exec_commit(v->ex);
}

/* The same bits with and without what the window no longer sees, cuts of 16 tokens included. */
static void test_attention_bits(void **state)
{
    static const int32_t windows[] = {1, 5, 40, 64, 200, 300};
    static float x[ROWS * QKV];
    enum cpu_isa best = cpu_best();
    seed = 3;
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
        for (int level = 0; level < 2; level++) {
            enum cpu_isa isa = level ? best : CPU_GENERIC;
            struct view v[2] = {make_view(windows[i], isa), make_view(0, isa)};
            while (v[0].s->len < N_CTX - ROWS) {
                int32_t n = 1 + rnd(rnd(2) ? 4 : ROWS);
                for (int32_t k = 0; k < n * QKV; k++)
                    x[k] = (float)(rnd(2001) - 1000) / 500;
                for (int k = 0; k < 2; k++)
                    attend(&v[k], x, n, windows[i]);
                assert_memory_equal(v[0].out->p, v[1].out->p,
                                    (size_t)n * HEADS * D * sizeof(float));
                int32_t back = v[0].s->len - rnd(KV_ROLLBACK + 1);
                bool can = back > 0 && kv_seq_can_truncate(v[0].ex, v[0].s, back);
                for (int k = 0; k < 2 && can; k++)
                    kv_seq_truncate(v[k].ex, v[k].s, back);
            }
            assert_true(v[0].s->tables[0].first > 0 || windows[i] == 300);
            for (int k = 0; k < 2; k++) {
                kv_seq_free(v[k].ex, v[k].s);
                exec_free(v[k].ex);
            }
        }
}

/* ---- files ----------------------------------------------------------------------------------- */

/* What an export lists stays as it is while the sequence goes on, in the same page too. */
static void test_export_stands_still(void **state)
{
    static struct world w;
    struct qn_err err;
    struct kv_prefix *p;
    struct kv_export *x;
    memset(&w, 0, sizeof w);
    w.ex = make_exec(false, 0);
    seed = 77;
    CHECK_OK(kv_seq_create(w.ex, &w.lines[0].s, &err), err);
    while (w.lines[0].n < 150)
        do_step(&w);
    CHECK_OK(kv_prefix_create(w.ex, w.lines[0].s, 0, w.lines[0].n - 3, &p, &err), err);
    CHECK_OK(kv_export_create(w.ex, p, &x, &err), err);
    kv_prefix_free(w.ex, p);
    int32_t n;
    const struct iovec *v = kv_export_parts(x, &n);
    uint64_t was[64], now;
    assert_in_range(n, 3, 64);
    for (int32_t i = 0; i < n; i++)
        was[i] = hash64(v[i].iov_base, v[i].iov_len, 0);
    kv_seq_truncate(w.ex, w.lines[0].s, w.lines[0].n - 3);
    w.lines[0].n -= 3;
    for (int i = 0; i < 40; i++)
        do_step(&w);
    kv_seq_free(w.ex, w.lines[0].s);
    for (int32_t i = 0; i < n; i++) {
        now = hash64(v[i].iov_base, v[i].iov_len, 0);
        assert_int_equal(was[i], now);
    }
    kv_export_free(w.ex, x);
    assert_int_equal(kv_bytes_used(w.ex), 0);
    exec_free(w.ex);
}

/* Shapes that no prefix of this exec has are refused. */
static void test_shapes_refused(void **state)
{
    struct exec *ex = make_exec(false, 0);
    struct kv_shape good = {.from = 64, .end = 200}, out;
    good.runs[0].first = 1;
    good.runs[0].n = 3;
    uint8_t p[KV_SHAPE_BYTES + 1] = {0};
    kv_shape_write(&good, p);
    assert_true(kv_shape_read(ex, p, KV_SHAPE_BYTES, &out));
    assert_false(kv_shape_read(ex, p, KV_SHAPE_BYTES - 1, &out));
    assert_false(kv_shape_read(ex, p, KV_SHAPE_BYTES + 1, &out));
    static const struct {
        int at;
        int32_t v;
    } bad[] = {{0, -1},         {0, 201}, {4, N_CTX + 1}, {4, 63},     {8, 1},
               {8, 2},          {12, -1}, {12, 2},        {16, -1},    {16, 4},
               {16, INT32_MAX}, {20, 1},  {12 + 24, 1},   {16 + 24, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kv_shape_write(&good, p);
        memcpy(p + bad[i].at, &bad[i].v, 4);
        if (kv_shape_read(ex, p, KV_SHAPE_BYTES, &out))
            fail_msg("%d at %d was taken", bad[i].v, bad[i].at);
    }
    exec_free(ex);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),         cmocka_unit_test(test_planned),
        cmocka_unit_test(test_window_bounded), cmocka_unit_test(test_export_stands_still),
        cmocka_unit_test(test_shapes_refused), cmocka_unit_test(test_budget),
        cmocka_unit_test(test_attention_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
