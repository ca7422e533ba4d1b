/*
 * cmd_parity.c - `quern parity`: a model beside a golden, in the reference arithmetic and in the
 * canonical one, with a verdict on each and an exit code. Main thread.
 */
#include <math.h>

#include "cli/model_arg.h"
#include "cli/parity_run.h"
#include "cli/progress.h"
#include "cli/term.h"
#include "cli/verbs.h"

enum arith_choice { BOTH, REFERENCE, CANONICAL };

struct parity_opts {
    const char *kv_quant;
    int arith;
    int64_t threads;
    double max_diff, kl, margin;
    bool json;
};

static const char *const arith_names[] = {"both", "reference", "canonical", NULL};

static const struct cli_opt parity_opts[] = {
    CLI_OPT_KV_QUANT(struct parity_opts),
    {.name = "arith",
     .type = CLI_ENUM,
     .arg = "KIND",
     .choices = arith_names,
     .def = "both",
     .help = "Arithmetic to compare: the reference (float32, slow, the truth), the canonical one "
             "that answers requests, or both.",
     .off = CLI_AT_ENUM(struct parity_opts, arith)},
    {.name = "max-diff",
     .type = CLI_REAL,
     .arg = "X",
     .min = 0,
     .max = 1000,
     .def = "0.001",
     .help = "The reference arithmetic fails when a logit is farther than this from the golden.",
     .off = CLI_AT_REAL(struct parity_opts, max_diff)},
    {.name = "kl",
     .type = CLI_REAL,
     .arg = "NATS",
     .min = 1e-12,
     .max = 1000,
     .def_text = "0.001, or what the golden states with its reason",
     .help =
         "The canonical arithmetic fails when its mean KL divergence from the golden is larger.",
     .off = CLI_AT_REAL(struct parity_opts, kl)},
    {.name = "margin",
     .type = CLI_REAL,
     .arg = "X",
     .min = 0,
     .max = 1000,
     .def = "0.05",
     .help = "Greedy ids are compared up to the first step whose two best logits are closer than "
             "this (0.002 in the reference arithmetic).",
     .off = CLI_AT_REAL(struct parity_opts, margin)},
    CLI_OPT_THREADS(struct parity_opts),
    {.name = "json",
     .type = CLI_FLAG,
     .help = "Print one JSON object.",
     .off = CLI_AT_FLAG(struct parity_opts, json)},
    {.type = CLI_END},
};

#define REFERENCE_MARGIN 2e-3
#define KL_DEFAULT       1e-3

/* Why a comparison fails, or NULL. */
static const char *verdict(const struct parity_opts *o, bool reference, const struct parity *p)
{
    const struct parity_row *a = &p->all;
    if (a->varies)
        return "logits depend on how the prompt was cut";
    if (a->greedy_wrong >= 0)
        return "a greedy id differs before any near-tie";
    if (!isfinite(a->mean) || !isfinite(a->kl))
        return "logits are not finite";
    if (reference && a->n_row && !(a->max <= o->max_diff))
        return "a logit is farther from the golden than --max-diff";
    if (!reference && a->n_row && !(a->kl <= o->kl))
        return "the mean KL divergence is above --kl";
    return NULL;
}

/* ---- text ----------------------------------------------------------------------------------- */

static void text_row(struct buf *out, const char *name, const struct parity_row *r)
{
    buf_addf(out, "  %-7s", name);
    if (r->n_row)
        buf_addf(out, " %6d %10.3g %10.3g %10.3g %8.2f", r->n_row, r->mean, r->max, r->kl,
                 100 * r->top1);
    else
        buf_addf(out, " %6s %10s %10s %10s %8s", "-", "-", "-", "-", "-");
    if (r->top_off >= 0)
        buf_addf(out, " %10.3g", r->top_off);
    else
        buf_addf(out, " %10s", "-");
    buf_addf(out, " %7d%s%s\n", r->n_greedy, r->greedy_wrong >= 0 ? "  differs then" : "",
             r->varies ? "  depends on chunks" : "");
}

static void text_report(const struct parity_opts *o, bool reference, const struct parity *p,
                        struct buf *out)
{
    const char *why = verdict(o, reference, p);
    char name[16];
    buf_addf(out, "%s arithmetic\n  %-7s %6s %10s %10s %10s %8s %10s %7s\n",
             reference ? "reference" : "canonical", "prompt", "rows", "mean |d|", "max |d|", "KL",
             "top-1 %", "top logp", "greedy");
    for (int32_t i = 0; i < p->n; i++) {
        snprintf(name, sizeof name, "%d", i);
        text_row(out, name, &p->rows[i]);
    }
    text_row(out, "all", &p->all);
    if (!isnan(p->nll))
        buf_addf(out, "  text: %.6f nats per token; the golden says %.6f\n", p->nll, p->nll_golden);
    buf_addf(out, "  %s%s\n", why ? "OUTSIDE: " : "within the limits", why ? why : "");
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void json_row(struct jw *w, const struct parity_row *r)
{
    jw_obj(w);
    jw_ki64(w, "rows", r->n_row);
    jw_kreal(w, "mean_abs", r->mean);
    jw_kreal(w, "max_abs", r->max);
    jw_kreal(w, "kl", r->kl);
    jw_kreal(w, "top1", r->top1);
    if (r->top_off >= 0)
        jw_kreal(w, "top_logprob_off", r->top_off);
    jw_ki64(w, "greedy_equal", r->n_greedy);
    jw_kbool(w, "greedy_differs", r->greedy_wrong >= 0);
    jw_kbool(w, "depends_on_chunks", r->varies);
    jw_obj_end(w);
}

static void json_report(const struct parity_opts *o, bool reference, const struct parity *p,
                        struct jw *w)
{
    const char *why = verdict(o, reference, p);
    jw_key(w, reference ? "reference" : "canonical");
    jw_obj(w);
    jw_key(w, "prompts");
    jw_arr(w);
    for (int32_t i = 0; i < p->n; i++)
        json_row(w, &p->rows[i]);
    jw_arr_end(w);
    jw_key(w, "all");
    json_row(w, &p->all);
    if (!isnan(p->nll)) {
        jw_kreal(w, "text_nll", p->nll);
        jw_kreal(w, "text_nll_golden", p->nll_golden);
    }
    jw_kbool(w, "within", !why);
    if (why)
        jw_kstrz(w, "why", why);
    jw_obj_end(w);
}

/* ---- running -------------------------------------------------------------------------------- */

struct job {
    struct parity_opts *o; /* kl: filled in from the golden when it was not given */
    char kl_why[400];      /* of a limit that the golden states */
    const char *dir, *golden;
    struct parity result[2]; /* reference, canonical */
    bool have[2];
};

static void on_progress(void *arg, double done)
{
    progress_set(arg, done);
}

static enum qn_status compare(struct job *j, bool reference, struct qn_err *err)
{
    struct golden g;
    struct qn_engine *e = NULL;
    struct progress line;
    struct qn_engine_params p = {
        .model_dir = j->dir,
        .n_thread = (int32_t)j->o->threads,
        .arith = reference ? QN_ARITH_REFERENCE : QN_ARITH_CANONICAL,
        .kv_quant = j->o->kv_quant,
        .weights_only = true,
    };
    QN_TRY(qn_engine_open(&p, &e, err));
    enum qn_status st = golden_open(j->golden, qn_engine_info(e)->n_vocab, &g, err);
    if (st == QN_OK && j->o->kl == 0) {
        j->o->kl = g.kl > 0 ? g.kl : KL_DEFAULT;
        snprintf(j->kl_why, sizeof j->kl_why, "%.*s", (int)(g.kl_why.n < 390 ? g.kl_why.n : 390),
                 g.kl > 0 ? g.kl_why.p : "");
    }
    if (st == QN_OK) {
        progress_start(&line, reference ? "Reference" : "Canonical", NULL, 1);
        struct parity_params pp = {.margin = reference ? REFERENCE_MARGIN : j->o->margin,
                                   .progress = on_progress,
                                   .arg = &line,
                                   .cancelled = term_interrupted};
        st = parity_run(e, &g, &pp, &j->result[!reference], err);
        progress_end(&line);
        golden_close(&g);
    }
    j->have[!reference] = st == QN_OK;
    qn_engine_free(e);
    return st;
}

static enum qn_status run_job(struct job *j, struct qn_err *err)
{
    if (j->o->arith != CANONICAL)
        QN_TRY(compare(j, true, err));
    if (j->o->arith != REFERENCE)
        QN_TRY(compare(j, false, err));
    return QN_OK;
}

static void write_report(const struct job *j, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    if (j->o->json) {
        jw_obj(&w);
        jw_kstrz(&w, "model", j->dir);
        jw_kstrz(&w, "golden", j->golden);
    } else {
        buf_addf(out, "model   %s\ngolden  %s\n\n", j->dir, j->golden);
    }
    for (int i = 0; i < 2; i++) {
        if (j->have[i] && j->o->json)
            json_report(j->o, i == 0, &j->result[i], &w);
        else if (j->have[i])
            text_report(j->o, i == 0, &j->result[i], out);
    }
    if (j->have[1] && j->kl_why[0] && !j->o->json)
        buf_addf(out, "  the golden allows a mean KL of %g: %s\n", j->o->kl, j->kl_why);
    if (j->have[1] && j->o->json)
        jw_kreal(&w, "kl_limit", j->o->kl);
    if (j->o->json) {
        jw_obj_end(&w);
        buf_addc(out, '\n');
    }
}

static int run_parity(const struct cli *c, void *opts)
{
    static struct job j; /* tens of kilobytes: not for the stack */
    struct qn_err err = {0};
    struct buf dir = BUF_INIT, out = BUF_INIT;
    j = (struct job){.o = opts, .golden = c->pos[1]};
    term_catch_interrupt(true);
    enum qn_status st = model_arg_find(c->pos[0], &dir, &err);
    j.dir = buf_z(&dir);
    if (st == QN_OK)
        st = run_job(&j, &err);
    int rc = st == QN_OK ? CLI_OK : cli_fail(c, &err);
    if (st == QN_OK)
        write_report(&j, &out);
    if (st == QN_OK && !cli_write(c, buf_str(&out)))
        rc = CLI_FAILED;
    for (int i = 0; i < 2; i++)
        if (st == QN_OK && j.have[i] && verdict(j.o, i == 0, &j.result[i]))
            rc = CLI_FAILED;
    buf_free(&out);
    buf_free(&dir);
    return rc;
}

const struct cli_verb verb_parity = {
    .name = "parity",
    .summary = "compare a model with float32 results of another program",
    .usage = "[options] MODEL GOLDEN.json",
    .about = "Runs the prompts of a golden and prints how far the logits are from its float32 "
             "results: mean and largest difference, KL divergence in nats, rows whose best token "
             "is the same, and greedy ids equal up to the first near-tie. Each prompt is read "
             "twice in different pieces; the logits must be the same bits.\n\n"
             "Exits with 1 when a comparison is outside its limits. tools/make_golden.py makes a "
             "golden of your own model with mlx-lm; docs/parity.md describes the file.",
    .examples = "quern parity ~/models/my-model my-model.json\n"
                "quern parity --arith canonical --json smollm2 golden.json",
    .opts = parity_opts,
    .opts_size = sizeof(struct parity_opts),
    .pos_min = 2,
    .pos_max = 2,
    .pos_name = "MODEL GOLDEN",
    .run = run_parity,
};
