/*
 * gram_gbnf.c - llama.cpp's GBNF (and the EBNF texts that keep to it): rules `name ::= ...` of
 * literals, character classes, rule names, groups, | and the repetitions ? * + {m} {m,} {m,n}.
 * Comments begin with #. The answer is what "root" matches.
 *
 * Recursion is bounded by GROUPS_MAX.
 */
#include <stdlib.h>

#include "base/hash.h"
#include "base/utf8.h"
#include "gram/gram_int.h"

#define GROUPS_MAX 100
#define BYTES_MAX  (4 << 20)
#define COUNT_MAX  1000000000

struct name {
    struct str s;
    int32_t rule;
};

struct bnf {
    struct gb *b;
    struct str s;
    size_t at;
    int depth;
    VEC(struct name) names;
    struct itab tab;
};

static void bad(struct bnf *g, const char *what)
{
    size_t line = 1;
    for (size_t i = 0; i < g->at && i < g->s.n; i++)
        line += g->s.p[i] == '\n';
    gb_fail(g->b, QN_BAD_INPUT, "grammar", "%s in line %zu", what, line);
}

static int peek(const struct bnf *g)
{
    return g->at < g->s.n ? (unsigned char)g->s.p[g->at] : -1;
}

static bool eat(struct bnf *g, char c)
{
    if (peek(g) != (unsigned char)c)
        return false;
    g->at++;
    return true;
}

/* Blanks and comments; line ends only where a rule can go on over them. */
static void space(struct bnf *g, bool lines)
{
    for (;;) {
        int c = peek(g);
        if (c == '#') {
            while (peek(g) >= 0 && peek(g) != '\n' && peek(g) != '\r')
                g->at++;
        } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
            g->at++;
        } else {
            return;
        }
    }
}

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_name(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static struct str name_here(struct bnf *g)
{
    size_t from = g->at;
    while (is_name(peek(g)))
        g->at++;
    return (struct str){g->s.p + from, g->at - from};
}

static bool names_room(struct bnf *g)
{
    if ((g->tab.n + 1) * 2 <= g->tab.cap)
        return true;
    int32_t cap = g->tab.cap ? g->tab.cap * 2 : 64;
    int32_t *v = calloc((size_t)cap, sizeof *v);
    if (!v)
        return false;
    for (int32_t i = 0; i < g->names.n; i++) {
        uint64_t h = hash64(g->names.v[i].s.p, g->names.v[i].s.n, 0);
        while (v[h & (uint64_t)(cap - 1)])
            h++;
        v[h & (uint64_t)(cap - 1)] = i + 1;
    }
    free(g->tab.v);
    g->tab.v = v;
    g->tab.cap = cap;
    return true;
}

/* The rule of a name, made when new. */
static int32_t rule_of(struct bnf *g, struct str name)
{
    if (!names_room(g) || !VEC_ROOM(&g->names, 1)) {
        gb_no_memory(g->b);
        return 0;
    }
    for (uint64_t h = hash64(name.p, name.n, 0);; h++) {
        int32_t *slot = &g->tab.v[h & (uint64_t)(g->tab.cap - 1)];
        if (*slot && str_eq(g->names.v[*slot - 1].s, name))
            return g->names.v[*slot - 1].rule;
        if (*slot)
            continue;
        g->names.v[g->names.n] = (struct name){name, x_rule(g->b)};
        *slot = ++g->names.n;
        g->tab.n++;
        return g->names.v[g->names.n - 1].rule;
    }
}

/* ---- characters ------------------------------------------------------------------------------ */

static uint32_t hex(struct bnf *g, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) {
        int c = peek(g), low = c | 32;
        if (!((c >= '0' && c <= '9') || (low >= 'a' && low <= 'f'))) {
            bad(g, "a hexadecimal digit is missing");
            return 0;
        }
        v = v * 16 + (uint32_t)(c <= '9' ? c - '0' : low - 'a' + 10);
        g->at++;
    }
    if (v > 0x10FFFF)
        bad(g, "a character beyond U+10FFFF");
    return v > 0x10FFFF ? 0 : v;
}

static uint32_t character(struct bnf *g)
{
    if (!eat(g, '\\'))
        return utf8_next(g->s, &g->at);
    int c = peek(g);
    g->at += c >= 0;
    switch (c) {
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    case 'x':
        return hex(g, 2);
    case 'u':
        return hex(g, 4);
    case 'U':
        return hex(g, 8);
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
    case '/':
    case '\'':
        return (uint32_t)c;
    default:
        bad(g, "an unknown escape");
        return 0;
    }
}

/* After the opening quote. */
static int32_t literal(struct bnf *g, char quote)
{
    struct buf t = BUF_INIT;
    while (g->b->st == QN_OK && !eat(g, quote)) {
        if (peek(g) < 0 || peek(g) == '\n')
            bad(g, "a literal is not closed");
        else
            buf_add_utf8(&t, character(g));
    }
    int32_t x = t.failed ? gb_no_memory(g->b) : x_lit(g->b, buf_str(&t));
    buf_free(&t);
    return x;
}

static int by_lo(const void *a, const void *b)
{
    const struct cprange *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Sorted ranges to their complement, in place: out may hold one more. */
static int32_t complement(const struct cprange *v, int32_t n, struct cprange *out)
{
    uint32_t from = 0;
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) {
        if (v[i].lo > from)
            out[k++] = (struct cprange){from, v[i].lo - 1};
        if (v[i].hi + 1 > from)
            from = v[i].hi + 1;
    }
    if (from <= 0x10FFFF)
        out[k++] = (struct cprange){from, 0x10FFFF};
    return k;
}

/* After "[". */
static int32_t char_class(struct bnf *g)
{
    VEC(struct cprange) v = {0};
    bool negated = eat(g, '^');
    while (g->b->st == QN_OK && !eat(g, ']')) {
        if (peek(g) < 0) {
            bad(g, "a character class is not closed");
            break;
        }
        uint32_t lo = character(g), hi = lo;
        if (peek(g) == '-' && g->at + 1 < g->s.n && g->s.p[g->at + 1] != ']') {
            g->at++;
            hi = character(g);
        }
        if (hi < lo)
            bad(g, "a range of characters runs backwards");
        else if (!VEC_ROOM(&v, 1))
            gb_no_memory(g->b);
        else
            v.v[v.n++] = (struct cprange){lo, hi};
    }
    int32_t x = X_NONE, n = v.n;
    struct cprange *out = malloc(((size_t)v.n + 1) * sizeof *out);
    if (!out) {
        gb_no_memory(g->b);
    } else if (g->b->st == QN_OK) {
        if (n)
            qsort(v.v, (size_t)n, sizeof *v.v, by_lo);
        if (negated)
            n = complement(v.v, n, out);
        x = x_cps(g->b, negated ? out : v.v, n, ENC_RAW);
    }
    free(out);
    free(v.v);
    return x;
}

/* ---- structure ------------------------------------------------------------------------------- */

static int32_t alternatives(struct bnf *g, bool lines);

static int32_t number(struct bnf *g)
{
    int64_t v = -1;
    while (peek(g) >= '0' && peek(g) <= '9') {
        v = (v < 0 ? 0 : v) * 10 + (g->s.p[g->at++] - '0');
        if (v > COUNT_MAX) {
            gb_fail(g->b, QN_UNSUPPORTED, "grammar", "a repetition of more than %d", COUNT_MAX);
            return 0;
        }
    }
    return (int32_t)v;
}

/* After "{". */
static int32_t counted(struct bnf *g, int32_t x)
{
    space(g, false);
    int32_t min = number(g), max = min;
    space(g, false);
    if (min >= 0 && eat(g, ',')) {
        space(g, false);
        max = number(g);
        space(g, false);
    }
    if (!eat(g, '}') || min < 0 || (max >= 0 && max < min)) {
        bad(g, "a malformed repetition {m,n}");
        return X_NONE;
    }
    return x_rep(g->b, x, min, max);
}

static int32_t repeated(struct bnf *g, int32_t x, bool lines)
{
    while (g->b->st == QN_OK) {
        space(g, lines);
        if (eat(g, '*'))
            x = x_rep(g->b, x, 0, -1);
        else if (eat(g, '+'))
            x = x_rep(g->b, x, 1, -1);
        else if (eat(g, '?'))
            x = x_opt(g->b, x);
        else if (eat(g, '{'))
            x = counted(g, x);
        else
            break;
    }
    return x;
}

static int32_t element(struct bnf *g)
{
    int32_t x;
    if (eat(g, '"'))
        return literal(g, '"');
    if (eat(g, '\''))
        return literal(g, '\'');
    if (eat(g, '['))
        return char_class(g);
    if (eat(g, '.'))
        return x_any_char(g->b, ENC_RAW);
    if (is_name(peek(g)))
        return x_ref(g->b, rule_of(g, name_here(g)));
    if (!eat(g, '(')) {
        bad(g, peek(g) == '<' || peek(g) == '!' ? "tokens (<...>) are not supported; found one"
                                                : "expected a literal, a class, a name or (");
        return X_NONE;
    }
    if (++g->depth > GROUPS_MAX) {
        gb_fail(g->b, QN_UNSUPPORTED, "grammar", "groups are nested more than %d deep", GROUPS_MAX);
        return X_NONE;
    }
    x = alternatives(g, true);
    g->depth--;
    if (g->b->st == QN_OK && !eat(g, ')'))
        bad(g, "a group is not closed");
    return x;
}

/* Where a sequence ends: at |, ), the end, or (outside groups) the line. */
static bool at_end(const struct bnf *g)
{
    int c = peek(g);
    return c < 0 || c == '|' || c == ')' || c == '\n' || c == '\r';
}

/* Parts in a growing list, joined at the end. */
struct parts {
    VEC(int32_t) x;
};

static void part(struct bnf *g, struct parts *p, int32_t x)
{
    if (!VEC_ROOM(&p->x, 1))
        gb_no_memory(g->b);
    else
        p->x.v[p->x.n++] = x;
}

static int32_t sequence(struct bnf *g, bool lines)
{
    struct parts p = {0};
    space(g, lines);
    while (g->b->st == QN_OK && !at_end(g)) {
        int32_t x = element(g);
        part(g, &p, repeated(g, x, lines));
    }
    int32_t x = p.x.n ? x_seq(g->b, p.x.v, p.x.n) : X_EMPTY;
    free(p.x.v);
    return x;
}

static int32_t alternatives(struct bnf *g, bool lines)
{
    struct parts p = {0};
    part(g, &p, sequence(g, lines));
    while (g->b->st == QN_OK && eat(g, '|')) {
        space(g, true);
        part(g, &p, sequence(g, lines));
    }
    int32_t x = x_alt(g->b, p.x.v, p.x.n);
    free(p.x.v);
    return x;
}

static void rule(struct bnf *g)
{
    struct str name = name_here(g);
    if (name.n == 0) {
        bad(g, "expected a rule's name");
        return;
    }
    int32_t r = rule_of(g, name);
    space(g, false);
    if (!(eat(g, ':') && eat(g, ':') && eat(g, '='))) {
        bad(g, "expected ::= after a rule's name");
        return;
    }
    space(g, true);
    int32_t x = alternatives(g, false);
    if (g->b->st != QN_OK)
        return;
    if (peek(g) == ')')
        bad(g, "an unmatched )");
    else if (g->b->rules.v[r] >= 0)
        gb_fail(g->b, QN_BAD_INPUT, "grammar", "the rule \"%.*s\" is given twice",
                (int)(name.n > 60 ? 60 : name.n), name.p);
    else
        x_rule_set(g->b, r, x);
}

static int32_t whole(struct bnf *g)
{
    struct str root = STR_LIT("root");
    int32_t r = rule_of(g, root);
    space(g, true);
    while (g->b->st == QN_OK && peek(g) >= 0) {
        rule(g);
        space(g, true);
    }
    for (int32_t i = 0; g->b->st == QN_OK && i < g->names.n; i++)
        if (g->b->rules.v[g->names.v[i].rule] < 0)
            gb_fail(g->b, QN_BAD_INPUT, "grammar", "the rule \"%.*s\" is %s",
                    (int)(g->names.v[i].s.n > 60 ? 60 : g->names.v[i].s.n), g->names.v[i].s.p,
                    i ? "used but not given" : "missing; the answer is what it matches");
    return x_ref(g->b, r);
}

int32_t x_gbnf(struct gb *b, struct str text)
{
    struct bnf g = {.b = b, .s = text};
    if (text.n > BYTES_MAX)
        return gb_fail(b, QN_UNSUPPORTED, "grammar", "a grammar of %zu bytes; at most %d", text.n,
                       BYTES_MAX);
    if (!utf8_valid(text))
        return gb_fail(b, QN_BAD_INPUT, "grammar", "not valid UTF-8");
    int32_t x = whole(&g);
    free(g.names.v);
    free(g.tab.v);
    return x;
}
