/*
 * cmd_kl.c - `quern kl`: what KV formats cost in nats. A text is cut into windows; each is read by
 * the engine without a format and with one, and the distributions behind the last tokens of the
 * window are compared. Main thread.
 *
 * A window is one pass: its logits have the bits that answering token by token would give.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "bench/quantile.h"
#include "cli/model_arg.h"
#include "cli/progress.h"
#include "cli/term.h"
#include "cli/verbs.h"
#include "model/logits.h"

enum { TEXT_MAX = 64 << 20, FORMATS_MAX = 16 };

struct kl_opts {
    const char *formats, *text;
    int64_t prompt, steps, windows, threads;
    bool json;
};

static const struct cli_opt kl_opts[] = {
    {.name = "kv-quant",
     .type = CLI_STR,
     .arg = "LIST",
     .def = "8,turbo:k8v4,turbo:k8v3,4,turbo:k4v3",
     .help = "KV formats to measure, separated by commas.",
     .off = CLI_AT_STR(struct kl_opts, formats)},
    {.name = "text",
     .type = CLI_STR,
     .arg = "FILE",
     .help = "Text to read; needed. Windows are taken at even distances over all of it.",
     .off = CLI_AT_STR(struct kl_opts, text)},
    {.name = "prompt",
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = 1 << 20,
     .def = "128",
     .help = "Tokens of a window that are only read.",
     .off = CLI_AT_INT(struct kl_opts, prompt)},
    {.name = "steps",
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = 4096,
     .def = "32",
     .help = "Tokens behind them whose distributions are compared.",
     .off = CLI_AT_INT(struct kl_opts, steps)},
    {.name = "windows",
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = 1024,
     .def = "8",
     .help = "Windows of the text.",
     .off = CLI_AT_INT(struct kl_opts, windows)},
    CLI_OPT_THREADS(struct kl_opts),
    {.name = "json",
     .type = CLI_FLAG,
     .help = "Print one JSON object.",
     .off = CLI_AT_FLAG(struct kl_opts, json)},
    {.type = CLI_END},
};

struct kl_row {
    char format[32], id[32];
    int64_t token_bytes;
    double mean, p99, max, top1; /* nats; top1: share of equal best tokens */
};

struct job {
    const struct kl_opts *o;
    const char *dir;
    int32_t *ids, n_ids;
    int64_t n_row; /* windows * steps */
    int32_t n_vocab;
    int64_t plain_bytes; /* of a token without a format */
    float *truth;        /* [n_row, n_vocab] */
    struct kl_row rows[FORMATS_MAX];
    int n;
    struct progress line;
};

/* ---- one reading of all windows -------------------------------------------------------------- */

static enum qn_status open_format(struct job *j, const char *format, struct qn_engine **e,
                                  struct qn_err *err)
{
    struct qn_engine_params p = {
        .model_dir = j->dir, .n_thread = (int32_t)j->o->threads, .kv_quant = format};
    return qn_engine_open(&p, e, err);
}

static enum qn_status read_window(struct job *j, struct qn_engine *e, const int32_t *ids,
                                  float *out, struct qn_err *err)
{
    struct qn_seq *s = NULL;
    int32_t most = qn_step_max_rows(e), steps = (int32_t)j->o->steps;
    int32_t n = (int32_t)j->o->prompt + steps;
    QN_TRY(qn_seq_create(e, &s, err));
    enum qn_status st = QN_OK;
    for (int32_t at = 0; st == QN_OK && at < n;) {
        int32_t k = n - at < most ? n - at : most, first = n - steps;
        int32_t wanted = at + k > first ? at + k - (at > first ? at : first) : 0;
        struct qn_step_item item = {s, ids + at, k, wanted, out};
        st = qn_engine_step(e, &item, 1, err);
        out += (size_t)wanted * (size_t)j->n_vocab;
        at += k;
        if (st == QN_OK && term_interrupted())
            st = err_set(err, QN_CANCELLED, "kl", "interrupted");
    }
    qn_seq_free(s);
    return st;
}

static enum qn_status read_all(struct job *j, struct qn_engine *e, float *out, struct qn_err *err)
{
    int64_t n = j->o->windows, window = j->o->prompt + j->o->steps;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = n > 1 ? (j->n_ids - window) * i / (n - 1) : 0;
        QN_TRY(read_window(j, e, j->ids + at, out + (size_t)(i * j->o->steps) * (size_t)j->n_vocab,
                           err));
        progress_set(&j->line, (double)(i + 1) / (double)n);
    }
    return QN_OK;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* KL(p || q) in nats */
static double divergence(const float *p, const float *q, int32_t n)
{
    double lp = logits_log_sum(p, n), lq = logits_log_sum(q, n), kl = 0;
    for (int32_t i = 0; i < n; i++) {
        double a = (double)p[i] - lp;
        kl += exp(a) * (a - ((double)q[i] - lq));
    }
    return kl;
}

static enum qn_status compare(struct job *j, const float *got, struct kl_row *r, struct qn_err *err)
{
    size_t v = (size_t)j->n_vocab;
    double *kl = malloc((size_t)j->n_row * sizeof *kl);
    int64_t equal = 0;
    if (!kl)
        QN_FAIL(err, QN_NO_MEMORY, "kl", "out of memory");
    for (int64_t i = 0; i < j->n_row; i++) {
        const float *p = j->truth + (size_t)i * v, *q = got + (size_t)i * v;
        kl[i] = divergence(p, q, j->n_vocab);
        equal += logits_best(p, j->n_vocab) == logits_best(q, j->n_vocab);
    }
    struct spread all = spread_of(kl, (size_t)j->n_row);
    r->mean = all.mean;
    r->p99 = quantile_of(kl, (size_t)j->n_row, 0.99);
    r->max = all.max;
    r->top1 = (double)equal / (double)j->n_row;
    free(kl);
    return QN_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static enum qn_status load_text(struct job *j, const struct qn_engine *e, struct qn_err *err)
{
    struct buf text = BUF_INIT;
    enum qn_status st = file_read(j->o->text, TEXT_MAX, &text, err);
    if (st == QN_OK)
        st = qn_tokenize(e, buf_z(&text), text.n, QN_TOK_ADD_SPECIAL, &j->ids, &j->n_ids, err);
    buf_free(&text);
    QN_TRY(st);
    int64_t need = j->o->prompt + j->o->steps;
    if (need > qn_engine_info(e)->n_ctx)
        QN_FAIL(err, QN_BAD_INPUT, "kl",
                "a window of %lld tokens; the model's context has %d: lower --prompt",
                (long long)need, qn_engine_info(e)->n_ctx);
    if (j->n_ids < need)
        QN_FAIL(err, QN_BAD_INPUT, "kl",
                "%s has %d tokens, a window takes %lld: a longer text or a lower --prompt",
                j->o->text, j->n_ids, (long long)need);
    return QN_OK;
}

static enum qn_status read_plain(struct job *j, struct qn_err *err)
{
    struct qn_engine *e = NULL;
    QN_TRY(open_format(j, "off", &e, err));
    enum qn_status st = load_text(j, e, err);
    j->n_vocab = qn_engine_info(e)->n_vocab;
    j->n_row = j->o->windows * j->o->steps;
    j->plain_bytes = qn_engine_info(e)->kv_token_bytes;
    if (st == QN_OK) {
        j->truth = calloc((size_t)j->n_row, (size_t)j->n_vocab * sizeof *j->truth);
        st = j->truth ? read_all(j, e, j->truth, err)
                      : err_set(err, QN_NO_MEMORY, "kl", "out of memory for %lld rows of logits",
                                (long long)j->n_row);
    }
    qn_engine_free(e);
    return st;
}

static enum qn_status read_format(struct job *j, const char *format, struct qn_err *err)
{
    struct kl_row *r = &j->rows[j->n];
    struct qn_engine *e = NULL;
    QN_TRY(open_format(j, format, &e, err));
    snprintf(r->format, sizeof r->format, "%s", format);
    snprintf(r->id, sizeof r->id, "%s", qn_engine_info(e)->kv_format);
    r->token_bytes = qn_engine_info(e)->kv_token_bytes;
    float *got = calloc((size_t)j->n_row, (size_t)j->n_vocab * sizeof *got);
    enum qn_status st = got ? read_all(j, e, got, err)
                            : err_set(err, QN_NO_MEMORY, "kl",
                                      "out of memory for %lld rows of logits", (long long)j->n_row);
    if (st == QN_OK)
        st = compare(j, got, r, err);
    j->n += st == QN_OK;
    free(got);
    qn_engine_free(e);
    return st;
}

static enum qn_status run_job(struct job *j, struct qn_err *err)
{
    QN_TRY(read_plain(j, err));
    char list[512];
    if (strlen(j->o->formats) >= sizeof list)
        QN_FAIL(err, QN_BAD_INPUT, "kl", "--kv-quant: a list of more than %zu bytes", sizeof list);
    memcpy(list, j->o->formats, strlen(j->o->formats) + 1);
    char *rest = list, *word;
    while ((word = strsep(&rest, ",")) != NULL) {
        if (j->n == FORMATS_MAX)
            QN_FAIL(err, QN_BAD_INPUT, "kl", "--kv-quant: more than %d formats", FORMATS_MAX);
        QN_TRY(read_format(j, word, err));
    }
    return QN_OK;
}

/* ---- report ---------------------------------------------------------------------------------- */

static double bits(const struct job *j, const struct kl_row *r)
{
    return 16.0 * (double)r->token_bytes / (double)j->plain_bytes;
}

static void text_report(const struct job *j, struct buf *out)
{
    buf_addf(out, "%lld windows of %lld tokens, %lld compared in each; nats against bf16\n\n",
             (long long)j->o->windows, (long long)(j->o->prompt + j->o->steps),
             (long long)j->o->steps);
    buf_addf(out, "%-14s %6s %12s %10s %10s %10s %8s\n", "format", "bits", "bytes/token", "KL mean",
             "KL p99", "KL max", "top-1 %");
    for (int i = 0; i < j->n; i++) {
        const struct kl_row *r = &j->rows[i];
        buf_addf(out, "%-14s %6.2f %12lld %10.5f %10.5f %10.5f %8.1f\n", r->format, bits(j, r),
                 (long long)r->token_bytes, r->mean, r->p99, r->max, 100 * r->top1);
    }
}

static void json_report(const struct job *j, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "model", j->dir);
    jw_ki64(&w, "windows", j->o->windows);
    jw_ki64(&w, "prompt", j->o->prompt);
    jw_ki64(&w, "steps", j->o->steps);
    jw_key(&w, "formats");
    jw_arr(&w);
    for (int i = 0; i < j->n; i++) {
        const struct kl_row *r = &j->rows[i];
        jw_obj(&w);
        jw_kstrz(&w, "format", r->format);
        jw_kstrz(&w, "id", r->id);
        jw_kreal(&w, "bits", bits(j, r));
        jw_ki64(&w, "token_bytes", r->token_bytes);
        jw_kreal(&w, "kl_mean", r->mean);
        jw_kreal(&w, "kl_p99", r->p99);
        jw_kreal(&w, "kl_max", r->max);
        jw_kreal(&w, "top1", r->top1);
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
    buf_addc(out, '\n');
}

static int run_kl(const struct cli *c, void *opts)
{
    struct job j = {.o = opts};
    struct qn_err err = {0};
    struct buf dir = BUF_INIT, out = BUF_INIT;
    if (!j.o->text)
        return cli_usage(c, "--text FILE is needed: the text to read");
    term_catch_interrupt(true);
    progress_start(&j.line, "Reading", NULL, 1);
    enum qn_status st = model_arg_find(c->n_pos ? c->pos[0] : NULL, &dir, &err);
    j.dir = buf_z(&dir);
    if (st == QN_OK)
        st = run_job(&j, &err);
    progress_end(&j.line);
    int rc = st == QN_OK ? CLI_OK : cli_fail(c, &err);
    if (st == QN_OK) {
        (j.o->json ? json_report : text_report)(&j, &out);
        if (!cli_write(c, buf_str(&out)))
            rc = CLI_FAILED;
    }
    free(j.truth);
    qn_free(j.ids);
    buf_free(&out);
    buf_free(&dir);
    return rc;
}

const struct cli_verb verb_kl = {
    .name = "kl",
    .summary = "measure what KV formats cost in nats",
    .usage = "[options] --text FILE [MODEL]",
    .about = "Reads windows of a text without and with each KV format and prints the divergence of "
             "the distributions behind their last tokens from those with 16-bit keys and values: "
             "mean, 99th percentile and largest, and how often the best token is the same.",
    .examples = "quern kl --text notes.txt smollm2\n"
                "quern kl --kv-quant 8,4 --prompt 2048 --text book.txt --json smollm2",
    .opts = kl_opts,
    .opts_size = sizeof(struct kl_opts),
    .pos_min = 0,
    .pos_max = 1,
    .pos_name = "MODEL",
    .run = run_kl,
};
