/*
 * format_opts.c - see format_opts.h. Main thread, once before the first answer.
 */
#include "cli/format_opts.h"

#include "api/outparse.h"
#include "base/file.h"
#include "model/engine.h"
#include "sched/gram_store.h"

#define FILE_MAX ((size_t)4 << 20)

/* The options given, as a specification; text and doc hold what it borrows. */
static enum qn_status spec_of(const struct format_opts *o, struct gram_spec *spec, struct buf *text,
                              struct json **doc, struct qn_err *err)
{
    if ((o->json_schema != NULL) + (o->regex != NULL) + (o->grammar != NULL) > 1)
        QN_FAIL(err, QN_BAD_INPUT, "cli",
                "--json-schema, --regex and --grammar: only one of them is possible");
    if (o->regex) {
        *spec = (struct gram_spec){.kind = GRAM_REGEX, .text = str_of(o->regex)};
        return QN_OK;
    }
    QN_TRY(file_read(o->json_schema ? o->json_schema : o->grammar, FILE_MAX, text, err));
    *spec = (struct gram_spec){.kind = GRAM_GBNF, .text = buf_str(text)};
    if (!o->json_schema)
        return QN_OK;
    QN_TRY(json_parse(buf_str(text), o->json_schema, JSON_DEPTH_MAX, doc, err));
    *spec = (struct gram_spec){.kind = GRAM_JSON_SCHEMA, .json = *doc};
    return QN_OK;
}

/* Reasoning comes first where the model opens it itself. */
static void think_first(const struct session *s, struct gram_spec *spec)
{
    struct out_syntax syn;
    struct str source = s->chat ? chat_tmpl_source(s->chat) : STR_LIT("");
    if (out_syntax_detect(&syn, source, s->tok, NULL, NULL) != QN_OK || !syn.think ||
        (unsigned char)syn.think->open[0] == 0xFE || tok_id(s->tok, str_of(syn.think->open)) < 0)
        return;
    spec->open = str_of(syn.think->open);
    spec->after = str_of(syn.think->close);
}

static enum qn_status compile(const struct session *s, const struct gram_spec *spec,
                              const char *option, struct format *out, struct qn_err *err)
{
    struct gram_fault fault = {{0}, {0}};
    struct qn_err why = {0};
    struct gram_store *store = gram_store_create(s->tok, s->info->n_vocab);
    if (!store)
        QN_FAIL(err, QN_NO_MEMORY, "cli", "not enough memory for a grammar");
    enum qn_status st = gram_store_get(store, spec, &out->gram, &fault, &why);
    if (st == QN_OK)
        st = gram_store_vocab(store, &out->vocab, &why);
    gram_store_free(store);
    if (st == QN_OK)
        return QN_OK;
    return err_set(err, st, "cli", "--%s%s%s: %s", option, fault.where[0] ? ", at " : "",
                   fault.where, why.msg);
}

enum qn_status format_make(const struct format_opts *o, const struct session *s, bool raw,
                           struct format *out, struct qn_err *err)
{
    struct gram_spec spec = {0};
    struct buf text = BUF_INIT;
    struct json *doc = NULL;
    *out = (struct format){0};
    if (!o->json_schema && !o->regex && !o->grammar)
        return QN_OK;
    enum qn_status st = spec_of(o, &spec, &text, &doc, err);
    if (st == QN_OK && !raw)
        think_first(s, &spec);
    if (st == QN_OK)
        st = compile(s, &spec,
                     o->json_schema ? "json-schema"
                     : o->regex     ? "regex"
                                    : "grammar",
                     out, err);
    json_free(doc);
    buf_free(&text);
    if (st != QN_OK)
        format_free(out);
    return st;
}

void format_free(struct format *f)
{
    gram_unref(f->gram);
    gram_vocab_unref(f->vocab);
    *f = (struct format){0};
}
