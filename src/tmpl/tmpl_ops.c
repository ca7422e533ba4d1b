/*
 * tmpl_ops.c - operators with Python's semantics, attribute and item access under the immutable
 * sandbox's rules, and slices. Integer results beyond 64 bits are errors.
 */
#include <math.h>

#include "tmpl/tmpl_ast.h"
#include "tmpl/tmpl_ustr.h"

static const char *const OP_NAMES[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

static enum qn_status too_big(struct tenv *e)
{
    return tv_fail(e, "an integer result is beyond 64 bits");
}

static enum qn_status bad_types(struct tenv *e, enum arith op, const struct val *a,
                                const struct val *b)
{
    return tv_fail(e, "unsupported operand type(s) for %s: '%s' and '%s'", OP_NAMES[op],
                   tv_type_name(a), tv_type_name(b));
}

/* ---- numbers ------------------------------------------------------------------------------- */

static bool pow_int(int64_t base, int64_t exp, int64_t *out)
{
    int64_t r = 1;
    while (exp > 0) {
        if ((exp & 1) && __builtin_mul_overflow(r, base, &r))
            return false;
        exp >>= 1;
        if (exp && __builtin_mul_overflow(base, base, &base)) {
            /* only 0, 1 and -1 stay small, and they do not overflow */
            return false;
        }
    }
    *out = r;
    return true;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

static enum qn_status arith_int(struct tenv *e, enum arith op, int64_t a, int64_t b,
                                struct val *out)
{
    int64_t r = 0;
    bool bad = false;
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        return tv_fail(e, "%s by zero", op == OP_DIV ? "division" : "integer division or modulo");
    switch (op) {
    case OP_ADD:
        bad = __builtin_add_overflow(a, b, &r);
        break;
    case OP_SUB:
        bad = __builtin_sub_overflow(a, b, &r);
        break;
    case OP_MUL:
        bad = __builtin_mul_overflow(a, b, &r);
        break;
    case OP_DIV:
        *out = v_real((double)((long double)a / (long double)b));
        return QN_OK;
    case OP_FLOORDIV:
        bad = b == -1 && a == INT64_MIN;
        r = bad ? 0 : floor_div(a, b);
        break;
    case OP_MOD:
        r = b == -1 ? 0 : a - floor_div(a, b) * b;
        break;
    case OP_POW:
        if (b < 0 && a == 0)
            return tv_fail(e, "0.0 cannot be raised to a negative power");
        if (b < 0) {
            *out = v_real(pow((double)a, (double)b));
            return QN_OK;
        }
        bad = !pow_int(a, b, &r);
        break;
    }
    *out = v_int(r);
    return bad ? too_big(e) : QN_OK;
}

static double mod_real(double a, double b)
{
    double m = fmod(a, b);
    if (m == 0)
        return copysign(0, b);
    return (b < 0) != (m < 0) ? m + b : m;
}

static double floor_div_real(double a, double b)
{
    double m = fmod(a, b), d = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0))
        d -= 1;
    if (d == 0)
        return copysign(0, a / b);
    double f = floor(d);
    return d - f > 0.5 ? f + 1 : f;
}

static enum qn_status pow_real(struct tenv *e, double a, double b, struct val *out)
{
    if (a == 0 && b < 0)
        return tv_fail(e, "0.0 cannot be raised to a negative power");
    double r = pow(a, b);
    if (isnan(r) && !isnan(a) && !isnan(b))
        return tv_fail(e, "a negative number to a fractional power is not supported");
    if (isinf(r) && !isinf(a) && !isinf(b))
        return tv_fail(e, "(34, 'Numerical result out of range')");
    *out = v_real(r);
    return QN_OK;
}

static enum qn_status arith_real(struct tenv *e, enum arith op, double a, double b, struct val *out)
{
    if ((op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD) && b == 0)
        return tv_fail(e, op == OP_DIV        ? "float division by zero"
                          : op == OP_FLOORDIV ? "float floor division by zero"
                                              : "float modulo");
    switch (op) {
    case OP_ADD:
        *out = v_real(a + b);
        return QN_OK;
    case OP_SUB:
        *out = v_real(a - b);
        return QN_OK;
    case OP_MUL:
        *out = v_real(a * b);
        return QN_OK;
    case OP_DIV:
        *out = v_real(a / b);
        return QN_OK;
    case OP_FLOORDIV:
        *out = v_real(floor_div_real(a, b));
        return QN_OK;
    case OP_MOD:
        *out = v_real(mod_real(a, b));
        return QN_OK;
    case OP_POW:
        return pow_real(e, a, b, out);
    }
    return QN_OK;
}

/* ---- sequences ----------------------------------------------------------------------------- */

/* Markup + text: the side that is not markup is escaped. */
static enum qn_status add_str(struct tenv *e, const struct val *a, const struct val *b,
                              struct val *out)
{
    struct val x = *a, y = *b;
    if (a->safe != b->safe) {
        struct buf esc = {.limit = e->bytes_max};
        tv_escape(&esc, a->safe ? b->s : a->s);
        QN_TRY(tv_str_take(e, &esc, a->safe ? &y : &x));
    }
    QN_TRY(tv_concat(e, x.s, y.s, out));
    out->safe = a->safe | b->safe;
    return QN_OK;
}

static enum qn_status add_list(struct tenv *e, const struct val *a, const struct val *b,
                               struct val *out)
{
    const struct val *x, *y;
    size_t n, m;
    QN_TRY(tv_seq(e, a, &x, &n));
    QN_TRY(tv_seq(e, b, &y, &m));
    QN_TRY(tv_step(e, (int64_t)(n + m) / 16));
    QN_TRY(tv_list_new(e, (enum vt)a->t, n + m, out));
    if (n)
        memcpy(out->l->v, x, n * sizeof *x);
    if (m)
        memcpy(out->l->v + n, y, m * sizeof *y);
    out->l->n = n + m;
    return QN_OK;
}

static enum qn_status repeat_str(struct tenv *e, const struct val *a, int64_t times,
                                 struct val *out)
{
    size_t n;
    *out = v_str(STR_LIT(""));
    out->safe = a->safe;
    if (times <= 0 || a->s.n == 0)
        return QN_OK;
    if (__builtin_mul_overflow(a->s.n, (size_t)times, &n) || n > e->bytes_max)
        return tv_oom(e);
    char *p = tv_alloc(e, n);
    if (!p)
        return QN_BAD_INPUT;
    for (size_t i = 0; i < n; i += a->s.n)
        memcpy(p + i, a->s.p, a->s.n);
    out->s = (struct str){p, n};
    return QN_OK;
}

static enum qn_status repeat_list(struct tenv *e, const struct val *a, int64_t times,
                                  struct val *out)
{
    const struct val *x;
    size_t n, total;
    QN_TRY(tv_seq(e, a, &x, &n));
    if (times < 0 || n == 0)
        times = 0;
    if (__builtin_mul_overflow(n, (size_t)times, &total) || total > e->bytes_max / sizeof *x)
        return tv_oom(e);
    QN_TRY(tv_step(e, (int64_t)total / 16));
    QN_TRY(tv_list_new(e, (enum vt)a->t, total, out));
    for (size_t i = 0; i < total; i += n)
        memcpy(out->l->v + i, x, n * sizeof *x);
    out->l->n = total;
    return QN_OK;
}

static enum qn_status repeat(struct tenv *e, const struct val *seq, const struct val *times,
                             struct val *out)
{
    if (seq->t == V_STR)
        return repeat_str(e, seq, v_as_int(times), out);
    return repeat_list(e, seq, v_as_int(times), out);
}

static bool repeatable(const struct val *v)
{
    return v->t == V_STR || v->t == V_LIST || v->t == V_TUPLE;
}

static enum qn_status percent(struct tenv *e, const struct val *a, const struct val *b,
                              struct val *out)
{
    struct buf text = {.limit = e->bytes_max};
    if (a->safe)
        return tv_fail(e, "formatting a string marked as safe is not supported");
    enum qn_status s = tv_percent(e, a->s, b, &text);
    if (s != QN_OK) {
        buf_free(&text);
        return s;
    }
    return tv_str_take(e, &text, out);
}

enum qn_status tv_arith(struct tenv *e, enum arith op, const struct val *a, const struct val *b,
                        struct val *out)
{
    if (v_is_int(a) && v_is_int(b))
        return arith_int(e, op, v_as_int(a), v_as_int(b), out);
    if (v_is_num(a) && v_is_num(b))
        return arith_real(e, op, v_as_real(a), v_as_real(b), out);
    if (op == OP_MOD && a->t == V_STR)
        return percent(e, a, b, out);
    if (a->t == V_UNDEF)
        return tv_fail_undef(e, a);
    if (b->t == V_UNDEF)
        return tv_fail_undef(e, b);
    if (a->t == V_BIG || b->t == V_BIG)
        return too_big(e);
    if (op == OP_ADD && a->t == V_STR && b->t == V_STR)
        return add_str(e, a, b, out);
    if (op == OP_ADD && a->t == b->t && (a->t == V_LIST || a->t == V_TUPLE))
        return add_list(e, a, b, out);
    if (op == OP_MUL && repeatable(a) && v_is_int(b))
        return repeat(e, a, b, out);
    if (op == OP_MUL && repeatable(b) && v_is_int(a))
        return repeat(e, b, a, out);
    if (op == OP_ADD && (a->t == V_STR || a->t == V_LIST || a->t == V_TUPLE))
        return tv_fail(e, "can only concatenate %s (not \"%s\") to %s", tv_type_name(a),
                       tv_type_name(b), tv_type_name(a));
    return bad_types(e, op, a, b);
}

enum qn_status tv_neg(struct tenv *e, const struct val *a, struct val *out)
{
    if (a->t == V_REAL) {
        *out = v_real(-a->d);
        return QN_OK;
    }
    if (a->t == V_UNDEF)
        return tv_fail_undef(e, a);
    if (!v_is_int(a))
        return tv_fail(e, "bad operand type for unary -: '%s'", tv_type_name(a));
    if (v_as_int(a) == INT64_MIN)
        return too_big(e);
    *out = v_int(-v_as_int(a));
    return QN_OK;
}

/* ---- attributes and items ------------------------------------------------------------------ */

static bool word_in(struct str s, const char *const *list)
{
    for (; *list; list++)
        if (str_eqz(s, *list))
            return true;
    return false;
}

static bool mutates(const struct val *o, struct str name)
{
    static const char *const list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                       "sort",   "extend", "remove", NULL};
    static const char *const dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    return (o->t == V_LIST && word_in(name, list)) || (o->t == V_DICT && word_in(name, dict));
}

static enum qn_status bind_method(struct tenv *e, const struct tbuiltin *table,
                                  const struct val *self, struct str name, struct val *out,
                                  bool *found)
{
    const struct tbuiltin *b = tbuiltin_find(table, name);
    if (!b || (self->t == V_TUPLE && str_eqz(name, "copy")))
        return QN_OK;
    struct vmethod *m = tv_alloc(e, sizeof *m);
    if (!m)
        return QN_BAD_INPUT;
    *m = (struct vmethod){b, *self};
    *out = (struct val){.t = V_METHOD, .me = m};
    *found = true;
    return QN_OK;
}

static enum qn_status macro_attr(struct tenv *e, const struct vmacro *m, struct str name,
                                 struct val *out, bool *found)
{
    static const struct {
        const char *name;
        int bit;
    } flags[] = {
        {"catch_kwargs", USES_KWARGS}, {"catch_varargs", USES_VARARGS}, {"caller", USES_CALLER}};
    for (int i = 0; i < 3; i++)
        if (str_eqz(name, flags[i].name)) {
            *out = v_bool(m->n->op & flags[i].bit);
            *found = true;
        }
    if (str_eqz(name, "name")) {
        *out = m->n->kind == S_MACRO ? v_str(m->n->s) : v_none();
        *found = true;
    }
    if (!str_eqz(name, "arguments"))
        return QN_OK;
    *found = true;
    QN_TRY(tv_list_new(e, V_TUPLE, (size_t)m->n->n_kids, out));
    for (const struct node *p = m->n->kids; p; p = p->next)
        QN_TRY(tv_list_add(e, out->l, v_str(p->s)));
    return QN_OK;
}

static bool range_attr(const struct vrange *r, struct str name, struct val *out)
{
    if (str_eqz(name, "start"))
        *out = v_int(r->start);
    else if (str_eqz(name, "stop"))
        *out = v_int(r->stop);
    else if (str_eqz(name, "step"))
        *out = v_int(r->step);
    else
        return false;
    return true;
}

/* What Python's getattr finds on the type, before items come into play. */
static enum qn_status type_attr(struct tenv *e, const struct val *o, struct str name,
                                struct val *out, bool *found)
{
    *found = false;
    if (mutates(o, name)) {
        *out = v_undef(UNDEF_UNSAFE, name, (enum vt)o->t);
        *found = true;
        return QN_OK;
    }
    switch (o->t) {
    case V_STR:
        return bind_method(e, tmpl_str_methods, o, name, out, found);
    case V_TUPLE:
        if (o->sub && (str_eqz(name, "grouper") || str_eqz(name, "list"))) { /* from groupby */
            *out = o->l->v[str_eqz(name, "list")];
            *found = true;
            return QN_OK;
        }
        return bind_method(e, tmpl_list_methods, o, name, out, found);
    case V_LIST:
        return bind_method(e, tmpl_list_methods, o, name, out, found);
    case V_DICT:
        return bind_method(e, tmpl_dict_methods, o, name, out, found);
    case V_RANGE:
        *found = range_attr(o->r, name, out);
        return QN_OK;
    case V_LOOP:
        QN_TRY(te_loop_attr(e, o->loop, name, out, found));
        return *found ? QN_OK : bind_method(e, tmpl_loop_methods, o, name, out, found);
    case V_MACRO:
        return macro_attr(e, o->mac, name, out, found);
    case V_CYCLER:
        if (str_eqz(name, "current")) {
            *out = o->cy->v[o->cy->pos];
            *found = true;
            return QN_OK;
        }
        return bind_method(e, tmpl_cycler_methods, o, name, out, found);
    case V_NS: {
        const struct val *v;
        QN_TRY(tv_dict_getz(e, o->m, name, &v));
        *found = v != NULL;
        if (v)
            *out = *v;
        return QN_OK;
    }
    default:
        return QN_OK;
    }
}

/* o[k] alone; *found = false where Python raises TypeError or LookupError. */
static enum qn_status item(struct tenv *e, const struct val *o, const struct val *k,
                           struct val *out, bool *found)
{
    int64_t i, n;
    *found = false;
    if (o->t == V_DICT) {
        const struct val *v = NULL;
        if (tv_hashable(k))
            QN_TRY(tv_dict_get(e, o->m, k, &v));
        *found = v != NULL;
        if (v)
            *out = *v;
        return QN_OK;
    }
    if ((o->t != V_LIST && o->t != V_TUPLE && o->t != V_STR && o->t != V_RANGE) || !v_is_int(k))
        return QN_OK;
    QN_TRY(tv_len(e, o, &n));
    i = v_as_int(k);
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return QN_OK;
    *found = true;
    if (o->t == V_RANGE) {
        *out = v_int(o->r->start + i * o->r->step);
    } else if (o->t == V_STR) {
        size_t at = us_off(o->s, (size_t)i), end = at;
        us_next(o->s, &end);
        *out = v_str((struct str){o->s.p + at, end - at});
        out->safe = o->safe;
    } else {
        *out = o->l->v[i];
    }
    return QN_OK;
}

enum qn_status tv_getattr(struct tenv *e, const struct val *o, struct str name, struct val *out)
{
    bool found;
    if (o->t == V_UNDEF)
        return tv_fail_undef(e, o);
    QN_TRY(type_attr(e, o, name, out, &found));
    if (found)
        return QN_OK;
    struct val key = v_str(name);
    QN_TRY(item(e, o, &key, out, &found));
    if (!found)
        *out = v_undef(str_starts(name, STR_LIT("__")) ? UNDEF_UNSAFE : UNDEF_ATTR, name,
                       (enum vt)o->t);
    return QN_OK;
}

enum qn_status tv_getitem(struct tenv *e, const struct val *o, const struct val *k, struct val *out)
{
    bool found;
    if (o->t == V_UNDEF)
        return tv_fail_undef(e, o);
    QN_TRY(item(e, o, k, out, &found));
    if (found)
        return QN_OK;
    if (k->t == V_STR) {
        QN_TRY(type_attr(e, o, k->s, out, &found));
        if (!found)
            *out = v_undef(UNDEF_ATTR, k->s, (enum vt)o->t);
        return QN_OK;
    }
    *out = v_undef(UNDEF_HINT, STR_LIT("the object has no such element"), (enum vt)o->t);
    if (v_is_int(k))
        *out = (struct val){.t = V_UNDEF, .sub = UNDEF_ITEM, .of = o->t, .i = v_as_int(k)};
    return QN_OK;
}

/* ---- slices -------------------------------------------------------------------------------- */

struct span {
    int64_t start, stop, step, n;
};

static enum qn_status slice_int(struct tenv *e, const struct val *v, int64_t def, int64_t *out)
{
    *out = def;
    if (v->t == V_NONE)
        return QN_OK;
    if (!v_is_int(v))
        return tv_fail(e, "slice indices must be integers or None, not %s", tv_type_name(v));
    *out = v_as_int(v);
    return QN_OK;
}

static int64_t clamp_index(int64_t i, int64_t n, int64_t step)
{
    int64_t lo = step < 0 ? -1 : 0, hi = step < 0 ? n - 1 : n;
    if (i < 0)
        i += n;
    return i < lo ? lo : i > hi ? hi : i;
}

static enum qn_status resolve_slice(struct tenv *e, const struct slice_args *s, int64_t n,
                                    struct span *out)
{
    int64_t start, stop, step;
    QN_TRY(slice_int(e, &s->step, 1, &step));
    if (step == 0)
        return tv_fail(e, "slice step cannot be zero");
    if (step < -INT64_MAX)
        step = -INT64_MAX;
    QN_TRY(slice_int(e, &s->start, 0, &start));
    QN_TRY(slice_int(e, &s->stop, 0, &stop));
    start = s->start.t == V_NONE ? (step < 0 ? n - 1 : 0) : clamp_index(start, n, step);
    stop = s->stop.t == V_NONE ? (step < 0 ? -1 : n) : clamp_index(stop, n, step);
    int64_t gap = step < 0 ? start - stop : stop - start, by = step < 0 ? -step : step;
    *out = (struct span){start, stop, step, gap > 0 ? (gap - 1) / by + 1 : 0};
    return QN_OK;
}

static enum qn_status slice_str(struct tenv *e, const struct val *o, struct span sp,
                                struct val *out)
{
    struct buf b = {.limit = e->bytes_max};
    if (sp.step == 1) {
        size_t from = us_off(o->s, (size_t)sp.start);
        struct str rest = {o->s.p + from, o->s.n - from};
        *out = v_str((struct str){rest.p, us_off(rest, (size_t)sp.n)});
        out->safe = o->safe;
        return QN_OK;
    }
    size_t *off = tv_alloc(e, (o->s.n + 1) * sizeof *off);
    if (!off)
        return QN_BAD_INPUT;
    size_t n = 0;
    for (size_t i = 0; i < o->s.n; us_next(o->s, &i))
        off[n++] = i;
    off[n] = o->s.n;
    for (int64_t k = 0; k < sp.n; k++) {
        int64_t at = sp.start + k * sp.step;
        buf_add(&b, o->s.p + off[at], off[at + 1] - off[at]);
    }
    QN_TRY(tv_step(e, sp.n / 16));
    QN_TRY(tv_str_take(e, &b, out));
    out->safe = o->safe;
    return QN_OK;
}

static enum qn_status slice_list(struct tenv *e, const struct val *o, struct span sp,
                                 struct val *out)
{
    QN_TRY(tv_step(e, sp.n / 16));
    QN_TRY(tv_list_new(e, (enum vt)o->t, (size_t)sp.n, out));
    for (int64_t k = 0; k < sp.n; k++)
        out->l->v[k] = o->l->v[sp.start + k * sp.step];
    out->l->n = (size_t)sp.n;
    return QN_OK;
}

static enum qn_status slice_range(struct tenv *e, const struct val *o, struct span sp,
                                  struct val *out)
{
    struct vrange *r = tv_alloc(e, sizeof *r);
    if (!r)
        return QN_BAD_INPUT;
    int64_t start, step, stop, by;
    if (__builtin_mul_overflow(sp.step, o->r->step, &step) ||
        __builtin_mul_overflow(sp.start, o->r->step, &by) ||
        __builtin_add_overflow(o->r->start, by, &start) ||
        __builtin_mul_overflow(sp.stop, o->r->step, &by) ||
        __builtin_add_overflow(o->r->start, by, &stop))
        return too_big(e);
    *r = (struct vrange){start, stop, step, sp.n};
    *out = (struct val){.t = V_RANGE, .r = r};
    return QN_OK;
}

enum qn_status tv_slice(struct tenv *e, const struct val *o, const struct slice_args *s,
                        struct val *out)
{
    struct span sp;
    int64_t n;
    if (o->t == V_UNDEF)
        return tv_fail_undef(e, o);
    if (o->t != V_STR && o->t != V_LIST && o->t != V_TUPLE && o->t != V_RANGE)
        return tv_fail(e, "'%s' object cannot be sliced", tv_type_name(o));
    QN_TRY(tv_len(e, o, &n));
    QN_TRY(resolve_slice(e, s, n, &sp));
    if (o->t == V_STR)
        return slice_str(e, o, sp, out);
    return o->t == V_RANGE ? slice_range(e, o, sp, out) : slice_list(e, o, sp, out);
}
