/*
 * latent_tmpl.h - attention over a latent, and the index that chooses its tokens; compiled for each
 * instruction set. Included behind attn_tmpl.h, whose steps it takes.
 *
 * A latent is kept once, [t][dk], and serves as key and, its first dv values, as value: a token is
 * one run of bytes, so that chosen tokens alone are read. 16 of them at a time are turned into the
 * order of lanes that keys have elsewhere; sums run in the order of attn_tmpl.h. Blocks are of
 * ATTN_BLOCK tokens of what is seen: all from token 0 on, or the chosen ones.
 */

#ifdef KERN_SMALL_CODE
#define LATENT_INLINE static
#else
#define LATENT_INLINE static inline __attribute__((always_inline))
#endif

struct latent_block {
    const uint8_t *row[ATTN_BLOCK];
    int32_t n, n_group; /* tokens; groups of 16, the last one filled up with its last token */
};

static void latent_rows(struct latent_block *k, const struct attn_tile *t, const struct kv_head *kv,
                        int32_t b, int32_t n)
{
    size_t bytes = (size_t)kv->dk * kv_elem_bytes(kv->type);
    k->n = n;
    k->n_group = (n + 15) / 16;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = t->tokens ? t->tokens[b + i] : b + i;
        k->row[i] = kv_at(kv, at, kv->k_off) + (size_t)(at % KV_PAGE) * bytes;
    }
    for (int32_t i = n; i < k->n_group * 16; i++)
        k->row[i] = k->row[n - 1];
}

static void latent_scores(const struct attn_state *a, const struct latent_block *k,
                          const struct kv_head *kv, uint8_t *turned)
{
    size_t dk = (size_t)kv->dk;
    for (int32_t g = 0; g < k->n_group; g++) {
        float *s = a->p + g * 16;
        int q = 0;
        vec_turn16(turned, k->row + g * 16, kv->dk * (int32_t)kv_elem_bytes(kv->type) / 4);
        for (; a->n_q - q >= 4; q += 4)
            score_group(a->q + (size_t)q * dk, kv->dk, s + (size_t)q * ATTN_BLOCK, turned, NULL,
                        kv->type, 4, 1);
        for (; q < a->n_q; q++)
            score_group(a->q + (size_t)q * dk, kv->dk, s + (size_t)q * ATTN_BLOCK, turned, NULL,
                        kv->type, 1, 1);
    }
}

/* o_b of NQ queries, ND groups of 16 dims, lanes = dims. */
LATENT_INLINE void latent_group(const struct attn_state *a, const struct latent_block *k,
                                const struct kv_head *kv, int q0, int32_t d0, int nq, int nd)
{
    vf acc[8];
    for (int i = 0; i < nq * nd; i++)
        acc[i] = vf_set1(0);
    const float *p = a->p + (size_t)q0 * ATTN_BLOCK;
    size_t off = (size_t)d0 * kv_elem_bytes(kv->type);
    for (int32_t t = 0; t < k->n; t++) {
        const uint8_t *v = k->row[t] + off;
        for (int j = 0; j < nd; j++) {
            vf x = kv->type == KV_BF16 ? vf_load_bf16(v + j * 32)
                                       : vf_load((const float *)(const void *)v + j * 16);
            for (int i = 0; i < nq; i++)
                acc[i * nd + j] =
                    vf_fma(vf_set1(p[(size_t)i * ATTN_BLOCK + t]), x, acc[i * nd + j]);
        }
    }
    for (int i = 0; i < nq; i++)
        for (int j = 0; j < nd; j++)
            vf_store(a->ob + (size_t)(q0 + i) * (size_t)kv->dv + d0 + j * 16, acc[i * nd + j]);
}

static void latent_outputs(const struct attn_state *a, const struct latent_block *k,
                           const struct kv_head *kv)
{
    int q = 0;
    for (; a->n_q - q >= 4; q += 4)
        for (int32_t d = 0; d < kv->dv; d += 16)
            latent_group(a, k, kv, q, d, 4, 1);
    for (; q < a->n_q; q++) {
        int32_t d = 0;
        for (; kv->dv - d >= 64; d += 64)
            latent_group(a, k, kv, q, d, 1, 4);
        for (; d < kv->dv; d += 16)
            latent_group(a, k, kv, q, d, 1, 1);
    }
}

/* Weights of a query whose newest token is the hi-th of the block; whether it sees any. */
static bool latent_weigh(struct attn_state *a, int i, int32_t hi, int32_t n_group)
{
    if (hi <= 0) {
        memset(a->p + (size_t)i * ATTN_BLOCK, 0, (size_t)n_group * 64);
        return false;
    }
    block_softmax(a, i, 0, hi < ATTN_BLOCK ? hi : ATTN_BLOCK, n_group);
    return true;
}

static void tmpl_latent_attn(const struct attn_tile *t, const struct kv_head *kv)
{
    struct attn_state a;
    struct latent_block k;
    attn_begin(&a, t, kv);
    a.g0 = 0;
    uint8_t *turned = (uint8_t *)(a.ob + (size_t)ATTN_Q_MAX * HEAD_DIM_MAX);
    int32_t last = t->tokens ? t->n_token : t->pos + t->n_row;
    for (int32_t b = 0; b < last; b += ATTN_BLOCK) {
        bool seen[ATTN_Q_MAX];
        latent_rows(&k, t, kv, b, last - b < ATTN_BLOCK ? last - b : ATTN_BLOCK);
        latent_scores(&a, &k, kv, turned);
        for (int32_t i = 0; i < a.n_q; i++) {
            int32_t end = t->tokens ? last : t->pos + i / t->n_head + 1;
            seen[i] = latent_weigh(&a, i, end - b, k.n_group);
        }
        latent_outputs(&a, &k, kv);
        for (int32_t i = 0; i < a.n_q; i++)
            if (seen[i])
                merge(&a, i, kv->dv);
    }
    attn_end(&a, t, kv);
}

static void tmpl_latent_put(uint8_t *row, const float *x, int32_t dk, enum kv_type type)
{
    if (type == KV_F32) {
        memcpy(row, x, (size_t)dk * 4);
        return;
    }
    for (int32_t i = 0; i < dk; i++) {
        uint16_t h = bf16_of(x[i]);
        memcpy(row + (size_t)i * 2, &h, 2);
    }
}

/* ---- the index: NQ heads against 16 tokens -------------------------------------------------- */

LATENT_INLINE vf index_heads(vf s, const struct index_query *q, int32_t h, const uint8_t *k, int nq)
{
    vf acc[4];
    for (int i = 0; i < nq; i++)
        acc[i] = vf_set1(0);
    const float *x = q->q + (size_t)h * (size_t)q->dk;
    for (int32_t d = 0; d < q->dk; d += 2) {
        vf k0, k1;
        if (q->type == KV_BF16) {
            k0 = vf_load_bf16_even(k + (size_t)d * 32);
            k1 = vf_load_bf16_odd(k + (size_t)d * 32);
        } else {
            k0 = vf_load((const float *)(const void *)(k + (size_t)d * 64));
            k1 = vf_load((const float *)(const void *)(k + (size_t)d * 64 + 64));
        }
        for (int i = 0; i < nq; i++) {
            const float *y = x + (size_t)i * (size_t)q->dk + d;
            acc[i] = vf_fma(vf_set1(y[0]), k0, acc[i]);
            acc[i] = vf_fma(vf_set1(y[1]), k1, acc[i]);
        }
    }
    for (int i = 0; i < nq; i++)
        s = vf_fma(vf_set1(q->w[h + i] * q->scale), vf_max(acc[i], vf_set1(0)), s);
    return s;
}

static void tmpl_index_score(float *s, const uint8_t *k, const struct index_query *q)
{
    vf sum = vf_set1(0);
    int32_t h = 0;
    for (; q->n_head - h >= 4; h += 4)
        sum = index_heads(sum, q, h, k, 4);
    for (; h < q->n_head; h++)
        sum = index_heads(sum, q, h, k, 1);
    vf_store(s, sum);
}

#undef LATENT_INLINE
