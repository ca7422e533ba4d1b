/* test_bench_quantile.c - statistics by hand, prompts by their seed, arrivals by their mean. */
#include <math.h>

#include "../check.h"
#include "bench/load.h"
#include "bench/prompt.h"
#include "bench/quantile.h"

static void test_quantiles(void **state)
{
    const double v[] = {4, 1, 3, 2};
    assert_float_equal(quantile_of(v, 4, 0), 1, 0);
    assert_float_equal(quantile_of(v, 4, 0.5), 2.5, 1e-12);
    assert_float_equal(quantile_of(v, 4, 0.9), 3.7, 1e-12);
    assert_float_equal(quantile_of(v, 4, 1), 4, 0);
    assert_float_equal(quantile_of(v, 1, 0.99), 4, 0);
    assert_true(isnan(quantile_of(v, 0, 0.5)));
    assert_float_equal(v[0], 4, 0); /* left as it was */
}

static void test_spread(void **state)
{
    const double v[] = {10, 11, 11.4, 10.5, 10}, wide[] = {10, 11.51};
    struct spread s = spread_of(v, 5);
    assert_float_equal(s.median, 10.5, 1e-12);
    assert_float_equal(s.min, 10, 0);
    assert_float_equal(s.max, 11.4, 0);
    assert_float_equal(s.mean, 10.58, 1e-12);
    assert_float_equal(s.mad, 0.5, 1e-12);
    assert_true(s.stable);
    assert_false(spread_of(wide, 2).stable);
    assert_int_equal(spread_of(v, 0).n, 0);
}

static void test_fairness(void **state)
{
    const double even[] = {3, 3, 3, 3}, one[] = {0, 0, 5, 0}, some[] = {1, 2, 3};
    assert_float_equal(fairness_of(even, 4), 1, 1e-12);
    assert_float_equal(fairness_of(one, 4), 0.25, 1e-12);
    assert_float_equal(fairness_of(some, 3), 36.0 / 42, 1e-12);
    assert_true(isnan(fairness_of(one, 2)));
}

static void test_nonces(void **state)
{
    struct nonce a = nonce_make("s", "decode", 0, 1);
    assert_string_equal(a.z, "cb414c66db43");
    assert_string_not_equal(a.z, nonce_make("s", "decode", 1, 1).z);
    assert_string_not_equal(a.z, nonce_make("t", "decode", 0, 1).z);
    assert_string_not_equal(a.z, nonce_make("s", "decode", 0, 2).z);
}

static void test_filler(void **state)
{
    struct buf a = BUF_INIT, b = BUF_INIT, again = BUF_INIT;
    prompt_filler(&a, "one", 1000);
    prompt_filler(&b, "two", 1000);
    prompt_filler(&again, "one", 1000);
    assert_true(a.n >= 3600 && a.n < 3620);
    assert_true(str_eq(buf_str(&a), buf_str(&again)));
    size_t same = 0; /* they part at the first byte: no common prefix to be cached */
    while (a.p[same] == b.p[same])
        same++;
    assert_int_equal(same, 0);
    buf_free(&a);
    buf_free(&b);
    buf_free(&again);
}

static void test_arrivals(void **state)
{
    static double at[20000];
    const int n = 20000;
    load_arrivals(7, 4, n, at);
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        double gap = at[i] - (i ? at[i - 1] : 0);
        assert_true(gap > 0);
        sum += gap;
        squares += gap * gap;
    }
    double mean = sum / n, var = squares / n - mean * mean;
    assert_float_equal(mean, 0.25, 0.005); /* an exponential's deviation is its mean */
    assert_float_equal(sqrt(var), 0.25, 0.01);
    double first = at[0];
    load_arrivals(7, 4, 1, at);
    assert_float_equal(at[0], first, 0);
    load_arrivals(8, 4, 1, at);
    assert_true(at[0] != first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles), cmocka_unit_test(test_spread),
        cmocka_unit_test(test_fairness),  cmocka_unit_test(test_nonces),
        cmocka_unit_test(test_filler),    cmocka_unit_test(test_arrivals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
