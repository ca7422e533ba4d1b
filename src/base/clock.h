/* clock.h - monotonic and wall time. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_us(void);   /* monotonic microseconds */
int64_t clock_ns(void);   /* monotonic nanoseconds */
int64_t clock_unix(void); /* seconds since 1970 */

#endif
