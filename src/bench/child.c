/*
 * child.c - see child.h. The process tree is read from /proc, from the root down, which takes a
 * fraction of a millisecond: it happens while answers are being timed.
 */
#include "bench/child.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/times.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

enum { TREE_MAX = 256, TAIL_BYTES = 8192 };

static void run_child(char *const *argv, char *const *env, int log, pid_t parent)
{
    sigset_t none;
    int null = open("/dev/null", O_RDONLY);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    setpgid(0, 0); /* Ctrl-C is ours: the server is ended in order */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    for (; env && *env; env++)
        putenv(*env);
    execvp(argv[0], argv);
    static const char msg[] = "cannot be started\n";
    if (write(2, msg, sizeof msg - 1) < 0)
        _exit(127);
    _exit(127);
}

enum qn_status child_start(struct child *c, char *const *argv, char *const *env, const char *log,
                           struct qn_err *err)
{
    *c = (struct child){0};
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_errno(err, "bench", "%s: cannot write", log);
    /* What a server leaves behind becomes our child: it can be waited for, and its time counted. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        run_child(argv, env, fd, parent);
    int saved = errno;
    close(fd);
    errno = saved;
    if (pid < 0)
        return err_errno(err, "bench", "%s: cannot start", argv[0]);
    setpgid(pid, pid); /* also here: whoever comes first */
    c->pid = pid;
    return QN_OK;
}

bool child_alive(struct child *c)
{
    if (!c->pid || c->ended)
        return false;
    pid_t r = waitpid(c->pid, &c->status, WNOHANG);
    c->ended = r == c->pid || (r < 0 && errno == ECHILD);
    return !c->ended;
}

void child_end_text(const struct child *c, struct buf *out)
{
    if (WIFSIGNALED(c->status))
        buf_addf(out, "signal %d (%s)", WTERMSIG(c->status), strsignal(WTERMSIG(c->status)));
    else
        buf_addf(out, "exit status %d", WEXITSTATUS(c->status));
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

void child_kill(struct child *c)
{
    if (!c->pid)
        return;
    kill(-c->pid, SIGKILL);
    if (!c->ended)
        while (waitpid(c->pid, &c->status, 0) < 0 && errno == EINTR)
            ;
    while (waitpid(-c->pid, NULL, 0) > 0 || errno == EINTR) /* the rest of the group */
        ;
    *c = (struct child){.status = c->status, .ended = true};
}

void child_stop(struct child *c, double grace_s)
{
    if (!c->pid)
        return;
    int64_t until = clock_ns() + (int64_t)(grace_s * 1e9);
    if (child_alive(c))
        kill(c->pid, SIGTERM);
    while (child_alive(c) && clock_ns() < until)
        nap();
    child_kill(c); /* also for what it left behind */
}

int64_t child_ticks_all(void)
{
    struct tms t;
    times(&t);
    return t.tms_utime + t.tms_stime + t.tms_cutime + t.tms_cstime;
}

/* ---- memory of a tree ----------------------------------------------------------------------- */

/* The figures of one process; false when it is gone. */
static bool add_use(pid_t pid, struct tree_use *u)
{
    char path[64], text[1024];
    long long rss;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return false;
    text[n] = 0;
    const char *p = strrchr(text, ')'); /* the name may hold anything */
    if (!p || sscanf(p + 1,
                     " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                     "%*d %*u %*u %lld",
                     &rss) != 1)
        return false;
    u->rss_bytes += rss * sysconf(_SC_PAGESIZE);
    u->n_process++;
    return true;
}

struct pids {
    pid_t v[TREE_MAX];
    int n;
};

/* Children that one thread has started. */
static void add_children(pid_t pid, const char *tid, struct pids *to)
{
    char path[96], text[4096];
    snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", (int)pid, tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    char *rest = text, *end;
    for (long child; to->n < TREE_MAX; rest = end) {
        child = strtol(rest, &end, 10);
        if (end == rest)
            break;
        to->v[to->n++] = (pid_t)child;
    }
}

struct tree_use child_tree(pid_t root)
{
    struct tree_use u = {0};
    struct pids todo = {.v = {root}, .n = root > 0};
    for (int i = 0; i < todo.n; i++) {
        char path[64];
        if (!add_use(todo.v[i], &u))
            continue;
        snprintf(path, sizeof path, "/proc/%d/task", (int)todo.v[i]);
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d)) != NULL;)
            if (isdigit((unsigned char)e->d_name[0]))
                add_children(todo.v[i], e->d_name, &todo);
        if (d)
            closedir(d);
    }
    return u;
}

void child_log_tail(const char *log, int n, struct buf *out)
{
    int fd = open(log, O_RDONLY | O_CLOEXEC);
    char text[TAIL_BYTES];
    buf_clear(out);
    if (fd < 0)
        return;
    off_t size = lseek(fd, 0, SEEK_END);
    off_t from = size > TAIL_BYTES ? size - TAIL_BYTES : 0;
    ssize_t got = pread(fd, text, sizeof text, from);
    close(fd);
    if (got <= 0)
        return;
    ssize_t at = got;
    if (text[at - 1] == '\n')
        at--;
    for (int lines = 0; at > 0; at--)
        if (text[at - 1] == '\n' && ++lines == n)
            break;
    buf_add(out, text + at, (size_t)(got - at));
}
