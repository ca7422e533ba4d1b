/* test_stops.c - stop strings at every cut of several texts, against a plain search of the whole.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "sched/stops.h"

struct fixture {
    const char *text;
    const char *stop[4];
    const char *want; /* what is delivered */
    int hit;
};

static const struct fixture cases[] = {
    {"The quick brown fox jumps", {"own fox"}, "The quick br", 0},
    {"alpha beta gamma delta", {"beta gamma"}, "alpha ", 0},
    {"alpha beta gamm", {"beta gamma"}, "alpha beta gamm", -1},
    {"alpha", {"alpha"}, "", 0},
    {"aaaaaaab", {"aab"}, "aaaaa", 0},
    {"aaaaaaa", {"aab"}, "aaaaaaa", -1},
    {"abcd", {"c", "bcd"}, "a", 1},      /* the earlier start wins although it ends later */
    {"abcx", {"c", "bcd"}, "ab", 0},     /* ... but only when it completes */
    {"abc", {"c", "bcd"}, "ab", 0},      /* ... also at the end of the text */
    {"xabcd", {"abcd", "ab"}, "x", 1},   /* equal start: the shorter */
    {"xabab", {"ab", "ab"}, "x", 0},     /* equal strings: the first */
    {"abcabcabd", {"abcabd"}, "abc", 0}, /* falls back inside itself */
    {"x\xF0\x9F\x99\x82y", {"\xF0\x9F\x99\x82"}, "x", 0},
    {"x\xF0\x9F\x99\x83y", {"\xF0\x9F\x99\x82"}, "x\xF0\x9F\x99\x83y", -1},
    {"\xE6\xBC\xA2\xE5\xAD\x97", {"\xE5\xAD\x97"}, "\xE6\xBC\xA2", 0},
    {"one\n\ntwo", {"\n\n", "\n"}, "one", 1},
    {"nothing here", {"zzz", "re"}, "nothing he", 1},
    {"", {"x"}, "", -1},
    {"no stops", {NULL}, "no stops", -1},
};

static struct stops *make(const struct fixture *c)
{
    struct str s[4];
    int32_t n = 0;
    struct stops *st = NULL;
    for (; n < 4 && c->stop[n]; n++)
        s[n] = str_of(c->stop[n]);
    assert_int_equal(stops_create(s, n, &st, NULL), QN_OK);
    return st;
}

/* Feeds text in pieces that end at the set bits of `cuts` (bit i = after byte i), each piece whole
 * characters as a detokenizer gives them. */
static int run(const struct fixture *c, uint64_t cuts, struct buf *out)
{
    struct stops *st = make(c);
    size_t n = strlen(c->text), from = 0;
    int hit = -1;
    for (size_t i = 0; i < n && hit < 0; i++) {
        bool whole = i + 1 == n || ((unsigned char)c->text[i + 1] & 0xC0) != 0x80;
        if (!whole || (i + 1 < n && !(cuts >> i & 1)))
            continue;
        hit = stops_push(st, (struct str){c->text + from, i + 1 - from}, out);
        assert_true(utf8_valid(buf_str(out)));
        from = i + 1;
    }
    if (hit < 0)
        hit = stops_end(st, out);
    assert_false(stops_failed(st));
    stops_free(st);
    return hit;
}

static void test_cases(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct fixture *c = &cases[i];
        size_t n = strlen(c->text);
        /* all in one piece, every single cut, every pair of cuts, every byte apart, many at random
         */
        for (size_t k = 0; k < 64 * 64 + 200; k++) {
            uint64_t cuts = k < 64 * 64 ? 1ull << (k / 64) | 1ull << (k % 64) : rng_u64(7, i, k);
            if (k < 64 * 64 && (k / 64 > n || k % 64 > n))
                continue;
            if (k == 64 * 64)
                cuts = ~0ull;
            struct buf out = BUF_INIT;
            int hit = run(c, cuts, &out);
            assert_int_equal(hit, c->hit);
            assert_string_equal(buf_z(&out), c->want);
            buf_free(&out);
        }
    }
}

/* The rule in its plainest form: of all places of all stops the first; there the shortest. */
static int plain(struct str text, const struct str *s, int n, size_t *at)
{
    int hit = -1;
    *at = text.n;
    for (int i = 0; i < n; i++) {
        size_t p = str_find(text, s[i], 0);
        if (p == (size_t)-1)
            continue;
        if (p < *at || hit < 0 || (p == *at && s[i].n < s[hit].n)) {
            hit = i;
            *at = p;
        }
    }
    return hit;
}

/* Small alphabets make matches overlap in every way. */
static void test_random(void **state)
{
    for (uint64_t round = 0; round < 20000; round++) {
        char text[40], bytes[4][6];
        struct str s[4];
        uint64_t c = 0;
        int n_stop = 1 + (int)(rng_u64(1, round, c++) % 4);
        size_t n = rng_u64(1, round, c++) % sizeof text;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + rng_u64(1, round, c++) % 2);
        for (int k = 0; k < n_stop; k++) {
            s[k] = (struct str){bytes[k], 1 + rng_u64(1, round, c++) % 6};
            for (size_t i = 0; i < s[k].n; i++)
                bytes[k][i] = (char)('a' + rng_u64(1, round, c++) % 2);
        }
        struct stops *st = NULL;
        struct buf out = BUF_INIT;
        assert_int_equal(stops_create(s, n_stop, &st, NULL), QN_OK);
        int hit = -1;
        for (size_t from = 0; from < n && hit < 0;) {
            size_t len = 1 + rng_u64(1, round, c++) % 4;
            len = len > n - from ? n - from : len;
            hit = stops_push(st, (struct str){text + from, len}, &out);
            from += len;
        }
        if (hit < 0)
            hit = stops_end(st, &out);
        size_t at;
        assert_int_equal(hit, plain((struct str){text, n}, s, n_stop, &at));
        assert_int_equal(out.n, at);
        assert_true(at == 0 || memcmp(out.p, text, at) == 0);
        stops_free(st);
        buf_free(&out);
    }
}

/* What cannot begin a stop leaves at once; what can is held, and no more than that. */
static void test_hold(void **state)
{
    struct fixture c = {.stop = {"<end>"}};
    struct stops *st = make(&c);
    struct buf out = BUF_INIT;
    const char *const pieces[] = {"ab", "c<", "en", "x", "<e", "nd"};
    const char *const sent[] = {"ab", "abc", "abc", "abc<enx", "abc<enx", "abc<enx"};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(stops_push(st, str_of(pieces[i]), &out), -1);
        assert_string_equal(buf_z(&out), sent[i]);
    }
    assert_int_equal(stops_end(st, &out), -1);
    assert_string_equal(buf_z(&out), "abc<enx<end");
    buf_clear(&out);
    assert_int_equal(stops_end(st, &out), -1); /* delivered once */
    assert_int_equal(out.n, 0);
    stops_free(st);
    buf_free(&out);
}

static void test_bad(void **state)
{
    struct qn_err err;
    struct stops *st = NULL;
    struct str s[2] = {STR_LIT("a"), {"", 0}};
    assert_int_equal(stops_create(s, 2, &st, &err), QN_BAD_INPUT);
    assert_non_null(strstr(err.msg, "stop[1]"));
    assert_null(st);
    stops_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_hold),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
