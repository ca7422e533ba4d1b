/*
 * saved_int.h - saved files as their sources share them: saved.c (life, the thread, steps),
 * saved_out.c (to a file) and saved_in.c (back). Inside cache/ only.
 *
 * What a task works on belongs to the thread while the task is set, to the scheduler's otherwise.
 */
#ifndef CACHE_SAVED_INT_H
#define CACHE_SAVED_INT_H

#include <pthread.h>

#include "cache/saved.h"
#include "cache/shapes.h"

enum { SAVED_SLICE_US = 2000 }; /* of the scheduler's thread at a time */

struct saving;
struct restoring;

struct saved {
    struct exec *ex;
    struct ptree *tree;
    int64_t limit;
    int32_t n_ctx;
    char *dir, *about;
    struct record_name model;

    pthread_t thread;
    bool runs;
    atomic_bool stop;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    enum saved_task {
        SAVED_REST,
        SAVED_WRITE,
        SAVED_OPEN,
        SAVED_CHECK,
        SAVED_READ
    } task;            /* under mu */
    struct qn_err err; /* how the last task went */

    /* Under way; both NULL = nothing. */
    struct saving *out;
    struct restoring *in;
    char name[CONV_NAME_MAX + 1];
    int64_t room; /* of a restore, in bytes */
    struct conv_info info;
};

/* saved.c: hands a task to the thread; the scheduler's thread. */
void saved_task_start(struct saved *s, enum saved_task task);

/* saved_out.c */
enum qn_status saving_begin(struct saved *s, const struct qn_line *line, struct qn_err *err);
/* The next slice of it, on the scheduler's thread: true when all is ready to be written. */
enum qn_status saving_gather(struct saved *s, bool *ready, struct qn_err *err);
enum qn_status saving_write(struct saved *s, struct qn_err *err); /* on the thread */
int32_t saving_tokens(const struct saving *o);
void saving_free(struct saved *s); /* s->out */

/* saved_in.c */
enum qn_status restoring_begin(struct saved *s, struct qn_err *err);
enum qn_status restoring_open(struct saved *s, struct qn_err *err);  /* on the thread */
enum qn_status restoring_check(struct saved *s, struct qn_err *err); /* on the thread */
enum qn_status restoring_read(struct saved *s, struct qn_err *err);  /* on the thread */
/* The scheduler's part, once the thread has ended a task: the next task, SAVED_REST when there is
 * more to do here, or *done, with *tokens: how much can be used. */
enum qn_status restoring_step(struct saved *s, enum saved_task *next, bool *done, int32_t *tokens,
                              struct qn_err *err);
void restoring_free(struct saved *s); /* s->in */

#endif
