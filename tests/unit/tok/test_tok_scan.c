/*
 * test_tok_scan.c - the hand-written matchers against PCRE2 with the same pattern, on random text.
 * PCRE2's Unicode tables are older than ours: code points whose class it does not know are left out
 * here (tests/oracle/test_tok_diff.py covers all of them against the package `tokenizers`).
 */
#include "../check.h"

#include "base/rng.h"
#include "tok/tok_regex.h"
#include "tok/tok_scan.h"
#include "tok/unicode_data.h"

#define FOLD "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UP   "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOW  "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const char *const patterns[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    FOLD "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL,
    FOLD "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL,
    FOLD "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL,
    ("[^\\r\\n\\p{L}\\p{N}]?" UP "*" LOW "+" FOLD "?|[^\\r\\n\\p{L}\\p{N}]?" UP "+" LOW "*" FOLD
     "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL),
    "\\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    ("[!\"#$%&'()*+,\\-./"
     ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]"
     "+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"),
};

static const uint32_t pool[] = {
    'a',    'b',    'Z',    'S',    's',    'T',     'e',     'r',    'l',    '0',
    '7',    ' ',    ' ',    ' ',    '\n',   '\r',    '\t',    '\'',   '\'',   '.',
    '/',    '!',    '$',    '-',    '<',    0x7F,    0x00,    0x85,   0xA0,   0xAA,
    0xB2,   0xDF,   0xE9,   0x17F,  0x1C5,  0x2B0,   0x300,   0x301,  0x345,  0x3B1,
    0x410,  0x430,  0x5D0,  0x660,  0x903,  0x905,   0x1680,  0x180E, 0x2003, 0x2028,
    0x200B, 0x200D, 0x2160, 0x20DD, 0x2460, 0x3000,  0x3042,  0x30A2, 0x4E00, 0x9FA5,
    0xAC00, 0xE000, 0xFEFF, 0xFF21, 0xFF41, 0x1F642, 0x1D7D8, 0x212A, 0x2C7C,
};

/* Whether PCRE2 puts the code point into the same classes as we do. */
static bool known_to_pcre(struct tok_re *const *one, uint32_t cp)
{
    static const unsigned mask[] = {UNI_LU, UNI_LL, UNI_LT, UNI_LM, UNI_LO,
                                    UNI_M,  UNI_N,  UNI_P,  UNI_S,  UNI_WS};
    struct buf b = BUF_INIT;
    bool same = true;
    buf_add_utf8(&b, cp);
    for (int k = 0; k < 10; k++) {
        size_t s, e;
        assert_int_equal(tok_re_find(one[k], buf_str(&b), 0, &s, &e, NULL), QN_OK);
        same &= (s == 0) == ((uni_flags(cp) & mask[k]) != 0);
    }
    buf_free(&b);
    return same;
}

static void compare(const struct tok_re *re, tok_scan_fn fn, struct str text, const char *pattern)
{
    const uint8_t *p = (const uint8_t *)text.p;
    size_t i = 0, s, e, len;
    struct qn_err err;
    while (i < text.n) {
        CHECK_OK(tok_re_find(re, text, i, &s, &e, &err), err);
        size_t got = i, end = i;
        while (got < text.n && (end = fn(p, got, text.n)) == got) {
            tok_cp(p, got, text.n, &len);
            got += len;
        }
        if (got == text.n) {
            assert_true(s == (size_t)-1);
            return;
        }
        if (got != s || end != e)
            fail_msg("%s on \"" STR_FMT "\": [%zu,%zu) by hand, [%zu,%zu) by PCRE2", pattern,
                     STR_ARG(text), got, end, s, e);
        i = e;
    }
}

static void random_text(uint64_t round, struct tok_re *const *one, struct buf *b)
{
    size_t n = 1 + rng_u64(11, round, 0) % 14;
    for (size_t k = 0; k < n; k++) {
        uint64_t r = rng_u64(12, round, k);
        uint32_t cp = pool[r % (sizeof pool / sizeof *pool)];
        if ((r >> 32) % 8 == 0) {
            uint32_t any = (uint32_t)(r >> 40) % 0x30000;
            if ((any < 0xD800 || any > 0xDFFF) && known_to_pcre(one, any))
                cp = any;
        }
        for (uint64_t times = 1 + ((r >> 20) % 16 == 0) * 5; times > 0; times--)
            buf_add_utf8(b, cp);
    }
}

static void by_hand_and_by_pcre(void **state)
{
    static const char *const classes[] = {"\\p{Lu}", "\\p{Ll}", "\\p{Lt}", "\\p{Lm}", "\\p{Lo}",
                                          "\\p{M}",  "\\p{N}",  "\\p{P}",  "\\p{S}",  "\\s"};
    enum { N = sizeof patterns / sizeof *patterns };
    struct tok_re *one[10], *re[N];
    struct qn_err err;
    for (int k = 0; k < 10; k++)
        CHECK_OK(tok_re_compile(str_of(classes[k]), &one[k], &err), err);
    for (int k = 0; k < N; k++) {
        assert_non_null(tok_scan_find(str_of(patterns[k])));
        CHECK_OK(tok_re_compile(str_of(patterns[k]), &re[k], &err), err);
    }
    for (uint64_t round = 0; round < 20000; round++) {
        struct buf b = BUF_INIT;
        random_text(round, one, &b);
        for (int k = 0; k < N; k++)
            compare(re[k], tok_scan_find(str_of(patterns[k])), buf_str(&b), patterns[k]);
        buf_free(&b);
    }
    for (int k = 0; k < 10; k++)
        tok_re_free(one[k]);
    for (int k = 0; k < N; k++)
        tok_re_free(re[k]);
}

static void white_space_is_unicodes(void **state)
{
    struct tok_re *re;
    struct qn_err err;
    CHECK_OK(tok_re_compile(STR_LIT("\\s"), &re, &err), err);
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        struct buf b = BUF_INIT;
        size_t s, e;
        if (cp >= 0xD800 && cp <= 0xDFFF)
            continue;
        buf_add_utf8(&b, cp);
        CHECK_OK(tok_re_find(re, buf_str(&b), 0, &s, &e, &err), err);
        assert_int_equal(s == 0, (uni_flags(cp) & UNI_WS) != 0);
        buf_free(&b);
    }
    tok_re_free(re);
}

static void refused_patterns(void **state)
{
    static const struct {
        const char *pattern, *part;
        enum qn_status st;
    } cases[] = {
        {"\\Qa\\E", "\\Q", QN_UNSUPPORTED},
        {"\\R", "\\R", QN_UNSUPPORTED},
        {"[a[bc]]", "class inside", QN_UNSUPPORTED},
        {"[a-z&&[^b]]", "intersection", QN_UNSUPPORTED},
        {"(?x) a", "x flag", QN_UNSUPPORTED},
        {"(*COMMIT)a", "quantifier", QN_UNSUPPORTED},
        {"a{1,2}+", "counted", QN_UNSUPPORTED},
        {"[abc", "unclosed", QN_UNSUPPORTED},
        {"a\\", "backslash", QN_UNSUPPORTED},
        {"\\pL", "braces", QN_UNSUPPORTED},
        {"(abc", "parenthes", QN_BAD_INPUT},
        {"\\p{Nonsense}", "property", QN_BAD_INPUT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tok_re *re;
        struct qn_err err;
        CHECK_FAILS(tok_re_compile(str_of(cases[i].pattern), &re, &err), cases[i].st, err,
                    cases[i].part);
        assert_null(re);
    }
}

/* A pattern that explodes on this text ends with an error, not with hours of work. */
static void step_limit(void **state)
{
    struct tok_re *re;
    struct qn_err err;
    struct buf b = BUF_INIT;
    size_t s, e;
    for (int i = 0; i < 60; i++)
        buf_addc(&b, 'a');
    CHECK_OK(tok_re_compile(STR_LIT("(?:(?:a|aa)+)+b"), &re, &err), err);
    buf_addc(&b, 'c');
    enum qn_status st = tok_re_find(re, buf_str(&b), 0, &s, &e, &err);
    assert_true(st == QN_UNSUPPORTED || (st == QN_OK && s == (size_t)-1));
    tok_re_free(re);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand_and_by_pcre),
        cmocka_unit_test(white_space_is_unicodes),
        cmocka_unit_test(refused_patterns),
        cmocka_unit_test(step_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
