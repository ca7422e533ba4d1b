/*
 * pack.c - sizes of the packed layout of kernels.h, and reading a row back. Filling it from
 * checkpoint tensors is exec/weight.c's work.
 */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

size_t pack_scale_bytes(enum scale_type t)
{
    return t == SCALE_F32 ? 4 : 2;
}

size_t pack_group_bytes(enum pack_kind kind, enum scale_type scale, int32_t group)
{
    size_t lines = (size_t)group / (kind == PACK_U4 ? 8 : 4) * 64;
    return 2 * PACK_ROWS * pack_scale_bytes(scale) + lines;
}

size_t pack_block_bytes(enum pack_kind kind, enum scale_type scale, int32_t group, int32_t k)
{
    if (kind == PACK_F32)
        return (size_t)k * PACK_ROWS * 4;
    if (kind == PACK_BF16 || kind == PACK_F16)
        return (size_t)k * PACK_ROWS * 2;
    return (size_t)(k / group) * pack_group_bytes(kind, scale, group);
}

static float scale_f32(const uint8_t *p, enum scale_type t, int i)
{
    if (t == SCALE_F32) {
        float f;
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return t == SCALE_F16 ? ref_f16(h) : ref_bf16(h);
}

static void row_float(const struct packed *w, const uint8_t *p, int lane, float *dst)
{
    for (int32_t k = 0; k < w->k; k++) {
        if (w->kind == PACK_F32) {
            memcpy(&dst[k], p + ((size_t)k * PACK_ROWS + (size_t)lane) * 4, 4);
            continue;
        }
        uint16_t h;
        memcpy(&h, p + ((size_t)k * PACK_ROWS + (size_t)lane) * 2, 2);
        dst[k] = w->kind == PACK_F16 ? ref_f16(h) : ref_bf16(h);
    }
}

void pack_row_f32(const struct packed *w, int32_t row, float *dst)
{
    const uint8_t *p = w->p + (size_t)(row / PACK_ROWS) * w->block_bytes;
    int lane = row % PACK_ROWS;
    if (w->kind != PACK_U4 && w->kind != PACK_U8) {
        row_float(w, p, lane, dst);
        return;
    }
    size_t sb = PACK_ROWS * pack_scale_bytes(w->scale);
    int per = w->kind == PACK_U4 ? 8 : 4, step = w->kind == PACK_U4 ? 4 : 8;
    uint32_t mask = w->kind == PACK_U4 ? 15 : 255;
    for (int32_t g = 0; g < w->k / w->group; g++) {
        float s = scale_f32(p, w->scale, lane), b = scale_f32(p + sb, w->scale, lane);
        p += 2 * sb;
        for (int32_t i = 0; i < w->group; i++) {
            uint32_t u;
            memcpy(&u, p + (size_t)(i / per) * 64 + (size_t)lane * 4, 4);
            int j = i % per;
            *dst++ = fmaf(s, (float)(u >> ((j & 1 ? 16 : 0) + j / 2 * step) & mask), b);
        }
        p += (size_t)(w->group / per) * 64;
    }
}
