/*
 * think_watch.c - see think_watch.h. The markers are looked for in the text, so it does not matter
 * how tokens cut them. Once the end has been forced, reasoning that begins again is ended at once.
 */
#include "sched/think_watch.h"

#include <stdlib.h>

#include "base/fault.h"

#define MARK_MAX 128 /* bytes of an opening or closing text */

struct think_watch {
    struct str open, close; /* in bytes */
    char bytes[2 * MARK_MAX];
    char tail[MARK_MAX]; /* the latest text */
    size_t n_tail;
    bool inside;
    int32_t left; /* tokens */
    int32_t *end; /* [n_end] */
    int32_t n_end, next;
    uint64_t *bits; /* [words] all 0 but for the token that is forced */
    int32_t n_words;
};

static enum qn_status copy(struct think_watch *w, const struct gen_thinking *p, int32_t n_vocab,
                           struct qn_err *err)
{
    w->n_words = n_vocab / 64 + 1;
    w->bits = fault_point("sched.alloc") ? NULL : calloc((size_t)w->n_words, sizeof *w->bits);
    w->end = calloc((size_t)p->n_end + 1, sizeof *w->end);
    if (!w->bits || !w->end)
        QN_FAIL(err, QN_NO_MEMORY, "thinking", "no memory for a budget of reasoning");
    memcpy(w->bytes, p->open.p ? p->open.p : "", p->open.n);
    memcpy(w->bytes + MARK_MAX, p->close.p, p->close.n);
    w->open = (struct str){w->bytes, p->open.n};
    w->close = (struct str){w->bytes + MARK_MAX, p->close.n};
    w->inside = p->inside;
    w->left = p->budget;
    for (int32_t i = 0; i < p->n_end; i++)
        if (p->end[i] >= 0 && p->end[i] < n_vocab)
            w->end[w->n_end++] = p->end[i];
    w->next = w->n_end;
    return QN_OK;
}

enum qn_status think_watch_create(const struct gen_thinking *p, int32_t n_vocab,
                                  struct think_watch **out, struct qn_err *err)
{
    *out = NULL;
    if (p->open.n > MARK_MAX || p->close.n > MARK_MAX || p->close.n == 0)
        QN_FAIL(err, QN_BAD_INPUT, "thinking",
                "the markers of reasoning have %zu and %zu bytes; "
                "expected up to %d",
                p->open.n, p->close.n, MARK_MAX);
    struct think_watch *w = fault_point("sched.alloc") ? NULL : calloc(1, sizeof *w);
    if (!w)
        QN_FAIL(err, QN_NO_MEMORY, "thinking", "no memory for a budget of reasoning");
    enum qn_status st = copy(w, p, n_vocab, err);
    if (st != QN_OK) {
        think_watch_free(w);
        return st;
    }
    *out = w;
    return QN_OK;
}

void think_watch_free(struct think_watch *w)
{
    if (!w)
        return;
    free(w->bits);
    free(w->end);
    free(w);
}

const uint64_t *think_watch_force(struct think_watch *w)
{
    if (!w)
        return NULL;
    if (w->next == w->n_end && w->inside && w->left <= 0)
        w->next = 0;
    if (w->next == w->n_end)
        return NULL;
    if (w->next > 0)
        w->bits[w->end[w->next - 1] / 64] = 0;
    w->bits[w->end[w->next] / 64] = (uint64_t)1 << (w->end[w->next] % 64);
    return w->bits;
}

static bool ends_with(const struct think_watch *w, struct str mark)
{
    return mark.n > 0 && mark.n <= w->n_tail &&
           memcmp(w->tail + w->n_tail - mark.n, mark.p, mark.n) == 0;
}

void think_watch_push(struct think_watch *w, struct str piece)
{
    if (!w)
        return;
    w->left -= w->inside && w->left > 0;
    if (w->next < w->n_end) { /* a forced one */
        w->bits[w->end[w->next] / 64] = 0;
        w->next++;
        if (w->next == w->n_end) {
            w->inside = false;
            w->n_tail = 0;
        }
        return;
    }
    for (size_t i = 0; i < piece.n; i++) {
        if (w->n_tail == MARK_MAX)
            memmove(w->tail, w->tail + 1, --w->n_tail);
        w->tail[w->n_tail++] = piece.p[i];
        if (ends_with(w, w->inside ? w->close : w->open)) {
            w->inside = !w->inside;
            w->n_tail = 0;
        }
    }
}
