/*
 * kern_isa.h - for the files of an instruction-set folder: each fills (or overwrites part of) the
 * table. Order and conditions are in kernels.c.
 */
#ifndef KERNELS_KERN_ISA_H
#define KERNELS_KERN_ISA_H

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

void kern_generic_init(struct kernels *t);
void kern_avx2_init(struct kernels *t);
void kern_avx512_init(struct kernels *t);
void kern_amx_init(struct kernels *t);

#endif
