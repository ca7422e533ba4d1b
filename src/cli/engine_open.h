/*
 * engine_open.h - loads a model with a progress line, for every verb that answers with one. Main
 * thread.
 */
#ifndef CLI_ENGINE_OPEN_H
#define CLI_ENGINE_OPEN_H

#include "base/err.h"

/* threads and ctx 0 = the engine's choice. Free *out with qn_engine_free. */
enum qn_status engine_open(const char *dir, int64_t threads, int64_t ctx, struct qn_engine **out,
                           struct qn_err *err);

#endif
