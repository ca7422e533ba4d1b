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

#endif
