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

/* What a copy of a chat is to be like. */
struct copy {
    size_t head, from; /* messages between these are left out */
    bool fill;         /* "" for the text of turns that only call tools */
};

/* False: there was nothing to fill, or no memory. */
static bool copy_chat(const struct json *chat, struct copy c, struct json **out)
{
    struct json_iter it = {0};
    struct buf b = BUF_INIT;
    bool any = !c.fill;
    buf_addc(&b, '{');
    while (!b.failed && json_next(chat, &it)) {
        add_key(&b, it.key);
        if (!str_eqz(it.key, "messages")) {
            json_w_value(&b, it.val);
            continue;
        }
        for (size_t i = 0; i < json_len(it.val); i++) {
            if (i >= c.head && i < c.from)
                continue;
            buf_addc(&b, i == 0 || (i == c.from && c.head == 0) ? '[' : ',');
            if (c.fill)
                any |= add_filled(&b, json_at(it.val, i));
            else
                json_w_value(&b, json_at(it.val, i));
        }
        buf_addc(&b, ']');
    }
    buf_addc(&b, '}');
    bool ok = any && !b.failed &&
              json_parse(buf_str(&b), "messages", JSON_DEPTH_MAX + 2, out, NULL) == QN_OK;
    buf_free(&b);
    return ok;
}

/* A turn that only calls tools has no text, and some templates concatenate it all the same. */
static enum qn_status render(const struct api_model *m, const struct json *chat, int64_t now,
                             struct buf *out, struct qn_err *err)
{
    struct json *filled = NULL;
    struct qn_err again = {0};
    enum qn_status st = chat_render(m->chat, chat, now, out, err);
    if (st == QN_OK || st == QN_NO_MEMORY || !copy_chat(chat, (struct copy){.fill = true}, &filled))
        return st;
    buf_clear(out);
    if (chat_render(m->chat, filled, now, out, &again) == QN_OK)
        st = QN_OK;
    json_free(filled);
    return st;
}

enum qn_status api_chat_render(const struct api_model *m, struct api_request *r, int64_t now,
                               struct qn_err *err)
{
    return render(m, r->chat, now, &r->chat_prompt, err);
}

/* ---- a talk that is too long (truncation: auto) ---- */

static bool has_role(const struct json *list, size_t i, const char *role)
{
    return str_eqz(json_str(json_get(json_at(list, i), "role")), role);
}

/* The talk without its messages [head, from); *fits: with room for an answer. */
static enum qn_status try_shorter(const struct api_model *m, struct api_request *r, struct copy c,
                                  bool *fits, struct api_error *e)
{
    struct json *chat = NULL;
    struct buf text = BUF_INIT;
    struct api_prompt p = {0};
    struct qn_err err = {0};
    int32_t room =
        r->max_tokens > 0 && r->max_tokens < m->n_ctx / 2 ? (int32_t)r->max_tokens : m->n_ctx / 8;
    if (!copy_chat(r->chat, c, &chat))
        return api_no_memory(e);
    enum qn_status st = render(m, chat, r->created, &text, &err);
    json_free(chat);
    if (st != QN_OK) {
        buf_free(&text);
        return api_refuse_err(e, &err, "messages");
    }
    p.text = (struct str){buf_z(&text), text.n};
    st = encode(m, &p, TOK_PARSE_SPECIAL, e);
    *fits = st == QN_OK && p.n_ids <= m->n_ctx - room;
    if (!*fits) {
        buf_free(&text);
        if (p.ids_owned)
            free(p.ids);
        return st;
    }
    struct api_prompt *q = &r->prompts[0];
    if (q->ids_owned)
        free(q->ids);
    buf_free(&r->chat_prompt);
    r->chat_prompt = text;
    *q = p;
    return QN_OK;
}

/* Leaves out the oldest turns, whole ones: what is left begins with the user's. Where even the last
 * of them does not fit the prompt stays as it is, too long. */
static enum qn_status shorten(const struct api_model *m, struct api_request *r, struct api_error *e)
{
    const struct json *list = json_get(r->chat, "messages");
    size_t n = json_len(list), head = 0, n_cut = 0;
    while (has_role(list, head, "system") || has_role(list, head, "developer"))
        head++;
    size_t *cut = arena_zalloc_n(r->arena, n + 1, sizeof *cut);
    if (!cut)
        return api_no_memory(e);
    for (size_t i = head + 1; i < n; i++)
        if (has_role(list, i, "user"))
            cut[n_cut++] = i;
    bool fits = false;
    for (size_t lo = 0, hi = n_cut; lo < hi;) { /* the first cut that fits */
        size_t mid = lo + (hi - lo) / 2;
        QN_TRY(try_shorter(m, r, (struct copy){.head = head, .from = cut[mid]}, &fits, e));
        if (fits)
            hi = mid;
        else
            lo = mid + 1;
    }
    return QN_OK;
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
        if (r->truncate && r->chat && p->n_ids >= m->n_ctx)
            QN_TRY(shorten(m, r, e));
        QN_TRY(start_token(m, p, name, e));
        QN_TRY(check_window(m, r, p, name, e));
        QN_TRY(check_ids(m, p, name, e));
    }
    if (r->any_length)
        return QN_OK;
    QN_TRY(api_tools_compile(m, r, e));
    return api_format_compile(m, r, e);
}
