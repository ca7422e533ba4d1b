/*
 * err.h - errors as values. The place of detection fills the caller's qn_err once; everything
 * above forwards the status with QN_TRY. A message names the thing, the value, the limit and the
 * remedy. Outcomes that are not errors (end of stream, cache miss) are values, not statuses.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include "quern.h"

/* Fills *err (NULL is fine) and returns code. `where` is a static string: file or field group. */
enum qn_status err_set(struct qn_err *err, enum qn_status code, const char *where, const char *fmt,
                       ...) __attribute__((format(printf, 4, 5)));
/* Same, with ": " and errno's text appended; code is QN_IO, or QN_NOT_FOUND for ENOENT/ENOTDIR,
 * or QN_NO_MEMORY for ENOMEM. Reads errno on entry. */
enum qn_status err_errno(struct qn_err *err, const char *where, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before the message already in *err (truncating at the end). Returns err->code. */
enum qn_status err_prefix(struct qn_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Bugs in this program. On in release builds, outside kernels. */
_Noreturn void err_assert_failed(const char *file, int line, const char *expr);

#define QN_TRY(expr)                                                                               \
    do {                                                                                           \
        enum qn_status qn_try_s_ = (expr);                                                         \
        if (qn_try_s_ != QN_OK)                                                                    \
            return qn_try_s_;                                                                      \
    } while (0)
#define QN_FAIL(err, code, where, ...) return err_set(err, code, where, __VA_ARGS__)
#define QN_ASSERT(expr)                                                                            \
    do {                                                                                           \
        if (__builtin_expect(!(expr), 0))                                                          \
            err_assert_failed(__FILE__, __LINE__, #expr);                                          \
    } while (0)

#endif
