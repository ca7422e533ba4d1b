/*
 * gram_regex.c - regular expressions to expressions over bytes. ECMA-262's dialect without what is
 * not regular or needs tables: no look-around, back-references, word boundaries, \p, inline flags.
 *
 * Anchors: each part is kept in four versions (does it need the text's begin, its end), so that
 * ^ and $ work anywhere they can match at all. Recursion is bounded by GROUPS_MAX.
 */
#include <stdlib.h>

#include "base/utf8.h"
#include "gram/gram_int.h"

#define GROUPS_MAX 100
#define COUNT_MAX  1000000000

struct ranges {
    VEC(struct cprange) r;
};

struct re {
    struct gb *b;
    struct str s;
    size_t at;
    int depth;
    enum gx_enc enc;
};

/* v[begin][end]: what matches where the text's begin (end) is required. */
struct part {
    int32_t v[2][2];
};

static const struct part part_none = {{{X_NONE, X_NONE}, {X_NONE, X_NONE}}};

static struct part plain(int32_t x)
{
    struct part p = part_none;
    p.v[0][0] = x;
    return p;
}

static void bad(struct re *r, const char *what)
{
    gb_fail(r->b, QN_BAD_INPUT, "pattern", "%s at byte %zu of the regular expression", what, r->at);
}

static void unsupported(struct re *r, const char *what)
{
    gb_fail(r->b, QN_UNSUPPORTED, "pattern",
            "%s (byte %zu of the regular expression) is not "
            "supported",
            what, r->at);
}

static int peek(const struct re *r)
{
    return r->at < r->s.n ? (unsigned char)r->s.p[r->at] : -1;
}

static bool eat(struct re *r, char c)
{
    if (peek(r) != (unsigned char)c)
        return false;
    r->at++;
    return true;
}

/* ---- characters ------------------------------------------------------------------------------ */

static void add(struct re *r, struct ranges *set, uint32_t lo, uint32_t hi)
{
    if (!VEC_ROOM(&set->r, 1))
        gb_no_memory(r->b);
    else
        set->r.v[set->r.n++] = (struct cprange){lo, hi};
}

static int by_lo(const void *a, const void *b)
{
    const struct cprange *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static void tidy(struct ranges *set)
{
    int32_t n = 0;
    if (set->r.n == 0)
        return;
    qsort(set->r.v, (size_t)set->r.n, sizeof *set->r.v, by_lo);
    for (int32_t i = 1; i < set->r.n; i++) {
        struct cprange *last = &set->r.v[n], c = set->r.v[i];
        if (c.lo > last->hi + 1)
            set->r.v[++n] = c;
        else if (c.hi > last->hi)
            last->hi = c.hi;
    }
    set->r.n = n + 1;
}

static void add_not(struct re *r, struct ranges *out, struct ranges *set)
{
    uint32_t from = 0;
    tidy(set);
    for (int32_t i = 0; i < set->r.n; i++) {
        if (set->r.v[i].lo > from)
            add(r, out, from, set->r.v[i].lo - 1);
        from = set->r.v[i].hi + 1;
    }
    if (from <= 0x10FFFF)
        add(r, out, from, 0x10FFFF);
}

/* \d \w \s. White space beyond ASCII is never produced by \s, but \S leaves it out as well. */
static void add_kind(struct re *r, struct ranges *set, int c, bool wide)
{
    static const struct cprange spaces[] = {{0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                            {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                            {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    if (c == 'd' || c == 'w')
        add(r, set, '0', '9');
    if (c == 'w') {
        add(r, set, 'A', 'Z');
        add(r, set, '_', '_');
        add(r, set, 'a', 'z');
    }
    if (c == 's') {
        add(r, set, 9, 13);
        add(r, set, ' ', ' ');
        for (size_t i = 0; wide && i < sizeof spaces / sizeof *spaces; i++)
            add(r, set, spaces[i].lo, spaces[i].hi);
    }
}

static int64_t hex_digits(struct re *r, int n)
{
    int64_t v = 0;
    for (int i = 0; i < n; i++) {
        int c = peek(r);
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : -1;
        if (d < 0) {
            bad(r, "a hexadecimal digit is missing");
            return 0;
        }
        v = v * 16 + d;
        r->at++;
    }
    return v;
}

static int64_t braced_hex(struct re *r)
{
    int64_t v = 0;
    int n = 0;
    while (peek(r) != '}' && n++ < 7 && r->b->st == QN_OK)
        v = v * 16 + hex_digits(r, 1);
    if (!eat(r, '}') || n == 0 || v > 0x10FFFF)
        bad(r, "\\u{...} is malformed");
    return v;
}

static int64_t unicode_escape(struct re *r)
{
    if (eat(r, '{'))
        return braced_hex(r);
    int64_t v = hex_digits(r, 4);
    if (v >= 0xD800 && v < 0xDC00 && r->at + 1 < r->s.n && r->s.p[r->at] == '\\' &&
        r->s.p[r->at + 1] == 'u') {
        r->at += 2;
        int64_t low = hex_digits(r, 4);
        if (low >= 0xDC00 && low < 0xE000)
            return 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
        bad(r, "half a surrogate pair");
    }
    return v;
}

/* After a backslash: a single character, or -1 when a whole class was added to set. */
static int64_t escape(struct re *r, struct ranges *set, bool negated)
{
    static const char letters[] = "nrtfv", values[] = "\n\r\t\f\v";
    int c = peek(r);
    if (c < 0) {
        bad(r, "nothing after a backslash");
        return 0;
    }
    r->at++;
    const char *at = strchr(letters, c);
    if (at)
        return values[at - letters];
    if (c == 'd' || c == 'w' || c == 's') {
        add_kind(r, set, c, negated);
        return -1;
    }
    if (c == 'D' || c == 'W' || c == 'S') {
        struct ranges pos = {0};
        add_kind(r, &pos, c | 32, !negated);
        add_not(r, set, &pos);
        free(pos.r.v);
        return -1;
    }
    if (c == 'x')
        return hex_digits(r, 2);
    if (c == 'u')
        return unicode_escape(r);
    if (c == '0' && !(peek(r) >= '0' && peek(r) <= '9'))
        return 0;
    if (c == 'c' && ((peek(r) | 32) >= 'a' && (peek(r) | 32) <= 'z'))
        return (unsigned char)r->s.p[r->at++] & 31;
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        char what[16] = {'\\', (char)c};
        r->at--;
        unsupported(r, what);
        return 0;
    }
    if (c < 0x80)
        return c;
    r->at--;
    return utf8_next(r->s, &r->at);
}

/* One bound of a class: a character, or -1 for a class such as \d. */
static int64_t class_atom(struct re *r, struct ranges *set, bool negated)
{
    if (eat(r, '\\')) {
        if (peek(r) == 'b') {
            r->at++;
            return 8;
        }
        return escape(r, set, negated);
    }
    return utf8_next(r->s, &r->at);
}

/* After "[". */
static int32_t char_class(struct re *r)
{
    struct ranges set = {0}, out = {0};
    bool negated = eat(r, '^');
    while (r->b->st == QN_OK && peek(r) != ']') {
        if (peek(r) < 0) {
            bad(r, "a character class is not closed");
            break;
        }
        int64_t lo = class_atom(r, &set, negated), hi = lo;
        if (peek(r) == '-' && r->at + 1 < r->s.n && r->s.p[r->at + 1] != ']') {
            r->at++;
            hi = class_atom(r, &set, negated);
            if (lo < 0 || hi < 0) { /* [\d-x]: the dash is itself */
                add(r, &set, '-', '-');
                lo = lo < 0 ? hi : lo;
                hi = lo;
            }
        }
        if (lo >= 0 && lo > hi)
            bad(r, "a range of characters runs backwards");
        else if (lo >= 0)
            add(r, &set, (uint32_t)lo, (uint32_t)hi);
    }
    eat(r, ']');
    if (negated)
        add_not(r, &out, &set);
    struct ranges *use = negated ? &out : &set;
    tidy(use);
    int32_t x = r->b->st == QN_OK ? x_cps(r->b, use->r.v, use->r.n, r->enc) : X_NONE;
    free(set.r.v);
    free(out.r.v);
    return x;
}

static int32_t one_char(struct re *r, int64_t c)
{
    return x_cps(r->b, &(struct cprange){(uint32_t)c, (uint32_t)c}, 1, r->enc);
}

static int32_t dot(struct re *r)
{
    static const struct cprange v[] = {{0, 9}, {11, 12}, {14, 0x2027}, {0x202A, 0x10FFFF}};
    return x_cps(r->b, v, 4, r->enc);
}

static int32_t escaped(struct re *r)
{
    struct ranges set = {0};
    int32_t x;
    if (peek(r) == 'b' || peek(r) == 'B') {
        unsupported(r, "a word boundary");
        return X_NONE;
    }
    int64_t c = escape(r, &set, false);
    if (c >= 0) {
        x = one_char(r, c);
    } else {
        tidy(&set);
        x = x_cps(r->b, set.r.v, set.r.n, r->enc);
    }
    free(set.r.v);
    return x;
}

/* ---- structure ------------------------------------------------------------------------------- */

static struct part alternatives(struct re *r);

static struct part either(struct gb *b, struct part x, struct part y)
{
    for (int s = 0; s < 2; s++)
        for (int e = 0; e < 2; e++)
            x.v[s][e] = X_ALT(b, x.v[s][e], y.v[s][e]);
    return x;
}

/* x then y. What needs the end before a y, or the begin after an x, matches only where the other
 * is empty. */
static struct part then(struct re *r, struct part x, struct part y)
{
    struct part out = part_none;
    for (int k = 0; k < 16; k++) {
        int s1 = k & 1, e1 = k >> 1 & 1, s2 = k >> 2 & 1, e2 = k >> 3;
        int32_t a = x.v[s1][e1], z = y.v[s2][e2];
        if (a == X_NONE || z == X_NONE)
            continue;
        if ((e1 && z != X_EMPTY) || (s2 && a != X_EMPTY)) {
            unsupported(r, "an anchor (^ or $) in the middle");
            return part_none;
        }
        int s = s1 || s2, e = e1 || e2;
        out.v[s][e] = X_ALT(r->b, out.v[s][e], X_SEQ(r->b, a, z));
    }
    return out;
}

/* After "(". */
static struct part group(struct re *r)
{
    if (eat(r, '?')) {
        if (eat(r, ':')) {
        } else if ((peek(r) == '<' && r->at + 1 < r->s.n && r->s.p[r->at + 1] != '=' &&
                    r->s.p[r->at + 1] != '!') ||
                   peek(r) == 'P') {
            while (peek(r) >= 0 && peek(r) != '>')
                r->at++;
            if (!eat(r, '>'))
                bad(r, "a group's name is not closed");
        } else {
            unsupported(r, "(?...): look-around or an inline flag");
            return part_none;
        }
    }
    if (++r->depth > GROUPS_MAX) {
        gb_fail(r->b, QN_UNSUPPORTED, "pattern", "groups are nested more than %d deep", GROUPS_MAX);
        return part_none;
    }
    struct part p = alternatives(r);
    r->depth--;
    if (r->b->st == QN_OK && !eat(r, ')'))
        bad(r, "a group is not closed");
    return p;
}

static struct part atom(struct re *r)
{
    struct part p = part_none;
    if (eat(r, '('))
        return group(r);
    if (eat(r, '['))
        return plain(char_class(r));
    if (eat(r, '.'))
        return plain(dot(r));
    if (eat(r, '\\'))
        return plain(escaped(r));
    if (eat(r, '^')) {
        p.v[1][0] = X_EMPTY;
        return p;
    }
    if (eat(r, '$')) {
        p.v[0][1] = X_EMPTY;
        return p;
    }
    if (peek(r) == '*' || peek(r) == '+' || peek(r) == '?') {
        bad(r, "nothing to repeat");
        return p;
    }
    return plain(one_char(r, utf8_next(r->s, &r->at)));
}

/* A number; -1 when there is none. */
static int32_t number(struct re *r)
{
    int64_t v = -1;
    while (peek(r) >= '0' && peek(r) <= '9') {
        v = (v < 0 ? 0 : v) * 10 + (r->s.p[r->at++] - '0');
        if (v > COUNT_MAX) {
            gb_fail(r->b, QN_UNSUPPORTED, "pattern", "a repetition of more than %d", COUNT_MAX);
            return 0;
        }
    }
    return (int32_t)v;
}

/* {m}, {m,} or {m,n}; anything else is an ordinary brace. */
static bool braces(struct re *r, int32_t *min, int32_t *max)
{
    size_t from = r->at;
    if (!eat(r, '{'))
        return false;
    *min = *max = number(r);
    if (*min >= 0 && eat(r, ','))
        *max = number(r);
    if (*min >= 0 && eat(r, '}'))
        return true;
    r->at = from;
    return false;
}

static bool quantifier(struct re *r, int32_t *min, int32_t *max)
{
    *max = -1;
    if (eat(r, '*'))
        *min = 0;
    else if (eat(r, '+'))
        *min = 1;
    else if (eat(r, '?'))
        *min = 0, *max = 1;
    else if (!braces(r, min, max))
        return false;
    if (*max >= 0 && *min > *max)
        bad(r, "a repetition's limits run backwards");
    if (peek(r) == '+')
        unsupported(r, "a possessive quantifier");
    eat(r, '?'); /* lazy or greedy: the same texts */
    return true;
}

static struct part repeated(struct re *r)
{
    struct part p = atom(r);
    int32_t min, max;
    while (r->b->st == QN_OK && quantifier(r, &min, &max)) {
        bool anchored = p.v[0][1] != X_NONE || p.v[1][0] != X_NONE || p.v[1][1] != X_NONE;
        if (anchored && !(max == 1)) {
            unsupported(r, "a repeated anchor");
        } else if (anchored) {
            if (min == 0)
                p.v[0][0] = X_ALT(r->b, p.v[0][0], X_EMPTY);
        } else {
            p.v[0][0] = x_rep(r->b, p.v[0][0], min, max);
        }
    }
    return p;
}

static struct part alternatives(struct re *r)
{
    struct part all = part_none;
    do {
        struct part p = plain(X_EMPTY);
        while (r->b->st == QN_OK && peek(r) >= 0 && peek(r) != '|' && peek(r) != ')')
            p = then(r, p, repeated(r));
        all = either(r->b, all, p);
    } while (r->b->st == QN_OK && eat(r, '|'));
    return all;
}

int32_t x_regex(struct gb *b, struct str pattern, bool whole, enum gx_enc enc)
{
    struct re r = {.b = b, .s = pattern, .enc = enc};
    if (pattern.n > 1 << 20)
        return gb_fail(b, QN_UNSUPPORTED, "pattern",
                       "a regular expression of %zu bytes; at most %d", pattern.n, 1 << 20);
    struct part p = alternatives(&r);
    if (b->st == QN_OK && r.at < pattern.n)
        bad(&r, "an unmatched )");
    if (b->st != QN_OK)
        return X_NONE;
    if (whole)
        return X_ALT(b, p.v[0][0], p.v[0][1], p.v[1][0], p.v[1][1]);
    int32_t any = x_rep(b, x_any_char(b, enc), 0, -1);
    return X_ALT(b, X_SEQ(b, any, p.v[0][0], any), X_SEQ(b, any, p.v[0][1]),
                 X_SEQ(b, p.v[1][0], any), p.v[1][1]);
}
