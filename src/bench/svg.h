/*
 * svg.h - the charts of the HTML report, as inline SVG: bars with whiskers, lines, distributions.
 * Colours are CSS classes (c0, c1, ...), so that the page decides for dark and light. Every chart
 * says in words what it shows (title, and a <title> for each mark), for readers without eyes for
 * colour.
 */
#ifndef BENCH_SVG_H
#define BENCH_SVG_H

#include "base/buf.h"

/* Text with &, <, > and quotes escaped; control characters become blanks. */
void svg_text(struct buf *out, struct str s);

struct svg_bar {
    struct str name;
    double value, min, max;
    int colour;
    const double *dots; /* single values, or NULL */
    size_t n_dot;
};
/* Horizontal bars from zero, one below the other, with whiskers from min to max. */
void svg_bars(struct buf *out, struct str unit, const struct svg_bar *bars, size_t n);

struct svg_line {
    struct str name;
    const double *x, *y;
    const double *lo, *hi; /* ends of whiskers, or NULL */
    size_t n;
    int colour;
    bool dots;
};
struct svg_axes {
    struct str x_unit, y_unit, label; /* label: what the chart shows, for screen readers */
    bool y_from_zero, x_whole;        /* x_whole: no ticks between whole numbers */
};
/* Lines over common axes; points with values that are no numbers are left out. */
void svg_lines(struct buf *out, const struct svg_axes *a, const struct svg_line *lines, size_t n);

/* ---- for tests ---- */
/* A step of 1, 2 or 5 times a power of ten that cuts `range` into about n pieces. */
double svg_step(double range, int n);

#endif
