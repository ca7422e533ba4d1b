/*
 * session.c - see session.h. The answer's loop only waits for events and forwards text; it looks at
 * the interrupt flag ten times a second and at every event.
 */
#include "cli/session.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/engine_open.h"
#include "cli/model_arg.h"
#include "cli/progress.h"
#include "cli/term.h"
#include "model/engine.h"
#include "sched/gen_defaults.h"

#define POLL_MS 100

static enum qn_status start_sched(const struct engine_args *a, const struct draft_opts *draft,
                                  struct session *s, struct qn_err *err)
{
    struct lm lm = lm_of_engine(s->engine);
    struct sched_params sp = {.n_lane = 1};
    const struct draft_target t = {.lm = &lm, .tok = s->tok, .threads = a->threads};
    QN_TRY(draft_opts_open(draft, &t, &s->draft, &sp.spec, err));
    return sched_create(&lm, s->tok, &sp, &s->sched, err);
}

enum qn_status session_open(const char *model, const struct engine_args *a,
                            const struct draft_opts *draft, struct session *s, struct qn_err *err)
{
    *s = (struct session){.defaults = sample_params_default()};
    int64_t start = clock_us();
    struct buf dir = BUF_INIT;
    struct engine_args args = *a;
    args.mtp = draft_opts_mtp(draft);
    args.draft_kind = draft_opts_kind(draft);
    args.draft_model = draft_opts_model(draft);
    enum qn_status st = model_arg_find(model, &dir, err);
    if (st == QN_OK)
        st = engine_open(buf_z(&dir), &args, &s->engine, err);
    if (st == QN_OK)
        st = gen_defaults_load(buf_z(&dir), &s->defaults, err);
    buf_free(&dir);
    if (st == QN_OK) {
        s->info = qn_engine_info(s->engine);
        s->tok = engine_tok(s->engine);
        s->chat = engine_chat(s->engine);
        st = start_sched(a, draft, s, err);
    }
    if (st != QN_OK)
        session_close(s);
    s->load_us = clock_us() - start;
    return st;
}

void session_close(struct session *s)
{
    if (s->sched)
        sched_free(s->sched);
    served_close(&s->draft);
    qn_engine_free(s->engine);
    s->sched = NULL;
    s->engine = NULL;
}

enum qn_status session_chat_ids(const struct session *s, struct str request, struct ids *out,
                                struct qn_err *err)
{
    struct json *doc = NULL;
    struct buf text = BUF_INIT;
    enum qn_status st = json_parse(request, "chat request", JSON_DEPTH_MAX, &doc, err);
    if (st == QN_OK)
        st = chat_render(s->chat, doc, clock_unix(), &text, err);
    if (st == QN_OK)
        st = tok_encode(s->tok, buf_str(&text), TOK_PARSE_SPECIAL, out, err);
    json_free(doc);
    buf_free(&text);
    return st;
}

enum qn_status session_raw_ids(const struct session *s, struct str text, struct ids *out,
                               struct qn_err *err)
{
    int32_t bos = tok_bos(s->tok);
    struct str piece = bos >= 0 ? tok_piece(s->tok, bos) : (struct str){NULL, 0};
    unsigned flags = TOK_PARSE_SPECIAL | TOK_ADD_SPECIAL;
    if (piece.n && str_starts(text, piece))
        flags = TOK_PARSE_SPECIAL;
    return tok_encode(s->tok, text, flags, out, err);
}

static enum qn_status keep_token(struct answer *a, const struct sampled *t, struct qn_err *err)
{
    if (a->n_token > a->cap - 1) {
        int32_t cap = a->cap ? a->cap * 2 : 64;
        struct sampled *v = realloc(a->tokens, (size_t)cap * sizeof *v);
        if (!v)
            QN_FAIL(err, QN_NO_MEMORY, "answer", "out of memory for %d tokens' logprobs", cap);
        a->tokens = v;
        a->cap = cap;
    }
    a->tokens[a->n_token] = *t;
    return QN_OK;
}

/* What the loop below carries from event to event. */
struct run {
    const struct gen_params *p;
    const struct answer_sink *sink;
    struct answer *a;
    struct gen *gen;
    struct progress line;
    int64_t start_us, last_us;
    bool ended;
};

static void pass_text(struct run *r, struct str text)
{
    if (text.n == 0)
        return;
    buf_add_str(&r->a->text, text);
    if (r->sink->write && !r->sink->write(r->sink->arg, text))
        gen_cancel(r->gen);
}

static enum qn_status on_token(struct run *r, const struct gen_event *ev, struct qn_err *err)
{
    r->last_us = clock_us();
    if (r->a->first_us == 0) {
        r->a->first_us = r->last_us - r->start_us;
        progress_end(&r->line);
        double most = r->p->max_tokens > 0 ? r->p->max_tokens : 0;
        progress_start(&r->line, "Answering", "tok", most);
    }
    if (r->p->sample.n_top >= 0)
        QN_TRY(keep_token(r->a, &ev->token, err));
    r->a->n_token++;
    pass_text(r, ev->text);
    if (r->sink->progress)
        progress_set(&r->line, r->a->n_token);
    return QN_OK;
}

static enum qn_status on_event(struct run *r, const struct gen_event *ev, struct qn_err *err)
{
    switch (ev->kind) {
    case GEN_PROGRESS:
        progress_set(&r->line, ev->n_done);
        break;
    case GEN_TOKEN:
        return on_token(r, ev, err);
    case GEN_DONE:
        pass_text(r, ev->text);
        r->a->finish = ev->finish;
        r->a->usage = ev->usage;
        r->ended = true;
        break;
    case GEN_ERROR:
        r->ended = true;
        if (err)
            *err = ev->err;
        return ev->err.code != QN_OK ? ev->err.code : QN_INTERNAL;
    case GEN_NONE:
    case GEN_PROMPT:
        break;
    }
    return QN_OK;
}

enum qn_status session_answer(struct session *s, const struct gen_params *p,
                              const struct answer_sink *sink, struct answer *a, struct qn_err *err)
{
    struct run r = {.p = p, .sink = sink, .a = a, .start_us = clock_us()};
    if (p->n_prompt >= s->info->n_ctx)
        QN_FAIL(err, QN_BAD_INPUT, "answer",
                "the prompt has %d tokens and the context holds %d: no room is left for an answer",
                p->n_prompt, s->info->n_ctx);
    QN_TRY(sched_submit(s->sched, p, &r.gen, err));
    progress_start(&r.line, "Reading the prompt", "tok", p->n_prompt);
    enum qn_status st = QN_OK;
    while (st == QN_OK && !r.ended) {
        struct gen_event ev;
        gen_wait(r.gen, POLL_MS, &ev);
        if (term_interrupted())
            gen_cancel(r.gen);
        st = on_event(&r, &ev, err);
    }
    progress_end(&r.line);
    a->total_us = clock_us() - r.start_us;
    a->decode_us = a->n_token > 0 ? r.last_us - r.start_us - a->first_us : 0;
    gen_free(r.gen);
    if (st == QN_OK)
        st = buf_ok(&a->text, "answer", err);
    return st;
}

void answer_free(struct answer *a)
{
    buf_free(&a->text);
    free(a->tokens);
    *a = (struct answer){0};
}

const char *finish_name(enum gen_finish f)
{
    switch (f) {
    case GEN_STOP_EOS:
    case GEN_STOP_STRING:
    case GEN_STOP_GRAMMAR:
        return "stop";
    case GEN_LENGTH:
        return "length";
    case GEN_CANCELLED:
        return "cancelled";
    }
    return "?";
}

void answer_stats(const struct answer *a, const struct session *s, uint64_t seed, struct buf *out)
{
    int32_t read = a->usage.prompt_tokens - a->usage.cached_tokens;
    double prefill = (double)a->usage.prefill_us / 1e6, decode = (double)a->decode_us / 1e6;
    buf_addf(out, "prompt:      %d tokens", a->usage.prompt_tokens);
    if (prefill > 0)
        buf_addf(out, ", %.3f s, %.1f tokens/s", prefill, read / prefill);
    buf_addf(out, "\nanswer:      %d tokens", a->n_token);
    if (decode > 0 && a->n_token > 1) /* the first token's time belongs to the prompt */
        buf_addf(out, ", %.3f s, %.1f tokens/s", decode, (a->n_token - 1) / decode);
    buf_addf(out, ", ended by %s\n", finish_name(a->finish));
    const struct spec_counts *sc = &a->usage.spec;
    if (sc->rounds > 0)
        buf_addf(out, "speculation: %lld of %lld guesses right, %.2f tokens a step\n",
                 (long long)sc->accepted, (long long)sc->drafted,
                 1 + (double)sc->accepted / (double)sc->rounds);
    if (a->first_us > 0)
        buf_addf(out, "first token: %.3f s after the prompt was given, %.3f s with loading\n",
                 (double)a->first_us / 1e6, (double)(a->first_us + s->load_us) / 1e6);
    buf_addf(out, "model:       %s, %s, %d threads, loaded in %.3f s\n", s->info->name,
             s->info->isa, s->info->n_thread, (double)s->load_us / 1e6);
    buf_addf(out, "seed:        %llu\n", (unsigned long long)seed);
}
