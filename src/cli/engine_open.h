/*
 * engine_open.h - loads a model with a progress line, for every verb that answers with one. Main
 * thread.
 */
#ifndef CLI_ENGINE_OPEN_H
#define CLI_ENGINE_OPEN_H

#include "base/err.h"

/* What verbs let people choose. threads and ctx 0 = the engine's choice; kv_quant NULL = off. */
struct engine_args {
    int64_t threads, ctx;
    const char *kv_quant;
    enum qn_mtp_mode mtp;
    enum qn_draft_kind draft_kind;
    const char *draft_model; /* of draft_kind, as people wrote it */
};
/* Free *out with qn_engine_free. */
enum qn_status engine_open(const char *dir, const struct engine_args *a, struct qn_engine **out,
                           struct qn_err *err);

#endif
