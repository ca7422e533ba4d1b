/*
 * kvq_avx512.h - integer vectors for coded KV memory as one AVX-512 register, products by VNNI. See
 * kvq_generic.h for each operation's meaning.
 */
#ifndef KVQ_AVX512_H
#define KVQ_AVX512_H

#include "kernels/avx512/codes_avx512.h"
#include "kernels/kvq.h"
#include "kernels/tmpl/vec_avx512.h"

enum { KVQ_MANY = 8 };

typedef __m512i vi;
typedef __m512i vt; /* levels, 16 bits each */

INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}

INLINE vi vi_codes(const uint8_t *p, enum pack_kind kind, int j)
{
    return codes(p, kind, j);
}

INLINE vt vt_load(int bits)
{
    int8_t t[32] = {0};
    memcpy(t, kv_centroid(bits), (size_t)1 << bits);
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)t));
}

INLINE vi vi_level(vi c, vt t, int bits)
{
    (void)bits;
    return _mm512_permutexvar_epi16(c, t);
}

/* The pair is broadcast from memory; why this is written out: gemm_avx512.c. */
struct kvq_pair {
    int16_t a[2];
};
INLINE vi vi_dot(vi acc, vi c, const int16_t *a)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(c), "m"(*(const struct kvq_pair *)a));
    return acc;
}

INLINE vi vi_centred(vi x, int32_t c)
{
    return _mm512_sub_epi32(_mm512_add_epi32(x, x), _mm512_set1_epi32(c));
}

INLINE vf vi_float(vi x)
{
    return _mm512_cvtepi32_ps(x);
}

#endif
