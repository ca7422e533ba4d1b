/*
 * test_mem.c - buf, arena and err: growth, limits, overflow, and what a failed allocation leaves.
 */
#include "../check.h"

#include "base/arena.h"
#include "base/fault.h"

#include <errno.h>
#include <stdint.h>

static void buf_appends(void **state)
{
    struct buf b = BUF_INIT;
    assert_string_equal(buf_z(&b), "");
    assert_int_equal(buf_str(&b).n, 0);
    buf_addz(&b, "ab");
    buf_addc(&b, 'c');
    buf_add_str(&b, STR_LIT("d\0e"));
    buf_addf(&b, "%d-%s", 42, "x");
    buf_add(&b, NULL, 0);
    assert_int_equal(b.n, 10);
    assert_memory_equal(b.p, "abcd\0e42-x", 11);
    for (int i = 0; i < 5000; i++)
        buf_addf(&b, "%05d", i);
    assert_int_equal(b.n, 25010);
    assert_int_equal(b.p[b.n], 0);
    assert_memory_equal(b.p + 10 + 5 * 4321, "04321", 5);
    size_t n;
    char *p = buf_give(&b, &n);
    assert_int_equal(n, 25010);
    assert_null(b.p);
    free(p);
    p = buf_give(&b, &n); /* of an empty buffer: still a C string */
    assert_string_equal(p, "");
    free(p);
}

static void buf_limit_and_overflow(void **state)
{
    struct qn_err err = {0};
    struct buf b = {.limit = 10};
    buf_addz(&b, "0123456789");
    CHECK_OK(buf_ok(&b, "thing", &err), err);
    buf_addc(&b, 'x');
    buf_addf(&b, "%d", 1);
    assert_int_equal(b.n, 10);
    CHECK_FAILS(buf_ok(&b, "thing", &err), QN_NO_MEMORY, err, "thing: grew past its limit of 10");
    buf_clear(&b);
    assert_false(b.failed);
    buf_addz(&b, "again");
    assert_string_equal(buf_z(&b), "again");
    buf_free(&b);
    assert_int_equal(b.limit, 10);

    struct buf c = BUF_INIT;
    buf_addc(&c, 'x');
    assert_false(buf_reserve(&c, SIZE_MAX));
    assert_false(buf_reserve(&c, 1)); /* failed sticks */
    buf_clear(&c);
    assert_false(buf_reserve(&c, SIZE_MAX - 1));
    assert_int_equal(c.n, 0);
    buf_free(&c);
}

static void buf_out_of_memory(void **state)
{
    struct qn_err err = {0};
    struct buf b = BUF_INIT;
    buf_addz(&b, "kept");
    fault_arm("buf.grow", 1);
    for (int i = 0; i < 100; i++)
        buf_addz(&b, "0123456789");
    assert_int_equal(fault_disarm(), 1); /* dropped from then on, not tried again */
    assert_true(str_starts(buf_str(&b), STR_LIT("kept")));
    assert_int_equal(b.p[b.n], 0);
    CHECK_FAILS(buf_ok(&b, "thing", &err), QN_NO_MEMORY, err, "thing: out of memory at 54 bytes");
    buf_free(&b);
    fault_arm("buf.grow", 1);
    assert_null(buf_give(&b, NULL));
    fault_disarm();
}

static void arena_objects(void **state)
{
    struct arena *a = arena_create(0);
    char *p[1000];
    for (size_t i = 0; i < 1000; i++) {
        p[i] = arena_zalloc(a, i * 13 + 1);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        for (size_t k = 0; k < i * 13 + 1; k++)
            assert_int_equal(p[i][k], 0);
        memset(p[i], (int)i, i * 13 + 1);
    }
    for (size_t i = 0; i < 1000; i++) /* none overlaps another */
        assert_true(p[i][0] == (char)i && p[i][i * 13] == (char)i);
    struct str s = arena_str(a, STR_LIT("x\0y"));
    assert_int_equal(s.n, 3);
    assert_memory_equal(s.p, "x\0y", 4);
    s = arena_str(a, (struct str){NULL, 0});
    assert_string_equal(s.p, "");
    assert_true(arena_bytes(a) >= 1000 * 13 / 2 * 1000);
    assert_null(arena_alloc(a, SIZE_MAX));
    assert_null(arena_alloc(a, SIZE_MAX / 4));
    assert_null(arena_zalloc_n(a, SIZE_MAX / 8, 16));
    assert_non_null(arena_zalloc_n(a, 7, 9));
    arena_free(a);
    arena_free(NULL);
}

static void arena_limit(void **state)
{
    struct arena *a = arena_create(10000);
    assert_non_null(arena_alloc(a, 5000));
    assert_null(arena_alloc(a, 5009)); /* rounds to 5024: over by 16 or more */
    assert_non_null(arena_alloc(a, 4900));
    assert_true(arena_bytes(a) <= 10000);
    assert_null(arena_str(a, (struct str){"", SIZE_MAX}).p);
    size_t n = 0;
    while (arena_alloc(a, 16))
        n++;
    assert_true(n < 10);
    assert_true(arena_bytes(a) <= 10000);
    arena_free(a);
}

static void arena_out_of_memory(void **state)
{
    fault_arm("arena.create", 1);
    assert_null(arena_create(0));
    fault_disarm();
    struct arena *a = arena_create(0);
    fault_arm("arena.block", 1);
    assert_null(arena_alloc(a, 1));
    assert_non_null(arena_alloc(a, 1));
    assert_int_equal(fault_disarm(), 2);
    arena_free(a);
}

static void err_messages(void **state)
{
    struct qn_err err = {0};
    assert_int_equal(err_set(&err, QN_BUSY, "w", "%s %d", "a", 1), QN_BUSY);
    assert_string_equal(err.msg, "a 1");
    assert_string_equal(err.where, "w");
    assert_int_equal(err_prefix(&err, "file %d", 7), QN_BUSY);
    assert_string_equal(err.msg, "file 7: a 1");
    assert_int_equal(err_set(NULL, QN_IO, "w", "x"), QN_IO);
    static const struct {
        int e;
        enum qn_status code;
    } map[] = {{ENOENT, QN_NOT_FOUND},
               {ENOTDIR, QN_NOT_FOUND},
               {ENOMEM, QN_NO_MEMORY},
               {EACCES, QN_IO},
               {ENOSPC, QN_IO}};
    for (size_t i = 0; i < sizeof map / sizeof *map; i++) {
        errno = map[i].e;
        CHECK_FAILS(err_errno(&err, "w", "p%d", 1), map[i].code, err, "p1: ");
        assert_true(strstr(err.msg, strerror(map[i].e)) != NULL);
        errno = map[i].e;
        assert_int_equal(err_errno(NULL, "w", "p"), map[i].code);
    }
}

static void err_truncates(void **state)
{
    struct qn_err err = {0};
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    errno = EIO;
    err_errno(&err, "w", "%s", big);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    err_prefix(&err, "%s", big);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    err_set(&err, QN_IO, "w", "end");
    err_prefix(&err, "%.470s", big);
    assert_true(str_ends(str_of(err.msg), STR_LIT("xx: end")));
}

static void str_helpers(void **state)
{
    struct str s = STR_LIT("hello world");
    assert_true(str_eqz(s, "hello world"));
    assert_false(str_eqz(s, "hello"));
    assert_true(str_eq((struct str){NULL, 0}, STR_LIT("")));
    assert_true(str_starts(s, STR_LIT("hell")) && !str_starts(s, STR_LIT("ello")));
    assert_true(str_ends(s, STR_LIT("rld")) && !str_ends(STR_LIT("d"), STR_LIT("ld")));
    assert_int_equal(str_find(s, STR_LIT("o"), 0), 4);
    assert_int_equal(str_find(s, STR_LIT("o"), 5), 7);
    assert_true(str_find(s, STR_LIT("o"), 8) == (size_t)-1);
    assert_true(str_find(s, STR_LIT("o"), 99) == (size_t)-1);
    assert_int_equal(str_find(s, STR_LIT(""), 11), 11);
    assert_int_equal(str_of(NULL).n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buf_appends),       cmocka_unit_test(buf_limit_and_overflow),
        cmocka_unit_test(buf_out_of_memory), cmocka_unit_test(arena_objects),
        cmocka_unit_test(arena_limit),       cmocka_unit_test(arena_out_of_memory),
        cmocka_unit_test(err_messages),      cmocka_unit_test(err_truncates),
        cmocka_unit_test(str_helpers),
    };
    return cmocka_run_group_tests_name("mem", tests, NULL, NULL);
}
