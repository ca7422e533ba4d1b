/*
 * loader.c - see loader.h.
 */
#include "model/loader.h"

#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct loader {
    struct exec *ex;
    const struct st *st;
    const struct json *cfg;
    bool *used; /* [st_count] */
    int64_t bytes_total, bytes_done;
    struct loader_totals totals;
    void (*progress)(void *arg, const char *what, double done);
    void *progress_arg;
    struct {
        const char *name, *file;
    } alias[LOADER_ALIAS_MAX];
    int n_alias;
};

enum { NAME_MAX_ = 256 };

enum qn_status loader_create(struct exec *ex, const struct st *st, const struct json *cfg,
                             struct loader **out, struct qn_err *err)
{
    struct loader *l = calloc(1, sizeof *l);
    bool *used = calloc((size_t)st_count(st) + 1, sizeof *used);
    if (!l || !used) {
        free(l);
        free(used);
        QN_FAIL(err, QN_NO_MEMORY, "loader", "out of memory");
    }
    *l = (struct loader){.ex = ex, .st = st, .cfg = cfg, .used = used};
    size_t room = 64 << 20; /* address space only: formats at most quadruple, rows pad to 16 */
    for (int32_t i = 0; i < st_count(st); i++) {
        l->bytes_total += (int64_t)st_at(st, i)->bytes;
        room += 4 * st_at(st, i)->bytes + (1 << 16);
    }
    enum qn_status s = exec_reserve(ex, room, err);
    if (s != QN_OK) {
        loader_free(l);
        return s;
    }
    *out = l;
    return QN_OK;
}

void loader_free(struct loader *l)
{
    if (!l)
        return;
    free(l->used);
    free(l);
}

void loader_progress(struct loader *l, void (*fn)(void *arg, const char *what, double done),
                     void *arg)
{
    l->progress = fn;
    l->progress_arg = arg;
}

void loader_totals(const struct loader *l, struct loader_totals *out)
{
    *out = l->totals;
}

void loader_alias(struct loader *l, const char *name, const char *file)
{
    if (!name) {
        l->n_alias = 0;
        return;
    }
    QN_ASSERT(l->n_alias < LOADER_ALIAS_MAX);
    l->alias[l->n_alias].name = name;
    l->alias[l->n_alias++].file = file;
}

/* The name as it stands in the file. */
static void name_of(const struct loader *l, char out[NAME_MAX_], const char *fmt, va_list ap)
{
    char asked[NAME_MAX_];
    vsnprintf(asked, sizeof asked, fmt, ap);
    for (int i = 0; i < l->n_alias; i++) {
        size_t n = strlen(l->alias[i].name);
        if (strncmp(asked, l->alias[i].name, n) == 0) {
            snprintf(out, NAME_MAX_, "%s%s", l->alias[i].file, asked + n);
            return;
        }
    }
    snprintf(out, NAME_MAX_, "%s", asked);
}

/* MODULE + suffix; marks the tensor used. NULL when absent. */
static const struct st_tensor *take(struct loader *l, const char *module, const char *suffix)
{
    char name[NAME_MAX_ + 16];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    const struct st_tensor *t = st_find(l->st, str_of(name));
    if (t)
        l->used[t - st_at(l->st, 0)] = true;
    return t;
}

bool loader_has(const struct loader *l, const char *fmt, ...)
{
    char name[NAME_MAX_];
    va_list ap;
    va_start(ap, fmt);
    name_of(l, name, fmt, ap);
    va_end(ap);
    return st_find(l->st, str_of(name)) != NULL;
}

struct want {
    int32_t stack; /* 0 = two dimensions */
    int64_t rows, cols;
    enum st_dtype dtype;
};

static enum qn_status check_shape(const struct st_tensor *t, const struct want *w,
                                  struct qn_err *err)
{
    static const char *const names[] = {"F32", "F16", "BF16", "U8", "U32", "other"};
    int d = w->stack ? 1 : 0;
    char found[128], stack[16] = "";
    if (t->n_dim == 2 + d && (!d || t->shape[0] == w->stack) && t->shape[d] == w->rows &&
        t->shape[d + 1] == w->cols && t->dtype == w->dtype)
        return QN_OK;
    if (d)
        snprintf(stack, sizeof stack, "%d, ", w->stack);
    QN_FAIL(err, QN_BAD_INPUT, "loader",
            "tensor " STR_FMT ": found %s %s, expected %s [%s%lld, %lld]", STR_ARG(t->name),
            t->dtype_name, st_shape_text(t, found, sizeof found), names[w->dtype], stack,
            (long long)w->rows, (long long)w->cols);
}

static enum qn_status missing(const char *name, const char *suffix, struct qn_err *err)
{
    return err_set(err, QN_BAD_INPUT, "loader", "tensor %s%s is missing from the checkpoint", name,
                   suffix);
}

static void account(struct loader *l, const struct weight_src *s, const struct weight *w,
                    const struct st_tensor *const *t)
{
    int64_t bytes = (int64_t)weight_bytes(w), stack = s->n_stack ? s->n_stack : 1;
    l->totals.n_param += (int64_t)s->n * s->k * stack;
    l->totals.packed_bytes += bytes;
    l->totals.step_bytes += s->active ? bytes / stack * s->active : bytes;
    for (int i = 0; i < 4; i++) {
        if (!t[i])
            continue;
        l->totals.stored_bytes += (int64_t)t[i]->bytes;
        l->bytes_done += (int64_t)t[i]->bytes;
        st_drop(l->st, t[i]);
    }
    if (l->progress)
        l->progress(l->progress_arg, "loading weights",
                    (double)l->bytes_done / (double)(l->bytes_total ? l->bytes_total : 1));
}

/* Affine scales and biases share a dtype in mlx files; ours to check. */
static enum qn_status affine_scales(struct weight_src *s, const struct st_tensor *scales,
                                    const struct st_tensor *biases, struct qn_err *err)
{
    enum st_dtype d = scales->dtype;
    if (d != ST_F32 && d != ST_F16 && d != ST_BF16)
        QN_FAIL(err, QN_BAD_INPUT, "loader",
                "tensor " STR_FMT ": dtype %s; expected F32, F16 or BF16", STR_ARG(scales->name),
                scales->dtype_name);
    struct want w = {s->n_stack, s->n, s->k / s->group, d};
    QN_TRY(check_shape(scales, &w, err));
    QN_TRY(check_shape(biases, &w, err));
    s->scale_type = d == ST_F32 ? SCALE_F32 : d == ST_F16 ? SCALE_F16 : SCALE_BF16;
    s->scales = scales->data;
    s->biases = biases->data;
    return QN_OK;
}

static enum qn_status global_scale(struct loader *l, const char *module, struct weight_src *s,
                                   const struct st_tensor **t, struct qn_err *err)
{
    *t = take(l, module, ".global_scale");
    if (!*t)
        return QN_OK;
    int32_t n = s->n_stack ? s->n_stack : 1;
    if ((*t)->dtype != ST_F32 || (*t)->bytes != 4 * (size_t)n)
        QN_FAIL(err, QN_BAD_INPUT, "loader", "tensor %s.global_scale: expected %d F32", module, n);
    memcpy(&s->global_scale, (*t)->data, 4);
    s->global_scales = s->n_stack ? (*t)->data : NULL;
    return QN_OK;
}

static enum qn_status quantized_src(struct loader *l, const char *module, struct weight_src *s,
                                    const struct st_tensor **t, struct qn_err *err)
{
    if (!t[1])
        return missing(module, ".scales", err);
    if (s->group < 1 || s->k % s->group || (int64_t)s->k * s->bits % 32)
        QN_FAIL(err, QN_BAD_INPUT, "loader", "%s: %d inputs do not divide into groups of %d",
                module, s->k, s->group);
    struct want words = {s->n_stack, s->n, (int64_t)s->k * s->bits / 32, ST_U32};
    QN_TRY(check_shape(t[0], &words, err));
    if (s->format == WEIGHT_AFFINE) {
        t[2] = take(l, module, ".biases");
        return t[2] ? affine_scales(s, t[1], t[2], err) : missing(module, ".biases", err);
    }
    struct want bytes = {s->n_stack, s->n, s->k / s->group, ST_U8};
    QN_TRY(check_shape(t[1], &bytes, err));
    s->scales = t[1]->data;
    return s->format == WEIGHT_NVFP4 ? global_scale(l, module, s, &t[3], err) : QN_OK;
}

/* What MODULE is, checked; its tensors in t. */
static enum qn_status module_src(struct loader *l, const struct stack_shape *shape,
                                 const char *module, struct weight_src *s,
                                 const struct st_tensor **t, struct qn_err *err)
{
    t[0] = take(l, module, ".weight");
    t[1] = take(l, module, ".scales");
    if (!t[0])
        return missing(module, ".weight", err);
    struct quant_spec q;
    QN_TRY(quant_resolve(l->cfg, str_of(module), t[0], t[1], shape->k, &q, err));
    *s = (struct weight_src){.name = module,
                             .format = q.format,
                             .n = shape->n,
                             .k = shape->k,
                             .bits = q.bits,
                             .group = q.group,
                             .n_stack = shape->n_stack,
                             .active = shape->active,
                             .data = t[0]->data};
    struct want plain = {shape->n_stack, shape->n, shape->k, t[0]->dtype};
    return q.bits ? quantized_src(l, module, s, t, err) : check_shape(t[0], &plain, err);
}

static enum qn_status load_module(struct loader *l, struct weight **out,
                                  const struct stack_shape *shape, const char *module,
                                  struct qn_err *err)
{
    const struct st_tensor *t[4] = {0};
    struct weight_src s;
    QN_TRY(module_src(l, shape, module, &s, t, err));
    QN_TRY(weight_load(l->ex, &s, out, err));
    account(l, &s, *out, t);
    return QN_OK;
}

/* The chosen rows of a tensor of n_module, whatever its type: a row is bytes / n_module. */
static uint8_t *gather(const struct st_tensor *t, const struct row_choice *c, uint8_t *to)
{
    size_t row = t->bytes / (size_t)c->n_module;
    for (int32_t i = 0; i < c->n; i++)
        memcpy(to + (size_t)i * row, t->data + (size_t)c->rows[i] * row, row);
    return to + (size_t)c->n * row;
}

static enum qn_status load_chosen(struct loader *l, struct weight **out, const struct row_choice *c,
                                  const char *module, struct qn_err *err)
{
    const struct st_tensor *t[4] = {0};
    struct weight_src s;
    QN_TRY(module_src(l, &(struct stack_shape){.n = c->n_module, .k = c->k}, module, &s, t, err));
    size_t bytes = t[0]->bytes + (t[1] ? t[1]->bytes : 0) + (t[2] ? t[2]->bytes : 0);
    uint8_t *copy = malloc(bytes), *at = copy;
    if (!copy)
        QN_FAIL(err, QN_NO_MEMORY, "loader", "out of memory for %zu bytes of %s", bytes, module);
    const uint8_t **parts[3] = {&s.data, &s.scales, &s.biases};
    for (int i = 0; i < 3 && t[i]; i++) {
        *parts[i] = at;
        at = gather(t[i], c, at);
    }
    s.n = c->n;
    enum qn_status st = weight_load(l->ex, &s, out, err);
    exec_quiesce(l->ex); /* a late thread may still read the copy */
    free(copy);
    QN_TRY(st);
    account(l, &s, *out, (const struct st_tensor *const[4]){0});
    for (int i = 0; i < 4; i++) /* several choices make up the whole */
        l->totals.stored_bytes += t[i] ? (int64_t)t[i]->bytes * c->n / c->n_module : 0;
    return QN_OK;
}

enum qn_status load_matrix(struct loader *l, struct weight **out, int32_t n, int32_t k,
                           struct qn_err *err, const char *fmt, ...)
{
    char module[NAME_MAX_];
    va_list ap;
    va_start(ap, fmt);
    name_of(l, module, fmt, ap);
    va_end(ap);
    return load_module(l, out, &(struct stack_shape){.n = n, .k = k}, module, err);
}

enum qn_status load_table(struct loader *l, struct weight **out, int32_t n, int32_t k,
                          struct qn_err *err, const char *fmt, ...)
{
    char module[NAME_MAX_];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(module, sizeof module, fmt, ap);
    va_end(ap);
    int64_t before = l->totals.step_bytes;
    QN_TRY(load_module(l, out, &(struct stack_shape){.n = n, .k = k}, module, err));
    l->totals.step_bytes = before;
    return QN_OK;
}

enum qn_status load_rows(struct loader *l, struct weight **out, const struct row_choice *c,
                         struct qn_err *err, const char *fmt, ...)
{
    char module[NAME_MAX_];
    va_list ap;
    va_start(ap, fmt);
    name_of(l, module, fmt, ap);
    va_end(ap);
    return load_chosen(l, out, c, module, err);
}

enum qn_status load_stack(struct loader *l, struct weight **out, const struct stack_shape *shape,
                          struct qn_err *err, const char *fmt, ...)
{
    char module[NAME_MAX_];
    va_list ap;
    va_start(ap, fmt);
    name_of(l, module, fmt, ap);
    va_end(ap);
    return load_module(l, out, shape, module, err);
}

/* Vectors [n], or [n_stack, n] */
static enum qn_status load_vectors(struct loader *l, struct weight **out,
                                   const struct stack_shape *shape, const char *name,
                                   struct qn_err *err)
{
    const struct st_tensor *t[4] = {take(l, name, "")};
    if (!t[0])
        return missing(name, "", err);
    char found[128];
    int32_t stack = shape->n_stack, n = shape->n;
    if (t[0]->n_dim != (stack ? 2 : 1) || (stack && t[0]->shape[0] != stack) ||
        t[0]->shape[stack ? 1 : 0] != n)
        QN_FAIL(err, QN_BAD_INPUT, "loader", "tensor %s: found shape %s, expected [%.0d%s%d]", name,
                st_shape_text(t[0], found, sizeof found), stack, stack ? ", " : "", n);
    struct quant_spec q;
    QN_TRY(quant_resolve(NULL, str_of(name), t[0], NULL, 0, &q, err));
    struct weight_src s = {
        .name = name, .format = q.format, .n = stack ? stack : 1, .k = n, .data = t[0]->data};
    QN_TRY(weight_load_vec(l->ex, &s, out, err));
    account(l, &s, *out, t);
    return QN_OK;
}

enum qn_status load_vec(struct loader *l, struct weight **out, int32_t n, struct qn_err *err,
                        const char *fmt, ...)
{
    char name[NAME_MAX_];
    va_list ap;
    va_start(ap, fmt);
    name_of(l, name, fmt, ap);
    va_end(ap);
    return load_vectors(l, out, &(struct stack_shape){.n = n}, name, err);
}

/* The integer at index i of t, whose integers are `size` bytes wide; -1 = out of range. */
static int64_t id_at(const struct st_tensor *t, size_t size, int32_t i)
{
    int64_t wide;
    uint32_t narrow;
    if (size == sizeof wide) {
        memcpy(&wide, t->data + (size_t)i * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, t->data + (size_t)i * sizeof narrow, sizeof narrow);
    return narrow;
}

enum qn_status load_ids(struct loader *l, int32_t *out, int32_t n, int32_t end, struct qn_err *err,
                        const char *fmt, ...)
{
    char name[NAME_MAX_], found[128];
    va_list ap;
    va_start(ap, fmt);
    name_of(l, name, fmt, ap);
    va_end(ap);
    const struct st_tensor *t = take(l, name, "");
    if (!t)
        return missing(name, "", err);
    bool wide = strcmp(t->dtype_name, "I64") == 0;
    size_t size = wide ? 8 : 4;
    if (!wide && strcmp(t->dtype_name, "I32") != 0 && strcmp(t->dtype_name, "U32") != 0)
        QN_FAIL(err, QN_BAD_INPUT, "loader", "tensor %s: dtype %s; expected I64, I32 or U32", name,
                t->dtype_name);
    if (t->bytes != (size_t)n * size)
        QN_FAIL(err, QN_BAD_INPUT, "loader", "tensor %s: found shape %s, expected [%d]", name,
                st_shape_text(t, found, sizeof found), n);
    for (int32_t i = 0; i < n; i++) {
        int64_t id = id_at(t, size, i);
        if (id < 0 || id >= end)
            QN_FAIL(err, QN_BAD_INPUT, "loader", "tensor %s: entry %d is %lld; expected 0 to %d",
                    name, i, (long long)id, end - 1);
        out[i] = (int32_t)id;
    }
    return QN_OK;
}

enum qn_status load_stack_vec(struct loader *l, struct weight **out,
                              const struct stack_shape *shape, struct qn_err *err, const char *fmt,
                              ...)
{
    char name[NAME_MAX_];
    va_list ap;
    va_start(ap, fmt);
    name_of(l, name, fmt, ap);
    va_end(ap);
    return load_vectors(l, out, shape, name, err);
}

enum qn_status load_taps(struct loader *l, struct weight **out, int32_t n, int32_t taps,
                         struct qn_err *err, const char *fmt, ...)
{
    char name[NAME_MAX_], found[128];
    va_list ap;
    va_start(ap, fmt);
    name_of(l, name, fmt, ap);
    va_end(ap);
    const struct st_tensor *t[4] = {take(l, name, "")};
    if (!t[0])
        return missing(name, "", err);
    if (t[0]->n_dim != 3 || t[0]->shape[0] != n || t[0]->shape[1] != taps || t[0]->shape[2] != 1)
        QN_FAIL(err, QN_BAD_INPUT, "loader",
                "tensor %s: found shape %s, expected [%d, %d, 1]; is this an MLX checkpoint?", name,
                st_shape_text(t[0], found, sizeof found), n, taps);
    struct quant_spec q;
    QN_TRY(quant_resolve(NULL, str_of(name), t[0], NULL, 0, &q, err));
    struct weight_src s = {
        .name = name, .format = q.format, .n = n, .k = taps, .data = t[0]->data, .transpose = true};
    QN_TRY(weight_load_vec(l->ex, &s, out, err));
    account(l, &s, *out, t);
    return QN_OK;
}

int32_t loader_skip(struct loader *l, const char *pattern)
{
    char name[NAME_MAX_];
    int32_t n = 0;
    for (int32_t i = 0; i < st_count(l->st); i++) {
        struct str s = st_at(l->st, i)->name;
        snprintf(name, sizeof name, STR_FMT, STR_ARG(s));
        if (fnmatch(pattern, name, 0) != 0)
            continue;
        l->used[i] = true;
        n++;
    }
    return n;
}

enum qn_status loader_done(struct loader *l, struct qn_err *err)
{
    for (int32_t i = 0; i < st_count(l->st); i++)
        if (!l->used[i])
            QN_FAIL(err, QN_BAD_INPUT, "loader",
                    "tensor " STR_FMT " in %s belongs to no part of this model; is config.json the "
                    "right one?",
                    STR_ARG(st_at(l->st, i)->name), st_file_name(l->st, st_at(l->st, i)->file));
    return QN_OK;
}
