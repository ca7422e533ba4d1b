/*
 * tmpl_filters.c - the built-in filters on text and numbers, tojson as transformers defines it, and
 * default. Those on sequences are in tmpl_filters_seq.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tmpl/tmpl_value.h"
#include "tmpl/tmpl_ustr.h"

#define FILTER(name)                                                                               \
    static enum qn_status name(struct tenv *e, const struct val *a, const struct targs *raw,       \
                               struct val *out)

static bool missing(const struct val *v)
{
    return v->t == V_MISSING;
}

static enum qn_status arg_bool(struct tenv *e, const struct val *v, bool *out)
{
    *out = false;
    return missing(v) ? QN_OK : tv_truth(e, v, out);
}

static enum qn_status arg_int(struct tenv *e, const struct val *v, int64_t def, int64_t *out)
{
    *out = def;
    if (missing(v))
        return QN_OK;
    if (!v_is_int(v))
        return tv_fail(e, "'%s' object cannot be interpreted as an integer", tv_type_name(v));
    *out = v_as_int(v);
    return QN_OK;
}

/* jinja2's soft_str: strings stay as they are (markup too), the rest becomes str(v). */
static enum qn_status soft(struct tenv *e, const struct val *v, struct val *out)
{
    struct str s;
    if (v->t == V_STR) {
        *out = *v;
        return QN_OK;
    }
    QN_TRY(tv_to_str(e, v, &s));
    *out = v_str(s);
    return QN_OK;
}

static enum qn_status method(struct tenv *e, const char *name, const struct val *self,
                             const struct val *args, int n, struct val *out)
{
    struct targs t = {.v = args, .n = n};
    return tv_call_builtin(e, tbuiltin_find(tmpl_str_methods, str_of(name)), self, &t, out);
}

static enum qn_status soft_method(struct tenv *e, const char *name, const struct val *a,
                                  struct val *out)
{
    struct val s;
    QN_TRY(soft(e, a, &s));
    return method(e, name, &s, NULL, 0, out);
}

/* ---- text ---------------------------------------------------------------------------------- */

FILTER(f_upper)
{
    return soft_method(e, "upper", a, out);
}
FILTER(f_lower)
{
    return soft_method(e, "lower", a, out);
}
FILTER(f_capitalize)
{
    return soft_method(e, "capitalize", a, out);
}

FILTER(f_string)
{
    return soft(e, a, out);
}

FILTER(f_safe)
{
    QN_TRY(soft(e, a, out));
    out->safe = 1;
    return QN_OK;
}

FILTER(f_forceescape)
{
    struct buf b = {.limit = e->bytes_max};
    struct str s;
    QN_TRY(tv_to_str(e, a, &s));
    tv_escape(&b, s);
    QN_TRY(tv_str_take(e, &b, out));
    out->safe = 1;
    return QN_OK;
}

FILTER(f_escape)
{
    if (a[0].t == V_STR && a[0].safe) {
        *out = a[0];
        return QN_OK;
    }
    return f_forceescape(e, a, raw, out);
}

FILTER(f_trim)
{
    struct val s;
    QN_TRY(soft(e, a, &s));
    return method(e, "strip", &s, &a[1], missing(&a[1]) ? 0 : 1, out);
}

FILTER(f_center)
{
    struct val s, width = missing(&a[1]) ? v_int(80) : a[1];
    QN_TRY(soft(e, a, &s));
    return method(e, "center", &s, &width, 1, out);
}

FILTER(f_replace)
{
    struct val s[4];
    for (int i = 0; i < 3; i++) {
        QN_TRY(soft(e, &a[i], &s[i]));
        s[i].safe = 0;
    }
    s[3] = missing(&a[3]) ? v_none() : a[3];
    return method(e, "replace", &s[0], &s[1], 3, out);
}

/* Words begin after white space, '-' and opening brackets. */
FILTER(f_title)
{
    struct val v;
    struct buf b = {.limit = e->bytes_max};
    QN_TRY(soft(e, a, &v));
    struct str s = v.s;
    for (size_t i = 0; i < s.n;) {
        size_t at = i;
        uint32_t cp = us_next(s, &i);
        if (us_space(cp) || (cp && cp < 0x80 && strchr("-({[<", (int)cp))) {
            buf_add(&b, s.p + at, i - at);
            continue;
        }
        us_convert(&b, (struct str){s.p + at, i - at}, US_UPPER);
        size_t rest = i;
        for (size_t j = i; j < s.n; i = j) {
            uint32_t c = us_next(s, &j);
            if (us_space(c) || (c && c < 0x80 && strchr("-({[<", (int)c)))
                break;
        }
        us_convert(&b, (struct str){s.p + rest, i - rest}, US_LOWER);
    }
    QN_TRY(tv_str_take(e, &b, out));
    return QN_OK;
}

FILTER(f_wordcount)
{
    struct val v;
    int64_t n = 0;
    bool in = false;
    QN_TRY(soft(e, a, &v));
    for (size_t i = 0; i < v.s.n;) {
        bool word = us_word(us_next(v.s, &i));
        n += word && !in;
        in = word;
    }
    *out = v_int(n);
    return QN_OK;
}

static enum qn_status need_text(struct tenv *e, const struct val *v, const char *filter)
{
    if (v->t == V_STR)
        return QN_OK;
    if (v->t == V_UNDEF)
        return tv_fail_undef(e, v);
    return tv_fail(e, "%s needs a string, not %s", filter, tv_type_name(v));
}

static enum qn_status indent_lines(struct tenv *e, const struct vlist *lines, struct str pad,
                                   bool blank, struct buf *b)
{
    for (size_t i = 0; i < lines->n; i++) {
        struct str line = lines->v[i].s;
        if (i) {
            buf_addc(b, '\n');
            if (blank || line.n)
                buf_add_str(b, pad);
        }
        buf_add_str(b, line);
    }
    return b->failed ? tv_oom(e) : QN_OK;
}

FILTER(f_indent)
{
    struct val text, lines, nl = v_str(STR_LIT("\n")), pad;
    struct buf b = {.limit = e->bytes_max};
    bool first, blank;
    QN_TRY(need_text(e, a, "indent"));
    QN_TRY(arg_bool(e, &a[2], &first));
    QN_TRY(arg_bool(e, &a[3], &blank));
    pad = a[1];
    if (pad.t != V_STR) {
        int64_t n;
        struct val space = v_str(STR_LIT(" "));
        QN_TRY(arg_int(e, &a[1], 4, &n));
        struct val times = v_int(n);
        QN_TRY(tv_arith(e, OP_MUL, &space, &times, &pad));
    }
    QN_TRY(tv_concat(e, a[0].s, nl.s, &text));
    QN_TRY(method(e, "splitlines", &text, NULL, 0, &lines));
    if (first)
        buf_add_str(&b, pad.s);
    enum qn_status s = indent_lines(e, lines.l, pad.s, blank, &b);
    if (s != QN_OK) {
        buf_free(&b);
        return s;
    }
    QN_TRY(tv_str_take(e, &b, out));
    out->safe = a[0].safe;
    return QN_OK;
}

FILTER(f_truncate)
{
    int64_t length, leeway;
    bool kill;
    struct str end = missing(&a[3]) ? STR_LIT("...") : a[3].s;
    QN_TRY(need_text(e, a, "truncate"));
    if (!missing(&a[3]))
        QN_TRY(need_text(e, &a[3], "truncate's end"));
    QN_TRY(arg_int(e, &a[1], 255, &length));
    QN_TRY(arg_bool(e, &a[2], &kill));
    struct val five = v_int(5);
    QN_TRY(arg_int(e, a[4].t == V_NONE ? &five : &a[4], 5, &leeway));
    int64_t n = (int64_t)us_len(a[0].s), end_n = (int64_t)us_len(end);
    if (length < end_n)
        return tv_fail(e, "expected length >= %lld, got %lld", (long long)end_n, (long long)length);
    if (leeway < 0)
        return tv_fail(e, "expected leeway >= 0, got %lld", (long long)leeway);
    *out = a[0];
    if (n - leeway <= length)
        return QN_OK;
    struct str cut = {a[0].s.p, us_off(a[0].s, (size_t)(length - end_n))};
    for (size_t i = cut.n; !kill && i-- > 0;)
        if (cut.p[i] == ' ') {
            cut.n = i;
            break;
        }
    QN_TRY(tv_concat(e, cut, end, out));
    out->safe = a[0].safe;
    return QN_OK;
}

/* ---- wordwrap: Python's textwrap with break_long_words and break_on_hyphens ------------------ */

struct wrap {
    struct buf *out;
    struct str sep;
    int64_t width;
    bool break_long;
    struct str line; /* of the source text: chunks of one line are adjacent there */
    int64_t line_len;
    bool any;
};

static void wrap_flush(struct wrap *w)
{
    struct str s = w->line;
    while (s.n && s.p[s.n - 1] == ' ')
        s.n--;
    if (s.n) {
        if (w->any)
            buf_add_str(w->out, w->sep);
        buf_add_str(w->out, s);
        w->any = true;
    }
    w->line = (struct str){NULL, 0};
    w->line_len = 0;
}

static bool blank_chunk(struct str c)
{
    return us_strip(c, (struct str){0}, 1).n == 0;
}

static void wrap_chunk(struct wrap *w, struct str c)
{
    int64_t n = (int64_t)us_len(c);
    if (w->line_len && w->line_len + n > w->width) {
        if (n > w->width && w->break_long && !blank_chunk(c) && w->line_len < w->width) {
            size_t fit = us_off(c, (size_t)(w->width - w->line_len));
            w->line.n += fit;
            c = (struct str){c.p + fit, c.n - fit};
            n = (int64_t)us_len(c);
        }
        wrap_flush(w);
    }
    if (w->line_len == 0 && w->any && blank_chunk(c))
        return;
    while (n > w->width && w->break_long && !blank_chunk(c)) {
        size_t fit = us_off(c, (size_t)w->width);
        w->line = (struct str){c.p, fit};
        wrap_flush(w);
        c = (struct str){c.p + fit, c.n - fit};
        n = (int64_t)us_len(c);
    }
    if (!w->line_len)
        w->line = (struct str){c.p, 0};
    w->line.n += c.n;
    w->line_len += n;
}

/* Chunks: runs of white space, words, and words up to a hyphen between letters. */
static void wrap_line(struct wrap *w, struct str s, bool hyphens)
{
    w->line_len = 0;
    w->line = (struct str){NULL, 0};
    bool any = w->any;
    w->any = false;
    struct buf *out = w->out;
    (void)any;
    for (size_t i = 0; i < s.n && !out->failed;) {
        size_t start = i, j = i;
        bool space = us_space(us_next(s, &j));
        while (i < s.n) {
            j = i;
            uint32_t cp = us_next(s, &j);
            if (us_space(cp) != space)
                break;
            bool cut = hyphens && cp == '-' && i > start + 1 && us_alpha((uint8_t)s.p[i - 1]) &&
                       us_alpha((uint8_t)s.p[i - 2]) && j + 1 < s.n && us_alpha((uint8_t)s.p[j]) &&
                       us_alpha((uint8_t)s.p[j + 1]);
            i = j;
            if (cut)
                break;
        }
        wrap_chunk(w, (struct str){s.p + start, i - start});
    }
    wrap_flush(w);
}

FILTER(f_wordwrap)
{
    struct buf b = {.limit = e->bytes_max};
    struct wrap w = {.out = &b, .sep = STR_LIT("\n"), .break_long = true};
    struct val lines;
    bool hyphens = true;
    QN_TRY(need_text(e, a, "wordwrap"));
    QN_TRY(arg_int(e, &a[1], 79, &w.width));
    if (w.width <= 0)
        return tv_fail(e, "invalid width %lld (must be > 0)", (long long)w.width);
    if (!missing(&a[2]))
        QN_TRY(tv_truth(e, &a[2], &w.break_long));
    if (!missing(&a[3]) && a[3].t != V_NONE) {
        QN_TRY(need_text(e, &a[3], "wordwrap's wrapstring"));
        w.sep = a[3].s;
    }
    if (!missing(&a[4]))
        QN_TRY(tv_truth(e, &a[4], &hyphens));
    QN_TRY(method(e, "splitlines", &a[0], NULL, 0, &lines));
    for (size_t i = 0; i < lines.l->n; i++) {
        if (i)
            buf_add_str(&b, w.sep);
        wrap_line(&w, lines.l->v[i].s, hyphens);
    }
    return tv_str_take(e, &b, out);
}

FILTER(f_striptags)
{
    struct str s;
    struct buf b = {.limit = e->bytes_max};
    static const struct {
        const char *from, *to;
    } ents[] = {{"&amp;", "&"},  {"&lt;", "<"},    {"&gt;", ">"},   {"&#39;", "'"},
                {"&#34;", "\""}, {"&quot;", "\""}, {"&apos;", "'"}, {"&nbsp;", "\xc2\xa0"}};
    QN_TRY(tv_to_str(e, a, &s));
    bool space = false;
    for (size_t i = 0; i < s.n;) {
        size_t close = (size_t)-1;
        if (s.p[i] == '<') {
            bool comment = str_starts((struct str){s.p + i, s.n - i}, STR_LIT("<!--"));
            close = str_find(s, comment ? STR_LIT("-->") : STR_LIT(">"), i + 1);
            if (close != (size_t)-1) {
                i = close + (comment ? 3 : 1);
                continue;
            }
        }
        size_t at = i;
        if (us_space(us_next(s, &i))) {
            space = true;
            continue;
        }
        if (space && b.n)
            buf_addc(&b, ' ');
        space = false;
        size_t k = 0, n_ents = sizeof ents / sizeof ents[0];
        while (k < n_ents && !str_starts((struct str){s.p + at, s.n - at}, str_of(ents[k].from)))
            k++;
        if (s.p[at] == '&' && k < n_ents) {
            buf_addz(&b, ents[k].to);
            i = at + strlen(ents[k].from);
        } else {
            buf_add(&b, s.p + at, i - at);
        }
    }
    return tv_str_take(e, &b, out);
}

/* ---- urlencode, xmlattr -------------------------------------------------------------------- */

static void quote(struct buf *b, struct str s, bool query)
{
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if ((c < 0x80 && us_word(c)) || (c && strchr("-.~", c)) || (c == '/' && !query))
            buf_addc(b, (char)c);
        else if (c == ' ' && query)
            buf_addc(b, '+');
        else
            buf_addf(b, "%%%02X", c);
    }
}

static enum qn_status quote_pairs(struct tenv *e, const struct val *v, struct buf *b)
{
    struct viter *it;
    struct val x, pair, src = *v;
    bool got, first = true;
    if (src.t == V_DICT) {
        src.t = V_VIEW;
        src.sub = VIEW_ITEMS;
    }
    QN_TRY(tv_iter(e, &src, &it));
    for (;; first = false) {
        struct str k, val;
        QN_TRY(tv_next(e, it, &x, &got));
        if (!got)
            return QN_OK;
        QN_TRY(tv_collect(e, &x, V_LIST, &pair));
        if (pair.l->n != 2)
            return tv_fail(e, "urlencode needs pairs");
        QN_TRY(tv_to_str(e, &pair.l->v[0], &k));
        QN_TRY(tv_to_str(e, &pair.l->v[1], &val));
        if (!first)
            buf_addc(b, '&');
        quote(b, k, true);
        buf_addc(b, '=');
        quote(b, val, true);
    }
}

FILTER(f_urlencode)
{
    struct buf b = {.limit = e->bytes_max};
    struct str s;
    bool pairs = a[0].t == V_DICT || a[0].t == V_LIST || a[0].t == V_TUPLE || a[0].t == V_VIEW ||
                 a[0].t == V_ITER || a[0].t == V_UNDEF;
    enum qn_status st = QN_OK;
    if (pairs) {
        st = quote_pairs(e, a, &b);
    } else {
        QN_TRY(tv_to_str(e, a, &s));
        quote(&b, s, false);
    }
    if (st != QN_OK) {
        buf_free(&b);
        return st;
    }
    return tv_str_take(e, &b, out);
}

static enum qn_status xmlattr(struct tenv *e, struct vdict *d, struct buf *b)
{
    QN_TRY(tv_dict_load(e, d));
    for (size_t i = 0; i < d->n; i++) {
        struct str k, v;
        if (d->e[i].v.t == V_NONE || d->e[i].v.t == V_UNDEF)
            continue;
        QN_TRY(tv_to_str(e, &d->e[i].k, &k));
        QN_TRY(tv_to_str(e, &d->e[i].v, &v));
        for (size_t j = 0; j < k.n; j++)
            if (k.p[j] && strchr(" \t\n\v\f\r/>=", k.p[j]))
                return tv_fail(e, "Invalid character in attribute name");
        if (b->n)
            buf_addc(b, ' ');
        tv_escape(b, k);
        buf_addz(b, "=\"");
        if (d->e[i].v.t == V_STR && d->e[i].v.safe)
            buf_add_str(b, v);
        else
            tv_escape(b, v);
        buf_addc(b, '"');
    }
    return b->failed ? tv_oom(e) : QN_OK;
}

FILTER(f_xmlattr)
{
    struct buf b = {.limit = e->bytes_max};
    bool space = true;
    if (a[0].t != V_DICT)
        return tv_fail(e, "xmlattr needs a dict, not %s", tv_type_name(a));
    if (!missing(&a[1]))
        QN_TRY(tv_truth(e, &a[1], &space));
    enum qn_status s = xmlattr(e, a[0].m, &b);
    if (s != QN_OK) {
        buf_free(&b);
        return s;
    }
    QN_TRY(tv_str_take(e, &b, out));
    return space && out->s.n ? tv_concat(e, STR_LIT(" "), out->s, out) : QN_OK;
}

/* ---- numbers ------------------------------------------------------------------------------- */

/* float("..."), Python's grammar: white space around, underscores between digits, inf, nan. */
static bool parse_real(struct str s, double *out)
{
    char text[400];
    size_t n = 0;
    s = us_strip(s, (struct str){0}, 3);
    if (s.n == 0 || s.n >= sizeof text)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.p[i];
        bool digits = i && i + 1 < s.n && s.p[i - 1] >= '0' && s.p[i - 1] <= '9' &&
                      s.p[i + 1] >= '0' && s.p[i + 1] <= '9';
        if (c == '_' && digits)
            continue;
        if (!c || !strchr("0123456789+-.eEinfatyINFATY", c))
            return false;
        text[n++] = c;
    }
    text[n] = 0;
    if (strchr(text, '(') || strpbrk(text, "xX"))
        return false;
    char *end;
    *out = strtod(text, &end);
    return *end == 0;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10
                                                : 99;
}

/* int("...", base). 1 done, 0 not an integer, -1 beyond 64 bits. */
static int parse_int(struct str s, int base, int64_t *out)
{
    s = us_strip(s, (struct str){0}, 3);
    bool neg = s.n && s.p[0] == '-';
    size_t i = neg || (s.n && s.p[0] == '+') ? 1 : 0;
    char x = i + 1 < s.n && s.p[i] == '0' ? (char)(s.p[i + 1] | 32) : 0;
    int named = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
    if (named && (base == named || base == 0)) {
        base = named;
        i += 2;
        i += i < s.n && s.p[i] == '_';
    }
    if (base == 0)
        base = 10;
    int64_t v = 0;
    size_t start = i;
    bool over = false;
    for (; i < s.n; i++) {
        if (s.p[i] == '_' && i > start && i + 1 < s.n && s.p[i - 1] != '_')
            continue;
        int d = digit_of(s.p[i]);
        if (d >= base)
            return 0;
        over = over || __builtin_mul_overflow(v, base, &v) || __builtin_sub_overflow(v, d, &v);
    }
    if (i == start)
        return 0;
    if (over || (!neg && v == INT64_MIN))
        return -1;
    *out = neg ? v : -v;
    return 1;
}

static enum qn_status int_of_real(struct tenv *e, double d, const struct val *def, struct val *out)
{
    if (!isfinite(d)) {
        *out = *def;
        return QN_OK;
    }
    d = trunc(d);
    if (d < -9223372036854775808.0 || d >= 9223372036854775808.0)
        return tv_fail(e, "int: the number is beyond 64 bits");
    *out = v_int((int64_t)d);
    return QN_OK;
}

FILTER(f_int)
{
    struct val def = missing(&a[1]) ? v_int(0) : a[1];
    int64_t base, v;
    double d;
    QN_TRY(arg_int(e, &a[2], 10, &base));
    switch (a[0].t) {
    case V_BOOL:
    case V_INT:
        *out = v_int(v_as_int(a));
        return QN_OK;
    case V_BIG:
        *out = a[0];
        return QN_OK;
    case V_UNDEF:
        return tv_fail_undef(e, a);
    case V_REAL:
        return int_of_real(e, a[0].d, &def, out);
    case V_STR: {
        int r = base == 0 || (base >= 2 && base <= 36) ? parse_int(a[0].s, (int)base, &v) : 0;
        if (r < 0)
            return tv_fail(e, "int: the number is beyond 64 bits");
        if (r)
            *out = v_int(v);
        else if (parse_real(a[0].s, &d))
            return int_of_real(e, d, &def, out);
        else
            *out = def;
        return QN_OK;
    }
    default:
        *out = def;
        return QN_OK;
    }
}

FILTER(f_float)
{
    double d = 0;
    struct val def = missing(&a[1]) ? v_real(0) : a[1];
    if (a[0].t == V_UNDEF)
        return tv_fail_undef(e, a);
    if (v_is_num(&a[0]))
        *out = v_real(v_as_real(&a[0]));
    else if ((a[0].t == V_STR || a[0].t == V_BIG) && parse_real(a[0].s, &d))
        *out = v_real(d);
    else
        *out = def;
    return QN_OK;
}

FILTER(f_abs)
{
    *out = a[0];
    if (a[0].t == V_REAL) {
        out->d = fabs(a[0].d);
        return QN_OK;
    }
    if (a[0].t == V_UNDEF)
        return tv_fail_undef(e, a);
    if (!v_is_int(a))
        return tv_fail(e, "bad operand type for abs(): '%s'", tv_type_name(a));
    *out = v_int(v_as_int(a));
    return v_as_int(a) < 0 ? tv_neg(e, a, out) : QN_OK;
}

/* round(d, digits): correctly rounded decimal, ties to even as the text of d has them. */
static double round_real(double d, int64_t digits)
{
    char text[512];
    if (!isfinite(d) || digits > 300)
        return d;
    if (digits < 0) {
        if (digits < -308)
            return copysign(0, d);
        double p = pow(10, (double)-digits);
        return rint(d / p) * p;
    }
    snprintf(text, sizeof text, "%.*f", (int)digits, d);
    return strtod(text, NULL);
}

static enum qn_status round_int(struct tenv *e, int64_t v, int64_t digits, struct val *out)
{
    *out = v_int(v);
    if (digits >= 0)
        return QN_OK;
    int64_t p = 1;
    for (int64_t i = digits; i < 0; i++)
        if (__builtin_mul_overflow(p, 10, &p)) {
            *out = v_int(0);
            return QN_OK;
        }
    int64_t down = v / p - (v % p < 0), rem = v - down * p;
    int64_t up = rem * 2 > p || (rem > p - rem) || (rem == p - rem && (down & 1));
    return __builtin_mul_overflow(down + up, p, &out->i)
               ? tv_fail(e, "round: the result is beyond 64 bits")
               : QN_OK;
}

FILTER(f_round)
{
    int64_t digits;
    bool common = missing(&a[2]) || (a[2].t == V_STR && str_eqz(a[2].s, "common"));
    bool up = a[2].t == V_STR && str_eqz(a[2].s, "ceil");
    QN_TRY(arg_int(e, &a[1], 0, &digits));
    if (!common && !up && !(a[2].t == V_STR && str_eqz(a[2].s, "floor")))
        return tv_fail(e, "method must be common, ceil or floor");
    if (a[0].t == V_UNDEF)
        return tv_fail_undef(e, a);
    if (!v_is_num(a))
        return tv_fail(e, "type %s doesn't define __round__ method", tv_type_name(a));
    if (common && v_is_int(a))
        return round_int(e, v_as_int(a), digits, out);
    if (common) {
        *out = v_real(round_real(a[0].d, digits));
        return QN_OK;
    }
    double p = pow(10, (double)digits), x = v_as_real(a) * p;
    *out = v_real((up ? ceil(x) : floor(x)) / p);
    return QN_OK;
}

FILTER(f_filesizeformat)
{
    static const char *const names[] = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
    bool binary;
    double d;
    char text[64];
    struct buf b = {0};
    QN_TRY(arg_bool(e, &a[1], &binary));
    if (v_is_num(a))
        d = v_as_real(a);
    else if (a[0].t != V_STR || !parse_real(a[0].s, &d))
        return tv_fail(e, "filesizeformat needs a number");
    double base = binary ? 1024 : 1000, unit = base;
    if (d == 1 || d < base) {
        snprintf(text, sizeof text, d == 1 ? "1 Byte" : "%.0f Bytes", trunc(d));
        buf_addz(&b, text);
        return tv_str_take(e, &b, out);
    }
    int i = 0;
    for (;; i++) {
        unit *= base;
        if (d < unit || i == 7)
            break;
    }
    const char *name = i == 0 && binary ? "K" : names[i];
    buf_addf(&b, "%.1f %s%s", base * d / unit, name, binary ? "iB" : "B");
    return tv_str_take(e, &b, out);
}

/* ---- the rest ------------------------------------------------------------------------------ */

FILTER(f_default)
{
    bool strict, truth = true;
    QN_TRY(arg_bool(e, &a[2], &strict));
    if (strict)
        QN_TRY(tv_truth(e, a, &truth));
    bool use = a[0].t == V_UNDEF || !truth;
    *out = !use ? a[0] : missing(&a[1]) ? v_str(STR_LIT("")) : a[1];
    return QN_OK;
}

FILTER(f_format)
{
    struct val s, args;
    QN_TRY(soft(e, a, &s));
    if (raw->n && raw->n_kw)
        return tv_fail(e, "can't handle positional and keyword arguments at the same time");
    if (raw->n_kw) {
        QN_TRY(tv_dict_new(e, V_DICT, &args));
        for (int i = 0; i < raw->n_kw; i++)
            QN_TRY(tv_dict_set(e, args.m, v_str(raw->kw[i].name), raw->kw[i].v));
    } else {
        QN_TRY(tv_list_new(e, V_TUPLE, (size_t)raw->n, &args));
        for (int i = 0; i < raw->n; i++)
            QN_TRY(tv_list_add(e, args.l, raw->v[i]));
    }
    return tv_arith(e, OP_MOD, &s, &args, out);
}

static enum qn_status json_separators(struct tenv *e, const struct val *v, struct json_style *st)
{
    const struct val *x;
    size_t n;
    if (v->t != V_LIST && v->t != V_TUPLE)
        return tv_fail(e, "tojson: separators must be a pair of strings");
    QN_TRY(tv_seq(e, v, &x, &n));
    if (n != 2 || x[0].t != V_STR || x[1].t != V_STR)
        return tv_fail(e, "tojson: separators must be a pair of strings");
    st->item_sep = x[0].s;
    st->key_sep = x[1].s;
    return QN_OK;
}

static enum qn_status json_indent(struct tenv *e, const struct val *v, struct json_style *st)
{
    struct val space = v_str(STR_LIT(" ")), pad = *v;
    st->has_indent = true;
    st->item_sep = STR_LIT(",");
    if (v->t != V_STR) {
        if (!v_is_int(v))
            return tv_fail(e, "tojson: indent must be a number or a string");
        QN_TRY(tv_arith(e, OP_MUL, &space, v, &pad));
    }
    st->indent = pad.s;
    return QN_OK;
}

FILTER(f_tojson)
{
    struct buf b = {.limit = e->bytes_max};
    struct json_style st = {.item_sep = STR_LIT(", "), .key_sep = STR_LIT(": ")};
    QN_TRY(arg_bool(e, &a[1], &st.ascii));
    if (!missing(&a[2]) && a[2].t != V_NONE)
        QN_TRY(json_indent(e, &a[2], &st));
    if (!missing(&a[3]) && a[3].t != V_NONE)
        QN_TRY(json_separators(e, &a[3], &st));
    QN_TRY(arg_bool(e, &a[4], &st.sort));
    enum qn_status s = tv_tojson(e, a, &st, &b);
    if (s != QN_OK) {
        buf_free(&b);
        return s;
    }
    return tv_str_take(e, &b, out);
}

FILTER(f_attr)
{
    bool has = a[0].t == V_DICT && a[1].t == V_STR;
    if (a[1].t != V_STR)
        return tv_fail(e, "attr needs the attribute's name");
    /* attributes only: the items of a dict do not count */
    if (has && !tbuiltin_find(tmpl_dict_methods, a[1].s)) {
        *out = v_undef(UNDEF_ATTR, a[1].s, V_DICT);
        return QN_OK;
    }
    return tv_getattr(e, a, a[1].s, out);
}

const struct tbuiltin tmpl_filters[] = {
    {"upper", "s", f_upper},
    {"lower", "s", f_lower},
    {"capitalize", "s", f_capitalize},
    {"title", "s", f_title},
    {"string", "object", f_string},
    {"safe", "value", f_safe},
    {"escape", "s", f_escape},
    {"e", "s", f_escape},
    {"forceescape", "value", f_forceescape},
    {"trim", "value chars?", f_trim},
    {"center", "value width?", f_center},
    {"replace", "s old new count?", f_replace},
    {"wordcount", "s", f_wordcount},
    {"wordwrap", "s width? break_long_words? wrapstring? break_on_hyphens?", f_wordwrap},
    {"indent", "s width? first? blank?", f_indent},
    {"truncate", "s length? killwords? end? leeway?", f_truncate},
    {"striptags", "value", f_striptags},
    {"urlencode", "value", f_urlencode},
    {"xmlattr", "d autospace?", f_xmlattr},
    {"int", "value default? base?", f_int},
    {"float", "value default?", f_float},
    {"abs", "/x", f_abs},
    {"round", "value precision? method?", f_round},
    {"filesizeformat", "value binary?", f_filesizeformat},
    {"default", "value default_value? boolean?", f_default},
    {"d", "value default_value? boolean?", f_default},
    {"format", "value *", f_format},
    {"tojson", "x ensure_ascii? indent? separators? sort_keys?", f_tojson},
    {"attr", "obj name", f_attr},
    {0},
};
