/*
 * convfile.c - a conversation file read back: the head, the records' headers, the payloads. Nothing
 * is believed before its checksum and its lengths agree; what no checksum covers has to be zero.
 * Any thread; an open file keeps its descriptor: a new one of the same name changes nothing.
 */
#include "store/convfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/le.h"
#include "store/convfile_int.h"

enum { IOV_BATCH = 256, WINDOW = 1 << 20 };

struct conv {
    int fd;
    char *label; /* for messages */
    struct conv_info info;
    int32_t n;     /* records of both chains */
    uint8_t *head; /* head_bytes */
    uint64_t *offs;
    uint8_t **headers;
    struct record *records; /* [n], leading into headers */
    uint64_t header_bytes;  /* of all */
};

/* ---- names ---------------------------------------------------------------------------------- */

bool conv_name_ok(struct str name)
{
    if (name.n < 1 || name.n > CONV_NAME_MAX || name.p[0] == '.')
        return false;
    for (size_t i = 0; i < name.n; i++) {
        char c = name.p[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '.' || c == '_' || c == '-'))
            return false;
    }
    return true;
}

void conv_path(struct buf *out, const char *dir, const char *name)
{
    path_join(out, dir, name);
    buf_addz(out, CONV_SUFFIX);
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static enum qn_status cut_off(const struct conv *c, struct qn_err *err)
{
    return err_set(err, QN_BAD_INPUT, CONV_WHERE, "%s: is damaged: it is cut off", c->label);
}

/* Reads all of v at off; less is QN_BAD_INPUT. */
static enum qn_status read_at(const struct conv *c, struct iovec *v, int n_v, uint64_t off,
                              struct qn_err *err)
{
    switch (file_read_at(c->fd, v, n_v, (off_t)off, "conv.read")) {
    case FILE_FAILS:
        return err_errno(err, CONV_WHERE, "%s: cannot be read", c->label);
    case FILE_ENDS:
        return cut_off(c, err);
    default:
        return QN_OK;
    }
}

static enum qn_status read_bytes(const struct conv *c, void *p, size_t n, uint64_t off,
                                 struct qn_err *err)
{
    struct iovec v = {p, n};
    return read_at(c, &v, n ? 1 : 0, off, err);
}

static enum qn_status read_zeros(const struct conv *c, uint64_t from, uint64_t to,
                                 struct qn_err *err)
{
    uint8_t pad[RECORD_ALIGN];
    QN_ASSERT(to - from < sizeof pad);
    QN_TRY(read_bytes(c, pad, to - from, from, err));
    for (uint64_t i = 0; i < to - from; i++)
        if (pad[i])
            QN_FAIL(err, QN_BAD_INPUT, CONV_WHERE, "%s: is damaged: byte %llu should be zero",
                    c->label, (unsigned long long)(from + i));
    return QN_OK;
}

/* ---- the head ------------------------------------------------------------------------------- */

static enum qn_status damaged(const struct conv *c, const char *what, struct qn_err *err)
{
    return err_set(err, QN_BAD_INPUT, CONV_WHERE, "%s: is damaged: %s", c->label, what);
}

/* The first CONV_HEAD bytes: lengths that can be, or a refusal that says what it is. */
static enum qn_status check_first(const struct conv *c, const uint8_t *p, uint64_t size,
                                  struct qn_err *err)
{
    if (memcmp(p, CONV_MAGIC, 8) != 0)
        QN_FAIL(err, QN_BAD_INPUT, CONV_WHERE, "%s: is no conversation file", c->label);
    uint32_t version = le_get32(p + 8);
    if (version != CONV_VERSION && version != CONV_VERSION_DRAFT)
        QN_FAIL(err, QN_UNSUPPORTED, CONV_WHERE,
                "%s: is a conversation file of format %u; this build reads %d and %d", c->label,
                version, CONV_VERSION, CONV_VERSION_DRAFT);
    uint32_t n = le_get32(p + 48), about = le_get32(p + 56), n_draft = le_get32(p + 60);
    if (n < 1 || n > CONV_RECORD_MAX || about > CONV_ABOUT_MAX || n_draft > CONV_RECORD_MAX ||
        !n_draft != (version == CONV_VERSION) || le_get32(p + 52) < 1 ||
        le_get32(p + 52) > CONV_TOKEN_MAX || le_get32(p + 12) != conv_head_bytes(n, n_draft, about))
        return damaged(c, "the lengths in its head do not agree", err);
    if (le_get64(p + 64) != size)
        QN_FAIL(err, QN_BAD_INPUT, CONV_WHERE,
                "%s: is damaged: it has %llu bytes and its head says %llu", c->label,
                (unsigned long long)size, (unsigned long long)le_get64(p + 64));
    return QN_OK;
}

static const uint8_t *row_of(const struct conv *c, int32_t i)
{
    return c->head + le_get32(c->head + 12) - CONV_SUM - (size_t)(c->n - i) * CONV_ROW;
}

/* Where the records lie; that they fill the file to its end. */
static enum qn_status place(struct conv *c, uint64_t head, uint64_t size, struct qn_err *err)
{
    const uint8_t *row = row_of(c, 0);
    uint64_t at = head;
    c->offs = calloc((size_t)c->n + 1, sizeof *c->offs);
    if (!c->offs)
        QN_FAIL(err, QN_NO_MEMORY, CONV_WHERE, "no memory for a list of records");
    for (int32_t i = 0; i < c->n; i++, row += CONV_ROW) {
        c->offs[i] = conv_align(at);
        if (c->offs[i] > size || le_get64(row) < RECORD_HEAD || le_get64(row) > size - c->offs[i])
            return damaged(c, "a record lies outside of it", err);
        at = c->offs[i] + le_get64(row);
    }
    c->offs[c->n] = at;
    return at == size ? QN_OK : damaged(c, "its records do not end where it ends", err);
}

/* What a head whose sum is right says. */
static enum qn_status read_facts(struct conv *c, struct qn_err *err)
{
    const uint8_t *p = c->head;
    struct conv_info *info = &c->info;
    memcpy(info->model.b, p + 16, sizeof info->model.b);
    info->n_record = (int32_t)le_get32(p + 48);
    info->n_token = (int32_t)le_get32(p + 52);
    info->n_draft_record = (int32_t)le_get32(p + 60);
    memcpy(info->about, p + conv_about_off((uint64_t)info->n_draft_record), le_get32(p + 56));
    c->n = info->n_record + info->n_draft_record;
    if (!info->n_draft_record)
        return QN_OK;
    memcpy(info->draft.b, p + CONV_HEAD, sizeof info->draft.b);
    uint32_t n = le_get32(p + CONV_HEAD + 32);
    if (n < 1 || n > CONV_TOKEN_MAX || le_get32(p + CONV_HEAD + 36) != 0)
        return damaged(c, "the lengths in its head do not agree", err);
    info->n_draft_token = (int32_t)n;
    return QN_OK;
}

static enum qn_status read_head(struct conv *c, struct qn_err *err)
{
    struct stat sb;
    uint8_t first[CONV_HEAD];
    if (fstat(c->fd, &sb) != 0)
        return err_errno(err, CONV_WHERE, "%s: cannot stat", c->label);
    if (!S_ISREG(sb.st_mode))
        QN_FAIL(err, QN_BAD_INPUT, CONV_WHERE, "%s: is not a regular file", c->label);
    uint64_t size = (uint64_t)sb.st_size;
    if (size < CONV_HEAD)
        QN_FAIL(err, QN_BAD_INPUT, CONV_WHERE, "%s: is no conversation file, it has %llu bytes",
                c->label, (unsigned long long)size);
    QN_TRY(read_bytes(c, first, sizeof first, 0, err));
    QN_TRY(check_first(c, first, size, err));
    size_t head = le_get32(first + 12);
    if (head > size)
        return cut_off(c, err);
    c->head = malloc(head);
    if (!c->head)
        QN_FAIL(err, QN_NO_MEMORY, CONV_WHERE, "no memory for a head of %zu bytes", head);
    memcpy(c->head, first, sizeof first); /* what was checked is what counts */
    QN_TRY(read_bytes(c, c->head + CONV_HEAD, head - CONV_HEAD, CONV_HEAD, err));
    struct hash128 sum = hash128(c->head, head - CONV_SUM);
    const uint8_t *want = c->head + head - CONV_SUM;
    if (sum.lo != le_get64(want) || sum.hi != le_get64(want + 8))
        return damaged(c, "the checksum of its head is wrong", err);
    QN_TRY(read_facts(c, err));
    c->info.bytes = (int64_t)size;
    c->info.modified_unix = sb.st_mtim.tv_sec;
    conv_sum_text(sum, c->info.sum);
    return place(c, head, size, err);
}

/* ---- records' headers ----------------------------------------------------------------------- */

/* It continues the one before in its chain, is this file's, and ends where its chain does if it is
 * the last. */
static enum qn_status check_chain(const struct conv *c, int32_t i, struct qn_err *err)
{
    static const struct record_name none;
    const struct conv_info *info = &c->info;
    bool draft = i >= info->n_record, first = i == 0 || i == info->n_record;
    const struct record *r = &c->records[i], *before = first ? NULL : r - 1;
    int32_t at = before ? before->id.from + before->id.n_token : 0;
    int32_t left = (draft ? info->n_draft_token : info->n_token) - at;
    if (!record_name_eq(&r->id.model, draft ? &info->draft : &info->model) ||
        !record_name_eq(&r->id.parent, before ? &before->name : &none) || r->id.from != at ||
        r->id.n_token < 1 || r->id.n_token > left)
        return damaged(c, "a record does not continue the one before it", err);
    if ((i == info->n_record - 1 || i == c->n - 1) && r->id.n_token != left)
        return damaged(c, "its records end at another token than its head says", err);
    return QN_OK;
}

static enum qn_status read_header(struct conv *c, int32_t i, struct qn_err *err)
{
    uint8_t first[RECORD_HEAD];
    uint64_t header, bytes = le_get64(row_of(c, i));
    QN_TRY(read_bytes(c, first, sizeof first, c->offs[i], err));
    enum qn_status s = record_measure(first, sizeof first, &header, err);
    if (s != QN_OK) { /* also another version: this file's own has none */
        err_prefix(err, "%s: is damaged: record %d", c->label, i);
        err->code = QN_BAD_INPUT;
        return QN_BAD_INPUT;
    }
    header = conv_align(header);
    if (header > bytes)
        return damaged(c, "a record's header lies outside of it", err);
    c->header_bytes += header;
    if (c->header_bytes > CONV_HEADERS_MAX)
        QN_FAIL(err, QN_UNSUPPORTED, CONV_WHERE, "%s: has headers of more than %d MiB", c->label,
                CONV_HEADERS_MAX >> 20);
    uint8_t *p = c->headers[i] = malloc(header);
    if (!p)
        QN_FAIL(err, QN_NO_MEMORY, CONV_WHERE, "no memory for a record's header");
    QN_TRY(read_bytes(c, p, header, c->offs[i], err));
    struct hash128 sum = hash128(p, header);
    if (sum.lo != le_get64(row_of(c, i) + 8) || sum.hi != le_get64(row_of(c, i) + 16))
        return damaged(c, "the checksum of a record's header is wrong", err);
    s = record_read(p, header, bytes, &c->records[i], err);
    if (s != QN_OK)
        return err_prefix(err, "%s: is damaged: record %d", c->label, i);
    return check_chain(c, i, err);
}

static enum qn_status read_headers(struct conv *c, struct qn_err *err)
{
    int32_t n = c->n;
    uint64_t at = le_get32(c->head + 12);
    c->headers = calloc((size_t)n, sizeof(*c->headers));
    c->records = calloc((size_t)n, sizeof *c->records);
    if (!c->headers || !c->records)
        QN_FAIL(err, QN_NO_MEMORY, CONV_WHERE, "no memory for %d records", n);
    for (int32_t i = 0; i < n; i++) {
        QN_TRY(read_zeros(c, at, c->offs[i], err));
        QN_TRY(read_header(c, i, err));
        at = c->offs[i] + le_get64(row_of(c, i));
    }
    return QN_OK;
}

/* ---- life ----------------------------------------------------------------------------------- */

void conv_close(struct conv *c)
{
    if (!c)
        return;
    for (int32_t i = 0; c->headers && i < c->n; i++)
        free(c->headers[i]);
    free(c->headers);
    free(c->records);
    free(c->offs);
    free(c->head);
    free(c->label);
    if (c->fd >= 0)
        close(c->fd);
    free(c);
}

static enum qn_status open_head(const char *path, struct conv **out, struct qn_err *err)
{
    struct str base = path_base(path);
    struct conv *c = calloc(1, sizeof *c);
    *out = c;
    if (!c)
        QN_FAIL(err, QN_NO_MEMORY, CONV_WHERE, "out of memory");
    c->fd = -1;
    c->label = strndup(base.p, base.n);
    if (!c->label)
        QN_FAIL(err, QN_NO_MEMORY, CONV_WHERE, "out of memory");
    c->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (c->fd < 0 && errno == ENOENT)
        QN_FAIL(err, QN_NOT_FOUND, CONV_WHERE, "%s: there is no such file", c->label);
    if (c->fd < 0 && errno == ELOOP)
        QN_FAIL(err, QN_BAD_INPUT, CONV_WHERE, "%s: is a symbolic link, not a regular file",
                c->label);
    if (c->fd < 0)
        return err_errno(err, CONV_WHERE, "%s: cannot be opened", c->label);
    return read_head(c, err);
}

enum qn_status conv_look(const char *path, struct conv_info *out, struct qn_err *err)
{
    struct conv *c;
    enum qn_status s = open_head(path, &c, err);
    *out = c ? c->info : (struct conv_info){0};
    conv_close(c);
    return s;
}

enum qn_status conv_open(const char *path, struct conv **out, struct qn_err *err)
{
    struct conv *c;
    enum qn_status s = open_head(path, &c, err);
    if (s == QN_OK) {
        posix_fadvise(c->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        s = read_headers(c, err);
    }
    if (s != QN_OK) {
        conv_close(c);
        return s;
    }
    *out = c;
    return QN_OK;
}

const struct conv_info *conv_info(const struct conv *c)
{
    return &c->info;
}

const struct record *conv_record(const struct conv *c, int32_t i)
{
    QN_ASSERT(i >= 0 && i < c->n);
    return &c->records[i];
}

/* ---- payloads ------------------------------------------------------------------------------- */

static enum qn_status check_sum(const struct conv *c, const struct record *r, uint32_t k,
                                struct hash128 got, struct qn_err *err)
{
    struct record_sum want = record_part(r, k);
    if (got.lo != want.sum.lo || got.hi != want.sum.hi)
        QN_FAIL(err, QN_BAD_INPUT, CONV_WHERE,
                "%s: is damaged: the checksum of part %u of the record at token %d is wrong",
                c->label, k, r->id.from);
    return QN_OK;
}

static enum qn_status read_parts(const struct conv *c, const struct record *r, uint64_t off,
                                 const struct iovec *parts, struct qn_err *err)
{
    struct iovec v[IOV_BATCH];
    for (uint32_t k = 0; k < r->n_part; k++)
        if (parts[k].iov_len != record_part(r, k).bytes)
            QN_FAIL(err, QN_BAD_INPUT, CONV_WHERE, "%s: a part has %llu bytes; expected %zu",
                    c->label, (unsigned long long)record_part(r, k).bytes, parts[k].iov_len);
    for (uint32_t k = 0, n; k < r->n_part; k += n) {
        uint64_t bytes = 0;
        n = r->n_part - k < IOV_BATCH ? r->n_part - k : IOV_BATCH;
        for (uint32_t j = 0; j < n; j++) {
            v[j] = parts[k + j];
            bytes += v[j].iov_len;
        }
        QN_TRY(read_at(c, v, (int)n, off, err));
        for (uint32_t j = 0; j < n; j++)
            QN_TRY(
                check_sum(c, r, k + j, hash128(parts[k + j].iov_base, parts[k + j].iov_len), err));
        off += bytes;
    }
    return QN_OK;
}

/* A part is as large as its file may be: it is summed through a window. */
static enum qn_status check_parts(const struct conv *c, const struct record *r, uint64_t off,
                                  struct qn_err *err)
{
    enum qn_status s = QN_OK;
    struct hash128_run *run = hash128_run_create();
    uint8_t *window = malloc(WINDOW);
    if (!run || !window)
        s = err_set(err, QN_NO_MEMORY, CONV_WHERE, "%s: no memory to read it", c->label);
    for (uint32_t k = 0; s == QN_OK && k < r->n_part; k++) {
        for (uint64_t left = record_part(r, k).bytes, n; s == QN_OK && left; left -= n) {
            n = left < WINDOW ? left : WINDOW;
            s = read_bytes(c, window, n, off, err);
            if (s == QN_OK)
                hash128_run_add(run, window, n);
            off += n;
        }
        if (s == QN_OK)
            s = check_sum(c, r, k, hash128_run_end(run), err);
    }
    free(window);
    hash128_run_free(run);
    return s;
}

enum qn_status conv_read(const struct conv *c, int32_t i, const struct iovec *parts,
                         struct qn_err *err)
{
    const struct record *r = conv_record(c, i);
    uint64_t off = c->offs[i] + r->payload_off;
    return parts ? read_parts(c, r, off, parts, err) : check_parts(c, r, off, err);
}

/* ---- folders -------------------------------------------------------------------------------- */

enum qn_status conv_verify(const char *path, struct conv_info *out, struct qn_err *err)
{
    struct conv *c = NULL;
    *out = (struct conv_info){0};
    QN_TRY(conv_open(path, &c, err));
    enum qn_status s = QN_OK;
    for (int32_t i = 0; s == QN_OK && i < c->n; i++)
        s = conv_read(c, i, NULL, err);
    *out = c->info;
    conv_close(c);
    return s;
}

enum qn_status conv_each(const char *dir, bool whole,
                         void (*found)(void *arg, const struct conv_found *f), void *arg,
                         struct qn_err *err)
{
    char **names;
    size_t n;
    struct buf path = BUF_INIT;
    QN_TRY(dir_list(dir, &names, &n, err));
    enum qn_status s = QN_OK;
    for (size_t i = 0; s == QN_OK && i < n; i++) {
        struct str name = str_of(names[i]);
        if (!str_ends(name, STR_LIT(CONV_SUFFIX)))
            continue;
        name.n -= strlen(CONV_SUFFIX);
        path_join(&path, dir, names[i]);
        s = buf_ok(&path, "a path", err);
        if (s != QN_OK || !conv_name_ok(name))
            continue;
        struct conv_found f = {.path = buf_z(&path), .name = names[i]};
        f.status =
            whole ? conv_verify(f.path, &f.info, &f.err) : conv_look(f.path, &f.info, &f.err);
        names[i][name.n] = 0;
        if (f.status != QN_NOT_FOUND) /* removed meanwhile */
            found(arg, &f);
    }
    names_free(names, n);
    buf_free(&path);
    return s;
}
