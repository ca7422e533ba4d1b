/*
 * resp_store.c - see resp_store.h: a hash of ids over a list from the most to the least recently
 * used entry, one mutex.
 */
#include "api/resp_store.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"

#define N_SLOT 1024 /* chains stay short: 32 MiB hold some thousands of answers */

struct entry {
    struct entry *prev, *next; /* by use; the head is the newest */
    struct entry *chain;
    int64_t until_us;
    size_t bytes;
    struct str id, response, items; /* point into text */
    char text[];
};

struct resp_store {
    pthread_mutex_t mu;
    struct entry *head, *tail;
    struct entry *slot[N_SLOT];
    size_t bytes, max_bytes, lent;
    int64_t n, ttl_us;
};

struct resp_store *resp_store_create(size_t max_bytes, int ttl_s)
{
    struct resp_store *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    pthread_mutex_init(&s->mu, NULL);
    s->max_bytes = max_bytes;
    s->ttl_us = (int64_t)ttl_s * 1000000;
    return s;
}

static struct entry **slot_of(struct resp_store *s, struct str id)
{
    struct entry **p = &s->slot[hash64(id.p, id.n, 0) % N_SLOT];
    while (*p && !str_eq((*p)->id, id))
        p = &(*p)->chain;
    return p;
}

static void unlink_entry(struct resp_store *s, struct entry *e)
{
    *(e->prev ? &e->prev->next : &s->head) = e->next;
    *(e->next ? &e->next->prev : &s->tail) = e->prev;
}

static void link_first(struct resp_store *s, struct entry *e)
{
    e->prev = NULL;
    e->next = s->head;
    *(s->head ? &s->head->prev : &s->tail) = e;
    s->head = e;
}

static void drop(struct resp_store *s, struct entry *e)
{
    struct entry **p = slot_of(s, e->id);
    *p = e->chain;
    unlink_entry(s, e);
    s->bytes -= e->bytes;
    s->n--;
    free(e);
}

/* The entry, unless it is too old: then it goes. */
static struct entry *find(struct resp_store *s, struct str id)
{
    struct entry *e = *slot_of(s, id);
    if (e && e->until_us <= clock_us()) {
        drop(s, e);
        return NULL;
    }
    return e;
}

static struct str put_text(char **at, struct str s)
{
    if (s.n > 0)
        memcpy(*at, s.p, s.n);
    struct str out = {*at, s.n};
    *at += s.n;
    return out;
}

void resp_store_put(struct resp_store *s, struct str id, struct str response, struct str items)
{
    size_t n = 0;
    if (__builtin_add_overflow(sizeof(struct entry) + id.n, response.n, &n) ||
        __builtin_add_overflow(n, items.n, &n) || n > s->max_bytes)
        return;
    struct entry *e = malloc(n);
    if (!e)
        return;
    char *at = e->text;
    e->id = put_text(&at, id);
    e->response = put_text(&at, response);
    e->items = put_text(&at, items);
    e->bytes = n;
    pthread_mutex_lock(&s->mu);
    int64_t now = clock_us();
    e->until_us = now + s->ttl_us;
    struct entry *old = *slot_of(s, id);
    if (old)
        drop(s, old);
    while (s->tail && (s->bytes > s->max_bytes - n || s->tail->until_us <= now))
        drop(s, s->tail);
    struct entry **p = slot_of(s, id);
    e->chain = *p;
    *p = e;
    link_first(s, e);
    s->bytes += n;
    s->n++;
    pthread_mutex_unlock(&s->mu);
}

bool resp_store_get(struct resp_store *s, struct str id, struct buf *response, struct buf *items)
{
    pthread_mutex_lock(&s->mu);
    struct entry *e = find(s, id);
    if (e) {
        unlink_entry(s, e);
        link_first(s, e);
        if (response)
            buf_add_str(response, e->response);
        if (items)
            buf_add_str(items, e->items);
    }
    pthread_mutex_unlock(&s->mu);
    return e != NULL;
}

bool resp_store_lend(struct resp_store *s, size_t bytes)
{
    pthread_mutex_lock(&s->mu);
    bool room = bytes <= RESP_LENT_MAX - s->lent;
    s->lent += room ? bytes : 0;
    pthread_mutex_unlock(&s->mu);
    return room;
}

void resp_store_give_back(struct resp_store *s, size_t bytes)
{
    pthread_mutex_lock(&s->mu);
    s->lent -= bytes;
    pthread_mutex_unlock(&s->mu);
}

bool resp_store_delete(struct resp_store *s, struct str id)
{
    pthread_mutex_lock(&s->mu);
    struct entry *e = find(s, id);
    if (e)
        drop(s, e);
    pthread_mutex_unlock(&s->mu);
    return e != NULL;
}

void resp_store_stats(struct resp_store *s, struct resp_store_stats *out)
{
    pthread_mutex_lock(&s->mu);
    *out =
        (struct resp_store_stats){s->n, (int64_t)s->bytes, (int64_t)s->max_bytes, s->ttl_us / 1000};
    pthread_mutex_unlock(&s->mu);
}

void resp_store_free(struct resp_store *s)
{
    if (!s)
        return;
    while (s->head)
        drop(s, s->head);
    pthread_mutex_destroy(&s->mu);
    free(s);
}
