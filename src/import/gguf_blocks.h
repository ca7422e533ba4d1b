/*
 * gguf_blocks.h - GGUF's tensor element formats: geometry, exact values, and their image in MLX's
 * affine groups of 32 (w = code * scale + bias).
 *
 *   kind        formats                       image
 *   BLK_FLOAT   F32 F16 BF16                  as they are
 *   BLK_AFFINE  Q4_0 Q4_1 Q5_0 Q5_1 Q8_0      code, scale and bias follow from the block, without
 *               Q4_K Q5_K                     loss when scale and bias are kept in float32
 *   BLK_REQUANT Q2_K Q3_K Q6_K                scales change every 16 elements, MLX's every 32:
 *                                             quantized anew with two bits more than the source
 *   BLK_REFUSED all other                     known by name and size only
 *
 * Pure functions over caller's memory; any thread. Callers have checked sizes.
 */
#ifndef IMPORT_GGUF_BLOCKS_H
#define IMPORT_GGUF_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum blk_kind { BLK_FLOAT, BLK_AFFINE, BLK_REQUANT, BLK_REFUSED };

enum blk_type { /* the ids in the file */
                BLK_F32 = 0,
                BLK_F16 = 1,
                BLK_Q4_0 = 2,
                BLK_Q4_1 = 3,
                BLK_Q5_0 = 6,
                BLK_Q5_1 = 7,
                BLK_Q8_0 = 8,
                BLK_Q2_K = 10,
                BLK_Q3_K = 11,
                BLK_Q4_K = 12,
                BLK_Q5_K = 13,
                BLK_Q6_K = 14,
                BLK_BF16 = 30,
};

struct blk_format {
    const char *name;
    int16_t type;
    int16_t n_elem, n_bytes; /* of one block */
    uint8_t kind;            /* enum blk_kind */
    uint8_t bits;            /* of the MLX codes; 0 for BLK_FLOAT and BLK_REFUSED */
};

#define AFFINE_GROUP 32

/* NULL for an id that no version of the format has used. */
const struct blk_format *blk_format(int type);

/* Exact values of n elements (whole blocks) in float32, as the reference dequantizer gives them.
 * Not for BLK_REFUSED. */
void blk_dequant(const struct blk_format *f, const uint8_t *src, size_t n, float *dst);

/* BLK_AFFINE only: one code per byte, and scale and bias per group of 32. n = whole blocks. */
void blk_affine(const struct blk_format *f, const uint8_t *src, size_t n, uint8_t *code,
                float *scale, float *bias);

/* MLX's own affine quantizer (bit for bit, in float32) over n elements, a multiple of 32. */
void affine_quantize(const float *w, size_t n, int bits, uint8_t *code, float *scale, float *bias);
/* Packs codes as MLX does: one LSB-first bit stream. n*bits must be whole bytes. */
void affine_pack(const uint8_t *code, size_t n, int bits, uint8_t *out);

float half_to_float(uint16_t h);
uint16_t float_to_half(float f);   /* round to nearest even; overflow gives infinity */
uint16_t float_to_bfloat(float f); /* round to nearest even; NaN stays NaN */
float bfloat_to_float(uint16_t b);

#endif
