/*
 * scripted_lm.h - a language model whose answers the prompt itself dictates, for tests of
 * everything above it. Deterministic: the logits are a function of the sequence's tokens, so that
 * batches, chunks and seeds behave as with a real model.
 *
 * It reads the last directive of the form [[KEY=VALUE;...]] in the prompt (one token per byte):
 *   ids=1,2,3    the answer, token by token, then EOS
 *   delay=US     sleep per generated token          pdelay=US    sleep per step that reads a prompt
 *   fail=N       the step for answer token N fails  nan=N        its logits are NaN
 * Without ids every logit is a pseudo-random function of the last three tokens, and only printable
 * one-byte tokens have a chance.
 */
#ifndef TESTS_SCRIPTED_LM_H
#define TESTS_SCRIPTED_LM_H

#include "sched/lm.h"
#include "tok/tok.h"

struct scripted_lm;

/* tok: one token per ASCII byte of a prompt. Borrowed. */
struct scripted_lm *scripted_lm_create(const struct tok *tok, int32_t n_vocab, int32_t n_ctx,
                                       int32_t eos);
void scripted_lm_free(struct scripted_lm *m);
struct lm scripted_lm_as(struct scripted_lm *m);

#endif
