/*
 * hash.c - see hash.h. XXH3 comes inlined from xxhash.h (no run-time library), SHA-256 from nettle.
 */
#include "hash.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define CHUNK ((size_t)256 * 1024)

uint64_t hash64(const void *p, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(n ? p : "", n, seed);
}

struct hash128 hash128(const void *p, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(n ? p : "", n);
    return (struct hash128){.lo = h.low64, .hi = h.high64};
}

struct hash128_run {
    XXH3_state_t *x; /* wants more alignment than malloc gives */
};

struct hash128_run *hash128_run_create(void)
{
    struct hash128_run *r = malloc(sizeof *r);
    if (!r)
        return NULL;
    r->x = XXH3_createState();
    if (!r->x) {
        free(r);
        return NULL;
    }
    XXH3_128bits_reset(r->x);
    return r;
}

void hash128_run_add(struct hash128_run *r, const void *p, size_t n)
{
    if (n)
        XXH3_128bits_update(r->x, p, n);
}

struct hash128 hash128_run_end(struct hash128_run *r)
{
    XXH128_hash_t h = XXH3_128bits_digest(r->x);
    XXH3_128bits_reset(r->x);
    return (struct hash128){.lo = h.low64, .hi = h.high64};
}

void hash128_run_free(struct hash128_run *r)
{
    if (!r)
        return;
    XXH3_freeState(r->x);
    free(r);
}

static void hex(struct sha256_ctx *c, char out[65])
{
    uint8_t d[SHA256_DIGEST_SIZE];
    sha256_digest(c, sizeof d, d);
    for (size_t i = 0; i < sizeof d; i++) {
        out[2 * i] = "0123456789abcdef"[d[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[d[i] & 15];
    }
    out[64] = 0;
}

void sha256(const void *p, size_t n, char out[65])
{
    struct sha256_ctx c;
    sha256_init(&c);
    sha256_update(&c, n, n ? p : (const uint8_t *)"");
    hex(&c, out);
}

static enum qn_status sum_fd(int fd, const char *path, struct sha256_ctx *c, uint8_t *chunk,
                             struct qn_err *err)
{
    for (;;) {
        ssize_t n = read(fd, chunk, CHUNK);
        if (n == 0)
            return QN_OK;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(err, "hash", "%s: cannot read", path);
        sha256_update(c, (size_t)n, chunk);
    }
}

enum qn_status sha256_file(const char *path, char out[65], struct qn_err *err)
{
    struct sha256_ctx c;
    sha256_init(&c);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "hash", "%s: cannot open", path);
    uint8_t *chunk = malloc(CHUNK);
    enum qn_status s = chunk ? sum_fd(fd, path, &c, chunk, err)
                             : err_set(err, QN_NO_MEMORY, "hash", "%s: no memory to read", path);
    free(chunk);
    close(fd);
    if (s == QN_OK)
        hex(&c, out);
    return s;
}
