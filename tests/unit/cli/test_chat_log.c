/*
 * test_chat_log.c - turns, undo, and the request that goes to the template.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/chat_log.h"

static void test_turns(void **state)
{
    struct chat_log l = {0};
    struct qn_err err;
    struct buf b = BUF_INIT;
    assert_false(chat_log_undo(&l));
    buf_addz(&l.system, "Be \"brief\".");
    assert_int_equal(chat_log_add(&l, false, STR_LIT("one"), &err), QN_OK);
    assert_true(chat_log_ends_with_user(&l));
    assert_int_equal(chat_log_add(&l, true, STR_LIT("two\n"), &err), QN_OK);
    assert_false(chat_log_ends_with_user(&l));
    assert_int_equal(chat_log_json(&l, "{\"x\":1}", &b, &err), QN_OK);
    assert_string_equal(buf_z(&b),
                        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be \\\"brief\\\".\"},"
                        "{\"role\":\"user\",\"content\":\"one\"},"
                        "{\"role\":\"assistant\",\"content\":\"two\\n\"}],"
                        "\"chat_template_kwargs\":{\"x\":1}}");
    for (int i = 0; i < 100; i++) /* growth */
        assert_int_equal(chat_log_add(&l, i & 1, STR_LIT("x"), &err), QN_OK);
    assert_true(chat_log_undo(&l));
    assert_int_equal(l.n, 100);
    chat_log_clear(&l);
    assert_int_equal(l.n, 0);
    assert_int_equal(l.system.n, 11);
    assert_false(chat_log_undo(&l));
    chat_log_free(&l);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
