/*
 * kvq_generic.h - integer vectors for coded KV memory in portable C: 16 lanes of 32 bits, or of a
 * pair of 16-bit halves. kvq_avx2.h and kvq_avx512.h give the same names the same meaning.
 */
#ifndef KVQ_GENERIC_H
#define KVQ_GENERIC_H

#include <stdint.h>
#include <string.h>

#include "kernels/kvq.h"
#include "kernels/tmpl/vec_generic.h"

enum { KVQ_MANY = 4 }; /* queries that share unpacked codes, at most */

typedef struct {
    uint32_t v[16];
} vi;

typedef const int8_t *vt; /* levels */

#define VI_EACH for (int i_ = 0; i_ < 16; i_++)

static inline vi vi_zero(void)
{
    return (vi){{0}};
}

/* Inputs that repeat the pattern of lines. */
static inline int32_t run_inputs(enum pack_kind kind)
{
    return 16 % pack_bits(kind) ? 32 : 16;
}

/* n bits of both halves of line i's words from bit `from`, moved to bit `to`. */
static inline vi vi_bits(const uint8_t *p, int i, int from, int to, int n)
{
    vi r;
    memcpy(r.v, p + (size_t)i * 64, 64);
    uint32_t mask = 0x00010001u * ((1u << n) - 1);
    VI_EACH r.v[i_] = (r.v[i_] >> from & mask) << to;
    return r;
}

/* Inputs 2j, 2j+1 of a run as two halves. */
static inline vi vi_codes(const uint8_t *p, enum pack_kind kind, int j)
{
    const int n = pack_bits(kind), per = 16 / n, left = 16 - per * n;
    if (!left || j < per * n)
        return vi_bits(p, j / per, j % per * n, 0, n);
    vi v = vi_zero();
    const int s = (j - per * n) * n; /* its first bit among those above the whole codes */
    for (int i = 0; i < n; i++) {
        int from = i * left < s ? s : i * left;
        int to = (i + 1) * left < s + n ? (i + 1) * left : s + n;
        if (from >= to)
            continue;
        vi w = vi_bits(p, i, per * n + from - i * left, from - s, to - from);
        VI_EACH v.v[i_] |= w.v[i_];
    }
    return v;
}

static inline vt vt_load(int bits)
{
    return kv_centroid(bits);
}

/* The levels of both halves, signed. */
static inline vi vi_level(vi c, vt t, int bits)
{
    uint32_t last = (1u << bits) - 1;
    VI_EACH c.v[i_] = (uint16_t)(int16_t)t[c.v[i_] & last] |
                      (uint32_t)(uint16_t)(int16_t)t[c.v[i_] >> 16 & last] << 16;
    return c;
}

/* acc + low half * a[0] + high half * a[1] */
static inline vi vi_dot(vi acc, vi c, const int16_t *a)
{
    VI_EACH acc.v[i_] += (uint32_t)((int32_t)(int16_t)c.v[i_] * a[0]) +
                         (uint32_t)((int32_t)(int16_t)(c.v[i_] >> 16) * a[1]);
    return acc;
}

/* 2 x - c */
static inline vi vi_centred(vi x, int32_t c)
{
    VI_EACH x.v[i_] = 2 * x.v[i_] - (uint32_t)c;
    return x;
}

static inline vf vi_float(vi x)
{
    vf r;
    VI_EACH r.v[i_] = (float)(int32_t)x.v[i_];
    return r;
}

#undef VI_EACH
#endif
