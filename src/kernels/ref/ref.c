/*
 * ref.c - see ref.h.
 */
#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

#include "kernels/kvq.h"

static float f32_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float ref_bf16(uint16_t h)
{
    return f32_bits((uint32_t)h << 16);
}

float ref_f16(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    float v = e == 0    ? ldexpf((float)m, -24)
              : e == 31 ? (m ? NAN : INFINITY)
                        : ldexpf((float)(m + 1024), e - 25);
    return h & 0x8000 ? -v : v;
}

float ref_e4m3(uint8_t b)
{
    int e = b >> 3 & 15, m = b & 7;
    float v = e == 0              ? ldexpf((float)m, -9)
              : e == 15 && m == 7 ? NAN
                                  : ldexpf((float)(m + 8), e - 10);
    return b & 0x80 ? -v : v;
}

float ref_e2m1(int code)
{
    static const float v[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -v[code & 7] : v[code & 7];
}

float ref_e8m0(uint8_t b)
{
    return b == 255 ? NAN : ldexpf(1.0f, (int)b - 127);
}

uint16_t ref_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if (isnan(f))
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1)) >> 16);
}

uint16_t ref_to_f16(float f)
{
    uint16_t sign = signbit(f) ? 0x8000 : 0;
    double a = fabs((double)f);
    if (isnan(f))
        return (uint16_t)(sign | 0x7E00);
    if (a >= 65520.0)
        return (uint16_t)(sign | 0x7C00);
    int e;
    frexp(a, &e); /* a in [2^(e-1), 2^e) */
    if (a < 0x1p-14)
        e = -13;                                /* subnormal: units of 2^-24 */
    double units = nearbyint(ldexp(a, 11 - e)); /* 1024..2048 for normals */
    if (a < 0x1p-14)
        return (uint16_t)(sign | (uint16_t)units);
    return (uint16_t)(sign | (uint16_t)(((e + 14) << 10) + (int)units - 1024));
}

void ref_gemm(const struct packed *w, int32_t row0, int32_t row1, const struct ref_rows *x,
              float *dst, size_t ldd, float *wrow)
{
    for (int32_t row = row0; row < row1; row++) {
        pack_row_f32(w, row, wrow);
        for (int32_t m = 0; m < x->n; m += 4) { /* four sums at a time, each in its own order */
            const float *xm = x->x + (size_t)m * x->ldx;
            int32_t left = x->n - m < 4 ? x->n - m : 4;
            size_t next[4];
            double sum[4] = {0};
            for (int32_t j = 0; j < 4; j++)
                next[j] = j < left ? (size_t)j * x->ldx : 0;
            for (int32_t k = 0; k < w->k; k++, xm++)
                for (int32_t j = 0; j < 4; j++)
                    sum[j] += (double)wrow[k] * (double)xm[next[j]];
            for (int32_t j = 0; j < left; j++)
                dst[(size_t)(m + j) * ldd + (size_t)(row - row0)] = (float)sum[j];
        }
    }
}

void ref_rmsnorm(float *y, const float *x, const float *w, float add, float eps, int32_t n)
{
    double ss = 0;
    for (int32_t i = 0; i < n; i++)
        ss += (double)x[i] * (double)x[i];
    double r = 1.0 / sqrt(ss / n + (double)eps);
    for (int32_t i = 0; i < n; i++)
        y[i] = (float)((double)x[i] * r * (w ? (double)w[i] + (double)add : 1.0));
}

void ref_swiglu(float *y, const float *g, const float *u, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = (float)((double)g[i] / (1.0 + exp(-(double)g[i])) * (double)u[i]);
}

void ref_geglu(float *y, const float *g, const float *u, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        double x = (double)g[i], z = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
        /* (1 + tanh z) / 2 without its cancellation */
        y[i] = (float)(x / (1 + exp(-2 * z)) * (double)u[i]);
    }
}

void ref_swiglu_clamped(float *y, const float *g, const float *u, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        double x = (double)g[i], w = (double)u[i];
        x = x > 7 ? 7 : x;
        w = w > 7 ? 7 : w < -7 ? -7 : w;
        y[i] = (float)(x / (1 + exp(-1.702 * x)) * (w + 1));
    }
}

void ref_softcap(float *y, const float *x, float cap, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = (float)((double)cap * tanh((double)x[i] / (double)cap));
}

void ref_rope(float *y, const float *x, int32_t d, int32_t dims, const float *cs, bool interleaved)
{
    int32_t half = dims / 2;
    for (int32_t i = 0; i < d; i++)
        y[i] = x[i];
    for (int32_t i = 0; i < half; i++) {
        int32_t a = interleaved ? 2 * i : i, b = interleaved ? 2 * i + 1 : i + half;
        double c = (double)cs[i], s = (double)cs[half + i];
        y[a] = (float)((double)x[a] * c - (double)x[b] * s);
        y[b] = (float)((double)x[a] * s + (double)x[b] * c);
    }
}

static double latent_at(const struct kv_head *kv, int32_t t, int32_t d)
{
    const uint8_t *p = kv->pages[t / KV_PAGE] + kv->k_off;
    size_t at = (size_t)(t % KV_PAGE) * (size_t)kv->dk + (size_t)d;
    float f;
    uint16_t h;
    if (kv->type == KV_F32) {
        memcpy(&f, p + at * 4, 4);
        return (double)f;
    }
    memcpy(&h, p + at * 2, 2);
    return (double)ref_bf16(h);
}

static double k_at(const struct kv_head *kv, int32_t t, int32_t d)
{
    if (kv->latent)
        return latent_at(kv, t, d);
    if (kv->type == KV_CODED)
        return kv_key_at(kv, t, d);
    const uint8_t *p = kv->pages[t / KV_PAGE] + kv->k_off;
    t %= KV_PAGE;
    if (kv->type == KV_F32) {
        float f;
        memcpy(&f,
               p + (((size_t)(t / 16) * (size_t)kv->dk + (size_t)d) * 16 + (size_t)(t % 16)) * 4,
               4);
        return (double)f;
    }
    uint16_t h;
    size_t dword =
        ((size_t)(t / 16) * (size_t)(kv->dk / 2) + (size_t)(d / 2)) * 16 + (size_t)(t % 16);
    memcpy(&h, p + dword * 4 + (size_t)(d % 2) * 2, 2);
    return (double)ref_bf16(h);
}

static double v_at(const struct kv_head *kv, int32_t t, int32_t d)
{
    if (kv->latent)
        return latent_at(kv, t, d);
    if (kv->type == KV_CODED)
        return kv_value_at(kv, t, d);
    const uint8_t *p = kv->pages[t / KV_PAGE] + kv->v_off;
    t %= KV_PAGE;
    if (kv->type == KV_F32) {
        float f;
        memcpy(&f, p + ((size_t)t * (size_t)kv->dv + (size_t)d) * 4, 4);
        return (double)f;
    }
    uint16_t h;
    memcpy(&h, p + ((size_t)(t / 2) * (size_t)kv->dv + (size_t)d) * 4 + (size_t)(t % 2) * 2, 2);
    return (double)ref_bf16(h);
}

static double score(const float *q, const struct kv_head *kv, int32_t t, float scale)
{
    double s = 0;
    for (int32_t d = 0; d < kv->dk; d++)
        s += (double)q[d] * k_at(kv, t, d);
    return s * (double)scale;
}

/* v = sign . H y / sqrt(n): element i of H's row j is -1 to the number of bits they share. */
static void unrotate(double *y, int32_t n)
{
    const int8_t *sign = kv_sign(n);
    double v[HEAD_DIM_MAX];
    for (int32_t i = 0; i < n; i++) {
        v[i] = 0;
        for (int32_t j = 0; j < n; j++)
            v[i] += __builtin_parity((unsigned)(i & j)) ? -y[j] : y[j];
    }
    for (int32_t i = 0; i < n; i++)
        y[i] = v[i] * sign[i] / sqrt((double)n);
}

static bool unseen(const uint64_t *mask, int32_t i)
{
    return mask && !(mask[i / 64] >> (i % 64) & 1);
}

/* Two passes: the maximum, then the weighted sum. */
static void attn_one(const struct attn_tile *t, const struct kv_head *kv, const float *q,
                     int32_t pos, const float *sink, float *out)
{
    const uint64_t *mask = t->mask ? t->mask + (size_t)(pos - t->pos) * t->mask_stride : NULL;
    int32_t lo = t->window && pos - t->window + 1 > 0 ? pos - t->window + 1 : 0;
    double m = sink ? (double)*sink : -INFINITY, l = 0, o[HEAD_DIM_MAX] = {0};
    for (int32_t i = lo; i <= pos; i++)
        if (!unseen(mask, i))
            m = fmax(m, score(q, kv, i, t->scale));
    for (int32_t i = lo; i <= pos; i++) {
        if (unseen(mask, i))
            continue;
        double p = exp(score(q, kv, i, t->scale) - m);
        l += p;
        for (int32_t d = 0; d < kv->dv; d++)
            o[d] += p * v_at(kv, i, d);
    }
    if (sink)
        l += exp((double)*sink - m);
    if (kv->type == KV_CODED && kv->form.rotated)
        unrotate(o, kv->dv);
    for (int32_t d = 0; d < kv->dv; d++)
        out[d] = (float)(o[d] / l);
}

void ref_attn(const struct attn_tile *t, const struct kv_head *kv)
{
    for (int32_t r = 0; r < t->n_row; r++)
        for (int32_t h = 0; h < t->n_head; h++)
            attn_one(t, kv, t->q + (size_t)r * t->q_stride + (size_t)h * (size_t)kv->dk,
                     t->pos + (t->level ? 0 : r), t->sinks ? &t->sinks[h] : NULL,
                     t->out + (size_t)r * t->out_stride + (size_t)h * (size_t)kv->dv);
}
