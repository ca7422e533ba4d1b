/*
 * bench_roof.h - what the machine can do at most, measured beside the model: sequential memory
 * reads and 8-bit integer multiply-adds, on a given number of threads.
 */
#ifndef CLI_BENCH_ROOF_H
#define CLI_BENCH_ROOF_H

#include "base/err.h"

struct roof;

/* Takes a buffer several times the last-level cache (256 MiB to 2 GiB, at most a quarter of the
 * free memory) and touches it from n_thread threads, so that its pages lie near them. */
enum qn_status roof_open(int n_thread, struct roof **out, struct qn_err *err);
void roof_close(struct roof *r); /* NULL is fine */
int64_t roof_bytes(const struct roof *r);
int64_t roof_cache_bytes(void); /* last-level cache; 0 = unknown */
/* One pass over the buffer: bytes per second; 0 when threads cannot be started. */
double roof_read(struct roof *r, int n_thread);
/* Operations per second (a multiply-add is two) of a loop of 8-bit dot products with the widest
 * instructions of level `isa` ("avx2", "avx512", "amx"); 0 when there is no such loop. */
double roof_peak(const char *isa, int n_thread);

/* bench_peak.c: runs about 2^20 steps; returns operations done, 0 = no loop for this level. The
 * caller has checked that the processor has the level (the engine uses it). */
double peak_run(const char *isa, uint32_t *sink);

#endif
