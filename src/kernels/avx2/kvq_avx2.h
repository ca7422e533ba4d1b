/*
 * kvq_avx2.h - integer vectors for coded KV memory as two AVX2 registers. See kvq_generic.h for
 * each operation's meaning.
 */
#ifndef KVQ_AVX2_H
#define KVQ_AVX2_H

#include "kernels/avx2/codes_avx2.h"
#include "kernels/kvq.h"
#include "kernels/tmpl/vec_avx2.h"

enum { KVQ_MANY = 4 };

typedef struct {
    __m256i a, b;
} vi;

typedef struct {
    __m256i low, high; /* levels 0 to 15, 16 to 31; both lanes alike */
} vt;

INLINE vi vi_zero(void)
{
    return (vi){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

INLINE vi vi_codes(const uint8_t *p, enum pack_kind kind, int j)
{
    return (vi){codes(p, kind, j), codes(p + 32, kind, j)};
}

INLINE vt vt_load(int bits)
{
    int8_t t[32] = {0};
    memcpy(t, kv_centroid(bits), (size_t)1 << bits);
    return (vt){_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)t)),
                _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(t + 16)))};
}

/* The table gives bytes; the upper one of each half goes, the sign of the lower one fills it. */
INLINE __m256i level8(__m256i c, vt t, int bits)
{
    __m256i v = _mm256_shuffle_epi8(t.low, c);
    if (bits == 5)
        v = _mm256_blendv_epi8(v, _mm256_shuffle_epi8(t.high, c), _mm256_slli_epi16(c, 3));
    return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
}

INLINE vi vi_level(vi c, vt t, int bits)
{
    return (vi){level8(c.a, t, bits), level8(c.b, t, bits)};
}

INLINE vi vi_dot(vi acc, vi c, const int16_t *a)
{
    int32_t pair;
    memcpy(&pair, a, 4);
    __m256i v = _mm256_set1_epi32(pair);
    acc.a = _mm256_add_epi32(acc.a, _mm256_madd_epi16(c.a, v));
    acc.b = _mm256_add_epi32(acc.b, _mm256_madd_epi16(c.b, v));
    __asm__("" : "+x"(acc.a), "+x"(acc.b)); /* keeps sums in their registers (gemm_avx2.c) */
    return acc;
}

INLINE vi vi_centred(vi x, int32_t c)
{
    __m256i v = _mm256_set1_epi32(c);
    return (vi){_mm256_sub_epi32(_mm256_add_epi32(x.a, x.a), v),
                _mm256_sub_epi32(_mm256_add_epi32(x.b, x.b), v)};
}

INLINE vf vi_float(vi x)
{
    return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)};
}

#endif
