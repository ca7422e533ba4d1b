/*
 * fuzz_outparse.c - any bytes as an answer: the first picks the syntax, the second how it is cut
 * and ends; the rest is text. Read whole and in pieces it must give the same, arguments of calls
 * that were not cut must be JSON objects, and no byte that frames special tokens may come out.
 */
#include "api/outparse.h"
#include "base/utf8.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const char tools_json[] = "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
                                 "\"s\":{\"type\":\"string\"}}}}},"
                                 "{\"function\":{\"name\":\"g\"}}]";
static const char tokenizer[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}}";

struct reading {
    struct buf joined; /* everything but ids */
    struct buf args;   /* of the call that is read */
    int n_calls;
};

static void check_args(const struct reading *r, bool cut)
{
    struct json *doc = NULL;
    struct buf valid = BUF_INIT;
    if (r->n_calls == 0 || cut)
        return;
    utf8_sanitize(&valid, buf_str(&r->args)); /* a model's text always is */
    QN_ASSERT(json_parse(buf_str(&valid), "arguments", JSONFIX_DEPTH + 8, &doc, NULL) == QN_OK);
    QN_ASSERT(json_type(doc) == JSON_OBJ);
    json_free(doc);
    buf_free(&valid);
}

static void add(struct reading *r, const struct api_event *ev)
{
    for (size_t i = 0; i < ev->text.n; i++)
        QN_ASSERT((unsigned char)ev->text.p[i] < 0xF8);
    if (ev->kind == API_EV_CALL) {
        check_args(r, false);
        r->n_calls++;
        buf_clear(&r->args);
        buf_addf(&r->joined, "\n[%d] ", ev->call);
        buf_add_str(&r->joined, ev->call_name);
    } else if (ev->kind == API_EV_CALL_ARGS) {
        QN_ASSERT(ev->call == r->n_calls - 1);
        buf_add_str(&r->args, ev->text);
        buf_add_str(&r->joined, ev->text);
    }
}

/* Reasoning, content and calls one after the other: they may come interleaved. */
static void read_all(const struct api_model *m, const struct api_request *q, struct str text,
                     size_t step, bool cut, struct buf *out)
{
    struct outparse *p = NULL;
    struct reading r = {0};
    struct buf content = BUF_INIT, thoughts = BUF_INIT;
    QN_ASSERT(outparse_create(m, q, &p) == QN_OK && p);
    for (size_t at = 0; at <= text.n; at += step) {
        bool last = at + step > text.n;
        struct api_event ev = {.kind = last ? API_EV_FINISH : API_EV_TEXT,
                               .text = {text.p + at, last ? text.n - at : step},
                               .finish = cut ? API_FINISH_LENGTH : API_FINISH_STOP};
        outparse_feed(p, &ev);
        while (outparse_next(p, &ev)) {
            add(&r, &ev);
            if (ev.kind == API_EV_TEXT || ev.kind == API_EV_FINISH)
                buf_add_str(&content, ev.text);
            else if (ev.kind == API_EV_REASONING)
                buf_add_str(&thoughts, ev.text);
        }
    }
    check_args(&r, cut);
    buf_add_str(out, buf_str(&thoughts));
    buf_addc(out, 0);
    buf_add_str(out, buf_str(&content));
    buf_add_str(out, buf_str(&r.joined));
    outparse_free(p);
    buf_free(&content);
    buf_free(&thoughts);
    buf_free(&r.joined);
    buf_free(&r.args);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static struct json *tools, *chat;
    static struct tok *tok;
    struct qn_err err = {0};
    struct out_syntax syn;
    if (!tok) {
        QN_ASSERT(tok_from_json(str_of(tokenizer), (struct str){NULL, 0}, &tok, &err) == QN_OK);
        QN_ASSERT(json_parse(str_of(tools_json), "tools", 16, &tools, &err) == QN_OK);
        QN_ASSERT(json_parse(STR_LIT("{\"messages\":[{}]}"), "chat", 8, &chat, &err) == QN_OK);
    }
    if (n < 2)
        return 0;
    size_t n_syn = 0;
    while (call_syntaxes[n_syn])
        n_syn++;
    const char *name = call_syntaxes[p[0] % n_syn]->name;
    const char *source = p[0] & 0x80 ? "<channel|>" : "</think>";
    QN_ASSERT(out_syntax_detect(&syn, str_of(source), tok, name, &err) == QN_OK);
    syn.knows_tools = !(p[1] & 8); /* else JSON on a line of its own is a call, too */
    struct api_model m = {.name = "m", .tok = tok, .syntax = &syn};
    struct api_request q = {
        .chat = chat, .tools = tools, .parallel_tool_calls = !(p[1] & 2), .split_reasoning = true};
    struct str text = {(const char *)p + 2, n - 2};
    struct buf whole = BUF_INIT, parts = BUF_INIT;
    read_all(&m, &q, text, n, p[1] & 1, &whole);
    read_all(&m, &q, text, 1 + p[1] % 5, p[1] & 1, &parts);
    QN_ASSERT(str_eq(buf_str(&whole), buf_str(&parts)));
    buf_free(&whole);
    buf_free(&parts);
    return 0;
}
