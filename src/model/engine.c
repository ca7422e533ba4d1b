/*
 * engine.c - quern.h on top of a family and an exec: opening a folder, sequences, steps.
 */
#include "model/engine.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/pool.h"
#include "exec/kv.h"
#include "model/engine_int.h"
#include "model/kv_format.h"
#include "model/loader.h"
#include "tmpl/chat.h"
#include "tok/tok.h"

enum { CONFIG_MAX = 16 << 20 };

struct qn_checkpoint {
    struct qn_engine *e;
    struct kv_prefix *kv;
};

/* ---- opening ----------------------------------------------------------------------------------
 */

enum qn_status engine_json(const char *dir, const char *name, struct json **out, struct qn_err *err)
{
    return json_load(dir, name, CONFIG_MAX, out, err);
}

static enum qn_status find_family(struct qn_engine *e, struct qn_err *err)
{
    struct str type = json_str(json_get(e->cfg, "model_type"));
    e->model.family = type.p ? family_find(type) : NULL;
    if (e->model.family)
        return QN_OK;
    struct buf known = BUF_INIT;
    family_list(&known);
    enum qn_status st =
        type.p ? err_set(err, QN_UNSUPPORTED, "engine",
                         "config.json: model_type \"" STR_FMT "\" is not supported; known are %s",
                         STR_ARG(type), buf_z(&known))
               : err_set(err, QN_BAD_INPUT, "engine", "config.json: model_type is missing");
    buf_free(&known);
    return st;
}

static void eos_add(struct qn_engine *e, int64_t id)
{
    if (id < 0 || id >= e->info.n_vocab || e->info.n_eos == EOS_MAX)
        return;
    for (int32_t i = 0; i < e->info.n_eos; i++)
        if (e->eos[i] == id)
            return;
    e->eos[e->info.n_eos++] = (int32_t)id;
}

static void eos_add_json(struct qn_engine *e, const struct json *v)
{
    int64_t id;
    if (json_i64(v, &id))
        eos_add(e, id);
    for (size_t i = 0; i < json_len(v); i++)
        if (json_i64(json_at(v, i), &id))
            eos_add(e, id);
}

/* generation_config.json's eos_token_id, else config.json's, and the tokenizer's own. */
static enum qn_status collect_eos(struct qn_engine *e, const char *dir, struct qn_err *err)
{
    struct json *gen = NULL;
    struct qn_err missing;
    enum qn_status st = engine_json(dir, "generation_config.json", &gen, &missing);
    if (st != QN_OK && st != QN_NOT_FOUND) {
        if (err)
            *err = missing;
        return st;
    }
    const struct json *ids = json_get(gen, "eos_token_id");
    if (!json_has(gen, "eos_token_id"))
        ids = json_get(e->cfg, "eos_token_id");
    eos_add_json(e, ids);
    if (e->tok)
        eos_add(e, tok_eos(e->tok));
    json_free(gen);
    e->info.eos_ids = e->eos;
    return QN_OK;
}

static enum qn_status open_text(struct qn_engine *e, const char *dir, struct qn_err *err)
{
    struct buf cache = BUF_INIT;
    struct qn_err ignored;
    bool have = cache_dir(&cache, &ignored) == QN_OK;
    enum qn_status st = tok_open(dir, have ? buf_z(&cache) : NULL, &e->tok, err);
    buf_free(&cache);
    QN_TRY(st);
    st = chat_tmpl_open(dir, &e->chat, err);
    return st == QN_NOT_FOUND ? QN_OK : st;
}

static enum qn_status load_weights(struct qn_engine *e, const struct qn_engine_params *p,
                                   struct qn_err *err)
{
    struct st *st = NULL;
    struct loader *l = NULL;
    QN_TRY(st_open(p->model_dir, &st, err));
    enum qn_status s = loader_create(e->ex, st, e->cfg, &l, err);
    if (s == QN_OK) {
        loader_progress(l, p->progress, p->progress_arg);
        s = e->model.family->load(&e->model, l, err);
    }
    if (s == QN_OK)
        s = loader_done(l, err);
    if (s == QN_OK) {
        struct loader_totals t;
        loader_totals(l, &t);
        e->info.n_param = t.n_param;
        e->info.weight_bytes = t.packed_bytes;
        e->info.step_bytes = t.step_bytes;
        e->info.bits_per_weight = t.n_param ? 8.0 * (double)t.stored_bytes / (double)t.n_param : 0;
    }
    loader_free(l);
    exec_quiesce(e->ex); /* a late thread may still read the mapped files */
    st_free(st);
    return s;
}

static enum qn_status choose_context(struct qn_engine *e, const struct qn_engine_params *p,
                                     struct qn_err *err)
{
    int32_t max = e->model.n_ctx_max;
    if (p->n_ctx < 0 || p->n_ctx > max)
        QN_FAIL(err, QN_BAD_INPUT, "engine",
                "context of %d tokens; this model has max_position_embeddings %d", p->n_ctx, max);
    e->info.n_ctx = p->n_ctx ? p->n_ctx : max;
    return QN_OK;
}

static enum qn_status open_exec(struct qn_engine *e, const struct qn_engine_params *p,
                                struct qn_err *err)
{
    if (p->kv_budget_bytes < 0)
        QN_FAIL(err, QN_BAD_INPUT, "engine",
                "KV budget of %lld bytes; expected 0 (no limit) or more",
                (long long)p->kv_budget_bytes);
    int32_t cpus = cpu_count() < POOL_THREAD_MAX ? cpu_count() : POOL_THREAD_MAX;
    struct exec_params x = {.n_thread = p->n_thread ? p->n_thread : cpus,
                            .reference = p->arith == QN_ARITH_REFERENCE,
                            .max_rows = MAX_ROWS,
                            .n_ctx = e->info.n_ctx,
                            .kv_budget_bytes = p->kv_budget_bytes};
    QN_TRY(cpu_isa_parse(p->isa, &x.isa, err));
    QN_TRY(exec_create(&x, &e->ex, err));
    e->model.ex = e->ex;
    e->info.n_thread = x.n_thread;
    e->info.isa = x.reference ? "reference" : cpu_isa_name(x.isa);
    e->info.arith = x.reference ? "reference" : "canonical";
    return QN_OK;
}

_Static_assert(sizeof(((struct qn_engine *)0)->kv_format) == KV_FORMAT_ID_MAX,
               "room for the id of a KV format");

static enum qn_status setup_kv(struct qn_engine *e, const struct qn_engine_params *p,
                               struct qn_err *err)
{
    const struct model *m = &e->model;
    struct kv_format f = {0};
    struct kv_format_in in = {.spec = p->kv_quant,
                              .dir = p->model_dir,
                              .layers = m->kv,
                              .n = m->n_kv ? m->n_kv : m->n_layer,
                              .n_model = m->n_layer,
                              .reference = p->arith == QN_ARITH_REFERENCE};
    QN_TRY(kv_format_resolve(&in, &f, err));
    memcpy(e->kv_format, f.id, sizeof e->kv_format);
    e->info.kv_format = e->kv_format;
    enum qn_status st = kv_setup(e->ex, f.layers, in.n, err);
    kv_format_free(&f);
    return st;
}

/* The folder's own name, also where the path says "." or "..". */
static enum qn_status set_name(struct qn_engine *e, const char *dir, struct qn_err *err)
{
    struct str base = path_base(dir);
    char *real = str_eqz(base, ".") || str_eqz(base, "..") ? realpath(dir, NULL) : NULL;
    if (real)
        base = path_base(real);
    e->name = strndup(base.p, base.n);
    free(real);
    e->dir = strdup(dir);
    if (!e->name || !e->dir)
        QN_FAIL(err, QN_NO_MEMORY, "engine", "out of memory");
    return QN_OK;
}

static enum qn_status open_all(struct qn_engine *e, const struct qn_engine_params *p,
                               struct qn_err *err)
{
    struct model *m = &e->model;
    e->state_rows = 2 * MAX_ROWS;
    QN_TRY(set_name(e, p->model_dir, err));
    QN_TRY(engine_json(p->model_dir, "config.json", &e->cfg, err));
    QN_TRY(find_family(e, err));
    QN_TRY(m->family->config(m, e->cfg, err));
    QN_TRY(choose_context(e, p, err));
    if (!p->weights_only) /* before the weights: what it needs for a moment does not add to them */
        QN_TRY(open_text(e, p->model_dir, err));
    QN_TRY(open_exec(e, p, err));
    QN_TRY(setup_kv(e, p, err));
    QN_TRY(load_weights(e, p, err));
    if (p->draft_kind != QN_DRAFT_NONE && p->draft_dir && !(e->draft_dir = strdup(p->draft_dir)))
        QN_FAIL(err, QN_NO_MEMORY, "engine", "out of memory");
    QN_TRY((p->draft_kind == QN_DRAFT_DSPARK      ? dspark_load
            : p->draft_kind == QN_DRAFT_ASSISTANT ? assistant_load
                                                  : mtp_load)(e, p, err));
    e->info.family = m->family->name;
    e->info.name = e->name;
    e->info.n_vocab = m->n_vocab;
    e->info.n_layer = m->n_layer;
    e->info.n_embd = m->n_embd;
    e->info.kv_token_bytes = (int64_t)kv_token_bytes(e->ex);
    e->info.seq_state_bytes = (int64_t)(2 * kv_state_bytes(e->ex));
    return collect_eos(e, p->model_dir, err);
}

enum qn_status qn_engine_open(const struct qn_engine_params *params, struct qn_engine **out,
                              struct qn_err *err)
{
    if (!params || !params->model_dir)
        QN_FAIL(err, QN_BAD_INPUT, "engine", "model_dir is missing");
    struct qn_engine *e = calloc(1, sizeof *e);
    if (!e)
        QN_FAIL(err, QN_NO_MEMORY, "engine", "out of memory");
    enum qn_status st = open_all(e, params, err);
    if (st != QN_OK) {
        qn_engine_free(e);
        return st;
    }
    *out = e;
    return QN_OK;
}

void qn_engine_free(struct qn_engine *e)
{
    if (!e)
        return;
    mtp_unload(e);
    if (e->model.family)
        e->model.family->free(&e->model);
    exec_free(e->ex);
    tok_free(e->tok);
    chat_tmpl_free(e->chat);
    json_free(e->cfg);
    free(e->name);
    free(e->dir);
    free(e->draft_dir);
    free(e);
}

const struct qn_model_info *qn_engine_info(const struct qn_engine *e)
{
    return &e->info;
}

const struct tok *engine_tok(const struct qn_engine *e)
{
    return e->tok;
}

const struct chat_tmpl *engine_chat(const struct qn_engine *e)
{
    return e->chat;
}

/* ---- sequences ----------------------------------------------------------------------------
 */

struct exec *engine_exec(const struct qn_engine *e)
{
    return e->ex;
}

struct kv_seq *engine_seq_kv(const struct qn_seq *s)
{
    return s->kv;
}

enum qn_status engine_seq_wrap(struct qn_engine *e, struct kv_seq *kv, struct qn_seq **out,
                               struct qn_err *err)
{
    struct qn_seq *s = calloc(1, sizeof *s);
    if (!s) {
        kv_seq_free(e->ex, kv);
        QN_FAIL(err, QN_NO_MEMORY, "engine", "out of memory");
    }
    s->e = e;
    s->kv = kv;
    *out = s;
    return QN_OK;
}

enum qn_status qn_seq_create(struct qn_engine *e, struct qn_seq **out, struct qn_err *err)
{
    struct kv_seq *kv;
    QN_TRY(kv_seq_create(e->ex, &kv, err));
    return engine_seq_wrap(e, kv, out, err);
}

void qn_seq_free(struct qn_seq *s)
{
    if (!s)
        return;
    QN_ASSERT(!s->mtp); /* freed before */
    kv_seq_free(s->e->ex, s->kv);
    free(s);
}

int32_t qn_seq_len(const struct qn_seq *s)
{
    return kv_seq_len(s->kv);
}

bool qn_seq_can_truncate(const struct qn_seq *s, int32_t n)
{
    return n >= 0 && n <= kv_seq_len(s->kv) && kv_seq_can_truncate(s->e->ex, s->kv, n);
}

/* A sequence can be left at its first n tokens. */
static enum qn_status check_cut(const struct qn_seq *s, const char *what, int32_t n,
                                struct qn_err *err)
{
    int32_t len = qn_seq_len(s);
    if (n < 0 || n > len)
        QN_FAIL(err, QN_BAD_INPUT, "engine", "%s %d tokens; the sequence holds %d", what, n, len);
    if (kv_seq_can_truncate(s->e->ex, s->kv, n))
        return QN_OK;
    if (kv_state_bytes(s->e->ex))
        QN_FAIL(err, QN_UNSUPPORTED, "engine",
                "%s %d of %d tokens: %s layers carry a recurrent state that cannot go back there; "
                "use a "
                "checkpoint made there, or truncate to 0 and feed the tokens again",
                what, n, len, s->e->info.family);
    QN_FAIL(err, QN_UNSUPPORTED, "engine",
            "%s %d of %d tokens: %s layers with a window have forgotten what token %d sees; use a "
            "checkpoint made there, or truncate to 0 and feed the tokens again",
            what, n, len, s->e->info.family, n);
}

enum qn_status qn_seq_truncate(struct qn_seq *s, int32_t n, struct qn_err *err)
{
    QN_TRY(check_cut(s, "truncate to", n, err));
    kv_seq_truncate(s->e->ex, s->kv, n);
    mtp_cut(s, n);
    return QN_OK;
}

enum qn_status qn_seq_fork(struct qn_seq *src, int32_t n, struct qn_seq **out, struct qn_err *err)
{
    struct kv_seq *kv;
    if (n > 0 && n < qn_seq_len(src) && kv_state_bytes(src->e->ex))
        QN_FAIL(
            err, QN_UNSUPPORTED, "engine",
            "fork at %d of %d tokens: %s layers carry a recurrent state; fork at the end, or use "
            "a checkpoint made there",
            n, qn_seq_len(src), src->e->info.family);
    QN_TRY(check_cut(src, "fork at", n, err));
    QN_TRY(kv_seq_fork(src->e->ex, src->kv, n, &kv, err));
    return engine_seq_wrap(src->e, kv, out, err);
}

/* ---- checkpoints and amounts ------------------------------------------------------------------
 */

enum qn_status qn_checkpoint_create(struct qn_seq *s, struct qn_checkpoint **out,
                                    struct qn_err *err)
{
    struct qn_checkpoint *c = calloc(1, sizeof *c);
    if (!c)
        QN_FAIL(err, QN_NO_MEMORY, "engine", "out of memory");
    c->e = s->e;
    enum qn_status st = kv_prefix_create(s->e->ex, s->kv, 0, kv_seq_len(s->kv), &c->kv, err);
    if (st != QN_OK) {
        free(c);
        return st;
    }
    *out = c;
    return QN_OK;
}

void qn_checkpoint_free(struct qn_checkpoint *c)
{
    if (!c)
        return;
    kv_prefix_free(c->e->ex, c->kv);
    free(c);
}

int32_t qn_checkpoint_len(const struct qn_checkpoint *c)
{
    return kv_prefix_end(c->kv);
}

enum qn_status qn_seq_from(struct qn_checkpoint *c, struct qn_seq **out, struct qn_err *err)
{
    const struct kv_prefix *part = c->kv;
    struct kv_seq *kv;
    QN_TRY(kv_seq_from(c->e->ex, &(struct kv_chain){&part, 1}, kv_prefix_end(part), &kv, err));
    return engine_seq_wrap(c->e, kv, out, err);
}

void qn_seq_rewind(struct qn_seq *s, const struct qn_checkpoint *c)
{
    const struct kv_prefix *part = c->kv;
    QN_ASSERT(s->e == c->e);
    kv_seq_become(s->e->ex, s->kv, &(struct kv_chain){&part, 1}, kv_prefix_end(part));
    mtp_cut(s, kv_prefix_end(part));
}

int64_t qn_seq_bytes(const struct qn_engine *e, int32_t n_tokens)
{
    return kv_seq_bytes(e->ex, n_tokens);
}

int64_t qn_seq_bytes_held(const struct qn_seq *s)
{
    return kv_seq_bytes_held(s->e->ex, s->kv);
}

int64_t qn_kv_bytes_used(const struct qn_engine *e)
{
    return kv_bytes_used(e->ex) + (e->draft.ex ? kv_bytes_used(e->draft.ex) : 0);
}

int64_t qn_kv_bytes_free(const struct qn_engine *e)
{
    return kv_bytes_free(e->ex);
}

int64_t qn_transient_bytes(const struct qn_engine *e, int32_t n_logits)
{
    int64_t idle = n_logits < 0 ? MAX_ROWS : n_logits < MAX_ROWS ? MAX_ROWS - n_logits : 0;
    int64_t logits = e->info.n_vocab * (int64_t)sizeof(float); /* of one row */
    int64_t bytes = exec_transient_bytes(e->ex) - idle * logits;
    return bytes + (e->draft.ex ? exec_transient_bytes(e->draft.ex) : 0);
}

/* ---- steps ------------------------------------------------------------------------------------
 */

int32_t qn_step_max_rows(const struct qn_engine *e)
{
    return MAX_ROWS;
}

static enum qn_status check_items(const struct qn_engine *e, const struct qn_step_item *items,
                                  int32_t n, struct qn_err *err)
{
    if (n < 1 || n > MAX_ROWS)
        QN_FAIL(err, QN_BAD_INPUT, "step", "%d items; a step has 1 to %d", n, MAX_ROWS);
    for (int32_t i = 0; i < n; i++) {
        const struct qn_step_item *it = &items[i];
        if (!it->seq || it->seq->e != e || it->n_ids < 1 || it->n_ids > MAX_ROWS ||
            it->n_logits < 0 || it->n_logits > it->n_ids || (it->n_logits && !it->logits))
            QN_FAIL(err, QN_BAD_INPUT, "step",
                    "item %d: %d ids and %d rows of logits; at most %d ids", i, it->n_ids,
                    it->n_logits, MAX_ROWS);
        for (int32_t j = 0; j < it->n_ids; j++)
            if (it->ids[j] < 0 || it->ids[j] >= e->info.n_vocab)
                QN_FAIL(err, QN_BAD_INPUT, "step", "item %d: token id %d; ids are 0 to %d", i,
                        it->ids[j], e->info.n_vocab - 1);
        for (int32_t j = 0; j < i; j++)
            if (items[j].seq == it->seq)
                QN_FAIL(err, QN_BAD_INPUT, "step", "items %d and %d are the same sequence", j, i);
    }
    return QN_OK;
}

enum qn_status qn_engine_step(struct qn_engine *e, struct qn_step_item *items, int32_t n_items,
                              struct qn_err *err)
{
    QN_TRY(check_items(e, items, n_items, err));
    struct exec_span spans[MAX_ROWS];
    for (int32_t i = 0; i < n_items; i++)
        spans[i] =
            (struct exec_span){items[i].seq->kv, items[i].ids, items[i].n_ids, items[i].n_logits};
    QN_TRY(exec_begin(e->ex, spans, n_items, err));
    unsigned fp = cpu_fp_begin();
    mtp_before(e, items, n_items);
    const struct tensor *logits = e->model.family->forward(&e->model);
    mtp_after(e, items, n_items);
    exec_commit(e->ex);
    int32_t row = 0;
    for (int32_t i = 0; i < n_items; i++) {
        if (items[i].n_logits)
            tensor_read(e->ex, logits, row, items[i].n_logits, items[i].logits);
        row += items[i].n_logits;
    }
    cpu_fp_restore(fp);
    return QN_OK;
}

/* ---- text -------------------------------------------------------------------------------------
 */

enum qn_status qn_tokenize(const struct qn_engine *e, const char *text, size_t len, unsigned flags,
                           int32_t **ids, int32_t *n_ids, struct qn_err *err)
{
    if (!e->tok)
        QN_FAIL(err, QN_UNSUPPORTED, "engine", "opened with weights_only: no tokenizer");
    struct ids v = {0};
    enum qn_status st = tok_encode(e->tok, (struct str){text, len}, flags, &v, err);
    if (st != QN_OK) {
        ids_free(&v);
        return st;
    }
    *ids = v.v;
    *n_ids = (int32_t)v.n;
    return QN_OK;
}

static enum qn_status give(struct buf *b, enum qn_status st, char **text, size_t *len,
                           struct qn_err *err)
{
    if (st == QN_OK)
        st = buf_ok(b, "text", err);
    if (st == QN_OK) {
        *text = buf_give(b, len);
        if (!*text)
            st = err_set(err, QN_NO_MEMORY, "engine", "out of memory");
    }
    buf_free(b);
    return st;
}

enum qn_status qn_detokenize(const struct qn_engine *e, const int32_t *ids, int32_t n_ids,
                             bool keep_special, char **text, size_t *len, struct qn_err *err)
{
    if (n_ids < 0)
        QN_FAIL(err, QN_BAD_INPUT, "engine", "%d token ids to decode; expected 0 or more", n_ids);
    if (!e->tok)
        QN_FAIL(err, QN_UNSUPPORTED, "engine", "opened with weights_only: no tokenizer");
    struct buf b = BUF_INIT;
    tok_decode(e->tok, ids, (size_t)n_ids, keep_special, &b);
    return give(&b, QN_OK, text, len, err);
}

enum qn_status qn_chat_render(const struct qn_engine *e, const char *request_json, size_t len,
                              char **text, size_t *text_len, struct qn_err *err)
{
    if (!e->chat)
        QN_FAIL(err, QN_UNSUPPORTED, "engine", "this model folder has no chat template");
    struct json *req;
    QN_TRY(json_parse((struct str){request_json, len}, "request", JSON_DEPTH_MAX, &req, err));
    struct buf b = BUF_INIT;
    enum qn_status st = chat_render(e->chat, req, (int64_t)time(NULL), &b, err);
    json_free(req);
    return give(&b, st, text, text_len, err);
}

void qn_free(void *p)
{
    free(p);
}

const char *qn_version(void)
{
    return QUERN_VERSION;
}
