/*
 * store_read.c - from a file to memory: the header and its checks, then the wanted parts straight
 * to where they belong, each with its checksum. A record that fails is dropped with what continues
 * it. Any thread; the lock is held only to look and to drop.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "store/store_int.h"

enum { FIRST_READ = 16384, IOV_BATCH = 256, SCRATCH = 1 << 20 };

/* Reads n bytes at off; less is QN_BAD_INPUT. */
static enum qn_status read_at(int fd, const char *path, struct iovec *v, int n_v, off_t off,
                              struct qn_err *err)
{
    switch (file_read_at(fd, v, n_v, off, "store.read")) {
    case FILE_FAILS:
        return err_errno(err, "store", "%s: cannot read", path);
    case FILE_ENDS:
        QN_FAIL(err, QN_BAD_INPUT, "store", "%s: is cut off", path);
    default:
        return QN_OK;
    }
}

static enum qn_status fill(int fd, const char *path, struct buf *out, size_t n, struct qn_err *err)
{
    if (n <= out->n)
        return QN_OK;
    if (!buf_reserve(out, n - out->n))
        return buf_ok(out, "a record's header", err);
    struct iovec v = {out->p + out->n, n - out->n};
    QN_TRY(read_at(fd, path, &v, 1, (off_t)out->n, err));
    out->n = n;
    return QN_OK;
}

enum qn_status header_read(int fd, const char *path, struct buf *out, struct record *r,
                           struct qn_err *err)
{
    struct stat sb;
    uint64_t whole;
    buf_clear(out);
    if (fstat(fd, &sb) != 0)
        return err_errno(err, "store", "%s: cannot stat", path);
    if (!S_ISREG(sb.st_mode))
        QN_FAIL(err, QN_BAD_INPUT, "store", "%s: is not a regular file", path);
    uint64_t size = (uint64_t)sb.st_size;
    QN_TRY(fill(fd, path, out, size < FIRST_READ ? size : FIRST_READ, err));
    enum qn_status s = record_measure((const uint8_t *)out->p, out->n, &whole, err);
    if (s == QN_OK && whole > size)
        s = err_set(err, QN_BAD_INPUT, "store", "is cut off inside its header");
    if (s == QN_OK)
        QN_TRY(fill(fd, path, out, whole, err));
    if (s == QN_OK)
        s = record_read((const uint8_t *)out->p, out->n, size, r, err);
    return s == QN_OK ? s : err_prefix(err, "%s", path);
}

static enum qn_status check_sum(const struct record *r, uint32_t i, const void *p, const char *path,
                                struct qn_err *err)
{
    struct record_sum want = record_part(r, i);
    struct hash128 got = hash128(p, want.bytes);
    if (got.lo != want.sum.lo || got.hi != want.sum.hi)
        QN_FAIL(err, QN_BAD_INPUT, "store", "%s: the checksum of part %u is wrong", path, i);
    return QN_OK;
}

/* Parts that lie behind each other are read together. */
static enum qn_status read_parts(int fd, const char *path, const struct record *r,
                                 const struct iovec *parts, struct qn_err *err)
{
    struct iovec v[IOV_BATCH];
    off_t off = (off_t)r->payload_off, at = off;
    int n = 0;
    for (uint32_t i = 0; i <= r->n_part; i++) {
        bool want = i < r->n_part && parts[i].iov_base;
        if (n && (!want || n == IOV_BATCH)) {
            QN_TRY(read_at(fd, path, v, n, at, err));
            n = 0;
        }
        if (i == r->n_part)
            break;
        if (want) {
            at = n ? at : off;
            v[n++] = parts[i];
        }
        off += (off_t)record_part(r, i).bytes;
    }
    for (uint32_t i = 0; i < r->n_part; i++)
        if (parts[i].iov_base)
            QN_TRY(check_sum(r, i, parts[i].iov_base, path, err));
    return QN_OK;
}

/* Every part in turn, into memory of its own. */
static enum qn_status check_parts(int fd, const char *path, const struct record *r,
                                  struct qn_err *err)
{
    off_t off = (off_t)r->payload_off;
    enum qn_status s = QN_OK;
    for (uint32_t i = 0; s == QN_OK && i < r->n_part; i++) {
        size_t n = record_part(r, i).bytes;
        void *p = malloc(n ? n : 1);
        struct iovec v = {p, n};
        s = p ? read_at(fd, path, &v, n ? 1 : 0, off, err)
              : err_set(err, QN_NO_MEMORY, "store", "%s: no memory for a part of %zu bytes", path,
                        n);
        if (s == QN_OK)
            s = check_sum(r, i, p, path, err);
        free(p);
        off += (off_t)n;
    }
    return s;
}

enum qn_status payload_read(int fd, const char *path, const struct record *r,
                            const struct iovec *parts, struct qn_err *err)
{
    return parts ? read_parts(fd, path, r, parts, err) : check_parts(fd, path, r, err);
}

/* ---- for callers ---------------------------------------------------------------------------- */

/* A record that is being read, and whose it is. */
struct reading {
    const struct record_name *name;
    struct record_name model;
};

static bool pin(struct store *st, struct reading *r)
{
    pthread_mutex_lock(&st->mu);
    struct entry *e = recs_find(&st->index, r->name);
    bool there = e && e->stored && serves(st, &e->model);
    if (there) {
        e->pins++;
        r->model = e->model;
    }
    pthread_mutex_unlock(&st->mu);
    return there;
}

/* Also counts the use: what it continues has been used as well. */
static void unpin(struct store *st, const struct record_name *name, int64_t bytes)
{
    int64_t now = store_now_ns(st);
    pthread_mutex_lock(&st->mu);
    struct entry *e = recs_find(&st->index, name);
    if (e && e->pins)
        e->pins--;
    for (; e && bytes; e = e->parent)
        e->used_ns = now;
    st->stats.read += bytes != 0;
    st->stats.read_bytes += bytes;
    pthread_mutex_unlock(&st->mu);
}

static void drop(struct store *st, const struct record_name *name, const struct qn_err *why)
{
    struct victims v = {0};
    pthread_mutex_lock(&st->mu);
    struct entry *e = recs_find(&st->index, name);
    if (e && e->stored)
        evict_tree(st, e, &v);
    st->stats.damaged++;
    int64_t n = 0;
    for (const struct entry *i = v.first; i; i = i->next)
        n++;
    pthread_mutex_unlock(&st->mu);
    log_line(LOG_WARN, "store", "%s; removed, with %lld records that continue it", why->msg,
             (long long)(n ? n - 1 : 0));
    evict_files(st, &v);
}

static enum qn_status read_open(const char *path, const struct reading *of,
                                const struct iovec *parts, int32_t n_part, int64_t *bytes,
                                struct qn_err *err)
{
    struct record r;
    struct buf head = BUF_INIT;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return err_errno(err, "store", "%s: cannot open", path);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    enum qn_status s = header_read(fd, path, &head, &r, err);
    if (s == QN_OK &&
        (!record_name_eq(&r.name, of->name) || !record_name_eq(&r.id.model, &of->model)))
        s = err_set(err, QN_BAD_INPUT, "store", "%s: holds another record", path);
    if (s == QN_OK && r.n_part != (uint32_t)n_part)
        s = err_set(err, QN_BAD_INPUT, "store", "%s: has %u parts instead of %d", path, r.n_part,
                    n_part);
    for (int32_t i = 0; s == QN_OK && i < n_part; i++)
        if (parts[i].iov_base && parts[i].iov_len != record_part(&r, (uint32_t)i).bytes)
            s = err_set(err, QN_BAD_INPUT, "store", "%s: part %d has another size", path, i);
    if (s == QN_OK)
        s = payload_read(fd, path, &r, parts, err);
    if (s == QN_OK) {
        *bytes = (int64_t)(r.payload_off + r.payload_bytes);
        futimens(fd, NULL); /* age survives the process; where it cannot be, it does not matter */
    }
    buf_free(&head);
    close(fd);
    return s;
}

/* What says nothing about the record itself. */
static bool passing(enum qn_status s)
{
    return s == QN_NO_MEMORY || errno == EMFILE || errno == ENFILE;
}

enum qn_status store_read(struct store *st, const struct record_name *name,
                          const struct iovec *parts, int32_t n_part, struct qn_err *err)
{
    struct qn_err why = {0};
    struct buf path = BUF_INIT;
    struct reading of = {.name = name};
    int64_t bytes = 0;
    if (!pin(st, &of))
        QN_FAIL(err, QN_NOT_FOUND, "store", "the record is not there");
    record_path(&path, st->dir, &of.model, name);
    errno = 0;
    enum qn_status s = buf_ok(&path, "a path", &why);
    if (s == QN_OK)
        s = read_open(buf_z(&path), &of, parts, n_part, &bytes, &why);
    bool keep = s == QN_OK || passing(s);
    unpin(st, name, bytes);
    buf_free(&path);
    if (s == QN_OK)
        return QN_OK;
    if (!keep)
        drop(st, name, &why);
    QN_FAIL(err, QN_NOT_FOUND, "store", "%s", why.msg);
}

void store_prefetch(struct store *st, const struct record_name *name)
{
    struct buf path = BUF_INIT;
    struct reading of = {.name = name};
    if (!pin(st, &of))
        return;
    record_path(&path, st->dir, &of.model, name);
    int fd = path.failed ? -1 : open(buf_z(&path), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
        close(fd);
    }
    unpin(st, name, 0);
    buf_free(&path);
}
