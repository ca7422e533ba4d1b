/* gemm_avx2.h - matrix products of the AVX2 level; see struct kernels for their meaning. */
#ifndef GEMM_AVX2_H
#define GEMM_AVX2_H

#include "kernels/kernels.h"

void gemm_q__avx2(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x, int32_t m0,
                  int32_t nm, float *dst, size_t ldd, void *scratch);
void gemm_f__avx2(const struct packed *w, int32_t b0, int32_t b1, const float *x, size_t ldx,
                  int32_t nm, float *dst, size_t ldd, void *scratch);

#endif
