/*
 * vec_avx512.h - 16 lanes as one AVX-512 register. See vec_generic.h for each operation's meaning.
 */
#ifndef VEC_AVX512_H
#define VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/tmpl/turn_avx2.h"

typedef __m512 vf;

static inline __mmask16 vec_mask(int n)
{
    return (__mmask16)(n >= 16 ? 0xFFFF : n <= 0 ? 0 : (1u << n) - 1);
}

static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

static inline vf vf_loadn(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(vec_mask(n), p);
}

static inline void vf_storen(float *p, vf x, int n)
{
    _mm512_mask_storeu_ps(p, vec_mask(n), x);
}

static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf vf_add(vf x, vf y)
{
    return _mm512_add_ps(x, y);
}

static inline vf vf_sub(vf x, vf y)
{
    return _mm512_sub_ps(x, y);
}

static inline vf vf_mul(vf x, vf y)
{
    return _mm512_mul_ps(x, y);
}

static inline vf vf_div(vf x, vf y)
{
    return _mm512_div_ps(x, y);
}

static inline vf vf_fma(vf x, vf y, vf z)
{
    return _mm512_fmadd_ps(x, y, z);
}

static inline void vf_fma_to(vf *sum, vf x, vf y)
{
    *sum = _mm512_fmadd_ps(x, y, *sum);
}

static inline vf vf_max(vf x, vf y)
{
    return _mm512_max_ps(x, y);
}

static inline vf vf_min(vf x, vf y)
{
    return _mm512_min_ps(x, y);
}

static inline vf vf_abs(vf x)
{
    return _mm512_abs_ps(x);
}

static inline vf vf_rint(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf vf_pow2(vf n)
{
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
}

static inline vf vf_first(int n, vf x, vf y)
{
    return _mm512_mask_blend_ps(vec_mask(n), y, x);
}

static inline vf vf_zero_lt(vf x, vf y, vf z)
{
    return _mm512_maskz_mov_ps((__mmask16)~_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), z);
}

static inline vf vf_load_bf16_even(const uint8_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}

static inline vf vf_load_bf16_odd(const uint8_t *p)
{
    __m512i m = _mm512_set1_epi32((int)0xFFFF0000u);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), m));
}

static inline vf vf_load_bf16(const uint8_t *p)
{
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}

static inline vf vf_load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

static inline void vf_store_i16(int16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x)));
}

static inline float vf_sum(vf x)
{
    __m256 t = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float vf_hmax(vf x)
{
    __m256 t = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

#endif
