/*
 * cmd_bench_serve.c - `quern bench serve`: servers measured over HTTP, side by side.
 * Options become a bench_params; src/bench does the rest.
 */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/file.h"
#include "bench/bench.h"
#include "cli/bench_opts.h"
#include "cli/cancel.h"
#include "cli/history_file.h"
#include "cli/model_arg.h"
#include "cli/progress.h"
#include "cli/verbs.h"

struct bench_serve_opts {
    const char *model, *gguf, *llama_server, *python, *seed, *label, *out, *workload, *reference;
    const char *print_arm;
    struct cli_strs recordings;
    struct cli_ints users;
    const char *rates;
    int64_t threads, ctx, rounds, tokens, runs, ttft_tokens, ttft_runs, context, concurrent;
    int64_t prompt_tokens, load_tokens, requests, budget, stall, ready;
    double limit_ttft, limit_tpot, limit_e2e;
    int preflight;
    const char *history;
    bool no_history, dry_run, diagnostic, ignore_eos, no_ramp, no_burst, no_reuse;
};

static const char *const preflights[] = {"refuse", "mark", NULL};

#define S struct bench_serve_opts
static const struct cli_opt bench_serve_opts[] = {
    {.type = CLI_GROUP, .help = "What is measured"},
    CLI_OPT_MODEL(S),
    {.name = "gguf",
     .type = CLI_STR,
     .arg = "FILE",
     .help = "The same weights for llama.cpp.",
     .off = CLI_AT_STR(S, gguf)},
    {.name = "workload",
     .short_name = 'w',
     .type = CLI_STR,
     .arg = "LIST",
     .def = "matrix",
     .help = "What the servers have to do, separated by commas: matrix, load, replay.",
     .off = CLI_AT_STR(S, workload)},
    {.name = "rounds",
     .short_name = 'r',
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = 100,
     .def = "2",
     .help = "How often everything is measured, all arms in turn.",
     .off = CLI_AT_INT(S, rounds)},
    CLI_OPT_THREADS(S),
    {.name = "ctx",
     .short_name = 'c',
     .type = CLI_INT,
     .arg = "N",
     .min = 256,
     .max = 16777216,
     .def = "8192",
     .help = "Tokens that a server must hold for each answer.",
     .off = CLI_AT_INT(S, ctx)},
    {.name = "seed",
     .type = CLI_STR,
     .arg = "TEXT",
     .def = BENCH_SEED,
     .help = "Every prompt follows from it; servers must not have seen the same one before.",
     .off = CLI_AT_STR(S, seed)},
    {.type = CLI_GROUP, .help = "Matrix"},
    CLI_OPT_BENCH_TOKENS(S),
    {.name = "runs",
     .type = CLI_INT,
     .arg = "N",
     .min = 0,
     .max = 100,
     .def = "5",
     .help = "Decode answers in a round.",
     .off = CLI_AT_INT(S, runs)},
    CLI_OPT_BENCH_TTFT(S),
    {.name = "ttft-runs",
     .type = CLI_INT,
     .arg = "N",
     .min = 0,
     .max = 100,
     .def = "3",
     .help = "New prompts in a round; the last one is asked once more.",
     .off = CLI_AT_INT(S, ttft_runs)},
    {.name = "context",
     .type = CLI_INT,
     .arg = "N",
     .min = 0,
     .max = 16777216,
     .def = "4096",
     .help = "About how long the long prompt is; 0 leaves it and the restart out.",
     .off = CLI_AT_INT(S, context)},
    {.name = "concurrent",
     .type = CLI_INT,
     .arg = "N",
     .min = 0,
     .max = 32,
     .def = "4",
     .help = "Answers at a time in the matrix.",
     .off = CLI_AT_INT(S, concurrent)},
    {.name = "reference",
     .type = CLI_STR,
     .arg = "FILE",
     .help = "Float32 answers to the parity prompts, from `quern bench native --reference`.",
     .off = CLI_AT_STR(S, reference)},
    {.type = CLI_GROUP, .help = "Load"},
    {.name = "users",
     .short_name = 'u',
     .type = CLI_INTS,
     .arg = "N,N...",
     .min = 1,
     .max = 32,
     .def = "1,2,4,8",
     .help = "Users of the closed loop: each asks again as soon as it is answered.",
     .off = CLI_AT_INTS(S, users)},
    {.name = "rates",
     .type = CLI_STR,
     .arg = "X,X...",
     .def = "0.5,1,2",
     .help = "Requests per second that arrive at random, whatever the server does; empty = none.",
     .off = CLI_AT_STR(S, rates)},
    {.name = "requests",
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = 1000,
     .def = "4",
     .help = "Requests of each user; a rate sends as many as the most users together.",
     .off = CLI_AT_INT(S, requests)},
    {.name = "prompt-tokens",
     .type = CLI_INT,
     .arg = "N",
     .min = 8,
     .max = 100000,
     .def = "256",
     .help = "About how long their prompts are.",
     .off = CLI_AT_INT(S, prompt_tokens)},
    {.name = "load-tokens",
     .type = CLI_INT,
     .arg = "N",
     .min = 2,
     .max = 100000,
     .def = "64",
     .help = "Tokens of their answers.",
     .off = CLI_AT_INT(S, load_tokens)},
    {.name = "limit-ttft",
     .type = CLI_REAL,
     .arg = "MS",
     .min = 0,
     .max = 1e9,
     .def = "2000",
     .help = "Goodput counts answers whose first token came within this; 0 = no limit.",
     .off = CLI_AT_REAL(S, limit_ttft)},
    {.name = "limit-tpot",
     .type = CLI_REAL,
     .arg = "MS",
     .min = 0,
     .max = 1e9,
     .def = "100",
     .help = "And whose time per token was within this.",
     .off = CLI_AT_REAL(S, limit_tpot)},
    {.name = "limit-e2e",
     .type = CLI_REAL,
     .arg = "MS",
     .min = 0,
     .max = 1e9,
     .def = "0",
     .help = "And which were complete within this.",
     .off = CLI_AT_REAL(S, limit_e2e)},
    {.name = "no-ramp", .type = CLI_FLAG, .help = "No ramp.", .off = CLI_AT_FLAG(S, no_ramp)},
    {.name = "no-burst", .type = CLI_FLAG, .help = "No burst.", .off = CLI_AT_FLAG(S, no_burst)},
    {.name = "no-reuse",
     .type = CLI_FLAG,
     .help = "No prompts with a shared beginning.",
     .off = CLI_AT_FLAG(S, no_reuse)},
    {.type = CLI_GROUP, .help = "Replay"},
    {.name = "recording",
     .type = CLI_STRS,
     .arg = "FILE",
     .help = "A recorded conversation instead of the two that are built in.",
     .off = CLI_AT_STRS(S, recordings)},
    {.type = CLI_GROUP, .help = "Servers"},
    {.name = "llama-server",
     .type = CLI_STR,
     .arg = "FILE",
     .def_text = "the one that tools/peers/build_llama_cpp.sh made, else from PATH",
     .help = "llama.cpp's server.",
     .off = CLI_AT_STR(S, llama_server)},
    {.name = "python",
     .type = CLI_STR,
     .arg = "FILE",
     .def = "python3",
     .help = "Python that has mlx-lm.",
     .off = CLI_AT_STR(S, python)},
    {.name = "budget",
     .type = CLI_INT,
     .arg = "S",
     .min = 1,
     .max = 86400,
     .def = "120",
     .help = "Seconds that a usual request may take.",
     .off = CLI_AT_INT(S, budget)},
    {.name = "stall",
     .type = CLI_INT,
     .arg = "S",
     .min = 1,
     .max = 86400,
     .def = "30",
     .help = "Seconds of silence inside an answer that make it a failure.",
     .off = CLI_AT_INT(S, stall)},
    {.name = "ready",
     .type = CLI_INT,
     .arg = "S",
     .min = 1,
     .max = 86400,
     .def = "120",
     .help = "Seconds that a server may take to start.",
     .off = CLI_AT_INT(S, ready)},
    {.name = "ignore-eos",
     .type = CLI_FLAG,
     .help = "Ask for answers of full length (servers that know ignore_eos).",
     .off = CLI_AT_FLAG(S, ignore_eos)},
    {.name = "print-arm",
     .type = CLI_STR,
     .arg = "NAME",
     .help = "Print the text of a built-in arm, to begin an own one with.",
     .off = CLI_AT_STR(S, print_arm)},
    {.type = CLI_GROUP, .help = "The run"},
    {.name = "out",
     .short_name = 'o',
     .type = CLI_STR,
     .arg = "PREFIX",
     .def_text = "bench-DATE-TIME",
     .help = "Writes PREFIX.json, PREFIX.md, PREFIX.html, and PREFIX.logs/ with what the servers "
             "printed.",
     .off = CLI_AT_STR(S, out)},
    {.name = "label",
     .type = CLI_STR,
     .arg = "TEXT",
     .help = "A title for the reports and the history.",
     .off = CLI_AT_STR(S, label)},
    {.name = "history",
     .type = CLI_STR,
     .arg = "FILE",
     .env = "QUERN_BENCH_HISTORY",
     .def_text = "bench.sqlite in the cache folder",
     .help = "The SQLite file that keeps the run's figures.",
     .off = CLI_AT_STR(S, history)},
    {.name = "no-history",
     .type = CLI_FLAG,
     .help = "Do not keep the run in the history.",
     .off = CLI_AT_FLAG(S, no_history)},
    {.name = "dry-run",
     .type = CLI_FLAG,
     .help = "Print what would be run and how long it may take.",
     .off = CLI_AT_FLAG(S, dry_run)},
    {.name = "preflight",
     .type = CLI_ENUM,
     .arg = "MODE",
     .choices = preflights,
     .def = "refuse",
     .help =
         "When the machine is busy, short of memory or throttled: do not begin, or mark the run.",
     .off = CLI_AT_ENUM(S, preflight)},
    {.name = "diagnostic",
     .type = CLI_FLAG,
     .help = "A trial: begins whatever the machine does, is marked, and never enters comparisons.",
     .off = CLI_AT_FLAG(S, diagnostic)},
    {.type = CLI_END},
};
#undef S

/* What the command line needs to keep alive while the run lasts. */
struct setup {
    struct history *history; /* NULL: none yet, or it cannot be read */
    struct buf model, llama, out, command, self;
    struct bench_params p;
    struct progress line;
    const struct cli *cli;
    char what[160];
};

static void on_progress(void *arg, const char *what, double done)
{
    struct setup *s = arg;
    snprintf(s->what, sizeof s->what, "%s", what);
    s->line.what = s->what;
    progress_set(&s->line, done);
}

static void on_line(void *arg, const char *line)
{
    struct setup *s = arg;
    cli_say(s->cli, "%s", line);
}

/* An arm of ours that was never measured is about as fast as plain quern. */
static bool on_speed(void *arg, const char *arm, double *decode, double *prefill)
{
    struct setup *s = arg;
    struct history_speed v;
    struct str model = path_base(buf_z(&s->model));
    bool known = s->history && history_rates(s->history, model.p, arm, &v);
    if (!known && s->history && strncmp(arm, "quern-", 6) == 0)
        known = history_rates(s->history, model.p, "quern", &v);
    if (!known)
        return false;
    *decode = v.decode;
    *prefill = v.prefill;
    return true;
}

/* llama-server: as given, or the newest that our build script made, or by PATH. */
static void find_llama(const struct bench_serve_opts *o, struct buf *out)
{
    struct buf dir = BUF_INIT, bin = BUF_INIT;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char **names = NULL;
    size_t n = 0;
    buf_addz(out, o->llama_server ? o->llama_server : "llama-server");
    if (o->llama_server)
        return;
    buf_addf(&dir, "%s%s/quern/peers",
             cache && *cache ? cache
             : home          ? home
                             : "",
             cache && *cache ? "" : "/.cache");
    if (dir_list(buf_z(&dir), &names, &n, NULL) == QN_OK)
        for (size_t i = 0; i < n; i++) {
            buf_clear(&bin);
            buf_addf(&bin, "%s/%s/bin/llama-server", buf_z(&dir), names[i]);
            if (file_exists(buf_z(&bin))) {
                buf_clear(out);
                buf_add_str(out, buf_str(&bin));
            }
        }
    names_free(names, n);
    buf_free(&dir);
    buf_free(&bin);
}

static enum qn_status read_rates(const char *text, struct bench_params *p, struct qn_err *err)
{
    for (const char *s = text; *s;) {
        char *end;
        double v = strtod(s, &end);
        if (end == s || !(v > 0 && v <= 1000) || (*end && *end != ','))
            QN_FAIL(err, QN_BAD_INPUT, "bench",
                    "--rates %.60s: expected numbers above 0 up to 1000, separated by commas",
                    text);
        if (p->n_rate == BENCH_POINTS_MAX)
            QN_FAIL(err, QN_BAD_INPUT, "bench", "--rates: more than %d", BENCH_POINTS_MAX);
        p->rates[p->n_rate++] = v;
        s = *end ? end + 1 : end;
    }
    return QN_OK;
}

static enum qn_status read_workloads(const char *text, struct bench_params *p, struct qn_err *err)
{
    for (const char *s = text; *s;) {
        struct str word = {s, strcspn(s, ",")};
        bool *flag = str_eqz(word, "matrix")   ? &p->with_matrix
                     : str_eqz(word, "load")   ? &p->with_load
                     : str_eqz(word, "replay") ? &p->with_replay
                                               : NULL;
        if (!flag)
            QN_FAIL(err, QN_BAD_INPUT, "bench",
                    "--workload " STR_FMT ": expected matrix, load or replay", STR_ARG(word));
        *flag = true;
        s += word.n + (s[word.n] == ',');
    }
    return QN_OK;
}

static void set_figures(const struct bench_serve_opts *o, struct workload_params *w)
{
    *w = (struct workload_params){
        .seed = o->seed,
        .decode_tokens = o->tokens,
        .decode_runs = (int)o->runs,
        .ttft_tokens = (int)o->ttft_tokens,
        .ttft_runs = (int)o->ttft_runs,
        .ctx_tokens = (int)o->context,
        .concurrent = (int)o->concurrent,
        .concurrent_tokens = 128,
        .budget_s = (double)o->budget,
        .stall_s = (double)o->stall,
        .ready_s = (double)o->ready,
        .ignore_eos = o->ignore_eos,
        .load_prompt_tokens = (int)o->prompt_tokens,
        .load_tokens = o->load_tokens,
        .load_requests = (int)o->requests,
        .slo_ttft_ms = o->limit_ttft,
        .slo_tpot_ms = o->limit_tpot,
        .slo_e2e_ms = o->limit_e2e,
    };
}

/* The command as one would type it again; folders are cut off, for a record may be published. */
static void command_text(const struct cli *c, const struct bench_serve_opts *o, struct buf *out)
{
    buf_addz(out, "quern bench serve");
    for (int i = 0; i < c->n_pos; i++)
        buf_addf(out, " %s", strstr(c->pos[i], "://") ? c->pos[i] : path_base(c->pos[i]).p);
    for (const struct cli_opt *r = c->verb->opts; r->type != CLI_END; r++) {
        const char *at = (const char *)o + r->off;
        if (r->type == CLI_GROUP || !cli_flagged(c, r->name))
            continue;
        buf_addf(out, " --%s", r->name);
        if (r->type == CLI_INT)
            buf_addf(out, " %lld", (long long)*(const int64_t *)at);
        else if (r->type == CLI_REAL)
            buf_addf(out, " %g", *(const double *)at);
        else if (r->type == CLI_STR) {
            struct str base = path_base(*(const char *const *)at);
            buf_addf(out, " " STR_FMT, STR_ARG(base));
        } else if (r->type == CLI_ENUM)
            buf_addf(out, " %s", r->choices[*(const int *)at]);
        else if (r->type == CLI_INTS)
            for (int i = 0; i < ((const struct cli_ints *)at)->n; i++)
                buf_addf(out, "%c%lld", i ? ',' : ' ',
                         (long long)((const struct cli_ints *)at)->v[i]);
    }
}

static void default_out(struct buf *out)
{
    char name[64];
    time_t now = time(NULL);
    struct tm t;
    localtime_r(&now, &t);
    strftime(name, sizeof name, "bench-%Y-%m-%d-%H%M%S", &t);
    buf_addz(out, name);
}

static enum qn_status set_up(const struct cli *c, const struct bench_serve_opts *o, struct setup *s,
                             struct qn_err *err)
{
    static const char *const just_quern[] = {"quern"};
    struct bench_params *p = &s->p;
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    buf_add(&s->self, self, n > 0 ? (size_t)n : 0);
    QN_TRY(model_arg_find(o->model, &s->model, err));
    QN_TRY(read_workloads(o->workload, p, err));
    QN_TRY(read_rates(o->rates, p, err));
    find_llama(o, &s->llama);
    if (o->out)
        buf_addz(&s->out, o->out);
    else
        default_out(&s->out);
    command_text(c, o, &s->command);
    set_figures(o, &p->w);
    if (o->users.n > BENCH_POINTS_MAX || o->recordings.n > BENCH_POINTS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "more than %d values of --users or --recording",
                BENCH_POINTS_MAX);
    int most = (int)o->concurrent > 1 ? (int)o->concurrent : 1;
    for (int i = 0; i < o->users.n; i++) {
        p->users[p->n_users++] = (int)o->users.v[i];
        if (p->with_load && o->users.v[i] > most)
            most = (int)o->users.v[i];
    }
    for (int i = 0; i < o->recordings.n; i++)
        p->recordings[p->n_recording++] = o->recordings.v[i];
    p->arms = c->n_pos ? c->pos : just_quern;
    p->n_arm = c->n_pos ? c->n_pos : 1;
    p->rounds = (int)o->rounds;
    p->values = (struct arm_values){.quern = buf_z(&s->self),
                                    .model = buf_z(&s->model),
                                    .gguf = o->gguf,
                                    .llama_server = buf_z(&s->llama),
                                    .python = o->python,
                                    .threads = o->threads ? (int)o->threads : cpu_count(),
                                    .ctx = (int)o->ctx,
                                    .users = most};
    p->ramp = !o->no_ramp;
    p->burst = !o->no_burst;
    p->reuse = !o->no_reuse;
    p->label = o->label;
    p->out = buf_z(&s->out);
    p->command_line = buf_z(&s->command);
    p->reference = o->reference;
    p->preflight = (enum preflight_mode)o->preflight;
    p->diagnostic = o->diagnostic;
    p->progress = on_progress;
    p->say = on_line;
    p->known_speed = on_speed;
    p->arg = s;
    return QN_OK;
}

static int print_plan(const struct cli *c, const struct bench_params *p)
{
    struct buf text = BUF_INIT;
    struct qn_err err = {0};
    int rc = CLI_OK;
    if (bench_plan(p, &text, &err) != QN_OK)
        rc = cli_fail(c, &err);
    else if (!cli_write(c, buf_str(&text)))
        rc = CLI_FAILED;
    buf_free(&text);
    return rc;
}

static int print_arm(const struct cli *c, const char *name)
{
    const char *text = arm_builtin_text(name);
    if (!text)
        return cli_usage(c, "--print-arm %.60s: there is no such arm", name);
    return cli_write(c, str_of(text)) ? CLI_OK : CLI_FAILED;
}

/* What was measured is in the files by now: a history that fails is said, and is no failure. */
static void keep(const struct cli *c, const struct bench_serve_opts *o, const struct setup *s,
                 struct buf *line)
{
    struct buf path = BUF_INIT, text = BUF_INIT;
    struct history *h = NULL;
    struct qn_err err = {0};
    int64_t id = 0;
    buf_addf(&path, "%s.json", s->p.out);
    enum qn_status st = file_read(buf_z(&path), (size_t)1 << 30, &text, &err);
    if (st == QN_OK)
        st = history_default(o->history, &h, &err);
    if (st == QN_OK)
        st = history_add(h, buf_str(&text), &id, &err);
    history_close(h);
    if (st == QN_OK)
        buf_addf(line, "kept as run %lld: quern bench history, quern bench compare\n",
                 (long long)id);
    else
        cli_say(c, "not kept in the history: %s", err.msg);
    buf_free(&path);
    buf_free(&text);
}

static int measure(const struct cli *c, const struct bench_serve_opts *o, struct setup *s)
{
    struct bench_outcome got;
    struct qn_err err = {0};
    s->p.cancel = cancel_on_signals();
    progress_start(&s->line, "Measuring", NULL, 1);
    enum qn_status st = bench_run(&s->p, &got, &err);
    progress_end(&s->line);
    if (st != QN_OK)
        return cli_fail(c, &err);
    struct buf line = BUF_INIT;
    buf_addf(&line, "%s%d cells, %d failures: %s.json, %s.md, %s.html\n",
             got.interrupted ? "interrupted; kept " : "", got.cells, got.failures, s->p.out,
             s->p.out, s->p.out);
    if (!o->no_history)
        keep(c, o, s, &line);
    bool ok = cli_write(c, buf_str(&line));
    buf_free(&line);
    if (got.interrupted)
        return CLI_INTERRUPTED;
    return ok && got.failures == 0 ? CLI_OK : CLI_FAILED;
}

static int run_bench_serve(const struct cli *c, void *opts)
{
    const struct bench_serve_opts *o = opts;
    struct setup s = {.cli = c};
    struct qn_err err = {0};
    if (o->print_arm)
        return print_arm(c, o->print_arm);
    int rc;
    if (set_up(c, o, &s, &err) != QN_OK)
        rc = cli_fail(c, &err);
    else {
        if (!o->no_history)
            history_default(o->history, &s.history, &err); /* for estimates only */
        rc = o->dry_run ? print_plan(c, &s.p) : measure(c, o, &s);
        history_close(s.history);
    }
    struct buf *const bufs[] = {&s.model, &s.llama, &s.out, &s.command, &s.self};
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++)
        buf_free(bufs[i]);
    return rc;
}

const struct cli_verb verb_bench_serve = {
    .name = "bench serve",
    .summary = "measure servers over HTTP, this one and others, side by side",
    .usage = "[options] [ARM...]",
    .about =
        "Starts each server, waits until it is ready, sends it streamed requests, and writes what "
        "came back and when. ARM is quern (the default), quern-serial, quern-kv, quern-spec, "
        "quern-isolated, quern-disk, llama.cpp, mlx-lm, all (what can run here), the URL of a "
        "server that runs already, or a text file that says how a server is started; NAME=ARM "
        "calls it otherwise, so that one arm can take part twice.\n\nWhat every figure means, "
        "the "
        "format of such files and of recordings: docs/bench-serve.md.",
    .examples =
        "quern bench serve\n"
        "quern bench serve quern llama.cpp --gguf SmolLM2-135M-Instruct.Q4_1.gguf --rounds 3\n"
        "quern bench serve all --workload matrix,load,replay --dry-run\n"
        "quern bench serve quern quern-again=quern   # what two runs of one thing differ by\n"
        "quern bench serve http://127.0.0.1:8080 --workload load --users 1,4,16",
    .opts = bench_serve_opts,
    .opts_size = sizeof(struct bench_serve_opts),
    .pos_max = -1,
    .pos_name = "ARM",
    .run = run_bench_serve,
};
