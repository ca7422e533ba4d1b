/*
 * file.c - see file.h. Every failure names the path. Folder walks use fts(3), which keeps its own
 * stack, so a deep tree cannot exhaust ours, and never follows symbolic links.
 */
#include "file.h"

#include "fault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define READ_STEP ((size_t)64 * 1024)

/* ---- reading -------------------------------------------------------------------------------- */

static ssize_t read_some(int fd, void *p, size_t n)
{
    if (fault_point("file.read")) {
        errno = EIO;
        return -1;
    }
    ssize_t got;
    do
        got = read(fd, p, n);
    while (got < 0 && errno == EINTR);
    return got;
}

static enum qn_status too_big(const char *path, size_t max, struct qn_err *err)
{
    return err_set(err, QN_BAD_INPUT, "file", "%s: is larger than the limit of %zu bytes", path,
                   max);
}

static enum qn_status read_all(int fd, const char *path, size_t max, struct buf *out,
                               struct qn_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_errno(err, "file", "%s: cannot stat", path);
    bool regular = S_ISREG(st.st_mode);
    if (regular && (uint64_t)st.st_size > max)
        return too_big(path, max, err);
    /* The size is a hint only: files under /proc say 0, and a file may grow while it is read. */
    size_t want = regular && st.st_size > 0 ? (size_t)st.st_size + 1 : READ_STEP;
    for (;;) {
        if (!buf_reserve(out, want))
            return buf_ok(out, path, err);
        ssize_t n = read_some(fd, out->p + out->n, want);
        if (n < 0)
            return err_errno(err, "file", "%s: cannot read", path);
        if (n == 0)
            return QN_OK;
        out->n += (size_t)n;
        out->p[out->n] = 0;
        if (out->n > max)
            return too_big(path, max, err);
        want = READ_STEP;
    }
}

enum qn_status file_read(const char *path, size_t max, struct buf *out, struct qn_err *err)
{
    buf_clear(out);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "file", "%s: cannot open", path);
    enum qn_status s = read_all(fd, path, max, out, err);
    close(fd);
    if (s != QN_OK)
        buf_clear(out);
    return s;
}

static enum qn_status map_fd(int fd, const char *path, struct file_map *out, struct qn_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_errno(err, "file", "%s: cannot stat", path);
    if (!S_ISREG(st.st_mode))
        QN_FAIL(err, QN_BAD_INPUT, "file", "%s: is not a regular file", path);
    if (st.st_size == 0)
        return QN_OK;
    void *p = MAP_FAILED;
    if (fault_point("file.map"))
        errno = ENOMEM;
    else
        p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return err_errno(err, "file", "%s: cannot map %lld bytes", path, (long long)st.st_size);
    *out = (struct file_map){p, (size_t)st.st_size};
    return QN_OK;
}

enum file_end file_read_at(int fd, struct iovec *v, int n_v, off_t off, const char *fault)
{
    while (n_v) {
        ssize_t got = -1;
        if (fault_point(fault))
            errno = EIO;
        else
            got = preadv(fd, v, n_v, off);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? FILE_FAILS : FILE_ENDS;
        off += got;
        while (n_v && (size_t)got >= v->iov_len) {
            got -= (ssize_t)v->iov_len;
            v++;
            n_v--;
        }
        if (n_v) {
            v->iov_base = (char *)v->iov_base + got;
            v->iov_len -= (size_t)got;
        }
    }
    return FILE_DONE;
}

enum qn_status file_map_open(const char *path, struct file_map *out, struct qn_err *err)
{
    *out = (struct file_map){NULL, 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "file", "%s: cannot open", path);
    enum qn_status s = map_fd(fd, path, out, err);
    close(fd);
    return s;
}

void file_map_close(struct file_map *m)
{
    if (m->p)
        munmap((void *)(uintptr_t)m->p, m->n);
    *m = (struct file_map){NULL, 0};
}

void file_map_drop(const struct file_map *m, size_t off, size_t n)
{
    if (!m->p || off >= m->n)
        return;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (n > m->n - off)
        n = m->n - off;
    /* Only pages that lie wholly inside the range; the last page of the map counts as whole. */
    size_t from = (off + page - 1) / page * page;
    size_t to = off + n == m->n ? m->n : (off + n) / page * page;
    if (from < to)
        madvise((void *)(uintptr_t)(m->p + from), to - from, MADV_DONTNEED);
}

/* ---- writing -------------------------------------------------------------------------------- */

static enum qn_status write_all(int fd, const char *tmp, struct str data, struct qn_err *err)
{
    while (data.n) {
        ssize_t n = -1;
        if (fault_point("file.write"))
            errno = ENOSPC;
        else
            n = write(fd, data.p, data.n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, "file", "%s: cannot write %zu bytes", tmp, data.n);
        data.p += n;
        data.n -= (size_t)n;
    }
    return QN_OK;
}

/* fsync, close; closes in every case. */
static enum qn_status seal(int fd, const char *tmp, enum qn_status s, struct qn_err *err)
{
    if (s == QN_OK) {
        bool refuse = fault_point("file.sync");
        if (refuse)
            errno = EIO;
        if (refuse || fsync(fd) != 0)
            s = err_errno(err, "file", "%s: cannot flush to the disk", tmp);
    }
    if (close(fd) != 0 && s == QN_OK)
        s = err_errno(err, "file", "%s: cannot close", tmp);
    return s;
}

/* Makes a new name durable. Not every file system allows it: a refusal is not a failure. */
static void sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    struct buf dir = BUF_INIT;
    if (slash)
        buf_add(&dir, path, slash == path ? 1 : (size_t)(slash - path));
    else
        buf_addc(&dir, '.');
    int fd = dir.failed ? -1 : open(buf_z(&dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    buf_free(&dir);
}

enum qn_status file_write_atomic(const char *path, struct str data, struct qn_err *err)
{
    struct buf tmp = BUF_INIT;
    /* The thread id keeps two threads apart as well as two processes. */
    buf_addf(&tmp, "%s.tmp.%d", path, (int)gettid());
    enum qn_status s = buf_ok(&tmp, path, err);
    if (s != QN_OK)
        goto done;
    int fd = -1;
    if (fault_point("file.create"))
        errno = EACCES;
    else
        fd = open(buf_z(&tmp), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) {
        s = err_errno(err, "file", "%s: cannot create", buf_z(&tmp));
        goto done;
    }
    s = write_all(fd, buf_z(&tmp), data, err);
    s = seal(fd, buf_z(&tmp), s, err);
    if (s == QN_OK) {
        bool refuse = fault_point("file.rename");
        if (refuse)
            errno = EIO;
        if (refuse || rename(buf_z(&tmp), path) != 0)
            s = err_errno(err, "file", "%s: cannot rename %s to it", path, buf_z(&tmp));
    }
    if (s == QN_OK)
        sync_parent(path);
    else
        unlink(buf_z(&tmp));
done:
    buf_free(&tmp);
    return s;
}

/* ---- folders -------------------------------------------------------------------------------- */

static enum qn_status make_one(const char *path, struct qn_err *err)
{
    bool refuse = fault_point("dir.make");
    if (refuse)
        errno = EACCES;
    if (!refuse && mkdir(path, 0777) == 0) {
        if (!fault_point("dir.sync"))
            sync_parent(path);
        return QN_OK;
    }
    if (errno == EEXIST && dir_exists(path))
        return QN_OK;
    return err_errno(err, "file", "%s: cannot make the folder", path);
}

enum qn_status dir_make(const char *path, struct qn_err *err)
{
    if (!*path)
        QN_FAIL(err, QN_BAD_INPUT, "file", "the name of the folder to make is empty");
    struct buf part = BUF_INIT;
    enum qn_status s = QN_OK;
    for (size_t i = 0; s == QN_OK; i++) {
        bool end = !path[i];
        if ((end || path[i] == '/') && i > 0 && path[i - 1] != '/') {
            buf_clear(&part);
            buf_add(&part, path, i);
            s = buf_ok(&part, path, err);
            if (s == QN_OK)
                s = make_one(buf_z(&part), err);
        }
        if (end)
            break;
    }
    buf_free(&part);
    return s;
}

static enum qn_status remove_walk(FTS *walk, struct qn_err *err)
{
    FTSENT *e;
    while (errno = 0, (e = fts_read(walk)) != NULL) {
        switch (e->fts_info) {
        case FTS_D:
            continue;
        case FTS_DNR:
        case FTS_ERR:
            errno = e->fts_errno;
            return err_errno(err, "file", "%s: cannot read the folder", e->fts_path);
        case FTS_DP:
            if (rmdir(e->fts_accpath) != 0)
                return err_errno(err, "file", "%s: cannot remove the folder", e->fts_path);
            continue;
        default:
            if (unlink(e->fts_accpath) != 0)
                return err_errno(err, "file", "%s: cannot remove", e->fts_path);
        }
    }
    return errno ? err_errno(err, "file", "cannot walk the folder to remove") : QN_OK;
}

enum qn_status dir_remove(const char *path, struct qn_err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return err_errno(err, "file", "%s: cannot remove", path);
    if (!S_ISDIR(st.st_mode))
        QN_FAIL(err, QN_BAD_INPUT, "file", "%s: is not a folder; not removed", path);
    char *roots[2] = {(char *)(uintptr_t)path, NULL};
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
    if (!walk)
        return err_errno(err, "file", "%s: cannot open the folder", path);
    enum qn_status s = remove_walk(walk, err);
    fts_close(walk);
    return s;
}

bool file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool dir_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

struct names {
    char **v;
    size_t n, cap;
};

static bool names_add(struct names *l, const char *name)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        char **v = fault_point("dir.list") ? NULL : reallocarray(l->v, cap, sizeof *v);
        if (!v)
            return false;
        l->v = v;
        l->cap = cap;
    }
    char *copy = strdup(name);
    if (copy)
        l->v[l->n++] = copy;
    return copy != NULL;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum qn_status list_into(DIR *d, const char *path, struct names *l, struct qn_err *err)
{
    struct dirent *e;
    while (errno = 0, (e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (!names_add(l, e->d_name))
            QN_FAIL(err, QN_NO_MEMORY, "file", "%s: no memory for %zu names", path, l->n);
    }
    return errno ? err_errno(err, "file", "%s: cannot read the folder", path) : QN_OK;
}

enum qn_status dir_list(const char *path, char ***names, size_t *n, struct qn_err *err)
{
    *names = NULL;
    *n = 0;
    DIR *d = opendir(path);
    if (!d)
        return err_errno(err, "file", "%s: cannot open the folder", path);
    struct names l = {0};
    enum qn_status s = list_into(d, path, &l, err);
    closedir(d);
    if (s != QN_OK) {
        names_free(l.v, l.n);
        return s;
    }
    if (l.n)
        qsort(l.v, l.n, sizeof *l.v, name_order);
    *names = l.v;
    *n = l.n;
    return QN_OK;
}

void names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* ---- paths ---------------------------------------------------------------------------------- */

void path_join(struct buf *out, const char *dir, const char *name)
{
    buf_clear(out);
    buf_addz(out, dir);
    if (out->n && out->p[out->n - 1] != '/')
        buf_addc(out, '/');
    buf_addz(out, name);
}

struct str path_base(const char *path)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t from = end;
    while (from > 0 && path[from - 1] != '/')
        from--;
    if (from == end && end > 0)
        from--; /* "/" itself */
    return (struct str){path + from, end - from};
}

enum qn_status cache_dir(struct buf *out, struct qn_err *err)
{
    const char *own = getenv("QUERN_CACHE"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    buf_clear(out);
    if (own && *own)
        buf_addz(out, own);
    else if (xdg && *xdg == '/') /* the XDG rule: a relative path is to be ignored */
        path_join(out, xdg, "quern");
    else if (home && *home)
        path_join(out, home, ".cache/quern");
    else
        QN_FAIL(err, QN_NOT_FOUND, "file",
                "no cache folder: HOME is not set; set QUERN_CACHE to a folder");
    return buf_ok(out, "path of the cache folder", err);
}
