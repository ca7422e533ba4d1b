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

static void note(struct pace *p, int32_t n, int32_t r, int64_t us)
{
    pace_note(p, &(struct pace_step){n, r, 0, us});
}

static int32_t settle(struct pace *p, int32_t n, int32_t most)
{
    int32_t rows = 0;
    for (int i = 0; i < 120; i++) {
        int32_t next = pace_rows(p, n, 0, most);
        note(p, n, next, took(n, next));
        rows = next ? next : rows;
    }
    return rows;
}

static void test_answers_flow(void **state)
{
    struct pace p = {0};
    assert_int_equal(pace_rows(&p, 2, 0, 256), 0); /* first what a step costs without */
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
    note(&p, 1, 0, 1000);
    for (int i = 0; i < 60; i++)
        note(&p, 1, pace_rows(&p, 1, 0, 256), 100000);
    assert_int_equal(p.beside, 1);
    p.mixed = 0;
    assert_int_equal(pace_rows(&p, 1, 0, 256), 7);
    assert_int_equal(pace_rows(&p, 6, 0, 256), 6);
    assert_int_equal(pace_rows(&p, 1, 0, 2), 2);
}

/* Alone: whole chunks from a fast model, shorter ones from a slow one. */
static void test_alone(void **state)
{
    struct pace p = {0};
    int32_t rows = pace_rows(&p, 0, 0, 256);
    assert_in_range(rows, 1, 256);
    note(&p, 0, rows, rows * 100);
    assert_int_equal(pace_rows(&p, 0, 0, 256), 256);
    struct pace slow = {0};
    note(&slow, 0, 32, 32 * 5000);
    assert_int_equal(pace_rows(&slow, 0, 0, 256), 60);
    for (int i = 0; i < 50; i++)
        note(&slow, 0, 32, 32 * 500000);
    assert_int_equal(pace_rows(&slow, 0, 0, 256), 32);
}

/* One slow step (the machine was busy) hardly matters; the end of a prompt says nothing; it looks
 * again at a plain step now and then. */
static void test_hiccups(void **state)
{
    struct pace p = {0};
    settle(&p, 4, 256);
    p.mixed = 0;
    int32_t rows = pace_rows(&p, 4, 0, 256);
    note(&p, 4, rows, 50 * took(4, rows));
    assert_in_range(pace_rows(&p, 4, 0, 256), rows * 8 / 10, rows);
    double before = p.beside;
    note(&p, 4, 1, 100);
    assert_true(p.beside == before);
    int plain = 0;
    for (int i = 0; i < 300; i++) {
        int32_t next = pace_rows(&p, 4, 0, 256);
        note(&p, 4, next, took(4, next));
        plain += next == 0;
    }
    assert_in_range(plain, 2, 10);
}

/* Tokens cost as much again every 1500 tokens; weights are large, so that the mark can be kept. */
static int64_t took_at(int32_t r, int32_t depth)
{
    return r == 0 ? 40000 : 42000 + (int64_t)(1000.0 * r * (1 + depth / 1500.0));
}

/* A prompt of n tokens from `depth` on beside an answer: the longest step of the first ten, which a
 * chunk of the right size must keep. */
static int64_t read_prompt(struct pace *p, int32_t depth, int32_t n)
{
    int64_t longest = 0;
    for (int i = 0; n > 0; i++) {
        int32_t rows = pace_rows(p, 1, depth, n < 256 ? n : 256);
        int64_t us = took_at(rows, depth);
        pace_note(p, &(struct pace_step){1, rows, depth, us});
        longest = i < 10 && us > longest ? us : longest;
        depth += rows;
        n -= rows;
    }
    return longest;
}

/* A prompt that goes on behind a cached beginning starts with chunks of its depth, and one at its
 * beginning is not held back by the deep one before it. */
static void test_depth(void **state)
{
    struct pace p = {0};
    for (int i = 0; i < 3; i++) {
        read_prompt(&p, 0, 6000);
        if (i == 0)
            continue; /* the slope is learnt from the first */
        int32_t deep = pace_rows(&p, 1, 6000, 256);
        assert_in_range(pace_rows(&p, 1, 0, 256), deep, deep + 4); /* not more at once */
        read_prompt(&p, 0, 1200);
        assert_in_range(pace_rows(&p, 1, 1200, 256), 17, 27);
        assert_in_range(read_prompt(&p, 5000, 300), 60000, 100000);
        read_prompt(&p, 0, 2000);
        assert_in_range(read_prompt(&p, 6000, 300), 60000, 100000);
        assert_in_range(pace_rows(&p, 1, 6000, 256), 5, 11);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_flow), cmocka_unit_test(test_never_starves),
        cmocka_unit_test(test_alone),        cmocka_unit_test(test_hiccups),
        cmocka_unit_test(test_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
