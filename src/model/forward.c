/*
 * forward.c - what the families' forward functions share: states that are taken on the way, and
 * the way from the last layer to the logits; see model.h.
 */
#include "model/model.h"

void taps_take(struct model *m, int32_t layer, const struct tensor *h)
{
    const struct taps *t = &m->taps;
    if (!t->on)
        return;
    for (int32_t i = 0; i < t->n; i++)
        if (t->layer[i] == layer)
            op_place(m->ex, t->t, i * m->n_embd, h);
}

const struct tensor *forward_end(struct model *m, const struct forward_end *e)
{
    const struct tensor *x = e->n;
    m->hidden = m->hidden_normed ? e->n : e->h;
    if (m->no_logits || (e->every_row && exec_wanted(m->ex) == 0))
        return NULL;
    if (e->every_row) {
        op_take(m->ex, e->wanted, e->n);
        x = e->wanted;
    }
    op_linear(m->ex, &(struct linear){e->logits, 0, e->head, NULL}, 1, x);
    return e->logits;
}
