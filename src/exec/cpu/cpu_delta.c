/*
 * cpu_delta.c - gated delta nets: the convolution and gates of each row, the recurrence over each
 * sequence's rows, gated norms; and sigmoid gates.
 *
 * A chunk of the recurrence is one value head of one sequence over all its rows of the step: it
 * reads the state the sequence has and writes the one it will have. A late worker may find the next
 * step's spans here; what it computes is dropped, but it must stay inside its buffers.
 */
#include <math.h>
#include <string.h>

#include "exec/cpu/cpu_ops.h"

/* ---- convolution and gates --------------------------------------------------------------- */

/* The span of a row: the last one that does not begin behind it. */
static struct span span_of(const struct rows_job *j, int32_t row)
{
    int32_t lo = 0, hi = j->n_span;
    while (hi - lo > 1) {
        int32_t mid = lo + (hi - lo) / 2;
        if (j->spans[mid].row0 <= row)
            lo = mid;
        else
            hi = mid;
    }
    return j->spans[lo];
}

/* Inputs of the convolution at a row: the step's own, and before those the sequence's. */
static void taps_of(const struct rows_job *j, int32_t row, const float **taps)
{
    struct span sp = span_of(j, row);
    const float *before = sp.kv->state[sp.kv->now] + j->state_off;
    int32_t n = j->delta.taps, t = row - sp.row0;
    t = t < 0 ? 0 : t > row ? row : t; /* a torn span */
    for (int32_t i = 0; i < n; i++) {
        int32_t at = t + i; /* among the n-1 rows before the span and its own behind them */
        taps[i] = at < n - 1 ? before + (size_t)at * (size_t)j->in_cols[0]
                             : j->in[0] + (size_t)(row - (n - 1) + i) * (size_t)j->in_cols[0];
    }
}

static void mix_one(const struct rows_job *j, int32_t row, float *const *out)
{
    const struct kernels *k = j->kern;
    const struct delta_shape *d = &j->delta;
    const float *taps[DELTA_TAPS_MAX];
    taps_of(j, row, taps);
    (j->reference ? ref_conv_silu : k->conv_silu)(out[0], taps, j->w->vec, d->taps, j->out_cols[0]);
    for (int32_t h = 0; h < 2 * d->n_k; h++) { /* queries, then keys */
        float *head = out[0] + h * d->dk;
        float scale = h < d->n_k ? j->scale : 1.0f;
        (j->reference ? ref_l2norm : k->l2norm)(head, head, j->eps, scale, d->dk);
    }
    const float *ab = j->in[1] + (size_t)row * (size_t)j->in_cols[1];
    struct delta_gate_in in = {ab, ab + d->n_v, j->dt_bias->vec, j->a_log->vec};
    (j->reference ? ref_delta_gates : k->delta_gates)(out[1], out[1] + d->n_v, &in, d->n_v);
}

/* The last taps-1 inputs are what the next step's first rows will see. */
static void keep_inputs(struct exec *ex, const float *u, size_t cols, size_t off, int32_t n)
{
    for (int32_t s = 0; s < ex->step.n_span; s++) {
        const struct span *sp = &ex->step.spans[s];
        const float *was = sp->kv->state[sp->kv->now] + off;
        float *next = sp->kv->state[1 - sp->kv->now] + off;
        int32_t old = n > sp->n ? n - sp->n : 0; /* rows that stay */
        memcpy(next, was + (size_t)(n - old) * cols, (size_t)old * cols * sizeof *next);
        memcpy(next + (size_t)old * cols, u + (size_t)(sp->row0 + sp->n - (n - old)) * cols,
               (size_t)(n - old) * cols * sizeof *next);
    }
}

void cpu_delta_mix(struct exec *ex, struct tensor *mixed, struct tensor *gates,
                   const struct tensor *u, const struct tensor *ab, const struct delta_op *d)
{
    const struct delta_shape *s = &ex->kv.layers[d->layer].delta;
    int32_t c = delta_channels(s);
    QN_ASSERT(mixed != u && gates != ab && u->cols == c && mixed->cols == c &&
              ab->cols == 2 * s->n_v && gates->cols == ab->cols && d->conv->n == s->taps * c);
    QN_ASSERT(d->dt_bias->n == s->n_v && d->a_log->n == s->n_v && u->rows == ex->step.n_row);
    mixed->rows = gates->rows = u->rows;
    struct rows_job j = {.n_row = u->rows,
                         .n_out = 2,
                         .kern = ex->kern,
                         .w = d->conv,
                         .dt_bias = d->dt_bias,
                         .a_log = d->a_log,
                         .spans = ex->step.spans,
                         .n_span = ex->step.n_span,
                         .state_off = ex->kv.layer_off[d->layer] / sizeof(float),
                         .delta = *s,
                         .scale = 1 / sqrtf((float)s->dk),
                         .eps = 1e-6f,
                         .reference = ex->reference};
    j.in[0] = u->p;
    j.in_cols[0] = j.out_cols[0] = c;
    j.in[1] = ab->p;
    j.in_cols[1] = j.out_cols[1] = ab->cols;
    j.out[0] = mixed->p;
    j.out[1] = gates->p;
    rows_run(ex, &j, mix_one);
    keep_inputs(ex, u->p, (size_t)u->cols, j.state_off, s->taps - 1);
    undo_keep(ex, d->layer, u, mixed, gates);
}

/* ---- recurrence -------------------------------------------------------------------------- */

struct delta_args {
    const struct kernels *kern;
    const struct span *spans;
    const float *mixed, *gates;
    float *dst;
    size_t ldx, ldg, ldd;
    size_t state_off; /* floats: S of head 0 */
    struct delta_shape shape;
    int32_t chunk0, max_rows;
    bool reference;
};

struct delta_piece {
    struct span sp;
    int32_t head;
};

static struct delta_piece delta_piece_of(const struct delta_args *a, int chunk)
{
    int32_t c = a->chunk0 + chunk;
    struct delta_piece p = {a->spans[c / a->shape.n_v], c % a->shape.n_v};
    return p;
}

static int delta_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct delta_args *a = args;
    struct delta_piece p = delta_piece_of(a, chunk);
    size_t state = (size_t)a->shape.dk * (size_t)a->shape.dv, dv = (size_t)a->shape.dv;
    float *next = p.sp.kv->state[1 - p.sp.kv->now] + a->state_off + (size_t)p.head * state;
    float *dst = a->dst + (size_t)p.sp.row0 * a->ldd + (size_t)p.head * dv;
    r[0] = (struct pool_region){(char *)dst, p.sp.n, dv * sizeof(float), a->ldd * sizeof(float)};
    r[1] = (struct pool_region){(char *)next, 1, state * sizeof(float), state * sizeof(float)};
    return 2;
}

static void delta_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct delta_args *a = args;
    const struct delta_shape *d = &a->shape;
    struct delta_piece p = delta_piece_of(a, chunk);
    int32_t n = r[0].rows;
    if (n > a->max_rows - p.sp.row0) /* a torn span */
        n = a->max_rows - p.sp.row0;
    size_t state = (size_t)d->dk * (size_t)d->dv;
    const float *was = p.sp.kv->state[p.sp.kv->now] + a->state_off + (size_t)p.head * state;
    const float *x = a->mixed + (size_t)p.sp.row0 * a->ldx;
    const float *g = a->gates + (size_t)p.sp.row0 * a->ldg + p.head;
    int32_t key = p.head / (d->n_v / d->n_k);
    struct delta_rows t = {.from = was,
                           .q = x + key * d->dk,
                           .k = x + (d->n_k + key) * d->dk,
                           .v = x + 2 * d->n_k * d->dk + p.head * d->dv,
                           .g = g,
                           .beta = g + d->n_v,
                           .out = (float *)r[0].p,
                           .ldx = a->ldx,
                           .ldg = a->ldg,
                           .ldo = r[0].stride / sizeof(float),
                           .n_row = n,
                           .dk = d->dk,
                           .dv = d->dv};
    float *s = (float *)r[1].p;
    if (n < 1) { /* a torn span */
        memcpy(s, was, state * sizeof *s);
        return;
    }
    (a->reference ? ref_delta : a->kern->delta)(s, &t);
}

/* Rows of mixed and gates that there are: max_rows. */
static void recur(struct exec *ex, int32_t layer, const struct delta_rows_of *r, int32_t max_rows)
{
    const struct delta_shape *s = &ex->kv.layers[layer].delta;
    size_t conv = (size_t)(s->taps - 1) * (size_t)delta_channels(s);
    struct delta_args args = {.kern = ex->kern,
                              .spans = ex->step.spans,
                              .mixed = r->mixed,
                              .gates = r->gates,
                              .dst = r->out,
                              .ldx = (size_t)delta_channels(s),
                              .ldg = 2 * (size_t)s->n_v,
                              .ldd = (size_t)s->n_v * (size_t)s->dv,
                              .state_off = ex->kv.layer_off[layer] / sizeof(float) + conv,
                              .shape = *s,
                              .max_rows = max_rows,
                              .reference = ex->reference};
    int32_t n = ex->step.n_span * s->n_v;
    for (int32_t at = 0; at < n; at += POOL_CHUNK_MAX) {
        args.chunk0 = at;
        struct pool_job job = {delta_regions, delta_run, &args, sizeof args,
                               n - at < POOL_CHUNK_MAX ? n - at : POOL_CHUNK_MAX};
        pool_run(ex->pool, &job);
    }
}

void cpu_delta(struct exec *ex, struct tensor *dst, const struct tensor *mixed,
               const struct tensor *gates, const struct delta_op *d)
{
    const struct delta_shape *s = &ex->kv.layers[d->layer].delta;
    QN_ASSERT(mixed->cols == delta_channels(s) && dst->cols == s->n_v * s->dv &&
              gates->cols == 2 * s->n_v && mixed->rows == ex->step.n_row);
    dst->rows = mixed->rows;
    struct delta_rows_of r = {.mixed = mixed->p, .gates = gates->p, .out = dst->p};
    recur(ex, d->layer, &r, ex->max_rows);
}

void cpu_delta_again(struct exec *ex, const struct delta_rows_of *r)
{
    const struct delta_shape *s = &ex->kv.layers[r->layer].delta;
    keep_inputs(ex, r->u, (size_t)delta_channels(s), ex->kv.layer_off[r->layer] / sizeof(float),
                s->taps - 1);
    recur(ex, r->layer, r, r->cap);
}

/* ---- rows ------------------------------------------------------------------------------- */

static void norm_gated_one(const struct rows_job *j, int32_t row, float *const *out)
{
    int32_t n = j->out_cols[0], d = j->dk;
    const float *x = j->in[0] + (size_t)row * (size_t)n, *z = j->in[1] + (size_t)row * (size_t)n;
    float normed[HEAD_DIM_MAX];
    for (int32_t h = 0; h < n; h += d) {
        (j->reference ? ref_rmsnorm : j->kern->rmsnorm)(normed, x + h, j->w->vec, 0, j->eps, d);
        (j->reference ? ref_swiglu : j->kern->swiglu)(out[0] + h, z + h, normed, d);
    }
}

static struct rows_job job_of(struct exec *ex, struct tensor *y, const struct tensor *x,
                              const struct tensor *z)
{
    struct rows_job j = {
        .n_row = x->rows, .n_out = 1, .kern = ex->kern, .reference = ex->reference};
    QN_ASSERT(y != x && y != z && x->rows == z->rows && x->cols == y->cols);
    y->rows = x->rows;
    j.in[0] = x->p;
    j.in_cols[0] = x->cols;
    j.in[1] = z->p;
    j.in_cols[1] = z->cols;
    j.out[0] = y->p;
    j.out_cols[0] = y->cols;
    return j;
}

void cpu_norm_gated(struct exec *ex, struct tensor *y, const struct tensor *x,
                    const struct tensor *z, const struct weight *w, float eps)
{
    QN_ASSERT(z->cols == x->cols && w->n <= HEAD_DIM_MAX && x->cols % w->n == 0);
    struct rows_job j = job_of(ex, y, x, z);
    j.w = w;
    j.dk = w->n;
    j.eps = eps;
    rows_run(ex, &j, norm_gated_one);
}

static void gate_one(const struct rows_job *j, int32_t row, float *const *out)
{
    const struct gate_at *at = &j->gate;
    const float *x = j->in[0] + (size_t)row * (size_t)j->in_cols[0];
    const float *g = j->in[1] + (size_t)row * (size_t)j->in_cols[1] + at->col;
    for (int32_t h = 0; h < j->n_head; h++)
        (j->reference ? ref_sigmul : j->kern->sigmul)(out[0] + h * at->d, g + h * at->stride,
                                                      x + h * at->d, at->d);
}

void cpu_gate(struct exec *ex, struct tensor *dst, const struct tensor *x, const struct tensor *g,
              const struct gate_at *at)
{
    struct rows_job j = job_of(ex, dst, x, g);
    j.n_head = x->cols / at->d;
    j.gate = *at;
    QN_ASSERT(x->cols % at->d == 0 && at->col + (j.n_head - 1) * at->stride + at->d <= g->cols);
    rows_run(ex, &j, gate_one);
}

static void add_gated_one(const struct rows_job *j, int32_t row, float *const *out)
{
    int32_t n = j->out_cols[0];
    const float *a = j->in[0] + (size_t)row * (size_t)n, *b = j->in[1] + (size_t)row * (size_t)n;
    float one = 1, w;
    (j->reference ? ref_sigmul
                  : j->kern->sigmul)(&w, j->in[2] + (size_t)row * (size_t)j->in_cols[2], &one, 1);
    for (int32_t i = 0; i < n; i++)
        out[0][i] = a[i] + w * b[i];
}

void cpu_add_gated(struct exec *ex, struct tensor *dst, const struct tensor *a,
                   const struct tensor *b, const struct tensor *g)
{
    QN_ASSERT(a->cols == b->cols && g->rows == a->rows);
    struct rows_job j = job_of(ex, dst, a, b);
    j.in[2] = g->p;
    j.in_cols[2] = g->cols;
    rows_run(ex, &j, add_gated_one);
}
