/* clock.h - monotonic and wall time. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

int64_t clock_us(void);   /* monotonic microseconds */
int64_t clock_ns(void);   /* monotonic nanoseconds */
int64_t clock_unix(void); /* seconds since 1970 */

/* A condition whose timed waits end at what clock_in says: by the monotonic clock, which no change
 * of the date moves. */
void clock_cond_init(pthread_cond_t *cv);
struct timespec clock_in(int64_t us); /* so long from now */

#endif
