/*
 * test_tok.c - ids and text against goldens made by the PyPI package `tokenizers`
 * (tests/oracle/tok_golden.py), and the facts a tokenizer tells about its ids.
 */
#include "tok_fixture.h"

#include "base/utf8.h"
#include "tok/tok_int.h"

static void check_ids(const struct tok *t, struct str text, unsigned flags, const struct json *want,
                      struct str name)
{
    struct ids got = {0};
    struct qn_err err;
    CHECK_OK(tok_encode(t, text, flags, &got, &err), err);
    bool same = got.n == json_len(want);
    for (size_t i = 0; same && i < got.n; i++)
        same = got.v[i] == (int32_t)json_real(json_at(want, i));
    if (!same) {
        print_error(STR_FMT ": \"" STR_FMT "\" gives", STR_ARG(name), STR_ARG(text));
        for (size_t i = 0; i < got.n; i++)
            print_error(" %d", got.v[i]);
        fail_msg(" - not what the golden has");
    }
    ids_free(&got);
}

static void check_text(const struct tok *t, const struct json *ids, const struct json *want,
                       struct str name)
{
    struct ids in = {0};
    struct buf whole = BUF_INIT, streamed = BUF_INIT;
    assert_true(ids_reserve(&in, json_len(ids) + 1));
    for (size_t i = 0; i < json_len(ids); i++)
        in.v[in.n++] = (int32_t)json_real(json_at(ids, i));
    tok_decode(t, in.v, in.n, true, &whole);
    struct detok *d = detok_create(t, true);
    for (size_t i = 0; i < in.n; i++) {
        size_t before = streamed.n;
        detok_push(d, in.v[i], &streamed);
        assert_true(utf8_valid(
            (struct str){buf_z(&streamed) + before, streamed.n - before})); /* every piece */
    }
    detok_end(d, &streamed);
    assert_true(str_eq(buf_str(&whole), buf_str(&streamed)));
    if (json_type(want) == JSON_STR && !str_eq(buf_str(&whole), json_str(want)))
        fail_msg(STR_FMT ": decoded \"" STR_FMT "\", expected \"" STR_FMT "\"", STR_ARG(name),
                 STR_ARG(buf_str(&whole)), STR_ARG(json_str(want)));
    detok_free(d);
    buf_free(&whole);
    buf_free(&streamed);
    ids_free(&in);
}

static void check_variant(const struct json *v, const struct json *texts)
{
    struct buf text = BUF_INIT;
    struct tok *t = NULL;
    struct qn_err err;
    struct str name = json_str(json_get(v, "name"));
    const struct json *ids = json_get(v, "ids"), *bare = json_get(v, "bare");
    fixture_variant(json_str(json_get(v, "base")), json_get(v, "set"), json_get(v, "model"), &text);
    CHECK_OK(tok_from_json(buf_str(&text), (struct str){NULL, 0}, &t, &err), err);
    assert_int_equal(json_len(ids), json_len(texts));
    for (size_t i = 0; i < json_len(texts); i++) {
        struct str s = json_str(json_at(texts, i));
        check_ids(t, s, TOK_ADD_SPECIAL | TOK_PARSE_SPECIAL, json_at(ids, i), name);
        if (bare)
            check_ids(t, s, 0, json_at(bare, i), name);
        check_text(t, json_at(ids, i), json_at(json_get(v, "text"), i), name);
    }
    tok_free(t);
    buf_free(&text);
}

static void goldens(void **state)
{
    struct buf all = BUF_INIT;
    struct json *head = NULL;
    struct qn_err err;
    int n = 0;
    fixture_text("golden.jsonl", &all);
    for (size_t at = 0; at < all.n;) {
        size_t end = str_find(buf_str(&all), STR_LIT("\n"), at);
        struct json *line;
        CHECK_OK(
            json_parse((struct str){all.p + at, end - at}, "golden", JSON_DEPTH_MAX, &line, &err),
            err);
        at = end + 1;
        if (!head) {
            head = line;
            continue;
        }
        check_variant(line, json_get(head, "texts"));
        json_free(line);
        n++;
    }
    assert_true(n > 40);
    json_free(head);
    buf_free(&all);
}

static void facts(void **state)
{
    struct tok *t = NULL;
    struct qn_err err;
    struct buf text = BUF_INIT, b = BUF_INIT;
    fixture_text("bytes.json", &text);
    struct str config = STR_LIT("{\"bos_token\": {\"content\": \"<|im_start|>\"}, \"eos_token\": "
                                "\"<|im_end|>\", \"added_tokens_decoder\": {\"0\": {}}, \"x\": 3}");
    CHECK_OK(tok_from_json(buf_str(&text), config, &t, &err), err);
    assert_int_equal(tok_size(t), 904);
    assert_int_equal(tok_bos(t), 1);
    assert_int_equal(tok_eos(t), 2);
    assert_int_equal(tok_id(t, STR_LIT("<tool_call>")), 900);
    assert_int_equal(tok_id(t, STR_LIT("no such token")), -1);
    assert_int_equal(tok_id(t, STR_LIT("")), -1);
    CHECK_STR(tok_piece(t, 2), "<|im_end|>");
    assert_int_equal(tok_piece(t, -1).n, 0);
    assert_int_equal(tok_piece(t, 904).n, 0);
    assert_true(tok_is_special(t, 2));
    assert_false(tok_is_special(t, 900));
    assert_false(tok_is_special(t, 5000));
    int32_t nl = tok_id(t, STR_LIT("\u0120\u0120"));
    assert_true(nl >= 0);
    tok_bytes(t, nl, &b);
    CHECK_STR(buf_str(&b), "  ");
    assert_int_equal(json_real(json_get(tok_config(t), "x")), 3);
    assert_false(json_has(tok_config(t), "added_tokens_decoder"));
    buf_free(&b);
    buf_free(&text);
    tok_free(t);
}

/* Special text is text unless the caller asks otherwise; ids out of range decode to nothing. */
static void special_text(void **state)
{
    struct tok *t = fixture_tok("bytes", NULL);
    struct ids ids = {0};
    struct qn_err err;
    struct buf out = BUF_INIT;
    CHECK_OK(tok_encode(t, STR_LIT("<|im_end|>"), 0, &ids, &err), err);
    assert_true(ids.n > 1);
    for (size_t i = 0; i < ids.n; i++)
        assert_false(tok_is_special(t, ids.v[i]));
    tok_decode(t, ids.v, ids.n, false, &out);
    CHECK_STR(buf_str(&out), "<|im_end|>");
    ids.n = 0;
    CHECK_OK(tok_encode(t, STR_LIT("<|im_end|>"), TOK_PARSE_SPECIAL, &ids, &err), err);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.v[0], 2);
    const int32_t odd[] = {-1, 904, INT32_MAX, 2, INT32_MIN};
    buf_clear(&out);
    tok_decode(t, odd, 5, false, &out);
    assert_int_equal(out.n, 0);
    tok_decode(t, odd, 5, true, &out);
    CHECK_STR(buf_str(&out), "<|im_end|>");
    buf_free(&out);
    ids_free(&ids);
    tok_free(t);
}

/* Rare characters are spelled by byte tokens and come back whole. */
static void byte_fallback(void **state)
{
    struct tok *t = fixture_tok("spm", NULL);
    struct ids ids = {0};
    struct qn_err err;
    struct buf out = BUF_INIT;
    struct str text = STR_LIT("\U0001F732\uA64E");
    CHECK_OK(tok_encode(t, text, TOK_PARSE_SPECIAL, &ids, &err), err);
    assert_int_equal(ids.n, 1 + text.n); /* the prefix space, then a token a byte */
    for (size_t i = 0; i < text.n; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned char)text.p[i]);
        assert_int_equal(ids.v[1 + i], tok_id(t, str_of(name)));
    }
    tok_decode(t, ids.v, ids.n, true, &out);
    assert_true(str_eq(buf_str(&out), text));
    buf_free(&out);
    ids_free(&ids);
    tok_free(t);
}

/* A megabyte of one letter: the merges must not be quadratic (that would take hours). The result is
 * checked against the small-word path on a part whose merges are the same. */
static void long_words(void **state)
{
    static const char *const with = "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                                    "\"add_prefix_space\": false, \"use_regex\": false}}";
    struct tok *t = fixture_tok("bytes", with);
    struct ids ids = {0};
    struct qn_err err;
    struct buf text = BUF_INIT, back = BUF_INIT;
    for (int i = 0; i < 1 << 20; i++)
        buf_addc(&text, "a e"[i % 3 ? 0 : 2 * (i % 7 == 0)]);
    CHECK_OK(tok_encode(t, buf_str(&text), 0, &ids, &err), err);
    tok_decode(t, ids.v, ids.n, true, &back);
    assert_true(str_eq(buf_str(&text), buf_str(&back)));
    buf_free(&text);
    buf_free(&back);
    ids_free(&ids);
    tok_free(t);
}

/* Heap and array must merge alike: words of every length around the border between them. */
static void both_merges(void **state)
{
    struct tok *t = fixture_tok("bytes", NULL);
    struct ids whole = {0};
    struct qn_err err;
    const char *words = "thereturnsthenumberofbytesconststructintoutstrbufsizeerrorfileifthenelse";
    for (size_t n = 1; n < 72; n++)
        for (size_t at = 0; at + n <= 72; at += 5) {
            /* the same word followed by bytes that merge with nothing, which makes it long */
            struct buf b = BUF_INIT;
            buf_add(&b, words + at, n);
            for (int i = 0; i < 50; i++)
                buf_addc(&b, (char)0xF8);
            struct ids x = {0};
            CHECK_OK(tok_word_merge(t, b.p, b.n, &x, &err), err);
            whole.n = 0;
            CHECK_OK(tok_word_merge(t, words + at, n, &whole, &err), err);
            assert_int_equal(x.n, whole.n + 50);
            assert_memory_equal(x.v, whole.v, whole.n * sizeof *x.v);
            ids_free(&x);
            buf_free(&b);
        }
    ids_free(&whole);
    tok_free(t);
}

static void invalid_utf8(void **state)
{
    static const struct {
        struct str in, same;
    } cases[] = {
        {STR_LIT("a\xFFz"), STR_LIT("a\uFFFDz")},
        {STR_LIT("\xE2\x82"), STR_LIT("\uFFFD")},
        {STR_LIT("x\xED\xA0\x80y"), STR_LIT("x\uFFFD\uFFFD\uFFFDy")},
    };
    for (int k = 0; k < 2; k++) {
        struct tok *t = fixture_tok(k ? "spm" : "bytes", NULL);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct ids a = {0}, b = {0};
            struct qn_err err;
            CHECK_OK(tok_encode(t, cases[i].in, 0, &a, &err), err);
            CHECK_OK(tok_encode(t, cases[i].same, 0, &b, &err), err);
            assert_int_equal(a.n, b.n);
            assert_memory_equal(a.v, b.v, a.n * sizeof *a.v);
            ids_free(&a);
            ids_free(&b);
        }
        tok_free(t);
    }
}

/* Marks in the wrong order, a million of them: sorted by class, in time that grows with their
 * number (the square of it would take this test past its time limit). */
static void many_marks(void **state)
{
    enum { N = 500000 };
    static const enum tok_op_kind forms[] = {OP_NFD, OP_NFC, OP_NFKC};
    struct buf text = BUF_INIT, want = BUF_INIT, tmp[2] = {BUF_INIT, BUF_INIT};
    for (int few = 0; few < 2; few++) {
        int n = few ? 5 : N;
        for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
            struct tok_ops ops = {.n = 1, .v = {{.kind = forms[f]}}};
            struct str got;
            struct qn_err err;
            buf_clear(&text);
            buf_clear(&want);
            buf_addz(&text, "xq");
            buf_addz(&want, "xq");
            for (int i = 0; i < n; i++)
                buf_addz(&text, "\u0304\u0323"); /* classes 230 and 220 */
            for (int i = 0; i < 2 * n; i++)
                buf_addz(&want, i < n ? "\u0323" : "\u0304");
            CHECK_OK(tok_normalize(&ops, buf_str(&text), tmp, &got, &err), err);
            assert_true(str_eq(got, buf_str(&want)));
        }
    }
    buf_free(&text);
    buf_free(&want);
    buf_free(&tmp[0]);
    buf_free(&tmp[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens),      cmocka_unit_test(facts),
        cmocka_unit_test(special_text), cmocka_unit_test(byte_fallback),
        cmocka_unit_test(long_words),   cmocka_unit_test(both_merges),
        cmocka_unit_test(invalid_utf8), cmocka_unit_test(many_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
