/*
 * kc_float.c - checks of gemm_f: bf16, f16 and f32 weights.
 */
#include "kcheck.h"

#include <float.h>
#include <math.h>
#include <string.h>

struct float_case {
    struct kc_weight t;
    const float *x;
    size_t ldx, ldd;
    int32_t b0, b1, nm;
    void *scratch;
};

struct float_call {
    const struct kernels *k;
    const struct float_case *f;
    float *dst;
    int32_t split_b, split_m;
};

static void float_run(void *arg)
{
    const struct float_call *a = arg;
    const struct float_case *f = a->f;
    int32_t b[3] = {f->b0, a->split_b, f->b1}, m[3] = {0, a->split_m, f->nm};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            if (b[i] < b[i + 1] && m[j] < m[j + 1])
                a->k->gemm_f(&f->t.w, b[i], b[i + 1], f->x + (size_t)m[j] * f->ldx, f->ldx,
                             m[j + 1] - m[j],
                             a->dst + (size_t)m[j] * f->ldd + (size_t)(b[i] - f->b0) * PACK_ROWS,
                             f->ldd, f->scratch);
}

/* A chain of k fused multiply-adds is off by at most k roundings of the sum of |w x|. */
static void float_truth(struct kc *c, const struct float_case *f, int32_t row, int32_t m, float got)
{
    size_t k = (size_t)f->t.w.k;
    double y = 0, mass = 0, flush = 4 * (double)k;
    for (size_t i = 0; i < k; i++) {
        double w = (double)f->t.value[(size_t)row * k + i];
        double x = (double)f->x[(size_t)m * f->ldx + i];
        y += w * x;
        mass += fabs(w * x);
        flush += fabs(w) + fabs(x);
    }
    double unit = (double)FLT_EPSILON / 2;
    kc_near(c, "output", (double)got, y, (double)(k + 1) * unit * mass + flush * (double)FLT_MIN);
}

static void float_compare(struct kc *c, struct float_case *f)
{
    const struct packed *w = &f->t.w;
    int32_t cols = (f->b1 * PACK_ROWS < w->n ? f->b1 * PACK_ROWS : w->n) - f->b0 * PACK_ROWS;
    f->ldd = (size_t)(cols + kc_int(c, 0, 5));
    size_t n = (size_t)(f->nm - 1) * f->ldd + (size_t)cols;
    struct float_call want = {c->judge, f, kc_alloc(c, n * 4, 4, KC_OUT), f->b1, f->nm};
    struct float_call got = {c->k, f, kc_alloc(c, n * 4, 4, KC_OUT), kc_int(c, f->b0, f->b1),
                             kc_int(c, 0, f->nm)};
    float_run(&want);
    if (!kc_run(c, float_run, &got) || !kc_same(c, "dst", got.dst, want.dst, n))
        return;
    for (int s = 0; s < 16; s++) {
        int32_t m = kc_int(c, 0, f->nm - 1), r = kc_int(c, 0, cols - 1);
        float_truth(c, f, f->b0 * PACK_ROWS + r, m, got.dst[(size_t)m * f->ldd + (size_t)r]);
    }
}

static void float_case(struct kc *c, uint32_t i, enum pack_kind kind, int32_t nm)
{
    struct float_case f = {.t.w = {.kind = kind}, .nm = nm};
    enum kc_gen gen = (enum kc_gen)(i % GEN_N);
    bool real = i % 29 == 0;
    f.t.w.n = real ? 576 : kc_int(c, 1, 130);
    f.t.w.k = real ? 576 : kc_int(c, 1, 200);
    f.b1 = pack_n_block(f.t.w.n);
    if (real) {
        f.b0 = kc_int(c, 0, f.b1 - 6);
        f.b1 = f.b0 + 6;
    }
    kc_shape(c, "%s n%d k%d m%d %s", kc_kind_name(kind), f.t.w.n, f.t.w.k, nm, kc_gen_name(gen));
    kc_weight_f(c, &f.t, gen == GEN_SPECIAL && i & 8 ? GEN_NORMAL : gen);
    f.ldx = (size_t)(f.t.w.k + kc_int(c, 0, 3));
    size_t n = (size_t)(nm - 1) * f.ldx + (size_t)f.t.w.k;
    float *x = kc_alloc(c, n * 4, 4, KC_IN);
    kc_fill(c, i / GEN_N % 3 ? gen : GEN_NORMAL, x, n);
    f.x = x;
    f.scratch = kc_alloc(c, GEMM_SCRATCH, 64, KC_OUT);
    float_compare(c, &f);
}

void kc_float(struct kc *c)
{
    static const int32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 17, 33, 65};
    uint32_t i = 0;
    for (enum pack_kind kind = PACK_BF16; kind <= PACK_F32; kind++)
        for (size_t m = 0; m < sizeof rows / sizeof *rows; m++)
            for (int r = 0; r < 12; r++, i++)
                if (kc_case(c, "gemm_f", i))
                    float_case(c, i, kind, rows[m]);
}
