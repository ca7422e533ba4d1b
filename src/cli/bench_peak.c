/*
 * bench_peak.c - loops of nothing but 8-bit integer dot products, one per instruction-set level:
 * the arithmetic roof that `quern bench` compares with. Each loop keeps enough independent sums to
 * hide the instruction's latency. Operands stay in registers; results go to *sink.
 */
#include <string.h>

#include "cli/bench_roof.h"

#define STEPS (1 << 20)

#if defined(__x86_64__)
#include <immintrin.h>

/* The sums are named variables: an array of them the compiler keeps in memory. The instructions are
 * written out because around the intrinsics it copies and spills. */

/* Ten sums of eight int32; a step is ten times (maddubs + madd + add): 320 multiply-adds. */
__attribute__((target("avx2"))) static double peak_avx2(uint32_t *sink)
{
    const __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-5), one = _mm256_set1_epi16(1);
    __m256i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a, t;
#define DOT(s)                                                                                     \
    __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"           \
                     : "+x"(s), "=&x"(t)                                                           \
                     : "x"(a), "x"(b), "x"(one))
    for (int k = 0; k < STEPS; k++) {
        DOT(s0);
        DOT(s1);
        DOT(s2);
        DOT(s3);
        DOT(s4);
        DOT(s5);
        DOT(s6);
        DOT(s7);
        DOT(s8);
        DOT(s9);
    }
#undef DOT
    t = (s0 ^ s1 ^ s2 ^ s3 ^ s4) + (s5 ^ s6 ^ s7 ^ s8 ^ s9);
    uint32_t out[8];
    memcpy(out, &t, sizeof out);
    *sink ^= out[0] ^ out[5];
    return 2.0 * 320 * STEPS;
}

/* Ten sums of sixteen int32, one vpdpbusd each: 640 multiply-adds a step. */
__attribute__((target("avx512f,avx512bw,avx512vnni"))) static double peak_avx512(uint32_t *sink)
{
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
    __m512i s0 = a, s1 = a, s2 = a, s3 = a, s4 = a, s5 = a, s6 = a, s7 = a, s8 = a, s9 = a;
#define DOT(s) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(a), "v"(b))
    for (int k = 0; k < STEPS; k++) {
        DOT(s0);
        DOT(s1);
        DOT(s2);
        DOT(s3);
        DOT(s4);
        DOT(s5);
        DOT(s6);
        DOT(s7);
        DOT(s8);
        DOT(s9);
    }
#undef DOT
    __m512i t = (s0 ^ s1 ^ s2 ^ s3 ^ s4) + (s5 ^ s6 ^ s7 ^ s8 ^ s9);
    uint32_t out[16];
    memcpy(out, &t, sizeof out);
    *sink ^= out[0] ^ out[9];
    return 2.0 * 640 * STEPS;
}

/* Four sums of 16 x 16 int32, one tdpbssd over 64 bytes each: 4 x 16,384 multiply-adds a step. */
__attribute__((target("amx-tile,amx-int8"))) static double peak_amx(uint32_t *sink)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t colsb[16];
        uint8_t rows[16];
    } cfg = {.palette = 1};
    uint8_t data[16 * 64];
    for (int i = 0; i < 8; i++) {
        cfg.colsb[i] = 64;
        cfg.rows[i] = 16;
    }
    memset(data, 1, sizeof data);
    _tile_loadconfig(&cfg);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, data, 64);
    _tile_loadd(5, data, 64);
    int steps = STEPS / 16;
    for (int k = 0; k < steps; k++) {
        _tile_dpbssd(0, 4, 5);
        _tile_dpbssd(1, 4, 5);
        _tile_dpbssd(2, 4, 5);
        _tile_dpbssd(3, 4, 5);
    }
    _tile_stored(0, data, 64);
    uint32_t out;
    memcpy(&out, data, sizeof out);
    *sink ^= out;
    _tile_release();
    return 2.0 * 4 * 16384 * steps;
}

double peak_run(const char *isa, uint32_t *sink)
{
    if (strcmp(isa, "avx2") == 0)
        return peak_avx2(sink);
    if (strcmp(isa, "avx512") == 0)
        return peak_avx512(sink);
    if (strcmp(isa, "amx") == 0)
        return peak_amx(sink);
    return 0;
}

#else

double peak_run(const char *isa, uint32_t *sink)
{
    return 0;
}

#endif
