/*
 * test_progress.c - the text of the progress line: figures, narrow terminals, unknown totals.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/progress.h"

static void check(const struct progress *p, int64_t now_us, int width, const char *want)
{
    struct buf b = BUF_INIT;
    progress_format(p, now_us, width, &b);
    assert_string_equal(buf_z(&b), want);
    buf_free(&b);
}

static void test_lines(void **state)
{
    struct progress p = {
        .what = "Reading", .unit = "B", .total = 4 << 20, .done = 1 << 20, .rate = 2.5 * (1 << 20)};
    check(&p, 2000000, 80, "Reading [#######.......................]  25%  2.5 MiB/s  ETA 0:06");
    check(&p, 2000000, 40, "Reading  25%  2.5 MiB/s  ETA 0:06");
    check(&p, 2000000, 30, "Rea  25%  2.5 MiB/s  ETA 0:06");
    p.done = 8 << 20; /* past the total: still a sane line */
    check(&p, 2000000, 80, "Reading [##############################] 100%  2.5 MiB/s  ETA 0:00");
    p = (struct progress){.what = "Prompt", .unit = "tok", .done = 512, .rate = 33.3};
    check(&p, 3725000000, 80, "Prompt 512 tok  33.3 tok/s  1:02:05");
    p = (struct progress){.what = "Loading", .total = 1, .done = 0};
    check(&p, 1500000, 60, "Loading [..............................]   0%");
}

static void test_never_too_wide(void **state)
{
    struct progress p = {.what = "A rather long description of what is going on here",
                         .unit = "tok",
                         .total = 1000,
                         .done = 500,
                         .rate = 123};
    for (int width = 1; width < 120; width++) {
        struct buf b = BUF_INIT;
        progress_format(&p, 100000000, width, &b);
        if ((int)b.n > width - 1)
            fail_msg("width %d: %zu columns", width, b.n);
        buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_never_too_wide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
