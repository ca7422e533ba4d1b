/*
 * cell.c - see cell.h. Memory is sampled by a timer of the client's loop every quarter second; when
 * a cell lasts so long that the list is full, every second sample is dropped and the rate halved.
 */
#include "bench/cell.h"

#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "bench/machine.h"

enum { SAMPLE_MS = 250, RSS_MAX = 1200, TAIL_LINES = 30, PROBE_S = 30 };

/* ---- memory --------------------------------------------------------------------------------- */

static void keep_rss(struct cell *c, int64_t bytes)
{
    if (c->tick++ % c->stride)
        return;
    if (c->n_rss == RSS_MAX) {
        for (int i = 0; i < RSS_MAX / 2; i++)
            c->rss[i] = c->rss[2 * i];
        c->n_rss = RSS_MAX / 2;
        c->stride *= 2;
    }
    if (!c->rss)
        c->rss = calloc(RSS_MAX, sizeof *c->rss);
    if (c->rss)
        c->rss[c->n_rss++] =
            (struct rss_point){(float)((double)(clock_ns() - c->begin_ns) / 1e6), bytes};
}

static void sample_now(struct cell *c)
{
    struct tree_use u = child_tree(c->child.pid);
    if (!u.n_process)
        return;
    c->peak_rss = u.rss_bytes > c->peak_rss ? u.rss_bytes : c->peak_rss;
    c->leg_peak = u.rss_bytes > c->leg_peak ? u.rss_bytes : c->leg_peak;
    keep_rss(c, u.rss_bytes);
}

static void on_sample(void *arg)
{
    struct cell *c = arg;
    sample_now(c);
    c->sampler =
        timers_add(client_timers(c->client), clock_ns() + SAMPLE_MS * 1000000LL, on_sample, c);
}

int64_t cell_rss(struct cell *c)
{
    return child_tree(c->child.pid).rss_bytes;
}

/* Ticks of all processors that were busy or stolen. */
static int64_t busy_ticks(void)
{
    struct machine_ticks t = machine_ticks();
    return t.busy + t.steal;
}

/* ---- the server ----------------------------------------------------------------------------- */

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int port = 0;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&a, n) == 0 &&
        getsockname(fd, (struct sockaddr *)&a, &n) == 0)
        port = ntohs(a.sin_port);
    if (fd >= 0)
        close(fd);
    return port;
}

static void set_urls(struct cell *c)
{
    buf_clear(&c->base);
    if (c->arm->url)
        buf_addz(&c->base, c->arm->url);
    else
        buf_addf(&c->base, "http://127.0.0.1:%d", c->values.port);
    const struct {
        struct buf *to;
        const char *path;
    } urls[] = {{&c->chat_url, "/v1/chat/completions"},
                {&c->completion_url, "/v1/completions"},
                {&c->health_url, c->arm->health}};
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        buf_clear(urls[i].to);
        buf_addf(urls[i].to, "%s%s", buf_z(&c->base), urls[i].path);
    }
}

/* What the server calls its model, unless the arm says it. */
static enum qn_status ask_model(struct cell *c, struct qn_err *err)
{
    struct buf url = BUF_INIT, body = BUF_INIT;
    struct json *doc = NULL;
    int status = 0;
    buf_clear(&c->model);
    if (c->arm->model) {
        buf_addz(&c->model, c->arm->model);
        return QN_OK;
    }
    buf_addf(&url, "%s/v1/models", buf_z(&c->base));
    enum qn_status st = client_get(c->client, buf_z(&url), c->api_key, 10, &status, &body, err);
    if (st == QN_OK && status == 200 &&
        json_parse(buf_str(&body), "/v1/models", JSON_DEPTH_MAX, &doc, NULL) == QN_OK)
        buf_add_str(&c->model, json_str(json_get(json_at(json_get(doc, "data"), 0), "id")));
    json_free(doc);
    buf_free(&url);
    buf_free(&body);
    return st;
}

static enum qn_status died(struct cell *c, const char *when, struct qn_err *err)
{
    struct buf how = BUF_INIT, tail = BUF_INIT;
    child_end_text(&c->child, &how);
    child_log_tail(c->log, 2, &tail);
    for (size_t i = 0; i < tail.n; i++)
        if (tail.p[i] == '\n')
            tail.p[i] = ' ';
    err_set(err, QN_LOST, "bench", "%s ended %s with %s: %.200s", c->arm->name, when, buf_z(&how),
            buf_z(&tail));
    buf_free(&how);
    buf_free(&tail);
    return QN_LOST;
}

static enum qn_status wait_ready(struct cell *c, struct qn_err *err)
{
    struct buf body = BUF_INIT;
    int64_t begin = clock_ns();
    enum qn_status st = QN_OK;
    for (int status = 0; st == QN_OK;) {
        double pause = (double)(clock_ns() - begin) / 1e9 < 2 ? 0.01 : 0.1;
        st = client_get(c->client, buf_z(&c->health_url), c->api_key, 5, &status, &body, err);
        if (st != QN_OK || status == 200)
            break;
        if (c->arm->command && !child_alive(&c->child))
            st = died(c, "before it was ready", err);
        else if ((double)(clock_ns() - begin) / 1e9 > c->w->ready_s)
            st = err_set(err, QN_LOST, "bench", "%s is not ready after %.0f s (%s: status %d)",
                         c->arm->name, c->w->ready_s, buf_z(&c->health_url), status);
        else
            st = client_wait(c->client, pause, err);
    }
    buf_free(&body);
    return st;
}

static enum qn_status start_server(struct cell *c, double *ready_ms, struct qn_err *err)
{
    char **argv = NULL;
    int64_t begin = clock_ns();
    c->values.port = free_port();
    set_urls(c);
    if (c->arm->command) {
        QN_TRY(arm_argv(c->arm, c->arm->command, &c->values, &argv, err));
        begin = clock_ns();
        enum qn_status st = child_start(&c->child, argv, c->arm->env, c->log, err);
        arm_argv_free(argv);
        QN_TRY(st);
    }
    QN_TRY(wait_ready(c, err));
    *ready_ms = (double)(clock_ns() - begin) / 1e6;
    return ask_model(c, err);
}

enum qn_status cell_open(struct cell *c, struct qn_err *err)
{
    c->begin_ns = clock_ns();
    c->stride = 1;
    c->api_key = c->arm->key_env ? getenv(c->arm->key_env) : NULL;
    c->busy_before = busy_ticks();
    c->own_before = child_ticks_all();
    if (c->progress)
        c->progress(c->progress_arg, "start");
    enum qn_status st = start_server(c, &c->ready_ms, err);
    if (st != QN_OK) {
        c->hopeless = true;
        return st;
    }
    c->ready_ns = clock_ns();
    on_sample(c);
    c->idle_rss = cell_rss(c);
    return QN_OK;
}

enum qn_status cell_restart(struct cell *c, bool hard, double *ready_ms, struct qn_err *err)
{
    if (!c->arm->command)
        QN_FAIL(err, QN_UNSUPPORTED, "bench", "%s was not started here", c->arm->name);
    sample_now(c);
    if (hard)
        child_kill(&c->child);
    else
        child_stop(&c->child, 60);
    return start_server(c, ready_ms, err);
}

/* ---- requests ------------------------------------------------------------------------------- */

struct running {
    struct cell *cell;
    struct ask ask;
    struct buf body, shown;
    void (*done)(void *arg, struct reply *r);
    void *arg;
};

static void on_done(void *arg, struct reply *r)
{
    struct running *k = arg;
    struct cell *c = k->cell;
    const struct request_note n = {.cell = c->index,
                                   .arm = c->arm->name,
                                   .phase = k->ask.phase,
                                   .attempt = k->ask.attempt,
                                   .index = k->ask.index,
                                   .user = k->ask.user,
                                   .body = buf_str(&k->body),
                                   .shown = k->shown.n ? buf_z(&k->shown) : NULL};
    record_request(c->record, &n, r);
    c->last_fault = r->fault;
    void (*done)(void *, struct reply *) = k->done;
    void *to = k->arg;
    buf_free(&k->body);
    buf_free(&k->shown);
    free(k);
    done(to, r);
}

enum qn_status cell_ask_start(struct cell *c, const struct ask *a,
                              void (*done)(void *arg, struct reply *r), void *arg,
                              struct qn_err *err)
{
    struct running *k = calloc(1, sizeof *k);
    if (!k)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for a request");
    *k = (struct running){.cell = c, .ask = *a, .done = done, .arg = arg};
    struct body_params b = a->body;
    b.model = buf_z(&c->model);
    b.thinking |= c->arm->thinking_field;
    b.ignore_eos |= c->w->ignore_eos;
    prompt_body(&k->body, &b);
    if (a->shown)
        buf_addz(&k->shown, a->shown);
    else
        buf_add_str(&k->shown, a->body.content);
    const struct call_params p = {.url = buf_z(b.chat ? &c->chat_url : &c->completion_url),
                                  .api_key = c->api_key,
                                  .body = buf_str(&k->body),
                                  .chat = b.chat,
                                  .max_tokens = b.max_tokens,
                                  .budget_s = a->budget_s > 0 ? a->budget_s : c->w->budget_s,
                                  .stall_s = c->w->stall_s,
                                  .done = on_done,
                                  .arg = k};
    enum qn_status st = buf_ok(&k->body, "a request", err);
    if (st == QN_OK)
        st = client_start(c->client, &p, NULL, err);
    if (st != QN_OK) {
        buf_free(&k->body);
        buf_free(&k->shown);
        free(k);
    }
    return st;
}

struct one {
    struct reply *to;
    bool over;
};

static void on_one(void *arg, struct reply *r)
{
    struct one *o = arg;
    *o->to = *r;
    o->over = true;
}

static bool one_over(void *arg)
{
    return ((struct one *)arg)->over;
}

static enum qn_status fault_status(const struct cell *c, const struct ask *a, const struct reply *r,
                                   struct qn_err *err)
{
    if (r->fault == FAULT_NONE)
        return QN_OK;
    QN_FAIL(err, QN_BAD_INPUT, "bench", "%s, %s, request %d: %s: %s", c->arm->name, a->phase,
            a->index, fault_name(r->fault), r->why);
}

enum qn_status cell_ask(struct cell *c, const struct ask *a, struct reply *out, struct qn_err *err)
{
    struct one o = {.to = out};
    *out = (struct reply){0};
    QN_TRY(cell_ask_start(c, a, on_one, &o, err));
    enum qn_status st = client_run(c->client, one_over, &o, err);
    if (!o.over) { /* interrupted: what came so far is recorded */
        client_stop_all(c->client);
        return st;
    }
    return st == QN_OK ? fault_status(c, a, out, err) : st;
}

/* ---- phases --------------------------------------------------------------------------------- */

void cell_sample(struct cell *c, const char *point, const char *metric, double value)
{
    if (c->n_pending == c->cap_pending) {
        int cap = c->cap_pending ? 2 * c->cap_pending : 32;
        struct cell_sample *v = realloc(c->pending, (size_t)cap * sizeof *v);
        if (!v)
            return;
        c->pending = v;
        c->cap_pending = cap;
    }
    struct cell_sample *s = &c->pending[c->n_pending++];
    *s = (struct cell_sample){.metric = metric, .value = value};
    snprintf(s->workload, sizeof s->workload, "%s", c->workload);
    snprintf(s->point, sizeof s->point, "%s", point);
}

static void settle(struct cell *c, bool counts)
{
    for (int i = 0; counts && i < c->n_pending; i++) {
        const struct cell_sample *s = &c->pending[i];
        record_sample(c->record,
                      &(struct sample_key){c->arm->name, s->workload, s->point, s->metric},
                      s->value);
    }
    c->n_pending = 0;
}

static void end_leg(struct cell *c, const char *name)
{
    sample_now(c);
    if (c->leg_peak) {
        if (c->legs.n)
            buf_addc(&c->legs, ',');
        json_w_strz(&c->legs, name);
        buf_addf(&c->legs, ":%lld", (long long)c->leg_peak);
    }
    c->leg_peak = 0;
}

static void note_failure(struct cell *c, const char *phase, int attempt, const struct qn_err *why)
{
    struct buf b = BUF_INIT, text = BUF_INIT;
    struct jw w;
    jw_init(&w, &b);
    jw_obj(&w);
    jw_ki64(&w, "cell", c->index);
    jw_kstrz(&w, "arm", c->arm->name);
    jw_kstrz(&w, "workload", c->workload);
    jw_kstrz(&w, "phase", phase);
    jw_ki64(&w, "attempt", attempt);
    jw_kstrz(&w, "message", why->msg);
    if (c->arm->command) {
        if (child_alive(&c->child))
            buf_addz(&text, "running");
        else
            child_end_text(&c->child, &text);
        jw_kstrz(&w, "server", buf_z(&text));
        child_log_tail(c->log, TAIL_LINES, &text);
        jw_kstr(&w, "stderr_tail", buf_str(&text));
    }
    jw_obj_end(&w);
    record_add(c->record, "failures", buf_str(&b));
    c->failures++;
    buf_free(&b);
    buf_free(&text);
}

/* A word from the server: it is alive, and what ran in it has ended. */
static enum qn_status drained(struct cell *c, bool *alive, struct qn_err *err)
{
    struct reply r;
    struct qn_err why = {0};
    const struct ask a = {.phase = "drain",
                          .user = -1,
                          .body = {.chat = true, .content = STR_LIT("Hello."), .max_tokens = 1},
                          .budget_s = PROBE_S};
    *alive = false;
    if (c->arm->command && !child_alive(&c->child))
        return QN_OK;
    enum qn_status st = cell_ask(c, &a, &r, &why);
    /* A server that breaks the protocol but answers is alive. */
    *alive = st == QN_OK || (st == QN_BAD_INPUT && r.http_status == 200);
    reply_free(&r);
    if (st == QN_CANCELLED && err)
        *err = why;
    return st == QN_CANCELLED ? st : QN_OK;
}

/* After a failed attempt: whether another makes sense. */
static enum qn_status recover(struct cell *c, bool *again, struct qn_err *err)
{
    struct qn_err why = {0};
    double ready;
    QN_TRY(drained(c, again, err));
    if (*again)
        return QN_OK;
    if (c->restarts || !c->arm->command) {
        c->hopeless = true;
        return QN_OK;
    }
    c->restarts++;
    enum qn_status st = cell_restart(c, true, &ready, &why);
    *again = st == QN_OK;
    c->hopeless = st != QN_OK;
    if (st != QN_OK && st != QN_CANCELLED)
        note_failure(c, "restart of a dead server", 0, &why);
    if (st == QN_CANCELLED && err)
        *err = why;
    return st == QN_CANCELLED ? st : QN_OK;
}

/* A connection breaks off a moment before the process that held it is gone. */
static enum qn_status see_death(struct cell *c, struct qn_err *err)
{
    bool broke = c->last_fault == FAULT_TRUNCATED || c->last_fault == FAULT_CONNECT;
    for (int i = 0; i < 50 && broke && c->arm->command && child_alive(&c->child); i++)
        QN_TRY(client_wait(c->client, 0.01, err));
    return QN_OK;
}

enum qn_status cell_phase(struct cell *c, const char *name, phase_fn fn, struct qn_err *err)
{
    bool again = true;
    if (c->hopeless)
        return QN_OK;
    if (c->progress)
        c->progress(c->progress_arg, name);
    for (int attempt = 0; attempt < 2 && again; attempt++) {
        struct qn_err why = {0};
        enum qn_status st = fn(c, attempt, &why);
        settle(c, st == QN_OK);
        end_leg(c, name);
        if (st == QN_OK)
            return QN_OK;
        if (st == QN_CANCELLED || st == QN_NO_MEMORY) {
            if (err)
                *err = why;
            return st;
        }
        QN_TRY(see_death(c, err));
        note_failure(c, name, attempt, &why);
        again = false;
        if (attempt == 0)
            QN_TRY(recover(c, &again, err));
    }
    return QN_OK;
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Processors that neither we nor our servers used: called when these have ended, for only then is
 * their time known to us whole. NAN for a server that was not started here: it is one of the
 * others, as far as we can see. */
static double foreign_share(const struct cell *c)
{
    double seconds = (double)(clock_ns() - c->begin_ns) / 1e9;
    double all = seconds * (double)sysconf(_SC_CLK_TCK);
    int64_t foreign = busy_ticks() - c->busy_before - (child_ticks_all() - c->own_before);
    if (!c->arm->command)
        return (double)NAN;
    return all > 0 && foreign > 0 ? (double)foreign / all : 0;
}

static void write_rss(struct cell *c, struct jw *w)
{
    jw_key(w, "rss");
    jw_arr(w);
    for (int i = 0; i < c->n_rss; i++) {
        jw_arr(w);
        jw_i64(w, (int64_t)c->rss[i].ms);
        jw_i64(w, c->rss[i].bytes);
        jw_arr_end(w);
    }
    jw_arr_end(w);
}

static void write_cell(struct cell *c, double foreign)
{
    struct buf b = BUF_INIT, legs = BUF_INIT;
    struct jw w;
    jw_init(&w, &b);
    jw_obj(&w);
    jw_ki64(&w, "cell", c->index);
    jw_kstrz(&w, "arm", c->arm->name);
    jw_kstrz(&w, "workload", c->workload);
    jw_ki64(&w, "round", c->round);
    jw_kreal(&w, "seconds", (double)(clock_ns() - c->begin_ns) / 1e9);
    jw_kreal(&w, "ready_ms", c->ready_ms);
    jw_kbool(&w, "gave_up", c->hopeless);
    jw_ki64(&w, "restarts", c->restarts);
    jw_ki64(&w, "failures", c->failures);
    if (isfinite(foreign))
        jw_kreal(&w, "foreign_processors", foreign);
    else
        jw_knull(&w, "foreign_processors");
    jw_ki64(&w, "idle_rss_bytes", c->idle_rss);
    jw_ki64(&w, "peak_rss_bytes", c->peak_rss);
    jw_key(&w, "peak_rss_by_phase");
    buf_addf(&legs, "{%s}", buf_z(&c->legs));
    jw_raw(&w, buf_str(&legs));
    jw_kstr(&w, "server_log", path_base(c->log));
    write_rss(c, &w);
    jw_obj_end(&w);
    record_add(c->record, "cells", buf_str(&b));
    buf_free(&b);
    buf_free(&legs);
}

void cell_close(struct cell *c)
{
    timers_cancel(client_timers(c->client), c->sampler);
    sample_now(c);
    child_stop(&c->child, 10);
    double foreign = foreign_share(c);
    write_cell(c, foreign);
    if (foreign > 0.15)
        record_mark(c->record, "other processes used %.2f processors during %s %s (round %d)",
                    foreign, c->arm->name, c->workload, c->round + 1);
    struct buf *const bufs[] = {&c->base,       &c->chat_url, &c->completion_url,
                                &c->health_url, &c->model,    &c->legs};
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++)
        buf_free(bufs[i]);
    free(c->rss);
    free(c->pending);
    c->rss = NULL;
    c->pending = NULL;
}
