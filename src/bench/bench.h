/*
 * bench.h - the harness as a whole: plan a run, run it, report it. The one header of this layer
 * that the command line needs besides history.h and report.h.
 *
 * A run is a list of cells. Rounds go round all arms (A B A B), so that slow changes of the machine
 * meet all alike. One thread; everything is written to files with the prefix `out`: OUT.json after
 * every cell, OUT.md and OUT.html at the end, OUT.logs/ with what the servers printed.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdatomic.h>

#include "bench/cell.h"

enum { BENCH_ARMS_MAX = 32, BENCH_POINTS_MAX = 16 };

enum preflight_mode { PREFLIGHT_REFUSE, PREFLIGHT_MARK };

struct bench_params {
    const char *const *arms; /* names, URLs, files; "all" = every built-in arm that can run */
    int n_arm;
    bool with_matrix, with_load, with_replay;
    struct workload_params w;
    int rounds;
    struct arm_values values;    /* what placeholders stand for; users, ctx, threads included */
    int users[BENCH_POINTS_MAX]; /* closed loop */
    int n_users;
    double rates[BENCH_POINTS_MAX]; /* open loop, requests per second */
    int n_rate;
    bool ramp, burst, reuse;
    const char *recordings[BENCH_POINTS_MAX]; /* files; none = the built-in ones */
    int n_recording;
    const char *label;
    const char *out;
    const char *command_line;
    /* Tokens per second that an arm made earlier, for the estimate; false: not known; or NULL. */
    bool (*known_speed)(void *arg, const char *arm, double *decode, double *prefill);
    const char *reference; /* JSON with the float32 texts of the parity probes, or NULL */
    enum preflight_mode preflight;
    bool diagnostic;
    const atomic_bool *cancel;
    /* done: 0..1 of the run's estimated time */
    void (*progress)(void *arg, const char *what, double done);
    void (*say)(void *arg, const char *line); /* one line for people */
    void *arg;
};

struct bench_outcome {
    bool interrupted;
    int cells, failures;
};

/* What would be run, with an estimate of the time; appended as text. */
enum qn_status bench_plan(const struct bench_params *p, struct buf *out, struct qn_err *err);
/* Runs it. QN_CANCELLED does not come out: outcome->interrupted says so, and what was measured
 * is in the files. */
enum qn_status bench_run(const struct bench_params *p, struct bench_outcome *outcome,
                         struct qn_err *err);

#endif
