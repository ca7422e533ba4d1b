/*
 * cmd_bench.c - `quern bench`: speed of reading a prompt and of writing tokens, over quern.h.
 *
 * One engine per thread count stays open, and every round measures every configuration once, so
 * that a change of the machine's mood falls on all of them alike. The first round warms up and is
 * dropped. Tokenizing, sampling and text are not part of what is timed.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/rng.h"
#include "cli/bench_report.h"
#include "cli/bench_roof.h"
#include "cli/bench_spec.h"
#include "cli/model_arg.h"
#include "cli/progress.h"
#include "cli/term.h"
#include "cli/verbs.h"

#define TEST_TOKENS_MAX 1048576
#define WARM_DECODE     8 /* decoded tokens of the warm-up round */
#define IDS_SEED        20240601
enum { BATCH_MAX = 64 };

struct bench_opts {
    const char *model, *out, *isa;
    struct cli_ints prefill, decode, depth, threads, batch;
    int64_t repeat;
    const char *kv_quant, *draft_model, *tasks;
    bool speculation;
    int format, arith, draft_kind;
};

static const char *const formats[] = {"table", "json", "md", NULL};
/* As enum spec_kind. */
static const char *const measured_kinds[] = {"all",    "ngram",     "mtp", "two-model",
                                             "dspark", "assistant", NULL};
static const char *const ariths[] = {"canonical", "reference", NULL};

static const struct cli_opt bench_opts[] = {
    CLI_OPT_MODEL(struct bench_opts),
    {.name = "prefill",
     .short_name = 'p',
     .type = CLI_INTS,
     .arg = "N,N...",
     .min = 0,
     .max = TEST_TOKENS_MAX,
     .def = "128,512",
     .help = "Prompt lengths to read; 0 = no such test.",
     .off = CLI_AT_INTS(struct bench_opts, prefill)},
    {.name = "decode",
     .short_name = 'n',
     .type = CLI_INTS,
     .arg = "N,N...",
     .min = 0,
     .max = TEST_TOKENS_MAX,
     .def = "128",
     .help = "Numbers of tokens to write, one after another; 0 = no such test.",
     .off = CLI_AT_INTS(struct bench_opts, decode)},
    {.name = "depth",
     .short_name = 'd',
     .type = CLI_INTS,
     .arg = "N,N...",
     .min = 0,
     .max = TEST_TOKENS_MAX,
     .def = "0",
     .help = "Tokens that are in the sequence before a test begins.",
     .off = CLI_AT_INTS(struct bench_opts, depth)},
    {.name = "batch",
     .short_name = 'b',
     .type = CLI_INTS,
     .arg = "N,N...",
     .min = 1,
     .max = BATCH_MAX,
     .def = "1",
     .help = "Sequences that take every decode step together, as a server's do; tokens/s is all of "
             "theirs.",
     .off = CLI_AT_INTS(struct bench_opts, batch)},
    {.name = "threads",
     .short_name = 't',
     .type = CLI_INTS,
     .arg = "N,N...",
     .min = 1,
     .max = POOL_THREAD_MAX,
     .env = "QUERN_THREADS",
     .def_text = "one per available CPU",
     .help = "Thread counts to compare.",
     .off = CLI_AT_INTS(struct bench_opts, threads)},
    {.name = "repeat",
     .short_name = 'r',
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = BENCH_SAMPLE_MAX,
     .def = "5",
     .help = "Rounds that count; one more before them warms up.",
     .off = CLI_AT_INT(struct bench_opts, repeat)},
    {.name = "isa",
     .type = CLI_STR,
     .arg = "NAME",
     .def_text = "the best this machine has",
     .help = "Highest instruction set to use, e.g. avx2.",
     .off = CLI_AT_STR(struct bench_opts, isa)},
    CLI_OPT_KV_QUANT(struct bench_opts),
    {.name = "arith",
     .type = CLI_ENUM,
     .arg = "NAME",
     .choices = ariths,
     .def = "canonical",
     .help = "Arithmetic.",
     .off = CLI_AT_ENUM(struct bench_opts, arith)},
    {.name = "format",
     .short_name = 'f',
     .type = CLI_ENUM,
     .arg = "NAME",
     .choices = formats,
     .def = "table",
     .help = "How to print the results.",
     .off = CLI_AT_ENUM(struct bench_opts, format)},
    {.name = "out",
     .short_name = 'o',
     .type = CLI_STR,
     .arg = "FILE",
     .def_text = "standard output",
     .help = "Write the results to a file.",
     .off = CLI_AT_STR(struct bench_opts, out)},
    {.type = CLI_GROUP, .help = "Speculation (docs/speculation.md)"},
    {.name = "speculation",
     .type = CLI_FLAG,
     .help = "Measure guessing instead: kinds and lengths of windows over tasks, against the same "
             "answers without.",
     .off = CLI_AT_FLAG(struct bench_opts, speculation)},
    {.name = "draft-model",
     .type = CLI_STR,
     .arg = "DIR|NAME",
     .help = "A model that guesses; see --draft-kind.",
     .off = CLI_AT_STR(struct bench_opts, draft_model)},
    {.name = "draft-kind",
     .type = CLI_ENUM,
     .arg = "KIND",
     .choices = measured_kinds,
     .def = "all",
     .help = "Rows of this kind only. Also says what --draft-model is: a smaller model of the same "
             "vocabulary where nothing is said, or a dspark or assistant made for the model, which "
             "take the place of its own head.",
     .off = CLI_AT_ENUM(struct bench_opts, draft_kind)},
    {.name = "tasks",
     .type = CLI_STR,
     .arg = "FILE",
     .def_text = "copy, edit, list, free, dice",
     .help =
         "JSON lines with \"task\", \"messages\" or \"prompt\", and \"temperature\" (else 0); the "
         "first three of each task are used.",
     .off = CLI_AT_STR(struct bench_opts, tasks)},
    {.type = CLI_END},
};

/* An engine of one thread count with sequences that are cut back after each test. */
struct rig {
    struct qn_engine *e;
    struct qn_seq *seq[BATCH_MAX];
    int32_t n_seq, threads;
};

struct bench {
    const struct bench_opts *o;
    struct rig rigs[CLI_LIST_MAX];
    int n_rig;
    int32_t *ids; /* [n_ids] tokens every test takes from the front */
    int32_t n_ids;
    float *logits; /* [n_seq][n_vocab] */
    int32_t n_seq; /* the largest batch */
    struct roof *roof;
    struct bench_report rep;
    struct progress line;
    double work_done;
};

static int32_t max_of(const struct cli_ints *v)
{
    int64_t m = 0;
    for (int i = 0; i < v->n; i++)
        m = v->v[i] > m ? v->v[i] : m;
    return (int32_t)m;
}

/* ---- one measurement ------------------------------------------------------------------------ */

/* Appends ids[from, from+n) to a sequence in steps of the engine's size; the logits of the last
 * token when wanted. */
static enum qn_status feed(struct bench *b, struct rig *r, int q, int32_t from, int32_t n,
                           bool logits, struct qn_err *err)
{
    int32_t most = qn_step_max_rows(r->e);
    for (int32_t at = 0; at < n;) {
        int32_t k = n - at < most ? n - at : most;
        bool last = at + k == n;
        struct qn_step_item item = {
            .seq = r->seq[q],
            .ids = b->ids + from + at,
            .n_ids = k,
            .n_logits = last && logits,
            .logits = b->logits,
        };
        QN_TRY(qn_engine_step(r->e, &item, 1, err));
        at += k;
    }
    return QN_OK;
}

/* One decode step: token ids[at] after each of the first n sequences. */
static enum qn_status step(struct bench *b, struct rig *r, int32_t n, int32_t at,
                           struct qn_err *err)
{
    struct qn_step_item items[BATCH_MAX];
    for (int32_t q = 0; q < n; q++)
        items[q] = (struct qn_step_item){
            .seq = r->seq[q],
            .ids = b->ids + at,
            .n_ids = 1,
            .n_logits = 1,
            .logits = b->logits + (size_t)q * (size_t)b->rep.info->n_vocab,
        };
    return qn_engine_step(r->e, items, n, err);
}

/* Brings a sequence to exactly depth tokens; families that cannot cut start afresh. */
static enum qn_status to_depth(struct bench *b, struct rig *r, int q, int32_t depth,
                               struct qn_err *err)
{
    int32_t len = qn_seq_len(r->seq[q]);
    if (len > depth) {
        enum qn_status st = qn_seq_truncate(r->seq[q], depth, err);
        if (st != QN_OK && st != QN_UNSUPPORTED)
            return st;
        if (st == QN_UNSUPPORTED) {
            qn_seq_free(r->seq[q]);
            r->seq[q] = NULL;
            QN_TRY(qn_seq_create(r->e, &r->seq[q], err));
        }
        len = qn_seq_len(r->seq[q]);
    }
    return feed(b, r, q, len, depth - len, false, err);
}

static enum qn_status measure(struct bench *b, const struct bench_row *w, struct rig *r, bool warm,
                              double *rate, struct qn_err *err)
{
    int32_t n = warm && w->decode && w->n > WARM_DECODE ? WARM_DECODE : w->n;
    for (int32_t q = 0; q < w->batch; q++)
        QN_TRY(to_depth(b, r, q, w->depth, err));
    int64_t t0 = clock_ns();
    if (!w->decode) {
        QN_TRY(feed(b, r, 0, w->depth, n, true, err));
    } else {
        for (int32_t i = 0; i < n; i++)
            QN_TRY(step(b, r, w->batch, w->depth + i, err));
    }
    *rate = (double)n * w->batch / ((double)(clock_ns() - t0) / 1e9);
    return QN_OK;
}

/* A configuration's part of the whole work, for the progress line: a decode step takes about as
 * long as several prompt tokens, and another sequence in it as one. */
static double work_of(const struct bench_row *w, bool warm)
{
    if (!w->decode)
        return w->n;
    return (7.0 + w->batch) * (warm && w->n > WARM_DECODE ? WARM_DECODE : w->n);
}

static enum qn_status run_round(struct bench *b, int round, struct qn_err *err)
{
    bool warm = round < 0;
    for (int i = 0; i < b->rep.n_roof && !warm; i++) {
        struct bench_roof *f = &b->rep.roofs[i];
        f->read[round] = roof_read(b->roof, f->threads);
        f->peak[round] = roof_peak(b->rep.info->isa, f->threads);
        f->n_sample = round + 1;
    }
    for (int i = 0; i < b->rep.n_row; i++) {
        struct bench_row *w = &b->rep.rows[i];
        struct rig *r = b->rigs;
        while (r->threads != w->threads)
            r++;
        double rate;
        if (term_interrupted())
            QN_FAIL(err, QN_CANCELLED, "bench", "interrupted");
        QN_TRY(measure(b, w, r, warm, &rate, err));
        if (!warm)
            w->samples[w->n_sample++] = rate;
        b->work_done += work_of(w, warm);
        progress_set(&b->line, b->work_done);
    }
    return QN_OK;
}

/* ---- setting up ----------------------------------------------------------------------------- */

static enum qn_status open_rigs(struct bench *b, const char *dir, struct qn_err *err)
{
    const struct cli_ints *t = &b->o->threads;
    b->n_seq = max_of(&b->o->batch);
    int n = t->n ? t->n : 1;
    for (int i = 0; i < n; i++) {
        struct rig *r = &b->rigs[b->n_rig];
        struct qn_engine_params p = {
            .model_dir = dir,
            .n_thread = t->n ? (int32_t)t->v[i] : 0,
            .arith = (enum qn_arith)b->o->arith,
            .kv_quant = b->o->kv_quant,
            .isa = b->o->isa,
            .weights_only = true,
            .progress = progress_report,
            .progress_arg = &b->line,
        };
        progress_start(&b->line, "Loading", NULL, 1);
        enum qn_status st = qn_engine_open(&p, &r->e, err);
        progress_end(&b->line);
        if (st != QN_OK)
            return st;
        b->n_rig++;
        r->threads = qn_engine_info(r->e)->n_thread;
        for (int k = 0; k < b->n_rig - 1; k++)
            if (b->rigs[k].threads == r->threads)
                QN_FAIL(err, QN_BAD_INPUT, "bench", "--threads: %d is there twice", r->threads);
        if (b->n_seq > qn_step_max_rows(r->e))
            QN_FAIL(err, QN_BAD_INPUT, "bench", "--batch %d: a step takes %d rows at most",
                    b->n_seq, qn_step_max_rows(r->e));
        for (; r->n_seq < b->n_seq; r->n_seq++)
            QN_TRY(qn_seq_create(r->e, &r->seq[r->n_seq], err));
    }
    b->rep.info = qn_engine_info(b->rigs[0].e);
    return QN_OK;
}

static enum qn_status make_ids(struct bench *b, struct qn_err *err)
{
    const struct bench_opts *o = b->o;
    int32_t p = max_of(&o->prefill), d = max_of(&o->decode), depth = max_of(&o->depth);
    int64_t need = (int64_t)depth + (p > d ? p : d);
    if (p == 0 && d == 0)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "--prefill 0 and --decode 0: nothing to measure");
    if (need > b->rep.info->n_ctx)
        QN_FAIL(err, QN_BAD_INPUT, "bench",
                "depth %d and a test of %d tokens need %lld tokens of context; the model has %d",
                depth, p > d ? p : d, (long long)need, b->rep.info->n_ctx);
    b->n_ids = (int32_t)need;
    b->ids = malloc((size_t)need * sizeof *b->ids);
    b->logits = malloc((size_t)b->n_seq * (size_t)b->rep.info->n_vocab * sizeof *b->logits);
    if (!b->ids || !b->logits)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for %lld tokens", (long long)need);
    for (int32_t i = 0; i < b->n_ids; i++)
        b->ids[i] = (int32_t)(rng_u64(IDS_SEED, 0, (uint64_t)i) % (uint64_t)b->rep.info->n_vocab);
    return QN_OK;
}

/* Weights that take part in one token: what a decode step reads, in elements (this leaves out the
 * experts that are not used and the embedding's other rows). */
static double active_weights(const struct qn_model_info *m)
{
    return m->bits_per_weight > 0 ? (double)m->step_bytes * 8 / m->bits_per_weight : 0;
}

static void describe_row(const struct qn_model_info *m, struct bench_row *w)
{
    double active = active_weights(m), head = (double)m->n_vocab * m->n_embd;
    if (w->decode) {
        w->bytes_per_token = (double)m->step_bytes / w->batch +
                             (double)m->kv_token_bytes * (w->depth + (w->n - 1) / 2.0) +
                             (double)m->seq_state_bytes; /* one copy is read, the other written */
        w->ops_per_token = 2 * active;
    } else { /* only the last token of a prompt goes through the head */
        w->ops_per_token = 2 * (active - head * (1 - 1.0 / w->n));
    }
}

static enum qn_status add_row(struct bench *b, struct bench_row w, struct qn_err *err)
{
    describe_row(b->rep.info, &w);
    w.samples = calloc((size_t)b->o->repeat, sizeof *w.samples);
    if (!w.samples)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for %lld samples",
                (long long)b->o->repeat);
    b->rep.rows[b->rep.n_row++] = w;
    return QN_OK;
}

static enum qn_status make_rows(struct bench *b, struct qn_err *err)
{
    const struct bench_opts *o = b->o;
    const int n_decode = o->decode.n * o->batch.n, each = o->prefill.n + n_decode;
    b->rep.rows = calloc((size_t)b->n_rig * (size_t)o->depth.n * (size_t)each, sizeof *b->rep.rows);
    if (!b->rep.rows)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for %d configurations", each);
    for (int t = 0; t < b->n_rig; t++)
        for (int k = 0; k < o->depth.n * each; k++) {
            int i = k % each, j = i - o->prefill.n; /* j: decode lengths times batches */
            struct bench_row w = {.decode = j >= 0,
                                  .depth = (int32_t)o->depth.v[k / each],
                                  .threads = b->rigs[t].threads,
                                  .batch = 1};
            w.n = (int32_t)(j < 0 ? o->prefill.v[i] : o->decode.v[j / o->batch.n]);
            if (j >= 0)
                w.batch = (int32_t)o->batch.v[j % o->batch.n];
            if (w.n > 0)
                QN_TRY(add_row(b, w, err));
        }
    return QN_OK;
}

static enum qn_status make_roofs(struct bench *b, struct qn_err *err)
{
    int32_t most = 0;
    b->rep.roofs = calloc((size_t)b->n_rig, sizeof *b->rep.roofs);
    if (!b->rep.roofs)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory");
    for (int i = 0; i < b->n_rig; i++) {
        struct bench_roof *f = &b->rep.roofs[b->rep.n_roof++];
        f->threads = b->rigs[i].threads;
        f->read = calloc((size_t)b->o->repeat, sizeof *f->read);
        f->peak = calloc((size_t)b->o->repeat, sizeof *f->peak);
        if (!f->read || !f->peak)
            QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory");
        most = f->threads > most ? f->threads : most;
    }
    QN_TRY(roof_open(most, &b->roof, err));
    b->rep.roof_bytes = roof_bytes(b->roof);
    b->rep.cache_bytes = roof_cache_bytes();
    return QN_OK;
}

static enum qn_status run_rounds(struct bench *b, struct qn_err *err)
{
    double each = 0, warm = 0;
    for (int i = 0; i < b->rep.n_row; i++) {
        each += work_of(&b->rep.rows[i], false);
        warm += work_of(&b->rep.rows[i], true);
    }
    progress_start(&b->line, "Measuring", NULL, warm + each * (double)b->o->repeat);
    enum qn_status st = QN_OK;
    for (int round = -1; round < b->o->repeat && st == QN_OK; round++)
        st = run_round(b, round, err);
    progress_end(&b->line);
    return st;
}

static enum qn_status run_all(struct bench *b, struct qn_err *err)
{
    struct buf dir = BUF_INIT;
    enum qn_status st = model_arg_find(b->o->model, &dir, err);
    if (st == QN_OK)
        st = open_rigs(b, buf_z(&dir), err);
    if (st == QN_OK)
        st = bench_mask(buf_z(&dir), b->rep.info->n_vocab, &b->rep.mask, err);
    buf_free(&dir);
    QN_TRY(st);
    QN_TRY(make_ids(b, err));
    QN_TRY(make_rows(b, err));
    QN_TRY(make_roofs(b, err));
    getloadavg(b->rep.load_before, 3);
    b->rep.when_unix = clock_unix();
    b->rep.repeat = (int)b->o->repeat;
    b->rep.n_cpu = cpu_count();
    QN_TRY(run_rounds(b, err));
    getloadavg(b->rep.load_after, 3);
    return QN_OK;
}

static void bench_free(struct bench *b)
{
    for (int i = 0; i < b->rep.n_row; i++)
        free(b->rep.rows[i].samples);
    for (int i = 0; i < b->rep.n_roof; i++) {
        free(b->rep.roofs[i].read);
        free(b->rep.roofs[i].peak);
    }
    free(b->rep.rows);
    free(b->rep.roofs);
    roof_close(b->roof);
    free(b->ids);
    free(b->logits);
    for (int i = 0; i < b->n_rig; i++) {
        for (int q = 0; q < b->rigs[i].n_seq; q++)
            qn_seq_free(b->rigs[i].seq[q]);
        qn_engine_free(b->rigs[i].e);
    }
}

static int run_bench(const struct cli *c, void *opts)
{
    struct bench b = {.o = opts};
    struct qn_err err = {0};
    struct buf out = BUF_INIT;
    char cpu[128];
    term_catch_interrupt(true);
    cpu_model_name(cpu, sizeof cpu);
    b.rep.cpu = cpu;
    const struct bench_spec_params sp = {
        .model = b.o->model,
        .draft = {.kind = b.o->draft_kind, .model = b.o->draft_model},
        .tasks = b.o->tasks,
        .threads = b.o->threads.n ? b.o->threads.v[0] : 0,
        .repeat = b.o->repeat};
    enum qn_status st = b.o->speculation ? bench_spec(&sp, &out, &err) : run_all(&b, &err);
    if (st == QN_OK && !b.o->speculation) {
        bench_report_write(&b.rep, (enum bench_format)b.o->format, &out);
        st = buf_ok(&out, "report", &err);
    }
    if (st == QN_OK && b.o->out)
        st = file_write_atomic(b.o->out, buf_str(&out), &err);
    int rc = st == QN_OK ? CLI_OK : cli_fail(c, &err);
    if (st == QN_OK && !b.o->out && !cli_write(c, buf_str(&out)))
        rc = CLI_FAILED;
    bench_free(&b);
    buf_free(&out);
    return rc;
}

const struct cli_verb verb_bench = {
    .name = "bench",
    .summary = "measure how fast a model reads and writes tokens",
    .usage = "[options]",
    .about =
        "Measures tokens per second for reading a prompt (prefill) and for writing an answer "
        "(decode), at each combination of the given sizes, depths and thread counts. Every round "
        "measures each combination once; a warm-up round before them is dropped. Reported are the "
        "median, the spread, and the share of the memory bandwidth and of the peak arithmetic "
        "measured in the same run.",
    .examples = "quern bench\n"
                "quern bench --prefill 512 --decode 128 --threads 1,2 --repeat 10\n"
                "quern bench --prefill 0 --batch 1,2,4,8\n"
                "quern bench --depth 0,4096 --format json --out result.json",
    .opts = bench_opts,
    .opts_size = sizeof(struct bench_opts),
    .pos_max = 0,
    .pos_name = "argument",
    .run = run_bench,
};
