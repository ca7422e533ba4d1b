/*
 * engine_open.c - see engine_open.h.
 */
#include "cli/engine_open.h"

#include "cli/progress.h"

enum qn_status engine_open(const char *dir, const struct engine_args *a, struct qn_engine **out,
                           struct qn_err *err)
{
    struct progress line;
    progress_start(&line, "Loading", NULL, 1);
    struct qn_engine_params p = {
        .model_dir = dir,
        .n_thread = (int32_t)a->threads,
        .n_ctx = (int32_t)a->ctx,
        .kv_quant = a->kv_quant,
        .mtp = a->mtp,
        .progress = progress_report,
        .progress_arg = &line,
    };
    enum qn_status st = qn_engine_open(&p, out, err);
    progress_end(&line);
    return st;
}
