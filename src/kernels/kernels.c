/*
 * kernels.c - the ladder: portable C first, then each level overwrites what it does better.
 */
#include "kernels/kernels.h"

#include <pthread.h>

#include "kernels/kern_isa.h"

static struct kernels tables[CPU_N_ISA];

/* Levels above this machine's stay empty: even their init functions are compiled with instructions
 * it does not have. */
static void fill(void)
{
    enum cpu_isa best = cpu_best();
    for (enum cpu_isa l = CPU_GENERIC; l <= best; l++) {
        struct kernels *t = &tables[l];
        kern_generic_init(t);
#if defined(__x86_64__)
        if (l >= CPU_AVX2)
            kern_avx2_init(t);
        if (l >= CPU_AVX512)
            kern_avx512_init(t);
        if (l >= CPU_AMX)
            kern_amx_init(t);
#endif
        t->isa = l;
    }
}

const struct kernels *kernels_get(enum cpu_isa isa)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill);
    return isa < CPU_N_ISA && tables[isa].gemm_q ? &tables[isa] : NULL;
}
