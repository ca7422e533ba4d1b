/* noise.c - see noise.h. */
#include "bench/noise.h"

#include <math.h>

#include "bench/quantile.h"

#define CHANCE_MAX 0.05
#define USUAL_N    4.0 /* what is usual counts like that many values */

/* The range of n values of a normal distribution over its standard deviation, on average. */
static double range_share(size_t n)
{
    static const struct {
        double n, d;
    } known[] = {{2, 1.128},  {3, 1.693},  {4, 2.059},  {5, 2.326},  {6, 2.534},   {7, 2.704},
                 {8, 2.847},  {9, 2.970},  {10, 3.078}, {15, 3.472}, {20, 3.735},  {25, 3.931},
                 {30, 4.086}, {40, 4.322}, {50, 4.498}, {75, 4.806}, {100, 5.015}, {1000, 6.483}};
    enum { N = sizeof known / sizeof known[0] };
    for (int i = 1; i < N; i++)
        if ((double)n <= known[i].n) {
            double part = ((double)n - known[i - 1].n) / (known[i].n - known[i - 1].n);
            return known[i - 1].d + part * (known[i].d - known[i - 1].d);
        }
    return known[N - 1].d;
}

double noise_of(const struct noise_figure *f)
{
    if (f->n < 2 || !(f->min > 0))
        return (double)NAN;
    return log(f->max / f->min) / range_share(f->n);
}

double noise_usual(const double *v, size_t n)
{
    return n ? fmax(quantile_of(v, n, 0.5), NOISE_OTHER) : NOISE_TIME;
}

/* ---- Student's t ---------------------------------------------------------------------------- */

/* The continued fraction of the incomplete beta function, by Lentz' method. */
static double beta_fraction(double a, double b, double x)
{
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1), f;
    d = 1 / (fabs(d) < tiny ? tiny : d);
    f = d;
    for (int m = 1; m <= 300; m++) {
        double step = 1;
        for (int odd = 0; odd < 2; odd++) {
            double k = odd ? -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
                           : m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
            d = 1 + k * d;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = 1 + k / c;
            c = fabs(c) < tiny ? tiny : c;
            step *= d * c;
            f *= d * c;
        }
        if (fabs(step - 1) < 1e-13)
            break;
    }
    return f;
}

static double beta_share(double a, double b, double x)
{
    if (x <= 0 || x >= 1)
        return x <= 0 ? 0 : 1;
    double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    if (x < (a + 1) / (a + b + 2))
        return front * beta_fraction(a, b, x) / a;
    return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double noise_chance(double t, double freedom)
{
    return beta_share(freedom / 2, 0.5, freedom / (freedom + t * t));
}

/* ---- the rule ------------------------------------------------------------------------------- */

/* Variance of a median of n over that of one value. */
static double median_share(size_t n)
{
    return (n > 2 ? 1.5708 : 1) / (double)n;
}

/* Counts and shares that may be 0 have no logarithm: they differ when they are far apart for how
 * they lie, each measured twice at least. */
static bool apart_from_zero(const struct noise_figure *a, const struct noise_figure *b)
{
    double spread = (a->max - a->min) + (b->max - b->min);
    return a->n > 1 && b->n > 1 && fabs(a->median - b->median) > 2 * spread;
}

bool noise_apart(const struct noise_figure *a, const struct noise_figure *b, double usual,
                 size_t n_test)
{
    if (!a->n || !b->n || !(a->min > b->max || b->min > a->max))
        return false;
    if (!(a->min > 0) || !(b->min > 0))
        return apart_from_zero(a, b);
    const struct noise_figure *const both[2] = {a, b};
    double freedom = USUAL_N, squares = USUAL_N * usual * usual;
    for (int i = 0; i < 2; i++) {
        double sd = noise_of(both[i]);
        if (isfinite(sd)) {
            freedom += (double)(both[i]->n - 1);
            squares += (double)(both[i]->n - 1) * sd * sd;
        }
    }
    double error = sqrt(squares / freedom * (median_share(a->n) + median_share(b->n)));
    double t = fabs(log(a->median / b->median)) / error;
    return noise_chance(t, freedom) * (double)(n_test ? n_test : 1) <= CHANCE_MAX;
}
