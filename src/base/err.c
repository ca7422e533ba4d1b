/*
 * err.c - see err.h. Also the one place where the program aborts: a failed QN_ASSERT.
 */
#include "err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fill(struct qn_err *err, enum qn_status code, const char *where, const char *fmt,
                 va_list ap)
{
    if (!err)
        return;
    err->code = code;
    err->where = where;
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
}

enum qn_status err_set(struct qn_err *err, enum qn_status code, const char *where, const char *fmt,
                       ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, where, fmt, ap);
    va_end(ap);
    return code;
}

enum qn_status err_errno(struct qn_err *err, const char *where, const char *fmt, ...)
{
    int e = errno;
    enum qn_status code = e == ENOENT || e == ENOTDIR ? QN_NOT_FOUND
                          : e == ENOMEM               ? QN_NO_MEMORY
                                                      : QN_IO;
    va_list ap;
    va_start(ap, fmt);
    fill(err, code, where, fmt, ap);
    va_end(ap);
    if (err) {
        size_t n = strlen(err->msg);
        char text[128];
        snprintf(err->msg + n, sizeof err->msg - n, ": %s", strerror_r(e, text, sizeof text));
    }
    return code;
}

enum qn_status err_prefix(struct qn_err *err, const char *fmt, ...)
{
    if (!err)
        return QN_INTERNAL;
    char old[sizeof err->msg];
    memcpy(old, err->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    size_t n = strlen(err->msg);
    snprintf(err->msg + n, sizeof err->msg - n, ": %.*s", (int)(sizeof err->msg - n), old);
    return err->code;
}

_Noreturn void err_assert_failed(const char *file, int line, const char *expr)
{
    char text[256];
    int n = snprintf(text, sizeof text, "quern: bug at %s:%d: %s\n", file, line, expr);
    if (n > 0) {
        ssize_t w = write(2, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
        (void)w;
    }
    abort();
}
