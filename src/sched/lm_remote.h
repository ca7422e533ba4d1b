/*
 * lm_remote.h - a language model that lives in a child process: when the child dies, what it was
 * doing fails with QN_LOST, and it is started again while this process goes on.
 *
 * Threads: the lm's functions are called from the scheduler's one thread; a thread of its own waits
 * for the child and restarts it.
 */
#ifndef SCHED_LM_REMOTE_H
#define SCHED_LM_REMOTE_H

#include "sched/lm.h"

struct lm_remote;

/* Starts argv[0] with argv (NULL-terminated, copied), which finds the socket as descriptor
 * LM_REMOTE_FD and calls lm_serve on it; waits for the model to be loaded. Fails with the child's
 * own message when it says why. */
enum { LM_REMOTE_FD = 3 };
enum qn_status lm_remote_open(char *const *argv, struct lm_remote **out, struct qn_err *err);
/* Ends the child. NULL is fine. The scheduler is gone by then. */
void lm_remote_free(struct lm_remote *r);

/* Borrowed; n_vocab and the like stay as they are for the life of r. After a death calls on the
 * sequences of the dead child give QN_LOST; new ones wait for the next child (then QN_BUSY). */
struct lm lm_remote_lm(struct lm_remote *r);
/* Facts of the model as the child told them: those that serving needs. Lives as long as r. */
const struct qn_model_info *lm_remote_info(const struct lm_remote *r);
/* Any thread: false while the child is being started again. */
bool lm_remote_up(struct lm_remote *r);
int lm_remote_pid(struct lm_remote *r);          /* of the child that runs now; 0 = none */
int64_t lm_remote_restarts(struct lm_remote *r); /* any thread */

#endif
