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
    const struct gram_style *style;
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

/* ---- parameters one by one ---- */

#define Z(s)                                                                                       \
    {                                                                                              \
        s, sizeof(s) - 1                                                                           \
    }

static const struct gram_style seed_style = {
    .open = Z("<parameter="), .mid = Z(">"), .close = Z("</parameter>"), .gap = Z("\n")};
static const struct gram_style glm_style = {.open = Z("<arg_key>"),
                                            .mid = Z("</arg_key>\n<arg_value>"),
                                            .close = Z("</arg_value>"),
                                            .gap = Z("\n")};
static const struct gram_style glm_dense_style = {
    .open = Z("<arg_key>"), .mid = Z("</arg_key><arg_value>"), .close = Z("</arg_value>")};
static const struct gram_style minimax_style = {
    .open = Z("<parameter name=\""), .mid = Z("\">"), .close = Z("</parameter>"), .gap = Z("\n")};
static const struct gram_style minicpm_style = {
    .open = Z("<param name=\""), .mid = Z("\">"), .close = Z("</param>")};
static const struct gram_style dsml_style = {.open = Z("<" DSML "parameter name=\""),
                                             .mid = Z("\" string=\"false\">"),
                                             .mid_text = Z("\" string=\"true\">"),
                                             .close = Z("</" DSML "parameter>"),
                                             .gap = Z("\n")};
static const struct gram_style python_style = {.mid = Z("="), .comma = Z(", "), .python = true};
static const struct gram_style gemma_style = {
    .mid = Z(":"), .comma = Z(","), .quote = Z(TOKEN("<|\"|>"))};

/* ---- calls ---- */

/* The first row of a syntax whose needs are met. */
static const struct forced forms[] = {
    {.syntax = "qwen-xml",
     .begin = "<tool_call>\n<function=%>\n",
     .end = "</function>\n</tool_call>",
     .xml = true},
    {.syntax = "seed",
     .begin = "<seed:tool_call>\n<function=%>\n",
     .end = "</function>\n</seed:tool_call>",
     .xml = true,
     .style = &seed_style},
    {.syntax = "json", .begin = "<tool_call>\n" JSON, .end = "}\n</tool_call>"},
    {.syntax = "glm",
     .begin = "<tool_call>%",
     .end = "</tool_call>",
     .xml = true,
     .style = &glm_dense_style,
     .needs = "</arg_key><arg_value>"},
    {.syntax = "glm",
     .begin = "<tool_call>%\n",
     .end = "</tool_call>",
     .xml = true,
     .style = &glm_style},
    {.syntax = "minimax",
     .open = "<minimax:tool_call>\n",
     .begin = "<invoke name=\"%\">\n",
     .end = "</invoke>",
     .close = "\n</minimax:tool_call>",
     .xml = true,
     .style = &minimax_style},
    {.syntax = "deepseek-dsml",
     .open = "<" DSML "function_calls>\n",
     .begin = "<" DSML "invoke name=\"%\">\n",
     .end = "</" DSML "invoke>",
     .close = "\n</" DSML "function_calls>",
     .xml = true,
     .style = &dsml_style},
    {.syntax = "deepseek-v4",
     .open = "<" DSML "tool_calls>\n",
     .begin = "<" DSML "invoke name=\"%\">\n",
     .end = "</" DSML "invoke>",
     .close = "\n</" DSML "tool_calls>",
     .xml = true,
     .style = &dsml_style},
    {.syntax = "minicpm5",
     .begin = "<function name=\"%\">",
     .end = "</function>",
     .xml = true,
     .style = &minicpm_style},
    {.syntax = "gemma4",
     .begin = TOKEN("<|tool_call>") "call:%{",
     .end = "}" TOKEN("<tool_call|>"),
     .xml = true,
     .style = &gemma_style},
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
    {.syntax = "lfm2",
     .open = "<|tool_call_start|>[",
     .begin = "%(",
     .end = ")",
     .close = "]<|tool_call_end|>",
     .separator = ", ",
     .xml = true,
     .style = &python_style},
    {.syntax = "pythonic",
     .open = "<|python_start|>[",
     .begin = "%(",
     .end = ")",
     .close = "]<|python_end|>",
     .separator = ", ",
     .xml = true,
     .style = &python_style},
    {.syntax = "llama3", .begin = "{\"name\": \"%\", \"parameters\": ", .end = "}"},
    {.syntax = "llama3.2", .begin = "{\"name\": \"%\", \"parameters\": ", .end = "}"},
    {.syntax = "harmony",
     .begin = TOKEN("<|channel|>") "commentary to=functions.% " TOKEN("<|constrain|>") "json" TOKEN(
         "<|message|>"),
     .end = ""},
};
/* Every template that does not show tools. */
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
    for (size_t i = 0; i < json_len(r->tools); i++) {
        const struct json *tool = json_at(r->tools, i), *fn = json_get(tool, "function");
        const struct json *schema = json_get(fn, "parameters");
        if (!wanted(r, tool))
            continue;
        struct gram_tag *t = &v[(*n)++];
        t->begin = literal(r, f->begin, json_str(json_get(fn, "name")));
        t->end = literal(r, f->end, STR_LIT(""));
        t->body = f->xml ? GRAM_BODY_XML : GRAM_BODY_JSON;
        t->style = f->style;
        t->schema = schema;
        t->lenient = !is_strict(tool);
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

/* The tags of all wanted tools. */
static enum qn_status tags_of(struct api_request *r, const struct forced *f, struct gram_tags *tags,
                              struct api_error *e)
{
    struct gram_tag *v = arena_zalloc_n(r->arena, json_len(r->tools), sizeof *v);
    *tags =
        (struct gram_tags){.tags = v,
                           .several = r->parallel_tool_calls && r->tool_choice != API_TOOLS_NAMED,
                           .open = of(f->open),
                           .close = of(f->close),
                           .separator = of(f->separator)};
    return v && fill_tags(r, f, v, &tags->n) ? QN_OK : api_no_memory(e);
}

/* What all calls of a syntax begin with. */
static struct str trigger_of(const struct forced *f)
{
    struct str s = str_of(f->open ? f->open : f->begin);
    const char *name = strchr(s.p, '%');
    if (name)
        s.n = (size_t)(name - s.p);
    return s;
}

enum qn_status api_tools_compile(const struct api_model *m, struct api_request *r,
                                 struct api_error *e)
{
    bool forced = r->tool_choice == API_TOOLS_REQUIRED || r->tool_choice == API_TOOLS_NAMED;
    struct gram_tags tags;
    if (json_len(r->tools) == 0 || r->grammar || (!forced && !any_strict(r->tools)) ||
        (!forced && r->format.kind != API_FORMAT_NONE))
        return QN_OK;
    if (!m->syntax)
        return api_refuse(e, 400, "unsupported_value", "tool_choice",
                          "tool_choice: calls cannot be enforced for this model");
    const struct forced *f = form_of(m);
    QN_TRY(tags_of(r, f, &tags, e));
    if (!forced) {      /* text before a call is free, and so is no call at all */
        if (f == &bare) /* only calls that begin with a marker can be told from text */
            return QN_OK;
        tags.optional = true;
        tags.trigger = trigger_of(f);
    }
    struct gram_spec spec = {.kind = GRAM_TAGS, .tags = &tags};
    channels_first(m, &spec);
    return api_grammar_set(m, r, &spec, "tools", e);
}

enum qn_status api_tools_beside(const struct api_model *m, struct api_request *r,
                                struct gram_spec *spec, struct gram_tags *tags, struct api_error *e)
{
    if (json_len(r->tools) == 0 || r->tool_choice == API_TOOLS_NONE || !m->syntax)
        return QN_OK;
    const struct forced *f = form_of(m);
    if ((f->open ? f->open : f->begin)[0] == '{') /* it could not be told from the answer */
        return QN_OK;
    QN_TRY(tags_of(r, f, tags, e));
    spec->tags = tags;
    if (m->syntax->calls->channels) {
        channels_first(m, spec);
        spec->lead = STR_LIT("<|channel|>final<|message|>");
    }
    return QN_OK;
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
