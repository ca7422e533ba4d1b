/*
 * kc_gemm.c - checks of quantize, gemm_q and pack_row_f32.
 *
 * gemm_q is called over a random split of its rows and outputs, so that equality with the portable
 * kernel's whole result also says: the split does not matter.
 */
#include "kcheck.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define UNIT (FLT_EPSILON / 2) /* relative error of one rounding */

/* ---- quantize -------------------------------------------------------------------------------- */

struct quant_call {
    const struct kernels *k;
    const float *x;
    struct qact q;
    int32_t rows;
};

static void quant_run(void *arg)
{
    struct quant_call *q = arg;
    for (int32_t r = 0; r < q->rows; r++)
        q->k->quantize(q->x + (size_t)r * (size_t)q->q.k, &q->q, r);
}

static struct qact qact_new(struct kc *c, int32_t rows, int32_t k, int32_t group, enum kc_role role)
{
    size_t n = (size_t)rows * (size_t)k, ng = (size_t)rows * (size_t)(k / group);
    struct qact q = {.k = k, .group = group};
    q.a = kc_alloc(c, n * 2, 2, role);
    q.scale = kc_alloc(c, ng * 4, 4, role);
    q.sum = kc_alloc(c, ng * 4, 4, role);
    return q;
}

/* The contract of one group, in double: rint's half unit, three roundings on the way there. */
static void quant_truth(struct kc *c, const float *x, const int16_t *a, float scale, float sum,
                        int32_t group)
{
    double amax = 0, total = 0;
    bool finite = true;
    for (int32_t i = 0; i < group; i++) {
        amax = fmax(amax, fabs((double)x[i]));
        finite = finite && isfinite(x[i]);
        total += a[i];
    }
    for (int32_t i = 0; i < group; i++) {
        if ((!finite || amax < 1e-30) && a[i] != 0)
            kc_fail(c, "a[%d] is %d in a group of zeros or not finite", i, a[i]);
        if (a[i] > 32512 || a[i] < -32512)
            kc_fail(c, "a[%d] is %d, beyond 32512", i, a[i]);
        if (finite && amax >= 1e-30)
            kc_near(c, "a*scale", a[i] * (double)scale, (double)x[i],
                    amax / 32512 * (0.5 + 32512 * 4 * (double)UNIT));
    }
    if (!finite)
        kc_near(c, "scale", (double)scale, NAN, 0);
    else if (amax < 1e-30)
        kc_near(c, "scale", (double)scale, 0, 0);
    else
        kc_near(c, "sum", (double)sum, total * (double)scale,
                fabs(total * (double)scale) * (double)UNIT + (double)FLT_MIN);
}

static void quant_case(struct kc *c, uint32_t i)
{
    static const int32_t groups[] = {16, 32, 64, 128};
    int32_t group = groups[kc_int(c, 0, 3)], k = group * kc_int(c, 1, 12), rows = kc_int(c, 1, 3);
    size_t n = (size_t)rows * (size_t)k, ng = (size_t)rows * (size_t)(k / group);
    enum kc_gen gen = kc_gen_of(c, i);
    kc_shape(c, "g%d k%d rows %d %s", group, k, rows, kc_gen_name(gen));
    float *x = kc_alloc(c, n * 4, 4, KC_IN);
    kc_fill(c, gen, x, n);
    struct quant_call want = {c->judge, x, qact_new(c, rows, k, group, KC_OUT), rows};
    struct quant_call got = {c->k, x, qact_new(c, rows, k, group, KC_OUT), rows};
    quant_run(&want);
    if (!kc_run(c, quant_run, &got))
        return;
    kc_same_bytes(c, "a", got.q.a, want.q.a, n * 2);
    kc_same(c, "scale", got.q.scale, want.q.scale, ng);
    kc_same(c, "sum", got.q.sum, want.q.sum, ng);
    for (size_t g = 0; g < ng; g++)
        quant_truth(c, x + g * (size_t)group, got.q.a + g * (size_t)group, got.q.scale[g],
                    got.q.sum[g], group);
}

/* ---- gemm_q ---------------------------------------------------------------------------------- */

struct gemm_case {
    struct kc_weight t;
    struct qact x;
    const float *xf; /* the activations before rounding; NULL when x was made as integers */
    int32_t m0, nm, b0, b1;
    size_t ldd;
    void *scratch;
};

struct gemm_call {
    const struct kernels *k;
    const struct gemm_case *g;
    float *dst;
    int32_t split_b, split_m; /* first block, row of the second part */
};

static void gemm_run(void *arg)
{
    const struct gemm_call *a = arg;
    const struct gemm_case *g = a->g;
    int32_t b[3] = {g->b0, a->split_b, g->b1}, m[3] = {0, a->split_m, g->nm};
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            if (b[i] < b[i + 1] && m[j] < m[j + 1])
                a->k->gemm_q(&g->t.w, b[i], b[i + 1], &g->x, g->m0 + m[j], m[j + 1] - m[j],
                             a->dst + (size_t)m[j] * g->ldd + (size_t)(b[i] - g->b0) * PACK_ROWS,
                             g->ldd, g->scratch);
}

/* Output (row, m) in double and the most that the canonical arithmetic may be off:
 *   rounding the activations   |x - a*as| <= 0.51 as (as = amax/32512), times |w|
 *   float32 combination        per group 2 fma and 3 single roundings on terms s*as*dot, b*asum
 *   flush to zero              of scale, scale*as or a sum below FLT_MIN */
static void gemm_truth(struct kc *c, const struct gemm_case *g, int32_t row, int32_t m, float got)
{
    const struct packed *w = &g->t.w;
    const int32_t k = w->k, group = w->group, ng = k / group;
    const uint8_t *q = g->t.code + (size_t)row * (size_t)k;
    double y = 0, bound = 0, mass = 0, flush = 8.0 * ng;
    for (int32_t j = 0; j < ng; j++) {
        double s = (double)g->t.scale[(size_t)row * (size_t)ng + (size_t)j];
        double b = (double)g->t.bias[(size_t)row * (size_t)ng + (size_t)j];
        size_t at = (size_t)m * (size_t)ng + (size_t)j;
        double as = (double)g->x.scale[at], amax = 0, wsum = 0, dot = 0, xsum = 0, asum = 0;
        for (int32_t i = j * group; i < (j + 1) * group; i++) {
            double a = g->x.a[(size_t)m * (size_t)k + (size_t)i];
            double x = g->xf ? (double)g->xf[(size_t)m * (size_t)k + (size_t)i] : a * as;
            y += (q[i] * s + b) * x;
            wsum += fabs(q[i] * s + b);
            xsum += fabs(x);
            amax = fmax(amax, fabs(x));
            dot += q[i] * a;
            asum += a;
        }
        if (g->xf)
            bound += (amax < 1e-30 ? amax : 0.51 * amax / 32512) * wsum;
        mass += fabs(s * as * dot) + fabs(b * as * asum);
        flush += fabs(dot) + 256 * xsum + fabs(asum);
    }
    bound += (2 * ng + 6) * (double)UNIT * mass + flush * (double)FLT_MIN;
    kc_near(c, "output", (double)got, y, bound);
}

static void integer_acts(struct kc *c, const struct qact *q, int32_t rows)
{
    int mode = kc_int(c, 0, 2); /* all +max, alternating, random */
    size_t n = (size_t)rows * (size_t)q->k, group = (size_t)q->group;
    for (size_t i = 0; i < n; i++)
        q->a[i] = (int16_t)(mode == 0   ? 32512
                            : mode == 1 ? (i & 1 ? -32512 : 32512)
                                        : kc_int(c, -32512, 32512));
    kc_fill(c, GEN_NORMAL, q->scale, n / group);
    for (size_t g = 0; g < n / group; g++) {
        double sum = 0;
        for (size_t i = 0; i < group; i++)
            sum += q->a[g * group + i];
        q->scale[g] = fabsf(q->scale[g]) / 32512;
        q->sum[g] = (float)sum * q->scale[g];
    }
}

static void activations(struct kc *c, struct gemm_case *g, enum kc_gen gen)
{
    const struct packed *w = &g->t.w;
    int32_t rows = g->m0 + g->nm;
    g->x = qact_new(c, rows, w->k, w->group, KC_IN);
    g->xf = NULL;
    if (gen == GEN_EXTREME) {
        integer_acts(c, &g->x, rows);
        return;
    }
    float *x = kc_alloc(c, (size_t)rows * (size_t)w->k * 4, 4, KC_IN);
    kc_fill(c, gen, x, (size_t)rows * (size_t)w->k);
    for (int32_t r = 0; r < rows; r++)
        c->judge->quantize(x + (size_t)r * (size_t)w->k, &g->x, r);
    g->xf = x;
}

/* Runs blocks [b0, b1) on the kernel and on the judge and compares everything, gaps included. */
static void gemm_compare(struct kc *c, struct gemm_case *g)
{
    const struct packed *w = &g->t.w;
    int32_t cols = (g->b1 * PACK_ROWS < w->n ? g->b1 * PACK_ROWS : w->n) - g->b0 * PACK_ROWS;
    g->ldd = (size_t)(cols + kc_int(c, 0, 5));
    size_t n = (size_t)(g->nm - 1) * g->ldd + (size_t)cols;
    struct gemm_call want = {c->judge, g, kc_alloc(c, n * 4, 4, KC_OUT), g->b1, g->nm};
    struct gemm_call got = {c->k, g, kc_alloc(c, n * 4, 4, KC_OUT), kc_int(c, g->b0, g->b1),
                            kc_int(c, 0, g->nm)};
    gemm_run(&want);
    if (!kc_run(c, gemm_run, &got) || !kc_same(c, "dst", got.dst, want.dst, n))
        return;
    for (int s = 0; s < 32; s++) {
        int32_t m = kc_int(c, 0, g->nm - 1), r = kc_int(c, 0, cols - 1);
        gemm_truth(c, g, g->b0 * PACK_ROWS + r, g->m0 + m, got.dst[(size_t)m * g->ldd + (size_t)r]);
    }
    for (int32_t m = 0; m + 1 < g->nm; m++)
        for (size_t i = (size_t)cols; i < g->ldd; i++) {
            uint32_t u;
            memcpy(&u, &got.dst[(size_t)m * g->ldd + i], 4);
            if (u != 0xA5A5A5A5u)
                kc_fail(c, "the gap behind row %d was written", m);
        }
}

static void check_row(struct kc *c, const struct gemm_case *g)
{
    const struct packed *w = &g->t.w;
    int32_t row = kc_int(c, 0, w->n - 1), ng = w->k / w->group;
    float *got = kc_alloc(c, (size_t)w->k * 4, 4, KC_OUT);
    pack_row_f32(w, row, got);
    for (int32_t i = 0; i < w->k; i++) {
        size_t j = (size_t)row * (size_t)ng + (size_t)(i / w->group);
        float q = g->t.code[(size_t)row * (size_t)w->k + (size_t)i];
        float want = fmaf(g->t.scale[j], q, g->t.bias[j]);
        if (!kc_same(c, "pack_row_f32", &got[i], &want, 1))
            return;
    }
}

static void gemm_case(struct kc *c, uint32_t i, const struct packed *w, int32_t nm)
{
    struct gemm_case g = {.t.w = *w, .nm = nm};
    enum kc_gen gen = (enum kc_gen)(i % GEN_N);
    g.t.w.n = kc_int(c, 1, 5) * PACK_ROWS - (kc_u64(c) & 1 ? 0 : kc_int(c, 1, 15));
    g.t.w.k = w->group * kc_int(c, 1, 640 / w->group);
    g.m0 = kc_int(c, 0, 2);
    g.b1 = pack_n_block(g.t.w.n);
    kc_shape(c, "%s%s %s g%d n%d k%d m%d+%d %s", kc_kind_name(w->kind),
             w->centred ? " centred" : "", kc_scale_name(w->scale), w->group, g.t.w.n, g.t.w.k,
             g.m0, nm, kc_gen_name(gen));
    kc_weight_q(c, &g.t, gen == GEN_SPECIAL ? GEN_NORMAL : gen);
    g.scratch = kc_alloc(c, GEMM_SCRATCH, 64, KC_OUT);
    /* ordinary activations against unusual weights and the reverse, as well as both unusual */
    activations(c, &g, i / GEN_N % 3 == 0 && gen != GEN_SPECIAL ? GEN_NORMAL : gen);
    gemm_compare(c, &g);
    check_row(c, &g);
}

/* Without biases in memory too: each kind with each number of rows. */
static int centred_too(enum pack_kind kind, enum scale_type t, size_t m)
{
    return kind != PACK_E2M1 && m % 3 == (size_t)t;
}

static void gemm_shapes(struct kc *c)
{
    static const int32_t groups[] = {16, 32, 64, 128};
    static const int32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 31, 33, 129};
    uint32_t i = 0;
    for (enum pack_kind kind = PACK_U2; kind <= PACK_E2M1; kind++)
        for (enum scale_type t = SCALE_F16; t <= SCALE_F32; t++)
            for (int g = 0; g < 4; g++)
                for (size_t m = 0; m < sizeof rows / sizeof *rows; m++)
                    for (int r = 0; r < (kind == PACK_U4 ? 2 : 1) + centred_too(kind, t, m);
                         r++, i++) {
                        struct packed w = {.kind = kind, .scale = t, .group = groups[g]};
                        w.centred = r == (kind == PACK_U4 ? 2 : 1);
                        bool halves = kind == PACK_U4 || kind == PACK_U8 || kind == PACK_E2M1;
                        if ((g > 0 || halves) && kc_case(c, "gemm_q", i))
                            gemm_case(c, i, &w, rows[m]);
                    }
}

/* The matrices of SmolLM2-135M (and their longest row counts): the kernel works on all of it, the
 * judge on some blocks. */
static void gemm_real(struct kc *c)
{
    static const struct {
        enum pack_kind kind;
        int32_t n, k, group;
    } real[] = {{PACK_U4, 576, 576, 32},   {PACK_U4, 192, 576, 64},   {PACK_U4, 1536, 576, 32},
                {PACK_U4, 576, 1536, 128}, {PACK_U8, 576, 1536, 64},  {PACK_U8, 49152, 576, 32},
                {PACK_U4, 49152, 576, 64}, {PACK_U6, 576, 1536, 64},  {PACK_U3, 1536, 576, 64},
                {PACK_U5, 576, 576, 32},   {PACK_E2M1, 1536, 576, 32}};
    static const int32_t rows[] = {1, 4, 8, 17, 64};
    uint32_t i = 0;
    for (size_t s = 0; s < sizeof real / sizeof *real; s++)
        for (size_t m = 0; m < sizeof rows / sizeof *rows; m++, i++) {
            bool head = real[s].n > 4096;
            if ((head && m != s % 2) || !kc_case(c, "gemm_q_real", i))
                continue;
            struct gemm_case g = {.nm = rows[m],
                                  .t.w = {.kind = real[s].kind,
                                          .scale = SCALE_BF16,
                                          .n = real[s].n,
                                          .k = real[s].k,
                                          .group = real[s].group}};
            kc_shape(c, "%s bf16 g%d n%d k%d m%d", kc_kind_name(real[s].kind), real[s].group,
                     real[s].n, real[s].k, rows[m]);
            kc_weight_q(c, &g.t, GEN_NORMAL);
            g.scratch = kc_alloc(c, GEMM_SCRATCH, 64, KC_OUT);
            activations(c, &g, GEN_NORMAL);
            for (int part = 0; part < 3; part++) {
                int32_t last = pack_n_block(g.t.w.n);
                g.b0 = part == 0 ? 0 : part == 1 ? last - 4 : kc_int(c, 0, last - 4);
                g.b1 = g.b0 + 4;
                gemm_compare(c, &g);
            }
        }
}

/* A late worker may read activations while they are being replaced: any bits must be safe to
 * compute with. Nothing is said about the result, so only memory is checked. */
static void gemm_torn(struct kc *c)
{
    for (uint32_t i = 0; i < 6 * PACK_INT_KINDS; i++) {
        if (!kc_case(c, "gemm_q_torn", i))
            continue;
        struct gemm_case g = {.nm = kc_int(c, 1, 40),
                              .t.w = {.kind = (enum pack_kind)(i % PACK_INT_KINDS),
                                      .scale = SCALE_F16,
                                      .n = kc_int(c, 1, 70),
                                      .k = 128 * kc_int(c, 1, 6),
                                      .group = 128}};
        kc_shape(c, "%s n%d k%d m%d", kc_kind_name(g.t.w.kind), g.t.w.n, g.t.w.k, g.nm);
        kc_weight_q(c, &g.t, GEN_EXTREME);
        g.scratch = kc_alloc(c, GEMM_SCRATCH, 64, KC_OUT);
        g.x = qact_new(c, g.nm, g.t.w.k, 128, KC_IN);
        size_t n = (size_t)g.nm * (size_t)g.t.w.k;
        for (size_t j = 0; j < n; j++)
            g.x.a[j] = (int16_t)kc_u64(c);
        for (size_t j = 0; j < n / 128; j++) {
            uint32_t u[2] = {(uint32_t)kc_u64(c), (uint32_t)kc_u64(c)};
            memcpy(&g.x.scale[j], &u[0], 4);
            memcpy(&g.x.sum[j], &u[1], 4);
        }
        g.b1 = pack_n_block(g.t.w.n);
        g.ldd = (size_t)g.t.w.n;
        struct gemm_call got = {c->k, &g, kc_alloc(c, g.ldd * (size_t)g.nm * 4, 4, KC_OUT), g.b1,
                                g.nm};
        kc_run(c, gemm_run, &got);
    }
}

void kc_gemm(struct kc *c)
{
    for (uint32_t i = 0; i < 400; i++)
        if (kc_case(c, "quantize", i))
            quant_case(c, i);
    gemm_shapes(c);
    gemm_real(c);
    gemm_torn(c);
}
