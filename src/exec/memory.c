/*
 * memory.c - large aligned memory for weights, activations and KV pages: fresh zero pages from the
 * system. Huge pages (fewer TLB misses while streaming) are asked for only where all of the memory
 * is used: elsewhere they would make a few touched rows cost 2 MiB.
 */
#include <sys/mman.h>
#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"

static void *map(size_t n)
{
    if (n == 0)
        n = 64;
    void *p =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    return p;
}

void *mem_alloc(size_t n)
{
    return map(n);
}

void *mem_alloc_huge(size_t n)
{
    void *p = map(n);
    if (p)
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
