/*
 * kvq.h - KV memory in few bits: what a page of coded keys and values looks like, and the rule by
 * which a row is coded.
 *
 * A row (one token, one head) is coded once, when it is written, from itself alone. So a code does
 * not depend on how tokens came in steps, and cutting or appending is possible at any token.
 *
 * G neighbouring dims share a step and a mid, both bf16. With n = 2^bits - 1 and codes u in [0, n]
 *
 *     x = mid + step (2u - n)
 *     mid = bf16((min + max) / 2),  step = bf16 above or equal to max|x - mid| / n
 *     u = rint((x - mid) / (2 step) + n / 2)
 *
 * so that every value is at most one step away. A constant group has a step of (nearly) 0.
 */
/*
 * Rotated values: y = H(v . sign) / sqrt(dv), H the Walsh-Hadamard matrix, is coded instead of v,
 * without mids; attention turns its output back, once for each query. Up to 5 bits u stands for
 * kv_centroid(bits)[u], the Lloyd-Max levels of the normal distribution with 127 for the outermost:
 *     y = step c[u],   step = bf16(rms of the group * outermost level / 127)
 * and at 6 and 8 bits for 2u - n, evenly spaced up to the group's largest value.
 *
 * In a page a head has K, 16 tokens at a time as a block of a packed matrix (kernels.h: rows are
 * tokens, inputs are dims), the head of a group being [16 steps][16 mids]; then V: for each group
 * of dims [64 steps][64 mids] (no mids when rotated), then for each 16 dims the lines of the page's
 * 64 tokens (rows are dims, inputs are tokens).
 */
#ifndef KERNELS_KVQ_H
#define KERNELS_KVQ_H

#include <stddef.h>

#include "kernels/kernels.h"

/* Bytes of one head's keys and values in a page; a head's values may have none (dv = 0). */
size_t kv_key_bytes(enum kv_type type, const struct kv_form *f, int32_t dk);
size_t kv_value_bytes(enum kv_type type, const struct kv_form *f, int32_t dv);

/* The packed kind whose codes have so many bits. */
static inline enum pack_kind kv_kind(int bits)
{
    return bits == 8 ? PACK_U8 : (enum pack_kind)(PACK_U2 + bits - 2);
}
/* Bytes of a group of keys of 16 tokens; where its lines begin. */
enum { KV_KEY_HEAD = 64 };
static inline size_t kv_key_group_bytes(const struct kv_form *f)
{
    return KV_KEY_HEAD + (size_t)f->group * f->k_bits * 2;
}
/* Bytes of the steps (and mids) of a group of values, and of the lines of 16 dims. */
static inline size_t kv_value_head_bytes(const struct kv_form *f)
{
    return KV_PAGE * (f->rotated ? 2 : 4);
}
static inline size_t kv_value_line_bytes(const struct kv_form *f)
{
    return (size_t)KV_PAGE * f->v_bits * 2;
}
/* Whether the codes of values stand for levels of a table. */
static inline bool kv_by_table(const struct kv_form *f)
{
    return f->rotated && f->v_bits <= 5;
}

/* [2^bits] levels, rising; and the outermost one of a normal distribution with variance 1. bits 2
 * to 5. */
const int8_t *kv_centroid(int bits);
float kv_outermost(int bits);
/* Signs of the rotation of d values, 1 or -1: [d], d one of 64, 128, 256, 512; else NULL. */
const int8_t *kv_sign(int32_t d);

/* Writes a code into the lines at p, whose row and input it is; neighbours keep theirs. */
void kv_code_put(uint8_t *p, int bits, int row, int32_t input, uint32_t code);

/* Value d of a token as its code says; of a rotated head y, not v. */
double kv_key_at(const struct kv_head *kv, int32_t t, int32_t d);
double kv_value_at(const struct kv_head *kv, int32_t t, int32_t d);

#endif
