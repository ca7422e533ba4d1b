/*
 * load.h - many requests at a time: closed loop (each of N users asks again when answered), open
 * loop (Poisson arrivals, whatever the server does), ramp (users join one by one, and all go on
 * until the last has been answered as often as a user of the closed loop), burst (all at once), and
 * reuse (prompts that share a long beginning, beside the same ones that do not).
 *
 * Every prompt begins with its own salt, so that no prefix cache helps, except in the reuse point
 * that is there to measure it.
 */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include "bench/cell.h"

struct bench_params;

enum load_kind { LOAD_CLOSED, LOAD_POISSON, LOAD_RAMP, LOAD_BURST, LOAD_SALTED, LOAD_SHARED };

struct load_point {
    enum load_kind kind;
    char name[48]; /* "4 users", "poisson 2/s" */
    int users;     /* closed, ramp, reuse: users; burst: requests of a burst */
    double rate;   /* poisson: arrivals per second */
    double step_s; /* ramp: between two users */
    int n_request; /* at most, in all */
    int n_plan;    /* how many are likely: fewer than n_request in a ramp */
    int n_last;    /* ramp: it ends when the last user has had so many answers */
};

enum { LOAD_POINTS_MAX = 48 };
struct load_plan {
    struct load_point v[LOAD_POINTS_MAX];
    int n;
};

void load_plan_make(const struct bench_params *p, struct load_plan *out);
void load_plan_text(const struct load_plan *plan, struct buf *out);
void load_tokens(const struct load_plan *plan, const struct workload_params *w, double *read,
                 double *written);
enum qn_status load_run(struct cell *c, const struct load_plan *plan, struct qn_err *err);

/* ---- for tests ---- */
/* Moments (seconds from the start) of n Poisson arrivals of that rate; the same for a seed. */
void load_arrivals(uint64_t seed, double rate, int n, double *at_s);

#endif
