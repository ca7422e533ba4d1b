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
            kv_seq_cancel(ex, spans[i].kv);
        return st;
    }
    return QN_OK;
}

/* Whether the sequence may be cut inside the span later: short ones are windows of guesses. */
static bool is_window(const struct exec *ex, const struct exec_span *span)
{
    return ex->kv.state_bytes && span->n > 1 && span->n <= KV_ROLLBACK;
}

static enum qn_status begin_record(struct exec *ex, const struct exec_span *spans, int32_t n,
                                   struct qn_err *err)
{
    int32_t rows = 0;
    for (int32_t i = 0; i < n; i++)
        rows += is_window(ex, &spans[i]) ? spans[i].n : 0;
    return rows ? undo_begin(ex, rows, err) : QN_OK;
}

/* Where the span's rows are recorded, if they are. */
static void mark_record(struct exec *ex, struct span *sp, bool record, int32_t *row)
{
    struct kv_seq *kv = sp->kv;
    kv->undo_n = record ? sp->n : 0;
    sp->undo = record ? *row : -1;
    if (!record)
        return;
    kv->undo_pos = sp->pos;
    kv->undo_row = *row;
    kv->undo_record = ex->undo.number;
    *row += sp->n;
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
    QN_TRY(begin_record(ex, spans, n, err));
    QN_TRY(grow_all(ex, spans, n, err));
    int32_t recorded = 0;
    s->n_row = s->n_wanted = 0;
    s->n_span = n;
    for (int32_t i = 0; i < n; i++) {
        const struct exec_span *in = &spans[i];
        s->spans[i] = (struct span){in->kv, s->n_row, in->n, in->kv->len, -1};
        mark_record(ex, &s->spans[i], is_window(ex, in), &recorded);
        for (int32_t j = 0; j < in->n; j++) {
            if (in->n - j <= in->n_logits)
                s->wanted[s->n_wanted++] = s->n_row;
            s->ids[s->n_row] = in->ids[j];
            s->pos[s->n_row++] = in->kv->len + j;
        }
    }
    memset(s->tile_rows, 0, sizeof s->tile_rows);
    rope_fill(ex);
    return QN_OK;
}

void exec_commit(struct exec *ex)
{
    for (int32_t i = 0; i < ex->step.n_span; i++)
        kv_seq_commit(ex, ex->step.spans[i].kv);
}

void exec_cancel(struct exec *ex)
{
    for (int32_t i = 0; i < ex->step.n_span; i++)
        kv_seq_cancel(ex, ex->step.spans[i].kv);
    ex->step.n_span = 0;
}

void exec_begin_rows(struct exec *ex, const int32_t *ids, int32_t n)
{
    struct step *s = &ex->step;
    QN_ASSERT(n >= 1 && n <= ex->max_rows);
    s->n_span = 0;
    s->n_row = s->n_wanted = n;
    for (int32_t i = 0; i < n; i++) {
        s->ids[i] = ids[i];
        s->pos[i] = 0;
        s->wanted[i] = i;
    }
}

void exec_begin_past(struct exec *ex, struct kv_seq *const *seqs, const int32_t *ids, int32_t n)
{
    struct step *s = &ex->step;
    exec_begin_rows(ex, ids, n);
    s->n_span = n;
    for (int32_t i = 0; i < n; i++) {
        QN_ASSERT(seqs[i]->len > 0);
        s->pos[i] = seqs[i]->len;
        s->spans[i] = (struct span){seqs[i], i, 1, seqs[i]->len, -1};
    }
    memset(s->tile_rows, 0, sizeof s->tile_rows);
    rope_fill(ex);
}

int32_t exec_wanted(const struct exec *ex)
{
    return ex->step.n_wanted;
}

/* Wanted rows are the last of their span. */
void exec_narrow(struct exec *ex)
{
    struct step *s = &ex->step;
    int32_t row = 0;
    for (int32_t i = 0; i < s->n_span; i++) {
        struct span *sp = &s->spans[i];
        int32_t end = sp->row0 + sp->n, n = 0;
        for (; row + n < s->n_wanted && s->wanted[row + n] < end; n++)
            ;
        sp->pos += sp->n - n;
        sp->row0 = row;
        sp->n = n;
        row += n;
    }
    for (int32_t at = 0; at < s->n_wanted; at++) {
        int32_t from = s->wanted[at]; /* >= at: nothing is overwritten before its turn */
        s->ids[at] = s->ids[from];
        s->pos[at] = s->pos[from];
        for (int32_t i = 0; i < ex->n_rope; i++) {
            size_t dims = (size_t)ex->ropes[i]->dims;
            memmove(ex->ropes[i]->cs + (size_t)at * dims, ex->ropes[i]->cs + (size_t)from * dims,
                    dims * sizeof(float));
        }
        s->wanted[at] = at;
    }
    s->n_row = s->n_wanted;
    memset(s->tile_rows, 0, sizeof s->tile_rows);
}

static int32_t tile_pos(const struct span *sp, int32_t row, enum attn_sees sees)
{
    return sees == SEES_SELF   ? sp->pos + row
           : sees == SEES_SPAN ? sp->pos + sp->n - 1
                               : sp->pos - 1;
}

/* Tiles start at the span's first row: a row's result does not depend on its tile. */
const struct attn_rows *step_tiles(struct exec *ex, int32_t layer, enum attn_sees sees,
                                   int32_t rows_max, int32_t *n)
{
    struct step *s = &ex->step;
    int32_t g = ex->kv.layer_group[layer], k = 0;
    struct attn_rows *tiles = s->tiles[g];
    *n = s->n_tile[g];
    if (s->tile_rows[g] == rows_max && s->tile_sees[g] == sees)
        return tiles;
    for (int32_t i = 0; i < s->n_span; i++) {
        const struct span *sp = &s->spans[i];
        for (int32_t r = 0; r < sp->n; r += rows_max) {
            int32_t rows = sp->n - r < rows_max ? sp->n - r : rows_max;
            tiles[k++] = (struct attn_rows){(const uint8_t *const *)sp->kv->tables[g].pages,
                                            sp->row0 + r, rows, tile_pos(sp, r, sees)};
        }
    }
    s->tile_rows[g] = rows_max;
    s->tile_sees[g] = sees;
    *n = s->n_tile[g] = k;
    return tiles;
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
