/*
 * kc_attn.c - checks of kv_put and attn. The judge computes each row by itself, the kernel a whole
 * tile: equality says that a prefill tile and a single decode row take the same steps.
 */
#include "kcheck.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/ref.h"

#define UNIT ((double)FLT_EPSILON / 2)

/* ---- kv_put ---------------------------------------------------------------------------------- */

struct put_call {
    const struct kernels *k;
    uint8_t *page; /* K then V of one head */
    const float *kx, *vx;
    int32_t t, dk, dv;
    enum kv_type type;
};

static void run_put(void *arg)
{
    struct put_call *p = arg;
    size_t v_off = (size_t)p->dk * KV_PAGE * kv_elem_bytes(p->type);
    p->k->kv_put(p->page, p->page + v_off, p->t, p->kx, p->vx, p->dk, p->dv, p->type);
}

static void put_case(struct kc *c, uint32_t i)
{
    enum kc_gen gen = kc_gen_of(c, i);
    struct put_call got = {.k = c->k,
                           .t = kc_int(c, 0, KV_PAGE - 1),
                           .dk = 16 * kc_int(c, 1, 8),
                           .dv = 16 * kc_int(c, 1, 8),
                           .type = i & 1 ? KV_F32 : KV_BF16};
    size_t n = (size_t)(got.dk + got.dv) * KV_PAGE * kv_elem_bytes(got.type);
    kc_shape(c, "%s t%d dk%d dv%d %s", got.type == KV_F32 ? "f32" : "bf16", got.t, got.dk, got.dv,
             kc_gen_name(gen));
    float *kx = kc_alloc(c, (size_t)got.dk * 4, 4, KC_IN);
    float *vx = kc_alloc(c, (size_t)got.dv * 4, 4, KC_IN);
    kc_fill(c, gen, kx, (size_t)got.dk);
    kc_fill(c, gen, vx, (size_t)got.dv);
    got.kx = kx;
    got.vx = vx;
    struct put_call want = got;
    want.k = c->judge;
    want.page = kc_alloc(c, n, 4, KC_OUT);
    got.page = kc_alloc(c, n, 4, KC_OUT);
    run_put(&want);
    if (kc_run(c, run_put, &got))
        kc_same_bytes(c, "page", got.page, want.page, n);
}

/* ---- attn ------------------------------------------------------------------------------------ */

struct attn_call {
    const struct kernels *k;
    struct attn_tile t;
    const struct kv_head *kv;
    bool single; /* row by row */
};

static void run_attn(void *arg)
{
    struct attn_call *a = arg;
    if (!a->single) {
        a->k->attn(&a->t, a->kv);
        return;
    }
    for (int32_t r = 0; r < a->t.n_row; r++) {
        struct attn_tile t = a->t;
        t.q += (size_t)r * t.q_stride;
        t.out += (size_t)r * t.out_stride;
        t.pos += r;
        t.mask += t.mask ? (size_t)r * t.mask_stride : 0;
        t.n_row = 1;
        a->k->attn(&t, a->kv);
    }
}

/* n_tok tokens through the judge's kv_put, into pages in one buffer; slots behind them hold NaN,
 * which a kernel that looks past its position would let through. */
static void kv_new(struct kc *c, struct kv_head *kv, int32_t n_tok, enum kc_gen gen)
{
    int32_t n_page = (n_tok + KV_PAGE - 1) / KV_PAGE;
    size_t elem = kv_elem_bytes(kv->type), tok = (size_t)(kv->dk + kv->dv) * elem;
    uint8_t *p = kc_alloc(c, (size_t)n_page * tok * KV_PAGE, 64, KC_IN);
    const uint8_t **pages = kc_alloc(c, (size_t)n_page * sizeof *pages, sizeof *pages, KC_IN);
    float *x = kc_alloc(c, (size_t)(kv->dk + kv->dv) * 4, 4, KC_IN);
    memset(p, 0, (size_t)n_page * tok * KV_PAGE);
    kv->k_off = 0;
    kv->v_off = (size_t)kv->dk * KV_PAGE * elem;
    for (int32_t i = 0; i < n_page; i++) /* in descending order: the table matters */
        pages[i] = p + (size_t)(n_page - 1 - i) * tok * KV_PAGE;
    for (int32_t t = 0; t < n_page * KV_PAGE; t++) {
        kc_fill(c, gen, x, (size_t)(kv->dk + kv->dv));
        for (int32_t j = 0; t >= n_tok && j < kv->dk + kv->dv; j++)
            x[j] = NAN;
        uint8_t *page = (uint8_t *)(uintptr_t)pages[t / KV_PAGE];
        c->judge->kv_put(page, page + kv->v_off, t % KV_PAGE, x, x + kv->dk, kv->dk, kv->dv,
                         kv->type);
    }
    kv->pages = pages;
}

static double kv_value(const struct kv_head *kv, int32_t t, int32_t i, bool is_k)
{
    size_t s = (size_t)(t % KV_PAGE), d = (size_t)i, dk = (size_t)kv->dk, dv = (size_t)kv->dv;
    const uint8_t *p = kv->pages[t / KV_PAGE] + (is_k ? kv->k_off : kv->v_off);
    if (kv->type == KV_F32) {
        float f;
        memcpy(&f, p + 4 * (is_k ? (s / 16 * dk + d) * 16 + s % 16 : s * dv + d), 4);
        return (double)f;
    }
    uint16_t h;
    memcpy(&h,
           p + 2 * (is_k ? (s / 16 * dk * 8 + d / 2 * 16 + s % 16) * 2 + d % 2
                         : (s / 2 * dv + d) * 2 + s % 2),
           2);
    return (double)ref_bf16(h);
}

static bool unseen(const struct attn_tile *t, int32_t r, int32_t i)
{
    return t->mask && !(t->mask[(size_t)r * t->mask_stride + (size_t)(i / 64)] >> (i % 64) & 1);
}

struct truth {                                    /* of one query, in double */
    double out[HEAD_DIM_MAX], mass[HEAD_DIM_MAX]; /* sum p v / l and sum p |v| / l */
    double s_max;                                 /* largest sum |q k| * scale */
    double v_max;
};

static void truth_one(const struct attn_call *a, int32_t r, int32_t h, struct truth *o)
{
    const struct attn_tile *t = &a->t;
    const struct kv_head *kv = a->kv;
    const float *q = t->q + (size_t)r * t->q_stride + (size_t)(h * kv->dk);
    int32_t pos = t->pos + r, lo = t->window && pos >= t->window ? pos - t->window + 1 : 0;
    double s[1024], m = t->sinks ? (double)t->sinks[h] : -INFINITY, l = 0;
    memset(o, 0, sizeof *o);
    o->s_max = t->sinks ? fabs(m) : 0;
    for (int32_t i = lo; i <= pos; i++) {
        double mass = 0;
        if (unseen(t, r, i))
            continue;
        s[i] = 0;
        for (int32_t d = 0; d < kv->dk; d++) {
            double p = (double)q[d] * kv_value(kv, i, d, true) * (double)t->scale;
            s[i] += p;
            mass += fabs(p);
        }
        m = fmax(m, s[i]);
        o->s_max = fmax(o->s_max, mass);
    }
    for (int32_t i = lo; i <= pos; i++) {
        if (unseen(t, r, i))
            continue;
        double p = exp(s[i] - m);
        l += p;
        for (int32_t d = 0; d < kv->dv; d++) {
            double v = kv_value(kv, i, d, false);
            o->out[d] += p * v;
            o->mass[d] += p * fabs(v);
            o->v_max = fmax(o->v_max, fabs(v));
        }
    }
    if (t->sinks)
        l += exp((double)t->sinks[h] - m);
    for (int32_t d = 0; d < kv->dv; d++) {
        o->out[d] /= l;
        o->mass[d] /= l;
    }
}

/* A score is a chain of dk fused multiply-adds after a product with the scale; e^s turns its error
 * into a relative one, to which the argument's own rounding (s - max, twice s_max at most) and the
 * exponential add. Numerator and denominator each carry it, and the roundings of their sums: one
 * per token and a few per block. Weights under e^-87.3 are e^-87.3. */
static void attn_truth(struct kc *c, const struct attn_call *a, int32_t n_tok)
{
    const struct attn_tile *t = &a->t;
    static struct truth o;
    for (int32_t r = 0; r < t->n_row; r++)
        for (int32_t h = 0; h < t->n_head; h++) {
            truth_one(a, r, h, &o);
            double rel = 2 * UNIT * ((a->kv->dk + 8) * o.s_max + 16) + (n_tok + 32) * UNIT;
            for (int32_t d = 0; d < a->kv->dv; d++)
                kc_near(c, "out",
                        (double)t->out[(size_t)r * t->out_stride + (size_t)(h * a->kv->dv + d)],
                        o.out[d], rel * o.mass[d] + n_tok * (o.v_max + 1) * 4 * (double)FLT_MIN);
        }
}

/* The reference in kernels/ref says the same as the formula above, to its float32 result. */
static void attn_ref(struct kc *c, const struct attn_call *a)
{
    const struct attn_tile *t = &a->t;
    static struct truth o;
    struct attn_tile ref = *t;
    size_t n = (size_t)(t->n_row - 1) * t->out_stride + (size_t)(t->n_head * a->kv->dv);
    ref.out = kc_alloc(c, n * 4, 4, KC_OUT);
    ref_attn(&ref, a->kv);
    truth_one(a, t->n_row - 1, t->n_head - 1, &o);
    for (int32_t d = 0; d < a->kv->dv; d++)
        kc_near(c, "ref_attn", (double)ref.out[n - (size_t)(a->kv->dv - d)], o.out[d],
                2 * UNIT * fabs(o.out[d]) + 1e-12 * o.mass[d] + (double)FLT_MIN);
}

/* Few or many tokens, sometimes none of a whole block; always the row's own. */
static const uint64_t *mask_new(struct kc *c, struct attn_tile *t)
{
    int32_t words = (t->pos + t->n_row + 63) / 64, sparse = kc_int(c, 0, 3);
    t->mask_stride = (size_t)(words + kc_int(c, 0, 2));
    size_t n = (size_t)(t->n_row - 1) * t->mask_stride + (size_t)words;
    uint64_t *m = kc_alloc(c, n * sizeof *m, sizeof *m, KC_IN);
    for (size_t i = 0; i < n; i++) {
        m[i] = kc_u64(c);
        for (int32_t j = 0; j < sparse; j++)
            m[i] &= kc_u64(c) & kc_u64(c);
    }
    for (int32_t r = 0; r < t->n_row; r++)
        m[(size_t)r * t->mask_stride + (size_t)((t->pos + r) / 64)] |= 1ull << ((t->pos + r) % 64);
    return m;
}

static void attn_inputs(struct kc *c, struct attn_tile *t, const struct kv_head *kv,
                        enum kc_gen gen)
{
    t->q_stride = (size_t)(t->n_head * kv->dk + kc_int(c, 0, 3));
    t->out_stride = (size_t)(t->n_head * kv->dv + kc_int(c, 0, 3));
    size_t n_q = (size_t)(t->n_row - 1) * t->q_stride + (size_t)(t->n_head * kv->dk);
    float *q = kc_alloc(c, n_q * 4, 4, KC_IN);
    kc_fill(c, gen, q, n_q);
    t->q = q;
    t->scale = 1.0f / sqrtf((float)kv->dk);
    if (kc_u64(c) % 3 == 0) {
        float *s = kc_alloc(c, (size_t)t->n_head * 4, 4, KC_IN);
        kc_fill(c, GEN_NORMAL, s, (size_t)t->n_head);
        t->sinks = s;
    }
    if (kc_u64(c) % 3 == 0)
        t->mask = mask_new(c, t);
    t->scratch = kc_alloc(c, ATTN_SCRATCH, 64, KC_OUT);
}

static void attn_case(struct kc *c, uint32_t i)
{
    static const int32_t edges[] = {0,   1,   15,  16,  63,  64,  65,  127, 254,
                                    255, 256, 257, 300, 511, 512, 513, 700};
    static const int32_t dims[] = {16, 32, 64, 64, 64, 80, 128, 192};
    static const int32_t windows[] = {0, 0, 1, 7, 16, 64, 256, 257, 500};
    enum kc_gen gen = i < GEN_N ? (enum kc_gen)i : kc_int(c, 0, 3) ? GEN_NORMAL : kc_gen_of(c, i);
    struct kv_head kv = {
        .dk = dims[kc_int(c, 0, 7)], .dv = dims[kc_int(c, 0, 7)], .type = i & 1 ? KV_F32 : KV_BF16};
    if (i % 50 == 49)
        kv.dk = 576, kv.dv = 512;
    struct attn_tile t = {.n_head = kc_int(c, 1, 9),
                          .pos = edges[kc_int(c, 0, 16)],
                          .window = windows[kc_int(c, 0, 8)]};
    t.n_row = i % 3 ? kc_int(c, 1, ATTN_Q_MAX / t.n_head) : 1;
    int32_t n_tok = t.pos + t.n_row;
    kc_shape(c, "%s dk%d dv%d heads %d rows %d pos %d window %d %s",
             kv.type == KV_F32 ? "f32" : "bf16", kv.dk, kv.dv, t.n_head, t.n_row, t.pos, t.window,
             kc_gen_name(gen));
    kv_new(c, &kv, n_tok, gen);
    attn_inputs(c, &t, &kv, gen);
    size_t n = (size_t)(t.n_row - 1) * t.out_stride + (size_t)(t.n_head * kv.dv);
    /* A value that is not finite reaches every row of its tile (weight 0 times NaN), so there the
     * judge takes the same tile. */
    struct attn_call got = {c->k, t, &kv, i % 7 == 6};
    struct attn_call want = {c->judge, t, &kv, gen != GEN_SPECIAL || got.single};
    want.t.out = kc_alloc(c, n * 4, 4, KC_OUT);
    got.t.out = kc_alloc(c, n * 4, 4, KC_OUT);
    run_attn(&want);
    if (!kc_run(c, run_attn, &got) || !kc_same(c, "out", got.t.out, want.t.out, n))
        return;
    if (gen != GEN_SPECIAL && gen != GEN_WILD)
        attn_truth(c, &got, n_tok);
    if (i % 5 == 0 && gen == GEN_NORMAL)
        attn_ref(c, &got);
}

void kc_attn(struct kc *c)
{
    for (uint32_t i = 0; i < 200; i++)
        if (kc_case(c, "kv_put", i))
            put_case(c, i);
    for (uint32_t i = 0; i < 400; i++)
        if (kc_case(c, "attn", i))
            attn_case(c, i);
}
