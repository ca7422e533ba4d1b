/* spec_policy.c - see spec_policy.h. */
#include "sched/spec_policy.h"

#include <math.h>

#define FIRST_SLOPE 0.1 /* of a row more, before anything is known */
#define GAIN        0.3 /* of a pair of steps */
#define BASE_GAIN   0.1
#define CLIP        0.7  /* of a logarithm: one hiccup moves little */
#define WORTH       1.03 /* what a window has to promise over none */
#define WEIGHT      4.0F /* guesses that a prior counts for */

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

/* Rows of which nothing is known cost what their nearest neighbour's rows do, each as much. */
double spec_cost_rows(const struct spec_cost *c, int32_t rows)
{
    if (rows <= 1)
        return 1;
    for (int32_t d = 0; d <= rows + SPEC_ROWS; d++) {
        int32_t below = rows - d, above = rows + d;
        int32_t k = below > 1 && below <= SPEC_ROWS && c->f[below] > 0 ? below
                    : above <= SPEC_ROWS && c->f[above] > 0            ? above
                                                                       : 0;
        if (k)
            return 1 + (c->f[k] - 1) * (rows - 1) / (k - 1);
    }
    return 1 + FIRST_SLOPE * (rows - 1);
}

static double clipped(double x)
{
    return x < -CLIP ? -CLIP : x > CLIP ? CLIP : x;
}

static void learn(struct spec_cost *c, int32_t rows, double by)
{
    if (rows > 1 && rows <= SPEC_ROWS)
        c->f[rows] = fmax(1, spec_cost_rows(c, rows) * exp(by));
}

void spec_cost_note(struct spec_cost *c, int32_t rows, int64_t us)
{
    double took = us > 0 ? (double)us : 1, ratio = spec_cost_rows(c, rows);
    if (c->base_us <= 0)
        c->base_us = took / ratio;
    if (c->last_rows > 0 && c->last_rows != rows) {
        double was = spec_cost_rows(c, c->last_rows);
        double off = GAIN * clipped(log(took / c->last_us) - log(ratio / was));
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

void spec_cost_guess(struct spec_cost *c, int32_t runs, int64_t us)
{
    if (c->base_us <= 0 || runs < 1)
        return;
    double one = (double)us / runs / c->base_us;
    if (c->guess > 0 && one > 2 * c->guess)
        one = 2 * c->guess;
    c->guess = c->guess > 0 ? c->guess + 0.1 * (one - c->guess) : one;
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
void spec_choose(const struct spec_cost *c, struct spec_lane *lanes, int32_t n, int32_t rows,
                 int32_t runs)
{
    double made = n, best = WORTH * n / spec_cost_rows(c, n), q = 0;
    int32_t longest = 0, left = 0, order[SPEC_ROWS];
    for (int32_t i = 0; i < n; i++)
        lanes[i].take = 0;
    rows = rows < SPEC_ROWS ? rows : SPEC_ROWS;
    int32_t r = 0;
    for (; r < rows; r++) {
        int32_t i = likeliest(lanes, n, &q);
        if (i < 0)
            break;
        order[r] = i;
        made += q;
        if (++lanes[i].take > longest)
            longest = lanes[i].take;
        double cost = spec_cost_rows(c, n + r + 1) + (longest < runs ? longest : runs) * c->guess;
        if (made / cost > best) {
            best = made / cost;
            left = r + 1;
        }
    }
    while (r > left)
        lanes[order[--r]].take--;
}
