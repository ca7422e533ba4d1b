/*
 * saved_int.h - saved files as their sources share them: saved.c (life, the thread, steps),
 * saved_out.c (to a file), saved_in.c (back) and saved_room.c (memory for what comes back). Inside
 * cache/ only.
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

/* A tree whose lines are saved. */
struct saved_side {
    struct tier_tree is; /* `about` is not kept */
    int64_t limit;
};

struct saved {
    struct saved_side sides[TIER_SIDES];
    int32_t n_side;
    int32_t n_ctx;
    char *dir, *about;

    pthread_t thread;
    bool runs;
    atomic_bool stop;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    enum saved_task { SAVED_REST, SAVED_WRITE, SAVED_OPEN, SAVED_CHECK, SAVED_READ } task; /* mu */
    struct qn_err err; /* how the last task went */

    /* Under way; both NULL = nothing. */
    struct saving *out;
    struct restoring *in;
    char name[CONV_NAME_MAX + 1];
    int64_t room; /* of a restore, in bytes; the scheduler's thread */
    struct conv_info info;
};

/* saved.c: hands a task to the thread; the scheduler's thread. */
void saved_task_start(struct saved *s, enum saved_task task);

/* saved_out.c */
enum qn_status saving_begin(struct saved *s, const struct qn_line *line, struct qn_err *err);
/* The next slice of it, on the scheduler's thread: true when all is ready to be written. */
enum qn_status saving_gather(struct saved *s, bool *ready, struct qn_err *err);
enum qn_status saving_write(struct saved *s, struct qn_err *err); /* on the thread */
void saving_free(struct saved *s);                                /* s->out */

/* A chain of a file's records on its way into a tree. */
struct coming {
    const struct saved_side *side;
    int32_t first, n;       /* records of the file */
    struct ptree_line line; /* all of it; ids belong to the restoring, ns is: */
    char ns[SHAPES_NS_MAX + 1];
    struct kv_shape *shapes;    /* [n] */
    bool *tailed;               /* [n] the record has a tail */
    struct kv_prefix **imports; /* [n] */
    void **tails;               /* [n] */
    struct iovec **parts;       /* [n] */
    int64_t need;               /* bytes of memory */
    int32_t there; /* records, from the last on, that the tree has; until it `lacks` one */
    bool lacks;
    bool left; /* a head's: there is no memory for it, so only its guesses are missing */
    int32_t taken, added;
};

struct restoring {
    struct conv *file;
    int32_t *ids; /* of the model's line */
    struct coming sides[TIER_SIDES];
    int32_t n_side;
    bool taking;                                 /* others have given way */
    enum { IN_OPENED, IN_CHECKED, IN_READ } got; /* what the thread has done last */
};

/* It is to be read into memory. */
static inline bool coming_lacks(const struct coming *c)
{
    return c->lacks && !c->left;
}

/* saved_in.c */
enum qn_status restoring_begin(struct saved *s, struct qn_err *err);
enum qn_status restoring_open(struct saved *s, struct qn_err *err);  /* on the thread */
enum qn_status restoring_check(struct saved *s, struct qn_err *err); /* on the thread */
enum qn_status restoring_read(struct saved *s, struct qn_err *err);  /* on the thread */
/* The scheduler's part, once the thread has ended a task: the next task, SAVED_REST when there is
 * more to do here, or *done, with what can be used in *told. */
enum qn_status restoring_step(struct saved *s, enum saved_task *next, bool *done,
                              struct cache_file_told *told, struct qn_err *err);
void restoring_free(struct saved *s); /* s->in */

/* saved_room.c */
/* Once the trees were looked at: whether the rest fits the cache's bound, and what running requests
 * leave of the memory. */
enum qn_status restoring_room(struct saved *s, struct qn_err *err);
/* The next slice: what the trees lack of the lines; true when that is known. */
bool restoring_look(struct saved *s);
/* The next slice: memory for all that will be read; true when it is there. */
enum qn_status restoring_take(struct saved *s, bool *ready, struct qn_err *err);
/* Gives back what was taken for a side. */
void coming_drop(struct coming *c);

#endif
