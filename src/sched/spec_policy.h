/*
 * spec_policy.h - how many guesses a step should verify: what a row more costs, learned from the
 * time steps took, against how often guesses of that sureness held. Only the length of windows
 * depends on it, never a result. The scheduler's thread. Start with {0}.
 */
#ifndef SCHED_SPEC_POLICY_H
#define SCHED_SPEC_POLICY_H

#include "sched/drafter.h"

#define SPEC_ROWS 64 /* rows of a step whose cost is told apart; guesses stop there */

/* How often guesses held, by sureness (or by place in the window), fading with age. */
struct spec_odds {
    float hit[QN_ROLLBACK], seen[QN_ROLLBACK];
};
void spec_odds_note(struct spec_odds *o, int32_t level, bool held, float fade);
/* Levels from `level` on were not looked at: what is known of them loses weight. */
void spec_odds_age(struct spec_odds *o, int32_t level, float fade);
/* Of this answer, leaning on all answers' and those on the prior. */
double spec_odds_of(const struct spec_odds *own, const struct spec_odds *all, int32_t level,
                    double prior);

/* A step of r rows takes base * f[r]; f[1] is 1. f is learned from steps that follow each other
 * with different r, so that a slower machine or a longer context moves base alone. */
struct spec_cost {
    double f[SPEC_ROWS + 1]; /* 0 = not known */
    float n[SPEC_ROWS + 1];  /* times learned from */
    double base_us;          /* 0 = not known */
    /* Times of a call's first run of guessing and of each further one, in steps of one row. */
    double guess, more;
    int32_t n_calls; /* that those are learned from */
    double last_us;
    int32_t last_rows; /* 0 = none to compare with */
};
double spec_cost_rows(const struct spec_cost *c, int32_t rows);
void spec_cost_note(struct spec_cost *c, int32_t rows, int64_t us);
void spec_cost_break(struct spec_cost *c); /* another kind of step came between */
void spec_cost_guess(struct spec_cost *c, int32_t runs, int64_t us);
/* Of so many runs. */
double spec_cost_runs(const struct spec_cost *c, int32_t runs);

/* Whether some window of at most n guesses, each made in a run, would gain if all of them held. */
bool spec_may_pay(const struct spec_cost *c, int32_t n);

/* One answer's guesses: p[j] how likely guess j holds when those before it do. */
struct spec_lane {
    const double *p;
    int32_t n;    /* guesses there are */
    int32_t take; /* of these the step should verify */
};
struct spec_bounds {
    int32_t rows; /* of guesses at most, beside one row for each lane */
    /* Guesses are still to be made, at a run for each of the longest window but never more than
     * this; 0 = they are there. */
    int32_t runs;
    double spent; /* in steps of one row: what guessing took so far, paid whatever is chosen */
};
/* Sets every take so that the step makes most tokens per time, in which guesses that are there are
 * paid for; returns those tokens per step of one row. */
double spec_choose(const struct spec_cost *c, struct spec_lane *lanes, int32_t n,
                   const struct spec_bounds *b);
/* After that, with guesses still to be made, one run for each: how often a lane's guesses have to
 * hold together for one more to be worth its run, which lanes share, and its row, where a step
 * makes `rate` tokens per time. */
double spec_least(const struct spec_cost *c, const struct spec_lane *lanes, int32_t n, double rate);

#endif
