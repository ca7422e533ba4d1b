/*
 * sysmem.h - how much memory this process may use: the machine's, or less where a control group
 * says so. Read once from /proc and /sys; no state.
 */
#ifndef BASE_SYSMEM_H
#define BASE_SYSMEM_H

#include <stdint.h>

/* Bytes; 0 when the system does not say. */
int64_t sysmem_limit(void);

/* The same with the roots of the trees given, for tests: "/proc" and "/sys/fs/cgroup". */
int64_t sysmem_limit_at(const char *proc, const char *cgroups);

#endif
