/*
 * openai_common.c - pieces that the OpenAI routes share. Writes JSON only; no sockets, no
 * scheduler.
 */
#include "api/openai_common.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "api/sse.h"
#include "base/utf8.h"

static const char *error_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    case 500:
        return "server_error";
    case 502:
    case 503:
        return "service_unavailable_error";
    default:
        return "invalid_request_error";
    }
}

void openai_error_member(struct jw *w, const struct api_error *e)
{
    jw_key(w, "error");
    jw_obj(w);
    jw_kstrz(w, "message", e->msg);
    jw_kstrz(w, "type", error_type(e->status));
    jw_kstrz(w, "param", e->param[0] ? e->param : NULL);
    jw_kstrz(w, "code", e->code);
    jw_obj_end(w);
}

void openai_error(const struct api_error *e, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    openai_error_member(&w, e);
    jw_obj_end(&w);
}

void openai_error_event(const struct api_error *e, struct buf *out)
{
    struct buf json = BUF_INIT;
    openai_error(e, &json);
    out->failed |= json.failed;
    sse_data(out, buf_str(&json));
    buf_free(&json);
}

const char *openai_finish(enum api_finish f)
{
    static const char *const names[] = {"stop", "length", "tool_calls"};
    return names[f];
}

void openai_usage(struct jw *w, const struct api_usage *u)
{
    jw_key(w, "usage");
    jw_obj(w);
    jw_ki64(w, "prompt_tokens", u->prompt_tokens);
    jw_ki64(w, "completion_tokens", u->completion_tokens);
    jw_ki64(w, "total_tokens", u->prompt_tokens + u->completion_tokens);
    jw_key(w, "prompt_tokens_details");
    jw_obj(w);
    jw_ki64(w, "cached_tokens", u->cached_tokens);
    jw_obj_end(w);
    jw_key(w, "completion_tokens_details");
    jw_obj(w);
    jw_ki64(w, "reasoning_tokens", u->reasoning_tokens);
    jw_obj_end(w);
    spec_counts_json(w, &u->spec);
    jw_obj_end(w);
}

void openai_logprob(struct jw *w, float v)
{
    char text[32];
    if (!(v > -9999.0f))
        v = -9999.0f;
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    jw_raw(w, str_of(text));
}

void openai_token_text(const struct tok *t, int32_t id, struct buf *out)
{
    if (tok_is_special(t, id)) {
        buf_add_str(out, tok_piece(t, id));
        return;
    }
    struct buf raw = BUF_INIT;
    tok_bytes(t, id, &raw);
    utf8_sanitize(out, buf_str(&raw));
    out->failed |= raw.failed;
    buf_free(&raw);
}

/* "token", "logprob", "bytes" of one token. */
static void token_members(struct jw *w, const struct tok *t, int32_t id, float logprob)
{
    struct buf text = BUF_INIT, raw = BUF_INIT;
    openai_token_text(t, id, &text);
    jw_kstr(w, "token", buf_str(&text));
    jw_key(w, "logprob");
    openai_logprob(w, logprob);
    if (tok_is_special(t, id))
        buf_add_str(&raw, tok_piece(t, id));
    else
        tok_bytes(t, id, &raw);
    jw_key(w, "bytes");
    jw_arr(w);
    for (size_t i = 0; i < raw.n; i++)
        jw_i64(w, (unsigned char)raw.p[i]);
    jw_arr_end(w);
    w->out->failed |= text.failed || raw.failed;
    buf_free(&text);
    buf_free(&raw);
}

static void logprob_row(struct jw *w, const struct tok *t, const struct sampled *v)
{
    jw_obj(w);
    token_members(w, t, v->id, v->logprob);
    jw_key(w, "top_logprobs");
    jw_arr(w);
    for (int32_t k = 0; k < v->n_top; k++) {
        jw_obj(w);
        token_members(w, t, v->top[k].id, v->top[k].logprob);
        jw_obj_end(w);
    }
    jw_arr_end(w);
    jw_obj_end(w);
}

void openai_logprob_rows(struct jw *w, const struct tok *t, const struct sampled *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        logprob_row(w, t, &v[i]);
}

void openai_chat_logprobs(struct jw *w, const struct tok *t, const struct sampled *v, size_t n)
{
    jw_obj(w);
    jw_key(w, "content");
    jw_arr(w);
    openai_logprob_rows(w, t, v, n);
    jw_arr_end(w);
    jw_knull(w, "refusal");
    jw_obj_end(w);
}

int64_t openai_offset_next(struct openai_offset *o, const struct tok *t, int32_t id,
                           bool keep_special)
{
    struct buf raw = BUF_INIT;
    bool special = tok_is_special(t, id);
    if (!special)
        tok_bytes(t, id, &raw);
    else if (keep_special)
        buf_add_str(&raw, tok_piece(t, id));
    /* A token that goes on with a character begun by the one before starts where that does. */
    bool inside = raw.n > 0 && ((unsigned char)raw.p[0] & 0xC0) == 0x80 && o->chars > 0;
    int64_t at = o->chars - (inside ? 1 : 0);
    for (size_t i = 0; i < raw.n; i++)
        o->chars += ((unsigned char)raw.p[i] & 0xC0) != 0x80;
    o->failed |= raw.failed;
    buf_free(&raw);
    return at;
}

void openai_head(struct jw *w, const struct api_model *m, const struct api_request *r,
                 const char *object)
{
    jw_kstrz(w, "id", r->id);
    jw_kstrz(w, "object", object);
    jw_ki64(w, "created", r->created);
    jw_kstrz(w, "model", m->name);
    jw_kstrz(w, "system_fingerprint", m->fingerprint);
}

/* Anthropic's clients ask the same route and expect these beside OpenAI's. */
static void anthropic_members(struct jw *w, const struct api_model *m)
{
    char when[32];
    struct tm t;
    time_t at = (time_t)m->created;
    jw_kstrz(w, "type", "model");
    jw_kstrz(w, "display_name", m->name);
    jw_kstrz(w, "lifecycle", "active");
    if (gmtime_r(&at, &t) && strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &t) > 0)
        jw_kstrz(w, "created_at", when);
    jw_ki64(w, "max_input_tokens", m->n_ctx);
    jw_ki64(w, "max_tokens", m->n_ctx);
}

void openai_model_row(struct jw *w, const struct api_model *m)
{
    jw_obj(w);
    jw_kstrz(w, "id", m->name);
    jw_kstrz(w, "object", "model");
    jw_ki64(w, "created", m->created);
    jw_kstrz(w, "owned_by", "quern");
    anthropic_members(w, m);
    jw_ki64(w, "context_window", m->n_ctx);
    jw_ki64(w, "max_model_len", m->n_ctx);
    jw_key(w, "aliases");
    jw_arr(w);
    for (const char *const *a = m->aliases; a && *a; a++)
        jw_strz(w, *a);
    jw_arr_end(w);
    jw_kbool(w, "chat_template", m->chat != NULL);
    jw_key(w, "gen_defaults");
    jw_obj(w);
    jw_kreal(w, "temperature", round((double)m->defaults.temperature * 1e6) / 1e6);
    jw_kreal(w, "top_p", round((double)m->defaults.top_p * 1e6) / 1e6);
    jw_ki64(w, "top_k", m->defaults.top_k);
    jw_obj_end(w);
    jw_obj_end(w);
}

void openai_models(const struct api_model *m, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "object", "list");
    jw_key(&w, "data");
    jw_arr(&w);
    openai_model_row(&w, m);
    jw_arr_end(&w);
    jw_kbool(&w, "has_more", false);
    jw_kstrz(&w, "first_id", m->name);
    jw_kstrz(&w, "last_id", m->name);
    jw_obj_end(&w);
}
