/*
 * cpu.c - see cpu.h.
 */
#include "cpu.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const isa_names[CPU_N_ISA] = {"generic", "avx2", "avx512", "amx"};

#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>

enum {
    ARCH_REQ_XCOMP_PERM = 0x1023,
    XFEATURE_XTILEDATA = 18,
    XCR0_AVX = 0x6,
    XCR0_AVX512 = 0xE6,
    XCR0_AMX = 0x60000,
    MXCSR_FTZ_DAZ = 0x8040,
};

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static bool amx_permitted(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

enum cpu_isa cpu_best(void)
{
    uint32_t a, b, c, d, b7, c7, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_FMA) ||
        !(c & bit_F16C) || (xcr0() & XCR0_AVX) != XCR0_AVX)
        return CPU_GENERIC;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) || !(b7 & bit_AVX2))
        return CPU_GENERIC;
    uint32_t want = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((b7 & want) != want || !(c7 & bit_AVX512VNNI) || (xcr0() & XCR0_AVX512) != XCR0_AVX512)
        return CPU_AVX2;
    uint32_t amx = 1u << 24 | 1u << 25; /* AMX-TILE, AMX-INT8 */
    if ((d7 & amx) != amx || (xcr0() & XCR0_AMX) != XCR0_AMX || !amx_permitted())
        return CPU_AVX512;
    return CPU_AMX;
}

unsigned cpu_fp_begin(void)
{
    unsigned old = _mm_getcsr();
    _mm_setcsr(old | MXCSR_FTZ_DAZ);
    return old;
}

void cpu_fp_restore(unsigned old)
{
    _mm_setcsr(old);
}

void cpu_relax(void)
{
    _mm_pause();
}

#else

enum cpu_isa cpu_best(void)
{
    return CPU_GENERIC;
}

unsigned cpu_fp_begin(void)
{
    return 0;
}

void cpu_fp_restore(unsigned old)
{
}

void cpu_relax(void)
{
}

#endif

const char *cpu_isa_name(enum cpu_isa l)
{
    return l < CPU_N_ISA ? isa_names[l] : "unknown";
}

enum qn_status cpu_isa_parse(const char *name, enum cpu_isa *out, struct qn_err *err)
{
    enum cpu_isa best = cpu_best();
    if (!name || strcmp(name, "auto") == 0) {
        *out = best;
        return QN_OK;
    }
    if (strcmp(name, "ref") == 0)
        name = "generic";
    for (enum cpu_isa l = CPU_GENERIC; l < CPU_N_ISA; l++) {
        if (strcmp(name, isa_names[l]) != 0)
            continue;
        if (l > best)
            QN_FAIL(err, QN_UNSUPPORTED, "cpu", "instruction set %s: this machine has %s at most",
                    name, isa_names[best]);
        *out = l;
        return QN_OK;
    }
    QN_FAIL(err, QN_BAD_INPUT, "cpu",
            "instruction set \"%.32s\" is not known; use auto, generic, avx2, avx512 or amx", name);
}

int cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

void cpu_model_name(char *out, size_t cap)
{
    snprintf(out, cap, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon += strspn(colon, ": \t");
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out, cap, "%s", colon);
        break;
    }
    if (f)
        fclose(f);
}
