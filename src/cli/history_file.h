/*
 * history_file.h - where the history of measurements is kept by default. Main thread.
 */
#ifndef CLI_HISTORY_FILE_H
#define CLI_HISTORY_FILE_H

#include "bench/history.h"

/* The file that was named, else bench.sqlite in the cache folder, which is made. */
enum qn_status history_default(const char *given, struct history **out, struct qn_err *err);

#endif
