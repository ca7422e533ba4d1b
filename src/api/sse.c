/*
 * sse.c - server-sent events: framing only.
 */
#include "api/sse.h"

#include <stdio.h>

void sse_data(struct buf *out, struct str payload)
{
    buf_add_str(out, STR_LIT("data: "));
    buf_add_str(out, payload);
    buf_add_str(out, STR_LIT("\n\n"));
}

void sse_event(struct buf *out, const char *name, struct str payload)
{
    buf_addz(out, "event: ");
    buf_addz(out, name);
    buf_addc(out, '\n');
    sse_data(out, payload);
}

void sse_done(struct buf *out)
{
    buf_add_str(out, STR_LIT("data: [DONE]\n\n"));
}

void sse_comment(struct buf *out, const char *fmt, ...)
{
    char line[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    buf_addf(out, ": %s\n\n", line);
}
