/*
 * test_weight.c - packing: every format, width, group size and scale type, read back row by row,
 * against a decoder written here from the description of the formats alone. Exact, but for nvfp4
 * with a global scale: its scales use all bits of a float32, and 12 times one does not fit.
 */
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "../check.h"
#include "exec/exec_int.h"
#include "kernels/kernels.h"
#include "kernels/ref/ref.h"

static struct exec *ex;

static struct exec *make_exec(int n_thread)
{
    struct exec_params p = {.n_thread = n_thread, .max_rows = 8, .n_ctx = 64};
    struct exec *e = NULL;
    struct qn_err err;
    CHECK_OK(cpu_isa_parse(NULL, &p.isa, &err), err);
    CHECK_OK(exec_create(&p, &e, &err), err);
    CHECK_OK(exec_reserve(e, 256 << 20, &err), err);
    return e;
}

/* ---- the plain decoder ----------------------------------------------------------------------- */

static float half(uint16_t h)
{
    int e = h >> 10 & 31;
    double m = h & 1023, v = e ? ldexp(1 + m / 1024, e - 15) : ldexp(m / 1024, -14);
    return (float)(h & 0x8000 ? -v : v);
}

static float brain(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static float real_at(const uint8_t *p, enum scale_type t, size_t i)
{
    float f;
    uint16_t h;
    if (t == SCALE_F32) {
        memcpy(&f, p + 4 * i, 4);
        return f;
    }
    memcpy(&h, p + 2 * i, 2);
    return t == SCALE_F16 ? half(h) : brain(h);
}

static unsigned bits_at(const uint8_t *p, size_t bit, int n)
{
    unsigned v = 0;
    for (int i = 0; i < n; i++)
        v |= (unsigned)(p[(bit + (size_t)i) / 8] >> (bit + (size_t)i) % 8 & 1) << i;
    return v;
}

static double fp4(unsigned c)
{
    static const double v[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return c & 8 ? -v[c & 7] : v[c & 7];
}

static double fp8(uint8_t b)
{
    int e = b >> 3 & 15;
    double m = b & 7, v = e ? ldexp(1 + m / 8, e - 7) : ldexp(m / 8, -6);
    return b & 0x80 ? -v : v;
}

static float decode(const struct weight_src *s, int32_t n, int32_t k)
{
    size_t at = (size_t)n * (size_t)s->k + (size_t)k;
    size_t row_bits = (size_t)s->k * (size_t)s->bits;
    size_t g = (size_t)n * (size_t)(s->k / (s->group ? s->group : 1)) +
               (size_t)(k / (s->group ? s->group : 1));
    switch (s->format) {
    case WEIGHT_F32:
        return real_at(s->data, SCALE_F32, at);
    case WEIGHT_F16:
        return real_at(s->data, SCALE_F16, at);
    case WEIGHT_BF16:
        return real_at(s->data, SCALE_BF16, at);
    case WEIGHT_AFFINE: {
        unsigned q =
            bits_at(s->data + (size_t)n * row_bits / 8, (size_t)k * (size_t)s->bits, s->bits);
        return fmaf((float)q, real_at(s->scales, s->scale_type, g),
                    real_at(s->biases, s->scale_type, g));
    }
    case WEIGHT_MXFP4:
        return (float)(fp4(bits_at(s->data, 4 * at, 4)) * ldexp(1, s->scales[g] - 127));
    case WEIGHT_MXFP8:
        return (float)(fp8(s->data[at]) * ldexp(1, s->scales[g] - 127));
    case WEIGHT_NVFP4: {
        float scale = (float)fp8(s->scales[g]);
        if (s->global_scale != 0)
            scale = scale * s->global_scale / 2688.0f;
        return (float)(fp4(bits_at(s->data, 4 * at, 4)) * (double)scale);
    }
    }
    return NAN;
}

/* ---- sources --------------------------------------------------------------------------------- */

static uint32_t seed = 1;

static uint32_t next(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static uint8_t *random_bytes(size_t n)
{
    uint8_t *p = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)next();
    return p;
}

/* Finite numbers of moderate size in the type. */
static uint8_t *random_reals(size_t n, enum scale_type t)
{
    uint8_t *p = malloc(n * 4);
    for (size_t i = 0; i < n; i++) {
        float f = ((float)next() / (float)(1 << 24) - 0.5f) * 0.25f;
        uint16_t h = (uint16_t)(next() & 0x8000) | (uint16_t)(0x2000 + next() % 0x1400);
        if (t == SCALE_F32)
            memcpy(p + 4 * i, &f, 4);
        else if (t == SCALE_F16)
            memcpy(p + 2 * i, &h, 2);
        else
            memcpy(p + 2 * i, (const uint8_t *)&f + 2, 2);
    }
    return p;
}

static void check(const char *what, const struct weight_src *s)
{
    struct weight *w = NULL;
    struct qn_err err;
    CHECK_OK(weight_load(ex, s, &w, &err), err);
    exec_quiesce(ex); /* the callers free their sources */
    assert_int_equal(weight_rows(w), s->n);
    assert_int_equal(weight_bytes(w), (size_t)pack_n_block(s->n) * w->pk.block_bytes *
                                          (size_t)(s->n_stack ? s->n_stack : 1));
    float *row = malloc((size_t)s->k * sizeof *row);
    for (int32_t n = 0; n < s->n; n++) {
        pack_row_f32(&w->pk, n, row);
        for (int32_t k = 0; k < s->k; k++) {
            float want = decode(s, n, k);
            double slack = 0;
            if (s->global_scale != 0)
                slack = 1e-6 * fp8(s->scales[(n * s->k + k) / s->group]) * s->global_scale / 2688;
            if (!(fabs((double)row[k] - (double)want) <= slack))
                fail_msg("%s, %d bits, group %d, %dx%d: weight [%d,%d] is %g, expected %g", what,
                         s->bits, s->group, s->n, s->k, n, k, (double)row[k], (double)want);
        }
    }
    free(row);
}

static void check_affine(int32_t n, int32_t k, int bits, int group, enum scale_type t)
{
    size_t ng = (size_t)n * (size_t)(k / group);
    uint8_t *data = random_bytes((size_t)n * (size_t)k * (size_t)bits / 8);
    uint8_t *scales = random_reals(ng, t), *biases = random_reals(ng, t);
    struct weight_src s = {.name = "w",
                           .format = WEIGHT_AFFINE,
                           .n = n,
                           .k = k,
                           .bits = bits,
                           .group = group,
                           .scale_type = t,
                           .data = data,
                           .scales = scales,
                           .biases = biases};
    check("affine", &s);
    free(data);
    free(scales);
    free(biases);
}

static void test_affine(void **state)
{
    static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const int32_t rows[] = {1, 15, 16, 17, 40};
    for (size_t b = 0; b < 6; b++)
        for (size_t g = 0; g < 3; g++)
            for (enum scale_type t = SCALE_F16; t <= SCALE_F32; t++)
                for (size_t n = 0; n < 5; n++)
                    check_affine(rows[n], groups[g] * (1 + (int)(n + b) % 3), bits[b], groups[g],
                                 t);
    check_affine(1030, 1024, 4, 64, SCALE_BF16); /* more than one chunk of the pool */
    check_affine(520, 1152, 6, 128, SCALE_F16);
}

/* ---- biases that are a fixed multiple of their scales ---------------------------------------- */

static void put_real(uint8_t *p, enum scale_type t, size_t i, float f)
{
    uint16_t h = t == SCALE_F16 ? ref_to_f16(f) : ref_to_bf16(f);
    if (t == SCALE_F32)
        memcpy(p + 4 * i, &f, 4);
    else
        memcpy(p + 2 * i, &h, 2);
}

/* y[n] = W x with a kernel of each level this machine has; the levels must agree. */
static void product(const struct weight *w, const float *x, float *y)
{
    const int32_t k = w->pk.k, ng = k / w->pk.group;
    struct qact q = {.a = malloc((size_t)k * 2),
                     .scale = malloc((size_t)ng * 4),
                     .sum = malloc((size_t)ng * 4),
                     .k = k,
                     .group = w->pk.group};
    float *again = malloc((size_t)w->n * 4);
    void *scratch = aligned_alloc(64, GEMM_SCRATCH);
    for (enum cpu_isa isa = CPU_GENERIC; isa <= cpu_best(); isa++) {
        const struct kernels *kern = kernels_get(isa);
        float *to = isa == CPU_GENERIC ? y : again;
        kern->quantize(x, &q, 0);
        kern->gemm_q(&w->pk, 0, pack_n_block(w->n), &q, 0, 1, to, (size_t)w->n, scratch);
        assert_memory_equal(to, y, (size_t)w->n * 4);
    }
    free(q.a);
    free(q.scale);
    free(q.sum);
    free(again);
    free(scratch);
}

/* Loaded with and without biases in memory: the last row's are what keeps them there. */
static void check_centred(struct weight_src *s, uint8_t *biases, const float *x)
{
    struct weight *less, *all;
    struct qn_err err;
    const size_t sb = pack_scale_bytes(s->scale_type), ng = (size_t)(s->k / s->group);
    float *a = malloc((size_t)s->n * 4), *b = malloc((size_t)s->n * 4);
    check("centred", s);
    CHECK_OK(weight_load(ex, s, &less, &err), err);
    put_real(biases, s->scale_type, (size_t)s->n * ng - 1, 0.375f);
    check("not quite centred", s);
    CHECK_OK(weight_load(ex, s, &all, &err), err);
    exec_quiesce(ex);
    assert_true(less->pk.centred && !all->pk.centred);
    assert_int_equal(weight_bytes(all) - weight_bytes(less),
                     (size_t)pack_n_block(s->n) * PACK_ROWS * ng * sb);
    product(less, x, a);
    product(all, x, b);
    assert_memory_equal(a, b, (size_t)(s->n - 1) * 4);
    free(a);
    free(b);
}

static void test_centred(void **state)
{
    static const int bits[] = {2, 3, 4, 5, 6, 8};
    /* float16: ordinary, subnormal, subnormal whose bias is not, none at all */
    static const float odd[] = {0.01f, -0.25f, 0x1p-24f, 0x1.8p-20f, -0x1p-15f, 0};
    enum { N = 17, K = 192, G = 32, NG = N * K / G };
    float x[K];
    for (int i = 0; i < K; i++)
        x[i] = (float)next() / (float)(1 << 24) - 0.5f;
    for (int b = 0; b < 6; b++)
        for (enum scale_type t = SCALE_F16; t <= SCALE_F32; t++) {
            uint8_t *data = random_bytes((size_t)(N * K * bits[b] / 8));
            uint8_t *scales = random_reals(NG, t), *biases = malloc(NG * 4);
            for (size_t i = 0; t == SCALE_F16 && i < 6; i++)
                put_real(scales, t, i, odd[i]);
            for (size_t i = 0; i < NG; i++)
                put_real(biases, t, i, -ldexpf(real_at(scales, t, i), bits[b] - 1));
            struct weight_src s = {.name = "w",
                                   .format = WEIGHT_AFFINE,
                                   .n = N,
                                   .k = K,
                                   .bits = bits[b],
                                   .group = G,
                                   .scale_type = t,
                                   .data = data,
                                   .scales = scales,
                                   .biases = biases};
            check_centred(&s, biases, x);
            free(data);
            free(scales);
            free(biases);
        }
}

static void test_fp(void **state)
{
    static const struct {
        enum weight_format format;
        int bits, group;
        float global;
        const char *name;
    } cases[] = {{WEIGHT_MXFP4, 4, 32, 0, "mxfp4"},
                 {WEIGHT_MXFP8, 8, 32, 0, "mxfp8"},
                 {WEIGHT_NVFP4, 4, 16, 0, "nvfp4"},
                 {WEIGHT_NVFP4, 4, 16, 731.5f, "nvfp4 with a global scale"}};
    static const int32_t rows[] = {1, 16, 33}, cols[] = {32, 96, 544};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (int i = 0; i < 9; i++) {
            int32_t n = rows[i / 3], k = cols[i % 3];
            size_t ng = (size_t)n * (size_t)(k / cases[c].group);
            uint8_t *data = random_bytes((size_t)n * (size_t)k), *scales = random_bytes(ng);
            bool e4m3 = cases[c].format == WEIGHT_NVFP4;
            for (size_t j = 0; j < ng; j++) /* near 1: neither overflow nor NaN */
                scales[j] = (uint8_t)(e4m3 ? scales[j] % 0x7f : 110 + scales[j] % 30);
            for (size_t j = 0; cases[c].bits == 8 && j < (size_t)n * (size_t)k; j++)
                if ((data[j] & 0x7f) == 0x7f)
                    data[j] = 0x7e; /* not NaN */
            struct weight_src s = {.name = "w",
                                   .format = cases[c].format,
                                   .n = n,
                                   .k = k,
                                   .bits = cases[c].bits,
                                   .group = cases[c].group,
                                   .data = data,
                                   .scales = scales,
                                   .global_scale = cases[c].global};
            check(cases[c].name, &s);
            free(data);
            free(scales);
        }
}

static void test_float(void **state)
{
    static const enum weight_format formats[] = {WEIGHT_F32, WEIGHT_F16, WEIGHT_BF16};
    static const enum scale_type types[] = {SCALE_F32, SCALE_F16, SCALE_BF16};
    static const int32_t rows[] = {1, 16, 17, 50}, cols[] = {16, 48, 255, 257, 600};
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < 20; i++) {
            int32_t n = rows[i / 5], k = cols[i % 5];
            uint8_t *data = random_reals((size_t)n * (size_t)k, types[f]);
            struct weight_src s = {.name = "w", .format = formats[f], .n = n, .k = k, .data = data};
            check("float", &s);
            struct weight *v = NULL;
            struct qn_err err;
            s.n = 1;
            CHECK_OK(weight_load_vec(ex, &s, &v, &err), err);
            assert_int_equal(weight_rows(v), k);
            for (int32_t j = 0; j < k; j++)
                assert_true(v->vec[j] == decode(&s, 0, j));
            free(data);
        }
}

static void test_refused(void **state)
{
    static const uint8_t zeros[4096];
    struct weight_src good = {.name = "the.matrix",
                              .format = WEIGHT_AFFINE,
                              .n = 16,
                              .k = 64,
                              .bits = 4,
                              .group = 32,
                              .scale_type = SCALE_BF16,
                              .data = zeros,
                              .scales = zeros,
                              .biases = zeros},
                      s;
    struct weight *w = NULL;
    struct qn_err err;
    static const int bits[] = {-1, 0, 1, 7, 9, 32}, groups[] = {-32, 0, 1, 16, 24, 48, 256};
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
        s = good;
        s.bits = bits[i];
        CHECK_FAILS(weight_load(ex, &s, &w, &err), QN_BAD_INPUT, err, "the.matrix");
    }
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        s = good;
        s.group = groups[i];
        CHECK_FAILS(weight_load(ex, &s, &w, &err), QN_BAD_INPUT, err, "the.matrix");
    }
    s = good;
    s.k = 80; /* not whole groups */
    CHECK_FAILS(weight_load(ex, &s, &w, &err), QN_BAD_INPUT, err, "80 inputs");
    s = good;
    s.k = WEIGHT_DIM_MAX + 32;
    CHECK_FAILS(weight_load(ex, &s, &w, &err), QN_UNSUPPORTED, err, "out of range");
    s = good;
    s.n = 0;
    CHECK_FAILS(weight_load(ex, &s, &w, &err), QN_UNSUPPORTED, err, "out of range");
    s = good;
    s.n = 1 << 27; /* beyond what was reserved */
    CHECK_FAILS(weight_load(ex, &s, &w, &err), QN_INTERNAL, err, "the.matrix");
    CHECK_FAILS(weight_load_vec(ex, &good, &w, &err), QN_UNSUPPORTED, err, "a vector must be");
    assert_null(w);
}

/* More threads than processors: some are always late with their part. Once exec_quiesce has
 * returned, none of them may touch the source any more. */
static void test_source_goes_after_quiesce(void **state)
{
    enum {
        N = 2048,
        K = 512,
        SCALES = N * K / 32 * 2,
        BYTES = N * K / 2 + 2 * SCALES,
        ROUNDS = 150
    };
    struct exec *many = make_exec(12);
    uint8_t *gone[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        uint8_t *p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(p != MAP_FAILED);
        struct weight_src s = {.name = "w",
                               .format = WEIGHT_AFFINE,
                               .n = N,
                               .k = K,
                               .bits = 4,
                               .group = 32,
                               .scale_type = SCALE_BF16,
                               .data = p,
                               .scales = p + N * K / 2,
                               .biases = p + N * K / 2 + SCALES};
        struct weight *w = NULL;
        struct qn_err err;
        CHECK_OK(weight_load(many, &s, &w, &err), err);
        exec_quiesce(many);
        gone[i] = p; /* kept without access, so that no later mapping takes its place */
        assert_int_equal(mprotect(p, BYTES, PROT_NONE), 0);
    }
    exec_free(many);
    for (int i = 0; i < ROUNDS; i++)
        munmap(gone[i], BYTES);
}

static int set_up(void **state)
{
    ex = make_exec(3);
    return 0;
}

static int tear_down(void **state)
{
    exec_free(ex);
    return 0;
}

int main(void)
{
#define CASE(fn) cmocka_unit_test_setup_teardown(fn, set_up, tear_down)
    const struct CMUnitTest tests[] = {CASE(test_affine),  CASE(test_centred),
                                       CASE(test_fp),      CASE(test_float),
                                       CASE(test_refused), CASE(test_source_goes_after_quiesce)};
    return cmocka_run_group_tests_name("weight", tests, NULL, NULL);
}
