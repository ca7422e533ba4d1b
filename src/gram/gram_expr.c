/*
 * gram_expr.c - the builder of expressions: construction with the simplifications that keep graphs
 * small, characters as UTF-8 or JSON spelling, sets of texts, and text up to a literal.
 *
 * Invariant: an expression refers only to earlier ones; only rules can refer forward. One thread.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "gram/gram_int.h"

#define WHERE "grammar"

bool vec_grow(void **v, int32_t *cap, int32_t need, size_t size)
{
    int64_t want = *cap ? (int64_t)*cap * 2 : 64;
    if (need < 0 || need > (1 << 30))
        return false;
    if (want < need)
        want = need;
    void *p = realloc(*v, (size_t)want * size);
    if (!p)
        return false;
    *v = p;
    *cap = (int32_t)want;
    return true;
}

/* ---- builder --------------------------------------------------------------------------------- */

int32_t gb_fail(struct gb *b, enum qn_status st, const char *keyword, const char *fmt, ...)
{
    if (b->st != QN_OK)
        return X_NONE;
    b->st = st;
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (keyword && b->fault)
        snprintf(b->fault->keyword, sizeof b->fault->keyword, "%s", keyword);
    err_set(b->err, st, WHERE, "%s%s%s", keyword ? keyword : "", keyword ? ": " : "", msg);
    return X_NONE;
}

int32_t gb_no_memory(struct gb *b)
{
    return gb_fail(b, QN_NO_MEMORY, NULL, "no memory for this grammar");
}

int32_t gb_none(struct gb *b, const char *keyword, const char *fmt, ...)
{
    if (b->none.keyword[0])
        return X_NONE;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(b->none_why, sizeof b->none_why, fmt, ap);
    va_end(ap);
    snprintf(b->none.keyword, sizeof b->none.keyword, "%s", keyword);
    if (b->fault)
        memcpy(b->none.where, b->fault->where, sizeof b->none.where);
    return X_NONE;
}

static int32_t add(struct gb *b, struct gx x)
{
    if (b->st != QN_OK)
        return X_NONE;
    if (b->x.n >= X_MAX)
        return gb_fail(b, QN_UNSUPPORTED, NULL, "the grammar is too large (over %d parts)", X_MAX);
    if (x.depth > X_DEPTH_MAX)
        return gb_fail(b, QN_UNSUPPORTED, NULL, "nested too deeply (over %d levels)", X_DEPTH_MAX);
    if (!VEC_ROOM(&b->x, 1))
        return gb_no_memory(b);
    b->x.v[b->x.n] = x;
    return b->x.n++;
}

void gb_init(struct gb *b, struct qn_err *err, struct gram_fault *fault)
{
    *b = (struct gb){.err = err, .fault = fault};
    b->r_ws = b->r_str = b->r_value = b->r_object = b->r_array = -1;
    b->text.limit = (size_t)256 << 20;
    add(b, (struct gx){.kind = GX_NONE});
    add(b, (struct gx){.kind = GX_EMPTY});
}

void gb_free(struct gb *b)
{
    free(b->x.v);
    free(b->kids.v);
    free(b->sets.v);
    free(b->rules.v);
    buf_free(&b->text);
}

/* ---- expressions ----------------------------------------------------------------------------- */

int32_t x_set(struct gb *b, const struct byteset *s)
{
    if (!(s->w[0] | s->w[1] | s->w[2] | s->w[3]))
        return X_NONE;
    int32_t i = b->sets.n;
    for (int32_t k = 0; k < b->sets.n && k < 512; k++)
        if (memcmp(&b->sets.v[k], s, sizeof *s) == 0)
            i = k;
    if (i == b->sets.n) {
        if (!VEC_ROOM(&b->sets, 1))
            return gb_no_memory(b);
        b->sets.v[b->sets.n++] = *s;
    }
    return add(b, (struct gx){.kind = GX_SET, .a = i});
}

int32_t x_range(struct gb *b, int lo, int hi)
{
    struct byteset s = {0};
    for (int i = lo; i <= hi; i++)
        byteset_add(&s, i);
    return x_set(b, &s);
}

int32_t x_lit(struct gb *b, struct str s)
{
    if (s.n == 0)
        return X_EMPTY;
    if (b->text.n + s.n > INT32_MAX / 2)
        return gb_no_memory(b);
    int32_t at = (int32_t)b->text.n;
    buf_add_str(&b->text, s);
    if (b->text.failed)
        return gb_no_memory(b);
    return add(b, (struct gx){.kind = GX_LIT, .a = at, .b = (int32_t)s.n});
}

int32_t x_litz(struct gb *b, const char *z)
{
    return x_lit(b, str_of(z));
}

/* Parts joined under one kind, with `skip` left out. */
static int32_t join(struct gb *b, enum gx_kind kind, const int32_t *v, int32_t n, int32_t skip)
{
    if (b->st != QN_OK)
        return X_NONE;
    int32_t first = b->kids.n, depth = 0;
    if (!VEC_ROOM(&b->kids, n))
        return gb_no_memory(b);
    for (int32_t i = 0; i < n; i++) {
        if (v[i] == skip)
            continue;
        b->kids.v[b->kids.n++] = v[i];
        if (b->x.v[v[i]].depth > depth)
            depth = b->x.v[v[i]].depth;
    }
    n = b->kids.n - first;
    if (n <= 1) {
        int32_t only = n ? b->kids.v[first] : skip;
        b->kids.n = first;
        return only;
    }
    return add(
        b, (struct gx){.kind = (uint8_t)kind, .depth = (uint16_t)(depth + 1), .a = first, .b = n});
}

int32_t x_seq(struct gb *b, const int32_t *v, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (v[i] == X_NONE)
            return X_NONE;
    return join(b, GX_SEQ, v, n, X_EMPTY);
}

int32_t x_alt(struct gb *b, const int32_t *v, int32_t n)
{
    return join(b, GX_ALT, v, n, X_NONE);
}

int32_t x_rep(struct gb *b, int32_t body, int32_t min, int32_t max)
{
    if (max == 0 || body == X_EMPTY)
        return X_EMPTY;
    if (body == X_NONE)
        return min == 0 ? X_EMPTY : X_NONE;
    if (max > 0 && min > max)
        return X_NONE;
    if (min == 1 && max == 1)
        return body;
    uint16_t depth = b->st == QN_OK ? b->x.v[body].depth : 0;
    return add(
        b,
        (struct gx){.kind = GX_REP, .depth = (uint16_t)(depth + 1), .a = body, .b = min, .c = max});
}

int32_t x_ref(struct gb *b, int32_t rule)
{
    return b->st == QN_OK ? add(b, (struct gx){.kind = GX_REF, .a = rule}) : X_NONE;
}

int32_t x_rule(struct gb *b)
{
    if (b->st != QN_OK)
        return 0;
    if (b->rules.n >= X_MAX)
        return gb_fail(b, QN_UNSUPPORTED, NULL, "the grammar is too large (over %d rules)", X_MAX);
    if (!VEC_ROOM(&b->rules, 1))
        return gb_no_memory(b);
    b->rules.v[b->rules.n] = -1;
    return b->rules.n++;
}

void x_rule_set(struct gb *b, int32_t rule, int32_t x)
{
    if (b->st == QN_OK)
        b->rules.v[rule] = x;
}

/* ---- characters ------------------------------------------------------------------------------ */

static int utf8_put(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (uint8_t)(0x80 | (c & 0x3F));
    out[0] = (uint8_t)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

static bool all_are(const uint8_t *p, int n, uint8_t v)
{
    for (int i = 0; i < n; i++)
        if (p[i] != v)
            return false;
    return true;
}

/* All byte strings of n bytes from lo to hi, both of them UTF-8 of that length. */
static int32_t utf8_span(struct gb *b, const uint8_t *lo, const uint8_t *hi, int n)
{
    static const uint8_t least[3] = {0x80, 0x80, 0x80}, most[3] = {0xBF, 0xBF, 0xBF};
    if (n == 1)
        return x_range(b, lo[0], hi[0]);
    if (lo[0] == hi[0])
        return X_SEQ(b, x_range(b, lo[0], lo[0]), utf8_span(b, lo + 1, hi + 1, n - 1));
    int32_t v[3] = {X_NONE, X_NONE, X_NONE};
    int first = lo[0], last = hi[0];
    if (!all_are(lo + 1, n - 1, 0x80)) {
        v[0] = X_SEQ(b, x_range(b, first, first), utf8_span(b, lo + 1, most, n - 1));
        first++;
    }
    if (!all_are(hi + 1, n - 1, 0xBF)) {
        v[1] = X_SEQ(b, x_range(b, last, last), utf8_span(b, least, hi + 1, n - 1));
        last--;
    }
    if (first <= last)
        v[2] = X_SEQ(b, x_range(b, first, last), utf8_span(b, least, most, n - 1));
    return x_alt(b, v, 3);
}

/* JSON's spelling of one character below 0x80. */
static int32_t json_ascii(struct gb *b, int c)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    char s[8] = {'\\'};
    const char *at = c ? strchr(escaped, c) : NULL;
    if (at)
        s[1] = letter[at - escaped];
    else
        snprintf(s, sizeof s, "\\u%04x", (unsigned)c);
    return x_litz(b, s);
}

static bool needs_escape(int c)
{
    return c < 0x20 || c == '"' || c == '\\';
}

/* The part of a range below 0x80: bytes into *set, escapes into alternatives at *at. */
static void ascii_part(struct gb *b, struct cprange r, enum gx_enc enc, struct byteset *set,
                       int32_t *at)
{
    for (uint32_t c = r.lo; c <= r.hi && c < 0x80; c++) {
        if (enc == ENC_JSON && needs_escape((int)c))
            *at = X_ALT(b, *at, json_ascii(b, (int)c));
        else
            byteset_add(set, (int)c);
    }
}

int32_t x_cps(struct gb *b, const struct cprange *r, int32_t n, enum gx_enc enc)
{
    static const struct cprange spans[] = {
        {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    struct byteset set = {0};
    int32_t escapes = X_NONE, wide = X_NONE;
    VEC(int32_t) v = {0};
    for (int32_t i = 0; i < n && b->st == QN_OK; i++) {
        ascii_part(b, r[i], enc, &set, &escapes);
        for (int k = 0; k < 4; k++) {
            uint32_t lo = r[i].lo > spans[k].lo ? r[i].lo : spans[k].lo;
            uint32_t hi = r[i].hi < spans[k].hi ? r[i].hi : spans[k].hi;
            uint8_t a[4], z[4];
            if (lo > hi)
                continue;
            int len = utf8_put(lo, a);
            utf8_put(hi, z);
            if (!VEC_ROOM(&v, 1))
                gb_no_memory(b);
            else
                v.v[v.n++] = utf8_span(b, a, z, len);
        }
    }
    wide = x_alt(b, v.v, v.n);
    free(v.v);
    return X_ALT(b, x_set(b, &set), escapes, wide);
}

int32_t x_any_char(struct gb *b, enum gx_enc enc)
{
    return x_cps(b, &(struct cprange){0, 0x10FFFF}, 1, enc);
}

static void spell(struct buf *out, struct str s, enum gx_enc enc)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (enc == ENC_RAW || !needs_escape(c)) {
            buf_addc(out, (char)c);
            continue;
        }
        static const char escaped[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
        const char *at = c ? strchr(escaped, c) : NULL;
        if (at)
            buf_addf(out, "\\%c", letter[at - escaped]);
        else
            buf_addf(out, "\\u%04x", c);
    }
}

int32_t x_text(struct gb *b, struct str utf8, enum gx_enc enc)
{
    struct buf t = BUF_INIT;
    spell(&t, utf8, enc);
    int32_t x = t.failed ? gb_no_memory(b) : x_lit(b, buf_str(&t));
    buf_free(&t);
    return x;
}

/* ---- sets of texts --------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = n ? memcmp(x->p, y->p, n) : 0;
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* A group of texts that agree in their first `from` bytes; its rule has no expression yet. */
struct group {
    size_t lo, hi, from;
    int32_t rule;
};

static size_t shared_to(const struct str *v, size_t lo, size_t hi, size_t from)
{
    const struct str *a = &v[lo], *z = &v[hi - 1];
    while (from < a->n && from < z->n && a->p[from] == z->p[from])
        from++;
    return from;
}

/* The shared beginning of a group, and what it leaves for later. */
static int32_t subgroup(struct gb *b, const struct str *v, struct group g, enum gx_enc enc,
                        struct group *sub)
{
    size_t to = shared_to(v, g.lo, g.hi, g.from);
    int32_t head = x_text(b, (struct str){v[g.lo].p + g.from, to - g.from}, enc);
    if (g.hi - g.lo == 1)
        return head;
    *sub = (struct group){g.lo, g.hi, to, x_rule(b)};
    return X_SEQ(b, head, x_ref(b, sub->rule));
}

int32_t x_strset(struct gb *b, struct str *v, size_t n, enum gx_enc enc)
{
    VEC(struct group) todo = {0};
    VEC(int32_t) alts = {0};
    if (n == 0)
        return X_NONE;
    qsort(v, n, sizeof *v, by_bytes);
    size_t kept = 1;
    for (size_t i = 1; i < n; i++)
        if (!str_eq(v[i], v[kept - 1]))
            v[kept++] = v[i];
    int32_t root = x_rule(b);
    if (!VEC_ROOM(&todo, 1))
        gb_no_memory(b);
    else
        todo.v[todo.n++] = (struct group){0, kept, 0, root};
    while (todo.n && b->st == QN_OK) {
        struct group g = todo.v[--todo.n];
        alts.n = 0;
        for (size_t i = g.lo; i < g.hi && b->st == QN_OK;) {
            size_t k = i + 1;
            struct group sub = {0};
            while (v[i].n > g.from && k < g.hi && v[k].p[g.from] == v[i].p[g.from])
                k++;
            if (!VEC_ROOM(&alts, 1) || !VEC_ROOM(&todo, 1)) {
                gb_no_memory(b);
                break;
            }
            alts.v[alts.n++] = subgroup(b, v, (struct group){i, k, g.from, 0}, enc, &sub);
            if (sub.hi)
                todo.v[todo.n++] = sub;
            i = k;
        }
        x_rule_set(b, g.rule, x_alt(b, alts.v, alts.n));
    }
    free(todo.v);
    free(alts.v);
    return x_ref(b, root);
}

/* ---- text around literals -------------------------------------------------------------------- */

/* The end of a text may be a control token of the literal's markup. */
static int32_t token_end(struct gb *b, struct str lit)
{
    const char *tag = memchr(lit.p, '<', lit.n);
    if (!tag)
        return X_NONE;
    struct str rest = {tag, lit.n - (size_t)(tag - lit.p)};
    return X_SEQ(b, x_range(b, SPECIAL_BYTE, SPECIAL_BYTE), x_lit(b, rest));
}

/* One step of the search for lit after its first i bytes: the longest match of each byte. */
static int32_t search_step(struct gb *b, struct str lit, size_t i, const int32_t *fall,
                           int32_t first, enum search_kind kind)
{
    struct byteset other = {{~0ull, ~0ull, ~0ull, ~0ull >> 1}}; /* all but SPECIAL_BYTE */
    int32_t v[260], n = 0;
    v[n++] = kind == SEARCH_WITHOUT ? X_EMPTY : X_NONE;
    if (kind == SEARCH_TEXT)
        v[n++] = token_end(b, lit);
    else /* control tokens are read as their text */
        v[n++] = X_SEQ(b, x_range(b, SPECIAL_BYTE, SPECIAL_BYTE), x_ref(b, first + (int32_t)i));
    for (size_t k = i;; k = (size_t)fall[k]) {
        int c = (unsigned char)lit.p[k];
        if (byteset_has(&other, c)) {
            int32_t go = k + 1 < lit.n            ? x_ref(b, first + (int32_t)k + 1)
                         : kind == SEARCH_WITHOUT ? X_NONE
                                                  : X_EMPTY;
            v[n++] = X_SEQ(b, x_range(b, c, c), go);
            other.w[c >> 6] &= ~((uint64_t)1 << (c & 63));
        }
        if (k == 0)
            break;
    }
    v[n++] = X_SEQ(b, x_set(b, &other), x_ref(b, first));
    return x_alt(b, v, n);
}

/* States 0..lit.n of the search for lit, each a rule that goes on to the next. */
int32_t x_search(struct gb *b, struct str lit, enum search_kind kind)
{
    if (lit.n == 0)
        return X_EMPTY;
    int32_t first = b->rules.n, *fall = calloc(lit.n + 1, sizeof *fall);
    if (!fall)
        return gb_no_memory(b);
    for (size_t i = 0; i < lit.n; i++)
        x_rule(b);
    for (size_t i = 1, k = 0; i < lit.n; i++) {
        while (k && lit.p[i] != lit.p[k])
            k = (size_t)fall[k];
        k += lit.p[i] == lit.p[k];
        fall[i + 1] = (int32_t)k;
    }
    for (size_t i = 0; i < lit.n && b->st == QN_OK; i++)
        x_rule_set(b, first + (int32_t)i, search_step(b, lit, i, fall, first, kind));
    free(fall);
    return x_ref(b, first);
}

int32_t x_markup(struct gb *b, struct str lit)
{
    VEC(int32_t) v = {0};
    char mark = (char)SPECIAL_BYTE;
    size_t i = 0, plain = 0;
    while (i <= lit.n && b->st == QN_OK) {
        char close = i < lit.n && lit.p[i] == '<' ? '>' : i < lit.n && lit.p[i] == '[' ? ']' : 0;
        const char *end = close ? memchr(lit.p + i, close, lit.n - i) : NULL;
        if (i < lit.n && !end) {
            i++;
            continue;
        }
        if (!VEC_ROOM(&v, 2)) {
            gb_no_memory(b);
            break;
        }
        v.v[v.n++] = x_lit(b, (struct str){lit.p + plain, i - plain});
        if (i == lit.n)
            break;
        struct str tag = {lit.p + i, (size_t)(end - lit.p) + 1 - i};
        int32_t text = x_lit(b, tag);
        v.v[v.n++] = X_ALT(b, text, X_SEQ(b, x_lit(b, (struct str){&mark, 1}), text));
        i += tag.n;
        plain = i;
    }
    int32_t x = x_seq(b, v.v, v.n);
    free(v.v);
    return x;
}

/* ---- lengths --------------------------------------------------------------------------------- */

#define LENGTH_MAX 1000000000 /* longer is without limit */

/* Nested at most X_DEPTH_MAX deep. */
int64_t x_longest(const struct gb *b, int32_t x)
{
    const struct gx *g = &b->x.v[x];
    int64_t sum = 0;
    switch (g->kind) {
    case GX_SET:
        return 1;
    case GX_LIT:
        return g->b;
    case GX_SEQ:
    case GX_ALT:
        for (int32_t i = 0; i < g->b && sum >= 0; i++) {
            int64_t n = x_longest(b, b->kids.v[g->a + i]);
            sum = n < 0 ? -1 : g->kind == GX_SEQ ? sum + n : n > sum ? n : sum;
        }
        return sum > LENGTH_MAX ? -1 : sum;
    case GX_REP:
        sum = x_longest(b, g->a);
        return sum == 0 ? 0 : sum < 0 || g->c < 0 || g->c > LENGTH_MAX / sum ? -1 : sum * g->c;
    case GX_REF:
        return -1;
    default:
        return 0;
    }
}

int64_t x_shortest(const struct gb *b, int32_t x)
{
    const struct gx *g = &b->x.v[x];
    int64_t sum = 0;
    switch (g->kind) {
    case GX_SET:
        return 1;
    case GX_LIT:
        return g->b;
    case GX_SEQ:
        for (int32_t i = 0; i < g->b && sum < LENGTH_MAX; i++)
            sum += x_shortest(b, b->kids.v[g->a + i]);
        return sum;
    case GX_ALT:
        sum = LENGTH_MAX;
        for (int32_t i = 0; i < g->b; i++) {
            int64_t n = x_shortest(b, b->kids.v[g->a + i]);
            sum = n < sum ? n : sum;
        }
        return sum;
    case GX_REP:
        sum = x_shortest(b, g->a);
        return sum == 0 || g->b == 0 ? 0 : g->b > LENGTH_MAX / sum ? LENGTH_MAX : sum * g->b;
    default:
        return 0;
    }
}
