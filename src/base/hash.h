/* hash.h - XXH3 for tables and cache keys, SHA-256 for files that are pinned by their digest. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include "err.h"
#include "str.h"

uint64_t hash64(const void *p, size_t n, uint64_t seed);
struct hash128 {
    uint64_t lo, hi;
};
struct hash128 hash128(const void *p, size_t n);
/* The same of bytes that come piece by piece. NULL: no memory. */
struct hash128_run;
struct hash128_run *hash128_run_create(void);
void hash128_run_add(struct hash128_run *r, const void *p, size_t n);
/* The sum of what was added since the last end; then it begins anew. */
struct hash128 hash128_run_end(struct hash128_run *r);
void hash128_run_free(struct hash128_run *r); /* NULL is fine */
/* Lower-case hex of the SHA-256 of a file; out has room for 65 bytes. */
enum qn_status sha256_file(const char *path, char out[65], struct qn_err *err);
void sha256(const void *p, size_t n, char out[65]);

#endif
