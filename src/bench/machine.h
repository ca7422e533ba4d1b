/*
 * machine.h - the machine as it is: facts for the record, and whether it is quiet enough to measure
 * on. Read from /proc and /sys; nothing is changed.
 */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include <sys/types.h>

#include "base/json.h"

struct machine_state {
    double load[3];
    double busy;  /* processors in use by others over the last half second */
    double steal; /* processors taken by the hypervisor over the same time */
    int queue;    /* other threads that ran or waited for a disk, at the quietest moment of it */
    int64_t mem_total, mem_free, swap_used; /* bytes; free = MemAvailable */
    int64_t mem_limit;                      /* of the control group or the machine */
    int speed_percent; /* allowed clock against the processor's own maximum; -1 = not told */
    int n_large;       /* foreign processes of more than 2 GB */
    char largest[64];  /* the largest of them */
};

/* Clock ticks (_SC_CLK_TCK) of all processors together since the machine started: busy, and taken
 * by the hypervisor. Zeros where /proc does not tell. */
struct machine_ticks {
    long long busy, steal;
};
struct machine_ticks machine_ticks(void);

/* watch: takes half a second to see who uses the processors; else busy, steal and queue are 0. */
void machine_look(struct machine_state *s, bool watch);
/* Members of an object: facts that do not change (processor, kernel, memory). */
void machine_facts(struct jw *w);
void machine_state_json(struct jw *w, const struct machine_state *s);

/* Reasons against measuring now, one line each, into out; returns how many. need_bytes: what the
 * servers will want. */
int machine_reasons(const struct machine_state *s, int64_t need_bytes, struct buf *out);

#endif
