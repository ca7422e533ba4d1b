/*
 * cpu.h - what the processor and the operating system let us use, as a ladder of instruction-set
 * levels. A level includes those below it. Detection looks at cpuid, at xgetbv (does the system
 * save the registers?) and, for AMX, asks the kernel for permission once.
 */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include "base/err.h"

enum cpu_isa {
    CPU_GENERIC, /* portable C */
    CPU_AVX2,    /* AVX2, FMA, F16C */
    CPU_AVX512,  /* AVX-512 F, BW, DQ, VL, VNNI */
    CPU_AMX,     /* the same and AMX-TILE, AMX-INT8 */
    CPU_N_ISA
};

enum cpu_isa cpu_best(void);              /* the highest level this machine runs */
const char *cpu_isa_name(enum cpu_isa l); /* "generic", "avx2", "avx512", "amx" */
/* A name to a level, at most what the machine runs. NULL or "auto" = best. "ref" = generic. */
enum qn_status cpu_isa_parse(const char *name, enum cpu_isa *out, struct qn_err *err);
int cpu_count(void);                        /* processors this process may use */
void cpu_model_name(char *out, size_t cap); /* from /proc/cpuinfo, "unknown" when absent */

/* Flush-to-zero and denormals-are-zero are part of the arithmetic: every thread that computes sets
 * them. Returns the old control word for cpu_fp_restore. */
unsigned cpu_fp_begin(void);
void cpu_fp_restore(unsigned old);
void cpu_relax(void); /* the pause instruction */

#endif
