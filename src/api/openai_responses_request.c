/*
 * openai_responses_request.c - bodies of the OpenAI Responses dialect: checked here with this
 * dialect's names, then rewritten as an OpenAI chat body (r->shaped), so that templates, tools and
 * reasoning have one way into a prompt. The items of an earlier answer come from the store.
 */
#include "api/openai_responses.h"

#include "api/api_fields.h"
#include "api/api_format.h"
#include "api/openai_messages.h"
#include "api/resp_store.h"
#include "api/turns.h"

#define HISTORY_MEMORY ((size_t)256 << 20) /* json_memory of the items of an earlier answer */
#define SHOWN(s)       ((s).n > 60 ? 60 : (int)(s).n), (s).p ? (s).p : ""

struct shaper {
    struct api_request *r;
    struct turns t;
    struct buf system; /* instructions, system and developer items: one message in front */
    struct api_error *e;
};

static bool is_type(const struct json *v, const char *type)
{
    return str_eqz(json_str(json_get(v, "type")), type);
}

/* ---- items -----------------------------------------------------------------------------------
 */

/* The text of a string or of text parts. */
static enum qn_status join_parts(const struct json *content, const char *at, struct buf *out,
                                 struct api_error *e)
{
    if (json_type(content) == JSON_STR) {
        buf_add_str(out, json_str(content));
        return QN_OK;
    }
    if (json_type(content) != JSON_ARR)
        return field_bad(e, at, content, "a string or an array of text parts");
    for (size_t i = 0; i < json_len(content); i++) {
        const struct json *part = json_at(content, i);
        struct str type = json_str(json_get(part, "type"));
        struct field_name name = field_name("%s[%zu].type", at, i);
        const char *key = str_eqz(type, "refusal") ? "refusal" : "text";
        if (!type.p)
            return field_bad(e, name.s, json_get(part, "type"), "\"input_text\"");
        if (!str_eqz(type, "input_text") && !str_eqz(type, "output_text") &&
            !str_eqz(type, "text") && !str_eqz(type, "refusal"))
            return api_refuse(e, 400, "unsupported_content", name.s,
                              "%s is \"%.*s\"; this model reads text parts only", name.s,
                              SHOWN(type));
        name = field_name("%s[%zu].%s", at, i, key);
        if (json_type(json_get(part, key)) != JSON_STR)
            return field_bad(e, name.s, json_get(part, key), "a string");
        buf_add_str(out, json_str(json_get(part, key)));
    }
    return QN_OK;
}

static enum qn_status add_system(struct shaper *s, struct str text)
{
    if (text.n > 0 && s->system.n > 0)
        buf_addz(&s->system, "\n\n");
    buf_add_str(&s->system, text);
    return s->system.failed ? api_no_memory(s->e) : QN_OK;
}

static enum qn_status add_message(struct shaper *s, const struct json *item, const char *at)
{
    struct str role = json_str(json_get(item, "role"));
    struct field_name name = field_name("%s.content", at);
    struct buf text = BUF_INIT;
    bool system = str_eqz(role, "system") || str_eqz(role, "developer");
    bool assistant = str_eqz(role, "assistant");
    if (!system && !assistant && !str_eqz(role, "user")) {
        name = field_name("%s.role", at);
        return field_bad(s->e, name.s, json_get(item, "role"),
                         "user, assistant, system or developer");
    }
    enum qn_status st = join_parts(json_get(item, "content"), name.s, &text, s->e);
    if (st == QN_OK && text.failed)
        st = api_no_memory(s->e);
    if (st == QN_OK && system)
        st = add_system(s, buf_str(&text));
    else if (st == QN_OK && assistant) {
        if (s->t.has_text)
            turns_close(&s->t);
        turns_text(&s->t, buf_str(&text));
    } else if (st == QN_OK)
        turns_message(&s->t, "user", buf_str(&text));
    buf_free(&text);
    return st;
}

static enum qn_status add_call(struct shaper *s, const struct json *item, const char *at)
{
    static const char *const keys[] = {"call_id", "name", "arguments"};
    struct str v[3];
    for (int i = 0; i < 3; i++) {
        struct field_name name = field_name("%s.%s", at, keys[i]);
        v[i] = json_str(json_get(item, keys[i]));
        if (!v[i].p || (i < 2 && v[i].n == 0))
            return field_bad(s->e, name.s, json_get(item, keys[i]), "a string");
    }
    turns_call(&s->t, v[0], v[1], v[2]);
    return QN_OK;
}

static enum qn_status add_result(struct shaper *s, const struct json *item, const char *at)
{
    struct str id = json_str(json_get(item, "call_id"));
    struct field_name name = field_name("%s.call_id", at);
    struct buf text = BUF_INIT;
    if (id.n == 0)
        return field_bad(s->e, name.s, json_get(item, "call_id"), "the id of a function_call");
    name = field_name("%s.output", at);
    enum qn_status st = join_parts(json_get(item, "output"), name.s, &text, s->e);
    if (st == QN_OK && text.failed)
        st = api_no_memory(s->e);
    if (st == QN_OK)
        turns_result(&s->t, id, buf_str(&text));
    buf_free(&text);
    return st;
}

/* What the model thought, in full where the item has it, else the summary. */
static enum qn_status add_reasoning(struct shaper *s, const struct json *item, const char *at)
{
    const char *key = json_len(json_get(item, "content")) > 0 ? "content" : "summary";
    const struct json *list = json_get(item, key);
    for (size_t i = 0; i < json_len(list); i++) {
        const struct json *text = json_get(json_at(list, i), "text");
        struct field_name name = field_name("%s.%s[%zu].text", at, key, i);
        if (json_type(text) != JSON_STR)
            return field_bad(s->e, name.s, text, "a string");
        turns_reasoning(&s->t, json_str(text));
    }
    return QN_OK;
}

static enum qn_status add_item(struct shaper *s, const struct json *item, const char *at)
{
    struct str type = json_str(json_get(item, "type"));
    if (json_type(item) != JSON_OBJ)
        return field_bad(s->e, at, item,
                         "an object: a message, function_call or "
                         "function_call_output");
    if (str_eqz(type, "message") || (!type.p && json_has(item, "role")))
        return add_message(s, item, at);
    if (str_eqz(type, "function_call"))
        return add_call(s, item, at);
    if (str_eqz(type, "function_call_output"))
        return add_result(s, item, at);
    if (str_eqz(type, "reasoning"))
        return add_reasoning(s, item, at);
    struct field_name name = field_name("%s.type", at);
    if (!type.p)
        return field_bad(s->e, name.s, json_get(item, "type"), "the type of an item");
    return api_refuse(s->e, 400, "unsupported_content", name.s,
                      "%s is \"%.*s\"; expected message, function_call, function_call_output or "
                      "reasoning",
                      name.s, SHOWN(type));
}

static enum qn_status add_input(struct shaper *s, const struct json *input)
{
    if (json_type(input) == JSON_STR) {
        turns_message(&s->t, "user", json_str(input));
        return QN_OK;
    }
    if (json_type(input) != JSON_ARR || json_len(input) == 0)
        return field_bad(s->e, "input", input, "a string or an array of at least one item");
    for (size_t i = 0; i < json_len(input); i++) {
        struct field_name at = field_name("input[%zu]", i);
        QN_TRY(add_item(s, json_at(input, i), at.s));
    }
    return QN_OK;
}

static bool lend(struct resp_store *store, struct api_request *r, size_t bytes)
{
    if (bytes > HISTORY_MEMORY || !resp_store_lend(store, bytes))
        return false;
    r->lender = store;
    r->lent_bytes = bytes;
    return true;
}

/* The talk that the named answer ended. */
static enum qn_status add_history(const struct api_model *m, struct shaper *s)
{
    struct buf b = BUF_INIT;
    struct str id = {NULL, 0};
    struct qn_err err = {0};
    QN_TRY(field_str(s->r->body, "previous_response_id", &id, s->e));
    if (!id.p)
        return QN_OK;
    buf_addc(&b, '[');
    bool found = m->responses && resp_store_get(m->responses, id, NULL, &b);
    buf_addc(&b, ']');
    enum qn_status st = QN_OK;
    if (!found)
        st = api_refuse(s->e, 404, "previous_response_not_found", "previous_response_id",
                        "previous_response_id \"%.*s\" is not known here: answers are kept for an "
                        "hour, and only with \"store\": true",
                        SHOWN(id));
    else if (b.failed || !lend(m->responses, s->r, json_memory(buf_str(&b))))
        st = api_no_memory(s->e);
    else if (json_parse(buf_str(&b), "history", JSON_DEPTH_MAX + 2, &s->r->history, &err) != QN_OK)
        st = api_refuse_err(s->e, &err, "previous_response_id");
    buf_free(&b);
    for (size_t i = 0; st == QN_OK && i < json_len(s->r->history); i++)
        st = add_item(s, json_at(s->r->history, i), "history");
    return st;
}

static enum qn_status add_messages(const struct api_model *m, struct shaper *s)
{
    const struct json *o = s->r->body;
    struct str instructions = {NULL, 0};
    QN_TRY(field_str(o, "instructions", &instructions, s->e));
    QN_TRY(add_system(s, instructions));
    QN_TRY(add_history(m, s));
    QN_TRY(add_input(s, json_get(o, "input")));
    if (!turns_end(&s->t))
        return api_no_memory(s->e);
    if (s->t.out.n == 0 && s->system.n == 0)
        return api_refuse(s->e, 400, "invalid_value", "input", "input holds no message");
    return QN_OK;
}

static void write_messages(struct jw *w, const struct shaper *s)
{
    jw_key(w, "messages");
    jw_arr(w);
    if (s->system.n > 0) {
        jw_obj(w);
        jw_kstrz(w, "role", "system");
        jw_kstr(w, "content", buf_str(&s->system));
        jw_obj_end(w);
    }
    if (s->t.out.n > 0)
        jw_raw(w, buf_str(&s->t.out));
    jw_arr_end(w);
}

/* ---- tools -----------------------------------------------------------------------------------
 */

bool responses_is_function(const struct json *tool)
{
    return is_type(tool, "function");
}

/* Whether tool_choice leaves this tool to the model. */
static bool allowed(const struct json *choice, struct str name)
{
    const struct json *list = json_get(choice, "tools");
    if (!is_type(choice, "allowed_tools"))
        return true;
    for (size_t i = 0; i < json_len(list); i++)
        if (str_eq(json_str(json_get(json_at(list, i), "name")), name))
            return true;
    return false;
}

static enum qn_status write_tool(struct jw *w, const struct json *tool, const struct json *choice,
                                 size_t i, struct api_error *e)
{
    struct str name = json_str(json_get(tool, "name")), text = {NULL, 0};
    const struct json *params = json_get(tool, "parameters");
    struct field_name f = field_name("tools[%zu].name", i);
    if (name.n == 0 || name.n > 256)
        return field_bad(e, f.s, json_get(tool, "name"), "a name of 1 to 256 bytes");
    f = field_name("tools[%zu].parameters", i);
    if (json_type(params) != JSON_OBJ && json_type(params) != JSON_NULL)
        return field_bad(e, f.s, params, "a JSON schema object");
    QN_TRY(field_str(tool, "description", &text, e));
    if (!allowed(choice, name))
        return QN_OK;
    jw_obj(w);
    jw_kstrz(w, "type", "function");
    jw_key(w, "function");
    jw_obj(w);
    jw_kstr(w, "name", name);
    if (text.p)
        jw_kstr(w, "description", text);
    if (params) {
        jw_key(w, "parameters");
        jw_value(w, params);
    }
    jw_obj_end(w);
    jw_obj_end(w);
    return QN_OK;
}

static enum qn_status write_choice(struct jw *w, const struct json *c, bool some,
                                   struct api_error *e)
{
    struct str mode = json_str(c), name = json_str(json_get(c, "name"));
    bool named = is_type(c, "function");
    if (is_type(c, "allowed_tools"))
        mode = json_str(json_get(c, "mode"));
    if (named && name.n == 0)
        return field_bad(e, "tool_choice.name", json_get(c, "name"), "the name of a tool");
    if (!named && !str_eqz(mode, "none") && !str_eqz(mode, "auto") && !str_eqz(mode, "required"))
        return field_bad(e, "tool_choice", c,
                         "none, auto, required, a function by name, or allowed_tools");
    if (!some && (named || str_eqz(mode, "required")))
        return api_refuse(e, 400, "invalid_value", "tool_choice",
                          "tool_choice asks for a tool, but no function tools are given");
    jw_key(w, "tool_choice");
    if (!named) {
        jw_str(w, mode);
        return QN_OK;
    }
    jw_obj(w);
    jw_kstrz(w, "type", "function");
    jw_key(w, "function");
    jw_obj(w);
    jw_kstr(w, "name", name);
    jw_obj_end(w);
    jw_obj_end(w);
    return QN_OK;
}

static enum qn_status write_tools(struct jw *w, const struct json *o, struct api_error *e)
{
    const struct json *tools = NULL, *choice = json_get(o, "tool_choice");
    bool parallel = true;
    size_t n = 0;
    QN_TRY(field_arr(o, "tools", &tools, e));
    QN_TRY(field_bool(o, "parallel_tool_calls", &parallel, e));
    jw_key(w, "tools");
    jw_arr(w);
    for (size_t i = 0; i < json_len(tools); i++) {
        struct field_name f = field_name("tools[%zu].type", i);
        if (json_type(json_get(json_at(tools, i), "type")) != JSON_STR)
            return field_bad(e, f.s, json_get(json_at(tools, i), "type"), "\"function\"");
        if (!responses_is_function(json_at(tools, i)))
            continue;
        QN_TRY(write_tool(w, json_at(tools, i), choice, i, e));
        n++;
    }
    jw_arr_end(w);
    jw_kbool(w, "parallel_tool_calls", parallel);
    return json_type(choice) == JSON_NULL ? QN_OK : write_choice(w, choice, n > 0, e);
}

/* ---- output ----------------------------------------------------------------------------------
 */

static enum qn_status write_reasoning(struct jw *w, const struct json *o, struct api_error *e)
{
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    const struct json *reasoning = NULL, *kwargs = NULL;
    QN_TRY(field_obj(o, "reasoning", &reasoning, e));
    QN_TRY(field_obj(o, "chat_template_kwargs", &kwargs, e));
    if (kwargs) {
        jw_key(w, "chat_template_kwargs");
        jw_value(w, kwargs);
    }
    const struct json *v = json_get(reasoning, "effort");
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (str_eqz(json_str(v), known[i])) {
            jw_kstr(w, "reasoning_effort", json_str(v));
            return QN_OK;
        }
    return field_bad(e, "reasoning.effort", v, "none, minimal, low, medium, high or xhigh");
}

/* text.format as response_format. */
static enum qn_status write_format(struct jw *w, const struct json *o, struct api_error *e)
{
    const struct json *text = NULL, *f = NULL;
    QN_TRY(field_obj(o, "text", &text, e));
    f = json_get(text, "format");
    if (json_type(f) == JSON_NULL || is_type(f, "text"))
        return QN_OK;
    bool schema = is_type(f, "json_schema");
    if (!schema && !is_type(f, "json_object"))
        return field_bad(e, "text.format.type", json_get(f, "type"),
                         "text, json_object or json_schema");
    if (schema && json_type(json_get(f, "schema")) != JSON_OBJ)
        return field_bad(e, "text.format.schema", json_get(f, "schema"), "a JSON schema object");
    jw_key(w, "response_format");
    jw_obj(w);
    jw_kstr(w, "type", json_str(json_get(f, "type")));
    if (schema) {
        jw_key(w, "json_schema");
        jw_value(w, f); /* name, schema, strict lie flat in it */
    }
    jw_obj_end(w);
    return QN_OK;
}

/* Fields that promise something this server does not do. */
static enum qn_status refuse_unsupported(const struct json *o, struct api_error *e)
{
    static const char *const fields[] = {"conversation", "prompt", "max_tool_calls"};
    bool background = false;
    QN_TRY(field_bool(o, "background", &background, e));
    if (background)
        return api_refuse(e, 400, "unsupported_parameter", "background",
                          "background answers are not supported by this server");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (json_has(o, fields[i]))
            return api_refuse(e, 400, "unsupported_parameter", fields[i],
                              "%s is not supported by this server", fields[i]);
    return QN_OK;
}

static enum qn_status logprobs_of(const struct json *o, struct api_request *r, struct api_error *e)
{
    const struct json *include = NULL;
    int32_t top = 0;
    bool on = false;
    QN_TRY(field_arr(o, "include", &include, e));
    QN_TRY(field_i32(o, "top_logprobs", 0, 20, &top, e));
    for (size_t i = 0; i < json_len(include); i++)
        on |= str_eqz(json_str(json_at(include, i)), "message.output_text.logprobs");
    r->sample.n_top = on ? top : -1;
    return QN_OK;
}

static enum qn_status control(const struct json *o, struct api_request *r, struct api_error *e)
{
    const struct json *meta = NULL;
    struct str truncation = {NULL, 0};
    bool store = true;
    QN_TRY(field_bool(o, "stream", &r->stream, e));
    QN_TRY(field_bool(o, "store", &store, e));
    QN_TRY(field_obj(o, "metadata", &meta, e));
    QN_TRY(field_str(o, "user", &r->user, e));
    QN_TRY(field_str(o, "safety_identifier", &r->user, e));
    QN_TRY(field_str(o, "truncation", &truncation, e));
    if (truncation.p && !str_eqz(truncation, "disabled") && !str_eqz(truncation, "auto"))
        return field_bad(e, "truncation", json_get(o, "truncation"), "auto or disabled");
    r->truncate = str_eqz(truncation, "auto");
    r->max_tokens = -1;
    return fields_max(o, "max_output_tokens", &r->max_tokens, e);
}

/* ---- the body --------------------------------------------------------------------------------
 */

static enum qn_status shape(const struct api_model *m, struct shaper *s)
{
    const struct json *o = s->r->body;
    struct buf b = BUF_INIT;
    struct jw w;
    QN_TRY(add_messages(m, s));
    jw_init(&w, &b);
    jw_obj(&w);
    write_messages(&w, s);
    enum qn_status st = write_tools(&w, o, s->e);
    if (st == QN_OK)
        st = write_reasoning(&w, o, s->e);
    if (st == QN_OK)
        st = write_format(&w, o, s->e);
    jw_obj_end(&w);
    if (st == QN_OK)
        st = api_request_shaped(s->r, &b, "input", s->e);
    buf_free(&b);
    return st;
}

enum qn_status responses_parse(const struct api_model *m, struct api_request *r,
                               struct api_error *e)
{
    const struct json *o = r->body;
    struct shaper s = {.r = r, .e = e};
    r->n = 1;
    QN_TRY(refuse_unsupported(o, e));
    QN_TRY(fields_sampling(m, o, r, e));
    QN_TRY(logprobs_of(o, r, e));
    QN_TRY(control(o, r, e));
    QN_TRY(fields_stop(o, "stop", r, e));
    enum qn_status st = shape(m, &s);
    turns_free(&s.t);
    buf_free(&s.system);
    QN_TRY(st);
    QN_TRY(openai_check_tools(r->shaped, r, e));
    QN_TRY(fields_format_as("text.format.schema", r->shaped, r, e));
    r->split_reasoning = true;
    return openai_chat_request(m, r->shaped, r, e);
}

/* ---- what is kept ----------------------------------------------------------------------------
 */

bool responses_stores(const struct api_model *m, const struct api_request *r)
{
    const struct json *v = json_get(r->body, "store");
    return m->responses && (json_type(v) != JSON_BOOL || json_bool(v));
}

static void add_items(const struct json *list, struct buf *out)
{
    for (size_t i = 0; i < json_len(list); i++) {
        if (out->n > 0)
            buf_addc(out, ',');
        json_w_value(out, json_at(list, i));
    }
}

void responses_items(const struct api_request *r, struct buf *out)
{
    const struct json *input = json_get(r->body, "input");
    add_items(r->history, out);
    add_items(input, out);
    if (json_type(input) != JSON_STR)
        return;
    if (out->n > 0)
        buf_addc(out, ',');
    buf_addz(out, "{\"type\":\"message\",\"role\":\"user\",\"content\":");
    json_w_str(out, json_str(input));
    buf_addc(out, '}');
}
