/*
 * pace.c - see pace.h. The model of a step: us = plain(answers) + prompt tokens * row. Estimates
 * follow the samples slowly and a single slow step (the machine was busy) moves them little.
 *
 * With answers running, a step with prompt tokens may take STRETCH times one without; alone, a
 * chunk may take ALONE_US, so that cancelling and joining stay prompt with large models too.
 */
#include "sched/pace.h"

#define STRETCH   2.0
#define ALONE_US  300000.0
#define ROWS_MIN  8  /* fewer would cost their share of the weights for little progress */
#define ALONE_MIN 32 /* below, prompts read much slower */
#define LOOK      64 /* mixed steps between looks at a plain one */
#define OUTLIER   3.0

static void follow(double *estimate, double sample)
{
    if (*estimate <= 0) {
        *estimate = sample;
        return;
    }
    if (sample > OUTLIER * *estimate)
        sample = OUTLIER * *estimate;
    *estimate += (sample < *estimate ? 0.25 : 0.1) * (sample - *estimate);
}

/* The cost of n answers from the nearest known count; 0 when none is known. */
static double plain(const struct pace *p, int32_t n)
{
    for (int32_t d = 0; d <= PACE_LANES; d++) {
        if (n - d >= 1 && p->plain_us[n - d] > 0)
            return p->plain_us[n - d];
        if (n + d <= PACE_LANES && p->plain_us[n + d] > 0)
            return p->plain_us[n + d];
    }
    return 0;
}

int32_t pace_rows(const struct pace *p, int32_t n_decode, int32_t most)
{
    double budget_us = ALONE_US;
    int32_t least = ALONE_MIN;
    if (n_decode > 0) {
        double alone = plain(p, n_decode < PACE_LANES ? n_decode : PACE_LANES);
        if (alone <= 0 || p->mixed >= LOOK)
            return 0;
        budget_us = (STRETCH - 1) * alone;
        least = ROWS_MIN;
    }
    double row_us = p->row_us[n_decode > 0];
    if (row_us <= 0)
        return most < least ? most : least;
    double rows = budget_us / row_us;
    if (rows >= most)
        return most;
    int32_t n = (int32_t)rows;
    n = n < least ? least : n - n % ROWS_MIN;
    return n < most ? n : most;
}

void pace_note(struct pace *p, int32_t n_decode, int32_t n_prompt, int64_t us)
{
    int32_t n = n_decode < PACE_LANES ? n_decode : PACE_LANES;
    if (n_prompt == 0) {
        if (n > 0)
            follow(&p->plain_us[n], (double)us);
        p->mixed = 0;
        return;
    }
    double base = n > 0 ? plain(p, n) : 0;
    if (n > 0)
        p->mixed++;
    double row = ((double)us - base) / n_prompt;
    if (row > 0)
        follow(&p->row_us[n > 0], row);
}
