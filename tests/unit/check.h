/*
 * check.h - what every unit test includes: cmocka in the order it wants, and a few helpers.
 */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "../sanitized.h"
#include "base/buf.h"

/* Asserts QN_OK, printing the error's message otherwise. */
#define CHECK_OK(expr, err)                                                                        \
    do {                                                                                           \
        if ((expr) != QN_OK)                                                                       \
            fail_msg("%s: %s", #expr, (err).msg);                                                  \
    } while (0)
/* Asserts the status and that the message contains `part`. */
#define CHECK_FAILS(expr, status, err, part)                                                       \
    do {                                                                                           \
        (err) = (struct qn_err){0};                                                                \
        assert_int_equal((expr), (status));                                                        \
        assert_int_equal((err).code, (status));                                                    \
        if (!strstr((err).msg, (part)))                                                            \
            fail_msg("%s: message is \"%s\"; expected \"%s\" in it", #expr, (err).msg, (part));    \
    } while (0)
#define CHECK_STR(got, z) check_str((got), (z), __FILE__, __LINE__)

static inline void check_str(struct str got, const char *want, const char *file, int line)
{
    if (!str_eqz(got, want)) {
        print_error("got \"" STR_FMT "\", expected \"%s\"\n", STR_ARG(got), want);
        _fail(file, line);
    }
}

/* A fresh folder under $TMPDIR; the name is the caller's until dir_remove and free. */
static inline char *check_tmp_dir(void)
{
    const char *base = getenv("TMPDIR");
    struct buf b = BUF_INIT;
    buf_addf(&b, "%s/quern-test-XXXXXX", base && *base ? base : "/tmp");
    char *p = buf_give(&b, NULL);
    assert_non_null(p);
    assert_non_null(mkdtemp(p));
    return p;
}

/* Path of a file under QUERN_SHARED in *out, or false (with the reason printed) when absent. */
static inline bool check_shared(struct buf *out, const char *name)
{
    const char *root = getenv("QUERN_SHARED");
    buf_clear(out);
    if (root && *root)
        buf_addf(out, "%s/%s", root, name);
    FILE *f = out->n ? fopen(buf_z(out), "rb") : NULL;
    if (f)
        fclose(f);
    else
        print_message("skipped: %s is not under QUERN_SHARED (%s)\n", name, root ? root : "unset");
    return f != NULL;
}

#endif
