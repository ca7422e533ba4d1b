/*
 * store_write.c - the thread that writes: one record at a time, as a file of another name that is
 * synced, then renamed, then the folder is synced. Only after that the record counts as there.
 *
 * It stands back for everything else: low priority, and at a bounded pace while the owner says
 * that work must not be disturbed; whoever waits for it (store_wait) lifts the bound. After a
 * failure it gives up what waits and rests, so that a full disk costs a warning, not a storm.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "store/disk_io.h"
#include "store/store_int.h"

enum { PIECE = 1 << 20, REST_US = 30 * 1000 * 1000 };

/* ---- a file --------------------------------------------------------------------------------- */

/* Sleeps as long as the piece may take at the set pace. False: closing. */
static bool stand_back(struct store *st, size_t bytes)
{
    pthread_mutex_lock(&st->mu);
    if (st->pace && !st->waiters && !st->closing) {
        struct timespec until = clock_in((int64_t)((double)bytes * 1e6 / (double)st->pace));
        while (!st->waiters && !st->closing &&
               pthread_cond_timedwait(&st->work, &st->mu, &until) != ETIMEDOUT)
            ;
    }
    bool go = !st->closing;
    pthread_mutex_unlock(&st->mu);
    return go;
}

static const struct disk_points points = {"store.write.full", "store.write.io",
                                          "store.write.short"};

static enum qn_status write_bytes(int fd, const char *path, struct str data, off_t off,
                                  struct qn_err *err)
{
    while (data.n) {
        ssize_t n = disk_write_some(fd, data.p, data.n, off, &points);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_errno(err, "store", "%s: cannot write %zu bytes", path, data.n);
        data.p += n;
        data.n -= (size_t)n;
        off += n;
    }
    return QN_OK;
}

/* A part and its checksum, piece by piece. */
static enum qn_status write_part(struct store *st, int fd, const char *path, struct iovec v,
                                 off_t off, struct qn_err *err)
{
    const char *p = v.iov_base;
    for (size_t at = 0; at < v.iov_len;) {
        size_t n = v.iov_len - at < PIECE ? v.iov_len - at : PIECE;
        QN_TRY(write_bytes(fd, path, (struct str){p + at, n}, off + (off_t)at, err));
        if (!stand_back(st, n))
            QN_FAIL(err, QN_CANCELLED, "store", "%s: not finished, the store closes", path);
        at += n;
    }
    return QN_OK;
}

static enum qn_status write_file(struct store *st, int fd, const char *path, const struct item *it,
                                 struct qn_err *err)
{
    struct buf head = BUF_INIT;
    struct record_sum *sums = calloc((size_t)it->n_part + 1, sizeof *sums);
    off_t off = (off_t)record_payload_off(&it->id, (uint32_t)it->n_part);
    enum qn_status s =
        sums ? QN_OK : err_set(err, QN_NO_MEMORY, "store", "no memory for %d sums", it->n_part);
    for (int32_t i = 0; s == QN_OK && i < it->n_part; i++) {
        sums[i].bytes = it->parts[i].iov_len;
        sums[i].sum = hash128(it->parts[i].iov_base, it->parts[i].iov_len);
        s = write_part(st, fd, path, it->parts[i], off, err);
        off += (off_t)it->parts[i].iov_len;
    }
    if (s == QN_OK)
        s = record_write(&it->id, &it->name, sums, (uint32_t)it->n_part, &head, err);
    if (s == QN_OK)
        s = write_bytes(fd, path, buf_str(&head), 0, err);
    struct timespec used = {it->e->used_ns / 1000000000, it->e->used_ns % 1000000000};
    if (s == QN_OK)
        futimens(fd, (struct timespec[]){used, used}); /* its age survives the process */
    if (s == QN_OK && (disk_refuses("store.sync", EIO) || fsync(fd) != 0))
        s = err_errno(err, "store", "%s: cannot flush to the disk", path);
    free(sums);
    buf_free(&head);
    return s;
}

static enum qn_status sync_folder(const char *folder, struct qn_err *err)
{
    return disk_sync_folder(folder, "store.sync.folder")
               ? QN_OK
               : err_errno(err, "store", "%s: cannot flush to the disk", folder);
}

/* A file to write to. A folder that others have removed is made again, and what the index says of
 * the files in it is looked at. */
static enum qn_status create(struct store *st, const struct item *it, const char *tmp, int *fd,
                             struct qn_err *err)
{
    int how = O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
    *fd = disk_refuses("store.create", EROFS) ? -1 : open(tmp, how, 0666);
    for (int32_t i = 0; *fd < 0 && errno == ENOENT && i < st->n_model; i++)
        if (record_name_eq(&st->models[i], &it->id.model)) {
            QN_TRY(folder_make(st, i, err));
            store_check(st);
            *fd = open(tmp, how, 0666);
            break;
        }
    return *fd < 0 ? err_errno(err, "store", "%s: cannot create", tmp) : QN_OK;
}

/* From memory to a durable file under its name; nothing of it is left on failure. */
static enum qn_status write_record(struct store *st, const struct item *it, struct qn_err *err)
{
    struct buf folder = BUF_INIT, tmp = BUF_INIT, path = BUF_INIT;
    folder_path(&folder, st->dir, &it->id.model);
    enum qn_status s = buf_ok(&folder, "a path", err);
    if (s == QN_OK) {
        path_join(&tmp, buf_z(&folder), "tmp.1");
        record_path(&path, st->dir, &it->id.model, &it->name);
        s = buf_ok(tmp.failed ? &tmp : &path, "a path", err);
    }
    int fd = -1;
    if (s == QN_OK)
        s = check_lock(st, err);
    if (s == QN_OK)
        s = create(st, it, buf_z(&tmp), &fd, err);
    if (s != QN_OK)
        goto done;
    s = write_file(st, fd, buf_z(&tmp), it, err);
    if (close(fd) != 0 && s == QN_OK)
        s = err_errno(err, "store", "%s: cannot close", buf_z(&tmp));
    bool renamed = false;
    if (s == QN_OK) {
        renamed = !disk_refuses("store.rename", EIO) && rename(buf_z(&tmp), buf_z(&path)) == 0;
        s = renamed ? sync_folder(buf_z(&folder), err)
                    : err_errno(err, "store", "%s: cannot rename to it", buf_z(&path));
    }
    if (s != QN_OK)
        unlink(buf_z(renamed ? &path : &tmp));
done:
    buf_free(&folder);
    buf_free(&tmp);
    buf_free(&path);
    return s;
}

/* ---- the queue ------------------------------------------------------------------------------ */

/* The lock is held: an item has ended. The entry of one that is not there goes, and what waits to
 * continue it becomes an orphan. */
static void end_item(struct store *st, struct item *it, bool durable, bool no_room)
{
    it->durable = durable;
    it->no_room = no_room;
    st->stats.queued--;
    st->stats.queued_bytes -= it->payload;
    if (durable) {
        it->e->stored = true;
        st->stats.records++;
        st->stats.bytes += it->e->bytes;
        st->stats.written++;
        st->stats.written_bytes += it->e->bytes;
    } else {
        while (it->e->child)
            entry_leave(it->e->child);
        recs_remove(&st->index, it->e);
        entry_leave(it->e);
        free(it->e);
        st->stats.failed++;
    }
    it->e = NULL;
    it->next = NULL;
    *st->done_end = it;
    st->done_end = &it->next;
}

static bool orphan(const struct item *it)
{
    return !record_name_none(&it->id.parent) && (!it->e->parent || !it->e->parent->stored);
}

/* The lock is held. Everything that waits is given back unwritten. */
static void give_up(struct store *st)
{
    while (st->queue) {
        struct item *it = st->queue;
        st->queue = it->next;
        end_item(st, it, false, false);
    }
    st->queue_end = &st->queue;
}

static void failed(struct store *st, const struct qn_err *err)
{
    if (!st->stats.error[0])
        log_line(LOG_WARN, "store", "%s; nothing is kept on disk until this goes well again",
                 err->msg);
    snprintf(st->stats.error, sizeof st->stats.error, "%.239s", err->msg);
    st->rest_us = clock_us() + REST_US;
    give_up(st);
}

static void write_next(struct store *st)
{
    struct qn_err err = {0};
    struct victims v = {0};
    struct item *it = st->queue;
    st->queue = it->next;
    if (!st->queue)
        st->queue_end = &st->queue;
    st->writing = it;
    bool room = !orphan(it) && evict_room(st, it->e->bytes, it->e->used_ns, &v);
    enum qn_status s = QN_CANCELLED;
    if (room) {
        pthread_mutex_unlock(&st->mu);
        evict_files(st, &v);
        s = write_record(st, it, &err);
        pthread_mutex_lock(&st->mu);
        if (s == QN_OK && orphan(it)) { /* what it continues went meanwhile */
            struct buf path = BUF_INIT;
            record_path(&path, st->dir, &it->id.model, &it->name);
            if (!path.failed)
                unlink(buf_z(&path));
            buf_free(&path);
            s = QN_CANCELLED;
        }
    } else {
        pthread_mutex_unlock(&st->mu);
        evict_files(st, &v);
        pthread_mutex_lock(&st->mu);
    }
    st->writing = NULL;
    end_item(st, it, s == QN_OK, !room);
    if (s == QN_OK)
        st->stats.error[0] = 0;
    else if (s != QN_CANCELLED)
        failed(st, &err);
}

void *writer_main(void *arg)
{
    struct store *st = arg;
    /* Not the lowest: on a machine that is full of other work a flush would wait for minutes. */
    setpriority(PRIO_PROCESS, (id_t)gettid(), 5);
    syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 7); /* this thread: best effort, last of its class */
    pthread_mutex_lock(&st->mu);
    while (!st->closing) {
        if (st->checks_done < st->checks_wanted)
            check_run(st);
        else if (st->queue)
            write_next(st);
        else
            pthread_cond_wait(&st->work, &st->mu);
        if (!st->queue)
            pthread_cond_broadcast(&st->idle);
    }
    give_up(st);
    pthread_cond_broadcast(&st->idle);
    pthread_mutex_unlock(&st->mu);
    return NULL;
}
