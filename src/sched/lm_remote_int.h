/*
 * lm_remote_int.h - what the two files of lm_remote.h share: a child's life (lm_remote.c) and the
 * calls that go to it (lm_remote_calls.c).
 *
 * `io` is held during a call and while a child is replaced, so a call never meets half a child.
 * `mu` guards the state and is taken inside io, never around it. Each child has an epoch; handles
 * of sequences carry the one they belong to.
 */
#ifndef SCHED_LM_REMOTE_INT_H
#define SCHED_LM_REMOTE_INT_H

#include <pthread.h>
#include <sys/types.h>

#include "sched/lm_remote.h"
#include "sched/lm_wire.h"

#define REMOTE_WHERE "engine process" /* the place that errors name */

struct child {
    pid_t pid;
    int fd;
    struct wire *w;
    size_t bytes;
    struct wire_facts facts;
};

struct lm_remote {
    char **argv;
    pthread_t keeper;
    bool keeping;

    pthread_mutex_t io;
    struct child child; /* io; pid also under mu */

    pthread_mutex_t mu;
    pthread_cond_t change;
    bool up, stop;
    int64_t epoch, restarts;

    struct wire_facts facts;     /* of the first child */
    int64_t *seq_bytes;          /* [wire_pages] of it */
    struct qn_cache_stats cache; /* after the last call; io */
    struct lm_ops ops;
    struct qn_model_info info;
};

#endif
