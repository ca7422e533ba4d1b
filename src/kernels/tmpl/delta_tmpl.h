/*
 * delta_tmpl.h - the gated delta net and sigmoid gates over the 16-lane vectors of vec_*.h. Tokens
 * go one after the other, so a row's result does not depend on how its sequence was cut into
 * steps; sums over dk are four chains (d mod 4) joined as (0+1)+(2+3). Needs ops_tmpl.h.
 *
 * Between two tokens only S is carried. A chunk-wise form for prompts (several tokens per pass over
 * S) would be another entry of the table, with another order of sums: it must be the only one then.
 */

static void tmpl_sigmul(float *y, const float *g, const float *u, int32_t n)
{
    vf one = vf_set1(1.0f);
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vf e = vec_exp(vf_sub(vf_set1(0), vec_get(g + i, left)));
        vec_put(y + i, vf_div(vec_get(u + i, left), vf_add(one, e)), left);
    }
}

static void tmpl_l2norm(float *y, const float *x, float eps, float scale, int32_t n)
{
    vf ss = vf_set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        vf v = vec_get(x + i, vec_left(i, n));
        ss = vf_fma(v, v, ss);
    }
    vf r = vf_div(vf_set1(scale), vf_set1(sqrtf(vf_sum(ss) + eps)));
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vec_put(y + i, vf_mul(vec_get(x + i, left), r), left);
    }
}

static void tmpl_conv_silu(float *y, const float *const *rows, const float *w, int32_t taps,
                           int32_t n)
{
    vf one = vf_set1(1.0f);
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vf s = vf_set1(0);
        for (int32_t j = 0; j < taps; j++)
            s = vf_fma(vec_get(rows[j] + i, left),
                       vec_get(w + (size_t)j * (size_t)n + (size_t)i, left), s);
        vf e = vec_exp(vf_sub(vf_set1(0), s));
        vec_put(y + i, vf_div(s, vf_add(one, e)), left);
    }
}

/* log(1 + y) = 2 atanh(s), s = y / (2 + y), for y in [0, 1]: s <= 1/3, and the series to s^15
 * leaves less than 3e-9 of the result. */
static inline vf vec_log1p_unit(vf y)
{
    vf s = vf_div(y, vf_add(y, vf_set1(2.0f))), t = vf_mul(s, s);
    vf p = vf_set1(1.0f / 15);
    p = vf_fma(p, t, vf_set1(1.0f / 13));
    p = vf_fma(p, t, vf_set1(1.0f / 11));
    p = vf_fma(p, t, vf_set1(1.0f / 9));
    p = vf_fma(p, t, vf_set1(1.0f / 7));
    p = vf_fma(p, t, vf_set1(1.0f / 5));
    p = vf_fma(p, t, vf_set1(1.0f / 3));
    p = vf_mul(p, t); /* atanh(s) = s + s p */
    vf twice = vf_add(s, s);
    return vf_fma(twice, p, twice);
}

/* softplus(x) = max(x, 0) + log(1 + e^-|x|) */
static void tmpl_delta_gates(float *g, float *beta, const struct delta_gate_in *in, int32_t n)
{
    vf one = vf_set1(1.0f), zero = vf_set1(0);
    for (int32_t i = 0; i < n; i += 16) {
        int left = vec_left(i, n);
        vf x = vf_add(vec_get(in->a + i, left), vec_get(in->dt + i, left));
        vf tail = vec_log1p_unit(vec_exp(vf_sub(zero, vf_abs(x))));
        vf soft = vf_add(vf_max(x, zero), tail);
        vf rate = vf_mul(vec_exp(vec_get(in->a_log + i, left)), soft);
        vec_put(g + i, vec_exp(vf_sub(zero, rate)), left);
        vf e = vec_exp(vf_sub(zero, vec_get(in->b + i, left)));
        vec_put(beta + i, vf_div(one, vf_add(one, e)), left);
    }
}

/* S x over the block of 16 value dimensions at s [dk][16]. */
static inline vf delta_dot(const float *s, const float *x, int32_t dk)
{
    vf a0 = vf_set1(0), a1 = a0, a2 = a0, a3 = a0;
    for (int32_t d = 0; d < dk; d += 4, s += 64) {
        a0 = vf_fma(vf_load(s), vf_set1(x[d]), a0);
        a1 = vf_fma(vf_load(s + 16), vf_set1(x[d + 1]), a1);
        a2 = vf_fma(vf_load(s + 32), vf_set1(x[d + 2]), a2);
        a3 = vf_fma(vf_load(s + 48), vf_set1(x[d + 3]), a3);
    }
    return vf_add(vf_add(a0, a1), vf_add(a2, a3));
}

/* One line of S: s = g s + delta k; returns acc + s q. */
static inline vf delta_line(float *s, vf g, vf delta, vf k, vf q, vf acc)
{
    vf x = vf_fma(delta, k, vf_mul(g, vf_load(s)));
    vf_store(s, x);
    return vf_fma(x, q, acc);
}

static inline vf delta_update(float *s, vf g, vf delta, const float *k, const float *q, int32_t dk)
{
    vf a0 = vf_set1(0), a1 = a0, a2 = a0, a3 = a0;
    for (int32_t d = 0; d < dk; d += 4, s += 64) {
        a0 = delta_line(s, g, delta, vf_set1(k[d]), vf_set1(q[d]), a0);
        a1 = delta_line(s + 16, g, delta, vf_set1(k[d + 1]), vf_set1(q[d + 1]), a1);
        a2 = delta_line(s + 32, g, delta, vf_set1(k[d + 2]), vf_set1(q[d + 2]), a2);
        a3 = delta_line(s + 48, g, delta, vf_set1(k[d + 3]), vf_set1(q[d + 3]), a3);
    }
    return vf_add(vf_add(a0, a1), vf_add(a2, a3));
}

/* All rows for 16 value dimensions, then the next 16: their part of S stays in the first-level
 * cache. S k is taken before the decay: (g S) k = g (S k). */
static void tmpl_delta(float *s, const struct delta_rows *t)
{
    for (int32_t c = 0; c < t->dv; c += 16, s += (size_t)t->dk * 16)
        for (int32_t r = 0; r < t->n_row; r++) {
            size_t x = (size_t)r * t->ldx, m = (size_t)r * t->ldg;
            vf g = vf_set1(t->g[m]);
            vf sk = vf_mul(g, delta_dot(s, t->k + x, t->dk));
            vf delta = vf_mul(vf_sub(vf_load(t->v + x + c), sk), vf_set1(t->beta[m]));
            vf o = delta_update(s, g, delta, t->k + x, t->q + x, t->dk);
            vf_store(t->out + (size_t)r * t->ldo + c, o);
        }
}
