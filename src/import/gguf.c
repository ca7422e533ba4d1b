/*
 * gguf.c - parses and checks a GGUF file; see gguf.h for the contract.
 *
 *   "GGUF" | u32 version | u64 n_tensor | u64 n_kv | n_kv x (key, u32 type, value)
 *          | n_tensor x (name, u32 n_dim, u64 dim[n_dim], u32 type, u64 offset) | pad | data
 *
 * One cursor walks the bytes; each take checks what is left first. A table is allocated only for a
 * count that the bytes left could hold, so memory stays below a small multiple of the file's size.
 */
#include "import/gguf.h"

#include <math.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "import/gguf_blocks.h"

#define KEY_MAX    65535 /* the format's own limit on a key */
#define NAME_MAX_B 256   /* tensor names; the reference implementation stops at 64 */

struct cur {
    const uint8_t *p;
    size_t n, at;
    struct str file;
    struct qn_err *err;
};

static const char *const TYPE_NAME[GGUF_N_TYPE] = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",   "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64",
};
static const uint8_t TYPE_BYTES[GGUF_N_TYPE] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

const char *gguf_type_name(enum gguf_type t)
{
    return (unsigned)t < GGUF_N_TYPE ? TYPE_NAME[t] : "unknown";
}

static uint64_t le(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    memcpy(&v, p, n); /* the supported machines are little-endian */
    return v;
}

static enum qn_status cut(const struct cur *c, const char *what)
{
    return err_set(c->err, QN_BAD_INPUT, "gguf",
                   STR_FMT ": the file ends inside %s (byte %zu of %zu); it is truncated",
                   STR_ARG(c->file), what, c->at, c->n);
}

static enum qn_status take_u(struct cur *c, size_t n, const char *what, uint64_t *out)
{
    if (c->n - c->at < n)
        return cut(c, what);
    *out = le(c->p + c->at, n);
    c->at += n;
    return QN_OK;
}

static enum qn_status take_str(struct cur *c, const char *what, struct str *out)
{
    uint64_t n = 0;
    QN_TRY(take_u(c, 8, what, &n));
    if (n > c->n - c->at)
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                STR_FMT ": %s at byte %zu claims %llu bytes, but %zu are left", STR_ARG(c->file),
                what, c->at - 8, (unsigned long long)n, c->n - c->at);
    *out = (struct str){(const char *)c->p + c->at, (size_t)n};
    c->at += (size_t)n;
    return QN_OK;
}

static enum qn_status take_name(struct cur *c, const char *what, size_t max, struct str *out)
{
    size_t at = c->at;
    QN_TRY(take_str(c, what, out));
    if (out->n == 0 || out->n > max)
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                STR_FMT ": %s at byte %zu has %zu bytes; expected 1 to %zu", STR_ARG(c->file), what,
                at, out->n, max);
    if (!utf8_valid(*out) || memchr(out->p, 0, out->n))
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf", STR_FMT ": %s at byte %zu is not UTF-8 text",
                STR_ARG(c->file), what, at);
    return QN_OK;
}

static enum qn_status take_type(struct cur *c, const struct str *key, enum gguf_type *out)
{
    uint64_t t = 0;
    QN_TRY(take_u(c, 4, "a metadata type", &t));
    if (t >= GGUF_N_TYPE)
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                STR_FMT ": metadata " STR_FMT " has value type %llu; known are 0 to %d",
                STR_ARG(c->file), STR_ARG(*key), (unsigned long long)t, GGUF_N_TYPE - 1);
    *out = (enum gguf_type)t;
    return QN_OK;
}

/* Moves past n values of kv->type, checking that each lies inside the file. */
static enum qn_status skip_values(struct cur *c, const struct gguf_kv *kv)
{
    size_t left = c->n - c->at;
    size_t each = kv->type == GGUF_STR ? 8 : TYPE_BYTES[kv->type];
    if (kv->n > left / each)
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                STR_FMT ": metadata " STR_FMT " claims %llu values of %s, but %zu bytes are left",
                STR_ARG(c->file), STR_ARG(kv->key), (unsigned long long)kv->n,
                gguf_type_name(kv->type), left);
    if (kv->type != GGUF_STR) {
        c->at += (size_t)kv->n * each;
        return QN_OK;
    }
    for (uint64_t i = 0; i < kv->n; i++) {
        struct str s;
        QN_TRY(take_str(c, "a string value", &s));
    }
    return QN_OK;
}

static enum qn_status take_kv(struct cur *c, struct gguf_kv *kv)
{
    QN_TRY(take_name(c, "a metadata key", KEY_MAX, &kv->key));
    QN_TRY(take_type(c, &kv->key, &kv->type));
    kv->n = 1;
    kv->is_arr = kv->type == GGUF_ARR;
    if (kv->is_arr) {
        QN_TRY(take_type(c, &kv->key, &kv->type));
        if (kv->type == GGUF_ARR)
            QN_FAIL(c->err, QN_UNSUPPORTED, "gguf",
                    STR_FMT ": metadata " STR_FMT " is an array of arrays, which no known key is",
                    STR_ARG(c->file), STR_ARG(kv->key));
        QN_TRY(take_u(c, 8, "an array's length", &kv->n));
    }
    kv->p = c->p + c->at;
    return skip_values(c, kv);
}

static int str_cmp(struct str a, struct str b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int d = n ? memcmp(a.p, b.p, n) : 0;
    return d ? d : (a.n > b.n) - (a.n < b.n);
}

static int cmp_kv(const void *a, const void *b)
{
    return str_cmp(((const struct gguf_kv *)a)->key, ((const struct gguf_kv *)b)->key);
}

static int cmp_name(const void *a, const void *b)
{
    return str_cmp(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

static int cmp_off(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;
    return (x->p > y->p) - (x->p < y->p);
}

/* Fails when `count` records of at least `each` bytes cannot be in what is left. */
static enum qn_status check_count(struct cur *c, const char *what, uint64_t count, size_t each)
{
    if (count <= (c->n - c->at) / each)
        return QN_OK;
    QN_FAIL(c->err, QN_BAD_INPUT, "gguf", STR_FMT ": %s is %llu, but only %zu bytes follow it",
            STR_ARG(c->file), what, (unsigned long long)count, c->n - c->at);
}

static enum qn_status read_kvs(struct cur *c, struct gguf *g, uint64_t n)
{
    QN_TRY(check_count(c, "the metadata count", n, 8 + 1 + 4 + 1));
    g->kv = calloc((size_t)n + 1, sizeof *g->kv);
    if (!g->kv)
        QN_FAIL(c->err, QN_NO_MEMORY, "gguf", STR_FMT ": no memory for %llu metadata entries",
                STR_ARG(c->file), (unsigned long long)n);
    for (; g->n_kv < n; g->n_kv++)
        QN_TRY(take_kv(c, &g->kv[g->n_kv]));
    qsort(g->kv, g->n_kv, sizeof *g->kv, cmp_kv);
    for (size_t i = 1; i < g->n_kv; i++)
        if (str_eq(g->kv[i - 1].key, g->kv[i].key))
            QN_FAIL(c->err, QN_BAD_INPUT, "gguf", STR_FMT ": metadata " STR_FMT " appears twice",
                    STR_ARG(c->file), STR_ARG(g->kv[i].key));
    return QN_OK;
}

static enum qn_status take_dims(struct cur *c, struct gguf_tensor *t)
{
    uint64_t n_dim = 0;
    QN_TRY(take_u(c, 4, "a tensor's dimension count", &n_dim));
    if (n_dim < 1 || n_dim > GGUF_DIM_MAX)
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                STR_FMT ": tensor " STR_FMT " has %llu dimensions; expected 1 to %d",
                STR_ARG(c->file), STR_ARG(t->name), (unsigned long long)n_dim, GGUF_DIM_MAX);
    t->n_dim = (int32_t)n_dim;
    t->n_elem = 1;
    for (int i = 0; i < GGUF_DIM_MAX; i++) {
        uint64_t d = 1;
        if (i < t->n_dim)
            QN_TRY(take_u(c, 8, "a tensor's shape", &d));
        if (d < 1 || d > INT32_MAX || __builtin_mul_overflow(t->n_elem, (int64_t)d, &t->n_elem))
            QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                    STR_FMT ": tensor " STR_FMT ": dimension %d is %llu; expected 1 to %d and a "
                            "product below 2^63",
                    STR_ARG(c->file), STR_ARG(t->name), i, (unsigned long long)d, INT32_MAX);
        t->dim[i] = (int64_t)d;
    }
    t->n_row = t->n_elem / t->dim[0];
    return QN_OK;
}

/* Reads one tensor record; *off is its offset from the start of the data section. */
static enum qn_status take_tensor(struct cur *c, struct gguf_tensor *t, uint64_t *off)
{
    uint64_t type = 0;
    QN_TRY(take_name(c, "a tensor name", NAME_MAX_B, &t->name));
    QN_TRY(take_dims(c, t));
    QN_TRY(take_u(c, 4, "a tensor's type", &type));
    QN_TRY(take_u(c, 8, "a tensor's offset", off));
    t->fmt = type <= INT32_MAX ? blk_format((int)type) : NULL;
    if (!t->fmt)
        QN_FAIL(c->err, QN_UNSUPPORTED, "gguf",
                STR_FMT ": tensor " STR_FMT " has type %llu, which is unknown", STR_ARG(c->file),
                STR_ARG(t->name), (unsigned long long)type);
    if (t->dim[0] % t->fmt->n_elem)
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                STR_FMT ": tensor " STR_FMT ": rows of %lld elements are not whole %s blocks of %d",
                STR_ARG(c->file), STR_ARG(t->name), (long long)t->dim[0], t->fmt->name,
                t->fmt->n_elem);
    uint64_t n_blk = (uint64_t)(t->n_elem / t->fmt->n_elem);
    if (__builtin_mul_overflow(n_blk, (uint64_t)t->fmt->n_bytes, &t->n_bytes))
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf", STR_FMT ": tensor " STR_FMT " is beyond 2^64 bytes",
                STR_ARG(c->file), STR_ARG(t->name));
    return QN_OK;
}

/* Places a tensor in the data section [data, c->n). */
static enum qn_status place(struct cur *c, struct gguf_tensor *t, uint64_t off, uint64_t data,
                            uint64_t align)
{
    uint64_t room = c->n - data;
    if (off % align)
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                STR_FMT ": tensor " STR_FMT ": offset %llu is not a multiple of the alignment %llu",
                STR_ARG(c->file), STR_ARG(t->name), (unsigned long long)off,
                (unsigned long long)align);
    if (off > room || t->n_bytes > room - off)
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                STR_FMT ": tensor " STR_FMT " needs bytes %llu to %llu + %llu of the data section, "
                        "which has %llu; the file is truncated or its header is wrong",
                STR_ARG(c->file), STR_ARG(t->name), (unsigned long long)off,
                (unsigned long long)off, (unsigned long long)t->n_bytes, (unsigned long long)room);
    t->p = c->p + data + off;
    return QN_OK;
}

static enum qn_status check_tensors(struct cur *c, struct gguf *g)
{
    qsort(g->tensor, g->n_tensor, sizeof *g->tensor, cmp_name);
    for (size_t i = 1; i < g->n_tensor; i++)
        if (str_eq(g->tensor[i - 1].name, g->tensor[i].name))
            QN_FAIL(c->err, QN_BAD_INPUT, "gguf", STR_FMT ": tensor " STR_FMT " appears twice",
                    STR_ARG(c->file), STR_ARG(g->tensor[i].name));
    qsort(g->tensor, g->n_tensor, sizeof *g->tensor, cmp_off);
    for (size_t i = 1; i < g->n_tensor; i++) {
        const struct gguf_tensor *a = &g->tensor[i - 1], *b = &g->tensor[i];
        if (a->p + a->n_bytes > b->p)
            QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                    STR_FMT ": tensors " STR_FMT " and " STR_FMT " overlap in the file",
                    STR_ARG(c->file), STR_ARG(a->name), STR_ARG(b->name));
    }
    return QN_OK;
}

static enum qn_status read_tensors(struct cur *c, struct gguf *g, uint64_t n)
{
    enum qn_status st = QN_OK;
    QN_TRY(check_count(c, "the tensor count", n, 8 + 1 + 4 + 8 + 4 + 8));
    g->tensor = calloc((size_t)n + 1, sizeof *g->tensor);
    uint64_t *off = calloc((size_t)n + 1, sizeof *off);
    if (!g->tensor || !off)
        st = err_set(c->err, QN_NO_MEMORY, "gguf", STR_FMT ": no memory for %llu tensor records",
                     STR_ARG(c->file), (unsigned long long)n);
    for (; st == QN_OK && g->n_tensor < n; g->n_tensor++)
        st = take_tensor(c, &g->tensor[g->n_tensor], &off[g->n_tensor]);
    /* The data section begins at the next aligned byte, also when no tensor follows. */
    uint64_t data = (c->at + g->alignment - 1) / g->alignment * g->alignment;
    if (st == QN_OK && n && data > c->n)
        st = cut(c, "the padding before the tensor data");
    for (size_t i = 0; st == QN_OK && i < g->n_tensor; i++)
        st = place(c, &g->tensor[i], off[i], data, g->alignment);
    free(off);
    return st == QN_OK ? check_tensors(c, g) : st;
}

static enum qn_status read_head(struct cur *c, struct gguf *g, uint64_t *n_tensor, uint64_t *n_kv)
{
    uint64_t version = 0;
    if (c->n < 4 || memcmp(c->p, "GGUF", 4) != 0)
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf", STR_FMT ": not a GGUF file (no \"GGUF\" at byte 0)",
                STR_ARG(c->file));
    c->at = 4;
    QN_TRY(take_u(c, 4, "the version", &version));
    if (version != 2 && version != 3)
        QN_FAIL(c->err, QN_UNSUPPORTED, "gguf", STR_FMT ": version is %llu%s; 2 and 3 can be read",
                STR_ARG(c->file), (unsigned long long)version,
                version && !(version & 0xffffff) ? " (a big-endian file)" : "");
    g->version = (uint32_t)version;
    QN_TRY(take_u(c, 8, "the tensor count", n_tensor));
    return take_u(c, 8, "the metadata count", n_kv);
}

static enum qn_status parse(struct cur *c, struct gguf *g)
{
    uint64_t n_tensor = 0, n_kv = 0;
    int64_t align = 0;
    QN_TRY(read_head(c, g, &n_tensor, &n_kv));
    QN_TRY(read_kvs(c, g, n_kv));
    QN_TRY(gguf_i64(g, "general.alignment", 32, 1, 1 << 20, &align, c->err));
    if (align & (align - 1))
        QN_FAIL(c->err, QN_BAD_INPUT, "gguf",
                STR_FMT ": general.alignment is %lld; expected a power of two", STR_ARG(c->file),
                (long long)align);
    g->alignment = (uint64_t)align;
    return read_tensors(c, g, n_tensor);
}

enum qn_status gguf_open_mem(const uint8_t *p, size_t n, const char *name, struct gguf *g,
                             struct qn_err *err)
{
    *g = (struct gguf){.name = str_of(name)};
    struct cur c = {.p = p, .n = n, .file = g->name, .err = err};
    enum qn_status st = parse(&c, g);
    if (st != QN_OK)
        gguf_close(g);
    return st;
}

enum qn_status gguf_open(const char *path, struct gguf *g, struct qn_err *err)
{
    struct file_map map = {0};
    char *copy = NULL;
    *g = (struct gguf){0};
    QN_TRY(file_map_open(path, &map, err));
    struct str base = path_base(path);
    copy = strndup(base.p, base.n);
    enum qn_status st = copy ? gguf_open_mem(map.p, map.n, copy, g, err)
                             : err_set(err, QN_NO_MEMORY, "gguf", "no memory to open %s", path);
    if (st != QN_OK) {
        free(copy);
        file_map_close(&map);
        return st;
    }
    g->map = map;
    g->path_copy = copy;
    return QN_OK;
}

void gguf_close(struct gguf *g)
{
    free(g->kv);
    free(g->tensor);
    free(g->path_copy);
    if (g->map.p)
        file_map_close(&g->map);
    *g = (struct gguf){0};
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    struct gguf_kv want = {.key = str_of(key)};
    return g->n_kv ? bsearch(&want, g->kv, g->n_kv, sizeof want, cmp_kv) : NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    for (size_t i = 0; i < g->n_tensor; i++)
        if (str_eqz(g->tensor[i].name, name))
            return &g->tensor[i];
    return NULL;
}

int64_t gguf_arr_i64(const struct gguf_kv *kv, uint64_t i)
{
    QN_ASSERT(i < kv->n);
    size_t each = TYPE_BYTES[kv->type];
    uint64_t v = le(kv->p + i * each, each);
    switch (kv->type) {
    case GGUF_I8:
        return (int8_t)v;
    case GGUF_I16:
        return (int16_t)v;
    case GGUF_I32:
        return (int32_t)v;
    default:
        return (int64_t)v;
    }
}

float gguf_arr_f32(const struct gguf_kv *kv, uint64_t i)
{
    float f;
    QN_ASSERT(kv->type == GGUF_F32 && i < kv->n);
    memcpy(&f, kv->p + i * 4, 4);
    return f;
}

static enum qn_status bad_kv(const struct gguf *g, const struct gguf_kv *kv, const char *want,
                             struct qn_err *err)
{
    QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": metadata " STR_FMT " is %s%s; expected %s",
            STR_ARG(g->name), STR_ARG(kv->key), kv->is_arr ? "an array of " : "of type ",
            gguf_type_name(kv->type), want);
}

static bool is_float(enum gguf_type t)
{
    return t == GGUF_F32 || t == GGUF_F64;
}

static double float_of(const struct gguf_kv *kv)
{
    float f;
    double d;
    if (kv->type == GGUF_F32) {
        memcpy(&f, kv->p, 4);
        return (double)f;
    }
    memcpy(&d, kv->p, 8);
    return d;
}

enum qn_status gguf_i64(const struct gguf *g, const char *key, int64_t def, int64_t min,
                        int64_t max, int64_t *out, struct qn_err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    *out = def;
    if (!kv)
        return QN_OK;
    if (kv->is_arr || kv->type == GGUF_STR || kv->type == GGUF_BOOL)
        return bad_kv(g, kv, "an integer", err);
    if (is_float(kv->type)) {
        double v = float_of(kv);
        if (!(fabs(v) < 9e15) || v != floor(v))
            QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": metadata %s is %g; expected an integer",
                    STR_ARG(g->name), key, v);
        *out = (int64_t)v;
    } else {
        *out = gguf_arr_i64(kv, 0);
    }
    bool huge = kv->type == GGUF_U64 && *out < 0; /* above 2^63 */
    if (*out < min || *out > max || huge)
        QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": metadata %s is %lld; expected %lld to %lld",
                STR_ARG(g->name), key, (long long)*out, (long long)min, (long long)max);
    return QN_OK;
}

enum qn_status gguf_f64(const struct gguf *g, const char *key, double def, double *out,
                        struct qn_err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    *out = def;
    if (!kv)
        return QN_OK;
    if (kv->is_arr || kv->type == GGUF_STR || kv->type == GGUF_BOOL)
        return bad_kv(g, kv, "a number", err);
    *out = is_float(kv->type) ? float_of(kv) : (double)gguf_arr_i64(kv, 0);
    if (!isfinite(*out))
        QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": metadata %s is %g; expected a finite number",
                STR_ARG(g->name), key, *out);
    return QN_OK;
}

enum qn_status gguf_bool(const struct gguf *g, const char *key, bool def, bool *out,
                         struct qn_err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    *out = def;
    if (!kv)
        return QN_OK;
    if (kv->is_arr || kv->type != GGUF_BOOL)
        return bad_kv(g, kv, "a bool", err);
    *out = kv->p[0] != 0;
    return QN_OK;
}

static struct str str_at(const uint8_t *p)
{
    return (struct str){(const char *)p + 8, (size_t)le(p, 8)};
}

enum qn_status gguf_str(const struct gguf *g, const char *key, struct str def, struct str *out,
                        struct qn_err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    *out = def;
    if (!kv)
        return QN_OK;
    if (kv->is_arr || kv->type != GGUF_STR)
        return bad_kv(g, kv, "a string", err);
    *out = str_at(kv->p);
    if (!utf8_valid(*out))
        QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": metadata %s is not valid UTF-8",
                STR_ARG(g->name), key);
    return QN_OK;
}

enum qn_status gguf_strs(const struct gguf *g, const char *key, struct str **out, size_t *n,
                         struct qn_err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    *out = NULL;
    *n = 0;
    if (!kv)
        QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": metadata %s is missing", STR_ARG(g->name),
                key);
    if (!kv->is_arr || kv->type != GGUF_STR)
        return bad_kv(g, kv, "an array of strings", err);
    struct str *v = calloc((size_t)kv->n + 1, sizeof *v);
    if (!v)
        QN_FAIL(err, QN_NO_MEMORY, "gguf", STR_FMT ": no memory for the %llu strings of %s",
                STR_ARG(g->name), (unsigned long long)kv->n, key);
    const uint8_t *p = kv->p;
    for (uint64_t i = 0; i < kv->n; i++) {
        v[i] = str_at(p);
        p += 8 + v[i].n;
        if (!utf8_valid(v[i])) {
            free(v);
            QN_FAIL(err, QN_BAD_INPUT, "gguf", STR_FMT ": %s[%llu] is not valid UTF-8",
                    STR_ARG(g->name), key, (unsigned long long)i);
        }
    }
    *out = v;
    *n = (size_t)kv->n;
    return QN_OK;
}
