/*
 * tmpl_ast.h - the tree a template is parsed into. It lives in the template's arena, is immutable
 * afterwards, and is shared by concurrent renderings. Children form lists through `next`.
 */
#ifndef TMPL_AST_H
#define TMPL_AST_H

#include "tmpl/tmpl_value.h"

enum node_kind {
    /* expressions */
    X_CONST,
    X_NAME,
    X_LIST,
    X_TUPLE,
    X_DICT,   /* kids: key, value, key, value ... */
    X_ARITH,  /* a op kids..., left to right; kids are X_OPND */
    X_CONCAT, /* kids */
    X_CMP,    /* a op kids..., chained */
    X_AND,
    X_OR,
    X_NOT,
    X_NEG,
    X_POS,
    X_COND,  /* a if b else c (c may be NULL) */
    X_ATTR,  /* a.s */
    X_ITEM,  /* a[b] */
    X_SLICE, /* a[b:c:d] */
    X_CALL,  /* a(kids) */
    X_FILTER,
    X_TEST,
    X_OPND,  /* op, a */
    X_ARG,   /* op: enum arg_kind, s, a */
    X_NSREF, /* target only: name.s */
    /* statements */
    S_DATA,
    S_PRINT,       /* a */
    S_FOR,         /* a target, b iterable, c test, body, other; op = recursive */
    S_IF,          /* kids: S_BRANCH */
    S_BRANCH,      /* a test or NULL, body */
    S_SET,         /* a target, b value */
    S_SETBLOCK,    /* a target, b filters or NULL, body */
    S_MACRO,       /* id name, kids parameters, body, op = enum macro_uses */
    S_CALLBLOCK,   /* a call, kids parameters, body, op */
    S_FILTERBLOCK, /* a filters, body */
    S_WITH,        /* kids: S_SET, body */
    S_BLOCK,       /* body; op = scoped */
    S_SCOPE,       /* body in a scope of its own */
    S_BREAK,
    S_CONTINUE,
    S_PARAM, /* id, a default or NULL */
};

enum arg_kind { ARG_POS, ARG_KW, ARG_STAR, ARG_STARSTAR };
enum macro_uses { USES_CALLER = 1, USES_KWARGS = 2, USES_VARARGS = 4 };
enum cmp_op { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOTIN };

struct node {
    uint8_t kind, op;
    bool simple_args; /* calls: positional arguments only */
    int32_t line;
    int32_t id;     /* names: index into tmpl.names */
    int32_t n_kids; /* length of kids */
    struct node *a, *b, *c, *d;
    struct node *kids, *body, *other, *next;
    struct str s;
    struct val v;
    const struct tbuiltin *fn; /* filters and tests; NULL = unknown, an error when reached */
};

struct tmpl {
    struct arena *a;
    struct node *body;
    struct str *names; /* every identifier once */
    int32_t n_names, cap_names;
};

/* ---- tmpl_eval.c, tmpl_expr.c -------------------------------------------------------------- */

struct var {
    int32_t id;
    struct val v;
};

struct scope {
    struct scope *up;
    struct var *vars;
    int32_t n, cap;
    bool captured; /* a macro closes over it: not to be reused */
};

struct vmacro {
    const struct node *n; /* S_MACRO or S_CALLBLOCK */
    struct scope *scope;  /* where it was defined */
};

struct vloop {
    struct viter *it;
    struct val iterable;
    struct val before, current, after;
    struct val changed; /* V_MISSING at first */
    bool has_after, after_end;
    int64_t index0;
    int64_t length; /* -1 = not known */
    int64_t depth0;
    const struct node *n; /* the S_FOR */
    struct scope *scope;  /* around the loop: for recursion */
};

enum qn_status te_eval(struct tenv *e, const struct node *n, struct val *out);
enum qn_status te_eval_call(struct tenv *e, const struct node *n, const struct val *caller,
                            struct val *out);
enum qn_status te_eval_filter_over(struct tenv *e, const struct node *n, const struct val *inner,
                                   struct val *out);
enum qn_status te_run(struct tenv *e, const struct node *stmts);
enum qn_status te_call_macro(struct tenv *e, const struct vmacro *m, const struct targs *args,
                             struct val *out);
enum qn_status te_loop_recurse(struct tenv *e, struct vloop *loop, const struct val *iterable,
                               struct val *out);
enum qn_status te_lookup(struct tenv *e, int32_t id, struct val *out);
enum qn_status te_assign(struct tenv *e, const struct node *target, const struct val *v);
enum qn_status te_scope_set(struct tenv *e, struct scope *s, int32_t id, const struct val *v);
struct scope *te_scope_push(struct tenv *e); /* NULL and the error set */
void te_scope_pop(struct tenv *e);
enum qn_status te_loop_attr(struct tenv *e, struct vloop *l, struct str name, struct val *out,
                            bool *found);
int32_t tmpl_name_id(const struct tmpl *t, struct str name); /* -1 when it is not in the template */

/* ---- tmpl_parse.c -------------------------------------------------------------------------- */

enum qn_status tmpl_parse(struct tmpl *t, struct str source, struct qn_err *err);

#endif
