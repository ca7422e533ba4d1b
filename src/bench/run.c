/*
 * run.c - bench_run and bench_plan, see bench.h: which arms can run, the order of the cells, the
 * record's head, and the files.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "bench/bench.h"
#include "bench/load.h"
#include "bench/machine.h"
#include "bench/manifest.h"
#include "bench/matrix.h"
#include "bench/agent_replay.h"
#include "bench/report.h"

enum workload { MATRIX, LOAD, REPLAY, N_WORKLOAD };
static const char *const workload_names[] = {"matrix", "load", "replay"};

struct run_arm {
    struct arm arm;
    bool ok;
    char why[300];          /* why it cannot run */
    double decode, prefill; /* tokens per second, for estimates */
    bool speed_known;
};

struct run {
    const struct bench_params *p;
    struct run_arm arms[BENCH_ARMS_MAX];
    int n_arm, n_ok;
    struct client *client;
    struct record *record;
    struct load_plan load;
    struct replay_set replays;
    struct machine_state before;
    int64_t began_unix, began_ns;
    double total_s, done_s, cell_s; /* estimates */
    int64_t cell_ns;
    int n_cell, failures;
    char what[120];
    struct buf model_json; /* manifest members */
    uint64_t tick;
};

static void say(const struct run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(const struct run *r, const char *fmt, ...)
{
    char line[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (r->p->say)
        r->p->say(r->p->arg, line);
}

/* ---- arms ----------------------------------------------------------------------------------- */

/* Tokens per second that decoding and reading may reach, for the estimate of time only: what the
 * arm made in earlier runs, otherwise from the bytes of the model. */
static void guess_speed(const struct run *r, struct run_arm *a)
{
    double bytes = (double)manifest_model_bytes(r->p->values.model);
    double per_thread = 4e9 * fmax(1, fmin(r->p->values.threads, 8));
    a->speed_known =
        r->p->known_speed && r->p->known_speed(r->p->arg, a->arm.name, &a->decode, &a->prefill);
    if (a->speed_known)
        return;
    a->decode = bytes > 0 ? fmin(200, fmax(1, per_thread / bytes)) : 50;
    a->prefill = a->decode * 4;
}

/* An arm that was asked for by name must be well-formed; whether it can run is another matter. */
static enum qn_status add_arm(struct run *r, const char *word, struct qn_err *err)
{
    struct qn_err why = {0};
    if (r->n_arm == BENCH_ARMS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "more than %d arms", BENCH_ARMS_MAX);
    struct run_arm *a = &r->arms[r->n_arm++];
    QN_TRY(arm_open(word, &a->arm, err));
    for (int i = 0; i + 1 < r->n_arm; i++)
        if (strcmp(r->arms[i].arm.name, a->arm.name) == 0)
            QN_FAIL(err, QN_BAD_INPUT, "bench", "two arms are called %s", a->arm.name);
    struct arm_values values = r->p->values;
    values.cache = "cache"; /* every cell gets one of its own */
    a->ok = arm_check(&a->arm, &values, &why) == QN_OK;
    snprintf(a->why, sizeof a->why, "%.299s", why.msg);
    r->n_ok += a->ok;
    guess_speed(r, a);
    return QN_OK;
}

static enum qn_status open_arms(struct run *r, struct qn_err *err)
{
    const struct bench_params *p = r->p;
    for (int i = 0; i < p->n_arm; i++) {
        if (strcmp(p->arms[i], "all") != 0) {
            QN_TRY(add_arm(r, p->arms[i], err));
            continue;
        }
        for (const char *const *n = arm_names(); *n; n++)
            QN_TRY(add_arm(r, *n, err));
    }
    if (!r->n_ok && r->n_arm == 1)
        QN_FAIL(err, QN_UNSUPPORTED, "bench", "%s cannot run: %s", r->arms[0].arm.name,
                r->arms[0].why);
    if (!r->n_ok)
        QN_FAIL(err, QN_UNSUPPORTED, "bench", "none of the arms can run; the first, %s: %s",
                r->n_arm ? r->arms[0].arm.name : "", r->n_arm ? r->arms[0].why : "");
    return QN_OK;
}

/* ---- the plan ------------------------------------------------------------------------------- */

static bool has_workload(const struct bench_params *p, int k)
{
    return k == MATRIX ? p->with_matrix : k == LOAD ? p->with_load : p->with_replay;
}

static double guess_seconds(const struct run *r, const struct run_arm *a, int k)
{
    double read = 0, written = 0;
    if (k == MATRIX)
        matrix_tokens(&r->p->w, &read, &written);
    else if (k == LOAD)
        load_tokens(&r->load, &r->p->w, &read, &written);
    else
        replay_tokens(&r->replays, &read, &written);
    return 3 + read / a->prefill + written / a->decode;
}

static void plan_total(struct run *r)
{
    r->total_s = 0;
    for (int k = 0; k < N_WORKLOAD; k++)
        for (int i = 0; i < r->n_arm && has_workload(r->p, k); i++)
            if (r->arms[i].ok)
                r->total_s += guess_seconds(r, &r->arms[i], k) * r->p->rounds;
}

static enum qn_status prepare(struct run *r, struct qn_err *err)
{
    const struct bench_params *p = r->p;
    if (!p->with_matrix && !p->with_load && !p->with_replay)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "no workload is chosen");
    QN_TRY(open_arms(r, err));
    load_plan_make(p, &r->load);
    if (p->with_replay)
        QN_TRY(replay_open(p->recordings, p->n_recording, &r->replays, err));
    plan_total(r);
    return QN_OK;
}

static void unprepare(struct run *r)
{
    for (int i = 0; i < r->n_arm; i++)
        arm_free(&r->arms[i].arm);
    replay_close(&r->replays);
    buf_free(&r->model_json);
}

static void time_text(struct buf *out, double s)
{
    if (s < 90)
        buf_addf(out, "%.0f s", s);
    else if (s < 5400)
        buf_addf(out, "%.0f min", s / 60);
    else
        buf_addf(out, "%.1f h", s / 3600);
}

static void plan_arm(const struct run_arm *a, struct buf *out)
{
    buf_addf(out, "arm       %-15s ", a->arm.name);
    if (a->ok)
        buf_addf(out, "%s\n", a->arm.about);
    else
        buf_addf(out, "cannot run: %s\n", a->why);
}

static void plan_workload(const struct run *r, int k, struct buf *out)
{
    buf_addf(out, "workload  %-15s %d rounds x %d arms; a cell takes about\n", workload_names[k],
             r->p->rounds, r->n_ok);
    for (int i = 0; i < r->n_arm; i++) {
        const struct run_arm *a = &r->arms[i];
        if (!a->ok)
            continue;
        buf_addf(out, "          %-15s ", a->arm.name);
        time_text(out, guess_seconds(r, a, k));
        buf_addz(out, a->speed_known ? "\n" : ", a guess from the size of the model\n");
    }
    if (k == LOAD)
        load_plan_text(&r->load, out);
    if (k == REPLAY)
        replay_plan_text(&r->replays, out);
}

enum qn_status bench_plan(const struct bench_params *p, struct buf *out, struct qn_err *err)
{
    struct run r = {.p = p};
    enum qn_status st = prepare(&r, err);
    for (int i = 0; i < r.n_arm && st == QN_OK; i++)
        plan_arm(&r.arms[i], out);
    for (int k = 0; k < N_WORKLOAD && st == QN_OK; k++)
        if (has_workload(p, k))
            plan_workload(&r, k, out);
    if (st == QN_OK) {
        buf_addz(out, "order     every round goes over all arms before the next begins\n"
                      "estimate  ");
        time_text(out, r.total_s);
        buf_addz(out, " in all, from the speed of earlier runs where the history has one\n");
    }
    unprepare(&r);
    return st == QN_OK ? buf_ok(out, "the plan", err) : st;
}

/* ---- the record's head ---------------------------------------------------------------------- */

static void write_params(struct jw *w, const struct bench_params *p)
{
    const struct workload_params *q = &p->w;
    jw_key(w, "workload");
    jw_obj(w);
    jw_kstrz(w, "seed", q->seed);
    jw_ki64(w, "rounds", p->rounds);
    jw_ki64(w, "threads", p->values.threads);
    jw_ki64(w, "ctx", p->values.ctx);
    jw_ki64(w, "users_at_most", p->values.users);
    jw_ki64(w, "decode_tokens", q->decode_tokens);
    jw_ki64(w, "decode_runs", q->decode_runs);
    jw_ki64(w, "ttft_tokens", q->ttft_tokens);
    jw_ki64(w, "ttft_runs", q->ttft_runs);
    jw_ki64(w, "context_tokens", q->ctx_tokens);
    jw_ki64(w, "concurrent", q->concurrent);
    jw_ki64(w, "concurrent_tokens", q->concurrent_tokens);
    jw_ki64(w, "load_prompt_tokens", q->load_prompt_tokens);
    jw_ki64(w, "load_tokens", q->load_tokens);
    jw_ki64(w, "load_requests_per_user", q->load_requests);
    jw_kreal(w, "limit_ttft_ms", q->slo_ttft_ms);
    jw_kreal(w, "limit_tpot_ms", q->slo_tpot_ms);
    jw_kreal(w, "limit_e2e_ms", q->slo_e2e_ms);
    jw_kreal(w, "budget_s", q->budget_s);
    jw_kreal(w, "stall_s", q->stall_s);
    jw_kbool(w, "ignore_eos", q->ignore_eos);
    jw_obj_end(w);
}

static void write_head(struct run *r)
{
    struct buf b = BUF_INIT;
    struct machine_state now;
    struct jw w;
    const struct bench_params *p = r->p;
    machine_look(&now, false);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstrz(&w, "label", p->label ? p->label : "");
    jw_ki64(&w, "began_unix", r->began_unix);
    jw_kreal(&w, "seconds", (double)(clock_ns() - r->began_ns) / 1e9);
    jw_kbool(&w, "diagnostic", p->diagnostic);
    jw_kstrz(&w, "command", p->command_line);
    jw_kstrz(&w, "version", QUERN_VERSION);
    write_params(&w, p);
    jw_key(&w, "machine");
    jw_obj(&w);
    machine_facts(&w);
    jw_key(&w, "before");
    jw_obj(&w);
    machine_state_json(&w, &r->before);
    jw_obj_end(&w);
    jw_key(&w, "at_save");
    jw_obj(&w);
    machine_state_json(&w, &now);
    jw_obj_end(&w);
    jw_obj_end(&w);
    jw_key(&w, "manifest");
    jw_raw(&w, buf_str(&r->model_json));
    jw_obj_end(&w);
    if (b.n > 2) /* without the braces: members */
        record_head(r->record, (struct str){b.p + 1, b.n - 2});
    buf_free(&b);
}

static enum qn_status write_arms(struct run *r, struct qn_err *err)
{
    for (int i = 0; i < r->n_arm; i++) {
        struct buf b = BUF_INIT;
        struct jw w;
        const struct run_arm *a = &r->arms[i];
        jw_init(&w, &b);
        jw_obj(&w);
        jw_kstrz(&w, "name", a->arm.name);
        jw_kstrz(&w, "about", a->arm.about);
        jw_kbool(&w, "ran", a->ok);
        if (!a->ok)
            jw_kstrz(&w, "why_not", a->why);
        enum qn_status st = QN_OK;
        if (a->ok && a->arm.command)
            st = manifest_command(&w, &a->arm, &r->p->values, err);
        else if (a->arm.url)
            jw_kstrz(&w, "url", a->arm.url);
        jw_obj_end(&w);
        record_add(r->record, "arms", buf_str(&b));
        buf_free(&b);
        QN_TRY(st);
    }
    return QN_OK;
}

/* ---- files ---------------------------------------------------------------------------------- */

static enum qn_status write_file(const struct run *r, const char *ext, const struct buf *text,
                                 struct qn_err *err)
{
    struct buf path = BUF_INIT;
    buf_addf(&path, "%s%s", r->p->out, ext);
    enum qn_status st = buf_ok(text, "a report", err);
    if (st == QN_OK)
        st = file_write_atomic(buf_z(&path), buf_str(text), err);
    buf_free(&path);
    return st;
}

static enum qn_status save(struct run *r, const char *status, struct buf *json, struct qn_err *err)
{
    write_head(r);
    QN_TRY(record_json(r->record, status, json, err));
    return write_file(r, ".json", json, err);
}

static enum qn_status save_reports(struct run *r, struct str json, struct qn_err *err)
{
    struct buf text = BUF_INIT;
    struct json *doc = NULL;
    QN_TRY(json_parse(json, "the record", JSON_DEPTH_MAX, &doc, err));
    report_markdown(doc, &text);
    enum qn_status st = write_file(r, ".md", &text, err);
    buf_clear(&text);
    if (st == QN_OK) {
        report_html(doc, &text);
        st = write_file(r, ".html", &text, err);
    }
    buf_free(&text);
    json_free(doc);
    return st;
}

/* ---- cells ---------------------------------------------------------------------------------- */

static void show(struct run *r)
{
    double in_cell = (double)(clock_ns() - r->cell_ns) / 1e9;
    double done = r->done_s + fmin(in_cell, r->cell_s * 0.99);
    if (r->p->progress && r->total_s > 0)
        r->p->progress(r->p->arg, r->what, fmin(done / r->total_s, 1));
}

static void on_tick(void *arg)
{
    struct run *r = arg;
    show(r);
    r->tick = timers_add(client_timers(r->client), clock_ns() + 500000000LL, on_tick, r);
}

static void on_phase(void *arg, const char *phase)
{
    struct run *r = arg;
    char *at = strchr(r->what, ':');
    size_t n = at ? (size_t)(at - r->what) : strlen(r->what);
    snprintf(r->what + n, sizeof r->what - n, ": %s", phase);
    show(r);
}

static enum qn_status run_workload(struct run *r, struct cell *c, int k, struct qn_err *err)
{
    if (k == MATRIX)
        return matrix_run(c, err);
    return k == LOAD ? load_run(c, &r->load, err) : replay_run(c, &r->replays, err);
}

static void note_no_start(struct run *r, const struct cell *c, const struct qn_err *why)
{
    struct buf b = BUF_INIT, tail = BUF_INIT;
    struct jw w;
    child_log_tail(c->log, 30, &tail);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_ki64(&w, "cell", c->index);
    jw_kstrz(&w, "arm", c->arm->name);
    jw_kstrz(&w, "workload", c->workload);
    jw_kstrz(&w, "phase", "start");
    jw_ki64(&w, "attempt", 0);
    jw_kstrz(&w, "message", why->msg);
    jw_kstr(&w, "stderr_tail", buf_str(&tail));
    jw_obj_end(&w);
    record_add(r->record, "failures", buf_str(&b));
    r->failures++;
    buf_free(&b);
    buf_free(&tail);
}

static enum qn_status run_cell(struct run *r, const struct run_arm *which, int k, int round,
                               struct qn_err *err)
{
    const struct arm *arm = &which->arm;
    struct buf log = BUF_INIT, cache = BUF_INIT;
    struct qn_err why = {0};
    buf_addf(&log, "%s.logs/%02d-%s-%s-%d.log", r->p->out, r->n_cell, arm->name, workload_names[k],
             round + 1);
    for (size_t i = strlen(r->p->out) + 6; i < log.n; i++) /* names of arms may hold anything */
        if (log.p[i] == '/' || log.p[i] == ':')
            log.p[i] = '_';
    buf_addf(&cache, "%s.logs/cache-%02d", r->p->out, r->n_cell);
    struct cell c = {.client = r->client,
                     .record = r->record,
                     .arm = arm,
                     .values = r->p->values,
                     .w = &r->p->w,
                     .workload = workload_names[k],
                     .log = buf_z(&log),
                     .index = r->n_cell,
                     .round = round,
                     .progress = on_phase,
                     .progress_arg = r};
    c.values.cache = buf_z(&cache);
    log.p[strlen(r->p->out) + 5] = '/';
    snprintf(r->what, sizeof r->what, "%s %s", arm->name, workload_names[k]);
    r->cell_s = guess_seconds(r, which, k);
    r->cell_ns = clock_ns();
    enum qn_status st = dir_make(buf_z(&cache), err);
    if (st == QN_OK) {
        st = cell_open(&c, &why);
        if (st == QN_OK)
            st = run_workload(r, &c, k, err);
        else if (st != QN_CANCELLED)
            note_no_start(r, &c, &why), st = QN_OK;
    }
    r->failures += c.failures;
    cell_close(&c);
    dir_remove(buf_z(&cache), NULL);
    if (c.failures || c.hopeless)
        say(r, "%s %s round %d: %s", arm->name, workload_names[k], round + 1,
            why.msg[0] ? why.msg : "some phases failed; the record says which");
    r->done_s += r->cell_s;
    r->n_cell++;
    buf_free(&log);
    buf_free(&cache);
    return st;
}

static enum qn_status run_cells(struct run *r, struct qn_err *err)
{
    struct buf json = BUF_INIT;
    enum qn_status st = QN_OK;
    for (int round = 0; round < r->p->rounds && st == QN_OK; round++)
        for (int k = 0; k < N_WORKLOAD && st == QN_OK; k++)
            for (int i = 0; i < r->n_arm && st == QN_OK; i++) {
                if (!has_workload(r->p, k) || !r->arms[i].ok)
                    continue;
                st = run_cell(r, &r->arms[i], k, round, err);
                if (st == QN_OK)
                    st = save(r, "running", &json, err);
            }
    buf_free(&json);
    return st;
}

/* ---- before the first cell ------------------------------------------------------------------ */

static enum qn_status preflight(struct run *r, struct qn_err *err)
{
    struct buf why = BUF_INIT;
    enum qn_status st = QN_OK;
    int64_t need = manifest_model_bytes(r->p->values.model) * 5 / 4;
    machine_look(&r->before, true);
    int n = machine_reasons(&r->before, need, &why);
    if (n && r->p->preflight == PREFLIGHT_REFUSE && !r->p->diagnostic) {
        for (size_t i = 0; i + 1 < why.n; i++)
            if (why.p[i] == '\n')
                why.p[i] = ';';
        st = err_set(err, QN_BUSY, "bench",
                     "this machine is not fit to measure on now: %.*s. Wait, or say --preflight "
                     "mark to measure all the same and have the run marked, or --diagnostic",
                     (int)(why.n ? why.n - 1 : 0), buf_z(&why));
    }
    char *rest = (char *)(uintptr_t)buf_z(&why), *line;
    while (st == QN_OK && (line = strsep(&rest, "\n")) != NULL)
        if (*line) {
            record_mark(r->record, "before the run: %s", line);
            say(r, "mark: %s", line);
        }
    buf_free(&why);
    return st;
}

static enum qn_status open_run(struct run *r, struct qn_err *err)
{
    struct buf logs = BUF_INIT;
    QN_TRY(prepare(r, err));
    r->record = record_create();
    if (!r->record)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for the record");
    QN_TRY(preflight(r, err));
    QN_TRY(client_create(r->p->cancel, &r->client, err));
    buf_addf(&logs, "%s.logs", r->p->out);
    enum qn_status st = dir_make(buf_z(&logs), err);
    buf_free(&logs);
    QN_TRY(st);
    QN_TRY(manifest_files(r->p->values.model, r->p->values.gguf, &r->model_json, err));
    QN_TRY(write_arms(r, err));
    for (int i = 0; i < r->n_arm; i++)
        if (!r->arms[i].ok)
            say(r, "%s does not run: %s", r->arms[i].arm.name, r->arms[i].why);
    if (r->p->diagnostic)
        record_mark(r->record, "a diagnostic run: not for comparisons");
    return QN_OK;
}

static void add_reference(struct run *r)
{
    struct buf text = BUF_INIT;
    struct json *doc = NULL;
    if (!r->p->reference || file_read(r->p->reference, 1 << 20, &text, NULL) != QN_OK ||
        json_parse(buf_str(&text), r->p->reference, JSON_DEPTH_MAX, &doc, NULL) != QN_OK) {
        buf_free(&text);
        return;
    }
    for (size_t i = 0; i < json_len(json_get(doc, "probes")); i++) {
        struct buf b = BUF_INIT;
        json_w_value(&b, json_at(json_get(doc, "probes"), i));
        record_add(r->record, "parity", buf_str(&b));
        buf_free(&b);
    }
    json_free(doc);
    buf_free(&text);
}

enum qn_status bench_run(const struct bench_params *p, struct bench_outcome *outcome,
                         struct qn_err *err)
{
    struct run r = {.p = p, .began_unix = clock_unix(), .began_ns = clock_ns()};
    struct buf json = BUF_INIT;
    *outcome = (struct bench_outcome){0};
    enum qn_status st = open_run(&r, err);
    bool opened = st == QN_OK;
    if (opened) {
        add_reference(&r);
        on_tick(&r);
        st = run_cells(&r, err);
        outcome->interrupted = st == QN_CANCELLED;
        timers_cancel(client_timers(r.client), r.tick);
    }
    if (opened && (st == QN_OK || st == QN_CANCELLED)) {
        st = save(&r, outcome->interrupted ? "interrupted" : "complete", &json, err);
        if (st == QN_OK)
            st = save_reports(&r, buf_str(&json), err);
    }
    outcome->cells = r.n_cell;
    outcome->failures = r.failures;
    client_free(r.client);
    record_free(r.record);
    unprepare(&r);
    buf_free(&json);
    return st;
}
