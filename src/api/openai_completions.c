/*
 * openai_completions.c - the OpenAI (legacy) Completions dialect: raw prompts as text or token ids,
 * echo, and logprobs in their old shape. Only translates.
 *
 * Choice order: prompt i, choice j at i*n + j. text_offset counts characters of the choice's text.
 */
#include <stdlib.h>

#include "api/api_fields.h"
#include "api/api_format.h"
#include "api/openai_common.h"
#include "api/sse.h"

static enum qn_status bad_prompt(const struct json *v, struct api_error *e)
{
    return field_bad(e, "prompt", v,
                     "a string, an array of strings, an array of token ids or an array of those");
}

static enum qn_status ids_of(const struct api_model *m, const struct json *list,
                             struct api_request *r, struct api_prompt *p, struct api_error *e)
{
    size_t n = json_len(list);
    if (n == 0 || n > INT32_MAX)
        return api_refuse(e, 400, "invalid_value", "prompt",
                          "prompt holds an empty list of token ids; expected at least one");
    p->ids = arena_zalloc_n(r->arena, n, sizeof *p->ids);
    if (!p->ids)
        return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const struct json *v = json_at(list, i);
        int64_t id;
        if (json_type(v) != JSON_INT)
            return bad_prompt(v, e);
        if (!json_i64(v, &id) || id < 0 || id >= m->n_vocab)
            return api_refuse(e, 400, "invalid_value", "prompt",
                              "prompt holds a token id outside this model's vocabulary; expected 0 "
                              "to %d",
                              m->n_vocab - 1);
        p->ids[i] = (int32_t)id;
    }
    p->n_ids = (int32_t)n;
    return QN_OK;
}

static enum qn_status prompt_of(const struct api_model *m, const struct json *o,
                                struct api_request *r, struct api_error *e)
{
    const struct json *v = json_get(o, "prompt");
    const struct json *first = json_at(v, 0);
    bool list = json_type(v) == JSON_ARR;
    bool many = list && (json_type(first) == JSON_STR || json_type(first) == JSON_ARR);
    size_t n = many ? json_len(v) : 1;
    if (json_type(v) != JSON_STR && !list)
        return bad_prompt(v, e);
    if (list && json_len(v) == 0)
        return api_refuse(e, 400, "invalid_value", "prompt",
                          "prompt is an empty array; expected at least one prompt");
    if (n > API_PROMPTS_MAX)
        return api_refuse(e, 400, "invalid_value", "prompt",
                          "prompt holds %zu prompts; expected at most %d", n, API_PROMPTS_MAX);
    r->prompts = arena_zalloc_n(r->arena, n, sizeof *r->prompts);
    if (!r->prompts)
        return api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const struct json *one = many ? json_at(v, i) : v;
        struct api_prompt *p = &r->prompts[i];
        if (json_type(one) == JSON_STR)
            p->text = json_str(one).n ? json_str(one) : STR_LIT("");
        else if (json_type(one) == JSON_ARR)
            QN_TRY(ids_of(m, one, r, p, e));
        else
            return bad_prompt(one, e);
        r->n_prompts = (int32_t)i + 1;
    }
    return QN_OK;
}

static enum qn_status completions_parse(const struct api_model *m, struct api_request *r,
                                        struct api_error *e)
{
    const struct json *o = r->body;
    int32_t best_of = -1;
    QN_TRY(prompt_of(m, o, r, e));
    if (json_has(o, "suffix"))
        return api_refuse(e, 400, "unsupported_parameter", "suffix",
                          "suffix is not supported by this server");
    QN_TRY(fields_max_tokens(o, r, e));
    QN_TRY(fields_sampling(m, o, r, e));
    QN_TRY(field_i32(o, "logprobs", 0, 20, &r->sample.n_top, e));
    QN_TRY(fields_control(o, r, e));
    QN_TRY(fields_format(o, r, e));
    QN_TRY(field_bool(o, "echo", &r->echo, e));
    QN_TRY(field_i32(o, "best_of", 1, API_N_MAX, &best_of, e));
    if (best_of >= 0 && best_of != r->n)
        return api_refuse(e, 400, "unsupported_parameter", "best_of",
                          "best_of is %d; this server supports only best_of = n, here %d", best_of,
                          r->n);
    if ((int64_t)r->n_prompts * r->n > API_CHOICES_MAX)
        return api_refuse(e, 400, "invalid_value", "n",
                          "%d prompts times n %d make more than %d choices", r->n_prompts, r->n,
                          API_CHOICES_MAX);
    return QN_OK;
}

/* ---- echo ---------------------------------------------------------------------------------------
 */

static bool is_bos(const struct api_model *m, int32_t id)
{
    return id == tok_bos(m->tok);
}

/* What echo gives back: the text as it came, or the text of the ids without a leading start token.
 */
static void echo_text(const struct api_model *m, const struct api_prompt *p, struct buf *out)
{
    if (p->text.p) {
        buf_add_str(out, p->text);
        return;
    }
    int32_t skip = p->n_ids > 0 && is_bos(m, p->ids[0]) ? 1 : 0;
    tok_decode(m->tok, p->ids + skip, (size_t)(p->n_ids - skip), true, out);
}

/* ---- logprobs: four parallel arrays
 * --------------------------------------------------------------- */

struct legacy {
    struct buf tokens, logprobs, tops, offsets; /* insides of the four arrays */
    int64_t n;
    struct openai_offset at;
};

static void legacy_free(struct legacy *l)
{
    buf_free(&l->tokens);
    buf_free(&l->logprobs);
    buf_free(&l->tops);
    buf_free(&l->offsets);
}

static void legacy_clear(struct legacy *l)
{
    buf_clear(&l->tokens);
    buf_clear(&l->logprobs);
    buf_clear(&l->tops);
    buf_clear(&l->offsets);
    l->n = 0;
}

static void legacy_tops(struct buf *out, const struct tok *t, const struct sampled *s)
{
    struct jw w;
    struct buf text = BUF_INIT;
    jw_init(&w, out);
    buf_addc(out, '{');
    for (int32_t k = 0; k < s->n_top; k++) {
        buf_clear(&text);
        openai_token_text(t, s->top[k].id, &text);
        out->failed |= text.failed;
        if (k)
            buf_addc(out, ',');
        json_w_str(out, buf_str(&text));
        buf_addc(out, ':');
        w.more = 0;
        openai_logprob(&w, s->top[k].logprob);
    }
    buf_addc(out, '}');
    buf_free(&text);
}

/* first: the prompt's first token, which nothing precedes. in_prompt: special tokens have text. */
static void legacy_add(struct legacy *l, const struct tok *t, const struct sampled *s, bool first,
                       bool in_prompt)
{
    struct buf text = BUF_INIT;
    struct jw w;
    bool bos = first && s->id == tok_bos(t);
    if (l->n++ > 0) {
        buf_addc(&l->tokens, ',');
        buf_addc(&l->logprobs, ',');
        buf_addc(&l->tops, ',');
        buf_addc(&l->offsets, ',');
    }
    openai_token_text(t, s->id, &text);
    json_w_str(&l->tokens, buf_str(&text));
    l->tokens.failed |= text.failed;
    buf_free(&text);
    if (first) {
        buf_addz(&l->logprobs, "null");
        buf_addz(&l->tops, "null");
    } else {
        jw_init(&w, &l->logprobs);
        openai_logprob(&w, s->logprob);
        legacy_tops(&l->tops, t, s);
    }
    json_w_i64(&l->offsets, openai_offset_next(&l->at, t, s->id, in_prompt && !bos));
    l->offsets.failed |= l->at.failed;
}

static void legacy_array(struct jw *w, const char *key, const struct buf *inside)
{
    struct buf b = BUF_INIT;
    buf_addc(&b, '[');
    buf_add_str(&b, buf_str(inside));
    buf_addc(&b, ']');
    jw_key(w, key);
    jw_raw(w, buf_str(&b));
    if (b.failed || inside->failed)
        w->out->failed = true;
    buf_free(&b);
}

static void legacy_write(struct jw *w, const struct legacy *l)
{
    jw_obj(w);
    legacy_array(w, "tokens", &l->tokens);
    legacy_array(w, "token_logprobs", &l->logprobs);
    legacy_array(w, "top_logprobs", &l->tops);
    legacy_array(w, "text_offset", &l->offsets);
    jw_obj_end(w);
}

/* ---- whole answers -----------------------------------------------------------------------------
 */

static void write_choice(struct jw *w, const struct api_model *m, const struct api_request *r,
                         const struct api_choice *c, int32_t index)
{
    struct buf text = BUF_INIT;
    if (r->echo)
        echo_text(m, &r->prompts[index / r->n], &text);
    buf_add_str(&text, buf_str(&c->text));
    jw_obj(w);
    jw_ki64(w, "index", index);
    jw_kstr(w, "text", buf_str(&text));
    jw_key(w, "logprobs");
    if (r->sample.n_top >= 0) {
        struct legacy l = {0};
        for (size_t i = 0; i < c->n_prompt_tokens; i++)
            legacy_add(&l, m->tok, &c->prompt_tokens[i], i == 0, true);
        for (size_t i = 0; i < c->n_tokens; i++)
            legacy_add(&l, m->tok, &c->tokens[i], false, false);
        legacy_write(w, &l);
        legacy_free(&l);
    } else {
        jw_null(w);
    }
    jw_kstrz(w, "finish_reason", openai_finish(c->finish));
    jw_obj_end(w);
    if (text.failed)
        w->out->failed = true;
    buf_free(&text);
}

static void completions_answer(const struct api_model *m, const struct api_request *r,
                               const struct api_answer *a, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    openai_head(&w, m, r, "text_completion");
    jw_key(&w, "choices");
    jw_arr(&w);
    for (int32_t i = 0; i < a->n_choices; i++)
        write_choice(&w, m, r, &a->choices[i], i);
    jw_arr_end(&w);
    openai_usage(&w, &a->usage);
    jw_obj_end(&w);
}

/* ---- streams
 * ------------------------------------------------------------------------------------- */

/* Per choice: whether the echo went out, and logprobs that wait for the next chunk with text. */
struct lane {
    bool begun;
    int64_t n_prompt_tokens;
    struct legacy pending;
};

struct api_stream {
    const struct api_model *m;
    const struct api_request *r;
    struct lane *lanes;
    int32_t n_lanes;
    struct buf json, text; /* scratch */
};

static void send(struct api_stream *s, struct buf *out)
{
    if (s->json.failed || s->text.failed)
        out->failed = true;
    sse_data(out, buf_str(&s->json));
}

/* finish NULL: a chunk with text (and the pending logprobs). */
static void chunk(struct api_stream *s, int32_t choice, struct str text, const char *finish,
                  struct buf *out)
{
    struct lane *l = &s->lanes[choice];
    struct jw w;
    buf_clear(&s->json);
    jw_init(&w, &s->json);
    jw_obj(&w);
    openai_head(&w, s->m, s->r, "text_completion");
    jw_key(&w, "choices");
    jw_arr(&w);
    jw_obj(&w);
    jw_ki64(&w, "index", choice);
    jw_kstr(&w, "text", text);
    jw_key(&w, "logprobs");
    if (s->r->sample.n_top >= 0 && !finish) {
        legacy_write(&w, &l->pending);
        legacy_clear(&l->pending);
    } else {
        jw_null(&w);
    }
    jw_kstrz(&w, "finish_reason", finish);
    jw_obj_end(&w);
    jw_arr_end(&w);
    if (s->r->include_usage)
        jw_knull(&w, "usage");
    jw_obj_end(&w);
    send(s, out);
}

static struct api_stream *completions_stream_begin(const struct api_model *m,
                                                   const struct api_request *r, struct buf *out)
{
    struct api_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->m = m;
    s->r = r;
    s->n_lanes = r->n_prompts * r->n;
    s->lanes = calloc((size_t)s->n_lanes, sizeof *s->lanes);
    if (!s->lanes) {
        free(s);
        return NULL;
    }
    return s;
}

static void end_chunk(struct api_stream *s, const struct api_usage *u, struct buf *out)
{
    struct jw w;
    buf_clear(&s->json);
    jw_init(&w, &s->json);
    jw_obj(&w);
    openai_head(&w, s->m, s->r, "text_completion");
    jw_key(&w, "choices");
    jw_arr(&w);
    jw_arr_end(&w);
    openai_usage(&w, u);
    jw_obj_end(&w);
    send(s, out);
}

static void text_event(struct api_stream *s, const struct api_event *ev, struct buf *out)
{
    struct lane *l = &s->lanes[ev->choice];
    bool finish = ev->kind == API_EV_FINISH;
    struct str text = ev->text;
    if (ev->token)
        legacy_add(&l->pending, s->m->tok, ev->token, false, false);
    if (s->r->echo && !l->begun) {
        buf_clear(&s->text);
        echo_text(s->m, &s->r->prompts[ev->choice / s->r->n], &s->text);
        buf_add_str(&s->text, ev->text);
        text = buf_str(&s->text);
    }
    l->begun = true;
    if (text.n > 0 || (finish && l->pending.n > 0))
        chunk(s, ev->choice, text, NULL, out);
    if (finish)
        chunk(s, ev->choice, STR_LIT(""), openai_finish(ev->finish), out);
}

static void completions_stream_event(struct api_stream *s, const struct api_event *ev,
                                     struct buf *out)
{
    struct lane *l = &s->lanes[ev->choice];
    switch (ev->kind) {
    case API_EV_PROMPT_TOKEN:
        legacy_add(&l->pending, s->m->tok, ev->token, l->n_prompt_tokens++ == 0, true);
        break;
    case API_EV_TEXT:
    case API_EV_FINISH:
        text_event(s, ev, out);
        break;
    case API_EV_END:
        if (s->r->include_usage)
            end_chunk(s, &ev->usage, out);
        sse_done(out);
        break;
    case API_EV_ERROR:
        openai_error_event(&ev->err, out);
        break;
    default:
        break;
    }
}

static void completions_stream_free(struct api_stream *s)
{
    if (!s)
        return;
    for (int32_t i = 0; i < s->n_lanes; i++)
        legacy_free(&s->lanes[i].pending);
    free(s->lanes);
    buf_free(&s->json);
    buf_free(&s->text);
    free(s);
}

const struct api_dialect dialect_openai_completions = {
    .name = "openai completions",
    .id_prefix = "cmpl-",
    .parse = completions_parse,
    .answer = completions_answer,
    .stream_begin = completions_stream_begin,
    .stream_event = completions_stream_event,
    .stream_free = completions_stream_free,
    .error = openai_error,
};
