/*
 * rng.h - counter-based random numbers: a draw is a pure function of (seed, stream, counter), so a
 * request's text depends on its seed and position only, never on its neighbours.
 * Method: SplitMix64's finalizer over the mixed key (Steele, Lea, Flood 2014).
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t counter);
double rng_unit(uint64_t seed, uint64_t stream, uint64_t counter); /* [0,1), 53 bits */
uint64_t rng_seed_fresh(void); /* unpredictable and different at each call */

#endif
