/*
 * arena.c - see arena.h. A list of blocks, each twice the last up to 1 MiB; a large object gets a
 * block of its own.
 */
#include "arena.h"

#include "fault.h"

#include <stdint.h>
#include <stdlib.h>

struct block {
    struct block *next;
    size_t n, cap;
    _Alignas(16) char data[];
};

struct arena {
    struct block *head;
    size_t bytes, limit, block_next;
};

struct arena *arena_create(size_t limit)
{
    struct arena *a = fault_point("arena.create") ? NULL : calloc(1, sizeof *a);
    if (a) {
        a->limit = limit;
        a->block_next = 4096;
    }
    return a;
}

void arena_free(struct arena *a)
{
    if (!a)
        return;
    for (struct block *b = a->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(a);
}

static struct block *block_add(struct arena *a, size_t need)
{
    size_t cap = need > a->block_next ? need : a->block_next;
    if (a->limit && cap > a->limit - a->bytes)
        cap = need;
    if (cap > SIZE_MAX / 2 || (a->limit && cap > a->limit - a->bytes))
        return NULL;
    struct block *b = fault_point("arena.block") ? NULL : malloc(sizeof *b + cap);
    if (!b)
        return NULL;
    *b = (struct block){.next = a->head, .cap = cap};
    a->head = b;
    a->bytes += cap;
    if (a->block_next < (1u << 20))
        a->block_next *= 2;
    return b;
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n > SIZE_MAX / 4)
        return NULL;
    n = (n + 15) & ~(size_t)15;
    struct block *b = a->head;
    if (!b || b->cap - b->n < n)
        b = block_add(a, n);
    if (!b)
        return NULL;
    void *p = b->data + b->n;
    b->n += n;
    return p;
}

void *arena_zalloc(struct arena *a, size_t n)
{
    void *p = arena_alloc(a, n);
    if (p)
        memset(p, 0, n);
    return p;
}

void *arena_zalloc_n(struct arena *a, size_t count, size_t size)
{
    size_t n;
    return __builtin_mul_overflow(count, size, &n) ? NULL : arena_zalloc(a, n);
}

struct str arena_str(struct arena *a, struct str s)
{
    char *p = s.n < SIZE_MAX / 4 ? arena_alloc(a, s.n + 1) : NULL;
    if (!p)
        return (struct str){NULL, 0};
    if (s.n)
        memcpy(p, s.p, s.n);
    p[s.n] = 0;
    return (struct str){p, s.n};
}

size_t arena_bytes(const struct arena *a)
{
    return a->bytes;
}
