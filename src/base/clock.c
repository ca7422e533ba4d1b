/*
 * clock.c - see clock.h. CLOCK_MONOTONIC for durations, CLOCK_REALTIME for dates only.
 */
#include "clock.h"

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

void clock_cond_init(pthread_cond_t *cv)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cv, &attr);
    pthread_condattr_destroy(&attr);
}

struct timespec clock_in(int64_t us)
{
    int64_t at = clock_us() + us;
    return (struct timespec){.tv_sec = at / 1000000, .tv_nsec = at % 1000000 * 1000};
}
