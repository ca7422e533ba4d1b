/*
 * openai_messages.c - checks of OpenAI-style messages and tools, and the request that the chat
 * template is rendered from. What a field means to a template is tmpl/chat.h's business.
 */
#include "api/openai_messages.h"

#include <stdio.h>

#include "api/api_fields.h"
#include "api/outparse.h"
#include "api/tools_plain.h"

static bool known_role(struct str s)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (str_eqz(s, roles[i]))
            return true;
    return false;
}

static enum qn_status check_part(const struct json *part, const char *at, struct api_error *e)
{
    struct field_name name;
    struct str type = json_str(json_get(part, "type"));
    if (json_type(part) != JSON_OBJ)
        return field_bad(e, at, part, "an object with \"type\" and \"text\"");
    name = field_name("%s.type", at);
    if (!type.p)
        return field_bad(e, name.s, json_get(part, "type"), "\"text\"");
    if (!str_eqz(type, "text") && !str_eqz(type, "input_text") && !str_eqz(type, "output_text"))
        return api_refuse(e, 400, "unsupported_content", name.s,
                          "%s is \"%.*s\"; this model reads text parts only", name.s,
                          type.n > 40 ? 40 : (int)type.n, type.p);
    name = field_name("%s.text", at);
    if (json_type(json_get(part, "text")) != JSON_STR)
        return field_bad(e, name.s, json_get(part, "text"), "a string");
    return QN_OK;
}

static enum qn_status check_content(const struct json *msg, bool may_be_null, const char *at,
                                    struct api_error *e)
{
    struct field_name name;
    const struct json *c = json_get(msg, "content");
    name = field_name("%s.content", at);
    switch (json_type(c)) {
    case JSON_STR:
        return QN_OK;
    case JSON_NULL:
        return may_be_null ? QN_OK : field_bad(e, name.s, c, "a string or an array of text parts");
    case JSON_ARR:
        for (size_t i = 0; i < json_len(c); i++) {
            struct field_name part = field_name("%s[%zu]", name.s, i);
            QN_TRY(check_part(json_at(c, i), part.s, e));
        }
        return QN_OK;
    default:
        return field_bad(e, name.s, c, "a string or an array of text parts");
    }
}

static enum qn_status check_call(const struct json *call, const char *at, struct api_error *e)
{
    struct field_name name;
    const struct json *fn = json_get(call, "function");
    name = field_name("%s.function", at);
    if (json_type(call) != JSON_OBJ || json_type(fn) != JSON_OBJ)
        return field_bad(e, name.s, fn, "an object with \"name\" and \"arguments\"");
    name = field_name("%s.function.name", at);
    if (json_type(json_get(fn, "name")) != JSON_STR)
        return field_bad(e, name.s, json_get(fn, "name"), "a string");
    enum json_type args = json_type(json_get(fn, "arguments"));
    name = field_name("%s.function.arguments", at);
    if (args != JSON_STR && args != JSON_OBJ && args != JSON_NULL)
        return field_bad(e, name.s, json_get(fn, "arguments"),
                         "JSON text in a string, or an object");
    return QN_OK;
}

static enum qn_status check_message(const struct json *msg, size_t i, struct api_error *e)
{
    struct field_name name;
    struct field_name where = field_name("messages[%zu]", i);
    const char *at = where.s;
    if (json_type(msg) != JSON_OBJ)
        return field_bad(e, at, msg, "an object with \"role\" and \"content\"");
    struct str role = json_str(json_get(msg, "role"));
    name = field_name("%s.role", at);
    if (!role.p || !known_role(role))
        return field_bad(e, name.s, json_get(msg, "role"),
                         "system, developer, user, assistant or tool");
    const struct json *calls = json_get(msg, "tool_calls");
    bool assistant = str_eqz(role, "assistant");
    name = field_name("%s.tool_calls", at);
    if (json_type(calls) != JSON_NULL && json_type(calls) != JSON_ARR)
        return field_bad(e, name.s, calls, "an array");
    for (size_t k = 0; k < json_len(calls); k++) {
        struct field_name call = field_name("%s.tool_calls[%zu]", at, k);
        QN_TRY(check_call(json_at(calls, k), call.s, e));
    }
    static const char *const texts[] = {"name", "tool_call_id", "reasoning", "reasoning_content"};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        const struct json *v = json_get(msg, texts[k]);
        name = field_name("%s.%s", at, texts[k]);
        if (json_type(v) != JSON_NULL && json_type(v) != JSON_STR)
            return field_bad(e, name.s, v, "a string");
    }
    return check_content(msg, assistant, at, e);
}

enum qn_status openai_check_messages(const struct json *body, struct api_error *e)
{
    const struct json *list = json_get(body, "messages");
    if (json_type(list) != JSON_ARR)
        return field_bad(e, "messages", list, "an array of at least one message");
    if (json_len(list) == 0)
        return api_refuse(e, 400, "invalid_value", "messages",
                          "messages is empty; expected at least one message");
    for (size_t i = 0; i < json_len(list); i++)
        QN_TRY(check_message(json_at(list, i), i, e));
    return QN_OK;
}

static enum qn_status check_tool(const struct json *tool, size_t i, struct api_error *e)
{
    struct field_name name;
    const struct json *fn = json_get(tool, "function");
    name = field_name("tools[%zu].type", i);
    if (json_type(tool) != JSON_OBJ || !str_eqz(json_str(json_get(tool, "type")), "function"))
        return field_bad(e, name.s, json_get(tool, "type"), "\"function\"");
    name = field_name("tools[%zu].function.name", i);
    struct str s = json_str(json_get(fn, "name"));
    if (s.n == 0 || s.n > 256)
        return field_bad(e, name.s, json_get(fn, "name"), "a name of 1 to 256 bytes");
    name = field_name("tools[%zu].function.parameters", i);
    enum json_type t = json_type(json_get(fn, "parameters"));
    if (t != JSON_OBJ && t != JSON_NULL)
        return field_bad(e, name.s, json_get(fn, "parameters"), "a JSON schema object");
    return QN_OK;
}

static bool tool_named(const struct json *tools, struct str name)
{
    for (size_t i = 0; i < json_len(tools); i++)
        if (str_eq(json_str(json_get(json_get(json_at(tools, i), "function"), "name")), name))
            return true;
    return false;
}

static struct str allowed_name(const struct json *allowed, size_t i)
{
    const struct json *row = json_at(json_get(allowed, "tools"), i);
    return json_str(json_get(json_get(row, "function"), "name"));
}

/* {"type":"allowed_tools","allowed_tools":{"mode","tools":[{"type","function":{"name"}}]}} */
static enum qn_status check_allowed(const struct json *allowed, const struct json *tools,
                                    struct api_request *r, struct api_error *e)
{
    static const char at[] = "tool_choice.allowed_tools";
    struct str mode = json_str(json_get(allowed, "mode"));
    const struct json *list = json_get(allowed, "tools");
    struct field_name name = field_name("%s.mode", at);
    r->tool_choice = str_eqz(mode, "required") ? API_TOOLS_REQUIRED : API_TOOLS_AUTO;
    if (r->tool_choice == API_TOOLS_AUTO && !str_eqz(mode, "auto"))
        return field_bad(e, name.s, json_get(allowed, "mode"), "auto or required");
    name = field_name("%s.tools", at);
    if (json_type(list) != JSON_ARR || json_len(list) == 0)
        return field_bad(e, name.s, list, "an array of at least one function by name");
    for (size_t i = 0; i < json_len(list); i++) {
        struct str s = allowed_name(allowed, i);
        name = field_name("%s.tools[%zu].function.name", at, i);
        if (!s.p)
            return field_bad(e, name.s, NULL, "the name of a tool");
        if (!tool_named(tools, s))
            return api_refuse(e, 400, "invalid_value", name.s,
                              "%s is \"%.*s\", which is not among the tools", name.s,
                              s.n > 80 ? 80 : (int)s.n, s.p);
    }
    return QN_OK;
}

static enum qn_status check_choice(const struct json *body, const struct json *tools,
                                   struct api_request *r, struct api_error *e)
{
    const struct json *c = json_get(body, "tool_choice");
    struct str s = json_str(c);
    r->tool_choice = str_eqz(s, "none") ? API_TOOLS_NONE : API_TOOLS_AUTO;
    if (json_type(c) == JSON_NULL || r->tool_choice == API_TOOLS_NONE || str_eqz(s, "auto"))
        return QN_OK;
    if (str_eqz(json_str(json_get(c, "type")), "allowed_tools"))
        return check_allowed(json_get(c, "allowed_tools"), tools, r, e);
    if (json_type(c) == JSON_OBJ) {
        struct str name = json_str(json_get(json_get(c, "function"), "name"));
        if (!name.p)
            return field_bad(e, "tool_choice.function.name", NULL, "the name of a tool");
        if (!tool_named(tools, name))
            return api_refuse(e, 400, "invalid_value", "tool_choice",
                              "tool_choice names \"%.*s\", which is not among the tools",
                              name.n > 80 ? 80 : (int)name.n, name.p);
        r->tool_choice = API_TOOLS_NAMED;
        r->tool_name = name;
    } else if (str_eqz(s, "required")) {
        r->tool_choice = API_TOOLS_REQUIRED;
    } else {
        return field_bad(e, "tool_choice", c, "none, auto, required or a named function");
    }
    if (json_len(tools) == 0)
        return api_refuse(e, 400, "invalid_value", "tool_choice",
                          "tool_choice asks for a call, but there are no tools");
    return QN_OK;
}

enum qn_status openai_check_tools(const struct json *body, struct api_request *r,
                                  struct api_error *e)
{
    const struct json *tools = NULL;
    r->parallel_tool_calls = true;
    QN_TRY(field_arr(body, "tools", &tools, e));
    for (size_t i = 0; i < json_len(tools); i++)
        QN_TRY(check_tool(json_at(tools, i), i, e));
    QN_TRY(check_choice(body, tools, r, e));
    return field_bool(body, "parallel_tool_calls", &r->parallel_tool_calls, e);
}

/* ---- the template's request --------------------------------------------------------------------
 */

static enum qn_status effort_of(const struct json *body, struct str *effort, struct api_error *e)
{
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    QN_TRY(field_str(body, "reasoning_effort", effort, e));
    if (!effort->p)
        return QN_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (str_eqz(*effort, known[i]))
            return QN_OK;
    return field_bad(e, "reasoning_effort", json_get(body, "reasoning_effort"),
                     "none, minimal, low, medium, high or xhigh");
}

static void add_member(struct buf *b, struct str key, const char *raw)
{
    if (b->n > 1)
        buf_addc(b, ',');
    json_w_str(b, key);
    buf_addc(b, ':');
    buf_addz(b, raw);
}

/* Whether to think: the explicit variable, then the effort, then the server's own setting. */
static enum api_thinking thinking_of(const struct api_model *m, const struct json *kwargs,
                                     struct str effort)
{
    const struct json *v = json_get(kwargs, "enable_thinking");
    bool on = json_type(v) == JSON_BOOL ? json_bool(v) : !str_eqz(effort, "none");
    if (json_type(v) != JSON_BOOL && !effort.p)
        return m->thinking;
    return on ? API_THINKING_ON : API_THINKING_OFF;
}

/* chat_template_kwargs with what reasoning_effort and --thinking imply; the explicit keys win. */
static void write_kwargs(struct jw *w, const struct json *kwargs, const struct api_request *r)
{
    struct json_iter it = {0};
    struct buf b = BUF_INIT;
    struct str effort = r->reasoning_effort;
    buf_addc(&b, '{');
    if (r->thinking != API_THINKING_UNSET && !json_has(kwargs, "enable_thinking"))
        add_member(&b, STR_LIT("enable_thinking"),
                   r->thinking == API_THINKING_ON ? "true" : "false");
    if (effort.p && !str_eqz(effort, "none") && !json_has(kwargs, "reasoning_effort")) {
        add_member(&b, STR_LIT("reasoning_effort"), "");
        json_w_str(&b, str_eqz(effort, "minimal") ? STR_LIT("low") : effort);
    }
    while (json_next(kwargs, &it)) {
        add_member(&b, it.key, "");
        json_w_value(&b, it.val);
    }
    buf_addc(&b, '}');
    if (b.failed)
        w->out->failed = true;
    else
        jw_raw(w, buf_str(&b));
    buf_free(&b);
}

static bool ends_with_prefill(const struct json *body)
{
    const struct json *list = json_get(body, "messages");
    const struct json *last = json_at(list, json_len(list) - 1);
    return str_eqz(json_str(json_get(last, "role")), "assistant") &&
           json_len(json_get(last, "tool_calls")) == 0;
}

/* The tools that tool_choice leaves to the model; NULL = none. *doc owns them where that is not
 * all. */
static enum qn_status shown_tools(const struct json *body, const struct api_request *r,
                                  const struct json **out, struct json **doc, struct qn_err *err)
{
    const struct json *tools = json_get(body, "tools"), *c = json_get(body, "tool_choice");
    const struct json *allowed = json_get(c, "allowed_tools");
    struct buf b = BUF_INIT;
    struct jw w;
    *out = json_len(tools) > 0 && r->tool_choice != API_TOOLS_NONE ? tools : NULL;
    if (!*out || !str_eqz(json_str(json_get(c, "type")), "allowed_tools"))
        return QN_OK;
    jw_init(&w, &b);
    jw_arr(&w);
    for (size_t i = 0; i < json_len(tools); i++) {
        struct str name = json_str(json_get(json_get(json_at(tools, i), "function"), "name"));
        bool keep = false;
        for (size_t k = 0; !keep && k < json_len(json_get(allowed, "tools")); k++)
            keep = str_eq(name, allowed_name(allowed, k));
        if (keep)
            jw_value(&w, json_at(tools, i));
    }
    jw_arr_end(&w);
    enum qn_status st = buf_ok(&b, "tools", err);
    if (st == QN_OK)
        st = json_parse(buf_str(&b), "tools", JSON_DEPTH_MAX, doc, err);
    *out = *doc;
    buf_free(&b);
    return st;
}

/* Tools to be shown, or calls and results in the history. */
static bool talks_of_tools(const struct json *body, const struct json *tools)
{
    const struct json *list = json_get(body, "messages");
    bool any = tools != NULL;
    for (size_t i = 0; i < json_len(list) && !any; i++) {
        struct str role = json_str(json_get(json_at(list, i), "role"));
        any = str_eqz(role, "tool") || str_eqz(role, "function") ||
              json_len(json_get(json_at(list, i), "tool_calls")) > 0;
    }
    return any;
}

/* What the template is rendered from. */
static void write_chat(struct jw *w, const struct api_model *m, const struct json *body,
                       const struct api_request *r, const struct json *tools)
{
    jw_key(w, "messages");
    if (m->syntax && !m->syntax->knows_tools && talks_of_tools(body, tools))
        tools_plain_messages(w, json_get(body, "messages"), tools);
    else
        jw_value(w, json_get(body, "messages"));
    if (tools) {
        jw_key(w, "tools");
        jw_value(w, tools);
    }
}

enum qn_status openai_chat_request(const struct api_model *m, const struct json *body,
                                   struct api_request *r, struct api_error *e)
{
    const struct json *kwargs = NULL, *documents = NULL;
    bool prefill = ends_with_prefill(body), generation = true;
    QN_TRY(field_obj(body, "chat_template_kwargs", &kwargs, e));
    QN_TRY(field_arr(body, "documents", &documents, e));
    QN_TRY(effort_of(body, &r->reasoning_effort, e));
    QN_TRY(field_i32(body, "thinking_budget", 0, INT32_MAX, &r->thinking_budget, e));
    r->thinking = thinking_of(m, kwargs, r->reasoning_effort);
    QN_TRY(field_bool(body, "continue_final_message", &prefill, e));
    QN_TRY(field_bool(body, "add_generation_prompt", &generation, e));

    const struct json *tools = NULL;
    struct json *some = NULL;
    struct qn_err err = {0};
    struct buf b = BUF_INIT;
    struct jw w;
    if (shown_tools(body, r, &tools, &some, &err) != QN_OK)
        return api_refuse_err(e, &err, "tools");
    jw_init(&w, &b);
    jw_obj(&w);
    write_chat(&w, m, body, r, tools);
    json_free(some);
    if (documents) {
        jw_key(&w, "documents");
        jw_value(&w, documents);
    }
    jw_kbool(&w, "add_generation_prompt", generation && !prefill);
    jw_kbool(&w, "continue_final_message", prefill);
    if (kwargs || r->thinking != API_THINKING_UNSET) {
        jw_key(&w, "chat_template_kwargs");
        write_kwargs(&w, kwargs, r);
    }
    jw_obj_end(&w);

    enum qn_status st = buf_ok(&b, "chat request", &err);
    if (st == QN_OK)
        st = json_parse(buf_str(&b), "messages", JSON_DEPTH_MAX + 2, &r->chat, &err);
    buf_free(&b);
    if (st != QN_OK)
        return api_refuse_err(e, &err, "messages");
    r->tools = json_get(r->chat, "tools");
    return QN_OK;
}
