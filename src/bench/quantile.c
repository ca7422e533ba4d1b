/* quantile.c - see quantile.h. */
#include "bench/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double *sorted(const double *v, size_t n)
{
    double *s = n ? malloc(n * sizeof *s) : NULL;
    if (s) {
        memcpy(s, v, n * sizeof *s);
        qsort(s, n, sizeof *s, by_value);
    }
    return s;
}

static double quantile_sorted(const double *s, size_t n, double q)
{
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;
    if (i + 1 >= n)
        return s[n - 1];
    return s[i] + (at - (double)i) * (s[i + 1] - s[i]);
}

double quantile_of(const double *v, size_t n, double q)
{
    double *s = sorted(v, n);
    double x = s ? quantile_sorted(s, n, q) : (double)NAN;
    free(s);
    return x;
}

struct spread spread_of(const double *v, size_t n)
{
    struct spread r = {.n = n, .stable = true};
    double *s = sorted(v, n), sum = 0;
    if (!s)
        return r;
    r.median = quantile_sorted(s, n, 0.5);
    r.min = s[0];
    r.max = s[n - 1];
    for (size_t i = 0; i < n; i++)
        sum += s[i];
    r.mean = sum / (double)n;
    r.stable = n < 2 || r.max <= STABLE_RATIO * r.min;
    for (size_t i = 0; i < n; i++)
        s[i] = fabs(s[i] - r.median);
    qsort(s, n, sizeof *s, by_value);
    r.mad = quantile_sorted(s, n, 0.5);
    free(s);
    return r;
}

double fairness_of(const double *v, size_t n)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        sum += v[i];
        squares += v[i] * v[i];
    }
    return squares > 0 ? sum * sum / ((double)n * squares) : (double)NAN;
}

bool series_add(struct series *s, double x)
{
    if (isnan(x))
        return true;
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 16;
        double *v = realloc(s->v, cap * sizeof *v);
        if (!v)
            return false;
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = x;
    return true;
}

void series_free(struct series *s)
{
    free(s->v);
    *s = (struct series){0};
}
