/*
 * gram_int.h - what the files of gram share: expressions (what a front end builds), programs
 * (expressions as a graph of nodes), and machines (a program's states, found as they are needed).
 *
 * Front ends (schema, regex, GBNF, tags) build expressions over bytes in a builder; prog.c turns a
 * root expression into a program; machine.c runs it. All of a builder dies with gram_compile.
 */
#ifndef GRAM_GRAM_INT_H
#define GRAM_GRAM_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "gram/gram.h"

/* ---- byte sets ------------------------------------------------------------------------------- */

struct byteset {
    uint64_t w[4];
};

static inline void byteset_add(struct byteset *s, int b)
{
    s->w[b >> 6] |= (uint64_t)1 << (b & 63);
}

static inline bool byteset_has(const struct byteset *s, int b)
{
    return s->w[b >> 6] >> (b & 63) & 1;
}

/* ---- expressions ----------------------------------------------------------------------------- */

enum gx_kind { GX_NONE, GX_EMPTY, GX_SET, GX_LIT, GX_SEQ, GX_ALT, GX_REP, GX_REF };

/* SET: a = set. LIT: a = offset in text, b = bytes. SEQ, ALT: a = offset in kids, b = count. REP:
 * a = body, b = min, c = max (-1: no limit). REF: a = rule. */
struct gx {
    uint8_t kind;
    uint16_t depth;
    int32_t a, b, c;
};

#define X_NONE  0 /* the expression that matches nothing, not even "" */
#define X_EMPTY 1 /* "" */

#define X_DEPTH_MAX 400     /* nesting of expressions between two rules */
#define X_MAX       2000000 /* expressions, rules and nodes of one grammar */

/* A growing array of T. */
#define VEC(T)                                                                                     \
    struct {                                                                                       \
        T *v;                                                                                      \
        int32_t n, cap;                                                                            \
    }

bool vec_grow(void **v, int32_t *cap, int32_t need, size_t size);
#define VEC_ROOM(a, extra)                                                                         \
    ((a)->n + (extra) <= (a)->cap ||                                                               \
     vec_grow((void **)&(a)->v, &(a)->cap, (a)->n + (extra), sizeof *(a)->v))

/* Once something failed, `st` says so, everything returns X_NONE and the first message stays. */
struct gb {
    VEC(struct gx) x;
    VEC(int32_t) kids;
    VEC(struct byteset) sets;
    VEC(int32_t) rules; /* expression of each rule; -1 = not given yet */
    struct buf text;
    enum qn_status st;
    struct qn_err *err;
    struct gram_fault *fault;
    int64_t steps; /* spent on exploring products; limited */
    bool compact, lenient;
    int32_t r_ws, r_str, r_value, r_object, r_array; /* shared rules of JSON; -1 = not made */
    struct gram_fault none;                          /* the first thing found impossible, and why */
    char none_why[200];
};

void gb_init(struct gb *b, struct qn_err *err, struct gram_fault *fault);
void gb_free(struct gb *b);
/* Notes a failure (the first one counts); returns X_NONE. keyword may be NULL. */
int32_t gb_fail(struct gb *b, enum qn_status st, const char *keyword, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int32_t gb_no_memory(struct gb *b);
/* Notes why some value is impossible, for the case that all of it is; returns X_NONE. */
int32_t gb_none(struct gb *b, const char *keyword, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

int32_t x_set(struct gb *b, const struct byteset *s);
int32_t x_range(struct gb *b, int lo, int hi);
int32_t x_lit(struct gb *b, struct str s);
int32_t x_litz(struct gb *b, const char *z);
int32_t x_seq(struct gb *b, const int32_t *v, int32_t n);
int32_t x_alt(struct gb *b, const int32_t *v, int32_t n);
int32_t x_rep(struct gb *b, int32_t body, int32_t min, int32_t max);
int32_t x_ref(struct gb *b, int32_t rule);
int32_t x_rule(struct gb *b); /* a new rule without expression; its number */
void x_rule_set(struct gb *b, int32_t rule, int32_t x);
#define X_SEQ(b, ...)                                                                              \
    x_seq(b, (const int32_t[]){__VA_ARGS__},                                                       \
          (int32_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))
#define X_ALT(b, ...)                                                                              \
    x_alt(b, (const int32_t[]){__VA_ARGS__},                                                       \
          (int32_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)))
static inline int32_t x_opt(struct gb *b, int32_t x)
{
    return x_rep(b, x, 0, 1);
}

/* Bytes of the longest (-1: no limit) and of the shortest text of an expression without rules; with
 * rules: -1 and 0. */
int64_t x_longest(const struct gb *b, int32_t x);
int64_t x_shortest(const struct gb *b, int32_t x);

/* How the characters of a text are spelled in the output. */
enum gx_enc {
    ENC_RAW,  /* UTF-8 */
    ENC_JSON, /* inside a JSON string, each character in one way: \" \\ \n ... \u001f, rest raw */
};

/* Sorted, disjoint code point ranges as bytes. */
struct cprange {
    uint32_t lo, hi;
};
int32_t x_cps(struct gb *b, const struct cprange *r, int32_t n, enum gx_enc enc);
int32_t x_any_char(struct gb *b, enum gx_enc enc); /* one scalar value */
int32_t x_text(struct gb *b, struct str utf8, enum gx_enc enc);
/* One of these texts, as a rule with shared beginnings. The array is sorted in place. */
int32_t x_strset(struct gb *b, struct str *v, size_t n, enum gx_enc enc);
/* Any bytes around a literal. */
enum search_kind {
    SEARCH_TEXT,    /* up to and including the first lit; no control token but one of its markup */
    SEARCH_FREE,    /* the same; control tokens count as their text */
    SEARCH_WITHOUT, /* to the end, lit nowhere; control tokens count as their text */
};
int32_t x_search(struct gb *b, struct str lit, enum search_kind kind);
/* A literal of markup: each <...> or [...] in it may be one control token of that text. */
int32_t x_markup(struct gb *b, struct str lit);

#define PRODUCT_MAX    32    /* factors of one product */
#define PRODUCT_STATES 30000 /* states of one product */
/* Texts that every factor matches, or does not match where `no` says so. The expressions are those
 * of `src`, a builder of its own in ENC_RAW. */
struct product {
    struct gb src;
    int32_t x[PRODUCT_MAX];
    bool no[PRODUCT_MAX];
    int32_t n;
    const char *keyword; /* to blame when it takes too many states */
};
void product_init(struct product *p, struct gb *b, const char *keyword);
void product_add(struct product *p, int32_t x, bool no);
/* The product in b, spelled in enc; X_NONE when there is no such text. Frees p. */
int32_t product_end(struct product *p, struct gb *b, enum gx_enc enc);
/* The same question for one text: does it match? Keeps p. */
bool product_has(struct product *p, struct str text);

/* Regular expressions (gram_regex.c). whole: all of the text must match, otherwise any part. */
int32_t x_regex(struct gb *b, struct str pattern, bool whole, enum gx_enc enc);
int32_t x_gbnf(struct gb *b, struct str text);
int32_t x_tags(struct gb *b, const struct gram_tags *t);
int32_t x_schema(struct gb *b, const struct json *schema);
/* The shared rules of JSON (gram_json.c). */
int32_t x_ws(struct gb *b);
int32_t x_json_value(struct gb *b);
int32_t x_json_object(struct gb *b);
int32_t x_json_array(struct gb *b);
int32_t x_json_string(struct gb *b);
int32_t x_json_char(struct gb *b); /* a character of a free string, in any spelling */
int32_t x_json_number(struct gb *b);
int32_t x_json_integer(struct gb *b);

/* ---- programs -------------------------------------------------------------------------------- */

enum gn_op {
    GN_DEAD,
    GN_RET,   /* end of a rule (or of everything) */
    GN_BYTES, /* one byte of set a, then next */
    GN_SPLIT, /* b alternatives at kids[a] */
    GN_CALL,  /* rule a, then next */
    GN_JUMP,  /* rule a instead of the rest of this one: nothing is pushed */
    GN_REP,   /* body a min..max times, then next */
    GN_LOOP,  /* end of the body of repetition a */
};
#define N_DEAD 0
#define N_RET  1

struct gnode {
    int32_t op, a, b, c; /* REP: b = min, c = max (-1: no limit) */
    int32_t next;
};

struct prog {
    VEC(struct gnode) n;
    VEC(int32_t) kids;
    struct byteset *sets;
    int32_t n_sets;
    int32_t *rule_start; /* node of each rule */
    int32_t n_rules;
    int32_t start;
    int32_t n_class;
    uint8_t class_of[256], byte_of[256]; /* bytes that no set tells apart; one byte of each */
};

/* X_NONE as root, or one that matches nothing, gives a program whose start is N_DEAD. */
enum qn_status prog_build(struct gb *b, int32_t root, struct prog *out);
void prog_free(struct prog *p);

/* ---- machines -------------------------------------------------------------------------------- */

#define STATE_DEAD    (-1)
#define STATE_UNKNOWN (-2)
#define STATE_MIXED   (-3) /* of `plain`: the plain characters lead to different states */

/* A place in the program with a stack. */
struct config {
    int32_t node, stack;
};

/* node: where a CALL returns to, or the REP that runs; count: rounds done. Frame 0: the bottom. */
struct frame {
    int32_t parent, node, count, depth;
};

struct mstate {
    int32_t first, n; /* configs: all stand on GN_BYTES */
    int32_t *next;    /* [n_class]; NULL until asked for */
    int32_t plain;    /* the state after any plain character */
    int32_t low;      /* least depth of stack looked at on any way to here; -1: the bottom */
    int32_t top;      /* greatest depth of its stacks */
    bool accept;
    const struct mask *mask; /* for the vocabulary of the machine's owner; NULL = not known */
    uint64_t hash;
};

struct itab { /* open addressing over ids; 0 = free, else id + 1 */
    int32_t *v;
    int32_t cap, n;
};

struct machine {
    const struct prog *p;
    VEC(struct frame) frames;
    VEC(struct config) configs;
    VEC(struct mstate) states;
    struct itab frame_tab, state_tab;
    VEC(struct config) work, out; /* of the closure being computed */
    uint64_t *seen;               /* hash set of it, by epoch */
    uint32_t *seen_epoch;
    int32_t seen_cap, seen_n;
    uint32_t epoch;
    bool accept;
    int32_t low;
    int64_t steps, steps_max; /* work done; past steps_max `failed` is set */
    int64_t bytes;
    const char *failed; /* why it cannot go on: a static string */
};

enum qn_status machine_init(struct machine *m, const struct prog *p, struct qn_err *err);
void machine_free(struct machine *m);
/* The state after one byte; STATE_DEAD when none, also when m->failed. State 0 is the first. */
int32_t machine_step_slow(struct machine *m, int32_t state, int cls);

static inline int32_t machine_step(struct machine *m, int32_t state, uint8_t byte)
{
    int cls = m->p->class_of[byte];
    const int32_t *next = m->states.v[state].next;
    if (next && next[cls] != STATE_UNKNOWN)
        return next[cls];
    return machine_step_slow(m, state, cls);
}

/* The same state of another machine over the same program, made there when needed. */
int32_t machine_import(struct machine *to, const struct machine *from, int32_t state);
/* Where all plain characters (no control character, quote or backslash; whole UTF-8) lead:
 * a state, STATE_DEAD, or STATE_MIXED. */
int32_t machine_plain(struct machine *m, int32_t state);
/* A hash of what the top k frames (all: -1) of the state's stacks say. */
void machine_key(const struct machine *m, int32_t state, int32_t k, uint64_t key[2]);

/* ---- vocabulary ------------------------------------------------------------------------------ */

#define PLAIN_MAX       16 /* plain tokens of up to this many characters are kept by their count */
#define TOKEN_BYTES_MAX 255
#define SPECIAL_BYTE    0xFF /* a control token's bytes are this one and its text */

struct trie {
    int32_t n;
    uint8_t *byte;
    uint8_t *depth; /* from 1 */
    int32_t *skip;  /* the node after this one's subtree */
    int32_t *tok;   /* first of its tokens in ids, n+1 entries */
    int32_t *ids;
};

struct gram_vocab {
    atomic_int refs;
    int32_t n_vocab, n_words;
    struct trie all, rest; /* rest: without the plain tokens */
    uint64_t *plain;       /* [PLAIN_MAX][n_words]: plain tokens of 1.. characters */
    uint64_t *plain_all;   /* [n_words] */
    char *text;            /* all tokens' bytes */
    int32_t *begin;        /* [n_vocab + 1] in text; special ones with SPECIAL_BYTE */
};

struct mask {
    uint64_t key[2];
    int32_t k; /* the key is of the top k frames; -1 = all */
    bool any;  /* some bit is set */
    uint64_t bits[];
};

/* What is learnt of one grammar with one vocabulary. */
struct lazy {
    atomic_int refs;
    pthread_mutex_t mu; /* everything below */
    struct gram_vocab *vocab;
    struct machine m;
    struct mask **masks; /* open addressing */
    int32_t masks_cap, n_masks;
    int64_t mask_bytes, hits;
    int32_t state_of[TOKEN_BYTES_MAX + 1]; /* of the walk */
};

struct gram {
    atomic_int refs;
    struct prog prog;
    pthread_mutex_t mu; /* current */
    struct lazy *current;
};

enum qn_status lazy_create(struct gram *g, struct gram_vocab *v, struct lazy **out,
                           struct qn_err *err);
void lazy_unref(struct lazy *z);
/* Under mu: the mask of a state, kept; NULL with m.failed set or without memory. */
const struct mask *lazy_mask(struct lazy *z, int32_t state);

#endif
