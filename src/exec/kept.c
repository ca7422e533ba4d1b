/*
 * kept.c - rows of activations that a sequence keeps from step to step: what a draft head takes of
 * the model whose tokens it guesses. Positions [first, first + n) lie behind each other.
 *
 * Copied by the thread that steps; never handed to the pool.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"

struct kept {
    float *p; /* [cap, cols] */
    int32_t cols, cap, first, n;
};

enum qn_status kept_create(struct exec *ex, int32_t cols, int32_t cap, struct kept **out,
                           struct qn_err *err)
{
    QN_ASSERT(cols >= 1 && cap >= 1);
    struct kept *k = calloc(1, sizeof *k);
    float *p = calloc((size_t)cap * (size_t)cols, sizeof *p);
    if (!k || !p) {
        free(k);
        free(p);
        QN_FAIL(err, QN_NO_MEMORY, "exec", "out of memory to keep %d rows of %d floats", cap, cols);
    }
    *k = (struct kept){.p = p, .cols = cols, .cap = cap};
    *out = k;
    return QN_OK;
}

void kept_free(struct kept *k)
{
    if (!k)
        return;
    free(k->p);
    free(k);
}

int32_t kept_first(const struct kept *k)
{
    return k->first;
}

int32_t kept_end(const struct kept *k)
{
    return k->first + k->n;
}

static void drop_front(struct kept *k, int32_t n)
{
    size_t row = (size_t)k->cols * sizeof *k->p;
    k->first += n;
    k->n -= n;
    memmove(k->p, (char *)k->p + (size_t)n * row, (size_t)k->n * row);
}

/* n rows of floats that lie behind each other. */
static void add_rows(struct kept *k, const float *rows, int32_t n, int32_t pos)
{
    if (k->n && pos != k->first + k->n)
        k->n = 0;
    if (!k->n)
        k->first = pos;
    if (n > k->cap) {
        k->first += k->n + n - k->cap;
        k->n = 0;
        rows += (size_t)(n - k->cap) * (size_t)k->cols;
        n = k->cap;
    } else if (k->n + n > k->cap)
        drop_front(k, k->n + n - k->cap);
    memcpy(k->p + (size_t)k->n * (size_t)k->cols, rows, (size_t)n * (size_t)k->cols * sizeof *k->p);
    k->n += n;
}

void kept_add(struct kept *k, const struct tensor *t, int32_t row, int32_t n, int32_t pos)
{
    QN_ASSERT(t->cols == k->cols && row >= 0 && n >= 1 && row + n <= t->rows);
    add_rows(k, t->p + (size_t)row * (size_t)t->cols, n, pos);
}

void kept_put(struct kept *k, int32_t pos, const float *row)
{
    add_rows(k, row, 1, pos);
}

void kept_read(const struct kept *k, int32_t pos, float *row)
{
    QN_ASSERT(pos >= k->first && pos < k->first + k->n);
    memcpy(row, k->p + (size_t)(pos - k->first) * (size_t)k->cols, (size_t)k->cols * sizeof *k->p);
}

void kept_copy(struct kept *k, const struct kept *from)
{
    QN_ASSERT(k->cols == from->cols && k->cap == from->cap);
    k->first = from->first;
    k->n = from->n;
    memcpy(k->p, from->p, (size_t)k->n * (size_t)k->cols * sizeof *k->p);
}

void kept_truncate(struct kept *k, int32_t pos)
{
    if (k->n && pos >= k->first + k->n)
        return;
    k->n = k->n && pos > k->first ? pos - k->first : 0;
    if (!k->n)
        k->first = pos;
}

void kept_forget(struct kept *k, int32_t pos)
{
    int32_t n = pos - k->first;
    if (n > 0)
        drop_front(k, n < k->n ? n : k->n);
}

void kept_get(const struct kept *k, int32_t pos, int32_t n, struct tensor *t, int32_t row)
{
    QN_ASSERT(t->cols == k->cols && pos >= k->first && pos + n <= k->first + k->n);
    QN_ASSERT(row >= 0 && row + n <= t->cap);
    memcpy(t->p + (size_t)row * (size_t)t->cols, k->p + (size_t)(pos - k->first) * (size_t)k->cols,
           (size_t)n * (size_t)k->cols * sizeof *k->p);
    t->rows = row + n;
}
