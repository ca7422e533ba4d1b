/*
 * fault.h - failures on request, for tests: an allocation, read or write asks fault_point("name")
 * before it happens and behaves as if the system had refused when the answer is true.
 *
 * Nothing is armed in normal use: a point then costs one relaxed atomic load. One plan at a time
 * for the whole process; points may be hit from any thread.
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* Arms a plan: the nth hit (from 1) of `name` (a static string; NULL counts every point) fails,
 * once. nth = 0 fails none and only counts. Replaces an earlier plan. */
void fault_arm(const char *name, int64_t nth);
/* Same, but every hit from the nth on fails: a full disk rather than a hiccup. */
void fault_arm_from(const char *name, int64_t nth);
/* Ends the plan. Returns how often the counted points were hit while it was armed. */
int64_t fault_disarm(void);

/* True when this hit must fail. Set errno afterwards where the caller reports it. */
bool fault_point(const char *name);

#endif
