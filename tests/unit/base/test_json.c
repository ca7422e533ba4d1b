/*
 * test_json.c - reading: what is accepted, what is refused and where, numbers to the bit, typed
 * getters; writing: round trips.
 */
#include "../check.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"

#include <malloc.h>
#include <math.h>

static struct json *parse(const char *z)
{
    struct json *doc = NULL;
    struct qn_err err = {0};
    CHECK_OK(json_parse(str_of(z), "t", JSON_DEPTH_MAX, &doc, &err), err);
    return doc;
}

static void check_compact(struct str text, const char *want)
{
    struct json *doc = NULL;
    struct qn_err err = {0};
    struct buf out = BUF_INIT;
    CHECK_OK(json_parse(text, "t", JSON_DEPTH_MAX, &doc, &err), err);
    json_w_value(&out, doc);
    CHECK_STR(buf_str(&out), want);
    buf_free(&out);
    json_free(doc);
}

static void accepts(void **state)
{
    static const char *const cases[][2] = {
        {"null", "null"},
        {" true\t", "true"},
        {"\r\nfalse\n", "false"},
        {"0", "0"},
        {"-0", "-0"},
        {"-0.0", "-0.0"},
        {"1E5", "1E5"},
        {"1.50", "1.50"},
        {"12345678901234567890", "12345678901234567890"},
        {"18446744073709551615", "18446744073709551615"},
        {"18446744073709551616", "18446744073709551616"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"-9223372036854775809", "-9223372036854775809"},
        {"[100000000000000000000000000000,1e+00,5e+000,-0,-0e+00,\"-0\",\"9\\\\\",-0.0e+00]",
         "[100000000000000000000000000000,1e+00,5e+000,-0,-0e+00,\"-0\",\"9\\\\\",-0.0e+00]"},
        {"\"\"", "\"\""},
        {"\"\\ud83d\\ude00\\u00e9\\/\"", "\"\xF0\x9F\x98\x80\xC3\xA9/\""},
        {"\"\\u0000x\"", "\"\\u0000x\""},
        {"\"\x7F\"", "\"\\u007f\""},
        {"[ ]", "[]"},
        {"{ }", "{}"},
        {"[[],{},[{}]]", "[[],{},[{}]]"},
        {"{\"b\":1,\"a\":2}", "{\"b\":1,\"a\":2}"},
        {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\":3,\"b\":2}"},
        {"{\"\":[null]}", "{\"\":[null]}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_compact(str_of(cases[i][0]), cases[i][1]);
}

static void refuses(void **state)
{
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        {"", "byte 0: the text ends here; expected a value"},
        {"  ", "byte 2: the text ends"},
        {"\xEF\xBB\xBF{}", "byte 0"},
        {"{} x", "byte 3: 'x'; expected nothing after"},
        {"1 2", "byte 2"},
        {"nul", "byte 0"},
        {"True", "byte 0: 'T'"},
        {"NaN", "byte 0"},
        {"Infinity", "byte 0"},
        {"-Infinity", "byte 1: 'I'; expected a digit"},
        {"01", "byte 1"},
        {"-01", "byte 2"},
        {"+1", "byte 0"},
        {".5", "byte 0"},
        {"1.", "byte 2"},
        {"1.e5", "byte 2"},
        {"1e", "byte 2"},
        {"1e+", "byte 3"},
        {"0x10", "byte 1"},
        {"--1", "byte 1"},
        {"[1,]", "byte 3"},
        {"[,1]", "byte 1"},
        {"[1 2]", "byte 3: '2'; expected ',' or ']'"},
        {"[1}", "byte 2: '}'"},
        {"[", "byte 1"},
        {"{", "byte 1: the text ends here; expected a key"},
        {"{\"a\"}", "byte 4"},
        {"{\"a\":}", "byte 5"},
        {"{\"a\":1,}", "byte 7"},
        {"{a:1}", "byte 1"},
        {"{'a':1}", "byte 1"},
        {"{\"a\":1 \"b\":2}", "byte 7"},
        {"// c\n1", "byte 0"},
        {"[1]/**/", "byte 3"},
        {"\"abc", "the string that starts at byte 0 does not end"},
        {"\"a\\", "byte 3"},
        {"\"\\x41\"", "byte 2"},
        {"\"\\u12g4\"", "byte 2"},
        {"\"\\u12", "byte 2"},
        {"\"\\ud800\"", "surrogate pair"},
        {"\"\\ud800\\u0041\"", "surrogate pair"},
        {"\"\\ud800\\n\"", "surrogate pair"},
        {"\"\\udc00\"", "lone low surrogate"},
        {"\"a\nb\"", "byte 2: the byte 0x0a"},
        {"\"a\x1F\"", "byte 2: the byte 0x1f"},
        {"\"\xC0\x80\"", "byte 1: the byte 0xc0; expected valid UTF-8"},
        {"\"abcdefgh\xED\xA0\x80\"", "byte 9"},
        {"\"\xF4\x90\x80\x80\"", "byte 1"},
        {"\"\xE2\x82\"", "byte 1"},
        {"{\"a\\u0000b\":1}", "no \\u0000 in an object's key"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json *doc = (struct json *)1;
        struct qn_err err;
        CHECK_FAILS(json_parse(str_of(cases[i].text), "t", JSON_DEPTH_MAX, &doc, &err),
                    QN_BAD_INPUT, err, cases[i].part);
        assert_null(doc);
        assert_true(strncmp(err.msg, "t: ", 3) == 0);
        CHECK_FAILS(json_check(str_of(cases[i].text), "t", JSON_DEPTH_MAX, &err), QN_BAD_INPUT, err,
                    cases[i].part);
    }
}

static void nul_bytes_and_replacement_char(void **state)
{
    struct json *doc;
    struct qn_err err;
    CHECK_FAILS(json_parse(STR_LIT("1\0"), "t", 8, &doc, &err), QN_BAD_INPUT, err, "byte 1");
    CHECK_FAILS(json_parse(STR_LIT("\"a\0\""), "t", 8, &doc, &err), QN_BAD_INPUT, err, "byte 2");
    check_compact(STR_LIT("\"\xEF\xBF\xBD\""), "\"\xEF\xBF\xBD\""); /* U+FFFD itself is valid */
}

static void depth_is_exact(void **state)
{
    struct buf b = BUF_INIT;
    struct qn_err err = {0};
    struct json *doc;
    for (int d = 1; d <= 1024; d = d < 66 ? d + 1 : d * 2 - 66 + 1) {
        buf_clear(&b);
        for (int i = 0; i < d; i++)
            buf_addz(&b, i % 2 ? "{\"k\":" : "[");
        buf_addz(&b, "1");
        for (int i = d - 1; i >= 0; i--)
            buf_addc(&b, i % 2 ? '}' : ']');
        CHECK_OK(json_parse(buf_str(&b), "t", d, &doc, &err), err);
        json_free(doc);
        if (d > 1)
            CHECK_FAILS(json_parse(buf_str(&b), "t", d - 1, &doc, &err), QN_BAD_INPUT, err,
                        "nested deeper than the limit");
    }
    buf_clear(&b);
    for (int i = 0; i < 1000000; i++)
        buf_addc(&b, '[');
    CHECK_FAILS(json_parse(buf_str(&b), "t", 64, &doc, &err), QN_BAD_INPUT, err, "byte 64");
    buf_free(&b);
}

static void integers_to_the_edge(void **state)
{
    static const struct {
        const char *text;
        enum json_type type;
        bool i64, u64;
        int64_t i;
        uint64_t u;
        double d;
    } cases[] = {
        {"0", JSON_INT, true, true, 0, 0, 0},
        {"-0", JSON_INT, true, true, 0, 0, 0},
        {"-1", JSON_INT, true, false, -1, 0, -1},
        {"9223372036854775807", JSON_INT, true, true, INT64_MAX, INT64_MAX, 0x1p63},
        {"9223372036854775808", JSON_INT, false, true, 0, 1ull << 63, 0x1p63},
        {"18446744073709551615", JSON_INT, false, true, 0, UINT64_MAX, 0x1p64},
        {"18446744073709551616", JSON_REAL, false, false, 0, 0, 0x1p64},
        {"-9223372036854775808", JSON_INT, true, false, INT64_MIN, 0, -0x1p63},
        {"-9223372036854775809", JSON_REAL, true, false, INT64_MIN, 0, -0x1p63},
        {"1e400", JSON_REAL, false, false, 0, 0, INFINITY},
        {"3.0", JSON_REAL, true, true, 3, 3, 3},
        {"3.5", JSON_REAL, false, false, 0, 0, 3.5},
        {"1e18", JSON_REAL, true, true, 1000000000000000000, 1000000000000000000, 1e18},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json *v = parse(cases[i].text);
        int64_t a = 77;
        uint64_t b = 77;
        assert_int_equal(json_type(v), cases[i].type);
        assert_int_equal(json_i64(v, &a), cases[i].i64);
        assert_int_equal(json_u64(v, &b), cases[i].u64);
        assert_true(a == (cases[i].i64 ? cases[i].i : 77));
        assert_true(b == (cases[i].u64 ? cases[i].u : 77));
        assert_true(json_real(v) == cases[i].d);
        json_free(v);
    }
}

static void lookups_chain_through_null(void **state)
{
    struct json *doc = parse("{\"a\":{\"b\":[1,\"x\\u0000y\",null]},\"n\":null,\"t\":true}");
    const struct json *arr = json_get(json_get(doc, "a"), "b");
    assert_int_equal(json_len(arr), 3);
    assert_int_equal(json_len(doc), 3);
    assert_int_equal(json_str(json_at(arr, 1)).n, 3);
    assert_memory_equal(json_str(json_at(arr, 1)).p, "x\0y", 3);
    assert_null(json_at(arr, 3));
    assert_null(json_at(doc, 0));
    assert_null(json_get(json_get(json_get(doc, "no"), "such"), "key"));
    assert_int_equal(json_type(NULL), JSON_NULL);
    assert_false(json_has(doc, "n"));
    assert_true(json_is_null(doc, "n"));
    assert_false(json_is_null(doc, "t") || json_is_null(doc, "none") || json_is_null(arr, "n"));
    assert_true(json_bool(json_get(doc, "t")));
    assert_null(json_str(doc).p);
    assert_ptr_equal(json_get_str(doc, (struct str){"abc", 1}), json_get(doc, "a"));
    assert_null(json_get_str(doc, (struct str){"a\0c", 3}));
    assert_string_equal(json_type_name(arr), "array");
    assert_string_equal(json_type_name(json_at(arr, 2)), "null");
    json_free(doc);
}

static void long_keys_are_found(void **state)
{
    struct buf b = BUF_INIT;
    buf_addz(&b, "{\"");
    for (int i = 0; i < 1000; i++)
        buf_addc(&b, (char)('a' + i % 26));
    buf_addz(&b, "\":5}");
    struct json *doc = parse(buf_z(&b));
    int64_t v = 0;
    assert_true(json_i64(json_get_str(doc, (struct str){b.p + 2, 1000}), &v));
    assert_int_equal(v, 5);
    assert_null(json_get_str(doc, (struct str){b.p + 2, 999}));
    json_free(doc);
    buf_free(&b);
}

static void iterates_in_order(void **state)
{
    struct json *doc = parse("{\"z\":1,\"a\":null,\"m\":[2]}");
    struct json_iter it = {0};
    struct buf seen = BUF_INIT;
    while (json_next(doc, &it)) {
        buf_add_str(&seen, it.key);
        buf_addf(&seen, ":%s ", json_type_name(it.val));
    }
    CHECK_STR(buf_str(&seen), "z:integer a:null m:array ");
    assert_false(json_next(doc, &it));
    struct json_iter none = {0};
    assert_false(json_next(NULL, &none));
    assert_false(json_next(json_get(doc, "m"), &none));
    buf_free(&seen);
    json_free(doc);
}

static void typed_getters(void **state)
{
    struct json *doc = parse("{\"i\":5,\"r\":0.5,\"s\":\"x\",\"b\":true,\"n\":null,\"w\":3.0,"
                             "\"big\":3000000000,\"a\":[1]}");
    struct qn_err err = {0};
    int32_t i = 0;
    int64_t l = 0;
    double d = 0;
    bool b = false;
    struct str s;
    CHECK_OK(json_opt_i32(doc, "c", "i", 1, 0, 9, &i, &err), err);
    assert_int_equal(i, 5);
    CHECK_OK(json_opt_i32(doc, "c", "n", 7, 0, 9, &i, &err), err);
    assert_int_equal(i, 7);
    CHECK_OK(json_opt_i32(doc, "c", "absent", -4, 0, 9, &i, &err), err);
    assert_int_equal(i, -4);
    CHECK_OK(json_opt_i32(doc, "c", "w", 1, 0, 9, &i, &err), err);
    assert_int_equal(i, 3);
    CHECK_OK(json_opt_i64(doc, "c", "big", 1, 0, INT64_MAX, &l, &err), err);
    assert_true(l == 3000000000);
    CHECK_OK(json_opt_real(doc, "c", "i", 1, 0, 9, &d, &err), err);
    assert_true(d == 5);
    CHECK_OK(json_opt_bool(doc, "c", "b", false, &b, &err), err);
    assert_true(b);
    CHECK_OK(json_opt_str(doc, "c", "none", (struct str){NULL, 0}, &s, &err), err);
    assert_null(s.p);
    CHECK_OK(json_opt_str(doc, "c", "s", (struct str){NULL, 0}, &s, &err), err);
    CHECK_STR(s, "x");
    CHECK_OK(json_req_i32(doc, "c", "i", 0, 9, &i, &err), err);

    CHECK_FAILS(json_opt_i32(doc, "c", "s", 1, 0, 9, &i, &err), QN_BAD_INPUT, err,
                "c: s is \"x\"; expected an integer in [0, 9]");
    CHECK_FAILS(json_opt_i32(doc, "c", "i", 1, 6, 9, &i, &err), QN_BAD_INPUT, err, "i is 5;");
    CHECK_FAILS(json_opt_i32(doc, "c", "r", 1, 6, 9, &i, &err), QN_BAD_INPUT, err, "r is 0.5;");
    CHECK_FAILS(json_opt_i32(doc, "c", "big", 1, 0, INT32_MAX, &i, &err), QN_BAD_INPUT, err,
                "3000");
    CHECK_FAILS(json_opt_i32(doc, "c", "a", 1, 0, 9, &i, &err), QN_BAD_INPUT, err, "an array");
    CHECK_FAILS(json_opt_real(doc, "c", "r", 1, 1, 2, &d, &err), QN_BAD_INPUT, err, "[1, 2]");
    CHECK_FAILS(json_opt_real(doc, "c", "b", 1, 1, 2, &d, &err), QN_BAD_INPUT, err, "b is true");
    CHECK_FAILS(json_opt_bool(doc, "c", "i", true, &b, &err), QN_BAD_INPUT, err, "true or false");
    CHECK_FAILS(json_opt_str(doc, "c", "i", (struct str){0}, &s, &err), QN_BAD_INPUT, err,
                "string");
    CHECK_FAILS(json_req_i32(doc, "c", "n", 0, 9, &i, &err), QN_BAD_INPUT, err, "n is missing");
    json_free(doc);
}

static void reals_are_shortest(void **state)
{
    static const struct {
        double v;
        const char *want;
    } cases[] = {{0.1, "0.1"},
                 {3, "3.0"},
                 {-0.0, "-0.0"},
                 {1e300, "1e+300"},
                 {1.0 / 3, "0.3333333333333333"},
                 {5e-324, "5e-324"},
                 {NAN, "null"},
                 {-INFINITY, "null"},
                 {123456789.25, "123456789.25"},
                 {1e15, "1e+15"},
                 {0x1p53, "9007199254740992.0"}};
    struct buf out = BUF_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf_clear(&out);
        json_w_real(&out, cases[i].v);
        if (cases[i].v != 0x1p53) /* beyond 1e15 the exponent form may be shorter */
            CHECK_STR(buf_str(&out), cases[i].want);
        if (isfinite(cases[i].v))
            assert_true(strtod(buf_z(&out), NULL) == cases[i].v);
    }
    uint64_t x = 88172645463325252u; /* xorshift64: any bit pattern must come back equal */
    for (int i = 0; i < 20000; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        double v;
        memcpy(&v, &x, 8);
        if (!isfinite(v))
            continue;
        buf_clear(&out);
        json_w_real(&out, v);
        assert_true(strtod(buf_z(&out), NULL) == v);
    }
    buf_free(&out);
}

static void writer_places_commas(void **state)
{
    struct buf out = BUF_INIT;
    struct jw w;
    struct json *doc = parse("[1.50,{\"k\":[]}]");
    jw_init(&w, &out);
    jw_obj(&w);
    jw_kstrz(&w, "s", "a\"\\\n\x01\xC3\xA9\xFF");
    jw_kstrz(&w, "z", NULL);
    jw_ki64(&w, "i", INT64_MIN);
    jw_kreal(&w, "r", 0.25);
    jw_kbool(&w, "b", true);
    jw_knull(&w, "n");
    jw_key(&w, "arr");
    jw_arr(&w);
    jw_obj(&w);
    jw_obj_end(&w);
    jw_arr(&w);
    jw_arr_end(&w);
    jw_raw(&w, STR_LIT("{\"x\":1}"));
    jw_value(&w, doc);
    jw_bool(&w, false);
    jw_arr_end(&w);
    jw_key(&w, "o");
    jw_obj(&w);
    jw_ki64(&w, "q", 1);
    jw_obj_end(&w);
    jw_kstr(&w, "end", STR_LIT("x\0y"));
    jw_obj_end(&w);
    CHECK_STR(buf_str(&out), "{\"s\":\"a\\\"\\\\\\n\\u0001\xC3\xA9\xEF\xBF\xBD\",\"z\":null,"
                             "\"i\":-9223372036854775808,\"r\":0.25,\"b\":true,\"n\":null,"
                             "\"arr\":[{},[],{\"x\":1},[1.50,{\"k\":[]}],false],"
                             "\"o\":{\"q\":1},\"end\":\"x\\u0000y\"}");
    struct qn_err err = {0};
    CHECK_OK(json_check(buf_str(&out), "t", 8, &err), err);
    json_free(doc);
    buf_free(&out);
}

/* The shape of a large tokenizer.json: 200,000 vocabulary entries and as many merges. */
static void reads_a_large_document(void **state)
{
    struct buf text = BUF_INIT;
    struct qn_err err = {0};
    struct json *doc;
    buf_addz(&text, "{\n \"vocab\": {");
    for (int i = 0; i < 200000; i++)
        buf_addf(&text, "%s\n  \"\xC4\xA0tok%d\": %d", i ? "," : "", i, i);
    buf_addz(&text, "},\n \"merges\": [");
    for (int i = 0; i < 200000; i++)
        buf_addf(&text, "%s\n  [\"a%d\", \"\\u0120b\"]", i ? "," : "", i);
    buf_addz(&text, "]}");
    int64_t t0 = clock_us();
    CHECK_OK(json_check(buf_str(&text), "t", JSON_DEPTH_MAX, &err), err);
    int64_t t1 = clock_us();
    CHECK_OK(json_parse(buf_str(&text), "t", JSON_DEPTH_MAX, &doc, &err), err);
    print_message("%zu bytes: check %lld ms, parse %lld ms\n", text.n, (long long)(t1 - t0) / 1000,
                  (long long)(clock_us() - t1) / 1000);
    int64_t id = 0;
    assert_true(json_i64(json_get(json_get(doc, "vocab"), "\xC4\xA0tok123456"), &id));
    assert_int_equal(id, 123456);
    const struct json *last = json_at(json_get(doc, "merges"), 199999);
    CHECK_STR(json_str(json_at(last, 1)), "\xC4\xA0"
                                          "b");
    json_free(doc);
    buf_free(&text);
}

/* The estimate against what the heap really grows by: never under it, never far above. */
static void memory_is_foreseen(void **state)
{
    static const char *const units[] = {"{}",
                                        "[]",
                                        "1",
                                        "\"ab\"",
                                        "null",
                                        "{\"k\":[1,2]}",
                                        "{\"role\":\"user\",\"content\":\"hello there\"}",
                                        "1.25",
                                        "[[[]]]",
                                        "true"};
    enum { N = 50000 };
    for (size_t k = 0; k < sizeof units / sizeof units[0]; k++) {
        struct buf b = BUF_INIT;
        struct json *doc = NULL;
        struct qn_err err = {0};
        buf_addc(&b, '[');
        for (int i = 0; i < N; i++)
            buf_addf(&b, "%s%s", i ? "," : "", units[k]);
        buf_addc(&b, ']');
        struct mallinfo2 before = mallinfo2();
        CHECK_OK(json_parse(buf_str(&b), "t", JSON_DEPTH_MAX, &doc, &err), err);
        struct mallinfo2 after = mallinfo2();
        size_t took = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
        size_t said = json_memory(buf_str(&b));
        json_free(doc);
        buf_free(&b);
        if (before.uordblks == 0) /* another allocator, as under a sanitizer */
            continue;
        if (said < took || said > 16 * (took + N))
            fail_msg("%s: %zu bytes foreseen, %zu taken", units[k], said, took);
    }
    /* inside a string nothing counts; the text may be cut off anywhere */
    assert_int_equal(json_memory(STR_LIT("\"{[:,\\\"{{{\"")), 11);
    assert_int_equal(json_memory(STR_LIT("\"\\")), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts),
        cmocka_unit_test(refuses),
        cmocka_unit_test(nul_bytes_and_replacement_char),
        cmocka_unit_test(depth_is_exact),
        cmocka_unit_test(integers_to_the_edge),
        cmocka_unit_test(lookups_chain_through_null),
        cmocka_unit_test(long_keys_are_found),
        cmocka_unit_test(iterates_in_order),
        cmocka_unit_test(typed_getters),
        cmocka_unit_test(reals_are_shortest),
        cmocka_unit_test(writer_places_commas),
        cmocka_unit_test(reads_a_large_document),
        cmocka_unit_test(memory_is_foreseen),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
