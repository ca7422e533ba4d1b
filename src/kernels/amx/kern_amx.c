/*
 * kern_amx.c - table of the AMX level.
 */
#include "kernels/kern_isa.h"

void kern_amx_init(struct kernels *t)
{
    t->isa = CPU_AMX;
}
