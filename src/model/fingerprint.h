/*
 * fingerprint.h - what a model's KV memory depends on, as one number: two engines with the same
 * fingerprint compute the same bits for the same tokens and lay them out alike.
 */
#ifndef MODEL_FINGERPRINT_H
#define MODEL_FINGERPRINT_H

#include <stdint.h>

#include "quern.h"

/* Changes whenever the same model gives other bits: whoever changes arithmetic, raises it
 * (docs/numerics.md). */
enum { FINGERPRINT_NUMERICS = 1 };

/* SHA-256 over the weights' bytes, config.json, tokenizer.json, the layout of KV memory and the
 * arithmetic. Reads all weights; sums that were taken before are remembered in the file `memo`
 * (NULL: nowhere) for as long as a file's identity, size and times stay what they were. */
enum qn_status model_fingerprint(const struct qn_engine *e, const char *memo, uint8_t out[32],
                                 struct qn_err *err);
/* The same of the draft head's or block drafter's memory (engine_mtp_exec is not NULL): over the
 * model's fingerprint, what is loaded and from where, which state of the model it takes, and the
 * layout. */
enum qn_status model_head_fingerprint(const struct qn_engine *e, const uint8_t model[32],
                                      const char *memo, uint8_t out[32], struct qn_err *err);

#endif
