/*
 * test_gguf_blocks.c - every block format against the reference dequantizer's values (blocks.h),
 * bit for bit; the affine image; packing; small floats; the quantizer's properties.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "blocks.h"
#include "import/gguf_blocks.h"

#include <string.h>

struct vec {
    int type;
    const uint8_t *raw;
    const uint32_t *val;
    size_t n;
};
#define VEC(t)                                                                                     \
    {                                                                                              \
        BLK_##t, t##_RAW, t##_VAL, sizeof t##_VAL / 4                                              \
    }
static const struct vec VECS[] = {VEC(Q4_0), VEC(Q4_1), VEC(Q5_0), VEC(Q5_1), VEC(Q8_0),
                                  VEC(Q2_K), VEC(Q3_K), VEC(Q4_K), VEC(Q5_K), VEC(Q6_K)};
#define N_VEC (sizeof VECS / sizeof *VECS)

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u == 0x80000000u ? 0 : u; /* the sign of zero is of no interest */
}

static void values(void **state)
{
    (void)state;
    float got[256];
    for (size_t k = 0; k < N_VEC; k++) {
        const struct blk_format *f = blk_format(VECS[k].type);
        assert_non_null(f);
        assert_int_equal(f->n_elem, VECS[k].n);
        blk_dequant(f, VECS[k].raw, VECS[k].n, got);
        for (size_t i = 0; i < VECS[k].n; i++) {
            float want;
            memcpy(&want, &VECS[k].val[i], 4);
            if (bits(got[i]) != bits(want))
                fail_msg("%s element %zu: %.9g, expected %.9g", f->name, i, (double)got[i],
                         (double)want);
        }
    }
}

static void affine_image(void **state)
{
    (void)state;
    uint8_t code[256];
    float scale[8], bias[8];
    for (size_t k = 0; k < N_VEC; k++) {
        const struct blk_format *f = blk_format(VECS[k].type);
        if (f->kind != BLK_AFFINE)
            continue;
        blk_affine(f, VECS[k].raw, VECS[k].n, code, scale, bias);
        for (size_t i = 0; i < VECS[k].n; i++) {
            float want, got = scale[i / 32] * (float)code[i] + bias[i / 32];
            memcpy(&want, &VECS[k].val[i], 4);
            assert_true(code[i] < 1 << f->bits);
            if (bits(got) != bits(want))
                fail_msg("%s element %zu: %.9g, expected %.9g", f->name, i, (double)got,
                         (double)want);
        }
    }
}

static void packing(void **state)
{
    (void)state;
    static const int WIDTH[] = {2, 3, 4, 5, 6, 8};
    for (size_t w = 0; w < 6; w++) {
        uint8_t code[64], out[64] = {0};
        int b = WIDTH[w];
        for (int i = 0; i < 64; i++)
            code[i] = (uint8_t)((i * 37 + 11) & ((1 << b) - 1));
        affine_pack(code, 64, b, out);
        for (int i = 0; i < 64; i++) {
            int got = 0;
            for (int k = 0; k < b; k++)
                got |= (out[(i * b + k) / 8] >> ((i * b + k) % 8) & 1) << k;
            assert_int_equal(got, code[i]);
        }
    }
}

static void small_floats(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = half_to_float((uint16_t)h);
        if (f == f)
            assert_int_equal(float_to_half(f), h);
        f = bfloat_to_float((uint16_t)h);
        if (f == f)
            assert_int_equal(float_to_bfloat(f), h);
    }
    static const struct {
        float in;
        uint16_t half;
    } T[] = {{1.00048828125f, 0x3c00}, /* a tie goes to the even mantissa */
             {1.00146484375f, 0x3c02}, {65519.996f, 0x7bff},
             {65520.0f, 0x7c00},       {0x1p-25f, 0},
             {0x1.8p-25f, 1},          {-0x1p-24f, 0x8001},
             {0x1.ff8p-15f, 0x03ff},   {0x1.ffcp-15f, 0x0400},
             {0x1.fffp-15f, 0x0400}};
    for (size_t i = 0; i < sizeof T / sizeof *T; i++)
        assert_int_equal(float_to_half(T[i].in), T[i].half);
}

static void quantizer(void **state)
{
    (void)state;
    float w[64], s[2], b[2];
    uint8_t code[64];
    for (int i = 0; i < 64; i++)
        w[i] = i < 32 ? sinf((float)i) * 0.1f : 0;
    /* the rescaled step may leave the far end of the range uncovered by a fraction of it */
    for (int bits_ = 2; bits_ <= 8; bits_++) {
        affine_quantize(w, 64, bits_, code, s, b);
        for (int i = 0; i < 64; i++) {
            assert_true(code[i] < 1 << bits_);
            float e = s[i / 32] * (float)code[i] + b[i / 32] - w[i];
            assert_true(fabsf(e) <= (bits_ < 4 ? 2.0f : 1.0f) * fabsf(s[i / 32]));
        }
        assert_true(b[1] == 0 && code[40] == 0); /* a group of zeros stays zero */
    }
}

static void table(void **state)
{
    (void)state;
    assert_null(blk_format(4));
    assert_null(blk_format(-1));
    assert_null(blk_format(1000));
    assert_int_equal(blk_format(28)->kind, BLK_REFUSED);
    assert_string_equal(blk_format(28)->name, "F64");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),       cmocka_unit_test(affine_image), cmocka_unit_test(packing),
        cmocka_unit_test(small_floats), cmocka_unit_test(quantizer),    cmocka_unit_test(table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
