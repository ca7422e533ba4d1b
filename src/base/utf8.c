/*
 * utf8.c - see utf8.h. One decoder (`take`) holds the rule of well-formed sequences (Unicode 15,
 * table 3-7); validation, repair and the streaming tail are all phrased through it.
 */
#include "utf8.h"

#define REPLACEMENT 0xFFFDu

/* What the lead byte asks for: the total length and the bounds of the second byte. n = 0: no lead.
 */
struct lead {
    uint8_t n, lo, hi;
};

static struct lead lead_of(uint8_t c)
{
    if (c >= 0xC2 && c <= 0xDF)
        return (struct lead){2, 0x80, 0xBF};
    if (c >= 0xE0 && c <= 0xEF)
        return (struct lead){3, c == 0xE0 ? 0xA0 : 0x80, c == 0xED ? 0x9F : 0xBF};
    if (c >= 0xF0 && c <= 0xF4)
        return (struct lead){4, c == 0xF0 ? 0x90 : 0x80, c == 0xF4 ? 0x8F : 0xBF};
    return (struct lead){0, 0, 0};
}

/*
 * Reads the sequence at p (n >= 1 bytes). Returns how many bytes belong to it: all of it when *ok,
 * otherwise the maximal invalid prefix (at least 1). *cut: it is valid as far as it goes and ends
 * with the input.
 */
static size_t take(const uint8_t *p, size_t n, uint32_t *cp, bool *ok, bool *cut)
{
    *cut = false;
    if (p[0] < 0x80) {
        *cp = p[0];
        *ok = true;
        return 1;
    }
    struct lead l = lead_of(p[0]);
    *ok = false;
    if (l.n == 0)
        return 1;
    uint32_t v = p[0] & (0x7Fu >> l.n);
    size_t i = 1;
    for (; i < l.n && i < n; i++) {
        uint8_t lo = i == 1 ? l.lo : 0x80, hi = i == 1 ? l.hi : 0xBF;
        if (p[i] < lo || p[i] > hi)
            return i;
        v = v << 6 | (p[i] & 63u);
    }
    *ok = i == l.n;
    *cut = !*ok;
    *cp = v;
    return i;
}

/* Bytes at p that are plain ASCII; eight at a time, since that is what most text is. */
static size_t ascii_run(const uint8_t *p, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t w;
        memcpy(&w, p + i, 8);
        if (w & 0x8080808080808080u)
            break;
    }
    while (i < n && p[i] < 0x80)
        i++;
    return i;
}

uint32_t utf8_next(struct str s, size_t *i)
{
    uint32_t cp = 0;
    bool ok, cut;
    if (*i >= s.n)
        return REPLACEMENT;
    *i += take((const uint8_t *)s.p + *i, s.n - *i, &cp, &ok, &cut);
    return ok ? cp : REPLACEMENT;
}

size_t utf8_valid_prefix(struct str s)
{
    const uint8_t *p = (const uint8_t *)s.p;
    size_t i = 0;
    while (i < s.n) {
        i += ascii_run(p + i, s.n - i);
        if (i == s.n)
            break;
        uint32_t cp;
        bool ok, cut;
        size_t n = take(p + i, s.n - i, &cp, &ok, &cut);
        if (!ok)
            break;
        i += n;
    }
    return i;
}

bool utf8_valid(struct str s)
{
    return utf8_valid_prefix(s) == s.n;
}

void utf8_sanitize(struct buf *out, struct str s)
{
    size_t i = 0;
    while (i < s.n) {
        struct str rest = {s.p + i, s.n - i};
        size_t n = utf8_valid_prefix(rest);
        buf_add(out, rest.p, n);
        i += n;
        if (i < s.n) {
            utf8_next(s, &i);
            buf_add_utf8(out, REPLACEMENT);
        }
    }
}

size_t utf8_tail(struct str s)
{
    const uint8_t *p = (const uint8_t *)s.p;
    for (size_t back = 1; back <= 3 && back <= s.n; back++) {
        uint8_t c = p[s.n - back];
        if ((c & 0xC0) == 0x80)
            continue;
        uint32_t cp;
        bool ok, cut;
        size_t n = take(p + s.n - back, back, &cp, &ok, &cut);
        return cut && n == back ? back : 0;
    }
    return 0;
}

size_t utf8_count(struct str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; n++)
        utf8_next(s, &i);
    return n;
}
