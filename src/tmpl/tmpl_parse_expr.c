/*
 * tmpl_parse_expr.c - the expressions of a template, with jinja2's precedences: if-else, or, and,
 * not, comparisons, + -, ~, * / // %, **, unary signs, then subscripts, calls, filters and tests.
 * Chains of one level become one flat node, so that evaluating them does not recurse.
 */
#include "tmpl/tmpl_parse.h"

static enum qn_status parse_unary(struct parser *p, bool with_filter, struct node **out);
static enum qn_status parse_postfix(struct parser *p, struct node **n);
static enum qn_status parse_primary(struct parser *p, bool nsref, struct node **out);

/* ---- arguments, filters, tests ------------------------------------------------------------- */

static enum qn_status parse_arg(struct parser *p, struct node *call, struct node **out, int *seen)
{
    static const char bad[] = "invalid syntax for function call expression";
    struct tok ahead;
    struct node *arg;
    int kind = ARG_POS;
    QN_TRY(tp_node(p, X_ARG, p->cur.line, &arg));
    if (tp_is(p, T_MUL)) {
        kind = ARG_STAR;
    } else if (tp_is(p, T_POW)) {
        kind = ARG_STARSTAR;
    } else if (tp_is(p, T_NAME)) {
        QN_TRY(tp_look(p, &ahead));
        if (ahead.kind == T_ASSIGN)
            kind = ARG_KW;
    }
    /* positions, then names, then *args, then **kwargs; names may also follow *args */
    bool ok = kind == ARG_POS    ? *seen == 0
              : kind == ARG_STAR ? !(*seen & (1 << ARG_STAR | 1 << ARG_STARSTAR))
                                 : !(*seen & 1 << ARG_STARSTAR);
    if (!ok)
        return lex_fail(call->line, p->err, "%s", bad);
    if (kind != ARG_POS) {
        *seen |= 1 << kind;
        call->simple_args = false;
        arg->s = p->cur.s;
        QN_TRY(tp_next(p));
        if (kind == ARG_KW)
            QN_TRY(tp_next(p));
    }
    arg->op = (uint8_t)kind;
    QN_TRY(tp_expression(p, true, &arg->a));
    *out = arg;
    return QN_OK;
}

static enum qn_status parse_args(struct parser *p, struct node *call)
{
    struct kids k = {0};
    int seen = 0;
    call->simple_args = true;
    QN_TRY(tp_expect(p, T_LPAREN));
    while (!tp_is(p, T_RPAREN)) {
        struct node *arg;
        if (k.n) {
            QN_TRY(tp_expect(p, T_COMMA));
            if (tp_is(p, T_RPAREN))
                break;
        }
        QN_TRY(parse_arg(p, call, &arg, &seen));
        tp_append(&k, arg);
    }
    call->kids = k.first;
    call->n_kids = k.n;
    return tp_next(p);
}

/* name(.name)*, as filters and tests are spelled. */
static enum qn_status parse_dotted(struct parser *p, struct str *out)
{
    bool dot;
    *out = p->cur.s;
    QN_TRY(tp_expect(p, T_NAME));
    for (;;) {
        QN_TRY(tp_skip(p, T_DOT, &dot));
        if (!dot)
            return QN_OK;
        out->n = (size_t)(p->cur.s.p + p->cur.s.n - out->p);
        QN_TRY(tp_expect(p, T_NAME));
    }
}

static enum qn_status unknown(struct parser *p, const struct node *n, const char *what)
{
    if (n->fn || p->soft)
        return QN_OK;
    return lex_fail(n->line, p->err, "No %s named '" STR_FMT "'", what,
                    (int)(n->s.n > 60 ? 60 : n->s.n), n->s.p);
}

enum qn_status tp_filters(struct parser *p, struct node *inner, bool bare, struct node **out)
{
    int chain = 0;
    *out = inner;
    while (bare || tp_is(p, T_PIPE)) {
        struct node *n;
        if (!bare)
            QN_TRY(tp_next(p));
        bare = false;
        if (++chain > TMPL_PARSE_DEPTH)
            return lex_fail(p->cur.line, p->err, "more than %d filters in a row", TMPL_PARSE_DEPTH);
        QN_TRY(tp_node(p, X_FILTER, p->cur.line, &n));
        n->a = *out;
        n->simple_args = true;
        QN_TRY(parse_dotted(p, &n->s));
        if (tp_is(p, T_LPAREN))
            QN_TRY(parse_args(p, n));
        n->fn = tmpl_filter_find(n->s);
        QN_TRY(unknown(p, n, "filter"));
        *out = n;
    }
    return QN_OK;
}

static bool starts_test_arg(const struct parser *p)
{
    switch (p->cur.kind) {
    case T_NAME:
        return !tp_word(p, "else") && !tp_word(p, "or") && !tp_word(p, "and");
    case T_STRING:
    case T_INT:
    case T_REAL:
    case T_LBRACKET:
    case T_LBRACE:
        return true;
    default:
        return false;
    }
}

static enum qn_status parse_test(struct parser *p, struct node **io)
{
    struct node *n, *arg, *neg;
    bool negated;
    int32_t line = p->cur.line;
    QN_TRY(tp_node(p, X_TEST, line, &n));
    QN_TRY(tp_next(p));
    QN_TRY(tp_skip_word(p, "not", &negated));
    n->a = *io;
    n->simple_args = true;
    QN_TRY(parse_dotted(p, &n->s));
    if (tp_is(p, T_LPAREN)) {
        QN_TRY(parse_args(p, n));
    } else if (starts_test_arg(p)) {
        if (tp_word(p, "is"))
            return lex_fail(p->cur.line, p->err, "You cannot chain multiple tests with is");
        QN_TRY(tp_node(p, X_ARG, p->cur.line, &arg));
        QN_TRY(parse_primary(p, false, &arg->a));
        QN_TRY(parse_postfix(p, &arg->a));
        n->kids = arg;
        n->n_kids = 1;
    }
    n->fn = tmpl_test_find(n->s);
    QN_TRY(unknown(p, n, "test"));
    *io = n;
    if (!negated)
        return QN_OK;
    QN_TRY(tp_node(p, X_NOT, line, &neg));
    neg->a = n;
    *io = neg;
    return QN_OK;
}

/* ---- subscripts and calls ------------------------------------------------------------------ */

static enum qn_status parse_slice_part(struct parser *p, struct node **out)
{
    *out = NULL;
    if (tp_is(p, T_COLON) || tp_is(p, T_RBRACKET) || tp_is(p, T_COMMA))
        return QN_OK;
    return tp_expression(p, true, out);
}

/* What stands between the brackets: an index, a slice, or a tuple of indexes. */
static enum qn_status parse_brackets(struct parser *p, struct node *n)
{
    bool colon;
    QN_TRY(tp_next(p));
    if (tp_is(p, T_RBRACKET)) { /* x[] asks for the item () */
        n->kind = X_ITEM;
        QN_TRY(tp_node(p, X_TUPLE, n->line, &n->b));
        return tp_next(p);
    }
    QN_TRY(parse_slice_part(p, &n->b));
    QN_TRY(tp_skip(p, T_COLON, &colon));
    if (colon) {
        n->kind = X_SLICE;
        QN_TRY(parse_slice_part(p, &n->c));
        QN_TRY(tp_skip(p, T_COLON, &colon));
        if (colon)
            QN_TRY(parse_slice_part(p, &n->d));
        return tp_expect(p, T_RBRACKET);
    }
    n->kind = X_ITEM;
    if (!tp_is(p, T_COMMA))
        return tp_expect(p, T_RBRACKET);
    struct node *tuple;
    struct kids k = {0};
    QN_TRY(tp_node(p, X_TUPLE, n->line, &tuple));
    tp_append(&k, n->b);
    while (!tp_is(p, T_RBRACKET)) {
        struct node *item;
        QN_TRY(tp_expect(p, T_COMMA));
        QN_TRY(tp_expression(p, true, &item));
        tp_append(&k, item);
    }
    tuple->kids = k.first;
    tuple->n_kids = k.n;
    n->b = tuple;
    return tp_expect(p, T_RBRACKET);
}

static enum qn_status parse_dot(struct parser *p, struct node *n)
{
    QN_TRY(tp_next(p));
    if (tp_is(p, T_NAME)) {
        n->kind = X_ATTR;
        n->s = p->cur.s;
        return tp_next(p);
    }
    if (!tp_is(p, T_INT))
        return lex_fail(p->cur.line, p->err, "expected name or number");
    QN_TRY(tp_node(p, X_CONST, n->line, &n->b));
    n->kind = X_ITEM;
    n->b->v = v_int(p->cur.i);
    return tp_next(p);
}

static enum qn_status parse_postfix(struct parser *p, struct node **io)
{
    for (int chain = 0; tp_is(p, T_DOT) || tp_is(p, T_LBRACKET) || tp_is(p, T_LPAREN); chain++) {
        struct node *n;
        if (chain > TMPL_PARSE_DEPTH)
            return lex_fail(p->cur.line, p->err, "more than %d subscripts in a row",
                            TMPL_PARSE_DEPTH);
        QN_TRY(tp_node(p, X_CALL, p->cur.line, &n));
        n->a = *io;
        if (tp_is(p, T_DOT))
            QN_TRY(parse_dot(p, n));
        else if (tp_is(p, T_LBRACKET))
            QN_TRY(parse_brackets(p, n));
        else
            QN_TRY(parse_args(p, n));
        *io = n;
    }
    return QN_OK;
}

static enum qn_status parse_filter_expr(struct parser *p, struct node **io)
{
    for (int chain = 0;; chain++) {
        if (chain > TMPL_PARSE_DEPTH)
            return lex_fail(p->cur.line, p->err, "more than %d tests and calls in a row",
                            TMPL_PARSE_DEPTH);
        if (tp_is(p, T_PIPE)) {
            QN_TRY(tp_filters(p, *io, false, io));
        } else if (tp_word(p, "is")) {
            QN_TRY(parse_test(p, io));
        } else if (tp_is(p, T_LPAREN)) {
            struct node *n;
            QN_TRY(tp_node(p, X_CALL, p->cur.line, &n));
            n->a = *io;
            QN_TRY(parse_args(p, n));
            *io = n;
        } else {
            return QN_OK;
        }
    }
}

/* ---- primaries ----------------------------------------------------------------------------- */

static bool const_word(struct str s, struct val *v)
{
    if (str_eqz(s, "true") || str_eqz(s, "True"))
        *v = v_bool(true);
    else if (str_eqz(s, "false") || str_eqz(s, "False"))
        *v = v_bool(false);
    else if (str_eqz(s, "none") || str_eqz(s, "None"))
        *v = v_none();
    else
        return false;
    return true;
}

static void note_use(struct parser *p, struct str name)
{
    if (str_eqz(name, "caller"))
        p->uses |= USES_CALLER;
    else if (str_eqz(name, "kwargs"))
        p->uses |= USES_KWARGS;
    else if (str_eqz(name, "varargs"))
        p->uses |= USES_VARARGS;
}

static enum qn_status parse_name(struct parser *p, bool nsref, struct node *n)
{
    struct str name = p->cur.s;
    QN_TRY(tp_next(p));
    n->kind = X_CONST;
    if (const_word(name, &n->v))
        return QN_OK;
    n->kind = X_NAME;
    QN_TRY(tp_name_id(p, name, &n->id));
    if (!nsref || !tp_is(p, T_DOT)) {
        note_use(p, name);
        return QN_OK;
    }
    QN_TRY(tp_next(p));
    n->kind = X_NSREF;
    n->s = p->cur.s;
    return tp_expect(p, T_NAME);
}

static enum qn_status parse_string(struct parser *p, struct node *n)
{
    struct buf b = {0};
    n->kind = X_CONST;
    n->v = v_str(p->cur.s);
    QN_TRY(tp_next(p));
    if (!tp_is(p, T_STRING))
        return QN_OK;
    buf_add_str(&b, n->v.s);
    enum qn_status s = QN_OK;
    while (s == QN_OK && tp_is(p, T_STRING)) {
        buf_add_str(&b, p->cur.s);
        s = tp_next(p);
    }
    if (s == QN_OK)
        s = buf_ok(&b, "template", p->err);
    if (s == QN_OK)
        n->v.s = arena_str(p->t->a, buf_str(&b));
    buf_free(&b);
    if (s == QN_OK && !n->v.s.p)
        QN_FAIL(p->err, QN_NO_MEMORY, "template", "chat template: no memory for a string");
    return s;
}

static enum qn_status parse_list(struct parser *p, struct node *n)
{
    struct kids k = {0};
    n->kind = X_LIST;
    QN_TRY(tp_next(p));
    while (!tp_is(p, T_RBRACKET)) {
        struct node *item;
        if (k.n) {
            QN_TRY(tp_expect(p, T_COMMA));
            if (tp_is(p, T_RBRACKET))
                break;
        }
        QN_TRY(tp_expression(p, true, &item));
        tp_append(&k, item);
    }
    n->kids = k.first;
    n->n_kids = k.n;
    return tp_next(p);
}

static enum qn_status parse_dict(struct parser *p, struct node *n)
{
    struct kids k = {0};
    n->kind = X_DICT;
    QN_TRY(tp_next(p));
    while (!tp_is(p, T_RBRACE)) {
        struct node *key, *value;
        if (k.n) {
            QN_TRY(tp_expect(p, T_COMMA));
            if (tp_is(p, T_RBRACE))
                break;
        }
        QN_TRY(tp_expression(p, true, &key));
        QN_TRY(tp_expect(p, T_COLON));
        QN_TRY(tp_expression(p, true, &value));
        tp_append(&k, key);
        tp_append(&k, value);
    }
    n->kids = k.first;
    n->n_kids = k.n;
    return tp_next(p);
}

static enum qn_status parse_primary(struct parser *p, bool nsref, struct node **out)
{
    struct node *n;
    if (tp_is(p, T_LPAREN)) {
        QN_TRY(tp_next(p));
        QN_TRY(tp_tuple(p, (struct tuple_opts){.cond = true, .parens = true}, out));
        return tp_expect(p, T_RPAREN);
    }
    QN_TRY(tp_node(p, X_CONST, p->cur.line, &n));
    *out = n;
    switch (p->cur.kind) {
    case T_NAME:
        return parse_name(p, nsref, n);
    case T_STRING:
        return parse_string(p, n);
    case T_INT:
        n->v = v_int(p->cur.i);
        return tp_next(p);
    case T_REAL:
        n->v = v_real(p->cur.d);
        return tp_next(p);
    case T_LBRACKET:
        return parse_list(p, n);
    case T_LBRACE:
        return parse_dict(p, n);
    case T_EOF:
        return tp_unexpected(p, "expression");
    default:
        return lex_fail(p->cur.line, p->err, "unexpected '%s'", tok_name(p->cur.kind));
    }
}

/* ---- operators ----------------------------------------------------------------------------- */

static enum qn_status parse_unary(struct parser *p, bool with_filter, struct node **out)
{
    if (tp_is(p, T_SUB) || tp_is(p, T_ADD)) {
        struct node *n;
        QN_TRY(tp_enter(p));
        QN_TRY(tp_node(p, tp_is(p, T_SUB) ? X_NEG : X_POS, p->cur.line, &n));
        QN_TRY(tp_next(p));
        QN_TRY(parse_unary(p, false, &n->a));
        p->depth--;
        *out = n;
    } else {
        QN_TRY(parse_primary(p, false, out));
    }
    QN_TRY(parse_postfix(p, out));
    return with_filter ? parse_filter_expr(p, out) : QN_OK;
}

static int arith_of(enum tok_kind k)
{
    switch (k) {
    case T_ADD:
        return OP_ADD;
    case T_SUB:
        return OP_SUB;
    case T_MUL:
        return OP_MUL;
    case T_DIV:
        return OP_DIV;
    case T_FLOORDIV:
        return OP_FLOORDIV;
    case T_MOD:
        return OP_MOD;
    case T_POW:
        return OP_POW;
    default:
        return -1;
    }
}

enum level { LEVEL_SUM, LEVEL_CONCAT, LEVEL_PRODUCT, LEVEL_POWER, LEVEL_UNARY };

static bool in_level(enum level l, enum tok_kind k)
{
    switch (l) {
    case LEVEL_SUM:
        return k == T_ADD || k == T_SUB;
    case LEVEL_CONCAT:
        return k == T_TILDE;
    case LEVEL_PRODUCT:
        return k == T_MUL || k == T_DIV || k == T_FLOORDIV || k == T_MOD;
    case LEVEL_POWER:
        return k == T_POW;
    case LEVEL_UNARY:
        return false;
    }
    return false;
}

/* One level of left-associative operators; the operands are the next level. */
static enum qn_status parse_level(struct parser *p, enum level l, struct node **out)
{
    if (l == LEVEL_UNARY)
        return parse_unary(p, true, out);
    int32_t line = p->cur.line;
    QN_TRY(parse_level(p, l + 1, out));
    if (!in_level(l, p->cur.kind))
        return QN_OK;
    struct node *n;
    struct kids k = {0};
    QN_TRY(tp_node(p, l == LEVEL_CONCAT ? X_CONCAT : X_ARITH, line, &n));
    if (l == LEVEL_CONCAT)
        tp_append(&k, *out);
    else
        n->a = *out;
    while (in_level(l, p->cur.kind)) {
        struct node *operand, *x;
        int op = arith_of(p->cur.kind);
        QN_TRY(tp_next(p));
        QN_TRY(parse_level(p, l + 1, &x));
        if (l != LEVEL_CONCAT) {
            QN_TRY(tp_node(p, X_OPND, line, &operand));
            operand->op = (uint8_t)op;
            operand->a = x;
            x = operand;
        }
        tp_append(&k, x);
    }
    n->kids = k.first;
    n->n_kids = k.n;
    *out = n;
    return QN_OK;
}

static enum qn_status compare_op(struct parser *p, int *op)
{
    static const struct {
        enum tok_kind k;
        int op;
    } ops[] = {{T_EQ, CMP_EQ}, {T_NE, CMP_NE}, {T_LT, CMP_LT},
               {T_LE, CMP_LE}, {T_GT, CMP_GT}, {T_GE, CMP_GE}};
    *op = -1;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (tp_is(p, ops[i].k))
            *op = ops[i].op;
    if (tp_word(p, "in"))
        *op = CMP_IN;
    if (tp_word(p, "not")) {
        struct tok ahead;
        QN_TRY(tp_look(p, &ahead));
        if (ahead.kind != T_NAME || !str_eqz(ahead.s, "in"))
            return QN_OK;
        *op = CMP_NOTIN;
        QN_TRY(tp_next(p));
    }
    return *op < 0 ? QN_OK : tp_next(p);
}

static enum qn_status parse_compare(struct parser *p, struct node **out)
{
    int32_t line = p->cur.line;
    int op;
    QN_TRY(parse_level(p, LEVEL_SUM, out));
    QN_TRY(compare_op(p, &op));
    if (op < 0)
        return QN_OK;
    struct node *n, *operand;
    struct kids k = {0};
    QN_TRY(tp_node(p, X_CMP, line, &n));
    n->a = *out;
    while (op >= 0) {
        QN_TRY(tp_node(p, X_OPND, line, &operand));
        operand->op = (uint8_t)op;
        QN_TRY(parse_level(p, LEVEL_SUM, &operand->a));
        tp_append(&k, operand);
        QN_TRY(compare_op(p, &op));
    }
    n->kids = k.first;
    n->n_kids = k.n;
    *out = n;
    return QN_OK;
}

static enum qn_status parse_not(struct parser *p, struct node **out)
{
    if (!tp_word(p, "not"))
        return parse_compare(p, out);
    QN_TRY(tp_enter(p));
    QN_TRY(tp_node(p, X_NOT, p->cur.line, out));
    QN_TRY(tp_next(p));
    QN_TRY(parse_not(p, &(*out)->a));
    p->depth--;
    return QN_OK;
}

/* and (with = "and") over nots, or over ands. */
static enum qn_status parse_logic(struct parser *p, bool or, struct node **out)
{
    const char *word = or ? "or" : "and";
    int32_t line = p->cur.line;
    QN_TRY(or ? parse_logic(p, false, out) : parse_not(p, out));
    if (!tp_word(p, word))
        return QN_OK;
    struct node *n;
    struct kids k = {0};
    QN_TRY(tp_node(p, or ? X_OR : X_AND, line, &n));
    tp_append(&k, *out);
    while (tp_word(p, word)) {
        struct node *x;
        QN_TRY(tp_next(p));
        QN_TRY(or ? parse_logic(p, false, &x) : parse_not(p, &x));
        tp_append(&k, x);
    }
    n->kids = k.first;
    n->n_kids = k.n;
    *out = n;
    return QN_OK;
}

enum qn_status tp_expression(struct parser *p, bool cond, struct node **out)
{
    bool had;
    QN_TRY(tp_enter(p));
    int32_t line = p->cur.line;
    QN_TRY(parse_logic(p, true, out));
    for (int chain = 0; cond && tp_word(p, "if"); chain++) {
        struct node *n;
        if (chain > TMPL_PARSE_DEPTH)
            return lex_fail(p->cur.line, p->err, "more than %d conditions in a row",
                            TMPL_PARSE_DEPTH);
        QN_TRY(tp_next(p));
        QN_TRY(tp_node(p, X_COND, line, &n));
        n->a = *out;
        p->soft++;
        QN_TRY(parse_logic(p, true, &n->b));
        QN_TRY(tp_skip_word(p, "else", &had));
        if (had)
            QN_TRY(tp_expression(p, true, &n->c));
        p->soft--;
        *out = n;
        line = p->cur.line;
    }
    p->depth--;
    return QN_OK;
}

static bool tuple_ends(const struct parser *p, struct tuple_opts o)
{
    return tp_is(p, T_VAR_END) || tp_is(p, T_BLOCK_END) || tp_is(p, T_RPAREN) ||
           (o.end_word && tp_word(p, o.end_word));
}

enum qn_status tp_tuple(struct parser *p, struct tuple_opts o, struct node **out)
{
    struct kids k = {0};
    bool is_tuple = false;
    int32_t line = p->cur.line;
    QN_TRY(tp_enter(p));
    for (;;) {
        struct node *x;
        if (k.n)
            QN_TRY(tp_expect(p, T_COMMA));
        if (tuple_ends(p, o))
            break;
        QN_TRY(o.simple ? parse_primary(p, o.nsref, &x) : tp_expression(p, o.cond, &x));
        x->next = NULL;
        tp_append(&k, x);
        if (!tp_is(p, T_COMMA))
            break;
        is_tuple = true;
    }
    p->depth--;
    if (!is_tuple && k.n) {
        *out = k.first;
        return QN_OK;
    }
    if (!is_tuple && !o.parens)
        return lex_fail(p->cur.line, p->err, "Expected an expression, got '%s'",
                        tok_name(p->cur.kind));
    QN_TRY(tp_node(p, X_TUPLE, line, out));
    (*out)->kids = k.first;
    (*out)->n_kids = k.n;
    return QN_OK;
}

enum qn_status tp_check_target_name(struct parser *p, struct str name)
{
    struct val v;
    if (const_word(name, &v))
        return lex_fail(p->cur.line, p->err, "can't assign to '" STR_FMT "'", (int)name.n, name.p);
    return QN_OK;
}

static enum qn_status check_target(struct parser *p, const struct node *n)
{
    if (n->kind == X_NAME || n->kind == X_NSREF)
        return QN_OK;
    if (n->kind != X_TUPLE)
        return lex_fail(n->line, p->err, "can't assign to a value that is not a name");
    for (const struct node *k = n->kids; k; k = k->next)
        QN_TRY(check_target(p, k));
    return QN_OK;
}

/* Names that are only assigned do not count as uses of caller, kwargs and varargs. */
enum qn_status tp_target(struct parser *p, struct tuple_opts o, struct node **out)
{
    int uses = p->uses;
    o.simple = true;
    o.cond = true;
    QN_TRY(tp_tuple(p, o, out));
    p->uses = uses;
    return check_target(p, *out);
}
