/*
 * anthropic.c - the Anthropic Messages dialect: events to its stream, answer to JSON, refusals.
 * Only translates; anthropic_request.c reads the bodies.
 *
 * A stream: message_start; blocks one after the other (content_block_start, deltas,
 * content_block_stop) with indexes 0, 1, 2...; message_delta with why it ended and the usage;
 * message_stop. A fault is an event "error" and the end. An answer without any block gets one of
 * empty text.
 */
#include "api/anthropic.h"

#include <stdlib.h>

#include "api/sse.h"

/* ---- refusals --------------------------------------------------------------------------------
 */

static const char *error_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    case 500:
    case 502:
        return "api_error";
    default:
        return "invalid_request_error";
    }
}

static void write_error(const struct api_error *e, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "type", "error");
    jw_key(&w, "error");
    jw_obj(&w);
    jw_kstrz(&w, "type", error_type(e->status));
    jw_kstrz(&w, "message", e->msg);
    jw_obj_end(&w);
    jw_kstrz(&w, "request_id", e->request_id);
    jw_obj_end(&w);
}

/* ---- pieces ----------------------------------------------------------------------------------
 */

static const char *stop_reason(enum api_finish f, const struct str *stop)
{
    if (f == API_FINISH_TOOL_CALLS)
        return "tool_use";
    if (f == API_FINISH_LENGTH)
        return "max_tokens";
    return stop ? "stop_sequence" : "end_turn";
}

static void stop_members(struct jw *w, enum api_finish f, const struct str *stop)
{
    jw_kstrz(w, "stop_reason", stop_reason(f, stop));
    if (stop && f == API_FINISH_STOP)
        jw_kstr(w, "stop_sequence", *stop);
    else
        jw_knull(w, "stop_sequence");
}

/* input_tokens are those that were computed: with those read from the cache they make the prompt.
 */
static void write_usage(struct jw *w, const struct api_usage *u)
{
    jw_key(w, "usage");
    jw_obj(w);
    jw_ki64(w, "input_tokens", u->prompt_tokens - u->cached_tokens);
    jw_ki64(w, "cache_creation_input_tokens", 0);
    jw_ki64(w, "cache_read_input_tokens", u->cached_tokens);
    jw_ki64(w, "output_tokens", u->completion_tokens);
    jw_key(w, "output_tokens_details");
    jw_obj(w);
    jw_ki64(w, "thinking_tokens", u->reasoning_tokens);
    jw_obj_end(w);
    spec_counts_json(w, &u->spec);
    jw_obj_end(w);
}

static void message_head(struct jw *w, const struct api_model *m, const struct api_request *r)
{
    jw_kstrz(w, "id", r->id);
    jw_kstrz(w, "type", "message");
    jw_kstrz(w, "role", "assistant");
    jw_kstrz(w, "model", m->name);
}

/* ---- whole answers ---------------------------------------------------------------------------
 */

static void write_thinking(struct jw *w, struct str text)
{
    jw_obj(w);
    jw_kstrz(w, "type", "thinking");
    jw_kstr(w, "thinking", text);
    jw_kstrz(w, "signature", "");
    jw_obj_end(w);
}

static void write_text(struct jw *w, struct str text)
{
    jw_obj(w);
    jw_kstrz(w, "type", "text");
    jw_kstr(w, "text", text);
    jw_obj_end(w);
}

/* The arguments of a call that was cut off are no object: it has none then. */
static void write_call(struct jw *w, const struct api_call *c)
{
    struct str args = buf_str(&c->args);
    bool whole = args.n > 0 && args.p[0] == '{' &&
                 json_check(args, "arguments", JSON_DEPTH_MAX, NULL) == QN_OK;
    jw_obj(w);
    jw_kstrz(w, "type", "tool_use");
    jw_kstr(w, "id", buf_str(&c->id));
    jw_kstr(w, "name", buf_str(&c->name));
    jw_key(w, "input");
    jw_raw(w, whole ? args : STR_LIT("{}"));
    jw_obj_end(w);
}

static void messages_answer(const struct api_model *m, const struct api_request *r,
                            const struct api_answer *a, struct buf *out)
{
    const struct api_choice *c = &a->choices[0];
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    message_head(&w, m, r);
    jw_key(&w, "content");
    jw_arr(&w);
    if (c->reasoning.n > 0)
        write_thinking(&w, buf_str(&c->reasoning));
    if (c->text.n > 0 || (c->reasoning.n == 0 && c->n_calls == 0))
        write_text(&w, buf_str(&c->text));
    for (size_t i = 0; i < c->n_calls; i++)
        write_call(&w, &c->calls[i]);
    jw_arr_end(&w);
    stop_members(&w, c->finish, c->stop);
    write_usage(&w, &a->usage);
    jw_obj_end(&w);
}

/* ---- streams ---------------------------------------------------------------------------------
 */

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT, BLOCK_CALL };

struct api_stream {
    const struct api_request *r;
    enum block open;
    int64_t index; /* of the open block, or of the next one */
    enum api_finish finish;
    const struct str *stop;
    struct buf json; /* scratch */
};

/* {"type":TYPE, ...: the object stays open for more members. */
static struct jw event_begin(struct api_stream *s, const char *type)
{
    struct jw w;
    buf_clear(&s->json);
    jw_init(&w, &s->json);
    jw_obj(&w);
    jw_kstrz(&w, "type", type);
    return w;
}

static void event_end(struct api_stream *s, struct jw *w, const char *type, struct buf *out)
{
    jw_obj_end(w);
    out->failed |= s->json.failed;
    sse_event(out, type, buf_str(&s->json));
}

static struct api_stream *messages_stream_begin(const struct api_model *m,
                                                const struct api_request *r, struct buf *out)
{
    struct api_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->r = r;
    struct api_usage u = {.prompt_tokens = r->prompts[0].n_ids};
    struct jw w = event_begin(s, "message_start");
    jw_key(&w, "message");
    jw_obj(&w);
    message_head(&w, m, r);
    jw_key(&w, "content");
    jw_arr(&w);
    jw_arr_end(&w);
    jw_knull(&w, "stop_reason");
    jw_knull(&w, "stop_sequence");
    write_usage(&w, &u);
    jw_obj_end(&w);
    event_end(s, &w, "message_start", out);
    return s;
}

/* delta: one string member of the open block. */
static void delta(struct api_stream *s, const char *type, const char *key, struct str text,
                  struct buf *out)
{
    struct jw w = event_begin(s, "content_block_delta");
    jw_ki64(&w, "index", s->index);
    jw_key(&w, "delta");
    jw_obj(&w);
    jw_kstrz(&w, "type", type);
    jw_kstr(&w, key, text);
    jw_obj_end(&w);
    event_end(s, &w, "content_block_delta", out);
}

static void close_block(struct api_stream *s, struct buf *out)
{
    if (s->open == BLOCK_NONE)
        return;
    if (s->open == BLOCK_THINKING)
        delta(s, "signature_delta", "signature", STR_LIT(""), out);
    struct jw w = event_begin(s, "content_block_stop");
    jw_ki64(&w, "index", s->index);
    event_end(s, &w, "content_block_stop", out);
    s->open = BLOCK_NONE;
    s->index++;
}

static void open_block(struct api_stream *s, enum block kind, const struct api_event *ev,
                       struct buf *out)
{
    if (s->open == kind && kind != BLOCK_CALL)
        return;
    close_block(s, out);
    s->open = kind;
    struct jw w = event_begin(s, "content_block_start");
    jw_ki64(&w, "index", s->index);
    jw_key(&w, "content_block");
    if (kind == BLOCK_THINKING) {
        write_thinking(&w, STR_LIT(""));
    } else if (kind == BLOCK_TEXT) {
        write_text(&w, STR_LIT(""));
    } else {
        jw_obj(&w);
        jw_kstrz(&w, "type", "tool_use");
        jw_kstr(&w, "id", ev->call_id);
        jw_kstr(&w, "name", ev->call_name);
        jw_key(&w, "input");
        jw_raw(&w, STR_LIT("{}"));
        jw_obj_end(&w);
    }
    event_end(s, &w, "content_block_start", out);
}

static void text_event(struct api_stream *s, const struct api_event *ev, struct buf *out)
{
    if (ev->text.n == 0)
        return;
    open_block(s, BLOCK_TEXT, ev, out);
    delta(s, "text_delta", "text", ev->text, out);
}

static void finish_event(struct api_stream *s, const struct api_event *ev, struct buf *out)
{
    text_event(s, ev, out);
    s->finish = ev->finish;
    s->stop = ev->stop;
    if (s->index == 0 && s->open == BLOCK_NONE)
        open_block(s, BLOCK_TEXT, ev, out);
    close_block(s, out);
}

static void end_events(struct api_stream *s, const struct api_event *ev, struct buf *out)
{
    struct jw w = event_begin(s, "message_delta");
    jw_key(&w, "delta");
    jw_obj(&w);
    stop_members(&w, s->finish, s->stop);
    jw_obj_end(&w);
    write_usage(&w, &ev->usage);
    event_end(s, &w, "message_delta", out);
    w = event_begin(s, "message_stop");
    event_end(s, &w, "message_stop", out);
}

static void messages_stream_event(struct api_stream *s, const struct api_event *ev, struct buf *out)
{
    switch (ev->kind) {
    case API_EV_TEXT:
        text_event(s, ev, out);
        break;
    case API_EV_REASONING:
        if (ev->text.n == 0)
            break;
        open_block(s, BLOCK_THINKING, ev, out);
        delta(s, "thinking_delta", "thinking", ev->text, out);
        break;
    case API_EV_CALL:
        open_block(s, BLOCK_CALL, ev, out);
        break;
    case API_EV_CALL_ARGS:
        if (ev->text.n > 0 && s->open == BLOCK_CALL)
            delta(s, "input_json_delta", "partial_json", ev->text, out);
        break;
    case API_EV_FINISH:
        finish_event(s, ev, out);
        break;
    case API_EV_END:
        end_events(s, ev, out);
        break;
    case API_EV_ERROR:
        buf_clear(&s->json);
        write_error(&ev->err, &s->json);
        out->failed |= s->json.failed;
        sse_event(out, "error", buf_str(&s->json));
        break;
    default:
        break;
    }
}

static void messages_stream_free(struct api_stream *s)
{
    if (!s)
        return;
    buf_free(&s->json);
    free(s);
}

const struct api_dialect dialect_anthropic = {
    .name = "anthropic messages",
    .id_prefix = "msg_",
    .parse = anthropic_parse,
    .answer = messages_answer,
    .stream_begin = messages_stream_begin,
    .stream_event = messages_stream_event,
    .stream_free = messages_stream_free,
    .error = write_error,
};

/* ---- count_tokens ----------------------------------------------------------------------------
 */

static const struct api_dialect dialect_count = {
    .name = "anthropic count_tokens", .id_prefix = "msg_", .parse = anthropic_parse_count};

enum qn_status anthropic_count_tokens(const struct api_model *m, struct str body, struct buf *out,
                                      struct api_error *e)
{
    struct api_request r;
    enum qn_status st = api_request_read(&dialect_count, m, body, &r, e);
    if (st == QN_OK)
        st = api_tokenise(m, &r, e);
    if (st == QN_OK)
        buf_addf(out, "{\"input_tokens\":%d}", r.prompts[0].n_ids);
    api_request_free(&r);
    return st;
}
