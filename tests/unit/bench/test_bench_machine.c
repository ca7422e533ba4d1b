/*
 * test_bench_machine.c - reasons against measuring: each limit alone, a quiet machine has none, and
 * a load average that only remembers is none either.
 */
#include <stdlib.h>
#include <unistd.h>

#include "../check.h"
#include "bench/machine.h"

#define GB 1000000000LL

static struct machine_state quiet(void)
{
    return (struct machine_state){.load = {0.1, 0.2, 0.3},
                                  .busy = 0.02,
                                  .mem_total = 16 * GB,
                                  .mem_free = 12 * GB,
                                  .speed_percent = -1};
}

static int reasons(const struct machine_state *s, struct buf *text)
{
    buf_clear(text);
    int n = machine_reasons(s, 2 * GB, text), lines = 0;
    for (size_t i = 0; i < text->n; i++)
        lines += text->p[i] == '\n';
    assert_int_equal(n, lines);
    return n;
}

static void expect_one(const struct machine_state *s, const char *part)
{
    struct buf text = BUF_INIT;
    if (reasons(s, &text) != 1 || !strstr(buf_z(&text), part))
        fail_msg("expected one reason with \"%s\", got: %s", part, buf_z(&text));
    buf_free(&text);
}

static void test_reasons(void **state)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    struct machine_state s = quiet();
    struct buf text = BUF_INIT;
    assert_int_equal(reasons(&s, &text), 0);
    s.load[0] = (double)n + 5; /* minutes ago: nobody is at it any more */
    assert_int_equal(reasons(&s, &text), 0);
    s.queue = 1;
    expect_one(&s, "load average");
    s = quiet();
    s.busy = 0.5;
    expect_one(&s, "other processes use 0.50");
    s = quiet();
    s.steal = 0.3;
    expect_one(&s, "hypervisor");
    s = quiet();
    s.swap_used = 600LL << 20;
    expect_one(&s, "600 MiB are swapped out");
    s = quiet();
    s.mem_free = 5 * GB;
    expect_one(&s, "MiB of memory are free");
    s = quiet();
    s.mem_total = s.mem_free = GB;
    expect_one(&s, "the model needs");
    s = quiet();
    s.speed_percent = 80;
    expect_one(&s, "limited to 80 %");
    s = quiet();
    s.n_large = 2;
    snprintf(s.largest, sizeof s.largest, "browser, 3.0 GB");
    expect_one(&s, "browser, 3.0 GB");
    buf_free(&text);
}

/* What can be said of any machine: the figures are there and fit together. */
static void test_look(void **state)
{
    struct machine_state s;
    struct machine_ticks a = machine_ticks();
    machine_look(&s, true);
    struct machine_ticks z = machine_ticks();
    assert_true(s.mem_total > 0 && s.mem_free > 0 && s.mem_free <= s.mem_total);
    assert_true(s.busy >= 0 && s.steal >= 0 && s.queue >= 0);
    assert_true(a.busy > 0 && z.busy >= a.busy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_look),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
