/*
 * kern_avx512.c - table of the AVX-512 level: the templates over 512-bit vectors.
 */
#include "kernels/kern_isa.h"

#include "kernels/tmpl/vec_avx512.h"

#include "kernels/tmpl/ops_tmpl.h"

#include "kernels/tmpl/attn_tmpl.h"

void kern_avx512_init(struct kernels *t)
{
    t->quantize = tmpl_quantize;
    t->rmsnorm = tmpl_rmsnorm;
    t->swiglu = tmpl_swiglu;
    t->add = tmpl_add;
    t->rope = tmpl_rope;
    t->kv_put = tmpl_kv_put;
    t->attn = tmpl_attn;
}
