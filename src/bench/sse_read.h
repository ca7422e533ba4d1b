/*
 * sse_read.h - server-sent events out of bytes that come in any pieces. Strict: a line that is
 * neither a comment nor "field: value" with a known field is reported, where a browser would skip
 * it. Knows nothing of what the data means.
 */
#ifndef BENCH_SSE_READ_H
#define BENCH_SSE_READ_H

#include "base/buf.h"

enum { SSE_EVENT_MAX = 4 << 20 };

enum sse_state { SSE_FINE, SSE_BAD_LINE, SSE_TOO_LONG };

struct sse_read {
    struct buf line; /* the line that is not complete yet */
    struct buf data; /* data lines of the event so far */
    bool has_data, cr;
    enum sse_state state; /* stays at the first fault */
    char bad[80];         /* the line's beginning, for messages */
    /* One event's data, without the last newline. */
    void (*on_data)(void *arg, struct str data);
    void *arg;
};

void sse_read_init(struct sse_read *r, void (*on_data)(void *arg, struct str data), void *arg);
void sse_read_free(struct sse_read *r);
/* Takes bytes as they came; false (and state) at the first fault. */
bool sse_read_feed(struct sse_read *r, struct str bytes);
/* True when the bytes so far end in the middle of an event or a line. */
bool sse_read_open(const struct sse_read *r);

#endif
