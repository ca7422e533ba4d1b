/*
 * tools_gram.c - see tools_gram.h. Templates of literals per syntax, % standing for the function's
 * name; the arguments between them are JSON or, for two syntaxes, parameter tags.
 */
#include "api/tools_gram.h"

#include <stdlib.h>

#include "api/api_format.h"
#include "api/outparse.h"

struct forced {
    const char *syntax;
    const char *begin, *end; /* of one call */
    const char *open, *close, *separator;
    bool xml;
    const char *needs; /* only where the template has this */
};

/* The special token itself, not its text: gram marks its bytes so. */
#define TOKEN(s) "\xFF" s
#define DS(s)    "<\xEF\xBD\x9C" s "\xEF\xBD\x9C>"
#define LOW      "\xE2\x96\x81"
#define DSML                                                                                       \
    "\xEF\xBD\x9C"                                                                                 \
    "DSML"                                                                                         \
    "\xEF\xBD\x9C"
#define JSON "{\"name\": \"%\", \"arguments\": "

/* The first row of a syntax whose needs are met. */
static const struct forced forms[] = {
    {.syntax = "qwen-xml",
     .begin = "<tool_call>\n<function=%>\n",
     .end = "</function>\n</tool_call>",
     .xml = true},
    {.syntax = "seed",
     .begin = "<seed:tool_call>\n<function=%>\n",
     .end = "</function>\n</seed:tool_call>",
     .xml = true},
    {.syntax = "json", .begin = "<tool_call>\n" JSON, .end = "}\n</tool_call>"},
    {.syntax = "glm", .begin = "<tool_call>" JSON, .end = "}</tool_call>"},
    {.syntax = "minimax", .begin = "<minimax:tool_call>" JSON, .end = "}</minimax:tool_call>"},
    {.syntax = "deepseek-dsml",
     .begin = "<" DSML "function_calls>" JSON,
     .end = "}</" DSML "function_calls>"},
    {.syntax = "gemma4", .begin = TOKEN("<|tool_call>") "call:%", .end = TOKEN("<tool_call|>")},
    {.syntax = "mistral", .begin = "[TOOL_CALLS]%[ARGS]", .end = "", .needs = "[ARGS]"},
    {.syntax = "mistral",
     .begin = JSON,
     .end = "}",
     .open = "[TOOL_CALLS][",
     .close = "]",
     .separator = ","},
    {.syntax = "deepseek",
     .begin = DS("tool" LOW "call" LOW "begin") "function" DS("tool" LOW "sep") "%\n```json\n",
     .end = "\n```" DS("tool" LOW "call" LOW "end"),
     .open = DS("tool" LOW "calls" LOW "begin"),
     .close = DS("tool" LOW "calls" LOW "end"),
     .needs = "```json"},
    {.syntax = "deepseek",
     .begin = DS("tool" LOW "call" LOW "begin") "%" DS("tool" LOW "sep"),
     .end = DS("tool" LOW "call" LOW "end"),
     .open = DS("tool" LOW "calls" LOW "begin"),
     .close = DS("tool" LOW "calls" LOW "end")},
    {.syntax = "kimi",
     .begin = "<|tool_call_begin|>functions.%:0<|tool_call_argument_begin|>",
     .end = "<|tool_call_end|>",
     .open = "<|tool_calls_section_begin|>",
     .close = "<|tool_calls_section_end|>"},
    {.syntax = "lfm2", .begin = "<|tool_call_start|>" JSON, .end = "}<|tool_call_end|>"},
    {.syntax = "pythonic", .begin = "<|python_start|>" JSON, .end = "}<|python_end|>"},
    {.syntax = "llama3", .begin = "{\"name\": \"%\", \"parameters\": ", .end = "}"},
    {.syntax = "llama3.2", .begin = "{\"name\": \"%\", \"parameters\": ", .end = "}"},
    {.syntax = "harmony",
     .begin = TOKEN("<|channel|>") "commentary to=functions.% " TOKEN("<|constrain|>") "json" TOKEN(
         "<|message|>"),
     .end = ""},
};
/* minicpm5, and every template that does not show tools */
static const struct forced bare = {.begin = JSON, .end = "}"};

static const struct forced *form_of(const struct api_model *m)
{
    struct str source = m->chat ? chat_tmpl_source(m->chat) : STR_LIT("");
    const struct forced *f = forms, *last = forms + sizeof forms / sizeof *forms;
    bool strict = m->syntax->calls->quote || m->syntax->calls->channels;
    if (!m->syntax->knows_tools || (strict && m->syntax->n_mark == 0))
        return &bare;
    for (; f < last; f++)
        if (!strcmp(f->syntax, m->syntax->calls->name) &&
            (!f->needs || str_find(source, str_of(f->needs), 0) != (size_t)-1))
            return f;
    return &bare;
}

/* ---- building ---- */

/* A literal with the name in it, in the request's arena. {NULL,0}: no memory. */
static struct str literal(struct api_request *r, const char *form, struct str name)
{
    struct buf b = BUF_INIT, quoted = BUF_INIT;
    const char *at = strchr(form, '%');
    struct str s = {NULL, 0};
    if (at && at > form && at[-1] == '"') { /* inside JSON */
        json_w_str(&quoted, name);
        name = (struct str){quoted.p + 1, quoted.n - 2};
    }
    buf_add(&b, form, at ? (size_t)(at - form) : strlen(form));
    if (at) {
        buf_add_str(&b, name);
        buf_addz(&b, at + 1);
    }
    if (!b.failed && !quoted.failed) {
        char *p = arena_zalloc_n(r->arena, b.n + 1, 1);
        if (p)
            s = (struct str){memcpy(p, buf_z(&b), b.n), b.n};
    }
    buf_free(&b);
    buf_free(&quoted);
    return s;
}

static bool is_strict(const struct json *tool)
{
    return json_bool(json_get(json_get(tool, "function"), "strict"));
}

static bool any_strict(const struct json *tools)
{
    for (size_t i = 0; i < json_len(tools); i++)
        if (is_strict(json_at(tools, i)))
            return true;
    return false;
}

static bool wanted(const struct api_request *r, const struct json *tool)
{
    struct str name = json_str(json_get(json_get(tool, "function"), "name"));
    return r->tool_choice != API_TOOLS_NAMED || str_eq(name, r->tool_name);
}

static struct str of(const char *z)
{
    return z ? str_of(z) : (struct str){NULL, 0};
}

static bool fill_tags(struct api_request *r, const struct forced *f, struct gram_tag *v, int32_t *n)
{
    bool strict = any_strict(r->tools);
    for (size_t i = 0; i < json_len(r->tools); i++) {
        const struct json *tool = json_at(r->tools, i), *fn = json_get(tool, "function");
        const struct json *schema = json_get(fn, "parameters");
        if (!wanted(r, tool))
            continue;
        struct gram_tag *t = &v[(*n)++];
        t->begin = literal(r, f->begin, json_str(json_get(fn, "name")));
        t->end = literal(r, f->end, STR_LIT(""));
        t->body = f->xml ? GRAM_BODY_XML : GRAM_BODY_JSON;
        t->schema = f->xml || !strict || is_strict(tool) ? schema : NULL;
        if (json_len(schema) == 0 && !f->xml)
            t->schema = NULL;
        if (!t->begin.p || !t->end.p)
            return false;
    }
    return true;
}

/* Reasoning in channels comes before a call, too. */
static void channels_first(const struct api_model *m, struct gram_spec *s)
{
    if (m->syntax->calls->channels) {
        s->open = STR_LIT("<|channel|>analysis<|message|>");
        s->after = STR_LIT("<|end|><|start|>assistant");
    }
}

enum qn_status api_tools_compile(const struct api_model *m, struct api_request *r,
                                 struct api_error *e)
{
    bool forced = r->tool_choice == API_TOOLS_REQUIRED || r->tool_choice == API_TOOLS_NAMED;
    size_t n_tools = json_len(r->tools);
    if (n_tools == 0 || r->grammar || (!forced && !any_strict(r->tools)) ||
        (!forced && r->format.kind != API_FORMAT_NONE))
        return QN_OK;
    if (!m->syntax)
        return api_refuse(e, 400, "unsupported_value", "tool_choice",
                          "tool_choice: calls cannot be enforced for this model");
    const struct forced *f = form_of(m);
    struct gram_tag *v = arena_zalloc_n(r->arena, n_tools, sizeof *v);
    struct gram_tags tags = {.tags = v,
                             .optional = !forced,
                             .several = r->parallel_tool_calls && r->tool_choice != API_TOOLS_NAMED,
                             .open = of(f->open),
                             .close = of(f->close),
                             .separator = of(f->separator)};
    if (!v || !fill_tags(r, f, v, &tags.n))
        return api_no_memory(e);
    if (!forced) { /* text before a call is free, and so is no call at all */
        tags.trigger = str_of(f->open ? f->open : f->begin);
        const char *name = strchr(tags.trigger.p, '%');
        if (name)
            tags.trigger.n = (size_t)(name - tags.trigger.p);
        if (f->open || f == &bare) /* only calls that begin with a marker can be told from text */
            return QN_OK;
    }
    struct gram_spec spec = {.kind = GRAM_TAGS, .tags = &tags, .lenient = !any_strict(r->tools)};
    channels_first(m, &spec);
    return api_grammar_set(m, r, &spec, "tools", e);
}

/* ---- the budget of reasoning ---- */

bool api_thinking_limit(const struct api_model *m, const struct api_request *r,
                        struct gen_thinking *t, struct ids *end)
{
    const struct out_syntax *syn = m->syntax;
    struct buf b = BUF_INIT;
    *t = (struct gen_thinking){.budget = r->thinking_budget};
    if (r->thinking_budget < 0 || !r->chat || !syn || (!syn->think && !syn->calls->channels))
        return false;
    if (syn->calls->channels) {
        t->open = STR_LIT(SPECIAL("<|channel|>") "analysis" SPECIAL("<|message|>"));
        t->close = STR_LIT(SPECIAL("<|end|>"));
        buf_addz(&b, json_len(r->tools) ? "<|end|><|start|>assistant<|channel|>commentary"
                                        : "<|end|><|start|>assistant<|channel|>final<|message|>");
    } else {
        t->open = str_of(syn->think->open);
        t->close = str_of(syn->think->close);
        bool token = (unsigned char)t->close.p[0] == 0xFE;
        buf_addz(&b, token ? "" : "\n");
        buf_add(&b, t->close.p + token, t->close.n - 2 * token);
        buf_addz(&b, token ? "" : "\n\n");
        t->inside = outparse_begins_inside(m, r);
    }
    struct qn_err err = {0};
    bool ok = tok_encode(m->tok, buf_str(&b), TOK_PARSE_SPECIAL, end, &err) == QN_OK;
    buf_free(&b);
    t->end = end->v;
    t->n_end = (int32_t)end->n;
    return ok;
}
