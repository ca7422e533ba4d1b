/*
 * metrics.h - counters and histograms of the server, and their Prometheus text. Every number is one
 * relaxed atomic: counting takes no lock and never waits, a scrape reads what is there. The names
 * and meanings are vLLM's where vLLM has the metric, with quern_ in the place of vllm:.
 */
#ifndef SERVER_METRICS_H
#define SERVER_METRICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "sched/sched.h"

#define METRIC_ROUTES   32 /* rows of the route table; the last one counts unknown paths */
#define METRIC_STATUSES 20
#define METRIC_BOUNDS   24

enum metric_hist {
    METRIC_TTFT,       /* request read -> its first token */
    METRIC_ITL,        /* between one token of an answer and the next */
    METRIC_TPOT,       /* decode time over tokens after the first, one sample per answer */
    METRIC_E2E,        /* request read -> its answer's last token */
    METRIC_QUEUE,      /* submitted -> taken up by the scheduler */
    METRIC_PREFILL,    /* taken up -> first token */
    METRIC_DECODE,     /* first token -> last token */
    METRIC_INFERENCE,  /* taken up -> last token */
    METRIC_PROMPT_TOK, /* tokens of a prompt */
    METRIC_GEN_TOK,    /* tokens of an answer */
    METRIC_HISTS,
};

struct metric_buckets {
    atomic_llong n[METRIC_BOUNDS + 1]; /* not cumulative; the last one is above every bound */
    atomic_llong sum;                  /* microseconds, or tokens */
};

/* Zeroed memory is a fresh set. Any thread. */
struct metrics {
    atomic_llong requests[METRIC_ROUTES][METRIC_STATUSES];
    atomic_llong stop, length; /* answers, by how they ended */
    atomic_llong prompt_tokens, cached_tokens;
    struct metric_buckets hist[METRIC_HISTS];
};

/* One answered HTTP request. route: index in the table, -1 = a path without one. */
void metrics_request(struct metrics *m, int route, int status);
/* value: microseconds, or tokens. Negative ones count as 0. */
void metrics_observe(struct metrics *m, enum metric_hist h, int64_t value);
/* What the scheduler says about one answer. t0_us: when its request was read; *last_us: of this
 * answer, 0 before its first event, kept by the caller. */
void metrics_generation(struct metrics *m, const struct gen_event *ev, int64_t t0_us,
                        int64_t *last_us);

/* What the text needs beside the counters. */
struct metrics_view {
    const char *model;            /* NULL while it loads */
    const struct sched_stats *st; /* NULL while it loads */
    int connections, in_flight;
    int64_t resident_bytes; /* 0 = not known */
    /* Method and path of route i; false beyond the last one. */
    bool (*route)(int i, const char **method, const char **path);
};
/* The process's resident memory; 0 when the system does not tell. */
int64_t metrics_resident_bytes(void);
/* Appends the exposition format 0.0.4. */
void metrics_write(const struct metrics *m, const struct metrics_view *v, struct buf *out);

#endif
