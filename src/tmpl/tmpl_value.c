/*
 * tmpl_value.c - values: building them from JSON when first touched, dicts, truth, equality, order,
 * sorting, membership. Everything here recurses at most as deep as the rendering's depth limit.
 */
#include "tmpl/tmpl_value.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "base/hash.h"
#include "tmpl/tmpl_ustr.h"

/* ---- errors and memory --------------------------------------------------------------------- */

void tv_error(struct tenv *e, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(e->err, QN_BAD_INPUT, "template", "chat template: line %d: %s", e->line, text);
}

/* The rendering's own limit refuses without touching errno, which was 0 at its start. */
void tv_error_oom(struct tenv *e)
{
    if (errno == ENOMEM) {
        err_set(e->err, QN_NO_MEMORY, "template", "chat template: no memory");
        return;
    }
    tv_error(e, "the text and its intermediate values need more than %zu bytes", e->bytes_max);
}

enum qn_status tv_step(struct tenv *e, int64_t n)
{
    e->steps_left -= n;
    if (e->steps_left < 0)
        return tv_fail(e, "more than %lld steps", (long long)e->steps_max);
    return QN_OK;
}

void *tv_alloc(struct tenv *e, size_t n)
{
    void *p = arena_alloc(e->a, n);
    if (!p)
        tv_error_oom(e);
    return p;
}

static enum qn_status deeper(struct tenv *e)
{
    if (e->depth >= e->depth_max)
        return tv_fail(e, "values are nested too deeply");
    e->depth++;
    return tv_step(e, 1);
}

const char *tv_type_name(const struct val *v)
{
    static const char *const names[] = {
        [V_UNDEF] = "Undefined", [V_NONE] = "NoneType",    [V_BOOL] = "bool",
        [V_INT] = "int",         [V_BIG] = "int",          [V_REAL] = "float",
        [V_STR] = "str",         [V_LIST] = "list",        [V_TUPLE] = "tuple",
        [V_DICT] = "dict",       [V_RANGE] = "range",      [V_ITER] = "generator",
        [V_NS] = "Namespace",    [V_FUNC] = "function",    [V_METHOD] = "method",
        [V_MACRO] = "Macro",     [V_LOOP] = "LoopContext", [V_CYCLER] = "Cycler",
        [V_JOINER] = "Joiner",   [V_MISSING] = "missing",
    };
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    return v->t == V_VIEW ? views[v->sub] : names[v->t];
}

void tv_error_undef(struct tenv *e, const struct val *v)
{
    struct val of = {.t = v->of};
    char obj[40];
    snprintf(obj, sizeof obj, "%s%s", v->of == V_NONE ? "None" : tv_type_name(&of),
             v->of == V_NONE ? "" : " object");
    int n = (int)(v->s.n > 200 ? 200 : v->s.n);
    switch (v->sub) {
    case UNDEF_NAME:
        tv_error(e, "'%.*s' is undefined", n, v->s.p);
        return;
    case UNDEF_ATTR:
        tv_error(e, "'%s' has no attribute '%.*s'", obj, n, v->s.p);
        return;
    case UNDEF_ITEM:
        tv_error(e, "%s has no element %lld", obj, (long long)v->i);
        return;
    case UNDEF_UNSAFE:
        tv_error(e, "access to attribute '%.*s' of '%s' is unsafe", n, v->s.p, obj);
        return;
    case UNDEF_PARAM:
        tv_error(e, "parameter '%.*s' was not provided", n, v->s.p);
        return;
    default:
        tv_error(e, "%.*s", n, v->s.p);
        return;
    }
}

/* ---- lists --------------------------------------------------------------------------------- */

enum qn_status tv_list_new(struct tenv *e, enum vt t, size_t cap, struct val *out)
{
    struct vlist *l = tv_alloc(e, sizeof *l);
    if (!l)
        return QN_BAD_INPUT;
    *l = (struct vlist){0};
    if (cap) {
        size_t bytes;
        if (__builtin_mul_overflow(cap, sizeof *l->v, &bytes))
            return tv_oom(e);
        l->v = tv_alloc(e, bytes);
        if (!l->v)
            return QN_BAD_INPUT;
        l->cap = cap;
    }
    *out = (struct val){.t = (uint8_t)t, .l = l};
    return QN_OK;
}

enum qn_status tv_list_add(struct tenv *e, struct vlist *l, struct val v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        struct val *p = tv_alloc(e, cap * sizeof *p);
        if (!p)
            return QN_BAD_INPUT;
        if (l->n)
            memcpy(p, l->v, l->n * sizeof *p);
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return QN_OK;
}

enum qn_status tv_seq(struct tenv *e, const struct val *v, const struct val **items, size_t *n)
{
    struct vlist *l = v->l;
    if (l->src) {
        const struct json *src = l->src;
        size_t len = json_len(src);
        l->v = tv_alloc(e, (len ? len : 1) * sizeof *l->v);
        if (!l->v)
            return QN_BAD_INPUT;
        for (size_t i = 0; i < len; i++)
            QN_TRY(tv_from_json(e, json_at(src, i), &l->v[i]));
        l->n = l->cap = len;
        l->src = NULL;
    }
    *items = l->v;
    *n = l->n;
    return QN_OK;
}

enum qn_status tv_tuple2(struct tenv *e, struct val a, struct val b, struct val *out)
{
    QN_TRY(tv_list_new(e, V_TUPLE, 2, out));
    out->l->v[0] = a;
    out->l->v[1] = b;
    out->l->n = 2;
    return QN_OK;
}

static enum qn_status real_from_json(struct tenv *e, const struct json *j, struct val *out)
{
    struct buf b = {0};
    json_number_text(j, &b);
    struct str s = buf_str(&b);
    bool integer = s.n > 0;
    for (size_t i = 0; i < s.n; i++)
        integer = integer && ((s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] == '-' && i == 0));
    if (integer && s.n > 15) {
        *out = (struct val){.t = V_BIG, .s = arena_str(e->a, s)};
        buf_free(&b);
        return out->s.p ? QN_OK : tv_oom(e);
    }
    buf_free(&b);
    *out = v_real(json_real(j));
    return QN_OK;
}

enum qn_status tv_from_json(struct tenv *e, const struct json *j, struct val *out)
{
    int64_t i;
    switch (json_type(j)) {
    case JSON_NULL:
        *out = v_none();
        return QN_OK;
    case JSON_BOOL:
        *out = v_bool(json_bool(j));
        return QN_OK;
    case JSON_INT:
        if (!json_i64(j, &i))
            return real_from_json(e, j, out);
        *out = v_int(i);
        return QN_OK;
    case JSON_REAL:
        return real_from_json(e, j, out);
    case JSON_STR:
        *out = v_str(json_str(j));
        if (!out->s.p)
            out->s = STR_LIT("");
        return QN_OK;
    case JSON_ARR:
        QN_TRY(tv_list_new(e, V_LIST, 0, out));
        out->l->src = j;
        return QN_OK;
    case JSON_OBJ:
        QN_TRY(tv_dict_new(e, V_DICT, out));
        out->m->src = j;
        return QN_OK;
    }
    return tv_fail(e, "an unknown kind of JSON value");
}

/* ---- dicts --------------------------------------------------------------------------------- */

enum qn_status tv_dict_new(struct tenv *e, enum vt t, struct val *out)
{
    struct vdict *d = tv_alloc(e, sizeof *d);
    if (!d)
        return QN_BAD_INPUT;
    *d = (struct vdict){0};
    *out = (struct val){.t = (uint8_t)t, .m = d};
    return QN_OK;
}

enum qn_status tv_dict_load(struct tenv *e, struct vdict *d)
{
    const struct json *src = d->src;
    struct json_iter it = {0};
    if (!src)
        return QN_OK;
    d->src = NULL;
    while (json_next(src, &it)) {
        struct val v;
        QN_TRY(tv_from_json(e, it.val, &v));
        QN_TRY(tv_dict_set(e, d, v_str(it.key), v));
    }
    return QN_OK;
}

static bool hashable(const struct val *v, int depth)
{
    if (v->t != V_TUPLE || depth == 0)
        return v->t != V_LIST && v->t != V_DICT && v->t != V_VIEW && v->t != V_TUPLE;
    for (size_t i = 0; i < v->l->n; i++)
        if (!hashable(&v->l->v[i], depth - 1))
            return false;
    return true;
}

bool tv_hashable(const struct val *v)
{
    return hashable(v, 64);
}

static enum qn_status hash_of(struct tenv *e, const struct val *v, uint64_t *out)
{
    double d = v->t == V_REAL ? v->d : 0;
    switch (v->t) {
    case V_BOOL:
    case V_INT: {
        int64_t i = v_as_int(v);
        *out = hash64(&i, sizeof i, 1);
        return QN_OK;
    }
    case V_REAL:
        if (d >= -9.2e18 && d <= 9.2e18 && d == (double)(int64_t)d) {
            int64_t i = (int64_t)d;
            *out = hash64(&i, sizeof i, 1);
        } else {
            *out = hash64(&d, sizeof d, 2);
        }
        return QN_OK;
    case V_BIG:
    case V_STR:
        *out = hash64(v->s.p, v->s.n, 3);
        return QN_OK;
    case V_TUPLE: {
        const struct val *x;
        size_t n;
        uint64_t h[2] = {7, 0};
        QN_TRY(tv_seq(e, v, &x, &n));
        QN_TRY(deeper(e));
        for (size_t i = 0; i < n; i++) {
            QN_TRY(hash_of(e, &x[i], &h[1]));
            h[0] = hash64(h, sizeof h, 4);
        }
        e->depth--;
        *out = h[0];
        return QN_OK;
    }
    case V_LIST:
    case V_DICT:
    case V_VIEW:
        return tv_fail(e, "unhashable type: '%s'", tv_type_name(v));
    case V_UNDEF:
    case V_NONE:
        *out = v->t;
        return QN_OK;
    default:
        *out = hash64(&v->l, sizeof v->l, 5);
        return QN_OK;
    }
}

static enum qn_status dict_find(struct tenv *e, struct vdict *d, const struct val *k, uint64_t h,
                                size_t *slot, struct vent **out)
{
    bool eq;
    *out = NULL;
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->e[i].hash != h)
                continue;
            QN_TRY(tv_eq(e, &d->e[i].k, k, &eq));
            if (eq) {
                *out = &d->e[i];
                return QN_OK;
            }
        }
        return QN_OK;
    }
    for (size_t i = h & (d->n_index - 1);; i = (i + 1) & (d->n_index - 1)) {
        *slot = i;
        if (d->index[i] < 0)
            return QN_OK;
        struct vent *x = &d->e[d->index[i]];
        if (x->hash != h)
            continue;
        QN_TRY(tv_step(e, 1));
        QN_TRY(tv_eq(e, &x->k, k, &eq));
        if (eq) {
            *out = x;
            return QN_OK;
        }
    }
}

static enum qn_status dict_grow(struct tenv *e, struct vdict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 4;
    struct vent *p = tv_alloc(e, cap * sizeof *p);
    if (!p)
        return QN_BAD_INPUT;
    if (d->n)
        memcpy(p, d->e, d->n * sizeof *p);
    d->e = p;
    d->cap = cap;
    if (cap < 16)
        return QN_OK;
    if (cap > INT32_MAX)
        return tv_oom(e);
    d->n_index = cap * 2;
    d->index = tv_alloc(e, d->n_index * sizeof *d->index);
    if (!d->index)
        return QN_BAD_INPUT;
    memset(d->index, 0xff, d->n_index * sizeof *d->index);
    for (size_t i = 0; i < d->n; i++) {
        size_t at = d->e[i].hash & (d->n_index - 1);
        while (d->index[at] >= 0)
            at = (at + 1) & (d->n_index - 1);
        d->index[at] = (int32_t)i;
    }
    return QN_OK;
}

enum qn_status tv_dict_set(struct tenv *e, struct vdict *d, struct val k, struct val v)
{
    struct vent *x;
    size_t slot = 0;
    uint64_t h;
    QN_TRY(hash_of(e, &k, &h));
    QN_TRY(dict_find(e, d, &k, h, &slot, &x));
    if (x) {
        x->v = v;
        return QN_OK;
    }
    if (d->n == d->cap) {
        QN_TRY(dict_grow(e, d));
        QN_TRY(dict_find(e, d, &k, h, &slot, &x));
    }
    if (d->index)
        d->index[slot] = (int32_t)d->n;
    d->e[d->n++] = (struct vent){k, v, h};
    return QN_OK;
}

enum qn_status tv_dict_get(struct tenv *e, struct vdict *d, const struct val *k,
                           const struct val **out)
{
    struct vent *x;
    size_t slot;
    uint64_t h;
    *out = NULL;
    QN_TRY(tv_dict_load(e, d));
    QN_TRY(hash_of(e, k, &h));
    QN_TRY(dict_find(e, d, k, h, &slot, &x));
    *out = x ? &x->v : NULL;
    return QN_OK;
}

enum qn_status tv_dict_getz(struct tenv *e, struct vdict *d, struct str k, const struct val **out)
{
    struct val key = v_str(k);
    return tv_dict_get(e, d, &key, out);
}

/* ---- truth, equality, order ---------------------------------------------------------------- */

enum qn_status tv_len(struct tenv *e, const struct val *v, int64_t *out)
{
    const struct val *x;
    size_t n;
    switch (v->t) {
    case V_UNDEF:
        *out = 0;
        return QN_OK;
    case V_STR:
        *out = (int64_t)us_len(v->s);
        return QN_OK;
    case V_LIST:
    case V_TUPLE:
        QN_TRY(tv_seq(e, v, &x, &n));
        *out = (int64_t)n;
        return QN_OK;
    case V_DICT:
    case V_VIEW:
        QN_TRY(tv_dict_load(e, v->m));
        *out = (int64_t)v->m->n;
        return QN_OK;
    case V_RANGE:
        *out = v->r->n;
        return QN_OK;
    default:
        return tv_fail(e, "object of type '%s' has no len()", tv_type_name(v));
    }
}

enum qn_status tv_truth(struct tenv *e, const struct val *v, bool *out)
{
    int64_t n;
    switch (v->t) {
    case V_UNDEF:
    case V_NONE:
        *out = false;
        return QN_OK;
    case V_BOOL:
    case V_INT:
        *out = v_as_int(v) != 0;
        return QN_OK;
    case V_REAL:
        *out = v->d != 0;
        return QN_OK;
    case V_STR:
        *out = v->s.n != 0;
        return QN_OK;
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_RANGE:
        QN_TRY(tv_len(e, v, &n));
        *out = n != 0;
        return QN_OK;
    default:
        *out = true;
        return QN_OK;
    }
}

bool tv_same(const struct val *a, const struct val *b)
{
    if (a->t != b->t)
        return false;
    switch (a->t) {
    case V_UNDEF:
    case V_NONE:
        return true;
    case V_BOOL:
    case V_INT:
        return v_as_int(a) == v_as_int(b);
    case V_REAL:
        return a->d == b->d;
    case V_STR:
    case V_BIG:
        return str_eq(a->s, b->s);
    case V_FUNC:
        return a->fn == b->fn;
    default:
        return a->l == b->l;
    }
}

static enum qn_status eq_seq(struct tenv *e, const struct val *a, const struct val *b, bool *out)
{
    const struct val *x, *y;
    size_t n, m;
    QN_TRY(tv_seq(e, a, &x, &n));
    QN_TRY(tv_seq(e, b, &y, &m));
    *out = n == m;
    for (size_t i = 0; i < n && *out; i++)
        QN_TRY(tv_eq(e, &x[i], &y[i], out));
    return QN_OK;
}

static enum qn_status eq_dict(struct tenv *e, struct vdict *a, struct vdict *b, bool *out)
{
    QN_TRY(tv_dict_load(e, a));
    QN_TRY(tv_dict_load(e, b));
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        const struct val *y;
        QN_TRY(tv_dict_get(e, b, &a->e[i].k, &y));
        *out = y != NULL;
        if (y)
            QN_TRY(tv_eq(e, &a->e[i].v, y, out));
    }
    return QN_OK;
}

static bool eq_range(const struct vrange *a, const struct vrange *b)
{
    if (a->n != b->n)
        return false;
    return a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step));
}

enum qn_status tv_eq(struct tenv *e, const struct val *a, const struct val *b, bool *out)
{
    *out = false;
    QN_TRY(deeper(e));
    enum qn_status s = QN_OK;
    if (v_is_num(a) && v_is_num(b))
        *out = v_is_int(a) && v_is_int(b)
                   ? v_as_int(a) == v_as_int(b)
                   : (long double)(a->t == V_REAL ? a->d : (long double)v_as_int(a)) ==
                         (long double)(b->t == V_REAL ? b->d : (long double)v_as_int(b));
    else if (a->t != b->t)
        *out = false;
    else if (a->t == V_LIST || a->t == V_TUPLE)
        s = eq_seq(e, a, b, out);
    else if (a->t == V_DICT)
        s = eq_dict(e, a->m, b->m, out);
    else if (a->t == V_RANGE)
        *out = eq_range(a->r, b->r);
    else
        *out = tv_same(a, b);
    e->depth--;
    return s;
}

static int cmp_num(const struct val *a, const struct val *b)
{
    if (v_is_int(a) && v_is_int(b)) {
        int64_t x = v_as_int(a), y = v_as_int(b);
        return x < y ? -1 : x > y;
    }
    long double x = a->t == V_REAL ? a->d : (long double)v_as_int(a);
    long double y = b->t == V_REAL ? b->d : (long double)v_as_int(b);
    if (isnan(x) || isnan(y))
        return 2;
    return x < y ? -1 : x > y;
}

static int cmp_str(struct str a, struct str b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, n) : 0;
    return c ? (c < 0 ? -1 : 1) : a.n < b.n ? -1 : a.n > b.n;
}

static enum qn_status cmp_seq(struct tenv *e, const struct val *a, const struct val *b,
                              const char *op, int *out)
{
    const struct val *x, *y;
    size_t n, m;
    QN_TRY(tv_seq(e, a, &x, &n));
    QN_TRY(tv_seq(e, b, &y, &m));
    QN_TRY(deeper(e));
    for (size_t i = 0; i < n && i < m; i++) {
        bool eq;
        QN_TRY(tv_eq(e, &x[i], &y[i], &eq));
        if (eq)
            continue;
        QN_TRY(tv_cmp(e, &x[i], &y[i], op, out));
        e->depth--;
        return QN_OK;
    }
    e->depth--;
    *out = n < m ? -1 : n > m;
    return QN_OK;
}

enum qn_status tv_cmp(struct tenv *e, const struct val *a, const struct val *b, const char *op,
                      int *out)
{
    if (v_is_num(a) && v_is_num(b)) {
        *out = cmp_num(a, b);
        return QN_OK;
    }
    if (a->t == V_UNDEF)
        return tv_fail_undef(e, a);
    if (b->t == V_UNDEF)
        return tv_fail_undef(e, b);
    if (a->t == V_STR && b->t == V_STR) {
        *out = cmp_str(a->s, b->s);
        return QN_OK;
    }
    if ((a->t == V_LIST || a->t == V_TUPLE) && a->t == b->t)
        return cmp_seq(e, a, b, op, out);
    if (a->t == V_BIG || b->t == V_BIG)
        return tv_fail(e, "integers beyond 64 bits cannot be compared");
    return tv_fail(e, "'%s' not supported between instances of '%s' and '%s'", op, tv_type_name(a),
                   tv_type_name(b));
}

enum qn_status tv_contains(struct tenv *e, const struct val *hay, const struct val *needle,
                           bool *out)
{
    const struct val *hit;
    struct viter *it;
    struct val v;
    bool got;
    *out = false;
    switch (hay->t) {
    case V_STR:
        if (needle->t != V_STR)
            return tv_fail(e, "'in <string>' requires string as left operand, not %s",
                           tv_type_name(needle));
        *out = str_find(hay->s, needle->s, 0) != (size_t)-1;
        return QN_OK;
    case V_DICT:
        QN_TRY(tv_dict_get(e, hay->m, needle, &hit));
        *out = hit != NULL;
        return QN_OK;
    case V_UNDEF:
    case V_LIST:
    case V_TUPLE:
    case V_RANGE:
    case V_VIEW:
    case V_ITER:
        break;
    default:
        return tv_fail(e, "argument of type '%s' is not iterable", tv_type_name(hay));
    }
    QN_TRY(tv_iter(e, hay, &it));
    for (;;) {
        QN_TRY(tv_next(e, it, &v, &got));
        if (!got)
            return QN_OK;
        QN_TRY(tv_eq(e, &v, needle, out));
        if (*out)
            return QN_OK;
    }
}

/* ---- sorting ------------------------------------------------------------------------------- */

struct sort_run {
    struct val *v, *k, *tv, *tk;
    bool reverse;
};

static enum qn_status merge(struct tenv *e, struct sort_run *r, size_t lo, size_t mid, size_t hi)
{
    size_t i = lo, j = mid, n = 0;
    while (i < mid && j < hi) {
        int c;
        QN_TRY(tv_step(e, 1));
        if (r->reverse)
            QN_TRY(tv_cmp(e, &r->k[i], &r->k[j], "<", &c));
        else
            QN_TRY(tv_cmp(e, &r->k[j], &r->k[i], "<", &c));
        size_t take = c == -1 ? j++ : i++;
        r->tv[n] = r->v[take];
        r->tk[n++] = r->k[take];
    }
    for (; i < mid; i++, n++) {
        r->tv[n] = r->v[i];
        r->tk[n] = r->k[i];
    }
    memcpy(r->v + lo, r->tv, n * sizeof *r->v);
    memcpy(r->k + lo, r->tk, n * sizeof *r->k);
    return QN_OK;
}

enum qn_status tv_sort(struct tenv *e, struct val *v, struct val *keys, size_t n, bool reverse)
{
    struct sort_run r = {.v = v, .k = keys, .reverse = reverse};
    if (n < 2)
        return QN_OK;
    r.tv = tv_alloc(e, n * sizeof *v);
    r.tk = r.tv ? tv_alloc(e, n * sizeof *v) : NULL;
    if (!r.tk)
        return QN_BAD_INPUT;
    for (size_t w = 1; w < n; w *= 2)
        for (size_t lo = 0; lo + w < n; lo += 2 * w)
            QN_TRY(merge(e, &r, lo, lo + w, lo + 2 * w < n ? lo + 2 * w : n));
    return QN_OK;
}
