/*
 * pace.c - see pace.h. Beside running answers a step may take STRETCH times what it takes without
 * prompt tokens. How the time grows with their number is no line (kernels work on tiles of rows),
 * so their number is moved, a little after each step, by how far that step was from the mark. How
 * their cost grows with what was read before is learnt as a slope, for prompts that go on deep,
 * behind what a cache had. A new one begins with what was right deep in the last, and moves.
 *
 * Deep in a long prompt the mark is out of reach: reading what came before costs more than the
 * weights do, for one row as for many. Fewer than LEAST rows then make steps little shorter and the
 * prompt, and with it the time that answers are slow, several times longer.
 *
 * Without answers a chunk may take ALONE_US: cancelling and joining stay prompt with large models.
 */
#include "sched/pace.h"

#define STRETCH   2.0
#define START     8 /* tokens beside answers at first */
#define TILE      4 /* rows that kernels take together: fewer cost nearly the same */
#define LEAST     8 /* rows of a step that reads, however long it takes */
#define GAIN      0.2
#define LOOK      64 /* mixed steps between looks at a plain one */
#define ALONE_US  300000.0
#define ALONE_MIN 32 /* below, prompts read much slower */
#define OUTLIER   3.0
#define FADE      0.995 /* of the sums behind the slope, per mixed step */
#define APART     150.0 /* standard deviation of depths, in tokens, from which there is a slope */

/* A single slow step (the machine was busy) moves an estimate little. */
static void follow(double *estimate, double sample)
{
    if (*estimate <= 0) {
        *estimate = sample;
        return;
    }
    if (sample > OUTLIER * *estimate)
        sample = OUTLIER * *estimate;
    *estimate += GAIN * (sample - *estimate);
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

static int32_t lanes(int32_t n_decode)
{
    return n_decode < PACE_LANES ? n_decode : PACE_LANES;
}

/* The nearest number that fills the step's last tile; a step that reads has LEAST rows or, beside
 * many answers, a tile of prompt. */
static double whole_tiles(double rows, int32_t n_decode)
{
    double least = LEAST - n_decode > TILE ? LEAST - n_decode : TILE;
    rows = rows < least ? least : rows;
    int32_t tiles = (int32_t)((rows + n_decode) / TILE + 0.5);
    return tiles * TILE > n_decode ? tiles * TILE - n_decode : rows;
}

/* What a prompt token costs at a depth, of what it costs at the beginning. */
static double dearer(const struct pace *p, int32_t depth)
{
    return 1 + p->steep * depth;
}

static double rows_at(const struct pace *p, int32_t depth)
{
    return (p->beside > 0 ? p->beside : START) / dearer(p, depth > p->depth ? depth : p->depth);
}

int32_t pace_rows(const struct pace *p, int32_t n_decode, int32_t depth, int32_t most)
{
    double rows = p->alone_us > 0 ? ALONE_US / p->alone_us : ALONE_MIN;
    if (n_decode > 0) {
        if (plain(p, lanes(n_decode)) <= 0 || p->mixed >= LOOK)
            return 0;
        rows = whole_tiles(rows_at(p, depth), n_decode);
    } else if (rows < ALONE_MIN) {
        rows = ALONE_MIN;
    }
    return rows < most ? (int32_t)rows : most;
}

/* A token at depth x cost y: the line through what was seen. A change of slope leaves the number of
 * rows at this depth as it is. */
static void learn_slope(struct pace *p, double x, double y)
{
    double before = p->steep;
    if (p->seen.n > 1 && y > OUTLIER * p->seen.y / p->seen.n)
        y = OUTLIER * p->seen.y / p->seen.n;
    p->seen.n = FADE * p->seen.n + 1;
    p->seen.x = FADE * p->seen.x + x;
    p->seen.y = FADE * p->seen.y + y;
    p->seen.xx = FADE * p->seen.xx + x * x;
    p->seen.xy = FADE * p->seen.xy + x * y;
    double mx = p->seen.x / p->seen.n, my = p->seen.y / p->seen.n;
    double var = p->seen.xx / p->seen.n - mx * mx, cov = p->seen.xy / p->seen.n - mx * my;
    if (var < APART * APART)
        return;
    double slope = cov / var, base = my - slope * mx;
    if (base < my / 8) /* not steeper than what nearly nothing at the beginning would make it */
        base = my / 8;
    p->steep = slope > 0 ? slope / base : 0;
    if (p->beside > 0)
        p->beside *= (1 + p->steep * p->depth) / (1 + before * p->depth);
}

/* The step was longer or shorter than it should have been. One that did not use what it might have
 * says nothing; one hiccup takes away a tenth at most. */
static void move(struct pace *p, double mark, const struct pace_step *s, double us)
{
    double rows = rows_at(p, s->depth);
    if (s->n_prompt + TILE < (int32_t)rows)
        return;
    double off = mark / us - 1;
    off = off < -0.5 ? -0.5 : off > 0.5 ? 0.5 : off;
    rows *= 1 + GAIN * off;
    rows = rows < 1 ? 1 : rows > 1e6 ? 1e6 : rows;
    p->beside = rows * dearer(p, s->depth);
    p->depth = s->depth;
}

void pace_note(struct pace *p, const struct pace_step *s)
{
    double took = s->us > 0 ? (double)s->us : 1;
    if (s->n_decode == 0) {
        follow(&p->alone_us, took / s->n_prompt);
    } else if (s->n_prompt == 0) {
        follow(&p->plain_us[lanes(s->n_decode)], took);
        p->mixed = 0;
    } else {
        double without = plain(p, lanes(s->n_decode)), more = took - without;
        p->mixed++;
        move(p, STRETCH * without, s, took);
        if (more > 0)
            learn_slope(p, s->depth, more / s->n_prompt);
    }
}
