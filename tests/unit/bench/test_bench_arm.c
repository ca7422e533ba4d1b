/* test_bench_arm.c - texts of arms: placeholders, quotes, what is missing; process trees. */
#include <unistd.h>

#include "../check.h"
#include "base/file.h"
#include "bench/arm.h"
#include "bench/child.h"

static const struct arm_values values = {.quern = "/q",
                                         .model = "/m/x y",
                                         .threads = 3,
                                         .ctx = 100,
                                         .users = 4,
                                         .port = 77,
                                         .llama_server = "ls",
                                         .python = "py"};

static void test_words(void **state)
{
    struct arm a;
    struct qn_err err;
    char **argv;
    CHECK_OK(arm_parse("t",
                       STR_LIT("# comment\n name = n \ncommand = {quern} -p {port} 'a b' "
                               "--x=\"{model}\" {{}} {ctx-all}\nenv = A=1\n"),
                       &a, &err),
             err);
    CHECK_OK(arm_argv(&a, a.command, &values, &argv, &err), err);
    static const char *const want[] = {"/q", "-p", "77", "a b", "--x=/m/x y", "{}}", "400", NULL};
    for (int i = 0; want[i] || argv[i]; i++)
        assert_string_equal(argv[i], want[i]);
    assert_string_equal(a.env[0], "A=1");
    assert_string_equal(a.health, "/v1/models");
    arm_argv_free(argv);
    arm_free(&a);
}

static void test_refused(void **state)
{
    static const struct {
        const char *text, *part;
    } bad[] = {{"command = x\n", "name = ..."},
               {"name = a\n", "exactly one of command and url"},
               {"name = a\ncommand = x\nurl = http://h\n", "exactly one"},
               {"name = a\ncolour = red\n", "unknown name colour"},
               {"name\n", "expected NAME = VALUE"},
               {"name = a\nenv = NOVALUE\n", "env"}};
    struct arm a;
    struct qn_err err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_FAILS(arm_parse("t", str_of(bad[i].text), &a, &err), QN_BAD_INPUT, err, bad[i].part);
        arm_free(&a);
    }
}

static void test_missing_values(void **state)
{
    struct arm a;
    struct qn_err err;
    CHECK_OK(arm_open("llama.cpp", &a, &err), err);
    CHECK_FAILS(arm_check(&a, &values, &err), QN_UNSUPPORTED, err, "--gguf is not given");
    arm_free(&a);
    CHECK_OK(arm_parse("t", STR_LIT("name = a\ncommand = {modell}\n"), &a, &err), err);
    CHECK_FAILS(arm_check(&a, &values, &err), QN_BAD_INPUT, err, "{modell}");
    arm_free(&a);
    CHECK_FAILS(arm_open("lama.cpp", &a, &err), QN_NOT_FOUND, err, "llama.cpp");
}

static void test_flags_of_a_build(void **state)
{
    struct arm a;
    struct qn_err err;
    CHECK_OK(arm_parse("t",
                       STR_LIT("name = a\ncommand = x\nhelp = echo --one --two\n"
                               "needs-flag = --two\n"),
                       &a, &err),
             err);
    CHECK_OK(arm_check(&a, &values, &err), err);
    arm_free(&a);
    CHECK_OK(arm_parse("t",
                       STR_LIT("name = a\ncommand = x\nhelp = echo --one\n"
                               "needs-flag = --two\n"),
                       &a, &err),
             err);
    CHECK_FAILS(arm_check(&a, &values, &err), QN_UNSUPPORTED, err, "no --two");
    arm_free(&a);
    CHECK_OK(arm_parse("t", STR_LIT("name = a\ncommand = x\nprobe = sh -c 'echo sorry; exit 3'\n"),
                       &a, &err),
             err);
    CHECK_FAILS(arm_check(&a, &values, &err), QN_UNSUPPORTED, err, "sorry");
    arm_free(&a);
}

static void test_urls(void **state)
{
    static const char *const words[] = {"http://h:1", "http://h:1/", "http://h:1/v1",
                                        "http://h:1/v1/"};
    struct qn_err err;
    for (int i = 0; i < 4; i++) {
        struct arm a;
        CHECK_OK(arm_open(words[i], &a, &err), err);
        assert_string_equal(a.url, "http://h:1");
        assert_string_equal(a.name, "h:1");
        arm_free(&a);
    }
}

/* Every built-in arm can be read, and its command filled. */
/* One arm under two names; a URL's own = is none. */
static void test_named(void **state)
{
    static const char *const cases[][3] = {
        {"again=quern", "again", "quern serve as it comes"},
        {"x=http://h:1/v1", "x", "a server that runs already"},
        {"http://h:1/a=b", "h:1/a=b", "a server that runs already"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct arm a;
        struct qn_err err;
        CHECK_OK(arm_open(cases[i][0], &a, &err), err);
        assert_string_equal(a.name, cases[i][1]);
        assert_string_equal(a.about, cases[i][2]);
        arm_free(&a);
    }
    struct arm a;
    struct qn_err err;
    CHECK_FAILS(arm_open("again=qern", &a, &err), QN_NOT_FOUND, err, "quern-serial");
}

static void test_builtin(void **state)
{
    struct arm_values v = values;
    v.gguf = "/g";
    v.cache = "/c";
    for (const char *const *n = arm_names(); *n; n++) {
        struct arm a;
        struct qn_err err;
        char **argv;
        CHECK_OK(arm_open(*n, &a, &err), err);
        assert_string_equal(a.name, *n);
        CHECK_OK(arm_argv(&a, a.command, &v, &argv, &err), err);
        arm_argv_free(argv);
        arm_free(&a);
    }
}

/* A shell with a child of its own: both are seen, and both are gone afterwards. */
static void test_tree(void **state)
{
    char *dir = check_tmp_dir();
    struct buf log = BUF_INIT, text = BUF_INIT;
    struct child c;
    struct qn_err err;
    char sh[] = "sh", flag[] = "-c", script[] = "echo up; sleep 100 & wait";
    char *argv[] = {sh, flag, script, NULL};
    path_join(&log, dir, "log");
    CHECK_OK(child_start(&c, argv, NULL, buf_z(&log), &err), err);
    struct tree_use u = {0};
    for (int i = 0; i < 1000 && u.n_process < 2; i++) {
        usleep(5000);
        u = child_tree(c.pid);
    }
    assert_int_equal(u.n_process, 2);
    assert_true(u.rss_bytes > 100000);
    assert_true(child_alive(&c));
    pid_t pid = c.pid;
    child_stop(&c, 5);
    assert_int_equal(child_tree(pid).n_process, 0);
    child_log_tail(buf_z(&log), 30, &text);
    CHECK_STR(buf_str(&text), "up\n");
    dir_remove(dir, NULL);
    buf_free(&log);
    buf_free(&text);
    free(dir);
}

static void test_log_tail(void **state)
{
    char *dir = check_tmp_dir();
    struct buf log = BUF_INIT, text = BUF_INIT;
    struct qn_err err;
    path_join(&log, dir, "log");
    CHECK_OK(file_write_atomic(buf_z(&log), STR_LIT("a\nbb\nccc\n"), &err), err);
    child_log_tail(buf_z(&log), 2, &text);
    CHECK_STR(buf_str(&text), "bb\nccc\n");
    child_log_tail(buf_z(&log), 9, &text);
    CHECK_STR(buf_str(&text), "a\nbb\nccc\n");
    child_log_tail("/nonexistent", 2, &text);
    assert_int_equal(text.n, 0);
    dir_remove(dir, NULL);
    buf_free(&log);
    buf_free(&text);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),          cmocka_unit_test(test_refused),
        cmocka_unit_test(test_missing_values), cmocka_unit_test(test_flags_of_a_build),
        cmocka_unit_test(test_urls),           cmocka_unit_test(test_named),
        cmocka_unit_test(test_builtin),        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_log_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
