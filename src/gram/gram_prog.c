/*
 * gram_prog.c - expressions to a program: what can match nothing is left out, so that no state of
 * a machine is a dead end, and recursion that would push for ever without reading is refused.
 *
 * Repetitions with a counter need a body that is never empty: it is rewritten so (nonempty()).
 */
#include <stdio.h>
#include <stdlib.h>

#include "gram/gram_int.h"

/* Facts of rules while building. */
struct facts {
    struct gb *b;
    struct prog *p;
    bool *some, *null; /* [n_rules] the rule matches something; matches "" */
    int32_t *solid;    /* [n_rules] the rule without ""; -1 = not made */
    int32_t n, cap;
    VEC(int32_t) todo; /* rules whose nodes are still to be made */
    int32_t one[256];  /* set of one byte, + 1 */
};

static const struct gx *at(const struct facts *f, int32_t x)
{
    return &f->b->x.v[x];
}

static int32_t kid(const struct facts *f, const struct gx *x, int32_t i)
{
    return f->b->kids.v[x->a + i];
}

/* ---- facts ----------------------------------------------------------------------------------- */

static bool has_some(const struct facts *f, int32_t i)
{
    const struct gx *x = at(f, i);
    switch (x->kind) {
    case GX_NONE:
        return false;
    case GX_SEQ:
        for (int32_t k = 0; k < x->b; k++)
            if (!has_some(f, kid(f, x, k)))
                return false;
        return true;
    case GX_ALT:
        for (int32_t k = 0; k < x->b; k++)
            if (has_some(f, kid(f, x, k)))
                return true;
        return false;
    case GX_REP:
        return x->b == 0 || has_some(f, x->a);
    case GX_REF:
        return f->some[x->a];
    default:
        return true;
    }
}

static bool has_null(const struct facts *f, int32_t i)
{
    const struct gx *x = at(f, i);
    switch (x->kind) {
    case GX_EMPTY:
        return true;
    case GX_SEQ:
        for (int32_t k = 0; k < x->b; k++)
            if (!has_null(f, kid(f, x, k)))
                return false;
        return true;
    case GX_ALT:
        for (int32_t k = 0; k < x->b; k++)
            if (has_null(f, kid(f, x, k)))
                return true;
        return false;
    case GX_REP:
        return x->b == 0 || has_null(f, x->a);
    case GX_REF:
        return f->null[x->a];
    default:
        return false;
    }
}

/* To the least fixed point; passes run in both directions because rules mostly refer to the next or
 * to an earlier one. */
static void spread(struct facts *f, bool *known, bool (*ask)(const struct facts *, int32_t))
{
    int32_t n = f->b->rules.n;
    for (bool more = true, up = false; more; up = !up) {
        more = false;
        for (int32_t k = 0; k < n; k++) {
            int32_t r = up ? k : n - 1 - k;
            if (known[r] || f->b->rules.v[r] < 0 || !ask(f, f->b->rules.v[r]))
                continue;
            known[r] = more = true;
        }
    }
}

/* Room for the facts of rules made meanwhile. */
static bool facts_room(struct facts *f)
{
    int32_t n = f->b->rules.n;
    if (n <= f->cap) {
        f->n = n;
        return true;
    }
    int32_t cap = n + n / 2 + 16;
    bool *some = realloc(f->some, (size_t)cap);
    if (some)
        f->some = some;
    bool *null = realloc(f->null, (size_t)cap);
    if (null)
        f->null = null;
    int32_t *solid = realloc(f->solid, (size_t)cap * sizeof *solid);
    if (solid)
        f->solid = solid;
    if (!some || !null || !solid) {
        gb_no_memory(f->b);
        return false;
    }
    for (int32_t i = f->cap; i < cap; i++) {
        some[i] = null[i] = false;
        solid[i] = -1;
    }
    f->cap = cap;
    f->n = n;
    return true;
}

/* ---- bodies that are never empty ------------------------------------------------------------- */

static int32_t nonempty(struct facts *f, int32_t i);

static int32_t nonempty_rule(struct facts *f, int32_t rule)
{
    if (f->solid[rule] < 0) {
        int32_t r = x_rule(f->b);
        if (f->b->st != QN_OK || !facts_room(f))
            return X_NONE;
        f->solid[rule] = r;
        f->some[r] = true; /* at worst it says too much: prog then has a dead end in a corner */
        int32_t x = nonempty(f, f->b->rules.v[rule]);
        x_rule_set(f->b, r, x);
        if (f->b->st == QN_OK)
            f->some[r] = has_some(f, x);
    }
    return x_ref(f->b, f->solid[rule]);
}

/* The same texts without "". */
static int32_t nonempty(struct facts *f, int32_t i)
{
    struct gb *b = f->b;
    if (b->st != QN_OK || !has_null(f, i))
        return i;
    struct gx x = *at(f, i);
    int32_t out = X_NONE, rest;
    switch (x.kind) {
    case GX_ALT:
        for (int32_t k = 0; k < x.b; k++)
            out = X_ALT(b, out, nonempty(f, b->kids.v[x.a + k]));
        return out;
    case GX_SEQ: /* of nullable parts: the first that is not empty, then the rest as it was */
        rest = X_EMPTY;
        for (int32_t k = x.b - 1; k >= 0; k--) {
            int32_t part = b->kids.v[x.a + k];
            out = X_ALT(b, X_SEQ(b, nonempty(f, part), rest), out);
            rest = X_SEQ(b, part, rest);
        }
        return out;
    case GX_REP:
        return x_rep(b, nonempty(f, x.a), 1, x.c);
    case GX_REF:
        return nonempty_rule(f, x.a);
    default:
        return X_NONE;
    }
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static int32_t node(struct facts *f, struct gnode n)
{
    struct prog *p = f->p;
    if (f->b->st != QN_OK)
        return N_DEAD;
    if (p->n.n >= X_MAX)
        return gb_fail(f->b, QN_UNSUPPORTED, NULL, "the grammar is too large (over %d nodes)",
                       X_MAX);
    if (!VEC_ROOM(&p->n, 1))
        return gb_no_memory(f->b);
    p->n.v[p->n.n] = n;
    return p->n.n++;
}

static int32_t emit(struct facts *f, int32_t x, int32_t next);

static int32_t emit_lit(struct facts *f, const struct gx *x, int32_t next)
{
    int32_t at_text = x->a, n = x->b;
    for (int32_t k = n - 1; k >= 0; k--) {
        int c = (unsigned char)f->b->text.p[at_text + k];
        if (f->one[c] == 0) {
            int32_t one = x_range(f->b, c, c);
            if (f->b->st != QN_OK)
                return N_DEAD;
            f->one[c] = at(f, one)->a + 1;
        }
        next = node(f, (struct gnode){GN_BYTES, .a = f->one[c] - 1, .next = next});
    }
    return next;
}

static int32_t split(struct facts *f, const int32_t *v, int32_t n)
{
    struct prog *p = f->p;
    if (n == 0)
        return N_DEAD;
    if (n == 1)
        return v[0];
    if (!VEC_ROOM(&p->kids, n))
        return gb_no_memory(f->b);
    int32_t first = p->kids.n;
    memcpy(p->kids.v + first, v, (size_t)n * sizeof *v);
    p->kids.n += n;
    return node(f, (struct gnode){GN_SPLIT, .a = first, .b = n});
}

static int32_t emit_alt(struct facts *f, struct gx x, int32_t next)
{
    int32_t *v = malloc((size_t)x.b * sizeof *v), n = 0;
    if (!v)
        return gb_no_memory(f->b);
    for (int32_t k = 0; k < x.b; k++) {
        int32_t to = emit(f, kid(f, &x, k), next);
        if (to != N_DEAD)
            v[n++] = to;
    }
    int32_t out = split(f, v, n);
    free(v);
    return out;
}

static int32_t emit_rep(struct facts *f, struct gx x, int32_t next)
{
    int32_t body = x.a, min = x.b, max = x.c;
    if (!has_some(f, body))
        return min == 0 ? next : N_DEAD;
    if (min == 0 && max == 1)
        return split(f, (int32_t[]){emit(f, body, next), next}, 2);
    if (min <= 1 && max < 0) { /* a loop: nothing needs to be counted */
        int32_t loop = split(f, (int32_t[]){N_DEAD, next}, 2);
        int32_t start = emit(f, body, loop);
        if (f->b->st != QN_OK)
            return N_DEAD;
        f->p->kids.v[f->p->n.v[loop].a] = start;
        return min ? start : loop;
    }
    if (has_null(f, body)) {
        min = 0;
        body = nonempty(f, body);
        if (f->b->st != QN_OK || !has_some(f, body))
            return next;
    }
    int32_t rep = node(f, (struct gnode){GN_REP, .b = min, .c = max, .next = next});
    int32_t loop = node(f, (struct gnode){GN_LOOP, .a = rep});
    int32_t start = emit(f, body, loop);
    if (f->b->st != QN_OK)
        return N_DEAD;
    f->p->n.v[rep].a = start;
    return rep;
}

static int32_t emit_ref(struct facts *f, int32_t rule, int32_t next)
{
    if (!f->some[rule])
        return N_DEAD;
    if (f->p->rule_start[rule] < 0) {
        f->p->rule_start[rule] = N_DEAD; /* being made */
        if (!VEC_ROOM(&f->todo, 1))
            return gb_no_memory(f->b);
        f->todo.v[f->todo.n++] = rule;
    }
    if (next == N_RET)
        return node(f, (struct gnode){GN_JUMP, .a = rule});
    return node(f, (struct gnode){GN_CALL, .a = rule, .next = next});
}

/* Room for the starts of rules made meanwhile. */
static bool starts_room(struct facts *f)
{
    struct prog *p = f->p;
    int32_t n = f->b->rules.n;
    if (n <= p->n_rules)
        return true;
    int32_t cap = n + n / 2 + 16;
    int32_t *v = realloc(p->rule_start, (size_t)cap * sizeof *v);
    if (!v) {
        gb_no_memory(f->b);
        return false;
    }
    for (int32_t i = p->n_rules; i < cap; i++)
        v[i] = -1;
    p->rule_start = v;
    p->n_rules = cap;
    return true;
}

/* The node from which x and then `next` is read. */
static int32_t emit(struct facts *f, int32_t i, int32_t next)
{
    if (f->b->st != QN_OK || next == N_DEAD || !starts_room(f))
        return N_DEAD;
    struct gx x = *at(f, i);
    switch (x.kind) {
    case GX_EMPTY:
        return next;
    case GX_SET:
        return node(f, (struct gnode){GN_BYTES, .a = x.a, .next = next});
    case GX_LIT:
        return emit_lit(f, &x, next);
    case GX_SEQ:
        if (!has_some(f, i))
            return N_DEAD;
        for (int32_t k = x.b - 1; k >= 0; k--)
            next = emit(f, kid(f, &x, k), next);
        return next;
    case GX_ALT:
        return emit_alt(f, x, next);
    case GX_REP:
        return emit_rep(f, x, next);
    case GX_REF:
        return emit_ref(f, x.a, next);
    default:
        return N_DEAD;
    }
}

/* ---- recursion without reading --------------------------------------------------------------- */

struct scc {
    struct facts *f;
    int32_t *low, *num, *comp; /* per node */
    VEC(int32_t) stack;
    VEC(struct config) call; /* node, next edge */
    int32_t n_num, n_comp;
};

/* The i-th node that can be reached from `n` without reading a byte; -1 = no more. */
static int32_t edge(const struct facts *f, int32_t n, int32_t i)
{
    const struct prog *p = f->p;
    const struct gnode *g = &p->n.v[n];
    switch (g->op) {
    case GN_SPLIT:
        return i < g->b ? p->kids.v[g->a + i] : -1;
    case GN_JUMP:
        return i == 0 ? p->rule_start[g->a] : -1;
    case GN_CALL:
        return i == 0 ? p->rule_start[g->a] : i == 1 && f->null[g->a] ? g->next : -1;
    case GN_REP:
        return i == 0 ? g->a : i == 1 && g->b == 0 ? g->next : -1;
    default:
        return -1;
    }
}

static void scc_enter(struct scc *s, int32_t n)
{
    if (!VEC_ROOM(&s->stack, 1) || !VEC_ROOM(&s->call, 1)) {
        gb_no_memory(s->f->b);
        return;
    }
    s->low[n] = s->num[n] = ++s->n_num;
    s->stack.v[s->stack.n++] = n;
    s->call.v[s->call.n++] = (struct config){n, 0};
}

/* Tarjan's components, without recursion. */
static void scc_from(struct scc *s, int32_t root)
{
    scc_enter(s, root);
    while (s->call.n && s->f->b->st == QN_OK) {
        struct config *c = &s->call.v[s->call.n - 1];
        int32_t n = c->node, to = edge(s->f, n, c->stack++);
        if (to >= 0) {
            if (!s->num[to])
                scc_enter(s, to);
            else if (s->comp[to] < 0 && s->num[to] < s->low[n])
                s->low[n] = s->num[to];
            continue;
        }
        s->call.n--;
        if (s->call.n && s->low[n] < s->low[s->call.v[s->call.n - 1].node])
            s->low[s->call.v[s->call.n - 1].node] = s->low[n];
        if (s->low[n] != s->num[n])
            continue;
        int32_t m;
        do {
            m = s->stack.v[--s->stack.n];
            s->comp[m] = s->n_comp;
        } while (m != n);
        s->n_comp++;
    }
}

static void refuse_left_recursion(struct facts *f)
{
    struct prog *p = f->p;
    size_t n = (size_t)p->n.n;
    struct scc s = {.f = f};
    s.low = calloc(n, sizeof *s.low);
    s.num = calloc(n, sizeof *s.num);
    s.comp = malloc(n * sizeof *s.comp);
    if (!s.low || !s.num || !s.comp) {
        gb_no_memory(f->b);
    } else {
        memset(s.comp, 0xFF, n * sizeof *s.comp);
        for (int32_t i = 0; i < p->n.n && f->b->st == QN_OK; i++)
            if (!s.num[i])
                scc_from(&s, i);
        for (int32_t i = 0; i < p->n.n && f->b->st == QN_OK; i++)
            if (p->n.v[i].op == GN_CALL && s.comp[p->rule_start[p->n.v[i].a]] == s.comp[i])
                gb_fail(f->b, QN_UNSUPPORTED, NULL,
                        "a rule calls itself before it reads anything (left recursion); "
                        "write it with the recursion at the end");
    }
    free(s.low);
    free(s.num);
    free(s.comp);
    free(s.stack.v);
    free(s.call.v);
}

/* ---- classes and the whole ------------------------------------------------------------------- */

static void classes(struct prog *p)
{
    int16_t to[256][2];
    p->n_class = 1;
    memset(p->class_of, 0, sizeof p->class_of);
    for (int32_t i = 0; i < p->n_sets && p->n_class < 256; i++) {
        int32_t n = 0;
        memset(to, 0xFF, sizeof to);
        for (int c = 0; c < 256; c++) {
            int16_t *slot = &to[p->class_of[c]][byteset_has(&p->sets[i], c)];
            if (*slot < 0)
                *slot = (int16_t)n++;
            p->class_of[c] = (uint8_t)*slot;
        }
        p->n_class = n;
    }
    for (int c = 255; c >= 0; c--)
        p->byte_of[p->class_of[c]] = (uint8_t)c;
}

static void build(struct facts *f, int32_t root)
{
    struct gb *b = f->b;
    struct prog *p = f->p;
    if (!facts_room(f) || !starts_room(f))
        return;
    spread(f, f->some, has_some);
    spread(f, f->null, has_null);
    node(f, (struct gnode){.op = GN_DEAD});
    node(f, (struct gnode){.op = GN_RET});
    p->start = has_some(f, root) ? emit(f, root, N_RET) : N_DEAD;
    while (f->todo.n && b->st == QN_OK) {
        int32_t r = f->todo.v[--f->todo.n];
        int32_t start = emit(f, b->rules.v[r], N_RET);
        p->rule_start[r] = start;
    }
    for (int32_t i = 0; i < p->n.n && b->st == QN_OK; i++) /* a solid rule that matches nothing */
        if ((p->n.v[i].op == GN_CALL || p->n.v[i].op == GN_JUMP) &&
            p->rule_start[p->n.v[i].a] == N_DEAD)
            p->n.v[i].op = GN_DEAD;
    if (b->st == QN_OK)
        refuse_left_recursion(f);
}

enum qn_status prog_build(struct gb *b, int32_t root, struct prog *p)
{
    struct facts f = {.b = b, .p = p};
    *p = (struct prog){.start = N_DEAD};
    if (b->st == QN_OK)
        build(&f, root);
    if (b->st == QN_OK) {
        p->n_sets = b->sets.n;
        p->sets = malloc(((size_t)b->sets.n + 1) * sizeof *p->sets);
        if (!p->sets)
            gb_no_memory(b);
        else if (b->sets.n)
            memcpy(p->sets, b->sets.v, (size_t)b->sets.n * sizeof *p->sets);
    }
    if (b->st == QN_OK)
        classes(p);
    free(f.some);
    free(f.null);
    free(f.solid);
    free(f.todo.v);
    if (b->st != QN_OK)
        prog_free(p);
    return b->st;
}

void prog_free(struct prog *p)
{
    free(p->n.v);
    free(p->kids.v);
    free(p->sets);
    free(p->rule_start);
    *p = (struct prog){.start = N_DEAD};
}
