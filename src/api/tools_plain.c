/*
 * tools_plain.c - see tools_plain.h. Works on messages that have passed openai_check_messages.
 */
#include "api/tools_plain.h"

static bool role_is(const struct json *msg, const char *role)
{
    return str_eqz(json_str(json_get(msg, "role")), role);
}

static bool is_result(const struct json *msg)
{
    return role_is(msg, "tool") || role_is(msg, "function");
}

static void add_content(struct buf *b, const struct json *msg)
{
    const struct json *c = json_get(msg, "content");
    buf_add_str(b, json_str(c));
    for (size_t i = 0; i < json_len(c); i++)
        buf_add_str(b, json_str(json_get(json_at(c, i), "text")));
}

static void add_tools(struct buf *b, const struct json *tools)
{
    buf_addz(b, "You can call functions. These are there, each as a JSON object:\n<tools>\n");
    for (size_t i = 0; i < json_len(tools); i++) {
        json_w_value(b, json_get(json_at(tools, i), "function"));
        buf_addc(b, '\n');
    }
    buf_addz(b, "</tools>\nTo call one, answer with this JSON object and nothing else:\n"
                "{\"name\": FUNCTION, \"arguments\": {\"PARAMETER\": VALUE}}");
}

/* As models are used to write it: a space after each comma and colon. */
static void add_spaced(struct buf *b, const struct json *v)
{
    struct buf text = BUF_INIT;
    bool inside = false;
    json_w_value(&text, v);
    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i];
        buf_addc(b, c);
        if (inside && c == '\\' && i + 1 < text.n)
            buf_addc(b, text.p[++i]);
        else if (c == '"')
            inside = !inside;
        else if (!inside && (c == ',' || c == ':'))
            buf_addc(b, ' ');
    }
    b->failed |= text.failed;
    buf_free(&text);
}

/* The arguments of a call: an object, or its text. */
static void add_args(struct buf *b, const struct json *args)
{
    struct json *doc = NULL;
    if (json_type(args) == JSON_OBJ)
        add_spaced(b, args);
    else if (json_str(args).n == 0)
        buf_addz(b, "{}");
    else if (json_parse(json_str(args), "arguments", JSON_DEPTH_MAX, &doc, NULL) == QN_OK)
        add_spaced(b, doc);
    else
        buf_add_str(b, json_str(args));
    json_free(doc);
}

static void add_calls(struct buf *b, const struct json *calls)
{
    for (size_t i = 0; i < json_len(calls); i++) {
        const struct json *f = json_get(json_at(calls, i), "function");
        if (b->n)
            buf_addc(b, '\n');
        buf_addz(b, "{\"name\": ");
        json_w_str(b, json_str(json_get(f, "name")));
        buf_addz(b, ", \"arguments\": ");
        add_args(b, json_get(f, "arguments"));
        buf_addc(b, '}');
    }
}

static void write_text(struct jw *w, struct str role, const struct buf *text)
{
    jw_obj(w);
    jw_kstr(w, "role", role);
    jw_kstr(w, "content", buf_str(text));
    jw_obj_end(w);
    w->out->failed |= text->failed;
}

/* Results that follow each other are one turn of the user. Returns the index after them. */
static size_t write_results(struct jw *w, const struct json *messages, size_t i)
{
    struct buf b = BUF_INIT;
    for (; is_result(json_at(messages, i)); i++) {
        buf_addz(&b, b.n ? "\n<tool_response>\n" : "<tool_response>\n");
        add_content(&b, json_at(messages, i));
        buf_addz(&b, "\n</tool_response>");
    }
    write_text(w, STR_LIT("user"), &b);
    buf_free(&b);
    return i;
}

void tools_plain_messages(struct jw *w, const struct json *messages, const struct json *tools)
{
    struct buf b = BUF_INIT;
    size_t i = 0;
    const struct json *first = json_at(messages, 0);
    bool system = role_is(first, "system") || role_is(first, "developer");
    jw_arr(w);
    if (json_len(tools) > 0) {
        if (system) {
            add_content(&b, first);
            buf_addz(&b, "\n\n");
            i = 1;
        }
        add_tools(&b, tools);
        write_text(w, STR_LIT("system"), &b);
    }
    while (i < json_len(messages)) {
        const struct json *msg = json_at(messages, i);
        const struct json *calls = json_get(msg, "tool_calls");
        if (is_result(msg)) {
            i = write_results(w, messages, i);
            continue;
        }
        i++;
        if (json_len(calls) == 0) {
            jw_value(w, msg);
            continue;
        }
        buf_clear(&b);
        add_content(&b, msg);
        add_calls(&b, calls);
        write_text(w, STR_LIT("assistant"), &b);
    }
    jw_arr_end(w);
    buf_free(&b);
}
