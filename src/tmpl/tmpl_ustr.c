/*
 * tmpl_ustr.c - Python's view of text over UTF-8. Simple case pairs and categories come from
 * utf8proc; the full mappings that grow (sharp s, ligatures, Greek with iota) are the table below,
 * made from Python 3.11's str.upper and str.title. No state.
 */
#include "tmpl/tmpl_ustr.h"

#include <utf8proc.h>

#include "base/utf8.h"

uint32_t us_next(struct str s, size_t *i)
{
    unsigned char c = (unsigned char)s.p[*i];
    if (c < 0x80) {
        ++*i;
        return c;
    }
    return utf8_next(s, i);
}

uint32_t us_prev(struct str s, size_t *end)
{
    size_t i = *end - 1;
    while (i && ((unsigned char)s.p[i] & 0xc0) == 0x80)
        i--;
    *end = i;
    return us_next(s, &i);
}

size_t us_len(struct str s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++)
        n += ((unsigned char)s.p[i] & 0xc0) != 0x80;
    return n;
}

size_t us_off(struct str s, size_t i)
{
    size_t off = 0;
    for (; off < s.n; off++)
        if (((unsigned char)s.p[off] & 0xc0) != 0x80 && i-- == 0)
            break;
    return off;
}

bool us_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x1f);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool us_linebreak(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

static int category(uint32_t cp)
{
    return (int)utf8proc_category((utf8proc_int32_t)cp);
}

bool us_printable(uint32_t cp)
{
    if (cp == ' ')
        return true;
    int c = category(cp);
    return c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS;
}

bool us_alpha(uint32_t cp)
{
    int c = category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool us_decimal(uint32_t cp)
{
    return cp < 0x80 ? cp >= '0' && cp <= '9' : category(cp) == UTF8PROC_CATEGORY_ND;
}

bool us_digit(uint32_t cp)
{
    return us_decimal(cp) || cp == 0xb2 || cp == 0xb3 || cp == 0xb9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) ||
           (cp >= 0x2460 && cp <= 0x2468);
}

bool us_numeric(uint32_t cp)
{
    int c = category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool us_word(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || ((cp | 32) >= 'a' && (cp | 32) <= 'z') || cp == '_';
    return us_alpha(cp) || us_numeric(cp);
}

bool us_upper_p(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= 'A' && cp <= 'Z';
    return category(cp) == UTF8PROC_CATEGORY_LU || (cp >= 0x2160 && cp <= 0x216f) ||
           (cp >= 0x24b6 && cp <= 0x24cf);
}

bool us_lower_p(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= 'a' && cp <= 'z';
    return category(cp) == UTF8PROC_CATEGORY_LL || cp == 0xaa || cp == 0xba ||
           (cp >= 0x2170 && cp <= 0x217f) || (cp >= 0x24d0 && cp <= 0x24e9) ||
           (cp >= 0x2b0 && cp <= 0x2b8) || (cp >= 0x1d2c && cp <= 0x1d6a);
}

bool us_title_p(uint32_t cp)
{
    return category(cp) == UTF8PROC_CATEGORY_LT;
}

bool us_identifier(struct str s)
{
    for (size_t i = 0, k = 0; i < s.n; k++) {
        uint32_t cp = us_next(s, &i);
        if (!us_word(cp) || (k == 0 && us_decimal(cp)))
            return false;
    }
    return s.n > 0;
}

static const struct {
    uint32_t cp;
    uint32_t upper[3], title[3];
} FULL_CASE[] = {
    /* clang-format off */
    {0xdf, {0x53, 0x53}, {0x53, 0x73}},
    {0x149, {0x2bc, 0x4e}, {0x2bc, 0x4e}},
    {0x1f0, {0x4a, 0x30c}, {0x4a, 0x30c}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x3b0, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}},
    {0x1e96, {0x48, 0x331}, {0x48, 0x331}},
    {0x1e97, {0x54, 0x308}, {0x54, 0x308}},
    {0x1e98, {0x57, 0x30a}, {0x57, 0x30a}},
    {0x1e99, {0x59, 0x30a}, {0x59, 0x30a}},
    {0x1e9a, {0x41, 0x2be}, {0x41, 0x2be}},
    {0x1f50, {0x3a5, 0x313}, {0x3a5, 0x313}},
    {0x1f52, {0x3a5, 0x313, 0x300}, {0x3a5, 0x313, 0x300}},
    {0x1f54, {0x3a5, 0x313, 0x301}, {0x3a5, 0x313, 0x301}},
    {0x1f56, {0x3a5, 0x313, 0x342}, {0x3a5, 0x313, 0x342}},
    {0x1f80, {0x1f08, 0x399}, {0x1f88}},
    {0x1f81, {0x1f09, 0x399}, {0x1f89}},
    {0x1f82, {0x1f0a, 0x399}, {0x1f8a}},
    {0x1f83, {0x1f0b, 0x399}, {0x1f8b}},
    {0x1f84, {0x1f0c, 0x399}, {0x1f8c}},
    {0x1f85, {0x1f0d, 0x399}, {0x1f8d}},
    {0x1f86, {0x1f0e, 0x399}, {0x1f8e}},
    {0x1f87, {0x1f0f, 0x399}, {0x1f8f}},
    {0x1f88, {0x1f08, 0x399}, {0x1f88}},
    {0x1f89, {0x1f09, 0x399}, {0x1f89}},
    {0x1f8a, {0x1f0a, 0x399}, {0x1f8a}},
    {0x1f8b, {0x1f0b, 0x399}, {0x1f8b}},
    {0x1f8c, {0x1f0c, 0x399}, {0x1f8c}},
    {0x1f8d, {0x1f0d, 0x399}, {0x1f8d}},
    {0x1f8e, {0x1f0e, 0x399}, {0x1f8e}},
    {0x1f8f, {0x1f0f, 0x399}, {0x1f8f}},
    {0x1f90, {0x1f28, 0x399}, {0x1f98}},
    {0x1f91, {0x1f29, 0x399}, {0x1f99}},
    {0x1f92, {0x1f2a, 0x399}, {0x1f9a}},
    {0x1f93, {0x1f2b, 0x399}, {0x1f9b}},
    {0x1f94, {0x1f2c, 0x399}, {0x1f9c}},
    {0x1f95, {0x1f2d, 0x399}, {0x1f9d}},
    {0x1f96, {0x1f2e, 0x399}, {0x1f9e}},
    {0x1f97, {0x1f2f, 0x399}, {0x1f9f}},
    {0x1f98, {0x1f28, 0x399}, {0x1f98}},
    {0x1f99, {0x1f29, 0x399}, {0x1f99}},
    {0x1f9a, {0x1f2a, 0x399}, {0x1f9a}},
    {0x1f9b, {0x1f2b, 0x399}, {0x1f9b}},
    {0x1f9c, {0x1f2c, 0x399}, {0x1f9c}},
    {0x1f9d, {0x1f2d, 0x399}, {0x1f9d}},
    {0x1f9e, {0x1f2e, 0x399}, {0x1f9e}},
    {0x1f9f, {0x1f2f, 0x399}, {0x1f9f}},
    {0x1fa0, {0x1f68, 0x399}, {0x1fa8}},
    {0x1fa1, {0x1f69, 0x399}, {0x1fa9}},
    {0x1fa2, {0x1f6a, 0x399}, {0x1faa}},
    {0x1fa3, {0x1f6b, 0x399}, {0x1fab}},
    {0x1fa4, {0x1f6c, 0x399}, {0x1fac}},
    {0x1fa5, {0x1f6d, 0x399}, {0x1fad}},
    {0x1fa6, {0x1f6e, 0x399}, {0x1fae}},
    {0x1fa7, {0x1f6f, 0x399}, {0x1faf}},
    {0x1fa8, {0x1f68, 0x399}, {0x1fa8}},
    {0x1fa9, {0x1f69, 0x399}, {0x1fa9}},
    {0x1faa, {0x1f6a, 0x399}, {0x1faa}},
    {0x1fab, {0x1f6b, 0x399}, {0x1fab}},
    {0x1fac, {0x1f6c, 0x399}, {0x1fac}},
    {0x1fad, {0x1f6d, 0x399}, {0x1fad}},
    {0x1fae, {0x1f6e, 0x399}, {0x1fae}},
    {0x1faf, {0x1f6f, 0x399}, {0x1faf}},
    {0x1fb2, {0x1fba, 0x399}, {0x1fba, 0x345}},
    {0x1fb3, {0x391, 0x399}, {0x1fbc}},
    {0x1fb4, {0x386, 0x399}, {0x386, 0x345}},
    {0x1fb6, {0x391, 0x342}, {0x391, 0x342}},
    {0x1fb7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}},
    {0x1fbc, {0x391, 0x399}, {0x1fbc}},
    {0x1fc2, {0x1fca, 0x399}, {0x1fca, 0x345}},
    {0x1fc3, {0x397, 0x399}, {0x1fcc}},
    {0x1fc4, {0x389, 0x399}, {0x389, 0x345}},
    {0x1fc6, {0x397, 0x342}, {0x397, 0x342}},
    {0x1fc7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}},
    {0x1fcc, {0x397, 0x399}, {0x1fcc}},
    {0x1fd2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}},
    {0x1fd3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1fd6, {0x399, 0x342}, {0x399, 0x342}},
    {0x1fd7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1fe2, {0x3a5, 0x308, 0x300}, {0x3a5, 0x308, 0x300}},
    {0x1fe3, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}},
    {0x1fe4, {0x3a1, 0x313}, {0x3a1, 0x313}},
    {0x1fe6, {0x3a5, 0x342}, {0x3a5, 0x342}},
    {0x1fe7, {0x3a5, 0x308, 0x342}, {0x3a5, 0x308, 0x342}},
    {0x1ff2, {0x1ffa, 0x399}, {0x1ffa, 0x345}},
    {0x1ff3, {0x3a9, 0x399}, {0x1ffc}},
    {0x1ff4, {0x38f, 0x399}, {0x38f, 0x345}},
    {0x1ff6, {0x3a9, 0x342}, {0x3a9, 0x342}},
    {0x1ff7, {0x3a9, 0x342, 0x399}, {0x3a9, 0x342, 0x345}},
    {0x1ffc, {0x3a9, 0x399}, {0x1ffc}},
    {0xfb00, {0x46, 0x46}, {0x46, 0x66}},
    {0xfb01, {0x46, 0x49}, {0x46, 0x69}},
    {0xfb02, {0x46, 0x4c}, {0x46, 0x6c}},
    {0xfb03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xfb04, {0x46, 0x46, 0x4c}, {0x46, 0x66, 0x6c}},
    {0xfb05, {0x53, 0x54}, {0x53, 0x74}},
    {0xfb06, {0x53, 0x54}, {0x53, 0x74}},
    {0xfb13, {0x544, 0x546}, {0x544, 0x576}},
    {0xfb14, {0x544, 0x535}, {0x544, 0x565}},
    {0xfb15, {0x544, 0x53b}, {0x544, 0x56b}},
    {0xfb16, {0x54e, 0x546}, {0x54e, 0x576}},
    {0xfb17, {0x544, 0x53d}, {0x544, 0x56d}},
    /* clang-format on */
};

static const uint32_t *full_case(uint32_t cp, bool title)
{
    size_t lo = 0, hi = sizeof FULL_CASE / sizeof FULL_CASE[0];
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (FULL_CASE[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == sizeof FULL_CASE / sizeof FULL_CASE[0] || FULL_CASE[lo].cp != cp)
        return NULL;
    return title ? FULL_CASE[lo].title : FULL_CASE[lo].upper;
}

static void add_upper(struct buf *out, uint32_t cp, bool title)
{
    if (cp < 0x80) {
        buf_addc(out, (char)(cp >= 'a' && cp <= 'z' ? cp - 32 : cp));
        return;
    }
    const uint32_t *full = full_case(cp, title);
    for (int i = 0; full && i < 3 && full[i]; i++)
        buf_add_utf8(out, full[i]);
    if (!full)
        buf_add_utf8(out, (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)cp)
                                           : utf8proc_toupper((utf8proc_int32_t)cp)));
}

static bool cased(uint32_t cp)
{
    return us_upper_p(cp) || us_lower_p(cp) || us_title_p(cp);
}

/* Marks and the like, which the final-sigma rule looks through. */
static bool case_ignorable(uint32_t cp)
{
    int c = category(cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || cp == '\'' || cp == '.' ||
           cp == ':' || cp == '^' || cp == '`' || cp == 0xb7 || cp == 0x2019;
}

static bool final_sigma(struct str s, size_t at, size_t after)
{
    size_t i = at;
    bool before = false;
    while (i) {
        uint32_t cp = us_prev(s, &i);
        if (case_ignorable(cp))
            continue;
        before = cased(cp);
        break;
    }
    while (before && after < s.n) {
        uint32_t cp = us_next(s, &after);
        if (case_ignorable(cp))
            continue;
        return !cased(cp);
    }
    return before;
}

static void add_lower(struct buf *out, struct str s, size_t at, uint32_t cp, size_t after)
{
    if (cp < 0x80) {
        buf_addc(out, (char)(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp));
    } else if (cp == 0x130) {
        buf_addz(out, "i\xcc\x87");
    } else if (cp == 0x3a3) {
        buf_add_utf8(out, final_sigma(s, at, after) ? 0x3c2 : 0x3c3);
    } else {
        buf_add_utf8(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
    }
}

static void add_fold(struct buf *out, uint32_t cp)
{
    utf8proc_int32_t to[8];
    int last = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)cp, to, 8, UTF8PROC_CASEFOLD, &last);
    for (utf8proc_ssize_t i = 0; i < n && i < 8; i++)
        buf_add_utf8(out, (uint32_t)to[i]);
}

void us_convert(struct buf *out, struct str s, enum us_case how)
{
    bool prev_cased = false;
    for (size_t i = 0; i < s.n;) {
        size_t at = i;
        uint32_t cp = us_next(s, &i);
        bool up = how == US_UPPER || (how == US_TITLE && !prev_cased) ||
                  (how == US_CAPITALIZE && at == 0) || (how == US_SWAP && us_lower_p(cp));
        if (how == US_FOLD)
            add_fold(out, cp);
        else if (up)
            add_upper(out, cp, how == US_TITLE || how == US_CAPITALIZE);
        else if (how == US_SWAP && !us_upper_p(cp))
            buf_add_utf8(out, cp);
        else
            add_lower(out, s, at, cp, i);
        prev_cased = cased(cp);
    }
}

static bool in_set(struct str chars, uint32_t cp)
{
    if (!chars.p)
        return us_space(cp);
    for (size_t i = 0; i < chars.n;)
        if (us_next(chars, &i) == cp)
            return true;
    return false;
}

struct str us_strip(struct str s, struct str chars, int sides)
{
    while ((sides & 1) && s.n) {
        size_t i = 0;
        if (!in_set(chars, us_next(s, &i)))
            break;
        s.p += i;
        s.n -= i;
    }
    while ((sides & 2) && s.n) {
        size_t end = s.n;
        if (!in_set(chars, us_prev(s, &end)))
            break;
        s.n = end;
    }
    return s;
}
