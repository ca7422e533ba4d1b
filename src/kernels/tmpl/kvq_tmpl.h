/*
 * kvq_tmpl.h - coded KV memory (kernels/kvq.h), compiled for each instruction set: coding a token,
 * and the two products of attention on codes as they lie there.
 *
 * Both products are exact sums of integers, as those of integer weights are (docs/numerics.md): the
 * other factor - the query of a group of dims, or a page's weights times the steps of their tokens
 * - becomes 16-bit fixed point first.
 *
 *   scores    over ascending groups of dims:  t = step as;  y = fma(t, dot, y);  y = fma(mid, asum,
 * y) with dot the sum of a (2u - n), asum the sum of a times as outputs   over ascending pages of a
 * block:  y = fma(ws, dot, y);  y = y + wm with dot the sum of w (2u - n) (or of w times levels),
 * w ws = p step rounded, wm = the sum of p mid, 16 lanes over ascending tokens, then the tree
 */

#ifdef KERN_SMALL_CODE
#define KVQ_INLINE static
#define KVQ_UNROLL
#else
#define KVQ_INLINE static inline __attribute__((always_inline))
#define KVQ_UNROLL _Pragma("GCC unroll 16")
#endif

/* ---- coding ---------------------------------------------------------------------------------- */

/* Beyond these, sums and differences of a group could overflow. */
#define KVQ_MOST         3.3e38f
#define KVQ_MOST_ROTATED 1.0e37f

static inline float bf16_value(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Upwards; f is not negative. What float32 would flush is 0. */
static inline uint16_t bf16_above(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u < 0x00800000u ? 0 : (uint16_t)((u + 0xFFFFu) >> 16);
}

struct kvq_group {
    uint16_t step, mid;
    int16_t u[128];
};

static bool kvq_finite(const float *x, int32_t n)
{
    vf bad = vf_set1(0);
    for (int32_t i = 0; i < n; i += 16)
        bad = vf_fma(vf_load(x + i), vf_set1(0), bad);
    return vf_sum(bad) == 0;
}

static void kvq_poison(struct kvq_group *o)
{
    o->step = o->mid = 0x7FC0;
    memset(o->u, 0, sizeof o->u);
}

/* u = rint((x - mid) inv + n/2), kept inside [0, n] */
static void kvq_round(struct kvq_group *o, const float *x, int32_t group, float mid, int32_t n)
{
    float step = bf16_value(o->step), inv = step > 0 ? 0.5f / step : 0;
    vf m = vf_set1(mid), f = vf_set1(inv), half = vf_set1(0.5f * (float)n);
    for (int32_t i = 0; i < group; i += 16) {
        vf v = vf_rint(vf_fma(vf_sub(vf_load(x + i), m), f, half));
        vf_store_i16(o->u + i, vf_min(vf_set1((float)n), vf_max(v, vf_set1(0))));
    }
}

static void kvq_affine(struct kvq_group *o, const float *x, int32_t group, int bits)
{
    float t[128];
    vf lo = vf_set1(KVQ_MOST), hi = vf_set1(-KVQ_MOST);
    if (!kvq_finite(x, group)) {
        kvq_poison(o);
        return;
    }
    for (int32_t i = 0; i < group; i += 16) {
        vf v = vf_min(vf_set1(KVQ_MOST), vf_max(vf_load(x + i), vf_set1(-KVQ_MOST)));
        vf_store(t + i, v);
        lo = vf_min(lo, v);
        hi = vf_max(hi, v);
    }
    int32_t n = (1 << bits) - 1;
    float low = -vf_hmax(vf_sub(vf_set1(0), lo)), high = vf_hmax(hi);
    o->mid = bf16_of(0.5f * low + 0.5f * high);
    float mid = bf16_value(o->mid), up = high - mid, down = mid - low;
    o->step = bf16_above((up > down ? up : down) / (float)n);
    kvq_round(o, t, group, mid, n);
}

/* Unnormalized Walsh-Hadamard transform in place: butterflies of rising width. */
static void kvq_hadamard(float *x, int32_t d)
{
    for (int32_t h = 1; h < d; h *= 2)
        for (int32_t i = 0; i < d; i += 2 * h)
            for (int32_t j = i; j < i + h; j++) {
                float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
}

static void kvq_rotate(float *y, const float *x, int32_t d)
{
    const int8_t *sign = kv_sign(d);
    vf lo = vf_set1(-KVQ_MOST_ROTATED), hi = vf_set1(KVQ_MOST_ROTATED);
    for (int32_t i = 0; i < d; i += 16)
        vf_store(y + i, vf_min(hi, vf_max(lo, vf_load(x + i))));
    for (int32_t i = 0; i < d; i++)
        y[i] *= sign[i];
    kvq_hadamard(y, d);
    vf r = vf_set1(1.0f / sqrtf((float)d));
    for (int32_t i = 0; i < d; i += 16)
        vf_store(y + i, vf_mul(vf_load(y + i), r));
}

/* The other way, in place. */
static void kvq_unrotate(float *y, int32_t d)
{
    const int8_t *sign = kv_sign(d);
    float r = 1.0f / sqrtf((float)d);
    kvq_hadamard(y, d);
    for (int32_t i = 0; i < d; i++)
        y[i] = y[i] * r * sign[i];
}

static float kvq_amax(const float *x, int32_t n)
{
    vf m = vf_set1(0);
    for (int32_t i = 0; i < n; i += 16)
        m = vf_max(vf_abs(vf_load(x + i)), m);
    return vf_hmax(m);
}

/* u = how many of the 2^bits - 1 places between levels lie below y / step */
static void kvq_levels(struct kvq_group *o, const float *y, int32_t group, int bits)
{
    const int8_t *c = kv_centroid(bits);
    float amax = kvq_amax(y, group), r = amax > 1e-30f ? 1 / amax : 0;
    vf sum = vf_set1(0);
    for (int32_t i = 0; i < group; i += 16) {
        vf v = vf_mul(vf_load(y + i), vf_set1(r));
        sum = vf_fma(v, v, sum);
    }
    float rms = r > 0 ? amax * sqrtf(vf_sum(sum) / (float)group) : 0;
    uint16_t h = bf16_of(rms * (kv_outermost(bits) / 127.0f));
    o->step = h < 0x0080 ? 0 : h;
    o->mid = 0;
    float step = bf16_value(o->step), inv = step > 0 ? 1 / step : 0;
    for (int32_t i = 0; i < group; i++) {
        float z = y[i] * inv;
        int16_t u = 0;
        for (int32_t j = 0; j < (1 << bits) - 1; j++)
            u = (int16_t)(u + (z > 0.5f * (float)(c[j] + c[j + 1])));
        o->u[i] = u;
    }
}

static void kvq_even(struct kvq_group *o, const float *y, int32_t group, int bits)
{
    int32_t n = (1 << bits) - 1;
    o->step = bf16_above(kvq_amax(y, group) / (float)n);
    o->mid = 0;
    kvq_round(o, y, group, 0, n);
}

/* The words of a token's keys are its own. */
static void kvq_put_key(uint8_t *lines, int lane, const int16_t *u, int32_t group, int bits)
{
    lines += lane * 4;
    if (bits == 8)
        for (int32_t i = 0; i < group; i += 4, lines += 64) {
            uint32_t w = (uint32_t)u[i] | (uint32_t)u[i + 2] << 8 | (uint32_t)u[i + 1] << 16 |
                         (uint32_t)u[i + 3] << 24;
            memcpy(lines, &w, 4);
        }
    else if (bits == 4)
        for (int32_t i = 0; i < group; i += 8, lines += 64) {
            uint32_t w = 0;
            for (int j = 0; j < 4; j++)
                w |= (uint32_t)u[i + 2 * j] << (4 * j) | (uint32_t)u[i + 2 * j + 1] << (16 + 4 * j);
            memcpy(lines, &w, 4);
        }
    else
        for (int32_t i = 0; i < group; i++)
            kv_code_put(lines, bits, 0, i, (uint32_t)u[i]);
}

/* 16 dims of a token's values among those of its neighbours. */
static void kvq_put_value(uint8_t *lines, int32_t slot, const int16_t *u, int bits)
{
    if (bits == 8) {
        lines += slot / 4 * 64 + slot % 2 * 2 + slot / 2 % 2;
        for (int i = 0; i < 16; i++)
            lines[i * 4] = (uint8_t)u[i];
        return;
    }
    for (int i = 0; i < 16; i++)
        kv_code_put(lines, bits, i, slot, (uint32_t)u[i]);
}

static void tmpl_kv_code(const struct kv_head *h, uint8_t *k, uint8_t *v, int32_t t,
                         const float *kx, const float *vx)
{
    const struct kv_form f = h->form;
    struct kvq_group o;
    int lane = t % 16;
    k += (size_t)(t / 16) * (size_t)(h->dk / f.group) * kv_key_group_bytes(&f);
    for (int32_t d = 0; d < h->dk; d += f.group, k += kv_key_group_bytes(&f)) {
        kvq_affine(&o, kx + d, f.group, f.k_bits);
        memcpy(k + 2 * lane, &o.step, 2);
        memcpy(k + 32 + 2 * lane, &o.mid, 2);
        kvq_put_key(k + KV_KEY_HEAD, lane, o.u, f.group, f.k_bits);
    }
    float rotated[HEAD_DIM_MAX];
    bool finite = !f.rotated || kvq_finite(vx, h->dv);
    if (f.rotated && finite)
        kvq_rotate(rotated, vx, h->dv);
    const float *x = f.rotated ? rotated : vx;
    uint8_t *lines = v + (size_t)(h->dv / f.group) * kv_value_head_bytes(&f);
    for (int32_t d = 0; d < h->dv; d += f.group, v += kv_value_head_bytes(&f)) {
        if (!finite)
            kvq_poison(&o);
        else if (!f.rotated)
            kvq_affine(&o, x + d, f.group, f.v_bits);
        else
            (kv_by_table(&f) ? kvq_levels : kvq_even)(&o, x + d, f.group, f.v_bits);
        memcpy(v + 2 * t, &o.step, 2);
        if (!f.rotated)
            memcpy(v + 2 * (KV_PAGE + t), &o.mid, 2);
        for (int32_t i = 0; i < f.group; i += 16, lines += kv_value_line_bytes(&f))
            kvq_put_value(lines, t, o.u + i, f.v_bits);
    }
}

/* ---- products --------------------------------------------------------------------------------
 */

/* Vectors of 16-bit integers, in scratch. */
struct kvq_rows {
    int16_t *a;  /* [n_q][lda] */
    float *as;   /* [n_q][n_group] */
    float *asum; /* of queries: as times the sum of integers; of weights: the sum of p mid */
    float *sum;  /* of integers; exact */
    int32_t lda, n_group;
};

static void kvq_quantize(const struct kvq_rows *r, int32_t i, int32_t g, const float *x,
                         int32_t group)
{
    size_t at = (size_t)(i * r->n_group + g);
    r->sum[at] = quantize_group(r->a + (size_t)i * (size_t)r->lda + (size_t)g * (size_t)group, x,
                                group, &r->as[at]);
}

/* acc[i nb + b] += row i of a times the codes of block b, n inputs. */
KVQ_INLINE void kvq_dot(vi *acc, const uint8_t *p, size_t step, const int16_t *a, size_t lda,
                        int32_t n, enum pack_kind kind, bool table, int nq, int nb)
{
    const int32_t run = run_inputs(kind);
    const int bits = pack_bits(kind);
    vt levels;
    if (table)
        levels = vt_load(bits);
    for (int32_t k = 0; k < n; k += run, p += run * bits * 2)
        KVQ_UNROLL for (int j = 0; j < run / 2; j++) KVQ_UNROLL for (int b = 0; b < nb; b++)
        {
            vi c = vi_codes(p + (size_t)b * step, kind, j);
            if (table)
                c = vi_level(c, levels, bits);
            KVQ_UNROLL for (int i = 0; i < nq; i++) acc[i * nb + b] =
                vi_dot(acc[i * nb + b], c, a + (size_t)i * lda + (size_t)k + 2 * j);
        }
}

/* One call's part: nq rows from q0 on, and nb blocks. */
struct kvq_call {
    const struct kvq_rows *r;
    const struct kv_head *kv;
    const uint8_t *p; /* scores: blocks of 16 tokens; outputs: lines of 16 dims */
    float *y;         /* row i, block b at y + i*ldy + 16 b */
    size_t ldy, step; /* step: from one block to the next */
    int q0;
};

KVQ_INLINE void kvq_score(const struct kvq_call *c, enum pack_kind kind, int nq, int nb)
{
    const struct kvq_rows *r = c->r;
    const int32_t group = c->kv->form.group, n = (1 << pack_bits(kind)) - 1;
    const uint8_t *p = c->p;
    const size_t group_bytes = kv_key_group_bytes(&c->kv->form), lda = (size_t)r->lda;
    const int16_t *a = r->a + (size_t)c->q0 * lda;
    vf y[16];
    KVQ_UNROLL for (int i = 0; i < nq * nb; i++) y[i] = vf_set1(0);
    for (int32_t g = 0; g < r->n_group; g++, p += group_bytes, a += group) {
        vi acc[16];
        KVQ_UNROLL for (int i = 0; i < nq * nb; i++) acc[i] = vi_zero();
        kvq_dot(acc, p + KV_KEY_HEAD, c->step, a, lda, group, kind, false, nq, nb);
        KVQ_UNROLL for (int b = 0; b < nb; b++)
        {
            vf s = vf_load_bf16(p + (size_t)b * c->step);
            vf mid = vf_load_bf16(p + (size_t)b * c->step + 32);
            KVQ_UNROLL for (int i = 0; i < nq; i++)
            {
                size_t at = (size_t)((c->q0 + i) * r->n_group + g);
                vf d = vi_float(vi_centred(acc[i * nb + b], n * (int32_t)r->sum[at]));
                vf t = vf_mul(s, vf_set1(r->as[at]));
                y[i * nb + b] = vf_fma(t, d, y[i * nb + b]);
                y[i * nb + b] = vf_fma(mid, vf_set1(r->asum[at]), y[i * nb + b]);
            }
        }
    }
    KVQ_UNROLL for (int i = 0; i < nq; i++) KVQ_UNROLL for (int b = 0; b < nb; b++)
        vf_store(c->y + (size_t)(c->q0 + i) * c->ldy + 16 * b, y[i * nb + b]);
}

KVQ_INLINE void kvq_output(const struct kvq_call *c, enum pack_kind kind, bool table, int nq,
                           int nb)
{
    const struct kvq_rows *r = c->r;
    const int32_t n = (1 << pack_bits(kind)) - 1;
    vi acc[16];
    KVQ_UNROLL for (int i = 0; i < nq * nb; i++) acc[i] = vi_zero();
    kvq_dot(acc, c->p, c->step, r->a + (size_t)c->q0 * KV_PAGE, KV_PAGE, KV_PAGE, kind, table, nq,
            nb);
    KVQ_UNROLL for (int i = 0; i < nq; i++)
    {
        float *y = c->y + (size_t)(c->q0 + i) * c->ldy;
        vf ws = vf_set1(r->as[c->q0 + i]), wm = vf_set1(r->asum[c->q0 + i]);
        int32_t sum = (int32_t)r->sum[c->q0 + i];
        KVQ_UNROLL for (int b = 0; b < nb; b++)
        {
            vi x = acc[i * nb + b];
            vf o = vf_fma(ws, vi_float(table ? x : vi_centred(x, n * sum)), vf_load(y + 16 * b));
            vf_store(y + 16 * b, c->kv->form.rotated ? o : vf_add(o, wm));
        }
    }
}

/* Rows at a time: 1, 2, 3, 4, and many; few rows take two blocks at once, to have sums enough. */
typedef void kvq_fn(const struct kvq_call *c);
enum { KVQ_SIZES = 5 };
#define KVQ_FN(kind, nq, nb)                                                                       \
    static void kvq_score_##kind##_##nq##_##nb(const struct kvq_call *c)                           \
    {                                                                                              \
        kvq_score(c, kind, nq, nb);                                                                \
    }                                                                                              \
    static void kvq_output_##kind##_##nq##_##nb(const struct kvq_call *c)                          \
    {                                                                                              \
        kvq_output(c, kind, false, nq, nb);                                                        \
    }
#define KVQ_FN_TABLE(kind, nq, nb)                                                                 \
    static void kvq_level_##kind##_##nq##_##nb(const struct kvq_call *c)                           \
    {                                                                                              \
        kvq_output(c, kind, true, nq, nb);                                                         \
    }
#define KVQ_EACH(F, kind)                                                                          \
    F(kind, 1, 2)                                                                                  \
    F(kind, 2, 2)                                                                                  \
    F(kind, 3, 2)                                                                                  \
    F(kind, 4, 1)                                                                                  \
    F(kind, KVQ_MANY, 1)
#define KVQ_EACH_KIND(M)       M(PACK_U2) M(PACK_U3) M(PACK_U4) M(PACK_U5) M(PACK_U6) M(PACK_U8)
#define KVQ_EACH_TABLE(M)      M(PACK_U2) M(PACK_U3) M(PACK_U4) M(PACK_U5)
#define KVQ_DEFINE(kind)       KVQ_EACH(KVQ_FN, kind)
#define KVQ_DEFINE_TABLE(kind) KVQ_EACH(KVQ_FN_TABLE, kind)
KVQ_EACH_KIND(KVQ_DEFINE)
KVQ_EACH_TABLE(KVQ_DEFINE_TABLE)

#define KVQ_SCORE(kind, nq, nb)  kvq_score_##kind##_##nq##_##nb,
#define KVQ_OUTPUT(kind, nq, nb) kvq_output_##kind##_##nq##_##nb,
#define KVQ_LEVEL(kind, nq, nb)  kvq_level_##kind##_##nq##_##nb,
#define KVQ_SCORES(kind)         [kind] = {KVQ_EACH(KVQ_SCORE, kind)},
#define KVQ_OUTPUTS(kind)        [kind] = {KVQ_EACH(KVQ_OUTPUT, kind)},
#define KVQ_LEVELS(kind)         [kind] = {KVQ_EACH(KVQ_LEVEL, kind)},
static kvq_fn *const kvq_scores_of[PACK_U8 + 1][KVQ_SIZES] = {KVQ_EACH_KIND(KVQ_SCORES)};
static kvq_fn *const kvq_outputs_of[PACK_U8 + 1][KVQ_SIZES] = {KVQ_EACH_KIND(KVQ_OUTPUTS)};
static kvq_fn *const kvq_levels_of[PACK_U5 + 1][KVQ_SIZES] = {KVQ_EACH_TABLE(KVQ_LEVELS)};

/* n_q rows over n blocks, an even number, from c->p and c->y on. */
static void kvq_run(kvq_fn *const *fn, struct kvq_call c, int32_t n_q, int32_t n)
{
    for (int32_t at; c.q0 < n_q; c.q0 += at) {
        int32_t left = n_q - c.q0;
        at = left >= KVQ_MANY ? KVQ_MANY : left > 4 ? 4 : left;
        int32_t nb = at <= 3 ? 2 : 1;
        kvq_fn *run = fn[at == KVQ_MANY ? 4 : at - 1];
        struct kvq_call part = c;
        for (int32_t b = 0; b < n; b += nb) {
            run(&part);
            part.p += (size_t)nb * c.step;
            part.y += 16 * nb;
        }
    }
}

static inline void kvq_prefetch(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(p + i);
}

/* Scores of groups of 16 tokens [g0, n_group) of the block at t0, and perhaps of one more on either
 * side inside their page: rows of s are ATTN_BLOCK apart. */
static void kvq_scores(const struct kvq_rows *q, int32_t n_q, const struct kv_head *kv, int32_t t0,
                       int32_t g0, int32_t n_group, float *s)
{
    const size_t block = (size_t)(kv->dk / kv->form.group) * kv_key_group_bytes(&kv->form);
    kvq_fn *const *fn = kvq_scores_of[kv_kind(kv->form.k_bits)];
    for (int32_t g = g0 & ~1; g < n_group; g = (g | 3) + 1) {
        int32_t end = (g | 3) + 1 < n_group ? (g | 3) + 1 : n_group;
        const uint8_t *page = kv->pages[(t0 + g * 16) / KV_PAGE] + kv->k_off;
        if (end < n_group)
            kvq_prefetch(kv->pages[(t0 + end * 16) / KV_PAGE] + kv->k_off, 4 * block);
        struct kvq_call c = {.r = q,
                             .kv = kv,
                             .p = page + (size_t)(g % 4) * block,
                             .y = s + g * 16,
                             .ldy = ATTN_BLOCK,
                             .step = block};
        kvq_run(fn, c, n_q, ((end - g) + 1) & ~1);
    }
}

/* A page's weights p times the steps of a group of dims as integers. */
static void kvq_weights(const struct kvq_rows *w, int32_t i, const float *p, const uint8_t *head,
                        bool rotated)
{
    float x[KV_PAGE];
    vf tiny = vf_set1(1.17549435e-38f), mids = vf_set1(0);
    for (int t = 0; t < KV_PAGE; t += 16) { /* unseen slots may hold anything, NaN too */
        vf v = vf_load(p + t);
        vf_store(x + t, vf_zero_lt(v, tiny, vf_mul(v, vf_load_bf16(head + 2 * t))));
        if (!rotated)
            mids = vf_add(mids,
                          vf_zero_lt(v, tiny, vf_mul(v, vf_load_bf16(head + 2 * (KV_PAGE + t)))));
    }
    kvq_quantize(w, i, 0, x, KV_PAGE);
    w->asum[i] = rotated ? 0 : vf_sum(mids);
}

/* Outputs of pages [first, end) of the block at t0; weights p are 0 where nothing is seen, rows are
 * ATTN_BLOCK apart; y [n_q][dv]. */
static void kvq_outputs(const struct kvq_rows *w, int32_t n_q, const struct kv_head *kv, int32_t t0,
                        int32_t first, int32_t end, const float *p, float *y)
{
    const struct kv_form *f = &kv->form;
    const size_t lines = kv_value_line_bytes(f), heads = kv_value_head_bytes(f);
    const int32_t n_group = kv->dv / f->group;
    kvq_fn *const *fn =
        kv_by_table(f) ? kvq_levels_of[kv_kind(f->v_bits)] : kvq_outputs_of[kv_kind(f->v_bits)];
    memset(y, 0, (size_t)n_q * (size_t)kv->dv * sizeof *y);
    for (int32_t i = first; i < end; i++) {
        const uint8_t *page = kv->pages[t0 / KV_PAGE + i] + kv->v_off;
        if (i + 1 < end)
            kvq_prefetch(kv->pages[t0 / KV_PAGE + i + 1] + kv->v_off,
                         (size_t)n_group * heads + (size_t)(kv->dv / 16) * lines);
        for (int32_t g = 0; g < n_group; g++) {
            for (int32_t q = 0; q < n_q; q++)
                kvq_weights(w, q, p + (size_t)q * ATTN_BLOCK + (size_t)i * KV_PAGE,
                            page + (size_t)g * heads, f->rotated);
            struct kvq_call c = {.r = w,
                                 .kv = kv,
                                 .p = page + (size_t)n_group * heads +
                                      (size_t)(g * f->group / 16) * lines,
                                 .y = y + g * f->group,
                                 .ldy = (size_t)kv->dv,
                                 .step = lines};
            kvq_run(fn, c, n_q, f->group / 16);
        }
    }
}

#undef KVQ_INLINE
#undef KVQ_UNROLL
