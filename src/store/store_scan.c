/*
 * store_scan.c - what a folder holds, found by looking: the index of a store that opens, and the
 * survey for the command line. Names, places and sizes come from the files themselves; there is no
 * index file that could be wrong.
 *
 * A store that opens removes what a crash has left: half-written files, records that do not pass
 * their checks, records whose ancestor is gone. Files of other names and formats are left alone.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "store/store_int.h"

static bool hex_folder(const char *name)
{
    return strlen(name) == 16 && strspn(name, "0123456789abcdef") == 16;
}

/* A record's name from its file's. */
static bool file_name(const char *name, struct record_name *out)
{
    struct str s = str_of(name);
    return str_ends(s, STR_LIT(".kv")) && record_name_parse((struct str){s.p, s.n - 3}, out);
}

/* Reads and checks one file; head keeps the header that *r leads into. */
static enum qn_status look(const char *path, const char *folder, bool whole, struct buf *head,
                           struct record *r, struct store_find *f)
{
    struct stat sb;
    char model[65];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return err_errno(&f->err, "store", "%s: cannot open", path);
    if (fstat(fd, &sb) == 0) {
        f->bytes = sb.st_size;
        f->used_unix = sb.st_mtim.tv_sec;
    }
    enum qn_status s = header_read(fd, path, head, r, &f->err);
    if (s == QN_OK) {
        record_name_hex(&r->id.model, model);
        if (!record_name_eq(&r->name, &f->name) || memcmp(model, folder, 16) != 0)
            s = err_set(&f->err, QN_BAD_INPUT, "store", "%s: holds another record", path);
    }
    if (s == QN_OK && whole)
        s = payload_read(fd, path, r, NULL, &f->err);
    if (s == QN_OK) {
        f->model = r->id.model;
        f->parent = r->id.parent;
        f->from = r->id.from;
        f->n_token = r->id.n_token;
    }
    close(fd);
    return s;
}

/* Calls seen for each file of a model's folder; r and head are set when f.status is QN_OK. */
typedef void seen_fn(void *arg, const struct store_find *f, const struct record *r,
                     struct buf *head);

static enum qn_status walk_folder(const char *dir, const char *folder, bool whole, seen_fn *seen,
                                  void *arg, struct qn_err *err)
{
    char **names;
    size_t n;
    struct buf path = BUF_INIT, sub = BUF_INIT, head = BUF_INIT;
    path_join(&sub, dir, folder);
    enum qn_status s =
        sub.failed ? buf_ok(&sub, "a path", err) : dir_list(buf_z(&sub), &names, &n, err);
    for (size_t i = 0; s == QN_OK && i < n; i++) {
        struct store_find f = {0};
        struct record r;
        path_join(&path, buf_z(&sub), names[i]);
        s = buf_ok(&path, "a path", err);
        if (s != QN_OK)
            break;
        f.path = buf_z(&path);
        if (strcmp(names[i], "about") == 0)
            continue;
        f.left_over = strncmp(names[i], "tmp.", 4) == 0 || strncmp(names[i], "about.tmp.", 10) == 0;
        f.status = QN_NOT_FOUND;
        if (!f.left_over && file_name(names[i], &f.name))
            f.status = look(f.path, folder, whole, &head, &r, &f);
        seen(arg, &f, &r, &head);
    }
    if (!sub.failed && s == QN_OK)
        names_free(names, n);
    buf_free(&path);
    buf_free(&sub);
    buf_free(&head);
    return s;
}

static enum qn_status walk(const char *dir, bool whole, seen_fn *seen, void *arg,
                           struct qn_err *err)
{
    char **names;
    size_t n;
    QN_TRY(dir_list(dir, &names, &n, err));
    enum qn_status s = QN_OK;
    for (size_t i = 0; s == QN_OK && i < n; i++)
        if (hex_folder(names[i]))
            s = walk_folder(dir, names[i], whole, seen, arg, err);
    names_free(names, n);
    return s;
}

/* ---- for a store ---------------------------------------------------------------------------- */

enum { WARNINGS = 16 }; /* of single damaged records; then only their number */

/* A record found, with its header while it may be told. */
struct found {
    struct entry *e;
    struct record_name parent;
    char *head; /* of our own model */
    struct record r;
};

struct finds {
    struct store *st;
    struct found *v;
    size_t n, cap;
    int64_t swept, damaged, other, foreign;
    bool no_memory;
};

static void finds_free(struct finds *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i].head);
    free(l->v);
}

/* For one more; false = no memory. */
static bool room(struct finds *l)
{
    if (l->n < l->cap)
        return true;
    size_t cap = l->cap ? 2 * l->cap : 64;
    struct found *v = reallocarray(l->v, cap, sizeof *v);
    if (!v)
        return false;
    l->v = v;
    l->cap = cap;
    return true;
}

static bool keep_find(struct finds *l, const struct store_find *f, const struct record *r,
                      struct buf *head)
{
    if (!room(l))
        return false;
    struct entry *e = calloc(1, sizeof *e);
    if (!e)
        return false;
    int64_t used_ns = f->used_unix * 1000000000, now = store_now_ns(l->st);
    *e = (struct entry){.name = f->name,
                        .model = f->model,
                        .from = f->from,
                        .end = f->from + f->n_token,
                        .bytes = f->bytes,
                        .used_ns = used_ns < now ? used_ns : now, /* of a clock that was wrong */
                        .stored = true};
    if (!recs_add(&l->st->index, e)) {
        free(e);
        return false;
    }
    struct found *k = &l->v[l->n++];
    *k = (struct found){.e = e, .parent = f->parent};
    if (serves(l->st, &f->model)) {
        k->head = buf_give(head, NULL);
        k->r = *r;
    }
    l->st->stats.records++;
    l->st->stats.bytes += e->bytes;
    return true;
}

static void seen_by_store(void *arg, const struct store_find *f, const struct record *r,
                          struct buf *head)
{
    struct finds *l = arg;
    if (f->left_over) {
        l->swept++;
        unlink(f->path);
    } else if (f->status == QN_OK) {
        if (!recs_find(&l->st->index, &f->name) && !keep_find(l, f, r, head))
            l->no_memory = true;
    } else if (f->status == QN_NOT_FOUND) {
        l->foreign++;
    } else if (f->status == QN_UNSUPPORTED) {
        l->other++;
    } else if (f->status == QN_NO_MEMORY) {
        l->no_memory = true;
    } else {
        if (l->damaged++ < WARNINGS)
            log_line(LOG_WARN, "store", "%s; removed", f->err.msg);
        unlink(f->path);
    }
}

/* Parents are found by name; what has none although it needs one goes. */
static void link_finds(struct finds *l)
{
    struct store *st = l->st;
    struct victims v = {0};
    int64_t before = (int64_t)st->index.n;
    for (size_t i = 0; i < l->n; i++) {
        struct entry *e = l->v[i].e, *p = recs_find(&st->index, &l->v[i].parent);
        if (p && record_name_eq(&p->model, &e->model) && e->from > p->from && e->from <= p->end)
            entry_adopt(p, e);
    }
    for (size_t i = 0; i < l->n; i++)
        for (struct entry *e = l->v[i].e, *p = e->parent; p && p->used_ns < e->used_ns;
             p = p->parent)
            p->used_ns = e->used_ns;
    for (size_t i = 0; i < l->n; i++) {
        struct entry *e = recs_find(&st->index, &l->v[i].e->name);
        if (e && !e->parent && !record_name_none(&l->v[i].parent))
            evict_tree(st, e, &v);
    }
    int64_t lost = before - (int64_t)st->index.n;
    if (lost)
        log_line(LOG_WARN, "store", "%s: %lld records continue one that is gone; removed", st->dir,
                 (long long)lost);
    evict_files(st, &v);
}

static int by_start(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    return x->r.id.from < y->r.id.from ? -1 : x->r.id.from > y->r.id.from;
}

static void tell(struct finds *l, store_each *each, void *arg)
{
    /* what continues a record begins behind its beginning */
    if (l->n)
        qsort(l->v, l->n, sizeof *l->v, by_start);
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i].head && each && recs_find(&l->st->index, &l->v[i].r.name))
            each(arg, &l->v[i].r);
}

static void warn_finds(const struct finds *l)
{
    const char *dir = l->st->dir;
    if (l->damaged)
        log_line(LOG_WARN, "store", "%s: %lld damaged records removed", dir, (long long)l->damaged);
    if (l->other)
        log_line(LOG_WARN, "store", "%s: %lld records of another format left alone", dir,
                 (long long)l->other);
    if (l->foreign)
        log_line(LOG_WARN, "store", "%s: %lld files that are no records left alone", dir,
                 (long long)l->foreign);
    if (l->swept)
        log_line(LOG_INFO, "store", "%s: %lld half-written records swept", dir,
                 (long long)l->swept);
}

enum qn_status scan_open(struct store *st, store_each *each, void *arg, struct qn_err *err)
{
    struct finds l = {.st = st};
    enum qn_status s = walk(st->dir, false, seen_by_store, &l, err);
    if (s == QN_OK && l.no_memory)
        s = err_set(err, QN_NO_MEMORY, "store", "%s: no memory for an index of %zu records",
                    st->dir, l.n);
    if (s == QN_OK) {
        warn_finds(&l);
        st->stats.damaged = l.damaged;
        link_finds(&l);
        struct victims v = {0};
        evict_room(st, 0, INT64_MAX, &v);
        evict_files(st, &v);
        tell(&l, each, arg);
    }
    finds_free(&l);
    return s;
}

/* Of the folder's records those that the scan at the start has found good. */
static void seen_by_join(void *arg, const struct store_find *f, const struct record *r,
                         struct buf *head)
{
    struct finds *l = arg;
    struct store *st = l->st;
    if (f->left_over || f->status != QN_OK)
        return;
    pthread_mutex_lock(&st->mu);
    struct entry *e = recs_find(&st->index, &f->name);
    pthread_mutex_unlock(&st->mu);
    if (!e || !record_name_eq(&f->model, &st->models[st->n_model - 1]))
        return;
    if (!room(l)) {
        l->no_memory = true;
        return;
    }
    l->v[l->n++] =
        (struct found){.e = e, .parent = f->parent, .head = buf_give(head, NULL), .r = *r};
}

enum qn_status scan_join(struct store *st, store_each *each, void *arg, struct qn_err *err)
{
    struct finds l = {.st = st};
    char hex[65];
    record_name_hex(&st->models[st->n_model - 1], hex);
    hex[16] = 0;
    enum qn_status s = walk_folder(st->dir, hex, false, seen_by_join, &l, err);
    if (s == QN_OK && l.no_memory)
        s = err_set(err, QN_NO_MEMORY, "store", "%s: no memory for an index of %zu records",
                    st->dir, l.n);
    if (s == QN_OK)
        tell(&l, each, arg);
    finds_free(&l);
    return s;
}

/* ---- for the command line ------------------------------------------------------------------- */

struct survey {
    store_found *found;
    void *arg;
};

static void seen_by_survey(void *arg, const struct store_find *f, const struct record *r,
                           struct buf *head)
{
    const struct survey *s = arg;
    s->found(s->arg, f);
}

enum qn_status store_survey(const char *dir, bool whole, store_found *found, void *arg,
                            struct qn_err *err)
{
    struct survey s = {found, arg};
    return walk(dir, whole, seen_by_survey, &s, err);
}
