/* logits.c - see logits.h. */
#include "model/logits.h"

#include <math.h>

int32_t logits_best(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

float logits_best_prob(const float *x, int32_t n, int32_t best)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)expf(x[i] - x[best]);
    return (float)(1 / sum);
}

double logits_log_sum(const float *x, int32_t n)
{
    double m = (double)x[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        m = fmax(m, (double)x[i]);
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - m);
    return m + log(sum);
}
