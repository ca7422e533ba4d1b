/* test_bench_timers.c - order, ties, cancelling, and timers that add timers. */
#include "../check.h"
#include "base/rng.h"
#include "bench/timers.h"

struct log {
    struct timers *t;
    int n;
    int seen[1000];
};
struct mark {
    struct log *log;
    int value;
};

static void note(void *arg)
{
    struct mark *m = arg;
    m->log->seen[m->log->n++] = m->value;
}

static void test_order(void **state)
{
    struct log log = {.t = timers_create()};
    struct mark m[500];
    int64_t at[500];
    uint64_t ids[500];
    for (int i = 0; i < 500; i++) {
        m[i] = (struct mark){&log, i};
        at[i] = (int64_t)(rng_u64(1, 0, (uint64_t)i) % 100);
        ids[i] = timers_add(log.t, at[i], note, &m[i]);
        assert_true(ids[i] != 0);
    }
    for (int i = 0; i < 500; i += 3)
        timers_cancel(log.t, ids[i]);
    timers_cancel(log.t, ids[0]); /* once more, and an id that never was */
    timers_cancel(log.t, 123456);
    timers_run(log.t, 49);
    int half = log.n;
    for (int i = 0; i < half; i++)
        assert_true(at[log.seen[i]] <= 49);
    assert_true(timers_next(log.t) >= 50);
    timers_run(log.t, 1000);
    assert_int_equal(log.n, 500 - 167);
    for (int i = 1; i < log.n; i++) {
        int a = log.seen[i - 1], b = log.seen[i];
        assert_true(at[a] < at[b] || (at[a] == at[b] && a < b));
        assert_true(a % 3 != 0 && b % 3 != 0);
    }
    assert_true(timers_next(log.t) == INT64_MAX);
    timers_free(log.t);
}

static void again(void *arg)
{
    struct mark *m = arg;
    m->log->n++;
    if (m->log->n < 5)
        timers_add(m->log->t, m->log->n * 10, again, m);
}

static void test_chain(void **state)
{
    struct log log = {.t = timers_create()};
    struct mark m = {&log, 0};
    timers_add(log.t, 5, again, &m);
    timers_run(log.t, 25); /* 5, 10, 20; the one at 30 waits */
    assert_int_equal(log.n, 3);
    assert_int_equal(timers_next(log.t), 30);
    timers_free(log.t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_chain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
