/*
 * engine_open.c - see engine_open.h.
 */
#include "cli/engine_open.h"

#include "cli/model_arg.h"
#include "cli/progress.h"

enum qn_status engine_open(const char *dir, const struct engine_args *a, struct qn_engine **out,
                           struct qn_err *err)
{
    struct progress line;
    struct buf draft = BUF_INIT;
    if (a->draft_kind != QN_DRAFT_NONE) {
        if (!a->draft_model)
            QN_FAIL(err, QN_BAD_INPUT, "draft model",
                    "this --draft-kind needs --draft-model: the folder of a draft model made for "
                    "%s",
                    dir);
        enum qn_status found = model_arg_find(a->draft_model, &draft, err);
        if (found != QN_OK) {
            buf_free(&draft);
            return found;
        }
    }
    progress_start(&line, "Loading", NULL, 1);
    struct qn_engine_params p = {
        .model_dir = dir,
        .n_thread = (int32_t)a->threads,
        .n_ctx = (int32_t)a->ctx,
        .kv_quant = a->kv_quant,
        .mtp = a->mtp,
        .draft_kind = a->draft_kind,
        .draft_dir = a->draft_kind != QN_DRAFT_NONE ? buf_z(&draft) : NULL,
        .progress = progress_report,
        .progress_arg = &line,
    };
    enum qn_status st = qn_engine_open(&p, out, err);
    progress_end(&line);
    buf_free(&draft);
    return st;
}
