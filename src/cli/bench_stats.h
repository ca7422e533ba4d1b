/*
 * bench_stats.h - robust statistics of repeated measurements. Pure functions.
 */
#ifndef CLI_BENCH_STATS_H
#define CLI_BENCH_STATS_H

struct bench_stats {
    double median, min, max;
    double mad; /* median of the absolute deviations from the median, unscaled */
};

#define BENCH_SAMPLE_MAX 1000
/* n in 1..BENCH_SAMPLE_MAX; v is left as it is. n = 0 gives zeros. */
struct bench_stats bench_stats_of(const double *v, int n);

#endif
