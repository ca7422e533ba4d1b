/*
 * memory.c - large aligned memory for weights, activations and KV pages: fresh zero pages from the
 * system, with transparent huge pages asked for where they help (fewer TLB misses while streaming).
 */
#include <sys/mman.h>
#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"

enum { HUGE = 2 << 20 };

void *mem_alloc(size_t n)
{
    if (n == 0)
        n = 64;
    void *p =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (n >= HUGE)
        madvise(p, n, MADV_HUGEPAGE);
    return p;
}

void mem_free(void *p, size_t n)
{
    if (p)
        munmap(p, n ? n : 64);
}

bool list_push(void ***v, int32_t *n, int32_t *cap, void *item)
{
    if (*n == *cap) {
        int32_t want = *cap ? *cap * 2 : 64;
        void **p = realloc(*v, (size_t)want * sizeof *p);
        if (!p)
            return false;
        *v = p;
        *cap = want;
    }
    (*v)[(*n)++] = item;
    return true;
}
