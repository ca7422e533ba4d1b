/*
 * test_file.c - whole reads, maps, atomic writes, folders and paths, with their failures.
 */
#include "../check.h"

#include "base/fault.h"
#include "base/file.h"

#include <sys/stat.h>
#include <unistd.h>

static char *root; /* this run's own folder */

static int make_root(void **state)
{
    root = check_tmp_dir();
    return 0;
}

static int drop_root(void **state)
{
    struct qn_err err = {0};
    CHECK_OK(dir_remove(root, &err), err);
    free(root);
    return 0;
}

static const char *in_root(struct buf *b, const char *name)
{
    path_join(b, root, name);
    return buf_z(b);
}

static size_t count_names(const char *dir)
{
    char **names;
    size_t n;
    struct qn_err err = {0};
    CHECK_OK(dir_list(dir, &names, &n, &err), err);
    names_free(names, n);
    return n;
}

static void read_back_what_was_written(void **state)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65536, 65537, 1000000};
    struct buf p = BUF_INIT, in = BUF_INIT, out = BUF_INIT;
    struct qn_err err = {0};
    const char *path = in_root(&p, "f");
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        buf_clear(&in);
        for (size_t i = 0; i < sizes[k]; i++)
            buf_addc(&in, (char)(i * 31 + k));
        CHECK_OK(file_write_atomic(path, buf_str(&in), &err), err);
        CHECK_OK(file_read(path, sizes[k], &out, &err), err);
        assert_true(str_eq(buf_str(&in), buf_str(&out)));
        struct file_map m;
        CHECK_OK(file_map_open(path, &m, &err), err);
        assert_int_equal(m.n, sizes[k]);
        assert_true(m.n == 0 ? m.p == NULL : memcmp(m.p, in.p, m.n) == 0);
        file_map_drop(&m, 0, m.n);
        file_map_drop(&m, m.n + 5, SIZE_MAX);
        file_map_drop(&m, 1, SIZE_MAX);
        assert_true(m.n == 0 || memcmp(m.p, in.p, m.n) == 0);
        file_map_close(&m);
        file_map_close(&m);
        if (sizes[k])
            CHECK_FAILS(file_read(path, sizes[k] - 1, &out, &err), QN_BAD_INPUT, err, "limit");
    }
    CHECK_OK(dir_make(in_root(&p, "."), &err), err);
    assert_int_equal(count_names(root), 1);
    buf_free(&p);
    buf_free(&in);
    buf_free(&out);
}

static void reads_files_that_have_no_size(void **state)
{
    struct buf out = BUF_INIT;
    struct qn_err err = {0};
    CHECK_OK(file_read("/proc/self/status", 1 << 20, &out, &err), err);
    assert_true(out.n > 100);
    CHECK_FAILS(file_read("/proc/self/status", 10, &out, &err), QN_BAD_INPUT, err, "10 bytes");
    assert_int_equal(out.n, 0);
    CHECK_FAILS(file_read("/dev/zero", 1 << 20, &out, &err), QN_BAD_INPUT, err, "limit");
    buf_free(&out);
}

static void missing_and_wrong_kinds(void **state)
{
    struct buf p = BUF_INIT, out = BUF_INIT;
    struct qn_err err;
    struct file_map m;
    const char *none = in_root(&p, "none");
    CHECK_FAILS(file_read(none, 10, &out, &err), QN_NOT_FOUND, err, none);
    CHECK_FAILS(file_map_open(none, &m, &err), QN_NOT_FOUND, err, none);
    CHECK_FAILS(dir_remove(none, &err), QN_NOT_FOUND, err, none);
    char **names;
    size_t n;
    CHECK_FAILS(dir_list(none, &names, &n, &err), QN_NOT_FOUND, err, none);
    assert_null(names);
    CHECK_FAILS(file_read(root, 10000, &out, &err), QN_IO, err, "Is a directory");
    CHECK_FAILS(file_map_open(root, &m, &err), QN_BAD_INPUT, err, "not a regular file");
    CHECK_FAILS(file_write_atomic(in_root(&p, "no/such/f"), STR_LIT("x"), &err), QN_NOT_FOUND, err,
                "no/such/f");
    CHECK_FAILS(dir_make("", &err), QN_BAD_INPUT, err, "empty");
    buf_free(&p);
    buf_free(&out);
}

static void folders(void **state)
{
    struct buf p = BUF_INIT, q = BUF_INIT;
    struct qn_err err = {0};
    fault_arm("dir.sync", 0); /* each new name is made durable, no other */
    CHECK_OK(dir_make(in_root(&p, "a//b/c/"), &err), err);
    assert_int_equal(fault_disarm(), 3);
    fault_arm("dir.sync", 0);
    CHECK_OK(dir_make(buf_z(&p), &err), err);
    assert_int_equal(fault_disarm(), 0);
    assert_true(dir_exists(in_root(&p, "a/b/c")));
    CHECK_OK(file_write_atomic(in_root(&p, "a/b/z"), STR_LIT("1"), &err), err);
    CHECK_OK(file_write_atomic(in_root(&p, "a/b/B"), STR_LIT("1"), &err), err);
    CHECK_FAILS(dir_make(in_root(&p, "a/b/z/y"), &err), QN_IO, err, "a/b/z: cannot make");
    CHECK_FAILS(dir_remove(in_root(&p, "a/b/z"), &err), QN_BAD_INPUT, err, "not a folder");
    char **names;
    size_t n;
    CHECK_OK(dir_list(in_root(&p, "a/b"), &names, &n, &err), err);
    assert_int_equal(n, 3);
    assert_string_equal(names[0], "B");
    assert_string_equal(names[1], "c");
    assert_string_equal(names[2], "z");
    names_free(names, n);

    /* A link to a folder outside is removed, not followed. */
    CHECK_OK(dir_make(in_root(&p, "keep"), &err), err);
    CHECK_OK(file_write_atomic(in_root(&p, "keep/k"), STR_LIT("1"), &err), err);
    in_root(&q, "a/link");
    assert_int_equal(symlink("../keep", buf_z(&q)), 0);
    CHECK_FAILS(dir_remove(buf_z(&q), &err), QN_BAD_INPUT, err, "not a folder");
    CHECK_OK(dir_remove(in_root(&p, "a"), &err), err);
    assert_false(dir_exists(in_root(&p, "a")));
    assert_true(file_exists(in_root(&p, "keep/k")));
    assert_false(file_exists(in_root(&p, "keep")));
    buf_free(&p);
    buf_free(&q);
}

static void a_very_deep_tree_is_removed(void **state)
{
    struct buf p = BUF_INIT;
    struct qn_err err = {0};
    buf_addf(&p, "%s/deep", root);
    for (int i = 0; i < 1500; i++)
        buf_addz(&p, "/d");
    CHECK_OK(dir_make(buf_z(&p), &err), err);
    CHECK_OK(dir_remove(in_root(&p, "deep"), &err), err);
    assert_false(dir_exists(buf_z(&p)));
    buf_free(&p);
}

static void a_failed_write_keeps_the_old_file(void **state)
{
    static const char *const points[] = {"file.create", "file.write", "file.sync", "file.rename"};
    struct buf p = BUF_INIT, out = BUF_INIT;
    struct qn_err err = {0};
    CHECK_OK(dir_make(in_root(&p, "w"), &err), err);
    const char *path = in_root(&p, "w/f");
    CHECK_OK(file_write_atomic(path, STR_LIT("old"), &err), err);
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        fault_arm(points[i], 1);
        CHECK_FAILS(file_write_atomic(path, STR_LIT("new"), &err), QN_IO, err, path);
        assert_int_equal(fault_disarm(), 1);
        CHECK_OK(file_read(path, 10, &out, &err), err);
        CHECK_STR(buf_str(&out), "old");
    }
    fault_arm("file.read", 1);
    CHECK_FAILS(file_read(path, 10, &out, &err), QN_IO, err, "cannot read");
    fault_disarm();
    fault_arm("file.map", 1);
    struct file_map m;
    CHECK_FAILS(file_map_open(path, &m, &err), QN_NO_MEMORY, err, "cannot map");
    fault_disarm();
    struct buf dir = BUF_INIT;
    assert_int_equal(count_names(in_root(&dir, "w")), 1);
    buf_free(&dir);
    buf_free(&p);
    buf_free(&out);
}

static void paths(void **state)
{
    static const char *const bases[][2] = {{"/a/b", "b"}, {"/a/b//", "b"}, {"b", "b"}, {"/", "/"},
                                           {"///", "/"},  {"", ""},        {"a/", "a"}};
    static const char *const joins[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}};
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++)
        CHECK_STR(path_base(bases[i][0]), bases[i][1]);
    for (size_t i = 0; i < sizeof joins / sizeof *joins; i++) {
        path_join(&b, joins[i][0], joins[i][1]);
        CHECK_STR(buf_str(&b), joins[i][2]);
    }
    buf_free(&b);
}

static void cache_folder_follows_the_environment(void **state)
{
    struct buf b = BUF_INIT;
    struct qn_err err = {0};
    setenv("HOME", "/h", 1);
    unsetenv("QUERN_CACHE");
    unsetenv("XDG_CACHE_HOME");
    CHECK_OK(cache_dir(&b, &err), err);
    CHECK_STR(buf_str(&b), "/h/.cache/quern");
    setenv("XDG_CACHE_HOME", "/x", 1);
    CHECK_OK(cache_dir(&b, &err), err);
    CHECK_STR(buf_str(&b), "/x/quern");
    setenv("XDG_CACHE_HOME", "relative", 1);
    CHECK_OK(cache_dir(&b, &err), err);
    CHECK_STR(buf_str(&b), "/h/.cache/quern");
    setenv("QUERN_CACHE", "/q", 1);
    CHECK_OK(cache_dir(&b, &err), err);
    CHECK_STR(buf_str(&b), "/q");
    unsetenv("QUERN_CACHE");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    CHECK_FAILS(cache_dir(&b, &err), QN_NOT_FOUND, err, "QUERN_CACHE");
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(read_back_what_was_written, make_root, drop_root),
        cmocka_unit_test(reads_files_that_have_no_size),
        cmocka_unit_test_setup_teardown(missing_and_wrong_kinds, make_root, drop_root),
        cmocka_unit_test_setup_teardown(folders, make_root, drop_root),
        cmocka_unit_test_setup_teardown(a_very_deep_tree_is_removed, make_root, drop_root),
        cmocka_unit_test_setup_teardown(a_failed_write_keeps_the_old_file, make_root, drop_root),
        cmocka_unit_test(paths),
        cmocka_unit_test(cache_folder_follows_the_environment),
    };
    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
