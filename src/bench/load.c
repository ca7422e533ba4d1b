/*
 * load.c - see load.h. A point is a phase of its cell. Requests that fail are counted, not retried:
 * an error under load is a result. A point fails as a whole only when nothing at all was answered.
 */
#include "bench/load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/rng.h"
#include "bench/bench.h"
#include "bench/quantile.h"

enum { SHARED_TIMES = 4, RAMP_MAX = 2000 }; /* the shared beginning is that much of a prompt */

struct load {
    struct cell *c;
    const struct load_point *p;
    int attempt, started, over, failed;
    int last_left; /* answers that the last user of a ramp is still to get; 0: nobody asks again */
    struct reply *replies; /* [n_request], in the order of their ends */
    int *user_of;          /* [n_request] */
    double *arrivals;
    struct slot {
        struct load *l;
        int index, user;
    } * slots; /* [n_request] */
    enum qn_status st;
    struct qn_err err;
    char last_error[200];
};

void load_arrivals(uint64_t seed, double rate, int n, double *at_s)
{
    double t = 0;
    for (int i = 0; i < n; i++) {
        t += -log(1 - rng_unit(seed, 3, (uint64_t)i)) / rate;
        at_s[i] = t;
    }
}

/* ---- requests ------------------------------------------------------------------------------- */

static void on_reply(void *arg, struct reply *r);

/* The shared beginning goes into the system message, as an agent's or an application's does. */
static void start_one(struct load *l, int user)
{
    const struct workload_params *w = l->c->w;
    const struct load_point *p = l->p;
    if (l->st != QN_OK || l->started == p->n_request)
        return;
    int i = l->started++;
    struct buf text = BUF_INIT, system = BUF_INIT;
    struct nonce n = nonce_make(w->seed, p->name, l->attempt, l->c->round * 10000 + i);
    bool reuse = p->kind == LOAD_SALTED || p->kind == LOAD_SHARED;
    if (reuse) {
        struct nonce common = nonce_make(w->seed, "shared", l->attempt, l->c->round);
        prompt_filler(&system, p->kind == LOAD_SHARED ? common.z : n.z,
                      w->load_prompt_tokens * SHARED_TIMES);
    }
    prompt_filler(&text, n.z, reuse ? w->load_prompt_tokens / 4 : w->load_prompt_tokens);
    buf_addz(&text, " Write a long story about these words.");
    l->slots[i] = (struct slot){l, i, user};
    const struct ask a = {.phase = p->name,
                          .attempt = l->attempt,
                          .index = i,
                          .user = user,
                          .body = {.chat = true,
                                   .content = buf_str(&text),
                                   .system = buf_str(&system),
                                   .max_tokens = w->load_tokens}};
    l->st = cell_ask_start(l->c, &a, on_reply, &l->slots[i], &l->err);
    buf_free(&text);
    buf_free(&system);
}

static void on_reply(void *arg, struct reply *r)
{
    struct slot *s = arg;
    struct load *l = s->l;
    l->user_of[l->over] = s->user;
    l->replies[l->over++] = *r;
    if (r->fault != FAULT_NONE) {
        l->failed++;
        snprintf(l->last_error, sizeof l->last_error, "%s: %.150s", fault_name(r->fault), r->why);
    }
    bool ramp = l->p->kind == LOAD_RAMP;
    bool gone = r->fault == FAULT_CANCELLED || r->fault == FAULT_CONNECT;
    if (ramp && s->user == l->p->users - 1)
        l->last_left = gone || !l->last_left ? 0 : l->last_left - 1;
    bool closed =
        l->p->kind != LOAD_POISSON && l->p->kind != LOAD_BURST && !(ramp && !l->last_left);
    if (closed && !gone)
        start_one(l, s->user);
}

static void on_arrival(void *arg)
{
    struct slot *s = arg;
    start_one(s->l, s->user);
}

static bool all_over(void *arg)
{
    const struct load *l = arg;
    bool stuck = client_running(l->c->client) == 0 && l->started == l->over &&
                 l->failed == l->over && l->over > 0; /* nobody can be reached any more */
    bool ramped = l->p->kind == LOAD_RAMP && !l->last_left && l->started == l->over;
    return l->st != QN_OK || l->over == l->p->n_request || stuck || ramped;
}

/* First requests of all users, or timers for those that come later. */
static enum qn_status launch(struct load *l, struct slot *first, uint64_t *timers)
{
    const struct load_point *p = l->p;
    bool open = p->kind == LOAD_POISSON;
    int n = open || p->kind == LOAD_BURST ? p->n_request : p->users;
    if (open)
        load_arrivals(hash64(l->c->w->seed, strlen(l->c->w->seed), (uint64_t)l->c->round), p->rate,
                      n, l->arrivals);
    int64_t now = clock_ns();
    for (int i = 0; i < n && i < p->n_request; i++) {
        first[i] = (struct slot){l, i, i};
        double at = open ? l->arrivals[i] : p->kind == LOAD_RAMP ? i * p->step_s : 0;
        timers[i] = timers_add(client_timers(l->c->client), now + (int64_t)(at * 1e9), on_arrival,
                               &first[i]);
        if (!timers[i])
            return QN_NO_MEMORY;
    }
    return QN_OK;
}

/* ---- figures -------------------------------------------------------------------------------- */

static void quantiles(struct cell *c, const char *point, const char *const names[3],
                      const struct series *s)
{
    static const double q[3] = {0.5, 0.9, 0.99};
    for (int i = 0; i < 3; i++)
        if (s->n)
            cell_sample(c, point, names[i], quantile_of(s->v, s->n, q[i]));
}

static bool within_limits(const struct workload_params *w, const struct reply *r)
{
    double tpot = reply_tpot_ms(r);
    return (w->slo_ttft_ms <= 0 || reply_ttft_ms(r) <= w->slo_ttft_ms) &&
           (w->slo_tpot_ms <= 0 || !(tpot > w->slo_tpot_ms)) &&
           (w->slo_e2e_ms <= 0 || reply_wall_ms(r) <= w->slo_e2e_ms);
}

struct sums {
    struct series ttft, tpot, itl, e2e;
    double tokens, prompt, cached;
    int good, within;
    bool cached_known;
    int64_t begin, end;
};

static void add_reply(struct sums *s, const struct workload_params *w, const struct reply *r)
{
    s->begin = r->start_ns < s->begin ? r->start_ns : s->begin;
    s->end = r->end_ns > s->end ? r->end_ns : s->end;
    if (r->fault != FAULT_NONE)
        return;
    series_add(&s->ttft, reply_ttft_ms(r));
    series_add(&s->tpot, reply_tpot_ms(r));
    series_add(&s->e2e, reply_wall_ms(r));
    for (int i = 1; i < r->n_output; i++)
        series_add(&s->itl, (double)(r->output_ns[i] - r->output_ns[i - 1]) / 1e6);
    s->tokens += (double)r->completion_tokens;
    s->prompt += (double)r->prompt_tokens;
    if (r->cached_tokens >= 0) {
        s->cached_known = true;
        s->cached += (double)r->cached_tokens;
    }
    s->good++;
    s->within += within_limits(w, r);
}

/* How evenly users were served: tokens of each over the time it had requests running. With open
 * arrivals every request is a user of its own. */
static double fairness(const struct load *l)
{
    int n = l->p->kind == LOAD_POISSON || l->p->kind == LOAD_BURST ? l->p->n_request : l->p->users;
    double *tokens = calloc((size_t)n * 2, sizeof *tokens), f = NAN;
    for (int i = 0; tokens && i < l->over; i++) {
        const struct reply *r = &l->replies[i];
        int u = l->user_of[i];
        if (u < 0 || u >= n)
            continue;
        if (r->fault == FAULT_NONE)
            tokens[u] += (double)r->completion_tokens;
        tokens[n + u] += (double)(r->end_ns - r->start_ns) / 1e9;
    }
    for (int u = 0; tokens && u < n; u++)
        tokens[u] = tokens[n + u] > 0 ? tokens[u] / tokens[n + u] : 0;
    if (tokens)
        f = fairness_of(tokens, (size_t)n);
    free(tokens);
    return f;
}

static void report_point(struct load *l)
{
    static const char *const ttft[3] = {"ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms"};
    static const char *const tpot[3] = {"tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms"};
    static const char *const itl[3] = {"itl_p50_ms", "itl_p90_ms", "itl_p99_ms"};
    static const char *const e2e[3] = {"e2e_p50_ms", "e2e_p90_ms", "e2e_p99_ms"};
    struct cell *c = l->c;
    const char *point = l->p->name;
    struct sums s = {.begin = INT64_MAX};
    for (int i = 0; i < l->over; i++)
        add_reply(&s, c->w, &l->replies[i]);
    double seconds = (double)(s.end - s.begin) / 1e9;
    quantiles(c, point, ttft, &s.ttft);
    quantiles(c, point, tpot, &s.tpot);
    quantiles(c, point, itl, &s.itl);
    quantiles(c, point, e2e, &s.e2e);
    if (seconds > 0) {
        cell_sample(c, point, "output_tps", s.tokens / seconds);
        cell_sample(c, point, "request_rate", s.good / seconds);
        cell_sample(c, point, "goodput", s.within / seconds);
    }
    cell_sample(c, point, "error_share", 100.0 * l->failed / l->over);
    cell_sample(c, point, "fairness", fairness(l));
    if (s.cached_known && s.prompt > 0)
        cell_sample(c, point, "cached_share", 100 * s.cached / s.prompt);
    series_free(&s.ttft);
    series_free(&s.tpot);
    series_free(&s.itl);
    series_free(&s.e2e);
}

/* ---- a point -------------------------------------------------------------------------------- */

static enum qn_status run_point(struct load *l, struct slot *first, uint64_t *timers,
                                struct qn_err *err)
{
    enum qn_status st = launch(l, first, timers);
    if (st == QN_OK)
        st = client_run(l->c->client, all_over, l, err);
    else
        err_set(err, st, "bench", "out of memory for timers");
    for (int i = 0; i < l->p->n_request; i++)
        timers_cancel(client_timers(l->c->client), timers[i]);
    if (st == QN_OK && l->st != QN_OK) {
        st = l->st;
        if (err)
            *err = l->err;
    }
    if (st != QN_OK || l->over < l->started)
        client_stop_all(l->c->client);
    if (st != QN_OK)
        return st;
    if (l->failed == l->over)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "%s, %s: all %d requests failed, the last with %s",
                l->c->arm->name, l->p->name, l->over, l->last_error);
    report_point(l);
    return QN_OK;
}

static enum qn_status phase_point(struct cell *c, int attempt, struct qn_err *err)
{
    const struct load_point *p = c->phase_arg;
    size_t n = (size_t)p->n_request;
    struct load l = {.c = c, .p = p, .attempt = attempt, .last_left = p->n_last};
    l.replies = calloc(n, sizeof *l.replies);
    l.user_of = calloc(n, sizeof *l.user_of);
    l.arrivals = calloc(n, sizeof *l.arrivals);
    l.slots = calloc(n, sizeof *l.slots);
    struct slot *first = calloc(n, sizeof *first);
    uint64_t *timers = calloc(n, sizeof *timers);
    enum qn_status st;
    if (l.replies && l.user_of && l.arrivals && l.slots && first && timers)
        st = run_point(&l, first, timers, err);
    else
        st = err_set(err, QN_NO_MEMORY, "bench", "out of memory for %d requests", p->n_request);
    for (int i = 0; l.replies && i < l.over; i++)
        reply_free(&l.replies[i]);
    free(l.replies);
    free(l.user_of);
    free(l.arrivals);
    free(l.slots);
    free(first);
    free(timers);
    return st;
}

static enum qn_status phase_warm(struct cell *c, int attempt, struct qn_err *err)
{
    struct reply r;
    const struct ask a = {
        .phase = "warmup",
        .attempt = attempt,
        .user = -1,
        .body = {.chat = true, .content = STR_LIT("Warmup: say hello."), .max_tokens = 32}};
    enum qn_status st = cell_ask(c, &a, &r, err);
    reply_free(&r);
    return st;
}

enum qn_status load_run(struct cell *c, const struct load_plan *plan, struct qn_err *err)
{
    QN_TRY(cell_phase(c, "warmup", phase_warm, err));
    for (int i = 0; i < plan->n; i++) {
        c->phase_arg = &plan->v[i];
        QN_TRY(cell_phase(c, plan->v[i].name, phase_point, err));
    }
    return QN_OK;
}

/* ---- the plan ------------------------------------------------------------------------------- */

static struct load_point *add_point(struct load_plan *plan, enum load_kind kind, int users, int n)
{
    QN_ASSERT(plan->n < LOAD_POINTS_MAX); /* two lists of BENCH_POINTS_MAX and four more */
    struct load_point *p = &plan->v[plan->n++];
    *p = (struct load_point){.kind = kind, .users = users, .n_request = n, .n_plan = n};
    return p;
}

void load_plan_make(const struct bench_params *b, struct load_plan *out)
{
    *out = (struct load_plan){.n = 0};
    int most = 1, each = b->w.load_requests;
    for (int i = 0; i < b->n_users; i++) {
        int u = b->users[i];
        struct load_point *p = add_point(out, LOAD_CLOSED, u, u * each);
        snprintf(p->name, sizeof p->name, "%d user%s", u, u == 1 ? "" : "s");
        most = u > most ? u : most;
    }
    for (int i = 0; i < b->n_rate; i++) {
        struct load_point *p = add_point(out, LOAD_POISSON, 0, most * each);
        p->rate = b->rates[i];
        snprintf(p->name, sizeof p->name, "Poisson %g/s", p->rate);
    }
    if (b->ramp) {
        struct load_point *p = add_point(out, LOAD_RAMP, most, most * each);
        p->step_s = 1;
        p->n_last = each;
        p->n_request = RAMP_MAX;
        snprintf(p->name, sizeof p->name, "ramp to %d", most);
    }
    if (b->burst) {
        struct load_point *p = add_point(out, LOAD_BURST, 2 * most, 2 * most);
        snprintf(p->name, sizeof p->name, "burst of %d", 2 * most);
    }
    if (b->reuse) {
        int u = most < 2 ? most : 2;
        struct load_point *p = add_point(out, LOAD_SALTED, u, u * each);
        snprintf(p->name, sizeof p->name, "no shared beginning");
        p = add_point(out, LOAD_SHARED, u, u * each);
        snprintf(p->name, sizeof p->name, "shared beginning");
    }
}

void load_plan_text(const struct load_plan *plan, struct buf *out)
{
    for (int i = 0; i < plan->n; i++)
        buf_addf(out, "          %-20s %s%d requests\n", plan->v[i].name,
                 plan->v[i].kind == LOAD_RAMP ? "about " : "", plan->v[i].n_plan);
}

void load_tokens(const struct load_plan *plan, const struct workload_params *w, double *read,
                 double *written)
{
    *read = *written = 32;
    for (int i = 0; i < plan->n; i++) {
        bool reuse = plan->v[i].kind == LOAD_SALTED || plan->v[i].kind == LOAD_SHARED;
        double prompt = w->load_prompt_tokens * (reuse ? SHARED_TIMES + 0.25 : 1.0);
        *read += prompt * plan->v[i].n_plan;
        *written += (double)w->load_tokens * plan->v[i].n_plan;
    }
}
