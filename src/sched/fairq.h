/*
 * fairq.h - the waiting line: first in, first out for each client key, round robin over clients, so
 * that one client's thousand requests cannot hold up another's single one. Links are embedded in
 * the queued objects. The scheduler's lock guards it. Start with {0}; empty needs no freeing.
 */
#ifndef SCHED_FAIRQ_H
#define SCHED_FAIRQ_H

#include <stdbool.h>
#include <stdint.h>

struct fairq_client;

struct fairq_node {
    struct fairq_node *prev, *next;
    struct fairq_client *client; /* NULL while not queued */
};

struct fairq {
    struct fairq_client *turn; /* ring of clients that have something waiting; next to be served */
};

/* False when out of memory; the node is then not queued. */
bool fairq_push(struct fairq *q, uint64_t key, struct fairq_node *node);
struct fairq_node *fairq_pop(struct fairq *q);               /* NULL when empty */
void fairq_remove(struct fairq *q, struct fairq_node *node); /* node must be queued */

#endif
