/*
 * lm_remote.c - the life of a child that holds the model: started, greeted, watched by a thread of
 * its own and replaced when it ends. What locks guard: lm_remote_int.h; calls: lm_remote_calls.c.
 */
#include "sched/lm_remote_int.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define BACKOFF_US   100000 /* doubled with each death within STEADY_US */
#define BACKOFF_MOST 10000000
#define STEADY_US    60000000

extern char **environ;

/* ---- a child -------------------------------------------------------------------------------- */

static void child_drop(struct child *c)
{
    if (c->w)
        munmap(c->w, c->bytes);
    if (c->fd >= 0)
        close(c->fd);
    *c = (struct child){.fd = -1};
}

static enum qn_status spawn(char *const *argv, struct child *c, struct qn_err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return err_errno(err, REMOTE_WHERE, "socketpair");
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t at;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&fa);
    posix_spawnattr_init(&at);
    posix_spawnattr_setsigmask(&at, &none);
    posix_spawnattr_setflags(&at, POSIX_SPAWN_SETSIGMASK);
    if (pair[1] == LM_REMOTE_FD) { /* dup2 onto itself would leave close-on-exec set */
        int other = fcntl(pair[1], F_DUPFD_CLOEXEC, LM_REMOTE_FD + 1);
        close(pair[1]);
        pair[1] = other;
    }
    posix_spawn_file_actions_adddup2(&fa, pair[1], LM_REMOTE_FD);
    int rc = posix_spawn(&c->pid, argv[0], &fa, &at, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&at);
    close(pair[1]);
    c->fd = pair[0];
    if (rc == 0)
        return QN_OK;
    c->pid = 0;
    errno = rc;
    return err_errno(err, REMOTE_WHERE, "cannot start %s", argv[0]);
}

/* The region's descriptor from the hello's ancillary data; -1 = none. */
static ssize_t receive_hello(int fd, struct wire_hello *h, int *region)
{
    struct iovec io = {h, sizeof *h};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr m = {.msg_iov = &io,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof control.bytes};
    ssize_t n;
    *region = -1;
    do
        n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(region, CMSG_DATA(c), sizeof *region);
    return n;
}

static enum qn_status greet(struct child *c, struct qn_err *err)
{
    struct wire_hello h;
    int region;
    ssize_t n = receive_hello(c->fd, &h, &region);
    enum qn_status st = QN_OK;
    if (n != (ssize_t)sizeof h)
        st = err_set(err, QN_LOST, REMOTE_WHERE, "it ended while loading the model");
    else if (h.status != QN_OK)
        st = err_set(err, h.status, REMOTE_WHERE, "%.400s", h.err.msg);
    else if (region < 0 || h.bytes != wire_region(&h.facts) || h.bytes == 0 || h.facts.n_eos < 0 ||
             h.facts.n_eos > WIRE_EOS_MAX || (h.facts.caches && h.facts.cache_interval < 1))
        st = err_set(err, QN_INTERNAL, REMOTE_WHERE, "its first message makes no sense");
    if (st == QN_OK) {
        void *p = mmap(NULL, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region, 0);
        if (p == MAP_FAILED)
            st = err_errno(err, REMOTE_WHERE, "mapping %zu bytes", h.bytes);
        else
            c->w = p;
        c->bytes = h.bytes;
        c->facts = h.facts;
    }
    if (region >= 0)
        close(region);
    return st;
}

static void reap(pid_t pid, bool kill_it, char *how, size_t cap)
{
    int status = 0;
    if (kill_it)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFSIGNALED(status))
        snprintf(how, cap, "signal %d: %s", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(how, cap, "exit status %d", WEXITSTATUS(status));
}

/* Starts a child and waits for its model. Whether to go on is asked of nobody: a child that is
 * killed from outside ends the wait. */
static enum qn_status child_start(struct lm_remote *r, struct child *c, struct qn_err *err)
{
    char how[80];
    *c = (struct child){.fd = -1};
    QN_TRY(spawn(r->argv, c, err));
    pthread_mutex_lock(&r->mu);
    r->child.pid = c->pid; /* lm_remote_free may end it while it loads */
    bool stop = r->stop;
    pthread_mutex_unlock(&r->mu);
    enum qn_status st = stop ? err_set(err, QN_CANCELLED, REMOTE_WHERE, "stopping") : greet(c, err);
    if (st == QN_OK)
        return QN_OK;
    pthread_mutex_lock(&r->mu);
    r->child.pid = 0;
    pthread_mutex_unlock(&r->mu);
    reap(c->pid, true, how, sizeof how);
    child_drop(c);
    return st;
}

/* ---- the keeper ----------------------------------------------------------------------------- */

/* Sleeps; true when the program stops meanwhile. */
static bool pause_us(struct lm_remote *r, int64_t us)
{
    struct timespec t = clock_in(us);
    pthread_mutex_lock(&r->mu);
    int rc = 0;
    while (!r->stop && rc == 0)
        rc = pthread_cond_timedwait(&r->change, &r->mu, &t);
    bool stop = r->stop;
    pthread_mutex_unlock(&r->mu);
    return stop;
}

static bool same_model(const struct wire_facts *a, const struct wire_facts *b)
{
    return a->n_vocab == b->n_vocab && a->n_ctx == b->n_ctx && a->max_rows == b->max_rows &&
           a->forks == b->forks && a->caches == b->caches && a->disk == b->disk &&
           a->files == b->files && memcmp(a->fingerprint, b->fingerprint, 32) == 0 &&
           a->cache_interval == b->cache_interval && a->cache_reach == b->cache_reach;
}

/* Waits for the child's end; true when it was not asked for. */
static bool wait_end(struct lm_remote *r)
{
    char how[80];
    pid_t pid = r->child.pid;
    siginfo_t si;
    while (waitid(P_PID, (id_t)pid, &si, WEXITED | WNOWAIT) < 0 && errno == EINTR)
        continue;
    pthread_mutex_lock(&r->io);
    pthread_mutex_lock(&r->mu);
    r->up = false;
    r->epoch++;
    r->child.pid = 0;
    bool stop = r->stop;
    pthread_mutex_unlock(&r->mu);
    child_drop(&r->child);
    r->cache.bytes = r->cache.nodes = r->cache.tokens = 0;
    reap(pid, false, how, sizeof how);
    pthread_mutex_unlock(&r->io);
    if (!stop)
        log_line(LOG_ERROR, "engine", "the engine process %d ended (%s); starting it again",
                 (int)pid, how);
    return !stop;
}

/* Puts a new child in place; false when the program stops. */
static bool restart(struct lm_remote *r, int64_t *backoff)
{
    struct child c;
    struct qn_err err = {0};
    for (;; *backoff = *backoff * 2 < BACKOFF_MOST ? *backoff * 2 : BACKOFF_MOST) {
        if (pause_us(r, *backoff))
            return false;
        enum qn_status st = child_start(r, &c, &err);
        if (st == QN_OK && same_model(&c.facts, &r->facts))
            break;
        if (st == QN_OK) {
            char how[80];
            err_set(&err, QN_BAD_INPUT, REMOTE_WHERE, "the model folder has changed");
            reap(c.pid, true, how, sizeof how);
            child_drop(&c);
        }
        log_line(LOG_ERROR, "engine", "the engine process cannot be started: %s", err.msg);
    }
    pthread_mutex_lock(&r->io);
    pthread_mutex_lock(&r->mu);
    r->child = c;
    r->up = true;
    r->restarts++;
    pthread_cond_broadcast(&r->change);
    pthread_mutex_unlock(&r->mu);
    pthread_mutex_unlock(&r->io);
    log_line(LOG_INFO, "engine", "the engine process %d is ready", (int)c.pid);
    return true;
}

static void *keep(void *arg)
{
    struct lm_remote *r = arg;
    int64_t backoff = BACKOFF_US, started = clock_us();
    while (wait_end(r)) {
        backoff = clock_us() - started > STEADY_US ? BACKOFF_US : backoff;
        if (!restart(r, &backoff))
            break;
        started = clock_us();
        backoff = backoff * 2 < BACKOFF_MOST ? backoff * 2 : BACKOFF_MOST;
    }
    return NULL;
}

/* ---- opening -------------------------------------------------------------------------------- */

static char **copy_argv(char *const *argv)
{
    size_t n = 0;
    while (argv[n])
        n++;
    char **v = calloc(n + 1, sizeof *v);
    for (size_t i = 0; v && i < n; i++) {
        v[i] = strdup(argv[i]);
        if (!v[i]) {
            while (i > 0)
                free(v[--i]);
            free(v);
            return NULL;
        }
    }
    return v;
}

static void set_info(struct lm_remote *r)
{
    const struct wire_facts *f = &r->facts;
    r->info = (struct qn_model_info){
        .name = f->name,
        .family = f->family,
        .isa = f->isa,
        .arith = f->arith,
        .kv_format = f->kv_format,
        .n_vocab = f->n_vocab,
        .n_ctx = f->n_ctx,
        .n_thread = f->n_thread,
        .n_param = f->n_param,
        .weight_bytes = f->weight_bytes,
        .kv_token_bytes = f->kv_token_bytes,
        .seq_state_bytes = f->seq_state_bytes,
        .eos_ids = f->eos_ids,
        .n_eos = f->n_eos,
    };
}

static enum qn_status open_child(struct lm_remote *r, struct qn_err *err)
{
    struct child c;
    QN_TRY(child_start(r, &c, err));
    r->child = c;
    r->facts = c.facts;
    r->facts.name[sizeof r->facts.name - 1] = 0;
    r->facts.family[sizeof r->facts.family - 1] = 0;
    r->facts.isa[sizeof r->facts.isa - 1] = 0;
    r->facts.arith[sizeof r->facts.arith - 1] = 0;
    r->facts.kv_format[sizeof r->facts.kv_format - 1] = 0;
    set_info(r);
    size_t bytes = wire_pages(r->facts.n_ctx) * sizeof *r->seq_bytes;
    r->seq_bytes = malloc(bytes);
    if (!r->seq_bytes)
        QN_FAIL(err, QN_NO_MEMORY, REMOTE_WHERE, "out of memory");
    memcpy(r->seq_bytes, wire_seq_bytes(c.w), bytes);
    r->up = true;
    if (pthread_create(&r->keeper, NULL, keep, r) != 0)
        QN_FAIL(err, QN_NO_MEMORY, REMOTE_WHERE, "no thread to watch the engine process");
    r->keeping = true;
    return QN_OK;
}

enum qn_status lm_remote_open(char *const *argv, struct lm_remote **out, struct qn_err *err)
{
    struct lm_remote *r = calloc(1, sizeof *r);
    if (!r)
        QN_FAIL(err, QN_NO_MEMORY, REMOTE_WHERE, "out of memory");
    r->child.fd = -1;
    pthread_mutex_init(&r->io, NULL);
    pthread_mutex_init(&r->mu, NULL);
    clock_cond_init(&r->change);
    r->argv = copy_argv(argv);
    enum qn_status st =
        r->argv ? open_child(r, err) : err_set(err, QN_NO_MEMORY, REMOTE_WHERE, "out of memory");
    if (st != QN_OK) {
        lm_remote_free(r);
        return st;
    }
    *out = r;
    return QN_OK;
}

void lm_remote_free(struct lm_remote *r)
{
    char how[80];
    if (!r)
        return;
    pthread_mutex_lock(&r->mu);
    r->stop = true;
    pthread_cond_broadcast(&r->change);
    pid_t pid = r->child.pid;
    if (pid > 0 && r->keeping)
        kill(pid, SIGKILL); /* it holds nothing that has to be saved */
    pthread_mutex_unlock(&r->mu);
    if (r->keeping)
        pthread_join(r->keeper, NULL);
    else if (pid > 0)
        reap(pid, true, how, sizeof how);
    child_drop(&r->child);
    for (size_t i = 0; r->argv && r->argv[i]; i++)
        free(r->argv[i]);
    free(r->argv);
    free(r->seq_bytes);
    pthread_cond_destroy(&r->change);
    pthread_mutex_destroy(&r->mu);
    pthread_mutex_destroy(&r->io);
    free(r);
}

const struct qn_model_info *lm_remote_info(const struct lm_remote *r)
{
    return &r->info;
}

bool lm_remote_up(struct lm_remote *r)
{
    pthread_mutex_lock(&r->mu);
    bool up = r->up;
    pthread_mutex_unlock(&r->mu);
    return up;
}

int lm_remote_pid(struct lm_remote *r)
{
    pthread_mutex_lock(&r->mu);
    int pid = r->up ? r->child.pid : 0;
    pthread_mutex_unlock(&r->mu);
    return pid;
}

int64_t lm_remote_restarts(struct lm_remote *r)
{
    pthread_mutex_lock(&r->mu);
    int64_t n = r->restarts;
    pthread_mutex_unlock(&r->mu);
    return n;
}
