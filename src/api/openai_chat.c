/*
 * openai_chat.c - the OpenAI Chat Completions dialect: body to request, events to chunks, answer to
 * JSON. Only translates.
 *
 * A stream: for each choice a chunk with the role, chunks with reasoning, text and pieces of calls,
 * one chunk with finish_reason and no text; then the usage chunk when asked, then [DONE].
 */
#include <stdlib.h>

#include "api/api_fields.h"
#include "api/api_format.h"
#include "api/openai_common.h"
#include "api/openai_messages.h"
#include "api/sse.h"

/* Fields that promise something this server does not do: silence would be a wrong answer. */
static enum qn_status refuse_unsupported(const struct json *o, struct api_error *e)
{
    static const char *const fields[] = {"functions", "function_call", "audio"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (json_has(o, fields[i]))
            return api_refuse(e, 400, "unsupported_parameter", fields[i],
                              "%s is not supported by this server", fields[i]);
    return QN_OK;
}

static enum qn_status logprobs_of(const struct json *o, struct api_request *r, struct api_error *e)
{
    bool on = false;
    int32_t top = -1;
    QN_TRY(field_bool(o, "logprobs", &on, e));
    QN_TRY(field_i32(o, "top_logprobs", 0, 20, &top, e));
    if (top >= 0 && !on)
        return api_refuse(e, 400, "invalid_value", "top_logprobs",
                          "top_logprobs is only allowed together with \"logprobs\": true");
    r->sample.n_top = !on ? -1 : top < 0 ? 0 : top;
    return QN_OK;
}

static enum qn_status chat_parse(const struct api_model *m, struct api_request *r,
                                 struct api_error *e)
{
    const struct json *o = r->body;
    QN_TRY(openai_check_messages(o, e));
    QN_TRY(openai_check_tools(o, r, e));
    QN_TRY(refuse_unsupported(o, e));
    QN_TRY(fields_format(o, r, e));
    QN_TRY(fields_max_tokens(o, r, e));
    QN_TRY(fields_sampling(m, o, r, e));
    QN_TRY(logprobs_of(o, r, e));
    QN_TRY(fields_control(o, r, e));
    r->split_reasoning = true;
    return openai_chat_request(m, o, r, e);
}

static const char *reasoning_field(const struct api_model *m)
{
    return m->reasoning_field ? m->reasoning_field : "reasoning";
}

static void call_list(struct jw *w, const struct api_choice *c)
{
    jw_key(w, "tool_calls");
    jw_arr(w);
    for (size_t i = 0; i < c->n_calls; i++) {
        jw_obj(w);
        jw_kstr(w, "id", buf_str(&c->calls[i].id));
        jw_kstrz(w, "type", "function");
        jw_key(w, "function");
        jw_obj(w);
        jw_kstr(w, "name", buf_str(&c->calls[i].name));
        jw_kstr(w, "arguments", buf_str(&c->calls[i].args));
        jw_obj_end(w);
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

/* content is null only where the answer is calls and nothing else. */
static void message(struct jw *w, const struct api_model *m, const struct api_choice *c)
{
    jw_key(w, "message");
    jw_obj(w);
    jw_kstrz(w, "role", "assistant");
    if (c->text.n == 0 && c->n_calls > 0)
        jw_knull(w, "content");
    else
        jw_kstr(w, "content", buf_str(&c->text));
    jw_knull(w, "refusal");
    if (c->reasoning.n > 0)
        jw_kstr(w, reasoning_field(m), buf_str(&c->reasoning));
    if (c->n_calls > 0)
        call_list(w, c);
    jw_obj_end(w);
}

static void chat_answer(const struct api_model *m, const struct api_request *r,
                        const struct api_answer *a, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    openai_head(&w, m, r, "chat.completion");
    jw_key(&w, "choices");
    jw_arr(&w);
    for (int32_t i = 0; i < a->n_choices; i++) {
        const struct api_choice *c = &a->choices[i];
        jw_obj(&w);
        jw_ki64(&w, "index", i);
        message(&w, m, c);
        jw_key(&w, "logprobs");
        if (r->sample.n_top >= 0)
            openai_chat_logprobs(&w, m->tok, c->tokens, c->n_tokens);
        else
            jw_null(&w);
        jw_kstrz(&w, "finish_reason", openai_finish(c->finish));
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    openai_usage(&w, &a->usage);
    jw_obj_end(&w);
}

/* ---- streams ----------------------------------------------------------------------------------
 */

/* Per choice: whether the role went out, and tokens whose logprobs wait for the next chunk. */
struct chat_lane {
    bool begun;
    struct sampled *pending;
    size_t n_pending, cap_pending;
};

struct api_stream {
    const struct api_model *m;
    const struct api_request *r;
    struct chat_lane *lanes;
    int32_t n_lanes;
    struct buf json; /* scratch */
};

enum part { PART_ROLE, PART_EVENT, PART_FINISH };

/* {"index":0,"id":...,"type":"function","function":{"name":...,"arguments":""}} opens a call; later
 * ones carry a piece of its arguments. */
static void call_delta(struct jw *w, const struct api_event *ev)
{
    bool opens = ev->kind == API_EV_CALL;
    jw_key(w, "tool_calls");
    jw_arr(w);
    jw_obj(w);
    jw_ki64(w, "index", ev->call);
    if (opens) {
        jw_kstr(w, "id", ev->call_id);
        jw_kstrz(w, "type", "function");
    }
    jw_key(w, "function");
    jw_obj(w);
    if (opens)
        jw_kstr(w, "name", ev->call_name);
    jw_kstr(w, "arguments", opens ? STR_LIT("") : ev->text);
    jw_obj_end(w);
    jw_obj_end(w);
    jw_arr_end(w);
}

static void delta(struct jw *w, const struct api_model *m, enum part part,
                  const struct api_event *ev)
{
    jw_key(w, "delta");
    jw_obj(w);
    if (part == PART_ROLE) {
        jw_kstrz(w, "role", "assistant");
        jw_kstrz(w, "content", "");
    } else if (part == PART_EVENT) {
        if (ev->kind == API_EV_CALL || ev->kind == API_EV_CALL_ARGS)
            call_delta(w, ev);
        else if (ev->kind == API_EV_REASONING)
            jw_kstr(w, reasoning_field(m), ev->text);
        else
            jw_kstr(w, "content", ev->text);
    }
    jw_obj_end(w);
}

static void chunk(struct api_stream *s, int32_t choice, enum part part, const struct api_event *ev,
                  struct buf *out)
{
    struct chat_lane *l = &s->lanes[choice];
    struct jw w;
    buf_clear(&s->json);
    jw_init(&w, &s->json);
    jw_obj(&w);
    openai_head(&w, s->m, s->r, "chat.completion.chunk");
    jw_key(&w, "choices");
    jw_arr(&w);
    jw_obj(&w);
    jw_ki64(&w, "index", choice);
    delta(&w, s->m, part, ev);
    jw_key(&w, "logprobs");
    if (part == PART_EVENT && s->r->sample.n_top >= 0) {
        openai_chat_logprobs(&w, s->m->tok, l->pending, l->n_pending);
        l->n_pending = 0;
    } else {
        jw_null(&w);
    }
    jw_kstrz(&w, "finish_reason", part == PART_FINISH ? openai_finish(ev->finish) : NULL);
    jw_obj_end(&w);
    jw_arr_end(&w);
    if (s->r->include_usage)
        jw_knull(&w, "usage");
    jw_obj_end(&w);
    if (s->json.failed)
        out->failed = true;
    sse_data(out, buf_str(&s->json));
}

static void begin_choice(struct api_stream *s, int32_t choice, struct buf *out)
{
    if (!s->lanes[choice].begun)
        chunk(s, choice, PART_ROLE, NULL, out);
    s->lanes[choice].begun = true;
}

static struct api_stream *chat_stream_begin(const struct api_model *m, const struct api_request *r,
                                            struct buf *out)
{
    struct api_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->m = m;
    s->r = r;
    s->n_lanes = r->n_prompts * r->n;
    s->lanes = calloc((size_t)s->n_lanes, sizeof *s->lanes);
    if (!s->lanes) {
        free(s);
        return NULL;
    }
    begin_choice(s, 0, out);
    return s;
}

static bool keep_token(struct chat_lane *l, const struct sampled *t)
{
    if (l->n_pending == l->cap_pending) {
        size_t cap = l->cap_pending ? l->cap_pending * 2 : 4;
        struct sampled *p = realloc(l->pending, cap * sizeof *p);
        if (!p)
            return false;
        l->pending = p;
        l->cap_pending = cap;
    }
    l->pending[l->n_pending++] = *t;
    return true;
}

static void end_chunk(struct api_stream *s, const struct api_usage *u, struct buf *out)
{
    struct jw w;
    buf_clear(&s->json);
    jw_init(&w, &s->json);
    jw_obj(&w);
    openai_head(&w, s->m, s->r, "chat.completion.chunk");
    jw_key(&w, "choices");
    jw_arr(&w);
    jw_arr_end(&w);
    openai_usage(&w, u);
    jw_obj_end(&w);
    if (s->json.failed)
        out->failed = true;
    sse_data(out, buf_str(&s->json));
}

static void chat_stream_event(struct api_stream *s, const struct api_event *ev, struct buf *out)
{
    switch (ev->kind) {
    case API_EV_TEXT:
    case API_EV_REASONING:
    case API_EV_CALL:
    case API_EV_CALL_ARGS:
    case API_EV_FINISH: {
        struct chat_lane *l = &s->lanes[ev->choice];
        begin_choice(s, ev->choice, out);
        if (ev->token && !keep_token(l, ev->token))
            out->failed = true;
        if (ev->text.n > 0 || ev->kind == API_EV_CALL ||
            (ev->kind == API_EV_FINISH && l->n_pending > 0))
            chunk(s, ev->choice, PART_EVENT, ev, out);
        if (ev->kind == API_EV_FINISH)
            chunk(s, ev->choice, PART_FINISH, ev, out);
        break;
    }
    case API_EV_END:
        if (s->r->include_usage)
            end_chunk(s, &ev->usage, out);
        sse_done(out);
        break;
    case API_EV_ERROR:
        openai_error_event(&ev->err, out);
        break;
    default:
        break;
    }
}

static void chat_stream_free(struct api_stream *s)
{
    if (!s)
        return;
    for (int32_t i = 0; i < s->n_lanes; i++)
        free(s->lanes[i].pending);
    free(s->lanes);
    buf_free(&s->json);
    free(s);
}

const struct api_dialect dialect_openai_chat = {
    .name = "openai chat",
    .id_prefix = "chatcmpl-",
    .parse = chat_parse,
    .answer = chat_answer,
    .stream_begin = chat_stream_begin,
    .stream_event = chat_stream_event,
    .stream_free = chat_stream_free,
    .error = openai_error,
};
