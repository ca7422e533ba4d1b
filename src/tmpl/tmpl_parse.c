/*
 * tmpl_parse.c - the statements of a template: {% if %}, {% for %}, {% macro %} and so on; the
 * expressions are in tmpl_parse_expr.c. Recursive descent with a nesting limit; the first error
 * ends it. Everything is allocated in the template's arena.
 */
#include "tmpl/tmpl_parse.h"

enum qn_status tp_next(struct parser *p)
{
    if (p->has_ahead) {
        p->cur = p->ahead;
        p->has_ahead = false;
        return QN_OK;
    }
    return lex_next(&p->lex, &p->cur, p->err);
}

enum qn_status tp_look(struct parser *p, struct tok *out)
{
    if (!p->has_ahead) {
        QN_TRY(lex_next(&p->lex, &p->ahead, p->err));
        p->has_ahead = true;
    }
    *out = p->ahead;
    return QN_OK;
}

bool tp_is(const struct parser *p, enum tok_kind k)
{
    return p->cur.kind == k;
}

bool tp_word(const struct parser *p, const char *z)
{
    return p->cur.kind == T_NAME && str_eqz(p->cur.s, z);
}

enum qn_status tp_skip(struct parser *p, enum tok_kind k, bool *had)
{
    *had = tp_is(p, k);
    return *had ? tp_next(p) : QN_OK;
}

enum qn_status tp_skip_word(struct parser *p, const char *z, bool *had)
{
    *had = tp_word(p, z);
    return *had ? tp_next(p) : QN_OK;
}

enum qn_status tp_unexpected(struct parser *p, const char *wanted)
{
    if (tp_is(p, T_EOF))
        return lex_fail(p->cur.line, p->err, "unexpected end of template, expected '%s'", wanted);
    if (tp_is(p, T_NAME))
        return lex_fail(p->cur.line, p->err, "expected token '%s', got '" STR_FMT "'", wanted,
                        (int)(p->cur.s.n > 60 ? 60 : p->cur.s.n), p->cur.s.p);
    return lex_fail(p->cur.line, p->err, "expected token '%s', got '%s'", wanted,
                    tok_name(p->cur.kind));
}

enum qn_status tp_expect(struct parser *p, enum tok_kind k)
{
    return tp_is(p, k) ? tp_next(p) : tp_unexpected(p, tok_name(k));
}

enum qn_status tp_expect_word(struct parser *p, const char *z)
{
    return tp_word(p, z) ? tp_next(p) : tp_unexpected(p, z);
}

enum qn_status tp_node(struct parser *p, enum node_kind kind, int32_t line, struct node **out)
{
    *out = arena_zalloc(p->t->a, sizeof **out);
    if (!*out)
        return lex_fail(line, p->err, "the template needs more than %d MiB to hold",
                        TMPL_SOURCE_ARENA_MIB);
    (*out)->kind = (uint8_t)kind;
    (*out)->line = line;
    return QN_OK;
}

enum qn_status tp_enter(struct parser *p)
{
    if (++p->depth > TMPL_PARSE_DEPTH)
        return lex_fail(p->cur.line, p->err, "expressions and blocks are nested more than %d deep",
                        TMPL_PARSE_DEPTH);
    return QN_OK;
}

void tp_append(struct kids *k, struct node *n)
{
    if (k->last)
        k->last->next = n;
    else
        k->first = n;
    k->last = n;
    k->n++;
}

enum qn_status tp_name_id(struct parser *p, struct str s, int32_t *out)
{
    struct tmpl *t = p->t;
    *out = tmpl_name_id(t, s);
    if (*out >= 0)
        return QN_OK;
    if (t->n_names == t->cap_names) {
        int32_t cap = t->cap_names ? t->cap_names * 2 : 64;
        struct str *names = arena_zalloc_n(t->a, (size_t)cap, sizeof *names);
        if (!names)
            QN_FAIL(p->err, QN_NO_MEMORY, "template", "chat template: too many names");
        if (t->n_names)
            memcpy(names, t->names, (size_t)t->n_names * sizeof *names);
        t->names = names;
        t->cap_names = cap;
    }
    *out = t->n_names;
    t->names[t->n_names++] = s;
    return QN_OK;
}

/* ---- bodies -------------------------------------------------------------------------------- */

static enum qn_status parse_statement(struct parser *p, struct kids *out);

static bool at_end_tag(const struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (tp_word(p, *ends))
            return true;
    return false;
}

static enum qn_status unclosed(struct parser *p, const char *const *ends)
{
    if (!ends || !*ends)
        return lex_fail(p->cur.line, p->err, "Unexpected end of template");
    return lex_fail(p->cur.line, p->err,
                    "Unexpected end of template: looking for '%s'%s%s%s for the block of line %d",
                    ends[0], ends[1] ? " or '" : "", ends[1] ? ends[1] : "", ends[1] ? "'" : "",
                    p->block_line);
}

/* Statements and text until one of the end tags, whose name is then the current token. */
static enum qn_status parse_until(struct parser *p, const char *const *ends, struct node **out)
{
    struct kids k = {0};
    QN_TRY(tp_enter(p));
    for (;;) {
        int32_t line = p->cur.line;
        struct node *n;
        if (tp_is(p, T_EOF)) {
            if (ends)
                return unclosed(p, ends);
            break;
        }
        if (tp_is(p, T_DATA)) {
            QN_TRY(tp_node(p, S_DATA, line, &n));
            n->s = p->cur.s;
            tp_append(&k, n);
            QN_TRY(tp_next(p));
        } else if (tp_is(p, T_VAR_BEGIN)) {
            QN_TRY(tp_next(p));
            QN_TRY(tp_node(p, S_PRINT, line, &n));
            QN_TRY(tp_tuple(p, (struct tuple_opts){.cond = true}, &n->a));
            QN_TRY(tp_expect(p, T_VAR_END));
            tp_append(&k, n);
        } else {
            QN_TRY(tp_expect(p, T_BLOCK_BEGIN));
            if (at_end_tag(p, ends))
                break;
            QN_TRY(parse_statement(p, &k));
            QN_TRY(tp_expect(p, T_BLOCK_END));
        }
    }
    p->depth--;
    *out = k.first;
    return QN_OK;
}

/* After the head of a block: an optional colon, the end of the tag, then the body. */
static enum qn_status parse_body(struct parser *p, const char *const *ends, struct node **out)
{
    bool colon;
    int32_t line = p->block_line;
    p->block_line = p->cur.line;
    QN_TRY(tp_skip(p, T_COLON, &colon));
    QN_TRY(tp_expect(p, T_BLOCK_END));
    QN_TRY(parse_until(p, ends, out));
    p->block_line = line;
    return QN_OK;
}

/* The same, with the single end tag dropped. */
static enum qn_status parse_block_to(struct parser *p, const char *end, struct node **out)
{
    const char *const ends[] = {end, NULL};
    QN_TRY(parse_body(p, ends, out));
    return tp_next(p);
}

/* ---- statements ---------------------------------------------------------------------------- */

static enum qn_status parse_for(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    bool had;
    n->kind = S_FOR;
    QN_TRY(tp_target(p, (struct tuple_opts){.end_word = "in"}, &n->a));
    QN_TRY(tp_expect_word(p, "in"));
    QN_TRY(tp_tuple(p, (struct tuple_opts){.end_word = "recursive"}, &n->b));
    QN_TRY(tp_skip_word(p, "if", &had));
    if (had)
        QN_TRY(tp_expression(p, true, &n->c));
    QN_TRY(tp_skip_word(p, "recursive", &had));
    n->op = had;
    p->loops++;
    QN_TRY(parse_body(p, ends, &n->body));
    p->loops--;
    bool other = tp_word(p, "else");
    QN_TRY(tp_next(p));
    return other ? parse_block_to(p, "endfor", &n->other) : QN_OK;
}

static enum qn_status parse_if(struct parser *p, struct node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct kids k = {0};
    n->kind = S_IF;
    p->soft++;
    for (;;) {
        struct node *branch;
        QN_TRY(tp_node(p, S_BRANCH, p->cur.line, &branch));
        QN_TRY(tp_tuple(p, (struct tuple_opts){0}, &branch->a));
        QN_TRY(parse_body(p, ends, &branch->body));
        tp_append(&k, branch);
        bool elif = tp_word(p, "elif"), other = tp_word(p, "else");
        QN_TRY(tp_next(p));
        if (elif)
            continue;
        if (other) {
            QN_TRY(tp_node(p, S_BRANCH, p->cur.line, &branch));
            QN_TRY(parse_block_to(p, "endif", &branch->body));
            tp_append(&k, branch);
        }
        break;
    }
    p->soft--;
    n->kids = k.first;
    return QN_OK;
}

static enum qn_status parse_set(struct parser *p, struct node *n)
{
    bool assign;
    QN_TRY(tp_target(p, (struct tuple_opts){.nsref = true}, &n->a));
    QN_TRY(tp_skip(p, T_ASSIGN, &assign));
    n->kind = assign ? S_SET : S_SETBLOCK;
    if (assign)
        return tp_tuple(p, (struct tuple_opts){.cond = true}, &n->b);
    QN_TRY(tp_filters(p, NULL, false, &n->b));
    return parse_block_to(p, "endset", &n->body);
}

static enum qn_status parse_params(struct parser *p, struct node *n)
{
    struct kids k = {0};
    bool defaults = false, had;
    QN_TRY(tp_expect(p, T_LPAREN));
    while (!tp_is(p, T_RPAREN)) {
        struct node *arg;
        if (k.n)
            QN_TRY(tp_expect(p, T_COMMA));
        QN_TRY(tp_node(p, S_PARAM, p->cur.line, &arg));
        arg->s = p->cur.s;
        if (!tp_is(p, T_NAME))
            return tp_unexpected(p, "name");
        QN_TRY(tp_check_target_name(p, p->cur.s));
        QN_TRY(tp_name_id(p, p->cur.s, &arg->id));
        QN_TRY(tp_next(p));
        QN_TRY(tp_skip(p, T_ASSIGN, &had));
        if (had) {
            QN_TRY(tp_expression(p, true, &arg->a));
            defaults = true;
        } else if (defaults) {
            return lex_fail(p->cur.line, p->err, "non-default argument follows default argument");
        }
        tp_append(&k, arg);
    }
    n->kids = k.first;
    n->n_kids = k.n;
    return tp_next(p);
}

/* The body of a macro or call block: loops around it cannot be broken from inside, and what it
 * mentions decides whether it takes a caller and surplus arguments. */
static enum qn_status parse_macro_body(struct parser *p, const char *end, struct node *n)
{
    int loops = p->loops, uses = p->uses;
    p->loops = 0;
    p->uses = 0;
    QN_TRY(parse_block_to(p, end, &n->body));
    n->op = (uint8_t)p->uses;
    p->loops = loops;
    p->uses |= uses;
    for (const struct node *a = n->kids; a; a = a->next) {
        if (str_eqz(a->s, "kwargs"))
            n->op &= (uint8_t)~USES_KWARGS;
        if (str_eqz(a->s, "varargs"))
            n->op &= (uint8_t)~USES_VARARGS;
        if (str_eqz(a->s, "caller") && (n->op & USES_CALLER) && !a->a)
            return lex_fail(n->line, p->err,
                            "the special \"caller\" argument must be omitted or have a default");
    }
    return QN_OK;
}

static enum qn_status parse_macro(struct parser *p, struct node *n)
{
    n->kind = S_MACRO;
    n->s = p->cur.s;
    if (!tp_is(p, T_NAME))
        return tp_unexpected(p, "name");
    QN_TRY(tp_check_target_name(p, p->cur.s));
    QN_TRY(tp_name_id(p, p->cur.s, &n->id));
    QN_TRY(tp_next(p));
    QN_TRY(parse_params(p, n));
    return parse_macro_body(p, "endmacro", n);
}

static enum qn_status parse_call_block(struct parser *p, struct node *n)
{
    n->kind = S_CALLBLOCK;
    if (tp_is(p, T_LPAREN))
        QN_TRY(parse_params(p, n));
    QN_TRY(tp_expression(p, true, &n->a));
    if (n->a->kind != X_CALL)
        return lex_fail(n->line, p->err, "expected call");
    return parse_macro_body(p, "endcall", n);
}

static enum qn_status parse_filter_block(struct parser *p, struct node *n)
{
    n->kind = S_FILTERBLOCK;
    QN_TRY(tp_filters(p, NULL, true, &n->a));
    return parse_block_to(p, "endfilter", &n->body);
}

static enum qn_status parse_with(struct parser *p, struct node *n)
{
    struct kids k = {0};
    n->kind = S_WITH;
    while (!tp_is(p, T_BLOCK_END) && !tp_is(p, T_COLON)) {
        struct node *set;
        if (k.n)
            QN_TRY(tp_expect(p, T_COMMA));
        QN_TRY(tp_node(p, S_SET, p->cur.line, &set));
        QN_TRY(tp_target(p, (struct tuple_opts){0}, &set->a));
        QN_TRY(tp_expect(p, T_ASSIGN));
        QN_TRY(tp_expression(p, true, &set->b));
        tp_append(&k, set);
    }
    n->kids = k.first;
    n->n_kids = k.n;
    return parse_block_to(p, "endwith", &n->body);
}

static enum qn_status parse_named_block(struct parser *p, struct node *n)
{
    bool had;
    struct str name = p->cur.s;
    n->kind = S_BLOCK;
    QN_TRY(tp_expect(p, T_NAME));
    QN_TRY(tp_skip_word(p, "scoped", &had));
    n->op = had;
    QN_TRY(tp_skip_word(p, "required", &had));
    int loops = p->loops;
    p->loops = 0;
    QN_TRY(parse_block_to(p, "endblock", &n->body));
    p->loops = loops;
    if (tp_is(p, T_NAME) && str_eq(p->cur.s, name))
        return tp_next(p);
    return QN_OK;
}

/* {% generation %}: transformers' mark around assistant text; it prints its body. */
static enum qn_status parse_generation(struct parser *p, struct node *n)
{
    int loops = p->loops;
    n->kind = S_SCOPE;
    p->loops = 0;
    QN_TRY(parse_block_to(p, "endgeneration", &n->body));
    p->loops = loops;
    return QN_OK;
}

static enum qn_status parse_print(struct parser *p, struct node *n, struct kids *out)
{
    bool first = true;
    n->kind = S_DATA; /* prints nothing itself */
    while (!tp_is(p, T_BLOCK_END)) {
        struct node *print;
        if (!first)
            QN_TRY(tp_expect(p, T_COMMA));
        first = false;
        QN_TRY(tp_node(p, S_PRINT, p->cur.line, &print));
        QN_TRY(tp_expression(p, true, &print->a));
        tp_append(out, print);
    }
    return QN_OK;
}

static enum qn_status parse_break(struct parser *p, struct node *n)
{
    n->kind = S_BREAK;
    if (!p->loops)
        return lex_fail(n->line, p->err, "'break' outside loop");
    return QN_OK;
}

static enum qn_status parse_continue(struct parser *p, struct node *n)
{
    n->kind = S_CONTINUE;
    if (!p->loops)
        return lex_fail(n->line, p->err, "'continue' outside loop");
    return QN_OK;
}

static const struct {
    const char *name;
    enum qn_status (*parse)(struct parser *p, struct node *n);
} STATEMENTS[] = {
    {"for", parse_for},
    {"if", parse_if},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"block", parse_named_block},
    {"generation", parse_generation},
    {"break", parse_break},
    {"continue", parse_continue},
};

static enum qn_status refuse(struct parser *p, struct str name, int32_t line)
{
    static const char *const files[] = {"include", "import", "from", "extends"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (str_eqz(name, files[i]))
            return lex_fail(line, p->err,
                            "'%s' is not supported: a chat template cannot load other templates",
                            files[i]);
    if (str_eqz(name, "autoescape"))
        return lex_fail(line, p->err, "'autoescape' is not supported: output is never escaped");
    return lex_fail(line, p->err, "Encountered unknown tag '" STR_FMT "'",
                    (int)(name.n > 60 ? 60 : name.n), name.p);
}

static enum qn_status parse_statement(struct parser *p, struct kids *out)
{
    struct tok t = p->cur;
    if (t.kind != T_NAME)
        return lex_fail(t.line, p->err, "tag name expected");
    struct node *n;
    QN_TRY(tp_node(p, S_DATA, t.line, &n));
    tp_append(out, n);
    for (size_t i = 0; i < sizeof STATEMENTS / sizeof STATEMENTS[0]; i++)
        if (str_eqz(t.s, STATEMENTS[i].name)) {
            QN_TRY(tp_next(p));
            return STATEMENTS[i].parse(p, n);
        }
    if (str_eqz(t.s, "print")) {
        QN_TRY(tp_next(p));
        return parse_print(p, n, out);
    }
    return refuse(p, t.s, t.line);
}

enum qn_status tmpl_parse(struct tmpl *t, struct str source, struct qn_err *err)
{
    struct parser p = {.t = t, .err = err};
    QN_TRY(lex_init(&p.lex, t->a, source, err));
    QN_TRY(tp_next(&p));
    return parse_until(&p, NULL, &t->body);
}
