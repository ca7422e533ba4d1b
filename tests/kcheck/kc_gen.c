/*
 * kc_gen.c - inputs for kcheck: draws, float vectors of several characters, and weights packed
 * straight from the layout's description in kernels.h (not with the engine's packer, so that a
 * mistake cannot agree with itself).
 */
#include "kcheck.h"

#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

uint64_t kc_u64(struct kc *c)
{
    uint64_t z = c->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int32_t kc_int(struct kc *c, int32_t lo, int32_t hi)
{
    return lo + (int32_t)(kc_u64(c) % (uint64_t)(hi - lo + 1));
}

double kc_normal(struct kc *c)
{
    uint64_t u = kc_u64(c);
    double s = 0;
    for (int i = 0; i < 4; i++, u >>= 16)
        s += (double)(u & 0xFFFF) / 65535.0;
    return (s - 2.0) * 1.7320508;
}

const char *kc_gen_name(enum kc_gen g)
{
    static const char *const names[GEN_N] = {"normal",   "equal", "extreme", "one-hot",
                                             "denormal", "zero",  "wild",    "special"};
    return names[g];
}

enum kc_gen kc_gen_of(struct kc *c, uint32_t i)
{
    return i < GEN_N ? (enum kc_gen)i : (enum kc_gen)kc_int(c, 0, GEN_N - 1);
}

static float special(struct kc *c)
{
    static const float v[] = {NAN, INFINITY, -INFINITY};
    return v[kc_int(c, 0, 2)];
}

void kc_fill(struct kc *c, enum kc_gen g, float *x, size_t n)
{
    float v = (float)(kc_normal(c) * 3);
    size_t hot = n ? kc_u64(c) % n : 0;
    double size = 1;
    for (size_t i = 0; i < n; i++) {
        if (g == GEN_WILD && i % 16 == 0)
            size = ldexp(1, kc_int(c, -20, 20));
        switch (g) {
        case GEN_EQUAL:
            x[i] = v;
            break;
        case GEN_EXTREME:
            x[i] = i & 1 ? v : -v;
            break;
        case GEN_ONE_HOT:
            x[i] = i == hot ? v : 0;
            break;
        case GEN_DENORMAL:
            x[i] = (float)ldexp(kc_normal(c), -130);
            break;
        case GEN_ZERO:
            x[i] = i & 1 ? -0.0f : 0.0f;
            break;
        default:
            x[i] = (float)(kc_normal(c) * size);
            break;
        }
        if (g == GEN_SPECIAL && kc_u64(c) % 97 == 0)
            x[i] = special(c);
    }
}

/* ---- packed weights -------------------------------------------------------------------------- */

const char *kc_kind_name(enum pack_kind k)
{
    static const char *const names[] = {"u2", "u3",   "u4",   "u5",  "u6",
                                        "u8", "e2m1", "bf16", "f16", "f32"};
    return names[k];
}

const char *kc_scale_name(enum scale_type t)
{
    static const char *const names[] = {"f16", "bf16", "f32"};
    return names[t];
}

/* Stores v as the type says, large ones at float16's limit; returns what was stored. */
static float put_float(uint8_t *p, int i, enum scale_type t, float v)
{
    if (t == SCALE_F16 && isfinite(v))
        v = fmaxf(-65504, fminf(65504, v));
    if (t == SCALE_F32) {
        memcpy(p + 4 * i, &v, 4);
        return v;
    }
    uint16_t h = t == SCALE_F16 ? ref_to_f16(v) : ref_to_bf16(v);
    memcpy(p + 2 * i, &h, 2);
    return t == SCALE_F16 ? ref_f16(h) : ref_bf16(h);
}

static const int kind_bits[] = {2, 3, 4, 5, 6, 8, 4};

/* Code i of a row, bit by bit. First the codes that lie whole in a half, word after word, then the
 * bits above them. */
static void put_code(uint8_t *lines, enum pack_kind kind, int row, int32_t i, uint8_t code)
{
    const int b = kind_bits[kind], whole = 16 / b, above = 16 - whole * b;
    const int code_of_half = i % 32 / 2;
    uint8_t *run = lines + (size_t)(i / 32) * (size_t)b * 64 + (size_t)row * 4;
    for (int t = 0; t < b; t++) {
        int word = code_of_half / whole, bit = code_of_half % whole * b + t;
        if (word >= b) {
            int n = (code_of_half - b * whole) * b + t;
            word = n / above;
            bit = whole * b + n % above;
        }
        bit += i % 2 * 16;
        run[(size_t)word * 64 + (size_t)(bit / 8)] |= (uint8_t)((code >> t & 1) << bit % 8);
    }
}

/* Twice a 4-bit float, plus 12. */
static uint8_t e2m1_meaning(uint8_t code)
{
    static const double size[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return (uint8_t)(2 * (code & 8 ? -size[code & 7] : size[code & 7]) + 12);
}

/* Codes of one row. Extreme: all at the maximum, or alternating with 0. */
static void fill_codes(struct kc *c, enum kc_gen gen, uint8_t *code, int32_t k, uint8_t max)
{
    uint64_t u = 0;
    int32_t hot = kc_int(c, 0, k - 1);
    bool alternate = kc_u64(c) & 1;
    for (int32_t i = 0; i < k; i++, u >>= 8) {
        if (i % 8 == 0)
            u = kc_u64(c);
        switch (gen) {
        case GEN_EQUAL:
            code[i] = max / 2;
            break;
        case GEN_EXTREME:
            code[i] = alternate && i & 1 ? 0 : max;
            break;
        case GEN_ONE_HOT:
            code[i] = i == hot ? max : 0;
            break;
        case GEN_ZERO:
            code[i] = 0;
            break;
        default:
            code[i] = (uint8_t)(u & max);
            break;
        }
    }
}

/* Padding rows are filled too: a kernel may read them but must never let them out. */
void kc_weight_q(struct kc *c, struct kc_weight *t, enum kc_gen gen)
{
    struct packed *w = &t->w;
    int32_t rows = pack_n_block(w->n) * PACK_ROWS, ng = w->k / w->group;
    size_t bytes = pack_block_bytes(w);
    size_t sb = pack_scale_bytes(w->scale) * PACK_ROWS,
           head = w->kind == PACK_E2M1 || w->centred ? sb : 2 * sb;
    size_t gb = pack_group_bytes(w);
    uint8_t *p = kc_alloc(c, bytes * (size_t)pack_n_block(w->n), 64, KC_IN);
    memset(p, 0, bytes * (size_t)pack_n_block(w->n));
    t->code = kc_alloc(c, (size_t)rows * (size_t)w->k, 1, KC_IN);
    t->scale = kc_alloc(c, (size_t)rows * (size_t)ng * 4, 4, KC_IN);
    t->bias = kc_alloc(c, (size_t)rows * (size_t)ng * 4, 4, KC_IN);
    kc_fill(c, gen, t->scale, (size_t)rows * (size_t)ng);
    kc_fill(c, gen, t->bias, (size_t)rows * (size_t)ng);
    for (int32_t r = 0; r < rows; r++) {
        uint8_t *code = t->code + (size_t)r * (size_t)w->k;
        fill_codes(c, gen, code, w->k, (uint8_t)((1 << kind_bits[w->kind]) - 1));
        for (int32_t g = 0; g < ng; g++) {
            uint8_t *q = p + (size_t)(r / PACK_ROWS) * bytes + (size_t)g * gb;
            size_t i = (size_t)r * (size_t)ng + (size_t)g;
            t->scale[i] = put_float(q, r % PACK_ROWS, w->scale, t->scale[i] / 64);
            if (w->kind == PACK_E2M1)
                t->bias[i] = -12 * t->scale[i];
            else if (w->centred)
                t->bias[i] = -ldexpf(t->scale[i], kind_bits[w->kind] - 1);
            else
                t->bias[i] = put_float(q + sb, r % PACK_ROWS, w->scale, t->bias[i] / 8);
            for (int32_t j = 0; j < w->group; j++)
                put_code(q + head, w->kind, r % PACK_ROWS, j, code[g * w->group + j]);
        }
        for (int32_t j = 0; w->kind == PACK_E2M1 && j < w->k; j++)
            code[j] = e2m1_meaning(code[j]);
    }
    w->p = p;
    w->block_bytes = bytes;
}

void kc_weight_f(struct kc *c, struct kc_weight *t, enum kc_gen gen)
{
    static const enum scale_type type[] = {
        [PACK_BF16] = SCALE_BF16, [PACK_F16] = SCALE_F16, [PACK_F32] = SCALE_F32};
    struct packed *w = &t->w;
    size_t rows = (size_t)pack_n_block(w->n) * PACK_ROWS, k = (size_t)w->k;
    size_t bytes = pack_block_bytes(w);
    uint8_t *p = kc_alloc(c, bytes * rows / PACK_ROWS, 64, KC_IN);
    t->value = kc_alloc(c, rows * k * 4, 4, KC_IN);
    kc_fill(c, gen, t->value, rows * k);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < k; i++) {
            uint8_t *q = p + r / PACK_ROWS * bytes + i * (bytes / k);
            t->value[r * k + i] =
                put_float(q, (int)(r % PACK_ROWS), type[w->kind], t->value[r * k + i]);
        }
    w->p = p;
    w->block_bytes = bytes;
}
