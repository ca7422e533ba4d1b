/*
 * kern_amx.c - table of the AMX level: the AVX-512 table with tiles for integer products.
 */
#include "kernels/kern_isa.h"

#include "kernels/amx/gemm_amx.h"

void kern_amx_init(struct kernels *t)
{
    t->gemm_q = gemm_q__amx;
    t->gemm_q_many = 64 << 10;
}
