/* shapes.c - see shapes.h. Nothing is read or written but the arguments. */
#include "cache/shapes.h"

#include <string.h>

struct str shapes_note(uint8_t out[SHAPES_NOTE_MAX], const struct kv_shape *s, const bool *tail,
                       const char *ns)
{
    size_t n = ns ? strlen(ns) : 0, head = KV_SHAPE_BYTES;
    QN_ASSERT(n <= SHAPES_NS_MAX);
    kv_shape_write(s, out);
    if (tail)
        out[head++] = *tail;
    if (n)
        memcpy(out + head, ns, n);
    return (struct str){(char *)out, head + n};
}

bool shapes_note_read(const struct exec *ex, struct str note, bool tails, struct shapes_note *out)
{
    const uint8_t *p = (const uint8_t *)note.p;
    const size_t head = KV_SHAPE_BYTES + (size_t)tails;
    *out = (struct shapes_note){0};
    if (note.n < head || note.n > head + SHAPES_NS_MAX || (tails && p[KV_SHAPE_BYTES] > 1))
        return false;
    size_t n = note.n - head;
    memcpy(out->ns, p + head, n);
    out->tail = tails && p[KV_SHAPE_BYTES];
    return strlen(out->ns) == n && kv_shape_read(ex, p, KV_SHAPE_BYTES, &out->shape);
}

void shapes_leave_out(const struct exec *ex, const struct kv_shape *before, int32_t n,
                      struct kv_shape *s)
{
    for (int32_t g = 0; g < kv_n_group(ex); g++) {
        int32_t whole = s->from / KV_PAGE;
        while (kv_group_window(ex, g) && s->runs[g].n && s->runs[g].first < whole &&
               kv_shapes_page(before, n, g, s->runs[g].first, s->from) >= 0) {
            s->runs[g].first++;
            s->runs[g].n--;
        }
        if (!s->runs[g].n)
            s->runs[g].first = 0;
    }
}

void shapes_leave_last(const struct exec *ex, const struct kv_shape *next, struct kv_shape *s)
{
    int32_t open = s->end / KV_PAGE;
    for (int32_t g = 0; g < kv_n_group(ex) && s->end % KV_PAGE; g++) {
        int32_t end = s->runs[g].first + s->runs[g].n, i = open - next->runs[g].first;
        if (!s->runs[g].n || end != open + 1 || i < 0 || i >= next->runs[g].n)
            continue;
        s->runs[g].n--;
        if (!s->runs[g].n)
            s->runs[g].first = 0;
    }
}

int32_t shapes_choose(const struct exec *ex, const struct kv_shape *all, const struct kv_shape *s,
                      const struct iovec *from, struct iovec *out)
{
    int32_t n = 0;
    for (int32_t g = 0; g < kv_n_group(ex); g++)
        for (int32_t i = 0; i < all->runs[g].n; i++, from++) {
            int32_t page = all->runs[g].first + i;
            if (page >= s->runs[g].first && page < s->runs[g].first + s->runs[g].n)
                out[n++] = *from;
        }
    if (s->state)
        out[n++] = *from;
    return n;
}
