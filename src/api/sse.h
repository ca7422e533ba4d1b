/*
 * sse.h - server-sent events: framing only. A payload is one line of JSON (the writer in
 * base/json.h never emits a raw newline), so one data: line carries it.
 */
#ifndef API_SSE_H
#define API_SSE_H

#include "base/buf.h"

void sse_data(struct buf *out, struct str payload);
void sse_event(struct buf *out, const char *name, struct str payload); /* with an event: line */
void sse_done(struct buf *out);                                        /* data: [DONE] */
void sse_comment(struct buf *out, const char *fmt, ...) /* ": text", ignored by every client */
    __attribute__((format(printf, 2, 3)));

#endif
