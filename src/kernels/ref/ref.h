/*
 * ref.h - the plain truth: each operation as its formula says, in double, one output at a time.
 * Kept for ever; the canonical arithmetic is measured against it (tests/kcheck), and the engine's
 * "reference" mode runs on it. Sources of the formulas: docs/numerics.md.
 */
#ifndef KERNELS_REF_H
#define KERNELS_REF_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

float ref_f16(uint16_t h);
float ref_bf16(uint16_t h);
float ref_e4m3(uint8_t b);     /* E4M3FN: bias 7, 0x7F/0xFF NaN */
float ref_e2m1(int code);      /* 4-bit float: 0 .5 1 1.5 2 3 4 6, bit 3 = sign */
float ref_e8m0(uint8_t b);     /* 2^(b-127); 255 = NaN */
uint16_t ref_to_f16(float f);  /* round to nearest even */
uint16_t ref_to_bf16(float f); /* round to nearest even */

/* dst[m*ldd + i] = (W x_m)[row0 + i], double sums over exactly dequantized rows.
 * wrow: [k] scratch. */
struct ref_rows {
    const float *x;
    size_t ldx;
    int32_t n;
};
void ref_gemm(const struct packed *w, int32_t row0, int32_t row1, const struct ref_rows *x,
              float *dst, size_t ldd, float *wrow);
void ref_rmsnorm(float *y, const float *x, const float *w, float add, float eps, int32_t n);
void ref_swiglu(float *y, const float *g, const float *u, int32_t n);
void ref_geglu(float *y, const float *g, const float *u, int32_t n);
void ref_swiglu_clamped(float *y, const float *g, const float *u, int32_t n);
void ref_softcap(float *y, const float *x, float cap, int32_t n);
void ref_rope(float *y, const float *x, int32_t d, int32_t dims, const float *cs, bool interleaved);
/* softmax(scale q.K^T [+ sink]) V for each row and head of the tile; KV in either type. */
void ref_attn(const struct attn_tile *t, const struct kv_head *kv);
void ref_sigmul(float *y, const float *g, const float *u, int32_t n);
/* The gated delta net as its recurrence says: state in float32 between rows, sums in double. */
void ref_l2norm(float *y, const float *x, float eps, float scale, int32_t n);
void ref_conv_silu(float *y, const float *const *rows, const float *w, int32_t taps, int32_t n);
void ref_delta_gates(float *g, float *beta, const struct delta_gate_in *in, int32_t n);
void ref_delta(float *s, const struct delta_rows *rows);

#endif
