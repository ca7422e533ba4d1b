/*
 * test_gram_run.c - masks against brute force: for vocabularies of random pieces, a token's bit is
 * set exactly when the bytes can go on; walks stay within the mask, roll back, and end; hostile
 * specifications answer quickly and small.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#include "base/rng.h"
#include "gram/gram.h"

#define N_VOCAB 900
#define EOS     (N_VOCAB - 1)

static char store[N_VOCAB][40];
static struct gram_token tokens[N_VOCAB];
static struct gram_vocab *vocab;

/* All single bytes, then random pieces of what grammars are made of, then EOS without bytes. */
static int setup(void **state)
{
    static const char *const bits[] = {
        "{",    "}",  "[",    "]",    "\"",           ":",        ",",
        " ",    "\n", "a",    "b",    "name",         "x",        "1",
        "23",   "0",  "true", "nul",  "\\",           "\\u00",    "-",
        ".",    "e",  "\xC3", "\xA9", "\xE2\x82\xAC", "\xF0\x9F", "the",
        "Rome", "\t", "/"};
    for (int32_t i = 0; i < EOS; i++) {
        size_t n = 0;
        if (i < 256) {
            store[i][n++] = (char)i;
        } else {
            uint64_t parts = 1 + rng_u64(1, 2, (uint64_t)i) % 4;
            for (uint64_t k = 0; k < parts; k++) {
                const char *b = bits[rng_u64(3, k, (uint64_t)i) % (sizeof bits / sizeof *bits)];
                memcpy(store[i] + n, b, strlen(b));
                n += strlen(b);
            }
        }
        tokens[i] = (struct gram_token){{store[i], n}, false};
    }
    tokens[300] = (struct gram_token){STR_LIT("</think>"), true};
    return gram_vocab_create(tokens, N_VOCAB, &vocab, NULL);
}

static int teardown(void **state)
{
    gram_vocab_unref(vocab);
    return 0;
}

static struct gram *compile(enum gram_kind kind, const char *text, struct str after)
{
    struct json *doc = NULL;
    struct gram *g = NULL;
    struct qn_err err = {0};
    struct gram_spec spec = {.kind = kind, .text = str_of(text), .after = after};
    if (kind == GRAM_JSON_SCHEMA || kind == GRAM_CHOICE)
        assert_int_equal(json_parse(spec.text, "spec", 64, &doc, &err), QN_OK);
    spec.json = doc;
    if (gram_compile(&spec, &g, NULL, &err) != QN_OK)
        fail_msg("%s: %s", text, err.msg);
    json_free(doc);
    return g;
}

static bool has(const uint64_t *bits, int32_t id)
{
    return bits[id / 64] >> (id % 64) & 1;
}

/* The mask against accepting each token and taking it back. */
static void check_mask(struct gram_run *r, const uint64_t *bits)
{
    for (int32_t i = 0; i < N_VOCAB; i++) {
        bool ok = gram_run_accept(r, i, NULL) == QN_OK;
        if (ok)
            assert_true(gram_run_rollback(r, 1));
        if (ok != has(bits, i))
            fail_msg("token %d (%.*s): mask %d, accepted %d", i, (int)tokens[i].bytes.n,
                     tokens[i].bytes.p ? tokens[i].bytes.p : "", has(bits, i), ok);
    }
}

static int32_t pick(const uint64_t *bits, uint64_t seed, uint64_t step)
{
    int32_t best = -1;
    double high = -1;
    for (int32_t i = 0; i < EOS; i++) {
        double w = rng_unit(seed, step, (uint64_t)i);
        char last = tokens[i].bytes.n ? tokens[i].bytes.p[tokens[i].bytes.n - 1] : 0;
        if (step > 30 && (last == '"' || last == ']' || last == '}'))
            w += 1;
        if (has(bits, i) && w > high) {
            high = w;
            best = i;
        }
    }
    return best;
}

static struct buf walk(struct gram *g, uint64_t seed)
{
    const int32_t eos = EOS;
    struct gram_run *r = NULL;
    struct buf text = BUF_INIT;
    assert_int_equal(gram_run_create(g, vocab, &eos, 1, &r, NULL), QN_OK);
    for (uint64_t step = 0; step < 400 && !gram_run_must_stop(r); step++) {
        const uint64_t *bits;
        struct qn_err err = {0};
        if (gram_run_mask(r, &bits, &err) != QN_OK)
            fail_msg("after %s: %s", buf_z(&text), err.msg);
        assert_int_equal(has(bits, EOS), gram_run_complete(r));
        if (step < 25 || step % 16 == 0) {
            uint64_t copy[(N_VOCAB + 63) / 64];
            memcpy(copy, bits, sizeof copy);
            check_mask(r, copy);
            assert_int_equal(gram_run_mask(r, &bits, NULL), QN_OK);
            assert_memory_equal(bits, copy, sizeof copy);
        }
        if (has(bits, EOS) && step > 40)
            break;
        int32_t id = pick(bits, seed, step);
        if (id < 0) {
            assert_true(has(bits, EOS));
            break;
        }
        assert_int_equal(gram_run_accept(r, id, NULL), QN_OK);
        buf_add_str(&text, tokens[id].bytes);
    }
    bool whole;
    size_t n = gram_match(g, buf_str(&text), &whole);
    if (!strstr(buf_z(&text), "</think>")) {
        assert_int_equal(n, text.n);
        assert_int_equal(whole, gram_run_complete(r));
    }
    gram_run_free(r);
    return text;
}

static const struct {
    enum gram_kind kind;
    const char *spec;
} grammars[] = {
    {GRAM_JSON_OBJECT, ""},
    {GRAM_REGEX, "(a|b|name)+ (the|Rome){1,3}[0-9]{2}"},
    {GRAM_REGEX, "[^a]{3,9}a"},
    {GRAM_CHOICE, "[\"Rome\",\"Romea\",\"the name\",\"23\"]"},
    {GRAM_GBNF, "root ::= e\ne ::= t (\"-\" t)*\nt ::= [0-9]+ | \"[\" e \"]\""},
    {GRAM_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":7}"},
    {GRAM_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":40}"},
    {GRAM_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":65536}"},
    {GRAM_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":"
                       "\"string\"},\"maxItems\":4},\"minItems\":2,\"maxItems\":5}"},
    {GRAM_JSON_SCHEMA,
     "{\"properties\":{\"name\":{\"type\":\"string\"},\"a\":{\"type\":\"integer\","
     "\"minimum\":-5,\"maximum\":230},\"ab\":{\"enum\":[\"the\",true,null]}},"
     "\"required\":[\"a\"],\"additionalProperties\":{\"type\":\"boolean\"}}"},
    {GRAM_JSON_SCHEMA, "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"properties\":{\"a\":{\"type\":"
                       "\"number\"},\"b\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},"
                       "\"required\":[\"b\"]}}}"},
    {GRAM_JSON_SCHEMA, "{\"pattern\":\"^a+.{2,5}1$\"}"},
};

static void masks(void **state)
{
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct gram *g = compile(grammars[i].kind, grammars[i].spec, (struct str){NULL, 0});
        for (uint64_t seed = 0; seed < 6; seed++) {
            struct buf t = walk(g, seed * 100 + i);
            buf_free(&t);
        }
        gram_unref(g);
    }
}

/* What comes before the end of thinking is free, control token or text. */
static void after_thinking(void **state)
{
    struct gram *g = compile(GRAM_CHOICE, "[\"Rome\",\"the\"]", STR_LIT("</think>"));
    struct gram_run *r = NULL;
    const uint64_t *bits;
    const int32_t eos = EOS;
    assert_int_equal(gram_run_create(g, vocab, &eos, 1, &r, NULL), QN_OK);
    assert_int_equal(gram_run_mask(r, &bits, NULL), QN_OK);
    for (int32_t i = 0; i < EOS; i++)
        assert_int_equal(has(bits, i), i != 255);
    assert_int_equal(gram_run_accept(r, 'x', NULL), QN_OK);
    assert_int_equal(gram_run_accept(r, 300, NULL), QN_OK);
    assert_int_equal(gram_run_mask(r, &bits, NULL), QN_OK);
    assert_false(has(bits, 'x'));
    assert_true(has(bits, 'R') && has(bits, 't') && has(bits, '\n'));
    gram_run_free(r);
    gram_unref(g);
}

static void end_and_rollback(void **state)
{
    struct gram *g = compile(GRAM_REGEX, "ab?", (struct str){NULL, 0});
    struct gram_run *r = NULL;
    const int32_t eos = EOS;
    assert_int_equal(gram_run_create(g, vocab, &eos, 1, &r, NULL), QN_OK);
    assert_false(gram_run_complete(r));
    assert_int_equal(gram_run_accept(r, EOS, NULL), QN_BAD_INPUT);
    assert_int_equal(gram_run_accept(r, 'a', NULL), QN_OK);
    assert_true(gram_run_complete(r));
    assert_false(gram_run_must_stop(r));
    assert_int_equal(gram_run_accept(r, 'b', NULL), QN_OK);
    assert_true(gram_run_must_stop(r));
    assert_false(gram_run_rollback(r, 3));
    assert_true(gram_run_rollback(r, 1));
    assert_false(gram_run_must_stop(r));
    assert_int_equal(gram_run_accept(r, EOS, NULL), QN_OK);
    assert_true(gram_run_must_stop(r));
    assert_true(gram_run_rollback(r, 2));
    assert_false(gram_run_complete(r));
    assert_int_equal(gram_run_accept(r, 'b', NULL), QN_BAD_INPUT);
    gram_run_free(r);
    gram_unref(g);
}

/* More states than one machine keeps: runs move on to fresh ones and nothing changes. */
static void many_states(void **state)
{
    struct gram *g = compile(GRAM_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":100000000}",
                             (struct str){NULL, 0});
    struct gram_run *r = NULL;
    const int32_t eos = EOS;
    struct gram_stats s;
    int64_t most = 0;
    assert_int_equal(gram_run_create(g, vocab, &eos, 1, &r, NULL), QN_OK);
    assert_int_equal(gram_run_accept(r, '"', NULL), QN_OK);
    for (int i = 0; i < 60000; i++) {
        const uint64_t *bits;
        assert_int_equal(gram_run_mask(r, &bits, NULL), QN_OK);
        assert_true(has(bits, 'a') && has(bits, '"') && !has(bits, '\n'));
        assert_int_equal(gram_run_accept(r, 'a', NULL), QN_OK);
        if (i % 1000 == 0) {
            assert_true(gram_run_rollback(r, i ? 20 : 1));
            gram_stats(g, &s);
            most = s.bytes > most ? s.bytes : most;
        }
    }
    assert_true(most < (int64_t)32 << 20);
    gram_run_free(r);
    gram_unref(g);
}

/* ---- hostile input --------------------------------------------------------------------------- */

static void repeat(struct buf *b, const char *z, int n)
{
    for (int i = 0; i < n; i++)
        buf_addz(b, z);
}

/* Of this thread: the machine may be busy with other things. */
static int64_t cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Compiles and makes a first mask, or refuses; either way soon. */
static void try(enum gram_kind kind, struct buf *text, const char *what)
{
    struct json *doc = NULL;
    struct gram *g = NULL;
    struct qn_err err = {0};
    struct gram_spec spec = {.kind = kind, .text = buf_str(text)};
    if (kind == GRAM_JSON_SCHEMA)
        assert_int_equal(json_parse(spec.text, "spec", 1000, &doc, &err), QN_OK);
    spec.json = doc;
    int64_t from = cpu_us();
    if (gram_compile(&spec, &g, NULL, &err) == QN_OK) {
        struct gram_run *r = NULL;
        const uint64_t *bits;
        assert_int_equal(gram_run_create(g, vocab, NULL, 0, &r, NULL), QN_OK);
        gram_run_mask(r, &bits, NULL);
        for (int i = 0; i < 20; i++) {
            int32_t id = gram_run_mask(r, &bits, NULL) == QN_OK ? pick(bits, 1, (uint64_t)i) : -1;
            if (id < 0 || gram_run_accept(r, id, NULL) != QN_OK)
                break;
        }
        gram_run_free(r);
        gram_unref(g);
    } else {
        assert_true(err.msg[0] != 0);
    }
    int64_t took = cpu_us() - from;
    print_message("%s: %lld us%s%s\n", what, (long long)took, err.msg[0] ? ", refused: " : "",
                  err.msg);
    if (took > 20000000) /* an order above what it takes, also under a sanitizer */
        fail_msg("%s took %lld us", what, (long long)took);
    json_free(doc);
    buf_free(text);
}

static void hostile(void **state)
{
    struct buf b = BUF_INIT;
    repeat(&b, "(", 60000);
    repeat(&b, ")", 60000);
    try(GRAM_REGEX, &b, "60,000 groups");
    buf_addz(&b, "root ::= ");
    repeat(&b, "(", 60000);
    try(GRAM_GBNF, &b, "60,000 open groups");
    buf_addz(&b, "{\"enum\":[");
    for (int i = 0; i < 5000; i++)
        buf_addf(&b, "%s\"value %d of many\"", i ? "," : "", i * 7919);
    buf_addz(&b, "]}");
    try(GRAM_JSON_SCHEMA, &b, "5,000 values");
    repeat(&b, "{\"items\":", 300);
    buf_addz(&b, "{}");
    repeat(&b, "}", 300);
    try(GRAM_JSON_SCHEMA, &b, "300 levels");
    buf_addz(&b,
             "{\"items\":{\"type\":\"string\",\"maxLength\":1000000000},\"minItems\":1000000000}");
    try(GRAM_JSON_SCHEMA, &b, "huge bounds");
    buf_addz(&b, "((a{0,1000}){0,1000}){0,1000}");
    try(GRAM_REGEX, &b, "nested counts");
    buf_addz(&b, "((.*){1,100}x?){1,100}y");
    try(GRAM_REGEX, &b, "ambiguous counts");
    buf_addz(&b, "{\"pattern\":\"^(a|b)*a(a|b){14}$\",\"minLength\":100}");
    try(GRAM_JSON_SCHEMA, &b, "exponential product");
    buf_addz(&b, "{\"properties\":{");
    for (int i = 0; i < 3000; i++)
        buf_addf(&b, "%s\"p%d\":{\"type\":\"integer\"}", i ? "," : "", i);
    buf_addz(&b, "},\"additionalProperties\":{\"type\":\"null\"}}");
    try(GRAM_JSON_SCHEMA, &b, "3,000 optional properties");
    buf_addz(&b, "{\"allOf\":[");
    for (int i = 0; i < 12; i++)
        buf_addf(&b, "%s{\"anyOf\":[{\"minimum\":%d},{\"maximum\":%d}]}", i ? "," : "", i, i);
    buf_addz(&b, "]}");
    try(GRAM_JSON_SCHEMA, &b, "4,096 combinations");
    buf_addz(&b, "{\"$defs\":{\"a0\":{}");
    for (int i = 1; i < 3000; i++)
        buf_addf(&b, ",\"a%d\":{\"$ref\":\"#/$defs/a%d\",\"maxLength\":%d}", i, i - 1, i);
    buf_addz(&b, "},\"$ref\":\"#/$defs/a2999\"}");
    try(GRAM_JSON_SCHEMA, &b, "a chain of references");
    buf_addz(&b, "root ::= ");
    for (int i = 0; i < 3000; i++)
        buf_addf(&b, "r%d\nr%d ::= \"a\"? ", i, i);
    try(GRAM_GBNF, &b, "a chain of rules");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masks),
        cmocka_unit_test(after_thinking),
        cmocka_unit_test(end_and_rollback),
        cmocka_unit_test(many_states),
        cmocka_unit_test(hostile),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
