/*
 * undo.c - going back a few tokens with a recurrent state. A state cannot be computed backwards;
 * but a step leaves the one before it in place (kv_seq.c), so a shorter step is that state and the
 * recurrence over fewer rows: their inputs are recorded, the matrices in front of them need not run
 * again. The same operations on the same rows give the same bits.
 *
 * One record per exec, of the last step with spans of 2..KV_ROLLBACK rows. The scheduler's thread.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"

/* Floats of a layer's row: inputs, mixed, gates. */
static size_t row_floats(const struct delta_shape *d)
{
    return d->n_v ? 2 * (size_t)delta_channels(d) + 2 * (size_t)d->n_v : 0;
}

/* Floats of a row in all layers before `layer`. */
static size_t floats_before(const struct exec *ex, int32_t layer)
{
    size_t n = 0;
    for (int32_t i = 0; i < layer; i++)
        n += row_floats(&ex->kv.layers[i].delta);
    return n;
}

/* Outputs that nobody wants need room too. */
static size_t out_floats(const struct exec *ex)
{
    size_t most = 0;
    for (int32_t i = 0; i < ex->kv.n_layer; i++) {
        const struct delta_shape *d = &ex->kv.layers[i].delta;
        size_t n = (size_t)d->n_v * (size_t)d->dv;
        most = n > most ? n : most;
    }
    return most;
}

static size_t all_floats(const struct exec *ex)
{
    return floats_before(ex, ex->kv.n_layer) + out_floats(ex);
}

enum qn_status undo_begin(struct exec *ex, int32_t rows, struct qn_err *err)
{
    struct undo *u = &ex->undo;
    if (rows > u->cap) {
        int32_t cap = rows < 16 ? 16 : rows;
        size_t bytes = (size_t)cap * all_floats(ex) * sizeof *u->p;
        float *p = malloc(bytes);
        if (!p)
            QN_FAIL(err, QN_NO_MEMORY, "exec",
                    "out of memory for %zu bytes that take %d tokens back", bytes, rows);
        pool_quiesce(ex->pool); /* a late worker may read the old ones */
        free(u->p);
        u->p = p;
        u->cap = cap;
    }
    u->number++;
    return QN_OK;
}

/* A layer's part of the record: [cap] rows each. */
struct recorded {
    float *u, *mixed, *gates;
};

static struct recorded recorded_of(const struct exec *ex, int32_t layer)
{
    size_t cap = (size_t)ex->undo.cap, c = (size_t)delta_channels(&ex->kv.layers[layer].delta);
    float *base = ex->undo.p + cap * floats_before(ex, layer);
    return (struct recorded){base, base + cap * c, base + 2 * cap * c};
}

static struct delta_rows_of rows_of(const struct exec *ex, int32_t layer)
{
    const struct undo *u = &ex->undo;
    struct recorded k = recorded_of(ex, layer);
    return (struct delta_rows_of){.layer = layer,
                                  .cap = u->cap,
                                  .u = k.u,
                                  .mixed = k.mixed,
                                  .gates = k.gates,
                                  .out = u->p + (size_t)u->cap * floats_before(ex, ex->kv.n_layer)};
}

static void keep(float *to, int32_t at, const struct tensor *t, int32_t row, int32_t n)
{
    size_t cols = (size_t)t->cols;
    memcpy(to + (size_t)at * cols, t->p + (size_t)row * cols, (size_t)n * cols * sizeof *t->p);
}

void undo_keep(struct exec *ex, int32_t layer, const struct tensor *u, const struct tensor *mixed,
               const struct tensor *gates)
{
    for (int32_t i = 0; i < ex->step.n_span; i++) {
        const struct span *sp = &ex->step.spans[i];
        if (sp->undo < 0)
            continue;
        struct recorded k = recorded_of(ex, layer);
        keep(k.u, sp->undo, u, sp->row0, sp->n);
        keep(k.mixed, sp->undo, mixed, sp->row0, sp->n);
        keep(k.gates, sp->undo, gates, sp->row0, sp->n);
    }
}

bool undo_can(const struct exec *ex, const struct kv_seq *s, int32_t n)
{
    return s->undo_n > 0 && s->undo_record == ex->undo.number && n >= s->undo_pos &&
           n < s->undo_pos + s->undo_n && s->own[s->now]->refs == 1;
}

void undo_to(struct exec *ex, struct kv_seq *s, int32_t n)
{
    int32_t m = n - s->undo_pos;
    s->now = 1 - s->now;
    s->undo_n = m;
    if (m == 0)
        return;
    ex->step.n_span = 1;
    ex->step.n_row = m;
    ex->step.spans[0] = (struct span){s, 0, m, s->undo_pos, -1};
    for (int32_t i = 0; i < ex->kv.n_layer; i++) {
        const struct delta_shape *d = &ex->kv.layers[i].delta;
        if (!d->n_v)
            continue;
        struct delta_rows_of r = rows_of(ex, i);
        r.n = m;
        r.u += (size_t)s->undo_row * (size_t)delta_channels(d);
        r.mixed += (size_t)s->undo_row * (size_t)delta_channels(d);
        r.gates += (size_t)s->undo_row * 2 * (size_t)d->n_v;
        r.cap -= s->undo_row;
        ex->ops->delta_again(ex, &r);
    }
    s->now = 1 - s->now;
}

int64_t undo_bytes(const struct exec *ex)
{
    return (int64_t)((size_t)ex->undo.cap * all_floats(ex) * sizeof(float));
}

void undo_free(struct exec *ex)
{
    free(ex->undo.p);
}
