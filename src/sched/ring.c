/* ring.c - see ring.h. */
#include "sched/ring.h"

struct ring_event *ring_push(struct ring *r)
{
    QN_ASSERT(r->n < RING_CAP);
    struct ring_event *e = &r->e[(r->head + r->n++) % RING_CAP];
    struct buf text = e->text;
    buf_clear(&text);
    *e = (struct ring_event){.text = text};
    return e;
}

struct ring_event *ring_last(struct ring *r)
{
    return r->n ? &r->e[(r->head + r->n - 1) % RING_CAP] : NULL;
}

struct ring_event *ring_pop(struct ring *r)
{
    if (r->n == 0)
        return NULL;
    struct ring_event *e = &r->e[r->head];
    r->head = (r->head + 1) % RING_CAP;
    r->n--;
    return e;
}

void ring_free(struct ring *r)
{
    for (int i = 0; i < RING_CAP; i++)
        buf_free(&r->e[i].text);
}
