/*
 * guess_stop.h - where a chain of guesses ends before it is as long as was wanted: guessing one
 * more costs a run, which is not worth it behind guesses that are unlikely to hold together. Pure
 * functions, any thread.
 */
#ifndef MODEL_GUESS_STOP_H
#define MODEL_GUESS_STOP_H

#include <stdbool.h>
#include <stdint.h>

/* The level of a probability, 0..QN_MTP_LEVELS-1 (quern.h says where they begin). */
int32_t guess_level(float p);
/* Whether n guesses of these probabilities hold together at least `least` of the time, where those
 * of level l do odds[l] of it. odds NULL: true. */
bool guess_goes_on(const float *odds, float least, const float *probs, int32_t n);

#endif
