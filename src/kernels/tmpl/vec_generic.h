/*
 * vec_generic.h - vectors of 16 float32 lanes in portable C. The three vec_*.h files give the same
 * names the same meaning, lane by lane and bit by bit (IEEE single operations, fused multiply-add,
 * round to nearest even), so that the *_tmpl.h files compile to the same arithmetic everywhere.
 */
#ifndef VEC_GENERIC_H
#define VEC_GENERIC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    float v[16];
} vf;

#define VEC_EACH for (int i_ = 0; i_ < 16; i_++)

static inline vf vf_load(const float *p)
{
    vf r;
    memcpy(r.v, p, 64);
    return r;
}

static inline void vf_store(float *p, vf a)
{
    memcpy(p, a.v, 64);
}

/* The first n lanes (1..16), zero behind. */
static inline vf vf_loadn(const float *p, int n)
{
    vf r = {{0}};
    memcpy(r.v, p, (size_t)n * 4);
    return r;
}

static inline void vf_storen(float *p, vf a, int n)
{
    memcpy(p, a.v, (size_t)n * 4);
}

static inline vf vf_set1(float x)
{
    vf r;
    VEC_EACH r.v[i_] = x;
    return r;
}

static inline vf vf_add(vf a, vf b)
{
    VEC_EACH a.v[i_] += b.v[i_];
    return a;
}

static inline vf vf_sub(vf a, vf b)
{
    VEC_EACH a.v[i_] -= b.v[i_];
    return a;
}

static inline vf vf_mul(vf a, vf b)
{
    VEC_EACH a.v[i_] *= b.v[i_];
    return a;
}

static inline vf vf_div(vf a, vf b)
{
    VEC_EACH a.v[i_] /= b.v[i_];
    return a;
}

/* a*b + c, one rounding */
static inline vf vf_fma(vf a, vf b, vf c)
{
    VEC_EACH c.v[i_] = fmaf(a.v[i_], b.v[i_], c.v[i_]);
    return c;
}

/* sum = a*b + sum */
static inline void vf_fma_to(vf *sum, vf a, vf b)
{
    *sum = vf_fma(a, b, *sum);
}

/* a > b ? a : b, so that a NaN in a gives b */
static inline vf vf_max(vf a, vf b)
{
    VEC_EACH a.v[i_] = a.v[i_] > b.v[i_] ? a.v[i_] : b.v[i_];
    return a;
}

static inline vf vf_min(vf a, vf b)
{
    VEC_EACH a.v[i_] = a.v[i_] < b.v[i_] ? a.v[i_] : b.v[i_];
    return a;
}

static inline vf vf_abs(vf a)
{
    VEC_EACH a.v[i_] = fabsf(a.v[i_]);
    return a;
}

static inline vf vf_rint(vf a)
{
    VEC_EACH a.v[i_] = rintf(a.v[i_]);
    return a;
}

/* 2^n for integral n in [-126, 127]; anything else, NaN too, gives some number. The sum with
 * 3 * 2^22 has n in its low bits; what lies above them is shifted out. */
static inline vf vf_pow2(vf n)
{
    VEC_EACH
    {
        float sum = n.v[i_] + 12582912.0f;
        uint32_t u;
        memcpy(&u, &sum, 4);
        u = (u + 127) << 23;
        memcpy(&n.v[i_], &u, 4);
    }
    return n;
}

/* lane < n ? a : b */
static inline vf vf_first(int n, vf a, vf b)
{
    VEC_EACH a.v[i_] = i_ < n ? a.v[i_] : b.v[i_];
    return a;
}

/* a < b ? 0 : c */
static inline vf vf_zero_lt(vf a, vf b, vf c)
{
    VEC_EACH c.v[i_] = a.v[i_] < b.v[i_] ? 0.0f : c.v[i_];
    return c;
}

/* Of 16 dwords, each two bf16, the low ones. */
static inline vf vf_load_bf16_even(const uint8_t *p)
{
    vf r;
    VEC_EACH
    {
        uint32_t u;
        memcpy(&u, p + 4 * i_, 4);
        u <<= 16;
        memcpy(&r.v[i_], &u, 4);
    }
    return r;
}

/* The high ones. */
static inline vf vf_load_bf16_odd(const uint8_t *p)
{
    vf r;
    VEC_EACH
    {
        uint32_t u;
        memcpy(&u, p + 4 * i_, 4);
        u &= 0xFFFF0000u;
        memcpy(&r.v[i_], &u, 4);
    }
    return r;
}

static inline vf vf_load_bf16(const uint8_t *p)
{
    vf r;
    VEC_EACH
    {
        uint16_t h;
        memcpy(&h, p + 2 * i_, 2);
        uint32_t u = (uint32_t)h << 16;
        memcpy(&r.v[i_], &u, 4);
    }
    return r;
}

static inline float vec_half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023, u;
    if (e == 0) { /* zero or subnormal: m * 2^-24 is exact in float32 */
        float f = (float)m * 0x1p-24f;
        memcpy(&u, &f, 4);
        u |= sign;
    } else {
        u = sign | (e == 31 ? 0x7F800000u : (e + 112) << 23) | m << 13;
        if (e == 31 && m)
            u |= 0x400000; /* as the hardware does: a signalling NaN becomes quiet */
    }
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline vf vf_load_f16(const uint8_t *p)
{
    vf r;
    VEC_EACH
    {
        uint16_t h;
        memcpy(&h, p + 2 * i_, 2);
        r.v[i_] = vec_half_to_float(h);
    }
    return r;
}

/* 16 integral lanes in int16 range as int16 */
static inline void vf_store_i16(int16_t *p, vf a)
{
    VEC_EACH p[i_] = (int16_t)a.v[i_];
}

/* Tree over the lanes: i+8, then i+4, i+2, i+1. */
static inline float vf_sum(vf a)
{
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; i++)
            a.v[i] += a.v[i + step];
    return a.v[0];
}

static inline float vf_hmax(vf a)
{
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; i++)
            a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
    return a.v[0];
}

/* Words of 16 rows: word w of them behind each other at out + w*64. n_word is a multiple of 8. */
static inline void vec_turn16(uint8_t *out, const uint8_t *const *rows, int32_t n_word)
{
    for (int32_t w = 0; w < n_word; w++)
        for (int32_t r = 0; r < 16; r++)
            memcpy(out + (size_t)w * 64 + (size_t)r * 4, rows[r] + (size_t)w * 4, 4);
}

#undef VEC_EACH
#endif
