/*
 * delta_tmpl.h - the gated delta net and sigmoid gates over the 16-lane vectors of vec_*.h. Tokens
 * go one after the other, so a row's result does not depend on how its sequence was cut into
 * steps (docs/adr/0006 has the alternatives). Needs ops_tmpl.h.
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

/* Sums over dk are two chains, even and odd d, joined at the end: a token's pass is also the next
 * one's S k, and with twice as many chains its sums would not fit the registers of 16 ymm. */

/* S x over the block of 16 value dimensions at s [dk][16]. */
static inline vf delta_dot(const float *s, const float *x, int32_t dk)
{
    vf a0 = vf_set1(0), a1 = a0;
    for (int32_t d = 0; d < dk; d += 2, s += 32) {
        a0 = vf_fma(vf_load(s), vf_set1(x[d]), a0);
        a1 = vf_fma(vf_load(s + 16), vf_set1(x[d + 1]), a1);
    }
    return vf_add(a0, a1);
}

/* What a pass over S needs of a token, and the keys of the one behind it. */
struct delta_pass {
    vf g, delta;
    const float *k, *q, *k_next;
};

/* One line of S: s = g from + delta k; adds s q to *o and s k_next to *sk. */
static inline void delta_line(float *s, const float *from, const struct delta_pass *p, int32_t d,
                              vf *o, vf *sk)
{
    vf x = vf_fma(p->delta, vf_set1(p->k[d]), vf_mul(p->g, vf_load(from)));
    vf_store(s, x);
    *o = vf_fma(x, vf_set1(p->q[d]), *o);
    *sk = vf_fma(x, vf_set1(p->k_next[d]), *sk);
}

/* One pass over S: the token's update and output; *sk becomes S k of the next token. */
static inline vf delta_update(float *s, const float *from, const struct delta_pass *p, int32_t dk,
                              vf *sk)
{
    vf o0 = vf_set1(0), o1 = o0, n0 = o0, n1 = o0;
    for (int32_t d = 0; d < dk; d += 2, s += 32, from += 32) {
        delta_line(s, from, p, d, &o0, &n0);
        delta_line(s + 16, from + 16, p, d + 1, &o1, &n1);
    }
    *sk = vf_add(n0, n1);
    return vf_add(o0, o1);
}

/* Rows of q and k, wherever they lie: row r of each at + r*ld. */
struct delta_qk {
    const float *q, *k;
    size_t ld;
};

/* n rows from row0 on, from S at `from`, 16 value dimensions after the other. S k is taken before
 * the decay: (g S) k = g (S k). */
static void delta_rows_of(float *s, const float *from, const struct delta_rows *t,
                          const struct delta_qk *qk, int32_t row0, int32_t n)
{
    size_t block = (size_t)t->dk * 16;
    for (int32_t c = 0; c < t->dv; c += 16, s += block, from += block) {
        const float *v = t->v + (size_t)row0 * t->ldx + c;
        float *out = t->out + (size_t)row0 * t->ldo + c;
        vf sk = delta_dot(from, qk->k, t->dk);
        for (int32_t r = 0; r < n; r++, v += t->ldx, out += t->ldo) {
            size_t at = (size_t)r * qk->ld, m = (size_t)(row0 + r) * t->ldg;
            struct delta_pass p = {.g = vf_set1(t->g[m]), .k = qk->k + at, .q = qk->q + at};
            p.k_next = r + 1 < n ? p.k + qk->ld : p.k; /* behind the last: not used */
            p.delta = vf_mul(vf_sub(vf_load(v), vf_mul(p.g, sk)), vf_set1(t->beta[m]));
            if (r + 1 < n)
                __builtin_prefetch(v + t->ldx);
            vf o = delta_update(s, r ? s : from, &p, t->dk, &sk);
            vf_store(out, o);
        }
    }
}

/* DELTA_TILE rows go over the whole of S, one block of it (dk * 64 bytes) in the first-level cache
 * at a time. Their q and k are copied together: rows of a step are often a multiple of 4096 bytes
 * apart, where no cache holds more than a few of them. */
enum { DELTA_TILE = 16, DELTA_DK_MAX = 256 };

static void tmpl_delta(float *s, const struct delta_rows *t)
{
    float copy[2 * DELTA_TILE * DELTA_DK_MAX];
    size_t row = (size_t)t->dk * sizeof(float);
    for (int32_t r = 0; r < t->n_row; r += DELTA_TILE) {
        int32_t n = t->n_row - r < DELTA_TILE ? t->n_row - r : DELTA_TILE;
        const float *q = t->q + (size_t)r * t->ldx, *k = t->k + (size_t)r * t->ldx;
        struct delta_qk qk = {q, k, t->ldx};
        if (n > 2 && t->dk <= DELTA_DK_MAX) {
            qk = (struct delta_qk){copy, copy + t->dk, 2 * (size_t)t->dk};
            for (int32_t i = 0; i < n; i++) {
                memcpy(copy + (size_t)i * qk.ld, q + (size_t)i * t->ldx, row);
                memcpy(copy + (size_t)i * qk.ld + t->dk, k + (size_t)i * t->ldx, row);
            }
        }
        delta_rows_of(s, r ? s : t->from, t, &qk, r, n);
    }
}
