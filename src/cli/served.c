/*
 * served.c - see served.h. The child is this very program, run as `quern engine-process`.
 */
#include "cli/served.h"

#include <stdio.h>

#include "base/file.h"
#include "cache/cache_file.h"
#include "cli/engine_open.h"
#include "model/engine.h"
#include "sched/lm_remote.h"

static enum qn_status open_here(const struct served_params *p, struct served_engine *s,
                                struct qn_err *err)
{
    const struct engine_args a = {p->threads, p->ctx,        p->kv_quant,
                                  p->mtp,     p->draft_kind, p->draft_model};
    QN_TRY(engine_open(p->dir, &a, &s->engine, err));
    s->info = qn_engine_info(s->engine);
    s->tok = engine_tok(s->engine);
    s->chat = engine_chat(s->engine);
    s->lm = lm_of_engine(s->engine);
    if (!p->cache_bytes)
        return QN_OK;
    const struct qn_cache_params cp = {.bytes = p->cache_bytes};
    QN_TRY(qn_cache_create(s->engine, &cp, &s->cache, err));
    if (p->disk_dir) {
        const struct qn_disk_params dp = {
            .dir = p->disk_dir, .bytes = p->disk_bytes, .idle_ms = p->disk_idle_s * 1000};
        QN_TRY(qn_cache_disk_open(s->cache, &dp, err));
    }
    if (p->files_dir)
        QN_TRY(pcache_files_open(s->cache, p->files_dir, err));
    s->lm = lm_of_cache(s->cache);
    return QN_OK;
}

static enum qn_status open_text(const char *dir, struct served_engine *s, struct qn_err *err)
{
    struct buf cache = BUF_INIT;
    struct qn_err ignored;
    bool have = cache_dir(&cache, &ignored) == QN_OK;
    enum qn_status st = tok_open(dir, have ? buf_z(&cache) : NULL, &s->own_tok, err);
    buf_free(&cache);
    QN_TRY(st);
    st = chat_tmpl_open(dir, &s->own_chat, err);
    s->tok = s->own_tok;
    s->chat = s->own_chat;
    return st == QN_NOT_FOUND ? QN_OK : st;
}

static bool is_up(void *arg)
{
    return lm_remote_up(arg);
}

/* A child's command line. Flags and texts belong to others; of numbers the text is here. */
struct child_args {
    const char *v[40]; /* the last stays NULL */
    char numbers[10][24];
    int n, n_number;
};

/* Both or, without a value, neither. */
static void arg_text(struct child_args *a, const char *flag, const char *value)
{
    QN_ASSERT(a->n + 3 <= (int)(sizeof a->v / sizeof *a->v));
    if (!value)
        return;
    a->v[a->n++] = flag;
    a->v[a->n++] = value;
}

static void arg_number(struct child_args *a, const char *flag, int64_t value)
{
    QN_ASSERT(a->n_number < (int)(sizeof a->numbers / sizeof *a->numbers));
    char *text = a->numbers[a->n_number++];
    snprintf(text, sizeof *a->numbers, "%lld", (long long)value);
    arg_text(a, flag, text);
}

static void child_args(const struct served_params *p, struct child_args *a)
{
    *a = (struct child_args){.v = {"/proc/self/exe", "engine-process"}, .n = 2};
    arg_text(a, "--model", p->dir);
    if (p->threads)
        arg_number(a, "--threads", p->threads);
    if (p->ctx)
        arg_number(a, "--ctx", p->ctx);
    arg_number(a, "--prompt-cache", p->cache_bytes);
    arg_text(a, "--kv-quant", p->kv_quant);
    if (p->mtp != QN_MTP_OFF)
        arg_number(a, "--mtp", p->mtp);
    if (p->draft_kind != QN_DRAFT_NONE)
        arg_number(a, "--draft-kind", p->draft_kind);
    arg_text(a, "--draft-model", p->draft_model);
    if (p->disk_dir) {
        arg_text(a, "--ssd-cache", p->disk_dir);
        arg_number(a, "--ssd-cache-max", p->disk_bytes);
        arg_number(a, "--ssd-cache-idle", p->disk_idle_s);
    }
    arg_text(a, "--conversations", p->files_dir);
}

static enum qn_status open_child(const struct served_params *p, struct served_engine *s,
                                 struct qn_err *err)
{
    struct child_args args;
    child_args(p, &args);
    QN_TRY(lm_remote_open((char *const *)(uintptr_t)args.v, &s->remote,
                          err)); /* first: it has more to say about a folder */
    QN_TRY(open_text(p->dir, s, err));
    s->info = lm_remote_info(s->remote);
    s->lm = lm_remote_lm(s->remote);
    s->up = is_up;
    s->up_arg = s->remote;
    return QN_OK;
}

enum qn_status served_open(const struct served_params *p, struct served_engine *out,
                           struct qn_err *err)
{
    *out = (struct served_engine){0};
    return p->isolate ? open_child(p, out, err) : open_here(p, out, err);
}

void served_close(struct served_engine *s)
{
    lm_remote_free(s->remote);
    qn_cache_free(s->cache);
    qn_engine_free(s->engine);
    tok_free(s->own_tok);
    chat_tmpl_free(s->own_chat);
    *s = (struct served_engine){0};
}
