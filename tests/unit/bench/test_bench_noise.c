/*
 * test_bench_noise.c - what counts as a difference: Student's t against known values; two runs of
 * one thing are hardly ever told apart, a real difference is; few values are not trusted.
 */
#include <math.h>

#include "../check.h"
#include "base/rng.h"
#include "bench/noise.h"
#include "bench/quantile.h"

/* By numerical integration of the density. */
static void test_student(void **state)
{
    static const double cases[][3] = {{1, 1, 0.5},          {2, 4, 0.116116524},
                                      {4.604095, 4, 0.01},  {2.5, 10, 0.0314468442},
                                      {3, 30, 0.005389964}, {12, 6, 2.03074e-05}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_float_equal(noise_chance(cases[i][0], cases[i][1]), cases[i][2], cases[i][2] * 1e-5);
    assert_float_equal(noise_chance(0, 5), 1, 1e-9);
    assert_float_equal(noise_chance(-2, 4), noise_chance(2, 4), 0);
}

static void test_own_noise(void **state)
{
    const struct noise_figure two = {2, 105, 100, 110}, one = {1, 5, 5, 5}, none = {5, 1, 0, 2};
    assert_float_equal(noise_of(&two), log(1.1) / 1.128, 1e-12);
    assert_true(isnan(noise_of(&one)));
    assert_true(isnan(noise_of(&none)));
    const double v[] = {0.3, 0.1, 0.05}, small[] = {0.001};
    assert_float_equal(noise_usual(v, 3), 0.1, 0);
    assert_float_equal(noise_usual(small, 1), NOISE_OTHER, 0);
    assert_float_equal(noise_usual(NULL, 0), NOISE_TIME, 0);
}

static void test_rule(void **state)
{
    static const struct {
        struct noise_figure a, b;
        double usual;
        size_t n_test;
        bool apart;
    } cases[] = {
        /* ten values each, 4 % of spread, 20 % apart: a difference, also among a hundred */
        {{10, 100, 98, 102}, {10, 120, 118, 122}, 0.03, 100, true},
        /* the same, but the ranges touch */
        {{10, 100, 98, 119}, {10, 120, 118, 122}, 0.03, 1, false},
        /* one value each: 5 % is nothing, ten times is something */
        {{1, 100, 100, 100}, {1, 105, 105, 105}, 0.03, 1, false},
        {{1, 100, 100, 100}, {1, 1000, 1000, 1000}, 0.03, 20, true},
        /* two values that happened to lie close together do not make 4 % a difference */
        {{2, 100, 99.99, 100.01}, {2, 104, 103.99, 104.01}, 0.05, 30, false},
        /* a peer three times as slow, two values each */
        {{2, 2527, 2393, 2661}, {2, 7792, 7517, 8067}, 0.05, 60, true},
        /* counts that may be 0 */
        {{3, 0, 0, 0}, {3, 622, 620, 624}, 0.02, 60, true},
        {{1, 0, 0, 0}, {1, 5, 5, 5}, 0.02, 1, false},
        {{2, 0, 0, 0}, {2, 0, 0, 0}, 0.02, 1, false},
        {{0, 0, 0, 0}, {2, 5, 5, 5}, 0.02, 1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool one = noise_apart(&cases[i].a, &cases[i].b, cases[i].usual, cases[i].n_test);
        bool other = noise_apart(&cases[i].b, &cases[i].a, cases[i].usual, cases[i].n_test);
        if (one != cases[i].apart || other != one)
            fail_msg("case %zu: %d and %d, expected %d", i, one, other, cases[i].apart);
    }
}

/* n values around 100 with a spread of sd, roughly normal. */
static struct noise_figure draw(uint64_t stream, uint64_t at, size_t n, double shift)
{
    double v[16];
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint64_t k = 0; k < 12; k++)
            sum += rng_unit(7, stream, (at * 16 + i) * 12 + k);
        v[i] = 100 * (1 + shift) * exp(0.05 * (sum - 6));
    }
    struct spread s = spread_of(v, n);
    return (struct noise_figure){n, s.median, s.min, s.max};
}

/* Thousand times thirty figures of one and the same thing: in at most 5 % of the comparisons
 * anything is called different. A real 60 % is seen nearly always. */
static void test_same_thing_twice(void **state)
{
    static const size_t sizes[] = {2, 3, 6, 10};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int wrong = 0, missed = 0;
        for (uint64_t run = 0; run < 1000; run++) {
            bool any = false;
            for (uint64_t i = 0; i < 30; i++) {
                struct noise_figure a = draw(1, run * 30 + i, sizes[k], 0);
                struct noise_figure b = draw(2, run * 30 + i, sizes[k], 0);
                any |= noise_apart(&a, &b, 0.05, 30);
            }
            struct noise_figure a = draw(3, run, sizes[k], 0), b = draw(4, run, sizes[k], 0.6);
            wrong += any;
            missed += !noise_apart(&a, &b, 0.05, 30);
        }
        if (wrong > 70 || missed > 50)
            fail_msg("%zu values: %d of 1000 wrong, %d missed", sizes[k], wrong, missed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_student),
        cmocka_unit_test(test_own_noise),
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_same_thing_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
