/*
 * attn_tmpl.h - attention over paged KV, compiled for each instruction set.
 *
 * softmax(scale * q.K^T) V, computed per block of ATTN_BLOCK tokens at absolute positions (running
 * maximum m, denominator l, output o) and merged in ascending block order. The result of a query
 * depends on its position and its KV only: prefill tiles and single decode rows take the same
 * steps.
 *
 *   in a block:  s_t = q.k_t (ascending dims);  m_b = max s;  p_t = e^(s_t - m_b)
 *                l_b = sum p (16 lanes over ascending t, then the tree);  o_b = sum p_t v_t
 * (ascending t) merge:       m' = max(m, m_b);  l = l e^(m-m') + l_b e^(m_b-m');  o likewise
 */

struct attn_state {
    int32_t n_q;   /* queries: row-major, n_head per row */
    int32_t g0;    /* groups of the block before this one are seen by no query: weights are 0 */
    bool more;     /* some of the block behind this one is seen */
    float *q;      /* [n_q][dk] scaled */
    float *p;      /* [n_q][ATTN_BLOCK] scores, then weights */
    float *o, *ob; /* [n_q][dv] */
    float m[ATTN_Q_MAX], l[ATTN_Q_MAX]; /* running */
    float mb[ATTN_Q_MAX], lb[ATTN_Q_MAX];
    struct kvq_rows qr, wr; /* coded memory: the queries, a page's weights as integers */
};

/* Inlined, the counts of queries and groups are constants and the loops unroll into registers. The
 * portable build and the sanitizers' builds do without: there it only multiplies the code. */
#ifdef KERN_SMALL_CODE
#define ATTN_INLINE static
#define ATTN_UNROLL
#else
#define ATTN_INLINE static inline __attribute__((always_inline))
#define ATTN_UNROLL _Pragma("GCC unroll 16")
#endif

ATTN_INLINE const uint8_t *kv_at(const struct kv_head *kv, int32_t t, size_t off)
{
    return kv->pages[t / KV_PAGE] + off;
}

/* The end of the page that token t lies in, or of what there is. */
ATTN_INLINE int32_t page_end(int32_t t, int32_t end)
{
    int32_t page = (t / KV_PAGE + 1) * KV_PAGE;
    return page < end ? page : end;
}

/* Nothing is read ahead of here, nor kept from before: sums take all registers but a few, and the
 * compiler would rather keep what it has read than them. */
#define ATTN_ORDER() __asm__ volatile("" ::: "memory")

/* Lanes of k times a number of each query, into acc[i * step]. */
ATTN_INLINE void add_lanes(vf *acc, int step, const float *x, size_t ldx, vf k, int nq)
{
    ATTN_UNROLL for (int i = 0; i < nq; i++)
        vf_fma_to(&acc[i * step], vf_set1(x[(size_t)i * ldx]), k);
}

/* Pages are too short for the processor to notice a stream before it ends: while one is worked on,
 * the loops ask for what is read next. Each step asks for the next `step` bytes, so that requests
 * come evenly, however often the loops run over the page. It may lie past the end of what there is.
 */
struct fetch {
    const uint8_t *at;
    size_t step;
};

static struct fetch fetch_over(const uint8_t *at, size_t bytes, size_t steps)
{
    return (struct fetch){at, (bytes + steps - 1) / steps};
}

/* Queries that go over a page together, of those left. */
static int pass_queries(int left)
{
    return left >= 8 || left == 5 ? 5 : left > 4 ? 4 : left;
}

static int n_pass(int n_q)
{
    int n = 0;
    for (; n_q > 0; n++)
        n_q -= pass_queries(n_q);
    return n;
}

/* What is worked on of a page. */
struct page_part {
    const struct attn_state *a;
    const struct kv_head *kv;
    const uint8_t *at; /* keys of its first group of 16 tokens, or values of its first pair */
    float *p;          /* of query q0: scores, or weights, of its first token */
    int32_t n;         /* groups, or pairs */
    int q0;            /* the first query that goes over it */
};

/* ---- scores: NQ queries against NT groups of 16 tokens, lanes = tokens ----------------------- */

/* f NULL = nothing is fetched. */
ATTN_INLINE void score_group(const float *q, int32_t dk, float *s, const uint8_t *k,
                             struct fetch *f, enum kv_type type, int nq, int nt)
{
    vf acc[12];
    const size_t group = (size_t)dk * 16 * kv_elem_bytes(type), ldq = (size_t)dk;
    const struct fetch next = f ? *f : (struct fetch){0};
    const uint8_t *ahead = next.at;
    ATTN_UNROLL for (int i = 0; i < nq * nt; i++) acc[i] = vf_set1(0);
    for (int32_t d = 0; d < dk; d += 2, k += 64 * kv_elem_bytes(type) / 2)
        ATTN_UNROLL for (int t = 0; t < nt; t++)
        {
            const float *x = q + d;
            const uint8_t *y = k + (size_t)t * group;
            ATTN_ORDER();
            if (f) {
                __builtin_prefetch(ahead, 0, 2);
                ahead += next.step;
            }
            if (type == KV_BF16) {
                add_lanes(acc + t, nt, x, ldq, vf_load_bf16_even(y), nq);
                ATTN_ORDER();
                add_lanes(acc + t, nt, x + 1, ldq, vf_load_bf16_odd(y), nq);
            } else {
                add_lanes(acc + t, nt, x, ldq, vf_load((const float *)y), nq);
                add_lanes(acc + t, nt, x + 1, ldq, vf_load((const float *)y + 16), nq);
            }
        }
    if (f)
        f->at = ahead;
    ATTN_UNROLL for (int i = 0; i < nq; i++) ATTN_UNROLL for (int t = 0; t < nt; t++)
        vf_store(s + (size_t)i * ATTN_BLOCK + t * 16, acc[i * nt + t]);
}

ATTN_INLINE void score_typed(const struct page_part *g, struct fetch *f, enum kv_type type, int nq,
                             int nt)
{
    const int32_t dk = g->kv->dk;
    const float *q = g->a->q + (size_t)g->q0 * (size_t)dk;
    const uint8_t *k = g->at;
    const size_t group = (size_t)dk * 16 * kv_elem_bytes(type);
    int32_t i = 0;
    for (; g->n - i >= nt; i += nt, k += (size_t)nt * group)
        score_group(q, dk, g->p + i * 16, k, f, type, nq, nt);
    for (; i < g->n; i++, k += group)
        score_group(q, dk, g->p + i * 16, k, f, type, nq, 1);
}

ATTN_INLINE void score_run(const struct page_part *g, struct fetch *f, int nq, int nt)
{
    if (g->kv->type == KV_BF16)
        score_typed(g, f, KV_BF16, nq, nt);
    else
        score_typed(g, f, KV_F32, nq, nt);
}

static void score_page(struct page_part g, struct fetch f)
{
    for (int nq; g.q0 < g.a->n_q; g.q0 += nq, g.p += (size_t)nq * ATTN_BLOCK) {
        nq = pass_queries(g.a->n_q - g.q0);
        switch (nq) {
        case 5:
            score_run(&g, &f, 5, 1);
            break;
        case 4:
            score_run(&g, &f, 4, 1);
            break;
        case 3:
            score_run(&g, &f, 3, 2);
            break;
        case 2:
            score_run(&g, &f, 2, 2);
            break;
        default:
            score_run(&g, &f, 1, 4);
        }
    }
}

/* Groups [a->g0, n_group) of the block at t0. Values are read behind the last page's keys. */
static void scores(const struct attn_state *a, const struct kv_head *kv, int32_t t0,
                   int32_t n_group)
{
    if (kv->type == KV_CODED) {
        kvq_scores(&a->qr, a->n_q, kv, t0, a->g0, n_group, a->p);
        return;
    }
    const size_t elem = kv_elem_bytes(kv->type), dk = (size_t)kv->dk;
    const size_t steps = (size_t)n_pass(a->n_q) * (KV_PAGE / 16) * dk / 2;
    for (int32_t t = a->g0 * 16, end; t < n_group * 16; t = end) {
        end = page_end(t, n_group * 16);
        struct page_part g = {.a = a, .kv = kv, .p = a->p + t, .n = (end - t) / 16};
        g.at = kv_at(kv, t0 + t, kv->k_off) + (size_t)(t % KV_PAGE) * dk * elem;
        score_page(g, end < n_group * 16
                          ? fetch_over(kv_at(kv, t0 + end, kv->k_off), KV_PAGE * dk * elem, steps)
                          : fetch_over(kv_at(kv, t0 + a->g0 * 16, kv->v_off),
                                       KV_PAGE * (size_t)kv->dv * elem, steps));
    }
}

/* ---- weights: one query's scores of a block to e^(s - max), lanes outside [lo,hi) to 0 --------
 */

ATTN_INLINE vf mask_lanes(vf x, int32_t at, int32_t lo, int32_t hi, vf fill)
{
    if (hi - at < 16)
        x = vf_first(hi - at, x, fill);
    if (lo > at)
        x = vf_first(lo - at, fill, x);
    return x;
}

static void block_softmax(struct attn_state *a, int i, int32_t lo, int32_t hi, int32_t n_group)
{
    float *s = a->p + (size_t)i * ATTN_BLOCK;
    vf low = vf_set1(-3.0e38f), m = low;
    for (int32_t g = lo / 16; g * 16 < hi; g++)
        m = vf_max(m, mask_lanes(vf_load(s + g * 16), g * 16, lo, hi, low));
    a->mb[i] = vf_hmax(m);
    vf mb = vf_set1(a->mb[i]), sum = vf_set1(0), zero = vf_set1(0);
    for (int32_t g = a->g0; g < n_group; g++) {
        vf p = zero;
        if (g * 16 < hi && g * 16 + 16 > lo)
            p = mask_lanes(vec_exp(vf_sub(vf_load(s + g * 16), mb)), g * 16, lo, hi, zero);
        sum = vf_add(sum, p);
        vf_store(s + g * 16, p);
    }
    a->lb[i] = vf_sum(sum);
}

/* The bits of a block of tokens from b on, which is a multiple of 64: unseen lanes of x become
 * fill. Whether any of [lo, hi) is seen. */
static bool mask_block(float *x, const uint64_t *mask, int32_t lo, int32_t hi, float fill)
{
    bool any = false;
    for (int32_t i = lo; i < hi; i++) {
        bool seen = mask[i / 64] >> (i % 64) & 1;
        any = any || seen;
        x[i] = seen ? x[i] : fill;
    }
    return any;
}

/* A query's weights of the block at b, tokens [lo, hi) of it; whether it sees any. Unseen scores
 * are so low that they neither make the maximum nor add to a sum of 1 or more; their weights are
 * 0. */
static bool weigh_block(struct attn_state *a, const struct attn_tile *t, int i, int32_t b,
                        int32_t n_group)
{
    int32_t row = i / t->n_head, pos = t->pos + (t->level ? 0 : row);
    int32_t lo = t->window ? pos - t->window + 1 - b : 0, hi = pos + 1 - b;
    const uint64_t *mask = t->mask ? t->mask + (size_t)row * t->mask_stride + b / 64 : NULL;
    float *s = a->p + (size_t)i * ATTN_BLOCK;
    lo = lo > 0 ? lo : 0;
    hi = hi < ATTN_BLOCK ? hi : ATTN_BLOCK;
    if (lo >= hi || (mask && !mask_block(s, mask, lo, hi, -3.0e38f))) {
        memset(s, 0, (size_t)n_group * 64);
        return false;
    }
    block_softmax(a, i, lo, hi, n_group);
    if (mask)
        mask_block(s, mask, lo, hi, 0);
    return true;
}

/* ---- outputs: NQ queries, ND groups of 16 dims, lanes = dims ----------------------------------
 */

/* o_b of dims from d0 on goes on from where it is: one page at a time, so that values stay near. */
ATTN_INLINE void output_group(const struct page_part *g, int32_t d0, struct fetch *f,
                              enum kv_type type, int nq, int nd)
{
    vf acc[12];
    const size_t dv = (size_t)g->kv->dv, pair = dv * 2 * kv_elem_bytes(type);
    float *o = g->a->ob + (size_t)g->q0 * dv + d0;
    const uint8_t *v = g->at + (size_t)d0 * 4;
    const struct fetch next = *f;
    const uint8_t *ahead = next.at;
    const float *w = g->p, *end = w + 2 * g->n;
    ATTN_UNROLL for (int i = 0; i < nq; i++) ATTN_UNROLL for (int j = 0; j < nd; j++)
        acc[i * nd + j] = vf_load(o + (size_t)i * dv + j * 16);
    for (; w < end; w += 2, v += pair)
        ATTN_UNROLL for (int j = 0; j < nd; j++)
        {
            ATTN_ORDER();
            __builtin_prefetch(ahead, 0, 2);
            ahead += next.step;
            if (type == KV_BF16) {
                add_lanes(acc + j, nd, w, ATTN_BLOCK, vf_load_bf16_even(v + j * 64), nq);
                ATTN_ORDER();
                add_lanes(acc + j, nd, w + 1, ATTN_BLOCK, vf_load_bf16_odd(v + j * 64), nq);
            } else {
                const float *y = (const float *)v + j * 16;
                add_lanes(acc + j, nd, w, ATTN_BLOCK, vf_load(y), nq);
                add_lanes(acc + j, nd, w + 1, ATTN_BLOCK, vf_load(y + dv), nq);
            }
        }
    f->at = ahead;
    ATTN_UNROLL for (int i = 0; i < nq; i++) ATTN_UNROLL for (int j = 0; j < nd; j++)
        vf_store(o + (size_t)i * dv + j * 16, acc[i * nd + j]);
}

ATTN_INLINE void output_typed(const struct page_part *g, struct fetch *f, enum kv_type type, int nq,
                              int nd)
{
    int32_t d = 0;
    for (; g->kv->dv - d >= 16 * nd; d += 16 * nd)
        output_group(g, d, f, type, nq, nd);
    for (; d < g->kv->dv; d += 16)
        output_group(g, d, f, type, nq, 1);
}

ATTN_INLINE void output_run(const struct page_part *g, struct fetch *f, int nq, int nd)
{
    if (g->kv->type == KV_BF16)
        output_typed(g, f, KV_BF16, nq, nd);
    else
        output_typed(g, f, KV_F32, nq, nd);
}

static void output_page(struct page_part g, struct fetch f)
{
    for (int nq; g.q0 < g.a->n_q; g.q0 += nq, g.p += (size_t)nq * ATTN_BLOCK) {
        nq = pass_queries(g.a->n_q - g.q0);
        switch (nq) {
        case 5:
            output_run(&g, &f, 5, 1);
            break;
        case 4:
            output_run(&g, &f, 4, 1);
            break;
        case 3:
            output_run(&g, &f, 3, 2);
            break;
        case 2:
            output_run(&g, &f, 2, 2);
            break;
        default:
            output_run(&g, &f, 1, 4);
        }
    }
}

/* The last token, alone in its pair: the slot behind may hold anything, NaN times 0 too. */
static void output_odd(struct page_part g)
{
    uint32_t pair[2 * HEAD_DIM_MAX] = {0};
    const int32_t dv = g.kv->dv;
    memcpy(pair, g.at, (size_t)dv * 4);
    for (int32_t d = 0; d < dv && g.kv->type == KV_BF16; d++)
        pair[d] &= 0xFFFF;
    g.at = (const uint8_t *)pair;
    g.n = 1;
    output_page(g, (struct fetch){g.at, 0});
}

/* Weights on either side of [g0 * 16, n_group * 16) in their pages are not written yet. */
static void outputs_coded(const struct attn_state *a, const struct kv_head *kv, int32_t t0,
                          int32_t n_tok)
{
    int32_t first = a->g0 * 16 / KV_PAGE, end = (n_tok + KV_PAGE - 1) / KV_PAGE;
    int32_t lo = a->g0 * 16, hi = (n_tok + 15) / 16 * 16;
    for (int32_t i = 0; i < a->n_q; i++) {
        float *p = a->p + (size_t)i * ATTN_BLOCK;
        memset(p + first * KV_PAGE, 0, (size_t)(lo - first * KV_PAGE) * sizeof *p);
        memset(p + hi, 0, (size_t)(end * KV_PAGE - hi) * sizeof *p);
    }
    kvq_outputs(&a->wr, a->n_q, kv, t0, first, end, a->p, a->ob);
}

static void outputs(const struct attn_state *a, const struct kv_head *kv, int32_t t0, int32_t n_tok)
{
    if (kv->type == KV_CODED) {
        outputs_coded(a, kv, t0, n_tok);
        return;
    }
    const size_t elem = kv_elem_bytes(kv->type), dv = (size_t)kv->dv;
    const size_t steps = (size_t)n_pass(a->n_q) * (KV_PAGE / 2) * dv / 16;
    memset(a->ob, 0, (size_t)a->n_q * dv * sizeof *a->ob);
    for (int32_t t = a->g0 * 16, end; t < n_tok; t = end) {
        end = page_end(t, n_tok);
        struct page_part g = {.a = a, .kv = kv, .p = a->p + t, .n = (end - t) / 2};
        g.at = kv_at(kv, t0 + t, kv->v_off) + (size_t)(t % KV_PAGE) * dv * elem;
        struct fetch f = {g.at, 0};
        if (end < n_tok)
            f = fetch_over(kv_at(kv, t0 + end, kv->v_off), KV_PAGE * dv * elem, steps);
        else if (a->more)
            f = fetch_over(kv_at(kv, t0 + end, kv->k_off), KV_PAGE * (size_t)kv->dk * elem, steps);
        output_page(g, f);
        g.p += 2 * g.n;
        g.at += (size_t)g.n * 2 * dv * elem;
        if (end % 2)
            output_odd(g);
    }
}

/* ---- merging ----------------------------------------------------------------------------------
 */

static inline float exp1(float x)
{
    float t[16];
    if (x == 0)
        return 1; /* what it is, too */
    vf_store(t, vec_exp(vf_set1(x)));
    return t[0];
}

static void merge(struct attn_state *a, int i, int32_t dv)
{
    float m = a->m[i] > a->mb[i] ? a->m[i] : a->mb[i];
    float c0 = a->l[i] > 0 ? exp1(a->m[i] - m) : 0; /* nothing yet: exactly 0 */
    float c1 = exp1(a->mb[i] - m);
    a->l[i] = a->l[i] * c0 + a->lb[i] * c1;
    a->m[i] = m;
    float *o = a->o + (size_t)i * (size_t)dv, *ob = a->ob + (size_t)i * (size_t)dv;
    for (int32_t d = 0; d < dv; d += 16)
        vf_store(o + d, vf_fma(vf_load(o + d), vf_set1(c0), vf_mul(vf_load(ob + d), vf_set1(c1))));
}

/* Cuts the scratch behind the floats, and makes the queries integers. */
static void attn_begin_coded(struct attn_state *a, const struct kv_head *kv, void *scratch)
{
    const int32_t group = kv->form.group, n = kv->dk / group;
    float *s = scratch;
    int16_t *q = (int16_t *)(s + (size_t)3 * ATTN_Q_MAX * (HEAD_DIM_MAX / 32) + 16 * ATTN_Q_MAX);
    a->qr = (struct kvq_rows){.a = q, .as = s, .lda = kv->dk, .n_group = n};
    a->qr.asum = a->qr.as + ATTN_Q_MAX * n;
    a->qr.sum = a->qr.asum + ATTN_Q_MAX * n;
    a->wr = (struct kvq_rows){.lda = KV_PAGE, .n_group = 1};
    a->wr.a = q + (size_t)ATTN_Q_MAX * HEAD_DIM_MAX;
    a->wr.as = a->qr.sum + ATTN_Q_MAX * n;
    a->wr.asum = a->wr.as + ATTN_Q_MAX;
    a->wr.sum = a->wr.asum + ATTN_Q_MAX;
    for (int32_t i = 0; i < a->n_q; i++)
        for (int32_t g = 0; g < n; g++) {
            size_t at = (size_t)(i * n + g);
            kvq_quantize(&a->qr, i, g, a->q + (size_t)i * (size_t)kv->dk + (size_t)(g * group),
                         group);
            a->qr.asum[at] = a->qr.sum[at] * a->qr.as[at];
        }
}

/* Room in scratch, nothing seen yet. */
static void attn_room(struct attn_state *a, const struct attn_tile *t, const struct kv_head *kv)
{
    a->n_q = t->n_row * t->n_head;
    float *s = t->scratch;
    a->p = s;
    a->q = a->p + (size_t)ATTN_Q_MAX * ATTN_BLOCK;
    a->o = a->q + (size_t)ATTN_Q_MAX * HEAD_DIM_MAX;
    a->ob = a->o + (size_t)ATTN_Q_MAX * HEAD_DIM_MAX;
    for (int32_t i = 0; i < a->n_q; i++) {
        a->m[i] = -3.0e38f;
        a->l[i] = 0;
    }
    memset(a->o, 0, (size_t)a->n_q * (size_t)kv->dv * sizeof *a->o);
}

static void attn_begin(struct attn_state *a, const struct attn_tile *t, const struct kv_head *kv)
{
    attn_room(a, t, kv);
    vf scale = vf_set1(t->scale);
    for (int32_t i = 0; i < a->n_q; i++) {
        const float *q =
            t->q + (size_t)(i / t->n_head) * t->q_stride + (size_t)(i % t->n_head) * (size_t)kv->dk;
        for (int32_t d = 0; d < kv->dk; d += 16)
            vf_store(a->q + (size_t)i * (size_t)kv->dk + d, vf_mul(vf_load(q + d), scale));
    }
    if (kv->type == KV_CODED)
        attn_begin_coded(a, kv, a->ob + (size_t)ATTN_Q_MAX * HEAD_DIM_MAX);
}

static void attn_end(struct attn_state *a, const struct attn_tile *t, const struct kv_head *kv)
{
    const int32_t dv = kv->dv;
    const bool rotated = kv->type == KV_CODED && kv->form.rotated;
    for (int32_t i = 0; i < a->n_q; i++) {
        int32_t head = i % t->n_head;
        if (t->sinks) { /* a block with one token of weight 1 and value 0 */
            a->mb[i] = t->sinks[head];
            a->lb[i] = 1;
            memset(a->ob + (size_t)i * (size_t)dv, 0, (size_t)dv * sizeof *a->ob);
            merge(a, i, dv);
        }
        float *out = t->out + (size_t)(i / t->n_head) * t->out_stride + (size_t)head * (size_t)dv;
        vf inv = vf_set1(1.0f / a->l[i]);
        for (int32_t d = 0; d < dv; d += 16)
            vf_store(out + d, vf_mul(vf_load(a->o + (size_t)i * (size_t)dv + d), inv));
        if (rotated)
            kvq_unrotate(out, dv);
    }
}

static int32_t tile_blocks(const struct attn_tile *t)
{
    return attn_n_block(t->pos, t->level ? 1 : t->n_row, t->window);
}

/* The block at token b: its maxima, denominators and outputs of the queries that see some of it. */
static void attn_block(struct attn_state *a, const struct attn_tile *t, const struct kv_head *kv,
                       int32_t b, bool *seen)
{
    int32_t last = t->pos + (t->level ? 1 : t->n_row); /* one past the newest visible token */
    int32_t first = t->window && t->pos - t->window + 1 > 0 ? t->pos - t->window + 1 : 0;
    int32_t n_tok = last - b < ATTN_BLOCK ? last - b : ATTN_BLOCK;
    int32_t n_group = (n_tok + 15) / 16;
    a->g0 = first > b ? (first - b) / 16 : 0;
    a->more = last - b > ATTN_BLOCK;
    scores(a, kv, b, n_group);
    for (int32_t i = 0; i < a->n_q; i++)
        seen[i] = weigh_block(a, t, i, b, n_group);
    outputs(a, kv, b, n_tok);
}

static void tmpl_attn(const struct attn_tile *t, const struct kv_head *kv)
{
    struct attn_state a;
    bool seen[ATTN_Q_MAX];
    attn_begin(&a, t, kv);
    int32_t b = attn_first_block(t->pos, t->window), n = tile_blocks(t);
    for (; n > 0; n--, b++) {
        attn_block(&a, t, kv, b * ATTN_BLOCK, seen);
        for (int32_t i = 0; i < a.n_q; i++)
            if (seen[i])
                merge(&a, i, kv->dv);
    }
    attn_end(&a, t, kv);
}

/* Where block i (of those the tile sees) of query q lies. */
static float *part_at(const struct attn_parts *parts, const struct attn_tile *t, int32_t dv,
                      int32_t i, int32_t q)
{
    size_t in_row = (size_t)(i % parts->step * t->n_head + q % t->n_head);
    return parts->p + (size_t)(i / parts->step) * parts->piece_stride +
           (size_t)(q / t->n_head) * parts->row_stride + in_row * (size_t)(ATTN_PART + dv);
}

static void tmpl_attn_part(const struct attn_tile *t, const struct kv_head *kv,
                           const struct attn_parts *parts, int32_t piece)
{
    struct attn_state a;
    bool seen[ATTN_Q_MAX];
    int32_t n = tile_blocks(t), end = (piece + 1) * parts->step;
    attn_begin(&a, t, kv);
    for (int32_t i = piece * parts->step; i < n && i < end; i++) {
        attn_block(&a, t, kv, (attn_first_block(t->pos, t->window) + i) * ATTN_BLOCK, seen);
        for (int32_t q = 0; q < a.n_q; q++) {
            float *to = part_at(parts, t, kv->dv, i, q);
            to[0] = a.mb[q];
            to[1] = seen[q] ? a.lb[q] : 0;
            memcpy(to + ATTN_PART, a.ob + (size_t)q * (size_t)kv->dv, (size_t)kv->dv * sizeof *to);
        }
    }
}

static void tmpl_attn_merge(const struct attn_tile *t, const struct kv_head *kv,
                            const struct attn_parts *parts)
{
    struct attn_state a;
    int32_t n = tile_blocks(t), most = parts->n_piece * parts->step;
    attn_room(&a, t, kv);
    for (int32_t q = 0; q < a.n_q; q++)
        for (int32_t i = 0; i < n && i < most; i++) {
            const float *from = part_at(parts, t, kv->dv, i, q);
            if (from[1] == 0)
                continue;
            a.mb[q] = from[0];
            a.lb[q] = from[1];
            memcpy(a.ob + (size_t)q * (size_t)kv->dv, from + ATTN_PART,
                   (size_t)kv->dv * sizeof *from);
            merge(&a, q, kv->dv);
        }
    attn_end(&a, t, kv);
}

#undef ATTN_INLINE
#undef ATTN_ORDER
#undef ATTN_UNROLL
