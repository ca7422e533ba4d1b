/*
 * kc_attn.c - checks of kv_put, kv_code, attn, its form over a latent and the index. The judge
 * computes each row by itself, the kernel a whole tile: equality says that a prefill tile and a
 * single decode row take the same steps.
 */
#include "kcheck.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kvq.h"
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

/* ---- kv_code --------------------------------------------------------------------------------- */

static const struct kv_form forms[] = {
    {8, 8, 64, false}, {4, 4, 64, false}, {8, 4, 32, true}, {8, 3, 32, true},   {4, 3, 32, true},
    {2, 2, 32, true},  {5, 5, 32, true},  {8, 8, 32, true}, {3, 6, 128, false}, {6, 2, 32, false},
    {5, 5, 64, false}, {2, 3, 64, false}, {4, 6, 64, true}, {8, 8, 32, false},
};
enum { N_FORM = sizeof forms / sizeof *forms };

/* Head sizes that a form can have, at most 256. */
static void form_dims(struct kc *c, struct kv_head *h)
{
    h->dk = h->form.group * kc_int(c, 1, 256 / h->form.group);
    h->dv =
        h->form.rotated ? 64 << kc_int(c, 0, 2) : h->form.group * kc_int(c, 1, 256 / h->form.group);
}

static const char *form_name(const struct kv_head *h)
{
    static char text[32];
    const struct kv_form *f = &h->form;
    if (h->type != KV_CODED)
        return h->type == KV_F32 ? "f32" : "bf16";
    snprintf(text, sizeof text, "k%dv%dg%d%s", f->k_bits, f->v_bits, f->group,
             f->rotated ? "r" : "");
    return text;
}

struct code_call {
    const struct kernels *k;
    const struct kv_head *h;
    uint8_t *page; /* K then V of one head */
    const float *kx, *vx;
    int32_t t;
};

static void run_code(void *arg)
{
    struct code_call *p = arg;
    p->k->kv_code(p->h, p->page, p->page + p->h->v_off, p->t, p->kx, p->vx);
}

static double group_amax(const float *x, int32_t d, int32_t group)
{
    double m = 0;
    for (int32_t i = d / group * group; i < d / group * group + group; i++)
        m = fmax(m, fabs((double)x[i]));
    return m;
}

/* How far apart the ends of d's group are. */
static double group_span(const float *x, int32_t d, int32_t group)
{
    double lo = INFINITY, hi = -INFINITY;
    for (int32_t i = d / group * group; i < d / group * group + group; i++) {
        lo = fmin(lo, (double)x[i]);
        hi = fmax(hi, (double)x[i]);
    }
    return hi - lo;
}

/* A value is at most one step off: half the span over n, more by the roundings of mid (half of
 * 2^-8 of it; what it is off widens the step) and of step (2^-7). */
static double affine_bound(const float *x, int32_t d, int32_t group, int bits)
{
    double n = (1 << bits) - 1, mid_off = group_amax(x, d, group) / 256;
    return (group_span(x, d, group) / 2 + mid_off) / n * (1 + 1.0 / 64) + 4 * (double)FLT_MIN;
}

static void code_truth(struct kc *c, const struct code_call *p)
{
    const uint8_t *pages[] = {p->page};
    struct kv_head h = *p->h;
    h.pages = pages;
    for (int32_t d = 0; d < h.dk; d++)
        kc_near(c, "key", kv_key_at(&h, p->t, d), (double)p->kx[d],
                affine_bound(p->kx, d, h.form.group, h.form.k_bits));
    for (int32_t d = 0; !h.form.rotated && d < h.dv; d++)
        kc_near(c, "value", kv_value_at(&h, p->t, d), (double)p->vx[d],
                affine_bound(p->vx, d, h.form.group, h.form.v_bits));
    if (!h.form.rotated)
        return;
    double mse[] = {0, 0, 0.117, 0.0345, 0.0095, 0.0025, 0.0006, 0, 0.00005}; /* of unit variance */
    double err = 0, mass = 0;
    for (int32_t d = 0; d < h.dv; d++) {
        double y = 0;
        for (int32_t j = 0; j < h.dv; j++)
            y += (__builtin_parity((unsigned)(d & j)) ? -1 : 1) * (double)kv_sign(h.dv)[j] *
                 (double)p->vx[j] / sqrt((double)h.dv);
        err += pow(kv_value_at(&h, p->t, d) - y, 2);
        mass += y * y;
    }
    kc_near(c, "rotated", err / (mass + 1e-60), 0, 3 * mse[h.form.v_bits] + 1e-6);
}

static void code_case(struct kc *c, uint32_t i)
{
    enum kc_gen gen = kc_gen_of(c, i);
    struct kv_head h = {.type = KV_CODED, .form = forms[i % N_FORM]};
    form_dims(c, &h);
    h.v_off = kv_key_bytes(KV_CODED, &h.form, h.dk);
    size_t n = h.v_off + kv_value_bytes(KV_CODED, &h.form, h.dv);
    struct code_call got = {.k = c->k, .h = &h, .t = kc_int(c, 0, KV_PAGE - 1)};
    kc_shape(c, "%s t%d dk%d dv%d %s", form_name(&h), got.t, h.dk, h.dv, kc_gen_name(gen));
    float *kx = kc_alloc(c, (size_t)h.dk * 4, 4, KC_IN),
          *vx = kc_alloc(c, (size_t)h.dv * 4, 4, KC_IN);
    kc_fill(c, gen, kx, (size_t)h.dk);
    kc_fill(c, gen, vx, (size_t)h.dv);
    if (gen == GEN_EXTREME && i % 3 == 0) /* the largest there are */
        for (int32_t d = 0; d < h.dk; d++)
            kx[d] = d % 2 ? FLT_MAX : -FLT_MAX;
    got.kx = kx;
    got.vx = vx;
    struct code_call want = got;
    want.k = c->judge;
    want.page = kc_alloc(c, n, 64, KC_OUT);
    got.page = kc_alloc(c, n, 64, KC_OUT);
    memcpy(want.page, got.page, n); /* neighbours stay as they are */
    run_code(&want);
    if (!kc_run(c, run_code, &got) || !kc_same_bytes(c, "page", got.page, want.page, n))
        return;
    if (gen == GEN_NORMAL || gen == GEN_EQUAL || gen == GEN_ZERO || gen == GEN_ONE_HOT)
        code_truth(c, &got);
    bool bad = false; /* huge is not a reason for NaN */
    const uint8_t *pages[] = {got.page};
    h.pages = pages;
    for (int32_t d = 0; d < h.dk; d++)
        bad = bad || !isfinite(kv_key_at(&h, got.t, d));
    for (int32_t d = 0; d < h.dv; d++)
        bad = bad || !isfinite(kv_value_at(&h, got.t, d));
    if (bad && gen != GEN_SPECIAL)
        kc_fail(c, "finite rows gave codes that are not");
}

/* ---- attn ------------------------------------------------------------------------------------ */

struct attn_call {
    const struct kernels *k;
    struct attn_tile t;
    const struct kv_head *kv;
    bool single;             /* row by row */
    struct attn_parts parts; /* step > 0: in pieces of so many blocks, merged behind */
};

/* Any order of the pieces will do. */
static void run_parts(const struct attn_call *a)
{
    for (int32_t i = a->parts.n_piece; i-- > 0;)
        a->k->attn_part(&a->t, a->kv, &a->parts, i);
    a->k->attn_merge(&a->t, a->kv, &a->parts);
}

static void run_attn(void *arg)
{
    struct attn_call *a = arg;
    void (*attn)(const struct attn_tile *, const struct kv_head *) =
        a->kv->latent ? a->k->latent_attn : a->k->attn;
    if (a->parts.step) {
        run_parts(a);
        return;
    }
    if (!a->single) {
        attn(&a->t, a->kv);
        return;
    }
    for (int32_t r = 0; r < a->t.n_row; r++) {
        struct attn_tile t = a->t;
        t.q += (size_t)r * t.q_stride;
        t.out += (size_t)r * t.out_stride;
        t.pos += t.level ? 0 : r;
        t.mask += t.mask ? (size_t)r * t.mask_stride : 0;
        t.n_row = 1;
        attn(&t, a->kv);
    }
}

static void put_token(struct kc *c, const struct kv_head *kv, uint8_t *page, int32_t t,
                      const float *x)
{
    if (kv->type == KV_CODED)
        c->judge->kv_code(kv, page, page + kv->v_off, t, x, x + kv->dk);
    else if (kv->latent)
        c->judge->latent_put(page + (size_t)(t * kv->dk) * kv_elem_bytes(kv->type), x, kv->dk,
                             kv->type);
    else
        c->judge->kv_put(page, page + kv->v_off, t, x, x + kv->dk, kv->dk, kv->dv, kv->type);
}

/* n_tok tokens through the judge, into pages in one buffer; slots behind them hold NaN, which a
 * kernel that looks past its position would let through. */
static void kv_new(struct kc *c, struct kv_head *kv, int32_t n_tok, enum kc_gen gen)
{
    int32_t n_page = (n_tok + KV_PAGE - 1) / KV_PAGE;
    kv->v_off = kv_key_bytes(kv->type, &kv->form, kv->dk);
    size_t bytes = kv->v_off + (kv->latent ? 0 : kv_value_bytes(kv->type, &kv->form, kv->dv));
    uint8_t *p = kc_alloc(c, (size_t)n_page * bytes, 64, KC_IN);
    const uint8_t **pages = kc_alloc(c, (size_t)n_page * sizeof *pages, sizeof *pages, KC_IN);
    float *x = kc_alloc(c, (size_t)(kv->dk + kv->dv) * 4, 4, KC_IN);
    memset(p, 0, (size_t)n_page * bytes);
    kv->k_off = 0;
    for (int32_t i = 0; i < n_page; i++) /* in descending order: the table matters */
        pages[i] = p + (size_t)(n_page - 1 - i) * bytes;
    for (int32_t t = 0; t < n_page * KV_PAGE; t++) {
        kc_fill(c, gen, x, (size_t)(kv->dk + kv->dv));
        for (int32_t j = 0; t >= n_tok && j < kv->dk + kv->dv; j++)
            x[j] = NAN;
        put_token(c, kv, (uint8_t *)(uintptr_t)pages[t / KV_PAGE], t % KV_PAGE, x);
    }
    kv->pages = pages;
}

static double kv_value(const struct kv_head *kv, int32_t t, int32_t i, bool is_k)
{
    size_t s = (size_t)(t % KV_PAGE), d = (size_t)i, dk = (size_t)kv->dk, dv = (size_t)kv->dv;
    const uint8_t *p = kv->pages[t / KV_PAGE] + (is_k ? kv->k_off : kv->v_off);
    if (kv->type == KV_CODED)
        return (is_k ? kv_key_at : kv_value_at)(kv, t, i);
    if (kv->latent) {
        uint16_t half = 0;
        float f = 0;
        memcpy(kv->type == KV_F32 ? (void *)&f : (void *)&half,
               kv->pages[t / KV_PAGE] + (s * dk + d) * kv_elem_bytes(kv->type),
               kv_elem_bytes(kv->type));
        return (double)(kv->type == KV_F32 ? f : ref_bf16(half));
    }
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

/* All keys and values of a head, so that each code is read once. */
struct kv_values {
    double k[1024][HEAD_DIM_MAX], v[1024][HEAD_DIM_MAX];
};
static struct kv_values values;

static void values_read(const struct kv_head *kv, int32_t n_tok)
{
    for (int32_t t = 0; t < n_tok; t++) {
        for (int32_t d = 0; d < kv->dk; d++)
            values.k[t][d] = kv_value(kv, t, d, true);
        for (int32_t d = 0; d < kv->dv; d++)
            values.v[t][d] = kv_value(kv, t, d, false);
    }
}

static bool unseen(const struct attn_tile *t, int32_t r, int32_t i)
{
    return t->mask && !(t->mask[(size_t)r * t->mask_stride + (size_t)(i / 64)] >> (i % 64) & 1);
}

struct truth {                                    /* of one query, in double */
    double out[HEAD_DIM_MAX], mass[HEAD_DIM_MAX]; /* sum p v / l and sum p |v| / l */
    double s_max;                                 /* largest sum |q k| * scale */
    double v_max;
    double q_off,
        w_off; /* coded: how far queries and weights as integers move a score, an output */
};

/* A query's dims become integers of its group's largest / 32512. */
static double query_off(const struct kv_head *kv, const float *q, int32_t i)
{
    double off = 0, most = 0;
    for (int32_t d = 0; d < kv->dk; d++) {
        if (d % kv->form.group == 0)
            most = group_amax(q, d, kv->form.group) / 65024;
        off += most * fabs(values.k[i][d]);
    }
    return off;
}

/* A page's weights become integers of the largest weight times step / 32512; a code stands for at
 * most the whole of |mid| + n steps, which the largest value of the page bounds. p: unnormalized
 * weights of tokens [lo, pos]. */
static double weights_off(const struct kv_head *kv, const double *p, int32_t lo, int32_t pos,
                          double v_max)
{
    double off = 0, n = kv_by_table(&kv->form) ? 127 : (1 << kv->form.v_bits) - 1;
    for (int32_t b = lo / KV_PAGE; b <= pos / KV_PAGE; b++) {
        double most = 0;
        for (int32_t i = b * KV_PAGE; i < (b + 1) * KV_PAGE; i++)
            if (i >= lo && i <= pos)
                most = fmax(most, p[i]);
        off += KV_PAGE * n / 65024 * most * (2 * v_max / n);
    }
    return off;
}

static void truth_unrotate(struct truth *o, int32_t n)
{
    double y[HEAD_DIM_MAX], mass = 0;
    memcpy(y, o->out, sizeof y);
    for (int32_t i = 0; i < n; i++)
        mass += o->mass[i];
    for (int32_t i = 0; i < n; i++) {
        double v = 0;
        for (int32_t j = 0; j < n; j++)
            v += __builtin_parity((unsigned)(i & j)) ? -y[j] : y[j];
        o->out[i] = v * kv_sign(n)[i] / sqrt((double)n);
        o->mass[i] = mass / sqrt((double)n);
    }
    o->w_off *= sqrt((double)n);
}

static void truth_one(const struct attn_call *a, int32_t r, int32_t h, struct truth *o)
{
    const struct attn_tile *t = &a->t;
    const struct kv_head *kv = a->kv;
    const float *q = t->q + (size_t)r * t->q_stride + (size_t)(h * kv->dk);
    int32_t pos = t->pos + (t->level ? 0 : r);
    int32_t lo = t->window && pos >= t->window ? pos - t->window + 1 : 0;
    double s[1024], m = t->sinks ? (double)t->sinks[h] : -INFINITY, l = 0;
    memset(o, 0, sizeof *o);
    o->s_max = t->sinks ? fabs(m) : 0;
    for (int32_t i = lo; i <= pos; i++) {
        double mass = 0;
        if (unseen(t, r, i))
            continue;
        s[i] = 0;
        for (int32_t d = 0; d < kv->dk; d++) {
            double p = (double)q[d] * values.k[i][d] * (double)t->scale;
            s[i] += p;
            mass += fabs(p);
        }
        m = fmax(m, s[i]);
        o->s_max = fmax(o->s_max, mass);
        if (kv->type == KV_CODED)
            o->q_off = fmax(o->q_off, query_off(kv, q, i) * (double)t->scale);
    }
    for (int32_t i = lo; i <= pos; i++) {
        double p = unseen(t, r, i) ? 0 : exp(s[i] - m);
        s[i] = p;
        l += p;
        for (int32_t d = 0; d < kv->dv; d++) {
            double v = values.v[i][d];
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
    if (kv->type != KV_CODED)
        return;
    o->w_off = weights_off(kv, s, lo, pos, o->v_max) / l;
    if (kv->form.rotated)
        truth_unrotate(o, kv->dv);
}

/* A score is a chain of dk fused multiply-adds after a product with the scale; e^s turns its error
 * into a relative one, to which the argument's own rounding (s - max, twice s_max at most) and the
 * exponential add. Numerator and denominator each carry it, and the roundings of their sums: one
 * per token and a few per block. Weights under e^-87.3 are e^-87.3. */
static void attn_truth(struct kc *c, const struct attn_call *a, int32_t n_tok)
{
    const struct attn_tile *t = &a->t;
    static struct truth o;
    values_read(a->kv, n_tok);
    for (int32_t r = 0; r < t->n_row; r++)
        for (int32_t h = 0; h < t->n_head; h++) {
            truth_one(a, r, h, &o);
            double rel = 2 * UNIT * ((a->kv->dk + 8) * o.s_max + 16) + (n_tok + 32) * UNIT;
            rel = expm1(rel + 2 * o.q_off);
            double off = o.w_off * (1 + rel) + n_tok * (o.v_max + 1) * 4 * (double)FLT_MIN;
            for (int32_t d = 0; d < a->kv->dv; d++)
                kc_near(c, "out",
                        (double)t->out[(size_t)r * t->out_stride + (size_t)(h * a->kv->dv + d)],
                        o.out[d], rel * o.mass[d] + off);
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

/* Few or many of the row's tokens, as a list and, for the judges, as a mask. */
static void choose(struct kc *c, struct attn_tile *t)
{
    int32_t *list = kc_alloc(c, (size_t)(t->pos + 1) * sizeof *list, sizeof *list, KC_IN);
    uint64_t *mask = kc_alloc(c, (size_t)(t->pos / 64 + 1) * 8, 8, KC_IN);
    int32_t one_in = kc_int(c, 1, 9);
    memset(mask, 0, (size_t)(t->pos / 64 + 1) * 8);
    t->n_token = 0;
    for (int32_t i = 0; i <= t->pos; i++)
        if (kc_int(c, 1, one_in) == 1 || (i == t->pos && !t->n_token)) {
            list[t->n_token++] = i;
            mask[i / 64] |= 1ull << (i % 64);
        }
    t->tokens = list;
    t->mask = mask;
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
    if (!kv->latent && kc_u64(c) % 3 == 0) {
        float *s = kc_alloc(c, (size_t)t->n_head * 4, 4, KC_IN);
        kc_fill(c, GEN_NORMAL, s, (size_t)t->n_head);
        t->sinks = s;
    }
    if (kv->latent && t->n_row == 1 && kc_u64(c) % 3)
        choose(c, t);
    if (!kv->latent && kc_u64(c) % 3 == 0 && !t->level)
        t->mask = mask_new(c, t);
    t->scratch = kc_alloc(c, ATTN_SCRATCH, 64, KC_OUT);
}

/* Room for the parts of a tile cut along its tokens. */
static struct attn_parts parts_new(struct kc *c, const struct attn_tile *t, int32_t dv)
{
    struct attn_parts p = {.step = kc_int(c, 1, 3)};
    p.n_piece = (attn_n_block(t->pos, t->n_row, t->window) + p.step - 1) / p.step;
    p.row_stride = (size_t)(p.step * t->n_head * (ATTN_PART + dv));
    p.piece_stride = p.row_stride * (size_t)t->n_row;
    p.p = kc_alloc(c, p.piece_stride * (size_t)p.n_piece * sizeof(float), 64, KC_OUT);
    return p;
}

static void attn_case(struct kc *c, uint32_t i, bool coded)
{
    static const int32_t edges[] = {0,   1,   15,  16,  63,  64,  65,  127, 254,
                                    255, 256, 257, 300, 511, 512, 513, 700};
    static const int32_t dims[] = {16, 32, 64, 64, 64, 80, 128, 192};
    static const int32_t windows[] = {0, 0, 1, 7, 16, 64, 256, 257, 500};
    enum kc_gen gen = i < GEN_N ? (enum kc_gen)i : kc_int(c, 0, 3) ? GEN_NORMAL : kc_gen_of(c, i);
    struct kv_head kv = {
        .dk = dims[kc_int(c, 0, 7)], .dv = dims[kc_int(c, 0, 7)], .type = i & 1 ? KV_F32 : KV_BF16};
    if (coded) {
        kv.type = KV_CODED;
        kv.form = forms[i % N_FORM];
        form_dims(c, &kv);
    }
    if (i % 50 == 49 && kv.form.group != 128)
        kv.dk = 576, kv.dv = 512;
    struct attn_tile t = {.n_head = kc_int(c, 1, 9),
                          .pos = edges[kc_int(c, 0, 16)],
                          .window = windows[kc_int(c, 0, 8)]};
    kv.latent = !coded && i % 4 >= 2;
    if (kv.latent) {
        kv.dv = kv.dv < kv.dk ? kv.dv : kv.dk;
        t.window = 0;
    }
    t.n_row = i % 3 ? kc_int(c, 1, ATTN_Q_MAX / t.n_head) : 1;
    t.level = !kv.latent && i % 5 == 2;
    int32_t n_tok = t.pos + t.n_row;
    kc_shape(c, "%s%s dk%d dv%d heads %d rows %d pos %d%s window %d %s", kv.latent ? "latent " : "",
             form_name(&kv), kv.dk, kv.dv, t.n_head, t.n_row, t.pos, t.level ? " level" : "",
             t.window, kc_gen_name(gen));
    kv_new(c, &kv, n_tok, gen);
    attn_inputs(c, &t, &kv, gen);
    size_t n = (size_t)(t.n_row - 1) * t.out_stride + (size_t)(t.n_head * kv.dv);
    /* A value that is not finite reaches every row of its tile (weight 0 times NaN), so there the
     * judge takes the same tile. */
    struct attn_call got = {c->k, t, &kv, i % 7 == 6, {0}};
    struct attn_call want = {c->judge, t, &kv, gen != GEN_SPECIAL || got.single, {0}};
    if (!kv.latent && !got.single && (i & 8))
        got.parts = parts_new(c, &t, kv.dv);
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

/* ---- the index ------------------------------------------------------------------------------ */

struct index_call {
    const struct kernels *k;
    struct index_query q;
    const uint8_t *keys;
    float *s;
};

static void run_index(void *arg)
{
    struct index_call *a = arg;
    a->k->index_score(a->s, a->keys, &a->q);
}

static void index_case(struct kc *c, uint32_t i)
{
    enum kc_gen gen = kc_gen_of(c, i);
    struct kv_head kv = {.dk = 16 * kc_int(c, 1, 9), .dv = 16, .type = i & 1 ? KV_F32 : KV_BF16};
    struct index_call got = {
        .k = c->k, .q = {.n_head = kc_int(c, 1, 9), .dk = kv.dk, .scale = 0.3f, .type = kv.type}};
    kc_shape(c, "%s dk%d heads %d %s", kv.type == KV_F32 ? "f32" : "bf16", kv.dk, got.q.n_head,
             kc_gen_name(gen));
    kv_new(c, &kv, 16, gen);
    float *q = kc_alloc(c, (size_t)(got.q.n_head * kv.dk) * 4, 4, KC_IN);
    float *w = kc_alloc(c, (size_t)got.q.n_head * 4, 4, KC_IN);
    kc_fill(c, gen, q, (size_t)(got.q.n_head * kv.dk));
    kc_fill(c, GEN_NORMAL, w, (size_t)got.q.n_head);
    got.q.q = q;
    got.q.w = w;
    got.keys = kv.pages[0];
    struct index_call want = got;
    want.k = c->judge;
    want.s = kc_alloc(c, 64, 4, KC_OUT);
    got.s = kc_alloc(c, 64, 4, KC_OUT);
    run_index(&want);
    if (!kc_run(c, run_index, &got) || !kc_same(c, "scores", got.s, want.s, 16) ||
        gen == GEN_SPECIAL || gen == GEN_WILD)
        return;
    for (int32_t t = 0; t < 16; t++) {
        double sum = 0, mass = 0;
        for (int32_t h = 0; h < got.q.n_head; h++) {
            double dot = 0, all = 0;
            for (int32_t d = 0; d < kv.dk; d++) {
                double p = (double)q[h * kv.dk + d] * kv_value(&kv, t, d, true);
                dot += p;
                all += fabs(p);
            }
            sum += (double)w[h] * (double)got.q.scale * fmax(dot, 0);
            mass += fabs((double)w[h]) * (double)got.q.scale * all;
        }
        kc_near(c, "score", (double)got.s[t], sum,
                UNIT * (kv.dk + got.q.n_head + 4) * mass + (double)FLT_MIN);
    }
}

void kc_attn(struct kc *c)
{
    for (uint32_t i = 0; i < 100; i++)
        if (kc_case(c, "index", i))
            index_case(c, i);
    for (uint32_t i = 0; i < 200; i++)
        if (kc_case(c, "kv_put", i))
            put_case(c, i);
    for (uint32_t i = 0; i < 400; i++)
        if (kc_case(c, "attn", i))
            attn_case(c, i, false);
    for (uint32_t i = 0; i < 200; i++)
        if (kc_case(c, "kv_code", i))
            code_case(c, i);
    for (uint32_t i = 0; i < 280; i++)
        if (kc_case(c, "attn_coded", i))
            attn_case(c, i, true);
}
