/*
 * api_prompt.c - from a request's prompts to token ids: chat template, special tokens, the context
 * window. Runs in the connection's thread; the model's parts are immutable.
 */
#include "api/api_format.h"
#include "api/tools_gram.h"

#include <stdlib.h>

/* The tokenizer adds its own special tokens to raw text, except where the text brings the first one
 * along already (a rendered chat prompt sent as a completion): never two of them. */
static unsigned raw_flags(const struct api_model *m, struct str text)
{
    int32_t bos = tok_bos(m->tok);
    struct str piece = bos >= 0 ? tok_piece(m->tok, bos) : (struct str){NULL, 0};
    bool has = piece.n > 0 && str_starts(text, piece);
    return TOK_PARSE_SPECIAL | (has ? 0 : TOK_ADD_SPECIAL);
}

static enum qn_status encode(const struct api_model *m, struct api_prompt *p, unsigned flags,
                             struct api_error *e)
{
    struct ids ids = {0};
    struct qn_err err = {0};
    if (tok_encode(m->tok, p->text, flags, &ids, &err) != QN_OK) {
        ids_free(&ids);
        return api_refuse_err(e, &err, NULL);
    }
    p->ids = ids.v;
    p->ids_owned = true;
    p->n_ids = ids.n > INT32_MAX ? INT32_MAX : (int32_t)ids.n;
    return QN_OK;
}

/* An empty text begins with the model's first token, where it has one. */
static enum qn_status start_token(const struct api_model *m, struct api_prompt *p, const char *name,
                                  struct api_error *e)
{
    int32_t bos = tok_bos(m->tok);
    if (p->n_ids > 0)
        return QN_OK;
    if (bos < 0 || bos >= m->n_vocab)
        return api_refuse(e, 400, "invalid_value", name,
                          "%s is empty and this model has no start token to begin from", name);
    int32_t *v = malloc(sizeof *v);
    if (!v)
        return api_no_memory(e);
    if (p->ids_owned)
        free(p->ids);
    *v = bos;
    p->ids = v;
    p->n_ids = 1;
    p->ids_owned = true;
    return QN_OK;
}

static enum qn_status check_window(const struct api_model *m, const struct api_request *r,
                                   const struct api_prompt *p, const char *name,
                                   struct api_error *e)
{
    if (p->n_ids < m->n_ctx || r->any_length)
        return QN_OK;
    return api_refuse(e, 400, "context_length_exceeded", name,
                      "the prompt has %d tokens and the context window of this model is %d tokens, "
                      "which leaves no room for an answer; shorten %s",
                      p->n_ids, m->n_ctx, name);
}

/* A tokenizer may know more tokens than the model: their text cannot be read. */
static enum qn_status check_ids(const struct api_model *m, const struct api_prompt *p,
                                const char *name, struct api_error *e)
{
    for (int32_t i = 0; i < p->n_ids; i++) {
        if (p->ids[i] < m->n_vocab)
            continue;
        struct str text = tok_piece(m->tok, p->ids[i]);
        return api_refuse(e, 400, "invalid_value", name,
                          "%s holds \"%.*s\", token %d of the tokenizer, but the model's ids are 0 "
                          "to %d",
                          name, text.n > 80 ? 80 : (int)text.n, text.p, p->ids[i], m->n_vocab - 1);
    }
    return QN_OK;
}

static void add_key(struct buf *b, struct str key)
{
    if (b->n && b->p[b->n - 1] != '{')
        buf_addc(b, ',');
    json_w_str(b, key);
    buf_addc(b, ':');
}

/* One message; with "" for its text where it lacks one but calls tools. */
static bool add_filled(struct buf *b, const struct json *msg)
{
    struct json_iter it = {0};
    bool lacks = json_type(json_get(msg, "content")) == JSON_NULL &&
                 json_len(json_get(msg, "tool_calls")) > 0;
    if (!lacks) {
        json_w_value(b, msg);
        return false;
    }
    buf_addz(b, "{\"content\":\"\"");
    while (json_next(msg, &it)) {
        if (str_eqz(it.key, "content"))
            continue;
        add_key(b, it.key);
        json_w_value(b, it.val);
    }
    buf_addc(b, '}');
    return true;
}

/* A turn that only calls tools has no text, and some templates concatenate it all the same. The
 * chat once more with "" there; false when no turn lacks its text, or for want of memory. */
static bool fill_contents(const struct json *chat, struct json **out)
{
    struct json_iter it = {0};
    struct buf b = BUF_INIT;
    bool any = false;
    buf_addc(&b, '{');
    while (!b.failed && json_next(chat, &it)) {
        add_key(&b, it.key);
        bool messages = str_eqz(it.key, "messages");
        if (!messages)
            json_w_value(&b, it.val);
        for (size_t i = 0; messages && i < json_len(it.val); i++) {
            buf_addc(&b, i ? ',' : '[');
            any |= add_filled(&b, json_at(it.val, i));
        }
        if (messages)
            buf_addc(&b, ']');
    }
    buf_addc(&b, '}');
    bool ok = any && !b.failed &&
              json_parse(buf_str(&b), "messages", JSON_DEPTH_MAX + 2, out, NULL) == QN_OK;
    buf_free(&b);
    return ok;
}

enum qn_status api_chat_render(const struct api_model *m, struct api_request *r, int64_t now,
                               struct qn_err *err)
{
    struct json *filled = NULL;
    struct qn_err again = {0};
    enum qn_status st = chat_render(m->chat, r->chat, now, &r->chat_prompt, err);
    if (st == QN_OK || st == QN_NO_MEMORY || !fill_contents(r->chat, &filled))
        return st;
    buf_clear(&r->chat_prompt);
    if (chat_render(m->chat, filled, now, &r->chat_prompt, &again) == QN_OK)
        st = QN_OK;
    json_free(filled);
    return st;
}

enum qn_status api_tokenise(const struct api_model *m, struct api_request *r, struct api_error *e)
{
    const char *own = r->dialect->prompt_field;
    const char *name = own ? own : r->chat ? "messages" : "prompt";
    struct qn_err err = {0};
    if (r->chat) {
        if (!m->chat)
            return api_refuse(e, 400, "no_chat_template", "messages",
                              "this model has no chat template; use /v1/completions");
        if (api_chat_render(m, r, r->created, &err) != QN_OK)
            return api_refuse_err(e, &err, "messages");
        r->prompts = arena_zalloc_n(r->arena, 1, sizeof *r->prompts);
        if (!r->prompts)
            return api_no_memory(e);
        r->prompts[0].text = (struct str){buf_z(&r->chat_prompt), r->chat_prompt.n};
        r->n_prompts = 1;
    }
    for (int32_t i = 0; i < r->n_prompts; i++) {
        struct api_prompt *p = &r->prompts[i];
        if (p->text.p) {
            unsigned flags = r->chat ? TOK_PARSE_SPECIAL : raw_flags(m, p->text);
            QN_TRY(encode(m, p, flags, e));
        }
        QN_TRY(start_token(m, p, name, e));
        QN_TRY(check_window(m, r, p, name, e));
        QN_TRY(check_ids(m, p, name, e));
    }
    if (r->any_length)
        return QN_OK;
    QN_TRY(api_tools_compile(m, r, e));
    return api_format_compile(m, r, e);
}
