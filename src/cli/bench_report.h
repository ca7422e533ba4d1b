/*
 * bench_report.h - the results of `quern bench` as data, and their three printed forms.
 */
#ifndef CLI_BENCH_REPORT_H
#define CLI_BENCH_REPORT_H

#include "base/buf.h"
#include "bench/quantile.h"
#include "cli/bench_mask.h"
#include "quern.h"

#define BENCH_SAMPLE_MAX 1000 /* rounds of a measurement */

/* One configuration and its samples. */
struct bench_row {
    bool decode;   /* otherwise prefill */
    int32_t n;     /* tokens of the test */
    int32_t depth; /* tokens already in the sequence */
    int32_t threads;
    int32_t batch; /* sequences that a decode step continues; 0 and 1 = one */
    int n_sample;
    double *samples;        /* tokens per second, in the order of the rounds */
    double bytes_per_token; /* weights and KV that decoding one token reads; 0 for prefill */
    double ops_per_token;   /* of the weights: a multiply-add is two; attention not counted */
};

/* The machine's roofs at one thread count. */
struct bench_roof {
    int32_t threads;
    int n_sample;
    double *read; /* bytes per second per round */
    double *peak; /* operations per second per round; zeros = unknown */
};

struct bench_report {
    const struct qn_model_info *info;
    const char *cpu; /* model name */
    int n_cpu;       /* processors this process may use */
    double load_before[3], load_after[3];
    int64_t roof_bytes, cache_bytes;
    int64_t when_unix;
    int repeat;
    struct bench_row *rows;
    int n_row;
    struct bench_roof *roofs;
    int n_roof;
    struct bench_mask mask;
};

enum bench_format { BENCH_TABLE, BENCH_JSON, BENCH_MARKDOWN };
void bench_report_write(const struct bench_report *r, enum bench_format f, struct buf *out);

#endif
