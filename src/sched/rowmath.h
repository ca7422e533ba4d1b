/*
 * rowmath.h - passes over one row of logits: maximum, sums of exponentials, the few highest, and
 * selection by mass or count without sorting.
 *
 * Every result is a pure function of the row: sums are taken in a fixed order (lanes, then blocks)
 * and without libm in the inner loops, so builds and machines agree. No state, any thread.
 */
#ifndef SCHED_ROWMATH_H
#define SCHED_ROWMATH_H

#include <stdbool.h>
#include <stdint.h>

#define ROW_BLOCK 256 /* elements per block; block maxima let later passes skip most of a row */

static inline int32_t row_blocks(int32_t n)
{
    return n / ROW_BLOCK + (n % ROW_BLOCK != 0);
}

struct row_max {
    float v;    /* highest value */
    int32_t id; /* its lowest index */
    bool nan;   /* some element is NaN; v and id are then meaningless */
};

/* One pass: the maximum of x[n] and of each block; bmax has row_blocks(n) elements. n >= 1. */
struct row_max row_scan(const float *x, int32_t n, float *bmax);

/* Weights exp((x[i] - top) * inv_t), no x above top, inv_t > 0; under e^-86 exactly 0, otherwise
 * with a relative error under 3e-7. Written to w, each block's sum to bsum (either may be NULL);
 * returns the sum. */
double row_exp(const float *x, int32_t n, float top, float inv_t, float *w, double *bsum);

/* Ids of the k highest elements (k <= n), highest first, ties by lower id. bmax from row_scan. */
void row_top(const float *x, int32_t n, const float *bmax, int32_t k, int32_t *ids);

/* The largest t such that the weights of all x[i] >= t sum to at least `target`; the lowest
 * weighted x when even all of them do not. w NULL counts 1 each. No x above top, no NaN, weights >=
 * 0, n >= 1. Cost: two passes as a rule, four at worst, whatever the values. */
float row_select(const float *x, const float *w, int32_t n, float top, double target);

#endif
