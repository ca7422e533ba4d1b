/*
 * clock.c - see clock.h. CLOCK_MONOTONIC for durations, CLOCK_REALTIME for dates only.
 */
#include "clock.h"

#include <time.h>

int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t clock_us(void)
{
    return clock_ns() / 1000;
}

int64_t clock_unix(void)
{
    return (int64_t)time(NULL);
}
