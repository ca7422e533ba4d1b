/*
 * codes_avx512.h - codes and scales of the packed formats (kernels.h) as AVX-512 vectors, a block's
 * 16 rows at a time; for the AVX-512 products and for the tiles of AMX. Format and pair are
 * constants wherever this is inlined, so that a pair costs a shift and a mask.
 */
#ifndef CODES_AVX512_H
#define CODES_AVX512_H

#include <immintrin.h>

#include "kernels/kernels.h"

#ifdef KERN_SMALL_CODE
#define INLINE static __attribute__((unused)) /* not every file uses all of this */
#define UNROLL
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE __m512 scale16(const uint8_t *p, enum scale_type t)
{
    if (t == SCALE_F32)
        return _mm512_loadu_ps((const float *)p);
    __m256i h = _mm256_loadu_si256((const __m256i *)p);
    if (t == SCALE_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Biases of a group, whose scales are given. */
INLINE __m512 bias16(const uint8_t *p, __m512 scale, enum pack_kind kind, enum scale_type t,
                     bool centred)
{
    if (kind == PACK_E2M1 || centred)
        return _mm512_mul_ps(scale, _mm512_set1_ps((float)-pack_centre(kind)));
    return scale16(p + PACK_ROWS * pack_scale_bytes(t), t);
}

/* Inputs that repeat the pattern of lines: 32, or 16 where every half holds whole codes only. */
INLINE int32_t run_inputs(enum pack_kind kind)
{
    return 16 % pack_bits(kind) ? 32 : 16;
}

/* Line i of the run at p. Lines behind scales alone lie at multiples of 32 bytes only. */
INLINE __m512i words(const uint8_t *p, int i)
{
    return _mm512_loadu_si512(p + (size_t)i * 64);
}

/* n bits of both halves of a word from bit `from`, moved to bit `to`. */
INLINE __m512i bits(__m512i word, int from, int to, int n)
{
    if (from + n == 16 && to == 0)
        return _mm512_srli_epi16(word, (unsigned)from);
    if (from != to)
        word = _mm512_srli_epi32(word, (unsigned)(from - to));
    return _mm512_and_si512(word, _mm512_set1_epi32(0x00010001 * ((1 << n) - 1) << to));
}

/* What the low (or else high) nibbles of PACK_E2M1 stand for, byte by byte. */
INLINE __m512i e2m1_bytes(__m512i word, bool high)
{
    const __m128i t = _mm_loadu_si128((const __m128i *)pack_e2m1);
    if (high)
        word = _mm512_srli_epi32(word, 4);
    word = _mm512_and_si512(word, _mm512_set1_epi8(15));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), word);
}

/* Inputs 2j, 2j+1 of a run as two 16-bit halves. */
INLINE __m512i codes(const uint8_t *p, enum pack_kind kind, int j)
{
    const int n = pack_bits(kind), per = 16 / n, left = 16 - per * n;
    if (kind == PACK_E2M1) { /* pairs 0, 2 of a line are in the low nibbles of its bytes */
        __m512i v = e2m1_bytes(words(p, j / per), j & 1);
        return j & 2 ? _mm512_srli_epi16(v, 8) : _mm512_and_si512(v, _mm512_set1_epi32(0x00FF00FF));
    }
    if (!left || j < per * n)
        return bits(words(p, j / per), j % per * n, 0, n);
    __m512i v = _mm512_setzero_si512();
    const int s = (j - per * n) * n; /* its first bit among those above the whole codes */
    UNROLL for (int i = 0; i < n; i++)
    {
        int from = i * left < s ? s : i * left,
            to = (i + 1) * left < s + n ? (i + 1) * left : s + n;
        if (from < to)
            v = _mm512_or_si512(v,
                                bits(words(p, i), per * n + from - i * left, from - s, to - from));
    }
    return v;
}
#endif
