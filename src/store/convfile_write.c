/*
 * convfile_write.c - a conversation file from memory to the disk: payloads first, with their sums,
 * then each record's header, then the head, all under another name; then sync, rename, sync of the
 * folder.
 *
 * A writer holds a lock on its unfinished file, which tells what it left when it died from what is
 * still being written.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/le.h"
#include "store/convfile_int.h"
#include "store/disk_io.h"

enum { PIECE = 1 << 20, TRIES = 100 };
#define PART ".part"

/* A file being written. */
struct writer {
    int fd;
    const char *label; /* for messages: the name it will have */
    const atomic_bool *stop;
    const struct conv_text *t;
    int32_t n;                 /* records of both chains */
    struct record_name *names; /* [n] */
    struct hash128 *sums;      /* [n] of the records' headers */
    uint64_t *offs;            /* [n + 1] places of records; the last is the file's end */
};

/* ---- bytes ---------------------------------------------------------------------------------- */

static const struct disk_points points = {"conv.write.full", "conv.write.io", "conv.write.short"};

static enum qn_status write_bytes(const struct writer *w, struct str data, uint64_t off,
                                  struct qn_err *err)
{
    while (data.n) {
        if (w->stop && atomic_load(w->stop))
            QN_FAIL(err, QN_CANCELLED, CONV_WHERE, "%s: not finished, the server stops", w->label);
        ssize_t n =
            disk_write_some(w->fd, data.p, data.n < PIECE ? data.n : PIECE, (off_t)off, &points);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_errno(err, CONV_WHERE, "%s: cannot write %zu bytes", w->label, data.n);
        data.p += n;
        data.n -= (size_t)n;
        off += (uint64_t)n;
    }
    return QN_OK;
}

/* ---- records and head ----------------------------------------------------------------------- */

static bool of_draft(const struct writer *w, int32_t i)
{
    return i >= w->t->model.n_piece;
}

static const struct conv_piece *piece_of(const struct writer *w, int32_t i)
{
    const struct conv_text *t = w->t;
    return of_draft(w, i) ? &t->draft.pieces[i - t->model.n_piece] : &t->model.pieces[i];
}

static struct record_id id_of(const struct writer *w, int32_t i)
{
    struct record_id id = piece_of(w, i)->id;
    bool first = i == 0 || i == w->t->model.n_piece;
    id.model = of_draft(w, i) ? w->t->draft.model : w->t->model.model;
    id.parent = first ? (struct record_name){{0}} : w->names[i - 1];
    return id;
}

static uint64_t record_bytes(const struct writer *w, int32_t i)
{
    const struct conv_piece *p = piece_of(w, i);
    uint64_t n = record_payload_off(&p->id, (uint32_t)p->n_part);
    for (int32_t k = 0; k < p->n_part; k++)
        n += p->parts[k].iov_len;
    return n;
}

/* Names and places are known before anything is written. */
static enum qn_status plan(struct writer *w, struct qn_err *err)
{
    const struct conv_text *t = w->t;
    size_t n = (size_t)w->n;
    w->names = calloc(n, sizeof *w->names);
    w->sums = calloc(n, sizeof *w->sums);
    w->offs = calloc(n + 1, sizeof *w->offs);
    if (!w->names || !w->sums || !w->offs)
        QN_FAIL(err, QN_NO_MEMORY, CONV_WHERE, "no memory for a list of %d records", w->n);
    size_t about = t->about.n < CONV_ABOUT_MAX ? t->about.n : CONV_ABOUT_MAX;
    uint64_t at = conv_head_bytes((uint64_t)t->model.n_piece, (uint64_t)t->draft.n_piece, about);
    for (int32_t i = 0; i < w->n; i++) {
        struct record_id id = id_of(w, i);
        if (!record_name_of(&id, &w->names[i]))
            QN_FAIL(err, QN_NO_MEMORY, CONV_WHERE, "no memory for a record's name");
        w->offs[i] = conv_align(at);
        at = w->offs[i] + record_bytes(w, i);
    }
    w->offs[n] = at;
    return QN_OK;
}

static enum qn_status write_one(struct writer *w, int32_t i, struct qn_err *err)
{
    const struct conv_piece *p = piece_of(w, i);
    struct record_id id = id_of(w, i);
    struct buf head = BUF_INIT;
    struct record_sum *sums = calloc((size_t)p->n_part + 1, sizeof *sums);
    uint64_t off = w->offs[i] + record_payload_off(&id, (uint32_t)p->n_part);
    enum qn_status s =
        sums ? QN_OK : err_set(err, QN_NO_MEMORY, CONV_WHERE, "no memory for %d sums", p->n_part);
    for (int32_t k = 0; s == QN_OK && k < p->n_part; k++) {
        struct str data = {p->parts[k].iov_base, p->parts[k].iov_len};
        sums[k] = (struct record_sum){data.n, hash128(data.p, data.n)};
        s = write_bytes(w, data, off, err);
        off += data.n;
    }
    if (s == QN_OK)
        s = record_write(&id, &w->names[i], sums, (uint32_t)p->n_part, &head, err);
    if (s == QN_OK) {
        w->sums[i] = hash128(head.p, head.n);
        s = write_bytes(w, buf_str(&head), w->offs[i], err);
    }
    free(sums);
    buf_free(&head);
    return s;
}

static int32_t tokens_of(const struct conv_chain *c)
{
    const struct conv_piece *last = c->n_piece ? &c->pieces[c->n_piece - 1] : NULL;
    return last ? last->id.from + last->id.n_token : 0;
}

static enum qn_status write_head(const struct writer *w, struct conv_info *info, struct qn_err *err)
{
    const struct conv_text *t = w->t;
    uint64_t n = (uint64_t)t->model.n_piece, n_draft = (uint64_t)t->draft.n_piece;
    struct str about = {t->about.p, t->about.n < CONV_ABOUT_MAX ? t->about.n : CONV_ABOUT_MAX};
    struct buf b = BUF_INIT;
    buf_add(&b, CONV_MAGIC, 8);
    le_add32(&b, n_draft ? CONV_VERSION_DRAFT : CONV_VERSION);
    le_add32(&b, (uint32_t)conv_head_bytes(n, n_draft, about.n));
    buf_add(&b, t->model.model.b, sizeof t->model.model.b);
    le_add32(&b, (uint32_t)n);
    le_add32(&b, (uint32_t)tokens_of(&t->model));
    le_add32(&b, (uint32_t)about.n);
    le_add32(&b, (uint32_t)n_draft);
    le_add64(&b, w->offs[w->n]);
    if (n_draft) {
        buf_add(&b, t->draft.model.b, sizeof t->draft.model.b);
        le_add32(&b, (uint32_t)tokens_of(&t->draft));
        le_add32(&b, 0);
    }
    buf_add_str(&b, about);
    for (int32_t i = 0; i < w->n; i++) {
        le_add64(&b, record_bytes(w, i));
        le_add64(&b, w->sums[i].lo);
        le_add64(&b, w->sums[i].hi);
    }
    enum qn_status s = buf_ok(&b, "a conversation's head", err);
    if (s == QN_OK) {
        struct hash128 sum = hash128(b.p, b.n);
        le_add64(&b, sum.lo);
        le_add64(&b, sum.hi);
        conv_sum_text(sum, info->sum);
        s = buf_ok(&b, "a conversation's head", err);
    }
    if (s == QN_OK)
        s = write_bytes(w, buf_str(&b), 0, err);
    buf_free(&b);
    info->model = t->model.model;
    info->n_record = t->model.n_piece;
    info->n_token = tokens_of(&t->model);
    info->n_draft_record = t->draft.n_piece;
    info->n_draft_token = tokens_of(&t->draft);
    if (n_draft)
        info->draft = t->draft.model;
    info->bytes = (int64_t)w->offs[w->n];
    memcpy(info->about, about.p, about.n);
    return s;
}

static enum qn_status write_all(struct writer *w, struct conv_info *info, struct qn_err *err)
{
    struct stat sb;
    QN_TRY(plan(w, err));
    for (int32_t i = 0; i < w->n; i++)
        QN_TRY(write_one(w, i, err));
    QN_TRY(write_head(w, info, err));
    if (disk_refuses("conv.sync", EIO) || fsync(w->fd) != 0)
        return err_errno(err, CONV_WHERE, "%s: cannot flush to the disk", w->label);
    info->modified_unix = fstat(w->fd, &sb) == 0 ? sb.st_mtim.tv_sec : 0;
    return QN_OK;
}

/* ---- files ---------------------------------------------------------------------------------- */

static enum qn_status sync_folder(const char *dir, struct qn_err *err)
{
    return disk_sync_folder(dir, "conv.sync.folder")
               ? QN_OK
               : err_errno(err, CONV_WHERE, "the folder cannot be flushed to the disk");
}

/* A file of our own that nobody else writes, locked; tmp: its path. */
static enum qn_status part_create(const char *dir, const char *name, struct buf *tmp, int *fd,
                                  struct qn_err *err)
{
    for (int i = 0; i < TRIES; i++) {
        struct stat sb;
        char own[CONV_NAME_MAX + 40];
        snprintf(own, sizeof own, ".%.64s.%d.%d" PART, name, (int)getpid(), i);
        path_join(tmp, dir, own);
        QN_TRY(buf_ok(tmp, "a path", err));
        *fd = disk_refuses("conv.create", EROFS)
                  ? -1
                  : open(buf_z(tmp), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (*fd < 0 && errno == EEXIST)
            continue;
        if (*fd < 0 && errno == ENOENT)
            QN_FAIL(err, QN_IO, CONV_WHERE, "%s: the folder for it is not there any more", name);
        if (*fd < 0)
            return err_errno(err, CONV_WHERE, "%s: cannot be made in the folder", name);
        /* One that is being swept in this instant is not taken. */
        if (flock(*fd, LOCK_EX | LOCK_NB) == 0 && fstat(*fd, &sb) == 0 && sb.st_nlink > 0)
            return QN_OK;
        close(*fd);
        unlink(buf_z(tmp));
    }
    QN_FAIL(err, QN_IO, CONV_WHERE, "%s: too many unfinished files of that name", name);
}

/* Limits of the format; whoever calls has kept them, or has a conversation beyond all bounds. */
static bool chain_fits(const struct conv_chain *c)
{
    bool ok = c->n_piece <= CONV_RECORD_MAX;
    int32_t at = 0;
    for (int32_t i = 0; ok && i < c->n_piece; i++) {
        const struct conv_piece *p = &c->pieces[i];
        ok = p->id.from == at && p->id.n_token > 0 && p->id.n_token <= RECORD_TOKEN_MAX &&
             p->n_part >= 0 && p->n_part <= RECORD_PART_MAX && p->id.note.n <= RECORD_NOTE_MAX &&
             at <= CONV_TOKEN_MAX - p->id.n_token;
        at = ok ? at + p->id.n_token : 0;
    }
    return ok;
}

static enum qn_status check(const char *name, const struct conv_text *t, struct qn_err *err)
{
    if (!conv_name_ok(str_of(name)) || t->model.n_piece < 1 || !chain_fits(&t->model) ||
        !chain_fits(&t->draft))
        QN_FAIL(err, QN_UNSUPPORTED, CONV_WHERE,
                "%s: more than a conversation file holds: %d records, at most %d with %d tokens",
                name, t->model.n_piece, CONV_RECORD_MAX, CONV_TOKEN_MAX);
    return QN_OK;
}

enum qn_status conv_write(const char *dir, const char *name, const struct conv_text *t,
                          const atomic_bool *stop, struct conv_info *out, struct qn_err *err)
{
    struct buf tmp = BUF_INIT, path = BUF_INIT;
    struct writer w = {.fd = -1, .label = name, .stop = stop, .t = t};
    w.n = t->model.n_piece + t->draft.n_piece;
    *out = (struct conv_info){0};
    QN_TRY(check(name, t, err));
    conv_path(&path, dir, name);
    enum qn_status s = buf_ok(&path, "a path", err);
    if (s == QN_OK)
        s = part_create(dir, name, &tmp, &w.fd, err);
    if (s != QN_OK)
        goto done;
    s = write_all(&w, out, err);
    bool renamed = false;
    if (s == QN_OK) {
        renamed = !disk_refuses("conv.rename", EIO) && rename(buf_z(&tmp), buf_z(&path)) == 0;
        s = renamed ? sync_folder(dir, err)
                    : err_errno(err, CONV_WHERE, "%s: cannot be given its name", name);
    }
    if (!renamed)
        unlink(buf_z(&tmp));
    close(w.fd); /* synced: nothing can fail here any more */
done:
    free(w.names);
    free(w.sums);
    free(w.offs);
    buf_free(&tmp);
    buf_free(&path);
    return s;
}

/* ---- a folder ------------------------------------------------------------------------------- */

/* Unfinished files whose writer is gone. */
static void sweep(const char *dir)
{
    struct buf path = BUF_INIT;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] != '.' || !str_ends(str_of(e->d_name), STR_LIT(PART)))
            continue;
        path_join(&path, dir, e->d_name);
        int fd =
            path.failed ? -1 : open(buf_z(&path), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlink(buf_z(&path));
        if (fd >= 0)
            close(fd);
    }
    if (d)
        closedir(d);
    buf_free(&path);
}

enum qn_status conv_folder(const char *dir, struct qn_err *err)
{
    struct buf tmp = BUF_INIT;
    int fd = -1;
    if (!dir || !*dir)
        QN_FAIL(err, QN_BAD_INPUT, CONV_WHERE, "the name of the folder is empty");
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return err_errno(err, CONV_WHERE, "%s: cannot be made, as a folder of conversations", dir);
    if (!dir_exists(dir))
        QN_FAIL(err, QN_BAD_INPUT, CONV_WHERE, "%s: is not a folder", dir);
    sweep(dir);
    enum qn_status s = part_create(dir, "probe", &tmp, &fd, err);
    if (s == QN_OK) {
        unlink(buf_z(&tmp));
        close(fd);
    } else {
        err_prefix(err, "%s: no conversation can be saved there", dir);
    }
    buf_free(&tmp);
    return s;
}

enum qn_status conv_remove(const char *dir, const char *name, struct qn_err *err)
{
    struct buf path = BUF_INIT;
    conv_path(&path, dir, name);
    enum qn_status s = buf_ok(&path, "a path", err);
    if (s == QN_OK && (disk_refuses("conv.unlink", EROFS) || unlink(buf_z(&path)) != 0))
        s = errno == ENOENT ? err_set(err, QN_NOT_FOUND, CONV_WHERE,
                                      "there is no conversation of the name %s", name)
                            : err_errno(err, CONV_WHERE, "%s: cannot be removed", name);
    if (s == QN_OK)
        s = sync_folder(dir, err);
    buf_free(&path);
    return s;
}

void conv_remove_guesses(const char *dir, const char *name)
{
    struct buf sub = BUF_INIT;
    struct qn_err ignored;
    path_join(&sub, dir, CONV_DRAFT_DIR);
    if (!sub.failed)
        conv_remove(buf_z(&sub), name, &ignored);
    buf_free(&sub);
}
