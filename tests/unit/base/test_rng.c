/*
 * test_rng.c - draws are pure functions of their three numbers, uniform, and unlike each other
 * along every axis. Clocks are checked here too.
 */
#include "../check.h"

#include "base/clock.h"
#include "base/rng.h"

#include <math.h>

static void draws_are_pure_and_fixed(void **state)
{
    /* Sampled text is reproducible across releases: these values may never change. */
    assert_true(rng_u64(0, 0, 0) == 0x238275BC38FCBE91u);
    assert_true(rng_u64(1, 2, 3) == 0x8568F7C4E53B5A35u);
    assert_true(rng_u64(UINT64_MAX, UINT64_MAX, UINT64_MAX) == 0x179F01F0D2FBA97Au);
    assert_true(rng_u64(1, 2, 3) != rng_u64(2, 1, 3));
    assert_true(rng_u64(1, 2, 3) != rng_u64(1, 3, 2));
}

/* Chi-square over 64 bins of 64,000 draws: 63 degrees of freedom, mean 63, s.d. 11.2. */
static double chi_square(int axis)
{
    int bins[64] = {0};
    for (uint64_t i = 0; i < 64000; i++) {
        uint64_t k[3] = {7, 7, 7};
        k[axis] = i;
        double u = rng_unit(k[0], k[1], k[2]);
        assert_true(u >= 0 && u < 1);
        bins[(int)(u * 64)]++;
    }
    double x = 0;
    for (int i = 0; i < 64; i++)
        x += (bins[i] - 1000.0) * (bins[i] - 1000.0) / 1000.0;
    return x;
}

static void uniform_along_every_axis(void **state)
{
    for (int axis = 0; axis < 3; axis++) {
        double x = chi_square(axis);
        if (!(x > 20 && x < 130))
            fail_msg("axis %d: chi-square %.1f", axis, x);
    }
}

/* Neighbouring keys differ in about half of their bits. */
static void neighbours_are_unlike(void **state)
{
    double bits = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t base = rng_u64(i, i * 3, i * 7);
        bits += __builtin_popcountll(base ^ rng_u64(i + 1, i * 3, i * 7));
        bits += __builtin_popcountll(base ^ rng_u64(i, i * 3 + 1, i * 7));
        bits += __builtin_popcountll(base ^ rng_u64(i, i * 3, i * 7 + 1));
    }
    assert_true(fabs(bits / 9000 - 32) < 0.5);
}

static void fresh_seeds_differ(void **state)
{
    uint64_t a = rng_seed_fresh(), b = rng_seed_fresh(), c = rng_seed_fresh();
    assert_true(a != b && b != c && a != c);
}

static void clocks_advance(void **state)
{
    int64_t us = clock_us(), ns = clock_ns();
    assert_true(ns / 1000 >= us);
    int64_t before = ns;
    while (clock_ns() == before)
        ;
    assert_true(clock_ns() > before);
    assert_true(clock_unix() > 1600000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_pure_and_fixed), cmocka_unit_test(uniform_along_every_axis),
        cmocka_unit_test(neighbours_are_unlike),    cmocka_unit_test(fresh_seeds_differ),
        cmocka_unit_test(clocks_advance),
    };
    return cmocka_run_group_tests_name("rng", tests, NULL, NULL);
}
