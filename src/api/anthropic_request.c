/*
 * anthropic_request.c - bodies of the Anthropic Messages dialect: checked here with this dialect's
 * names, then rewritten as an OpenAI-shaped body (r->shaped), so that templates, tools and
 * reasoning have one way into a prompt. Only translates.
 */
#include "api/anthropic.h"

#include "api/api_fields.h"
#include "api/api_format.h"
#include "api/openai_messages.h"
#include "api/turns.h"

#define SHOWN(s) ((s).n > 60 ? 60 : (int)(s).n), (s).p ? (s).p : ""

/* ---- content blocks --------------------------------------------------------------------------
 */

static enum qn_status text_of(const struct json *block, const char *at, struct str *text,
                              struct api_error *e)
{
    const struct json *v = json_get(block, "text");
    struct field_name name = field_name("%s.text", at);
    if (json_type(v) != JSON_STR)
        return field_bad(e, name.s, v, "a string");
    *text = json_str(v);
    return QN_OK;
}

static enum qn_status refuse_block(const struct json *block, const char *at, struct api_error *e)
{
    struct str type = json_str(json_get(block, "type"));
    struct field_name name = field_name("%s.type", at);
    if (!type.p)
        return field_bad(e, name.s, json_get(block, "type"), "the name of a content block");
    return api_refuse(e, 400, "unsupported_content", name.s,
                      "%s is \"%.*s\"; this model reads text only: expected text, thinking, "
                      "tool_use or tool_result blocks, or documents of plain text",
                      name.s, SHOWN(type));
}

/* A document of plain text, or of text blocks: its title and text. */
static enum qn_status document_text(const struct json *block, const char *at, struct buf *out,
                                    struct api_error *e)
{
    const struct json *src = json_get(block, "source");
    struct str type = json_str(json_get(src, "type")), title = json_str(json_get(block, "title"));
    const struct json *data = json_get(src, str_eqz(type, "text") ? "data" : "content");
    struct field_name name = field_name("%s.source", at);
    bool plain = str_eqz(type, "text") || str_eqz(type, "content");
    if (!plain)
        return api_refuse(e, 400, "unsupported_content", name.s,
                          "%s is of type \"%.*s\"; this model reads text only: expected \"text\"",
                          name.s, SHOWN(type));
    if (title.n > 0) {
        buf_add_str(out, title);
        buf_addz(out, "\n\n");
    }
    if (json_type(data) == JSON_STR) {
        buf_add_str(out, json_str(data));
        return QN_OK;
    }
    if (json_type(data) != JSON_ARR || str_eqz(type, "text"))
        return field_bad(e, name.s, data, "text");
    for (size_t i = 0; i < json_len(data); i++) {
        const struct json *part = json_at(data, i);
        struct field_name p = field_name("%s.content[%zu]", name.s, i);
        struct str text;
        if (!str_eqz(json_str(json_get(part, "type")), "text"))
            return refuse_block(part, p.s, e);
        QN_TRY(text_of(part, p.s, &text, e));
        buf_add_str(out, text);
    }
    return QN_OK;
}

/* Text and document blocks, or a string, joined with `sep`; refuses everything else. */
static enum qn_status join_text(const struct json *content, const char *at, const char *sep,
                                struct buf *out, struct api_error *e)
{
    if (json_type(content) == JSON_STR) {
        buf_add_str(out, json_str(content));
        return QN_OK;
    }
    if (json_type(content) != JSON_ARR)
        return field_bad(e, at, content, "a string or an array of content blocks");
    for (size_t i = 0; i < json_len(content); i++) {
        const struct json *block = json_at(content, i);
        struct field_name name = field_name("%s[%zu]", at, i);
        struct str type = json_str(json_get(block, "type")), text;
        if (i > 0)
            buf_addz(out, sep);
        if (str_eqz(type, "document")) {
            QN_TRY(document_text(block, name.s, out, e));
            continue;
        }
        if (!str_eqz(type, "text"))
            return refuse_block(block, name.s, e);
        QN_TRY(text_of(block, name.s, &text, e));
        buf_add_str(out, text);
    }
    return QN_OK;
}

/* ---- messages ---------------------------------------------------------------------------------
 */

/* Room for the texts that turns.h borrows until the end. */
struct shaper {
    struct api_request *r;
    struct turns t;
    struct api_error *e;
};

/* A string that lives as long as the request. */
static enum qn_status keep(struct shaper *s, struct buf *b, struct str *out)
{
    *out = b->failed ? (struct str){NULL, 0} : arena_str(s->r->arena, buf_str(b));
    buf_free(b);
    return out->p ? QN_OK : api_no_memory(s->e);
}

/* A result that failed says so, where its text does not. */
static enum qn_status add_result(struct shaper *s, const struct json *block, const char *at)
{
    struct str id = json_str(json_get(block, "tool_use_id")), text;
    struct field_name name = field_name("%s.tool_use_id", at);
    struct field_name content = field_name("%s.content", at);
    const struct json *c = json_get(block, "content");
    bool failed = false;
    struct buf b = BUF_INIT;
    if (id.n == 0)
        return field_bad(s->e, name.s, json_get(block, "tool_use_id"), "the id of a tool_use");
    QN_TRY(field_bool(block, "is_error", &failed, s->e));
    enum qn_status st = json_type(c) == JSON_NULL ? QN_OK : join_text(c, content.s, "", &b, s->e);
    if (st != QN_OK) {
        buf_free(&b);
        return st;
    }
    bool told = b.n >= 5 && (memcmp(b.p, "Error", 5) == 0 || memcmp(b.p, "error", 5) == 0);
    if (failed && !told) {
        struct buf with = BUF_INIT;
        buf_addz(&with, "Error: ");
        buf_add_str(&with, buf_str(&b));
        with.failed |= b.failed;
        buf_free(&b);
        b = with;
    }
    QN_TRY(keep(s, &b, &text));
    turns_result(&s->t, id, text);
    return QN_OK;
}

static bool is_type(const struct json *block, const char *type)
{
    return str_eqz(json_str(json_get(block, "type")), type);
}

/* Results come first, wherever they stand: the text of the turn was said after them. */
static enum qn_status add_user(struct shaper *s, const struct json *content, const char *at)
{
    struct buf text = BUF_INIT;
    enum qn_status st = QN_OK;
    bool said = false;
    for (size_t i = 0; st == QN_OK && i < json_len(content); i++) {
        const struct json *block = json_at(content, i);
        struct field_name name = field_name("%s[%zu]", at, i);
        struct str piece;
        if (is_type(block, "tool_result")) {
            st = add_result(s, block, name.s);
        } else if (is_type(block, "text")) {
            st = text_of(block, name.s, &piece, s->e);
            if (st == QN_OK)
                buf_add_str(&text, piece);
            said = true;
        } else if (is_type(block, "document")) {
            st = document_text(block, name.s, &text, s->e);
            said = true;
        } else {
            st = refuse_block(block, name.s, s->e);
        }
    }
    if (st == QN_OK && text.failed)
        st = api_no_memory(s->e);
    if (st == QN_OK && said)
        turns_message(&s->t, "user", buf_str(&text));
    buf_free(&text);
    return st;
}

static enum qn_status add_call(struct shaper *s, const struct json *block, const char *at)
{
    struct str id = json_str(json_get(block, "id")), name = json_str(json_get(block, "name"));
    const struct json *input = json_get(block, "input");
    struct field_name f = field_name("%s.id", at);
    struct buf args = BUF_INIT;
    struct str kept;
    if (id.n == 0)
        return field_bad(s->e, f.s, json_get(block, "id"), "a string");
    f = field_name("%s.name", at);
    if (name.n == 0)
        return field_bad(s->e, f.s, json_get(block, "name"), "the name of a tool");
    f = field_name("%s.input", at);
    if (json_type(input) != JSON_OBJ)
        return field_bad(s->e, f.s, input, "an object");
    json_w_value(&args, input);
    QN_TRY(keep(s, &args, &kept));
    turns_call(&s->t, id, name, kept);
    return QN_OK;
}

static enum qn_status add_assistant(struct shaper *s, const struct json *content, const char *at)
{
    for (size_t i = 0; i < json_len(content); i++) {
        const struct json *block = json_at(content, i);
        struct field_name name = field_name("%s[%zu]", at, i);
        struct str text;
        if (is_type(block, "text")) {
            QN_TRY(text_of(block, name.s, &text, s->e));
            turns_text(&s->t, text);
        } else if (is_type(block, "thinking")) {
            text = json_str(json_get(block, "thinking"));
            name = field_name("%s.thinking", name.s);
            if (!text.p)
                return field_bad(s->e, name.s, json_get(block, "thinking"), "a string");
            turns_reasoning(&s->t, text);
        } else if (is_type(block, "tool_use")) {
            QN_TRY(add_call(s, block, name.s));
        } else if (!is_type(block, "redacted_thinking")) {
            return refuse_block(block, name.s, s->e);
        }
    }
    return QN_OK;
}

static enum qn_status add_system(struct shaper *s, const struct json *content, const char *at)
{
    struct buf b = BUF_INIT;
    enum qn_status st = join_text(content, at, "\n\n", &b, s->e);
    if (st == QN_OK && b.failed)
        st = api_no_memory(s->e);
    if (st == QN_OK && b.n > 0)
        turns_message(&s->t, "system", buf_str(&b));
    buf_free(&b);
    return st;
}

static enum qn_status add_message(struct shaper *s, const struct json *msg, size_t i)
{
    struct field_name at = field_name("messages[%zu]", i);
    struct field_name name = field_name("%s.role", at.s);
    struct str role = json_str(json_get(msg, "role"));
    const struct json *c = json_get(msg, "content");
    if (json_type(msg) != JSON_OBJ)
        return field_bad(s->e, at.s, msg, "an object with \"role\" and \"content\"");
    bool user = str_eqz(role, "user"), assistant = str_eqz(role, "assistant");
    if (!user && !assistant && !str_eqz(role, "system"))
        return field_bad(s->e, name.s, json_get(msg, "role"), "user or assistant");
    name = field_name("%s.content", at.s);
    if (json_type(c) != JSON_STR && json_type(c) != JSON_ARR)
        return field_bad(s->e, name.s, c, "a string or an array of content blocks");
    if (user && json_type(c) == JSON_ARR && json_len(c) == 0)
        return api_refuse(s->e, 400, "invalid_value", name.s, "%s is empty", name.s);
    if (user && json_type(c) == JSON_STR)
        turns_message(&s->t, "user", json_str(c));
    else if (user)
        return add_user(s, c, name.s);
    else if (!assistant)
        return add_system(s, c, name.s);
    else if (json_type(c) == JSON_STR)
        turns_text(&s->t, json_str(c));
    else
        QN_TRY(add_assistant(s, c, name.s));
    turns_close(&s->t);
    return QN_OK;
}

static enum qn_status add_messages(struct shaper *s, const struct json *o)
{
    const struct json *list = json_get(o, "messages"), *sys = json_get(o, "system");
    if (json_type(list) != JSON_ARR)
        return field_bad(s->e, "messages", list, "an array of at least one message");
    if (json_len(list) == 0)
        return api_refuse(s->e, 400, "invalid_value", "messages",
                          "messages is empty; expected at least one message");
    if (json_type(sys) != JSON_NULL)
        QN_TRY(add_system(s, sys, "system"));
    for (size_t i = 0; i < json_len(list); i++)
        QN_TRY(add_message(s, json_at(list, i), i));
    if (!turns_end(&s->t))
        return api_no_memory(s->e);
    if (s->t.out.n == 0)
        return api_refuse(s->e, 400, "invalid_value", "messages", "messages hold no content");
    return QN_OK;
}

/* ---- tools ------------------------------------------------------------------------------------
 */

/* Tools that run on Anthropic's servers, or whose schema only its models know, are left out. */
static bool is_foreign(const struct json *tool)
{
    struct str type = json_str(json_get(tool, "type"));
    return type.p && !str_eqz(type, "custom") && !json_has(tool, "input_schema");
}

static enum qn_status write_tool(struct jw *w, const struct json *tool, size_t i,
                                 struct api_error *e)
{
    struct str name = json_str(json_get(tool, "name")), text = {NULL, 0};
    struct field_name f = field_name("tools[%zu]", i);
    if (json_type(tool) != JSON_OBJ)
        return field_bad(e, f.s, tool, "an object with \"name\" and \"input_schema\"");
    f = field_name("tools[%zu].name", i);
    if (name.n == 0 || name.n > 256)
        return field_bad(e, f.s, json_get(tool, "name"), "a name of 1 to 256 bytes");
    f = field_name("tools[%zu].input_schema", i);
    if (json_type(json_get(tool, "input_schema")) != JSON_OBJ)
        return field_bad(e, f.s, json_get(tool, "input_schema"), "a JSON schema object");
    QN_TRY(field_str(tool, "description", &text, e));
    jw_obj(w);
    jw_kstrz(w, "type", "function");
    jw_key(w, "function");
    jw_obj(w);
    jw_kstr(w, "name", name);
    if (text.p)
        jw_kstr(w, "description", text);
    jw_key(w, "parameters");
    jw_value(w, json_get(tool, "input_schema"));
    jw_obj_end(w);
    jw_obj_end(w);
    return QN_OK;
}

static enum qn_status write_choice(struct jw *w, const struct json *o, bool some,
                                   struct api_error *e)
{
    const struct json *c = NULL;
    bool alone = false;
    QN_TRY(field_obj(o, "tool_choice", &c, e));
    if (!c)
        return QN_OK;
    struct str type = json_str(json_get(c, "type")), name = json_str(json_get(c, "name"));
    bool any = str_eqz(type, "any"), named = str_eqz(type, "tool");
    if (!any && !named && !str_eqz(type, "auto") && !str_eqz(type, "none"))
        return field_bad(e, "tool_choice.type", json_get(c, "type"), "auto, any, tool or none");
    if (named && name.n == 0)
        return field_bad(e, "tool_choice.name", json_get(c, "name"), "the name of a tool");
    if ((any || named) && !some)
        return api_refuse(e, 400, "invalid_value", "tool_choice",
                          "tool_choice asks for a tool, but no tools are given");
    QN_TRY(field_bool(c, "disable_parallel_tool_use", &alone, e));
    jw_key(w, "tool_choice");
    if (named) {
        jw_obj(w);
        jw_kstrz(w, "type", "function");
        jw_key(w, "function");
        jw_obj(w);
        jw_kstr(w, "name", name);
        jw_obj_end(w);
        jw_obj_end(w);
    } else {
        jw_str(w, any ? STR_LIT("required") : type);
    }
    jw_kbool(w, "parallel_tool_calls", !alone);
    return QN_OK;
}

static enum qn_status write_tools(struct jw *w, const struct json *o, struct api_error *e)
{
    const struct json *tools = NULL;
    size_t n = 0;
    QN_TRY(field_arr(o, "tools", &tools, e));
    jw_key(w, "tools");
    jw_arr(w);
    for (size_t i = 0; i < json_len(tools); i++) {
        if (is_foreign(json_at(tools, i)))
            continue;
        QN_TRY(write_tool(w, json_at(tools, i), i, e));
        n++;
    }
    jw_arr_end(w);
    return write_choice(w, o, n > 0, e);
}

/* ---- thinking and output ----------------------------------------------------------------------
 */

/* thinking and output_config.effort as the variables and fields that the chat route knows. */
static enum qn_status write_thinking(struct jw *w, const struct json *o, struct api_error *e)
{
    static const char *const efforts[] = {"low", "medium", "high", "xhigh", "max"};
    const struct json *t = NULL, *out = NULL;
    struct str effort = {NULL, 0};
    int32_t budget = -1;
    QN_TRY(field_obj(o, "thinking", &t, e));
    QN_TRY(field_obj(o, "output_config", &out, e));
    QN_TRY(field_str(out, "effort", &effort, e));
    struct str type = json_str(json_get(t, "type"));
    bool on = str_eqz(type, "enabled") || str_eqz(type, "adaptive");
    if (t && !on && !str_eqz(type, "disabled"))
        return field_bad(e, "thinking.type", json_get(t, "type"), "enabled, adaptive or disabled");
    if (str_eqz(type, "enabled")) {
        if (field_i32(t, "budget_tokens", 1, INT32_MAX, &budget, e) != QN_OK || budget < 0)
            return field_bad(e, "thinking.budget_tokens", json_get(t, "budget_tokens"),
                             "an integer of at least 1");
        jw_ki64(w, "thinking_budget", budget);
    }
    bool known = !effort.p;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        known |= str_eqz(effort, efforts[i]);
    if (!known)
        return field_bad(e, "output_config.effort", json_get(out, "effort"),
                         "low, medium, high, xhigh or max");
    if (effort.p)
        jw_kstr(w, "reasoning_effort", str_eqz(effort, "max") ? STR_LIT("xhigh") : effort);
    const struct json *extra = NULL;
    QN_TRY(field_obj(o, "chat_template_kwargs", &extra, e));
    if (!t && !extra)
        return QN_OK;
    struct json_iter it = {0};
    struct buf b = BUF_INIT;
    buf_addf(&b, "{\"enable_thinking\":%s", on ? "true" : "false");
    if (!t)
        b.n = 1;
    while (json_next(extra, &it)) {
        if (t && str_eqz(it.key, "enable_thinking"))
            continue;
        if (b.n > 1)
            buf_addc(&b, ',');
        json_w_str(&b, it.key);
        buf_addc(&b, ':');
        json_w_value(&b, it.val);
    }
    buf_addc(&b, '}');
    jw_key(w, "chat_template_kwargs");
    jw_raw(w, buf_str(&b));
    w->out->failed |= b.failed;
    buf_free(&b);
    return QN_OK;
}

/* output_config.format, or its older name output_format, as response_format. */
static enum qn_status write_format(struct jw *w, const struct json *o, struct api_error *e)
{
    const struct json *out = NULL, *f = NULL;
    const char *name = "output_config.format";
    QN_TRY(field_obj(o, "output_config", &out, e));
    f = json_get(out, "format");
    if (json_type(f) == JSON_NULL) {
        f = json_get(o, "output_format");
        name = "output_format";
    }
    if (json_type(f) == JSON_NULL)
        return QN_OK;
    if (!str_eqz(json_str(json_get(f, "type")), "json_schema"))
        return api_refuse(e, 400, "invalid_value", name, "%s.type: expected \"json_schema\"", name);
    if (json_type(json_get(f, "schema")) != JSON_OBJ)
        return api_refuse(e, 400, "invalid_value", name, "%s.schema: expected a JSON schema object",
                          name);
    jw_key(w, "response_format");
    jw_obj(w);
    jw_kstrz(w, "type", "json_schema");
    jw_key(w, "json_schema");
    jw_obj(w);
    jw_kstrz(w, "name", "output");
    jw_key(w, "schema");
    jw_value(w, json_get(f, "schema"));
    jw_kbool(w, "strict", true);
    jw_obj_end(w);
    jw_obj_end(w);
    return QN_OK;
}

/* ---- the body ---------------------------------------------------------------------------------
 */

static enum qn_status shape(struct shaper *s, const struct json *o)
{
    struct buf b = BUF_INIT;
    struct jw w;
    QN_TRY(add_messages(s, o));
    jw_init(&w, &b);
    jw_obj(&w);
    jw_key(&w, "messages");
    jw_arr(&w);
    jw_raw(&w, buf_str(&s->t.out));
    jw_arr_end(&w);
    enum qn_status st = write_tools(&w, o, s->e);
    if (st == QN_OK)
        st = write_thinking(&w, o, s->e);
    if (st == QN_OK)
        st = write_format(&w, o, s->e);
    jw_obj_end(&w);
    if (st == QN_OK)
        st = api_request_shaped(s->r, &b, "messages", s->e);
    buf_free(&b);
    return st;
}

static enum qn_status shaped(const struct api_model *m, struct api_request *r, struct api_error *e)
{
    struct shaper s = {.r = r, .e = e};
    enum qn_status st = shape(&s, r->body);
    turns_free(&s.t);
    QN_TRY(st);
    QN_TRY(openai_check_tools(r->shaped, r, e));
    QN_TRY(fields_format_as("output_config.format.schema", r->shaped, r, e));
    r->split_reasoning = true;
    return openai_chat_request(m, r->shaped, r, e);
}

static enum qn_status metadata(const struct json *o, struct api_request *r, struct api_error *e)
{
    const struct json *meta = NULL;
    QN_TRY(field_obj(o, "metadata", &meta, e));
    if (field_str(meta, "user_id", &r->user, e) != QN_OK)
        return field_bad(e, "metadata.user_id", json_get(meta, "user_id"), "a string");
    return QN_OK;
}

enum qn_status anthropic_parse_count(const struct api_model *m, struct api_request *r,
                                     struct api_error *e)
{
    r->n = 1;
    r->max_tokens = 0;
    r->any_length = true;
    return shaped(m, r, e);
}

enum qn_status anthropic_parse(const struct api_model *m, struct api_request *r,
                               struct api_error *e)
{
    const struct json *o = r->body;
    r->n = 1;
    if (!json_has(o, "max_tokens"))
        return field_bad(e, "max_tokens", NULL, "an integer of at least 0");
    QN_TRY(fields_max_tokens(o, r, e));
    QN_TRY(fields_sampling(m, o, r, e));
    QN_TRY(fields_stop(o, "stop_sequences", r, e));
    QN_TRY(field_bool(o, "stream", &r->stream, e));
    QN_TRY(metadata(o, r, e));
    return shaped(m, r, e);
}
