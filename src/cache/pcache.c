/*
 * pcache.c - quern.h's qn_cache: the tree (ptree.h) over an engine's KV memory (kv_parts.h), the
 * draft head's beside it, and the disk behind it.
 */
#include "cache/pcache.h"

#include <stdlib.h>

#include "base/fault.h"
#include "base/file.h"
#include "cache/cache_file.h"
#include "cache/heads.h"
#include "cache/kv_parts.h"
#include "cache/saved.h"
#include "cache/tier.h"
#include "model/engine.h"
#include "model/fingerprint.h"

#define WHERE "cache"

enum { INTERVAL_MIN = 256, INTERVAL_MAX = 4096 };

struct qn_cache {
    struct qn_engine *e;
    struct exec *ex;
    struct ptree *tree;
    struct heads *heads; /* of the draft head; NULL = none */
    double heads_share;  /* of all bytes */
    int64_t bytes_max;
    int32_t interval;
    struct tier *disk;        /* NULL = none */
    struct saved *files;      /* NULL = none */
    struct record_name model; /* none = not known yet */
};

/* ---- life -------------------------------------------------------------------------------------
 */

/* Places to go on from are kept so far apart that they take no more memory than the tokens between
 * them. */
static int32_t choose_interval(const struct qn_cache *c)
{
    int64_t end = kv_end_bytes(c->ex), token = kv_full_token_bytes(c->ex);
    int64_t n = token > 0 ? end / token : INTERVAL_MAX;
    n = n < INTERVAL_MIN ? INTERVAL_MIN : n > INTERVAL_MAX ? INTERVAL_MAX : n;
    return (int32_t)(n + 63) / 64 * 64;
}

/* The draft head's part of the bytes: what a line takes there, of what it takes in all. */
static double choose_share(const struct qn_cache *c)
{
    struct exec *ex = engine_mtp_exec(c->e);
    if (!ex)
        return 0;
    double model = (double)kv_full_token_bytes(c->ex) * c->interval + (double)kv_end_bytes(c->ex);
    double head = (double)kv_full_token_bytes(ex) * c->interval +
                  (double)engine_mtp_width(c->e) * (double)sizeof(float);
    return head / (head + model);
}

enum qn_status qn_cache_create(struct qn_engine *e, const struct qn_cache_params *p,
                               struct qn_cache **out, struct qn_err *err)
{
    if (p->bytes < 0 || p->interval < 0)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "a prompt cache of %lld bytes, with an interval of %d tokens; expected 0 or more",
                (long long)p->bytes, p->interval);
    struct qn_cache *c = fault_point("cache.alloc") ? NULL : calloc(1, sizeof *c);
    if (!c)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory");
    c->e = e;
    c->ex = engine_exec(e);
    c->bytes_max = p->bytes;
    c->interval = p->interval ? p->interval : choose_interval(c);
    c->heads_share = choose_share(c);
    int64_t for_heads = (int64_t)((double)p->bytes * c->heads_share);
    enum qn_status st = ptree_create(&kv_parts_ops, c->ex, p->bytes - for_heads, &c->tree, err);
    if (st == QN_OK)
        st = heads_create(e, for_heads, &c->heads, err);
    if (st != QN_OK) {
        qn_cache_free(c);
        return st;
    }
    *out = c;
    return QN_OK;
}

void qn_cache_free(struct qn_cache *c)
{
    if (!c)
        return;
    saved_close(c->files);
    tier_close(c->disk);
    heads_free(c->heads);
    ptree_free(c->tree);
    free(c);
}

struct qn_engine *qn_cache_engine(const struct qn_cache *c)
{
    return c->e;
}

struct ptree *pcache_tree(struct qn_cache *c)
{
    return c->tree;
}

struct exec *pcache_exec(const struct qn_cache *c)
{
    return c->ex;
}

int32_t qn_cache_interval(const struct qn_cache *c)
{
    return c->interval;
}

int32_t qn_cache_reach(const struct qn_cache *c)
{
    if (kv_state_bytes(c->ex))
        return 0;
    return kv_end_bytes(c->ex) ? QN_ROLLBACK : INT32_MAX;
}

/* ---- use --------------------------------------------------------------------------------------
 */

enum qn_status qn_cache_seq(struct qn_cache *c, const struct qn_line *line, struct qn_seq **out,
                            int32_t *n_match, struct qn_err *err)
{
    struct ptree_line l = {line->ns, line->ids, line->n_ids};
    struct ptree_found f;
    struct kv_seq *kv;
    ptree_find(c->tree, &l, l.n > 0 ? l.n - 1 : 0, &f);
    if (n_match)
        *n_match = f.n_match;
    struct kv_chain chain = kv_parts_chain(f.parts, f.n_part);
    if (f.n_usable)
        QN_TRY(kv_seq_from(c->ex, &chain, f.n_usable, &kv, err));
    else
        QN_TRY(kv_seq_create(c->ex, &kv, err));
    QN_TRY(engine_seq_wrap(c->e, kv, out, err));
    heads_resume(c->heads, line, *out);
    return QN_OK;
}

enum qn_status qn_cache_keep(struct qn_cache *c, const struct qn_line *line, struct qn_seq *s,
                             struct qn_err *err)
{
    if (line->n_ids != qn_seq_len(s))
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%d tokens to keep of a sequence that holds %d",
                line->n_ids, qn_seq_len(s));
    if (!c->bytes_max)
        return QN_OK;
    struct ptree_line l = {line->ns, line->ids, line->n_ids};
    heads_keep(c->heads, line, s);
    return ptree_keep(c->tree, &l, engine_seq_kv(s), err);
}

void qn_cache_trim(struct qn_cache *c, int64_t bytes)
{
    bool all = bytes < c->bytes_max;
    heads_trim(c->heads, all ? (int64_t)((double)bytes * c->heads_share) : INT64_MAX);
    if (all)
        ptree_trim(c->tree, bytes - heads_bytes_idle(c->heads));
    else
        ptree_settle(c->tree);
}

/* ---- the disk ---------------------------------------------------------------------------------
 */

/* The fingerprint, once; memo: the file where sums of weights are remembered. */
static enum qn_status know_model(struct qn_cache *c, const char *memo, struct qn_err *err)
{
    if (!record_name_none(&c->model))
        return QN_OK;
    enum qn_status st = model_fingerprint(c->e, memo, c->model.b, err);
    if (st != QN_OK)
        c->model = (struct record_name){{0}};
    return st;
}

static enum qn_status memo_path(const char *dir, struct buf *out, struct qn_err *err)
{
    path_join(out, dir, "weights");
    return buf_ok(out, "a path", err);
}

/* A line for people. */
static void about_model(const struct qn_cache *c, struct buf *out)
{
    const struct qn_model_info *info = qn_engine_info(c->e);
    buf_addf(out, "%s (%s, %lld bytes a token)", info->name, info->family,
             (long long)info->kv_token_bytes);
}

/* The trees that go to files, with a line about each; how many. */
static enum qn_status describe(struct qn_cache *c, const char *memo, struct tier_tree t[TIER_SIDES],
                               int32_t *n, struct buf about[TIER_SIDES], struct qn_err *err)
{
    const struct qn_model_info *info = qn_engine_info(c->e);
    QN_TRY(know_model(c, memo, err));
    t[TIER_MODEL] = (struct tier_tree){.ex = c->ex, .tree = c->tree, .model = c->model};
    about_model(c, &about[TIER_MODEL]);
    if (c->heads) {
        t[TIER_HEAD] = heads_tree(c->heads);
        buf_addf(&about[TIER_HEAD], "draft head of %s (%lld bytes a token)", info->name,
                 (long long)kv_full_token_bytes(t[TIER_HEAD].ex));
        QN_TRY(model_head_fingerprint(c->e, c->model.b, memo, t[TIER_HEAD].model.b, err));
    }
    *n = c->heads ? 2 : 1;
    for (int32_t i = 0; i < *n; i++) {
        QN_TRY(buf_ok(&about[i], "a line", err));
        t[i].about = buf_str(&about[i]);
    }
    return QN_OK;
}

enum qn_status qn_cache_disk_open(struct qn_cache *c, const struct qn_disk_params *p,
                                  struct qn_err *err)
{
    if (c->disk || !p->dir || !*p->dir || p->bytes < 0 || p->idle_ms < 0 ||
        p->idle_ms > QN_DISK_IDLE_MS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "a disk cache needs a folder, once, and a size and a time of 0 or more");
    struct tier_params tp = {.dir = p->dir, .max_bytes = p->bytes, .idle_us = p->idle_ms * 1000};
    struct buf memo = BUF_INIT, about[TIER_SIDES] = {BUF_INIT, BUF_INIT};
    QN_TRY(dir_make(p->dir, err));
    enum qn_status st = memo_path(p->dir, &memo, err);
    if (st == QN_OK)
        st = describe(c, buf_z(&memo), tp.trees, &tp.n_tree, about, err);
    for (int i = 0; st == QN_OK && i < tp.n_tree; i++) { /* the folder's file has a line of it */
        buf_addc(&about[i], '\n');
        tp.trees[i].about = buf_str(&about[i]);
        st = buf_ok(&about[i], "a line", err);
    }
    if (st == QN_OK)
        st = tier_open(&tp, &c->disk, err);
    buf_free(&memo);
    for (int i = 0; i < TIER_SIDES; i++)
        buf_free(&about[i]);
    return st;
}

int32_t qn_cache_tick(struct qn_cache *c, bool busy)
{
    return c->disk ? tier_tick(c->disk, busy) : 0;
}

bool qn_cache_loading(struct qn_cache *c, const struct qn_line *line)
{
    struct ptree_line l = {line->ns, line->ids, line->n_ids > 0 ? line->n_ids - 1 : 0};
    struct ptree_found f;
    if (!c->disk || !c->bytes_max)
        return false;
    if (tier_loading(c->disk, TIER_MODEL, &l))
        return true;
    if (!c->heads)
        return false;
    ptree_peek(c->tree, &l, &f); /* where the sequence will begin */
    return heads_loading(c->heads, c->disk, line, f.n_usable);
}

bool qn_cache_flush(struct qn_cache *c, bool begin, struct qn_cache_flush *out)
{
    struct tier_flush f = {0};
    if (c->disk && !tier_flush(c->disk, begin, &f))
        return false;
    *out = (struct qn_cache_flush){.nodes = f.nodes,
                                   .tokens = f.tokens,
                                   .durable_nodes = f.durable_nodes,
                                   .durable_tokens = f.durable_tokens};
    memcpy(out->error, f.error, sizeof out->error);
    return true;
}

/* ---- files of single conversations ------------------------------------------------------------
 */

enum qn_status pcache_files_open(struct qn_cache *c, const char *dir, struct qn_err *err)
{
    if (c->files || !c->bytes_max)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "files of conversations need a prompt cache of more than 0 bytes, once");
    struct saved_params sp = {.dir = dir, .n_ctx = qn_engine_info(c->e)->n_ctx};
    struct buf memo = BUF_INIT, about[TIER_SIDES] = {BUF_INIT, BUF_INIT};
    sp.limits[TIER_HEAD] = (int64_t)((double)c->bytes_max * c->heads_share);
    sp.limits[TIER_MODEL] = c->bytes_max - sp.limits[TIER_HEAD];
    QN_TRY(conv_folder(dir, err));
    enum qn_status st = memo_path(dir, &memo, err);
    if (st == QN_OK)
        st = describe(c, buf_z(&memo), sp.trees, &sp.n_tree, about, err);
    if (st == QN_OK)
        st = saved_open(&sp, &c->files, err);
    buf_free(&memo);
    for (int i = 0; i < TIER_SIDES; i++)
        buf_free(&about[i]);
    return st;
}

bool pcache_has_files(const struct qn_cache *c)
{
    return c->files != NULL;
}

const uint8_t *pcache_fingerprint(const struct qn_cache *c)
{
    return record_name_none(&c->model) ? NULL : c->model.b;
}

bool pcache_file(struct qn_cache *c, const struct cache_file_ask *ask, struct cache_file_told *out)
{
    if (c->files)
        return saved_run(c->files, ask, out);
    *out = (struct cache_file_told){0};
    err_set(&out->err, QN_UNSUPPORTED, WHERE, "no folder for files of conversations is open");
    return true;
}

static void disk_stats(const struct qn_cache *c, struct qn_disk_stats *out)
{
    struct tier_stats s;
    if (!c->disk)
        return;
    tier_stats(c->disk, &s);
    *out = (struct qn_disk_stats){
        .on = true,
        .records = s.store.records,
        .bytes = s.store.bytes,
        .bytes_max = s.store.max_bytes,
        .tokens = s.known_tokens,
        .queued_bytes = s.store.queued_bytes,
        .written = s.store.written,
        .written_bytes = s.store.written_bytes,
        .failed = s.store.failed,
        .damaged = s.store.damaged,
        .evicted = s.store.evicted,
        .restores = s.restores,
        .restored_tokens = s.restored_tokens,
        .demoted_tokens = s.demoted_tokens,
        .restored_bytes = s.store.read_bytes,
        .restore_us = s.restore_us,
        .restored_draft_tokens = s.restored_rows,
    };
}

void qn_cache_stats(const struct qn_cache *c, struct qn_cache_stats *out)
{
    struct ptree_stats s;
    ptree_stats(c->tree, &s);
    *out = (struct qn_cache_stats){
        .bytes = kv_bytes_idle(c->ex) + heads_bytes_idle(c->heads),
        .bytes_max = c->bytes_max,
        .nodes = s.n_node,
        .tokens = s.n_token,
        .lookups = s.lookups,
        .hits = s.hits,
        .asked_tokens = s.asked,
        .reused_tokens = s.found,
        .kept_tokens = s.kept,
        .evicted_tokens = s.evicted,
        .thinned = s.thinned,
        .failed_keeps = s.lost,
    };
    disk_stats(c, &out->disk);
}
