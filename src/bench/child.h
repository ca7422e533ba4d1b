/*
 * child.h - a server process that the harness starts, watches and ends: it and everything it starts
 * form one process group. Dies with the harness. One thread.
 */
#ifndef BENCH_CHILD_H
#define BENCH_CHILD_H

#include <sys/types.h>

#include "base/buf.h"

struct child {
    pid_t pid; /* 0 = none */
    int status;
    bool ended;
};

/* Starts argv (NULL-terminated, argv[0] searched in PATH) with env (NAME=VALUE, NULL-terminated,
 * added to ours; NULL = none). Both outputs go to the end of the file `log`. */
enum qn_status child_start(struct child *c, char *const *argv, char *const *env, const char *log,
                           struct qn_err *err);
bool child_alive(struct child *c);
/* "exit status 1", "signal 9 (Killed)"; the child has ended. */
void child_end_text(const struct child *c, struct buf *out);
/* SIGTERM, and SIGKILL to the whole group after grace_s. */
void child_stop(struct child *c, double grace_s);
/* SIGKILL to the whole group at once, and its end waited for. */
void child_kill(struct child *c);

/* Clock ticks of processor time that this process has used, and all that it has started and that
 * have ended: a server's own children too, also when the server was killed and left them behind. */
int64_t child_ticks_all(void);

struct tree_use {
    int64_t
        rss_bytes; /* resident memory of the process and its descendants, shared pages in each */
    int n_process;
};
/* Zeros when nothing is there. */
struct tree_use child_tree(pid_t root);
/* The last n lines of a file, at most 8 KiB. */
void child_log_tail(const char *log, int n, struct buf *out);

#endif
