/*
 * timers.c - see timers.h. A binary heap ordered by (moment, id); cancelling takes the row out,
 * found by a scan: there are at most a few hundred.
 */
#include "bench/timers.h"

#include <stdlib.h>

struct timer {
    int64_t at_ns;
    uint64_t id;
    timer_fn fn;
    void *arg;
};

struct timers {
    struct timer *v;
    size_t n, cap;
    uint64_t last_id;
};

struct timers *timers_create(void)
{
    return calloc(1, sizeof(struct timers));
}

void timers_free(struct timers *t)
{
    if (t)
        free(t->v);
    free(t);
}

static bool before(const struct timer *a, const struct timer *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->id < b->id;
}

static void swap(struct timer *a, struct timer *b)
{
    struct timer x = *a;
    *a = *b;
    *b = x;
}

static void sift_up(struct timers *t, size_t i)
{
    while (i && before(&t->v[i], &t->v[(i - 1) / 2])) {
        swap(&t->v[i], &t->v[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
}

static void sift_down(struct timers *t, size_t i)
{
    for (;;) {
        size_t least = i, l = 2 * i + 1, r = l + 1;
        if (l < t->n && before(&t->v[l], &t->v[least]))
            least = l;
        if (r < t->n && before(&t->v[r], &t->v[least]))
            least = r;
        if (least == i)
            return;
        swap(&t->v[i], &t->v[least]);
        i = least;
    }
}

uint64_t timers_add(struct timers *t, int64_t at_ns, timer_fn fn, void *arg)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        struct timer *v = realloc(t->v, cap * sizeof *v);
        if (!v)
            return 0;
        t->v = v;
        t->cap = cap;
    }
    uint64_t id = ++t->last_id;
    t->v[t->n++] = (struct timer){at_ns, id, fn, arg};
    sift_up(t, t->n - 1);
    return id;
}

static void take(struct timers *t, size_t i)
{
    t->v[i] = t->v[--t->n];
    if (i < t->n) {
        sift_down(t, i);
        sift_up(t, i);
    }
}

void timers_cancel(struct timers *t, uint64_t id)
{
    for (size_t i = 0; id && i < t->n; i++) {
        if (t->v[i].id == id) {
            take(t, i);
            return;
        }
    }
}

int64_t timers_next(const struct timers *t)
{
    return t->n ? t->v[0].at_ns : INT64_MAX;
}

void timers_run(struct timers *t, int64_t now_ns)
{
    while (t->n && t->v[0].at_ns <= now_ns) {
        struct timer x = t->v[0];
        take(t, 0);
        x.fn(x.arg);
    }
}
