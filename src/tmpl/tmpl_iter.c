/*
 * tmpl_iter.c - Python's iteration: what for loops, filters and unpacking read from. Generators are
 * lazy, as the template can see the difference (namespaces changed in a loop body, errors in
 * elements that nobody asks for).
 */
#include "tmpl/tmpl_ast.h"
#include "tmpl/tmpl_ustr.h"

static enum qn_status iter_new(struct tenv *e, enum iter_kind kind, const struct val *src,
                               struct viter **out)
{
    *out = tv_alloc(e, sizeof **out);
    if (!*out)
        return QN_BAD_INPUT;
    **out = (struct viter){.kind = kind, .src = *src};
    return QN_OK;
}

enum qn_status tv_iter(struct tenv *e, const struct val *v, struct viter **out)
{
    struct viter *it;
    switch (v->t) {
    case V_ITER:
        *out = v->it;
        return QN_OK;
    case V_UNDEF:
        return iter_new(e, IT_SEQ, v, out);
    case V_LIST:
    case V_TUPLE:
        QN_TRY(iter_new(e, IT_SEQ, v, out));
        return tv_seq(e, v, &(*out)->items, &(*out)->n);
    case V_STR:
        return iter_new(e, IT_STR, v, out);
    case V_DICT:
    case V_VIEW:
        QN_TRY(tv_dict_load(e, v->m));
        QN_TRY(iter_new(e, IT_DICT, v, &it));
        if (v->t == V_DICT)
            it->src.sub = VIEW_KEYS;
        *out = it;
        return QN_OK;
    case V_RANGE:
        return iter_new(e, IT_RANGE, v, out);
    default:
        return tv_fail(e, "'%s' object is not iterable", tv_type_name(v));
    }
}

static enum qn_status next_dict(struct tenv *e, struct viter *it, struct val *out)
{
    const struct vent *x = &it->src.m->e[it->i++];
    if (it->src.sub == VIEW_ITEMS)
        return tv_tuple2(e, x->k, x->v, out);
    *out = it->src.sub == VIEW_KEYS ? x->k : x->v;
    return QN_OK;
}

static enum qn_status next_gen(struct tenv *e, struct viter *it, struct val *out, bool *got)
{
    /* a generator over a generator over ...: as deep as the template stacked them */
    if (e->depth >= e->depth_max)
        return tv_fail(e, "generators are nested too deeply");
    e->depth++;
    for (bool skip = true; skip;) {
        QN_TRY(tv_next(e, it->in, out, got));
        if (!*got)
            break;
        skip = false;
        QN_TRY(it->step(e, it, out, &skip));
    }
    e->depth--;
    return QN_OK;
}

enum qn_status tv_next(struct tenv *e, struct viter *it, struct val *out, bool *got)
{
    size_t at = it->i;
    *got = false;
    QN_TRY(tv_step(e, 1));
    switch (it->kind) {
    case IT_SEQ:
        *got = it->i < it->n;
        if (*got)
            *out = it->items[it->i++];
        return QN_OK;
    case IT_REV:
        *got = it->i < it->n;
        if (*got)
            *out = it->items[it->n - 1 - it->i++];
        return QN_OK;
    case IT_STR:
        *got = it->i < it->src.s.n;
        if (!*got)
            return QN_OK;
        us_next(it->src.s, &it->i);
        *out = v_str((struct str){it->src.s.p + at, it->i - at});
        out->safe = 0;
        return QN_OK;
    case IT_RANGE:
        *got = (int64_t)it->i < it->src.r->n;
        if (*got)
            *out = v_int(it->src.r->start + (int64_t)it->i++ * it->src.r->step);
        return QN_OK;
    case IT_DICT:
        *got = it->i < it->src.m->n;
        return *got ? next_dict(e, it, out) : QN_OK;
    case IT_GEN:
        return next_gen(e, it, out, got);
    }
    return QN_OK;
}

enum qn_status tv_iter_gen(struct tenv *e, const struct val *src,
                           enum qn_status (*step)(struct tenv *, struct viter *, struct val *,
                                                  bool *),
                           void *state, struct val *out)
{
    struct viter *in, *it;
    QN_TRY(tv_iter(e, src, &in));
    QN_TRY(iter_new(e, IT_GEN, src, &it));
    it->in = in;
    it->step = step;
    it->state = state;
    *out = (struct val){.t = V_ITER, .it = it};
    return QN_OK;
}

/* reversed(v): sequences, ranges and dicts; *ok = false for what cannot be reversed. */
enum qn_status tv_iter_rev(struct tenv *e, const struct val *v, struct val *out, bool *ok)
{
    struct val list = *v;
    struct viter *it;
    *ok = v->t == V_LIST || v->t == V_TUPLE || v->t == V_RANGE || v->t == V_DICT ||
          v->t == V_VIEW || v->t == V_STR || v->t == V_UNDEF;
    if (!*ok)
        return QN_OK;
    if (v->t != V_LIST && v->t != V_TUPLE)
        QN_TRY(tv_collect(e, v, V_LIST, &list));
    QN_TRY(iter_new(e, IT_REV, &list, &it));
    QN_TRY(tv_seq(e, &list, &it->items, &it->n));
    *out = (struct val){.t = V_ITER, .it = it};
    return QN_OK;
}

enum qn_status tv_collect(struct tenv *e, const struct val *v, enum vt list_or_tuple,
                          struct val *out)
{
    struct viter *it;
    struct val x;
    bool got;
    struct val list;
    QN_TRY(tv_iter(e, v, &it));
    QN_TRY(tv_list_new(e, list_or_tuple, 0, &list));
    for (;;) {
        QN_TRY(tv_next(e, it, &x, &got));
        if (!got)
            break;
        QN_TRY(tv_list_add(e, list.l, x));
    }
    *out = list;
    return QN_OK;
}
