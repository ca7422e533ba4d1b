/*
 * test_model_arg.c - what --model names, with a cache folder of its own.
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
#include "cli/model_arg.h"

static char cache[] = "/tmp/quern-model-XXXXXX";

static int setup(void **state)
{
    if (!mkdtemp(cache))
        return -1;
    return setenv("QUERN_CACHE", cache, 1);
}

static int teardown(void **state)
{
    return dir_remove(cache, NULL) == QN_OK ? 0 : -1;
}

static void test_find(void **state)
{
    struct buf path = BUF_INIT, dir = BUF_INIT;
    struct qn_err err = {0};
    assert_int_equal(model_arg_find(NULL, &path, &err), QN_NOT_FOUND);
    assert_non_null(strstr(err.msg, "quern get smollm2"));
    assert_int_equal(model_arg_find("qwen", &path, &err), QN_NOT_FOUND);
    assert_non_null(strstr(err.msg, "quern get qwen"));
    assert_int_equal(model_arg_find("./nowhere", &path, &err), QN_NOT_FOUND);
    assert_non_null(strstr(err.msg, "./nowhere"));
    assert_int_equal(model_arg_find("", &path, &err), QN_BAD_INPUT);

    buf_addf(&dir, "%s/models/smollm2", cache);
    assert_int_equal(dir_make(buf_z(&dir), &err), QN_OK);
    assert_int_equal(model_arg_find(NULL, &path, &err), QN_OK);
    assert_string_equal(buf_z(&path), buf_z(&dir));
    assert_int_equal(model_arg_find("smollm2", &path, &err), QN_OK);
    assert_string_equal(buf_z(&path), buf_z(&dir));
    assert_int_equal(model_arg_find(buf_z(&dir), &path, &err), QN_OK);
    assert_string_equal(buf_z(&path), buf_z(&dir));
    assert_int_equal(model_arg_find("smolm2", &path, &err), QN_NOT_FOUND);
    assert_non_null(strstr(err.msg, "did you mean smollm2?"));
    assert_int_equal(model_arg_find("..", &path, &err), QN_OK);
    assert_string_equal(buf_z(&path), "..");
    buf_free(&path);
    buf_free(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_find)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
