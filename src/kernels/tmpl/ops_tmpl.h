/*
 * ops_tmpl.h - element-wise kernels, norms and the activation quantizer, written once over the
 * 16-lane vectors of vec_*.h and compiled for each instruction set. Every reduction has one order:
 * 16 partial results over ascending indices, then the tree of vf_sum.
 */

/* e^x by 2^n * P(r), x = n ln2 + r, |r| <= ln2/2, P the Taylor polynomial of degree 7 (error under
 * 5e-9 relative). x is clamped to [-87.3, 88]; NaN stays NaN. */
static inline vf vec_exp(vf x)
{
    x = vf_min(vf_set1(88.0f), vf_max(vf_set1(-87.3f), x));
    vf n = vf_rint(vf_mul(x, vf_set1(1.44269504f)));
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.0f / 5040);
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_mul(p, vf_pow2(n));
}

static inline int vec_left(int32_t i, int32_t n)
{
    return n - i < 16 ? n - i : 16;
}

/* Masked loads and stores only at the end of a row: they are slow on some processors. */
static inline vf vec_get(const float *p, int left)
{
    return left == 16 ? vf_load(p) : vf_loadn(p, left);
}

static inline void vec_put(float *p, vf v, int left)
{
    if (left == 16)
        vf_store(p, v);
    else
        vf_storen(p, v, left);
}

static void tmpl_rmsnorm(float *y, const float *x, const float *w, float add, float eps, int32_t n)
{
    vf ss = vf_set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        vf v = vec_get(x + i, vec_left(i, n));
        ss = vf_fma(v, v, ss);
    }
    float mean = vf_sum(ss) / (float)n;
    vf r = vf_div(vf_set1(1.0f), vf_set1(sqrtf(mean + eps)));
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vf v = vf_mul(vec_get(x + i, left), r);
        if (w)
            v = vf_mul(v, vf_add(vec_get(w + i, left), vf_set1(add)));
        vec_put(y + i, v, left);
    }
}

static void tmpl_swiglu(float *y, const float *g, const float *u, int32_t n)
{
    vf one = vf_set1(1.0f);
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vf v = vec_get(g + i, left);
        vf e = vec_exp(vf_sub(vf_set1(0), v));
        v = vf_div(v, vf_add(one, e));
        vec_put(y + i, vf_mul(v, vec_get(u + i, left)), left);
    }
}

static void tmpl_geglu(float *y, const float *g, const float *u, int32_t n)
{
    vf one = vf_set1(1.0f);
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vf v = vf_loadn(g + i, left);
        vf z = vf_fma(vf_mul(vf_mul(v, v), v), vf_set1(0.044715f), v);
        vf e = vec_exp(vf_mul(z, vf_set1(-1.59576912f))); /* -2 sqrt(2/pi) */
        v = vf_div(v, vf_add(one, e));
        vf_storen(y + i, vf_mul(v, vf_loadn(u + i, left)), left);
    }
}

static void tmpl_swiglu_clamped(float *y, const float *g, const float *u, int32_t n)
{
    vf one = vf_set1(1.0f), top = vf_set1(7.0f);
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vf v = vf_min(top, vf_loadn(g + i, left));
        vf w = vf_min(top, vf_max(vf_set1(-7.0f), vf_loadn(u + i, left)));
        vf e = vec_exp(vf_mul(v, vf_set1(-1.702f)));
        v = vf_div(v, vf_add(one, e));
        vf_storen(y + i, vf_mul(v, vf_add(w, one)), left);
    }
}

static void tmpl_add(float *y, const float *a, const float *b, int32_t n)
{
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vec_put(y + i, vf_add(vec_get(a + i, left), vec_get(b + i, left)), left);
    }
}

static void tmpl_scale(float *y, const float *x, float s, int32_t n)
{
    vf f = vf_set1(s);
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vec_put(y + i, vf_mul(vec_get(x + i, left), f), left);
    }
}

/* The sign comes back as z/|z|, with |z| at least the smallest normal number for z = 0. Beyond 44
 * the result is the cap; NaN stays NaN. */
static void tmpl_softcap(float *y, const float *x, float cap, int32_t n)
{
    vf one = vf_set1(1.0f), c = vf_set1(cap), tiny = vf_set1(1.17549435e-38f);
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vf z = vf_div(vec_get(x + i, left), c);
        z = vf_min(vf_set1(44.0f), vf_max(vf_set1(-44.0f), z));
        vf size = vf_abs(z);
        vf e = vec_exp(vf_mul(size, vf_set1(-2.0f)));
        vf t = vf_div(vf_sub(one, e), vf_add(one, e));
        vf sign = vf_div(z, vf_max(size, tiny));
        vec_put(y + i, vf_mul(vf_mul(sign, t), c), left);
    }
}

static void rope_halves(float *y, const float *x, int32_t half, const float *c, const float *s)
{
    for (int32_t i = 0; i < half; i += 16) {
        int left = vec_left(i, half);
        vf x1 = vec_get(x + i, left), x2 = vec_get(x + half + i, left);
        vf co = vec_get(c + i, left), si = vec_get(s + i, left);
        vec_put(y + i, vf_sub(vf_mul(x1, co), vf_mul(x2, si)), left);
        vec_put(y + half + i, vf_add(vf_mul(x1, si), vf_mul(x2, co)), left);
    }
}

static void tmpl_rope(float *y, const float *x, int32_t d, int32_t dims, const float *cs,
                      bool interleaved)
{
    int32_t half = dims / 2;
    const float *c = cs, *s = cs + half;
    if (!interleaved)
        rope_halves(y, x, half, c, s);
    else
        for (int32_t i = 0; i < half; i++) {
            float x1 = x[2 * i], x2 = x[2 * i + 1];
            y[2 * i] = x1 * c[i] - x2 * s[i];
            y[2 * i + 1] = x1 * s[i] + x2 * c[i];
        }
    memcpy(y + dims, x + dims, (size_t)(d - dims) * sizeof *y);
}

/* n values, a multiple of 16 and at most GROUP_MAX, as integers times *scale; their sum. It is at
 * most 128 * 32512 < 2^24, so float32 lanes add it exactly. */
static float quantize_group(int16_t *a, const float *x, int32_t n, float *scale)
{
    vf m = vf_set1(0), bad = vf_set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        vf v = vf_load(x + i);
        m = vf_max(vf_abs(v), m);
        bad = vf_fma(v, vf_set1(0), bad);
    }
    float amax = vf_hmax(m), poison = vf_sum(bad);
    bool zero = amax < 1e-30f || poison != 0; /* poison: NaN when any input is not finite */
    vf inv = vf_set1(zero ? 0.0f : 32512.0f / amax);
    vf total = vf_set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        vf v = zero ? vf_set1(0) : vf_rint(vf_mul(vf_load(x + i), inv));
        total = vf_add(total, v);
        vf_store_i16(a + i, v);
    }
    *scale = poison != 0 ? poison : zero ? 0.0f : amax / 32512.0f;
    return vf_sum(total);
}

static void tmpl_quantize(const float *x, const struct qact *q, int32_t row)
{
    int32_t n_group = q->k / q->group;
    int16_t *a = q->a + (size_t)row * (size_t)q->k;
    float *scale = q->scale + (size_t)row * (size_t)n_group;
    float *sum = q->sum + (size_t)row * (size_t)n_group;
    for (int32_t g = 0; g < n_group; g++, x += q->group, a += q->group)
        sum[g] = quantize_group(a, x, q->group, &scale[g]) * scale[g];
}

/* ---- KV memory ------------------------------------------------------------------------------ */

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t bf16_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1)) >> 16);
}

static void kv_put_bf16(uint8_t *k, uint8_t *v, int32_t t, const float *kx, const float *vx,
                        int32_t dk, int32_t dv)
{
    k += (size_t)(t / 16) * (size_t)dk * 32 + (size_t)(t % 16) * 4;
    for (int32_t i = 0; i < dk; i += 2, k += 64) {
        uint32_t pair = (uint32_t)bf16_of(kx[i]) | (uint32_t)bf16_of(kx[i + 1]) << 16;
        memcpy(k, &pair, 4);
    }
    v += (size_t)(t / 2) * (size_t)dv * 4 + (size_t)(t % 2) * 2;
    for (int32_t i = 0; i < dv; i++, v += 4) {
        uint16_t h = bf16_of(vx[i]);
        memcpy(v, &h, 2);
    }
}

static void kv_put_f32(uint8_t *k, uint8_t *v, int32_t t, const float *kx, const float *vx,
                       int32_t dk, int32_t dv)
{
    k += (size_t)(t / 16) * (size_t)dk * 64 + (size_t)(t % 16) * 4;
    for (int32_t i = 0; i < dk; i++, k += 64)
        memcpy(k, &kx[i], 4);
    if (dv) /* a layer of keys only has no values to point at */
        memcpy(v + (size_t)t * (size_t)dv * 4, vx, (size_t)dv * 4);
}

static void tmpl_kv_put(uint8_t *k, uint8_t *v, int32_t t, const float *kx, const float *vx,
                        int32_t dk, int32_t dv, enum kv_type type)
{
    if (type == KV_BF16)
        kv_put_bf16(k, v, t, kx, vx, dk, dv);
    else
        kv_put_f32(k, v, t, kx, vx, dk, dv);
}
