/*
 * source_id.h - what this program was built from; made anew by every build (tools/source_id.py).
 */
#ifndef BENCH_SOURCE_ID_H
#define BENCH_SOURCE_ID_H

#include <stdbool.h>

struct source_id {
    const char *commit; /* of git, 40 digits; "" when it was not built in a checkout */
    const char *sha256; /* over names and contents of src, include and the build files */
    bool dirty;         /* the files differed from the commit */
};
extern const struct source_id source_id;

#endif
