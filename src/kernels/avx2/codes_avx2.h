/*
 * codes_avx2.h - codes and scales of the packed formats (kernels.h) as AVX2 vectors, eight rows at
 * a time; shared by the products with few rows and with many. Format and pair are constants
 * wherever this is inlined, so that a pair costs a shift and a mask.
 */
#ifndef CODES_AVX2_H
#define CODES_AVX2_H

#include <immintrin.h>

#include "kernels/kernels.h"

#ifdef KERN_SMALL_CODE
#define INLINE static __attribute__((unused)) /* not every file uses all of this */
#define UNROLL
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE __m256 scale8(const uint8_t *p, enum scale_type t, int half)
{
    if (t == SCALE_F32)
        return _mm256_loadu_ps((const float *)p + 8 * half);
    __m128i h = _mm_loadu_si128((const __m128i *)(p + 16 * half));
    if (t == SCALE_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* Scales and biases of a group, both halves of the block. */
struct scales {
    __m256 s[2], b[2];
};
INLINE struct scales scales_of(const uint8_t *p, enum pack_kind kind, enum scale_type t,
                               bool centred)
{
    struct scales v;
    const uint8_t *q = p + PACK_ROWS * (t == SCALE_F32 ? 4 : 2);
    UNROLL for (int half = 0; half < 2; half++)
    {
        v.s[half] = scale8(p, t, half);
        v.b[half] = kind == PACK_E2M1 || centred
                        ? _mm256_mul_ps(v.s[half], _mm256_set1_ps((float)-pack_centre(kind)))
                        : scale8(q, t, half);
    }
    return v;
}
/* Branches on type and biases once, not for each vector. */
INLINE struct scales group_scales(const uint8_t *p, enum pack_kind kind, enum scale_type t,
                                  bool centred)
{
    if (t == SCALE_F16)
        return centred ? scales_of(p, kind, SCALE_F16, true) : scales_of(p, kind, SCALE_F16, false);
    if (t == SCALE_BF16)
        return scales_of(p, kind, SCALE_BF16, centred);
    return scales_of(p, kind, SCALE_F32, centred);
}

/* Inputs that repeat the pattern of lines: 32, or 16 where every half holds whole codes only. */
INLINE int32_t run_inputs(enum pack_kind kind)
{
    return 16 % pack_bits(kind) ? 32 : 16;
}

/* Eight rows of line i of the run at p. */
INLINE __m256i words(const uint8_t *p, int i)
{
    return _mm256_load_si256((const __m256i *)(p + (size_t)i * 64));
}

/* n bits of both halves of a word from bit `from`, moved to bit `to`. */
INLINE __m256i bits(__m256i word, int from, int to, int n)
{
    if (from + n == 16 && to == 0)
        return _mm256_srli_epi16(word, from);
    if (from != to)
        word = _mm256_srli_epi32(word, from - to);
    return _mm256_and_si256(word, _mm256_set1_epi32(0x00010001 * ((1 << n) - 1) << to));
}

/* What PACK_E2M1 codes stand for: pairs 0, 2 of a line are in the low nibbles of its bytes. */
INLINE __m256i e2m1(__m256i word, int pair)
{
    const __m128i t = _mm_loadu_si128((const __m128i *)pack_e2m1);
    __m256i nibble = pair & 1 ? _mm256_srli_epi32(word, 4) : word;
    nibble = _mm256_and_si256(nibble, _mm256_set1_epi8(15));
    __m256i v = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), nibble);
    return pair & 2 ? _mm256_srli_epi16(v, 8) : _mm256_and_si256(v, _mm256_set1_epi32(0x00FF00FF));
}

/* Inputs 2j, 2j+1 of a run as two 16-bit halves. */
INLINE __m256i codes(const uint8_t *p, enum pack_kind kind, int j)
{
    const int n = pack_bits(kind), per = 16 / n, left = 16 - per * n;
    if (kind == PACK_E2M1)
        return e2m1(words(p, j / per), j % per);
    if (!left || j < per * n)
        return bits(words(p, j / per), j % per * n, 0, n);
    __m256i v = _mm256_setzero_si256();
    const int s = (j - per * n) * n; /* its first bit among those above the whole codes */
    UNROLL for (int i = 0; i < n; i++)
    {
        int from = i * left < s ? s : i * left,
            to = (i + 1) * left < s + n ? (i + 1) * left : s + n;
        if (from < to)
            v = _mm256_or_si256(v,
                                bits(words(p, i), per * n + from - i * left, from - s, to - from));
    }
    return v;
}

#endif
