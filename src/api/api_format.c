/*
 * api_format.c - see api_format.h. Knows the fields' names and shapes; the languages themselves are
 * gram's.
 */
#include "api/api_format.h"

#include <stdio.h>

#include "api/api_fields.h"
#include "api/outparse.h"
#include "api/tools_gram.h"
#include "sched/gram_store.h"

#define TEXT_BYTES_MAX (4 << 20) /* of a schema given as text */

/* A field that asks for a format; a second one is refused. */
static enum qn_status claim(struct api_request *r, enum api_format_kind kind, const char *param,
                            struct api_error *e)
{
    if (r->format.kind != API_FORMAT_NONE)
        return api_refuse(e, 400, "invalid_value", param,
                          "%s and %s both say what the answer must look like; give one of them",
                          r->format.param, param);
    r->format.kind = kind;
    snprintf(r->format.param, sizeof r->format.param, "%s", param);
    return QN_OK;
}

/* A schema as an object, or (guided_json) its text. */
static enum qn_status claim_schema(struct api_request *r, const struct json *v, const char *param,
                                   struct api_error *e)
{
    struct qn_err err = {0};
    QN_TRY(claim(r, API_FORMAT_JSON_SCHEMA, param, e));
    r->format.json = v;
    if (json_type(v) == JSON_OBJ || json_type(v) == JSON_BOOL)
        return QN_OK;
    if (json_type(v) != JSON_STR)
        return field_bad(e, param, v, "a JSON schema");
    if (json_str(v).n > TEXT_BYTES_MAX || json_memory(json_str(v)) > (size_t)256 << 20)
        return api_refuse(e, 400, "invalid_value", param, "%s is too large", param);
    if (json_parse(json_str(v), param, JSON_DEPTH_MAX, &r->format_doc, &err) != QN_OK)
        return api_refuse_err(e, &err, param);
    r->format.json = r->format_doc;
    return QN_OK;
}

static enum qn_status claim_text(struct api_request *r, enum api_format_kind kind,
                                 const struct json *v, const char *param, struct api_error *e)
{
    QN_TRY(claim(r, kind, param, e));
    if (json_type(v) != JSON_STR)
        return field_bad(e, param, v, "a string");
    r->format.text = json_str(v);
    return QN_OK;
}

static enum qn_status claim_choice(struct api_request *r, const struct json *v, const char *param,
                                   struct api_error *e)
{
    QN_TRY(claim(r, API_FORMAT_CHOICE, param, e));
    bool ok = json_type(v) == JSON_ARR && json_len(v) > 0;
    for (size_t i = 0; ok && i < json_len(v); i++)
        ok = json_type(json_at(v, i)) == JSON_STR;
    if (!ok)
        return field_bad(e, param, v, "a non-empty array of strings");
    r->format.json = v;
    return QN_OK;
}

static enum qn_status response_format(const struct json *o, struct api_request *r,
                                      struct api_error *e)
{
    const struct json *f = NULL, *inner = NULL;
    QN_TRY(field_obj(o, "response_format", &f, e));
    if (!f)
        return QN_OK;
    struct str type = json_str(json_get(f, "type"));
    if (str_eqz(type, "text"))
        return QN_OK;
    if (str_eqz(type, "json_object")) { /* llama.cpp takes a schema here too */
        if (json_has(f, "schema"))
            return claim_schema(r, json_get(f, "schema"), "response_format.schema", e);
        return claim(r, API_FORMAT_JSON_OBJECT, "response_format", e);
    }
    if (!str_eqz(type, "json_schema"))
        return field_bad(e, "response_format.type", json_get(f, "type"),
                         "\"text\", \"json_object\" or \"json_schema\"");
    if (json_has(f, "schema") && !json_has(f, "json_schema"))
        return claim_schema(r, json_get(f, "schema"), "response_format.schema", e);
    inner = json_get(f, "json_schema");
    if (json_type(inner) != JSON_OBJ)
        return field_bad(e, "response_format.json_schema", inner,
                         "an object with a name and a schema");
    if (json_has(inner, "name") && json_type(json_get(inner, "name")) != JSON_STR)
        return field_bad(e, "response_format.json_schema.name", json_get(inner, "name"),
                         "a string");
    if (json_has(inner, "strict") && json_type(json_get(inner, "strict")) != JSON_BOOL)
        return field_bad(e, "response_format.json_schema.strict", json_get(inner, "strict"),
                         "true or false");
    if (!json_has(inner, "schema"))
        return claim(r, API_FORMAT_JSON_OBJECT, "response_format.json_schema", e);
    return claim_schema(r, json_get(inner, "schema"), "response_format.json_schema.schema", e);
}

/* vLLM's object with one of several members. */
static enum qn_status structured_outputs(const struct json *o, struct api_request *r,
                                         struct api_error *e)
{
    const struct json *f = NULL;
    bool object = false;
    QN_TRY(field_obj(o, "structured_outputs", &f, e));
    if (!f)
        return QN_OK;
    if (json_has(f, "json"))
        QN_TRY(claim_schema(r, json_get(f, "json"), "structured_outputs.json", e));
    if (json_has(f, "regex"))
        QN_TRY(
            claim_text(r, API_FORMAT_REGEX, json_get(f, "regex"), "structured_outputs.regex", e));
    if (json_has(f, "choice"))
        QN_TRY(claim_choice(r, json_get(f, "choice"), "structured_outputs.choice", e));
    if (json_has(f, "grammar"))
        QN_TRY(claim_text(r, API_FORMAT_GRAMMAR, json_get(f, "grammar"),
                          "structured_outputs.grammar", e));
    QN_TRY(field_bool(f, "json_object", &object, e));
    if (object)
        QN_TRY(claim(r, API_FORMAT_JSON_OBJECT, "structured_outputs.json_object", e));
    if (json_has(f, "structural_tag"))
        return api_refuse(e, 400, "unsupported_parameter", "structured_outputs.structural_tag",
                          "structured_outputs.structural_tag is not supported by this server");
    if (r->format.kind == API_FORMAT_NONE)
        return api_refuse(e, 400, "invalid_value", "structured_outputs",
                          "structured_outputs holds none of json, regex, choice, grammar and "
                          "json_object");
    return field_bool(f, "disable_any_whitespace", &r->format.no_whitespace, e);
}

enum qn_status fields_format(const struct json *o, struct api_request *r, struct api_error *e)
{
    bool any_space = true;
    QN_TRY(response_format(o, r, e));
    if (json_has(o, "guided_json"))
        QN_TRY(claim_schema(r, json_get(o, "guided_json"), "guided_json", e));
    if (json_has(o, "guided_regex"))
        QN_TRY(claim_text(r, API_FORMAT_REGEX, json_get(o, "guided_regex"), "guided_regex", e));
    if (json_has(o, "guided_choice"))
        QN_TRY(claim_choice(r, json_get(o, "guided_choice"), "guided_choice", e));
    if (json_has(o, "guided_grammar"))
        QN_TRY(
            claim_text(r, API_FORMAT_GRAMMAR, json_get(o, "guided_grammar"), "guided_grammar", e));
    if (json_has(o, "json_schema"))
        QN_TRY(claim_schema(r, json_get(o, "json_schema"), "json_schema", e));
    if (json_has(o, "grammar"))
        QN_TRY(claim_text(r, API_FORMAT_GRAMMAR, json_get(o, "grammar"), "grammar", e));
    QN_TRY(structured_outputs(o, r, e));
    QN_TRY(field_bool(o, "any_whitespace", &any_space, e));
    r->format.no_whitespace |= !any_space;
    return QN_OK;
}

enum qn_status fields_format_as(const char *param, const struct json *o, struct api_request *r,
                                struct api_error *e)
{
    QN_TRY(response_format(o, r, e));
    snprintf(r->format.param, sizeof r->format.param, "%s", param);
    return QN_OK;
}

/* ---- compiling ------------------------------------------------------------------------------- */

static enum qn_status refuse_fault(const char *param, const struct gram_fault *f,
                                   const struct qn_err *err, struct api_error *e)
{
    struct field_name name = field_name("%s%s%s", param, f->keyword[0] ? "." : "", f->keyword);
    const char *code = err->code == QN_UNSUPPORTED ? "unsupported_value" : "invalid_value";
    if (err->code != QN_BAD_INPUT && err->code != QN_UNSUPPORTED)
        return api_refuse_err(e, err, param);
    return api_refuse(e, 400, code, name.s, "%s%s%s: %s", param, f->where[0] ? ", at " : "",
                      f->where, err->msg);
}

/* A marker without the bytes that tell a token from its text. */
static struct str bare(const char *marker)
{
    struct str s = str_of(marker);
    if (s.n > 2 && (unsigned char)s.p[0] == 0xFE)
        s = (struct str){s.p + 1, s.n - 2};
    return s;
}

/* The marker as gram has to see it. One that only counts as the special token gets the byte before
 * it that gram gives to control tokens, so that its text alone does not match. */
static struct str for_gram(struct arena *a, const char *marker)
{
    struct str s = bare(marker);
    char *p = (unsigned char)marker[0] == 0xFE ? arena_zalloc_n(a, s.n + 2, 1) : NULL;
    if (!p)
        return s;
    p[0] = '\xFF';
    memcpy(p + 1, s.p, s.n);
    return (struct str){p, s.n + 1};
}

/* What is written before the answer proper is free: reasoning that the prompt has opened, or that
 * the model may open with a token of its own; with channels, everything before the last one. */
static void think_first(const struct api_model *m, const struct api_request *r, struct gram_spec *s)
{
    const struct out_syntax *syn = m->syntax;
    if (!r->chat || !syn || s->after.n)
        return;
    if (syn->calls && syn->calls->channels) {
        s->after = STR_LIT("<|channel|>final<|message|>");
        return;
    }
    if (!syn->think || !syn->think->open)
        return;
    struct str open = bare(syn->think->open), close = bare(syn->think->close);
    struct str prompt = {r->chat_prompt.p, r->chat_prompt.n};
    while (prompt.n && strchr(" \n\r\t", prompt.p[prompt.n - 1]))
        prompt.n--;
    if (outparse_begins_inside(m, r)) {
        s->after = for_gram(r->arena, syn->think->close);
    } else if (!str_ends(prompt, close) && r->thinking != API_THINKING_OFF &&
               tok_id(m->tok, open) >= 0) {
        s->after = for_gram(r->arena, syn->think->close);
        s->open = for_gram(r->arena, syn->think->open);
    }
}

enum qn_status api_grammar_set(const struct api_model *m, struct api_request *r,
                               struct gram_spec *spec, const char *param, struct api_error *e)
{
    struct gram_fault fault = {{0}, {0}};
    struct qn_err err = {0};
    if (!m->grams)
        return api_refuse(e, 400, "unsupported_parameter", param,
                          "%s is not supported by this server", param);
    think_first(m, r, spec);
    gram_unref(r->grammar);
    r->grammar = NULL;
    enum qn_status st = gram_store_get(m->grams, spec, &r->grammar, &fault, &err);
    if (st == QN_OK && !r->vocab)
        st = gram_store_vocab(m->grams, &r->vocab, &err);
    return st == QN_OK ? QN_OK : refuse_fault(param, &fault, &err, e);
}

enum qn_status api_format_compile(const struct api_model *m, struct api_request *r,
                                  struct api_error *e)
{
    static const enum gram_kind kinds[] = {
        [API_FORMAT_JSON_OBJECT] = GRAM_JSON_OBJECT,
        [API_FORMAT_JSON_SCHEMA] = GRAM_JSON_SCHEMA,
        [API_FORMAT_REGEX] = GRAM_REGEX,
        [API_FORMAT_CHOICE] = GRAM_CHOICE,
        [API_FORMAT_GRAMMAR] = GRAM_GBNF,
    };
    if (r->format.kind == API_FORMAT_NONE || r->grammar)
        return QN_OK;
    struct gram_spec spec = {.kind = kinds[r->format.kind],
                             .text = r->format.text,
                             .json = r->format.json,
                             .compact = r->format.no_whitespace};
    struct gram_tags calls;
    const char *param = r->format.param[0] ? r->format.param : "response_format";
    QN_TRY(api_tools_beside(m, r, &spec, &calls, e));
    return api_grammar_set(m, r, &spec, param, e);
}
