/* sse_read.c - see sse_read.h. Lines end with LF, CR or CRLF, as the standard has it. */
#include "bench/sse_read.h"

#include <stdio.h>

void sse_read_init(struct sse_read *r, void (*on_data)(void *arg, struct str data), void *arg)
{
    *r = (struct sse_read){.on_data = on_data, .arg = arg};
    r->line.limit = r->data.limit = SSE_EVENT_MAX;
}

void sse_read_free(struct sse_read *r)
{
    buf_free(&r->line);
    buf_free(&r->data);
}

static bool fault(struct sse_read *r, enum sse_state state, struct str line)
{
    if (r->state == SSE_FINE) {
        r->state = state;
        snprintf(r->bad, sizeof r->bad, "%.*s", (int)(line.n < 60 ? line.n : 60), line.p);
    }
    return false;
}

static bool end_event(struct sse_read *r)
{
    if (r->has_data)
        r->on_data(r->arg, buf_str(&r->data));
    buf_clear(&r->data);
    r->has_data = false;
    return true;
}

static bool take_line(struct sse_read *r, struct str line)
{
    static const char *const others[] = {"event", "id", "retry"};
    if (line.n == 0)
        return end_event(r);
    if (line.p[0] == ':')
        return true;
    size_t colon = str_find(line, STR_LIT(":"), 0);
    struct str name = {line.p, colon < line.n ? colon : line.n};
    struct str value = {line.p + name.n, line.n - name.n};
    if (value.n) /* the colon */
        value = (struct str){value.p + 1, value.n - 1};
    if (value.n && value.p[0] == ' ')
        value = (struct str){value.p + 1, value.n - 1};
    if (str_eqz(name, "data")) {
        if (r->has_data)
            buf_addc(&r->data, '\n');
        buf_add_str(&r->data, value);
        r->has_data = true;
        return r->data.failed ? fault(r, SSE_TOO_LONG, line) : true;
    }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (str_eqz(name, others[i]))
            return true;
    return fault(r, SSE_BAD_LINE, line);
}

bool sse_read_feed(struct sse_read *r, struct str bytes)
{
    if (r->state != SSE_FINE)
        return false;
    while (bytes.n) {
        if (r->cr && bytes.p[0] == '\n') { /* the LF of a CRLF whose CR ended the line */
            r->cr = false;
            bytes = (struct str){bytes.p + 1, bytes.n - 1};
            continue;
        }
        r->cr = false;
        size_t n = 0;
        while (n < bytes.n && bytes.p[n] != '\n' && bytes.p[n] != '\r')
            n++;
        buf_add(&r->line, bytes.p, n);
        if (r->line.failed)
            return fault(r, SSE_TOO_LONG, (struct str){bytes.p, n});
        if (n == bytes.n)
            return true;
        r->cr = bytes.p[n] == '\r';
        bytes = (struct str){bytes.p + n + 1, bytes.n - n - 1};
        bool ok = take_line(r, buf_str(&r->line));
        buf_clear(&r->line);
        if (!ok)
            return false;
    }
    return true;
}

bool sse_read_open(const struct sse_read *r)
{
    return r->line.n || r->has_data;
}
