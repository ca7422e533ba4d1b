/*
 * cmd_engine.c - `quern engine-process`: the child of `quern serve --isolate`. Not for people: it
 * talks to its parent on descriptor LM_REMOTE_FD and ends when that is closed.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "cli/engine_open.h"
#include "cli/model_arg.h"
#include "cli/verbs.h"
#include "sched/lm_remote.h"
#include "sched/lm_serve.h"

struct engine_opts {
    const char *model, *kv_quant;
    int64_t ctx, threads, cache, mtp;
};

static const struct cli_opt engine_opts[] = {
    CLI_OPT_MODEL(struct engine_opts),
    CLI_OPT_CTX(struct engine_opts),
    CLI_OPT_THREADS(struct engine_opts),
    {.name = "prompt-cache",
     .type = CLI_SIZE,
     .arg = "SIZE",
     .min = 0,
     .max = 1e15,
     .help = "Memory for the prompt cache.",
     .off = CLI_AT_SIZE(struct engine_opts, cache)},
    CLI_OPT_KV_QUANT(struct engine_opts),
    {.name = "mtp",
     .type = CLI_INT,
     .arg = "N",
     .min = QN_MTP_OFF,
     .max = QN_MTP_BEHIND_NORM,
     .help = "Draft head, as enum qn_mtp_mode.",
     .off = CLI_AT_INT(struct engine_opts, mtp)},
    {.type = CLI_END},
};

static int run_engine(const struct cli *c, void *opts)
{
    struct qn_err err = {0};
    struct qn_engine *e = NULL;
    struct qn_cache *cache = NULL;
    struct buf dir = BUF_INIT;
    int type;
    socklen_t n = sizeof type;
    if (getsockopt(LM_REMOTE_FD, SOL_SOCKET, SO_TYPE, &type, &n) != 0)
        return cli_usage(c, "`quern serve --isolate` starts this process; it does nothing alone");
    /* The parent decides when to stop; Ctrl-C reaches both. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const struct engine_opts *o = opts;
    enum qn_status st = model_arg_find(o->model, &dir, &err);
    if (st == QN_OK)
        st = engine_open(
            buf_z(&dir),
            &(struct engine_args){o->threads, o->ctx, o->kv_quant, (enum qn_mtp_mode)o->mtp}, &e,
            &err);
    const struct qn_cache_params cp = {.bytes = o->cache};
    if (st == QN_OK && o->cache)
        st = qn_cache_create(e, &cp, &cache, &err);
    if (st == QN_OK) {
        struct lm lm = cache ? lm_of_cache(cache) : lm_of_engine(e);
        st = lm_serve(&lm, qn_engine_info(e), LM_REMOTE_FD, &err);
    } else {
        lm_serve_refuse(LM_REMOTE_FD, &err);
    }
    qn_cache_free(cache);
    qn_engine_free(e);
    buf_free(&dir);
    return st == QN_OK ? CLI_OK : CLI_FAILED; /* the parent words it */
}

const struct cli_verb verb_engine = {
    .name = "engine-process",
    .summary = "the engine of quern serve --isolate",
    .usage = "[options]",
    .about = "Started by `quern serve --isolate`: holds the model, so that a fault in it ends this "
             "process and not the server.",
    .examples = "quern serve --isolate",
    .opts = engine_opts,
    .opts_size = sizeof(struct engine_opts),
    .pos_max = 0,
    .pos_name = "argument",
    .hidden = true,
    .run = run_engine,
};
