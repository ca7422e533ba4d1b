/*
 * tok_fixture.h - the small tokenizers of data/ for the tests of tok, and variants of them with
 * parts of their tokenizer.json replaced.
 */
#ifndef TESTS_TOK_FIXTURE_H
#define TESTS_TOK_FIXTURE_H

#include "../check.h"

#include "base/file.h"
#include "base/json.h"
#include "tok/tok.h"

static inline void fixture_text(const char *name, struct buf *out)
{
    struct buf path = BUF_INIT;
    struct qn_err err;
    path_join(&path, TOK_DATA, name);
    CHECK_OK(file_read(buf_z(&path), 16 << 20, out, &err), err);
    buf_free(&path);
}

static inline void put_members(struct buf *b, const struct json *obj, const struct json *with,
                               const struct json *model)
{
    struct json_iter it = {0};
    buf_addc(b, '{');
    const char *sep = "";
    while (json_next(obj, &it)) {
        const struct json *v = it.val;
        struct json_iter r = {0};
        while (json_next(with, &r))
            if (str_eq(r.key, it.key))
                v = r.val;
        buf_addz(b, sep);
        sep = ",";
        json_w_str(b, it.key);
        buf_addc(b, ':');
        if (model && str_eqz(it.key, "model"))
            put_members(b, v, model, NULL);
        else
            json_w_value(b, v);
    }
    buf_addc(b, '}');
}

/* BASE.json with the members of `with` and, inside "model", those of `model` replaced. */
static inline void fixture_variant(struct str base, const struct json *with,
                                   const struct json *model, struct buf *out)
{
    struct buf name = BUF_INIT, text = BUF_INIT;
    struct json *doc = NULL;
    struct qn_err err;
    buf_addf(&name, STR_FMT ".json", STR_ARG(base));
    fixture_text(buf_z(&name), &text);
    CHECK_OK(json_parse(buf_str(&text), "fixture", JSON_DEPTH_MAX, &doc, &err), err);
    buf_clear(out);
    put_members(out, doc, with, model);
    json_free(doc);
    buf_free(&text);
    buf_free(&name);
}

/* The same from JSON text; NULL = nothing replaced. */
static inline struct tok *fixture_tok(const char *base, const char *with)
{
    struct json *doc = NULL;
    struct buf text = BUF_INIT;
    struct tok *t = NULL;
    struct qn_err err;
    if (with)
        CHECK_OK(json_parse(str_of(with), "variant", JSON_DEPTH_MAX, &doc, &err), err);
    fixture_variant(str_of(base), doc, NULL, &text);
    CHECK_OK(tok_from_json(buf_str(&text), (struct str){NULL, 0}, &t, &err), err);
    json_free(doc);
    buf_free(&text);
    return t;
}

#endif
