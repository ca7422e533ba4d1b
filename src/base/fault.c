/*
 * fault.c - see fault.h. The plan is a mutable global on purpose: it stands for the machine, not
 * for any object. `armed` is stored last and read first, so a point never sees half a plan.
 */
#include "fault.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

static struct {
    atomic_bool armed;
    _Atomic(const char *) name;
    atomic_bool lasting;
    _Atomic int64_t nth, hits;
} plan;

static void arm(const char *name, int64_t nth, bool lasting)
{
    atomic_store(&plan.armed, false);
    atomic_store(&plan.name, name);
    atomic_store(&plan.nth, nth);
    atomic_store(&plan.lasting, lasting);
    atomic_store(&plan.hits, 0);
    atomic_store(&plan.armed, true);
}

void fault_arm(const char *name, int64_t nth)
{
    arm(name, nth, false);
}

void fault_arm_from(const char *name, int64_t nth)
{
    arm(name, nth, true);
}

int64_t fault_disarm(void)
{
    atomic_store(&plan.armed, false);
    return atomic_load(&plan.hits);
}

bool fault_point(const char *name)
{
    if (__builtin_expect(!atomic_load_explicit(&plan.armed, memory_order_relaxed), 1))
        return false;
    if (!atomic_load(&plan.armed))
        return false;
    const char *want = atomic_load(&plan.name);
    if (want && strcmp(want, name) != 0)
        return false;
    int64_t hit = atomic_fetch_add(&plan.hits, 1) + 1, nth = atomic_load(&plan.nth);
    return nth > 0 && (hit == nth || (hit > nth && atomic_load(&plan.lasting)));
}
