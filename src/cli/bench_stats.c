/*
 * bench_stats.c - see bench_stats.h.
 */
#include "cli/bench_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double sort_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n & 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

struct bench_stats bench_stats_of(const double *v, int n)
{
    double t[BENCH_SAMPLE_MAX];
    struct bench_stats s = {0};
    if (n <= 0)
        return s;
    if (n > BENCH_SAMPLE_MAX)
        n = BENCH_SAMPLE_MAX;
    memcpy(t, v, (size_t)n * sizeof *t);
    s.median = sort_median(t, n);
    s.min = t[0];
    s.max = t[n - 1];
    for (int i = 0; i < n; i++)
        t[i] = fabs(v[i] - s.median);
    s.mad = sort_median(t, n);
    return s;
}
