/*
 * tmpl_eval.c - runs statements: output, scopes, loops, macros, captured blocks. A scope is a list
 * of variables; blocks that have one of their own start a new one on top, and what is set inside
 * does not reach outside. Scopes that a macro closed over are never reused.
 */
#include "tmpl/tmpl_ast.h"

/* ---- scopes -------------------------------------------------------------------------------- */

struct scope *te_scope_push(struct tenv *e)
{
    struct scope *s = e->spare;
    if (s) {
        e->spare = s->up;
        s->n = 0;
    } else {
        s = tv_alloc(e, sizeof *s);
        if (!s)
            return NULL;
        *s = (struct scope){0};
    }
    s->captured = false;
    s->up = e->scope;
    e->scope = s;
    return s;
}

void te_scope_pop(struct tenv *e)
{
    struct scope *s = e->scope;
    e->scope = s->up;
    if (s->captured)
        return;
    s->up = e->spare;
    e->spare = s;
}

static void capture(struct scope *s)
{
    for (; s && !s->captured; s = s->up)
        s->captured = true;
}

enum qn_status te_scope_set(struct tenv *e, struct scope *s, int32_t id, const struct val *v)
{
    for (int32_t i = 0; i < s->n; i++)
        if (s->vars[i].id == id) {
            s->vars[i].v = *v;
            return QN_OK;
        }
    if (s->n == s->cap) {
        int32_t cap = s->cap ? s->cap * 2 : 4;
        struct var *p = tv_alloc(e, (size_t)cap * sizeof *p);
        if (!p)
            return QN_BAD_INPUT;
        if (s->n)
            memcpy(p, s->vars, (size_t)s->n * sizeof *p);
        s->vars = p;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct var){id, *v};
    return QN_OK;
}

int32_t tmpl_name_id(const struct tmpl *t, struct str name)
{
    for (int32_t i = 0; i < t->n_names; i++)
        if (str_eq(t->names[i], name))
            return i;
    return -1;
}

enum qn_status te_lookup(struct tenv *e, int32_t id, struct val *out)
{
    for (const struct scope *s = e->scope; s; s = s->up)
        for (int32_t i = 0; i < s->n; i++)
            if (s->vars[i].id == id) {
                *out = s->vars[i].v;
                return QN_OK;
            }
    struct str name = e->t->names[id];
    const struct val *v;
    QN_TRY(tv_dict_getz(e, e->vars, name, &v));
    if (v) {
        *out = *v;
        return QN_OK;
    }
    const struct tbuiltin *b = tbuiltin_find(tmpl_globals, name);
    *out = b ? (struct val){.t = V_FUNC, .fn = b} : v_undef(UNDEF_NAME, name, V_NONE);
    return QN_OK;
}

static enum qn_status set_name(struct tenv *e, struct str name, const struct val *v)
{
    int32_t id = tmpl_name_id(e->t, name);
    return id < 0 ? QN_OK : te_scope_set(e, e->scope, id, v);
}

static enum qn_status assign_ns(struct tenv *e, const struct node *target, const struct val *v)
{
    struct val ns;
    QN_TRY(te_lookup(e, target->id, &ns));
    if (ns.t != V_NS)
        return tv_fail(e, "cannot assign attribute on non-namespace object");
    if (str_starts(target->s, STR_LIT("_")))
        return tv_fail(e, "underscore-prefixed attributes cannot be stored on a namespace");
    return tv_dict_set(e, ns.m, v_str(target->s), *v);
}

static enum qn_status assign_tuple(struct tenv *e, const struct node *target, const struct val *v)
{
    struct viter *it;
    struct val x;
    bool got;
    int32_t i = 0;
    if (v->t != V_UNDEF && v->t != V_LIST && v->t != V_TUPLE && v->t != V_STR && v->t != V_DICT &&
        v->t != V_RANGE && v->t != V_VIEW && v->t != V_ITER)
        return tv_fail(e, "cannot unpack non-iterable %s object", tv_type_name(v));
    QN_TRY(tv_iter(e, v, &it));
    for (const struct node *k = target->kids; k; k = k->next, i++) {
        QN_TRY(tv_next(e, it, &x, &got));
        if (!got)
            return tv_fail(e, "not enough values to unpack (expected %d, got %d)", target->n_kids,
                           i);
        QN_TRY(te_assign(e, k, &x));
    }
    QN_TRY(tv_next(e, it, &x, &got));
    return got ? tv_fail(e, "too many values to unpack (expected %d)", target->n_kids) : QN_OK;
}

enum qn_status te_assign(struct tenv *e, const struct node *target, const struct val *v)
{
    if (target->kind == X_NAME)
        return te_scope_set(e, e->scope, target->id, v);
    return target->kind == X_NSREF ? assign_ns(e, target, v) : assign_tuple(e, target, v);
}

/* ---- captured output ----------------------------------------------------------------------- */

/* Runs stmts with their output in a string of its own. */
static enum qn_status run_captured(struct tenv *e, const struct node *stmts, struct val *out)
{
    struct buf b = {.limit = e->bytes_max}, *outer = e->out;
    e->out = &b;
    enum qn_status s = te_run(e, stmts);
    e->out = outer;
    if (s != QN_OK) {
        buf_free(&b);
        return s;
    }
    return tv_str_take(e, &b, out);
}

static enum qn_status captured_in_scope(struct tenv *e, const struct node *stmts, struct val *out)
{
    if (!te_scope_push(e))
        return QN_BAD_INPUT;
    QN_TRY(run_captured(e, stmts, out));
    te_scope_pop(e);
    return QN_OK;
}

/* ---- loops --------------------------------------------------------------------------------- */

struct for_test {
    const struct node *n;
    struct scope *scope;
};

/* `for ... if test`: the generator's step. */
static enum qn_status step_for_test(struct tenv *e, struct viter *it, struct val *v, bool *skip)
{
    const struct for_test *ft = it->state;
    struct scope *saved = e->scope;
    struct val r;
    bool ok;
    e->scope = ft->scope;
    if (!te_scope_push(e))
        return QN_BAD_INPUT;
    QN_TRY(te_assign(e, ft->n->a, v));
    QN_TRY(te_eval(e, ft->n->c, &r));
    QN_TRY(tv_truth(e, &r, &ok));
    te_scope_pop(e);
    e->scope = saved;
    *skip = !ok;
    return QN_OK;
}

static enum qn_status loop_peek(struct tenv *e, struct vloop *l, bool *got)
{
    *got = true;
    if (l->has_after)
        return QN_OK;
    QN_TRY(tv_next(e, l->it, &l->after, got));
    l->has_after = *got;
    return QN_OK;
}

static enum qn_status loop_next(struct tenv *e, struct vloop *l, struct val *out, bool *got)
{
    *got = true;
    if (l->has_after)
        *out = l->after;
    else
        QN_TRY(tv_next(e, l->it, out, got));
    l->has_after = false;
    if (!*got)
        return QN_OK;
    l->index0++;
    l->before = l->current;
    l->current = *out;
    return QN_OK;
}

static enum qn_status loop_length(struct tenv *e, struct vloop *l)
{
    struct val rest, src = {.t = V_ITER, .it = l->it};
    if (l->length >= 0)
        return QN_OK;
    if (l->iterable.t != V_ITER)
        return tv_len(e, &l->iterable, &l->length);
    QN_TRY(tv_collect(e, &src, V_LIST, &rest));
    l->length = (int64_t)rest.l->n + l->index0 + 1 + l->has_after;
    return tv_iter(e, &rest, &l->it);
}

enum qn_status te_loop_attr(struct tenv *e, struct vloop *l, struct str name, struct val *out,
                            bool *found)
{
    static const char *const names[] = {"index",  "index0",   "first",     "last",
                                        "length", "revindex", "revindex0", "depth",
                                        "depth0", "previtem", "nextitem"};
    size_t k = 0;
    bool more;
    while (k < sizeof names / sizeof names[0] && !str_eqz(name, names[k]))
        k++;
    *found = k < sizeof names / sizeof names[0];
    if (k >= 4 && k <= 6)
        QN_TRY(loop_length(e, l));
    switch (k) {
    case 0:
    case 1:
        *out = v_int(l->index0 + (k == 0));
        return QN_OK;
    case 2:
        *out = v_bool(l->index0 == 0);
        return QN_OK;
    case 3:
        QN_TRY(loop_peek(e, l, &more));
        *out = v_bool(!more);
        return QN_OK;
    case 4:
        *out = v_int(l->length);
        return QN_OK;
    case 5:
    case 6:
        *out = v_int(l->length - l->index0 - (k == 6));
        return QN_OK;
    case 7:
    case 8:
        *out = v_int(l->depth0 + (k == 7));
        return QN_OK;
    case 9:
        *out = l->index0 > 0 ? l->before
                             : v_undef(UNDEF_HINT, STR_LIT("there is no previous item"), V_NONE);
        return QN_OK;
    case 10:
        QN_TRY(loop_peek(e, l, &more));
        *out = more ? l->after : v_undef(UNDEF_HINT, STR_LIT("there is no next item"), V_NONE);
        return QN_OK;
    default:
        return QN_OK;
    }
}

static enum qn_status loop_open(struct tenv *e, const struct node *n, const struct val *iterable,
                                struct vloop **out)
{
    struct vloop *l = tv_alloc(e, sizeof *l);
    if (!l)
        return QN_BAD_INPUT;
    *l = (struct vloop){.n = n, .index0 = -1, .length = -1, .scope = e->scope};
    l->iterable = *iterable;
    l->changed.t = V_MISSING;
    if (n->c) {
        struct for_test *ft = tv_alloc(e, sizeof *ft);
        if (!ft)
            return QN_BAD_INPUT;
        *ft = (struct for_test){n, e->scope};
        QN_TRY(tv_iter_gen(e, iterable, step_for_test, ft, &l->iterable));
    }
    QN_TRY(tv_iter(e, &l->iterable, &l->it));
    if (n->op)
        capture(e->scope); /* loop(...) comes back to it */
    *out = l;
    return QN_OK;
}

static enum qn_status loop_body(struct tenv *e, struct vloop *l, const struct val *x)
{
    struct val loop = {.t = V_LOOP, .loop = l};
    if (!te_scope_push(e))
        return QN_BAD_INPUT;
    QN_TRY(set_name(e, STR_LIT("loop"), &loop));
    QN_TRY(te_assign(e, l->n->a, x));
    QN_TRY(te_run(e, l->n->body));
    te_scope_pop(e);
    return QN_OK;
}

static enum qn_status run_loop(struct tenv *e, const struct node *n, const struct val *iterable,
                               int64_t depth0)
{
    struct vloop *l;
    struct val x;
    bool got;
    bool done = false;
    QN_TRY(loop_open(e, n, iterable, &l));
    l->depth0 = depth0;
    for (;;) {
        QN_TRY(loop_next(e, l, &x, &got));
        if (!got)
            break;
        QN_TRY(loop_body(e, l, &x));
        enum tflow flow = e->flow;
        done = done || flow == FLOW_NEXT;
        e->flow = FLOW_NEXT;
        if (flow == FLOW_BREAK)
            break;
    }
    /* as in jinja2, `else` also runs when no round came to its end (break or continue in each) */
    if (done || !n->other)
        return QN_OK;
    if (!te_scope_push(e))
        return QN_BAD_INPUT;
    QN_TRY(te_run(e, n->other));
    te_scope_pop(e);
    return QN_OK;
}

enum qn_status te_loop_recurse(struct tenv *e, struct vloop *loop, const struct val *iterable,
                               struct val *out)
{
    if (!loop->n->op)
        return tv_fail(e, "The loop must have the 'recursive' marker to be called recursively.");
    struct buf b = {.limit = e->bytes_max}, *outer = e->out;
    struct scope *scope = e->scope;
    e->out = &b;
    e->scope = loop->scope;
    enum qn_status s = run_loop(e, loop->n, iterable, loop->depth0 + 1);
    e->out = outer;
    e->scope = scope;
    if (s != QN_OK) {
        buf_free(&b);
        return s;
    }
    return tv_str_take(e, &b, out);
}

static enum qn_status run_for(struct tenv *e, const struct node *n)
{
    struct val iterable;
    QN_TRY(te_eval(e, n->b, &iterable));
    e->line = n->line;
    return run_loop(e, n, &iterable, 0);
}

/* ---- macros -------------------------------------------------------------------------------- */

struct macro_call {
    const struct vmacro *m;
    const struct targs *args;
    uint64_t used; /* keywords that became parameters */
};

static const struct val *take_kw(struct macro_call *c, struct str name)
{
    for (int i = 0; i < c->args->n_kw; i++)
        if (str_eq(c->args->kw[i].name, name) && !(c->used >> i & 1)) {
            c->used |= (uint64_t)1 << i;
            return &c->args->kw[i].v;
        }
    return NULL;
}

static enum qn_status bind_params(struct tenv *e, struct macro_call *c)
{
    int i = 0;
    bool given[64];
    for (const struct node *p = c->m->n->kids; p; p = p->next, i++) {
        const struct val *v = i < c->args->n ? &c->args->v[i] : take_kw(c, p->s);
        given[i] = v != NULL;
        if (v)
            QN_TRY(te_scope_set(e, e->scope, p->id, v));
    }
    i = 0;
    for (const struct node *p = c->m->n->kids; p; p = p->next, i++) {
        struct val v = v_undef(UNDEF_PARAM, p->s, V_NONE);
        if (given[i])
            continue;
        if (p->a)
            QN_TRY(te_eval(e, p->a, &v));
        QN_TRY(te_scope_set(e, e->scope, p->id, &v));
    }
    return QN_OK;
}

static bool has_param(const struct node *n, const char *name)
{
    for (const struct node *p = n->kids; p; p = p->next)
        if (str_eqz(p->s, name))
            return true;
    return false;
}

static enum qn_status bind_rest(struct tenv *e, struct macro_call *c)
{
    const struct node *n = c->m->n;
    const struct targs *args = c->args;
    struct val v;
    if ((n->op & USES_CALLER) && !has_param(n, "caller")) {
        const struct val *caller = take_kw(c, STR_LIT("caller"));
        v = caller ? *caller : v_undef(UNDEF_HINT, STR_LIT("No caller defined"), V_NONE);
        QN_TRY(set_name(e, STR_LIT("caller"), &v));
    }
    QN_TRY(tv_dict_new(e, V_DICT, &v));
    for (int i = 0; i < args->n_kw; i++)
        if (!(c->used >> i & 1)) {
            if (!(n->op & USES_KWARGS))
                return tv_fail(e, "macro '" STR_FMT "' takes no keyword argument '" STR_FMT "'",
                               (int)(n->s.n & 0xff), n->s.p, (int)(args->kw[i].name.n & 0xff),
                               args->kw[i].name.p);
            QN_TRY(tv_dict_set(e, v.m, v_str(args->kw[i].name), args->kw[i].v));
        }
    if (n->op & USES_KWARGS)
        QN_TRY(set_name(e, STR_LIT("kwargs"), &v));
    int surplus = args->n > n->n_kids ? args->n - n->n_kids : 0;
    if (!(n->op & USES_VARARGS))
        return surplus ? tv_fail(e, "macro '" STR_FMT "' takes not more than %d argument(s)",
                                 (int)(n->s.n & 0xff), n->s.p, n->n_kids)
                       : QN_OK;
    QN_TRY(tv_list_new(e, V_TUPLE, (size_t)surplus, &v));
    for (int i = 0; i < surplus; i++)
        QN_TRY(tv_list_add(e, v.l, args->v[n->n_kids + i]));
    return set_name(e, STR_LIT("varargs"), &v);
}

enum qn_status te_call_macro(struct tenv *e, const struct vmacro *m, const struct targs *args,
                             struct val *out)
{
    struct macro_call c = {m, args, 0};
    struct scope *scope = e->scope;
    if (m->n->n_kids > 64 || args->n_kw > 64)
        return tv_fail(e, "a macro takes at most 64 parameters and keywords");
    e->scope = m->scope;
    if (!te_scope_push(e))
        return QN_BAD_INPUT;
    QN_TRY(bind_params(e, &c));
    QN_TRY(bind_rest(e, &c));
    QN_TRY(run_captured(e, m->n->body, out));
    te_scope_pop(e);
    e->scope = scope;
    return QN_OK;
}

static enum qn_status make_macro(struct tenv *e, const struct node *n, struct val *out)
{
    struct vmacro *m = tv_alloc(e, sizeof *m);
    if (!m)
        return QN_BAD_INPUT;
    *m = (struct vmacro){n, e->scope};
    capture(e->scope);
    *out = (struct val){.t = V_MACRO, .mac = m};
    return QN_OK;
}

static enum qn_status run_call_block(struct tenv *e, const struct node *n)
{
    struct val caller, v;
    QN_TRY(make_macro(e, n, &caller));
    QN_TRY(te_eval_call(e, n->a, &caller, &v));
    return tv_print(e, &v, e->out);
}

/* ---- the other statements ------------------------------------------------------------------ */

static enum qn_status run_if(struct tenv *e, const struct node *n)
{
    for (const struct node *b = n->kids; b; b = b->next) {
        struct val v;
        bool yes = true;
        if (b->a) {
            QN_TRY(te_eval(e, b->a, &v));
            QN_TRY(tv_truth(e, &v, &yes));
        }
        if (yes)
            return te_run(e, b->body);
    }
    return QN_OK;
}

static enum qn_status run_set(struct tenv *e, const struct node *n)
{
    struct val v;
    QN_TRY(te_eval(e, n->b, &v));
    e->line = n->line;
    return te_assign(e, n->a, &v);
}

static enum qn_status run_set_block(struct tenv *e, const struct node *n)
{
    struct val text, v;
    QN_TRY(captured_in_scope(e, n->body, &text));
    if (e->flow != FLOW_NEXT)
        return QN_OK;
    v = text;
    if (n->b)
        QN_TRY(te_eval_filter_over(e, n->b, &text, &v));
    e->line = n->line;
    return te_assign(e, n->a, &v);
}

static enum qn_status run_filter_block(struct tenv *e, const struct node *n)
{
    struct val text, v;
    QN_TRY(captured_in_scope(e, n->body, &text));
    if (e->flow != FLOW_NEXT)
        return QN_OK;
    QN_TRY(te_eval_filter_over(e, n->a, &text, &v));
    return tv_print(e, &v, e->out);
}

static enum qn_status run_with(struct tenv *e, const struct node *n)
{
    struct val v;
    struct scope *outer = e->scope, *inner = te_scope_push(e);
    if (!inner)
        return QN_BAD_INPUT;
    for (const struct node *k = n->kids; k; k = k->next) {
        e->scope = outer; /* values do not see the targets before them */
        QN_TRY(te_eval(e, k->b, &v));
        e->scope = inner;
        QN_TRY(te_assign(e, k->a, &v));
    }
    QN_TRY(te_run(e, n->body));
    te_scope_pop(e);
    return QN_OK;
}

/* A block sees the top level only, unless it is scoped. */
static enum qn_status run_block(struct tenv *e, const struct node *n)
{
    struct scope *outer = e->scope;
    if (n->kind == S_BLOCK && !n->op)
        e->scope = e->root;
    if (!te_scope_push(e))
        return QN_BAD_INPUT;
    QN_TRY(te_run(e, n->body));
    te_scope_pop(e);
    e->scope = outer;
    return QN_OK;
}

static enum qn_status run_print(struct tenv *e, const struct node *n)
{
    struct val v;
    QN_TRY(te_eval(e, n->a, &v));
    return tv_print(e, &v, e->out);
}

static enum qn_status run_macro(struct tenv *e, const struct node *n)
{
    struct val v;
    QN_TRY(make_macro(e, n, &v));
    return te_scope_set(e, e->scope, n->id, &v);
}

static enum qn_status run_one(struct tenv *e, const struct node *n)
{
    e->line = n->line;
    switch (n->kind) {
    case S_DATA:
        buf_add_str(e->out, n->s);
        return e->out->failed ? tv_oom(e) : QN_OK;
    case S_PRINT:
        return run_print(e, n);
    case S_FOR:
        return run_for(e, n);
    case S_IF:
        return run_if(e, n);
    case S_SET:
        return run_set(e, n);
    case S_SETBLOCK:
        return run_set_block(e, n);
    case S_MACRO:
        return run_macro(e, n);
    case S_CALLBLOCK:
        return run_call_block(e, n);
    case S_FILTERBLOCK:
        return run_filter_block(e, n);
    case S_WITH:
        return run_with(e, n);
    case S_BLOCK:
    case S_SCOPE:
        return run_block(e, n);
    case S_BREAK:
        e->flow = FLOW_BREAK;
        return QN_OK;
    case S_CONTINUE:
        e->flow = FLOW_CONTINUE;
        return QN_OK;
    default:
        return tv_fail(e, "not a statement");
    }
}

enum qn_status te_run(struct tenv *e, const struct node *stmts)
{
    if (e->depth >= e->depth_max)
        return tv_fail(e, "expressions and blocks are nested too deeply");
    e->depth++;
    for (const struct node *n = stmts; n && e->flow == FLOW_NEXT; n = n->next) {
        QN_TRY(tv_step(e, 1));
        QN_TRY(run_one(e, n));
    }
    e->depth--;
    return QN_OK;
}
