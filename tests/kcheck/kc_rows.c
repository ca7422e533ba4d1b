/*
 * kc_rows.c - checks of the element-wise kernels: rmsnorm, gated activations, add, scale,
 * softcap, rope.
 */
#include "kcheck.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

#define UNIT ((double)FLT_EPSILON / 2)

struct rows_call {
    const struct kernels *k;
    float *y;
    const float *a, *b;
    float add, eps; /* add: of scale and softcap the factor and the cap */
    int32_t n, dims;
    bool interleaved;
};

static void run_rmsnorm(void *arg)
{
    struct rows_call *r = arg;
    r->k->rmsnorm(r->y, r->a, r->b, r->add, r->eps, r->n);
}

static void run_swiglu(void *arg)
{
    struct rows_call *r = arg;
    r->k->swiglu(r->y, r->a, r->b, r->n);
}

static void run_geglu(void *arg)
{
    struct rows_call *r = arg;
    r->k->geglu(r->y, r->a, r->b, r->n);
}

static void run_swiglu_clamped(void *arg)
{
    struct rows_call *r = arg;
    r->k->swiglu_clamped(r->y, r->a, r->b, r->n);
}

static void run_sigmul(void *arg)
{
    struct rows_call *r = arg;
    r->k->sigmul(r->y, r->a, r->b, r->n);
}

static void run_add(void *arg)
{
    struct rows_call *r = arg;
    r->k->add(r->y, r->a, r->b, r->n);
}

static void run_scale(void *arg)
{
    struct rows_call *r = arg;
    r->k->scale(r->y, r->a, r->add, r->n);
}

static void run_softcap(void *arg)
{
    struct rows_call *r = arg;
    r->k->softcap(r->y, r->a, r->add, r->n);
}

static void run_rope(void *arg)
{
    struct rows_call *r = arg;
    r->k->rope(r->y, r->a, r->n, r->dims, r->b, r->interleaved);
}

static float *vec(struct kc *c, enum kc_gen gen, int32_t n)
{
    float *p = kc_alloc(c, (size_t)n * 4, 4, KC_IN);
    kc_fill(c, gen, p, (size_t)n);
    return p;
}

/* Lengths: short ones with every tail, a model's, anything. */
static int32_t length(struct kc *c, uint32_t i)
{
    static const int32_t real[] = {64, 576, 640, 1536, 2048};
    return i % 3 == 0 ? kc_int(c, 1, 40) : i % 3 == 1 ? real[kc_int(c, 0, 4)] : kc_int(c, 1, 3000);
}

/* Fills r->y by the kernel, after comparing it with the judge's: false when they differ. */
static bool same_rows(struct kc *c, struct rows_call *r, void (*run)(void *), size_t n)
{
    struct rows_call want = *r;
    want.k = c->judge;
    want.y = kc_alloc(c, n * 4, 4, KC_OUT);
    r->k = c->k;
    r->y = kc_alloc(c, n * 4, 4, KC_OUT);
    run(&want);
    return kc_run(c, run, r) && kc_same(c, "y", r->y, want.y, n);
}

/* The mean of squares: n/16 roundings in a lane and 4 in the tree, halved by the root; then a root,
 * a quotient, x*r, w+add and its product. */
static void rmsnorm_case(struct kc *c, uint32_t i)
{
    enum kc_gen gen = kc_gen_of(c, i);
    struct rows_call r = {.n = length(c, i), .eps = i & 1 ? 1e-5f : 1e-6f, .add = i & 2 ? 1 : 0};
    kc_shape(c, "n%d %s%s", r.n, kc_gen_name(gen), i % 5 == 4 ? " no weight" : "");
    r.a = vec(c, gen, r.n);
    r.b = i % 5 == 4 ? NULL : vec(c, gen == GEN_SPECIAL ? GEN_NORMAL : gen, r.n);
    if (!same_rows(c, &r, run_rmsnorm, (size_t)r.n) || gen == GEN_SPECIAL)
        return;
    float *want = kc_alloc(c, (size_t)r.n * 4, 4, KC_OUT);
    ref_rmsnorm(want, r.a, r.b, r.add, r.eps, r.n);
    for (int32_t j = 0; j < r.n; j++) {
        double w = r.b ? fabs((double)r.b[j]) + 1 : 1;
        kc_near(c, "y", (double)r.y[j], (double)want[j],
                ((r.n / 16 + 6) * 0.5 + 7) * UNIT * fabs((double)want[j]) +
                    (w + fabs((double)r.a[j]) + 1) / sqrt((double)r.eps) * 4 * (double)FLT_MIN);
    }
}

/* The gated activations. e^x is good to 3 units beyond its 7 roundings; a sum, a quotient and a
 * product follow. Outside [-87.3, 88] the exponential is clamped: x / e^88 instead of less. The
 * argument of gelu's exponential carries `angle` roundings of its own size, which is at most 88
 * where the result still counts. */
static const struct gate {
    const char *name;
    void (*run)(void *);
    void (*ref)(float *, const float *, const float *, int32_t);
    double roundings, angle;
} gates[] = {
    {"swiglu", run_swiglu, ref_swiglu, 16, 0},
    {"geglu", run_geglu, ref_geglu, 16, 5},
    {"sigmul", run_sigmul, ref_sigmul, 16, 0},
    {"swiglu_clamped", run_swiglu_clamped, ref_swiglu_clamped, 18, 2},
};

static void gate_case(struct kc *c, uint32_t i, const struct gate *t)
{
    enum kc_gen gen = kc_gen_of(c, i);
    struct rows_call r = {.n = length(c, i)};
    kc_shape(c, "n%d %s", r.n, kc_gen_name(gen));
    float *g = vec(c, gen, r.n);
    if (i % 4 == 3) /* gates far beyond the clamp */
        for (int32_t j = 0; j < r.n; j++)
            g[j] *= 60;
    r.a = g;
    r.b = vec(c, gen, r.n);
    if (!same_rows(c, &r, t->run, (size_t)r.n) || gen == GEN_SPECIAL)
        return;
    float *want = kc_alloc(c, (size_t)r.n * 4, 4, KC_OUT);
    t->ref(want, r.a, r.b, r.n);
    for (int32_t j = 0; j < r.n; j++) {
        double x = fabs((double)r.a[j]), u = fabs((double)r.b[j]) + 1;
        double z = t->angle == 0 ? 0 : 1.702 * x + 0.0714 * x * x * x;
        double size = x * u + u;
        kc_near(c, "y", (double)r.y[j], (double)want[j],
                (t->roundings + t->angle * fmin(z, 88)) * UNIT * fabs((double)want[j]) +
                    size * 4 * (double)FLT_MIN);
    }
}

static void add_case(struct kc *c, uint32_t i)
{
    enum kc_gen gen = kc_gen_of(c, i);
    struct rows_call r = {.n = length(c, i)};
    kc_shape(c, "n%d %s", r.n, kc_gen_name(gen));
    r.a = vec(c, gen, r.n);
    r.b = vec(c, gen, r.n);
    if (!same_rows(c, &r, run_add, (size_t)r.n))
        return;
    for (int32_t j = 0; j < r.n; j++) {
        double want = (double)r.a[j] + (double)r.b[j];
        kc_near(c, "y", (double)r.y[j], want, UNIT * fabs(want) + 4 * (double)FLT_MIN);
    }
}

/* One product. */
static void scale_case(struct kc *c, uint32_t i)
{
    enum kc_gen gen = kc_gen_of(c, i);
    struct rows_call r = {.n = length(c, i), .add = (float)kc_normal(c)};
    kc_shape(c, "n%d %s", r.n, kc_gen_name(gen));
    r.a = vec(c, gen, r.n);
    if (!same_rows(c, &r, run_scale, (size_t)r.n))
        return;
    for (int32_t j = 0; j < r.n; j++) {
        double want = (double)r.a[j] * (double)r.add;
        kc_near(c, "y", (double)r.y[j], want, UNIT * fabs(want) + 4 * (double)FLT_MIN);
    }
}

/* 1 - e carries e's error of 3 units beyond 7 roundings, absolute because it may cancel; a sum, two
 * quotients and two products follow. */
static void softcap_case(struct kc *c, uint32_t i)
{
    enum kc_gen gen = kc_gen_of(c, i);
    struct rows_call r = {.n = length(c, i), .add = i & 1 ? 30 : 0.5f};
    kc_shape(c, "n%d cap %g %s", r.n, (double)r.add, kc_gen_name(gen));
    float *x = vec(c, gen, r.n);
    for (int32_t j = 0; j < r.n && i % 3 != 0; j++) /* up to the bend and beyond */
        x[j] *= i % 3 == 1 ? r.add : 60 * r.add;
    r.a = x;
    if (!same_rows(c, &r, run_softcap, (size_t)r.n))
        return;
    float *want = kc_alloc(c, (size_t)r.n * 4, 4, KC_OUT);
    ref_softcap(want, r.a, r.add, r.n);
    for (int32_t j = 0; j < r.n; j++)
        kc_near(c, "y", (double)r.y[j], (double)want[j],
                (double)r.add * 10 * UNIT + 5 * UNIT * fabs((double)want[j]));
}

/* Two products and a sum: one rounding each. Dimensions behind `dims` are copied. */
static void rope_case(struct kc *c, uint32_t i)
{
    static const int32_t heads[] = {16, 64, 80, 128, 256};
    enum kc_gen gen = kc_gen_of(c, i);
    struct rows_call r = {.interleaved = i & 1};
    r.n = heads[kc_int(c, 0, 4)];
    r.dims = i & 2 ? r.n : 2 * kc_int(c, 1, r.n / 2);
    kc_shape(c, "d%d dims %d %s %s", r.n, r.dims, r.interleaved ? "pairs" : "halves",
             kc_gen_name(gen));
    r.a = vec(c, gen, r.n);
    float *cs = kc_alloc(c, (size_t)r.dims * 4, 4, KC_IN);
    for (int32_t j = 0; j < r.dims / 2; j++) {
        double angle = kc_normal(c) * 100;
        cs[j] = (float)cos(angle);
        cs[r.dims / 2 + j] = (float)sin(angle);
    }
    r.b = cs;
    if (!same_rows(c, &r, run_rope, (size_t)r.n) || gen == GEN_SPECIAL)
        return;
    float *want = kc_alloc(c, (size_t)r.n * 4, 4, KC_OUT);
    ref_rope(want, r.a, r.n, r.dims, r.b, r.interleaved);
    for (int32_t j = 0; j < r.n; j++) {
        int32_t half = r.dims / 2;
        int32_t mate = r.interleaved ? j ^ 1 : j < half ? j + half : j - half;
        double mass = j < r.dims ? fabs((double)r.a[j]) + fabs((double)r.a[mate]) : 0;
        kc_near(c, "y", (double)r.y[j], (double)want[j],
                3 * UNIT * mass + (j < r.dims ? 8 * (double)FLT_MIN : 0));
    }
}

void kc_rows(struct kc *c)
{
    for (uint32_t i = 0; i < 300; i++)
        if (kc_case(c, "rmsnorm", i))
            rmsnorm_case(c, i);
    for (size_t g = 0; g < sizeof gates / sizeof gates[0]; g++)
        for (uint32_t i = 0; i < 300; i++)
            if (kc_case(c, gates[g].name, i))
                gate_case(c, i, &gates[g]);
    for (uint32_t i = 0; i < 100; i++)
        if (kc_case(c, "add", i))
            add_case(c, i);
    for (uint32_t i = 0; i < 100; i++)
        if (kc_case(c, "scale", i))
            scale_case(c, i);
    for (uint32_t i = 0; i < 300; i++)
        if (kc_case(c, "softcap", i))
            softcap_case(c, i);
    for (uint32_t i = 0; i < 300; i++)
        if (kc_case(c, "rope", i))
            rope_case(c, i);
}
