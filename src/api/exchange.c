/*
 * exchange.c - one request in flight; see exchange.h. Belongs to the connection's thread.
 */
#include "api/exchange.h"

#include <stdlib.h>
#include <time.h>

#include "api/outparse.h"
#include "api/tools_gram.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"

#define WINDOW     8                 /* choices of one request in the scheduler together */
#define RETRY_US   20000             /* between tries to submit a further choice */
#define GIVE_UP_US (int64_t)60000000 /* queue full for this long with nothing running */

struct slot {
    struct gen *gen;        /* NULL = free */
    struct outparse *parse; /* NULL = its text is content as it is */
    int32_t choice;
    int32_t n_token; /* read so far */
    bool enough;     /* cancelled: the answer is over, and what is made meanwhile is not of it */
    int64_t mark;    /* the watcher's */
};

struct exchange {
    struct sched *sched;
    const struct api_model *m;
    const struct api_request *r;
    uint64_t client, user;
    struct gen_bell bell;
    struct gen_share *share; /* of the prompt that choice `next` has; NULL with one choice each */
    struct slot slots[WINDOW];
    int32_t n_live, next, n_done, n_choices; /* next: first choice not submitted yet */
    int32_t turn;                            /* slot looked at first by the next wait */
    int64_t retry_us, stuck_us;              /* monotonic; 0 = not waiting */
    struct outparse *parsed;                 /* may have events left; NULL = none has */
    struct sampled token;                    /* what ev->token points at */
    struct api_usage usage;
    exchange_watch_fn *watch;
    void *watch_arg;
};

/* Choice 0 draws with the request's own seed, so that n > 1 keeps the answer of n = 1. */
static uint64_t seed_of(const struct api_request *r, int32_t j)
{
    return j == 0 ? r->sample.seed : rng_u64(r->sample.seed, 0x63686f696365u, (uint64_t)j);
}

/* The choices of a prompt read it once. Best effort: without a share each reads it itself. */
static struct gen_share *share_of_next(struct exchange *x)
{
    if (x->next % x->r->n == 0) {
        gen_share_free(x->share);
        x->share = x->r->n > 1 ? gen_share_create(x->sched) : NULL;
    }
    return x->share;
}

static enum qn_status submit(struct exchange *x, struct qn_err *err)
{
    const struct api_request *r = x->r;
    const struct api_prompt *prompt = &r->prompts[x->next / r->n];
    char salt[65]; /* as long as a namespace may be */
    sha256(r->cache_salt.p, r->cache_salt.n, salt);
    struct gen_params p = {
        .cache_ns = r->cache_salt.n ? salt : NULL,
        .prompt = prompt->ids,
        .n_prompt = prompt->n_ids,
        .max_tokens = r->max_tokens,
        .sample = r->sample,
        .n_stop = r->n_stop,
        .ignore_eos = r->ignore_eos,
        .prompt_logprobs = r->echo && r->sample.n_top >= 0,
        .client = x->client,
        .user = x->user,
        .share = share_of_next(x),
        .bell = &x->bell,
        .grammar = r->grammar,
        .vocab = r->vocab,
    };
    const struct out_syntax *syn = r->chat ? x->m->syntax : NULL;
    p.sample.seed = seed_of(r, x->next % r->n);
    if (syn) {
        memcpy(p.mark, syn->mark, sizeof p.mark);
        p.n_mark = syn->n_mark;
    }
    memcpy(p.stop, r->stop, sizeof p.stop);
    int32_t i = 0;
    while (i < WINDOW && x->slots[i].gen)
        i++;
    QN_ASSERT(i < WINDOW);
    struct slot *s = &x->slots[i];
    if (outparse_create(x->m, r, &s->parse) != QN_OK)
        QN_FAIL(err, QN_NO_MEMORY, "exchange", "no memory to read an answer");
    p.n_mark = s->parse ? p.n_mark : 0;
    struct gen_thinking limit;
    struct ids end = {0};
    if (s->parse && api_thinking_limit(x->m, r, &limit, &end))
        p.thinking = &limit;
    enum qn_status st = sched_submit(x->sched, &p, &s->gen, err);
    ids_free(&end);
    if (st != QN_OK) {
        outparse_free(s->parse);
        s->parse = NULL;
        return st;
    }
    s->choice = x->next++;
    s->n_token = 0;
    s->enough = false;
    s->mark = 0;
    x->n_live++;
    return QN_OK;
}

/* Submits as many further choices as the window takes. A full queue is tried again later. */
static enum qn_status refill(struct exchange *x, struct qn_err *err)
{
    while (x->next < x->n_choices && x->n_live < WINDOW) {
        int64_t now = clock_us();
        if (now < x->retry_us)
            return QN_OK;
        enum qn_status st = submit(x, err);
        if (st == QN_BUSY) {
            x->retry_us = now + RETRY_US;
            if (x->n_live > 0)
                x->stuck_us = 0;
            else if (x->stuck_us == 0)
                x->stuck_us = now;
            return x->stuck_us && now - x->stuck_us > GIVE_UP_US ? QN_BUSY : QN_OK;
        }
        QN_TRY(st);
        x->retry_us = x->stuck_us = 0;
    }
    return QN_OK;
}

enum qn_status exchange_start(struct sched *s, const struct api_model *m,
                              const struct api_request *r, uint64_t client, struct exchange **out,
                              struct api_error *e)
{
    struct qn_err err = {0};
    struct exchange *x = calloc(1, sizeof *x);
    *out = NULL;
    if (!x)
        return api_no_memory(e);
    x->sched = s;
    x->m = m;
    x->r = r;
    x->client = client;
    x->user = hash64(r->user.p, r->user.n, 0);
    gen_bell_init(&x->bell);
    x->n_choices = r->n_prompts * r->n;
    enum qn_status st = submit(x, &err);
    if (st == QN_OK)
        st = refill(x, &err);
    if (st != QN_OK) {
        exchange_free(x);
        return api_refuse_err(e, &err, NULL);
    }
    *out = x;
    return QN_OK;
}

void exchange_watch(struct exchange *x, exchange_watch_fn *fn, void *arg)
{
    x->watch = fn;
    x->watch_arg = arg;
}

static void end_choice(struct exchange *x, struct slot *s, const struct gen_event *g)
{
    const struct gen_usage *u = &g->usage;
    if (s->choice % x->r->n == 0) {
        x->usage.prompt_tokens += u->prompt_tokens;
        x->usage.cached_tokens += u->cached_tokens;
    }
    x->usage.completion_tokens += s->enough ? s->n_token : u->completion_tokens;
    spec_counts_add(&x->usage.spec, &u->spec);
    x->n_done++;
}

static void fail(struct api_event *ev, const struct qn_err *err)
{
    memset(ev, 0, sizeof *ev);
    ev->kind = API_EV_ERROR;
    api_refuse_err(&ev->err, err, NULL);
    if (ev->err.status == 400)
        ev->err.status = 500; /* too late to blame the request's shape */
}

/* One scheduler event as a neutral one. The generation is kept until the text has been used: it is
 * freed on the next call, by drop_finished. */
static void translate(struct exchange *x, struct slot *s, const struct gen_event *g,
                      struct api_event *ev)
{
    bool logprobs = x->r->sample.n_top >= 0;
    memset(ev, 0, sizeof *ev);
    ev->choice = s->choice;
    switch (g->kind) {
    case GEN_PROGRESS:
        ev->kind = API_EV_PROGRESS;
        ev->n_done = g->n_done;
        ev->n_total = x->r->prompts[s->choice / x->r->n].n_ids;
        break;
    case GEN_PROMPT:
    case GEN_TOKEN:
        ev->kind = g->kind == GEN_PROMPT ? API_EV_PROMPT_TOKEN : API_EV_TEXT;
        ev->text = g->kind == GEN_PROMPT ? (struct str){NULL, 0} : g->text;
        x->token = g->token;
        ev->token = logprobs || g->kind == GEN_PROMPT ? &x->token : NULL;
        break;
    case GEN_DONE:
        end_choice(x, s, g);
        if (g->finish == GEN_CANCELLED && !s->enough) {
            fail(ev, &(struct qn_err){.code = QN_CANCELLED});
            break;
        }
        ev->kind = API_EV_FINISH;
        ev->finish = API_FINISH_STOP;
        if (s->enough)
            break;
        ev->text = g->text;
        if (g->finish == GEN_LENGTH)
            ev->finish = API_FINISH_LENGTH;
        if (g->finish == GEN_STOP_STRING && g->stop_index >= 0)
            ev->stop = &x->r->stop[g->stop_index];
        break;
    case GEN_ERROR:
        fail(ev, &g->err);
        break;
    default:
        break;
    }
}

/* A slot whose generation has ended is freed one call later, because the last text lives in it. */
static void drop_finished(struct exchange *x)
{
    for (int32_t i = 0; i < WINDOW; i++) {
        if (x->slots[i].gen && x->slots[i].choice < 0) {
            gen_free(x->slots[i].gen);
            outparse_free(x->slots[i].parse);
            x->slots[i].gen = NULL;
            x->slots[i].parse = NULL;
            x->n_live--;
        }
    }
}

/* Puts an event through its choice's parser; false when nothing comes of it yet. */
static bool parse(struct exchange *x, struct slot *s, struct api_event *ev)
{
    if (!s->parse || ev->kind == API_EV_ERROR)
        return true;
    bool over = ev->kind == API_EV_FINISH;
    if (!s->enough || over)
        outparse_feed(s->parse, ev);
    if (over)
        x->usage.reasoning_tokens += outparse_reasoning(s->parse);
    if (!over && !s->enough && outparse_over(s->parse)) {
        s->enough = true;
        gen_cancel(s->gen);
    }
    x->parsed = s->parse;
    memset(ev, 0, sizeof *ev);
    return outparse_next(s->parse, ev);
}

/* Looks at every live generation once, the next one first. */
static bool take(struct exchange *x, int wait_ms, struct api_event *ev)
{
    for (int32_t k = 0; k < WINDOW; k++) {
        struct slot *s = &x->slots[(x->turn + k) % WINDOW];
        struct gen_event g;
        if (!s->gen)
            continue;
        gen_wait(s->gen, wait_ms, &g);
        if (g.kind == GEN_NONE)
            continue;
        if (x->watch)
            x->watch(x->watch_arg, &g, &s->mark);
        s->n_token += g.kind == GEN_TOKEN && !s->enough;
        translate(x, s, &g, ev);
        bool any = parse(x, s, ev);
        if (g.kind == GEN_DONE || g.kind == GEN_ERROR)
            s->choice = -1;
        x->turn = (x->turn + k + 1) % WINDOW;
        return any;
    }
    return false;
}

/* Of `left` ms, what to wait before further choices are tried. */
static int wait_ms(int64_t left)
{
    return left < RETRY_US / 1000 ? (int)left : RETRY_US / 1000;
}

static void pause_ms(int ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

void exchange_next(struct exchange *x, int timeout_ms, struct api_event *ev)
{
    struct qn_err err = {0};
    int64_t until = clock_us() + (int64_t)timeout_ms * 1000;
    memset(ev, 0, sizeof *ev);
    if (x->parsed && outparse_next(x->parsed, ev))
        return;
    x->parsed = NULL;
    drop_finished(x);
    for (;;) {
        if (x->n_done == x->n_choices) {
            ev->kind = API_EV_END;
            ev->usage = x->usage;
            return;
        }
        if (refill(x, &err) != QN_OK) {
            fail(ev, &err);
            return;
        }
        int64_t left = (until - clock_us() + 999) / 1000;
        if (left < 0)
            left = 0;
        uint64_t seen = gen_bell_count(&x->bell);
        if (take(x, x->n_live == 1 ? (int)left : 0, ev))
            return;
        if (x->n_live > 1 && left > 0)
            gen_bell_wait(&x->bell, seen, x->next < x->n_choices ? wait_ms(left) : (int)left);
        if (x->n_live == 0 && left > 0)
            pause_ms(wait_ms(left));
        if (left == 0)
            return;
    }
}

struct api_usage exchange_usage(const struct exchange *x)
{
    return x->usage;
}

void exchange_free(struct exchange *x)
{
    if (!x)
        return;
    for (int32_t i = 0; i < WINDOW; i++)
        if (x->slots[i].gen)
            gen_cancel(x->slots[i].gen);
    for (int32_t i = 0; i < WINDOW; i++) {
        gen_free(x->slots[i].gen);
        outparse_free(x->slots[i].parse);
    }
    gen_share_free(x->share);
    gen_bell_free(&x->bell);
    free(x);
}
