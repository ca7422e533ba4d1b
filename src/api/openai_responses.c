/*
 * openai_responses.c - the OpenAI Responses dialect: events to its stream, answer to JSON, kept
 * answers. Only translates; openai_responses_request.c reads the bodies.
 *
 * An answer is a list of items in the order they were made: reasoning, a message, function calls. A
 * stream opens and closes one after the other; every event has a sequence_number, from 0 without
 * holes. The last event carries the whole answer, the same JSON as without a stream.
 */
#include "api/openai_responses.h"

#include <stdlib.h>

#include "api/openai_common.h"
#include "api/resp_store.h"
#include "api/sse.h"
#include "base/clock.h"

enum item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };

/* One item of the output as far as it has come. */
struct out_item {
    enum item kind;
    char id[40];
    struct str text;          /* of reasoning and messages; the arguments of a call */
    struct str call_id, name; /* of a call */
    struct str logprobs;      /* elements, with commas */
    const char *status;       /* "in_progress" shows the item as it begins: empty */
};

static void new_id(enum item kind, char id[40])
{
    static const char *const prefix[] = {
        [ITEM_REASONING] = "rs_", [ITEM_MESSAGE] = "msg_", [ITEM_CALL] = "fc_"};
    api_make_id(prefix[kind], id);
}

/* ---- pieces ----------------------------------------------------------------------------------
 */

static void text_part(struct jw *w, struct str text, struct str logprobs)
{
    jw_obj(w);
    jw_kstrz(w, "type", "output_text");
    jw_kstr(w, "text", text);
    jw_key(w, "annotations");
    jw_arr(w);
    jw_arr_end(w);
    jw_key(w, "logprobs");
    jw_arr(w);
    if (logprobs.n > 0)
        jw_raw(w, logprobs);
    jw_arr_end(w);
    jw_obj_end(w);
}

static void summary_part(struct jw *w, struct str text)
{
    jw_obj(w);
    jw_kstrz(w, "type", "summary_text");
    jw_kstr(w, "text", text);
    jw_obj_end(w);
}

static void write_item(struct jw *w, const struct out_item *it)
{
    static const char *const types[] = {
        [ITEM_REASONING] = "reasoning", [ITEM_MESSAGE] = "message", [ITEM_CALL] = "function_call"};
    bool begins = strcmp(it->status, "in_progress") == 0;
    jw_obj(w);
    jw_kstrz(w, "id", it->id);
    jw_kstrz(w, "type", types[it->kind]);
    jw_kstrz(w, "status", it->status);
    if (it->kind == ITEM_CALL) {
        jw_kstr(w, "call_id", it->call_id);
        jw_kstr(w, "name", it->name);
        jw_kstr(w, "arguments", begins ? STR_LIT("") : it->text);
    } else if (it->kind == ITEM_MESSAGE) {
        jw_kstrz(w, "role", "assistant");
        jw_key(w, "content");
        jw_arr(w);
        if (!begins)
            text_part(w, it->text, it->logprobs);
        jw_arr_end(w);
    } else {
        jw_key(w, "summary");
        jw_arr(w);
        if (!begins)
            summary_part(w, it->text);
        jw_arr_end(w);
    }
    jw_obj_end(w);
}

/* ---- the whole object ------------------------------------------------------------------------
 */

struct outcome {
    const char *status;            /* "in_progress", "completed", "incomplete", "failed" */
    struct str output;             /* items, with commas */
    const struct api_usage *usage; /* NULL = not known yet */
    const struct api_error *err;
};

/* The member of the body, or what it means when it is absent: `absent` is JSON. */
static void echo(struct jw *w, const struct json *o, const char *key, const char *absent)
{
    jw_key(w, key);
    if (json_has(o, key))
        jw_value(w, json_get(o, key));
    else
        jw_raw(w, str_of(absent));
}

static void echo_tools(struct jw *w, const struct json *tools)
{
    jw_key(w, "tools");
    jw_arr(w);
    for (size_t i = 0; i < json_len(tools); i++) {
        const struct json *t = json_at(tools, i);
        if (!responses_is_function(t))
            continue;
        jw_obj(w);
        jw_kstrz(w, "type", "function");
        jw_kstr(w, "name", json_str(json_get(t, "name")));
        echo(w, t, "description", "null");
        echo(w, t, "parameters", "null");
        echo(w, t, "strict", "null");
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

static void echo_reasoning(struct jw *w, const struct json *o)
{
    const struct json *r = json_get(o, "reasoning");
    jw_key(w, "reasoning");
    jw_obj(w);
    echo(w, r, "effort", "null");
    echo(w, r, "summary", "null");
    jw_obj_end(w);
}

static void echo_text(struct jw *w, const struct json *o)
{
    const struct json *t = json_get(o, "text");
    jw_key(w, "text");
    jw_obj(w);
    echo(w, t, "format", "{\"type\":\"text\"}");
    echo(w, t, "verbosity", "\"medium\"");
    jw_obj_end(w);
}

static void write_usage(struct jw *w, const struct api_usage *u)
{
    jw_key(w, "usage");
    if (!u) {
        jw_null(w);
        return;
    }
    jw_obj(w);
    jw_ki64(w, "input_tokens", u->prompt_tokens);
    jw_key(w, "input_tokens_details");
    jw_obj(w);
    jw_ki64(w, "cached_tokens", u->cached_tokens);
    jw_ki64(w, "cache_write_tokens", 0);
    jw_obj_end(w);
    jw_ki64(w, "output_tokens", u->completion_tokens);
    jw_key(w, "output_tokens_details");
    jw_obj(w);
    jw_ki64(w, "reasoning_tokens", u->reasoning_tokens);
    jw_obj_end(w);
    jw_ki64(w, "total_tokens", u->prompt_tokens + u->completion_tokens);
    spec_counts_json(w, &u->spec);
    jw_obj_end(w);
}

static void write_outcome(struct jw *w, const struct outcome *x)
{
    bool cut = strcmp(x->status, "incomplete") == 0;
    bool done = cut || strcmp(x->status, "completed") == 0;
    jw_kstrz(w, "status", x->status);
    jw_key(w, "completed_at");
    if (done && !cut)
        jw_i64(w, clock_unix());
    else
        jw_null(w);
    jw_key(w, "error");
    if (x->err) {
        jw_obj(w);
        jw_kstrz(w, "code", x->err->status == 429 ? "rate_limit_exceeded" : "server_error");
        jw_kstrz(w, "message", x->err->msg);
        jw_obj_end(w);
    } else {
        jw_null(w);
    }
    jw_key(w, "incomplete_details");
    jw_raw(w, cut ? STR_LIT("{\"reason\":\"max_output_tokens\"}") : STR_LIT("null"));
    jw_key(w, "output");
    jw_arr(w);
    if (x->output.n > 0)
        jw_raw(w, x->output);
    jw_arr_end(w);
    write_usage(w, x->usage);
}

static void write_response(struct jw *w, const struct api_model *m, const struct api_request *r,
                           const struct outcome *x)
{
    const struct json *o = r->body;
    jw_obj(w);
    jw_kstrz(w, "id", r->id);
    jw_kstrz(w, "object", "response");
    jw_ki64(w, "created_at", r->created);
    jw_kstrz(w, "model", m->name);
    write_outcome(w, x);
    jw_kbool(w, "background", false);
    jw_kbool(w, "store", responses_stores(m, r));
    jw_kbool(w, "parallel_tool_calls", r->parallel_tool_calls);
    static const struct {
        const char *key, *absent;
    } echoed[] = {
        {"instructions", "null"},
        {"max_output_tokens", "null"},
        {"max_tool_calls", "null"},
        {"previous_response_id", "null"},
        {"prompt_cache_key", "null"},
        {"safety_identifier", "null"},
        {"user", "null"},
        {"metadata", "{}"},
        {"tool_choice", "\"auto\""},
        {"truncation", "\"disabled\""},
        {"top_logprobs", "0"},
    };
    for (size_t i = 0; i < sizeof echoed / sizeof *echoed; i++)
        echo(w, o, echoed[i].key, echoed[i].absent);
    jw_kstrz(w, "service_tier", "default");
    jw_key(w, "temperature");
    openai_logprob(w, r->sample.temperature);
    jw_key(w, "top_p");
    openai_logprob(w, r->sample.top_p);
    echo_reasoning(w, o);
    echo_text(w, o);
    echo_tools(w, json_get(o, "tools"));
    jw_obj_end(w);
}

/* The talk with this answer's items: what it thought is not said again. */
static void keep(const struct api_model *m, const struct api_request *r, struct str response,
                 struct str said)
{
    struct buf items = BUF_INIT;
    if (!responses_stores(m, r))
        return;
    responses_items(r, &items);
    if (items.n > 0 && said.n > 0)
        buf_addc(&items, ',');
    buf_add_str(&items, said);
    if (!items.failed)
        resp_store_put(m->responses, str_of(r->id), response, buf_str(&items));
    buf_free(&items);
}

/* Appends an item to the output, and to what is said when a later answer follows on. For want of
 * memory nothing of it: the event that tells of the failure holds the output so far. */
static void add_item(const struct out_item *it, struct buf *output, struct buf *said)
{
    struct buf *to[] = {output, said};
    for (int i = 0; i < 2; i++) {
        struct jw w;
        if (i == 1 && it->kind == ITEM_REASONING)
            break;
        size_t whole = to[i]->n;
        if (to[i]->n > 0)
            buf_addc(to[i], ',');
        jw_init(&w, to[i]);
        write_item(&w, it);
        if (to[i]->failed)
            to[i]->n = whole;
    }
}

/* ---- whole answers ---------------------------------------------------------------------------
 */

static const char *done_status(enum api_finish f)
{
    return f == API_FINISH_LENGTH ? "incomplete" : "completed";
}

/* With reasoning or calls the tokens of the text are not known among all of them. */
static void whole_logprobs(const struct api_model *m, const struct api_request *r,
                           const struct api_choice *c, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    if (r->sample.n_top >= 0 && c->reasoning.n == 0 && c->n_calls == 0)
        openai_logprob_rows(&w, m->tok, c->tokens, c->n_tokens);
}

static void responses_answer(const struct api_model *m, const struct api_request *r,
                             const struct api_answer *a, struct buf *out)
{
    const struct api_choice *c = &a->choices[0];
    struct buf output = BUF_INIT, said = BUF_INIT, lp = BUF_INIT;
    struct out_item it = {.kind = ITEM_REASONING, .status = "completed"};
    struct jw w;
    if (c->reasoning.n > 0) {
        new_id(it.kind, it.id);
        it.text = buf_str(&c->reasoning);
        add_item(&it, &output, &said);
    }
    if (c->text.n > 0 || c->n_calls == 0) {
        whole_logprobs(m, r, c, &lp);
        it = (struct out_item){.kind = ITEM_MESSAGE,
                               .text = buf_str(&c->text),
                               .logprobs = buf_str(&lp),
                               .status = c->n_calls ? "completed" : done_status(c->finish)};
        new_id(it.kind, it.id);
        add_item(&it, &output, &said);
    }
    for (size_t i = 0; i < c->n_calls; i++) {
        const struct api_call *call = &c->calls[i];
        bool last = i + 1 == c->n_calls;
        it = (struct out_item){.kind = ITEM_CALL,
                               .text = buf_str(&call->args),
                               .call_id = buf_str(&call->id),
                               .name = buf_str(&call->name),
                               .status = last ? done_status(c->finish) : "completed"};
        new_id(it.kind, it.id);
        add_item(&it, &output, &said);
    }
    struct outcome x = {done_status(c->finish), buf_str(&output), &a->usage, NULL};
    jw_init(&w, out);
    write_response(&w, m, r, &x);
    out->failed |= output.failed || said.failed || lp.failed;
    if (!out->failed)
        keep(m, r, buf_str(out), buf_str(&said));
    buf_free(&output);
    buf_free(&said);
    buf_free(&lp);
}

/* ---- streams ---------------------------------------------------------------------------------
 */

struct api_stream {
    const struct api_model *m;
    const struct api_request *r;
    int64_t seq, index; /* next sequence_number; index of the open or next item */
    struct out_item it; /* kind NONE: no item is open */
    struct buf text, call_id, name, logprobs; /* what `it` points at */
    struct buf pending;                       /* logprob rows of tokens whose text was held back */
    struct buf output, said;
    enum api_finish finish;
    struct buf json; /* scratch */
};

/* {"type":TYPE,"sequence_number":N, ...: the object stays open for more members. */
static struct jw event_begin(struct api_stream *s, const char *type)
{
    struct jw w;
    buf_clear(&s->json);
    jw_init(&w, &s->json);
    jw_obj(&w);
    jw_kstrz(&w, "type", type);
    jw_ki64(&w, "sequence_number", s->seq++);
    return w;
}

static void event_end(struct api_stream *s, struct jw *w, const char *type, struct buf *out)
{
    jw_obj_end(w);
    out->failed |= s->json.failed;
    sse_event(out, type, buf_str(&s->json));
}

static void response_event(struct api_stream *s, const char *type, const struct outcome *x,
                           struct buf *out)
{
    struct jw w = event_begin(s, type);
    jw_key(&w, "response");
    write_response(&w, s->m, s->r, x);
    event_end(s, &w, type, out);
}

static struct api_stream *responses_stream_begin(const struct api_model *m,
                                                 const struct api_request *r, struct buf *out)
{
    struct api_stream *s = calloc(1, sizeof *s);
    struct outcome x = {.status = "in_progress"};
    if (!s)
        return NULL;
    s->m = m;
    s->r = r;
    response_event(s, "response.created", &x, out);
    response_event(s, "response.in_progress", &x, out);
    return s;
}

static void item_event(struct api_stream *s, const char *type, struct buf *out)
{
    struct jw w = event_begin(s, type);
    jw_ki64(&w, "output_index", s->index);
    jw_key(&w, "item");
    write_item(&w, &s->it);
    event_end(s, &w, type, out);
}

/* The members that place a part in the answer. */
static struct jw part_begin(struct api_stream *s, const char *type)
{
    struct jw w = event_begin(s, type);
    jw_kstrz(&w, "item_id", s->it.id);
    jw_ki64(&w, "output_index", s->index);
    if (s->it.kind == ITEM_REASONING)
        jw_ki64(&w, "summary_index", 0);
    else if (s->it.kind == ITEM_MESSAGE)
        jw_ki64(&w, "content_index", 0);
    return w;
}

static void part_event(struct api_stream *s, const char *type, struct str text, struct buf *out)
{
    struct jw w = part_begin(s, type);
    jw_key(&w, "part");
    if (s->it.kind == ITEM_REASONING)
        summary_part(&w, text);
    else
        text_part(&w, text, text.n > 0 ? buf_str(&s->logprobs) : STR_LIT(""));
    event_end(s, &w, type, out);
}

static void open_item(struct api_stream *s, enum item kind, struct buf *out)
{
    s->it = (struct out_item){.kind = kind, .status = "in_progress"};
    s->it.call_id = buf_str(&s->call_id);
    s->it.name = buf_str(&s->name);
    buf_clear(&s->text);
    buf_clear(&s->logprobs);
    new_id(kind, s->it.id);
    item_event(s, "response.output_item.added", out);
    if (kind == ITEM_REASONING)
        part_event(s, "response.reasoning_summary_part.added", STR_LIT(""), out);
    else if (kind == ITEM_MESSAGE)
        part_event(s, "response.content_part.added", STR_LIT(""), out);
}

static void done_text(struct api_stream *s, struct buf *out)
{
    static const char *const types[] = {[ITEM_REASONING] = "response.reasoning_summary_text.done",
                                        [ITEM_MESSAGE] = "response.output_text.done",
                                        [ITEM_CALL] = "response.function_call_arguments.done"};
    struct jw w = part_begin(s, types[s->it.kind]);
    jw_kstr(&w, s->it.kind == ITEM_CALL ? "arguments" : "text", buf_str(&s->text));
    if (s->it.kind == ITEM_MESSAGE) {
        jw_key(&w, "logprobs");
        jw_arr(&w);
        if (s->logprobs.n > 0)
            jw_raw(&w, buf_str(&s->logprobs));
        jw_arr_end(&w);
    }
    event_end(s, &w, types[s->it.kind], out);
}

static void close_item(struct api_stream *s, const char *status, struct buf *out)
{
    if (s->it.kind == ITEM_NONE)
        return;
    done_text(s, out);
    if (s->it.kind == ITEM_REASONING)
        part_event(s, "response.reasoning_summary_part.done", buf_str(&s->text), out);
    else if (s->it.kind == ITEM_MESSAGE)
        part_event(s, "response.content_part.done", buf_str(&s->text), out);
    s->it.text = buf_str(&s->text);
    s->it.logprobs = buf_str(&s->logprobs);
    s->it.status = status;
    item_event(s, "response.output_item.done", out);
    add_item(&s->it, &s->output, &s->said);
    out->failed |= s->text.failed || s->output.failed || s->said.failed || s->logprobs.failed;
    s->it.kind = ITEM_NONE;
    s->index++;
}

static void delta(struct api_stream *s, struct str text, struct buf *out)
{
    static const char *const types[] = {[ITEM_REASONING] = "response.reasoning_summary_text.delta",
                                        [ITEM_MESSAGE] = "response.output_text.delta",
                                        [ITEM_CALL] = "response.function_call_arguments.delta"};
    buf_add_str(&s->text, text);
    struct jw w = part_begin(s, types[s->it.kind]);
    jw_kstr(&w, "delta", text);
    if (s->it.kind == ITEM_MESSAGE) {
        jw_key(&w, "logprobs");
        jw_arr(&w);
        if (s->pending.n > 0) {
            jw_raw(&w, buf_str(&s->pending));
            if (s->logprobs.n > 0)
                buf_addc(&s->logprobs, ',');
            buf_add_str(&s->logprobs, buf_str(&s->pending));
            buf_clear(&s->pending);
        }
        jw_arr_end(&w);
    }
    event_end(s, &w, types[s->it.kind], out);
}

static void text_event(struct api_stream *s, enum item kind, const struct api_event *ev,
                       struct buf *out)
{
    if (ev->token && kind == ITEM_MESSAGE) {
        struct jw w;
        if (s->pending.n > 0)
            buf_addc(&s->pending, ',');
        jw_init(&w, &s->pending);
        openai_logprob_rows(&w, s->m->tok, ev->token, 1);
        out->failed |= s->pending.failed;
    }
    if (ev->text.n == 0)
        return;
    if (s->it.kind != kind) {
        close_item(s, "completed", out);
        open_item(s, kind, out);
    }
    delta(s, ev->text, out);
}

static void call_event(struct api_stream *s, const struct api_event *ev, struct buf *out)
{
    close_item(s, "completed", out);
    buf_clear(&s->call_id);
    buf_clear(&s->name);
    buf_add_str(&s->call_id, ev->call_id);
    buf_add_str(&s->name, ev->call_name);
    out->failed |= s->call_id.failed || s->name.failed;
    open_item(s, ITEM_CALL, out);
}

static void finish_event(struct api_stream *s, const struct api_event *ev, struct buf *out)
{
    s->finish = ev->finish;
    text_event(s, ITEM_MESSAGE, ev, out);
    /* An answer always has a message or a call. */
    if (s->said.n == 0 && s->it.kind != ITEM_MESSAGE && s->it.kind != ITEM_CALL) {
        close_item(s, "completed", out);
        open_item(s, ITEM_MESSAGE, out);
    }
    close_item(s, done_status(ev->finish), out);
}

static void end_event(struct api_stream *s, const struct api_event *ev, struct buf *out)
{
    bool cut = s->finish == API_FINISH_LENGTH;
    const char *type = cut ? "response.incomplete" : "response.completed";
    struct outcome x = {done_status(s->finish), buf_str(&s->output), &ev->usage, NULL};
    struct buf whole = BUF_INIT;
    struct jw w;
    jw_init(&w, &whole);
    write_response(&w, s->m, s->r, &x);
    struct jw e = event_begin(s, type);
    jw_key(&e, "response");
    jw_raw(&e, buf_str(&whole));
    event_end(s, &e, type, out);
    out->failed |= whole.failed;
    if (!out->failed)
        keep(s->m, s->r, buf_str(&whole), buf_str(&s->said));
    buf_free(&whole);
}

static void responses_stream_event(struct api_stream *s, const struct api_event *ev,
                                   struct buf *out)
{
    struct outcome failed = {"failed", buf_str(&s->output), NULL, &ev->err};
    switch (ev->kind) {
    case API_EV_TEXT:
        text_event(s, ITEM_MESSAGE, ev, out);
        break;
    case API_EV_REASONING:
        text_event(s, ITEM_REASONING, ev, out);
        break;
    case API_EV_CALL:
        call_event(s, ev, out);
        break;
    case API_EV_CALL_ARGS:
        if (ev->text.n > 0 && s->it.kind == ITEM_CALL)
            delta(s, ev->text, out);
        break;
    case API_EV_FINISH:
        finish_event(s, ev, out);
        break;
    case API_EV_END:
        end_event(s, ev, out);
        break;
    case API_EV_ERROR:
        response_event(s, "response.failed", &failed, out);
        break;
    default:
        break;
    }
}

static void responses_stream_free(struct api_stream *s)
{
    if (!s)
        return;
    struct buf *all[] = {&s->text,    &s->call_id, &s->name, &s->logprobs,
                         &s->pending, &s->output,  &s->said, &s->json};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_free(all[i]);
    free(s);
}

const struct api_dialect dialect_openai_responses = {
    .name = "openai responses",
    .id_prefix = "resp_",
    .prompt_field = "input",
    .parse = responses_parse,
    .answer = responses_answer,
    .stream_begin = responses_stream_begin,
    .stream_event = responses_stream_event,
    .stream_free = responses_stream_free,
    .error = openai_error,
};

/* ---- kept answers ----------------------------------------------------------------------------
 */

enum qn_status responses_unknown(struct str id, struct api_error *e)
{
    return api_refuse(e, 404, "response_not_found", "response_id",
                      "there is no response \"%.*s\": answers are kept for an hour, and only with "
                      "\"store\": true",
                      id.n > 60 ? 60 : (int)id.n, id.p);
}

enum qn_status responses_get(const struct api_model *m, struct str id, struct buf *out,
                             struct api_error *e)
{
    return m->responses && resp_store_get(m->responses, id, out, NULL) ? QN_OK
                                                                       : responses_unknown(id, e);
}

enum qn_status responses_delete(const struct api_model *m, struct str id, struct buf *out,
                                struct api_error *e)
{
    struct jw w;
    if (!m->responses || !resp_store_delete(m->responses, id))
        return responses_unknown(id, e);
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstr(&w, "id", id);
    jw_kstrz(&w, "object", "response");
    jw_kbool(&w, "deleted", true);
    jw_obj_end(&w);
    return QN_OK;
}
