/*
 * test_gram_accept.c - which texts each kind of grammar accepts: tables of specification, texts
 * that must pass and texts that must not, and what is refused with which keyword.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "gram/gram.h"

#define MAX_TEXTS 12

struct row {
    const char *spec;
    const char *yes[MAX_TEXTS], *no[MAX_TEXTS];
};

static bool accepts(struct gram *g, const char *text)
{
    bool whole;
    gram_match(g, str_of(text), &whole);
    return whole;
}

static void check_rows(enum gram_kind kind, const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct json *doc = NULL;
        struct gram *g = NULL;
        struct qn_err err = {0};
        struct gram_spec spec = {.kind = kind, .text = str_of(rows[i].spec)};
        if (kind == GRAM_JSON_SCHEMA || kind == GRAM_CHOICE) {
            assert_int_equal(json_parse(spec.text, "spec", 64, &doc, &err), QN_OK);
            spec.json = doc;
        }
        if (gram_compile(&spec, &g, NULL, &err) != QN_OK)
            fail_msg("%s: %s", rows[i].spec, err.msg);
        for (int k = 0; k < MAX_TEXTS && rows[i].yes[k]; k++)
            if (!accepts(g, rows[i].yes[k]))
                fail_msg("%s should accept %s", rows[i].spec, rows[i].yes[k]);
        for (int k = 0; k < MAX_TEXTS && rows[i].no[k]; k++)
            if (accepts(g, rows[i].no[k]))
                fail_msg("%s should not accept %s", rows[i].spec, rows[i].no[k]);
        gram_unref(g);
        json_free(doc);
    }
}
#define CHECK(kind, rows) check_rows(kind, rows, sizeof rows / sizeof *rows)

static void regexes(void **state)
{
    static const struct row rows[] = {
        {"abc", {"abc"}, {"ab", "abcd", ""}},
        {"^(a|b)+c{2,3}$", {"acc", "abccc"}, {"cc", "acccc", "ac"}},
        {"a?b*c+", {"c", "abbbc", "bcc"}, {"", "ab", "aac"}},
        {"\\d{3}-\\d{4}", {"123-4567"}, {"123-456", "1234567", "abc-defg"}},
        {"[^0-9\\s]{2}", {"ab", "\xC3\xA9x", "\xF0\x9F\x99\x82z"}, {"a1", "a ", "a", "\xC3\xA9"}},
        {"[\xC3\xA0-\xC3\xBC]+", {"\xC3\xA9", "\xC3\xA0\xC3\xBC"}, {"a", "\xC3\x9F", "\xC3"}},
        {".", {"a", "\xE2\x82\xAC", "\""}, {"", "\n", "ab", "\xE2\x82"}},
        {"(?:x|y(?<n>z))", {"x", "yz"}, {"y", "z"}},
        {"(a?){1000}", {"", "a", "aaaaaaaa"}, {"b"}},
        {"(a{2,3}b?){2}", {"aaaa", "aabaaa", "aaabaab"}, {"aaa", "aab", "aabaabaab"}},
        {"\\u00e9\\x41\\u{1F600}",
         {"\xC3\xA9"
          "A\xF0\x9F\x98\x80"},
         {"A"}},
        {"[\\w.-]+@[\\w-]+\\.\\w{2,}", {"a.b@c-d.org"}, {"a@b", "@x.yy"}},
        {"[]", {NULL}, {NULL}},
        {"a{0}b", {"b"}, {"ab"}},
        {"a{,3}", {"a{,3}"}, {"aa"}},
        {"x*(y|)", {"", "xx", "xy"}, {"yy"}},
        {"\\S+\\D\\W", {"ab!", "a! "}, {"ab1", "a b"}},
        {"(a|ab)(c|bcd)", {"ac", "abcd", "abc", "abbcd"}, {"ab", "acd"}},
    };
    struct row some[sizeof rows / sizeof *rows];
    size_t n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].yes[0])
            some[n++] = rows[i];
    check_rows(GRAM_REGEX, some, n);
}

static void choices(void **state)
{
    static const struct row rows[] = {
        {"[\"yes\",\"no\",\"yesno\"]", {"yes", "no", "yesno"}, {"ye", "", "yesn", "nono"}},
        {"[\"\",\"a\"]", {"", "a"}, {"aa"}},
        {"[\"\xC3\xA9\",\"\xC3\xA8\"]", {"\xC3\xA9", "\xC3\xA8"}, {"\xC3", "e"}},
        {"[\"a\",\"a\"]", {"a"}, {""}},
    };
    CHECK(GRAM_CHOICE, rows);
}

static void gbnf(void **state)
{
    static const struct row rows[] = {
        {"root ::= \"a\" b\nb ::= [0-9]{2} # two\n", {"a12"}, {"a1", "a123"}},
        {"root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
         {"1", "1+2", "(1+(2))+33"},
         {"(1", "1+", "+1"}},
        {"root ::= (\n  \"x\" |\n  \"y\"\n)+", {"xyx"}, {"", "z"}},
        {"root ::= list\nlist ::= \"a\" list | \"b\"", {"b", "aaaaab"}, {"a", "ba"}},
        {"root ::= [^\"\\n]* \"\\\"\" \"\\x41\\u00e9\"", {"q\"A\xC3\xA9"}, {"\n\"A\xC3\xA9"}},
        {"root ::= . . ", {"a\xE2\x82\xAC"}, {"a", "abc"}},
        {"root ::= \"a\"{0,2} \"b\"{2,} \"c\"{1}", {"bbc", "aabbbc"}, {"aaabbc", "abc", "bbcc"}},
        {"root ::= a-b\na-b ::= \"q\"", {"q"}, {"a"}},
        {"root ::= x*\nx ::= \"\" | \"a\" x?", {"", "aaa"}, {"b"}},
        {"root ::= x{2,3}\nx ::= \"a\"? \"b\"?", {"", "ab", "abab", "bb", "aaa"}, {"aaaa", "ba,"}},
    };
    CHECK(GRAM_GBNF, rows);
}

static void any_object(void **state)
{
    static const struct row rows[] = {
        {"",
         {"{}", "{\"a\":1}", "{\"a\": [1, 2.5e-3, {\"b\":null}], \"c\":true}", "{ }",
          "{\n  \"a\": \"x\\n\\u00e9\\ud83d\\ude42\"\n}"},
         {"[]", "{\"a\":1", "{\"a\":01}", "{\"a\":\"\\ud83d\"}", "{\"a\":\"\n\"}", "{a:1}",
          "{\"a\":1,}", "{\"a\":+1}", "{\"a\":.5}", "{}{}", "{\"a\":\"\\x\"}"}},
    };
    CHECK(GRAM_JSON_OBJECT, rows);
}

static void schema_scalars(void **state)
{
    static const struct row rows[] = {
        {"{\"type\":\"null\"}", {"null"}, {"0", "\"null\""}},
        {"{\"type\":\"boolean\"}", {"true", "false"}, {"1"}},
        {"{\"type\":[\"integer\",\"null\"]}", {"null", "-12"}, {"1.5", "\"1\"", "-"}},
        {"{\"type\":\"string\",\"nullable\":true}", {"null", "\"\""}, {"1"}},
        {"{\"type\":\"integer\",\"minimum\":-3,\"maximum\":123}",
         {"-3", "0", "123", "99", "5", "-1"},
         {"-4", "124", "1000", "05", "1.0"}},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":3}",
         {"1", "2"},
         {"0", "3", "-1"}},
        {"{\"type\":\"integer\",\"minimum\":0,\"exclusiveMinimum\":true}", {"1"}, {"0"}},
        {"{\"type\":\"integer\",\"maximum\":-5}", {"-5", "-123"}, {"-4", "0", "5"}},
        {"{\"type\":\"integer\",\"minimum\":-1.5,\"maximum\":1.5}", {"-1", "0", "1"}, {"2", "-2"}},
        {"{\"type\":\"integer\",\"minimum\":9007199254740993}",
         {"9007199254740993", "9007199254741000"},
         {"9007199254740992"}},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0.5,\"maximum\":12.25}",
         {"0.51", "0.500001", "12.25", "12.250", "5", "12"},
         {"0.5", "0.50", "12.251", "12.26", "13", "1e1", "0.4999"}},
        {"{\"type\":\"number\",\"minimum\":-0.01,\"maximum\":0}",
         {"0", "-0.01", "-0.001", "-0.0"},
         {"-0.011", "-0.02", "0.1", "-1"}},
        {"{\"type\":\"number\",\"minimum\":1e3}", {"1000", "1000.5", "99999"}, {"999.9", "-1000"}},
        {"{\"type\":\"number\"}",
         {"1", "-0.5", "1e5", "2.5E-3"},
         {"01", "1.", ".5", "1e", "1e999"}},
        {"{\"multipleOf\":7}", {"0", "7", "-21", "700"}, {"1", "7.5", "8"}},
        {"{\"type\":\"number\",\"multipleOf\":0.25}",
         {"0.25", "1", "1.5", "-2.75", "0.50"},
         {"0.3", "0.255", "1."}},
        {"{\"type\":\"integer\",\"multipleOf\":5,\"minimum\":12,\"maximum\":20}",
         {"15", "20"},
         {"10", "25", "13"}},
        {"{\"const\":{\"a\":[1,\"x\"]}}", {"{\"a\":[1,\"x\"]}"}, {"{}"}},
        {"{\"const\":null}", {"null"}, {"0"}},
        {"{\"enum\":[\"a\",\"ab\",1,null,true]}",
         {"\"a\"", "\"ab\"", "1", "null", "true"},
         {"\"b\"", "2", "false", "a"}},
        {"{\"type\":\"string\",\"enum\":[\"a\",1,\"bcd\"],\"maxLength\":2}",
         {"\"a\""},
         {"1", "\"bcd\""}},
        {"{\"allOf\":[{\"enum\":[1,2,3]},{\"enum\":[2,3,4]},{\"minimum\":3}]}", {"3"}, {"2", "4"}},
        {"true", {"1", "{}", "\"x\""}, {"x"}},
        {"{}", {"[1]", "null"}, {""}},
    };
    CHECK(GRAM_JSON_SCHEMA, rows);
}

static void schema_strings(void **state)
{
    static const struct row rows[] = {
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
         {"\"ab\"", "\"abc\"", "\"\xC3\xA9\xE2\x82\xAC\"", "\"\\n\\u0041\"",
          "\"\\ud83d\\ude42\xF0\x9F\x99\x82\""},
         {"\"a\"", "\"abcd\"", "\"\xC3\xA9\""}},
        {"{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"}",
         {"\"abc\""},
         {"\"\"", "\"aB\"", "\"a1\""}},
        {"{\"pattern\":\"b\"}", {"\"abc\"", "\"b\"", "\"\\nb\""}, {"\"ac\""}},
        {"{\"pattern\":\"^a|b$\"}", {"\"axx\"", "\"xxb\""}, {"\"xax\"", "\"bx\""}},
        {"{\"pattern\":\"^[a-z]+\\\"$\",\"maxLength\":4}",
         {"\"abc\\\"\"", "\"a\\\"\""},
         {"\"abcd\\\"\"", "\"abc\""}},
        {"{\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"z$\"}],\"minLength\":3}",
         {"\"abz\"", "\"azzz\""},
         {"\"az\"", "\"abx\"", "\"bbz\""}},
        {"{\"format\":\"date\"}",
         {"\"2024-02-29\"", "\"1999-12-31\""},
         {"\"2023-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"24-01-01\""}},
        {"{\"format\":\"date-time\"}",
         {"\"2024-02-29T10:00:00Z\"", "\"2024-12-31T23:59:59.5+01:00\""},
         {"\"2024-12-31 23:59:59Z\"", "\"2024-12-31T24:00:00Z\""}},
        {"{\"format\":\"uuid\"}",
         {"\"123e4567-e89b-12d3-a456-426614174000\""},
         {"\"123e4567e89b12d3a456426614174000\""}},
        {"{\"format\":\"ipv4\"}",
         {"\"192.168.0.255\"", "\"0.0.0.0\""},
         {"\"256.1.1.1\"", "\"1.2.3\""}},
        {"{\"format\":\"ipv6\"}",
         {"\"::1\"", "\"::\"", "\"2001:db8::ff00:42:8329\"", "\"1:2:3:4:5:6:7:8\""},
         {"\"1::2::3\"", "\"12345::\"", "\":\""}},
        {"{\"format\":\"email\",\"maxLength\":9}", {"\"a@b.co\""}, {"\"a@b\"", "\"abcdef@b.co\""}},
        {"{\"format\":\"uri\"}", {"\"https://a.b/c?d=e#f\"", "\"urn:x:y\""}, {"\"/a\"", "\"a b\""}},
        {"{\"format\":\"duration\"}",
         {"\"P1D\"", "\"PT1H30M\"", "\"P2W\""},
         {"\"P\"", "\"1D\"", "\"PT\""}},
        {"{\"type\":\"string\",\"format\":\"password\"}", {"\"x\""}, {"1"}},
    };
    CHECK(GRAM_JSON_SCHEMA, rows);
}

static void schema_parts(void **state)
{
    static const struct row rows[] = {
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
         {"[1]", "[1, 2,3]", "[\n 1\n]"},
         {"[]", "[1,2,3,4]", "[\"a\"]", "[1,]"}},
        {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false}",
         {"[]", "[1]", "[1,\"a\"]"},
         {"[\"a\"]", "[1,\"a\",2]"}},
        {"{\"items\":[{\"type\":\"integer\"}],\"additionalItems\":{\"type\":\"null\"},\"minItems\":"
         "2}",
         {"[1,null]", "[1,null,null]"},
         {"[1]", "[1,2]"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
         "\"string\"},\"c\":{}},\"required\":[\"a\"]}",
         {"{\"a\":1}", "{\"a\":-5, \"b\":\"abc\"}", "{\"a\":1,\"c\":[]}", "{\n\"a\": 1\n}"},
         {"{}", "{\"b\":\"\"}", "{\"a\":1,\"z\":1}", "{\"b\":\"\",\"a\":1}", "{\"a\":1,}"}},
        {"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"additionalProperties\":true}",
         {"{}", "{\"a\":1,\"b\":[2]}", "{\"aa\":1}", "{\"\":0}"},
         {"{\"a\":\"x\"}", "{\"b\":1,\"a\":\"x\"}"}},
        {"{\"additionalProperties\":{\"type\":\"integer\"},\"properties\":{\"ab\":{\"type\":"
         "\"string\"}},\"minProperties\":1,\"maxProperties\":2}",
         {"{\"ab\":\"\"}", "{\"a\":1}", "{\"abc\":1,\"q\":2}", "{\"ab\":\"x\",\"abc\":1}"},
         {"{}", "{\"ab\":1}", "{\"ab\":\"x\",\"y\":1,\"z\":2}", "{\"a\":1,\"b\":1,\"c\":1}"}},
        {"{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":2,"
         "\"additionalProperties\":"
         "false}",
         {"{\"a\":1,\"c\":1}", "{\"a\":1,\"b\":1,\"c\":1}", "{\"b\":1,\"c\":1}"},
         {"{\"a\":1}", "{}"}},
        {"{\"properties\":{\"name\":{\"type\":\"string\"}},\"patternProperties\":{\"^x-\":{"
         "\"type\":"
         "\"integer\"}},\"additionalProperties\":false}",
         {"{\"name\":\"q\",\"x-a\":1}", "{}", "{\"x-\":1}"},
         {"{\"x-a\":\"s\"}", "{\"y\":1}", "{\"x\":1}"}},
        {"{\"patternProperties\":{\"a\":{\"minimum\":5},\"b\":{\"maximum\":7}}}",
         {"{\"ab\":6}", "{\"xa\":9}", "{\"b\":1}"},
         {"{\"ab\":4}", "{\"ab\":8}", "{\"c\":1}"}},
        {"{\"required\":[\"z\"],\"properties\":{\"a\":{}}}",
         {"{\"z\":1}", "{\"a\":1,\"z\":[]}"},
         {"{\"a\":1}", "{}"}},
        {"{\"type\":\"object\",\"maxProperties\":1}",
         {"{}", "{\"a\":{\"b\":1}}"},
         {"{\"a\":1,\"b\":2}"}},
        {"{\"properties\":{\"\\\"\\u00e9\":{\"const\":1}},\"required\":[\"\\\"\\u00e9\"]}",
         {"{\"\\\"\xC3\xA9\":1}"},
         {"{}", "{\"\xC3\xA9\":1}"}},
    };
    CHECK(GRAM_JSON_SCHEMA, rows);
}

static void schema_combined(void **state)
{
    static const struct row rows[] = {
        {"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
         "\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"v\","
         "\"kids\"]}},\"$ref\":\"#/$defs/n\"}",
         {"{\"v\":1,\"kids\":[]}",
          "{\"v\":1,\"kids\":[{\"v\":2,\"kids\":[]}, {\"v\":3,\"kids\":[]}]}"},
         {"{\"v\":1}", "{\"v\":1,\"kids\":[{}]}"}},
        {"{\"anyOf\":[{\"type\":\"string\",\"maxLength\":1},{\"type\":\"integer\"},{\"$ref\":\"#/x/"
         "y~1z\"}],\"x\":{\"y/z\":{\"const\":[]}}}",
         {"\"a\"", "5", "[]"},
         {"\"ab\"", "null"}},
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"],"
         "\"anyOf\":[{\"properties\":{\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]},{"
         "\"properties\":"
         "{\"c\":{\"type\":\"null\"}},\"required\":[\"c\"]}]}",
         {"{\"a\":1,\"b\":null}", "{\"a\":1,\"c\":null}"},
         {"{\"a\":1}", "{\"b\":null}"}},
        {"{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":3}}},{\"properties\":{\"a\":{\"type\":"
         "\"integer\",\"maximum\":5},\"b\":{}}}],\"required\":[\"a\"]}",
         {"{\"a\":3}", "{\"a\":5,\"b\":0}"},
         {"{\"a\":2}", "{\"a\":6}", "{\"a\":4.5}"}},
        {"{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},"
         "\"required\":[\"k\",\"x\"]},{\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":["
         "\"k\"]}]}",
         {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\"}"},
         {"{\"k\":\"a\"}", "{\"k\":\"b\",\"x\":1}", "{\"k\":\"c\"}"}},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"string\"},{\"type\":\"null\"}]}",
         {"1", "\"\"", "null"},
         {"1.5", "[]"}},
        {"{\"$ref\":\"#/$defs/a\",\"maxLength\":2,\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":"
         "{\"type\":\"string\"}}}",
         {"\"ab\""},
         {"\"abc\"", "1"}},
        {"{\"allOf\":[{\"$ref\":\"#\"},{\"type\":\"integer\"}]}", {"1"}, {"\"a\""}},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"integer\"}]}", {"1"}, {"\"a\""}},
        {"{\"anyOf\":[{\"minLength\":5,\"maxLength\":2},{\"type\":\"integer\"}]}",
         {"7"},
         {"\"abc\""}},
        {"{\"$ref\":\"#q\",\"$defs\":{\"z\":{\"$anchor\":\"q\",\"type\":\"null\"}}}",
         {"null"},
         {"1"}},
    };
    CHECK(GRAM_JSON_SCHEMA, rows);
}

/* A format beside a limit on the length: compiled whatever the limit, which is kept. */
static void format_lengths(void **state)
{
    static const char *const texts[][2] = {{"email", "some.one@mail.example.org"},
                                           {"hostname", "a-b.example.org"},
                                           {"uri", "https://example.org/a/b?q=1"},
                                           {"uri-reference", "//example.org/a%20b?q#f"},
                                           {"json-pointer", "/aa/b~1"},
                                           {"date-time", "2024-02-29T12:00:00Z"},
                                           {"uuid", "123e4567-e89b-12d3-a456-426614174000"}};
    static const int limits[] = {3, 7, 14, 15, 20, 25, 27, 36, 50, 100, 191, 254, 255, 1024, 2048};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
            char spec[200], value[100];
            struct json *doc = NULL;
            struct gram *g = NULL;
            struct qn_err err = {0};
            snprintf(spec, sizeof spec, "{\"format\":\"%s\",\"minLength\":1,\"maxLength\":%d}",
                     texts[i][0], limits[k]);
            snprintf(value, sizeof value, "\"%s\"", texts[i][1]);
            assert_int_equal(json_parse(str_of(spec), "spec", 64, &doc, NULL), QN_OK);
            struct gram_spec what = {.kind = GRAM_JSON_SCHEMA, .json = doc};
            enum qn_status st = gram_compile(&what, &g, NULL, &err);
            bool fits = (int)strlen(texts[i][1]) <= limits[k];
            if (st != QN_OK && (fits || st != QN_BAD_INPUT))
                fail_msg("%s: %s", spec, err.msg);
            if (st == QN_OK && accepts(g, value) != fits)
                fail_msg("%s: %s", spec, value);
            gram_unref(g);
            json_free(doc);
        }
    }
}

/* What an enum has is not measured by the narrower forms. */
static void format_enums(void **state)
{
    static const struct row rows[] = {
        {"{\"enum\":[\"abcdefghijklmnop@b.cc\",\"x\"],\"format\":\"email\",\"maxLength\":31}",
         {"\"abcdefghijklmnop@b.cc\""},
         {"\"x\""}},
        {"{\"pattern\":\"^[a-z]{1,4}$\",\"maxLength\":4,\"minLength\":1}", {"\"abcd\""}, {"\"\""}},
        {"{\"pattern\":\"^[a-z]{1,4}$\",\"maxLength\":3,\"minLength\":2}",
         {"\"ab\"", "\"abc\""},
         {"\"a\"", "\"abcd\""}},
        {"{\"pattern\":\"^\xC3\xA9{1,3}$\",\"maxLength\":2}",
         {"\"\xC3\xA9\"", "\"\xC3\xA9\xC3\xA9\""},
         {"\"\xC3\xA9\xC3\xA9\xC3\xA9\"", "\"\""}},
    };
    CHECK(GRAM_JSON_SCHEMA, rows);
}

/* Unions that are reached through $ref and allOf, alone, twice and around themselves. */
static void schema_unions(void **state)
{
    static const struct row rows[] = {
        {"{\"$ref\":\"#/$defs/u\",\"$defs\":{\"u\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":"
         "\"null\"}]}}}",
         {"1", "null"},
         {"\"a\"", "true"}},
        {"{\"$ref\":\"#/$defs/u\",\"$defs\":{\"u\":{\"oneOf\":[{\"type\":\"integer\"},{\"type\":"
         "\"null\"}]}}}",
         {"1", "null"},
         {"\"a\"", "true"}},
        {"{\"allOf\":[{\"allOf\":[{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}]},{"
         "\"minimum\":3}]}",
         {"3", "null"},
         {"2", "\"a\""}},
        {"{\"properties\":{\"a\":{\"$ref\":\"#/$defs/u\",\"description\":\"d\"},\"b\":{\"$ref\":"
         "\"#/$defs/u\"}},\"required\":[\"a\"],\"$defs\":{\"u\":{\"anyOf\":[{\"$ref\":"
         "\"#/$defs/n\"},{\"type\":\"null\"}]},\"n\":{\"oneOf\":[{\"type\":\"integer\"},{\"type\":"
         "\"string\"}]}}}",
         {"{\"a\":1}", "{\"a\":\"x\",\"b\":null}", "{\"a\":null,\"b\":7}"},
         {"{\"a\":true}", "{}", "{\"a\":1,\"b\":[]}"}},
        {"{\"allOf\":[{\"$ref\":\"#/$defs/u\"},{\"$ref\":\"#/$defs/"
         "v\"}],\"$defs\":{\"u\":{\"anyOf\":["
         "{\"type\":\"integer\"},{\"type\":\"null\"}]},\"v\":{\"anyOf\":[{\"type\":\"string\"},{"
         "\"$ref\":\"#/$defs/u\"}]}}}",
         {"1", "null"},
         {"\"a\""}},
        {"{\"$ref\":\"#/$defs/e\",\"$defs\":{\"e\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":"
         "\"array\",\"items\":{\"$ref\":\"#/$defs/e\"}}]}}}",
         {"1", "[]", "[1,[2,[]]]"},
         {"null", "[null]"}},
        {"{\"anyOf\":[{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"integer\"}]},{\"type\":\"string\"}]"
         "}",
         {"1", "\"a\""},
         {"null", "{}", "[]"}},
    };
    CHECK(GRAM_JSON_SCHEMA, rows);
}

/* Equality of numbers and objects, names that could be alike, formats to their ends. */
static void schema_strict(void **state)
{
    static const struct row rows[] = {
        {"{\"const\":10,\"enum\":[1e1,2]}", {"10"}, {"2", "1e1"}},
        {"{\"enum\":[{\"a\":1,\"b\":[2.0]},3],\"const\":{\"b\":[2],\"a\":1.0}}",
         {"{\"b\":[2],\"a\":1.0}"},
         {"3"}},
        {"{\"oneOf\":[{\"const\":1.5},{\"enum\":[15,0.15]}]}", {"1.5", "15", "0.15"}, {"1"}},
        {"{\"oneOf\":[{\"type\":\"object\"},{\"const\":\"all\"}]}", {"{}", "\"all\""}, {"\"x\""}},
        {"{\"type\":\"object\",\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{"
         "\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
         {"{\"a\":1}", "{\"b\":1}"},
         {"{\"a\":1,\"b\":1}", "{}"}},
        {"{\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":true,\"minProperties\":2}",
         {"{\"a\":1,\"b\":2}", "{\"b\":1,\"x\":2}", "{\"a\":1,\"x\":2,\"x\":3}"},
         {"{\"x\":1,\"x\":2}", "{\"x\":1,\"y\":2}", "{\"a\":1}"}},
        {"{\"type\":\"object\",\"allOf\":[{\"properties\":{\"a\":{}}}],"
         "\"unevaluatedProperties\":false}",
         {"{\"a\":1}", "{}"},
         {"{\"b\":1}"}},
        {"{\"$ref\":\"#/$defs/p\",\"unevaluatedProperties\":false,\"$defs\":{\"p\":{\"anyOf\":[{"
         "\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}}}]}}}",
         {"{\"a\":1}", "{\"b\":1}"},
         {"{\"c\":1}"}},
        {"{\"format\":\"hostname\"}",
         {"\"a\"", "\"a-b.c\"", "\"ab-c\"", "\"a--b\"", "\"abc--d\""},
         {"\"xn--x\"", "\"ab--c\"", "\"a.ab--\"", "\"a-\"", "\"-a\"", "\"ab-\"", "\"a--\""}},
        {"{\"format\":\"uri-reference\"}",
         {"\"//h:80/p\"", "\"/\"", "\"/a//b\"", "\"\"", "\"a/b:c\"", "\"?q#f\"", "\"//xn--ab\""},
         {"\"//h:x/p\"", "\"//a@b@c/\"", "\"1:b\""}},
    };
    CHECK(GRAM_JSON_SCHEMA, rows);
}

/* ---- refusals -------------------------------------------------------------------------------- */

struct refusal {
    enum gram_kind kind;
    const char *spec, *keyword, *word; /* word: part of the message */
    enum qn_status st;
};

static void refusals(void **state)
{
    static const struct refusal rows[] = {
        {GRAM_JSON_SCHEMA, "{\"not\":{}}", "not", "", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA, "{\"properties\":{\"a\":{\"items\":{\"if\":{}}}}}", "if", "",
         QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA, "{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems", "",
         QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA, "{\"$ref\":\"#/nope\"}", "$ref", "#/nope", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"$ref\":\"http://x/y\"}", "$ref", "http", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"minLength\":5,\"maxLength\":2}", "minLength", "maxLength",
         QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"minimum\":5,\"maximum\":2}", "minimum", "", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"type\":\"array\",\"minItems\":3,\"maxItems\":2}", "minItems", "",
         QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"type\":\"text\"}", "type", "text", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"type\":\"string\",\"const\":1}", "const", "", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"enum\":[]}", "enum", "", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "false", "false", "", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "3", "schema", "", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"pattern\":\"(?=a)\"}", "pattern", "look-around", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA, "{\"pattern\":\"[a\"}", "pattern", "class", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"format\":\"regex\"}", "format", "regex", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA, "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf",
         "", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA,
         "{\"required\":[\"a\"],\"properties\":{\"b\":{}},\"additionalProperties\":false}",
         "required", "\"a\"", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "", "",
         QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"multipleOf\":0}", "multipleOf", "", QN_BAD_INPUT},
        {GRAM_JSON_SCHEMA, "{\"minItems\":-1}", "minItems", "", QN_BAD_INPUT},
        /* oneOf: what the schemas around an alternative add, equal values, types by keyword */
        {GRAM_JSON_SCHEMA,
         "{\"properties\":{\"a\":{},\"b\":{}},\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":["
         "\"a\"]},{\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
         "oneOf", "", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA,
         "{\"additionalProperties\":{},\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},"
         "{"
         "\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
         "oneOf", "", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA,
         "{\"required\":[\"b\"],\"oneOf\":[{\"properties\":{\"a\":{}},\"required\":[\"a\"]},{"
         "\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
         "oneOf", "", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA,
         "{\"type\":\"object\",\"anyOf\":[{\"properties\":{\"b\":{}}}],\"oneOf\":[{\"properties\":{"
         "\"a\":{}},\"required\":[\"a\"]},{\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
         "oneOf", "", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA, "{\"oneOf\":[{\"const\":1},{\"enum\":[1.0,2]}]}", "oneOf", "",
         QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA,
         "{\"oneOf\":[{\"const\":{\"a\":1,\"b\":2}},{\"const\":{\"b\":2,\"a\":1}}]}", "oneOf", "",
         QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA, "{\"oneOf\":[{\"required\":[\"a\"]},{\"minimum\":3}]}", "oneOf", "type",
         QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA, "{\"oneOf\":[{\"type\":\"string\"},{\"minimum\":3}]}", "oneOf", "type",
         QN_UNSUPPORTED},
        /* unevaluatedProperties sees its own schema and what that one holds, nothing around it */
        {GRAM_JSON_SCHEMA,
         "{\"allOf\":[{\"properties\":{\"a\":{}}},{\"unevaluatedProperties\":false}]}",
         "unevaluatedProperties", "", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA,
         "{\"properties\":{\"a\":{}},\"$ref\":\"#/$defs/s\",\"$defs\":{\"s\":{"
         "\"unevaluatedProperties\":false}}}",
         "unevaluatedProperties", "", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA,
         "{\"properties\":{\"a\":{}},\"anyOf\":[{\"properties\":{\"b\":{}},"
         "\"unevaluatedProperties\":false}]}",
         "unevaluatedProperties", "", QN_UNSUPPORTED},
        {GRAM_JSON_SCHEMA, "{\"type\":\"object\",\"minProperties\":2}", "minProperties", "alike",
         QN_UNSUPPORTED},
        {GRAM_REGEX, "a\\bb", "pattern", "boundary", QN_UNSUPPORTED},
        {GRAM_REGEX, "(a", "pattern", "group", QN_BAD_INPUT},
        {GRAM_REGEX, "a)", "pattern", "", QN_BAD_INPUT},
        {GRAM_REGEX, "*", "pattern", "", QN_BAD_INPUT},
        {GRAM_REGEX, "(a)\\1", "pattern", "\\1", QN_UNSUPPORTED},
        {GRAM_REGEX, "a^b", "pattern", "anchor", QN_UNSUPPORTED},
        {GRAM_REGEX, "[]", "", "nothing", QN_BAD_INPUT},
        {GRAM_GBNF, "root ::= a", "grammar", "\"a\"", QN_BAD_INPUT},
        {GRAM_GBNF, "a ::= \"x\"", "grammar", "root", QN_BAD_INPUT},
        {GRAM_GBNF, "root ::= \"x", "grammar", "line 1", QN_BAD_INPUT},
        {GRAM_GBNF, "root ::= root \"a\" | \"b\"", "grammar", "left recursion", QN_UNSUPPORTED},
        {GRAM_GBNF, "root ::= x\nx ::= y? x \"b\" | \"c\"\ny ::= \"d\"", "grammar", "left",
         QN_UNSUPPORTED},
        {GRAM_GBNF, "root = \"x\"", "grammar", "::=", QN_BAD_INPUT},
        {GRAM_CHOICE, "[]", "", "non-empty", QN_BAD_INPUT},
        {GRAM_CHOICE, "[1]", "", "string", QN_BAD_INPUT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct refusal *r = &rows[i];
        struct json *doc = NULL;
        struct gram *g = NULL;
        struct gram_fault fault;
        struct qn_err err = {0};
        struct gram_spec spec = {.kind = r->kind, .text = str_of(r->spec)};
        if (r->kind == GRAM_JSON_SCHEMA || r->kind == GRAM_CHOICE) {
            assert_int_equal(json_parse(spec.text, "spec", 64, &doc, &err), QN_OK);
            spec.json = doc;
        }
        enum qn_status st = gram_compile(&spec, &g, &fault, &err);
        if (st != r->st || !strstr(err.msg, r->word) || strcmp(fault.keyword, r->keyword) != 0)
            fail_msg("%s: status %d, keyword \"%s\", %s", r->spec, st, fault.keyword, err.msg);
        json_free(doc);
    }
}

/* Where in the schema, and what lenient leaves out. */
static void places(void **state)
{
    struct json *doc = NULL;
    struct gram *g = NULL;
    struct gram_fault fault;
    struct str text =
        STR_LIT("{\"properties\":{\"a\":{\"items\":{\"not\":{}}},\"b\":{\"pattern\":\"(?=x)\"}}}");
    assert_int_equal(json_parse(text, "spec", 64, &doc, NULL), QN_OK);
    struct gram_spec spec = {.kind = GRAM_JSON_SCHEMA, .json = doc};
    assert_int_equal(gram_compile(&spec, &g, &fault, NULL), QN_UNSUPPORTED);
    assert_string_equal(fault.where, "/properties/b");
    spec.lenient = true;
    assert_int_equal(gram_compile(&spec, &g, &fault, NULL), QN_OK);
    assert_true(accepts(g, "{\"a\":[1],\"b\":\"y\"}"));
    gram_unref(g);
    json_free(doc);
}

static void compact(void **state)
{
    struct gram *g = NULL;
    struct gram_spec spec = {.kind = GRAM_JSON_OBJECT, .compact = true};
    assert_int_equal(gram_compile(&spec, &g, NULL, NULL), QN_OK);
    assert_true(accepts(g, "{\"a\":[1,2]}"));
    assert_false(accepts(g, "{\"a\": 1}"));
    assert_false(accepts(g, "{ }"));
    gram_unref(g);
}

static void thinking(void **state)
{
    struct gram *g = NULL;
    struct gram_spec spec = {
        .kind = GRAM_REGEX, .text = STR_LIT("[0-9]+"), .after = STR_LIT("</think>")};
    assert_int_equal(gram_compile(&spec, &g, NULL, NULL), QN_OK);
    assert_true(accepts(g, "a <</think> b</think>\n\n42") == false);
    assert_true(accepts(g, "a < b </thin </think>\n\n42"));
    assert_true(accepts(g, "\xFF</think>42"));
    assert_true(accepts(g, "x\xFF</think>42"));
    assert_false(accepts(g, "42"));
    assert_false(accepts(g, "</think>x"));
    gram_unref(g);
    spec.open = STR_LIT("<think>");
    assert_int_equal(gram_compile(&spec, &g, NULL, NULL), QN_OK);
    assert_true(accepts(g, "42"));
    assert_true(accepts(g, "<think>42</think>7"));
    assert_false(accepts(g, "x</think>7"));
    gram_unref(g);
}

static void tags(void **state)
{
    struct json *args = NULL;
    struct str schema = STR_LIT("{\"properties\":{\"city\":{\"type\":\"string\"},\"n\":{\"type\":"
                                "\"integer\"}},\"required\":[\"city\"]}");
    assert_int_equal(json_parse(schema, "args", 64, &args, NULL), QN_OK);
    struct gram_tag list[] = {
        {STR_LIT("<tool_call>\n{\"name\": \"f\", \"arguments\": "), STR_LIT("}\n</tool_call>"),
         GRAM_BODY_JSON, args, NULL, false},
        {STR_LIT("<tool_call>\n<function=g>\n"), STR_LIT("</function>\n</tool_call>"),
         GRAM_BODY_XML, args, NULL, false},
    };
    struct gram_tags t = {.tags = list, .n = 2, .several = true};
    struct gram_spec spec = {.kind = GRAM_TAGS, .tags = &t};
    struct gram *g = NULL;
    static const char f[] =
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
    static const char two[] =
        "<tool_call>\n<function=g>\n<parameter=city>\nNew < York\n</parameter>\n<parameter=n>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
        "{\"city\":\"\"}}\n</tool_call>";
    assert_int_equal(gram_compile(&spec, &g, NULL, NULL), QN_OK);
    assert_true(accepts(g, f));
    assert_true(accepts(g, two));
    assert_false(accepts(g, "hello"));
    assert_false(accepts(g, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
    gram_unref(g);
    t.trigger = STR_LIT("<tool_call>");
    t.optional = true;
    assert_int_equal(gram_compile(&spec, &g, NULL, NULL), QN_OK);
    assert_true(accepts(g, "hello"));
    assert_true(accepts(g, "I will call <tool.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                           "{\"city\":\"\"}}\n</tool_call>"));
    assert_false(accepts(g, "x <tool_call> y"));
    gram_unref(g);
    json_free(args);
}

/* f(city, n): city is text and required, n an integer, ok a boolean. */
static void styles(void **state)
{
    struct json *args = NULL;
    struct str schema =
        STR_LIT("{\"properties\":{\"n\":{\"type\":\"integer\"},\"city\":{\"type\":\"string\"},"
                "\"ok\":{\"type\":\"boolean\"}},\"required\":[\"city\"]}");
    static const struct gram_style python = {
        .mid = STR_LIT("="), .comma = STR_LIT(", "), .python = true};
    static const struct gram_style gemma = {
        .mid = STR_LIT(":"), .comma = STR_LIT(","), .quote = STR_LIT("\xFF<|q|>")};
    static const struct gram_style dsml = {.open = STR_LIT("<p "),
                                           .mid = STR_LIT(" f>"),
                                           .mid_text = STR_LIT(" t>"),
                                           .close = STR_LIT("</p>"),
                                           .gap = STR_LIT("\n")};
    static const struct {
        const struct gram_style *style;
        const char *text;
        bool ok;
    } rows[] = {
        {&python, "[f(city=\"x\")]", true},
        {&python, "[f(n=1, city=\"x\", ok=True)]", true},
        {&python, "[f(n=1, city=\"x\"), f(city=\"\")]", true},
        {&python, "[f(n=1)]", false},
        {&python, "[f(, city=\"x\")]", false},
        {&python, "[f(n=1city=\"x\")]", false},
        {&python, "[f(city=\"x\", n=1)]", false},
        {&python, "[f(city=\"x\", ok=true)]", false},
        {&python, "[f(city=x)]", false},
        {&python, "hi", false},
        {&gemma, "[f(city:\xFF<|q|>a<|q|>b\xFF<|q|>,ok:true)]", true},
        {&gemma, "[f(city:\"a\")]", false},
        {&gemma, "[f(city:<|q|>a<|q|>)]", false},
        {&dsml, "[f(<p n f>1</p>\n<p city t>1 < 2</p>)]", true},
        {&dsml, "[f(<p city t>a\xFF</p>)]", true}, /* the closer as a control token */
        {&dsml, "[f(<p city t>a\xFF</q></p>)]", false},
        {&dsml, "[f(<p city f>1</p>)]", false},
        {&dsml, "[f(<p n f>x</p><p city t>1</p>)]", false},
    };
    assert_int_equal(json_parse(schema, "args", 64, &args, NULL), QN_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gram_tag f = {STR_LIT("f("), STR_LIT(")"),  GRAM_BODY_XML,
                             args,          rows[i].style, false};
        struct gram_tags t = {.tags = &f,
                              .n = 1,
                              .several = true,
                              .open = STR_LIT("["),
                              .close = STR_LIT("]"),
                              .separator = STR_LIT(", ")};
        struct gram_spec spec = {.kind = GRAM_TAGS, .tags = &t};
        struct gram *g = NULL;
        assert_int_equal(gram_compile(&spec, &g, NULL, NULL), QN_OK);
        if (accepts(g, rows[i].text) != rows[i].ok)
            fail_msg("row %zu: %s", i, rows[i].text);
        gram_unref(g);
        /* the same after text, and beside an answer of another kind */
        t.trigger = t.open;
        t.optional = true;
        assert_int_equal(gram_compile(&spec, &g, NULL, NULL), QN_OK);
        assert_true(accepts(g, "just text"));
        struct buf b = BUF_INIT;
        buf_addz(&b, "so: ");
        buf_addz(&b, rows[i].text);
        assert_int_equal(accepts(g, buf_z(&b)), rows[i].ok || !strcmp(rows[i].text, "hi"));
        gram_unref(g);
        t.trigger = (struct str){NULL, 0};
        struct gram_spec beside = {.kind = GRAM_REGEX, .text = STR_LIT("[0-9]+"), .tags = &t};
        assert_int_equal(gram_compile(&beside, &g, NULL, NULL), QN_OK);
        assert_true(accepts(g, "42"));
        assert_false(accepts(g, "4 2"));
        assert_int_equal(accepts(g, rows[i].text), rows[i].ok);
        gram_unref(g);
        buf_free(&b);
    }
    json_free(args);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regexes),        cmocka_unit_test(choices),
        cmocka_unit_test(gbnf),           cmocka_unit_test(any_object),
        cmocka_unit_test(schema_scalars), cmocka_unit_test(schema_strings),
        cmocka_unit_test(schema_parts),   cmocka_unit_test(schema_combined),
        cmocka_unit_test(schema_strict),  cmocka_unit_test(schema_unions),
        cmocka_unit_test(format_lengths), cmocka_unit_test(format_enums),
        cmocka_unit_test(refusals),       cmocka_unit_test(places),
        cmocka_unit_test(compact),        cmocka_unit_test(thinking),
        cmocka_unit_test(tags),           cmocka_unit_test(styles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
