/*
 * turn_avx2.h - 16 rows of 32-bit words turned into columns, in blocks of 8 by 8.
 */
#ifndef TURN_AVX2_H
#define TURN_AVX2_H

#include <immintrin.h>
#include <stdint.h>

/* Words [w, w+8) of 8 rows: word i of them behind each other at out + i*64. */
static inline void turn8(uint8_t *out, const uint8_t *const *rows, size_t w)
{
    __m256 r[8], p[8];
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps((const float *)(const void *)(rows[i] + w * 4));
    for (int i = 0; i < 4; i++) {
        p[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        p[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) { /* of rows 4i to 4i+3: words 0 and 4, 1 and 5, 2 and 6, 3 and 7 */
        r[4 * i] = _mm256_shuffle_ps(p[4 * i], p[4 * i + 2], 0x44);
        r[4 * i + 1] = _mm256_shuffle_ps(p[4 * i], p[4 * i + 2], 0xEE);
        r[4 * i + 2] = _mm256_shuffle_ps(p[4 * i + 1], p[4 * i + 3], 0x44);
        r[4 * i + 3] = _mm256_shuffle_ps(p[4 * i + 1], p[4 * i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps((float *)(void *)(out + (size_t)i * 64),
                         _mm256_permute2f128_ps(r[i], r[4 + i], 0x20));
        _mm256_storeu_ps((float *)(void *)(out + (size_t)(i + 4) * 64),
                         _mm256_permute2f128_ps(r[i], r[4 + i], 0x31));
    }
}

static inline void vec_turn16(uint8_t *out, const uint8_t *const *rows, int32_t n_word)
{
    for (int32_t w = 0; w < n_word; w += 8) {
        turn8(out + (size_t)w * 64, rows, (size_t)w);
        turn8(out + (size_t)w * 64 + 32, rows + 8, (size_t)w);
    }
}

#endif
