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

const uint8_t pack_e2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

size_t pack_group_bytes(const struct packed *w)
{
    return pack_head_bytes(w->kind, w->scale, w->centred) +
           (size_t)w->group * (size_t)pack_bits(w->kind) * 2;
}

/* Bits [at, at+n) of what the halves of a row's words hold above their whole codes. */
static uint32_t left_over(const uint8_t *words, int bits, int at, int half)
{
    int used = 16 / bits * bits, left = 16 - used;
    uint32_t code = 0;
    for (int i = 0; i < bits; i++, at++) {
        uint16_t h;
        memcpy(&h, words + (size_t)(at / left) * 64 + (size_t)half * 2, 2);
        code |= (uint32_t)(h >> (used + at % left) & 1) << i;
    }
    return code;
}

uint32_t pack_code(enum pack_kind kind, const uint8_t *lines, int row, int32_t i)
{
    const int bits = pack_bits(kind), per = 16 / bits;
    const uint8_t *words = lines + (size_t)(i / 32) * (size_t)bits * 64 + (size_t)row * 4;
    int pair = i % 32 / 2, half = i % 2;
    if (pair >= per * bits)
        return left_over(words, bits, (pair - per * bits) * bits, half);
    uint16_t h;
    memcpy(&h, words + (size_t)(pair / per) * 64 + (size_t)half * 2, 2);
    uint32_t code = (uint32_t)h >> (pair % per * bits) & ((1u << bits) - 1);
    return kind == PACK_E2M1 ? pack_e2m1[code] : code;
}

/* One row's words of a run of lines -> n codes (32, or a group of 16). Inlined with a constant
 * width, so that shifts and masks are constants. */
static inline __attribute__((always_inline)) void run_codes(const uint8_t *words, int bits,
                                                            int32_t n, uint8_t *out)
{
    const int per = 16 / bits, pairs = n / 2;
    const uint32_t mask = (1u << bits) - 1;
    int i = 0;
    for (int line = 0; line < bits && i < pairs; line++) {
        uint32_t w;
        memcpy(&w, words + (size_t)line * 64, 4);
        for (int c = 0; c < per && i < pairs; c++, i++) {
            out[2 * i] = (uint8_t)(w >> (c * bits) & mask);
            out[2 * i + 1] = (uint8_t)(w >> (16 + c * bits) & mask);
        }
    }
    for (int at = 0; i < pairs; i++, at += bits)
        for (int half = 0; half < 2; half++)
            out[2 * i + half] = (uint8_t)left_over(words, bits, at, half);
}

void pack_codes(enum pack_kind kind, const uint8_t *lines, int row, int32_t group,
                uint8_t out[GROUP_MAX])
{
    const uint8_t *words = lines + (size_t)row * 4;
    const int bits = pack_bits(kind);
    for (int32_t i = 0; i < group; i += 32, words += (size_t)bits * 64) {
        int32_t n = group - i < 32 ? group - i : 32;
        switch (bits) {
        case 2:
            run_codes(words, 2, n, out + i);
            break;
        case 3:
            run_codes(words, 3, n, out + i);
            break;
        case 4:
            run_codes(words, 4, n, out + i);
            break;
        case 5:
            run_codes(words, 5, n, out + i);
            break;
        case 6:
            run_codes(words, 6, n, out + i);
            break;
        default:
            run_codes(words, 8, n, out + i);
            break;
        }
    }
    for (int32_t i = 0; kind == PACK_E2M1 && i < group; i++)
        out[i] = pack_e2m1[out[i]];
}

size_t pack_block_bytes(const struct packed *w)
{
    if (w->kind == PACK_F32)
        return (size_t)w->k * PACK_ROWS * 4;
    if (w->kind == PACK_BF16 || w->kind == PACK_F16)
        return (size_t)w->k * PACK_ROWS * 2;
    return (size_t)(w->k / w->group) * pack_group_bytes(w);
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
    if (!pack_is_int(w->kind)) {
        row_float(w, p, lane, dst);
        return;
    }
    size_t sb = PACK_ROWS * pack_scale_bytes(w->scale);
    size_t head = pack_head_bytes(w->kind, w->scale, w->centred);
    float centre = (float)pack_centre(w->kind);
    for (int32_t g = 0; g < w->k / w->group; g++) {
        float s = scale_f32(p, w->scale, lane);
        float b = head == sb ? -centre * s : scale_f32(p + sb, w->scale, lane);
        uint8_t code[GROUP_MAX];
        pack_codes(w->kind, p + head, lane, w->group, code);
        for (int32_t i = 0; i < w->group; i++)
            *dst++ = fmaf(s, (float)code[i], b);
        p += pack_group_bytes(w);
    }
}
