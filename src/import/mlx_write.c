/*
 * mlx_write.c - the output folder as a transaction, and safetensors shards; see mlx_write.h.
 *
 *   shard:  u64 header length (a multiple of 8) | JSON header, padded with spaces | tensor data
 *
 * The format allows no holes between tensors, so the tensors of a shard are ordered by falling
 * element size: every element is then aligned to its size. Writes go to fixed offsets.
 */
#include "import/mlx_write.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"

#define SHARD_MAX ((uint64_t)5 << 30)
#define PARTIAL   ".partial-" /* the temporary folder is OUT.partial-PID */

struct mlx_out {
    char *dir, *tmp; /* final and temporary folder */
    bool tmp_made, replace;
    struct mlx_tensor *t;
    size_t n;
    int *fd; /* [n_shard], -1 = closed */
    int32_t n_shard;
};

size_t mlx_dtype_bytes(enum mlx_dtype t)
{
    return t == MLX_U32 || t == MLX_F32 ? 4 : 2;
}

const char *mlx_dtype_name(enum mlx_dtype t)
{
    static const char *const NAME[] = {"U32", "F32", "F16", "BF16"};
    return NAME[t];
}

/* ---- the folder ----------------------------------------------------------------------------- */

static enum qn_status check_target(struct mlx_out *o, bool force, struct qn_err *err)
{
    struct stat st;
    char **names = NULL;
    size_t n = 0;
    if (stat(o->dir, &st) != 0)
        return errno == ENOENT ? QN_OK : err_errno(err, "output", "%s", o->dir);
    if (!S_ISDIR(st.st_mode))
        QN_FAIL(err, QN_BAD_INPUT, "output", "%s exists and is not a folder; name a new one",
                o->dir);
    QN_TRY(dir_list(o->dir, &names, &n, err));
    bool is_model = false;
    for (size_t i = 0; i < n; i++)
        is_model |= strcmp(names[i], "config.json") == 0;
    names_free(names, n);
    o->replace = n > 0;
    if (n > 0 && !force)
        QN_FAIL(err, QN_BAD_INPUT, "output",
                "%s exists and is not empty; name a new folder, or say --force to replace it",
                o->dir);
    if (n > 0 && !is_model)
        QN_FAIL(err, QN_BAD_INPUT, "output",
                "%s holds files but no config.json: not a model folder, so it is not replaced",
                o->dir);
    return QN_OK;
}

/* The path without trailing slashes, symbolic links of an existing folder resolved, so that the
 * temporary folder lies on the same file system. */
static char *clean_path(const char *dir)
{
    char *real = realpath(dir, NULL);
    if (real)
        return real;
    char *c = strdup(dir);
    for (size_t n = c ? strlen(c) : 0; n > 1 && c[n - 1] == '/'; n--)
        c[n - 1] = 0;
    return c;
}

static enum qn_status make_parent(const char *dir, struct qn_err *err)
{
    const char *slash = strrchr(dir, '/');
    if (!slash || slash == dir)
        return QN_OK;
    char *parent = strndup(dir, (size_t)(slash - dir));
    if (!parent)
        QN_FAIL(err, QN_NO_MEMORY, "output", "no memory for a path");
    enum qn_status st = dir_make(parent, err);
    free(parent);
    return st;
}

/* Whether `name` is BASE.partial-PID of a process that is gone. Our own number counts as gone: the
 * folder is there before we made ours, so an earlier process of that number left it. */
static bool is_stale(const char *name, const char *base)
{
    size_t n = strlen(base);
    char *end;
    if (strncmp(name, base, n) != 0 || strncmp(name + n, PARTIAL, sizeof PARTIAL - 1) != 0)
        return false;
    const char *digits = name + n + sizeof PARTIAL - 1;
    errno = 0;
    long pid = strtol(digits, &end, 10);
    if (*digits < '1' || *digits > '9' || *end || errno || pid > INT_MAX)
        return false;
    return pid == getpid() || (kill((pid_t)pid, 0) != 0 && errno == ESRCH);
}

/* Removes what conversions to the same folder left behind when they were killed. What cannot be
 * removed is left: it is in nobody's way. */
static void sweep(const char *dir)
{
    const char *slash = strrchr(dir, '/'), *base = slash ? slash + 1 : dir;
    char *parent = !slash ? strdup(".") : strndup(dir, slash == dir ? 1 : (size_t)(slash - dir));
    char **names = NULL;
    size_t n = 0;
    if (!parent || dir_list(parent, &names, &n, NULL) != QN_OK)
        n = 0;
    for (size_t i = 0; i < n; i++) {
        struct buf path = BUF_INIT;
        struct stat st;
        if (!is_stale(names[i], base))
            continue;
        path_join(&path, parent, names[i]);
        if (!path.failed && lstat(buf_z(&path), &st) == 0 && S_ISDIR(st.st_mode))
            dir_remove(buf_z(&path), NULL);
        buf_free(&path);
    }
    if (names)
        names_free(names, n);
    free(parent);
}

enum qn_status mlx_out_create(const char *dir, bool force, struct mlx_out **out, struct qn_err *err)
{
    enum qn_status st = QN_OK;
    *out = NULL;
    if (!*dir)
        QN_FAIL(err, QN_BAD_INPUT, "output", "the output folder's name is empty");
    struct mlx_out *o = calloc(1, sizeof *o);
    if (!o || !(o->dir = clean_path(dir)) ||
        asprintf(&o->tmp, "%s" PARTIAL "%d", o->dir, (int)getpid()) < 0) {
        st = err_set(err, QN_NO_MEMORY, "output", "no memory to open %s", dir);
        if (o)
            o->tmp = NULL;
        goto done;
    }
    if ((st = check_target(o, force, err)) != QN_OK || (st = make_parent(o->dir, err)) != QN_OK)
        goto done;
    sweep(o->dir);
    if (mkdir(o->tmp, 0777) != 0) {
        st = err_errno(err, "output", "cannot make the folder %s", o->tmp);
        goto done;
    }
    o->tmp_made = true;
    *out = o;
    return QN_OK;
done:
    mlx_out_free(o);
    return st;
}

static void close_shards(struct mlx_out *o)
{
    for (int32_t i = 0; o->fd && i < o->n_shard; i++)
        if (o->fd[i] >= 0)
            close(o->fd[i]);
    free(o->fd);
    o->fd = NULL;
}

void mlx_out_free(struct mlx_out *o)
{
    if (!o)
        return;
    close_shards(o);
    if (o->tmp_made)
        dir_remove(o->tmp, NULL);
    free(o->dir);
    free(o->tmp);
    free(o);
}

enum qn_status mlx_out_file(struct mlx_out *o, const char *name, struct str data,
                            struct qn_err *err)
{
    struct buf path = BUF_INIT;
    path_join(&path, o->tmp, name);
    enum qn_status st = buf_ok(&path, "a path", err);
    if (st == QN_OK)
        st = file_write_atomic(buf_z(&path), data, err);
    buf_free(&path);
    return st;
}

/* ---- shards --------------------------------------------------------------------------------- */

static void shard_name(const struct mlx_out *o, int32_t i, char *out, size_t n)
{
    if (o->n_shard == 1)
        snprintf(out, n, "model.safetensors");
    else
        snprintf(out, n, "model-%05d-of-%05d.safetensors", i + 1, o->n_shard);
}

/* Sizes, and which shard each tensor goes to: in the order given, a new one when full. */
static enum qn_status assign_shards(struct mlx_out *o, uint64_t shard_max, struct qn_err *err)
{
    uint64_t used = 0;
    o->n_shard = 1;
    for (size_t i = 0; i < o->n; i++) {
        struct mlx_tensor *t = &o->t[i];
        uint64_t n = mlx_dtype_bytes(t->dtype);
        for (int32_t d = 0; d < t->n_dim; d++)
            if (__builtin_mul_overflow(n, (uint64_t)t->dim[d], &n) || n > INT64_MAX / 4)
                QN_FAIL(err, QN_BAD_INPUT, "output", "%s would be larger than 2^61 bytes", t->name);
        if (used && n > shard_max - (used < shard_max ? used : shard_max)) {
            o->n_shard++;
            used = 0;
        }
        t->n_bytes = n;
        t->shard = o->n_shard - 1;
        used += n;
    }
    return QN_OK;
}

static void header_entry(struct jw *w, const struct mlx_tensor *t, uint64_t at)
{
    jw_key(w, t->name);
    jw_obj(w);
    jw_kstrz(w, "dtype", mlx_dtype_name(t->dtype));
    jw_key(w, "shape");
    jw_arr(w);
    for (int32_t d = 0; d < t->n_dim; d++)
        jw_i64(w, t->dim[d]);
    jw_arr_end(w);
    jw_key(w, "data_offsets");
    jw_arr(w);
    jw_i64(w, (int64_t)at);
    jw_i64(w, (int64_t)(at + t->n_bytes));
    jw_arr_end(w);
    jw_obj_end(w);
}

/* Builds the header of shard i and sets its tensors' offsets; *size = bytes of the whole file. */
static void shard_header(struct mlx_out *o, int32_t shard, struct buf *out, uint64_t *size)
{
    struct jw w;
    uint64_t at = 0;
    buf_add(out, "\0\0\0\0\0\0\0\0", 8);
    jw_init(&w, out);
    jw_obj(&w);
    jw_key(&w, "__metadata__");
    jw_obj(&w);
    jw_kstrz(&w, "format", "mlx");
    jw_obj_end(&w);
    for (size_t each = 4; each >= 2; each -= 2)
        for (size_t i = 0; i < o->n; i++) {
            struct mlx_tensor *t = &o->t[i];
            if (t->shard != shard || mlx_dtype_bytes(t->dtype) != each)
                continue;
            header_entry(&w, t, at);
            t->off = at;
            at += t->n_bytes;
        }
    jw_obj_end(&w);
    while (out->n % 8 && !out->failed)
        buf_addc(out, ' ');
    if (!out->failed) {
        uint64_t n = out->n - 8;
        memcpy(out->p, &n, 8);
    }
    for (size_t i = 0; i < o->n; i++)
        if (o->t[i].shard == shard)
            o->t[i].off += out->n;
    *size = at + out->n;
}

static enum qn_status write_all(int fd, const void *p, size_t n, uint64_t at, const char *what,
                                struct qn_err *err)
{
    const char *b = p;
    while (n) {
        ssize_t k = pwrite(fd, b, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return err_errno(err, "output", "cannot write %s", what);
        b += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    return QN_OK;
}

/* Reserves the space where the file system can, so that a full disk is found at once. */
static enum qn_status reserve(int fd, uint64_t size, const char *path, struct qn_err *err)
{
    if (fallocate(fd, 0, 0, (off_t)size) == 0 || errno == EOPNOTSUPP || errno == ENOSYS)
        return QN_OK;
    return err_errno(err, "output", "%s needs %llu MB", path, (unsigned long long)(size >> 20) + 1);
}

static enum qn_status open_shard(struct mlx_out *o, int32_t i, struct qn_err *err)
{
    struct buf head = BUF_INIT, path = BUF_INIT;
    char name[64];
    uint64_t size;
    shard_name(o, i, name, sizeof name);
    path_join(&path, o->tmp, name);
    shard_header(o, i, &head, &size);
    enum qn_status st = buf_ok(&head, "a safetensors header", err);
    if (st == QN_OK)
        st = buf_ok(&path, "a path", err);
    if (st == QN_OK) {
        o->fd[i] = open(buf_z(&path), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd[i] < 0)
            st = err_errno(err, "output", "cannot create %s", buf_z(&path));
    }
    if (st == QN_OK)
        st = reserve(o->fd[i], size, buf_z(&path), err);
    if (st == QN_OK)
        st = write_all(o->fd[i], head.p, head.n, 0, name, err);
    buf_free(&head);
    buf_free(&path);
    return st;
}

static enum qn_status write_index(struct mlx_out *o, struct qn_err *err)
{
    struct buf out = BUF_INIT;
    struct jw w;
    char name[64];
    uint64_t total = 0;
    for (size_t i = 0; i < o->n; i++)
        total += o->t[i].n_bytes;
    jw_init(&w, &out);
    jw_obj(&w);
    jw_key(&w, "metadata");
    jw_obj(&w);
    jw_ki64(&w, "total_size", (int64_t)total);
    jw_obj_end(&w);
    jw_key(&w, "weight_map");
    jw_obj(&w);
    for (size_t i = 0; i < o->n; i++) {
        shard_name(o, o->t[i].shard, name, sizeof name);
        jw_kstrz(&w, o->t[i].name, name);
    }
    jw_obj_end(&w);
    jw_obj_end(&w);
    enum qn_status st = buf_ok(&out, "the weight index", err);
    if (st == QN_OK)
        st = mlx_out_file(o, "model.safetensors.index.json", buf_str(&out), err);
    buf_free(&out);
    return st;
}

enum qn_status mlx_out_declare(struct mlx_out *o, struct mlx_tensor *t, size_t n,
                               uint64_t shard_max, struct qn_err *err)
{
    QN_ASSERT(!o->fd);
    o->t = t;
    o->n = n;
    QN_TRY(assign_shards(o, shard_max ? shard_max : SHARD_MAX, err));
    o->fd = malloc((size_t)o->n_shard * sizeof *o->fd);
    if (!o->fd)
        QN_FAIL(err, QN_NO_MEMORY, "output", "no memory for %d shards", o->n_shard);
    for (int32_t i = 0; i < o->n_shard; i++)
        o->fd[i] = -1;
    for (int32_t i = 0; i < o->n_shard; i++)
        QN_TRY(open_shard(o, i, err));
    return write_index(o, err);
}

enum qn_status mlx_out_put(struct mlx_out *o, const struct mlx_tensor *t, uint64_t at,
                           const void *p, size_t n, struct qn_err *err)
{
    QN_ASSERT(o->fd && at <= t->n_bytes && n <= t->n_bytes - at);
    return write_all(o->fd[t->shard], p, n, t->off + at, t->name, err);
}

/* ---- commit --------------------------------------------------------------------------------- */

static enum qn_status sync_shards(struct mlx_out *o, struct qn_err *err)
{
    for (int32_t i = 0; o->fd && i < o->n_shard; i++) {
        int fd = o->fd[i];
        o->fd[i] = -1;
        bool bad = fsync(fd) != 0;
        if (close(fd) != 0 || bad)
            return err_errno(err, "output", "cannot flush the weights in %s", o->tmp);
    }
    return QN_OK;
}

static void sync_dir(const char *dir)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fsync(fd) != 0)
        errno = 0; /* some file systems cannot; the files themselves are safe */
    close(fd);
}

enum qn_status mlx_out_commit(struct mlx_out *o, struct qn_err *err)
{
    char *old = NULL;
    QN_TRY(sync_shards(o, err));
    sync_dir(o->tmp);
    if (o->replace) {
        if (asprintf(&old, "%s.old-%d", o->dir, (int)getpid()) < 0)
            QN_FAIL(err, QN_NO_MEMORY, "output", "no memory for a path");
        if (rename(o->dir, old) != 0) {
            free(old);
            return err_errno(err, "output", "cannot move %s aside", o->dir);
        }
    }
    if (rename(o->tmp, o->dir) != 0) {
        enum qn_status st = err_errno(err, "output", "cannot put %s in place", o->dir);
        if (old && rename(old, o->dir) != 0)
            err_prefix(err, "the old folder is now %s", old);
        free(old);
        return st;
    }
    o->tmp_made = false;
    enum qn_status st = old ? dir_remove(old, err) : QN_OK;
    free(old);
    return st;
}
