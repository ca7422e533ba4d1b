/*
 * out_detect.c - how a model writes, from its chat template and vocabulary. Pure.
 */
#include "api/outparse.h"

static const struct think_syntax thinks[] = {
    {SPECIAL("<|channel>"), SPECIAL("<channel|>"), "thought\n", "<channel|>"},
    {"[THINK]", "[/THINK]", NULL, "[THINK]"},
    {"<seed:think>", "</seed:think>", NULL, "<seed:think>"},
    {"<think>", "</think>", NULL, "</think>"},
    {"<think>", "</think>", NULL, "<think>"},
};

static const char *const harmony_marks[] = {"<|channel|>", "<|message|>", "<|constrain|>",
                                            "<|start|>",   "<|end|>",     "<|call|>"};

/* A marker that is a token of the vocabulary: special ones would be hidden, and where a syntax is
 * strict the token has to be told from its text. */
static void add_mark(struct out_syntax *s, const struct tok *tok, const char *marker)
{
    struct str text = marker ? str_of(marker) : STR_LIT("");
    bool strict = text.n > 2 && (unsigned char)text.p[0] == 0xFE;
    if (strict)
        text = (struct str){text.p + 1, text.n - 2};
    int32_t id = text.n ? tok_id(tok, text) : -1;
    if (id >= 0 && s->n_mark < GEN_MARK_MAX && (strict || tok_is_special(tok, id)))
        s->mark[s->n_mark++] = id;
}

static void add_tagged(struct out_syntax *s, const struct tok *tok)
{
    const struct call_syntax *c = s->calls;
    static const char *const more[] = {"<|tool_call_end|>",
                                       "<|tool_calls_section_end|>",
                                       "<|tool_call_begin|>",
                                       "<|tool_call_argument_begin|>",
                                       "<|python_end|>",
                                       "</tool_call>",
                                       "[ARGS]",
                                       "[CALL_ID]",
                                       SPECIAL("<tool_call|>")};
    for (int i = 0; i < CALL_MARKERS; i++)
        add_mark(s, tok, c->begin[i]);
    add_mark(s, tok, c->quote);
    if (c->feed == call_named_feed) {
        const struct named_form *f = c->form;
        add_mark(s, tok, f->call_close);
        add_mark(s, tok, f->section_close);
        add_mark(s, tok, "<\xEF\xBD\x9Ctool\xE2\x96\x81sep\xEF\xBD\x9C>");
    }
    if (c->feed == call_tagged_feed) {
        const struct tagged_form *f = c->form;
        const char *tags[] = {f->call_close, f->param_open, f->key_end, f->mid, f->value_end};
        for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
            add_mark(s, tok, tags[i]);
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (!c->quote == ((unsigned char)more[i][0] != 0xFE))
            add_mark(s, tok, more[i]);
}

static enum qn_status unknown_parser(const char *name, struct qn_err *err)
{
    struct buf b = BUF_INIT;
    for (const struct call_syntax *const *c = call_syntaxes; *c; c++)
        buf_addf(&b, "%s%s", b.n ? ", " : "", (*c)->name);
    enum qn_status st = err_set(err, QN_BAD_INPUT, "tool parser",
                                "there is no tool parser \"%.40s\"; known are %s", name, buf_z(&b));
    buf_free(&b);
    return st;
}

enum qn_status out_syntax_detect(struct out_syntax *s, struct str source, const struct tok *tok,
                                 const char *parser, struct qn_err *err)
{
    *s = (struct out_syntax){.calls = parser ? call_syntax_named(str_of(parser))
                                             : call_syntax_of_template(source)};
    if (!s->calls)
        return unknown_parser(parser, err);
    s->knows_tools = str_find(source, STR_LIT("tools"), 0) != (size_t)-1;
    if (s->calls->channels) {
        for (size_t i = 0; i < sizeof harmony_marks / sizeof *harmony_marks; i++) {
            int32_t id = tok_id(tok, str_of(harmony_marks[i]));
            if (id >= 0)
                s->mark[s->n_mark++] = id;
        }
        return QN_OK;
    }
    add_tagged(s, tok);
    for (size_t i = 0; i < sizeof thinks / sizeof *thinks && !s->think; i++)
        if (str_find(source, str_of(thinks[i].seen), 0) != (size_t)-1)
            s->think = &thinks[i];
    if (s->think) {
        add_mark(s, tok, s->think->open);
        add_mark(s, tok, s->think->close);
    }
    return QN_OK;
}
