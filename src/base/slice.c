/*
 * slice.c - see slice.h. Any thread, for itself; keeps no state.
 */
#include "base/slice.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's struct sched_attr in its first version; the headers of C libraries and of kernels
 * that have it do not go together everywhere. */
struct attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

void slice_set(int64_t ns)
{
    struct attr a = {.size = sizeof a};
    if (syscall(SYS_sched_getattr, 0, &a, (unsigned)sizeof a, 0u) != 0 ||
        (a.policy != SCHED_OTHER && a.policy != SCHED_BATCH))
        return;
    a.runtime_ns = (uint64_t)ns;
    (void)!syscall(SYS_sched_setattr, 0, &a, 0u);
}
