/*
 * test_ptree.c - the tree against a simple oracle: random lookups, keeps, adds and limits over
 * lines that share beginnings, in two namespaces. What the tree must hold is a list of lines; what
 * goes is told by the tier's hook. The payload is a double that knows the tokens it stands for,
 * with and without a state at its end. Then failing memory at every allocation, and who goes first.
 *
 * QUERN_CACHE_OPS sets the number of operations of a run (more in `make cache-soak`),
 * QUERN_CACHE_SEED another beginning.
 */
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "base/fault.h"
#include "cache/ptree.h"

enum { LINE = 300, ENTRIES = 400, TOKEN_BYTES = 10, STATE_BYTES = 600 };

struct fake_part {
    int32_t from, end, *ids; /* [end - from] */
    bool state;
    int pins;
};
struct fake_src {
    const int32_t *ids;
    int32_t n; /* it has a state there */
};
struct entry { /* what was kept, as far as it still has to be there */
    int ns;
    int32_t n, ids[LINE];
    bool end; /* a sequence can go on at n */
};
struct world {
    bool stateful;
    int64_t bytes; /* of parts that nobody pins */
    int32_t n_part;
    struct ptree *t;
    struct entry e[ENTRIES];
    int n_entry;
    int64_t n_evict, n_thin, n_hit, n_split;
    struct fake_part *pinned;
};

static const char *const names[] = {NULL, "other"};
static uint64_t seed;

static int32_t rnd(int32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((seed >> 33) % (uint64_t)n);
}

/* ---- the payload ----------------------------------------------------------------------------- */

static int64_t weight(const struct fake_part *p)
{
    return (int64_t)(p->end - p->from) * TOKEN_BYTES + (p->state ? STATE_BYTES : 0);
}

static enum qn_status fake_new(struct world *w, const int32_t *ids, int32_t from, int32_t n,
                               bool state, void **out, struct qn_err *err)
{
    if (fault_point("fake.alloc"))
        return err_set(err, QN_NO_MEMORY, "fake", "no memory");
    struct fake_part *p = calloc(1, sizeof *p);
    p->ids = malloc((size_t)(n - from + 1) * sizeof *p->ids);
    memcpy(p->ids, ids, (size_t)(n - from) * sizeof *p->ids);
    p->from = from;
    p->end = n;
    p->state = state;
    w->bytes += weight(p);
    w->n_part++;
    *out = p;
    return QN_OK;
}

static enum qn_status fake_make(void *self, void *src, int32_t from, int32_t n, void **out,
                                struct qn_err *err)
{
    const struct fake_src *s = src;
    struct world *w = self;
    assert_true(from < n && n <= s->n);
    return fake_new(w, s->ids + from, from, n, w->stateful && n == s->n, out, err);
}

static enum qn_status fake_cut(void *self, const void *of, int32_t from, int32_t n, void **out,
                               struct qn_err *err)
{
    const struct fake_part *p = of;
    assert_true(from >= p->from && from < n && n <= p->end);
    return fake_new(self, p->ids + (from - p->from), from, n, p->state && n == p->end, out, err);
}

static void fake_free(void *self, void *part)
{
    struct world *w = self;
    struct fake_part *p = part;
    if (w->pinned == p)
        w->pinned = NULL;
    else
        w->bytes -= weight(p);
    w->n_part--;
    free(p->ids);
    free(p);
}

static bool fake_anywhere(void *self)
{
    return !((struct world *)self)->stateful;
}

static bool fake_complete(void *self, const void *part)
{
    return !((struct world *)self)->stateful || ((const struct fake_part *)part)->state;
}

static void fake_thin(void *self, void *part)
{
    struct world *w = self;
    struct fake_part *p = part;
    if (p->state && w->pinned != p)
        w->bytes -= STATE_BYTES;
    p->state = false;
}

static int32_t fake_usable(void *self, const void *const *parts, int32_t n_part, int32_t n)
{
    const struct world *w = self;
    int32_t at = 0, usable = 0;
    for (int32_t i = 0; i < n_part; i++) {
        const struct fake_part *p = parts[i];
        assert_int_equal(p->from, at);
        at = p->end;
        if (p->state && p->end <= n)
            usable = p->end;
    }
    assert_true(n <= at);
    return w->stateful ? usable : n;
}

static int64_t fake_idle_all(void *self)
{
    return ((struct world *)self)->bytes;
}

static int64_t fake_idle(void *self, const void *p)
{
    return ((struct world *)self)->pinned == p ? 0 : weight(p);
}

static int64_t fake_idle_end(void *self, const void *p)
{
    return ((const struct fake_part *)p)->state && ((struct world *)self)->pinned != p ? STATE_BYTES
                                                                                       : 0;
}

static bool fake_in_use(void *self, const void *p)
{
    return ((struct world *)self)->pinned == p;
}

static const struct ptree_ops fake_ops = {
    .make = fake_make,
    .part = fake_cut,
    .free = fake_free,
    .anywhere = fake_anywhere,
    .complete = fake_complete,
    .thin = fake_thin,
    .usable = fake_usable,
    .idle_all = fake_idle_all,
    .idle = fake_idle,
    .idle_end = fake_idle_end,
    .in_use = fake_in_use,
};

/* ---- the oracle ------------------------------------------------------------------------------ */

static int32_t common(const int32_t *a, int32_t na, const int32_t *b, int32_t nb)
{
    int32_t i = 0;
    while (i < na && i < nb && a[i] == b[i])
        i++;
    return i;
}

static void oracle_evict(void *self, struct ptree_node *node, bool thin)
{
    struct world *w = self;
    int32_t ids[LINE], from = ptree_node_from(node), end = ptree_node_end(node);
    int ns = *ptree_node_ns(node) != 0;
    ptree_node_line(node, ids);
    for (int i = 0; i < w->n_entry; i++) {
        struct entry *e = &w->e[i];
        int32_t n = e->ns == ns ? common(e->ids, e->n, ids, end) : 0;
        if (thin && n == end && e->n == end)
            e->end = false;
        if (thin || n <= from)
            continue;
        assert_true(n == e->n); /* lines part at nodes, and nothing hangs on a leaf */
        e->n = from;
        e->end = false;
    }
    w->n_evict++;
    w->n_thin += thin;
}

/* Whether b says all that a says. */
static bool covers(const struct entry *b, const struct entry *a)
{
    return a->ns == b->ns && b->n >= a->n && common(a->ids, a->n, b->ids, b->n) == a->n &&
           (!a->end || (b->end && b->n == a->n));
}

/* An entry that is of no use any more, or a new one. */
static struct entry *oracle_place(struct world *w)
{
    for (int i = 0; i < w->n_entry; i++)
        for (int k = 0; k < w->n_entry; k++)
            if (!w->e[i].n || (i != k && covers(&w->e[k], &w->e[i])))
                return &w->e[i];
    assert_true(w->n_entry < ENTRIES);
    return &w->e[w->n_entry++];
}

static void oracle_keep(struct world *w, int ns, const int32_t *ids, int32_t n)
{
    struct entry *e = oracle_place(w);
    e->ns = ns;
    e->n = n;
    e->end = w->stateful;
    memcpy(e->ids, ids, (size_t)n * sizeof *ids);
}

static void oracle_find(const struct world *w, int ns, const int32_t *ids, int32_t n,
                        int32_t *match, int32_t *usable)
{
    *match = *usable = 0;
    for (int i = 0; i < w->n_entry; i++) {
        const struct entry *e = &w->e[i];
        int32_t m = e->ns == ns ? common(e->ids, e->n, ids, n) : 0;
        *match = m > *match ? m : *match;
        if (m == e->n && e->end && m > *usable)
            *usable = m;
    }
    if (!w->stateful)
        *usable = *match;
}

/* ---- operations ------------------------------------------------------------------------------ */

/* A line that begins like one that was kept, mostly. */
static int32_t make_line(const struct world *w, int *ns, int32_t *ids)
{
    int32_t n = 0;
    *ns = rnd(4) == 0;
    if (w->n_entry && rnd(8)) {
        const struct entry *e = &w->e[rnd(w->n_entry)];
        *ns = e->ns;
        n = rnd(3) ? e->n : rnd(e->n + 1);
        memcpy(ids, e->ids, (size_t)n * sizeof *ids);
    }
    int32_t more = rnd(3) ? rnd(20) : rnd(LINE);
    for (; n < LINE && more > 0; more--)
        ids[n++] = rnd(3) ? 1 : rnd(3);
    return n;
}

static void check_found(const struct world *w, const struct ptree_found *f, const int32_t *ids)
{
    int32_t at = 0;
    for (int32_t i = 0; i < f->n_part; i++) {
        const struct fake_part *p = f->parts[i];
        assert_int_equal(p->from, at);
        int32_t end = p->end < f->n_usable ? p->end : f->n_usable;
        if (end > at)
            assert_memory_equal(p->ids, ids + at, (size_t)(end - at) * sizeof *ids);
        at = p->end;
    }
    assert_true(at >= f->n_usable);
}

static void do_find(struct world *w)
{
    int32_t ids[LINE], match, usable;
    int ns;
    int32_t n = make_line(w, &ns, ids);
    struct ptree_found f;
    ptree_find(w->t, &(struct ptree_line){names[ns], ids, n}, n, &f);
    oracle_find(w, ns, ids, n, &match, &usable);
    assert_int_equal(f.n_match, match);
    assert_int_equal(f.n_usable, usable);
    check_found(w, &f, ids);
    w->n_hit += usable > 0;
    if (usable && !w->pinned && rnd(4) == 0) { /* somebody goes on from there for a while */
        w->pinned = (struct fake_part *)f.parts[rnd(f.n_part)];
        w->bytes -= weight(w->pinned);
    }
}

static void unpin(struct world *w)
{
    if (w->pinned)
        w->bytes += weight(w->pinned);
    w->pinned = NULL;
}

static void do_keep(struct world *w)
{
    int32_t ids[LINE];
    int ns;
    int32_t n = make_line(w, &ns, ids);
    struct qn_err err;
    struct fake_src src = {ids, n};
    if (n)
        oracle_keep(w, ns, ids, n); /* first: what goes to make room may be this */
    CHECK_OK(ptree_keep(w->t, &(struct ptree_line){names[ns], ids, n}, &src, &err), err);
}

static void do_add(struct world *w)
{
    int32_t ids[LINE], match, usable;
    int ns;
    int32_t n = make_line(w, &ns, ids), from = n ? rnd(n) : 0;
    struct qn_err err;
    void *part = NULL;
    if (!n)
        return;
    oracle_find(w, ns, ids, n, &match, &usable);
    fake_new(w, ids + from, from, n, w->stateful, &part, &err);
    enum qn_status st = ptree_add(w->t, &(struct ptree_line){names[ns], ids, n}, from, part, &err);
    if (st == QN_OK)
        oracle_keep(w, ns, ids, n);
    else
        assert_true(st == QN_NOT_FOUND && match < from);
    w->n_split += st == QN_OK && match < n;
}

struct census {
    const struct world *w;
    int64_t n, tokens;
};

static void count_node(void *arg, struct ptree_node *n)
{
    struct census *c = arg;
    const struct fake_part *p = ptree_node_part(n);
    assert_int_equal(p->from, ptree_node_from(n));
    assert_int_equal(p->end, ptree_node_end(n));
    assert_true(p->end > p->from);
    assert_int_equal(ptree_node_good(n), !c->w->stateful || p->state);
    c->n++;
    c->tokens += p->end - p->from;
}

static void check_tree(struct world *w, int64_t limit)
{
    struct ptree_stats st;
    struct census c = {.w = w};
    ptree_each(w->t, count_node, &c);
    ptree_stats(w->t, &st);
    assert_int_equal(c.n, st.n_node);
    assert_int_equal(c.n, w->n_part);
    assert_int_equal(c.tokens, st.n_token);
    assert_int_equal(st.kept - st.evicted, st.n_token);
    assert_true(w->bytes <= limit);
}

static int64_t n_operations(void)
{
    const char *v = getenv("QUERN_CACHE_OPS");
    return v ? atoll(v) : 20000;
}

/* Half of the unused may go. */
static bool may_go(void *arg, struct ptree_node *leaf)
{
    const struct world *w = arg;
    assert_true(ptree_node_leaf(leaf));
    assert_false(fake_ops.in_use(arg, ptree_node_part(leaf)));
    return (ptree_node_from(leaf) + w->n_part) % 2 == 0;
}

static void run_random(bool stateful, int64_t limit)
{
    struct world *w = calloc(1, sizeof *w);
    struct qn_err err;
    const char *v = getenv("QUERN_CACHE_SEED");
    seed = 7 + (uint64_t)limit + stateful + (v ? strtoull(v, NULL, 10) << 32 : 0);
    w->stateful = stateful;
    CHECK_OK(ptree_create(&fake_ops, w, limit, &w->t, &err), err);
    ptree_set_tier(w->t, &(struct ptree_tier){.self = w, .evict = oracle_evict});
    for (int64_t i = 0; i < n_operations(); i++) {
        int what = rnd(16);
        if (what < 6)
            do_find(w);
        else if (what < 11)
            do_keep(w);
        else if (what < 13)
            do_add(w);
        else if (what == 13)
            unpin(w);
        else if (what == 14 && rnd(8) == 0)
            ptree_trim(w->t, limit / 2);
        else if (what == 15 && rnd(8) == 0) {
            struct ptree_stats st;
            ptree_stats(w->t, &st);
            uint64_t ago = (uint64_t)rnd(60), now = ptree_clock(w->t);
            int64_t left = st.n_token - ptree_drop_unused(w->t, now - ago % (now + 1), may_go, w);
            ptree_stats(w->t, &st);
            assert_int_equal(st.n_token, left);
        }
        if (i % 16 == 0) {
            ptree_trim(w->t, limit);
            check_tree(w, limit);
        }
    }
    assert_true(w->n_evict > 20 && w->n_hit > 100 && w->n_split > 20);
    assert_true(!stateful || w->n_thin > 20);
    unpin(w);
    ptree_trim(w->t, 0);
    check_tree(w, 0);
    ptree_free(w->t);
    assert_int_equal(w->n_part, 0);
    assert_int_equal(w->bytes, 0);
    free(w);
}

static void test_random(void **state)
{
    run_random(false, 20000);
    run_random(false, 3000);
    run_random(true, 20000);
    run_random(true, 6000);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void fill(struct world *w, enum qn_status *worst)
{
    int32_t ids[LINE];
    for (int32_t i = 0; i < LINE; i++)
        ids[i] = i;
    static const int32_t lens[] = {100, 200, 150, 200};
    for (int k = 0; k < 4; k++) {
        struct fake_src src = {ids, lens[k]};
        struct qn_err err;
        if (k == 3)
            ids[120] = -1; /* parts from the first line */
        enum qn_status st = ptree_keep(w->t, &(struct ptree_line){"a", ids, lens[k]}, &src, &err);
        *worst = st != QN_OK ? st : *worst;
    }
}

/* A keep that fails leaves a sound tree, whose limit can still be kept. */
static void walk_faults(const char *point)
{
    for (int64_t nth = 1;; nth++) {
        struct world *w = calloc(1, sizeof *w);
        struct qn_err err;
        enum qn_status worst = QN_OK;
        w->stateful = true;
        CHECK_OK(ptree_create(&fake_ops, w, 1 << 20, &w->t, &err), err);
        fault_arm(point, nth);
        fill(w, &worst);
        int64_t hits = fault_disarm();
        check_tree(w, 1 << 20);
        struct ptree_stats st;
        ptree_stats(w->t, &st);
        assert_int_equal(st.lost, worst == QN_NO_MEMORY);
        ptree_free(w->t);
        assert_int_equal(w->n_part, 0);
        free(w);
        if (hits < nth)
            break;
        if (strcmp(point, "fake.alloc") == 0) /* without a list of parts a keep goes on */
            assert_int_equal(worst, QN_NO_MEMORY);
    }
}

static void test_faults(void **state)
{
    walk_faults("fake.alloc");
    walk_faults("cache.alloc");
}

/* Without memory for a list of candidates something goes all the same. */
static void test_trim_without_memory(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    struct qn_err err;
    enum qn_status st = QN_OK;
    CHECK_OK(ptree_create(&fake_ops, w, 1 << 20, &w->t, &err), err);
    fill(w, &st);
    assert_int_equal(st, QN_OK);
    fault_arm_from("cache.alloc", 1);
    ptree_trim(w->t, 0);
    fault_disarm();
    assert_int_equal(w->bytes, 0);
    ptree_free(w->t);
    free(w);
}

/* ---- who goes first -------------------------------------------------------------------------- */

static void keep_range(struct world *w, int32_t first, int32_t n)
{
    int32_t ids[LINE];
    struct qn_err err;
    for (int32_t i = 0; i < n; i++)
        ids[i] = first + i;
    struct fake_src src = {ids, n};
    CHECK_OK(ptree_keep(w->t, &(struct ptree_line){NULL, ids, n}, &src, &err), err);
}

static int32_t usable_of(struct world *w, int32_t first, int32_t n)
{
    int32_t ids[LINE];
    struct ptree_found f;
    for (int32_t i = 0; i < n; i++)
        ids[i] = first + i;
    ptree_find(w->t, &(struct ptree_line){NULL, ids, n}, n, &f);
    return f.n_usable;
}

static void test_value(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    struct qn_err err;
    w->stateful = true;
    CHECK_OK(ptree_create(&fake_ops, w, 1 << 20, &w->t, &err), err);
    keep_range(w, 1000, 20);  /* 800 bytes for 20 tokens */
    keep_range(w, 2000, 200); /* 2600 for 200 */
    ptree_trim(w->t, w->bytes - 1);
    assert_int_equal(usable_of(w, 1000, 20), 0);
    assert_int_equal(usable_of(w, 2000, 200), 200);
    /* A checkpoint on the way, close to the end, goes before the end does, the tokens stay. */
    keep_range(w, 2000, 210);
    ptree_trim(w->t, w->bytes - 1);
    assert_int_equal(usable_of(w, 2000, 205), 200);
    assert_int_equal(usable_of(w, 2000, 210), 200);
    /* Of two that are alike, the one used longer ago. */
    keep_range(w, 5000, 200);
    for (int i = 0; i < 3; i++)
        usable_of(w, 2000, 200);
    ptree_trim(w->t, w->bytes - 1);
    assert_int_equal(usable_of(w, 5000, 200), 0);
    assert_int_equal(usable_of(w, 2000, 200), 200);
    ptree_free(w->t);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_trim_without_memory),
        cmocka_unit_test(test_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
