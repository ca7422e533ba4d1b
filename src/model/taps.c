/*
 * taps.c - taking the states between layers that a draft model wants; see model.h.
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
