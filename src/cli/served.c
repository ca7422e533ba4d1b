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

static enum qn_status open_child(const struct served_params *p, struct served_engine *s,
                                 struct qn_err *err)
{
    char threads[24], ctx[24], cache[24], disk_max[24], disk_idle[24],
        dir_flag[] = "--model", threads_flag[] = "--threads", ctx_flag[] = "--ctx",
        cache_flag[] = "--prompt-cache", kv_flag[] = "--kv-quant", disk_flag[] = "--ssd-cache",
        max_flag[] = "--ssd-cache-max", idle_flag[] = "--ssd-cache-idle", verb[] = "engine-process",
        self[] = "/proc/self/exe";
    static char mtp_flag[] = "--mtp", modes[][2] = {"0", "1", "2", "3"},
                kind_flag[] = "--draft-kind", draft_flag[] = "--draft-model",
                files_flag[] = "--conversations";
    char *argv[29] = {self, verb, dir_flag, (char *)p->dir};
    int n = 4;
    snprintf(threads, sizeof threads, "%lld", (long long)p->threads);
    snprintf(ctx, sizeof ctx, "%lld", (long long)p->ctx);
    if (p->threads) {
        argv[n++] = threads_flag;
        argv[n++] = threads;
    }
    if (p->ctx) {
        argv[n++] = ctx_flag;
        argv[n++] = ctx;
    }
    snprintf(cache, sizeof cache, "%lld", (long long)p->cache_bytes);
    argv[n++] = cache_flag;
    argv[n++] = cache;
    if (p->kv_quant) {
        argv[n++] = kv_flag;
        argv[n++] = (char *)p->kv_quant;
    }
    if (p->mtp != QN_MTP_OFF) {
        argv[n++] = mtp_flag;
        argv[n++] = modes[p->mtp];
    }
    if (p->draft_kind != QN_DRAFT_NONE) {
        argv[n++] = kind_flag;
        argv[n++] = modes[p->draft_kind];
    }
    if (p->draft_model) {
        argv[n++] = draft_flag;
        argv[n++] = (char *)p->draft_model;
    }
    snprintf(disk_max, sizeof disk_max, "%lld", (long long)p->disk_bytes);
    snprintf(disk_idle, sizeof disk_idle, "%lld", (long long)p->disk_idle_s);
    if (p->disk_dir) {
        argv[n++] = disk_flag;
        argv[n++] = (char *)(uintptr_t)p->disk_dir;
        argv[n++] = max_flag;
        argv[n++] = disk_max;
        argv[n++] = idle_flag;
        argv[n++] = disk_idle;
    }
    if (p->files_dir) {
        argv[n++] = files_flag;
        argv[n++] = (char *)(uintptr_t)p->files_dir;
    }
    QN_TRY(lm_remote_open(argv, &s->remote, err)); /* first: it has more to say about a folder */
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
