/*
 * metric.h - the figures that are reported: name, title, unit, which way is better. The one list;
 * docs/bench-serve.md says what each means.
 */
#ifndef BENCH_METRIC_H
#define BENCH_METRIC_H

#include <stdbool.h>
#include <stddef.h>

enum better { BETTER_NEITHER, BETTER_HIGHER, BETTER_LOWER };

struct metric {
    const char *name;  /* in the record: "decode_tps" */
    const char *title; /* for people: "decode" */
    const char *unit;  /* "tok/s", "ms", "MiB", "tokens", "req/s", "%", "" */
    enum better better;
    bool headline; /* in the first table of a report */
};

const struct metric *metric_find(const char *name); /* NULL = unknown */
const struct metric *metric_list(size_t *n);

#endif
