/*
 * gguf_blocks.c - block formats; see gguf_blocks.h. Each format has one function that unpacks a
 * block into integer codes and float32 scale and offset; values and MLX groups both come from it,
 * in the operation order of the reference dequantizer: (scale * code) + offset, one rounding each.
 */
#include "import/gguf_blocks.h"

#include <math.h>
#include <string.h>

static const struct blk_format FORMAT[] = {
    {"F32", BLK_F32, 1, 4, BLK_FLOAT, 0},
    {"F16", BLK_F16, 1, 2, BLK_FLOAT, 0},
    {"BF16", BLK_BF16, 1, 2, BLK_FLOAT, 0},
    {"Q4_0", BLK_Q4_0, 32, 18, BLK_AFFINE, 4},
    {"Q4_1", BLK_Q4_1, 32, 20, BLK_AFFINE, 4},
    {"Q5_0", BLK_Q5_0, 32, 22, BLK_AFFINE, 5},
    {"Q5_1", BLK_Q5_1, 32, 24, BLK_AFFINE, 5},
    {"Q8_0", BLK_Q8_0, 32, 34, BLK_AFFINE, 8},
    {"Q2_K", BLK_Q2_K, 256, 84, BLK_REQUANT, 4},
    {"Q3_K", BLK_Q3_K, 256, 110, BLK_REQUANT, 5},
    {"Q4_K", BLK_Q4_K, 256, 144, BLK_AFFINE, 4},
    {"Q5_K", BLK_Q5_K, 256, 176, BLK_AFFINE, 5},
    {"Q6_K", BLK_Q6_K, 256, 210, BLK_REQUANT, 8},
    {"Q8_1", 9, 32, 40, BLK_REFUSED, 0},
    {"Q8_K", 15, 256, 292, BLK_REFUSED, 0},
    {"IQ2_XXS", 16, 256, 66, BLK_REFUSED, 0},
    {"IQ2_XS", 17, 256, 74, BLK_REFUSED, 0},
    {"IQ3_XXS", 18, 256, 98, BLK_REFUSED, 0},
    {"IQ1_S", 19, 256, 50, BLK_REFUSED, 0},
    {"IQ4_NL", 20, 32, 18, BLK_REFUSED, 0},
    {"IQ3_S", 21, 256, 110, BLK_REFUSED, 0},
    {"IQ2_S", 22, 256, 82, BLK_REFUSED, 0},
    {"IQ4_XS", 23, 256, 136, BLK_REFUSED, 0},
    {"I8", 24, 1, 1, BLK_REFUSED, 0},
    {"I16", 25, 1, 2, BLK_REFUSED, 0},
    {"I32", 26, 1, 4, BLK_REFUSED, 0},
    {"I64", 27, 1, 8, BLK_REFUSED, 0},
    {"F64", 28, 1, 8, BLK_REFUSED, 0},
    {"IQ1_M", 29, 256, 56, BLK_REFUSED, 0},
    {"TQ1_0", 34, 256, 54, BLK_REFUSED, 0},
    {"TQ2_0", 35, 256, 66, BLK_REFUSED, 0},
    {"MXFP4", 39, 32, 17, BLK_REFUSED, 0},
    {"NVFP4", 40, 64, 36, BLK_REFUSED, 0},
};

const struct blk_format *blk_format(int type)
{
    for (size_t i = 0; i < sizeof FORMAT / sizeof *FORMAT; i++)
        if (FORMAT[i].type == type)
            return &FORMAT[i];
    return NULL;
}

/* ---- small floats ------------------------------------------------------------------------- */

static float float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint32_t bits_of_float(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 0x3ff;
    if (exp == 31)
        return float_of_bits(sign | 0x7f800000u | man << 13);
    if (exp)
        return float_of_bits(sign | (exp + 112) << 23 | man << 13);
    float v = (float)man * 0x1p-24f; /* zero and subnormals: exact */
    return sign ? -v : v;
}

uint16_t float_to_half(float f)
{
    uint32_t u = bits_of_float(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00);
    if (u >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000u) { /* below 2^-14: multiples of 2^-24, rounded by the float adder */
        float v = float_of_bits(u) + 0.5f; /* one ulp of [0.5,1) is 2^-24 */
        return (uint16_t)(sign | (bits_of_float(v) - 0x3f000000u));
    }
    u += 0xfff + (u >> 13 & 1);
    return (uint16_t)(sign | (u - 0x38000000u) >> 13);
}

uint16_t float_to_bfloat(float f)
{
    uint32_t u = bits_of_float(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float bfloat_to_float(uint16_t b)
{
    return float_of_bits((uint32_t)b << 16);
}

static uint16_t u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float half_at(const uint8_t *p)
{
    return half_to_float(u16_at(p));
}

/* ---- blocks of 32: one scale and offset per block ------------------------------------------ */

/* 16 bytes of nibbles: element i is the low nibble of byte i, element 16+i the high one. */
static void nibbles(const uint8_t *q, uint8_t *code)
{
    for (int i = 0; i < 16; i++) {
        code[i] = q[i] & 15;
        code[16 + i] = q[i] >> 4;
    }
}

/* The fifth bits: bit i of the 32-bit word belongs to element i. */
static void fifth_bits(const uint8_t *h, uint8_t *code)
{
    for (int i = 0; i < 32; i++)
        code[i] |= (uint8_t)((h[i >> 3] >> (i & 7) & 1) << 4);
}

/* Q4_0: d | nibbles           w = (q - 8) d        Q4_1: d | m | nibbles        w = q d + m
 * Q5_0: d | high bits | nibbles   (q - 16) d       Q5_1: d | m | high | nibbles
 * Q8_0: d | 32 signed bytes   w = q d, code = q + 128                                        */
static void block32(int type, const uint8_t *p, uint8_t *code, float *scale, float *bias)
{
    *scale = half_at(p);
    switch (type) {
    case BLK_Q4_0:
        nibbles(p + 2, code);
        *bias = -8.0f * *scale;
        break;
    case BLK_Q4_1:
        nibbles(p + 4, code);
        *bias = half_at(p + 2);
        break;
    case BLK_Q5_0:
        nibbles(p + 6, code);
        fifth_bits(p + 2, code);
        *bias = -16.0f * *scale;
        break;
    case BLK_Q5_1:
        nibbles(p + 8, code);
        fifth_bits(p + 4, code);
        *bias = half_at(p + 2);
        break;
    default: /* BLK_Q8_0 */
        for (int i = 0; i < 32; i++)
            code[i] = p[2 + i] ^ 0x80; /* signed byte + 128 */
        *bias = -128.0f * *scale;
        break;
    }
}

/* ---- blocks of 256 -------------------------------------------------------------------------- */

/* The eight 6-bit scales and minima of Q4_K and Q5_K, packed in 12 bytes:
 *   bytes 0-3: scale 0-3, on top the high two bits of scale 4-7
 *   bytes 4-7: min 0-3, on top the high two bits of min 4-7
 *   bytes 8-11: low nibble = low bits of scale 4-7, high nibble = low bits of min 4-7 */
static void scales_k4(const uint8_t *s, uint8_t sc[8], uint8_t mn[8])
{
    for (int i = 0; i < 4; i++) {
        sc[i] = s[i] & 63;
        mn[i] = s[4 + i] & 63;
        sc[4 + i] = (uint8_t)((s[8 + i] & 15) | (s[i] >> 2 & 0x30));
        mn[4 + i] = (uint8_t)(s[8 + i] >> 4 | (s[4 + i] >> 2 & 0x30));
    }
}

/* Q4_K: d | dmin | 12 scale bytes | 4 x 32 bytes, each two groups (low nibbles, high nibbles).
 * Q5_K: the same with 32 bytes of fifth bits before the nibbles: bit g of byte i is element i of
 * group g. w = (d*sc) q - (dmin*m): both products are exact in float32 (11 + 6 bits). */
static void block_k45(bool five, const uint8_t *p, uint8_t *code, float *scale, float *bias)
{
    uint8_t sc[8], mn[8];
    float d = half_at(p), dmin = half_at(p + 2);
    const uint8_t *high = p + 16, *q = p + (five ? 48 : 16);
    scales_k4(p + 4, sc, mn);
    for (int g = 0; g < 8; g++) {
        scale[g] = d * (float)sc[g];
        bias[g] = -(dmin * (float)mn[g]);
        for (int i = 0; i < 32; i++) {
            uint8_t c = q[32 * (g / 2) + i] >> (g & 1 ? 4 : 0) & 15;
            if (five)
                c |= (uint8_t)((high[i] >> g & 1) << 4);
            code[32 * g + i] = c;
        }
    }
}

/* Q2_K: 16 x (4-bit scale, 4-bit min) | 64 bytes of 2-bit codes | d | dmin. Half h (128 elements)
 * has 32 bytes; bit pair j of byte i is element 128h + 32j + i. */
static void dequant_q2k(const uint8_t *p, float *dst)
{
    float d = half_at(p + 80), dmin = half_at(p + 82);
    for (int e = 0; e < 256; e++) {
        int h = e / 128, j = e / 32 % 4, i = e % 32;
        uint8_t s = p[e / 16];
        float dl = d * (float)(s & 15), ml = dmin * (float)(s >> 4);
        dst[e] = dl * (float)(p[16 + 32 * h + i] >> (2 * j) & 3) - ml;
    }
}

/* Q3_K: 32 bytes of high bits | 64 bytes of 2-bit codes | 12 bytes of 6-bit scales | d. The low
 * pairs lie as in Q2_K; high bit of element e: bit e/32 of byte e%32, and a clear bit means -4.
 * Scale j: low nibble in byte j%8 (high half for j >= 8), top two bits in byte 8 + j%4. */
static void dequant_q3k(const uint8_t *p, float *dst)
{
    const uint8_t *q = p + 32, *s = p + 96;
    float d = half_at(p + 108);
    for (int e = 0; e < 256; e++) {
        int h = e / 128, pair = e / 32 % 4, i = e % 32, j = e / 16;
        int lo = s[j % 8] >> (j < 8 ? 0 : 4) & 15, hi = s[8 + j % 4] >> (2 * (j / 4)) & 3;
        int c = (q[32 * h + i] >> (2 * pair) & 3) - (p[i] >> (e / 32) & 1 ? 0 : 4);
        dst[e] = (d * (float)((lo | hi << 4) - 32)) * (float)c;
    }
}

/* Q6_K: 128 bytes of low nibbles | 64 bytes of high pairs | 16 signed scales | d. In half h:
 * element 32j + i has its nibble in byte 64h + 32(j%2) + i (high nibble for j >= 2) and its pair j
 * in byte 32h + i; code = (6 bits) - 32. */
static void dequant_q6k(const uint8_t *p, float *dst)
{
    const uint8_t *high = p + 128, *s = p + 192;
    float d = half_at(p + 208);
    for (int e = 0; e < 256; e++) {
        int h = e / 128, j = e / 32 % 4, i = e % 32;
        int lo = p[64 * h + 32 * (j & 1) + i] >> (j & 2 ? 4 : 0) & 15;
        int hi = high[32 * h + i] >> (2 * j) & 3;
        dst[e] = (d * (float)(int8_t)s[e / 16]) * (float)((lo | hi << 4) - 32);
    }
}

/* ---- whole runs -------------------------------------------------------------------------------
 */

void blk_affine(const struct blk_format *f, const uint8_t *src, size_t n, uint8_t *code,
                float *scale, float *bias)
{
    size_t n_blk = n / (size_t)f->n_elem, group = (size_t)f->n_elem / AFFINE_GROUP;
    for (size_t b = 0; b < n_blk; b++) {
        if (f->n_elem == 32)
            block32(f->type, src, code, scale, bias);
        else
            block_k45(f->type == BLK_Q5_K, src, code, scale, bias);
        src += f->n_bytes;
        code += f->n_elem;
        scale += group;
        bias += group;
    }
}

static void dequant_float(int type, const uint8_t *src, size_t n, float *dst)
{
    if (type == BLK_F32) {
        memcpy(dst, src, n * 4);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t v = u16_at(src + 2 * i);
        dst[i] = type == BLK_F16 ? half_to_float(v) : bfloat_to_float(v);
    }
}

/* The legacy formats multiply the centred code; Q4_1, Q5_1 and the K formats add an offset. Both
 * are one multiplication and one exact or once-rounded addition, so code * scale + bias in
 * float32 gives the same bits: (q - 8) d is exact, and so are q d and 8 d. */
static void dequant_affine(const struct blk_format *f, const uint8_t *src, size_t n, float *dst)
{
    uint8_t code[256];
    float scale[8], bias[8];
    for (size_t at = 0; at < n; at += (size_t)f->n_elem, src += f->n_bytes) {
        blk_affine(f, src, (size_t)f->n_elem, code, scale, bias);
        for (int i = 0; i < f->n_elem; i++)
            dst[at + (size_t)i] = scale[i / AFFINE_GROUP] * (float)code[i] + bias[i / AFFINE_GROUP];
    }
}

void blk_dequant(const struct blk_format *f, const uint8_t *src, size_t n, float *dst)
{
    if (f->kind == BLK_FLOAT) {
        dequant_float(f->type, src, n, dst);
        return;
    }
    if (f->kind == BLK_AFFINE) {
        dequant_affine(f, src, n, dst);
        return;
    }
    for (size_t at = 0; at < n; at += 256, src += f->n_bytes) {
        if (f->type == BLK_Q2_K)
            dequant_q2k(src, dst + at);
        else if (f->type == BLK_Q3_K)
            dequant_q3k(src, dst + at);
        else
            dequant_q6k(src, dst + at);
    }
}

/* Formula: s = max((hi-lo)/n, 1e-7), signed so that the edge of larger magnitude is code 0's end;
 * q0 = rint(edge/s); s = edge/q0 makes zero a code; codes use the unrounded float32 s and bias. */
void affine_quantize(const float *w, size_t n, int bits, uint8_t *code, float *scale, float *bias)
{
    const float top = (float)((1 << bits) - 1);
    for (size_t g = 0; g < n / AFFINE_GROUP; g++, w += AFFINE_GROUP, code += AFFINE_GROUP) {
        float lo = w[0], hi = w[0];
        for (int i = 1; i < AFFINE_GROUP; i++) {
            lo = w[i] < lo ? w[i] : lo;
            hi = w[i] > hi ? w[i] : hi;
        }
        bool neg = fabsf(lo) > fabsf(hi);
        float edge = neg ? lo : hi, s = (hi - lo) / top, b = 0;
        s = s > 1e-7f ? s : 1e-7f;
        s = neg ? s : -s;
        float q0 = rintf(edge / s);
        if (q0 != 0) {
            s = edge / q0;
            b = edge;
        }
        for (int i = 0; i < AFFINE_GROUP; i++) {
            float q = rintf((w[i] - b) / s);
            code[i] = (uint8_t)(q < 0 ? 0 : q > top ? top : q);
        }
        scale[g] = s;
        bias[g] = b;
    }
}

void affine_pack(const uint8_t *code, size_t n, int bits, uint8_t *out)
{
    if (bits == 8) {
        memcpy(out, code, n);
        return;
    }
    if (bits == 4) {
        for (size_t i = 0; i < n / 2; i++)
            out[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
        return;
    }
    uint32_t acc = 0;
    int have = 0;
    for (size_t i = 0; i < n; i++) {
        acc |= (uint32_t)code[i] << have;
        for (have += bits; have >= 8; have -= 8, acc >>= 8)
            *out++ = (uint8_t)acc;
    }
}
