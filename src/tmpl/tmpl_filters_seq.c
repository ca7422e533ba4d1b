/*
 * tmpl_filters_seq.c - the built-in filters on sequences and dicts. Those that are generators in
 * jinja2 (map, select, unique, ...) are lazy here too.
 */
#include "tmpl/tmpl_value.h"
#include "tmpl/tmpl_ustr.h"

#define FILTER(name)                                                                               \
    static enum qn_status name(struct tenv *e, const struct val *a, const struct targs *raw,       \
                               struct val *out)

static bool missing(const struct val *v)
{
    return v->t == V_MISSING;
}

static enum qn_status flag(struct tenv *e, const struct val *v, bool *out)
{
    *out = false;
    return missing(v) ? QN_OK : tv_truth(e, v, out);
}

static enum qn_status positive(struct tenv *e, const struct val *v, const char *what, int64_t *out)
{
    if (!v_is_int(v))
        return tv_fail(e, "'%s' object cannot be interpreted as an integer", tv_type_name(v));
    *out = v_as_int(v);
    if (*out <= 0)
        return tv_fail(e, "%s must be positive, not %lld", what, (long long)*out);
    return QN_OK;
}

/* ---- attribute paths ----------------------------------------------------------------------- */

static struct val path_part(struct str s)
{
    int64_t n = 0;
    bool digits = s.n > 0 && s.n < 18;
    for (size_t i = 0; i < s.n; i++) {
        digits = digits && s.p[i] >= '0' && s.p[i] <= '9';
        if (digits)
            n = n * 10 + (s.p[i] - '0');
    }
    return digits ? v_int(n) : v_str(s);
}

/* item["a"]["b"] for "a.b", item[0] for "0" or 0; def replaces what is undefined on the way. */
static enum qn_status attr_path(struct tenv *e, const struct val *item, const struct val *path,
                                const struct val *def, struct val *out)
{
    struct val v = *item, key;
    if (path->t == V_NONE || path->t == V_MISSING) {
        *out = v;
        return QN_OK;
    }
    struct str rest = path->t == V_STR ? path->s : (struct str){0};
    for (;;) {
        size_t dot = path->t == V_STR ? str_find(rest, STR_LIT("."), 0) : (size_t)-1;
        bool last = dot == (size_t)-1;
        key = path->t == V_STR ? path_part((struct str){rest.p, last ? rest.n : dot}) : *path;
        QN_TRY(tv_getitem(e, &v, &key, out));
        if (out->t == V_UNDEF && def && def->t != V_MISSING && def->t != V_NONE)
            *out = *def;
        if (last)
            return QN_OK;
        rest = (struct str){rest.p + dot + 1, rest.n - dot - 1};
        v = *out;
    }
}

static enum qn_status fold(struct tenv *e, struct val *v, bool case_sensitive)
{
    struct targs none = {0};
    struct val self = *v;
    if (case_sensitive || v->t != V_STR)
        return QN_OK;
    return tv_call_builtin(e, tbuiltin_find(tmpl_str_methods, STR_LIT("lower")), &self, &none, v);
}

static enum qn_status sort_key(struct tenv *e, const struct val *item, const struct val *path,
                               bool case_sensitive, struct val *out)
{
    QN_TRY(attr_path(e, item, path, NULL, out));
    return fold(e, out, case_sensitive);
}

/* "a,b.c": a list of keys; what jinja2 always sorts by, even for one. */
static enum qn_status multi_key(struct tenv *e, const struct val *item, const struct val *path,
                                bool case_sensitive, struct val *out)
{
    struct val key;
    if (path->t != V_STR)
        return sort_key(e, item, path, case_sensitive, out);
    QN_TRY(tv_list_new(e, V_LIST, 1, out));
    for (struct str rest = path->s;;) {
        size_t comma = str_find(rest, STR_LIT(","), 0);
        struct val part = v_str((struct str){rest.p, comma == (size_t)-1 ? rest.n : comma});
        QN_TRY(sort_key(e, item, &part, case_sensitive, &key));
        QN_TRY(tv_list_add(e, out->l, key));
        if (comma == (size_t)-1)
            return QN_OK;
        rest = (struct str){rest.p + comma + 1, rest.n - comma - 1};
    }
}

/* ---- first, last, length, list, reverse ---------------------------------------------------- */

FILTER(f_first)
{
    struct viter *it;
    bool got;
    QN_TRY(tv_iter(e, a, &it));
    QN_TRY(tv_next(e, it, out, &got));
    if (!got)
        *out = v_undef(UNDEF_HINT, STR_LIT("No first item, sequence was empty."), V_NONE);
    return QN_OK;
}

FILTER(f_last)
{
    struct val rev;
    bool ok, got;
    QN_TRY(tv_iter_rev(e, a, &rev, &ok));
    if (!ok)
        return tv_fail(e, "'%s' object is not reversible", tv_type_name(a));
    QN_TRY(tv_next(e, rev.it, out, &got));
    if (!got)
        *out = v_undef(UNDEF_HINT, STR_LIT("No last item, sequence was empty."), V_NONE);
    return QN_OK;
}

FILTER(f_length)
{
    int64_t n;
    QN_TRY(tv_len(e, a, &n));
    *out = v_int(n);
    return QN_OK;
}

FILTER(f_list)
{
    return tv_collect(e, a, V_LIST, out);
}

FILTER(f_reverse)
{
    bool ok;
    struct val list;
    struct slice_args s = {v_none(), v_none(), v_int(-1)};
    if (a[0].t == V_STR)
        return tv_slice(e, a, &s, out);
    QN_TRY(tv_iter_rev(e, a, out, &ok));
    if (ok)
        return QN_OK;
    QN_TRY(tv_collect(e, a, V_LIST, &list));
    return tv_slice(e, &list, &s, out);
}

/* ---- join, sum, min, max ------------------------------------------------------------------- */

static enum qn_status join(struct tenv *e, const struct val *a, struct str sep, struct buf *b)
{
    struct viter *it;
    struct val x, v;
    bool got, first = true;
    QN_TRY(tv_iter(e, a, &it));
    for (;; first = false) {
        QN_TRY(tv_next(e, it, &x, &got));
        if (!got)
            return QN_OK;
        QN_TRY(attr_path(e, &x, &a[2], NULL, &v));
        if (!first)
            buf_add_str(b, sep);
        QN_TRY(tv_print(e, &v, b));
    }
}

FILTER(f_join)
{
    struct buf b = {.limit = e->bytes_max};
    struct str sep = STR_LIT("");
    if (!missing(&a[1]))
        QN_TRY(tv_to_str(e, &a[1], &sep));
    enum qn_status s = join(e, a, sep, &b);
    if (s != QN_OK) {
        buf_free(&b);
        return s;
    }
    return tv_str_take(e, &b, out);
}

FILTER(f_sum)
{
    struct viter *it;
    struct val x, v, acc = missing(&a[2]) ? v_int(0) : a[2];
    bool got;
    if (acc.t == V_STR)
        return tv_fail(e, "sum() can't sum strings [use ''.join(seq) instead]");
    QN_TRY(tv_iter(e, a, &it));
    for (;;) {
        struct val r;
        QN_TRY(tv_next(e, it, &x, &got));
        if (!got)
            break;
        QN_TRY(attr_path(e, &x, &a[1], NULL, &v));
        QN_TRY(tv_arith(e, OP_ADD, &acc, &v, &r));
        acc = r;
    }
    *out = acc;
    return QN_OK;
}

static enum qn_status extreme(struct tenv *e, const struct val *a, bool max, struct val *out)
{
    struct viter *it;
    struct val x, key, best_key = {.t = V_MISSING};
    bool got, cased;
    QN_TRY(flag(e, &a[1], &cased));
    QN_TRY(tv_iter(e, a, &it));
    *out = v_undef(UNDEF_HINT, STR_LIT("No aggregated item, sequence was empty."), V_NONE);
    for (;;) {
        int c = max ? 1 : -1;
        QN_TRY(tv_next(e, it, &x, &got));
        if (!got)
            return QN_OK;
        QN_TRY(sort_key(e, &x, &a[2], cased, &key));
        if (best_key.t != V_MISSING)
            QN_TRY(tv_cmp(e, &key, &best_key, max ? ">" : "<", &c));
        if (c != (max ? 1 : -1))
            continue;
        best_key = key;
        *out = x;
    }
}

FILTER(f_min)
{
    return extreme(e, a, false, out);
}
FILTER(f_max)
{
    return extreme(e, a, true, out);
}

/* ---- sorting and grouping ------------------------------------------------------------------ */

static enum qn_status key_list(struct tenv *e, const struct val *list, const struct val *path,
                               bool cased, struct val **out)
{
    size_t n = list->l->n;
    *out = tv_alloc(e, (n + 1) * sizeof **out);
    if (!*out)
        return QN_BAD_INPUT;
    for (size_t i = 0; i < n; i++)
        QN_TRY(multi_key(e, &list->l->v[i], path, cased, &(*out)[i]));
    return QN_OK;
}

FILTER(f_sort)
{
    struct val *keys;
    bool reverse, cased;
    QN_TRY(flag(e, &a[1], &reverse));
    QN_TRY(flag(e, &a[2], &cased));
    QN_TRY(tv_collect(e, a, V_LIST, out));
    QN_TRY(key_list(e, out, &a[3], cased, &keys));
    return tv_sort(e, out->l->v, keys, out->l->n, reverse);
}

FILTER(f_dictsort)
{
    struct val items = a[0], *keys;
    bool cased, reverse;
    int by = 0;
    if (a[0].t != V_DICT)
        return a[0].t == V_UNDEF ? tv_fail_undef(e, a)
                                 : tv_fail(e, "dictsort needs a dict, not %s", tv_type_name(a));
    QN_TRY(flag(e, &a[1], &cased));
    QN_TRY(flag(e, &a[3], &reverse));
    if (!missing(&a[2])) {
        by = a[2].t == V_STR && str_eqz(a[2].s, "value");
        if (!by && !(a[2].t == V_STR && str_eqz(a[2].s, "key")))
            return tv_fail(e, "You can only sort by either \"key\" or \"value\"");
    }
    items.t = V_VIEW;
    items.sub = VIEW_ITEMS;
    QN_TRY(tv_collect(e, &items, V_LIST, out));
    struct val path = v_int(by);
    QN_TRY(key_list(e, out, &path, cased, &keys));
    return tv_sort(e, out->l->v, keys, out->l->n, reverse);
}

static enum qn_status group(struct tenv *e, const struct val *key, struct val *members,
                            struct vlist *groups)
{
    struct val pair;
    QN_TRY(tv_tuple2(e, *key, *members, &pair));
    pair.sub = 1; /* has .grouper and .list */
    return tv_list_add(e, groups, pair);
}

FILTER(f_groupby)
{
    struct val items, *keys, key, groups, members;
    bool cased;
    QN_TRY(flag(e, &a[3], &cased));
    QN_TRY(tv_collect(e, a, V_LIST, &items));
    size_t n = items.l->n;
    keys = tv_alloc(e, (n + 1) * sizeof *keys);
    if (!keys)
        return QN_BAD_INPUT;
    for (size_t i = 0; i < n; i++) {
        QN_TRY(attr_path(e, &items.l->v[i], &a[1], &a[2], &keys[i]));
        QN_TRY(fold(e, &keys[i], cased));
    }
    QN_TRY(tv_sort(e, items.l->v, keys, n, false));
    QN_TRY(tv_list_new(e, V_LIST, 0, &groups));
    for (size_t i = 0, j; i < n; i = j) {
        QN_TRY(tv_list_new(e, V_LIST, 0, &members));
        for (j = i; j < n; j++) {
            bool eq;
            QN_TRY(tv_eq(e, &keys[i], &keys[j], &eq));
            if (!eq)
                break;
            QN_TRY(tv_list_add(e, members.l, items.l->v[j]));
        }
        QN_TRY(attr_path(e, &items.l->v[i], &a[1], &a[2], &key));
        QN_TRY(group(e, &key, &members, groups.l));
    }
    *out = groups;
    return QN_OK;
}

/* ---- generators ---------------------------------------------------------------------------- */

struct unique {
    struct vdict *seen;
    struct val path;
    bool cased;
};

static enum qn_status step_unique(struct tenv *e, struct viter *it, struct val *v, bool *skip)
{
    struct unique *u = it->state;
    const struct val *hit;
    struct val key;
    QN_TRY(sort_key(e, v, &u->path, u->cased, &key));
    QN_TRY(tv_dict_get(e, u->seen, &key, &hit));
    *skip = hit != NULL;
    return hit ? QN_OK : tv_dict_set(e, u->seen, key, v_none());
}

FILTER(f_unique)
{
    struct unique *u = tv_alloc(e, sizeof *u);
    struct val seen;
    if (!u)
        return QN_BAD_INPUT;
    QN_TRY(tv_dict_new(e, V_DICT, &seen));
    *u = (struct unique){.seen = seen.m, .path = a[2]};
    QN_TRY(flag(e, &a[1], &u->cased));
    return tv_iter_gen(e, a, step_unique, u, out);
}

static enum qn_status empty_gen(struct tenv *e, struct val *out)
{
    struct viter *it = tv_alloc(e, sizeof *it);
    if (!it)
        return QN_BAD_INPUT;
    *it = (struct viter){.kind = IT_SEQ};
    *out = (struct val){.t = V_ITER, .it = it};
    return QN_OK;
}

struct apply {
    const struct tbuiltin *fn; /* filter or test; NULL = the value itself, or its truth */
    struct targs args;         /* what follows the name */
    struct val path, def;
    bool keep; /* select: keep what passes; reject: what does not */
};

static enum qn_status copy_args(struct tenv *e, const struct targs *raw, int from,
                                struct targs *out)
{
    int n = raw->n > from ? raw->n - from : 0;
    struct val *v = tv_alloc(e, ((size_t)n + 1) * sizeof *v);
    struct tkw *kw = v ? tv_alloc(e, ((size_t)raw->n_kw + 1) * sizeof *kw) : NULL;
    if (!kw)
        return QN_BAD_INPUT;
    if (n)
        memcpy(v, raw->v + from, (size_t)n * sizeof *v);
    if (raw->n_kw)
        memcpy(kw, raw->kw, (size_t)raw->n_kw * sizeof *kw);
    *out = (struct targs){v, n, kw, raw->n_kw};
    return QN_OK;
}

static enum qn_status step_map(struct tenv *e, struct viter *it, struct val *v, bool *skip)
{
    struct apply *m = it->state;
    struct val in = *v;
    if (m->fn)
        return tv_call_builtin(e, m->fn, &in, &m->args, v);
    return attr_path(e, &in, &m->path, &m->def, v);
}

static const struct val *kw_of(const struct targs *raw, const char *name)
{
    for (int i = 0; i < raw->n_kw; i++)
        if (str_eqz(raw->kw[i].name, name))
            return &raw->kw[i].v;
    return NULL;
}

static enum qn_status named(struct tenv *e, const struct val *name, bool filter,
                            const struct tbuiltin **out)
{
    if (name->t == V_STR)
        *out = filter ? tmpl_filter_find(name->s) : tmpl_test_find(name->s);
    else
        *out = NULL;
    if (*out)
        return QN_OK;
    struct str s;
    QN_TRY(tv_to_str(e, name, &s));
    return tv_fail(e, "No %s named '" STR_FMT "'", filter ? "filter" : "test",
                   (int)(s.n > 60 ? 60 : s.n), s.p);
}

FILTER(f_map)
{
    struct apply *m = tv_alloc(e, sizeof *m);
    bool truth;
    if (!m)
        return QN_BAD_INPUT;
    *m = (struct apply){.path = {.t = V_NONE}, .def = {.t = V_NONE}};
    QN_TRY(tv_truth(e, a, &truth));
    if (!truth)
        return empty_gen(e, out);
    const struct val *path = kw_of(raw, "attribute"), *def = kw_of(raw, "default");
    if (raw->n == 0 && path) {
        if (raw->n_kw > 1 + (def != NULL))
            return tv_fail(e, "map: unexpected keyword argument");
        m->path = *path;
        if (def)
            m->def = *def;
    } else if (raw->n == 0) {
        return tv_fail(e, "map requires a filter argument");
    } else {
        QN_TRY(named(e, &raw->v[0], true, &m->fn));
        QN_TRY(copy_args(e, raw, 1, &m->args));
    }
    return tv_iter_gen(e, a, step_map, m, out);
}

static enum qn_status step_select(struct tenv *e, struct viter *it, struct val *v, bool *skip)
{
    struct apply *s = it->state;
    struct val x, r;
    bool ok;
    QN_TRY(attr_path(e, v, &s->path, NULL, &x));
    r = x;
    if (s->fn)
        QN_TRY(tv_call_builtin(e, s->fn, &x, &s->args, &r));
    QN_TRY(tv_truth(e, &r, &ok));
    *skip = ok != s->keep;
    return QN_OK;
}

static enum qn_status select_with(struct tenv *e, const struct val *a, const struct targs *raw,
                                  bool keep, bool attr, struct val *out)
{
    struct apply *s = tv_alloc(e, sizeof *s);
    bool truth;
    int at = attr;
    if (!s)
        return QN_BAD_INPUT;
    *s = (struct apply){.keep = keep, .path = {.t = V_NONE}};
    QN_TRY(tv_truth(e, a, &truth));
    if (!truth)
        return empty_gen(e, out);
    if (attr && raw->n == 0)
        return tv_fail(e, "Missing parameter for attribute name");
    if (attr)
        s->path = raw->v[0];
    if (raw->n > at) {
        QN_TRY(named(e, &raw->v[at], false, &s->fn));
        QN_TRY(copy_args(e, raw, at + 1, &s->args));
    }
    return tv_iter_gen(e, a, step_select, s, out);
}

FILTER(f_select)
{
    return select_with(e, a, raw, true, false, out);
}
FILTER(f_reject)
{
    return select_with(e, a, raw, false, false, out);
}
FILTER(f_selectattr)
{
    return select_with(e, a, raw, true, true, out);
}
FILTER(f_rejectattr)
{
    return select_with(e, a, raw, false, true, out);
}

/* A list as a generator over it: no length, consumed once. */
static enum qn_status as_gen(struct tenv *e, const struct val *list, struct val *out)
{
    struct viter *it;
    QN_TRY(tv_iter(e, list, &it));
    *out = (struct val){.t = V_ITER, .it = it};
    return QN_OK;
}

FILTER(f_items)
{
    struct val view = a[0];
    if (a[0].t == V_UNDEF)
        return empty_gen(e, out);
    if (a[0].t != V_DICT)
        return tv_fail(e, "Can only get item pairs from a mapping.");
    view.t = V_VIEW;
    view.sub = VIEW_ITEMS;
    return as_gen(e, &view, out);
}

FILTER(f_slice)
{
    struct val items, slices, one;
    int64_t n, offset = 0;
    QN_TRY(positive(e, &a[1], "slices", &n));
    QN_TRY(tv_collect(e, a, V_LIST, &items));
    QN_TRY(tv_list_new(e, V_LIST, 0, &slices));
    int64_t len = (int64_t)items.l->n, each = len / n, extra = len % n;
    for (int64_t i = 0; i < n; i++) {
        int64_t start = offset + i * each;
        offset += i < extra;
        int64_t end = offset + (i + 1) * each;
        QN_TRY(tv_step(e, 1));
        QN_TRY(tv_list_new(e, V_LIST, 0, &one));
        for (int64_t k = start; k < end; k++)
            QN_TRY(tv_list_add(e, one.l, items.l->v[k]));
        if (!missing(&a[2]) && a[2].t != V_NONE && i >= extra)
            QN_TRY(tv_list_add(e, one.l, a[2]));
        QN_TRY(tv_list_add(e, slices.l, one));
    }
    return as_gen(e, &slices, out);
}

FILTER(f_batch)
{
    struct val x, batches, one = {.t = V_MISSING};
    struct viter *it;
    int64_t n;
    bool got;
    QN_TRY(positive(e, &a[1], "linecount", &n));
    QN_TRY(tv_iter(e, a, &it));
    QN_TRY(tv_list_new(e, V_LIST, 0, &batches));
    for (;;) {
        QN_TRY(tv_next(e, it, &x, &got));
        if (!got)
            break;
        if (missing(&one) || (int64_t)one.l->n == n) {
            QN_TRY(tv_list_new(e, V_LIST, 0, &one));
            QN_TRY(tv_list_add(e, batches.l, one));
        }
        QN_TRY(tv_list_add(e, one.l, x));
    }
    if (!missing(&one) && !missing(&a[2]) && a[2].t != V_NONE)
        while ((int64_t)one.l->n < n) {
            QN_TRY(tv_step(e, 1));
            QN_TRY(tv_list_add(e, one.l, a[2]));
        }
    return as_gen(e, &batches, out);
}

FILTER(f_refused)
{
    return tv_fail(e, "this filter is not supported in chat templates");
}

const struct tbuiltin tmpl_filters_seq[] = {
    {"first", "seq", f_first},
    {"last", "seq", f_last},
    {"length", "/obj", f_length},
    {"count", "/obj", f_length},
    {"list", "value", f_list},
    {"reverse", "value", f_reverse},
    {"join", "value d? attribute?", f_join},
    {"sum", "iterable attribute? start?", f_sum},
    {"min", "value case_sensitive? attribute?", f_min},
    {"max", "value case_sensitive? attribute?", f_max},
    {"sort", "value reverse? case_sensitive? attribute?", f_sort},
    {"dictsort", "value case_sensitive? by? reverse?", f_dictsort},
    {"groupby", "value attribute default? case_sensitive?", f_groupby},
    {"unique", "value case_sensitive? attribute?", f_unique},
    {"map", "value *", f_map},
    {"select", "value *", f_select},
    {"reject", "value *", f_reject},
    {"selectattr", "value *", f_selectattr},
    {"rejectattr", "value *", f_rejectattr},
    {"items", "value", f_items},
    {"slice", "value slices fill_with?", f_slice},
    {"batch", "value linecount fill_with?", f_batch},
    {"random", "value *", f_refused},
    {"pprint", "value *", f_refused},
    {"urlize", "value *", f_refused},
    {0},
};
