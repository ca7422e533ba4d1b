/*
 * test_bench_child.c - the processor time of servers is known whole: also of one that was killed,
 * and of what it left behind. Time is burnt by the clock of the process that burns, so that a busy
 * machine changes nothing.
 */
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../check.h"
#include "bench/child.h"

enum { BURN_MS = 150 };

/* Burns BURN_MS of this process's processor time. */
static void burn(void)
{
    volatile unsigned x = 1;
    struct timespec t;
    do {
        for (int i = 0; i < 100000; i++)
            x = x * 1664525u + 1013904223u;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    } while (t.tv_sec == 0 && t.tv_nsec < BURN_MS * 1000000L);
}

/* What the server is: itself in another role. "orphan": starts one that burns too and ends first;
 * both say when they are done, by a letter in the log. */
static int play(const char *role)
{
    if (strcmp(role, "orphan") == 0 && fork() == 0) {
        burn();
        if (write(1, "c", 1) < 0)
            return 1;
        sleep(60); /* until it is killed */
        return 0;
    }
    burn();
    if (write(1, "p", 1) < 0)
        return 1;
    if (strcmp(role, "orphan") == 0)
        return 0;
    sleep(60);
    return 0;
}

static double burnt_ms(const char *role, const char *until)
{
    char log[] = "/tmp/quern-test-child-XXXXXX", self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    char *const argv[] = {self, (char *)(uintptr_t)role, NULL};
    struct child c = {0};
    struct qn_err err;
    struct buf said = BUF_INIT;
    close(mkstemp(log));
    int64_t before = child_ticks_all();
    CHECK_OK(child_start(&c, argv, NULL, log, &err), err);
    for (bool done = false; !done;) { /* every letter is there */
        child_log_tail(log, 1, &said);
        done = true;
        for (const char *p = until; *p; p++)
            done &= strchr(buf_z(&said), *p) != NULL;
        usleep(2000);
    }
    child_kill(&c);
    unlink(log);
    buf_free(&said);
    return 1000.0 * (double)(child_ticks_all() - before) / (double)sysconf(_SC_CLK_TCK);
}

static void test_time_of_the_killed(void **state)
{
    assert_true(burnt_ms("alone", "p") >= BURN_MS - 20);
}

static void test_time_of_the_left_behind(void **state)
{
    assert_true(burnt_ms("orphan", "pc") >= 2 * BURN_MS - 40);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return play(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_of_the_killed),
        cmocka_unit_test(test_time_of_the_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
