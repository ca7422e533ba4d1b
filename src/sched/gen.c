/*
 * gen.c - one generation: its parameters, its events, and what a drawn token leads to (text, stops,
 * end). The scheduler decides when; this file what. See gen.h for who touches which field.
 *
 * Invariant: a client sees any number of events and then, for ever, the one final event.
 */
#include "sched/gen.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/fault.h"
#include "sched/think_watch.h"

#define WHERE    "generation"
#define IDS_MORE 64 /* made tokens there is room for at first */

/* ---- parameters and life ------------------------------------------------------------------- */

static enum qn_status check(const struct lm *lm, const struct gen_params *p, struct qn_err *err)
{
    if (p->n_prompt < 1)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "the prompt is empty; at least one token is needed");
    if (p->n_prompt >= lm->n_ctx)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "the prompt has %d tokens, but the context holds %d and the answer needs room for "
                "at least one; shorten the prompt",
                p->n_prompt, lm->n_ctx);
    for (int32_t i = 0; i < p->n_prompt; i++)
        if (p->prompt[i] < 0 || p->prompt[i] >= lm->n_vocab)
            QN_FAIL(err, QN_BAD_INPUT, WHERE,
                    "prompt token %d has id %d; the model's ids are 0 to %d", i, p->prompt[i],
                    lm->n_vocab - 1);
    if (p->max_tokens < -1)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "max_tokens is %d; expected 0 or more, or -1 for no limit", p->max_tokens);
    if (p->n_stop < 0 || p->n_stop > GEN_STOP_MAX)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%d stop strings; at most %d are allowed", p->n_stop,
                GEN_STOP_MAX);
    for (int32_t i = 0; i < p->n_stop; i++)
        if (p->stop[i].n == 0 || p->stop[i].n > GEN_STOP_BYTES_MAX)
            QN_FAIL(err, QN_BAD_INPUT, WHERE, "stop[%d] has %zu bytes; expected 1 to %d", i,
                    p->stop[i].n, GEN_STOP_BYTES_MAX);
    if (p->cache_ns && strlen(p->cache_ns) > GEN_NS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "the prompt cache's namespace has %zu bytes; at most %d",
                strlen(p->cache_ns), GEN_NS_MAX);
    return sample_params_check(&p->sample, lm->n_vocab, err);
}

/* The first mask, which takes longest and may be refused, is made here in the client's thread. */
static enum qn_status follow_grammar(struct gen *g, const struct lm *lm, const struct gen_params *p,
                                     struct qn_err *err)
{
    const uint64_t *bits;
    if (!p->vocab || gram_vocab_size(p->vocab) != lm->n_vocab)
        QN_FAIL(err, QN_INTERNAL, WHERE, "the grammar's vocabulary is not the model's");
    QN_TRY(gram_run_create(p->grammar, p->vocab, lm->eos_ids, lm->n_eos, &g->grammar, err));
    return gram_run_mask(g->grammar, &bits, err);
}

static enum qn_status copy_params(struct gen *g, const struct lm *lm, const struct gen_params *p,
                                  struct qn_err *err)
{
    size_t n_bias = (size_t)p->sample.n_bias;
    g->p = *p;
    g->p.share = NULL; /* not referred to yet */
    g->cap_ids = p->n_prompt + IDS_MORE;
    g->ids = fault_point("sched.alloc") ? NULL : malloc((size_t)g->cap_ids * sizeof *g->ids);
    g->bias = fault_point("sched.alloc") ? NULL : malloc((n_bias + 1) * sizeof *g->bias);
    if (!g->ids || !g->bias)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for a prompt of %d tokens", p->n_prompt);
    memcpy(g->ids, p->prompt, (size_t)p->n_prompt * sizeof *g->ids);
    g->n_ids = p->n_prompt;
    if (n_bias)
        memcpy(g->bias, p->sample.bias, n_bias * sizeof *g->bias);
    g->p.prompt = NULL;
    g->p.cache_ns = NULL;
    if (p->cache_ns)
        memcpy(g->cache_ns, p->cache_ns, strlen(p->cache_ns) + 1);
    g->p.sample.bias = g->bias;
    g->open_end = p->max_tokens < 0;
    int32_t fits = lm->n_ctx - p->n_prompt;
    if (p->max_tokens < 0 || p->max_tokens > fits)
        g->p.max_tokens = fits;
    memset(g->p.stop, 0, sizeof g->p.stop);
    g->p.thinking = NULL;
    if (p->thinking)
        QN_TRY(think_watch_create(p->thinking, lm->n_vocab, &g->watch, err));
    if (p->grammar)
        QN_TRY(follow_grammar(g, lm, p, err));
    return stops_create(p->stop, p->n_stop, &g->stops, err);
}

enum qn_status gen_create(struct sched *s, const struct lm *lm, const struct gen_params *p,
                          struct gen **out, struct qn_err *err)
{
    QN_TRY(check(lm, p, err));
    struct gen *g = fault_point("sched.alloc") ? NULL : calloc(1, sizeof *g);
    if (!g)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for a generation");
    clock_cond_init(&g->cv);
    pthread_mutex_init(&g->mu, NULL);
    g->s = s;
    g->stop_index = -1;
    atomic_init(&g->refs, 1);
    atomic_init(&g->cancel, false);
    enum qn_status st = copy_params(g, lm, p, err);
    if (st != QN_OK) {
        gen_unref(g);
        return st;
    }
    g->usage.prompt_tokens = p->n_prompt;
    g->submit_us = clock_us();
    *out = g;
    return QN_OK;
}

void gen_drop_work(struct gen *g)
{
    sampler_free(g->sampler);
    detok_free(g->detok);
    stops_free(g->stops);
    gram_run_free(g->grammar);
    think_watch_free(g->watch);
    buf_free(&g->piece);
    g->grammar = NULL;
    g->watch = NULL;
    g->sampler = NULL;
    g->detok = NULL;
    g->stops = NULL;
}

void gen_unref(struct gen *g)
{
    if (atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    gen_drop_work(g);
    if (g->p.share)
        gen_share_unref(g->p.share);
    ring_free(&g->ring);
    buf_free(&g->end_text);
    buf_free(&g->out);
    free(g->ids);
    free(g->bias);
    pthread_cond_destroy(&g->cv);
    pthread_mutex_destroy(&g->mu);
    free(g);
}

enum qn_status gen_start(struct gen *g, const struct lm *lm, const struct tok *tok,
                         const struct ids *newline, struct qn_err *err)
{
    int32_t n_keep = 0;
    int32_t *keep = fault_point("sched.alloc")
                        ? NULL
                        : malloc(((size_t)lm->n_eos + newline->n + 1) * sizeof *keep);
    g->tok = tok;
    g->detok = detok_create(tok, g->p.keep_special);
    if (!keep || !g->detok) {
        free(keep);
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory to start a generation");
    }
    for (int32_t i = 0; i < lm->n_eos; i++)
        keep[n_keep++] = lm->eos_ids[i];
    for (size_t i = 0; i < newline->n; i++)
        keep[n_keep++] = newline->v[i];
    enum qn_status st = sampler_create(&g->p.sample, lm->n_vocab, keep, n_keep, &g->sampler, err);
    free(keep);
    QN_TRY(st);
    sampler_prompt(g->sampler, g->ids, g->p.n_prompt);
    return QN_OK;
}

/* ---- events, the scheduler's side ---------------------------------------------------------- */

int32_t gen_room(struct gen *g, int32_t need)
{
    pthread_mutex_lock(&g->mu);
    int32_t room = ring_room(&g->ring);
    g->paused = room < need;
    pthread_mutex_unlock(&g->mu);
    return room < need ? 0 : room;
}

/* Under mu: there is something to read. */
static void tell(struct gen *g)
{
    struct gen_bell *b = g->p.bell;
    pthread_cond_signal(&g->cv);
    if (!b)
        return;
    pthread_mutex_lock(&b->mu);
    b->n++;
    pthread_cond_signal(&b->cv);
    pthread_mutex_unlock(&b->mu);
}

/* Progress that nobody has read yet is brought up to date, so it never fills the ring. */
void gen_emit_progress(struct gen *g)
{
    pthread_mutex_lock(&g->mu);
    struct ring_event *e = ring_last(&g->ring);
    if (!e || e->kind != GEN_PROGRESS)
        e = ring_push(&g->ring);
    e->kind = GEN_PROGRESS;
    e->n_done = g->n_read;
    tell(g);
    pthread_mutex_unlock(&g->mu);
}

enum qn_status gen_emit_prompt(struct gen *g, int32_t at, const float *logits, struct qn_err *err)
{
    struct sampled token = {.id = g->ids[at], .n_top = -1};
    if (logits)
        QN_TRY(sampler_score(g->sampler, logits, g->ids[at], &token, err));
    pthread_mutex_lock(&g->mu);
    struct ring_event *e = ring_push(&g->ring);
    e->kind = GEN_PROMPT;
    e->token = token;
    e->n_done = at + 1;
    tell(g);
    pthread_mutex_unlock(&g->mu);
    return QN_OK;
}

/* Nothing may have been lost for want of memory between the detokenizer and the client. */
static enum qn_status text_ok(const struct gen *g, const struct buf *text, struct qn_err *err)
{
    if (g->piece.failed || text->failed || stops_failed(g->stops))
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for the answer's text");
    return QN_OK;
}

/* Room for one made token more. */
static enum qn_status need_id(struct gen *g, struct qn_err *err)
{
    if (g->n_ids < g->cap_ids)
        return QN_OK;
    int32_t cap = g->cap_ids > INT32_MAX / 2 ? INT32_MAX : g->cap_ids * 2;
    int32_t *ids = fault_point("sched.alloc") ? NULL : realloc(g->ids, (size_t)cap * sizeof *ids);
    if (!ids)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for the answer's tokens");
    g->ids = ids;
    g->cap_ids = cap;
    return QN_OK;
}

/* The text that a token makes certain, into g->piece. */
static void push_piece(struct gen *g, int32_t id)
{
    bool marked = false;
    for (int32_t i = 0; i < g->p.n_mark && !marked; i++)
        marked = g->p.mark[i] == id;
    if (!marked) {
        detok_push(g->detok, id, &g->piece);
        return;
    }
    detok_literal(g->detok, STR_LIT("\xFE"), &g->piece);
    detok_literal(g->detok, tok_piece(g->tok, id), &g->piece);
    detok_literal(g->detok, STR_LIT("\xFF"), &g->piece);
}

/* Draws a token that the grammar, where there is one, allows. */
static enum qn_status draw(struct gen *g, float *logits, struct sampled *token, struct qn_err *err)
{
    const uint64_t *bits = think_watch_force(g->watch);
    if (bits) {
        sampler_allow(g->sampler, bits);
        QN_TRY(sampler_draw(g->sampler, logits, g->n_made, token, err));
        return g->grammar ? gram_run_accept(g->grammar, token->id, err) : QN_OK;
    }
    if (!g->grammar)
        return sampler_draw(g->sampler, logits, g->n_made, token, err);
    QN_TRY(gram_run_mask(g->grammar, &bits, err));
    sampler_allow(g->sampler, bits);
    QN_TRY(sampler_draw(g->sampler, logits, g->n_made, token, err));
    return gram_run_accept(g->grammar, token->id, err);
}

enum qn_status gen_token(struct gen *g, const struct lm *lm, float *logits,
                         struct gen_verdict *verdict, struct qn_err *err)
{
    struct sampled token;
    *verdict = (struct gen_verdict){.stop_index = -1};
    QN_TRY(need_id(g, err));
    QN_TRY(draw(g, logits, &token, err));
    g->n_made++;
    g->ids[g->n_ids++] = token.id;
    if ((!g->p.ignore_eos || g->grammar) && lm_is_eos(lm, token.id)) {
        *verdict = (struct gen_verdict){true, GEN_STOP_EOS, -1};
        return QN_OK;
    }
    buf_clear(&g->piece);
    push_piece(g, token.id);
    think_watch_push(g->watch, buf_str(&g->piece));

    pthread_mutex_lock(&g->mu);
    struct ring_event *e = ring_push(&g->ring);
    e->kind = GEN_TOKEN;
    e->token = token;
    int32_t hit = stops_push(g->stops, buf_str(&g->piece), &e->text);
    enum qn_status st = text_ok(g, &e->text, err);
    tell(g);
    pthread_mutex_unlock(&g->mu);
    QN_TRY(st);

    if (hit >= 0)
        *verdict = (struct gen_verdict){true, GEN_STOP_STRING, hit};
    else if (g->grammar && gram_run_must_stop(g->grammar))
        *verdict = (struct gen_verdict){true, GEN_STOP_GRAMMAR, -1};
    else if (g->n_made >= g->p.max_tokens)
        *verdict = (struct gen_verdict){true, GEN_LENGTH, -1};
    return QN_OK;
}

enum qn_status gen_flush(struct gen *g, struct gen_verdict *verdict, struct buf *text,
                         struct qn_err *err)
{
    if (verdict->finish == GEN_STOP_STRING || !g->detok || !g->stops)
        return QN_OK;
    buf_clear(&g->piece);
    detok_end(g->detok, &g->piece);
    int32_t hit = stops_push(g->stops, buf_str(&g->piece), text);
    if (hit < 0)
        hit = stops_end(g->stops, text);
    if (hit >= 0 && verdict->finish != GEN_CANCELLED)
        *verdict = (struct gen_verdict){true, GEN_STOP_STRING, hit};
    return text_ok(g, text, err);
}

/* Under mu. */
static void set_ended(struct gen *g, enum gen_kind kind)
{
    g->end_kind = kind;
    g->end_usage = g->usage;
    g->ended = true;
    tell(g);
}

void gen_publish_done(struct gen *g, const struct gen_verdict *verdict, struct buf *text)
{
    pthread_mutex_lock(&g->mu);
    g->finish = verdict->finish;
    g->stop_index = verdict->stop_index;
    g->end_text = *text;
    *text = BUF_INIT;
    set_ended(g, GEN_DONE);
    pthread_mutex_unlock(&g->mu);
}

void gen_publish_error(struct gen *g, const struct qn_err *err)
{
    pthread_mutex_lock(&g->mu);
    g->end_err = *err;
    set_ended(g, GEN_ERROR);
    pthread_mutex_unlock(&g->mu);
}

/* ---- bells --------------------------------------------------------------------------------- */

void gen_bell_init(struct gen_bell *b)
{
    pthread_mutex_init(&b->mu, NULL);
    clock_cond_init(&b->cv);
    b->n = 0;
}

void gen_bell_free(struct gen_bell *b)
{
    pthread_mutex_destroy(&b->mu);
    pthread_cond_destroy(&b->cv);
}

uint64_t gen_bell_count(struct gen_bell *b)
{
    pthread_mutex_lock(&b->mu);
    uint64_t n = b->n;
    pthread_mutex_unlock(&b->mu);
    return n;
}

void gen_bell_wait(struct gen_bell *b, uint64_t seen, int timeout_ms)
{
    struct timespec until = clock_in((int64_t)timeout_ms * 1000);
    pthread_mutex_lock(&b->mu);
    while (b->n <= seen && pthread_cond_timedwait(&b->cv, &b->mu, &until) == 0)
        ;
    pthread_mutex_unlock(&b->mu);
}

/* ---- the client's side --------------------------------------------------------------------- */

/* Under mu: the next event into ev; false when there is none yet. */
static bool take_event(struct gen *g, struct gen_event *ev)
{
    struct ring_event *e = ring_pop(&g->ring);
    if (e) {
        struct buf text = e->text; /* swap: the reader keeps this one until its next call */
        e->text = g->out;
        g->out = text;
        ev->kind = e->kind;
        ev->n_done = e->n_done;
        ev->token = e->token;
        ev->text = buf_str(&g->out);
        return true;
    }
    if (!g->ended)
        return false;
    ev->kind = g->end_kind;
    ev->finish = g->finish;
    ev->stop_index = g->stop_index;
    ev->text = buf_str(&g->end_text);
    ev->usage = g->end_usage;
    ev->err = g->end_err;
    return true;
}

void gen_wait(struct gen *g, int timeout_ms, struct gen_event *ev)
{
    memset(ev, 0, sizeof *ev);
    ev->stop_index = -1;
    struct timespec until = clock_in(timeout_ms > 0 ? (int64_t)timeout_ms * 1000 : 0);
    pthread_mutex_lock(&g->mu);
    bool got = take_event(g, ev);
    while (!got && timeout_ms != 0) {
        int rc = timeout_ms < 0 ? pthread_cond_wait(&g->cv, &g->mu)
                                : pthread_cond_timedwait(&g->cv, &g->mu, &until);
        got = take_event(g, ev);
        if (rc == ETIMEDOUT)
            break;
    }
    /* Half the ring: a paused generation then runs on for a while, not for one event. */
    bool resume = g->paused && ring_room(&g->ring) >= RING_CAP / 2;
    if (resume)
        g->paused = false;
    pthread_mutex_unlock(&g->mu);
    if (resume)
        sched_poke(g->s);
}

void gen_cancel(struct gen *g)
{
    atomic_store(&g->cancel, true);
    if (!sched_unqueue(g->s, g)) {
        sched_poke(g->s);
        return;
    }
    struct buf none = BUF_INIT;
    struct gen_verdict verdict = {true, GEN_CANCELLED, -1};
    g->usage.queue_us = clock_us() - g->submit_us;
    gen_publish_done(g, &verdict, &none);
    gen_unref(g);
}

void gen_free(struct gen *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->mu);
    bool ended = g->ended;
    g->p.bell = NULL;
    pthread_mutex_unlock(&g->mu);
    if (!ended)
        gen_cancel(g);
    gen_unref(g);
}
