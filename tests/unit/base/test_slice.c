/* test_slice.c - a thread's slice: asked for, inherited by the threads it makes, given back. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/slice.h"

#define SHORT_NS 100000

/* What the kernel says of the calling thread; 0: nothing. */
static int64_t slice_now(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime_ns, deadline_ns, period_ns;
    } a = {0};
    if (syscall(SYS_sched_getattr, 0, &a, (unsigned)sizeof a, 0u) != 0)
        return 0;
    return (int64_t)a.runtime_ns;
}

static void *see_slice(void *arg)
{
    *(int64_t *)arg = slice_now();
    return NULL;
}

static void asked_inherited_given_back(void **state)
{
    pthread_t t;
    int64_t before = slice_now(), child = 0;
    slice_set(SHORT_NS);
    if (slice_now() != SHORT_NS) {
        slice_set(0);
        assert_int_equal(slice_now(), before); /* nothing broke where the kernel does not know */
        puts("this kernel has no slices of a thread's own (Linux 6.12 has)");
        skip();
    }
    assert_int_equal(pthread_create(&t, NULL, see_slice, &child), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(child, SHORT_NS);
    slice_set(0);
    assert_int_equal(slice_now(), before);
}

static void niceness_stays(void **state)
{
    errno = 0;
    int before = getpriority(PRIO_PROCESS, 0);
    assert_int_equal(setpriority(PRIO_PROCESS, 0, before < 15 ? before + 3 : before), 0);
    int nice = getpriority(PRIO_PROCESS, 0);
    slice_set(SHORT_NS);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), nice);
    slice_set(0);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), nice);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asked_inherited_given_back),
        cmocka_unit_test(niceness_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
