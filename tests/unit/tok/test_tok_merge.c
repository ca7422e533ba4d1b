/* test_tok_merge.c - long words go window by window: the result must be that of the whole word. */
#include "tok_fixture.h"

#include "base/rng.h"
#include "tok/tok_int.h"

#define WORD 6000

static void same_by_windows(const struct tok *t, struct str word)
{
    static const size_t windows[] = {256, 300, 1024, 4096};
    struct ids whole = {0}, x = {0};
    assert_true(tok_word_merge_by(t, word, word.n + 256, &whole));
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        x.n = 0;
        assert_true(tok_word_merge_by(t, word, windows[i], &x));
        assert_int_equal(x.n, whole.n);
        assert_memory_equal(x.v, whole.v, x.n * sizeof *x.v);
    }
    ids_free(&whole);
    ids_free(&x);
}

static void random_words(const char *name)
{
    static const char *const alphabets[] = {"a",
                                            "ab",
                                            " ",
                                            "etaoinshrdlu",
                                            "0123456789",
                                            "the ",
                                            "!?.",
                                            "\u00e9e",
                                            "\xE6\xBC\xA2\xE5\xAD\x97x"};
    struct tok *t = fixture_tok(name, NULL);
    char *word = malloc(WORD);
    assert_non_null(word);
    for (size_t a = 0; a < sizeof alphabets / sizeof *alphabets; a++) {
        size_t n = strlen(alphabets[a]);
        for (size_t i = 0; i < WORD; i++) /* whole characters in turn, or bytes at random */
            word[i] =
                alphabets[a][(unsigned char)alphabets[a][0] < 0x80 ? rng_u64(5, a, i) % n : i % n];
        same_by_windows(t, (struct str){word, WORD});
    }
    free(word);
    tok_free(t);
}

static void words_of_fixtures(void **state)
{
    random_words("bytes");
    random_words("spm");
}

/* A vocabulary in which the last letter decides about hundreds before it: "z" takes one "a" after
 * the other, before the others pair up. Windows end among them, and the place must move back. */
static void far_effects(void **state)
{
    enum { REACH = 700 };
    struct buf json = BUF_INIT, as = BUF_INIT;
    struct tok *t = NULL;
    struct qn_err err;
    buf_addz(&json,
             "{\"version\":\"1.0\",\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{"
             "\"a\":0,\"z\":1,\"aa\":2,\"aaaa\":3");
    for (int i = 1; i <= REACH; i++) {
        buf_addc(&as, 'a');
        buf_addf(&json, ",\"" STR_FMT "z\":%d", STR_ARG(buf_str(&as)), 3 + i);
    }
    buf_addz(&json, "},\"merges\":[\"a z\"");
    buf_clear(&as);
    for (int i = 1; i < REACH; i++) {
        buf_addc(&as, 'a');
        buf_addf(&json, ",\"a " STR_FMT "z\"", STR_ARG(buf_str(&as)));
    }
    buf_addz(&json, ",\"a a\",\"aa aa\"]}}");
    CHECK_OK(tok_from_json(buf_str(&json), (struct str){NULL, 0}, &t, &err), err);
    for (size_t n = 2000; n < 2012; n++) {
        buf_clear(&as);
        for (size_t k = 0; k < 3; k++) {
            for (size_t i = 0; i < n + 37 * k; i++)
                buf_addc(&as, 'a');
            buf_addc(&as, 'z');
        }
        same_by_windows(t, buf_str(&as));
    }
    buf_free(&as);
    buf_free(&json);
    tok_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_fixtures),
        cmocka_unit_test(far_effects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
