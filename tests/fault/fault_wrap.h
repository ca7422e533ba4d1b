/*
 * fault_wrap.h - every allocation of our own code as a fault point: the linker's --wrap sends
 * malloc and its like through fault_wrap.c, which asks fault_point("malloc") first. Of the
 * libraries only the socket calls are points ("net"), and not under a sanitizer, which has its own.
 */
#ifndef TESTS_FAULT_WRAP_H
#define TESTS_FAULT_WRAP_H

#include <stdbool.h>
#include <stdint.h>

#include "../sanitized.h"

/* No point while it is set: the calling thread is inside a test double. */
extern _Thread_local bool fault_exempt;

/* Where the last fault struck, for messages: return addresses, outermost last. */
void fault_where(void);

#endif
