/*
 * stops.c - one Knuth-Morris-Pratt automaton per stop string over the streamed bytes; see stops.h.
 *
 * Invariant between calls: `held` is the text from byte `base` on that has not left; state[k] is
 * the length of the longest end of the text that begins stop k, so text.n - state[k] is the
 * earliest place where stop k may still match. Cost: O(stops) per byte, whatever the strings look
 * like.
 */
#include "sched/stops.h"

#include <stdlib.h>

#include "base/fault.h"

struct pattern {
    const char *p; /* into the stops' own copy */
    int32_t n;
    int32_t *fail; /* [n + 1] longest proper border of the first i bytes */
    int32_t state; /* bytes matched so far */
};

struct stops {
    struct buf held;
    uint64_t base;   /* text position of held.p[0] */
    uint64_t pos;    /* bytes of text seen */
    uint64_t hit_at; /* start of the best complete match, when hit >= 0 */
    int32_t hit;
    bool done;
    char *bytes;
    int32_t *fails;
    int32_t n;
    struct pattern pat[];
};

static void build(struct pattern *a)
{
    a->fail[0] = 0;
    a->fail[1] = 0;
    for (int32_t i = 1, k = 0; i < a->n; i++) {
        while (k > 0 && a->p[k] != a->p[i])
            k = a->fail[k];
        k += a->p[k] == a->p[i];
        a->fail[i + 1] = k;
    }
}

enum qn_status stops_create(const struct str *strings, int32_t n, struct stops **out,
                            struct qn_err *err)
{
    size_t total = 0;
    for (int32_t i = 0; i < n; i++) {
        if (strings[i].n == 0 || strings[i].n > INT32_MAX / 64)
            QN_FAIL(err, QN_BAD_INPUT, "stop", "stop[%d] has %zu bytes; expected 1 to %d", i,
                    strings[i].n, INT32_MAX / 64);
        if (__builtin_add_overflow(total, strings[i].n, &total) || total > INT32_MAX / 16)
            QN_FAIL(err, QN_BAD_INPUT, "stop", "stop strings are too long together");
    }
    struct stops *st = calloc(1, sizeof *st + (size_t)n * sizeof st->pat[0]);
    char *bytes = fault_point("sched.alloc") ? NULL : malloc(total + 1);
    int32_t *fails = malloc((total + (size_t)n + 1) * sizeof *fails);
    if (!st || !bytes || !fails) {
        free(st);
        free(bytes);
        free(fails);
        QN_FAIL(err, QN_NO_MEMORY, "stop", "no memory for %d stop strings", n);
    }
    st->bytes = bytes;
    st->fails = fails;
    st->hit = -1;
    st->n = n;
    for (int32_t i = 0; i < n; i++) {
        st->pat[i] = (struct pattern){.p = bytes, .n = (int32_t)strings[i].n, .fail = fails};
        memcpy(bytes, strings[i].p, strings[i].n);
        bytes += strings[i].n;
        fails += strings[i].n + 1;
        build(&st->pat[i]);
    }
    *out = st;
    return QN_OK;
}

void stops_free(struct stops *st)
{
    if (!st)
        return;
    buf_free(&st->held);
    free(st->bytes);
    free(st->fails);
    free(st);
}

/* Moves every automaton past one byte; the earliest place where any of them may still match. */
static uint64_t advance(struct stops *st, char c)
{
    uint64_t open = ++st->pos;
    for (int32_t k = 0; k < st->n; k++) {
        struct pattern *a = &st->pat[k];
        while (a->state > 0 && a->p[a->state] != c)
            a->state = a->fail[a->state];
        a->state += a->p[a->state] == c;
        if (a->state == a->n) {
            uint64_t at = st->pos - (uint64_t)a->n;
            if (st->hit < 0 || at < st->hit_at) {
                st->hit = k;
                st->hit_at = at;
            }
            a->state = a->fail[a->state];
        }
        uint64_t from = st->pos - (uint64_t)a->state;
        open = from < open ? from : open;
    }
    return open;
}

/* Delivers the text before `upto` and forgets it. */
static void release(struct stops *st, uint64_t upto, struct buf *out)
{
    size_t n = (size_t)(upto - st->base);
    if (n == 0 || st->held.failed)
        return;
    buf_add(out, st->held.p, n);
    memmove(st->held.p, st->held.p + n, st->held.n - n);
    st->held.n -= n;
    st->base = upto;
}

int32_t stops_push(struct stops *st, struct str piece, struct buf *out)
{
    if (st->done || piece.n == 0)
        return -1;
    if (st->n == 0) {
        buf_add_str(out, piece);
        return -1;
    }
    buf_add_str(&st->held, piece);
    uint64_t open = st->pos;
    for (size_t i = 0; i < piece.n; i++) {
        open = advance(st, piece.p[i]);
        if (st->hit >= 0 && open >= st->hit_at) {
            release(st, st->hit_at, out);
            st->done = true;
            return st->hit;
        }
    }
    release(st, open, out);
    return -1;
}

int32_t stops_end(struct stops *st, struct buf *out)
{
    if (st->done || st->n == 0)
        return -1;
    st->done = true;
    release(st, st->hit >= 0 ? st->hit_at : st->pos, out);
    return st->hit;
}

bool stops_failed(const struct stops *st)
{
    return st->held.failed;
}
