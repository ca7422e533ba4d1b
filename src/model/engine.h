/*
 * engine.h - what neighbours inside the project may see of an engine beyond quern.h.
 */
#ifndef MODEL_ENGINE_H
#define MODEL_ENGINE_H

#include "quern.h"

struct tok;
struct chat_tmpl;

/* NULL when the engine was opened with weights_only. Live as long as the engine. */
const struct tok *engine_tok(const struct qn_engine *e);
/* NULL when the folder has no chat template. */
const struct chat_tmpl *engine_chat(const struct qn_engine *e);

/* What a cache of prefixes works with: the engine's memory, a sequence's, and a sequence around
 * memory (taken, also on failure). */
struct exec;
struct kv_seq;
struct exec *engine_exec(const struct qn_engine *e);
struct kv_seq *engine_seq_kv(const struct qn_seq *s);
enum qn_status engine_seq_wrap(struct qn_engine *e, struct kv_seq *kv, struct qn_seq **out,
                               struct qn_err *err);

/* The same of the draft head (quern.h: qn_mtp). Its memory has a row for each token but the first:
 * row p takes the model's state at p and token p+1. */
struct exec *engine_mtp_exec(const struct qn_engine *e); /* NULL = no head */
int32_t engine_mtp_width(const struct qn_engine *e);     /* floats of a state */
struct kv_seq *engine_mtp_kv(const struct qn_mtp *m);
/* Rows made of the model's states; -1 when some were left out in between. */
int32_t engine_mtp_rows(const struct qn_mtp *m);
/* The state at a position; false = it is not held. */
bool engine_mtp_state(const struct qn_mtp *m, int32_t pos, float *state);
/* A context for seq, which has none, that goes on behind the rows in kv (taken, also on failure).
 * state: of the token behind them where seq holds it already; else NULL. */
enum qn_status engine_mtp_resume(struct qn_seq *seq, struct kv_seq *kv, const float *state,
                                 struct qn_err *err);
/* A context for dst as src's is; nothing without one. dst is src's fork at its end. */
enum qn_status engine_mtp_fork(struct qn_seq *src, struct qn_seq *dst, struct qn_err *err);

#endif
