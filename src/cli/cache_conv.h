/*
 * cache_conv.h - the files of `quern serve --conversations` for `quern cache`: one file, or those
 * of a folder. Main thread.
 */
#ifndef CLI_CACHE_CONV_H
#define CLI_CACHE_CONV_H

#include "base/json.h"
#include "cli/cli.h"
#include "store/convfile.h"

/* A path that means a single file. */
bool conv_arg_is_file(const char *path);

struct conv_rows {
    struct conv_row {
        char *name; /* without the suffix */
        struct conv_info info;
        enum qn_status status; /* of reading the head, or all of it */
        char error[240];
    } * v;
    int n;
    bool no_memory;
};
/* Of a file, or of all that a folder has; whole: reads every byte, and says what is wrong. To be
 * freed in every case. */
enum qn_status conv_rows_read(const struct cli *c, const char *path, bool whole,
                              struct conv_rows *out, struct qn_err *err);
void conv_rows_free(struct conv_rows *r);
int64_t conv_rows_bad(const struct conv_rows *r); /* damaged ones */
void conv_rows_text(const struct conv_rows *r, struct buf *out);
void conv_rows_json(const struct conv_rows *r, struct jw *w); /* an array */

/* Which go; all zero: everything that the path means. */
struct conv_choice {
    const char *model; /* the beginning of a fingerprint */
    int64_t before;    /* Unix seconds */
};
/* Removes them and says so. */
enum qn_status conv_rows_remove(const char *dir, const struct conv_rows *r,
                                const struct conv_choice *which, struct buf *out,
                                struct qn_err *err);

#endif
