/*
 * kern_avx512.c - table of the AVX-512 level: element-wise operations and attention from the
 * templates, matrix products from gemm_avx512.c.
 */
#include "kernels/kern_isa.h"

#include "kernels/avx512/gemm_avx512.h"
#include "kernels/tmpl/vec_avx512.h"

#include "kernels/tmpl/ops_tmpl.h"

#include "kernels/avx512/kvq_avx512.h"

#include "kernels/tmpl/kvq_tmpl.h"

#include "kernels/tmpl/attn_tmpl.h"

#include "kernels/tmpl/latent_tmpl.h"

#include "kernels/tmpl/delta_tmpl.h"

#include "kernels/tmpl/table_tmpl.h"

void kern_avx512_init(struct kernels *t)
{
    tmpl_fill(t);
    t->gemm_q = gemm_q__avx512;
    t->gemm_f = gemm_f__avx512;
}
