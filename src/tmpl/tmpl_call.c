/*
 * tmpl_call.c - calls: binding of arguments to built-in filters, tests, methods and functions, the
 * global functions, and what else can be called (macros, recursive loops, joiners).
 */
#include <time.h>

#include "tmpl/tmpl_ast.h"
#include "tmpl/tmpl_ustr.h"

const struct tbuiltin *tbuiltin_find(const struct tbuiltin *table, struct str name)
{
    for (; table->name; table++)
        if (str_eqz(name, table->name))
            return table;
    return NULL;
}

const struct tbuiltin *tmpl_filter_find(struct str name)
{
    const struct tbuiltin *b = tbuiltin_find(tmpl_filters, name);
    return b ? b : tbuiltin_find(tmpl_filters_seq, name);
}

const struct tbuiltin *tmpl_test_find(struct str name)
{
    return tbuiltin_find(tmpl_tests, name);
}

/* ---- binding ------------------------------------------------------------------------------- */

struct params {
    struct str name[TBUILTIN_PARAMS_MAX];
    bool optional[TBUILTIN_PARAMS_MAX];
    int n;
    bool positional_only, rest;
};

static struct params read_params(const char *z)
{
    struct params p = {0};
    p.positional_only = *z == '/';
    z += p.positional_only;
    while (*z) {
        size_t n = strcspn(z, " ");
        if (*z == '*') {
            p.rest = true;
        } else {
            bool opt = z[n - 1] == '?';
            p.optional[p.n] = opt;
            p.name[p.n++] = (struct str){z, n - opt};
        }
        z += n + (z[n] == ' ');
    }
    return p;
}

static enum qn_status bind_kw(struct tenv *e, const struct tbuiltin *b, const struct params *p,
                              const struct targs *args, struct val *bound)
{
    for (int i = 0; i < args->n_kw; i++) {
        int k = 0;
        while (k < p->n && !str_eq(p->name[k], args->kw[i].name))
            k++;
        if (k == p->n || p->positional_only)
            return tv_fail(e, "%s() got an unexpected keyword argument '" STR_FMT "'", b->name,
                           (int)(args->kw[i].name.n & 0xff), args->kw[i].name.p);
        if (bound[k].t != V_MISSING)
            return tv_fail(e, "%s() got multiple values for argument '" STR_FMT "'", b->name,
                           (int)p->name[k].n, p->name[k].p);
        bound[k] = args->kw[i].v;
    }
    return QN_OK;
}

enum qn_status tv_call_builtin(struct tenv *e, const struct tbuiltin *b, const struct val *self,
                               const struct targs *args, struct val *out)
{
    struct val bound[TBUILTIN_PARAMS_MAX];
    struct params p = read_params(b->params);
    int n = 0;
    for (int i = 0; i < TBUILTIN_PARAMS_MAX; i++)
        bound[i] = (struct val){.t = V_MISSING};
    if (self)
        bound[n++] = *self;
    int room = p.n - n, given = args->n < room ? args->n : room;
    for (int i = 0; i < given; i++)
        bound[n + i] = args->v[i];
    if (args->n > given && !p.rest)
        return tv_fail(e, "%s() takes at most %d argument%s (%d given)", b->name, room,
                       room == 1 ? "" : "s", args->n);
    if (!p.rest)
        QN_TRY(bind_kw(e, b, &p, args, bound));
    for (int i = 0; i < p.n; i++)
        if (bound[i].t == V_MISSING && !p.optional[i])
            return tv_fail(e, "%s() missing required argument '" STR_FMT "'", b->name,
                           (int)p.name[i].n, p.name[i].p);
    return b->fn(e, bound, args, out);
}

static enum qn_status call_joiner(struct vjoiner *j, struct val *out)
{
    *out = j->used ? j->sep : v_str(STR_LIT(""));
    j->used = true;
    return QN_OK;
}

static enum qn_status call_any(struct tenv *e, const struct val *f, const struct targs *args,
                               struct val *out)
{
    switch (f->t) {
    case V_FUNC:
        return tv_call_builtin(e, f->fn, NULL, args, out);
    case V_METHOD:
        return tv_call_builtin(e, f->me->fn, &f->me->self, args, out);
    case V_MACRO:
        return te_call_macro(e, f->mac, args, out);
    case V_JOINER:
        return call_joiner(f->jo, out);
    case V_LOOP:
        if (args->n != 1 || args->n_kw)
            return tv_fail(e, "loop() takes one argument: what to iterate over");
        return te_loop_recurse(e, f->loop, &args->v[0], out);
    case V_UNDEF:
        return tv_fail_undef(e, f);
    default:
        return tv_fail(e, "'%s' object is not callable", tv_type_name(f));
    }
}

enum qn_status tv_call(struct tenv *e, const struct val *f, const struct targs *args,
                       struct val *out)
{
    if (e->calls >= e->calls_max)
        return tv_fail(e, "calls are nested more than %d deep", e->calls_max);
    e->calls++;
    QN_TRY(call_any(e, f, args, out));
    e->calls--;
    return QN_OK;
}

/* ---- global functions ---------------------------------------------------------------------- */

static enum qn_status range_int(struct tenv *e, const struct val *v, int64_t *out)
{
    if (v->t == V_UNDEF)
        return tv_fail_undef(e, v);
    if (!v_is_int(v))
        return tv_fail(e, "'%s' object cannot be interpreted as an integer", tv_type_name(v));
    *out = v_as_int(v);
    return QN_OK;
}

#define RANGE_MAX 100000 /* as jinja2's sandbox */

static enum qn_status g_range(struct tenv *e, const struct val *a, const struct targs *raw,
                              struct val *out)
{
    int64_t start = 0, stop = 0, step = 1, gap = 0;
    QN_TRY(range_int(e, &a[0], &stop));
    if (a[1].t != V_MISSING) {
        start = stop;
        QN_TRY(range_int(e, &a[1], &stop));
    }
    if (a[2].t != V_MISSING)
        QN_TRY(range_int(e, &a[2], &step));
    if (step == 0)
        return tv_fail(e, "range() arg 3 must not be zero");
    bool over = step > 0 ? __builtin_sub_overflow(stop, start, &gap)
                         : __builtin_sub_overflow(start, stop, &gap);
    int64_t by = step > 0 ? step : step == INT64_MIN ? INT64_MAX : -step;
    int64_t n = over      ? ((step > 0) == (stop > start) ? INT64_MAX : 0)
                : gap > 0 ? (gap - 1) / by + 1
                          : 0;
    if (n > RANGE_MAX)
        return tv_fail(e, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                       RANGE_MAX);
    struct vrange *r = tv_alloc(e, sizeof *r);
    if (!r)
        return QN_BAD_INPUT;
    *r = (struct vrange){start, stop, step, n};
    *out = (struct val){.t = V_RANGE, .r = r};
    return QN_OK;
}

/* Python's dict(iterable of pairs) or dict(mapping), then the keywords. */
static enum qn_status fill_dict(struct tenv *e, struct vdict *d, const struct targs *raw)
{
    struct viter *it;
    struct val x, pair;
    bool got;
    if (raw->n > 1)
        return tv_fail(e, "dict expected at most 1 argument, got %d", raw->n);
    if (raw->n == 1 && raw->v[0].t == V_DICT) {
        struct vdict *src = raw->v[0].m;
        QN_TRY(tv_dict_load(e, src));
        for (size_t i = 0; i < src->n; i++)
            QN_TRY(tv_dict_set(e, d, src->e[i].k, src->e[i].v));
    } else if (raw->n == 1) {
        QN_TRY(tv_iter(e, &raw->v[0], &it));
        for (;;) {
            QN_TRY(tv_next(e, it, &x, &got));
            if (!got)
                break;
            QN_TRY(tv_collect(e, &x, V_LIST, &pair));
            if (pair.l->n != 2)
                return tv_fail(e,
                               "dictionary update sequence element has length %zu; 2 is "
                               "required",
                               pair.l->n);
            QN_TRY(tv_dict_set(e, d, pair.l->v[0], pair.l->v[1]));
        }
    }
    for (int i = 0; i < raw->n_kw; i++)
        QN_TRY(tv_dict_set(e, d, v_str(raw->kw[i].name), raw->kw[i].v));
    return QN_OK;
}

static enum qn_status g_dict(struct tenv *e, const struct val *a, const struct targs *raw,
                             struct val *out)
{
    QN_TRY(tv_dict_new(e, V_DICT, out));
    return fill_dict(e, out->m, raw);
}

static enum qn_status g_namespace(struct tenv *e, const struct val *a, const struct targs *raw,
                                  struct val *out)
{
    QN_TRY(tv_dict_new(e, V_NS, out));
    QN_TRY(fill_dict(e, out->m, raw));
    for (size_t i = 0; i < out->m->n; i++) {
        const struct val *k = &out->m->e[i].k;
        if (k->t == V_STR && str_starts(k->s, STR_LIT("_")))
            return tv_fail(e, "underscore-prefixed attributes cannot be stored on a namespace");
    }
    return QN_OK;
}

static enum qn_status g_cycler(struct tenv *e, const struct val *a, const struct targs *raw,
                               struct val *out)
{
    if (raw->n == 0)
        return tv_fail(e, "at least one item has to be provided");
    struct vcycler *c = tv_alloc(e, sizeof *c);
    struct val *v = c ? tv_alloc(e, (size_t)raw->n * sizeof *v) : NULL;
    if (!v)
        return QN_BAD_INPUT;
    memcpy(v, raw->v, (size_t)raw->n * sizeof *v);
    *c = (struct vcycler){v, raw->n, 0};
    *out = (struct val){.t = V_CYCLER, .cy = c};
    return QN_OK;
}

static enum qn_status g_joiner(struct tenv *e, const struct val *a, const struct targs *raw,
                               struct val *out)
{
    struct vjoiner *j = tv_alloc(e, sizeof *j);
    if (!j)
        return QN_BAD_INPUT;
    *j = (struct vjoiner){a[0].t == V_MISSING ? v_strz(", ") : a[0], false};
    *out = (struct val){.t = V_JOINER, .jo = j};
    return QN_OK;
}

static enum qn_status g_raise(struct tenv *e, const struct val *a, const struct targs *raw,
                              struct val *out)
{
    struct str s;
    QN_TRY(tv_to_str(e, &a[0], &s));
    return err_set(e->err, QN_BAD_INPUT, "template", "%.*s", (int)(s.n > 4096 ? 4096 : s.n), s.p);
}

/* datetime.strftime in UTC. %f is always 000000 and the zone is empty, as for a naive time. */
static enum qn_status g_strftime(struct tenv *e, const struct val *a, const struct targs *raw,
                                 struct val *out)
{
    struct buf b = {.limit = 4096};
    struct tm tm;
    time_t now = (time_t)e->now;
    char text[256];
    if (a[0].t != V_STR)
        return tv_fail(e, "strftime_now() needs a string, not %s", tv_type_name(&a[0]));
    if (a[0].s.n > 1000 || memchr(a[0].s.p, 0, a[0].s.n) || !gmtime_r(&now, &tm))
        return tv_fail(e, "strftime_now() takes a format of at most 1000 bytes, without NUL");
    for (size_t i = 0; i < a[0].s.n; i++) {
        char c = a[0].s.p[i], next = i + 1 < a[0].s.n ? a[0].s.p[i + 1] : 0;
        if (c != '%') {
            buf_addc(&b, c);
            continue;
        }
        char spec[4] = {'%', next, 0, 0};
        i += next != 0;
        if ((next == '-' || next == '_' || next == '0' || next == '^' || next == '#') &&
            i + 1 < a[0].s.n)
            spec[2] = a[0].s.p[++i];
        if (next == 'f')
            buf_addz(&b, "000000");
        else if (next == 0)
            buf_addc(&b, '%');
        else if (next != 'z' && next != 'Z')
            buf_add(&b, text, strftime(text, sizeof text, spec, &tm));
    }
    return tv_str_take(e, &b, out);
}

static enum qn_status g_lipsum(struct tenv *e, const struct val *a, const struct targs *raw,
                               struct val *out)
{
    return tv_fail(e, "lipsum() is not supported: a prompt must not be random");
}

const struct tbuiltin tmpl_globals[] = {
    {"range", "/start stop? step?", g_range},
    {"dict", "*", g_dict},
    {"namespace", "*", g_namespace},
    {"cycler", "*", g_cycler},
    {"joiner", "sep?", g_joiner},
    {"raise_exception", "message", g_raise},
    {"strftime_now", "format", g_strftime},
    {"lipsum", "*", g_lipsum},
    {0},
};

/* ---- cyclers and loops --------------------------------------------------------------------- */

static enum qn_status cycler_next(struct tenv *e, const struct val *a, const struct targs *raw,
                                  struct val *out)
{
    struct vcycler *c = a[0].cy;
    *out = c->v[c->pos];
    c->pos = (c->pos + 1) % c->n;
    return QN_OK;
}

static enum qn_status cycler_reset(struct tenv *e, const struct val *a, const struct targs *raw,
                                   struct val *out)
{
    a[0].cy->pos = 0;
    *out = v_none();
    return QN_OK;
}

const struct tbuiltin tmpl_cycler_methods[] = {
    {"next", "self", cycler_next},
    {"reset", "self", cycler_reset},
    {0},
};

static enum qn_status loop_cycle(struct tenv *e, const struct val *a, const struct targs *raw,
                                 struct val *out)
{
    if (raw->n == 0)
        return tv_fail(e, "no items for cycling given");
    *out = raw->v[a[0].loop->index0 % raw->n];
    return QN_OK;
}

static enum qn_status loop_changed(struct tenv *e, const struct val *a, const struct targs *raw,
                                   struct val *out)
{
    struct vloop *l = a[0].loop;
    struct val now;
    bool same = false;
    QN_TRY(tv_list_new(e, V_TUPLE, (size_t)raw->n, &now));
    for (int i = 0; i < raw->n; i++)
        QN_TRY(tv_list_add(e, now.l, raw->v[i]));
    if (l->changed.t != V_MISSING)
        QN_TRY(tv_eq(e, &l->changed, &now, &same));
    l->changed = now;
    *out = v_bool(!same);
    return QN_OK;
}

const struct tbuiltin tmpl_loop_methods[] = {
    {"cycle", "self *", loop_cycle},
    {"changed", "self *", loop_changed},
    {0},
};
