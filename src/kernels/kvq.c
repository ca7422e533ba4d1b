/*
 * kvq.c - the layout of coded KV memory: sizes, tables, and single codes in and out. Rows are coded
 * and read by the kernels (tmpl/kvq_tmpl.h).
 */
#include "kernels/kvq.h"

#include <string.h>

#include "kernels/ref/ref.h"

size_t kv_key_bytes(enum kv_type type, const struct kv_form *f, int32_t dk)
{
    if (type != KV_CODED)
        return (size_t)dk * KV_PAGE * kv_elem_bytes(type);
    return (size_t)(dk / f->group) * kv_key_group_bytes(f) * (KV_PAGE / 16);
}

size_t kv_value_bytes(enum kv_type type, const struct kv_form *f, int32_t dv)
{
    if (type != KV_CODED)
        return (size_t)dv * KV_PAGE * kv_elem_bytes(type);
    return (size_t)(dv / f->group) * kv_value_head_bytes(f) +
           (size_t)(dv / 16) * kv_value_line_bytes(f);
}

/* ---- tables -----------------------------------------------------------------------------------
 * The levels solve Lloyd's conditions for the normal distribution to 1e-13, times 127 over the
 * outermost, rounded; that adds at most 1.2 % (5 bits) to the mean square error. */

static const int8_t centroids[] = {
    -127, -38,  38,  127,                                              /* 2 bits */
    -127, -79,  -45, -14, 14,  45,  79,  127,                          /* 3 */
    -127, -96,  -75, -58, -44, -31, -18, -6,                           /* 4 */
    6,    18,   31,  44,  58,  75,  96,  127,                          /* */
    -127, -105, -90, -79, -70, -61, -54, -47, -41, -35, -29, -24, -18, /* 5 */
    -13,  -8,   -3,  3,   8,   13,  18,  24,  29,  35,  41,  47,  54,  /* */
    61,   70,   79,  90,  105, 127,
};

const int8_t *kv_centroid(int bits)
{
    return centroids + (1 << bits) - 4;
}

float kv_outermost(int bits)
{
    static const float c[] = {1.5104176f, 2.1519457f, 2.7325896f, 3.2607325f};
    return c[bits - 2];
}

#define S8(b)                                                                                      \
    1 - 2 * ((b)&1), 1 - 2 * ((b) >> 1 & 1), 1 - 2 * ((b) >> 2 & 1), 1 - 2 * ((b) >> 3 & 1),       \
        1 - 2 * ((b) >> 4 & 1), 1 - 2 * ((b) >> 5 & 1), 1 - 2 * ((b) >> 6 & 1),                    \
        1 - 2 * ((b) >> 7 & 1)
#define S32(a, b, c, d) S8(a), S8(b), S8(c), S8(d)

/* mlx.random.randint(0, 2, (d,), key=mlx.random.key(42)), 1 = minus, the first dim in the lowest
 * bit of the first byte. */
static const int8_t signs64[] = {S32(0x8E, 0x54, 0x69, 0xB7), S32(0x02, 0x48, 0xDE, 0x62)};
static const int8_t signs128[] = {S32(0x0D, 0xDF, 0x39, 0x6A), S32(0x50, 0x02, 0x9C, 0x6A),
                                  S32(0xD5, 0x37, 0x83, 0x4A), S32(0xDE, 0x59, 0x60, 0x14)};
static const int8_t signs256[] = {S32(0x12, 0x30, 0xE6, 0x62), S32(0x11, 0x4A, 0xCD, 0x10),
                                  S32(0x6F, 0x14, 0x6D, 0xA9), S32(0xC9, 0x5E, 0x9C, 0xD3),
                                  S32(0x9B, 0xF2, 0x2F, 0x3A), S32(0x73, 0x5D, 0x27, 0xB2),
                                  S32(0x6B, 0xD9, 0x30, 0x57), S32(0x57, 0xC3, 0x8B, 0xFE)};
static const int8_t signs512[] = {
    S32(0xBD, 0x4B, 0x36, 0x70), S32(0x0D, 0xE3, 0xFB, 0x62), S32(0x63, 0xE4, 0x39, 0xD4),
    S32(0x61, 0xD2, 0xCA, 0x5C), S32(0x8F, 0x7C, 0x47, 0x9B), S32(0x43, 0x12, 0xDD, 0xE9),
    S32(0x30, 0xDE, 0x2A, 0x54), S32(0xBA, 0xCA, 0xBA, 0x77), S32(0x84, 0x3E, 0x87, 0x11),
    S32(0x18, 0x15, 0x4C, 0x9A), S32(0xC5, 0xA3, 0x04, 0x32), S32(0x1F, 0x72, 0x81, 0x5D),
    S32(0x52, 0x14, 0x82, 0x8A), S32(0xC2, 0x9B, 0xA7, 0x8E), S32(0xEF, 0x4B, 0x0E, 0x52),
    S32(0x6D, 0x9D, 0x6B, 0x29)};

const int8_t *kv_sign(int32_t d)
{
    switch (d) {
    case 64:
        return signs64;
    case 128:
        return signs128;
    case 256:
        return signs256;
    case 512:
        return signs512;
    default:
        return NULL;
    }
}

/* ---- single codes ----------------------------------------------------------------------------
 */

/* Bits of the code that lie above the whole codes of the halves, one by one. */
static void put_left_over(uint8_t *words, int bits, int at, int half, uint32_t code)
{
    int used = 16 / bits * bits, left = 16 - used;
    for (int i = 0; i < bits; i++, at++) {
        uint8_t *p = words + (size_t)(at / left) * 64 + (size_t)half * 2;
        int s = used + at % left;
        uint16_t h;
        memcpy(&h, p, 2);
        h = (uint16_t)((h & ~(1u << s)) | (code >> i & 1) << s);
        memcpy(p, &h, 2);
    }
}

void kv_code_put(uint8_t *p, int bits, int row, int32_t input, uint32_t code)
{
    const int per = 16 / bits;
    uint8_t *words = p + (size_t)(input / 32) * (size_t)bits * 64 + (size_t)row * 4;
    int pair = input % 32 / 2, half = input % 2;
    if (pair >= per * bits) {
        put_left_over(words, bits, (pair - per * bits) * bits, half, code);
        return;
    }
    uint8_t *at = words + (size_t)(pair / per) * 64 + (size_t)half * 2;
    int s = pair % per * bits;
    uint16_t h;
    memcpy(&h, at, 2);
    h = (uint16_t)((h & ~(((1u << bits) - 1) << s)) | code << s);
    memcpy(at, &h, 2);
}

static double bf16_at(const uint8_t *p, size_t i)
{
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return (double)ref_bf16(h);
}

double kv_key_at(const struct kv_head *kv, int32_t t, int32_t d)
{
    const struct kv_form *f = &kv->form;
    const uint8_t *p = kv->pages[t / KV_PAGE] + kv->k_off;
    int32_t blocks = t % KV_PAGE / 16 * (kv->dk / f->group), lane = t % 16;
    p += (size_t)(blocks + d / f->group) * kv_key_group_bytes(f);
    uint32_t u = pack_code(kv_kind(f->k_bits), p + KV_KEY_HEAD, lane, d % f->group);
    int32_t n = (1 << f->k_bits) - 1;
    return bf16_at(p, (size_t)lane) * (2 * (int32_t)u - n) + bf16_at(p + 32, (size_t)lane);
}

double kv_value_at(const struct kv_head *kv, int32_t t, int32_t d)
{
    const struct kv_form *f = &kv->form;
    const uint8_t *p = kv->pages[t / KV_PAGE] + kv->v_off;
    const uint8_t *head = p + (size_t)(d / f->group) * kv_value_head_bytes(f);
    p += (size_t)(kv->dv / f->group) * kv_value_head_bytes(f);
    p += (size_t)(d / 16) * kv_value_line_bytes(f);
    int32_t slot = t % KV_PAGE, n = (1 << f->v_bits) - 1;
    uint32_t u = pack_code(kv_kind(f->v_bits), p, d % 16, slot);
    double step = bf16_at(head, (size_t)slot);
    if (kv_by_table(f))
        return step * kv_centroid(f->v_bits)[u];
    double mid = f->rotated ? 0 : bf16_at(head, KV_PAGE + (size_t)slot);
    return step * (2 * (int32_t)u - n) + mid;
}
