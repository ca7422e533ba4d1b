/*
 * tmpl_parse.h - shared by the two halves of the parser: tmpl_parse.c (statements) and
 * tmpl_parse_expr.c (expressions).
 */
#ifndef TMPL_PARSE_H
#define TMPL_PARSE_H

#include "tmpl/tmpl_ast.h"
#include "tmpl/tmpl_lex.h"

#define TMPL_PARSE_DEPTH      200
#define TMPL_SOURCE_ARENA_MIB 256

struct parser {
    struct lex lex;
    struct tok cur, ahead;
    bool has_ahead;
    struct tmpl *t;
    struct qn_err *err;
    int depth;
    int loops;      /* loops around, for break and continue */
    int soft;       /* inside an if: unknown filters are an error only when reached */
    int uses;       /* enum macro_uses mentioned so far */
    int block_line; /* of the innermost open block */
};

struct kids {
    struct node *first, *last;
    int32_t n;
};

struct tuple_opts {
    bool cond;            /* conditional expressions are allowed */
    bool simple;          /* names and literals only (assignment targets) */
    bool nsref;           /* name.attr is a target */
    bool parens;          /* inside parentheses: () is a tuple */
    const char *end_word; /* a word that ends it, beside the usual tokens */
};

enum qn_status tp_next(struct parser *p);
enum qn_status tp_look(struct parser *p, struct tok *out);
bool tp_is(const struct parser *p, enum tok_kind k);
bool tp_word(const struct parser *p, const char *z);
enum qn_status tp_skip(struct parser *p, enum tok_kind k, bool *had);
enum qn_status tp_skip_word(struct parser *p, const char *z, bool *had);
enum qn_status tp_unexpected(struct parser *p, const char *wanted);
enum qn_status tp_expect(struct parser *p, enum tok_kind k);
enum qn_status tp_expect_word(struct parser *p, const char *z);
enum qn_status tp_node(struct parser *p, enum node_kind kind, int32_t line, struct node **out);
enum qn_status tp_enter(struct parser *p); /* one level deeper; the caller decrements p->depth */
void tp_append(struct kids *k, struct node *n);
enum qn_status tp_name_id(struct parser *p, struct str s, int32_t *out);

enum qn_status tp_expression(struct parser *p, bool cond, struct node **out);
enum qn_status tp_tuple(struct parser *p, struct tuple_opts o, struct node **out);
enum qn_status tp_target(struct parser *p, struct tuple_opts o, struct node **out);
enum qn_status tp_check_target_name(struct parser *p, struct str name);
/* A chain of filters over `inner` (NULL: over a block's text). bare: the first has no '|'. */
enum qn_status tp_filters(struct parser *p, struct node *inner, bool bare, struct node **out);

#endif
