/*
 * cell.h - one arm with one workload: the server is started, waited for, asked, watched and ended.
 *
 * A workload is a list of phases. A phase that fails is tried once more with other prompts if the
 * server still answers a word; if it does not, the server is started again, once per cell. What a
 * phase has measured counts only when the phase succeeds. Requests are recorded either way.
 */
#ifndef BENCH_CELL_H
#define BENCH_CELL_H

#include "bench/arm.h"
#include "bench/child.h"
#include "bench/client.h"
#include "bench/prompt.h"
#include "bench/results.h"

/* The figures of a run that the phases need. */
struct workload_params {
    const char *seed;
    int64_t decode_tokens;     /* of a decode answer */
    int decode_runs;           /* 5 */
    int ttft_tokens;           /* prompt of the first-token phase, 1024 */
    int ttft_runs;             /* 3 */
    int ctx_tokens;            /* the long prompt; 0 = leave the phase out */
    int concurrent;            /* 4 */
    int64_t concurrent_tokens; /* 128 */
    double budget_s;           /* 120: for a request of usual size */
    double stall_s;            /* longest silence inside an answer */
    double ready_s;            /* longest start */
    bool ignore_eos;
    /* load */
    int load_prompt_tokens;
    int64_t load_tokens;
    int load_requests; /* per user of a closed loop; an open one sends users_max times that */
    double slo_ttft_ms, slo_tpot_ms, slo_e2e_ms; /* 0 = no limit */
};

struct cell_sample {
    char workload[24], point[48];
    const char *metric; /* of metric.h's table */
    double value;
};

struct rss_point {
    float ms;
    int64_t bytes;
};

struct cell {
    /* set by cell_open's caller */
    struct client *client;
    struct record *record;
    const struct arm *arm;
    struct arm_values values;
    const struct workload_params *w;
    const char *workload; /* "matrix" */
    const char *log;      /* path of the file for what the server prints */
    int index, round;
    /* the rest is cell.c's */
    struct child child;
    struct buf base, chat_url, completion_url, health_url, model;
    const char *api_key;
    int64_t begin_ns, ready_ns;
    double ready_ms;
    int64_t idle_rss, peak_rss, leg_peak;
    struct rss_point *rss;
    int n_rss, cap_rss, stride, tick;
    struct buf legs;                 /* JSON members "leg": bytes */
    int64_t busy_before, own_before; /* clock ticks: of all processors; of us and our servers */
    uint64_t sampler;
    int restarts, failures;
    enum fault last_fault; /* of the request that ended last */
    bool hopeless;         /* the server cannot be had any more */
    struct cell_sample *pending;
    int n_pending, cap_pending;
    const void *phase_arg; /* what the phase that runs is about, set by who runs it */
    void (*progress)(void *arg, const char *phase);
    void *progress_arg;
};

/* Starts the server and waits until it is ready. On failure the cell is still to be closed. */
enum qn_status cell_open(struct cell *c, struct qn_err *err);
/* Ends the server, appends the cell to the record. */
void cell_close(struct cell *c);
/* Ends the server (hard: kill it) and starts it again; *ready_ms: how long until it was ready. */
enum qn_status cell_restart(struct cell *c, bool hard, double *ready_ms, struct qn_err *err);

/* Runs a phase by the rules above. QN_OK also when it failed for good (that is in the record);
 * otherwise QN_CANCELLED or a failure of the harness itself. */
typedef enum qn_status (*phase_fn)(struct cell *c, int attempt, struct qn_err *err);
enum qn_status cell_phase(struct cell *c, const char *name, phase_fn fn, struct qn_err *err);

/* A value of the running phase. */
void cell_sample(struct cell *c, const char *point, const char *metric, double value);

struct ask {
    const char *phase;
    int attempt, index;
    int user; /* -1 = none */
    struct body_params body;
    double budget_s; /* 0 = the usual */
    const char *shown;
};
/* One request, to its end. The reply is the caller's (reply_free), also on failure. A reply at
 * fault is QN_BAD_INPUT naming it. */
enum qn_status cell_ask(struct cell *c, const struct ask *a, struct reply *out, struct qn_err *err);
/* Starts one; done(arg, reply) as in client.h, after it was recorded. */
enum qn_status cell_ask_start(struct cell *c, const struct ask *a,
                              void (*done)(void *arg, struct reply *r), void *arg,
                              struct qn_err *err);
/* Resident memory of the server now; 0 when it is not ours. */
int64_t cell_rss(struct cell *c);

#endif
