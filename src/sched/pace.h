/*
 * pace.h - how many prompt tokens a step may read so that running answers do not stall. It learns
 * from the time that steps took. Only the size of chunks depends on it, never a result. The
 * scheduler's thread. Start with {0}.
 */
#ifndef SCHED_PACE_H
#define SCHED_PACE_H

#include <stdbool.h>
#include <stdint.h>

#define PACE_LANES 64 /* answers told apart; more count as so many */

struct pace {
    double plain_us[PACE_LANES + 1]; /* a step of n answers and no prompt; 0 = not yet known */
    double beside;                   /* prompt tokens beside answers, as found to be right */
    double alone_us;                 /* a prompt token of a step without answers; 0 = not known */
    int32_t mixed;                   /* steps with both since one without prompt tokens */
    /* A prompt token behind x others costs 1 + steep * x times the first: the slope of what tokens
     * cost, of fading sums over mixed steps. beside is meant at x = 0. */
    double steep;
    int32_t depth; /* of the last mixed step */
    struct {
        double n, x, y, xx, xy;
    } seen;
};

/* Prompt tokens for the next step beside n_decode answers, 0..most, of a prompt of which `depth`
 * tokens were read. 0: this step is to be taken without any, to see what that costs. */
int32_t pace_rows(const struct pace *p, int32_t n_decode, int32_t depth, int32_t most);
/* What a step took. */
struct pace_step {
    int32_t n_decode, n_prompt, depth;
    int64_t us;
};
void pace_note(struct pace *p, const struct pace_step *s);

#endif
