/*
 * test_spec.c - the parts of speculation that need no model: the index of what was said (against a
 * search by hand), and how many guesses are worth verifying.
 */
#include <math.h>
#include <string.h>

#include "../check.h"
#include "base/rng.h"
#include "sched/spec_policy.h"

/* ---- the index ------------------------------------------------------------------------------ */

enum { LONG = 3000, MOST = 6 };

static int32_t agree(const int32_t *ids, int32_t a, int32_t b)
{
    int32_t n = 0;
    while (n < 32 && n <= a && ids[a - n] == ids[b - n])
        n++;
    return n;
}

/* The longest match of two tokens or more, the newest of equals, by looking everywhere. */
static int32_t by_hand(const int32_t *ids, int32_t n, int32_t *match)
{
    int32_t best = -1;
    *match = 1;
    for (int32_t at = n - 2; at >= 0; at--) {
        int32_t len = agree(ids, at, n - 1);
        if (len > *match) {
            *match = len;
            best = at;
        }
    }
    return best;
}

/* Text of n_vocab tokens that copies itself now and then. */
static void make_text(int32_t *ids, uint64_t seed, uint32_t n_vocab)
{
    for (int32_t i = 0; i < LONG;) {
        uint64_t r = rng_u64(seed, (uint64_t)i, 0);
        int32_t from = i > 50 && r % 3 == 0 ? (int32_t)(r / 3 % (uint64_t)(i - 40)) : -1;
        for (int32_t k = 0; k < 1 + (int32_t)(r % 37) && i < LONG; k++, i++)
            ids[i] = from >= 0 ? ids[from + k] : (int32_t)(rng_u64(seed, (uint64_t)i, 1) % n_vocab);
    }
}

/* Few tokens make long chains, of which the newest are looked at: then a match may be shorter than
 * the best, but is one. */
static void check_text(uint64_t seed, uint32_t n_vocab, bool all)
{
    static int32_t ids[LONG];
    void *ctx = NULL;
    struct qn_err err;
    int32_t found = 0, missed = 0;
    make_text(ids, seed, n_vocab);
    CHECK_OK(drafter_ngram.open(NULL, NULL, &ctx, &err), err);
    for (int32_t n = 1; n <= LONG; n += 1 + (int32_t)(rng_u64(seed, (uint64_t)n, 2) % 4)) {
        int32_t out[MOST], match, at = by_hand(ids, n, &match);
        uint8_t sure[MOST];
        struct draft d = {
            .ctx = ctx, .ids = ids, .n_ids = n, .most = MOST, .out = out, .sure = sure};
        CHECK_OK(drafter_ngram.draft(NULL, &d, 1, &err), err);
        if (all && match == 2 && d.n == 0) { /* another pair of the same hash is newer */
            missed++;
            continue;
        }
        assert_int_equal(d.n > 0, at >= 0);
        for (int32_t k = 0; all && k < d.n; k++) {
            int32_t next = at + 1 + k;
            assert_int_equal(out[k], next < n ? ids[next] : out[next - n]);
        }
        for (int32_t k = 1; k < d.n; k++)
            assert_true(sure[k] >= sure[k - 1] && sure[k] < SPEC_SURE);
        found += d.n > 0;
    }
    assert_true(found > 100 && missed < found / 10);
    drafter_ngram.close(NULL, ctx);
}

static void test_ngram(void **state)
{
    for (uint64_t seed = 0; seed < 6; seed++) {
        check_text(seed, 100000, true);
        check_text(seed, 700, true);
        check_text(seed, 3, false);
    }
}

/* ---- the choice ----------------------------------------------------------------------------- */

static struct spec_cost cost_of(double row)
{
    struct spec_cost c = {0};
    for (int i = 0; i < 400; i++) {
        int32_t rows = i % 2 ? 1 : 2 + i / 2 % 7;
        spec_cost_note(&c, rows, (int64_t)(10000 * (1 + row * (rows - 1))));
    }
    return c;
}

static void test_cost(void **state)
{
    for (int k = 0; k < 4; k++) {
        double row = (const double[]){0.02, 0.15, 0.5, 1.0}[k];
        struct spec_cost c = cost_of(row);
        for (int32_t rows = 2; rows < 9; rows++)
            assert_float_equal(spec_cost_rows(&c, rows) / (1 + row * (rows - 1)), 1, 0.03);
        assert_float_equal(c.base_us, 10000, 500);
        assert_true(spec_cost_rows(&c, 30) > spec_cost_rows(&c, 8));
        /* All twice as slow: only the base moves. */
        spec_cost_note(&c, 4, (int64_t)(10000 * (1 + row * 3)));
        for (int i = 0; i < 100; i++)
            spec_cost_note(&c, 4, (int64_t)(20000 * (1 + row * 3)));
        assert_float_equal(spec_cost_rows(&c, 4), 1 + row * 3, 0.1);
        assert_float_equal(c.base_us, 20000, 1500);
    }
}

static void test_hiccup(void **state)
{
    struct spec_cost c = cost_of(0.1);
    double was = spec_cost_rows(&c, 4);
    spec_cost_note(&c, 1, 10000);
    spec_cost_note(&c, 4, 5000000);
    assert_true(spec_cost_rows(&c, 4) < was * 1.3);
}

/* Steps' times that are off by up to a sixth either way: costs are learned all the same, those of
 * rows that hardly came from their neighbours. */
static void test_noise(void **state)
{
    struct spec_cost c = {0};
    for (int i = 0; i < 600; i++) {
        uint64_t r = rng_u64(77, (uint64_t)i, 0);
        int32_t rows = r % 4 == 0 ? 1 : 2 + (int32_t)(r / 4 % 8);
        if (rows == 6 && i > 60)
            rows = 1;
        double noise = exp(((double)(r >> 40) / (double)(1 << 24) - 0.5) / 3);
        spec_cost_note(&c, rows, (int64_t)(3000 * (1 + 0.1 * (rows - 1)) * noise));
    }
    for (int32_t rows = 2; rows < 10; rows++)
        assert_float_equal(spec_cost_rows(&c, rows) / (1 + 0.1 * (rows - 1)), 1, 0.08);
}

static void test_choose(void **state)
{
    static const struct {
        double row, guess, p;
        bool runs_cost;
        int32_t least, most;
    } t[] = {
        {0.05, 0, 0.95, false, 7, 8}, /* cheap and sure: all that are known to be cheap */
        {0.05, 0, 0.01, false, 0, 0}, /* never right: none */
        {0.3, 0, 0.6, false, 1, 3},   /* in between: some */
        {1.0, 0, 0.9, false, 0, 0},   /* a row costs a whole step: none */
        {0.05, 0.5, 0.7, true, 0, 1}, /* guesses cost half a step */
        {0.05, 0.02, 0.9, true, 4, 8},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        struct spec_cost c = cost_of(t[i].row);
        double p[8];
        for (int j = 0; j < 8; j++)
            p[j] = t[i].p;
        struct spec_lane l = {.p = p, .n = 8};
        c.guess = c.more = t[i].guess;
        spec_choose(&c, &l, 1, &(struct spec_bounds){32, t[i].runs_cost ? SPEC_DRAFT_MAX : 0, 0});
        if (l.take < t[i].least || l.take > t[i].most)
            fail_msg("case %zu: %d guesses", i, l.take);
    }
}

/* What guesses took is paid for whatever is chosen: the dearer they were, the more of them are
 * worth a row. */
static void test_spent(void **state)
{
    struct spec_cost c = cost_of(0.1);
    const double p[8] = {0.9, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5};
    struct spec_lane l = {.p = p, .n = 8};
    int32_t was = 0, free_of_cost = 0;
    for (int i = 0; i < 5; i++) {
        struct spec_bounds b = {.rows = 32, .spent = 0.5 * i};
        double rate = spec_choose(&c, &l, 1, &b);
        assert_true(l.take >= was && rate >= 1 / (1 + b.spent));
        was = l.take;
        free_of_cost = i ? free_of_cost : l.take;
    }
    assert_true(was > free_of_cost);
}

/* The chance below which one guess more does not pay: its run, shared by the lanes that guess, and
 * its row, against what the time is worth. */
static void test_least(void **state)
{
    struct spec_cost c = cost_of(0.1);
    const double p[4] = {0.8, 0.8, 0.8, 0.8};
    struct spec_lane l[2] = {{p, 4, 4}, {p, 4, 0}};
    c.more = 0.3;
    assert_float_equal(spec_least(&c, l, 1, 2), 2 * (0.3 + 0.1) / 0.8, 0.02);
    l[1].take = 4;
    assert_float_equal(spec_least(&c, l, 2, 2), 2 * (0.15 + 0.1) / 0.8, 0.05);
    l[0].take = l[1].take = 0;
    assert_float_equal(spec_least(&c, l, 2, 2), 1, 1e-9);
}

/* Calls of different lengths tell the first run's time from the others'. */
static void test_runs(void **state)
{
    struct spec_cost c = cost_of(0.1);
    assert_float_equal(spec_cost_runs(&c, 3), 0, 1e-9);
    for (int i = 0; i < 2000; i++) {
        int32_t runs = 1 + i % 7;
        spec_cost_guess(&c, runs, (int64_t)(c.base_us * (0.4 + 0.15 * (runs - 1))));
    }
    for (int32_t runs = 1; runs < 9; runs++)
        assert_float_equal(spec_cost_runs(&c, runs), 0.4 + 0.15 * (runs - 1), 0.03);
    spec_cost_guess(&c, 4, (int64_t)(c.base_us * 100)); /* a hiccup */
    assert_true(spec_cost_runs(&c, 4) < 0.85 * 1.15);
}

static void test_may_pay(void **state)
{
    struct spec_cost c = cost_of(0.1);
    assert_true(spec_may_pay(&c, 1));
    c.guess = c.more = 0.5;
    assert_true(spec_may_pay(&c, 8));
    c.guess = c.more = 0.95; /* as dear as the step itself */
    assert_false(spec_may_pay(&c, 8));
    c.more = 0.1; /* but for the first */
    assert_false(spec_may_pay(&c, 1));
    assert_true(spec_may_pay(&c, 8));
}

/* The surer lane gets the rows, and no more than there are. */
static void test_share(void **state)
{
    struct spec_cost c = cost_of(0.05);
    const double sure[8] = {0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95};
    const double poor[8] = {0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3};
    struct spec_lane l[3] = {{.p = poor, .n = 8}, {.p = sure, .n = 8}, {.p = sure, .n = 0}};
    spec_choose(&c, l, 3, &(struct spec_bounds){.rows = 4});
    assert_int_equal(l[1].take, 4);
    assert_int_equal(l[0].take + l[2].take, 0);
    spec_choose(&c, l, 3, &(struct spec_bounds){0});
    assert_int_equal(l[0].take + l[1].take + l[2].take, 0);
}

static void test_odds(void **state)
{
    struct spec_odds own = {0}, all = {0};
    assert_float_equal(spec_odds_of(&own, &all, 2, 0.5), 0.5, 1e-6);
    for (int i = 0; i < 200; i++)
        spec_odds_note(&all, 2, i % 4 != 0, 0.98F);
    assert_float_equal(spec_odds_of(&own, &all, 2, 0.5), 0.75, 0.06);
    for (int i = 0; i < 50; i++)
        spec_odds_note(&own, 2, false, 0.9F);
    assert_true(spec_odds_of(&own, &all, 2, 0.5) < 0.3);
    assert_float_equal(spec_odds_of(&own, &all, 3, 0.4), 0.4, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ngram),  cmocka_unit_test(test_cost),
        cmocka_unit_test(test_hiccup), cmocka_unit_test(test_choose),
        cmocka_unit_test(test_share),  cmocka_unit_test(test_odds),
        cmocka_unit_test(test_noise),  cmocka_unit_test(test_may_pay),
        cmocka_unit_test(test_spent),  cmocka_unit_test(test_least),
        cmocka_unit_test(test_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
