/*
 * json_check.c - the strict RFC 8259 grammar, in one pass and without recursion: open brackets are
 * bits on a fixed stack. It accepts exactly what json.h promises, so the library that builds the
 * values afterwards (lenient in several ways) only ever sees valid text. Pure: any thread.
 */
#include "json_check.h"

#include "utf8.h"

#define DEPTH_CAP                                                                                  \
    1024 /* the most json.h's depth_max may ask for; bounds every walk over a value                \
          */

struct check {
    const uint8_t *p;
    size_t n, i;
    const char *what;
    struct qn_err *err;
    size_t kept;
    int depth, depth_max;
    uint64_t objects[DEPTH_CAP / 64]; /* bit d: the bracket opened at depth d is a '{' */
};

enum state { WANT_VALUE, WANT_KEY, AFTER_VALUE, FINISHED };

static enum qn_status fail(const struct check *c, size_t at, const char *expected)
{
    if (at >= c->n)
        return err_set(c->err, QN_BAD_INPUT, "json",
                       "%s: invalid JSON at byte %zu: the text ends here; expected %s", c->what, at,
                       expected);
    uint8_t b = c->p[at];
    char seen[16] = "the byte 0x00";
    if (b > 0x20 && b < 0x7F) {
        memcpy(seen, "'?'", 4);
        seen[1] = (char)b;
    } else {
        seen[11] = "0123456789abcdef"[b >> 4];
        seen[12] = "0123456789abcdef"[b & 15];
    }
    return err_set(c->err, QN_BAD_INPUT, "json", "%s: invalid JSON at byte %zu: %s; expected %s",
                   c->what, at, seen, expected);
}

static void skip_space(struct check *c)
{
    while (c->i < c->n) {
        uint8_t b = c->p[c->i];
        if (b != ' ' && b != '\n' && b != '\r' && b != '\t')
            return;
        c->i++;
    }
}

/* ---- strings -------------------------------------------------------------------------------- */

static int hex4(const struct check *c, size_t at)
{
    int v = 0;
    for (size_t k = 0; k < 4; k++) {
        uint8_t b = at + k < c->n ? c->p[at + k] : 0;
        int d = b >= '0' && b <= '9'   ? b - '0'
                : b >= 'a' && b <= 'f' ? b - 'a' + 10
                : b >= 'A' && b <= 'F' ? b - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

/* At the 'u' of \uXXXX; moves past the escape, and past its second half for a surrogate pair. */
static enum qn_status unicode_escape(struct check *c, bool key)
{
    int v = hex4(c, c->i + 1);
    if (v < 0)
        return fail(c, c->i, "four hexadecimal digits after \\u");
    if (v >= 0xDC00 && v <= 0xDFFF)
        return fail(c, c->i, "no lone low surrogate escape");
    if (v == 0 && key)
        return fail(c, c->i, "no \\u0000 in an object's key");
    c->i += 5;
    if (v < 0xD800 || v > 0xDBFF)
        return QN_OK;
    bool escape = c->i + 1 < c->n && c->p[c->i] == '\\' && c->p[c->i + 1] == 'u';
    int low = escape ? hex4(c, c->i + 2) : -1;
    if (low < 0xDC00 || low > 0xDFFF)
        return fail(c, c->i, "the second half of a surrogate pair");
    c->i += 6;
    return QN_OK;
}

/* Bytes of a string that need no look: printable ASCII other than '"' and '\'. */
static size_t plain_run(const uint8_t *p, size_t n)
{
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t w;
        memcpy(&w, p + i, 8);
        uint64_t quote = w ^ ones * '"', slash = w ^ ones * '\\';
        /* High bit set where a byte is '"', '\', below 0x20 or above 0x7F (borrows can only add
         * false hits above a true one, which the byte loop then looks at). */
        if ((w | (w - ones * 0x20) | (quote - ones) | (slash - ones)) & highs)
            break;
    }
    while (i < n && p[i] >= 0x20 && p[i] < 0x80 && p[i] != '"' && p[i] != '\\')
        i++;
    return i;
}

/* At the opening quote; moves past the closing one. */
static enum qn_status string(struct check *c, bool key)
{
    size_t open = c->i++;
    for (;;) {
        c->i += plain_run(c->p + c->i, c->n - c->i);
        if (c->i >= c->n)
            return err_set(c->err, QN_BAD_INPUT, "json",
                           "%s: invalid JSON at byte %zu: the string that starts at byte %zu does "
                           "not end",
                           c->what, c->n, open);
        uint8_t b = c->p[c->i];
        if (b == '"') {
            c->i++;
            return QN_OK;
        }
        if (b < 0x20)
            return fail(c, c->i, "control characters in a string to be escaped");
        if (b == '\\') {
            uint8_t e = ++c->i < c->n ? c->p[c->i] : 0;
            if (e == 'u')
                QN_TRY(unicode_escape(c, key));
            else if (e && strchr("\"\\/bfnrt", e))
                c->i++;
            else
                return fail(c, c->i, "one of \" \\ / b f n r t u after a backslash");
            continue;
        }
        size_t at = c->i;
        struct str rest = {(const char *)c->p, c->n};
        if (utf8_next(rest, &c->i) == 0xFFFD && (c->i - at != 3 || b != 0xEF))
            return fail(c, at, "valid UTF-8");
    }
}

/* ---- numbers and names ---------------------------------------------------------------------- */

static size_t digits(const uint8_t *p, size_t n, size_t i)
{
    while (i < n && p[i] >= '0' && p[i] <= '9')
        i++;
    return i;
}

bool json_is_integer(struct str lit)
{
    size_t sign = lit.n && lit.p[0] == '-';
    return digits((const uint8_t *)lit.p, lit.n, sign) == lit.n;
}

bool json_integer_fits(struct str lit)
{
    bool neg = lit.n && lit.p[0] == '-';
    if (neg && lit.n == 2 && lit.p[1] == '0')
        return false;
    uint64_t v = 0;
    for (size_t i = neg; i < lit.n; i++) {
        if (__builtin_mul_overflow(v, 10u, &v) ||
            __builtin_add_overflow(v, (uint64_t)(lit.p[i] - '0'), &v))
            return false;
    }
    return !neg || v <= (uint64_t)INT64_MAX + 1;
}

bool json_is_marked(struct str lit)
{
    const uint8_t *p = (const uint8_t *)lit.p;
    size_t i = digits(p, lit.n, lit.n && p[0] == '-');
    if (lit.n - i < 4 || memcmp(p + i, "e+00", 4) != 0)
        return false;
    for (i += 4; i < lit.n; i++) {
        if (p[i] != '0')
            return false;
    }
    return true;
}

size_t json_number_len(struct str text, size_t at)
{
    size_t i = at;
    while (i < text.n && text.p[i] && strchr("+-.0123456789eE", text.p[i]))
        i++;
    return i - at;
}

static enum qn_status number(struct check *c)
{
    size_t from = c->i, i = c->i;
    if (c->p[i] == '-')
        i++;
    size_t end = digits(c->p, c->n, i);
    if (end == i)
        return fail(c, end, "a digit");
    if (c->p[i] == '0' && end > i + 1)
        return fail(c, i + 1, "no digit after a leading zero");
    i = end;
    if (i < c->n && c->p[i] == '.') {
        end = digits(c->p, c->n, i + 1);
        if (end == i + 1)
            return fail(c, end, "a digit after the decimal point");
        i = end;
    }
    if (i < c->n && (c->p[i] == 'e' || c->p[i] == 'E')) {
        i++;
        if (i < c->n && (c->p[i] == '+' || c->p[i] == '-'))
            i++;
        end = digits(c->p, c->n, i);
        if (end == i)
            return fail(c, end, "a digit in the exponent");
        i = end;
    }
    struct str lit = {(const char *)c->p + from, i - from};
    c->kept += json_is_integer(lit) ? !json_integer_fits(lit) : json_is_marked(lit);
    c->i = i;
    return QN_OK;
}

static enum qn_status word(struct check *c, const char *w)
{
    size_t n = strlen(w);
    if (c->n - c->i < n || memcmp(c->p + c->i, w, n) != 0)
        return fail(c, c->i, "a value (true, false and null are written in lower case)");
    c->i += n;
    return QN_OK;
}

/* ---- structure ------------------------------------------------------------------------------ */

static bool in_object(const struct check *c)
{
    int d = c->depth - 1;
    return c->objects[d / 64] >> (d % 64) & 1;
}

static enum qn_status open_bracket(struct check *c, enum state *st)
{
    bool object = c->p[c->i] == '{';
    if (c->depth >= c->depth_max)
        QN_FAIL(c->err, QN_BAD_INPUT, "json",
                "%s: byte %zu: nested deeper than the limit of %d levels", c->what, c->i,
                c->depth_max);
    uint64_t bit = 1ull << (c->depth % 64), *set = &c->objects[c->depth / 64];
    *set = object ? *set | bit : *set & ~bit;
    c->depth++;
    c->i++;
    skip_space(c);
    if (c->i < c->n && c->p[c->i] == (object ? '}' : ']'))
        *st = AFTER_VALUE; /* empty: AFTER_VALUE meets the closing bracket */
    else
        *st = object ? WANT_KEY : WANT_VALUE;
    return QN_OK;
}

static enum qn_status value(struct check *c, enum state *st)
{
    *st = AFTER_VALUE;
    switch (c->i < c->n ? c->p[c->i] : 0) {
    case '{':
    case '[':
        return open_bracket(c, st);
    case '"':
        return string(c, false);
    case 't':
        return word(c, "true");
    case 'f':
        return word(c, "false");
    case 'n':
        return word(c, "null");
    case '-':
    case '0' ... '9':
        return number(c);
    default:
        return fail(c, c->i, "a value");
    }
}

static enum qn_status key(struct check *c, enum state *st)
{
    if (c->i >= c->n || c->p[c->i] != '"')
        return fail(c, c->i, "a key in double quotes");
    QN_TRY(string(c, true));
    skip_space(c);
    if (c->i >= c->n || c->p[c->i] != ':')
        return fail(c, c->i, "':' after the key");
    c->i++;
    *st = WANT_VALUE;
    return QN_OK;
}

static enum qn_status after_value(struct check *c, enum state *st)
{
    if (c->depth == 0) {
        *st = FINISHED;
        return c->i < c->n ? fail(c, c->i, "nothing after the value") : QN_OK;
    }
    bool object = in_object(c);
    uint8_t b = c->i < c->n ? c->p[c->i] : 0;
    if (b == ',')
        *st = object ? WANT_KEY : WANT_VALUE;
    else if (b == (object ? '}' : ']'))
        c->depth--;
    else
        return fail(c, c->i, object ? "',' or '}'" : "',' or ']'");
    c->i++;
    return QN_OK;
}

enum qn_status json_check_count(struct str text, const char *what, int depth_max, size_t *kept,
                                struct qn_err *err)
{
    QN_ASSERT(depth_max > 0 && depth_max <= DEPTH_CAP);
    struct check c = {.p = (const uint8_t *)text.p, .n = text.n, .what = what, .err = err};
    c.depth_max = depth_max;
    if (text.n >= 3 && memcmp(text.p, "\xEF\xBB\xBF", 3) == 0)
        return fail(&c, 0, "no byte-order mark before the JSON");
    enum state st = WANT_VALUE;
    while (st != FINISHED) {
        skip_space(&c);
        switch (st) {
        case WANT_VALUE:
            QN_TRY(value(&c, &st));
            break;
        case WANT_KEY:
            QN_TRY(key(&c, &st));
            break;
        default:
            QN_TRY(after_value(&c, &st));
        }
    }
    *kept = c.kept;
    return QN_OK;
}

enum qn_status json_check(struct str text, const char *what, int depth_max, struct qn_err *err)
{
    size_t kept;
    return json_check_count(text, what, depth_max, &kept, err);
}

/* What json-c takes beside the text itself, with the allocator's share. An object comes with a
 * table of 16 entries, an array with 32 places; longer ones grow by doubling. */
enum { OBJECT_BYTES = 840, ARRAY_BYTES = 400, MEMBER_BYTES = 112, VALUE_BYTES = 112 };

size_t json_memory(struct str text)
{
    size_t sum = text.n;
    bool quoted = false;
    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i];
        if (quoted) {
            i += plain_run((const uint8_t *)text.p + i, text.n - i);
            if (i < text.n && text.p[i] == '\\')
                i++;
            else if (i < text.n && text.p[i] == '"')
                quoted = false;
            continue;
        }
        quoted = c == '"';
        sum += c == '{'   ? OBJECT_BYTES
               : c == '[' ? ARRAY_BYTES
               : c == ':' ? MEMBER_BYTES
               : c == ',' ? VALUE_BYTES
                          : 0;
    }
    return sum;
}
