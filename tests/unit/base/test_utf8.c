/*
 * test_utf8.c - every scalar value, every two-byte string, and the maximal-prefix rule on the
 * examples of the Unicode standard (chapter 3.9, tables 3-8 to 3-11).
 */
#include "../check.h"

#include "base/utf8.h"

static void every_scalar_value(void **state)
{
    struct buf b = BUF_INIT;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        bool surrogate = cp >= 0xD800 && cp <= 0xDFFF;
        size_t i = 0;
        buf_clear(&b);
        buf_add_utf8(&b, cp);
        assert_int_equal(utf8_valid(buf_str(&b)), !surrogate);
        if (surrogate)
            continue;
        assert_int_equal(utf8_next(buf_str(&b), &i), cp);
        assert_int_equal(i, b.n);
        assert_int_equal(utf8_tail(buf_str(&b)), 0);
        for (size_t cut = 1; cut < b.n; cut++) {
            struct str part = {b.p, cut};
            assert_int_equal(utf8_tail(part), cut);
            assert_int_equal(utf8_count(part), 1);
            i = 0;
            assert_int_equal(utf8_next(part, &i), 0xFFFD);
            assert_int_equal(i, cut);
        }
    }
    buf_free(&b);
}

static void maximal_prefixes(void **state)
{
    static const struct {
        struct str in;
        const char *marks; /* '?' = one U+FFFD, other characters as they are */
    } cases[] = {
        {STR_LIT("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), "????????A"},
        {STR_LIT("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), "????????A"},
        {STR_LIT("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), "?????A??B"},
        {STR_LIT("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "????A"},
        {STR_LIT("\xF0\x9F\x98"), "?"},
        {STR_LIT("a\xE2\x82z"), "a?z"},
        {STR_LIT(""), ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf out = BUF_INIT, want = BUF_INIT;
        utf8_sanitize(&out, cases[i].in);
        for (const char *m = cases[i].marks; *m; m++) {
            if (*m == '?')
                buf_addz(&want, "\xEF\xBF\xBD");
            else
                buf_addc(&want, *m);
        }
        assert_true(str_eq(buf_str(&out), buf_str(&want)));
        assert_true(utf8_valid(buf_str(&out)));
        assert_int_equal(utf8_count(cases[i].in), strlen(cases[i].marks));
        buf_free(&out);
        buf_free(&want);
    }
}

static void tails(void **state)
{
    static const struct {
        struct str in;
        size_t tail;
    } cases[] = {
        {STR_LIT(""), 0},
        {STR_LIT("abc"), 0},
        {STR_LIT("abc\xF0"), 1},
        {STR_LIT("\xF0\x9F"), 2},
        {STR_LIT("\xF0\x9F\x98"), 3},
        {STR_LIT("\xF0\x9F\x98\x80"), 0},
        {STR_LIT("\xC0"), 0},
        {STR_LIT("\xED\xA0"), 0},
        {STR_LIT("\x80"), 0},
        {STR_LIT("\x80\x80\x80\x80"), 0},
        {STR_LIT("\xE2\x82"), 2},
        {STR_LIT("\xC3\xC3"), 1},
        {STR_LIT("\xF5"), 0},
        {STR_LIT("\xE0\x80"), 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(utf8_tail(cases[i].in), cases[i].tail);
}

static void valid_prefix_in_long_text(void **state)
{
    char text[64];
    for (size_t at = 0; at < sizeof text; at++) {
        memset(text, 'x', sizeof text);
        text[at] = (char)0xFE;
        assert_int_equal(utf8_valid_prefix((struct str){text, sizeof text}), at);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar_value),
        cmocka_unit_test(maximal_prefixes),
        cmocka_unit_test(tails),
        cmocka_unit_test(valid_prefix_in_long_text),
    };
    return cmocka_run_group_tests_name("utf8", tests, NULL, NULL);
}
