/*
 * ref_delta.c - the gated delta net in double (ref.h). The state is float32 between rows, as the
 * model's definition has it.
 */
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void ref_sigmul(float *y, const float *g, const float *u, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = (float)(sigmoid((double)g[i]) * (double)u[i]);
}

void ref_l2norm(float *y, const float *x, float eps, float scale, int32_t n)
{
    double ss = 0;
    for (int32_t i = 0; i < n; i++)
        ss += (double)x[i] * (double)x[i];
    double r = (double)scale / sqrt(ss + (double)eps);
    for (int32_t i = 0; i < n; i++)
        y[i] = (float)((double)x[i] * r);
}

void ref_conv_silu(float *y, const float *const *rows, const float *w, int32_t taps, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        double s = 0;
        for (int32_t j = 0; j < taps; j++)
            s += (double)rows[j][i] * (double)w[(size_t)j * (size_t)n + (size_t)i];
        y[i] = (float)(s * sigmoid(s));
    }
}

void ref_delta_gates(float *g, float *beta, const struct delta_gate_in *in, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        double x = (double)in->a[i] + (double)in->dt[i];
        double soft = fmax(x, 0) + log1p(exp(-fabs(x)));
        g[i] = (float)exp(-exp((double)in->a_log[i]) * soft);
        beta[i] = (float)sigmoid((double)in->b[i]);
    }
}

/* S[v][d] */
static float *at(float *s, int32_t dk, int32_t v, int32_t d)
{
    return s + ((size_t)(v / 16) * (size_t)dk + (size_t)d) * 16 + v % 16;
}

void ref_delta(float *s, const struct delta_rows *t)
{
    if (s != t->from)
        memcpy(s, t->from, (size_t)t->dk * (size_t)t->dv * sizeof *s);
    for (int32_t r = 0; r < t->n_row; r++) {
        const float *k = t->k + (size_t)r * t->ldx, *q = t->q + (size_t)r * t->ldx;
        double g = (double)t->g[(size_t)r * t->ldg];
        for (int32_t v = 0; v < t->dv; v++) {
            double sk = 0, o = 0;
            for (int32_t d = 0; d < t->dk; d++)
                sk += g * (double)*at(s, t->dk, v, d) * (double)k[d];
            double delta = ((double)t->v[(size_t)r * t->ldx + (size_t)v] - sk) *
                           (double)t->beta[(size_t)r * t->ldg];
            for (int32_t d = 0; d < t->dk; d++) {
                float *x = at(s, t->dk, v, d);
                *x = (float)(g * (double)*x + delta * (double)k[d]);
                o += (double)*x * (double)q[d];
            }
            t->out[(size_t)r * t->ldo + (size_t)v] = (float)o;
        }
    }
}
