/*
 * arena.h - region allocator: many small objects that die together (a parsed request, a template).
 * Not thread-safe; one owner. Memory is not zeroed unless asked. Objects are 16-byte aligned.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "err.h"
#include "str.h"

struct arena;

/* `limit` = most bytes it may take in all (0 = no limit). NULL when out of memory. */
struct arena *arena_create(size_t limit);
void arena_free(struct arena *a); /* NULL is fine */
/* NULL when out of memory or past the limit. */
void *arena_alloc(struct arena *a, size_t n);
void *arena_zalloc(struct arena *a, size_t n);
void *arena_zalloc_n(struct arena *a, size_t count, size_t size); /* checked multiplication */
/* Copies bytes, NUL added. p is NULL when out of memory. */
struct str arena_str(struct arena *a, struct str s);
size_t arena_bytes(const struct arena *a); /* taken from the system so far */

#endif
