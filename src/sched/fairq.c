/*
 * fairq.c - a ring of clients, each with its own list; see fairq.h. A client exists only while
 * something of it waits, so the ring is never longer than the queue.
 */
#include "sched/fairq.h"

#include <stdlib.h>

#include "base/fault.h"

struct fairq_client {
    uint64_t key;
    struct fairq_client *prev, *next; /* ring */
    struct fairq_node *head, *tail;
};

static struct fairq_client *find(const struct fairq *q, uint64_t key)
{
    struct fairq_client *c = q->turn;
    if (!c)
        return NULL;
    do {
        if (c->key == key)
            return c;
        c = c->next;
    } while (c != q->turn);
    return NULL;
}

/* A new client is served after everybody who already waits. */
static struct fairq_client *join(struct fairq *q, uint64_t key)
{
    struct fairq_client *c = fault_point("sched.alloc") ? NULL : calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->key = key;
    if (!q->turn) {
        c->prev = c->next = c;
        q->turn = c;
        return c;
    }
    c->next = q->turn;
    c->prev = q->turn->prev;
    c->prev->next = c;
    c->next->prev = c;
    return c;
}

bool fairq_push(struct fairq *q, uint64_t key, struct fairq_node *node)
{
    struct fairq_client *c = find(q, key);
    if (!c)
        c = join(q, key);
    if (!c)
        return false;
    *node = (struct fairq_node){.prev = c->tail, .client = c};
    if (c->tail)
        c->tail->next = node;
    else
        c->head = node;
    c->tail = node;
    return true;
}

void fairq_remove(struct fairq *q, struct fairq_node *node)
{
    struct fairq_client *c = node->client;
    if (node->prev)
        node->prev->next = node->next;
    else
        c->head = node->next;
    if (node->next)
        node->next->prev = node->prev;
    else
        c->tail = node->prev;
    *node = (struct fairq_node){0};
    if (c->head)
        return;
    if (q->turn == c)
        q->turn = c->next == c ? NULL : c->next;
    c->prev->next = c->next;
    c->next->prev = c->prev;
    free(c);
}

struct fairq_node *fairq_pop(struct fairq *q)
{
    if (!q->turn)
        return NULL;
    struct fairq_node *node = q->turn->head;
    q->turn = q->turn->next;
    fairq_remove(q, node);
    return node;
}
