/*
 * le.h - numbers in files: little endian, at any address. Pure functions; who reads has checked
 * that the bytes are there.
 */
#ifndef BASE_LE_H
#define BASE_LE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#include "base/buf.h"

static inline uint32_t le_get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static inline uint64_t le_get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

static inline void le_put32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}

/* At a buffer's end. */
static inline void le_add32(struct buf *b, uint32_t v)
{
    v = htole32(v);
    buf_add(b, &v, sizeof v);
}

static inline void le_add64(struct buf *b, uint64_t v)
{
    v = htole64(v);
    buf_add(b, &v, sizeof v);
}

#endif
