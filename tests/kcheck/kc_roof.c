/*
 * kc_roof.c - what one thread of this machine can do at most, measured in the same run as the
 * kernels: reading memory, integer multiply-adds on the level at hand, float multiply-adds.
 * Each loop carries enough independent sums to fill the pipelines and does nothing else.
 */
#include "kcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"

#define ROUNDS 2000000L

static double seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

/* Best of five passes over 256 MiB, GB/s. */
static double read_roof(void)
{
    size_t n = (size_t)256 << 20;
    uint64_t *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    memset(p, 1, n);
    double best = 0;
    for (int r = 0; r < 5; r++) {
        uint64_t s[8] = {0};
        int64_t t = clock_ns();
        for (size_t i = 0; i < n / 8; i += 8) {
            __builtin_prefetch(p + i + 1024);
            for (int j = 0; j < 8; j++)
                s[j] += p[i + (size_t)j];
        }
        double gbs = (double)n / 1e9 / seconds(clock_ns() - t);
        for (int j = 0; j < 8; j++)
            __asm__ volatile("" ::"r"(s[j]));
        best = gbs > best ? gbs : best;
    }
    munmap(p, n);
    return best;
}

#if defined(__x86_64__)
#include <immintrin.h>

/* Not memset: the sums must stay in registers. */
#define CLEAR(j) s[j] = c;
#define FOR10(x) x(0) x(1) x(2) x(3) x(4) x(5) x(6) x(7) x(8) x(9)

__attribute__((target("avx2,fma"))) static void int_avx2(void)
{
    __m256i c = _mm256_set1_epi16(3), s[10];
    FOR10(CLEAR)
    for (long i = 0; i < ROUNDS; i++) {
#define STEP(j)                                                                                    \
    s[j] = _mm256_add_epi32(s[j], _mm256_madd_epi16(c, c));                                        \
    __asm__ volatile("" : "+x"(s[j]), "+x"(c)); /* c may have changed: no product is reused */
        FOR10(STEP)
#undef STEP
    }
}

__attribute__((target("avx2,fma"))) static void f32_avx2(void)
{
    __m256 c = _mm256_set1_ps(0.5f), s[10];
    FOR10(CLEAR)
    for (long i = 0; i < ROUNDS; i++) {
#define STEP(j)                                                                                    \
    s[j] = _mm256_fmadd_ps(s[j], c, c);                                                            \
    __asm__ volatile("" : "+x"(s[j]));
        FOR10(STEP)
#undef STEP
    }
}

__attribute__((target("avx512f,avx512vnni"))) static void int_avx512(void)
{
    __m512i c = _mm512_set1_epi32(0x00030003), s[10];
    FOR10(CLEAR)
    for (long i = 0; i < ROUNDS; i++) {
#define STEP(j)                                                                                    \
    s[j] = _mm512_dpwssd_epi32(s[j], c, c);                                                        \
    __asm__ volatile("" : "+v"(s[j]));
        FOR10(STEP)
#undef STEP
    }
}

__attribute__((target("avx512f"))) static void f32_avx512(void)
{
    __m512 c = _mm512_set1_ps(0.5f), s[10];
    FOR10(CLEAR)
    for (long i = 0; i < ROUNDS; i++) {
#define STEP(j)                                                                                    \
    s[j] = _mm512_fmadd_ps(s[j], c, c);                                                            \
    __asm__ volatile("" : "+v"(s[j]));
        FOR10(STEP)
#undef STEP
    }
}

/* Four sums in tiles 0..3, operands in 4 and 5: ROUNDS/10 times 4 products of 16x16x64. */
static void int_amx(void)
{
    struct {
        uint8_t palette, start, zero[14];
        uint16_t colsb[16];
        uint8_t rows[16];
    } cfg = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        cfg.colsb[i] = 64;
        cfg.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(cfg));
    for (long i = 0; i < ROUNDS / 10; i++)
        __asm__ volatile("tdpbsud %%tmm5, %%tmm4, %%tmm0\n\ttdpbsud %%tmm5, %%tmm4, %%tmm1\n\t"
                         "tdpbsud %%tmm5, %%tmm4, %%tmm2\n\ttdpbsud %%tmm5, %%tmm4, %%tmm3" ::);
    __asm__ volatile("tilerelease" ::);
}

/* Billions of multiply-adds a second, best of nine. */
static double rate(void (*fn)(void), double macs)
{
    double best = 0;
    for (int r = 0; r < 9; r++) {
        int64_t t = clock_ns();
        fn();
        double g = macs / 1e9 / seconds(clock_ns() - t);
        best = g > best ? g : best;
    }
    return best;
}

void kc_roof(struct kc *c)
{
    c->roof = (struct kc_roof){.read_gbs = read_roof()};
    double n = (double)ROUNDS * 10;
    if (c->k->isa == CPU_AVX2) {
        c->roof.gmacs = rate(int_avx2, n * 16);
        c->roof.f32_gmacs = rate(f32_avx2, n * 8);
    }
    if (c->k->isa >= CPU_AVX512) {
        c->roof.gmacs = rate(int_avx512, n * 32);
        c->roof.f32_gmacs = rate(f32_avx512, n * 16);
    }
    if (c->k->isa == CPU_AMX) /* two digits a product */
        c->roof.gmacs = rate(int_amx, (double)(ROUNDS / 10) * 4 * 16 * 16 * 64) / 2;
}

#else

void kc_roof(struct kc *c)
{
    c->roof = (struct kc_roof){.read_gbs = read_roof()};
}

#endif
