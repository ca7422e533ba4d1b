/*
 * quantile.h - what repeated measurements are reduced to. Pure functions; the input is left as it
 * is. A quantile lies between the two nearest ordered values in proportion (the 7th of Hyndman and
 * Fan, the default of numpy and R): of 1, 2, 3, 4 the median is 2.5 and p90 is 3.7.
 */
#ifndef BENCH_QUANTILE_H
#define BENCH_QUANTILE_H

#include <stdbool.h>
#include <stddef.h>

#define STABLE_RATIO 1.15 /* max/min above this and a figure is marked as unstable */

struct spread {
    size_t n;
    double median, min, max, mean;
    double mad;  /* median of the absolute deviations from the median */
    bool stable; /* max/min is at most STABLE_RATIO; true for fewer than two values */
};

/* q in 0..1; NAN for n = 0 or out of memory. */
double quantile_of(const double *v, size_t n, double q);
struct spread spread_of(const double *v, size_t n); /* n = 0: zeros, stable */
/* Jain's index of how evenly a sum is shared: 1 = all alike, 1/n = one has everything. NAN for
 * n = 0, or when all are 0. */
double fairness_of(const double *v, size_t n);

/* A growable list of values; {0} to begin with. */
struct series {
    double *v;
    size_t n, cap;
};
bool series_add(struct series *s, double x); /* false when out of memory; NAN is not added */
void series_free(struct series *s);

#endif
