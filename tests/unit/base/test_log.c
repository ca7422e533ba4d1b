/*
 * test_log.c - the line's form in text and JSON, levels, and that threads' lines do not mix.
 */
#include "../check.h"

#include "base/json.h"
#include "base/log.h"

#include <pthread.h>
#include <unistd.h>

static int sink[2];

static int open_sink(void **state)
{
    return pipe(sink);
}

static int close_sink(void **state)
{
    log_setup(-1, LOG_ERROR, false);
    close(sink[0]);
    close(sink[1]);
    return 0;
}

static void drain(struct buf *out)
{
    char part[4096];
    ssize_t n;
    buf_clear(out);
    log_setup(-1, LOG_ERROR, false);
    close(sink[1]);
    while ((n = read(sink[0], part, sizeof part)) > 0)
        buf_add(out, part, (size_t)n);
    sink[1] = -1;
}

static void text_lines(void **state)
{
    struct buf got = BUF_INIT;
    log_setup(sink[1], LOG_INFO, false);
    assert_true(log_on(LOG_INFO));
    assert_false(log_on(LOG_DEBUG));
    log_line(LOG_WARN, "mod", "x=%d %s", 5, "a\nb\x1b[0m\xC3\xA9");
    log_line(LOG_DEBUG, "mod", "not seen");
    drain(&got);
    assert_true(got.n > 25 && got.p[4] == '-' && got.p[10] == 'T' && got.p[23] == 'Z');
    CHECK_STR(((struct str){got.p + 24, got.n - 24}), " warn  mod: x=5 a\\nb\\x1b[0m\xC3\xA9\n");
    buf_free(&got);
}

static void json_lines(void **state)
{
    struct buf got = BUF_INIT;
    struct json *doc;
    struct qn_err err = {0};
    log_setup(sink[1], LOG_DEBUG, true);
    log_line(LOG_DEBUG, "m\"d", "a\n\"%s\" \xFF", "q");
    drain(&got);
    assert_int_equal(got.p[got.n - 1], '\n');
    CHECK_OK(json_parse(buf_str(&got), "line", 4, &doc, &err), err);
    CHECK_STR(json_str(json_get(doc, "level")), "debug");
    CHECK_STR(json_str(json_get(doc, "module")), "m\"d");
    CHECK_STR(json_str(json_get(doc, "msg")), "a\n\"q\" \xEF\xBF\xBD");
    assert_int_equal(json_str(json_get(doc, "time")).n, 24);
    json_free(doc);
    buf_free(&got);
}

static void off_and_long(void **state)
{
    struct buf got = BUF_INIT, big = BUF_INIT;
    log_setup(-1, LOG_DEBUG, false);
    assert_false(log_on(LOG_ERROR));
    log_line(LOG_ERROR, "m", "nowhere");
    for (int i = 0; i < 20000; i++)
        buf_addc(&big, 'x');
    log_setup(sink[1], LOG_INFO, false);
    log_line(LOG_INFO, "m", "%s", buf_z(&big));
    drain(&got);
    assert_true(got.n > 8000 && got.n < 9000 && got.p[got.n - 1] == '\n');
    buf_free(&got);
    buf_free(&big);
}

static void *chatter(void *arg)
{
    for (int i = 0; i < 100; i++)
        log_line(LOG_INFO, "t", "thread %d line %d end", *(int *)arg, i);
    return NULL;
}

static void threads_do_not_mix(void **state)
{
    pthread_t t[4];
    int id[4] = {0, 1, 2, 3};
    struct buf got = BUF_INIT;
    log_setup(sink[1], LOG_INFO, false);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, chatter, &id[i]), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    drain(&got);
    int lines = 0;
    for (size_t at = 0, nl; at < got.n; at = nl + 1, lines++) {
        nl = str_find(buf_str(&got), STR_LIT("\n"), at);
        assert_true(nl != (size_t)-1 && str_ends((struct str){got.p, nl}, STR_LIT(" end")));
        assert_true(got.p[at + 23] == 'Z');
    }
    assert_int_equal(lines, 400);
    buf_free(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(text_lines, open_sink, close_sink),
        cmocka_unit_test_setup_teardown(json_lines, open_sink, close_sink),
        cmocka_unit_test_setup_teardown(off_and_long, open_sink, close_sink),
        cmocka_unit_test_setup_teardown(threads_do_not_mix, open_sink, close_sink),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
