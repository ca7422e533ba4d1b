/*
 * served.h - the model behind `quern serve`: an engine in this process, or in a child of its own
 * that is started again when it dies (--isolate). Main thread.
 */
#ifndef CLI_SERVED_H
#define CLI_SERVED_H

#include "sched/lm.h"
#include "store/convfile.h"
#include "tmpl/chat.h"
#include "tok/tok.h"

struct lm_remote;

struct served_engine {
    const struct qn_model_info *info;
    const struct tok *tok;
    const struct chat_tmpl *chat; /* NULL = the model has no chat template */
    struct lm lm;
    bool (*up)(void *arg); /* false while a child is being started again; NULL = always up */
    void *up_arg;

    struct qn_engine *engine; /* one of the two */
    struct qn_cache *cache;   /* of the engine here; NULL = none */
    struct lm_remote *remote;
    struct tok *own_tok; /* with a remote engine text stays in this process */
    struct chat_tmpl *own_chat;
};

struct served_params {
    const char *dir;
    int64_t threads, ctx; /* 0 = the engine's choice */
    int64_t cache_bytes;  /* of the prompt cache; 0 = none */
    const char *kv_quant; /* NULL = off */
    const char *disk_dir; /* its tier on disk; NULL = none */
    int64_t disk_bytes, disk_idle_s;
    const char *files_dir; /* of single conversations; NULL = none */
    bool isolate;
    enum qn_mtp_mode mtp;
    enum qn_draft_kind draft_kind;
    const char *draft_model; /* see engine_open.h */
};

/* In the folder of a model's disk cache, and of its conversations, that of the second model that
 * guesses for it: one of its own, as its engine may be another process. */
#define CACHE_DRAFT_DIR CONV_DRAFT_DIR

/* Loads with a progress line. *out is to be closed also on failure. */
enum qn_status served_open(const struct served_params *p, struct served_engine *out,
                           struct qn_err *err);
void served_close(struct served_engine *s); /* {0} is fine; the scheduler is gone by then */

#endif
