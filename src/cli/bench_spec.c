/*
 * bench_spec.c - see bench_spec.h. Every round makes each answer without guesses and then with each
 * setting, so that a change of the machine's mood falls on all alike; times are of decoding alone.
 * A ratio is taken within a round, and the median of the rounds' ratios is reported.
 */
#include "cli/bench_spec.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "bench/quantile.h"
#include "cli/engine_open.h"
#include "cli/model_arg.h"
#include "cli/term.h"
#include "model/engine.h"
#include "sched/sched.h"
#include "tmpl/chat.h"

#define WHERE      "bench"
#define FILE_BYTES ((size_t)64 << 20)
enum { TASKS_MAX = 12, PROMPTS_EACH = 3, SETTINGS_MAX = 16, ROUNDS_MAX = 100, ANSWER = 160 };

/* Text that repeats, text that changes a little, text that does neither, and text that nobody can
 * guess. */
static const struct {
    const char *name, *request;
} own_tasks[] = {
    {"copy",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Repeat this text exactly, without any "
     "other words: The harbour at Lindesund was built in 1783 by Anders Holm. It has two "
     "piers, a lighthouse of red granite, and room for forty boats. In winter the fishermen "
     "of Lindesund mend their nets in the long shed behind the eastern pier.\"}]}"},
    {"edit",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Write this Python function again with "
     "the name total_price, changing nothing else:\\n\\ndef compute(items, rate):\\n    "
     "total = 0\\n    for item in items:\\n        total += item.price * item.count\\n    "
     "total = total + total * rate\\n    return total\\n\"}]}"},
    {"list",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"List the numbers from 1 to 30, one on "
     "a line.\"}]}"},
    {"free",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Write a short story about a sailor who "
     "finds a strange letter.\"}]}"},
    {"dice", "{\"temperature\":1,\"messages\":[{\"role\":\"user\",\"content\":\"Write a short "
             "story about a "
             "sailor who finds a strange letter.\"}]}"},
};

struct task {
    char name[32];
    struct ids prompts[PROMPTS_EACH];
    double temperature; /* of all its answers */
    int32_t n;
};

/* What one setting did in one round of a task. */
struct result {
    int64_t decode_us, tokens;
    struct spec_counts spec;
    uint64_t hash; /* of all tokens */
};

struct setting {
    const char *name;
    struct spec_params spec;
    struct sched *sched; /* over all tasks and rounds, as a server's: it learns what steps cost */
    struct spec_counts sum[TASKS_MAX];
    double ratio[TASKS_MAX][ROUNDS_MAX];
};

struct bench {
    struct qn_engine *engine;
    struct served_engine draft; /* of two-model */
    enum spec_kind draft_kind;  /* of the draft model; SPEC_OFF = none */
    enum spec_kind only;        /* kind of the rows; SPEC_OFF = all */
    struct task tasks[TASKS_MAX];
    struct setting plain, settings[SETTINGS_MAX];
    double plain_us[TASKS_MAX][ROUNDS_MAX]; /* of a token */
    int n_task, n_setting, n_round;
};

/* ---- tasks ---------------------------------------------------------------------------------- */

static enum qn_status add_prompt(struct bench *b, const char *name, const struct json *request,
                                 struct qn_err *err)
{
    struct buf text = BUF_INIT;
    int i = 0;
    while (i < b->n_task && strncmp(b->tasks[i].name, name, sizeof b->tasks[i].name - 1) != 0)
        i++;
    if (i == TASKS_MAX || (i < b->n_task && b->tasks[i].n == PROMPTS_EACH))
        return QN_OK;
    struct task *t = &b->tasks[i];
    enum qn_status st = QN_OK;
    if (json_get(request, "prompt") && !json_get(request, "messages"))
        buf_add_str(&text, json_str(json_get(request, "prompt")));
    else
        st = chat_render(engine_chat(b->engine), request, 0, &text, err);
    if (st == QN_OK)
        st = tok_encode(engine_tok(b->engine), buf_str(&text), TOK_PARSE_SPECIAL, &t->prompts[t->n],
                        err);
    buf_free(&text);
    QN_TRY(st);
    t->n++;
    if (i == b->n_task) {
        const struct json *heat = json_get(request, "temperature");
        t->temperature = heat ? json_real(heat) : 0;
        snprintf(t->name, sizeof t->name, "%s", name);
        b->n_task++;
    }
    return QN_OK;
}

static enum qn_status add_line(struct bench *b, struct str line, const char *name,
                               struct qn_err *err)
{
    struct json *doc = NULL;
    QN_TRY(json_parse(line, "task", JSON_DEPTH_MAX, &doc, err));
    struct buf own = BUF_INIT;
    buf_add_str(&own, json_str(json_get(doc, "task")));
    if (own.n == 0)
        buf_addz(&own, name);
    enum qn_status st = add_prompt(b, buf_z(&own), doc, err);
    buf_free(&own);
    json_free(doc);
    return st;
}

static enum qn_status read_tasks(struct bench *b, const char *path, struct qn_err *err)
{
    struct buf file = BUF_INIT;
    enum qn_status st = file_read(path, FILE_BYTES, &file, err);
    struct str rest = buf_str(&file);
    while (st == QN_OK && rest.n > 0) {
        const char *end = memchr(rest.p, '\n', rest.n);
        size_t n = end ? (size_t)(end - rest.p) : rest.n;
        if (n > 0)
            st = add_line(b, (struct str){rest.p, n}, "task", err);
        rest.p += n + (end != NULL);
        rest.n -= n + (end != NULL);
    }
    buf_free(&file);
    return st;
}

static enum qn_status make_tasks(struct bench *b, const char *path, struct qn_err *err)
{
    if (!engine_chat(b->engine))
        QN_FAIL(err, QN_UNSUPPORTED, WHERE, "--speculation needs a model with a chat template");
    if (path)
        return read_tasks(b, path, err);
    for (size_t i = 0; i < sizeof own_tasks / sizeof own_tasks[0]; i++)
        QN_TRY(add_line(b, str_of(own_tasks[i].request), own_tasks[i].name, err));
    return QN_OK;
}

/* ---- settings ------------------------------------------------------------------------------- */

static void add_setting(struct bench *b, const char *kind, enum spec_kind k, int32_t n, bool fixed)
{
    struct spec_params sp = {.kind = k, .n_draft = n, .fixed = fixed};
    if (k == SPEC_MODEL)
        sp.draft = &b->draft.lm;
    b->settings[b->n_setting++] = (struct setting){.name = kind, .spec = sp};
}

/* As the server does it, and windows that are always as long as can be. */
static enum qn_status make_settings(struct bench *b, struct qn_err *err)
{
    static const int32_t lengths[] = {2, 4, 8};
    bool made_for_it = b->draft_kind == SPEC_DSPARK || b->draft_kind == SPEC_ASSISTANT;
    const struct {
        const char *name;
        enum spec_kind kind;
        bool there;
    } kinds[] = {{"ngram", SPEC_NGRAM, true},
                 {"mtp", SPEC_MTP, qn_mtp_available(b->engine) && !made_for_it},
                 {draft_kinds[b->draft_kind], b->draft_kind, b->draft_kind != SPEC_OFF}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (!kinds[k].there || (b->only != SPEC_OFF && b->only != kinds[k].kind))
            continue;
        add_setting(b, kinds[k].name, kinds[k].kind, 0, false);
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
            add_setting(b, kinds[k].name, kinds[k].kind, lengths[i], true);
    }
    if (b->n_setting == 0)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "nothing to measure: --draft-kind %s needs a model that has it, or --draft-model",
                draft_kinds[b->only]);
    return QN_OK;
}

/* ---- measuring ------------------------------------------------------------------------------ */

static enum qn_status answer(struct sched *s, const struct task *t, int32_t i, struct result *r,
                             struct qn_err *err)
{
    const struct ids *prompt = &t->prompts[i];
    struct gen *g = NULL;
    struct gen_event ev;
    struct gen_params p = {.prompt = prompt->v,
                           .n_prompt = (int32_t)prompt->n,
                           .max_tokens = ANSWER,
                           .sample = sample_params_default()};
    p.sample.temperature = (float)t->temperature;
    p.sample.seed = (uint64_t)i + 1;
    p.sample.n_top = -1;
    QN_TRY(sched_submit(s, &p, &g, err));
    do {
        gen_wait(g, -1, &ev);
        if (ev.kind == GEN_TOKEN)
            r->hash = hash64(&ev.token.id, sizeof ev.token.id, r->hash);
    } while (ev.kind != GEN_DONE && ev.kind != GEN_ERROR);
    if (ev.kind == GEN_ERROR)
        *err = ev.err;
    r->decode_us += ev.usage.decode_us;
    r->tokens += ev.usage.completion_tokens;
    spec_counts_add(&r->spec, &ev.usage.spec);
    gen_free(g);
    return ev.kind == GEN_ERROR ? QN_INTERNAL : QN_OK;
}

static enum qn_status run(struct bench *b, const struct task *t, struct setting *s,
                          struct result *r, struct qn_err *err)
{
    struct lm lm = lm_of_engine(b->engine);
    struct sched_params sp = {.n_lane = 1, .spec = s->spec};
    *r = (struct result){0};
    if (term_interrupted())
        QN_FAIL(err, QN_CANCELLED, WHERE, "interrupted");
    if (!s->sched)
        QN_TRY(sched_create(&lm, engine_tok(b->engine), &sp, &s->sched, err));
    for (int32_t i = 0; i < t->n; i++)
        QN_TRY(answer(s->sched, t, i, r, err));
    return QN_OK;
}

/* round -1 warms up. */
static enum qn_status run_task(struct bench *b, int task, int round, struct qn_err *err)
{
    struct result plain, r;
    QN_TRY(run(b, &b->tasks[task], &b->plain, &plain, err));
    double one = (double)plain.decode_us / (double)(plain.tokens > 0 ? plain.tokens : 1);
    for (int i = 0; i < b->n_setting; i++) {
        struct setting *s = &b->settings[i];
        QN_TRY(run(b, &b->tasks[task], s, &r, err));
        if (r.hash != plain.hash || r.tokens != plain.tokens)
            QN_FAIL(err, QN_INTERNAL, WHERE, "task %s: the answer with %s is a different one",
                    b->tasks[task].name, s->name);
        if (round < 0)
            continue;
        s->ratio[task][round] = (double)plain.decode_us / (double)(r.decode_us ? r.decode_us : 1);
        spec_counts_add(&s->sum[task], &r.spec);
    }
    if (round >= 0)
        b->plain_us[task][round] = one;
    return QN_OK;
}

/* ---- the table ------------------------------------------------------------------------------ */

static void write_row(struct bench *b, struct setting *s, int task, struct buf *out)
{
    const struct spec_counts *c = &s->sum[task];
    double made = (double)(c->rounds + c->accepted);
    buf_addf(out, "%-12s %-10s ", b->tasks[task].name, s->name);
    if (s->spec.fixed)
        buf_addf(out, "%6d", s->spec.n_draft);
    else
        buf_addf(out, "%6s", "auto");
    buf_addf(out, " %8.2fx %8.2f  ", quantile_of(s->ratio[task], (size_t)b->n_round, 0.5),
             c->rounds ? made / (double)c->rounds : 1);
    for (int j = 0; j < 8 && c->rounds > 0 && c->accepted_at[j] > 0; j++)
        buf_addf(out, "%s%.0f", j ? " " : "",
                 100.0 * (double)c->accepted_at[j] / (double)c->rounds);
    buf_addc(out, '\n');
}

static void write_table(struct bench *b, struct buf *out)
{
    buf_addf(out,
             "%s, %d threads, answers of at most %d tokens, %d rounds\n"
             "speed: against the same answers without guesses, median; per step: tokens of a step "
             "with guesses;\naccepted: of the windows, per cent, by place\n\n"
             "%-12s %-10s %6s %9s %8s  %s\n",
             qn_engine_info(b->engine)->name, qn_engine_info(b->engine)->n_thread, ANSWER,
             b->n_round, "task", "kind", "guess", "speed", "per step", "accepted");
    for (int t = 0; t < b->n_task; t++) {
        buf_addf(out, "%-12s %-10s %6s %6.1f/s\n", b->tasks[t].name, "off", "",
                 1e6 / quantile_of(b->plain_us[t], (size_t)b->n_round, 0.5));
        for (int i = 0; i < b->n_setting; i++)
            write_row(b, &b->settings[i], t, out);
    }
}

/* ---- all of it ------------------------------------------------------------------------------ */

static enum qn_status open_models(struct bench *b, const struct bench_spec_params *p,
                                  struct qn_err *err)
{
    struct buf dir = BUF_INIT;
    struct draft_opts draft = p->draft;
    b->only = (enum spec_kind)draft.kind;
    if (!draft.model)
        draft.kind = SPEC_OFF;
    else if (draft.kind < SPEC_MODEL)
        draft.kind = SPEC_MODEL;
    const struct engine_args a = {.threads = p->threads,
                                  .mtp = QN_MTP_DEFAULT,
                                  .draft_kind = draft_opts_kind(&draft),
                                  .draft_model = draft_opts_model(&draft)};
    enum qn_status st = model_arg_find(p->model, &dir, err);
    if (st == QN_OK)
        st = engine_open(buf_z(&dir), &a, &b->engine, err);
    buf_free(&dir);
    QN_TRY(st);
    b->draft_kind = (enum spec_kind)draft.kind;
    struct lm lm = lm_of_engine(b->engine);
    const struct draft_target t = {.lm = &lm, .tok = engine_tok(b->engine), .threads = p->threads};
    struct spec_params ignored;
    return draft_opts_open(&draft, &t, &b->draft, &ignored, err);
}

static void free_all(struct bench *b)
{
    for (int t = 0; t < b->n_task; t++)
        for (int i = 0; i < b->tasks[t].n; i++)
            ids_free(&b->tasks[t].prompts[i]);
    if (b->plain.sched)
        sched_free(b->plain.sched);
    for (int i = 0; i < b->n_setting; i++)
        if (b->settings[i].sched)
            sched_free(b->settings[i].sched);
    served_close(&b->draft);
    qn_engine_free(b->engine);
    free(b);
}

enum qn_status bench_spec(const struct bench_spec_params *p, struct buf *out, struct qn_err *err)
{
    struct bench *b = calloc(1, sizeof *b);
    if (!b)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory");
    b->n_round = (int)(p->repeat < ROUNDS_MAX ? p->repeat : ROUNDS_MAX);
    enum qn_status st = open_models(b, p, err);
    if (st == QN_OK)
        st = make_tasks(b, p->tasks, err);
    if (st == QN_OK)
        st = make_settings(b, err);
    for (int round = -1; round < b->n_round; round++)
        for (int t = 0; t < b->n_task && st == QN_OK; t++)
            st = run_task(b, t, round, err);
    if (st == QN_OK)
        write_table(b, out);
    free_all(b);
    return st;
}
