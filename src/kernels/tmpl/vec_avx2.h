/*
 * vec_avx2.h - 16 lanes as two AVX2 registers. See vec_generic.h for each operation's meaning.
 */
#ifndef VEC_AVX2_H
#define VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/tmpl/turn_avx2.h"

typedef struct {
    __m256 a, b;
} vf;

#define VF2(op, x, y) ((vf){op((x).a, (y).a), op((x).b, (y).b)})

static inline vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

static inline __m256i vec_mask(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf vf_loadn(const float *p, int n)
{
    return (vf){_mm256_maskload_ps(p, vec_mask(n)),
                n > 8 ? _mm256_maskload_ps(p + 8, vec_mask(n - 8)) : _mm256_setzero_ps()};
}

static inline void vf_storen(float *p, vf x, int n)
{
    _mm256_maskstore_ps(p, vec_mask(n), x.a);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, vec_mask(n - 8), x.b);
}

static inline vf vf_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

static inline vf vf_add(vf x, vf y)
{
    return VF2(_mm256_add_ps, x, y);
}

static inline vf vf_sub(vf x, vf y)
{
    return VF2(_mm256_sub_ps, x, y);
}

static inline vf vf_mul(vf x, vf y)
{
    return VF2(_mm256_mul_ps, x, y);
}

static inline vf vf_div(vf x, vf y)
{
    return VF2(_mm256_div_ps, x, y);
}

static inline vf vf_fma(vf x, vf y, vf z)
{
    return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}

/* The compiler, left to choose, moves sums about when there are many. */
static inline void vf_fma_to(vf *sum, vf x, vf y)
{
    __asm__("vfmadd231ps %1, %2, %0" : "+x"(sum->a) : "x"(x.a), "x"(y.a));
    __asm__("vfmadd231ps %1, %2, %0" : "+x"(sum->b) : "x"(x.b), "x"(y.b));
}

static inline vf vf_max(vf x, vf y)
{
    return VF2(_mm256_max_ps, x, y);
}

static inline vf vf_min(vf x, vf y)
{
    return VF2(_mm256_min_ps, x, y);
}

static inline vf vf_abs(vf x)
{
    vf m = vf_set1(-0.0f);
    return VF2(_mm256_andnot_ps, m, x);
}

static inline vf vf_rint(vf x)
{
    return (vf){_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

static inline __m256 vec_pow2(__m256 n)
{
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}

static inline vf vf_pow2(vf n)
{
    return (vf){vec_pow2(n.a), vec_pow2(n.b)};
}

static inline vf vf_first(int n, vf x, vf y)
{
    return (vf){_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(vec_mask(n))),
                _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(vec_mask(n - 8)))};
}

static inline vf vf_zero_lt(vf x, vf y, vf z)
{
    return (vf){_mm256_andnot_ps(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), z.a),
                _mm256_andnot_ps(_mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ), z.b)};
}

static inline vf vf_load_bf16_even(const uint8_t *p)
{
    __m256i lo = _mm256_loadu_si256((const __m256i *)p);
    __m256i hi = _mm256_loadu_si256((const __m256i *)(p + 32));
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

static inline vf vf_load_bf16_odd(const uint8_t *p)
{
    __m256i lo = _mm256_loadu_si256((const __m256i *)p);
    __m256i hi = _mm256_loadu_si256((const __m256i *)(p + 32));
    __m256i m = _mm256_set1_epi32((int)0xFFFF0000u);
    return (vf){_mm256_castsi256_ps(_mm256_and_si256(lo, m)),
                _mm256_castsi256_ps(_mm256_and_si256(hi, m))};
}

static inline __m256 vec_bf16(const uint8_t *p)
{
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}

static inline vf vf_load_bf16(const uint8_t *p)
{
    return (vf){vec_bf16(p), vec_bf16(p + 16)};
}

static inline vf vf_load_f16(const uint8_t *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16)))};
}

static inline void vf_store_i16(int16_t *p, vf x)
{
    __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(w, 0xD8));
}

static inline float vf_sum(vf x)
{
    __m256 t = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float vf_hmax(vf x)
{
    __m256 t = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

#undef VF2
#endif
