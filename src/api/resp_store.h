/*
 * resp_store.h - answers of /v1/responses that later requests may name: for each its JSON and the
 * items of the talk up to and with it. Bounded by bytes (the least recently used goes first) and by
 * age. Thread-safe; texts are copied in and out, so no lock outlives a call.
 */
#ifndef API_RESP_STORE_H
#define API_RESP_STORE_H

#include "base/buf.h"

#define RESP_STORE_BYTES ((size_t)32 << 20)
#define RESP_STORE_TTL_S 3600
#define RESP_LENT_MAX    ((size_t)1 << 30) /* of memory for kept talks, all requests together */

struct resp_store;

/* NULL when out of memory. */
struct resp_store *resp_store_create(size_t max_bytes, int ttl_s);
void resp_store_free(struct resp_store *s); /* NULL is fine */
/* Keeps an answer under its id. items: JSON elements joined by commas. One that is larger than the
 * whole store, or finds no memory, is not kept: its id is unknown then. */
void resp_store_put(struct resp_store *s, struct str id, struct str response, struct str items);
/* Appends what is kept; either buf may be NULL. False when the id is unknown or too old. */
bool resp_store_get(struct resp_store *s, struct str id, struct buf *response, struct buf *items);
/* A request of a hundred bytes may name a talk of megabytes: memory for its values is asked for
 * before they are made. False when all requests together would have more than RESP_LENT_MAX. */
bool resp_store_lend(struct resp_store *s, size_t bytes);
void resp_store_give_back(struct resp_store *s, size_t bytes);
bool resp_store_delete(struct resp_store *s, struct str id); /* false: unknown */

struct resp_store_stats {
    int64_t entries, bytes, max_bytes, ttl_ms;
};
void resp_store_stats(struct resp_store *s, struct resp_store_stats *out);

#endif
