/*
 * metrics.c - see metrics.h. The text is made on the thread of the scrape; a histogram's count is
 * the sum of the buckets it read, so that the two always agree in one scrape.
 */
#include "server/metrics.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

static const int statuses[METRIC_STATUSES] = {200, 204, 400, 401, 403, 404, 405, 409, 411, 413,
                                              422, 429, 431, 499, 500, 501, 502, 503, 504, 0};

/* ---- histograms: names, help, bounds --------------------------------------------------------- */

/* Seconds, or tokens. Finer than vLLM's at the lower end: small models on a CPU live there. */
static const double latency_bounds[] = {0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1,   1.5, 2,   2.5, 5,   10,
                                        15,   20,  30,  40,  50,  60,  120, 240, 480, 960, 1920};
static const double first_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                      0.1,   0.25,  0.5,  0.75, 1,    2.5,  5,
                                      7.5,   10,    20,   40,   80,   160,  640};
static const double step_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                     0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5,
                                     5,     7.5,    10,    20,   40,    80};
static const double token_bounds[] = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                      1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

struct hist_info {
    const char *name, *help;
    const double *bounds;
    int n;
    bool seconds;
};

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))
#define TIMES(name, help, bounds)                                                                  \
    {                                                                                              \
        name "_seconds", help, bounds, COUNT(bounds), true                                         \
    }

static const struct hist_info hists[METRIC_HISTS] = {
    [METRIC_TTFT] =
        TIMES("time_to_first_token", "Seconds from the request to its first token.", first_bounds),
    [METRIC_ITL] =
        TIMES("inter_token_latency", "Seconds between one token and the next.", step_bounds),
    [METRIC_TPOT] =
        TIMES("request_time_per_output_token",
              "Decode seconds per token after the first, one sample per answer.", step_bounds),
    [METRIC_E2E] =
        TIMES("e2e_request_latency", "Seconds from the request to its last token.", latency_bounds),
    [METRIC_QUEUE] =
        TIMES("request_queue_time", "Seconds a request waited for its turn.", latency_bounds),
    [METRIC_PREFILL] =
        TIMES("request_prefill_time", "Seconds from its turn to the first token.", latency_bounds),
    [METRIC_DECODE] =
        TIMES("request_decode_time", "Seconds from the first token to the last.", latency_bounds),
    [METRIC_INFERENCE] =
        TIMES("request_inference_time", "Seconds from its turn to the last token.", latency_bounds),
    [METRIC_PROMPT_TOK] = {"request_prompt_tokens", "Tokens of each prompt.", token_bounds,
                           COUNT(token_bounds), false},
    [METRIC_GEN_TOK] = {"request_generation_tokens", "Tokens of each answer.", token_bounds,
                        COUNT(token_bounds), false},
};

/* ---- counting -------------------------------------------------------------------------------- */

static void add(atomic_llong *a, int64_t n)
{
    atomic_fetch_add_explicit(a, n, memory_order_relaxed);
}

static int64_t read_one(const atomic_llong *a)
{
    return atomic_load_explicit(a, memory_order_relaxed);
}

void metrics_request(struct metrics *m, int route, int status)
{
    int s = 0;
    if (route < 0 || route >= METRIC_ROUTES)
        route = METRIC_ROUTES - 1;
    while (s < METRIC_STATUSES - 1 && statuses[s] != status)
        s++;
    add(&m->requests[route][s], 1);
}

void metrics_observe(struct metrics *m, enum metric_hist h, int64_t value)
{
    const struct hist_info *info = &hists[h];
    int i = 0;
    if (value < 0)
        value = 0;
    double v = info->seconds ? (double)value / 1e6 : (double)value;
    while (i < info->n && v > info->bounds[i])
        i++;
    add(&m->hist[h].n[i], 1);
    add(&m->hist[h].sum, value);
}

static void finished(struct metrics *m, const struct gen_event *ev, int64_t t0_us, int64_t now)
{
    const struct gen_usage *u = &ev->usage;
    if (ev->kind != GEN_DONE || ev->finish == GEN_CANCELLED)
        return;
    add(ev->finish == GEN_LENGTH ? &m->length : &m->stop, 1);
    add(&m->prompt_tokens, u->prompt_tokens);
    add(&m->cached_tokens, u->cached_tokens);
    metrics_observe(m, METRIC_E2E, now - t0_us);
    metrics_observe(m, METRIC_QUEUE, u->queue_us);
    metrics_observe(m, METRIC_PREFILL, u->prefill_us);
    metrics_observe(m, METRIC_DECODE, u->decode_us);
    metrics_observe(m, METRIC_INFERENCE, u->prefill_us + u->decode_us);
    metrics_observe(m, METRIC_PROMPT_TOK, u->prompt_tokens);
    metrics_observe(m, METRIC_GEN_TOK, u->completion_tokens);
    if (u->completion_tokens > 1)
        metrics_observe(m, METRIC_TPOT, u->decode_us / (u->completion_tokens - 1));
}

void metrics_generation(struct metrics *m, const struct gen_event *ev, int64_t t0_us,
                        int64_t *last_us)
{
    int64_t now = clock_us();
    switch (ev->kind) {
    case GEN_TOKEN:
        if (*last_us == 0)
            metrics_observe(m, METRIC_TTFT, now - t0_us);
        else
            metrics_observe(m, METRIC_ITL, now - *last_us);
        *last_us = now;
        break;
    case GEN_DONE:
    case GEN_ERROR:
        finished(m, ev, t0_us, now);
        break;
    default:
        break;
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

/* What every line of a scrape is written with. */
struct text {
    struct buf *out;
    char model[160]; /* the label, escaped; "" while loading */
};

static void head(struct text *t, const char *name, const char *type, const char *help)
{
    buf_addf(t->out, "# HELP quern_%s %s\n# TYPE quern_%s %s\n", name, help, name, type);
}

/* \ and " and newline are escaped, as the format asks; a cut keeps escapes whole. */
static void escape_label(const char *s, char *out, size_t cap)
{
    size_t n = 0;
    for (; *s && n + 3 < cap; s++) {
        if (*s == '\\' || *s == '"' || *s == '\n')
            out[n++] = '\\';
        out[n++] = *s == '\n' ? 'n' : *s;
    }
    out[n] = 0;
}

static void single(struct text *t, const char *name, const char *type, const char *help, double v)
{
    head(t, name, type, help);
    buf_addf(t->out, "quern_%s{model_name=\"%s\"} %.15g\n", name, t->model, v);
}

static void write_hist(struct text *t, const struct hist_info *h, const struct metric_buckets *b)
{
    int64_t total = 0;
    double unit = h->seconds ? 1e6 : 1;
    head(t, h->name, "histogram", h->help);
    for (int i = 0; i <= h->n; i++) {
        total += read_one(&b->n[i]);
        buf_addf(t->out, "quern_%s_bucket{model_name=\"%s\",le=\"", h->name, t->model);
        if (i < h->n)
            buf_addf(t->out, "%.10g\"} %lld\n", h->bounds[i], (long long)total);
        else
            buf_addf(t->out, "+Inf\"} %lld\n", (long long)total);
    }
    buf_addf(t->out, "quern_%s_sum{model_name=\"%s\"} %.15g\n", h->name, t->model,
             (double)read_one(&b->sum) / unit);
    buf_addf(t->out, "quern_%s_count{model_name=\"%s\"} %lld\n", h->name, t->model,
             (long long)total);
}

static void write_requests(struct text *t, const struct metrics *m, const struct metrics_view *v)
{
    head(t, "http_requests_total", "counter", "Answered HTTP requests; 499: the client left.");
    for (int r = 0; r < METRIC_ROUTES; r++) {
        const char *method = "", *path = "other";
        if (r < METRIC_ROUTES - 1 && !v->route(r, &method, &path))
            continue;
        for (int s = 0; s < METRIC_STATUSES; s++) {
            int64_t n = read_one(&m->requests[r][s]);
            if (n == 0)
                continue;
            bool rest = path[strlen(path) - 1] == '/';
            buf_addf(t->out,
                     "quern_http_requests_total{method=\"%s\",route=\"%s%s\",status=\"%d\"} %lld\n",
                     method, path, rest ? "{id}" : "", statuses[s], (long long)n);
        }
    }
}

/* The client that leaves does not see its answer's end, so the scheduler counts those. */
static void write_finished(struct text *t, const struct metrics *m, const struct sched_stats *st)
{
    const struct {
        const char *name;
        int64_t n;
    } reasons[] = {{"stop", read_one(&m->stop)},
                   {"length", read_one(&m->length)},
                   {"abort", st->cancelled},
                   {"error", st->failed}};
    head(t, "request_success_total", "counter",
         "Answers that ended, by reason; abort: the client left.");
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        buf_addf(t->out,
                 "quern_request_success_total{model_name=\"%s\",finished_reason=\"%s\"} %lld\n",
                 t->model, reasons[i].name, (long long)reasons[i].n);
}

static void write_sched(struct text *t, const struct sched_stats *s)
{
    single(t, "num_requests_running", "gauge", "Answers being made.", s->running);
    single(t, "num_requests_waiting", "gauge", "Requests that wait for their turn.", s->waiting);
    single(t, "kv_cache_usage_perc", "gauge",
           "Share of the KV budget that running answers have planned, 0 to 1; 0 without a budget.",
           s->kv_budget > 0 ? (double)s->kv_planned / (double)s->kv_budget : 0);
    single(t, "num_preemptions_total", "counter",
           "How often a paused answer gave its memory back for others.", (double)s->parked);
    single(t, "request_rejected_total", "counter", "Requests refused by the scheduler.",
           (double)s->rejected);
    single(t, "prompt_tokens_computed_total", "counter",
           "Prompt tokens computed, without those taken from a cache.", (double)s->prompt_tokens);
    single(t, "generation_tokens_total", "counter", "Tokens generated.",
           (double)s->completion_tokens);
}

static void write_cache(struct text *t, const struct sched_stats *s)
{
    const struct qn_cache_stats *c = &s->cache;
    if (!s->caches)
        return;
    single(t, "prompt_cache_bytes", "gauge", "Memory of the prompt cache that no request uses.",
           (double)c->bytes);
    single(t, "prompt_cache_max_bytes", "gauge", "Its limit (--prompt-cache).",
           (double)c->bytes_max);
    single(t, "prompt_cache_tokens", "gauge", "Tokens in the prompt cache.", (double)c->tokens);
    single(t, "prompt_cache_kept_tokens_total", "counter", "Tokens put into the prompt cache.",
           (double)c->kept_tokens);
    single(t, "prompt_cache_evicted_tokens_total", "counter",
           "Tokens dropped from the prompt cache.", (double)c->evicted_tokens);
    if (!c->disk.on)
        return;
    single(t, "disk_cache_bytes", "gauge", "Bytes of the prompt cache on disk, all models.",
           (double)c->disk.bytes);
    single(t, "disk_cache_max_bytes", "gauge", "Its limit (--ssd-cache-max); 0 = none.",
           (double)c->disk.bytes_max);
    single(t, "disk_cache_queued_bytes", "gauge", "Bytes waiting to be written.",
           (double)c->disk.queued_bytes);
    single(t, "disk_cache_written_bytes_total", "counter", "Bytes written to disk.",
           (double)c->disk.written_bytes);
    single(t, "disk_cache_failed_writes_total", "counter", "Records that could not be written.",
           (double)c->disk.failed);
    single(t, "disk_cache_damaged_records_total", "counter",
           "Records that failed a check and were removed.", (double)c->disk.damaged);
    single(t, "disk_cache_restored_tokens_total", "counter", "Tokens read back from disk.",
           (double)c->disk.restored_tokens);
    single(t, "disk_cache_restored_draft_tokens_total", "counter",
           "Tokens of what guesses read back from disk.", (double)c->disk.restored_draft_tokens);
    single(t, "disk_cache_restore_seconds_total", "counter", "Time that took.",
           (double)c->disk.restore_us / 1e6);
    single(t, "disk_cache_demoted_tokens_total", "counter",
           "Tokens that left memory for being idle (--ssd-cache-idle).",
           (double)c->disk.demoted_tokens);
}

static void write_files(struct text *t, const struct sched_stats *s)
{
    if (!s->files)
        return;
    single(t, "conversation_saves_total", "counter", "Conversations saved to a file.",
           (double)s->saves.done);
    single(t, "conversation_failed_saves_total", "counter", "Saves that were refused or failed.",
           (double)s->saves.failed);
    single(t, "conversation_saved_tokens_total", "counter", "Tokens saved.",
           (double)s->saves.tokens);
    single(t, "conversation_saved_draft_tokens_total", "counter", "Tokens of what guesses saved.",
           (double)s->saves.draft_tokens);
    single(t, "conversation_saved_bytes_total", "counter", "Bytes of the files.",
           (double)s->saves.bytes);
    single(t, "conversation_restores_total", "counter", "Conversations put back from a file.",
           (double)s->restores.done);
    single(t, "conversation_failed_restores_total", "counter",
           "Restores that were refused or failed.", (double)s->restores.failed);
    single(t, "conversation_restored_tokens_total", "counter", "Tokens put back.",
           (double)s->restores.tokens);
    single(t, "conversation_restored_draft_tokens_total", "counter",
           "Tokens of what guesses put back.", (double)s->restores.draft_tokens);
    single(t, "conversation_restored_bytes_total", "counter", "Bytes of the files put back.",
           (double)s->restores.bytes);
}

/* The names that vLLM gives them. */
static void write_spec(struct text *t, const struct sched_stats *s)
{
    const struct spec_counts *c = &s->spec;
    if (!s->spec_kind)
        return;
    single(t, "spec_decode_num_drafts_total", "counter", "Windows of guesses verified.",
           (double)c->rounds);
    single(t, "spec_decode_num_draft_tokens_total", "counter", "Tokens guessed.",
           (double)c->drafted);
    single(t, "spec_decode_num_accepted_tokens_total", "counter", "Guesses that held.",
           (double)c->accepted);
    head(t, "spec_decode_num_accepted_tokens_per_pos_total", "counter",
         "Guesses that held, by place in the window.");
    for (int j = 0; j < SPEC_DRAFT_MAX; j++)
        buf_addf(t->out,
                 "quern_spec_decode_num_accepted_tokens_per_pos_total{model_name=\"%s\","
                 "position=\"%d\"} %lld\n",
                 t->model, j, (long long)c->accepted_at[j]);
}

int64_t metrics_resident_bytes(void)
{
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    int got = fscanf(f, "%ld %ld", &pages, &resident);
    fclose(f);
    return got == 2 ? resident * sysconf(_SC_PAGESIZE) : 0;
}

/* The name and meaning that every Prometheus client library uses. */
static void write_process(struct text *t, int64_t resident)
{
    if (resident > 0)
        buf_addf(t->out,
                 "# HELP process_resident_memory_bytes Resident memory size in bytes.\n"
                 "# TYPE process_resident_memory_bytes gauge\n"
                 "process_resident_memory_bytes %lld\n",
                 (long long)resident);
}

void metrics_write(const struct metrics *m, const struct metrics_view *v, struct buf *out)
{
    struct text t = {.out = out};
    escape_label(v->model ? v->model : "", t.model, sizeof t.model);
    head(&t, "build_info", "gauge", "The program's version, always 1.");
    buf_addf(out, "quern_build_info{version=\"%s\"} 1\n", QUERN_VERSION);
    single(&t, "model_ready", "gauge", "1 when requests are served, 0 while the model loads.",
           v->st != NULL);
    single(&t, "http_connections", "gauge", "Open connections.", v->connections);
    single(&t, "http_generations_in_flight", "gauge", "Requests that generate, queued ones too.",
           v->in_flight);
    write_requests(&t, m, v);
    write_process(&t, v->resident_bytes);
    if (!v->st)
        return;
    write_sched(&t, v->st);
    write_cache(&t, v->st);
    write_files(&t, v->st);
    write_spec(&t, v->st);
    single(&t, "prompt_tokens_total", "counter", "Prompt tokens of finished requests.",
           (double)read_one(&m->prompt_tokens));
    single(&t, "prefix_cache_queries_total", "counter",
           "Prompt tokens looked up in the prefix cache.", (double)read_one(&m->prompt_tokens));
    single(&t, "prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.",
           (double)read_one(&m->cached_tokens));
    write_finished(&t, m, v->st);
    for (int h = 0; h < METRIC_HISTS; h++)
        write_hist(&t, &hists[h], &m->hist[h]);
}
