/* guess_stop.c - see guess_stop.h. */
#include "model/guess_stop.h"

#include "quern.h"

int32_t guess_level(float p)
{
    static const float from[QN_MTP_LEVELS] = {0, 0.2F, 0.4F, 0.6F, 0.75F, 0.85F, 0.93F, 0.98F};
    int32_t l = 0;
    while (l + 1 < QN_MTP_LEVELS && p >= from[l + 1])
        l++;
    return l;
}

bool guess_goes_on(const float *odds, float least, const float *probs, int32_t n)
{
    float all = 1;
    for (int32_t i = 0; odds && i < n; i++)
        all *= odds[guess_level(probs[i])];
    return !odds || all >= least;
}
