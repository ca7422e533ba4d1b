/* gemm_avx512.h - matrix products of the AVX-512 level; see struct kernels for their meaning. */
#ifndef GEMM_AVX512_H
#define GEMM_AVX512_H

#include "kernels/kernels.h"

/* Rows that share one unpacking of the codes. */
enum { GEMM_AVX512_FEW = 8 };

void gemm_q__avx512(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x,
                    int32_t m0, int32_t nm, float *dst, size_t ldd, void *scratch);
void gemm_f__avx512(const struct packed *w, int32_t b0, int32_t b1, const float *x, size_t ldx,
                    int32_t nm, float *dst, size_t ldd, void *scratch);

#endif
