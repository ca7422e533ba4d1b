/*
 * client.h - HTTP to the servers under test: any number of streamed requests at a time, plain GETs
 * for health, and timers, all in the calling thread.
 *
 * Every request gets a connection of its own, so that none pays for or profits from another. The
 * moment of each piece of a body is taken first thing when it is handed over. A request ends by
 * itself when its answer is over, is at fault, stalls, or exceeds its budget.
 */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <stdatomic.h>

#include "bench/streamed.h"
#include "bench/timers.h"

struct client;
struct call; /* one running request */

/* cancel: polled at least ten times a second; NULL = never. */
enum qn_status client_create(const atomic_bool *cancel, struct client **out, struct qn_err *err);
void client_free(struct client *c); /* NULL is fine; running requests are dropped unreported */
struct timers *client_timers(struct client *c);

struct call_params {
    const char *url;     /* of the route, copied */
    const char *api_key; /* NULL = none */
    struct str body;     /* copied */
    bool chat;           /* shape of the answer: chat chunks, else completion chunks */
    int64_t max_tokens;  /* what the body asks for */
    double budget_s;     /* for the whole answer */
    double stall_s;      /* longest silence after the first byte; 0 = no limit but the budget */
    /* Called once, from client_run, when it is over; the reply is the callee's to free or move. */
    void (*done)(void *arg, struct reply *r);
    void *arg;
};
/* Starts it; *out (NULL is fine) is valid until done was called. */
enum qn_status client_start(struct client *c, const struct call_params *p, struct call **out,
                            struct qn_err *err);
/* Ends a running request: done is called at once with FAULT_CANCELLED. */
void client_stop(struct client *c, struct call *k);
/* The same for everything that runs. */
void client_stop_all(struct client *c);
int client_running(const struct client *c);

/* Serves requests and timers until until(arg) is true (asked after everything that happens) or
 * nothing is left to wait for. QN_CANCELLED when the cancel flag is set: what runs goes on running
 * until it is stopped or served again. */
enum qn_status client_run(struct client *c, bool (*until)(void *arg), void *arg,
                          struct qn_err *err);
/* The same for a length of time. */
enum qn_status client_wait(struct client *c, double seconds, struct qn_err *err);

/* One GET; *status 0 when there was no answer within timeout_s. At most 8 MiB of body. Timers run
 * while it waits. */
enum qn_status client_get(struct client *c, const char *url, const char *api_key, double timeout_s,
                          int *status, struct buf *body, struct qn_err *err);

#endif
