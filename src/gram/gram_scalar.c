/*
 * gram_scalar.c - strings and numbers of a JSON Schema. One condition is compiled directly; several
 * at once are multiplied (gram_product.c). Bounds of numbers are compared digit by digit, exactly,
 * on decimals without an exponent.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "gram/gram_schema.h"

/* ---- formats --------------------------------------------------------------------------------- */

#define MONTH_DAY                                                                                  \
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"      \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define LEAP_DAY                                                                                   \
    "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29"
#define DATE  "(?:[1-9][0-9]{3}-" MONTH_DAY "|" LEAP_DAY ")"
#define CLOCK "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME  CLOCK ":[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-]" CLOCK ")"
#define AN    "[A-Za-z0-9]"
#define ANH   "[A-Za-z0-9-]"
/* A label of up to 5 characters and `tail`. None has hyphens in its third and fourth place: what
 * may follow "xn--" is not checked. */
#define LABEL(tail) AN "(?:" AN "|" ANH "-?" AN "(?:" ANH "{0," #tail "}" AN ")?)?"
#define HOST(tail)  LABEL(tail) "(?:\\." LABEL(tail) "){0,2}"
/* RFC 3986 does not look into names. */
#define NAME(n)  AN "(?:" ANH "{0," #n "}" AN ")?"
#define NAMES(n) NAME(n) "(?:\\." NAME(n) "){0,2}"
#define ATOM(n)  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1," #n "}"
#define OCTET    "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4     OCTET "(?:\\." OCTET "){3}"
#define H16      "[0-9A-Fa-f]{1,4}"
#define IPV6                                                                                       \
    "(?:" H16 "(?::" H16 "){7}|::(?:" H16 "(?::" H16 "){0,6})?|" H16 "::(?:" H16 "(?::" H16        \
    "){0,5})?|" H16 "(?::" H16 ")::(?:" H16 "(?::" H16 "){0,4})?|" H16 "(?::" H16 "){2}::(?:" H16  \
    "(?::" H16 "){0,3})?|" H16 "(?::" H16 "){3}::(?:" H16 "(?::" H16 "){0,2})?|" H16 "(?::" H16    \
    "){4}::(?:" H16 "(?::" H16 "){0,1})?|" H16 "(?::" H16 "){5}::(?:" H16 ")?|" H16 "(?::" H16     \
    "){6}::)"
#define PLAIN      "[A-Za-z0-9._~!$&'()*+,;=@-]"
#define PCHAR      "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define TAIL(q, f) "(?:\\?(?:" PCHAR "|[/?])" q ")?(?:#(?:" PCHAR "|[/?])" f ")?"
#define PATH(p, n) "(?:/" PCHAR p ")" n
#define PORT       "(?::[0-9]{1,5})?"
/* What comes after a scheme; the arguments are quantifiers: of a segment, of segments... */
#define AFTER(names, p, some, n, q, f)                                                             \
    "(?://" names PORT PATH(p, n) "|/?" PCHAR some PATH(p, n) ")" TAIL(q, f)
#define URI "[A-Za-z][A-Za-z0-9+.-]{0,20}:" AFTER(NAMES(61), "*", "+", "*", "*", "*")
#define URI_LONG                                                                                   \
    "[A-Za-z][A-Za-z0-9+.-]{0,20}:" AFTER(NAMES(61), "{0,50}", "{1,50}", "{0,8}", "{0,100}",       \
                                          "{0,50}")
#define URI_SHORT                                                                                  \
    "[A-Za-z][A-Za-z0-9+.-]{0,9}:" AFTER(NAMES(18), "{0,15}", "{1,15}", "{0,2}", "{0,15}", "{0,9}")
#define URI_TINY "[A-Za-z]{1,9}:" AFTER(NAMES(6), "{0,4}", "{1,4}", "{0,2}", "{0,4}", "{0,2}")
#define REFERENCE(uri, names, p, some, n, q, f)                                                    \
    "(?:" uri "|//" names PORT PATH(p, n) TAIL(q, f) "|(?:/(?:" PCHAR some PATH(                   \
        p, n) ")?|(?:" PLAIN "|%[0-9A-Fa-f]{2})" some                                              \
    PATH(p, n) ")?" TAIL(q, f) ")"
#define REF_ANY         REFERENCE(URI, NAMES(61), "*", "+", "*", "*", "*")
#define SOME_LONG       "{0,50}", "{1,50}", "{0,8}", "{0,100}", "{0,50}"
#define SOME_SHORT      "{0,15}", "{1,15}", "{0,2}", "{0,15}", "{0,9}"
#define REF_LONG        REFERENCE_(URI_LONG, NAMES(61), SOME_LONG)
#define REF_SHORT       REFERENCE_(URI_SHORT, NAMES(18), SOME_SHORT)
#define REFERENCE_(...) REFERENCE(__VA_ARGS__)
#define REF_TINY        REFERENCE(URI_TINY, NAMES(6), "{0,4}", "{1,4}", "{0,2}", "{0,4}", "{0,2}")
#define EMAIL           ATOM(20) "(?:\\." ATOM(20) "){0,2}@" LABEL(58) "(?:\\." LABEL(58) "){1,2}"
#define EMAIL_SHORT     ATOM(16) "(?:\\." ATOM(16) ")?@" LABEL(15) "(?:\\." LABEL(15) "){1,2}"
#define EMAIL_TINY      ATOM(12) "(?:\\." ATOM(8) ")?@" LABEL(3) "(?:\\." LABEL(3) "){1,2}"
#define POINTER         "(?:/(?:[^/~]|~[01])*)*"
#define POINTER_LONG    "(?:/(?:[^/~]|~[01]){0,30}){0,16}"
#define POINTER_SHORT   "(?:/(?:[^/~]|~[01]){0,5}){0,4}"
#define NUMBER          "[0-9]{1,6}"
#define DAYS            NUMBER "D"
#define MONTHS          NUMBER "M(?:" DAYS ")?"
#define SECONDS         NUMBER "S"
#define MINUTES         NUMBER "M(?:" SECONDS ")?"
#define CLOCKED         "T(?:" NUMBER "H(?:" MINUTES ")?|" MINUTES "|" SECONDS ")"

#define VARIANTS 4

/* From the widest to the narrowest: a limit on the length is met by choosing one that cannot be
 * longer, where there is one, for counting characters beside a format costs its states times the
 * limit. None: known, but not supported. */
static const struct format {
    const char *name, *regex[VARIANTS];
} formats[] = {
    {"date", {DATE}},
    {"time", {TIME}},
    {"date-time", {DATE "T" TIME}},
    {"duration",
     {"P(?:" NUMBER "W|(?:" NUMBER "Y(?:" MONTHS ")?|" MONTHS "|" DAYS ")(?:" CLOCKED ")?|" CLOCKED
      ")"}},
    {"uuid", {"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"}},
    {"email", {EMAIL, EMAIL_SHORT, EMAIL_TINY}},
    {"idn-email", {EMAIL, EMAIL_SHORT, EMAIL_TINY}},
    {"hostname", {HOST(58), HOST(15), HOST(3)}},
    {"idn-hostname", {HOST(58), HOST(15), HOST(3)}},
    {"ipv4", {IPV4}},
    {"ipv6", {IPV6}},
    {"uri", {URI, URI_LONG, URI_SHORT, URI_TINY}},
    {"iri", {URI, URI_LONG, URI_SHORT, URI_TINY}},
    {"uri-reference", {REF_ANY, REF_LONG, REF_SHORT, REF_TINY}},
    {"iri-reference", {REF_ANY, REF_LONG, REF_SHORT, REF_TINY}},
    {"json-pointer", {POINTER, POINTER_LONG, POINTER_SHORT}},
    {"relative-json-pointer", {"(?:0|[1-9][0-9]{0,8})(?:#|" POINTER ")"}},
    {"uri-template", {NULL}},
    {"regex", {NULL}},
};

/* A format by name; NULL for names that are only remarks, and (with a message) for those that are
 * not supported. */
static const struct format *format_of(struct compiler *c, struct str name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (!str_eqz(name, formats[i].name))
            continue;
        if (!formats[i].regex[0] && !c->b->lenient)
            gb_fail(c->b, QN_UNSUPPORTED, "format", "\"%s\" is not supported", formats[i].name);
        return formats[i].regex[0] ? &formats[i] : NULL;
    }
    return NULL;
}

/* The widest variant that is never longer than max (-1: no limit), else the narrowest. */
static int32_t format_x(struct gb *b, const struct format *f, int64_t max, enum gx_enc enc)
{
    int32_t x = X_NONE;
    for (int i = 0; i < VARIANTS && f->regex[i]; i++) {
        x = x_regex(b, str_of(f->regex[i]), true, enc);
        int64_t longest = max < 0 ? 0 : x_longest(b, x);
        if (longest >= 0 && longest <= (max < 0 ? 0 : max))
            break;
    }
    return x;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Can it be compiled? Asked where a failure would only be ignored. */
static bool regex_ok(struct str pattern)
{
    struct gb t;
    struct qn_err err;
    gb_init(&t, &err, NULL);
    x_regex(&t, pattern, false, ENC_RAW);
    bool ok = t.st == QN_OK;
    gb_free(&t);
    return ok;
}

static bool use_pattern(struct compiler *c, struct str pattern)
{
    return !c->b->lenient || regex_ok(pattern);
}

/* The limits on the length, without those that the other factors keep by themselves: they count
 * bytes, of which there are at least as many as characters. */
static void length_factor(const struct sum *s, struct product *p)
{
    int64_t min = s->min_len, max = s->max_len;
    for (int32_t i = 0; i < p->n; i++) {
        int64_t longest = x_longest(&p->src, p->x[i]);
        if (longest >= 0 && longest <= max)
            max = -1;
        if (min == 1 && x_shortest(&p->src, p->x[i]) > 0)
            min = 0;
    }
    if (min > 0 || max >= 0)
        product_add(p, x_rep(&p->src, x_any_char(&p->src, ENC_RAW), (int32_t)min, (int32_t)max),
                    false);
}

void schema_string_factors(struct compiler *c, const struct sum *s, bool narrow, struct product *p)
{
    for (int32_t i = 0; i < s->patterns.n; i++)
        if (use_pattern(c, s->patterns.v[i]))
            product_add(p, x_regex(&p->src, s->patterns.v[i], false, ENC_RAW), false);
    for (int32_t i = 0; i < s->formats.n; i++) {
        const struct format *f = format_of(c, s->formats.v[i]);
        if (f)
            product_add(p, format_x(&p->src, f, narrow ? s->max_len : -1, ENC_RAW), false);
    }
    length_factor(s, p);
}

/* The only condition there is, compiled without a product. */
static int32_t one_condition(struct compiler *c, const struct sum *s, bool *done)
{
    struct gb *b = c->b;
    bool length = s->min_len > 0 || s->max_len >= 0;
    *done = true;
    if (length && s->patterns.n + s->formats.n == 0)
        return x_rep(b, x_json_char(b), (int32_t)s->min_len, (int32_t)s->max_len);
    if (!length && s->patterns.n == 1 && s->formats.n == 0 && use_pattern(c, s->patterns.v[0]))
        return x_regex(b, s->patterns.v[0], false, ENC_JSON);
    const struct format *f = s->formats.n == 1 ? format_of(c, s->formats.v[0]) : NULL;
    if (!length && s->patterns.n == 0 && f)
        return format_x(b, f, -1, ENC_JSON);
    *done = false;
    return X_NONE;
}

int32_t schema_string(struct compiler *c, const struct sum *s)
{
    struct gb *b = c->b;
    struct product p;
    bool done;
    if (s->max_len >= 0 && s->min_len > s->max_len)
        return gb_none(b, "minLength", "%lld is above maxLength %lld", (long long)s->min_len,
                       (long long)s->max_len);
    int32_t x = one_condition(c, s, &done);
    if (!done) {
        const char *blame = s->patterns.n ? "pattern" : s->formats.n ? "format" : "maxLength";
        product_init(&p, b, blame);
        schema_string_factors(c, s, true, &p);
        if (p.n == 0) {
            gb_free(&p.src);
            return x_json_string(b);
        }
        x = product_end(&p, b, ENC_JSON);
        if (x == X_NONE && b->st == QN_OK)
            gb_none(b, blame, "no string meets all of pattern, format, minLength and maxLength");
    }
    int32_t quote = x_litz(b, "\"");
    return X_SEQ(b, quote, x, quote);
}

/* ---- numbers --------------------------------------------------------------------------------- */

#define DIGITS_MAX 420 /* of a bound's whole and fractional part */

/* |value| as decimal digits: whole without leading zeros ("0"), fraction without trailing ones. */
struct decimal {
    bool negative, zero;
    char whole[DIGITS_MAX + 2], frac[DIGITS_MAX + 2];
    int n_whole, n_frac;
};

/* digits and the place of the point in them (may lie outside) to a decimal. */
static bool place_point(struct decimal *d, const char *digits, int n, int64_t point)
{
    d->n_whole = d->n_frac = 0;
    if (point > DIGITS_MAX || point < -DIGITS_MAX || n - point > DIGITS_MAX)
        return false;
    for (int i = 0; i < (int)point; i++)
        d->whole[d->n_whole++] = i < n ? digits[i] : '0';
    for (int i = (int)point; i < n; i++)
        d->frac[d->n_frac++] = i < 0 ? '0' : digits[i];
    int lead = 0;
    while (lead < d->n_whole && d->whole[lead] == '0')
        lead++;
    memmove(d->whole, d->whole + lead, (size_t)(d->n_whole - lead));
    d->n_whole -= lead;
    while (d->n_frac && d->frac[d->n_frac - 1] == '0')
        d->n_frac--;
    d->zero = d->n_whole == 0 && d->n_frac == 0;
    if (d->n_whole == 0)
        d->whole[d->n_whole++] = '0';
    return true;
}

/* A JSON number's text to a decimal; false when it has too many digits. */
static bool decimal_of(const struct json *v, struct decimal *d)
{
    struct buf t = {.limit = 4096};
    char digits[DIGITS_MAX + 2];
    int n = 0;
    int64_t point = -1, exponent = 0;
    json_number_text(v, &t);
    const char *s = buf_z(&t);
    bool ok = !t.failed;
    d->negative = *s == '-';
    s += *s == '-';
    for (; ok && ((*s >= '0' && *s <= '9') || *s == '.'); s++) {
        if (*s == '.')
            point = n;
        else if (n < DIGITS_MAX)
            digits[n++] = *s;
        else
            ok = false;
    }
    if (ok && (*s == 'e' || *s == 'E'))
        exponent = strtol(s + 1, NULL, 10);
    if (exponent > 100000 || exponent < -100000)
        ok = false;
    ok = ok && place_point(d, digits, n, (point < 0 ? n : point) + exponent);
    buf_free(&t);
    return ok;
}

static int32_t digits(struct gb *b, int32_t min, int32_t max)
{
    return x_rep(b, x_range(b, '0', '9'), min, max);
}

/* Digit strings as long as ref[n] that are greater (less) than it; `any` more may follow when
 * `open`. */
static int32_t differ(struct gb *b, const char *ref, int n, bool greater, bool open)
{
    int32_t x = X_NONE;
    for (int i = n - 1; i >= 0; i--) {
        int32_t here = greater ? x_range(b, ref[i] + 1, '9') : x_range(b, '0', ref[i] - 1);
        int32_t rest = open ? digits(b, 0, -1) : digits(b, n - 1 - i, n - 1 - i);
        int32_t r = x_rule(b); /* long chains must not nest */
        x_rule_set(b, r,
                   X_ALT(b, X_SEQ(b, here, rest), X_SEQ(b, x_lit(b, (struct str){&ref[i], 1}), x)));
        x = x_ref(b, r);
    }
    return x;
}

/* Whole numbers (no leading zero is not checked here) above (below) d's whole part. */
static int32_t whole_beyond(struct gb *b, const struct decimal *d, bool greater)
{
    int n = d->n_whole;
    int32_t same = differ(b, d->whole, n, greater, false);
    if (greater)
        return X_ALT(b, same, X_SEQ(b, x_range(b, '1', '9'), digits(b, n, -1)));
    return n > 1 ? X_ALT(b, same, digits(b, 1, n - 1)) : same;
}

/* Fractions (".digits" or nothing) for which 0.digits is above (below) d's; or equal when !open. */
static int32_t frac_beyond(struct gb *b, const struct decimal *d, bool greater, bool open)
{
    int n = d->n_frac;
    int32_t zeros = x_rep(b, x_litz(b, "0"), 0, -1), dot = x_litz(b, ".");
    int32_t ref = x_lit(b, (struct str){d->frac, (size_t)n});
    int32_t x = X_SEQ(b, dot, differ(b, d->frac, n, greater, true));
    if (greater) { /* equal so far, then something more */
        int32_t more = X_SEQ(b, zeros, x_range(b, '1', '9'), digits(b, 0, -1));
        x = X_ALT(b, x, X_SEQ(b, dot, ref, more));
    } else if (n > 0) { /* a part of it: its last digit is not 0, so a prefix is less */
        for (int i = 1; i < n; i++)
            x = X_ALT(b, x, X_SEQ(b, dot, x_lit(b, (struct str){d->frac, (size_t)i})));
        x = X_ALT(b, x, X_EMPTY);
    }
    if (!open) {
        int32_t equal =
            n ? X_SEQ(b, dot, ref, zeros) : X_ALT(b, X_EMPTY, X_SEQ(b, dot, x_litz(b, "0"), zeros));
        x = X_ALT(b, x, equal);
    }
    return x;
}

/* Unsigned decimals above (below) |d|; or equal when !open. */
static int32_t beyond(struct gb *b, const struct decimal *d, bool greater, bool open)
{
    int32_t any_frac = x_opt(b, X_SEQ(b, x_litz(b, "."), digits(b, 1, -1)));
    int32_t whole = x_lit(b, (struct str){d->whole, (size_t)d->n_whole});
    return X_ALT(b, X_SEQ(b, whole_beyond(b, d, greater), any_frac),
                 X_SEQ(b, whole, frac_beyond(b, d, greater, open)));
}

/* Decimals on the right side of a bound. */
static int32_t bound_factor(struct gb *b, const struct bound *k, const struct decimal *d)
{
    int32_t minus = x_litz(b, "-");
    int32_t any = X_SEQ(b, digits(b, 1, -1), x_opt(b, X_SEQ(b, x_litz(b, "."), digits(b, 1, -1))));
    bool upper = k->upper, negative = d->negative && !d->zero;
    if (upper != negative && !d->zero) /* towards zero, and everything of the other sign */
        return upper ? X_ALT(b, X_SEQ(b, minus, any), beyond(b, d, false, k->open))
                     : X_ALT(b, any, X_SEQ(b, minus, beyond(b, d, false, k->open)));
    if (d->zero) {
        int32_t zero = k->open ? X_NONE : beyond(b, d, false, false);
        if (upper)
            return X_ALT(b, X_SEQ(b, minus, beyond(b, d, true, k->open)), zero);
        return k->open ? beyond(b, d, true, true) : any;
    }
    return upper ? X_SEQ(b, minus, beyond(b, d, true, k->open)) : beyond(b, d, true, k->open);
}

#define MULTIPLE_MAX 5000

/* Decimals that are multiples of p / 10^q: remainders of value * 10^q, digit by digit. */
static int32_t multiple_factor(struct gb *b, int32_t p, int q)
{
    int32_t base = b->rules.n; /* rule of (remainder, digits after the point): q+1 rows of p */
    for (int64_t i = 0; i < (int64_t)p * (q + 1); i++)
        x_rule(b);
    for (int f = 0; f <= q && b->st == QN_OK; f++) {
        for (int32_t r = 0; r < p && b->st == QN_OK; r++) {
            int32_t v[24], n = 0, end = r;
            for (int i = f; i < q; i++)
                end = (int32_t)((int64_t)end * 10 % p);
            v[n++] = end == 0 ? X_EMPTY : X_NONE;
            for (int d = 0; d < 10; d++) {
                int32_t to = (int32_t)(((int64_t)r * 10 + d) % p);
                int32_t row = f == 0 ? 0 : f + 1;
                if (row <= q)
                    v[n++] = X_SEQ(b, x_range(b, '0' + d, '0' + d), x_ref(b, base + row * p + to));
            }
            if (f == 0 && q > 0) /* the point: one digit follows at least */
                for (int d = 0; d < 10; d++)
                    v[n++] = X_SEQ(b, x_litz(b, "."), x_range(b, '0' + d, '0' + d),
                                   x_ref(b, base + p + (int32_t)(((int64_t)r * 10 + d) % p)));
            x_rule_set(b, base + f * p + r, x_alt(b, v, n));
        }
    }
    return X_SEQ(b, x_opt(b, x_litz(b, "-")), x_ref(b, base));
}

static void add_multiples(struct compiler *c, const struct sum *s, struct product *p)
{
    struct decimal d;
    for (int32_t i = 0; i < s->multiples.n; i++) {
        int64_t v = 0;
        if (!decimal_of(s->multiples.v[i], &d) || d.n_whole + d.n_frac > 12) {
            v = MULTIPLE_MAX + 1;
        } else {
            for (int k = 0; k < d.n_whole; k++)
                v = v * 10 + d.whole[k] - '0';
            for (int k = 0; k < d.n_frac; k++)
                v = v * 10 + d.frac[k] - '0';
        }
        if (v * (d.n_frac + 1) > MULTIPLE_MAX) {
            if (!c->b->lenient)
                gb_fail(c->b, QN_UNSUPPORTED, "multipleOf",
                        "without its decimal point it must be at most %d", MULTIPLE_MAX);
            continue;
        }
        product_add(p, multiple_factor(&p->src, (int32_t)v, d.n_frac), false);
    }
}

int32_t schema_number(struct compiler *c, const struct sum *s, bool integer)
{
    struct gb *b = c->b;
    struct product p;
    int whole = 18, frac = 12;
    if (s->bounds.n + s->multiples.n == 0)
        return integer ? x_json_integer(b) : x_json_number(b);
    product_init(&p, b,
                 s->bounds.n ? (s->bounds.v[0].upper ? "maximum" : "minimum") : "multipleOf");
    for (int32_t i = 0; i < s->bounds.n && b->st == QN_OK; i++) {
        struct decimal d;
        if (!decimal_of(s->bounds.v[i].v, &d)) {
            gb_fail(b, QN_UNSUPPORTED, p.keyword, "a bound of more than %d digits", DIGITS_MAX);
            break;
        }
        whole = d.n_whole + 1 > whole && d.n_whole < 40 ? d.n_whole + 1 : whole;
        frac = d.n_frac + 2 > frac ? d.n_frac + 2 : frac;
        product_add(&p, bound_factor(&p.src, &s->bounds.v[i], &d), false);
    }
    add_multiples(c, s, &p);
    struct gb *x = &p.src;
    int32_t number =
        X_SEQ(x, x_opt(x, x_litz(x, "-")),
              X_ALT(x, x_litz(x, "0"), X_SEQ(x, x_range(x, '1', '9'), digits(x, 0, whole - 1))));
    if (!integer)
        number = X_SEQ(x, number, x_opt(x, X_SEQ(x, x_litz(x, "."), digits(x, 1, frac))));
    product_add(&p, number, false);
    const char *blame = p.keyword;
    int32_t out = product_end(&p, b, ENC_RAW);
    if (out == X_NONE && b->st == QN_OK)
        gb_none(b, blame, "no %s lies within the limits", integer ? "integer" : "number");
    return out;
}

bool schema_number_fits(const struct sum *s, const struct json *v)
{
    double x = json_real(v);
    for (int32_t i = 0; i < s->bounds.n; i++) {
        double y = json_real(s->bounds.v[i].v);
        if (s->bounds.v[i].upper ? x > y : x < y)
            return false;
        if (s->bounds.v[i].open && x == y)
            return false;
    }
    for (int32_t i = 0; i < s->multiples.n; i++) {
        double q = x / json_real(s->multiples.v[i]);
        if (q != (double)(int64_t)q)
            return false;
    }
    return true;
}
