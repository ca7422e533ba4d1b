/*
 * tmpl_lex.h - template text to tokens, with trim_blocks and lstrip_blocks on, `-` and `+` signs,
 * raw blocks and comments, as jinja2's lexer does it. Tokens are made one at a time.
 */
#ifndef TMPL_LEX_H
#define TMPL_LEX_H

#include "base/arena.h"

enum tok_kind {
    T_EOF,
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_REAL,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON,
};

struct tok {
    enum tok_kind kind;
    int32_t line;
    struct str s; /* DATA, NAME, STRING (unescaped) and operators as written */
    int64_t i;
    double d;
};

#define LEX_NEST_MAX 256

struct lex {
    struct str src; /* newlines already normalised to \n, one at the end removed */
    size_t pos;
    int32_t line;
    struct arena *a;
    enum { LEX_ROOT, LEX_VAR, LEX_BLOCK } state;
    bool line_starting;       /* the previous match ended with a newline */
    char close[LEX_NEST_MAX]; /* open brackets */
    int n_close;
    bool pending; /* a begin token follows the data just given */
    struct tok next;
};

/* Copies and normalises the source into the arena. */
enum qn_status lex_init(struct lex *l, struct arena *a, struct str source, struct qn_err *err);
enum qn_status lex_next(struct lex *l, struct tok *out, struct qn_err *err);
const char *tok_name(enum tok_kind k); /* as messages spell it */
void lex_error(int32_t line, struct qn_err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
#define lex_fail(...) (lex_error(__VA_ARGS__), QN_BAD_INPUT)

#endif
