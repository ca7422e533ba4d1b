/*
 * store_check.c - what others do to a folder that a store has: files that are removed or cut behind
 * its back, the lock too. Whoever asks what is durable must not be told of what was there once.
 * The writing thread, apart from everything else that is done to files.
 */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "store/store_int.h"

/* A record that should be there. */
struct should {
    struct record_name name, model;
    int64_t bytes;
};

/* The lock is held. NULL: no memory, or there are none. */
static struct should *list(const struct store *st, size_t *n)
{
    struct should *v = calloc(st->index.n + 1, sizeof *v);
    *n = 0;
    for (size_t i = 0; v && i < st->index.n_slot; i++) {
        const struct entry *e = st->index.slots[i];
        if (e && e->stored)
            v[(*n)++] = (struct should){e->name, e->model, e->bytes};
    }
    return v;
}

static bool there(const struct store *st, const struct should *r, struct buf *path)
{
    struct stat sb;
    record_path(path, st->dir, &r->model, &r->name);
    return path->failed ||
           (lstat(buf_z(path), &sb) == 0 && S_ISREG(sb.st_mode) && sb.st_size == r->bytes);
}

static void forget(struct store *st, const struct should *r, int64_t *gone, struct victims *v)
{
    pthread_mutex_lock(&st->mu);
    struct entry *e = recs_find(&st->index, &r->name);
    int64_t before = st->stats.records;
    if (e && e->stored)
        evict_tree(st, e, v);
    *gone += before - st->stats.records;
    st->stats.damaged += before - st->stats.records;
    pthread_mutex_unlock(&st->mu);
}

void check_run(struct store *st)
{
    struct buf path = BUF_INIT;
    int64_t upto = st->checks_wanted, gone = 0;
    size_t n;
    struct should *v = list(st, &n);
    pthread_mutex_unlock(&st->mu);
    for (size_t i = 0; v && i < n; i++) {
        struct victims lost = {0};
        if (!there(st, &v[i], &path))
            forget(st, &v[i], &gone, &lost);
        evict_files(st, &lost);
    }
    if (gone)
        log_line(LOG_WARN, "store",
                 "%s: %lld records are no longer what was written, or continue one that is not; "
                 "removed",
                 st->dir, (long long)gone);
    free(v);
    buf_free(&path);
    pthread_mutex_lock(&st->mu);
    st->checks_done = upto;
}

static bool lock_is_ours(const struct store *st)
{
    struct stat mine, named;
    struct buf path = BUF_INIT;
    path_join(&path, st->dir, "lock");
    bool same = !path.failed && fstat(st->lock_fd, &mine) == 0 &&
                lstat(buf_z(&path), &named) == 0 && mine.st_dev == named.st_dev &&
                mine.st_ino == named.st_ino;
    buf_free(&path);
    return same;
}

enum qn_status check_lock(struct store *st, struct qn_err *err)
{
    int fd;
    if (lock_is_ours(st))
        return QN_OK;
    QN_TRY(dir_make(st->dir, err));
    QN_TRY(store_lock(st->dir, 0, &fd, err));
    close(st->lock_fd);
    st->lock_fd = fd;
    store_check(st); /* another process may have had it */
    return QN_OK;
}
