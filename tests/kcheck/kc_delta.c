/*
 * kc_delta.c - checks of the gated delta net's kernels: l2norm, conv_silu, delta_gates, delta.
 */
#include "kcheck.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

#define UNIT ((double)FLT_EPSILON / 2)

enum { TAPS_MAX = 6, ROWS_MAX = 37, HEAD_MAX = 128 };

struct delta_call {
    const struct kernels *k;
    float *y, *y2; /* outputs; delta: y is S */
    const float *x, *w;
    const float *rows[TAPS_MAX];
    struct delta_gate_in in;
    struct delta_rows t;
    float eps, scale;
    int32_t n, taps;
};

static void run_l2norm(void *arg)
{
    struct delta_call *r = arg;
    r->k->l2norm(r->y, r->x, r->eps, r->scale, r->n);
}

static void run_conv(void *arg)
{
    struct delta_call *r = arg;
    r->k->conv_silu(r->y, r->rows, r->w, r->taps, r->n);
}

static void run_gates(void *arg)
{
    struct delta_call *r = arg;
    r->k->delta_gates(r->y, r->y2, &r->in, r->n);
}

static void run_delta(void *arg)
{
    struct delta_call *r = arg;
    r->k->delta(r->y, &r->t);
}

static float *vec(struct kc *c, enum kc_gen gen, size_t n)
{
    float *p = kc_alloc(c, n * 4, 4, KC_IN);
    kc_fill(c, gen, p, n);
    return p;
}

static float *out(struct kc *c, size_t n)
{
    return kc_alloc(c, n * 4, 4, KC_OUT);
}

/* By the judge into want, by the kernel into r: false when they differ or it crashed. */
static bool same_two(struct kc *c, struct delta_call *r, void (*run)(void *), size_t n)
{
    struct delta_call want = *r;
    want.k = c->judge;
    r->k = c->k;
    want.y = out(c, n);
    want.y2 = out(c, n);
    r->y = out(c, n);
    r->y2 = out(c, n);
    run(&want);
    if (!kc_run(c, run, r) || !kc_same(c, "y", r->y, want.y, n))
        return false;
    return run != run_gates || kc_same(c, "beta", r->y2, want.y2, n);
}

/* As rmsnorm's bound (kc_rows.c), without its weight. */
static void l2norm_case(struct kc *c, uint32_t i)
{
    enum kc_gen gen = kc_gen_of(c, i);
    struct delta_call r = {.eps = 1e-6f, .scale = i & 1 ? 1.0f : 0.125f};
    r.n = i & 2 ? kc_int(c, 1, 40) : 16 * kc_int(c, 1, 16);
    kc_shape(c, "n%d %s", r.n, kc_gen_name(gen));
    r.x = vec(c, gen, (size_t)r.n);
    if (!same_two(c, &r, run_l2norm, (size_t)r.n) || gen == GEN_SPECIAL)
        return;
    float *want = out(c, (size_t)r.n);
    ref_l2norm(want, r.x, r.eps, r.scale, r.n);
    for (int32_t j = 0; j < r.n; j++)
        kc_near(c, "y", (double)r.y[j], (double)want[j],
                ((r.n / 16 + 6) * 0.5 + 5) * UNIT * fabs((double)want[j]) +
                    (fabs((double)r.x[j]) + 1) / sqrt((double)r.eps) * 4 * (double)FLT_MIN);
}

/* A rounding per tap of the sum's mass, through a slope of at most 1.1; then silu's own. */
static void conv_case(struct kc *c, uint32_t i)
{
    enum kc_gen gen = kc_gen_of(c, i);
    struct delta_call r = {.taps = kc_int(c, 1, TAPS_MAX)};
    r.n = i & 1 ? kc_int(c, 1, 40) : 16 * kc_int(c, 1, 40);
    kc_shape(c, "n%d taps %d %s", r.n, r.taps, kc_gen_name(gen));
    for (int32_t j = 0; j < r.taps; j++)
        r.rows[j] = vec(c, gen, (size_t)r.n);
    r.w = vec(c, GEN_NORMAL, (size_t)r.n * (size_t)r.taps);
    if (!same_two(c, &r, run_conv, (size_t)r.n) || gen == GEN_SPECIAL)
        return;
    float *want = out(c, (size_t)r.n);
    ref_conv_silu(want, r.rows, r.w, r.taps, r.n);
    for (int32_t j = 0; j < r.n; j++) {
        double mass = 0;
        for (int32_t t = 0; t < r.taps; t++)
            mass += fabs((double)r.rows[t][j] * (double)r.w[t * r.n + j]);
        kc_near(c, "y", (double)r.y[j], (double)want[j],
                1.1 * r.taps * UNIT * mass + 16 * UNIT * fabs((double)want[j]) +
                    (mass + r.taps) * 8 * (double)FLT_MIN);
    }
}

/* softplus carries 20 roundings and the one of a + dt, which weighs at most |x| + 1; the rate's
 * relative error times the rate is g's. */
static void gates_case(struct kc *c, uint32_t i)
{
    struct delta_call r = {.n = kc_int(c, 1, 70)};
    bool special = i % 8 == 7;
    double spread = i % 3 == 2 ? 30 : 2;
    float *v[4];
    kc_shape(c, "n%d spread %g%s", r.n, spread, special ? " special" : "");
    for (int j = 0; j < 4; j++) {
        v[j] = vec(c, special ? GEN_SPECIAL : GEN_NORMAL, (size_t)r.n);
        for (int32_t t = 0; t < r.n; t++)
            v[j][t] *= (float)(j == 3 ? 1 : spread);
    }
    r.in = (struct delta_gate_in){v[0], v[1], v[2], v[3]};
    if (!same_two(c, &r, run_gates, (size_t)r.n) || special)
        return;
    float *g = out(c, (size_t)r.n), *beta = out(c, (size_t)r.n);
    ref_delta_gates(g, beta, &r.in, r.n);
    for (int32_t j = 0; j < r.n; j++) {
        double x = (double)v[0][j] + (double)v[2][j];
        double rate = exp((double)v[3][j]) * (fmax(x, 0) + log1p(exp(-fabs(x))));
        kc_near(c, "g", (double)r.y[j], (double)g[j],
                (12 + fmin(rate, 100) * (32 + fabs(x))) * UNIT * (double)g[j] +
                    4 * (double)FLT_MIN);
        kc_near(c, "beta", (double)r.y2[j], (double)beta[j],
                14 * UNIT * (double)beta[j] + 4 * (double)FLT_MIN);
    }
}

static double top(const float *x, int32_t n)
{
    double m = 0;
    for (int32_t i = 0; i < n; i++)
        m = fmax(m, fabs((double)x[i]));
    return m;
}

static double mass_of(const float *x, int32_t n)
{
    double m = 0;
    for (int32_t i = 0; i < n; i++)
        m += fabs((double)x[i]);
    return m;
}

/* Largest error of S so far and largest |S|, carried through the recurrence row by row. */
struct drift {
    double err, size;
};

static double drift_row(struct drift *d, const struct delta_rows *t, int32_t r)
{
    const float *k = t->k + (size_t)r * t->ldx, *q = t->q + (size_t)r * t->ldx;
    double g = (double)t->g[(size_t)r * t->ldg], beta = (double)t->beta[(size_t)r * t->ldg];
    double chain = (t->dk / 2 + 3) * UNIT, kk = mass_of(k, t->dk), k_top = top(k, t->dk);
    double v = top(t->v + (size_t)r * t->ldx, t->dv), sk = g * kk * d->size;
    double delta_err = beta * (g * kk * (d->err + chain * d->size) + 4 * UNIT * (v + sk));
    double delta = beta * (v + sk);
    d->err = g * d->err + delta_err * k_top + 3 * UNIT * (g * d->size + delta * k_top);
    d->size = g * d->size + delta * k_top;
    return mass_of(q, t->dk) * (d->err + chain * d->size);
}

static float *copy_of(struct kc *c, const float *x, size_t n)
{
    float *p = out(c, n);
    memcpy(p, x, n * sizeof *p);
    return p;
}

static void delta_inputs(struct kc *c, struct delta_rows *t, enum kc_gen gen)
{
    size_t rows = (size_t)t->n_row;
    t->ldx = (size_t)(2 * t->dk + t->dv);
    t->ldg = 2;
    t->ldo = (size_t)t->dv + 3;
    float *x = vec(c, gen, rows * t->ldx), *gates = kc_alloc(c, rows * 8, 4, KC_IN);
    for (size_t j = 0; j < rows * 2; j++)
        gates[j] = (float)kc_int(c, 0, 1000) / 1000;
    if (gen == GEN_NORMAL) /* as in a model: unit keys keep S from growing */
        for (size_t r = 0; r < rows; r++)
            for (int32_t h = 0; h < 2; h++)
                ref_l2norm(x + r * t->ldx + h * t->dk, x + r * t->ldx + h * t->dk, 1e-6f, 1, t->dk);
    t->q = x;
    t->k = x + t->dk;
    t->v = x + 2 * t->dk;
    t->g = gates;
    t->beta = gates + 1;
}

static void delta_case(struct kc *c, uint32_t i)
{
    static const int32_t heads[] = {16, 48, 64, HEAD_MAX};
    enum kc_gen gen = i % 4 == 3 ? GEN_SPECIAL : i % 4 == 2 ? GEN_DENORMAL : GEN_NORMAL;
    struct delta_call r = {.k = c->k};
    struct delta_rows *t = &r.t;
    t->n_row = kc_int(c, 1, i & 1 ? ROWS_MAX : 4); /* tiles of rows, few rows */
    t->dk = heads[kc_int(c, 0, 3)];
    t->dv = heads[kc_int(c, 0, 3)];
    kc_shape(c, "dk%d dv%d rows %d %s", t->dk, t->dv, t->n_row, kc_gen_name(gen));
    size_t n = (size_t)t->dk * (size_t)t->dv;
    delta_inputs(c, t, gen);
    size_t n_out = (size_t)(t->n_row - 1) * t->ldo + (size_t)t->dv;
    const float *start = vec(c, GEN_NORMAL, n);
    bool apart = i % 3 == 0; /* S is read from where it then is, or from elsewhere */
    struct delta_call judge = r, ref = r;
    judge.k = c->judge;
    r.y = apart ? out(c, n) : copy_of(c, start, n);
    r.t.from = apart ? start : r.y;
    judge.y = copy_of(c, start, n);
    ref.y = copy_of(c, start, n);
    r.t.out = out(c, n_out);
    judge.t.out = copy_of(c, r.t.out, n_out); /* what lies between rows stays */
    ref.t.out = out(c, n_out);
    judge.t.from = judge.y;
    ref.t.from = ref.y;
    run_delta(&judge);
    if (!kc_run(c, run_delta, &r) || !kc_same(c, "S", r.y, judge.y, n) ||
        !kc_same(c, "out", r.t.out, judge.t.out, n_out) || gen == GEN_SPECIAL)
        return;
    struct drift d = {0, top(start, (int32_t)n)};
    ref_delta(ref.y, &ref.t);
    for (int32_t row = 0; row < t->n_row; row++) {
        double bound = drift_row(&d, t, row) + 1e3 * (double)FLT_MIN;
        for (int32_t j = 0; j < t->dv; j++)
            kc_near(c, "out", (double)r.t.out[(size_t)row * t->ldo + (size_t)j],
                    (double)ref.t.out[(size_t)row * t->ldo + (size_t)j], bound);
    }
    for (size_t j = 0; j < n; j++)
        kc_near(c, "S", (double)r.y[j], (double)ref.y[j], d.err + 1e3 * (double)FLT_MIN);
}

void kc_delta(struct kc *c)
{
    static const struct {
        const char *name;
        void (*fn)(struct kc *, uint32_t);
        uint32_t cases;
    } all[] = {{"l2norm", l2norm_case, 200},
               {"conv_silu", conv_case, 200},
               {"delta_gates", gates_case, 200},
               {"delta", delta_case, 120}};
    for (size_t f = 0; f < sizeof all / sizeof all[0]; f++)
        for (uint32_t i = 0; i < all[f].cases; i++)
            if (kc_case(c, all[f].name, i))
                all[f].fn(c, i);
}
