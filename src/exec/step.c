/*
 * step.c - the rows of a step: which token at which position of which sequence, the tiles attention
 * cuts them into, and the cosines and sines of their positions.
 */
#include <math.h>
#include <string.h>

#include "exec/exec_int.h"

/* A span's pages grow first; when a later one fails, the earlier ones drop theirs again. */
static enum qn_status grow_all(struct exec *ex, const struct exec_span *spans, int32_t n,
                               struct qn_err *err)
{
    for (int32_t i = 0; i < n; i++) {
        enum qn_status st = kv_seq_grow(ex, spans[i].kv, spans[i].n, err);
        if (st == QN_OK)
            continue;
        while (i-- > 0)
            kv_seq_truncate(ex, spans[i].kv, spans[i].kv->len);
        return st;
    }
    return QN_OK;
}

enum qn_status exec_begin(struct exec *ex, const struct exec_span *spans, int32_t n,
                          struct qn_err *err)
{
    struct step *s = &ex->step;
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++)
        total += spans[i].n;
    if (n < 1 || total > ex->max_rows)
        QN_FAIL(err, QN_BAD_INPUT, "step", "a step of %lld tokens; at most %d fit in one",
                (long long)total, ex->max_rows);
    QN_TRY(grow_all(ex, spans, n, err));
    s->n_row = s->n_wanted = 0;
    s->n_span = n;
    for (int32_t i = 0; i < n; i++) {
        const struct exec_span *in = &spans[i];
        s->spans[i] = (struct span){in->kv, s->n_row, in->n, in->kv->len};
        for (int32_t j = 0; j < in->n; j++) {
            if (in->n - j <= in->n_logits)
                s->wanted[s->n_wanted++] = s->n_row;
            s->ids[s->n_row] = in->ids[j];
            s->pos[s->n_row++] = in->kv->len + j;
        }
    }
    s->tile_rows = 0;
    rope_fill(ex);
    return QN_OK;
}

void exec_commit(struct exec *ex)
{
    for (int32_t i = 0; i < ex->step.n_span; i++) {
        struct kv_seq *kv = ex->step.spans[i].kv;
        kv->len += kv->pending;
        kv->pending = 0;
        kv->now = 1 - kv->now;
    }
}

int32_t exec_wanted(const struct exec *ex)
{
    return ex->step.n_wanted;
}

/* Tiles of at most rows_max rows. They start at the span's first row: a row's result does not
 * depend on its tile. */
void step_tiles(struct exec *ex, int32_t rows_max)
{
    struct step *s = &ex->step;
    if (s->tile_rows == rows_max)
        return;
    s->tile_rows = rows_max;
    s->n_tile = 0;
    for (int32_t i = 0; i < s->n_span; i++) {
        const struct span *sp = &s->spans[i];
        for (int32_t r = 0; r < sp->n; r += rows_max) {
            int32_t n = sp->n - r < rows_max ? sp->n - r : rows_max;
            s->tiles[s->n_tile++] = (struct attn_rows){(const uint8_t *const *)sp->kv->pages,
                                                       sp->row0 + r, n, sp->pos + r};
        }
    }
}

void rope_fill(struct exec *ex)
{
    for (int32_t i = 0; i < ex->n_rope; i++) {
        struct rope *r = ex->ropes[i];
        int32_t half = r->dims / 2;
        for (int32_t row = 0; row < ex->step.n_row; row++) {
            float *c = r->cs + (size_t)row * (size_t)r->dims;
            for (int32_t j = 0; j < half; j++) {
                double s, co;
                sincos((double)ex->step.pos[row] * r->inv_freq[j], &s, &co);
                c[j] = (float)(co * r->mscale);
                c[half + j] = (float)(s * r->mscale);
            }
        }
    }
}
