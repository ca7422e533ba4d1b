/*
 * bench_spec.h - `quern bench --speculation`: kinds of guessing and lengths of windows over tasks,
 * each beside the same answers made without. Main thread.
 */
#ifndef CLI_BENCH_SPEC_H
#define CLI_BENCH_SPEC_H

#include "base/buf.h"
#include "base/err.h"
#include "cli/draft_opts.h"

struct bench_spec_params {
    const char *model;       /* folder or name */
    struct draft_opts draft; /* a kind: rows of it only; a model: two-model's, or of that kind */
    /* File of JSON lines with "task", "messages" or "prompt", and "temperature"; NULL = a few own.
     */
    const char *tasks;
    int64_t threads, repeat; /* repeat: rounds that count */
};

/* Appends the table. Fails when an answer made with guesses differs from the one without. */
enum qn_status bench_spec(const struct bench_spec_params *p, struct buf *out, struct qn_err *err);

#endif
