/*
 * store.c - a store's life: the folder, its lock, the index, and what callers ask of it.
 *
 *     DIR/lock                       held by the one process that writes
 *     DIR/<16 digits of a model>/about      a line for people
 *     DIR/<16 digits of a model>/<64 digits>.kv    a record under its name
 *     DIR/<16 digits of a model>/tmp.<n>    being written
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "store/store_int.h"

enum { LOCK_STEP_MS = 50, LOCK_WAIT_MS = 2000 };

static int64_t wall_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t store_now_ns(const struct store *st)
{
    return st->start_ns + (clock_us() - st->start_us) * 1000;
}

void folder_path(struct buf *out, const char *dir, const struct record_name *model)
{
    char hex[65];
    record_name_hex(model, hex);
    hex[16] = 0;
    path_join(out, dir, hex);
}

void record_path(struct buf *out, const char *dir, const struct record_name *model,
                 const struct record_name *name)
{
    char hex[65];
    folder_path(out, dir, model);
    record_name_hex(name, hex);
    buf_addf(out, "/%s.kv", hex);
}

/* ---- the lock ------------------------------------------------------------------------------- */

static int lock_holder(int fd)
{
    char text[16] = {0};
    return pread(fd, text, sizeof text - 1, 0) > 0 ? atoi(text) : 0;
}

static enum qn_status lock_take(int fd, const char *dir, int wait_ms, struct qn_err *err)
{
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return err_errno(err, "store", "%s: cannot lock the folder", dir);
        if (wait_ms <= 0)
            QN_FAIL(err, QN_BUSY, "store",
                    "%s: is in use by another server (process %d); give each one a folder of its "
                    "own",
                    dir, lock_holder(fd));
        usleep(LOCK_STEP_MS * 1000);
        wait_ms -= LOCK_STEP_MS;
    }
    char text[16];
    int n = snprintf(text, sizeof text, "%d\n", (int)getpid());
    /* for people and messages only */
    if (ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)n, 0) != n)
        (void)ftruncate(fd, 0);
    return QN_OK;
}

enum qn_status store_lock(const char *dir, int wait_ms, int *fd, struct qn_err *err)
{
    struct buf path = BUF_INIT;
    path_join(&path, dir, "lock");
    enum qn_status s = buf_ok(&path, "a path", err);
    *fd = -1;
    if (s == QN_OK) {
        *fd = open(buf_z(&path), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (*fd < 0)
            s = err_errno(err, "store", "%s: cannot be written, as a cache has to be",
                          buf_z(&path));
    }
    if (s == QN_OK)
        s = lock_take(*fd, dir, wait_ms, err);
    if (s != QN_OK && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    buf_free(&path);
    return s;
}

/* ---- life ----------------------------------------------------------------------------------- */

enum qn_status folder_make(const struct store *st, int32_t i, struct qn_err *err)
{
    struct buf path = BUF_INIT;
    struct str about = str_of(st->abouts[i]);
    folder_path(&path, st->dir, &st->models[i]);
    enum qn_status s = buf_ok(&path, "a path", err);
    if (s == QN_OK)
        s = dir_make(buf_z(&path), err);
    buf_addz(&path, "/about");
    if (s == QN_OK)
        s = buf_ok(&path, "a path", err);
    if (s == QN_OK && about.n)
        s = file_write_atomic(buf_z(&path), about, err);
    buf_free(&path);
    return s;
}

enum qn_status store_about(const char *dir, const struct record_name *model, struct buf *out,
                           struct qn_err *err)
{
    struct buf path = BUF_INIT;
    folder_path(&path, dir, model);
    buf_addz(&path, "/about");
    enum qn_status s = buf_ok(&path, "a path", err);
    if (s == QN_OK)
        s = file_read(buf_z(&path), 4096, out, err);
    buf_free(&path);
    return s;
}

static enum qn_status add_model(struct store *st, const struct record_name *model, struct str about,
                                struct qn_err *err)
{
    char *copy = strndup(about.n ? about.p : "", about.n);
    if (!copy)
        QN_FAIL(err, QN_NO_MEMORY, "store", "out of memory for a line about a model");
    pthread_mutex_lock(&st->mu);
    st->abouts[st->n_model] = copy;
    st->models[st->n_model++] = *model;
    pthread_mutex_unlock(&st->mu);
    return QN_OK;
}

static enum qn_status setup(struct store *st, const struct store_params *p, struct qn_err *err)
{
    pthread_mutex_init(&st->mu, NULL);
    clock_cond_init(&st->work);
    clock_cond_init(&st->idle);
    st->queue_end = &st->queue;
    st->done_end = &st->done;
    st->lock_fd = -1;
    st->start_ns = wall_ns();
    st->start_us = clock_us();
    st->queue_max = p->queue_bytes ? p->queue_bytes : (int64_t)256 << 20;
    st->stats.max_bytes = p->max_bytes;
    st->dir = strdup(p->dir);
    if (!st->dir)
        QN_FAIL(err, QN_NO_MEMORY, "store", "out of memory for a path");
    return add_model(st, &p->model, p->about, err);
}

enum qn_status store_open(const struct store_params *p, store_each *each, void *arg,
                          struct store **out, struct qn_err *err)
{
    struct store *st = calloc(1, sizeof *st);
    if (!st)
        QN_FAIL(err, QN_NO_MEMORY, "store", "out of memory for a store");
    enum qn_status s = setup(st, p, err);
    if (s == QN_OK)
        s = dir_make(st->dir, err);
    if (s == QN_OK)
        s = store_lock(st->dir, LOCK_WAIT_MS, &st->lock_fd, err);
    if (s == QN_OK)
        s = folder_make(st, 0, err);
    if (s == QN_OK)
        s = scan_open(st, each, arg, err);
    if (s == QN_OK) {
        if (pthread_create(&st->thread, NULL, writer_main, st) != 0)
            s = err_set(err, QN_NO_MEMORY, "store", "cannot start the thread that writes");
        else
            st->running = true;
    }
    if (s != QN_OK) {
        store_close(st);
        return s;
    }
    *out = st;
    return QN_OK;
}

enum qn_status store_join(struct store *st, const struct record_name *model, struct str about,
                          store_each *each, void *arg, struct qn_err *err)
{
    if (serves(st, model) || st->n_model == STORE_MODELS)
        QN_FAIL(err, QN_BAD_INPUT, "store", "%s: serves %d models; at most %d, each once", st->dir,
                st->n_model, STORE_MODELS);
    QN_TRY(add_model(st, model, about, err));
    QN_TRY(folder_make(st, st->n_model - 1, err));
    return scan_join(st, each, arg, err);
}

bool serves(const struct store *st, const struct record_name *model)
{
    for (int32_t i = 0; i < st->n_model; i++)
        if (record_name_eq(&st->models[i], model))
            return true;
    return false;
}

void item_free(struct item *it)
{
    free((void *)(uintptr_t)it->id.tokens);
    free((void *)(uintptr_t)it->id.note.p);
    free(it->parts);
    free(it);
}

static void items_free(struct item *it)
{
    while (it) {
        struct item *next = it->next;
        item_free(it);
        it = next;
    }
}

void store_stop(struct store *st)
{
    if (!st || !st->running)
        return;
    pthread_mutex_lock(&st->mu);
    st->closing = true;
    pthread_cond_broadcast(&st->work);
    pthread_mutex_unlock(&st->mu);
    pthread_join(st->thread, NULL);
    st->running = false;
}

void store_close(struct store *st)
{
    if (!st)
        return;
    store_stop(st);
    items_free(st->done);
    recs_free(&st->index);
    if (st->lock_fd >= 0)
        close(st->lock_fd);
    pthread_mutex_destroy(&st->mu);
    pthread_cond_destroy(&st->work);
    pthread_cond_destroy(&st->idle);
    for (int32_t i = 0; i < st->n_model; i++)
        free(st->abouts[i]);
    free(st->dir);
    free(st);
}

/* ---- putting -------------------------------------------------------------------------------- */

static void *copy_of(const void *p, size_t n)
{
    void *q = fault_point("store.item") ? NULL : malloc(n ? n : 1);
    if (q && n)
        memcpy(q, p, n);
    return q;
}

/* NULL: no memory. */
static struct item *item_create(const struct store_item *in)
{
    struct item *it = calloc(1, sizeof *it);
    struct entry *e = calloc(1, sizeof *e);
    if (!it || !e) {
        free(it);
        free(e);
        return NULL;
    }
    it->e = e;
    it->id = in->id;
    it->id.tokens = copy_of(in->id.tokens, (size_t)in->id.n_token * sizeof *in->id.tokens);
    it->id.note.p = copy_of(in->id.note.p, in->id.note.n);
    it->parts = copy_of(in->parts, (size_t)in->n_part * sizeof *in->parts);
    it->n_part = in->n_part;
    it->owner = in->owner;
    for (int32_t i = 0; i < in->n_part; i++)
        it->payload += (int64_t)in->parts[i].iov_len;
    if (it->id.tokens && it->id.note.p && it->parts)
        return it;
    free(e);
    item_free(it);
    return NULL;
}

/* The entry of an item takes its place in the tree; the lock is held. */
static bool enter(struct store *st, struct item *it, int64_t idle_us, struct entry *parent)
{
    struct entry *e = it->e;
    e->name = it->name;
    e->model = it->id.model;
    e->from = it->id.from;
    e->end = it->id.from + it->id.n_token;
    e->bytes = (int64_t)record_payload_off(&it->id, (uint32_t)it->n_part) + it->payload;
    e->used_ns = store_now_ns(st) - idle_us * 1000;
    if (!recs_add(&st->index, e))
        return false;
    entry_adopt(parent, e);
    *st->queue_end = it;
    st->queue_end = &it->next;
    st->stats.queued++;
    st->stats.queued_bytes += it->payload;
    pthread_cond_signal(&st->work);
    return true;
}

/* With the lock held: whether it may be queued, and behind what. */
static enum store_answer may_put(struct store *st, const struct store_item *in, struct item *it,
                                 struct entry **parent)
{
    *parent = NULL;
    if (recs_find(&st->index, &it->name))
        return STORE_HAVE;
    if (!record_name_none(&it->id.parent)) {
        *parent = recs_find(&st->index, &it->id.parent);
        bool orphan = *parent && !(*parent)->stored && !(*parent)->parent && (*parent)->from;
        if (!*parent || orphan || it->id.from <= (*parent)->from || it->id.from > (*parent)->end)
            return STORE_ORPHAN;
    }
    if (st->closing || (!in->now && clock_us() < st->rest_us))
        return STORE_RESTING;
    int64_t max = st->stats.max_bytes,
            whole = (int64_t)record_payload_off(&it->id, (uint32_t)it->n_part) + it->payload;
    if (max && whole > max)
        return STORE_LARGE;
    return st->stats.queued_bytes + it->payload > st->queue_max ? STORE_FULL : STORE_QUEUED;
}

enum store_answer store_put(struct store *st, const struct store_item *in, struct record_name *name)
{
    QN_ASSERT(in->n_part >= 0 && in->n_part <= RECORD_PART_MAX && in->id.n_token >= 0 &&
              in->id.n_token <= RECORD_TOKEN_MAX && in->id.note.n <= RECORD_NOTE_MAX);
    struct item *it = item_create(in);
    if (!it)
        return STORE_FULL;
    if (record_name_none(&it->id.model))
        it->id.model = st->models[0];
    QN_ASSERT(serves(st, &it->id.model));
    if (!record_name_of(&it->id, &it->name)) {
        free(it->e);
        item_free(it);
        return STORE_FULL;
    }
    *name = it->name;
    pthread_mutex_lock(&st->mu);
    struct entry *parent;
    enum store_answer a = may_put(st, in, it, &parent);
    if (a == STORE_QUEUED && !enter(st, it, in->idle_us, parent))
        a = STORE_FULL;
    pthread_mutex_unlock(&st->mu);
    if (a != STORE_QUEUED) {
        free(it->e);
        item_free(it);
    }
    return a;
}

int32_t store_reap(struct store *st, struct store_done *out, int32_t max)
{
    int32_t n = 0;
    pthread_mutex_lock(&st->mu);
    while (n < max && st->done) {
        struct item *it = st->done;
        st->done = it->next;
        if (!st->done)
            st->done_end = &st->done;
        out[n++] = (struct store_done){it->owner, it->name, it->durable, it->no_room};
        item_free(it);
    }
    pthread_mutex_unlock(&st->mu);
    return n;
}

bool store_wait(struct store *st, int timeout_ms)
{
    struct timespec until = clock_in((int64_t)timeout_ms * 1000);
    pthread_mutex_lock(&st->mu);
    st->waiters++;
    pthread_cond_broadcast(&st->work); /* it may be pausing */
    while (st->queue || st->writing)
        if (pthread_cond_timedwait(&st->idle, &st->mu, &until) == ETIMEDOUT)
            break;
    bool all = !st->queue && !st->writing;
    st->waiters--;
    pthread_mutex_unlock(&st->mu);
    return all;
}

void store_check(struct store *st)
{
    pthread_mutex_lock(&st->mu);
    st->checks_wanted++;
    pthread_cond_broadcast(&st->work);
    pthread_mutex_unlock(&st->mu);
}

bool store_checked(struct store *st)
{
    pthread_mutex_lock(&st->mu);
    bool done = st->checks_done >= st->checks_wanted || st->closing;
    pthread_mutex_unlock(&st->mu);
    return done;
}

void store_pace(struct store *st, int64_t bytes_per_s)
{
    pthread_mutex_lock(&st->mu);
    st->pace = bytes_per_s;
    pthread_mutex_unlock(&st->mu);
}

/* ---- asking --------------------------------------------------------------------------------- */

bool store_has(struct store *st, const struct record_name *name)
{
    pthread_mutex_lock(&st->mu);
    const struct entry *e = recs_find(&st->index, name);
    bool has = e && e->stored;
    pthread_mutex_unlock(&st->mu);
    return has;
}

void store_stats(struct store *st, struct store_stats *out)
{
    pthread_mutex_lock(&st->mu);
    *out = st->stats;
    pthread_mutex_unlock(&st->mu);
}
