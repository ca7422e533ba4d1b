/*
 * conns.c - every open connection, and the janitor thread that closes those which take too long to
 * send a request, linger too long after a refusal, or sit idle when places become scarce. Silence
 * on a connection is libmicrohttpd's own time-out; the janitor bounds what a trickle can hold.
 *
 * A connection's fd is valid while it is in the list: libmicrohttpd reports the end before it
 * closes the socket, and removal takes the lock.
 */
#include "server/server_int.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"

#define TICK_MS    200
#define LINGER_US  2000000
#define CROWDED_US 1000000 /* idle this long is long enough when places are scarce */

static bool overdue(const struct conns *c, const struct conn *k, int64_t now)
{
    int64_t age = now - k->since_us;
    switch (k->state) {
    case CONN_IDLE:
        return age > c->idle_us + c->read_us;
    case CONN_BODY:
        return age > c->read_us;
    case CONN_LINGER:
        return age > LINGER_US;
    default:
        return false;
    }
}

static void sweep(struct conns *c)
{
    int64_t now = clock_us();
    struct conn *oldest = NULL;
    for (struct conn *k = c->head; k; k = k->next) {
        if (overdue(c, k, now))
            shutdown(k->fd, SHUT_RDWR);
        else if (k->state == CONN_IDLE && (!oldest || k->since_us < oldest->since_us))
            oldest = k;
    }
    if (c->n > c->n_max - c->n_max / 4 && oldest && now - oldest->since_us > CROWDED_US)
        shutdown(oldest->fd, SHUT_RDWR);
}

static void *janitor(void *arg)
{
    struct conns *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->quit) {
        struct timespec t = clock_in(TICK_MS * 1000);
        pthread_cond_timedwait(&c->wake, &c->lock, &t);
        sweep(c);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

enum qn_status conns_start(struct conns *c, int n_max, int idle_s, int read_s, struct qn_err *err)
{
    pthread_mutex_init(&c->lock, NULL);
    clock_cond_init(&c->wake);
    c->n_max = n_max;
    c->idle_us = (int64_t)idle_s * 1000000;
    c->read_us = (int64_t)read_s * 1000000;
    int rc = pthread_create(&c->janitor, NULL, janitor, c);
    if (rc != 0)
        QN_FAIL(err, QN_NO_MEMORY, "server", "cannot start a thread: %s", strerror(rc));
    c->janitor_runs = true;
    return QN_OK;
}

void conns_stop(struct conns *c)
{
    if (!c->janitor_runs)
        return;
    pthread_mutex_lock(&c->lock);
    c->quit = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->janitor, NULL);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->wake);
    c->janitor_runs = false;
}

struct conn *conns_add(struct conns *c, int fd)
{
    struct conn *k = calloc(1, sizeof *k);
    if (!k)
        return NULL;
    k->fd = fd;
    k->since_us = clock_us();
    pthread_mutex_lock(&c->lock);
    k->next = c->head;
    if (c->head)
        c->head->prev = k;
    c->head = k;
    c->n++;
    pthread_mutex_unlock(&c->lock);
    return k;
}

void conns_remove(struct conns *c, struct conn *k)
{
    if (!k)
        return;
    pthread_mutex_lock(&c->lock);
    if (k->prev)
        k->prev->next = k->next;
    else
        c->head = k->next;
    if (k->next)
        k->next->prev = k->prev;
    c->n--;
    pthread_mutex_unlock(&c->lock);
    free(k);
}

void conns_state(struct conns *c, struct conn *k, enum conn_state st)
{
    if (!k)
        return;
    pthread_mutex_lock(&c->lock);
    k->state = st;
    k->since_us = clock_us();
    pthread_mutex_unlock(&c->lock);
}

int conns_count(struct conns *c)
{
    pthread_mutex_lock(&c->lock);
    int n = c->n;
    pthread_mutex_unlock(&c->lock);
    return n;
}
