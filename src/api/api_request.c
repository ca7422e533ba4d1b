/*
 * api_request.c - what all dialects share around a request: reading the body, refusals, the model's
 * name, and whole answers put together from events.
 */
#include "api/ir.h"
#include "api/resp_store.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"

enum qn_status api_refuse(struct api_error *e, int http, const char *code, const char *param,
                          const char *fmt, ...)
{
    va_list ap;
    memset(e, 0, sizeof *e);
    e->status = http;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    if (http == 429 || http == 503)
        e->retry_after_s = 1;
    switch (http) {
    case 404:
        return QN_NOT_FOUND;
    case 429:
    case 503:
        return QN_BUSY;
    case 500:
        return QN_INTERNAL;
    case 502:
        return QN_LOST;
    default:
        return QN_BAD_INPUT;
    }
}

enum qn_status api_no_memory(struct api_error *e)
{
    return api_refuse(e, 503, "no_memory", NULL, "not enough memory for this request now");
}

enum qn_status api_request_shaped(struct api_request *r, const struct buf *body, const char *field,
                                  struct api_error *e)
{
    struct qn_err err = {0};
    if (body->failed)
        return api_no_memory(e);
    if (json_parse(buf_str(body), field, JSON_DEPTH_MAX + 8, &r->shaped, &err) != QN_OK)
        return api_refuse_err(e, &err, field);
    return QN_OK;
}

enum qn_status api_refuse_err(struct api_error *e, const struct qn_err *err, const char *param)
{
    switch (err->code) {
    case QN_BAD_INPUT:
    case QN_NOT_FOUND:
    case QN_UNSUPPORTED:
        return api_refuse(e, 400, "invalid_value", param, "%s", err->msg);
    case QN_BUSY:
        return api_refuse(e, 429, "queue_full", NULL, "%s", err->msg);
    case QN_NO_MEMORY:
        return api_refuse(e, 503, "no_memory", NULL,
                          "not enough memory for this request now; try again later");
    case QN_CANCELLED:
        if (err->msg[0]) /* its client had not read for too long */
            return api_refuse(e, 503, "not_read", NULL, "%s", err->msg);
        return api_refuse(e, 503, "stopping", NULL, "the server is stopping");
    case QN_LOST:
        return api_refuse(e, 502, "engine_lost", NULL, "%s", err->msg);
    default:
        return api_refuse(e, 500, "internal_error", NULL,
                          "generation failed inside the server; the next request is not affected");
    }
}

void api_model_fingerprint(struct api_model *m)
{
    uint64_t h = hash64(QUERN_VERSION, sizeof QUERN_VERSION - 1, 0);
    h = hash64(m->name, strlen(m->name), h);
    h = hash64(&m->n_vocab, sizeof m->n_vocab, h);
    snprintf(m->fingerprint, sizeof m->fingerprint, "fp_%012" PRIx64, h >> 16);
}

bool api_model_is(const struct api_model *m, struct str name)
{
    if (str_eqz(name, m->name))
        return true;
    for (const char *const *a = m->aliases; a && *a; a++)
        if (str_eqz(name, *a))
            return true;
    return false;
}

void api_make_id(const char *prefix, char out[40])
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t w = 0;
    int n = snprintf(out, 40, "%s", prefix);
    for (int i = 0; i < 24 && n < 39; i++) {
        if (i % 8 == 0)
            w = rng_seed_fresh();
        out[n++] = digits[w % 62];
        w /= 62;
    }
    out[n] = 0;
}

static enum qn_status check_model(const struct api_model *m, const struct json *body,
                                  struct api_error *e)
{
    const struct json *v = json_get(body, "model");
    struct str s = json_str(v);
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    if (json_type(v) != JSON_STR)
        return api_refuse(e, 400, "invalid_type", "model", "model is of type %s; expected a string",
                          json_type_name(v));
    if (api_model_is(m, s))
        return QN_OK;
    return api_refuse(e, 404, "model_not_found", "model",
                      "the model \"%.*s\" is not served here; this server has \"%s\"",
                      s.n > 120 ? 120 : (int)s.n, s.p, m->name);
}

enum qn_status api_body_read(struct str body, struct json **out, struct api_error *e)
{
    struct qn_err err = {0};
    if (json_parse(body, "body", JSON_DEPTH_MAX, out, &err) != QN_OK)
        return api_refuse(e, err.code == QN_NO_MEMORY ? 503 : 400, "invalid_json", NULL, "%s",
                          err.msg);
    if (json_type(*out) != JSON_OBJ)
        return api_refuse(e, 400, "invalid_json", NULL,
                          "the body is of type %s; expected an object", json_type_name(*out));
    return QN_OK;
}

enum qn_status api_request_read(const struct api_dialect *d, const struct api_model *m,
                                struct str body, struct api_request *r, struct api_error *e)
{
    memset(r, 0, sizeof *r);
    r->dialect = d;
    r->created = clock_unix();
    r->thinking_budget = -1;
    api_make_id(d->id_prefix, r->id);
    r->arena = arena_create(0);
    if (!r->arena)
        return api_no_memory(e);
    QN_TRY(api_body_read(body, &r->body, e));
    QN_TRY(check_model(m, r->body, e));
    return d->parse(m, r, e);
}

void api_request_free(struct api_request *r)
{
    for (int32_t i = 0; i < r->n_prompts; i++)
        if (r->prompts[i].ids_owned)
            free(r->prompts[i].ids);
    buf_free(&r->chat_prompt);
    gram_unref(r->grammar);
    gram_vocab_unref(r->vocab);
    json_free(r->format_doc);
    json_free(r->chat);
    json_free(r->shaped);
    json_free(r->history);
    if (r->lender)
        resp_store_give_back(r->lender, r->lent_bytes);
    json_free(r->body);
    arena_free(r->arena);
    memset(r, 0, sizeof *r);
}

/* ---- whole answers --------------------------------------------------------------------------- */

enum qn_status api_answer_init(struct api_answer *a, int32_t n_choices)
{
    a->n_choices = 0;
    a->choices = calloc((size_t)n_choices, sizeof *a->choices);
    if (!a->choices)
        return QN_NO_MEMORY;
    a->n_choices = n_choices;
    return QN_OK;
}

void api_answer_free(struct api_answer *a)
{
    for (int32_t i = 0; i < a->n_choices; i++) {
        struct api_choice *c = &a->choices[i];
        buf_free(&c->text);
        buf_free(&c->reasoning);
        for (size_t k = 0; k < c->n_calls; k++) {
            buf_free(&c->calls[k].id);
            buf_free(&c->calls[k].name);
            buf_free(&c->calls[k].args);
        }
        free(c->calls);
        free(c->tokens);
        free(c->prompt_tokens);
    }
    free(a->choices);
    memset(a, 0, sizeof *a);
}

static enum qn_status push(struct sampled **v, size_t *n, size_t *cap, const struct sampled *t)
{
    if (*n == *cap) {
        size_t want = *cap ? *cap * 2 : 64;
        struct sampled *p = realloc(*v, want * sizeof *p);
        if (!p)
            return QN_NO_MEMORY;
        *v = p;
        *cap = want;
    }
    (*v)[(*n)++] = *t;
    return QN_OK;
}

static enum qn_status add_text(struct buf *b, struct str text)
{
    buf_add_str(b, text);
    return b->failed ? QN_NO_MEMORY : QN_OK;
}

static enum qn_status add_call(struct api_choice *c, const struct api_event *ev)
{
    if (c->n_calls == c->cap_calls) {
        size_t want = c->cap_calls ? c->cap_calls * 2 : 4;
        struct api_call *p = realloc(c->calls, want * sizeof *p);
        if (!p)
            return QN_NO_MEMORY;
        c->calls = p;
        c->cap_calls = want;
    }
    struct api_call *k = &c->calls[c->n_calls++];
    *k = (struct api_call){0};
    QN_TRY(add_text(&k->id, ev->call_id));
    return add_text(&k->name, ev->call_name);
}

/* The text of an event to where it belongs. */
static enum qn_status add_piece(struct api_choice *c, const struct api_event *ev)
{
    switch (ev->kind) {
    case API_EV_REASONING:
        return add_text(&c->reasoning, ev->text);
    case API_EV_CALL:
        return add_call(c, ev);
    case API_EV_CALL_ARGS:
        QN_ASSERT((size_t)ev->call < c->n_calls);
        return add_text(&c->calls[ev->call].args, ev->text);
    default:
        return add_text(&c->text, ev->text);
    }
}

enum qn_status api_answer_add(struct api_answer *a, const struct api_event *ev)
{
    struct api_choice *c = &a->choices[ev->choice];
    switch (ev->kind) {
    case API_EV_PROMPT_TOKEN:
        return push(&c->prompt_tokens, &c->n_prompt_tokens, &c->cap_prompt_tokens, ev->token);
    case API_EV_FINISH:
        c->finish = ev->finish;
        c->stop = ev->stop;
        /* fall through */
    case API_EV_TEXT:
    case API_EV_REASONING:
    case API_EV_CALL:
    case API_EV_CALL_ARGS:
        QN_TRY(add_piece(c, ev));
        return ev->token ? push(&c->tokens, &c->n_tokens, &c->cap_tokens, ev->token) : QN_OK;
    case API_EV_END:
        a->usage = ev->usage;
        return QN_OK;
    default:
        return QN_OK;
    }
}
