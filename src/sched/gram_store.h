/*
 * gram_store.h - what all requests of one model share about constrained output: its vocabulary as
 * gram wants it (made at the first use) and the grammars compiled lately, so that the next request
 * with the same schema finds its states and masks already known. Any thread.
 */
#ifndef SCHED_GRAM_STORE_H
#define SCHED_GRAM_STORE_H

#include "gram/gram.h"
#include "tok/tok.h"

struct gram_store;

/* tok is borrowed for the store's life; n_vocab: of the model's logits. NULL: out of memory. */
struct gram_store *gram_store_create(const struct tok *tok, int32_t n_vocab);
void gram_store_free(struct gram_store *s); /* NULL is fine; what was given out lives on */

/* A reference of the vocabulary. */
enum qn_status gram_store_vocab(struct gram_store *s, struct gram_vocab **out, struct qn_err *err);
/* A reference of the compiled grammar; see gram_compile. */
enum qn_status gram_store_get(struct gram_store *s, const struct gram_spec *spec, struct gram **out,
                              struct gram_fault *fault, struct qn_err *err);

#endif
