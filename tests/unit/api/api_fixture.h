/*
 * api_fixture.h - the model that the api tests talk about: a toy tokenizer of bytes and a few
 * special tokens, no chat template, a window of 64 tokens.
 */
#ifndef TESTS_API_FIXTURE_H
#define TESTS_API_FIXTURE_H

#include "api/ir.h"
#include "scripted.h"

static const char *const fixture_aliases[] = {"other-name", NULL};

static inline struct api_model fixture_model(void)
{
    struct buf json = BUF_INIT;
    struct tok *tok = NULL;
    struct qn_err err = {0};
    struct scripted_params p = {0};
    scripted_tok_json(&p, &json);
    if (tok_from_json(buf_str(&json), scripted_tok_config(), &tok, &err) != QN_OK)
        tok = NULL;
    QN_ASSERT(tok != NULL);
    buf_free(&json);
    struct api_model m = {.name = "fixture",
                          .aliases = fixture_aliases,
                          .tok = tok,
                          .n_ctx = 64,
                          .n_vocab = tok_size(tok),
                          .defaults = sample_params_default(),
                          .created = 1};
    api_model_fingerprint(&m);
    return m;
}

static inline void fixture_free(struct api_model *m)
{
    tok_free((struct tok *)m->tok);
}

#endif
