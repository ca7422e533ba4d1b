/*
 * safetensors.c - see safetensors.h. A file is: u64 length of the header, the header (a JSON object
 * of name -> {dtype, shape, data_offsets}), then the data.
 */
#include "model/safetensors.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"

enum { HEADER_MAX = 100 << 20, FILES_MAX = 4096 };

struct st_file {
    char *name;
    struct file_map map;
};

struct st {
    struct st_file *files;
    int32_t n_file;
    struct st_tensor *v;
    int32_t n, cap;
    struct arena *names;
};

static const struct {
    const char *name;
    enum st_dtype type;
    uint8_t bytes;
} dtypes[] = {
    {"F32", ST_F32, 4},    {"F16", ST_F16, 2},       {"BF16", ST_BF16, 2},     {"U8", ST_U8, 1},
    {"U32", ST_U32, 4},    {"I8", ST_OTHER, 1},      {"I16", ST_OTHER, 2},     {"I32", ST_OTHER, 4},
    {"I64", ST_OTHER, 8},  {"U16", ST_OTHER, 2},     {"U64", ST_OTHER, 8},     {"F64", ST_OTHER, 8},
    {"BOOL", ST_OTHER, 1}, {"F8_E4M3", ST_OTHER, 1}, {"F8_E5M2", ST_OTHER, 1}, {"C64", ST_OTHER, 8},
};

/* ---- one tensor's entry -----------------------------------------------------------------------
 */

struct entry {
    const char *file;
    struct str name;
    const struct json *v;
};

static enum qn_status entry_dtype(const struct entry *e, struct st_tensor *t, size_t *elem,
                                  struct qn_err *err)
{
    struct str d = json_str(json_get(e->v, "dtype"));
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (str_eqz(d, dtypes[i].name)) {
            t->dtype = dtypes[i].type;
            t->dtype_name = dtypes[i].name;
            *elem = dtypes[i].bytes;
            return QN_OK;
        }
    QN_FAIL(err, QN_BAD_INPUT, "safetensors",
            "%s: tensor " STR_FMT ": dtype \"" STR_FMT "\" is not known", e->file, STR_ARG(e->name),
            STR_ARG(d));
}

static enum qn_status entry_shape(const struct entry *e, struct st_tensor *t, size_t *count,
                                  struct qn_err *err)
{
    const struct json *shape = json_get(e->v, "shape");
    size_t n = json_len(shape);
    if (json_type(shape) != JSON_ARR || n > ST_DIM_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "safetensors",
                "%s: tensor " STR_FMT ": shape must be an array of at most %d sizes", e->file,
                STR_ARG(e->name), ST_DIM_MAX);
    t->n_dim = (int32_t)n;
    *count = 1;
    for (size_t i = 0; i < n; i++) {
        int64_t d;
        if (!json_i64(json_at(shape, i), &d) || d < 0 ||
            __builtin_mul_overflow(*count, (size_t)d, count) || *count > (size_t)1 << 48)
            QN_FAIL(err, QN_BAD_INPUT, "safetensors",
                    "%s: tensor " STR_FMT ": size %zu of its shape is out of range", e->file,
                    STR_ARG(e->name), i);
        t->shape[i] = d;
    }
    return QN_OK;
}

static enum qn_status entry_data(const struct entry *e, struct st_tensor *t, size_t want,
                                 const struct file_map *map, size_t data_at, struct qn_err *err)
{
    const struct json *off = json_get(e->v, "data_offsets");
    uint64_t begin, end, room = map->n - data_at;
    if (json_len(off) != 2 || !json_u64(json_at(off, 0), &begin) ||
        !json_u64(json_at(off, 1), &end) || begin > end || end > room)
        QN_FAIL(err, QN_BAD_INPUT, "safetensors",
                "%s: tensor " STR_FMT ": data_offsets must be two rising offsets within the %llu "
                "bytes of data; is the file cut short?",
                e->file, STR_ARG(e->name), (unsigned long long)room);
    if (end - begin != want)
        QN_FAIL(err, QN_BAD_INPUT, "safetensors",
                "%s: tensor " STR_FMT ": %llu bytes of data, but its shape and dtype need %zu",
                e->file, STR_ARG(e->name), (unsigned long long)(end - begin), want);
    t->data = want ? map->p + data_at + begin : NULL;
    t->bytes = want;
    return QN_OK;
}

static enum qn_status add_entry(struct st *s, int32_t file, const struct json_iter *it,
                                size_t data_at, struct qn_err *err)
{
    struct entry e = {s->files[file].name, it->key, it->val};
    struct st_tensor t = {.file = file};
    size_t elem = 0, count = 0;
    if (json_type(e.v) != JSON_OBJ)
        QN_FAIL(err, QN_BAD_INPUT, "safetensors", "%s: tensor " STR_FMT ": entry is not an object",
                e.file, STR_ARG(e.name));
    QN_TRY(entry_dtype(&e, &t, &elem, err));
    QN_TRY(entry_shape(&e, &t, &count, err));
    QN_TRY(entry_data(&e, &t, count * elem, &s->files[file].map, data_at, err));
    t.name = arena_str(s->names, e.name);
    if (!t.name.p)
        QN_FAIL(err, QN_NO_MEMORY, "safetensors", "%s: out of memory for tensor names", e.file);
    QN_ASSERT(s->n < s->cap);
    s->v[s->n++] = t;
    return QN_OK;
}

/* ---- a file -----------------------------------------------------------------------------------
 */

static enum qn_status add_header(struct st *s, int32_t file, const struct json *head,
                                 size_t data_at, struct qn_err *err)
{
    size_t more = json_len(head), want;
    if (__builtin_add_overflow((size_t)s->n, more, &want) || want > INT32_MAX / 2)
        QN_FAIL(err, QN_BAD_INPUT, "safetensors", "%s: %zu tensors are too many",
                s->files[file].name, more);
    struct st_tensor *v = realloc(s->v, (want + 1) * sizeof *v);
    if (!v)
        QN_FAIL(err, QN_NO_MEMORY, "safetensors", "out of memory for %zu tensors", want);
    s->v = v;
    s->cap = (int32_t)want;
    for (struct json_iter it = {0}; json_next(head, &it);)
        if (!str_eqz(it.key, "__metadata__"))
            QN_TRY(add_entry(s, file, &it, data_at, err));
    return QN_OK;
}

static enum qn_status add_file(struct st *s, const char *path, struct qn_err *err)
{
    struct st_file *f = &s->files[s->n_file];
    struct str base = path_base(path);
    f->name = strndup(base.p, base.n);
    if (!f->name)
        QN_FAIL(err, QN_NO_MEMORY, "safetensors", "out of memory");
    s->n_file++;
    QN_TRY(file_map_open(path, &f->map, err));
    uint64_t head = 0;
    if (f->map.n >= 8)
        memcpy(&head, f->map.p, 8);
    if (f->map.n < 8 || head > HEADER_MAX || head > f->map.n - 8)
        QN_FAIL(err, QN_BAD_INPUT, "safetensors",
                "%s: header of %llu bytes in a file of %zu bytes; at most %d and inside the file. "
                "Is the file cut short?",
                f->name, (unsigned long long)head, f->map.n, HEADER_MAX);
    struct json *doc;
    struct str text = {(const char *)f->map.p + 8, (size_t)head};
    QN_TRY(json_parse(text, f->name, 8, &doc, err));
    enum qn_status st = QN_OK;
    if (json_type(doc) != JSON_OBJ)
        st = err_set(err, QN_BAD_INPUT, "safetensors", "%s: header is not a JSON object", f->name);
    else
        st = add_header(s, s->n_file - 1, doc, 8 + (size_t)head, err);
    json_free(doc);
    return st;
}

/* ---- all files --------------------------------------------------------------------------------
 */

static int by_name(const void *pa, const void *pb)
{
    const struct st_tensor *a = pa, *b = pb;
    size_t n = a->name.n < b->name.n ? a->name.n : b->name.n;
    int c = memcmp(a->name.p, b->name.p, n);
    return c ? c : (a->name.n > b->name.n) - (a->name.n < b->name.n);
}

static enum qn_status finish(struct st *s, struct qn_err *err)
{
    if (s->n)
        qsort(s->v, (size_t)s->n, sizeof *s->v, by_name);
    for (int32_t i = 1; i < s->n; i++)
        if (by_name(&s->v[i - 1], &s->v[i]) == 0)
            QN_FAIL(err, QN_BAD_INPUT, "safetensors", "tensor " STR_FMT " is in %s and in %s",
                    STR_ARG(s->v[i].name), s->files[s->v[i - 1].file].name,
                    s->files[s->v[i].file].name);
    return QN_OK;
}

static enum qn_status st_new(int32_t n_file, struct st **out, struct qn_err *err)
{
    struct st *s = calloc(1, sizeof *s);
    if (s) {
        s->files = calloc((size_t)n_file, sizeof *s->files);
        s->names = arena_create(0);
    }
    if (!s || !s->files || !s->names) {
        st_free(s);
        QN_FAIL(err, QN_NO_MEMORY, "safetensors", "out of memory");
    }
    *out = s;
    return QN_OK;
}

enum qn_status st_open_file(const char *path, struct st **out, struct qn_err *err)
{
    struct st *s = NULL;
    QN_TRY(st_new(1, &s, err));
    enum qn_status st = add_file(s, path, err);
    if (st == QN_OK)
        st = finish(s, err);
    if (st != QN_OK) {
        st_free(s);
        return st;
    }
    *out = s;
    return QN_OK;
}

static enum qn_status add_names(struct st *s, const char *dir, char **names, size_t n,
                                struct qn_err *err)
{
    struct buf path = BUF_INIT;
    enum qn_status st = QN_OK;
    for (size_t i = 0; i < n && st == QN_OK; i++) {
        if (fnmatch("model*.safetensors", names[i], 0) != 0)
            continue;
        path_join(&path, dir, names[i]);
        st = buf_ok(&path, "path", err);
        if (st == QN_OK)
            st = add_file(s, buf_z(&path), err);
    }
    buf_free(&path);
    if (st == QN_OK && s->n_file == 0)
        st = err_set(err, QN_NOT_FOUND, "safetensors", "%s: no model*.safetensors in this folder",
                     dir);
    return st;
}

enum qn_status st_open(const char *dir, struct st **out, struct qn_err *err)
{
    char **names = NULL;
    size_t n = 0;
    QN_TRY(dir_list(dir, &names, &n, err));
    struct st *s = NULL;
    enum qn_status st =
        n <= FILES_MAX ? st_new((int32_t)n + 1, &s, err)
                       : err_set(err, QN_BAD_INPUT, "safetensors",
                                 "%s: %zu files in a model folder; at most %d", dir, n, FILES_MAX);
    if (st == QN_OK)
        st = add_names(s, dir, names, n, err);
    if (st == QN_OK)
        st = finish(s, err);
    names_free(names, n);
    if (st != QN_OK) {
        st_free(s);
        return st;
    }
    *out = s;
    return QN_OK;
}

void st_free(struct st *s)
{
    if (!s)
        return;
    for (int32_t i = 0; i < s->n_file; i++) {
        file_map_close(&s->files[i].map);
        free(s->files[i].name);
    }
    free(s->files);
    free(s->v);
    arena_free(s->names);
    free(s);
}

int32_t st_count(const struct st *s)
{
    return s->n;
}

const struct st_tensor *st_at(const struct st *s, int32_t i)
{
    return &s->v[i];
}

const struct st_tensor *st_find(const struct st *s, struct str name)
{
    struct st_tensor key = {.name = name};
    return s->n ? bsearch(&key, s->v, (size_t)s->n, sizeof *s->v, by_name) : NULL;
}

const char *st_file_name(const struct st *s, int32_t file)
{
    return s->files[file].name;
}

int32_t st_file_count(const struct st *s)
{
    return s->n_file;
}

const char *st_shape_text(const struct st_tensor *t, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "[");
    for (int32_t i = 0; i < t->n_dim && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    if (n < cap)
        snprintf(out + n, cap - n, "]");
    return out;
}

void st_drop(const struct st *s, const struct st_tensor *t)
{
    const struct file_map *m = &s->files[t->file].map;
    if (t->data)
        file_map_drop(m, (size_t)(t->data - m->p), t->bytes);
}
