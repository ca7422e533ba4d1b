/* matrix.c - see matrix.h. One function per phase; the order at the end is the order of the run. */
#include "bench/matrix.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"

enum { WARM_TOKENS = 32, SHORT_TOKENS = 8, CTX_TOKENS = 64, CTX_BUDGET_S = 180 };

/* One chat request with one message. */
static enum qn_status chat(struct cell *c, const char *phase, int attempt, int index,
                           const struct body_params *body, struct reply *r, struct qn_err *err)
{
    struct ask a = {.phase = phase, .attempt = attempt, .index = index, .user = -1, .body = *body};
    a.body.chat = true;
    return cell_ask(c, &a, r, err);
}

static enum qn_status phase_warmup(struct cell *c, int attempt, struct qn_err *err)
{
    struct reply r;
    const struct body_params b = {.content = STR_LIT("Warmup: say hello."),
                                  .max_tokens = WARM_TOKENS};
    enum qn_status st = chat(c, "warmup", attempt, 0, &b, &r, err);
    if (st == QN_OK) {
        if (c->arm->command) {
            cell_sample(c, "", "ready_ms", c->ready_ms);
            cell_sample(c, "", "cold_start_ms", c->ready_ms + reply_ttft_ms(&r));
            cell_sample(c, "", "idle_rss_mib", (double)c->idle_rss / 0x1p20);
        }
    }
    reply_free(&r);
    return st;
}

static void note_parity(struct cell *c, const char *probe, const struct reply *r)
{
    struct buf b = BUF_INIT;
    struct jw w;
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstrz(&w, "arm", c->arm->name);
    jw_ki64(&w, "round", c->round);
    jw_kstrz(&w, "probe", probe);
    jw_kstr(&w, "text", buf_str(&r->text));
    jw_ki64(&w, "completion_tokens", r->completion_tokens);
    jw_ki64(&w, "prompt_tokens", r->prompt_tokens);
    jw_obj_end(&w);
    record_add(c->record, "parity", buf_str(&b));
    buf_free(&b);
}

static enum qn_status phase_parity(struct cell *c, int attempt, struct qn_err *err)
{
    struct ask a = {.phase = "parity",
                    .attempt = attempt,
                    .user = -1,
                    .body = {.content = STR_LIT(PARITY_PROMPT), .max_tokens = PARITY_TOKENS}};
    for (int i = 0; i < 2; i++) {
        struct reply r;
        a.index = i;
        if (i) {
            a.body.chat = true;
            a.body.content = STR_LIT(PARITY_CHAT);
        }
        enum qn_status st = cell_ask(c, &a, &r, err);
        if (st == QN_OK)
            note_parity(c, i ? "chat" : "completion", &r);
        reply_free(&r);
        QN_TRY(st);
    }
    return QN_OK;
}

static enum qn_status phase_decode(struct cell *c, int attempt, struct qn_err *err)
{
    for (int i = 0; i < c->w->decode_runs; i++) {
        struct buf text = BUF_INIT;
        struct reply r;
        struct nonce n = nonce_make(c->w->seed, "decode", attempt, c->round * 1000 + i);
        buf_addf(&text, "Run %s: write a detailed essay about the history of computing.", n.z);
        const struct body_params b = {.content = buf_str(&text), .max_tokens = c->w->decode_tokens};
        enum qn_status st = chat(c, "decode", attempt, i, &b, &r, err);
        if (st == QN_OK) {
            cell_sample(c, "", "decode_tps", reply_decode_tps(&r));
            cell_sample(c, "", "e2e_tps", reply_e2e_tps(&r));
        }
        reply_free(&r);
        buf_free(&text);
        QN_TRY(st);
    }
    return QN_OK;
}

/* A prompt that no cache knows, then the same one again. */
static enum qn_status phase_ttft(struct cell *c, int attempt, struct qn_err *err)
{
    struct buf text = BUF_INIT;
    enum qn_status st = QN_OK;
    for (int i = 0; i <= c->w->ttft_runs && st == QN_OK; i++) {
        struct reply r;
        bool warm = i == c->w->ttft_runs;
        if (!warm) {
            struct nonce n = nonce_make(c->w->seed, "ttft", attempt, c->round * 1000 + i);
            buf_clear(&text);
            prompt_filler(&text, n.z, c->w->ttft_tokens);
        }
        const struct body_params b = {.content = buf_str(&text), .max_tokens = SHORT_TOKENS};
        st = chat(c, warm ? "ttft warm" : "ttft cold", attempt, i, &b, &r, err);
        if (st == QN_OK && warm) {
            cell_sample(c, "", "ttft_warm_ms", reply_ttft_ms(&r));
            if (r.cached_tokens >= 0)
                cell_sample(c, "", "warm_cached_tokens", (double)r.cached_tokens);
        } else if (st == QN_OK) {
            cell_sample(c, "", "ttft_cold_ms", reply_ttft_ms(&r));
            cell_sample(c, "", "prefill_tps", reply_prefill_tps(&r));
        }
        reply_free(&r);
    }
    buf_free(&text);
    return st;
}

/* The long prompt's text is the same in the phases that share a nonce: context and restart. */
static void long_text(const struct cell *c, int attempt, struct buf *text)
{
    struct nonce n = nonce_make(c->w->seed, "context", attempt, c->round * 1000);
    buf_clear(text);
    prompt_filler(text, n.z, c->w->ctx_tokens);
}

/* Seconds for the long prompt: four times what the rate so far lets expect. */
static double ctx_budget(struct cell *c)
{
    double tps = NAN;
    record_count(c->record, &(struct sample_key){c->arm->name, c->workload, "", "prefill_tps"},
                 &tps);
    if (!isfinite(tps))
        return 600;
    return fmax(CTX_BUDGET_S, c->w->ctx_tokens / tps * 6);
}

static enum qn_status phase_context(struct cell *c, int attempt, struct qn_err *err)
{
    struct buf text = BUF_INIT;
    enum qn_status st = QN_OK;
    long_text(c, attempt, &text);
    for (int i = 0; i < 2 && st == QN_OK; i++) {
        struct reply r;
        struct ask a = {
            .phase = i ? "context again" : "context",
            .attempt = attempt,
            .index = i,
            .user = -1,
            .budget_s = ctx_budget(c),
            .body = {.chat = true, .content = buf_str(&text), .max_tokens = CTX_TOKENS}};
        st = cell_ask(c, &a, &r, err);
        if (st == QN_OK && i) {
            cell_sample(c, "", "ctx_repeat_ttft_ms", reply_ttft_ms(&r));
        } else if (st == QN_OK) {
            cell_sample(c, "", "ctx_prompt_tokens", (double)r.prompt_tokens);
            cell_sample(c, "", "ctx_ttft_ms", reply_ttft_ms(&r));
            cell_sample(c, "", "ctx_prefill_tps", reply_prefill_tps(&r));
        }
        if (st == QN_OK)
            cell_sample(c, "", "ctx_decode_tps", reply_decode_tps(&r));
        reply_free(&r);
    }
    buf_free(&text);
    return st;
}

/* The server is ended in order, started again, and asked the long prompt once more: what it has
 * kept on disk shows in the time of the first token. */
static enum qn_status phase_restart(struct cell *c, int attempt, struct qn_err *err)
{
    struct buf text = BUF_INIT;
    struct reply r = {0};
    double ready = NAN;
    long_text(c, 0, &text);
    const struct body_params b = {.content = buf_str(&text), .max_tokens = SHORT_TOKENS};
    enum qn_status st = QN_OK;
    if (attempt == 0) /* what the server should know; also when the context phase was left out */
        st = chat(c, "before restart", attempt, 0, &b, &r, err);
    reply_free(&r);
    if (st == QN_OK)
        st = cell_restart(c, false, &ready, err);
    if (st == QN_OK)
        st = chat(c, "restart", attempt, 1, &b, &r, err);
    if (st == QN_OK) {
        cell_sample(c, "", "restart_ready_ms", ready);
        cell_sample(c, "", "restart_ttft_ms", reply_ttft_ms(&r));
        if (r.cached_tokens >= 0)
            cell_sample(c, "", "restart_cached_tokens", (double)r.cached_tokens);
    }
    reply_free(&r);
    buf_free(&text);
    return st;
}

/* ---- several at a time ---------------------------------------------------------------------- */

enum { CONCURRENT_MAX = 64 };

struct group {
    struct reply replies[CONCURRENT_MAX];
    int n, over;
};

static void on_member(void *arg, struct reply *r)
{
    struct group *g = arg;
    g->replies[g->over++] = *r;
}

static bool group_over(void *arg)
{
    const struct group *g = arg;
    return g->over == g->n;
}

static enum qn_status start_group(struct cell *c, int attempt, struct group *g, struct qn_err *err)
{
    for (int i = 0; i < c->w->concurrent; i++) {
        struct buf text = BUF_INIT;
        struct nonce n = nonce_make(c->w->seed, "concurrent", attempt, c->round * 1000 + i);
        buf_addf(&text, "Agent %d %s: write a detailed essay about computers.", i, n.z);
        const struct ask a = {.phase = "concurrent",
                              .attempt = attempt,
                              .index = i,
                              .user = i,
                              .body = {.chat = true,
                                       .content = buf_str(&text),
                                       .max_tokens = c->w->concurrent_tokens}};
        enum qn_status st = cell_ask_start(c, &a, on_member, g, err);
        buf_free(&text);
        QN_TRY(st);
        g->n++;
    }
    return QN_OK;
}

static enum qn_status judge_group(struct cell *c, const struct group *g, struct qn_err *err)
{
    int64_t begin = INT64_MAX, end = 0;
    double tokens = 0, rates = 0;
    for (int i = 0; i < g->n; i++) {
        const struct reply *r = &g->replies[i];
        if (r->fault != FAULT_NONE)
            QN_FAIL(err, QN_BAD_INPUT, "bench", "%s, concurrent, one of %d: %s: %s", c->arm->name,
                    g->n, fault_name(r->fault), r->why);
        begin = r->start_ns < begin ? r->start_ns : begin;
        end = r->end_ns > end ? r->end_ns : end;
        tokens += (double)r->completion_tokens;
        rates += reply_decode_tps(r) / g->n;
    }
    cell_sample(c, "", "concurrent_tps", tokens * 1e9 / (double)(end - begin));
    cell_sample(c, "", "concurrent_stream_tps", rates);
    return QN_OK;
}

static enum qn_status phase_concurrent(struct cell *c, int attempt, struct qn_err *err)
{
    struct group g = {.n = 0};
    enum qn_status st = start_group(c, attempt, &g, err);
    if (st == QN_OK)
        st = client_run(c->client, group_over, &g, err);
    if (st != QN_OK)
        client_stop_all(c->client);
    if (st == QN_OK)
        st = judge_group(c, &g, err);
    for (int i = 0; i < g.over; i++)
        reply_free(&g.replies[i]);
    return st;
}

static enum qn_status phase_memory(struct cell *c, int attempt, struct qn_err *err)
{
    if (c->arm->command)
        cell_sample(c, "", "peak_rss_mib", (double)c->peak_rss / 0x1p20);
    return QN_OK;
}

enum qn_status matrix_run(struct cell *c, struct qn_err *err)
{
    const struct {
        const char *name;
        phase_fn fn;
        bool on;
    } phases[] = {
        {"warmup", phase_warmup, true},
        {"parity", phase_parity, true},
        {"decode", phase_decode, c->w->decode_runs > 0},
        {"ttft", phase_ttft, c->w->ttft_runs > 0},
        {"context", phase_context, c->w->ctx_tokens > 0},
        {"concurrent", phase_concurrent, c->w->concurrent > 0},
        {"memory", phase_memory, true}, /* of one life of the server */
        {"restart", phase_restart, c->w->ctx_tokens > 0 && c->arm->command},
    };
    for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++)
        if (phases[i].on)
            QN_TRY(cell_phase(c, phases[i].name, phases[i].fn, err));
    return QN_OK;
}

void matrix_tokens(const struct workload_params *w, double *read, double *written)
{
    /* Prompts asked again come from the server's cache, but for the one after the restart. */
    *read = 200 + 40.0 * w->decode_runs + (double)w->ttft_tokens * w->ttft_runs +
            2.0 * w->ctx_tokens + 40.0 * w->concurrent;
    *written = WARM_TOKENS + 2 * PARITY_TOKENS + (double)w->decode_tokens * w->decode_runs +
               SHORT_TOKENS * (w->ttft_runs + 3) + (w->ctx_tokens ? 2 * CTX_TOKENS : 0) +
               (double)w->concurrent_tokens * w->concurrent;
}
