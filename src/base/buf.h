/*
 * buf.h - growable bytes. Start with {0} (or BUF_INIT); free with buf_free.
 *
 * A failed growth (out of memory, or past `limit` when that is not 0) sets `failed` and drops
 * everything appended from then on; callers check once at the end with buf_ok. The contents are
 * always followed by a NUL that `n` does not count, so buf_z can hand them to C functions.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdarg.h>
#include <stdint.h>

#include "err.h"
#include "str.h"

struct buf {
    char *p;
    size_t n, cap;
    size_t limit; /* most bytes it may hold; 0 = no limit of its own */
    bool failed;
};

#define BUF_INIT ((struct buf){0})

void buf_free(struct buf *b);
void buf_clear(struct buf *b);                 /* n = 0, failed = false; keeps the memory */
bool buf_reserve(struct buf *b, size_t extra); /* room for extra more bytes */
void buf_add(struct buf *b, const void *p, size_t n);
void buf_add_str(struct buf *b, struct str s);
void buf_addz(struct buf *b, const char *z);
void buf_addc(struct buf *b, char c);
void buf_addf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_add_utf8(struct buf *b, uint32_t cp); /* a scalar value as UTF-8 */
const char *buf_z(struct buf *b);              /* contents as a C string; "" when empty */
struct str buf_str(const struct buf *b);
char *buf_give(struct buf *b, size_t *n); /* hands the malloc'd, NUL-terminated bytes over */
/* QN_OK, or QN_NO_MEMORY naming `what` when an append failed. */
enum qn_status buf_ok(const struct buf *b, const char *what, struct qn_err *err);

#endif
