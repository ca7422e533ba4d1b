/*
 * rng.c - see rng.h. SplitMix64 walks an odd increment ("gamma") and hashes each point; here the
 * walk is indexed directly: key = hash(seed, stream), draw = mix(key + counter * gamma).
 */
#include "rng.h"

#include "clock.h"

#include <sys/random.h>
#include <unistd.h>

#define GAMMA 0x9E3779B97F4A7C15u /* 2^64 / golden ratio, odd */

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t counter)
{
    /* Two rounds over the key, so that (seed, stream) and (stream, seed) do not meet. */
    uint64_t key = mix(mix(seed + GAMMA) + (stream + 1) * GAMMA);
    return mix(key + (counter + 1) * GAMMA);
}

double rng_unit(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return (double)(rng_u64(seed, stream, counter) >> 11) * 0x1p-53;
}

uint64_t rng_seed_fresh(void)
{
    uint64_t v;
    if (getrandom(&v, sizeof v, GRND_NONBLOCK) == (ssize_t)sizeof v)
        return v;
    /* Early boot or a sandbox without the call: unpredictable enough for sampling, not for keys. */
    static _Thread_local uint64_t again;
    return rng_u64((uint64_t)clock_ns(), (uint64_t)gettid(), again++);
}
