/*
 * progress.h - one progress line on stderr: bar, percent, rate, time left.
 *
 * Shown only when stderr is a terminal that can move its cursor, only for work that has lasted over
 * a second, at most ten times a second; the line is gone when the work ends. In a pipe nothing is
 * ever written. One line at a time; calls may come from any thread.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include "base/buf.h"

struct progress {
    const char *what; /* "Loading SmolLM2", borrowed */
    const char *unit; /* "B" for bytes, otherwise a word such as "tok"; NULL = percent only */
    double total;     /* in units; <= 0 = unknown */
    double done;
    int64_t start_us, shown_us; /* shown_us 0 = not on the screen */
    double rate;                /* units per second, smoothed; 0 = not known yet */
    double rate_done;           /* done and time at the last update of rate */
    int64_t rate_us;
};

/* Begins; p is the caller's, until progress_end. */
void progress_start(struct progress *p, const char *what, const char *unit, double total);
void progress_set(struct progress *p, double done);
/* Removes the line. */
void progress_end(struct progress *p);
/* Removes the line if one stands (it comes back with the next progress_set): before a message. */
void progress_hide(void);
/* Matches qn_engine_params.progress: arg is a struct progress, done is in [0,1]. */
void progress_report(void *arg, const char *what, double done);
/* The line's text for a terminal of `width` columns, never longer than width - 1. For tests. */
void progress_format(const struct progress *p, int64_t now_us, int width, struct buf *out);

#endif
