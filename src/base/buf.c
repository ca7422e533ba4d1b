/*
 * buf.c - see buf.h. Grows by half again, at least 64 bytes.
 */
#include "buf.h"

#include "fault.h"

#include <stdio.h>
#include <stdlib.h>

void buf_free(struct buf *b)
{
    free(b->p);
    *b = (struct buf){.limit = b->limit};
}

void buf_clear(struct buf *b)
{
    b->n = 0;
    b->failed = false;
    if (b->p)
        b->p[0] = 0;
}

bool buf_reserve(struct buf *b, size_t extra)
{
    size_t need;
    if (b->failed || __builtin_add_overflow(b->n, extra, &need) ||
        __builtin_add_overflow(need, 1, &need) || (b->limit && need - 1 > b->limit)) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap)
        return true;
    size_t cap = b->cap + b->cap / 2;
    if (cap < need)
        cap = need;
    if (cap < 64)
        cap = 64;
    char *p = fault_point("buf.grow") ? NULL : realloc(b->p, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
    if (!buf_reserve(b, n))
        return;
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
    b->p[b->n] = 0;
}

void buf_add_str(struct buf *b, struct str s)
{
    buf_add(b, s.p, s.n);
}

void buf_addz(struct buf *b, const char *z)
{
    buf_add(b, z, strlen(z));
}

void buf_addc(struct buf *b, char c)
{
    buf_add(b, &c, 1);
}

void buf_addf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        b->failed = true;
    else if (buf_reserve(b, (size_t)n)) {
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

void buf_add_utf8(struct buf *b, uint32_t cp)
{
    char t[4];
    size_t n;
    if (cp < 0x80) {
        t[0] = (char)cp;
        n = 1;
    } else if (cp < 0x800) {
        t[0] = (char)(0xC0 | cp >> 6);
        t[1] = (char)(0x80 | (cp & 63));
        n = 2;
    } else if (cp < 0x10000) {
        t[0] = (char)(0xE0 | cp >> 12);
        t[1] = (char)(0x80 | (cp >> 6 & 63));
        t[2] = (char)(0x80 | (cp & 63));
        n = 3;
    } else {
        t[0] = (char)(0xF0 | cp >> 18);
        t[1] = (char)(0x80 | (cp >> 12 & 63));
        t[2] = (char)(0x80 | (cp >> 6 & 63));
        t[3] = (char)(0x80 | (cp & 63));
        n = 4;
    }
    buf_add(b, t, n);
}

const char *buf_z(struct buf *b)
{
    return b->p ? b->p : "";
}

struct str buf_str(const struct buf *b)
{
    return (struct str){b->p ? b->p : "", b->n};
}

char *buf_give(struct buf *b, size_t *n)
{
    if (!b->p && !buf_reserve(b, 0))
        return NULL;
    char *p = b->p;
    p[b->n] = 0;
    if (n)
        *n = b->n;
    *b = (struct buf){.limit = b->limit};
    return p;
}

enum qn_status buf_ok(const struct buf *b, const char *what, struct qn_err *err)
{
    if (!b->failed)
        return QN_OK;
    if (b->limit)
        return err_set(err, QN_NO_MEMORY, "buf", "%s: grew past its limit of %zu bytes", what,
                       b->limit);
    return err_set(err, QN_NO_MEMORY, "buf", "%s: out of memory at %zu bytes", what, b->n);
}
