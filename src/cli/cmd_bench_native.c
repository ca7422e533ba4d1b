/*
 * cmd_bench_native.c - `quern bench native`: the work of `quern bench serve`'s decode and
 * first-token phases without HTTP, over quern.h, from prompts as frozen token ids: what the server
 * adds is the difference. Also makes the float32 answers to the parity prompts. Main thread.
 */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "bench/matrix.h"
#include "bench/results.h"
#include "bench/view.h"
#include "cli/bench_opts.h"
#include "cli/model_arg.h"
#include "cli/progress.h"
#include "cli/verbs.h"
#include "model/logits.h"
#include "quern.h"

enum { ROUNDS_MAX = 100, PROMPTS_MAX = 256, FILE_MAX = 64 << 20 };

struct native_opts {
    const char *model, *ids, *out, *reference, *against, *seed;
    int64_t threads, tokens, repeat, ttft_tokens;
    bool ignore_eos;
};

static const struct cli_opt native_opts[] = {
    CLI_OPT_MODEL(struct native_opts),
    CLI_OPT_THREADS(struct native_opts),
    CLI_OPT_BENCH_TOKENS(struct native_opts),
    {.name = "repeat",
     .short_name = 'r',
     .type = CLI_INT,
     .arg = "N",
     .min = 1,
     .max = ROUNDS_MAX,
     .def = "5",
     .help = "Answers of each kind; one more before them warms up.",
     .off = CLI_AT_INT(struct native_opts, repeat)},
    CLI_OPT_BENCH_TTFT(struct native_opts),
    {.name = "seed",
     .type = CLI_STR,
     .arg = "TEXT",
     .def = BENCH_SEED,
     .help = "The prompts are those of `quern bench serve` with the same seed.",
     .off = CLI_AT_STR(struct native_opts, seed)},
    {.name = "ids",
     .type = CLI_STR,
     .arg = "FILE",
     .help = "Frozen prompts instead: a JSON array of arrays of token ids, or the record of an "
             "earlier run.",
     .off = CLI_AT_STR(struct native_opts, ids)},
    {.name = "ignore-eos",
     .type = CLI_FLAG,
     .help = "Go on behind the model's end of text.",
     .off = CLI_AT_FLAG(struct native_opts, ignore_eos)},
    {.name = "out",
     .short_name = 'o',
     .type = CLI_STR,
     .arg = "FILE",
     .help = "Write a record (JSON, the schema of `quern bench serve`, with the token ids).",
     .off = CLI_AT_STR(struct native_opts, out)},
    {.name = "against",
     .type = CLI_STR,
     .arg = "FILE",
     .help = "The record of `quern bench serve` to say the server's overhead from.",
     .off = CLI_AT_STR(struct native_opts, against)},
    {.name = "reference",
     .type = CLI_STR,
     .arg = "FILE",
     .help = "Instead of measuring, write the float32 answers to the parity prompts: slow, exact.",
     .off = CLI_AT_STR(struct native_opts, reference)},
    {.type = CLI_END},
};

struct prompt {
    int32_t *ids;
    int32_t n;
};

struct native {
    const struct native_opts *o;
    struct qn_engine *e;
    const struct qn_model_info *info;
    float *logits;
    struct record *record;
    struct prompt decode[PROMPTS_MAX], ttft[PROMPTS_MAX];
    int n_decode, n_ttft;
    struct progress line;
    double done;
};

/* ---- prompts -------------------------------------------------------------------------------- */

static enum qn_status add_ids(struct prompt *list, int *n, int32_t *ids, int32_t n_ids,
                              struct qn_err *err)
{
    if (*n == PROMPTS_MAX || n_ids < 1) {
        qn_free(ids);
        QN_FAIL(err, QN_BAD_INPUT, "bench", "an empty prompt, or more than %d", PROMPTS_MAX);
    }
    list[(*n)++] = (struct prompt){ids, n_ids};
    return QN_OK;
}

/* One user message through the chat template, as the server does it. */
static enum qn_status add_text(struct native *s, struct prompt *list, int *n, struct str text,
                               struct qn_err *err)
{
    struct buf body = BUF_INIT;
    char *rendered = NULL;
    size_t len = 0;
    int32_t *ids = NULL, n_ids = 0;
    buf_addz(&body, "{\"messages\":[{\"role\":\"user\",\"content\":");
    json_w_str(&body, text);
    buf_addz(&body, "}],\"add_generation_prompt\":true}");
    enum qn_status st = qn_chat_render(s->e, buf_z(&body), body.n, &rendered, &len, err);
    if (st == QN_OK)
        st = qn_tokenize(s->e, rendered, len, QN_TOK_PARSE_SPECIAL, &ids, &n_ids, err);
    if (st == QN_OK)
        st = add_ids(list, n, ids, n_ids, err);
    qn_free(rendered);
    buf_free(&body);
    return st;
}

static enum qn_status make_prompts(struct native *s, struct qn_err *err)
{
    struct buf text = BUF_INIT;
    enum qn_status st = QN_OK;
    for (int i = 0; i < s->o->repeat && st == QN_OK; i++) {
        buf_clear(&text);
        buf_addf(&text, "Run %s: write a detailed essay about the history of computing.",
                 nonce_make(s->o->seed, "decode", 0, i).z);
        st = add_text(s, s->decode, &s->n_decode, buf_str(&text), err);
        if (st != QN_OK)
            break;
        buf_clear(&text);
        prompt_filler(&text, nonce_make(s->o->seed, "ttft", 0, i).z, (int)s->o->ttft_tokens);
        st = add_text(s, s->ttft, &s->n_ttft, buf_str(&text), err);
    }
    buf_free(&text);
    return st;
}

static enum qn_status read_one(struct native *s, const struct json *list, struct prompt *to, int *n,
                               struct qn_err *err)
{
    size_t len = json_len(list);
    int32_t *ids = len ? malloc(len * sizeof *ids) : NULL;
    for (size_t i = 0; ids && i < len; i++) {
        int64_t v;
        if (!json_i64(json_at(list, i), &v) || v < 0 || v >= s->info->n_vocab) {
            free(ids);
            QN_FAIL(err, QN_BAD_INPUT, "bench", "--ids: token %zu is not in 0..%d", i,
                    s->info->n_vocab - 1);
        }
        ids[i] = (int32_t)v;
    }
    if (!ids)
        QN_FAIL(err, QN_BAD_INPUT, "bench", "--ids: a prompt without tokens");
    return add_ids(to, n, ids, (int32_t)len, err);
}

static enum qn_status read_prompts(struct native *s, struct qn_err *err)
{
    struct buf text = BUF_INIT;
    struct json *doc = NULL;
    enum qn_status st = file_read(s->o->ids, FILE_MAX, &text, err);
    if (st == QN_OK)
        st = json_parse(buf_str(&text), s->o->ids, JSON_DEPTH_MAX, &doc, err);
    const struct json *frozen = json_get(doc, "prompt_ids");
    const struct json *decode = frozen ? json_get(frozen, "decode") : doc;
    for (size_t i = 0; i < json_len(decode) && st == QN_OK; i++)
        st = read_one(s, json_at(decode, i), s->decode, &s->n_decode, err);
    for (size_t i = 0; i < json_len(json_get(frozen, "ttft")) && st == QN_OK; i++)
        st = read_one(s, json_at(json_get(frozen, "ttft"), i), s->ttft, &s->n_ttft, err);
    if (st == QN_OK && !s->n_decode && !s->n_ttft)
        st = err_set(err, QN_BAD_INPUT, "bench", "%s holds no prompts", s->o->ids);
    json_free(doc);
    buf_free(&text);
    return st;
}

/* ---- one answer ----------------------------------------------------------------------------- */

struct answer {
    int64_t start_ns, first_ns, last_ns;
    int32_t *ids;
    int32_t n;
};

static bool is_eos(const struct qn_model_info *info, int32_t id)
{
    for (int32_t i = 0; i < info->n_eos; i++)
        if (info->eos_ids[i] == id)
            return true;
    return false;
}

static enum qn_status feed(struct native *s, struct qn_seq *seq, const struct prompt *p,
                           struct qn_err *err)
{
    int32_t most = qn_step_max_rows(s->e);
    for (int32_t at = 0; at < p->n;) {
        int32_t k = p->n - at < most ? p->n - at : most;
        struct qn_step_item item = {.seq = seq,
                                    .ids = p->ids + at,
                                    .n_ids = k,
                                    .n_logits = at + k == p->n,
                                    .logits = s->logits};
        QN_TRY(qn_engine_step(s->e, &item, 1, err));
        at += k;
    }
    return QN_OK;
}

/* a->ids has room for max tokens. The clock starts with the prompt's ids in hand. */
static enum qn_status answer_one(struct native *s, const struct prompt *p, int32_t max,
                                 struct answer *a, struct qn_err *err)
{
    struct qn_seq *seq = NULL;
    a->n = 0;
    a->start_ns = clock_ns();
    QN_TRY(qn_seq_create(s->e, &seq, err));
    enum qn_status st = feed(s, seq, p, err);
    while (st == QN_OK) {
        int32_t id = logits_best(s->logits, s->info->n_vocab);
        a->last_ns = clock_ns();
        if (a->n == 0)
            a->first_ns = a->last_ns;
        if (!s->o->ignore_eos && is_eos(s->info, id))
            break;
        a->ids[a->n++] = id;
        if (a->n == max)
            break;
        struct qn_step_item item = {
            .seq = seq, .ids = &id, .n_ids = 1, .n_logits = 1, .logits = s->logits};
        st = qn_engine_step(s->e, &item, 1, err);
    }
    qn_seq_free(seq);
    return st;
}

static void sample(struct native *s, const char *metric, double value)
{
    record_sample(s->record, &(struct sample_key){"native", "matrix", "", metric}, value);
}

static enum qn_status measure(struct native *s, struct qn_err *err)
{
    int32_t max = (int32_t)s->o->tokens;
    struct answer a = {.ids = malloc((size_t)max * sizeof *a.ids)};
    enum qn_status st = a.ids ? QN_OK : err_set(err, QN_NO_MEMORY, "bench", "out of memory");
    int n = s->n_decode > s->n_ttft ? s->n_decode : s->n_ttft;
    progress_start(&s->line, "Measuring", NULL, n + 1);
    if (st == QN_OK)
        st = answer_one(s, s->n_decode ? &s->decode[0] : &s->ttft[0], 32 < max ? 32 : max, &a, err);
    for (int i = 0; i < n && st == QN_OK; i++) {
        progress_set(&s->line, i + 1);
        if (i < s->n_decode) {
            st = answer_one(s, &s->decode[i], max, &a, err);
            if (st == QN_OK && a.n > 1)
                sample(s, "decode_tps", (a.n - 1) * 1e9 / (double)(a.last_ns - a.first_ns));
        }
        if (i < s->n_ttft && st == QN_OK) {
            st = answer_one(s, &s->ttft[i], 1, &a, err);
            double ms = (double)(a.first_ns - a.start_ns) / 1e6;
            sample(s, "ttft_cold_ms", ms);
            sample(s, "prefill_tps", s->ttft[i].n * 1000 / ms);
        }
    }
    progress_end(&s->line);
    free(a.ids);
    return st;
}

/* ---- output --------------------------------------------------------------------------------- */

static void write_ids(struct jw *w, const char *key, const struct prompt *list, int n)
{
    jw_key(w, key);
    jw_arr(w);
    for (int i = 0; i < n; i++) {
        jw_arr(w);
        for (int32_t k = 0; k < list[i].n; k++)
            jw_i64(w, list[i].ids[k]);
        jw_arr_end(w);
    }
    jw_arr_end(w);
}

static enum qn_status write_record(struct native *s, struct qn_err *err)
{
    struct buf head = BUF_INIT, text = BUF_INIT;
    struct jw w;
    jw_init(&w, &head);
    jw_obj(&w);
    jw_ki64(&w, "began_unix", clock_unix());
    jw_kstrz(&w, "label", "native");
    jw_kbool(&w, "diagnostic", false);
    jw_kstrz(&w, "version", QUERN_VERSION);
    jw_kstrz(&w, "command", "quern bench native");
    jw_key(&w, "manifest");
    jw_obj(&w);
    jw_key(&w, "model");
    jw_obj(&w);
    jw_kstrz(&w, "name", s->info->name);
    jw_obj_end(&w);
    jw_obj_end(&w);
    jw_key(&w, "workload");
    jw_obj(&w);
    jw_ki64(&w, "threads", s->info->n_thread);
    jw_ki64(&w, "decode_tokens", s->o->tokens);
    jw_kstrz(&w, "seed", s->o->seed);
    jw_kbool(&w, "ignore_eos", s->o->ignore_eos);
    jw_obj_end(&w);
    jw_key(&w, "prompt_ids");
    jw_obj(&w);
    write_ids(&w, "decode", s->decode, s->n_decode);
    write_ids(&w, "ttft", s->ttft, s->n_ttft);
    jw_obj_end(&w);
    jw_obj_end(&w);
    enum qn_status st = buf_ok(&head, "the record", err);
    if (st == QN_OK) {
        record_head(s->record, (struct str){head.p + 1, head.n - 2});
        st = record_json(s->record, "complete", &text, err);
    }
    if (st == QN_OK)
        st = file_write_atomic(s->o->out, buf_str(&text), err);
    buf_free(&head);
    buf_free(&text);
    return st;
}

static const struct view_row *served_row(const struct view *v, const char *metric)
{
    return view_find(v, STR_LIT("quern"), STR_LIT("matrix"), STR_LIT(""), str_of(metric));
}

/* What the server adds: less speed, more time. */
static enum qn_status overhead(struct native *s, struct buf *out, struct qn_err *err)
{
    struct buf text = BUF_INIT;
    struct json *doc = NULL;
    struct view v = {0};
    double native;
    enum qn_status st = file_read(s->o->against, FILE_MAX, &text, err);
    if (st == QN_OK)
        st = json_parse(buf_str(&text), s->o->against, JSON_DEPTH_MAX, &doc, err);
    if (st == QN_OK && !view_open(doc, &v))
        st = err_set(err, QN_NO_MEMORY, "bench", "out of memory");
    const struct view_row *rate = served_row(&v, "decode_tps"),
                          *ttft = served_row(&v, "ttft_cold_ms");
    if (st == QN_OK && !rate && !ttft)
        st = err_set(err, QN_BAD_INPUT, "bench", "%s: no matrix of the arm quern", s->o->against);
    if (st == QN_OK && rate &&
        record_count(s->record, &(struct sample_key){"native", "matrix", "", "decode_tps"},
                     &native))
        buf_addf(out, "server, decode: %.1f of %.1f tok/s: overhead %.1f %% (%.3f ms a token)\n",
                 rate->median, native, 100 * (native / rate->median - 1),
                 1000 / rate->median - 1000 / native);
    if (st == QN_OK && ttft &&
        record_count(s->record, &(struct sample_key){"native", "matrix", "", "ttft_cold_ms"},
                     &native))
        buf_addf(out, "server, first token: %.1f ms against %.1f: overhead %.1f ms\n", ttft->median,
                 native, ttft->median - native);
    view_close(&v);
    json_free(doc);
    buf_free(&text);
    return st;
}

static void print_rows(struct native *s, struct buf *out)
{
    static const char *const metrics[] = {"decode_tps", "ttft_cold_ms", "prefill_tps"};
    for (int i = 0; i < 3; i++) {
        double median;
        size_t n = record_count(s->record, &(struct sample_key){"native", "matrix", "", metrics[i]},
                                &median);
        if (n)
            buf_addf(out, "%-14s %.2f (median of %zu)\n", metrics[i], median, n);
    }
}

/* ---- float32 answers ------------------------------------------------------------------------ */

static enum qn_status probe(struct native *s, bool chat, struct jw *w, struct qn_err *err)
{
    struct prompt p[1] = {{0}};
    int n = 0;
    int32_t ids[PARITY_TOKENS];
    struct answer a = {.ids = ids};
    char *text = NULL;
    size_t len = 0;
    if (chat) {
        QN_TRY(add_text(s, p, &n, STR_LIT(PARITY_CHAT), err));
    } else {
        QN_TRY(qn_tokenize(s->e, PARITY_PROMPT, strlen(PARITY_PROMPT), QN_TOK_ADD_SPECIAL,
                           &p[0].ids, &p[0].n, err));
    }
    enum qn_status st = answer_one(s, &p[0], PARITY_TOKENS, &a, err);
    if (st == QN_OK)
        st = qn_detokenize(s->e, a.ids, a.n, false, &text, &len, err);
    qn_free(p[0].ids);
    QN_TRY(st);
    jw_obj(w);
    jw_kstrz(w, "arm", "float32");
    jw_ki64(w, "round", 0);
    jw_kstrz(w, "probe", chat ? "chat" : "completion");
    jw_kstr(w, "text", (struct str){text, len});
    jw_ki64(w, "completion_tokens", a.n);
    jw_obj_end(w);
    qn_free(text);
    return QN_OK;
}

static enum qn_status write_reference(struct native *s, struct qn_err *err)
{
    struct buf text = BUF_INIT;
    struct jw w;
    jw_init(&w, &text);
    jw_obj(&w);
    jw_key(&w, "probes");
    jw_arr(&w);
    enum qn_status st = probe(s, false, &w, err);
    if (st == QN_OK)
        st = probe(s, true, &w, err);
    jw_arr_end(&w);
    jw_obj_end(&w);
    if (st == QN_OK)
        st = buf_ok(&text, "the answers", err);
    if (st == QN_OK)
        st = file_write_atomic(s->o->reference, buf_str(&text), err);
    buf_free(&text);
    return st;
}

/* ---- the verb ------------------------------------------------------------------------------- */

static enum qn_status open_native(struct native *s, struct qn_err *err)
{
    struct buf dir = BUF_INIT;
    QN_TRY(model_arg_find(s->o->model, &dir, err));
    const struct qn_engine_params p = {.model_dir = buf_z(&dir),
                                       .n_thread = (int32_t)s->o->threads,
                                       .arith = s->o->reference ? QN_ARITH_REFERENCE
                                                                : QN_ARITH_CANONICAL};
    enum qn_status st = qn_engine_open(&p, &s->e, err);
    buf_free(&dir);
    QN_TRY(st);
    s->info = qn_engine_info(s->e);
    s->logits = malloc((size_t)s->info->n_vocab * sizeof *s->logits);
    s->record = record_create();
    if (!s->logits || !s->record)
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for %d logits", s->info->n_vocab);
    return QN_OK;
}

static void close_native(struct native *s)
{
    for (int i = 0; i < s->n_decode; i++)
        qn_free(s->decode[i].ids);
    for (int i = 0; i < s->n_ttft; i++)
        qn_free(s->ttft[i].ids);
    free(s->logits);
    record_free(s->record);
    qn_engine_free(s->e);
}

static enum qn_status run_all(struct native *s, struct buf *out, struct qn_err *err)
{
    QN_TRY(open_native(s, err));
    if (s->o->reference)
        return write_reference(s, err);
    QN_TRY(s->o->ids ? read_prompts(s, err) : make_prompts(s, err));
    QN_TRY(measure(s, err));
    print_rows(s, out);
    if (s->o->out)
        QN_TRY(write_record(s, err));
    return s->o->against ? overhead(s, out, err) : QN_OK;
}

static int run_native(const struct cli *c, void *opts)
{
    struct native *s = calloc(1, sizeof *s);
    struct buf out = BUF_INIT;
    struct qn_err err = {0};
    if (!s) {
        cli_say(c, "out of memory");
        return CLI_FAILED;
    }
    s->o = opts;
    int rc = run_all(s, &out, &err) == QN_OK ? CLI_OK : cli_fail(c, &err);
    if (rc == CLI_OK && out.n && !cli_write(c, buf_str(&out)))
        rc = CLI_FAILED;
    close_native(s);
    buf_free(&out);
    free(s);
    return rc;
}

const struct cli_verb verb_bench_native = {
    .name = "bench native",
    .summary = "the work of bench serve without a server, to know what HTTP costs",
    .usage = "[options]",
    .about = "Answers the prompts of `quern bench serve`'s decode and first-token phases with the "
             "engine alone: greedy, one at a time, from token ids. --against names the record of a "
             "served run on the same machine and prints what the server adds.",
    .examples = "quern bench native --out native.json\n"
                "quern bench native --against run.json\n"
                "quern bench native --ids native.json --repeat 9\n"
                "quern bench native --reference float32.json",
    .opts = native_opts,
    .opts_size = sizeof(struct native_opts),
    .pos_name = "argument",
    .run = run_native,
};
