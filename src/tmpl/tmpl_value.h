/*
 * tmpl_value.h - what expressions evaluate to, with Python's semantics, and the state of one
 * rendering (struct tenv) that every evaluator function receives.
 *
 * Values are small and passed by copy; what they point to lives in the rendering's arena or in the
 * caller's JSON and dies with the rendering. Lists, tuples and dicts never change after they are
 * built (the sandbox forbids it); namespaces, cyclers, joiners and iterators do. Integers are 64
 * bits wide: an operation that would leave them is an error, where Python would go on.
 * One rendering belongs to one thread.
 */
#ifndef TMPL_VALUE_H
#define TMPL_VALUE_H

#include "base/arena.h"
#include "tmpl/tmpl.h"

enum vt {
    V_UNDEF,
    V_NONE,
    V_BOOL,
    V_INT,
    V_BIG, /* an integer literal of the JSON beyond 64 bits: kept as text, printed, not computed */
    V_REAL,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_RANGE,
    V_VIEW, /* dict.keys(), .values(), .items() */
    V_ITER, /* a generator or iterator: always true, no length, consumed once */
    V_NS,
    V_FUNC,
    V_METHOD,
    V_MACRO,
    V_LOOP,
    V_CYCLER,
    V_JOINER,
    V_MISSING, /* an argument that was not given; never visible to a template */
};

/* Why a value is undefined, in val.sub. */
enum undef_kind { UNDEF_NAME, UNDEF_ATTR, UNDEF_ITEM, UNDEF_HINT, UNDEF_UNSAFE, UNDEF_PARAM };
enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct val {
    uint8_t t;    /* enum vt */
    uint8_t sub;  /* undef_kind or view_kind */
    uint8_t safe; /* a string marked as markup (|safe, |escape) */
    uint8_t of;   /* undefined: enum vt of the object that was asked */
    union {
        bool b;
        int64_t i;
        double d;
        struct str s; /* also the name or hint of an undefined value, and the text of V_BIG */
        struct vlist *l;
        struct vdict *m;
        struct vrange *r;
        struct viter *it;
        struct vmethod *me;
        struct vmacro *mac;
        struct vloop *loop;
        struct vcycler *cy;
        struct vjoiner *jo;
        const struct tbuiltin *fn;
    };
};

struct vlist {
    struct val *v;
    size_t n, cap;
    const struct json *src; /* not read yet when set */
};

struct vent {
    struct val k, v;
    uint64_t hash;
};

struct vdict {
    struct vent *e;
    size_t n, cap;
    int32_t *index; /* open addressing over e; NULL while small */
    size_t n_index; /* a power of two */
    const struct json *src;
};

struct vrange {
    int64_t start, stop, step;
    int64_t n;
};

struct vmethod {
    const struct tbuiltin *fn;
    struct val self;
};

struct vcycler {
    struct val *v;
    int n, pos;
};

struct vjoiner {
    struct val sep;
    bool used;
};

struct tkw {
    struct str name;
    struct val v;
};

struct targs {
    const struct val *v;
    int n;
    const struct tkw *kw;
    int n_kw;
};

struct tenv;

/* A filter, test, method or global function. `params`: names separated by spaces, the value first
 * for filters, tests and methods; a trailing '?' marks one that may be missing; a leading '/' makes
 * all positional-only; a final '*' leaves the rest in `raw` (positions and keywords). */
struct tbuiltin {
    const char *name;
    const char *params;
    enum qn_status (*fn)(struct tenv *e, const struct val *a, const struct targs *raw,
                         struct val *out);
};

#define TBUILTIN_PARAMS_MAX 8

enum tflow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

/* One rendering. */
struct tenv {
    const struct tmpl *t;
    struct vdict *vars; /* the caller's variables */
    struct arena *a;
    struct qn_err *err;
    struct buf *out; /* where output goes now */
    int64_t now;
    int64_t steps_left, steps_max;
    size_t bytes_max;
    int line;
    int depth, depth_max; /* nested expressions and statements */
    int calls, calls_max; /* nested macro calls and recursive loops */
    enum tflow flow;
    struct scope *scope, *root, *spare;
    char *tail; /* end of the newest long string: appending to it needs no copy */
    size_t tail_room;
};

/* Fails with "chat template: line N: ...". A macro so that the compiler sees that it never gives
 * QN_OK; so are the next two. */
void tv_error(struct tenv *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define tv_fail(...) (tv_error(__VA_ARGS__), QN_BAD_INPUT)
void tv_error_oom(struct tenv *e);
#define tv_oom(e) (tv_error_oom(e), QN_BAD_INPUT)
enum qn_status tv_step(struct tenv *e, int64_t n); /* counts work; fails past the limit */
/* NULL and the error set when past the memory limit. */
void *tv_alloc(struct tenv *e, size_t n);

static inline struct val v_none(void)
{
    return (struct val){.t = V_NONE};
}
static inline struct val v_bool(bool b)
{
    return (struct val){.t = V_BOOL, .b = b};
}
static inline struct val v_int(int64_t i)
{
    return (struct val){.t = V_INT, .i = i};
}
static inline struct val v_real(double d)
{
    return (struct val){.t = V_REAL, .d = d};
}
static inline struct val v_str(struct str s)
{
    return (struct val){.t = V_STR, .s = s};
}
static inline struct val v_strz(const char *z)
{
    return v_str(str_of(z));
}
static inline struct val v_undef(enum undef_kind k, struct str name, enum vt of)
{
    return (struct val){.t = V_UNDEF, .sub = (uint8_t)k, .of = (uint8_t)of, .s = name};
}
static inline bool v_is_int(const struct val *v) /* Python: isinstance(v, int) */
{
    return v->t == V_INT || v->t == V_BOOL;
}
static inline bool v_is_num(const struct val *v)
{
    return v_is_int(v) || v->t == V_REAL;
}
static inline int64_t v_as_int(const struct val *v)
{
    return v->t == V_BOOL ? v->b : v->i;
}
static inline double v_as_real(const struct val *v)
{
    return v->t == V_REAL ? v->d : (double)v_as_int(v);
}

/* ---- tmpl_value.c -------------------------------------------------------------------------- */

const char *tv_type_name(const struct val *v); /* Python's: "str", "NoneType", ... */
enum qn_status tv_from_json(struct tenv *e, const struct json *j, struct val *out);
/* UndefinedError for the value, as jinja2 words it. */
void tv_error_undef(struct tenv *e, const struct val *v);
#define tv_fail_undef(e, v) (tv_error_undef(e, v), QN_BAD_INPUT)

enum qn_status tv_list_new(struct tenv *e, enum vt list_or_tuple, size_t cap, struct val *out);
enum qn_status tv_list_add(struct tenv *e, struct vlist *l, struct val v);
/* The elements of a list or tuple, read from the JSON when that was not done yet. */
enum qn_status tv_seq(struct tenv *e, const struct val *v, const struct val **items, size_t *n);
enum qn_status tv_tuple2(struct tenv *e, struct val a, struct val b, struct val *out);

enum qn_status tv_dict_new(struct tenv *e, enum vt dict_or_ns, struct val *out);
enum qn_status tv_dict_load(struct tenv *e, struct vdict *d); /* before touching d->e or d->n */
enum qn_status tv_dict_set(struct tenv *e, struct vdict *d, struct val k, struct val v);
/* *out = NULL when absent. Fails for unhashable keys. */
enum qn_status tv_dict_get(struct tenv *e, struct vdict *d, const struct val *k,
                           const struct val **out);
enum qn_status tv_dict_getz(struct tenv *e, struct vdict *d, struct str k, const struct val **out);
bool tv_hashable(const struct val *v);

enum qn_status tv_truth(struct tenv *e, const struct val *v, bool *out);
enum qn_status tv_eq(struct tenv *e, const struct val *a, const struct val *b, bool *out);
/* *out < 0, 0, > 0; TypeError for what Python cannot order. op is for the message ("<"). */
enum qn_status tv_cmp(struct tenv *e, const struct val *a, const struct val *b, const char *op,
                      int *out);
/* len(v); TypeError for what has none. */
enum qn_status tv_len(struct tenv *e, const struct val *v, int64_t *out);
bool tv_same(const struct val *a, const struct val *b); /* Python's `is` */
enum qn_status tv_contains(struct tenv *e, const struct val *hay, const struct val *needle,
                           bool *out);
/* Stable merge sort with Python's order; keys[i] belongs to v[i]. */
enum qn_status tv_sort(struct tenv *e, struct val *v, struct val *keys, size_t n, bool reverse);

/* ---- tmpl_text.c --------------------------------------------------------------------------- */

enum qn_status tv_print(struct tenv *e, const struct val *v, struct buf *out); /* str(v) */
enum qn_status tv_repr(struct tenv *e, const struct val *v, struct buf *out);
void tv_real_repr(struct buf *out, double d);
/* str(v) as a view: no copy for strings. */
enum qn_status tv_to_str(struct tenv *e, const struct val *v, struct str *out);
/* Takes the bytes into the arena; the buffer is freed. */
enum qn_status tv_str_take(struct tenv *e, struct buf *b, struct val *out);
enum qn_status tv_concat(struct tenv *e, struct str a, struct str b, struct val *out);
void tv_escape(struct buf *out, struct str s); /* & < > ' " as markupsafe does */

struct json_style {
    bool ascii, sort;
    bool has_indent;
    struct str indent;
    struct str item_sep, key_sep;
};
enum qn_status tv_tojson(struct tenv *e, const struct val *v, const struct json_style *st,
                         struct buf *out);

/* ---- tmpl_iter.c --------------------------------------------------------------------------- */

enum iter_kind {
    IT_SEQ,
    IT_STR,
    IT_RANGE,
    IT_DICT, /* keys; with .sub values or items */
    IT_REV,
    IT_GEN,
};

struct viter {
    enum iter_kind kind;
    struct val src;
    const struct val *items;
    size_t n, i;
    struct viter *in; /* IT_GEN: the source */
    /* IT_GEN: takes the next value of ->in that counts, through *skip = true for those that do not
     */
    enum qn_status (*step)(struct tenv *e, struct viter *it, struct val *v, bool *skip);
    void *state;
};

/* iter(v); TypeError for what cannot be iterated. An iterator is its own iterator. */
enum qn_status tv_iter(struct tenv *e, const struct val *v, struct viter **out);
enum qn_status tv_next(struct tenv *e, struct viter *it, struct val *out, bool *got);
enum qn_status tv_iter_gen(struct tenv *e, const struct val *src,
                           enum qn_status (*step)(struct tenv *, struct viter *, struct val *,
                                                  bool *),
                           void *state, struct val *out);
enum qn_status tv_iter_rev(struct tenv *e, const struct val *v, struct val *out, bool *ok);
/* list(v) as a fresh list value (list_or_tuple picks the type). */
enum qn_status tv_collect(struct tenv *e, const struct val *v, enum vt list_or_tuple,
                          struct val *out);

/* ---- tmpl_ops.c ---------------------------------------------------------------------------- */

enum arith { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW };
enum qn_status tv_arith(struct tenv *e, enum arith op, const struct val *a, const struct val *b,
                        struct val *out);
enum qn_status tv_neg(struct tenv *e, const struct val *a, struct val *out);
enum qn_status tv_getattr(struct tenv *e, const struct val *o, struct str name, struct val *out);
enum qn_status tv_getitem(struct tenv *e, const struct val *o, const struct val *k,
                          struct val *out);
struct slice_args {
    struct val start, stop, step; /* V_NONE when left out */
};
enum qn_status tv_slice(struct tenv *e, const struct val *o, const struct slice_args *s,
                        struct val *out);

/* ---- tmpl_call.c --------------------------------------------------------------------------- */

enum qn_status tv_call(struct tenv *e, const struct val *f, const struct targs *args,
                       struct val *out);
/* Calls b with self (NULL for none) before the positional arguments. */
enum qn_status tv_call_builtin(struct tenv *e, const struct tbuiltin *b, const struct val *self,
                               const struct targs *args, struct val *out);
const struct tbuiltin *tbuiltin_find(const struct tbuiltin *table, struct str name);

/* ---- tmpl_format.c ------------------------------------------------------------------------- */

/* Python's  fmt % args  (args: a tuple, a dict or one value). */
enum qn_status tv_percent(struct tenv *e, struct str fmt, const struct val *args, struct buf *out);
/* Python's  fmt.format(...). */
enum qn_status tv_format(struct tenv *e, struct str fmt, const struct targs *args, struct buf *out);

/* ---- tables -------------------------------------------------------------------------------- */

extern const struct tbuiltin tmpl_filters[];     /* tmpl_filters.c: text and numbers */
extern const struct tbuiltin tmpl_filters_seq[]; /* tmpl_filters_seq.c: sequences */
extern const struct tbuiltin tmpl_tests[];
extern const struct tbuiltin tmpl_globals[];
extern const struct tbuiltin tmpl_str_methods[];
extern const struct tbuiltin tmpl_list_methods[]; /* lists and tuples */
extern const struct tbuiltin tmpl_dict_methods[];
extern const struct tbuiltin tmpl_cycler_methods[];
extern const struct tbuiltin tmpl_loop_methods[];
const struct tbuiltin *tmpl_filter_find(struct str name);
const struct tbuiltin *tmpl_test_find(struct str name);

#endif
