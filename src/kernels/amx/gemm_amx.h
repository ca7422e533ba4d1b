/* gemm_amx.h - matrix products of the AMX level; see struct kernels for their meaning. */
#ifndef GEMM_AMX_H
#define GEMM_AMX_H

#include "kernels/kernels.h"

void gemm_q__amx(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x, int32_t m0,
                 int32_t nm, float *dst, size_t ldd, void *scratch);

#endif
