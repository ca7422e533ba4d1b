/*
 * native.c - /tokenize, /detokenize, /apply-template, /stats. Runs in connection threads; touches
 * immutable things only.
 */
#include "api/native.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_fields.h"
#include "api/openai_messages.h"
#include "base/clock.h"
#include "base/utf8.h"

/* The piece as text, or as its bytes where they are not valid UTF-8 on their own. */
static void write_piece(const struct api_model *m, int32_t id, struct jw *w)
{
    struct buf raw = BUF_INIT;
    if (tok_is_special(m->tok, id))
        buf_add_str(&raw, tok_piece(m->tok, id));
    else
        tok_bytes(m->tok, id, &raw);
    if (utf8_valid(buf_str(&raw))) {
        jw_kstr(w, "piece", buf_str(&raw));
    } else {
        jw_key(w, "piece");
        jw_arr(w);
        for (size_t i = 0; i < raw.n; i++)
            jw_i64(w, (unsigned char)raw.p[i]);
        jw_arr_end(w);
    }
    w->out->failed |= raw.failed;
    buf_free(&raw);
}

static void write_tokens(const struct api_model *m, const struct ids *ids, bool pieces,
                         struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_key(&w, "tokens");
    jw_arr(&w);
    for (size_t i = 0; i < ids->n; i++) {
        if (!pieces) {
            jw_i64(&w, ids->v[i]);
            continue;
        }
        jw_obj(&w);
        jw_ki64(&w, "id", ids->v[i]);
        write_piece(m, ids->v[i], &w);
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
}

static enum qn_status tokenize(const struct api_model *m, const struct json *o, struct buf *out,
                               struct api_error *e)
{
    struct str text = {NULL, 0};
    bool special = false, parse = true, pieces = false;
    struct ids ids = {0};
    struct qn_err err = {0};
    QN_TRY(field_str(o, "content", &text, e));
    if (json_type(json_get(o, "content")) != JSON_STR)
        return field_bad(e, "content", json_get(o, "content"), "a string");
    QN_TRY(field_bool(o, "add_special", &special, e));
    QN_TRY(field_bool(o, "parse_special", &parse, e));
    QN_TRY(field_bool(o, "with_pieces", &pieces, e));
    unsigned flags = (special ? TOK_ADD_SPECIAL : 0) | (parse ? TOK_PARSE_SPECIAL : 0);
    if (tok_encode(m->tok, text, flags, &ids, &err) != QN_OK) {
        ids_free(&ids);
        return api_refuse_err(e, &err, NULL);
    }
    write_tokens(m, &ids, pieces, out);
    ids_free(&ids);
    return QN_OK;
}

enum qn_status native_tokenize(const struct api_model *m, struct str body, struct buf *out,
                               struct api_error *e)
{
    struct json *o = NULL;
    enum qn_status st = api_body_read(body, &o, e);
    if (st == QN_OK)
        st = tokenize(m, o, out, e);
    json_free(o);
    return st;
}

static enum qn_status detokenize(const struct api_model *m, const struct json *o, struct buf *out,
                                 struct api_error *e)
{
    const struct json *list = json_get(o, "tokens");
    struct buf text = BUF_INIT;
    if (json_type(list) != JSON_ARR)
        return field_bad(e, "tokens", list, "an array of token ids");
    size_t n = json_len(list);
    int32_t *ids = calloc(n ? n : 1, sizeof *ids);
    if (!ids)
        return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!json_i64(json_at(list, i), &id) || id < 0 || id >= tok_size(m->tok)) {
            free(ids);
            return api_refuse(e, 400, "invalid_value", "tokens",
                              "tokens[%zu] is not an id of this model; expected 0 to %d", i,
                              tok_size(m->tok) - 1);
        }
        ids[i] = (int32_t)id;
    }
    tok_decode(m->tok, ids, n, true, &text);
    free(ids);
    buf_addz(out, "{\"content\":");
    json_w_str(out, buf_str(&text));
    buf_addc(out, '}');
    buf_free(&text);
    return QN_OK;
}

enum qn_status native_detokenize(const struct api_model *m, struct str body, struct buf *out,
                                 struct api_error *e)
{
    struct json *o = NULL;
    enum qn_status st = api_body_read(body, &o, e);
    if (st == QN_OK)
        st = detokenize(m, o, out, e);
    json_free(o);
    return st;
}

static enum qn_status apply_template(const struct api_model *m, struct api_request *r,
                                     struct buf *out, struct api_error *e)
{
    struct qn_err err = {0};
    QN_TRY(openai_check_messages(r->body, e));
    QN_TRY(openai_check_tools(r->body, r, e));
    QN_TRY(openai_chat_request(m, r->body, r, e));
    if (!m->chat)
        return api_refuse(e, 400, "no_chat_template", "messages",
                          "this model has no chat template");
    if (api_chat_render(m, r, clock_unix(), &err) != QN_OK)
        return api_refuse_err(e, &err, "messages");
    buf_addz(out, "{\"prompt\":");
    json_w_str(out, buf_str(&r->chat_prompt));
    buf_addc(out, '}');
    return QN_OK;
}

enum qn_status native_apply_template(const struct api_model *m, struct str body, struct buf *out,
                                     struct api_error *e)
{
    struct api_request r = {0};
    enum qn_status st = api_body_read(body, &r.body, e);
    if (st == QN_OK)
        st = apply_template(m, &r, out, e);
    api_request_free(&r);
    return st;
}

static void stats_server(struct jw *w, const struct api_model *m, const struct native_server *srv)
{
    jw_key(w, "server");
    jw_obj(w);
    jw_kstrz(w, "owner", "quern");
    jw_kstrz(w, "model", m->name);
    jw_kstrz(w, "version", QUERN_VERSION);
    jw_ki64(w, "started_at", srv->started_at);
    jw_ki64(w, "uptime_s", srv->uptime_s);
    jw_ki64(w, "context_window", m->n_ctx);
    jw_ki64(w, "connections", srv->connections);
    jw_ki64(w, "in_flight", srv->in_flight);
    jw_ki64(w, "http_requests", srv->requests);
    jw_obj_end(w);
}

static void stats_requests(struct jw *w, const struct sched_stats *s)
{
    jw_key(w, "requests");
    jw_obj(w);
    jw_ki64(w, "running", s->running);
    jw_ki64(w, "waiting", s->waiting);
    jw_ki64(w, "submitted", s->submitted);
    jw_ki64(w, "finished", s->finished);
    jw_ki64(w, "failed", s->failed);
    jw_ki64(w, "cancelled", s->cancelled);
    jw_ki64(w, "rejected", s->rejected);
    jw_obj_end(w);
    jw_key(w, "tokens");
    jw_obj(w);
    jw_ki64(w, "prompt", s->prompt_tokens);
    jw_ki64(w, "completion", s->completion_tokens);
    jw_obj_end(w);
}

static void stats_memory(struct jw *w, const struct api_model *m, const struct sched_stats *s,
                         const struct native_server *srv)
{
    jw_key(w, "memory");
    jw_obj(w);
    jw_ki64(w, "resident_bytes", srv->resident_bytes);
    if (m->info) {
        jw_ki64(w, "weights_bytes", m->info->weight_bytes);
        jw_kstrz(w, "kv_format", m->info->kv_format);
        jw_ki64(w, "kv_token_bytes", m->info->kv_token_bytes);
        jw_ki64(w, "sequence_state_bytes", m->info->seq_state_bytes);
    }
    if (s->kv_budget)
        jw_ki64(w, "kv_budget_bytes", s->kv_budget);
    jw_ki64(w, "kv_planned_bytes", s->kv_planned);
    jw_ki64(w, "parked", s->parked);
    jw_obj_end(w);
}

/* How keys and values are kept, in words. */
static void stats_kv(struct jw *w, const struct api_model *m)
{
    const char *id = m->info ? m->info->kv_format : NULL;
    char mode[64];
    if (!id)
        return;
    if (!strncmp(id, "kv", 2))
        snprintf(mode, sizeof mode, "uniform-%s", id);
    else if (!strncmp(id, "turbo-", 6))
        snprintf(mode, sizeof mode, "turbo %s", id + 6);
    else
        snprintf(mode, sizeof mode, "%s",
                 strncmp(id, "config-", 7) ? id : "mixed (kv_config.json)");
    jw_key(w, "kv_quant");
    jw_obj(w);
    jw_kstrz(w, "mode", mode);
    jw_kstrz(w, "format", id);
    jw_obj_end(w);
}

/* The rows of a step, and what may be asked of the server. */
static void stats_batch(struct jw *w, const struct api_model *m, const struct sched_stats *s)
{
    jw_key(w, "batch");
    jw_obj(w);
    jw_ki64(w, "configured", s->n_lane);
    jw_kstrz(w, "mode", s->n_lane > 1 ? "batch" : "serial");
    jw_ki64(w, "active_rows", s->running);
    jw_ki64(w, "pending_rows", s->waiting);
    jw_ki64(w, "submitted_rows", s->submitted);
    jw_ki64(w, "kv_bytes", s->kv_planned);
    jw_ki64(w, "kv_budget_bytes", s->kv_budget);
    jw_obj_end(w);
    jw_key(w, "admission");
    jw_obj(w);
    jw_ki64(w, "max_safe_context", m->n_ctx);
    jw_ki64(w, "usable_bytes", s->kv_budget);
    if (m->info)
        jw_ki64(w, "weights_bytes", m->info->weight_bytes);
    jw_obj_end(w);
}

static void stats_disk(struct jw *w, const struct qn_disk_stats *d)
{
    if (!d->on)
        return;
    jw_key(w, "disk");
    jw_obj(w);
    jw_ki64(w, "bytes", d->bytes);
    jw_ki64(w, "max_bytes", d->bytes_max);
    jw_ki64(w, "records", d->records);
    jw_ki64(w, "tokens", d->tokens);
    jw_ki64(w, "queued_bytes", d->queued_bytes);
    jw_ki64(w, "written_records", d->written);
    jw_ki64(w, "written_bytes", d->written_bytes);
    jw_ki64(w, "failed_writes", d->failed);
    jw_ki64(w, "damaged_records", d->damaged);
    jw_ki64(w, "evicted_records", d->evicted);
    jw_ki64(w, "restores", d->restores);
    jw_ki64(w, "restored_tokens", d->restored_tokens);
    jw_ki64(w, "restored_draft_tokens", d->restored_draft_tokens);
    jw_ki64(w, "restored_bytes", d->restored_bytes);
    jw_kreal(w, "restore_seconds", (double)d->restore_us / 1e6);
    jw_ki64(w, "demoted_tokens", d->demoted_tokens);
    jw_obj_end(w);
}

static void stats_cache(struct jw *w, const struct sched_stats *s)
{
    const struct qn_cache_stats *c = &s->cache;
    if (!s->caches)
        return;
    jw_key(w, "prompt_cache");
    jw_obj(w);
    jw_ki64(w, "bytes", c->bytes);
    jw_ki64(w, "max_bytes", c->bytes_max);
    jw_ki64(w, "tokens", c->tokens);
    jw_ki64(w, "nodes", c->nodes);
    jw_ki64(w, "lookups", c->lookups);
    jw_ki64(w, "hits", c->hits);
    jw_ki64(w, "asked_tokens", c->asked_tokens);
    jw_ki64(w, "reused_tokens", c->reused_tokens);
    jw_ki64(w, "kept_tokens", c->kept_tokens);
    jw_ki64(w, "evicted_tokens", c->evicted_tokens);
    jw_ki64(w, "checkpoints_dropped", c->thinned);
    jw_ki64(w, "failed_keeps", c->failed_keeps);
    stats_disk(w, &c->disk);
    jw_obj_end(w);
}

static void stats_files(struct jw *w, const struct sched_stats *s)
{
    if (!s->files)
        return;
    jw_key(w, "conversations");
    jw_obj(w);
    jw_ki64(w, "saves", s->saves.done);
    jw_ki64(w, "failed_saves", s->saves.failed);
    jw_ki64(w, "saved_tokens", s->saves.tokens);
    jw_ki64(w, "saved_draft_tokens", s->saves.draft_tokens);
    jw_ki64(w, "saved_bytes", s->saves.bytes);
    jw_ki64(w, "restores", s->restores.done);
    jw_ki64(w, "failed_restores", s->restores.failed);
    jw_ki64(w, "restored_tokens", s->restores.tokens);
    jw_ki64(w, "restored_draft_tokens", s->restores.draft_tokens);
    jw_ki64(w, "restored_bytes", s->restores.bytes);
    jw_obj_end(w);
}

static void stats_responses(struct jw *w, const struct resp_store_stats *s)
{
    jw_key(w, "response_store");
    jw_obj(w);
    jw_ki64(w, "entries", s->entries);
    jw_ki64(w, "bytes", s->bytes);
    jw_ki64(w, "max_bytes", s->max_bytes);
    jw_ki64(w, "ttl_ms", s->ttl_ms);
    jw_obj_end(w);
}

void native_stats(const struct api_model *m, const struct sched_stats *s,
                  const struct native_server *srv, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    stats_server(&w, m, srv);
    stats_requests(&w, s);
    stats_memory(&w, m, s, srv);
    stats_kv(&w, m);
    stats_batch(&w, m, s);
    stats_cache(&w, s);
    stats_files(&w, s);
    if (s->spec_kind)
        jw_kstrz(&w, "draft_kind", s->spec_kind);
    spec_counts_json(&w, &s->spec);
    stats_responses(&w, &srv->responses);
    jw_obj_end(&w);
}

void native_flush(bool done, const struct qn_cache_flush *f, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_kbool(&w, "durable", done && f->durable_tokens == f->tokens);
    if (done) {
        jw_ki64(&w, "tokens", f->tokens);
        jw_ki64(&w, "durable_tokens", f->durable_tokens);
        jw_ki64(&w, "nodes", f->nodes);
        jw_ki64(&w, "durable_nodes", f->durable_nodes);
        if (f->error[0])
            jw_kstrz(&w, "reason", f->error);
    } else {
        jw_kstrz(&w, "reason", "the writing goes on; ask again");
    }
    jw_obj_end(&w);
}
