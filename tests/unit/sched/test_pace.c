/* test_pace.c - chunk sizes against a model of a machine: how long a step takes is known here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "sched/pace.h"

/* A step of n answers and r prompt tokens: what the weights cost, then each tile of four rows. */
static int64_t took(int32_t n, int32_t r)
{
    return n + r == 1 ? 4500 : 5000 + 1500 * ((n + r + 3) / 4);
}

static int32_t settle(struct pace *p, int32_t n, int32_t most)
{
    int32_t rows = 0;
    for (int i = 0; i < 120; i++) {
        int32_t next = pace_rows(p, n, most);
        pace_note(p, n, next, took(n, next));
        rows = next ? next : rows;
    }
    return rows;
}

static void test_answers_flow(void **state)
{
    struct pace p = {0};
    assert_int_equal(pace_rows(&p, 2, 256), 0); /* first what a step costs without */
    for (int32_t n = 1; n <= 8; n++) {
        int32_t rows = settle(&p, n, 260);
        assert_in_range(took(n, rows), took(n, 0) * 13 / 10, took(n, 0) * 23 / 10);
        assert_int_equal((n + rows) % 4, 0);
    }
    assert_int_equal(settle(&p, 4, 5), 5); /* never more than there is room for */
}

/* Slow models and deep prompts: at least eight rows, or whole tiles with some of the prompt, else
 * prompts would hardly be read. */
static void test_never_starves(void **state)
{
    struct pace p = {0};
    pace_note(&p, 1, 0, 1000);
    for (int i = 0; i < 60; i++)
        pace_note(&p, 1, pace_rows(&p, 1, 256), 100000);
    assert_int_equal(p.beside, 1);
    p.mixed = 0;
    assert_int_equal(pace_rows(&p, 1, 256), 7);
    assert_int_equal(pace_rows(&p, 6, 256), 6);
    assert_int_equal(pace_rows(&p, 1, 2), 2);
}

/* Alone: whole chunks from a fast model, shorter ones from a slow one. */
static void test_alone(void **state)
{
    struct pace p = {0};
    int32_t rows = pace_rows(&p, 0, 256);
    assert_in_range(rows, 1, 256);
    pace_note(&p, 0, rows, rows * 100);
    assert_int_equal(pace_rows(&p, 0, 256), 256);
    struct pace slow = {0};
    pace_note(&slow, 0, 32, 32 * 5000);
    assert_int_equal(pace_rows(&slow, 0, 256), 60);
    for (int i = 0; i < 50; i++)
        pace_note(&slow, 0, 32, 32 * 500000);
    assert_int_equal(pace_rows(&slow, 0, 256), 32);
}

/* One slow step (the machine was busy) hardly matters; the end of a prompt says nothing; it looks
 * again at a plain step now and then. */
static void test_hiccups(void **state)
{
    struct pace p = {0};
    settle(&p, 4, 256);
    p.mixed = 0;
    int32_t rows = pace_rows(&p, 4, 256);
    pace_note(&p, 4, rows, 50 * took(4, rows));
    assert_in_range(pace_rows(&p, 4, 256), rows * 8 / 10, rows);
    double before = p.beside;
    pace_note(&p, 4, 1, 100);
    assert_true(p.beside == before);
    int plain = 0;
    for (int i = 0; i < 300; i++) {
        int32_t next = pace_rows(&p, 4, 256);
        pace_note(&p, 4, next, took(4, next));
        plain += next == 0;
    }
    assert_in_range(plain, 2, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_flow),
        cmocka_unit_test(test_never_starves),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_hiccups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
