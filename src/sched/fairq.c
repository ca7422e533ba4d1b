/*
 * fairq.c - a ring of clients, each with a ring of users, each with a list; see fairq.h. Clients
 * and users exist only while something of theirs waits, so no ring is longer than the queue.
 */
#include "sched/fairq.h"

#include <stddef.h>
#include <stdlib.h>

#include "base/fault.h"

/* A place in a ring; first member of what stands there. */
struct link {
    uint64_t key;
    struct link *prev, *next;
};

struct fairq_user {
    struct link at; /* in its client's ring */
    struct fairq_client *client;
    struct fairq_node *head, *tail;
};

struct fairq_client {
    struct link at; /* in the queue's ring */
    struct fairq_user *turn;
    int32_t n; /* waiting */
};

static struct link *find(struct link *turn, uint64_t key)
{
    struct link *l = turn;
    if (!l)
        return NULL;
    do {
        if (l->key == key)
            return l;
        l = l->next;
    } while (l != turn);
    return NULL;
}

/* A new one, of `bytes`, behind everybody who already waits; `turn` may be NULL. */
static struct link *join(struct link *turn, uint64_t key, size_t bytes)
{
    struct link *l = fault_point("sched.alloc") ? NULL : calloc(1, bytes);
    if (!l)
        return NULL;
    l->key = key;
    if (!turn) {
        l->prev = l->next = l;
        return l;
    }
    l->next = turn;
    l->prev = turn->prev;
    l->prev->next = l;
    l->next->prev = l;
    return l;
}

/* Frees l; returns whose turn it is then. */
static struct link *leave(struct link *turn, struct link *l)
{
    struct link *next = l->next == l ? NULL : l->next;
    l->prev->next = l->next;
    l->next->prev = l->prev;
    free(l);
    return turn == l ? next : turn;
}

static struct fairq_client *client_of(const struct fairq *q, uint64_t key)
{
    return (struct fairq_client *)find(q->turn ? &q->turn->at : NULL, key);
}

static void client_leaves_if_empty(struct fairq *q, struct fairq_client *c)
{
    if (!c->turn)
        q->turn = (struct fairq_client *)leave(&q->turn->at, &c->at);
}

bool fairq_push(struct fairq *q, uint64_t client, uint64_t user, struct fairq_node *node)
{
    struct fairq_client *c = client_of(q, client);
    if (!c) {
        c = (struct fairq_client *)join(q->turn ? &q->turn->at : NULL, client, sizeof *c);
        if (!c)
            return false;
        q->turn = q->turn ? q->turn : c;
    }
    struct link *turn = c->turn ? &c->turn->at : NULL;
    struct fairq_user *u = (struct fairq_user *)find(turn, user);
    if (!u) {
        u = (struct fairq_user *)join(turn, user, sizeof *u);
        if (!u) {
            client_leaves_if_empty(q, c);
            return false;
        }
        u->client = c;
        c->turn = c->turn ? c->turn : u;
    }
    *node = (struct fairq_node){.prev = u->tail, .user = u};
    if (u->tail)
        u->tail->next = node;
    else
        u->head = node;
    u->tail = node;
    c->n++;
    return true;
}

void fairq_remove(struct fairq *q, struct fairq_node *node)
{
    struct fairq_user *u = node->user;
    struct fairq_client *c = u->client;
    if (node->prev)
        node->prev->next = node->next;
    else
        u->head = node->next;
    if (node->next)
        node->next->prev = node->prev;
    else
        u->tail = node->prev;
    *node = (struct fairq_node){0};
    c->n--;
    if (u->head)
        return;
    c->turn = (struct fairq_user *)leave(&c->turn->at, &u->at);
    client_leaves_if_empty(q, c);
}

struct fairq_node *fairq_head(const struct fairq *q)
{
    return q->turn ? q->turn->turn->head : NULL;
}

struct fairq_node *fairq_pop(struct fairq *q)
{
    struct fairq_node *node = fairq_head(q);
    if (!node)
        return NULL;
    struct fairq_client *c = q->turn;
    q->turn = (struct fairq_client *)c->at.next;
    c->turn = (struct fairq_user *)c->turn->at.next;
    fairq_remove(q, node);
    return node;
}

int32_t fairq_waiting(const struct fairq *q, uint64_t client)
{
    const struct fairq_client *c = client_of(q, client);
    return c ? c->n : 0;
}
