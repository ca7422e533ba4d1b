/* spec_policy.c - see spec_policy.h. */
#include "sched/spec_policy.h"

#include <math.h>
#include <stdlib.h>

#define FEW        4    /* rows that cost little more than one */
#define FEW_SLOPE  0.08 /* of a row more of these, before anything is known */
#define MORE_SLOPE 0.12 /* beside that, of further ones */
#define SURE       0.1  /* error of what is known of a row's price */
#define GAIN_FIRST 0.25 /* of a pair of steps; of the n-th of its rows 1 / (n + 4), then: */
#define GAIN       0.04
#define NEAR       3 /* rows beside those of a step of which it tells too, half as much each on */
#define BASE_GAIN  0.1
#define RUN_GAIN   0.1
#define CLIP       0.7  /* of a logarithm: one hiccup moves little */
#define WORTH      1.03 /* what a window has to promise over none */
#define WEIGHT     4.0F /* guesses that a prior counts for */

void spec_odds_note(struct spec_odds *o, int32_t level, bool held, float fade)
{
    o->hit[level] = o->hit[level] * fade + (held ? 1 : 0);
    o->seen[level] = o->seen[level] * fade + 1;
}

void spec_odds_age(struct spec_odds *o, int32_t level, float fade)
{
    for (; level < QN_ROLLBACK; level++) {
        o->hit[level] *= fade;
        o->seen[level] *= fade;
    }
}

double spec_odds_of(const struct spec_odds *own, const struct spec_odds *all, int32_t level,
                    double prior)
{
    double p = ((double)all->hit[level] + (double)WEIGHT * prior) /
               ((double)all->seen[level] + (double)WEIGHT);
    return ((double)own->hit[level] + (double)WEIGHT * p) /
           ((double)own->seen[level] + (double)WEIGHT);
}

/* ---- cost ----------------------------------------------------------------------------------- */

/* Before anything is known: a few rows are nearly free, more have their price. */
static double first_rows(int32_t rows)
{
    return 1 + FEW_SLOPE * (rows - 1) + (rows > FEW ? MORE_SLOPE * (rows - FEW) : 0);
}

/* Rows of which nothing is known have the shape of the first guess, as steep as at the nearest that
 * are known; little is made of that where those are few, whose price is hard to see. */
double spec_cost_rows(const struct spec_cost *c, int32_t rows)
{
    if (rows <= 1)
        return 1;
    for (int32_t d = 0; d <= rows + SPEC_ROWS; d++) {
        int32_t below = rows - d, above = rows + d;
        int32_t k = below > 1 && below <= SPEC_ROWS && c->f[below] > 0 ? below
                    : above <= SPEC_ROWS && c->f[above] > 0            ? above
                                                                       : 0;
        if (k == rows)
            return c->f[k];
        if (k)
            return 1 + (first_rows(rows) - 1) * (c->f[k] - 1 + SURE) / (first_rows(k) - 1 + SURE);
    }
    return first_rows(rows);
}

static double clipped(double x)
{
    return x < -CLIP ? -CLIP : x > CLIP ? CLIP : x;
}

/* A pair of steps was off by so much, as a logarithm. */
static void learn(struct spec_cost *c, int32_t rows, double off)
{
    if (rows <= 1 || rows > SPEC_ROWS)
        return;
    double gain = fmax(GAIN, GAIN_FIRST / (1 + GAIN_FIRST * (double)c->n[rows]));
    c->f[rows] = spec_cost_rows(c, rows);
    c->n[rows]++;
    for (int32_t d = -NEAR; d <= NEAR; d++) {
        int32_t k = rows + d;
        if (k > 1 && k <= SPEC_ROWS && c->f[k] > 0)
            c->f[k] = fmax(1, c->f[k] * exp(gain * ldexp(off, -abs(d))));
    }
}

void spec_cost_note(struct spec_cost *c, int32_t rows, int64_t us)
{
    double took = us > 0 ? (double)us : 1, ratio = spec_cost_rows(c, rows);
    if (c->base_us <= 0)
        c->base_us = took / ratio;
    if (c->last_rows > 0 && c->last_rows != rows) {
        double was = spec_cost_rows(c, c->last_rows);
        double off = clipped(log(took / c->last_us) - log(ratio / was));
        bool both = rows > 1 && c->last_rows > 1;
        learn(c, rows, both ? off / 2 : off);
        learn(c, c->last_rows, both ? -off / 2 : -off);
    }
    c->base_us *= exp(BASE_GAIN * clipped(log(took / ratio / c->base_us)));
    c->last_rows = rows;
    c->last_us = took;
}

void spec_cost_break(struct spec_cost *c)
{
    c->last_rows = 0;
}

double spec_cost_runs(const struct spec_cost *c, int32_t runs)
{
    return runs > 0 ? c->guess + (runs - 1) * c->more : 0;
}

/* A step towards the line through what calls of different lengths took. */
void spec_cost_guess(struct spec_cost *c, int32_t runs, int64_t us)
{
    if (c->base_us <= 0 || runs < 1)
        return;
    double gain = fmax(RUN_GAIN, 1.0 / (1 + c->n_calls++));
    double took = (double)us / c->base_us, was = spec_cost_runs(c, runs), n = runs - 1;
    if (was <= 0) {
        c->guess = c->more = took / runs;
        return;
    }
    double off = gain * (fmin(took, 2 * was) - was) / (1 + n * n);
    c->guess = fmax(0, c->guess + off);
    c->more = fmax(0, c->more + off * n);
}

bool spec_may_pay(const struct spec_cost *c, int32_t n)
{
    bool pays = false;
    for (int32_t k = 1; k <= n; k++)
        pays |= 1 + k > WORTH * (spec_cost_rows(c, 1 + k) + spec_cost_runs(c, k));
    return pays;
}

/* ---- choice --------------------------------------------------------------------------------- */

static double chance(const struct spec_lane *l)
{
    double q = 1;
    for (int32_t j = 0; j <= l->take; j++)
        q *= l->p[j];
    return q;
}

/* The lane whose next guess is likeliest to be used; -1 = none has more. */
static int32_t likeliest(const struct spec_lane *lanes, int32_t n, double *q)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++) {
        double c = lanes[i].take < lanes[i].n ? chance(&lanes[i]) : 0;
        if (c > 0 && (best < 0 || c > *q)) {
            best = i;
            *q = c;
        }
    }
    return best;
}

/* Guesses come in the order of their chances, so the best windows are a prefix of that order. */
double spec_choose(const struct spec_cost *c, struct spec_lane *lanes, int32_t n,
                   const struct spec_bounds *b)
{
    double made = n, rate = n / (spec_cost_rows(c, n) + b->spent), best = WORTH * rate, q = 0;
    int32_t longest = 0, left = 0, order[SPEC_ROWS], r = 0;
    for (int32_t i = 0; i < n; i++)
        lanes[i].take = 0;
    for (; r < b->rows && r < SPEC_ROWS; r++) {
        int32_t i = likeliest(lanes, n, &q);
        if (i < 0)
            break;
        order[r] = i;
        made += q;
        if (++lanes[i].take > longest)
            longest = lanes[i].take;
        double cost = spec_cost_rows(c, n + r + 1) + b->spent +
                      spec_cost_runs(c, longest < b->runs ? longest : b->runs);
        if (made / cost > best) {
            best = rate = made / cost;
            left = r + 1;
        }
    }
    while (r > left)
        lanes[order[--r]].take--;
    return rate;
}

double spec_least(const struct spec_cost *c, const struct spec_lane *lanes, int32_t n, double rate)
{
    int32_t on = 0, rows = 0;
    double p = 0;
    for (int32_t i = 0; i < n; i++) {
        on += lanes[i].take > 0;
        rows += lanes[i].take;
        for (int32_t j = 0; j < lanes[i].take; j++)
            p += lanes[i].p[j];
    }
    if (rows == 0)
        return 1;
    double row = (spec_cost_rows(c, n + rows) - spec_cost_rows(c, n)) / rows;
    return rate * (c->more / on + row) / (p / rows);
}
