/*
 * kern_avx512.c - table of the AVX-512 level: element-wise operations and attention from the
 * templates, matrix products from gemm_avx512.c.
 */
#include "kernels/kern_isa.h"

#include "kernels/avx512/gemm_avx512.h"
#include "kernels/tmpl/vec_avx512.h"

#include "kernels/tmpl/ops_tmpl.h"

#include "kernels/tmpl/attn_tmpl.h"

#include "kernels/tmpl/delta_tmpl.h"

void kern_avx512_init(struct kernels *t)
{
    t->quantize = tmpl_quantize;
    t->gemm_q = gemm_q__avx512;
    t->gemm_f = gemm_f__avx512;
    t->rmsnorm = tmpl_rmsnorm;
    t->swiglu = tmpl_swiglu;
    t->geglu = tmpl_geglu;
    t->swiglu_clamped = tmpl_swiglu_clamped;
    t->add = tmpl_add;
    t->rope = tmpl_rope;
    t->kv_put = tmpl_kv_put;
    t->attn = tmpl_attn;
    t->sigmul = tmpl_sigmul;
    t->l2norm = tmpl_l2norm;
    t->conv_silu = tmpl_conv_silu;
    t->delta_gates = tmpl_delta_gates;
    t->delta = tmpl_delta;
}
