/*
 * slab.c - memory for KV pages: many blocks of one size out of large mappings, so that huge pages
 * hold them. A mapping of its own for each page of 1.5 MB leaves the processor with small pages,
 * and at 16,000 tokens a sixth of a step's time went into looking up where they lie.
 *
 * Blocks begin zeroed. A block that is given back is zeroed by handing its memory to the system at
 * once; a mapping goes when none of its blocks is taken. Small blocks have mappings of their own: a
 * huge page would cost them more than they are. One thread.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "exec/exec_int.h"

enum { SMALL = 128 << 10, BLOCKS = 64, SYSTEM_PAGE = 4096 };
#define SLAB_BYTES ((size_t)32 << 20)
#define HUGE_PAGE  ((size_t)2 << 20)

struct slab {
    struct slab *next;
    uint8_t *base, *blocks; /* blocks: the first multiple of a huge page */
    size_t stride, bytes;
    uint64_t taken; /* a bit for each block */
    int32_t n;
};

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static struct slab *slab_map(size_t block_bytes)
{
    struct slab *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->stride = round_up(block_bytes, SYSTEM_PAGE);
    size_t n = SLAB_BYTES / s->stride;
    s->n = n < 1 ? 1 : n > BLOCKS ? BLOCKS : (int32_t)n;
    s->bytes = round_up((size_t)s->n * s->stride, HUGE_PAGE) + HUGE_PAGE;
    s->base = mem_alloc(s->bytes);
    if (!s->base) {
        free(s);
        return NULL;
    }
    s->blocks = (uint8_t *)round_up((size_t)s->base, HUGE_PAGE);
    madvise(s->blocks, s->bytes - HUGE_PAGE, MADV_HUGEPAGE);
    return s;
}

static struct slab *with_room(struct slab *s)
{
    while (s && s->taken == UINT64_MAX >> (BLOCKS - s->n))
        s = s->next;
    return s;
}

void *slab_take(struct slab **slabs, size_t bytes)
{
    if (bytes < SMALL)
        return mem_alloc(bytes);
    struct slab *s = with_room(*slabs);
    if (!s) {
        s = slab_map(bytes);
        if (!s)
            return NULL;
        s->next = *slabs;
        *slabs = s;
    }
    QN_ASSERT(bytes <= s->stride);
    int i = __builtin_ctzll(~s->taken);
    s->taken |= (uint64_t)1 << i;
    return s->blocks + (size_t)i * s->stride;
}

/* Where the block's mapping is in the list. */
static struct slab **slab_of(struct slab **slabs, const uint8_t *block)
{
    while (block < (*slabs)->blocks || block >= (*slabs)->base + (*slabs)->bytes)
        slabs = &(*slabs)->next;
    return slabs;
}

void slab_give(struct slab **slabs, void *block, size_t bytes)
{
    if (bytes < SMALL) {
        mem_free(block, bytes);
        return;
    }
    struct slab **at = slab_of(slabs, block), *s = *at;
    s->taken &= ~((uint64_t)1 << ((size_t)((uint8_t *)block - s->blocks) / s->stride));
    if (s->taken) {
        madvise(block, s->stride, MADV_DONTNEED);
        return;
    }
    *at = s->next;
    mem_free(s->base, s->bytes);
    free(s);
}
