/*
 * cmd_engine.c - `quern engine-process`: the child of `quern serve --isolate`. Not for people: it
 * talks to its parent on descriptor LM_REMOTE_FD and ends when that is closed.
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "cli/model_arg.h"
#include "cli/served.h"
#include "cli/verbs.h"
#include "sched/lm_remote.h"
#include "sched/lm_serve.h"

struct engine_opts {
    const char *model, *kv_quant, *disk, *files, *draft_model;
    int64_t ctx, threads, cache, mtp, disk_max, disk_idle, draft_kind;
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
    {.name = "ssd-cache",
     .type = CLI_STR,
     .arg = "DIR",
     .help = "Folder of the prompt cache on disk.",
     .off = CLI_AT_STR(struct engine_opts, disk)},
    {.name = "ssd-cache-max",
     .type = CLI_SIZE,
     .arg = "SIZE",
     .min = 0,
     .max = 1e15,
     .help = "Most that it may take.",
     .off = CLI_AT_SIZE(struct engine_opts, disk_max)},
    {.name = "ssd-cache-idle",
     .type = CLI_INT,
     .arg = "SECONDS",
     .min = 0,
     .max = 8e6,
     .help = "When what nobody uses leaves memory.",
     .off = CLI_AT_INT(struct engine_opts, disk_idle)},
    {.name = "conversations",
     .type = CLI_STR,
     .arg = "DIR",
     .help = "Folder of single conversations.",
     .off = CLI_AT_STR(struct engine_opts, files)},
    {.name = "draft-kind",
     .type = CLI_INT,
     .arg = "N",
     .min = QN_DRAFT_NONE,
     .max = QN_DRAFT_ASSISTANT,
     .help = "Draft model, as enum qn_draft_kind.",
     .off = CLI_AT_INT(struct engine_opts, draft_kind)},
    {.name = "draft-model",
     .type = CLI_STR,
     .arg = "DIR|NAME",
     .help = "Its folder.",
     .off = CLI_AT_STR(struct engine_opts, draft_model)},
    {.type = CLI_END},
};

/* The kernel ends this process with its parent. One that ended before it was asked to has closed
 * its side of the socket already. */
static bool tie_to_parent(void)
{
    char c;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return recv(LM_REMOTE_FD, &c, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

static int run_engine(const struct cli *c, void *opts)
{
    struct qn_err err = {0};
    struct served_engine s = {0};
    struct buf dir = BUF_INIT;
    int type;
    socklen_t n = sizeof type;
    if (getsockopt(LM_REMOTE_FD, SOL_SOCKET, SO_TYPE, &type, &n) != 0)
        return cli_usage(c, "`quern serve --isolate` starts this process; it does nothing alone");
    /* The parent decides when to stop; Ctrl-C reaches both. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    if (!tie_to_parent())
        return CLI_FAILED;
    const struct engine_opts *o = opts;
    enum qn_status st = model_arg_find(o->model, &dir, &err);
    struct served_params p = {.dir = buf_z(&dir),
                              .threads = o->threads,
                              .ctx = o->ctx,
                              .kv_quant = o->kv_quant,
                              .mtp = (enum qn_mtp_mode)o->mtp,
                              .draft_kind = (enum qn_draft_kind)o->draft_kind,
                              .draft_model = o->draft_model,
                              .cache_bytes = o->cache,
                              .disk_dir = o->disk,
                              .disk_bytes = o->disk_max,
                              .disk_idle_s = o->disk_idle,
                              .files_dir = o->files};
    if (st == QN_OK)
        st = served_open(&p, &s, &err);
    if (st == QN_OK)
        st = lm_serve(&s.lm, s.info, LM_REMOTE_FD, &err);
    else
        lm_serve_refuse(LM_REMOTE_FD, &err);
    served_close(&s);
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
