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

#endif
