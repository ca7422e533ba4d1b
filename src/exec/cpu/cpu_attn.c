/*
 * cpu_attn.c - head norms, rotary embedding, appending to KV memory, and attention over the step's
 * sequences.
 *
 * A chunk of attention is one tile of rows of a sequence times one kv head (with the query heads
 * that share it, at most ATTN_Q_MAX queries); where rows see what an index chose, one row. Few rows
 * deep in a sequence are cut along the tokens they see as well, and merged in a second region.
 */
#include <string.h>

#include "exec/cpu/cpu_ops.h"
#include "kernels/kvq.h"

/* A head on its way to attention: normed (j->w NULL = not), then rotated (cs NULL = not). */
static void head_ready(const struct rows_job *j, float *y, const float *x, const float *cs)
{
    float normed[HEAD_DIM_MAX];
    if (j->w) {
        void (*norm)(float *, const float *, const float *, float, float, int32_t) =
            j->reference ? ref_rmsnorm : j->kern->rmsnorm;
        norm(normed, x, j->w->vec, j->add, j->eps, j->dk);
        x = normed;
    }
    if (cs)
        (j->reference ? ref_rope : j->kern->rope)(y, x, j->dk, j->rope->dims, cs,
                                                  j->rope->interleaved);
    else
        memcpy(y, x, (size_t)j->dk * sizeof *y);
}

static const float *angles(const struct rope *rope, int32_t row)
{
    return rope ? rope->cs + (size_t)row * (size_t)rope->dims : NULL;
}

static void query_one(const struct rows_job *j, int32_t row, float *const *out)
{
    const float *x = j->in[0] + (size_t)row * (size_t)j->in_cols[0];
    for (int32_t h = 0; h < j->n_head; h++)
        head_ready(j, out[0] + h * j->dk, x + h * j->head_stride, angles(j->rope, row));
}

/* Token i of a span: its keys, made ready as j says, and its values into KV memory. */
static void append_row(struct exec *ex, const struct rows_job *j, const struct attn_op *a,
                       const struct span *sp, int32_t i)
{
    const struct kv_layer *l = &ex->kv.layers[a->layer];
    const float *kx = j->in[0] + (size_t)(sp->row0 + i) * (size_t)j->in_cols[0];
    const float *vx = a->kv == ATTN_KV_EQUAL ? kx : kx + a->n_kv * a->dk;
    const float *cs = angles(a->rope, sp->row0 + i);
    float ready[HEAD_DIM_MAX], even[HEAD_DIM_MAX];
    for (int32_t h = 0; h < l->n_head; h++) {
        const struct kv_head head = kv_head_of(ex, a->layer, h);
        const float *value = vx + h * l->dv;
        head_ready(j, ready, kx + h * l->dk, cs);
        if (a->v_norm) {
            (j->reference ? ref_rmsnorm : j->kern->rmsnorm)(even, value, NULL, 0, j->eps, l->dv);
            value = even;
        }
        kv_append(ex, sp->kv, &head, a->layer, sp->pos + i, ready, value);
    }
}

void cpu_rope_append(struct exec *ex, struct tensor *q_out, const struct tensor *qkv,
                     const struct attn_op *a)
{
    int32_t head = a->gated ? 2 * a->dk : a->dk;
    int32_t per_kv = a->kv == ATTN_KV ? a->dk + a->dv : a->kv == ATTN_KV_EQUAL ? a->dk : 0;
    QN_ASSERT(qkv->cols == a->n_head * head + a->n_kv * per_kv);
    QN_ASSERT(a->kv != ATTN_KV_EQUAL || a->dk == a->dv);
    QN_ASSERT((!a->q_norm || a->q_norm->n == a->dk) && (!a->k_norm || a->k_norm->n == a->dk));
    struct rows_job j = {.n_row = qkv->rows,
                         .n_out = 1,
                         .kern = ex->kern,
                         .rope = a->rope,
                         .w = a->q_norm,
                         .add = a->norm_add,
                         .eps = a->norm_eps,
                         .n_head = a->n_head,
                         .dk = a->dk,
                         .head_stride = head,
                         .reference = ex->reference};
    j.in[0] = qkv->p;
    j.in_cols[0] = qkv->cols;
    if (a->n_head) {
        q_out->rows = qkv->rows;
        j.out[0] = q_out->p;
        j.out_cols[0] = q_out->cols;
        rows_run(ex, &j, query_one);
    }
    if (a->kv == ATTN_KV_KEPT)
        return;
    j.w = a->k_norm;
    j.in[0] += a->n_head * head;
    for (int32_t s = 0; s < ex->step.n_span; s++)
        for (int32_t i = 0; i < ex->step.spans[s].n; i++)
            append_row(ex, &j, a, &ex->step.spans[s], i);
}

/* ---- attention --------------------------------------------------------------------------------
 */

struct attn_args {
    const struct kernels *kern;
    const struct attn_rows *tiles;
    const float *q, *sinks;
    /* NULL = everything is seen: of latents by lists, behind their number, otherwise by masks */
    const int32_t *lists;
    const uint64_t *mask;
    size_t row_list, mask_words;
    float *dst;
    size_t ldq, ldd;
    struct kv_head kv;              /* of the first kv head, but for the pages */
    size_t k_bytes, v_bytes;        /* of one head's K and V in a page */
    int32_t n_kv, group;            /* query heads per kv head */
    int32_t head_parts, heads_part; /* a large group is cut */
    int32_t dk, dv, window;
    int32_t chunk0; /* a region holds at most POOL_CHUNK_MAX chunks: this one's first */
    int32_t tile_rows;
    struct attn_parts parts; /* cut along the tokens: step > 0; p: of the first tile and head */
    float scale;
    bool reference, level;
};

struct attn_piece {
    struct attn_rows rows;
    int32_t kv_head, head0, n_head;
    float *parts; /* of the tile and head, all pieces */
};

static struct attn_piece attn_piece_of(const struct attn_args *a, int chunk)
{
    chunk += a->chunk0;
    int32_t part = chunk % a->head_parts, c = chunk / a->head_parts;
    struct attn_piece p = {.rows = a->tiles[c / a->n_kv], .kv_head = c % a->n_kv};
    p.head0 = p.kv_head * a->group + part * a->heads_part;
    p.n_head = a->group - part * a->heads_part;
    if (p.n_head > a->heads_part)
        p.n_head = a->heads_part;
    if (p.rows.n > a->tile_rows) /* torn */
        p.rows.n = a->tile_rows;
    p.parts = a->parts.p + (size_t)chunk * (size_t)a->parts.n_piece * a->parts.piece_stride;
    return p;
}

static int attn_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct attn_args *a = args;
    struct attn_piece p = attn_piece_of(a, chunk);
    float *dst = a->dst + (size_t)p.rows.row0 * a->ldd + (size_t)p.head0 * (size_t)a->dv;
    r[0] = (struct pool_region){(char *)dst, p.rows.n,
                                (size_t)p.n_head * (size_t)a->dv * sizeof(float),
                                a->ldd * sizeof(float)};
    return 1;
}

/* A late worker may find the next step's tile here, with the rows of the last one in hand: only
 * rows that both have are inside the queries as well as inside the destination. */
static int32_t rows_inside(const struct attn_piece *p, int32_t rows)
{
    if (rows > p->rows.n)
        rows = p->rows.n;
    return rows >= 1 && rows * p->n_head <= ATTN_Q_MAX ? rows : 1;
}

static struct kv_head attn_kv(const struct attn_args *a, const struct attn_piece *p)
{
    struct kv_head kv = a->kv;
    kv.pages = p->rows.pages;
    kv.k_off += (size_t)p->kv_head * a->k_bytes;
    kv.v_off += (size_t)p->kv_head * a->v_bytes;
    return kv;
}

/* The tile of a piece, out to r. */
static struct attn_tile attn_tile_of(const struct attn_args *a, const struct attn_piece *p,
                                     const struct pool_region *r, void *work)
{
    const int32_t *list = a->lists ? a->lists + (size_t)p->rows.row0 * a->row_list : NULL;
    return (struct attn_tile){
        .q = a->q + (size_t)p->rows.row0 * a->ldq + (size_t)p->head0 * (size_t)a->dk,
        .out = (float *)r->p,
        .q_stride = a->ldq,
        .out_stride = r->stride / sizeof(float),
        .n_row = rows_inside(p, r->rows),
        .n_head = p->n_head,
        .pos = p->rows.pos,
        .level = a->level,
        .window = a->window,
        .scale = a->scale,
        .sinks = a->sinks ? a->sinks + p->head0 : NULL,
        .mask = a->mask ? a->mask + (size_t)p->rows.row0 * a->mask_words : NULL,
        .mask_stride = a->mask_words,
        .tokens = list ? list + 1 : NULL,
        .n_token = list ? list[0] : 0,
        .scratch = work,
    };
}

static void attn_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct attn_args *a = args;
    struct attn_piece p = attn_piece_of(a, chunk);
    struct kv_head kv = attn_kv(a, &p);
    struct attn_tile t = attn_tile_of(a, &p, r, work);
    if (a->reference)
        ref_attn(&t, &kv);
    else
        (kv.latent ? a->kern->latent_attn : a->kern->attn)(&t, &kv);
}

/* ---- cut along the tokens -------------------------------------------------------------------- */

static int part_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct attn_args *a = args;
    int32_t piece = chunk % a->parts.n_piece;
    struct attn_piece p = attn_piece_of(a, chunk / a->parts.n_piece);
    size_t bytes = a->parts.row_stride * sizeof(float);
    r[0] = (struct pool_region){(char *)(p.parts + (size_t)piece * a->parts.piece_stride), p.rows.n,
                                bytes, bytes};
    return 1;
}

static void part_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct attn_args *a = args;
    struct attn_piece p = attn_piece_of(a, chunk / a->parts.n_piece);
    struct kv_head kv = attn_kv(a, &p);
    struct attn_tile t = attn_tile_of(a, &p, r, work);
    struct attn_parts to = {.p = (float *)r->p,
                            .row_stride = r->stride / sizeof(float),
                            .step = a->parts.step,
                            .n_piece = a->parts.n_piece};
    a->kern->attn_part(&t, &kv, &to, chunk % a->parts.n_piece);
}

static void merge_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct attn_args *a = args;
    struct attn_piece p = attn_piece_of(a, chunk);
    struct kv_head kv = attn_kv(a, &p);
    struct attn_tile t = attn_tile_of(a, &p, r, work);
    struct attn_parts from = a->parts;
    from.p = p.parts;
    a->kern->attn_merge(&t, &kv, &from);
}

/* CUT_FROM: blocks; before, a piece is not worth a second region. */
enum { CUT_FROM = 6, CUT_CHUNKS = 8 };

/* Whether the step's rows, in tiles of `rows` rows and `heads` query heads, are cut along the
 * tokens they see, so that each thread has some CUT_CHUNKS chunks; how, goes into a->parts. */
static bool attn_cut_tokens(struct exec *ex, struct attn_args *a, int32_t heads, int32_t rows)
{
    int32_t team = pool_n_thread(ex->pool), deepest = 0;
    int64_t tiles = 0, work = 0, per = (int64_t)a->n_kv * ((a->group + heads - 1) / heads);
    for (int32_t s = 0; s < ex->step.n_span; s++) {
        const struct span *sp = &ex->step.spans[s];
        int32_t blocks = attn_n_block(sp->pos, sp->n, a->window), n = (sp->n + rows - 1) / rows;
        tiles += n;
        work += (int64_t)n * blocks;
        deepest = blocks > deepest ? blocks : deepest;
    }
    int64_t step = (work * per + CUT_CHUNKS * team - 1) / (CUT_CHUNKS * team);
    if (team < 2 || deepest < CUT_FROM || step >= deepest || a->reference || a->kv.latent ||
        a->level)
        return false;
    struct attn_parts p = {.step = (int32_t)step};
    p.n_piece = (deepest + p.step - 1) / p.step;
    p.row_stride = (size_t)p.step * (size_t)heads * (size_t)(ATTN_PART + a->dv);
    p.piece_stride = p.row_stride * (size_t)rows;
    int64_t n = tiles * per * p.n_piece;
    if (n > POOL_CHUNK_MAX || n * (int64_t)(p.piece_stride * sizeof(float)) > ATTN_PARTS_BYTES)
        return false;
    if (!ex->attn_parts)
        ex->attn_parts = mem_alloc(ATTN_PARTS_BYTES);
    p.p = ex->attn_parts;
    a->parts = p;
    return p.p != NULL;
}

/* ---- cut by rows and heads ------------------------------------------------------------------- */

enum { ROWS_LEAST = 4 }; /* of a tile of many rows: fewer read keys too often */

/* How a kv head's queries are cut: `heads` query heads and at most `rows` rows to a chunk. Large
 * chunks read keys and values the fewest times, but few of them leave threads idle: the longest run
 * of rows, or all that decode when nothing else does, should make some for each. */
static void attn_cut(const struct exec *ex, int32_t group, int32_t n_kv, int32_t *heads,
                     int32_t *rows)
{
    int32_t team = pool_n_thread(ex->pool), longest = 0;
    for (int32_t s = 0; s < ex->step.n_span; s++)
        if (ex->step.spans[s].n > longest)
            longest = ex->step.spans[s].n;
    int32_t parts = (group + ATTN_Q_MAX - 1) / ATTN_Q_MAX;
    if (longest == 1 && ex->step.n_span * n_kv * parts < team)
        parts = (team + ex->step.n_span * n_kv - 1) / (ex->step.n_span * n_kv);
    parts = parts < group ? parts : group;
    *heads = (group + parts - 1) / parts;
    *rows = ATTN_Q_MAX / *heads;
    if (*rows > ROWS_LEAST)
        *rows -= *rows % ROWS_LEAST;
    int64_t chunks = (int64_t)((longest + *rows - 1) / *rows) * n_kv * parts;
    if (team > 1 && *rows > ROWS_LEAST && longest > ROWS_LEAST && chunks < 2 * (int64_t)team)
        *rows = ROWS_LEAST;
}

/* n: tiles times kv heads times their parts. */
static void attn_regions_run(struct exec *ex, struct attn_args *a, int64_t n)
{
    struct pool_job job = {attn_regions, attn_run, a, sizeof *a, (int)n};
    if (a->parts.step) {
        struct pool_job parts = {part_regions, part_run, a, sizeof *a, (int)n * a->parts.n_piece};
        pool_run(ex->pool, &parts);
        job.run = merge_run;
        pool_run(ex->pool, &job);
        return;
    }
    for (int64_t at = 0; at < n; at += POOL_CHUNK_MAX) {
        a->chunk0 = (int32_t)at;
        job.n_chunk = (int)(n - at < POOL_CHUNK_MAX ? n - at : POOL_CHUNK_MAX);
        pool_run(ex->pool, &job);
    }
}

void cpu_attn(struct exec *ex, struct tensor *dst, const struct tensor *q, const struct attn_op *a)
{
    const struct kv_store *kv = &ex->kv;
    bool latent = kv->layers[a->layer].latent, listed = a->index && !a->index->all;
    int32_t group = a->n_head / a->n_kv, n_tile;
    int32_t window = kv->groups[kv->layer_group[a->layer]].window;
    QN_ASSERT(!window || (a->window && a->window <= window)); /* what is older is gone */
    QN_ASSERT(!latent || (a->n_kv == 1 && !a->window && !a->sinks));
    QN_ASSERT(a->sees == SEES_SELF || (!latent && !listed));
    dst->rows = q->rows;
    struct kv_head head = kv_head_of(ex, a->layer, 0);
    QN_ASSERT(head.dk == a->dk && head.dv == a->dv && kv->layers[a->layer].n_head == a->n_kv);
    struct attn_args args = {
        .kern = ex->kern,
        .q = q->p,
        .sinks = a->sinks ? a->sinks->vec : NULL,
        .lists = listed && latent ? a->index->lists : NULL,
        .mask = listed ? a->index->bits : NULL,
        .row_list = listed ? (size_t)a->index->row_list : 0,
        .mask_words = listed ? (size_t)a->index->row_words : 0,
        .dst = dst->p,
        .ldq = (size_t)q->cols,
        .ldd = (size_t)dst->cols,
        .kv = head,
        .k_bytes = kv_key_bytes(head.type, &head.form, head.dk),
        .v_bytes = kv_value_bytes(head.type, &head.form, head.dv),
        .n_kv = a->n_kv,
        .group = group,
        .dk = a->dk,
        .dv = a->dv,
        .window = a->window,
        .scale = a->scale,
        .reference = ex->reference,
        .level = a->sees != SEES_SELF,
    };
    int32_t heads = group < ATTN_Q_MAX ? group : ATTN_Q_MAX, rows = ATTN_Q_MAX / heads;
    if (!attn_cut_tokens(ex, &args, heads, rows))
        attn_cut(ex, group, a->n_kv, &heads, &rows);
    args.heads_part = heads;
    args.head_parts = (group + heads - 1) / heads;
    args.tile_rows = latent && listed ? 1 : rows;
    args.tiles = step_tiles(ex, a->layer, a->sees, args.tile_rows, &n_tile);
    attn_regions_run(ex, &args, (int64_t)n_tile * a->n_kv * args.head_parts);
}

const struct exec_ops exec_cpu_ops = {
    .embed = cpu_embed,
    .rmsnorm = cpu_rmsnorm,
    .add_rmsnorm = cpu_add_rmsnorm,
    .linear = cpu_linear,
    .linear_heads = cpu_linear_heads,
    .latent_append = cpu_latent_append,
    .index = cpu_index,
    .join = cpu_join,
    .add = cpu_add,
    .rope_append = cpu_rope_append,
    .attn = cpu_attn,
    .glu = cpu_glu,
    .route = cpu_route,
    .route_groups = cpu_route_groups,
    .experts = cpu_experts,
    .delta_mix = cpu_delta_mix,
    .delta = cpu_delta,
    .delta_again = cpu_delta_again,
    .norm_gated = cpu_norm_gated,
    .gate = cpu_gate,
    .add_gated = cpu_add_gated,
    .glu_at = cpu_glu_at,
    .route_scaled = cpu_route_scaled,
    .add_scale = cpu_add_scale,
    .norm_heads_add = cpu_norm_heads_add,
    .softcap = cpu_softcap,
    .take = cpu_take,
    .pick = cpu_pick,
    .place = cpu_place,
};
