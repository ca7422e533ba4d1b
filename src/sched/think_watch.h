/*
 * think_watch.h - the budget of reasoning: counts tokens between the text that opens it and the one
 * that closes it, and once they are used up says which tokens have to come instead of drawn ones.
 * One per generation, in the scheduler's thread.
 */
#ifndef SCHED_THINK_WATCH_H
#define SCHED_THINK_WATCH_H

#include "base/str.h"
#include "sched/sched.h"

struct think_watch;

/* p->close must not be empty; everything is copied. */
enum qn_status think_watch_create(const struct gen_thinking *p, int32_t n_vocab,
                                  struct think_watch **out, struct qn_err *err);
void think_watch_free(struct think_watch *w); /* NULL is fine */
/* The only token that may come next, as bits like gram's; NULL = any may. NULL w is fine. */
const uint64_t *think_watch_force(struct think_watch *w);
/* A token has come; piece: the text it made certain, marks included. NULL w is fine. */
void think_watch_push(struct think_watch *w, struct str piece);

#endif
