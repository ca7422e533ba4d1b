/*
 * noise.h - whether two measured figures differ, or only as repeated values of one thing do. One
 * rule for reports, comparisons and the history. Pure functions.
 *
 * The rule: two figures differ when the ranges of their values do not touch, and when values that
 * scatter so would rarely (5 % over all the figures that are looked at) lie so far apart by chance.
 * How a figure scatters is judged from its own range and, since few values say little about that,
 * from how such figures usually scatter, which counts like four more values.
 */
#ifndef BENCH_NOISE_H
#define BENCH_NOISE_H

#include <stdbool.h>
#include <stddef.h>

struct noise_figure {
    size_t n; /* values */
    double median, min, max;
};

/* Standard deviation of the values' logarithms (0.05: they scatter by about 5 %), from the range;
 * NAN for fewer than two values, or when one is not above 0. */
double noise_of(const struct noise_figure *f);

/* What is usual where nothing better is known: of time and speed; of memory and tokens. */
#define NOISE_TIME  0.10
#define NOISE_OTHER 0.02
/* The median of such deviations, at least NOISE_OTHER; NOISE_TIME for n = 0. Leaves v as it is. */
double noise_usual(const double *v, size_t n);

/* n_test: how many figures are looked at together. */
bool noise_apart(const struct noise_figure *a, const struct noise_figure *b, double usual,
                 size_t n_test);

/* ---- for tests ---- */
/* Student's t: the chance of a value as far from 0 as t on either side. */
double noise_chance(double t, double freedom);

#endif
