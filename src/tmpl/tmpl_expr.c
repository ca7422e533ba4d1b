/*
 * tmpl_expr.c - evaluates expressions. Recurses along the tree, which the parser bounded, and
 * counts depth and steps; chains of operators are flat nodes and do not recurse.
 */
#include "tmpl/tmpl_ast.h"

#define ARGS_INLINE 6

struct call_args {
    struct val v_inline[ARGS_INLINE];
    struct tkw kw_inline[ARGS_INLINE];
    struct val *v;
    struct tkw *kw;
    struct targs a;
    int cap, cap_kw;
};

/* ---- arguments ----------------------------------------------------------------------------- */

static enum qn_status grow(struct tenv *e, void *old, size_t size, int *cap, void *out)
{
    if (*cap > 1 << 20)
        return tv_oom(e);
    void *p = tv_alloc(e, (size_t)*cap * 4 * size);
    if (!p)
        return QN_BAD_INPUT;
    memcpy(p, old, (size_t)*cap * size);
    *cap *= 4;
    memcpy(out, &p, sizeof p);
    return QN_OK;
}

static enum qn_status add_pos(struct tenv *e, struct call_args *c, const struct val *v)
{
    if (c->a.n == c->cap)
        QN_TRY(grow(e, c->v, sizeof *c->v, &c->cap, &c->v));
    c->v[c->a.n++] = *v;
    return QN_OK;
}

static enum qn_status add_kw(struct tenv *e, struct call_args *c, struct str name,
                             const struct val *v)
{
    for (int i = 0; i < c->a.n_kw; i++)
        if (str_eq(c->kw[i].name, name))
            return tv_fail(e, "got multiple values for keyword argument '" STR_FMT "'",
                           (int)(name.n & 0xff), name.p);
    if (c->a.n_kw == c->cap_kw)
        QN_TRY(grow(e, c->kw, sizeof *c->kw, &c->cap_kw, &c->kw));
    c->kw[c->a.n_kw++] = (struct tkw){name, *v};
    return QN_OK;
}

static enum qn_status add_star(struct tenv *e, struct call_args *c, const struct val *v)
{
    struct viter *it;
    struct val x;
    bool got;
    QN_TRY(tv_iter(e, v, &it));
    for (;;) {
        QN_TRY(tv_next(e, it, &x, &got));
        if (!got)
            return QN_OK;
        QN_TRY(add_pos(e, c, &x));
    }
}

static enum qn_status add_starstar(struct tenv *e, struct call_args *c, const struct val *v)
{
    if (v->t != V_DICT)
        return tv_fail(e, "argument after ** must be a mapping, not %s", tv_type_name(v));
    QN_TRY(tv_dict_load(e, v->m));
    for (size_t i = 0; i < v->m->n; i++) {
        const struct vent *x = &v->m->e[i];
        if (x->k.t != V_STR)
            return tv_fail(e, "keywords must be strings");
        QN_TRY(add_kw(e, c, x->k.s, &x->v));
    }
    return QN_OK;
}

static enum qn_status eval_args(struct tenv *e, const struct node *call, struct call_args *c)
{
    c->v = c->v_inline;
    c->kw = c->kw_inline;
    c->cap = c->cap_kw = ARGS_INLINE;
    c->a = (struct targs){0};
    for (const struct node *k = call->kids; k; k = k->next) {
        struct val v;
        QN_TRY(te_eval(e, k->a, &v));
        if (k->op == ARG_POS)
            QN_TRY(add_pos(e, c, &v));
        else if (k->op == ARG_KW)
            QN_TRY(add_kw(e, c, k->s, &v));
        else if (k->op == ARG_STAR)
            QN_TRY(add_star(e, c, &v));
        else
            QN_TRY(add_starstar(e, c, &v));
    }
    c->a.v = c->v;
    c->a.kw = c->kw;
    return QN_OK;
}

/* ---- calls, filters, tests ----------------------------------------------------------------- */

enum qn_status te_eval_call(struct tenv *e, const struct node *n, const struct val *caller,
                            struct val *out)
{
    struct call_args c;
    struct val f;
    QN_TRY(te_eval(e, n->a, &f));
    QN_TRY(eval_args(e, n, &c));
    if (caller) {
        QN_TRY(add_kw(e, &c, STR_LIT("caller"), caller));
        c.a.kw = c.kw;
    }
    e->line = n->line;
    return tv_call(e, &f, &c.a, out);
}

/* The value goes in as the first positional argument. */
static enum qn_status call_on(struct tenv *e, const struct node *n, const struct val *v,
                              struct val *out)
{
    struct call_args c;
    bool filter = n->kind == X_FILTER;
    QN_TRY(eval_args(e, n, &c));
    e->line = n->line;
    if (!n->fn)
        return tv_fail(e, "No %s named '" STR_FMT "'", filter ? "filter" : "test",
                       (int)(n->s.n > 60 ? 60 : n->s.n), n->s.p);
    return tv_call_builtin(e, n->fn, v, &c.a, out);
}

enum qn_status te_eval_filter_over(struct tenv *e, const struct node *n, const struct val *inner,
                                   struct val *out)
{
    struct val v = *inner;
    if (n->a)
        QN_TRY(te_eval_filter_over(e, n->a, inner, &v));
    return call_on(e, n, &v, out);
}

/* ---- literals ------------------------------------------------------------------------------ */

static enum qn_status eval_list(struct tenv *e, const struct node *n, struct val *out)
{
    struct val list, v;
    QN_TRY(tv_list_new(e, n->kind == X_LIST ? V_LIST : V_TUPLE, (size_t)n->n_kids, &list));
    for (const struct node *k = n->kids; k; k = k->next) {
        QN_TRY(te_eval(e, k, &v));
        QN_TRY(tv_list_add(e, list.l, v));
    }
    *out = list;
    return QN_OK;
}

static enum qn_status eval_dict(struct tenv *e, const struct node *n, struct val *out)
{
    struct val dict, k, v;
    QN_TRY(tv_dict_new(e, V_DICT, &dict));
    for (const struct node *x = n->kids; x; x = x->next->next) {
        QN_TRY(te_eval(e, x, &k));
        QN_TRY(te_eval(e, x->next, &v));
        QN_TRY(tv_dict_set(e, dict.m, k, v));
    }
    *out = dict;
    return QN_OK;
}

/* ---- operators ----------------------------------------------------------------------------- */

static enum qn_status eval_arith(struct tenv *e, const struct node *n, struct val *out)
{
    struct val acc, v;
    QN_TRY(te_eval(e, n->a, &acc));
    for (const struct node *k = n->kids; k; k = k->next) {
        struct val r;
        QN_TRY(te_eval(e, k->a, &v));
        e->line = n->line;
        QN_TRY(tv_arith(e, (enum arith)k->op, &acc, &v, &r));
        acc = r;
    }
    *out = acc;
    return QN_OK;
}

static enum qn_status eval_concat(struct tenv *e, const struct node *n, struct val *out)
{
    struct val acc = v_str(STR_LIT("")), v;
    for (const struct node *k = n->kids; k; k = k->next) {
        struct str s;
        QN_TRY(te_eval(e, k, &v));
        QN_TRY(tv_to_str(e, &v, &s));
        QN_TRY(tv_concat(e, acc.s, s, &acc));
    }
    *out = acc;
    return QN_OK;
}

static enum qn_status compare(struct tenv *e, enum cmp_op op, const struct val *a,
                              const struct val *b, bool *out)
{
    static const char *const names[] = {
        [CMP_LT] = "<", [CMP_LE] = "<=", [CMP_GT] = ">", [CMP_GE] = ">="};
    int c = 0;
    switch (op) {
    case CMP_EQ:
        return tv_eq(e, a, b, out);
    case CMP_NE:
        QN_TRY(tv_eq(e, a, b, out));
        *out = !*out;
        return QN_OK;
    case CMP_IN:
        return tv_contains(e, b, a, out);
    case CMP_NOTIN:
        QN_TRY(tv_contains(e, b, a, out));
        *out = !*out;
        return QN_OK;
    default:
        break;
    }
    QN_TRY(tv_cmp(e, a, b, names[op], &c));
    *out = c != 2 && (op == CMP_LT ? c < 0 : op == CMP_LE ? c <= 0 : op == CMP_GT ? c > 0 : c >= 0);
    return QN_OK;
}

static enum qn_status eval_cmp(struct tenv *e, const struct node *n, struct val *out)
{
    struct val left, right;
    bool ok = true;
    QN_TRY(te_eval(e, n->a, &left));
    for (const struct node *k = n->kids; k && ok; k = k->next) {
        QN_TRY(te_eval(e, k->a, &right));
        e->line = n->line;
        QN_TRY(compare(e, (enum cmp_op)k->op, &left, &right, &ok));
        left = right;
    }
    *out = v_bool(ok);
    return QN_OK;
}

static enum qn_status eval_logic(struct tenv *e, const struct node *n, struct val *out)
{
    for (const struct node *k = n->kids; k; k = k->next) {
        bool b;
        QN_TRY(te_eval(e, k, out));
        if (!k->next)
            break;
        QN_TRY(tv_truth(e, out, &b));
        if (b == (n->kind == X_OR))
            break;
    }
    return QN_OK;
}

static enum qn_status eval_unary(struct tenv *e, const struct node *n, struct val *out)
{
    struct val v;
    bool b;
    QN_TRY(te_eval(e, n->a, &v));
    e->line = n->line;
    if (n->kind == X_NEG)
        return tv_neg(e, &v, out);
    if (n->kind == X_NOT) {
        QN_TRY(tv_truth(e, &v, &b));
        *out = v_bool(!b);
        return QN_OK;
    }
    if (v.t == V_UNDEF)
        return tv_fail_undef(e, &v);
    if (!v_is_num(&v) && v.t != V_BIG)
        return tv_fail(e, "bad operand type for unary +: '%s'", tv_type_name(&v));
    *out = v.t == V_BOOL ? v_int(v.b) : v;
    return QN_OK;
}

static enum qn_status eval_cond(struct tenv *e, const struct node *n, struct val *out)
{
    struct val test;
    bool b;
    QN_TRY(te_eval(e, n->b, &test));
    QN_TRY(tv_truth(e, &test, &b));
    if (b)
        return te_eval(e, n->a, out);
    if (n->c)
        return te_eval(e, n->c, out);
    *out = v_undef(UNDEF_HINT,
                   STR_LIT("the inline if-expression evaluated to false and no else section was "
                           "defined."),
                   V_NONE);
    return QN_OK;
}

static enum qn_status eval_slice(struct tenv *e, const struct node *n, struct val *out)
{
    struct val o;
    struct slice_args s = {v_none(), v_none(), v_none()};
    QN_TRY(te_eval(e, n->a, &o));
    if (n->b)
        QN_TRY(te_eval(e, n->b, &s.start));
    if (n->c)
        QN_TRY(te_eval(e, n->c, &s.stop));
    if (n->d)
        QN_TRY(te_eval(e, n->d, &s.step));
    e->line = n->line;
    return tv_slice(e, &o, &s, out);
}

static enum qn_status eval_access(struct tenv *e, const struct node *n, struct val *out)
{
    struct val o, k;
    QN_TRY(te_eval(e, n->a, &o));
    if (n->kind == X_ATTR) {
        e->line = n->line;
        return tv_getattr(e, &o, n->s, out);
    }
    QN_TRY(te_eval(e, n->b, &k));
    e->line = n->line;
    return tv_getitem(e, &o, &k, out);
}

static enum qn_status eval_on(struct tenv *e, const struct node *n, struct val *out)
{
    struct val v;
    QN_TRY(te_eval(e, n->a, &v));
    return call_on(e, n, &v, out);
}

static enum qn_status eval_any(struct tenv *e, const struct node *n, struct val *out)
{
    switch (n->kind) {
    case X_CONST:
        *out = n->v;
        return QN_OK;
    case X_NAME:
        e->line = n->line;
        return te_lookup(e, n->id, out);
    case X_LIST:
    case X_TUPLE:
        return eval_list(e, n, out);
    case X_DICT:
        return eval_dict(e, n, out);
    case X_ARITH:
        return eval_arith(e, n, out);
    case X_CONCAT:
        return eval_concat(e, n, out);
    case X_CMP:
        return eval_cmp(e, n, out);
    case X_AND:
    case X_OR:
        return eval_logic(e, n, out);
    case X_NOT:
    case X_NEG:
    case X_POS:
        return eval_unary(e, n, out);
    case X_COND:
        return eval_cond(e, n, out);
    case X_ATTR:
    case X_ITEM:
        return eval_access(e, n, out);
    case X_SLICE:
        return eval_slice(e, n, out);
    case X_CALL:
        return te_eval_call(e, n, NULL, out);
    case X_FILTER:
    case X_TEST:
        return eval_on(e, n, out);
    default:
        return tv_fail(e, "not an expression");
    }
}

enum qn_status te_eval(struct tenv *e, const struct node *n, struct val *out)
{
    if (e->depth >= e->depth_max)
        return tv_fail(e, "expressions and blocks are nested too deeply");
    QN_TRY(tv_step(e, 1));
    e->depth++;
    QN_TRY(eval_any(e, n, out));
    e->depth--;
    return QN_OK;
}
