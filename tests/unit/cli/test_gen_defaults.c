/*
 * test_gen_defaults.c - generation_config.json: which fields count, and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "sched/gen_defaults.h"

static const struct sample_params start = {
    .temperature = 0.7f, .top_p = 1, .repetition_penalty = 1, .n_top = -1};

static enum qn_status apply(const char *text, struct sample_params *p, struct qn_err *err)
{
    struct json *doc = NULL;
    *p = start;
    memset(err, 0, sizeof *err);
    assert_int_equal(json_parse(str_of(text), "test", 8, &doc, err), QN_OK);
    enum qn_status st = gen_defaults_apply(doc, p, err);
    json_free(doc);
    return st;
}

static void test_fields(void **state)
{
    struct sample_params p;
    struct qn_err err;
    assert_int_equal(apply("{\"eos_token_id\":[1,2]}", &p, &err), QN_OK);
    assert_memory_equal(&p, &start, sizeof p);
    assert_int_equal(apply("{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":20,\"min_p\":0.05,"
                           "\"repetition_penalty\":1.1,\"do_sample\":true,\"max_new_tokens\":9}",
                           &p, &err),
                     QN_OK);
    assert_true(p.temperature == 0.6f && p.top_p == 0.95f && p.top_k == 20 && p.min_p == 0.05f);
    assert_true(p.repetition_penalty == 1.1f);
    assert_int_equal(apply("{\"temperature\":0.6,\"do_sample\":false}", &p, &err), QN_OK);
    assert_true(p.temperature == 0);
    assert_int_equal(apply("{\"temperature\":null,\"top_k\":-1,\"top_p\":0}", &p, &err), QN_OK);
    assert_true(p.temperature == 0.7f && p.top_k == 0 && p.top_p == 1);
}

static void test_refused(void **state)
{
    static const char *const bad[][2] = {
        {"{\"temperature\":\"hot\"}", "temperature"},
        {"{\"temperature\":-1}", "temperature"},
        {"{\"temperature\":2.5}", "temperature"},
        {"{\"top_p\":1.5}", "top_p"},
        {"{\"top_k\":1e12}", "top_k"},
        {"{\"do_sample\":1}", "do_sample"},
        {"{\"repetition_penalty\":0}", "repetition"},
        {"[]", "object"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sample_params p;
        struct qn_err err;
        if (apply(bad[i][0], &p, &err) != QN_BAD_INPUT)
            fail_msg("%s was accepted", bad[i][0]);
        assert_memory_equal(&p, &start, sizeof p);
        assert_non_null(strstr(err.msg, "generation_config.json"));
        assert_non_null(strstr(err.msg, bad[i][1]));
    }
}

static void test_folder(void **state)
{
    char dir[] = "/tmp/quern-gen-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct sample_params p = start;
    struct qn_err err = {0};
    assert_int_equal(gen_defaults_load(dir, &p, &err), QN_OK);
    assert_memory_equal(&p, &start, sizeof p);
    struct buf path = BUF_INIT;
    path_join(&path, dir, "generation_config.json");
    assert_int_equal(file_write_atomic(buf_z(&path), STR_LIT("{\"top_k\": 7}"), &err), QN_OK);
    assert_int_equal(gen_defaults_load(dir, &p, &err), QN_OK);
    assert_int_equal(p.top_k, 7);
    assert_int_equal(file_write_atomic(buf_z(&path), STR_LIT("{\"top_k\": "), &err), QN_OK);
    assert_int_equal(gen_defaults_load(dir, &p, &err), QN_BAD_INPUT);
    assert_non_null(strstr(err.msg, "generation_config.json"));
    buf_free(&path);
    assert_int_equal(dir_remove(dir, &err), QN_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
