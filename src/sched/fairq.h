/*
 * fairq.h - the waiting line: first in, first out for each user, round robin over the users of a
 * client, and round robin over clients. A client is what the server itself can tell apart (an
 * address, a key); a user is what the client says of itself, so that a thousand invented users
 * share what their one client gets. Links are embedded in the queued objects. The scheduler's lock
 * guards it. Start with {0}; empty needs no freeing.
 */
#ifndef SCHED_FAIRQ_H
#define SCHED_FAIRQ_H

#include <stdbool.h>
#include <stdint.h>

struct fairq_client;
struct fairq_user;

struct fairq_node {
    struct fairq_node *prev, *next;
    struct fairq_user *user; /* NULL while not queued */
};

struct fairq {
    struct fairq_client *turn; /* ring of clients that have something waiting; next to be served */
};

/* False when out of memory; the node is then not queued. */
bool fairq_push(struct fairq *q, uint64_t client, uint64_t user, struct fairq_node *node);
struct fairq_node *fairq_head(const struct fairq *q);        /* what fairq_pop would give */
struct fairq_node *fairq_pop(struct fairq *q);               /* NULL when empty */
void fairq_remove(struct fairq *q, struct fairq_node *node); /* node must be queued */
int32_t fairq_waiting(const struct fairq *q, uint64_t client);

#endif
