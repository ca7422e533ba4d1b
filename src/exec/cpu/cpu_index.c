/*
 * cpu_index.c - the index of sparse attention: scores of all earlier tokens for a row, and the list
 * of the best.
 *
 * Scores are made for INDEX_SCORE_ROWS rows at a time, a chunk being one row's run of SCORE_TOKENS
 * tokens; then a chunk is one row's selection. Lanes are tokens and sums run over ascending
 * dimensions and heads, so a score does not depend on how the work was cut.
 */
#include <math.h>
#include <string.h>

#include "exec/cpu/cpu_ops.h"

enum { SCORE_TOKENS = INDEX_SLOTS };

/* ---- keys and queries ---------- */

/* y = (x - mean) / sqrt(var + eps) * w + b, sums in double over ascending index */
static void layer_norm(float *y, const float *x, const struct index_op *a)
{
    double mean = 0, var = 0;
    int32_t n = a->d_head;
    for (int32_t i = 0; i < n; i++)
        mean += (double)x[i];
    mean /= n;
    for (int32_t i = 0; i < n; i++)
        var += ((double)x[i] - mean) * ((double)x[i] - mean);
    double r = 1 / sqrt(var / n + (double)a->norm_eps);
    for (int32_t i = 0; i < n; i++)
        y[i] = (float)(((double)x[i] - mean) * r * (double)a->norm->vec[i] +
                       (double)a->norm_bias->vec[i]);
}

static void rotate(const struct rows_job *j, float *y, const float *x, int32_t row)
{
    const struct rope *t = j->rope;
    (j->reference ? ref_rope : j->kern->rope)(
        y, x, j->dk, t->dims, t->cs + (size_t)row * (size_t)t->dims, t->interleaved);
}

static void index_query_one(const struct rows_job *j, int32_t row, float *const *out)
{
    const float *x = j->in[0] + (size_t)row * (size_t)j->in_cols[0];
    for (int32_t h = 0; h < j->n_head; h++)
        rotate(j, out[0] + h * j->dk, x + h * j->dk, row);
}

static void append_keys(struct exec *ex, const struct rows_job *j, const struct tensor *k,
                        const struct index_op *a)
{
    size_t elem = kv_elem_bytes(ex->kv.type);
    float normed[HEAD_DIM_MAX], key[HEAD_DIM_MAX];
    for (int32_t s = 0; s < ex->step.n_span; s++) {
        const struct span *sp = &ex->step.spans[s];
        for (int32_t i = 0; i < sp->n; i++) {
            int32_t row = sp->row0 + i, pos = sp->pos + i;
            uint8_t *p = kv_at_token(ex, sp->kv, a->layer, pos);
            layer_norm(normed, k->p + (size_t)row * (size_t)k->cols, a);
            rotate(j, key, normed, row);
            ex->kern->kv_put(p, p + (size_t)a->d_head * KV_PAGE * elem, pos % KV_PAGE, key, NULL,
                             a->d_head, 0, ex->kv.type);
        }
    }
}

/* ---- scores: one row against SCORE_TOKENS tokens ---------- */

struct index_args {
    const struct kernels *kern;
    const struct index *ix;
    const struct attn_rows *tiles; /* of one row each */
    const float *q, *w;
    size_t layer_off;
    int32_t row0, n_row, n_run; /* rows of this region, runs of tokens for each */
    int32_t n_head, dk, n_slot;
    float scale;
    enum kv_type type;
    bool reference;
};
_Static_assert(sizeof(struct index_args) <= POOL_ARGS_MAX, "job arguments");

static int score_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct index_args *a = args;
    float *p = a->ix->scores + (size_t)(chunk / a->n_run) * (size_t)a->n_slot +
               (size_t)(chunk % a->n_run) * SCORE_TOKENS;
    r[0] = (struct pool_region){(char *)p, 1, SCORE_TOKENS * sizeof(float),
                                SCORE_TOKENS * sizeof(float)};
    return 1;
}

/* 16 tokens in double: s += w relu(q . k) for each head */
static void score_ref(float *s, const uint8_t *k, const struct index_query *a)
{
    double sum[16] = {0};
    const float *q = a->q;
    for (int32_t h = 0; h < a->n_head; h++, q += a->dk)
        for (int t = 0; t < 16; t++) {
            double dot = 0;
            for (int32_t d = 0; d < a->dk; d++) {
                float x;
                memcpy(&x, k + (size_t)d * 64 + (size_t)t * 4, 4);
                dot += (double)q[d] * (double)x;
            }
            sum[t] += (double)a->w[h] * (double)a->scale * (dot > 0 ? dot : 0);
        }
    for (int t = 0; t < 16; t++)
        s[t] = (float)sum[t];
}

static void score_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct index_args *a = args;
    int32_t row = a->row0 + chunk / a->n_run, t0 = chunk % a->n_run * SCORE_TOKENS;
    struct attn_rows tile = a->tiles[row];
    float *s = (float *)r[0].p;
    struct index_query q = {.q = a->q + (size_t)row * (size_t)a->n_head * (size_t)a->dk,
                            .w = a->w + (size_t)row * (size_t)a->n_head,
                            .n_head = a->n_head,
                            .dk = a->dk,
                            .scale = a->scale,
                            .type = a->type};
    size_t group = (size_t)a->dk * 16 * kv_elem_bytes(a->type);
    for (int32_t g = 0; g < SCORE_TOKENS / 16; g++) {
        int32_t t = t0 + g * 16;
        if (t > tile.pos) {
            memset(s + g * 16, 0, 64);
            continue;
        }
        const uint8_t *k =
            tile.pages[t / KV_PAGE] + a->layer_off + (size_t)(t % KV_PAGE / 16) * group;
        (a->reference ? score_ref : a->kern->index_score)(s + g * 16, k, &q);
    }
}

/* ---- selection: the best of [0, pos], among equals the later tokens ---------- */

/* Rising with the value; -0 counts as 0. */
static uint32_t ordered(float f)
{
    uint32_t u;
    f = f == 0 ? 0 : f;
    memcpy(&u, &f, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The key of the k-th largest of s[n], byte by byte from the top; *spare: how many of the tokens
 * with just that key do not belong to the k. */
static uint32_t kth_key(const float *s, int32_t n, int32_t k, int32_t *spare)
{
    uint32_t key = 0, known = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int32_t count[256] = {0}, b = 255;
        for (int32_t i = 0; i < n; i++) {
            uint32_t o = ordered(s[i]);
            count[o >> shift & 255] += (o & known) == key;
        }
        for (; b > 0 && count[b] < k; b--)
            k -= count[b];
        key |= (uint32_t)b << shift;
        known |= 255u << shift;
        *spare = count[b] - k;
    }
    return key;
}

static int select_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct index_args *a = args;
    size_t row = (size_t)a->ix->row_list;
    int32_t *p = a->ix->lists + (size_t)(a->row0 + chunk) * row;
    size_t words = (size_t)a->ix->row_words * 8;
    uint64_t *bits = a->ix->bits + (size_t)(a->row0 + chunk) * (size_t)a->ix->row_words;
    r[0] = (struct pool_region){(char *)p, 1, row * sizeof *p, row * sizeof *p};
    r[1] = (struct pool_region){(char *)bits, 1, words, words};
    return 2;
}

/* A late worker's scores may change under its hands: what is written stays inside the list. */
static void select_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct index_args *a = args;
    const float *s = a->ix->scores + (size_t)chunk * (size_t)a->n_slot;
    int32_t n = a->tiles[a->row0 + chunk].pos + 1, room = a->ix->row_list - 1, spare = 0, m = 0;
    n = n < a->n_slot ? n : a->n_slot;
    int32_t *list = (int32_t *)(void *)r[0].p;
    uint64_t *bits = (uint64_t *)(void *)r[1].p;
    memset(bits, 0, r[1].row_bytes);
    uint32_t key = n > room ? kth_key(s, n, room, &spare) : 0;
    for (int32_t i = 0; i < n && m < room; i++) {
        uint32_t o = ordered(s[i]);
        if (n <= room || o > key || (o == key && spare-- <= 0))
            bits[(list[++m] = i) / 64] |= 1ull << (i % 64);
    }
    memset(list + 1 + m, 0, (size_t)(room - m) * sizeof *list);
    list[0] = m;
}

/* ---- entry ------------------------------------------------------------------------------------
 */

/* Rows whose context fits into top_k see everything: nothing is scored when all do. */
static bool all_fit(const struct exec *ex, int32_t top_k)
{
    for (int32_t i = 0; i < ex->step.n_row; i++)
        if (ex->step.pos[i] >= top_k)
            return false;
    return true;
}

void cpu_index(struct exec *ex, struct index *ix, const struct index_op *a)
{
    const struct kv_layer *l = &ex->kv.layers[a->layer];
    QN_ASSERT(l->n_head == 1 && l->dk == a->d_head && l->dv == 0 && a->rope->dims <= a->d_head &&
              a->q->cols == a->n_head * a->d_head && a->k->cols == a->d_head &&
              a->w->cols == a->n_head && ix->q->cols == a->q->cols);
    ix->q->rows = a->q->rows;
    struct rows_job j = {.n_row = a->q->rows,
                         .n_out = 1,
                         .kern = ex->kern,
                         .rope = a->rope,
                         .n_head = a->n_head,
                         .dk = a->d_head,
                         .reference = ex->reference};
    j.in[0] = a->q->p;
    j.in_cols[0] = a->q->cols;
    j.out[0] = ix->q->p;
    j.out_cols[0] = ix->q->cols;
    append_keys(ex, &j, a->k, a);
    ix->all = all_fit(ex, ix->top_k);
    if (ix->all)
        return;
    rows_run(ex, &j, index_query_one);
    int32_t longest = 0, n_tile;
    for (int32_t i = 0; i < ex->step.n_row; i++)
        longest = ex->step.pos[i] > longest ? ex->step.pos[i] : longest;
    struct index_args args = {.kern = ex->kern,
                              .ix = ix,
                              .tiles = step_tiles(ex, a->layer, SEES_SELF, 1, &n_tile),
                              .q = ix->q->p,
                              .w = a->w->p,
                              .layer_off = ex->kv.layer_off[a->layer],
                              .n_run = longest / SCORE_TOKENS + 1,
                              .n_head = a->n_head,
                              .dk = a->d_head,
                              .n_slot = ix->n_slot,
                              .scale = a->scale,
                              .type = ex->kv.type,
                              .reference = ex->reference};
    int32_t most = POOL_CHUNK_MAX / args.n_run < INDEX_SCORE_ROWS ? POOL_CHUNK_MAX / args.n_run
                                                                  : INDEX_SCORE_ROWS;
    for (int32_t row = 0; row < ex->step.n_row; row += most) {
        args.row0 = row;
        args.n_row = ex->step.n_row - row < most ? ex->step.n_row - row : most;
        struct pool_job score = {score_regions, score_run, &args, sizeof args,
                                 args.n_row * args.n_run};
        pool_run(ex->pool, &score);
        struct pool_job select = {select_regions, select_run, &args, sizeof args, args.n_row};
        pool_run(ex->pool, &select);
    }
}
