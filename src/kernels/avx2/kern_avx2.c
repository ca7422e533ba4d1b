/*
 * kern_avx2.c - table of the AVX2 level: element-wise operations and attention from the templates,
 * matrix products from gemm_avx2.c.
 */
#include "kernels/kern_isa.h"

#include "kernels/avx2/gemm_avx2.h"
#include "kernels/tmpl/vec_avx2.h"

#include "kernels/tmpl/ops_tmpl.h"

#include "kernels/avx2/kvq_avx2.h"

#include "kernels/tmpl/kvq_tmpl.h"

#include "kernels/tmpl/attn_tmpl.h"

#include "kernels/tmpl/latent_tmpl.h"

#include "kernels/tmpl/delta_tmpl.h"

#include "kernels/tmpl/table_tmpl.h"

void kern_avx2_init(struct kernels *t)
{
    t->isa = CPU_AVX2;
    tmpl_fill(t);
    t->gemm_q = gemm_q__avx2;
    t->gemm_f = gemm_f__avx2;
}
