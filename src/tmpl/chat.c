/*
 * chat.c - messages to prompt. Finds the folder's template and special tokens, rewrites the
 * request's messages into the form that templates expect (as transformers does before rendering),
 * and renders. A chat_tmpl is immutable after opening and may be used from several threads.
 */
#include "tmpl/chat.h"

#include <stdlib.h>

#include "base/file.h"

#define FILE_MAX     ((size_t)64 << 20)
#define TEMPLATE_MAX ((size_t)4 << 20)
#define PARSED_MAX   ((size_t)384 << 20) /* json_memory of the variables */
/* messages nest inside the variables, and arguments inside the messages */
#define VARS_DEPTH (2 * JSON_DEPTH_MAX + 16)

struct chat_tmpl {
    struct json *config;   /* tokenizer_config.json, or NULL */
    struct json *specials; /* special_tokens_map.json, or NULL */
    struct tmpl *normal, *tool_use;
    struct buf source; /* of the default template */
};

/* ---- opening ------------------------------------------------------------------------------- */

void chat_tmpl_free(struct chat_tmpl *c)
{
    if (!c)
        return;
    tmpl_free(c->normal);
    tmpl_free(c->tool_use);
    json_free(c->config);
    json_free(c->specials);
    buf_free(&c->source);
    free(c);
}

struct str chat_tmpl_source(const struct chat_tmpl *c)
{
    return buf_str(&c->source);
}

static enum qn_status compile_as(struct chat_tmpl *c, struct str name, struct str text,
                                 struct qn_err *err)
{
    bool normal = str_eqz(name, "default");
    struct tmpl **slot = normal ? &c->normal : &c->tool_use;
    if ((!normal && !str_eqz(name, "tool_use")) || *slot)
        return QN_OK;
    if (text.n > TEMPLATE_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "template", "chat template: %zu bytes; at most %zu are read",
                text.n, TEMPLATE_MAX);
    QN_TRY(tmpl_compile(text, slot, err));
    if (!normal)
        return QN_OK;
    buf_add_str(&c->source, text);
    return buf_ok(&c->source, "chat template", err);
}

/* A template, or a list of {name, template}. */
static enum qn_status compile_json(struct chat_tmpl *c, const struct json *v, const char *what,
                                   struct qn_err *err)
{
    if (json_type(v) == JSON_STR)
        return compile_as(c, STR_LIT("default"), json_str(v), err);
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    if (json_type(v) != JSON_ARR)
        QN_FAIL(err, QN_BAD_INPUT, "template",
                "%s: chat_template is %s; expected a string or a list of {name, template}", what,
                json_type_name(v));
    for (size_t i = 0; i < json_len(v); i++) {
        const struct json *x = json_at(v, i), *text = json_get(x, "template");
        if (json_type(text) != JSON_STR || json_type(json_get(x, "name")) != JSON_STR)
            QN_FAIL(err, QN_BAD_INPUT, "template",
                    "%s: chat_template[%zu] has no string \"name\" and \"template\"", what, i);
        QN_TRY(compile_as(c, json_str(json_get(x, "name")), json_str(text), err));
    }
    return QN_OK;
}

/* Reads DIR/name into out; *found = false when there is none. */
static enum qn_status read_in(const char *dir, const char *name, struct buf *out, bool *found,
                              struct qn_err *err)
{
    struct buf path = {0};
    path_join(&path, dir, name);
    enum qn_status s = buf_ok(&path, "path", err);
    *found = s == QN_OK && file_exists(buf_z(&path));
    if (*found)
        s = file_read(buf_z(&path), FILE_MAX, out, err);
    buf_free(&path);
    return s;
}

static enum qn_status open_jinja(struct chat_tmpl *c, const char *dir, const char *file,
                                 const char *name, struct qn_err *err)
{
    struct buf text = {0};
    bool found;
    enum qn_status s = read_in(dir, file, &text, &found, err);
    if (s == QN_OK && found)
        s = compile_as(c, str_of(name), buf_str(&text), err);
    buf_free(&text);
    return s;
}

static enum qn_status open_files(struct chat_tmpl *c, const char *dir, struct qn_err *err)
{
    struct json *file = NULL;
    QN_TRY(json_load_if(dir, "tokenizer_config.json", FILE_MAX, &c->config, err));
    QN_TRY(json_load_if(dir, "special_tokens_map.json", FILE_MAX, &c->specials, err));
    QN_TRY(open_jinja(c, dir, "chat_template.jinja", "default", err));
    QN_TRY(open_jinja(c, dir, "additional_chat_templates/tool_use.jinja", "tool_use", err));
    if (c->normal || c->tool_use)
        return QN_OK;
    QN_TRY(json_load_if(dir, "chat_template.json", FILE_MAX, &file, err));
    enum qn_status s = compile_json(c, json_get(file, "chat_template"), "chat_template.json", err);
    json_free(file);
    QN_TRY(s);
    if (c->normal || c->tool_use)
        return QN_OK;
    return compile_json(c, json_get(c->config, "chat_template"), "tokenizer_config.json", err);
}

static enum qn_status none_found(struct chat_tmpl *c, const char *where, struct qn_err *err)
{
    if (c->normal || c->tool_use)
        return QN_OK;
    QN_FAIL(err, QN_NOT_FOUND, "template",
            "%s has no chat template: neither chat_template.jinja, chat_template.json nor "
            "\"chat_template\" in tokenizer_config.json",
            where);
}

static enum qn_status finish(struct chat_tmpl *c, enum qn_status s, struct chat_tmpl **out)
{
    if (s != QN_OK) {
        chat_tmpl_free(c);
        return s;
    }
    *out = c;
    return QN_OK;
}

enum qn_status chat_tmpl_open(const char *dir, struct chat_tmpl **out, struct qn_err *err)
{
    *out = NULL;
    struct chat_tmpl *c = calloc(1, sizeof *c);
    if (!c)
        QN_FAIL(err, QN_NO_MEMORY, "template", "chat template: no memory");
    enum qn_status s = open_files(c, dir, err);
    if (s == QN_OK)
        s = none_found(c, dir, err);
    return finish(c, s, out);
}

enum qn_status chat_tmpl_from_json(struct str tokenizer_config, struct chat_tmpl **out,
                                   struct qn_err *err)
{
    *out = NULL;
    struct chat_tmpl *c = calloc(1, sizeof *c);
    if (!c)
        QN_FAIL(err, QN_NO_MEMORY, "template", "chat template: no memory");
    enum qn_status s =
        json_parse(tokenizer_config, "tokenizer_config.json", JSON_DEPTH_MAX, &c->config, err);
    if (s == QN_OK)
        s = compile_json(c, json_get(c->config, "chat_template"), "tokenizer_config.json", err);
    if (s == QN_OK)
        s = none_found(c, "tokenizer_config.json", err);
    return finish(c, s, out);
}

/* ---- messages ------------------------------------------------------------------------------ */

#define CONTINUE_TAG "CONTINUE_FINAL_MESSAGE_TAG "

static const char *const REASONING[] = {"reasoning_content", "thinking", "reasoning"};

struct writer {
    struct buf *out;
    struct qn_err *err;
    size_t index;
    bool tag; /* this message is to be continued: its content is marked */
};

/* `first` tells whether a comma is due, and is cleared. */
static void put_key(struct buf *out, bool *first, struct str key)
{
    if (!*first)
        buf_addc(out, ',');
    *first = false;
    json_w_str(out, key);
    buf_addc(out, ':');
}

static bool text_only(const struct json *parts)
{
    for (size_t i = 0; i < json_len(parts); i++) {
        const struct json *p = json_at(parts, i), *type = json_get(p, "type");
        bool text = json_type(type) == JSON_STR &&
                    (str_eqz(json_str(type), "text") || str_eqz(json_str(type), "input_text") ||
                     str_eqz(json_str(type), "output_text"));
        if (json_type(p) != JSON_OBJ || !text || json_type(json_get(p, "text")) != JSON_STR)
            return false;
    }
    return true;
}

static enum qn_status write_content(struct writer *m, const struct json *content)
{
    struct buf text = {0};
    bool parts = json_type(content) == JSON_ARR && text_only(content);
    if (!parts && json_type(content) != JSON_STR) {
        if (m->tag)
            QN_FAIL(m->err, QN_BAD_INPUT, "template",
                    "messages[%zu].content is %s; continue_final_message needs text", m->index,
                    json_type_name(content));
        json_w_value(m->out, content);
        return QN_OK;
    }
    buf_add_str(&text, json_str(content));
    for (size_t i = 0; parts && i < json_len(content); i++)
        buf_add_str(&text, json_str(json_get(json_at(content, i), "text")));
    if (m->tag)
        buf_addz(&text, CONTINUE_TAG);
    json_w_str(m->out, buf_str(&text));
    enum qn_status s = buf_ok(&text, "message content", m->err);
    buf_free(&text);
    return s;
}

/* Arguments that are the text of a JSON object become that object; the rest stays. */
static void write_arguments(struct buf *out, const struct json *v)
{
    struct json *doc = NULL;
    struct str text = json_str(v);
    if (json_type(v) == JSON_STR && text.n == 0)
        text = STR_LIT("{}");
    bool object = json_type(v) == JSON_STR && json_memory(text) <= PARSED_MAX &&
                  json_parse(text, "arguments", JSON_DEPTH_MAX, &doc, NULL) == QN_OK &&
                  json_type(doc) == JSON_OBJ;
    json_w_value(out, object ? doc : v);
    json_free(doc);
}

/* Copies an object, handing the member `key` to `write` (a call's function, its arguments). */
static void copy_with(struct buf *out, const struct json *v, const char *key,
                      void (*write)(struct buf *out, const struct json *v))
{
    struct json_iter it = {0};
    bool first = true;
    if (json_type(v) != JSON_OBJ) {
        json_w_value(out, v);
        return;
    }
    buf_addc(out, '{');
    while (json_next(v, &it)) {
        put_key(out, &first, it.key);
        if (str_eqz(it.key, key))
            write(out, it.val);
        else
            json_w_value(out, it.val);
    }
    buf_addc(out, '}');
}

static void write_function(struct buf *out, const struct json *v)
{
    copy_with(out, v, "arguments", write_arguments);
}

static void write_call(struct buf *out, const struct json *v)
{
    /* {"function": {...}} as OpenAI nests it, or the bare function */
    if (json_type(json_get(v, "function")) == JSON_OBJ)
        copy_with(out, v, "function", write_function);
    else
        write_function(out, v);
}

static void write_calls(struct buf *out, const struct json *v)
{
    if (json_type(v) != JSON_ARR) {
        json_w_value(out, v);
        return;
    }
    buf_addc(out, '[');
    for (size_t i = 0; i < json_len(v); i++) {
        if (i)
            buf_addc(out, ',');
        write_call(out, json_at(v, i));
    }
    buf_addc(out, ']');
}

/* One member of a message that is not null. */
static enum qn_status write_member(struct writer *m, struct str key, const struct json *v,
                                   const struct json *reasoning)
{
    if (str_eqz(key, "role") && str_eqz(json_str(v), "developer"))
        json_w_strz(m->out, "system");
    else if (str_eqz(key, "content"))
        return write_content(m, v);
    else if (str_eqz(key, "tool_calls"))
        write_calls(m->out, v);
    else
        json_w_value(m->out, str_eqz(key, "reasoning_content") ? reasoning : v);
    return QN_OK;
}

/* Members that are null are left out; reasoning gets all its names, `thinking` first, as
 * transformers orders them. */
static enum qn_status write_message(struct writer *m, const struct json *msg)
{
    const struct json *reasoning = NULL;
    struct json_iter it = {0};
    bool first = true;
    if (json_type(msg) != JSON_OBJ)
        QN_FAIL(m->err, QN_BAD_INPUT, "template", "messages[%zu] is %s; expected an object",
                m->index, json_type_name(msg));
    if (json_type(json_get(msg, "role")) != JSON_STR)
        QN_FAIL(m->err, QN_BAD_INPUT, "template", "messages[%zu].role is %s; expected a string",
                m->index, json_type_name(json_get(msg, "role")));
    if (m->tag && !json_has(msg, "content"))
        QN_FAIL(m->err, QN_BAD_INPUT, "template",
                "messages[%zu] has no content to continue (continue_final_message)", m->index);
    for (int i = 0; i < 3 && !reasoning; i++)
        reasoning = json_has(msg, REASONING[i]) ? json_get(msg, REASONING[i]) : NULL;
    buf_addc(m->out, '{');
    if (reasoning) {
        put_key(m->out, &first, STR_LIT("thinking"));
        json_w_value(m->out, json_has(msg, "thinking") ? json_get(msg, "thinking") : reasoning);
    }
    while (json_next(msg, &it)) {
        if (json_type(it.val) == JSON_NULL || (reasoning && str_eqz(it.key, "thinking")))
            continue;
        put_key(m->out, &first, it.key);
        QN_TRY(write_member(m, it.key, it.val, reasoning));
    }
    static const char *const copies[] = {"reasoning_content", "reasoning"};
    for (int i = 0; i < 2 && reasoning; i++)
        if (!json_has(msg, copies[i])) {
            put_key(m->out, &first, str_of(copies[i]));
            json_w_value(m->out, reasoning);
        }
    buf_addc(m->out, '}');
    return QN_OK;
}

/* ---- variables ----------------------------------------------------------------------------- */

struct prompt_opts {
    const struct json *request, *kwargs;
    bool proceed; /* continue_final_message */
};

static bool reserved(struct str key)
{
    return str_eqz(key, "messages") || str_eqz(key, "tools") || str_eqz(key, "documents");
}

/* bos_token and the like: a string, or an object with "content". */
static void write_specials(const struct chat_tmpl *c, const struct json *from,
                           const struct json *kwargs, struct buf *out)
{
    struct json_iter it = {0};
    bool first = false;
    while (json_next(from, &it)) {
        const struct json *v = json_type(it.val) == JSON_OBJ ? json_get(it.val, "content") : it.val;
        if (json_type(v) != JSON_STR || !str_ends(it.key, STR_LIT("_token")) ||
            json_get_str(kwargs, it.key))
            continue;
        if (from == c->specials && json_get_str(c->config, it.key))
            continue;
        put_key(out, &first, it.key);
        json_w_value(out, v);
    }
}

static enum qn_status write_kwargs(const struct json *kwargs, struct buf *out, struct qn_err *err)
{
    struct json_iter it = {0};
    bool first = false;
    while (json_next(kwargs, &it)) {
        if (reserved(it.key))
            QN_FAIL(err, QN_BAD_INPUT, "template",
                    "chat_template_kwargs.%.*s is not allowed: it is a field of the request",
                    STR_ARG(it.key));
        put_key(out, &first, it.key);
        json_w_value(out, it.val);
    }
    return QN_OK;
}

static enum qn_status write_vars(const struct chat_tmpl *c, const struct prompt_opts *o,
                                 struct buf *out, struct qn_err *err)
{
    const struct json *messages = json_get(o->request, "messages");
    const struct json *prompt = json_get(o->request, "add_generation_prompt");
    struct writer m = {.out = out, .err = err};
    bool first = false;
    buf_addz(out, "{\"messages\":[");
    for (m.index = 0; m.index < json_len(messages); m.index++) {
        if (m.index)
            buf_addc(out, ',');
        m.tag = o->proceed && m.index + 1 == json_len(messages);
        QN_TRY(write_message(&m, json_at(messages, m.index)));
    }
    buf_addc(out, ']');
    put_key(out, &first, STR_LIT("tools"));
    json_w_value(out, json_get(o->request, "tools"));
    put_key(out, &first, STR_LIT("documents"));
    json_w_value(out, json_get(o->request, "documents"));
    if (!json_get(o->kwargs, "add_generation_prompt")) {
        put_key(out, &first, STR_LIT("add_generation_prompt"));
        bool add = json_type(prompt) == JSON_BOOL ? json_bool(prompt) : true;
        buf_addz(out, add && !o->proceed ? "true" : "false");
    }
    write_specials(c, c->config, o->kwargs, out);
    write_specials(c, c->specials, o->kwargs, out);
    QN_TRY(write_kwargs(o->kwargs, out, err));
    buf_addc(out, '}');
    return buf_ok(out, "template variables", err);
}

/* ---- rendering ----------------------------------------------------------------------------- */

static size_t find_last(struct str hay, struct str needle)
{
    size_t hit = (size_t)-1;
    for (size_t i = 0; (i = str_find(hay, needle, i)) != (size_t)-1; i += needle.n)
        hit = i;
    return hit;
}

/* Cuts the prompt where the message to continue ends. When the template trimmed the message, the
 * white space before the mark goes too. */
static enum qn_status cut_at_tag(struct buf *text, struct qn_err *err)
{
    struct str tag = STR_LIT(CONTINUE_TAG), bare = {tag.p, tag.n - 1}, s = buf_str(text);
    size_t hit = find_last(s, bare);
    if (hit == (size_t)-1)
        QN_FAIL(err, QN_BAD_INPUT, "template",
                "continue_final_message: the chat template leaves the last message out");
    bool kept = str_starts((struct str){s.p + hit, s.n - hit}, tag);
    while (!kept && hit && strchr(" \t\n\r\v\f", s.p[hit - 1]))
        hit--;
    text->n = hit;
    return QN_OK;
}

static const struct tmpl *pick(const struct chat_tmpl *c, const struct json *request)
{
    bool tools = json_len(json_get(request, "tools")) > 0;
    if (tools && c->tool_use)
        return c->tool_use;
    return c->normal;
}

static enum qn_status check_request(const struct json *request, struct prompt_opts *o,
                                    struct qn_err *err)
{
    const struct json *messages = json_get(request, "messages");
    o->request = request;
    o->kwargs = json_get(request, "chat_template_kwargs");
    o->proceed = json_bool(json_get(request, "continue_final_message"));
    if (json_type(messages) != JSON_ARR || json_len(messages) == 0)
        QN_FAIL(err, QN_BAD_INPUT, "template", "messages is %s; expected a non-empty array",
                json_type(messages) == JSON_ARR ? "empty" : json_type_name(messages));
    if (json_type(o->kwargs) != JSON_NULL && json_type(o->kwargs) != JSON_OBJ)
        QN_FAIL(err, QN_BAD_INPUT, "template", "chat_template_kwargs is %s; expected an object",
                json_type_name(o->kwargs));
    const struct json *tools = json_get(request, "tools");
    if (json_type(tools) != JSON_NULL && json_type(tools) != JSON_ARR)
        QN_FAIL(err, QN_BAD_INPUT, "template", "tools is %s; expected an array",
                json_type_name(tools));
    /* a last message that is not the assistant's is not continued */
    const struct json *last = json_at(messages, json_len(messages) - 1);
    if (!str_eqz(json_str(json_get(last, "role")), "assistant"))
        o->proceed = false;
    return QN_OK;
}

enum qn_status chat_render(const struct chat_tmpl *c, const struct json *request, int64_t now_unix,
                           struct buf *out, struct qn_err *err)
{
    struct prompt_opts o;
    struct json *vars = NULL;
    struct buf text = {0};
    const struct tmpl *t = pick(c, request);
    QN_TRY(check_request(request, &o, err));
    if (!t)
        QN_FAIL(err, QN_BAD_INPUT, "template",
                "the model has a chat template for tools only; the request has no tools");
    enum qn_status s = write_vars(c, &o, &text, err);
    if (s == QN_OK && json_memory(buf_str(&text)) > PARSED_MAX)
        s = err_set(err, QN_BAD_INPUT, "template",
                    "messages and tools hold too many JSON values: they would take about %zu MiB "
                    "of memory, the limit is %zu",
                    json_memory(buf_str(&text)) >> 20, PARSED_MAX >> 20);
    if (s == QN_OK)
        s = json_parse(buf_str(&text), "template variables", VARS_DEPTH, &vars, err);
    buf_clear(&text);
    if (s == QN_OK)
        s = tmpl_render(t, vars, NULL, now_unix, &text, err);
    if (s == QN_OK && o.proceed)
        s = cut_at_tag(&text, err);
    if (s == QN_OK) {
        buf_add_str(out, buf_str(&text));
        s = buf_ok(out, "the rendered prompt", err);
    }
    buf_free(&text);
    json_free(vars);
    return s;
}
