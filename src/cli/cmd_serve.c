/*
 * cmd_serve.c - `quern serve`: a model behind the OpenAI routes until a signal ends it.
 *
 * Standard output gets the address and two snippets to paste; the log goes to standard error. The
 * first SIGINT or SIGTERM lets running answers finish, the second one ends them. Main thread.
 */
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "api/outparse.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/sysmem.h"
#include "cli/draft_opts.h"
#include "cli/memory_plan.h"
#include "cli/model_arg.h"
#include "cli/served.h"
#include "cli/verbs.h"
#include "sched/gen_defaults.h"
#include "sched/gram_store.h"
#include "server/server.h"

#define KEYS_MAX       64
#define FDS_WANTED     65536
#define KEY_FILE_BYTES ((size_t)64 << 10)
#define CACHE_BYTES    ((int64_t)1 << 30)  /* when the system does not say how much there is */
#define DISK_BYTES     ((int64_t)16 << 30) /* of --ssd-cache */
#define FLUSH_MS       60000               /* a stop waits so long for the disk */
#define FEW_TOKENS     256                 /* a server that cannot hold so many is of no use */

struct serve_opts {
    const char *model, *host, *api_key_file, *config;
    const char *kv_quant;
    int64_t port, ctx, threads, batch, chunk, max_queue, max_connections, max_body, idle, drain;
    int64_t memory, kv_budget, prompt_cache, disk_max, disk_idle;
    const char *disk, *files;
    struct cli_strs aliases, cors, api_keys;
    bool insecure, isolate, no_access_log;
    int log_format;
    const char *tool_parser;
    int thinking, reasoning_field;
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
    struct draft_opts draft;
};

static const char *const log_formats[] = {"text", "json", NULL};
static const char *const thinkings[] = {"auto", "off", "on", NULL}; /* as enum api_thinking */
static const char *const reasoning_fields[] = {"reasoning", "reasoning_content", NULL};

static const struct cli_opt serve_opts[] = {
    {.name = "config",
     .type = CLI_STR,
     .arg = "FILE",
     .env = "QUERN_CONFIG",
     .is_config = true,
     .help = "File of options, one NAME = VALUE on a line, for those that neither a flag nor the "
             "environment sets.",
     .off = CLI_AT_STR(struct serve_opts, config)},
    {.type = CLI_GROUP, .help = "Model"},
    CLI_OPT_MODEL(struct serve_opts),
    {.name = "alias",
     .type = CLI_STRS,
     .arg = "NAME",
     .help = "Another name that requests may use for the model.",
     .off = CLI_AT_STRS(struct serve_opts, aliases)},
    CLI_OPT_CTX(struct serve_opts),
    CLI_OPT_KV_QUANT(struct serve_opts),
    CLI_OPT_THREADS(struct serve_opts),
    CLI_OPT_BATCH(struct serve_opts,
                  "Most answers made together; 1 makes them one after the other."),
    {.name = "prefill-chunk",
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = 4096,
     .def_text = "as many as keep running answers flowing",
     .help = "Prompt tokens read between two tokens of running answers. More make prompts faster "
             "and running answers stall longer.",
     .off = CLI_AT_INT(struct serve_opts, chunk)},
    CLI_OPT_MEMORY(struct serve_opts, "memory-budget",
                   "Memory for everything: weights, keys and values, work memory. Requests wait "
                   "until theirs is free; one that could never fit is refused with 400."),
    {.name = "kv-budget",
     .type = CLI_SIZE,
     .arg = "SIZE",
     .min = 1 << 16,
     .max = 1e15,
     .def_text = "what the memory budget leaves beside the weights",
     .help = "Memory for keys and values of all requests together.",
     .off = CLI_AT_SIZE(struct serve_opts, kv_budget)},
    {.name = "prompt-cache",
     .type = CLI_SIZE,
     .arg = "SIZE",
     .min = 0,
     .max = 1e15,
     .def_text = "a quarter of the machine's memory, or of the control group's",
     .help = "Memory for prompts and answers of earlier requests, so that a request which begins "
             "alike does not compute that again; 0 = off. Given up before a request waits for "
             "memory.",
     .off = CLI_AT_SIZE(struct serve_opts, prompt_cache)},
    {.name = "ssd-cache",
     .type = CLI_STR,
     .arg = "DIR",
     .help = "Keeps the prompt cache in this folder too, so that it outlives the server and what "
             "memory gives up; see `quern cache`.",
     .off = CLI_AT_STR(struct serve_opts, disk)},
    {.name = "ssd-cache-max",
     .type = CLI_SIZE,
     .arg = "SIZE",
     .min = 0,
     .max = 1e15,
     .def_text = "16G",
     .help = "Most that --ssd-cache may take on disk, what is there included; 0 = no bound.",
     .off = CLI_AT_SIZE(struct serve_opts, disk_max)},
    {.name = "ssd-cache-idle",
     .type = CLI_INT,
     .arg = "SECONDS",
     .min = 0,
     .max = 8e6,
     .def = "0",
     .help =
         "With --ssd-cache: prompts that nobody used for so long leave memory and are read back "
         "when they are asked for; 0 = they stay while there is room.",
     .off = CLI_AT_INT(struct serve_opts, disk_idle)},
    {.name = "conversations",
     .type = CLI_STR,
     .arg = "DIR",
     .env = "QUERN_CONVERSATIONS",
     .help = "Folder for conversations that are saved by name: POST /admin/conversations/NAME "
             "writes what the prompt cache has of one to a file, .../NAME/restore puts it back.",
     .off = CLI_AT_STR(struct serve_opts, files)},
    {.name = "max-queue",
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = 100000,
     .def = "64",
     .help = "Most requests that wait; more are refused with 429.",
     .off = CLI_AT_INT(struct serve_opts, max_queue)},
    {.name = "isolate",
     .type = CLI_FLAG,
     .help = "Keep the model in a process of its own. When that dies its requests get 502, and it "
             "is started again while the server goes on.",
     .off = CLI_AT_FLAG(struct serve_opts, isolate)},
    CLI_OPTS_DRAFT(struct serve_opts),
    {.type = CLI_GROUP, .help = "Network"},
    {.name = "host",
     .type = CLI_STR,
     .arg = "ADDR",
     .env = "QUERN_HOST",
     .def = "127.0.0.1",
     .help = "Address to listen on. Beyond this machine an API key is needed.",
     .off = CLI_AT_STR(struct serve_opts, host)},
    {.name = "port",
     .type = CLI_INT,
     .arg = "N",
     .min = 0,
     .max = 65535,
     .env = "QUERN_PORT",
     .def = "8080",
     .help = "Port to listen on; 0 takes any free one.",
     .off = CLI_AT_INT(struct serve_opts, port)},
    {.name = "api-key-file",
     .type = CLI_STR,
     .arg = "FILE",
     .help = "File with the accepted API keys, one per line; # begins a comment.",
     .off = CLI_AT_STR(struct serve_opts, api_key_file)},
    {.name = "api-key",
     .type = CLI_STRS,
     .arg = "KEY",
     .env = "QUERN_API_KEY",
     .help = "An accepted API key. Other users of this machine can see it on the "
             "command line: prefer the environment variable or a file.",
     .off = CLI_AT_STRS(struct serve_opts, api_keys)},
    {.name = "insecure",
     .type = CLI_FLAG,
     .help = "Listen beyond this machine without an API key.",
     .off = CLI_AT_FLAG(struct serve_opts, insecure)},
    {.name = "cors",
     .type = CLI_STRS,
     .arg = "ORIGIN",
     .def_text = "pages on this machine; any page when an API key is needed",
     .help = "Origin of web pages that may use the server, or * for all.",
     .off = CLI_AT_STRS(struct serve_opts, cors)},
    {.name = "max-connections",
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = 10000,
     .def = "512",
     .help = "Most connections at a time.",
     .off = CLI_AT_INT(struct serve_opts, max_connections)},
    {.name = "max-body",
     .type = CLI_SIZE,
     .arg = "SIZE",
     .min = 1024,
     .max = 1024.0 * 1024 * 1024,
     .def = "32MiB",
     .help = "Largest request body; larger ones are refused with 413.",
     .off = CLI_AT_SIZE(struct serve_opts, max_body)},
    {.name = "idle-timeout",
     .type = CLI_INT,
     .arg = "S",
     .min = 1,
     .max = 86400,
     .def = "60",
     .help = "Seconds of silence before a connection is closed.",
     .off = CLI_AT_INT(struct serve_opts, idle)},
    {.name = "drain-timeout",
     .type = CLI_INT,
     .arg = "S",
     .min = 0,
     .max = 86400,
     .def = "30",
     .help = "Seconds that running answers get to finish after SIGTERM.",
     .off = CLI_AT_INT(struct serve_opts, drain)},
    {.type = CLI_GROUP, .help = "Sampling where a request says nothing"},
    {.name = "temperature",
     .type = CLI_REAL,
     .arg = "T",
     .min = 0,
     .max = 2,
     .def_text = "the model's own, else 0.7",
     .help = "0 always takes the likeliest token.",
     .off = CLI_AT_REAL(struct serve_opts, temperature)},
    {.name = "top-p",
     .type = CLI_REAL,
     .arg = "P",
     .min = 0.0001,
     .max = 1,
     .def_text = "the model's own, else 1 (off)",
     .help = "Draw from the likeliest tokens that hold this much of the probability.",
     .off = CLI_AT_REAL(struct serve_opts, top_p)},
    {.name = "top-k",
     .type = CLI_INT,
     .arg = "K",
     .min = 0,
     .max = 1000000,
     .def_text = "the model's own, else 0 (off)",
     .help = "Draw from the K likeliest tokens.",
     .off = CLI_AT_INT(struct serve_opts, top_k)},
    {.name = "min-p",
     .type = CLI_REAL,
     .arg = "P",
     .min = 0,
     .max = 1,
     .def_text = "the model's own, else 0 (off)",
     .help = "Leave out tokens less likely than P times the likeliest one.",
     .off = CLI_AT_REAL(struct serve_opts, min_p)},
    {.name = "repetition-penalty",
     .type = CLI_REAL,
     .arg = "X",
     .min = 0.01,
     .max = 100,
     .def_text = "the model's own, else 1 (off)",
     .help = "Above 1: tokens already seen become less likely.",
     .off = CLI_AT_REAL(struct serve_opts, repetition_penalty)},
    {.type = CLI_GROUP, .help = "Reasoning and tools"},
    {.name = "thinking",
     .type = CLI_ENUM,
     .arg = "MODE",
     .choices = thinkings,
     .def = "auto",
     .help = "Whether the model thinks first where a request does not say; auto leaves it to the "
             "chat template.",
     .off = CLI_AT_ENUM(struct serve_opts, thinking)},
    {.name = "reasoning-field",
     .type = CLI_ENUM,
     .arg = "NAME",
     .choices = reasoning_fields,
     .def = "reasoning",
     .help = "Where chat answers carry the reasoning.",
     .off = CLI_AT_ENUM(struct serve_opts, reasoning_field)},
    {.name = "tool-parser",
     .type = CLI_STR,
     .arg = "NAME",
     .def_text = "by the chat template",
     .help = "How the model writes tool calls; docs/tools.md lists the names.",
     .off = CLI_AT_STR(struct serve_opts, tool_parser)},
    {.type = CLI_GROUP, .help = "Log"},
    {.name = "log-format",
     .type = CLI_ENUM,
     .arg = "FORMAT",
     .choices = log_formats,
     .def = "text",
     .help = "Lines of text, or one JSON object per line.",
     .off = CLI_AT_ENUM(struct serve_opts, log_format)},
    {.name = "no-access-log",
     .type = CLI_FLAG,
     .help = "No line per request. The lines never hold what was said.",
     .off = CLI_AT_FLAG(struct serve_opts, no_access_log)},
    {.type = CLI_END},
};

/* ---- API keys -------------------------------------------------------------------------------- */

struct keys {
    struct buf file; /* the lines point into it */
    const char *v[KEYS_MAX + 2];
    int n;
};

static enum qn_status add_key(struct keys *k, const char *key, struct qn_err *err)
{
    if (k->n == KEYS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "serve", "more than %d API keys", KEYS_MAX);
    k->v[k->n++] = key;
    return QN_OK;
}

static enum qn_status read_keys(const struct serve_opts *o, struct keys *k, struct qn_err *err)
{
    for (int i = 0; i < o->api_keys.n; i++)
        if (o->api_keys.v[i][0])
            QN_TRY(add_key(k, o->api_keys.v[i], err));
    if (!o->api_key_file)
        return QN_OK;
    QN_TRY(file_read(o->api_key_file, KEY_FILE_BYTES, &k->file, err));
    int before = k->n;
    char *rest = (char *)buf_z(&k->file), *line;
    while ((line = strsep(&rest, "\n")) != NULL) {
        line += strspn(line, " \t\r");
        line[strcspn(line, " \t\r#")] = 0;
        if (*line)
            QN_TRY(add_key(k, line, err));
    }
    if (k->n == before)
        QN_FAIL(err, QN_BAD_INPUT, "serve", "--api-key-file %s holds no key", o->api_key_file);
    return QN_OK;
}

/* ---- the model ------------------------------------------------------------------------------- */

struct served {
    struct served_engine engine, draft;
    struct sched *sched;
    int64_t cache_bytes; /* most that the prompt cache may take; 0 = none */
    const char *disk;    /* where it is kept too; NULL = nowhere */
    struct api_model model;
    struct out_syntax syntax;
    const char *aliases[CLI_LIST_MAX + 1];
};

static void real_over(const struct cli *c, const char *name, double v, float *io)
{
    if (cli_given(c, name))
        *io = (float)v;
}

/* request > flag > generation_config.json > 0.7 */
static enum qn_status sampling(const struct cli *c, const struct serve_opts *o, const char *dir,
                               struct sample_params *p, struct qn_err *err)
{
    *p = sample_params_default();
    QN_TRY(gen_defaults_load(dir, p, err));
    real_over(c, "temperature", o->temperature, &p->temperature);
    real_over(c, "top-p", o->top_p, &p->top_p);
    real_over(c, "min-p", o->min_p, &p->min_p);
    real_over(c, "repetition-penalty", o->repetition_penalty, &p->repetition_penalty);
    if (cli_given(c, "top-k"))
        p->top_k = (int32_t)o->top_k;
    return QN_OK;
}

/* What sequences may take together. */
static enum qn_status plan_memory(const struct serve_opts *o, const struct served *s,
                                  struct sched_params *sp, struct qn_err *err)
{
    const struct served_engine *e = &s->engine, *d = &s->draft;
    const struct qn_model_info *info = e->info;
    const struct lm_ops *lm = e->lm.ops;
    int64_t limit = sysmem_limit();
    int64_t budget = o->memory ? o->memory : limit / 10 * 8;
    int32_t rows = sp->n_lane + (sp->spec.kind == SPEC_OFF ? 0 : SPEC_STEP_ROWS);
    struct memory_plan plan = memory_plan_of(info, lm->step_bytes(e->lm.self, rows), rows);
    int64_t fixed = memory_fixed(&plan);
    if (d->info)
        fixed += d->info->weight_bytes + d->lm.ops->step_bytes(d->lm.self, SPEC_ROWS);
    int64_t least = lm->seq_bytes(e->lm.self, FEW_TOKENS < info->n_ctx ? FEW_TOKENS : info->n_ctx);
    if (budget == 0 && !o->kv_budget) /* the system does not say how much there is */
        return QN_OK;
    if (o->memory && o->kv_budget > budget - fixed)
        QN_FAIL(err, QN_BAD_INPUT, "serve",
                "--kv-budget of %lld MiB and %lld MiB for weights and work are more than "
                "--memory-budget, %lld MiB",
                (long long)(o->kv_budget >> 20), (long long)(fixed >> 20),
                (long long)(budget >> 20));
    sp->kv_budget = o->kv_budget ? o->kv_budget : budget - fixed;
    if (sp->kv_budget >= least)
        return QN_OK;
    QN_FAIL(err, QN_NO_MEMORY, "serve",
            "of %lld MiB of memory the weights and work memory of %s take %lld, which leaves less "
            "than the %lld KiB that keys and values of %d tokens need: raise %s, or use a smaller "
            "model",
            (long long)(budget >> 20), info->name, (long long)(fixed >> 20),
            (long long)(least >> 10), FEW_TOKENS, o->kv_budget ? "--kv-budget" : "--memory-budget");
}

/* What the prompt cache may take beside all requests. */
static int64_t cache_bytes(const struct cli *c, const struct serve_opts *o)
{
    int64_t limit = sysmem_limit();
    if (cli_given(c, "prompt-cache"))
        return o->prompt_cache;
    return limit ? limit / 4 : CACHE_BYTES;
}

static enum qn_status open_model(const struct cli *c, const struct serve_opts *o, const char *dir,
                                 struct served *s, struct qn_err *err)
{
    struct api_model *m = &s->model;
    int64_t disk_bytes = cli_given(c, "ssd-cache-max") ? o->disk_max : DISK_BYTES;
    int64_t draft_disk = draft_opts_disk(&o->draft, disk_bytes);
    QN_TRY(sampling(c, o, dir, &m->defaults, err));
    const struct served_params ep = {
        .dir = dir,
        .threads = o->threads,
        .ctx = o->ctx,
        .kv_quant = o->kv_quant,
        .isolate = o->isolate,
        .cache_bytes = cache_bytes(c, o),
        .mtp = draft_opts_mtp(&o->draft),
        .disk_dir = o->disk,
        .disk_bytes = disk_bytes - draft_disk,
        .disk_idle_s = o->disk_idle,
        .files_dir = o->files,
        .draft_kind = draft_opts_kind(&o->draft),
        .draft_model = draft_opts_model(&o->draft),
    };
    if (o->disk && !ep.cache_bytes)
        QN_FAIL(err, QN_BAD_INPUT, "serve",
                "--ssd-cache needs a prompt cache in memory; --prompt-cache is 0");
    if (o->files && !ep.cache_bytes)
        QN_FAIL(err, QN_BAD_INPUT, "serve",
                "--conversations needs a prompt cache in memory; --prompt-cache is 0");
    s->disk = o->disk;
    QN_TRY(served_open(&ep, &s->engine, err));
    const struct qn_model_info *info = s->engine.info;
    struct lm lm = s->engine.lm;
    struct sched_params sp = {.n_lane = (int32_t)o->batch,
                              .queue_max = (int32_t)o->max_queue,
                              .chunk = (int32_t)o->chunk};
    if (sp.n_lane > lm.max_rows)
        sp.n_lane = lm.max_rows;
    const struct draft_target dt = {.lm = &lm,
                                    .tok = s->engine.tok,
                                    .threads = o->threads,
                                    .cache_bytes = ep.cache_bytes,
                                    .disk_dir = o->disk,
                                    .disk_bytes = draft_disk,
                                    .disk_idle_s = o->disk_idle,
                                    .files_dir = o->files,
                                    .isolate = o->isolate};
    QN_TRY(draft_opts_open(&o->draft, &dt, &s->draft, &sp.spec, err));
    QN_TRY(plan_memory(o, s, &sp, err));
    s->cache_bytes = sp.kv_budget && ep.cache_bytes > sp.kv_budget ? sp.kv_budget : ep.cache_bytes;
    for (int i = 0; i < o->aliases.n; i++)
        s->aliases[i] = o->aliases.v[i];
    m->name = info->name;
    m->aliases = s->aliases;
    m->tok = s->engine.tok;
    m->chat = s->engine.chat;
    m->n_ctx = info->n_ctx;
    m->n_vocab = info->n_vocab;
    m->info = info;
    m->conversations = o->files;
    m->kv_fingerprint = lm.fingerprint;
    m->up = s->engine.up;
    m->up_arg = s->engine.up_arg;
    m->created = clock_unix();
    m->thinking = (enum api_thinking)o->thinking;
    m->reasoning_field = reasoning_fields[o->reasoning_field];
    m->syntax = &s->syntax;
    m->grams = gram_store_create(m->tok, m->n_vocab);
    if (!m->grams)
        QN_FAIL(err, QN_NO_MEMORY, "serve", "no memory for the server");
    api_model_fingerprint(m);
    struct str source = m->chat ? chat_tmpl_source(m->chat) : STR_LIT("");
    QN_TRY(out_syntax_detect(&s->syntax, source, m->tok, o->tool_parser, err));
    return sched_create(&lm, m->tok, &sp, &s->sched, err);
}

static void close_model(struct served *s)
{
    if (s->sched)
        sched_free(s->sched);
    gram_store_free(s->model.grams);
    served_close(&s->draft);
    served_close(&s->engine);
}

/* ---- what is printed ------------------------------------------------------------------------- */

static void cache_line(const struct served *s, struct buf *out)
{
    buf_addz(out, "Prompt cache: ");
    if (s->cache_bytes) {
        buf_addz(out, "up to ");
        cli_size_text(out, s->cache_bytes);
        buf_addz(out, " of memory that no request needs (--prompt-cache)");
        if (s->disk)
            buf_addf(out, "; kept in %s", s->disk);
        buf_addz(out, "\n\n");
    } else {
        buf_addz(out, "off\n\n");
    }
}

/* Both snippets work when pasted: nothing is indented that Python would mind. Greedy and short, so
 * that the first answer from a small model is a sensible one. */
static void welcome(const struct served *s, const char *url, bool keyed, struct buf *out)
{
    const struct qn_model_info *info = s->engine.info;
    buf_addf(out, "Serving %s (%s, %.1f M parameters, context %d tokens, %d threads) at %s\n",
             info->name, info->family, (double)info->n_param / 1e6, info->n_ctx, info->n_thread,
             url);
    cache_line(s, out);
    buf_addf(out,
             "curl %s/v1/chat/completions -H 'Content-Type: application/json' %s"
             "-d '{\"messages\": [{\"role\": \"user\", \"content\": \"Say hello.\"}], "
             "\"temperature\": 0, \"max_tokens\": 100}'\n\n",
             url, keyed ? "-H \"Authorization: Bearer $QUERN_API_KEY\" " : "");
    buf_addf(out,
             "%sfrom openai import OpenAI\n"
             "client = OpenAI(base_url=\"%s/v1\", api_key=%s)\n"
             "answer = client.chat.completions.create(model=\"%s\", messages=[{\"role\": \"user\", "
             "\"content\": \"Say hello.\"}], temperature=0, max_tokens=100)\n"
             "print(answer.choices[0].message.content)\n\n",
             keyed ? "import os\n" : "", url, keyed ? "os.environ[\"QUERN_API_KEY\"]" : "\"none\"",
             info->name);
    buf_addz(out, "Ctrl-C stops it after the running answers; a second one at once.\n");
}

/* ---- signals --------------------------------------------------------------------------------- */

static sem_t signalled; /* posted once per SIGINT or SIGTERM */

static void on_signal(int sig)
{
    (void)sig;
    int saved = errno;
    sem_post(&signalled);
    errno = saved;
}

static void catch_signals(void)
{
    struct sigaction sa = {.sa_handler = on_signal};
    sem_init(&signalled, 0, 0);
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

/* True when a signal came within that time; -1 = waits for one. */
static bool wait_signal(int64_t us)
{
    struct timespec t = clock_in(us);
    int rc;
    do
        rc = us < 0 ? sem_wait(&signalled) : sem_clockwait(&signalled, CLOCK_MONOTONIC, &t);
    while (rc != 0 && errno == EINTR);
    return rc == 0;
}

/* Every connection is a descriptor; the usual soft limit of 1024 is below what may wait. */
static void raise_fd_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < FDS_WANTED) {
        r.rlim_cur = r.rlim_max < FDS_WANTED ? r.rlim_max : FDS_WANTED;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

static void serve_until_signal(struct server *srv, int64_t drain_s)
{
    wait_signal(-1);
    int64_t until = clock_us() + drain_s * 1000000;
    struct server_counts n;
    bool done = server_drain(srv, 0);
    server_counts(srv, &n);
    if (!done)
        log_line(LOG_INFO, "serve", "draining: %d answers are running; a second signal ends them",
                 n.in_flight);
    while (!done && clock_us() < until) {
        if (wait_signal(50000))
            break;
        done = server_drain(srv, 0);
    }
}

/* HTTP answers from here on, while the model loads. cors: room for the list, as long-lived as the
 * server. */
static enum qn_status start_server(const struct serve_opts *o, const struct keys *k,
                                   const char **cors, struct server **out, struct qn_err *err)
{
    for (int i = 0; i < o->cors.n; i++)
        cors[i] = o->cors.v[i];
    struct server_params p = {
        .host = o->host,
        .port = (int)o->port,
        .api_keys = k->v,
        .cors = o->cors.n ? cors : NULL,
        .insecure = o->insecure,
        .access_log = !o->no_access_log,
        .max_connections = (int)o->max_connections,
        .max_body = (size_t)o->max_body,
        .idle_timeout_s = (int)o->idle,
    };
    signal(SIGPIPE, SIG_IGN);
    raise_fd_limit();
    return server_start(&p, out, err);
}

/* What memory holds goes to the disk before the program ends. */
static void flush_disk(struct served *s)
{
    struct qn_cache_flush f;
    if (!sched_cache_flush(s->sched, FLUSH_MS, &f))
        log_line(LOG_WARN, "serve", "%s: not everything could be written within %d s", s->disk,
                 FLUSH_MS / 1000);
    else if (f.durable_tokens < f.tokens)
        log_line(LOG_WARN, "serve", "%s: %lld of %lld tokens are kept: %s", s->disk,
                 (long long)f.durable_tokens, (long long)f.tokens, f.error);
}

/* A signal while the model loads ends the program at once, afterwards it drains. */
static void serve(const struct cli *c, const struct serve_opts *o, struct served *s,
                  struct server *srv, bool keyed)
{
    struct buf text = BUF_INIT;
    catch_signals();
    server_ready(srv, &s->model, s->sched);
    welcome(s, server_url(srv), keyed, &text);
    cli_write(c, buf_str(&text)); /* a closed standard output does not stop a server */
    buf_free(&text);
    serve_until_signal(srv, o->drain);
    if (s->disk)
        flush_disk(s);
}

/* The refusals that need no model come before it is loaded: a port in use, a missing key. */
static enum qn_status run(const struct cli *c, const struct serve_opts *o, struct served *s,
                          struct keys *k, struct qn_err *err)
{
    struct buf dir = BUF_INIT;
    struct server *srv = NULL;
    const char *cors[CLI_LIST_MAX + 1] = {NULL};
    QN_TRY(read_keys(o, k, err));
    QN_TRY(server_may_listen(o->host, (int)o->port, k->n > 0 || o->insecure, err));
    enum qn_status st = model_arg_find(c->n_pos ? c->pos[0] : o->model, &dir, err);
    if (st == QN_OK)
        st = start_server(o, k, cors, &srv, err);
    if (st == QN_OK)
        st = open_model(c, o, buf_z(&dir), s, err);
    if (st == QN_OK)
        serve(c, o, s, srv, k->n > 0);
    server_free(srv);
    buf_free(&dir);
    return st;
}

static int run_serve(const struct cli *c, void *opts)
{
    struct serve_opts *o = opts;
    struct served s = {0};
    struct keys k = {0};
    struct qn_err err = {0};
    draft_opts_settle(c, &o->draft);
    if (c->n_pos && cli_flagged(c, "model"))
        return cli_usage(c, "the model is given twice: %s and --model %s", c->pos[0], o->model);
    log_setup(STDERR_FILENO, LOG_INFO, o->log_format == 1);
    enum qn_status st = run(c, o, &s, &k, &err);
    close_model(&s);
    buf_free(&k.file);
    return st == QN_OK ? CLI_OK : cli_fail(c, &err);
}

const struct cli_verb verb_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP with the OpenAI API",
    .usage = "[options] [MODEL]",
    .about =
        "Routes: POST /v1/chat/completions, POST /v1/completions, POST /v1/responses, POST "
        "/v1/messages, GET "
        "/v1/models, GET /health, GET "
        "/stats, GET /metrics, POST /tokenize, POST /detokenize, POST /apply-template, "
        "/admin/conversations. Any OpenAI "
        "client works "
        "with base_url set to the printed address followed by /v1.\n\nWhere a request names no "
        "sampling, the flags below decide, then the model's generation_config.json, then "
        "temperature 0.7.",
    .examples = "quern serve\n"
                "quern serve --port 9000 ~/models/qwen3-0.6b\n"
                "QUERN_API_KEY=secret quern serve --host 0.0.0.0\n",
    .opts = serve_opts,
    .opts_size = sizeof(struct serve_opts),
    .pos_min = 0,
    .pos_max = 1,
    .pos_name = "MODEL",
    .run = run_serve,
};
