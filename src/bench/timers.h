/*
 * timers.h - a heap of moments at which functions are to be called: arrivals of a load, limits of
 * requests, samples of memory. One thread. A timer is named by an id; cancelling one that has fired
 * is fine.
 */
#ifndef BENCH_TIMERS_H
#define BENCH_TIMERS_H

#include <stdint.h>

#include "base/err.h"

struct timers;

typedef void (*timer_fn)(void *arg);

struct timers *timers_create(void); /* NULL when out of memory */
void timers_free(struct timers *t); /* NULL is fine */
/* Calls fn(arg) at at_ns (clock_ns) or soon after, once; equal moments in the order of adding.
 * Returns its id, never 0; 0 when out of memory. */
uint64_t timers_add(struct timers *t, int64_t at_ns, timer_fn fn, void *arg);
void timers_cancel(struct timers *t, uint64_t id); /* 0 and unknown ids are fine */
/* The earliest moment, or INT64_MAX. */
int64_t timers_next(const struct timers *t);
/* Calls everything due at now_ns; what those calls add is called too when it is due. */
void timers_run(struct timers *t, int64_t now_ns);

#endif
