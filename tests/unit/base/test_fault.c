/*
 * test_fault.c - the plan itself, then the walk: a parse and an atomic write are repeated with
 * each of their points failing in turn. Every time: a clean error, nothing half-written, nothing
 * leaked (the leak check is the sanitizer build's).
 */
#include "../check.h"

#include "base/arena.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/json.h"

static void plan(void **state)
{
    assert_false(fault_point("a"));
    fault_arm("a", 2);
    assert_false(fault_point("a"));
    assert_false(fault_point("b"));
    assert_true(fault_point("a"));
    assert_false(fault_point("a"));
    assert_int_equal(fault_disarm(), 3);
    assert_false(fault_point("a"));
    fault_arm_from(NULL, 2);
    assert_false(fault_point("a"));
    assert_true(fault_point("b"));
    assert_true(fault_point("a"));
    assert_int_equal(fault_disarm(), 3);
    fault_arm(NULL, 0);
    assert_false(fault_point("a"));
    assert_int_equal(fault_disarm(), 1);
}

/* Reads dir/in, parses it, copies a string into an arena, writes the document to dir/out. */
static enum qn_status job(const char *dir, struct qn_err *err)
{
    struct buf path = BUF_INIT, text = BUF_INIT, out = BUF_INIT;
    struct json *doc = NULL;
    struct arena *a = arena_create(0);
    enum qn_status s = a ? QN_OK : err_set(err, QN_NO_MEMORY, "test", "no arena");
    if (s == QN_OK) {
        path_join(&path, dir, "in");
        s = buf_ok(&path, "path", err);
    }
    if (s == QN_OK)
        s = file_read(buf_z(&path), 1 << 20, &text, err);
    if (s == QN_OK)
        s = json_parse(buf_str(&text), "in", JSON_DEPTH_MAX, &doc, err);
    if (s == QN_OK && !arena_str(a, json_str(json_get(doc, "name"))).p)
        s = err_set(err, QN_NO_MEMORY, "test", "no arena");
    if (s == QN_OK) {
        json_w_value(&out, doc);
        path_join(&path, dir, "out");
        s = buf_ok(&out, "out", err);
    }
    if (s == QN_OK && (s = buf_ok(&path, "path", err)) == QN_OK)
        s = file_write_atomic(buf_z(&path), buf_str(&out), err);
    json_free(doc);
    arena_free(a);
    buf_free(&path);
    buf_free(&text);
    buf_free(&out);
    return s;
}

/* Exactly the files "in" and "out", the latter with the wanted contents. */
static void check_folder(const char *dir, const char *want)
{
    char **names;
    size_t n;
    struct buf path = BUF_INIT, text = BUF_INIT;
    struct qn_err err = {0};
    CHECK_OK(dir_list(dir, &names, &n, &err), err);
    assert_int_equal(n, 2);
    assert_string_equal(names[0], "in");
    assert_string_equal(names[1], "out");
    names_free(names, n);
    path_join(&path, dir, "out");
    CHECK_OK(file_read(buf_z(&path), 1 << 20, &text, &err), err);
    CHECK_STR(buf_str(&text), want);
    buf_free(&path);
    buf_free(&text);
}

static void every_point_of_a_job(void **state)
{
    static const char in[] = "{\"name\": \"x\", \"big\": 123456789012345678901234567890, "
                             "\"l\": [1.50, -0, {\"k\": \"a long enough string to grow\"}]}";
    static const char want[] = "{\"name\":\"x\",\"big\":123456789012345678901234567890,"
                               "\"l\":[1.50,-0,{\"k\":\"a long enough string to grow\"}]}";
    char *dir = check_tmp_dir();
    struct buf path = BUF_INIT;
    struct qn_err err = {0};
    path_join(&path, dir, "in");
    CHECK_OK(file_write_atomic(buf_z(&path), str_of(in), &err), err);
    path_join(&path, dir, "out");
    fault_arm(NULL, 0);
    enum qn_status s = job(dir, &err);
    int64_t points = fault_disarm();
    CHECK_OK(s, err);
    check_folder(dir, want);
    assert_true(points >= 12);

    int failed = 0;
    for (int lasting = 0; lasting < 2; lasting++) {
        for (int64_t k = 1; k <= points; k++) {
            CHECK_OK(file_write_atomic(buf_z(&path), STR_LIT("old"), &err), err);
            err = (struct qn_err){0};
            (lasting ? fault_arm_from : fault_arm)(NULL, k);
            s = job(dir, &err);
            fault_disarm();
            check_folder(dir, s == QN_OK ? want : "old");
            if (s == QN_OK)
                continue;
            failed++;
            assert_true(s == QN_IO || s == QN_NO_MEMORY);
            assert_int_equal(err.code, s);
            assert_true(err.msg[0] != 0);
        }
    }
    /* The one refusal that is no failure is the flush of the parent folder. */
    assert_true(failed >= 2 * (points - 1));
    print_message("%lld points, %d failures\n", (long long)points, failed);
    CHECK_OK(dir_remove(dir, &err), err);
    buf_free(&path);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan),
        cmocka_unit_test(every_point_of_a_job),
    };
    return cmocka_run_group_tests_name("fault", tests, NULL, NULL);
}
