/*
 * test_pool_score.c - when the pool's leader works alone: on a simulated machine, whose threads
 * gain what the test says and are late as often as it says.
 */
#include "../check.h"
#include "base/pool_score.h"

struct machine {
    double gain;     /* of the team over the leader alone */
    int late_in;     /* of so many team regions one is late; 0 = none */
    double leader;   /* what the leader's chunks cost in a team, next to alone */
    bool mixed;      /* windows of small chunks follow windows of large ones */
    int64_t regions; /* so far */
    int64_t alone;   /* of these, run alone */
};

static void run(struct machine *m, struct pool_score *s, int windows)
{
    for (int i = 0; i < windows * POOL_WINDOW; i++, m->regions++) {
        bool small = m->mixed && m->regions / POOL_WINDOW % 2;
        struct pool_ran r = {.chunks = small ? 128 : 24};
        double chunk_ns = small ? 900 : 20000, all = chunk_ns * r.chunks;
        if (pool_score_alone(s)) {
            m->alone++;
            r.ns = (int64_t)all;
        } else {
            r.ns = (int64_t)(all / m->gain);
            r.chunk_ns = (int64_t)(chunk_ns * m->leader);
            r.hedges = m->late_in && m->regions % m->late_in == 0;
        }
        pool_score_add(s, &r);
    }
}

/* Eight threads are late in every other region, and far ahead all the same. */
static void test_many_threads(void **state)
{
    for (int mixed = 0; mixed < 2; mixed++) {
        struct pool_score s = {0};
        struct machine m = {.gain = 5, .late_in = 2, .leader = 1.1, .mixed = mixed};
        run(&m, &s, 1000);
        assert_int_equal(m.alone, 0);
    }
}

/* Two threads that cost more than they give: nearly everything is done alone. */
static void test_taken_machine(void **state)
{
    struct pool_score s = {0};
    struct machine m = {.gain = 0.7, .late_in = 3, .leader = 1.2};
    run(&m, &s, 200);
    assert_true(m.alone > m.regions * 9 / 10 && m.alone < m.regions);
    m.gain = 1.8; /* the machine is free again */
    m.leader = 1;
    m.late_in = 0;
    run(&m, &s, POOL_KEEP_WINDOWS + 2);
    m.alone = 0;
    run(&m, &s, 100);
    assert_int_equal(m.alone, 0);
}

/* Late, but worth it: the trial says so, and is not repeated at every window. */
static void test_trial(void **state)
{
    struct pool_score s = {0};
    struct machine m = {.gain = 1.2, .late_in = 2, .leader = 1};
    run(&m, &s, 340);
    assert_true(m.alone > 0 && m.alone <= 21 * POOL_WINDOW);
}

/* Not late: no trial, whatever the leader's own chunks say. */
static void test_never_late(void **state)
{
    struct pool_score s = {0};
    struct machine m = {.gain = 0.9, .late_in = POOL_WINDOW, .leader = 1};
    run(&m, &s, 100);
    assert_int_equal(m.alone, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_taken_machine),
        cmocka_unit_test(test_trial),
        cmocka_unit_test(test_never_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
