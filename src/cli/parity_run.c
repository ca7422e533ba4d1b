/*
 * parity_run.c - see parity_run.h. Logits are looked at chunk by chunk and not kept; a hash of each
 * row says whether another cut of the prompt gave the same bits.
 */
#include "cli/parity_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "model/logits.h"

enum { CHUNK = 32, OTHER_CHUNK = 7 };

struct run {
    struct qn_engine *e;
    const struct golden_prompt *p;
    struct parity_row *row;
    double margin;
    float *logits; /* [CHUNK, vocab] */
    int32_t vocab, n_agree;
    uint64_t *hash; /* [n_ids] of the first pass */
    bool first;
};

static void compare(struct run *r, const float *got, const float *want)
{
    struct parity_row *o = r->row;
    double sw = logits_log_sum(want, r->vocab), sg = logits_log_sum(got, r->vocab), sum = 0, kl = 0;
    for (int32_t i = 0; i < r->vocab; i++) {
        double d = fabs((double)got[i] - (double)want[i]), lw = (double)want[i] - sw;
        sum += d;
        o->max = d <= o->max ? o->max : d; /* a NaN stays */
        kl += exp(lw) * (lw - ((double)got[i] - sg));
    }
    o->mean += sum / r->vocab;
    o->kl += kl;
    if (logits_best(got, r->vocab) == logits_best(want, r->vocab))
        r->n_agree++;
    o->n_row++;
}

/* The engine's choice at greedy step j against the golden's. */
static void judge(struct run *r, const float *got, int32_t j)
{
    struct parity_row *o = r->row;
    if (j >= r->p->n_greedy || o->greedy_wrong >= 0 || o->n_greedy != j)
        return;
    if (r->p->margins[j] < r->margin)
        return;
    if (logits_best(got, r->vocab) == r->p->greedy[j])
        o->n_greedy = j + 1;
    else
        o->greedy_wrong = j;
}

static void compare_top(struct run *r, const float *got)
{
    double s = logits_log_sum(got, r->vocab);
    for (int32_t i = 0; i < r->p->n_top; i++)
        r->row->top_off =
            fmax(r->row->top_off, fabs((double)got[r->p->top_id[i]] - s - r->p->top_logprob[i]));
}

/* Row `at` of the prompt's own tokens. */
static void prompt_row(struct run *r, const float *got, int32_t at)
{
    uint64_t h = hash64(got, (size_t)r->vocab * sizeof *got, 0);
    if (!r->first) {
        r->row->varies |= h != r->hash[at];
        return;
    }
    r->hash[at] = h;
    if (r->p->full)
        compare(r, got, r->p->full + (size_t)at * (size_t)r->vocab);
    if (at != r->p->n_ids - 1)
        return;
    compare_top(r, got);
    judge(r, got, 0);
}

static enum qn_status read_prompt(struct run *r, struct qn_seq *s, int32_t chunk,
                                  struct qn_err *err)
{
    for (int32_t i = 0; i < r->p->n_ids; i += chunk) {
        int32_t m = r->p->n_ids - i < chunk ? r->p->n_ids - i : chunk;
        struct qn_step_item it = {s, r->p->ids + i, m, m, r->logits};
        QN_TRY(qn_engine_step(r->e, &it, 1, err));
        for (int32_t k = 0; k < m; k++)
            prompt_row(r, r->logits + (size_t)k * (size_t)r->vocab, i + k);
    }
    return QN_OK;
}

/* The golden's own greedy ids are fed, so that one difference does not hide the rest. */
static enum qn_status read_greedy(struct run *r, struct qn_seq *s, struct qn_err *err)
{
    for (int32_t j = 0; j < r->p->n_greedy; j++) {
        struct qn_step_item it = {s, &r->p->greedy[j], 1, 1, r->logits};
        if (j >= r->p->n_decode && (r->row->greedy_wrong >= 0 || r->row->n_greedy <= j))
            return QN_OK; /* nothing left to judge */
        QN_TRY(qn_engine_step(r->e, &it, 1, err));
        if (j < r->p->n_decode)
            compare(r, r->logits, r->p->decode + (size_t)j * (size_t)r->vocab);
        judge(r, r->logits, j + 1);
    }
    return QN_OK;
}

static enum qn_status pass(struct run *r, int32_t chunk, struct qn_err *err)
{
    struct qn_seq *s = NULL;
    QN_TRY(qn_seq_create(r->e, &s, err));
    int32_t max = qn_step_max_rows(r->e);
    enum qn_status st = read_prompt(r, s, chunk < max ? chunk : max, err);
    if (st == QN_OK && r->first)
        st = read_greedy(r, s, err);
    qn_seq_free(s);
    return st;
}

static enum qn_status run_prompt(struct run *r, struct qn_err *err)
{
    *r->row = (struct parity_row){.greedy_wrong = -1, .top_off = r->p->n_top ? 0 : -1};
    r->n_agree = 0;
    r->hash = calloc((size_t)r->p->n_ids, sizeof *r->hash);
    if (!r->hash)
        QN_FAIL(err, QN_NO_MEMORY, "parity", "out of memory for %d rows", r->p->n_ids);
    r->first = true;
    enum qn_status st = pass(r, CHUNK, err);
    r->first = false;
    if (st == QN_OK)
        st = pass(r, OTHER_CHUNK, err);
    free(r->hash);
    if (r->row->n_row) {
        r->row->mean /= r->row->n_row;
        r->row->kl /= r->row->n_row;
        r->row->top1 = (double)r->n_agree / r->row->n_row;
    }
    return st;
}

static void add_up(struct parity *out)
{
    struct parity_row *a = &out->all;
    *a = (struct parity_row){.greedy_wrong = -1, .top_off = -1};
    for (int32_t i = 0; i < out->n; i++) {
        const struct parity_row *r = &out->rows[i];
        a->mean += r->mean * r->n_row;
        a->kl += r->kl * r->n_row;
        a->top1 += r->top1 * r->n_row;
        a->n_row += r->n_row;
        a->max = r->max <= a->max ? a->max : r->max;
        a->top_off = fmax(a->top_off, r->top_off);
        a->n_greedy += r->n_greedy;
        a->varies |= r->varies;
        if (r->greedy_wrong >= 0)
            a->greedy_wrong = r->greedy_wrong;
    }
    if (a->n_row) {
        a->mean /= a->n_row;
        a->kl /= a->n_row;
        a->top1 /= a->n_row;
    }
}

static enum qn_status run_text(struct run *r, const struct golden *g, struct parity *out,
                               struct qn_err *err)
{
    struct qn_seq *s = NULL;
    double got = 0, want = 0;
    QN_TRY(qn_seq_create(r->e, &s, err));
    enum qn_status st = QN_OK;
    for (int32_t i = 0; st == QN_OK && i < g->n_text - 1; i += CHUNK) {
        int32_t m = g->n_text - 1 - i < CHUNK ? g->n_text - 1 - i : CHUNK;
        struct qn_step_item it = {s, g->text + i, m, m, r->logits};
        st = qn_engine_step(r->e, &it, 1, err);
        for (int32_t k = 0; st == QN_OK && k < m; k++) {
            const float *row = r->logits + (size_t)k * (size_t)r->vocab;
            got += logits_log_sum(row, r->vocab) - (double)row[g->text[i + k + 1]];
            want += g->nll[i + k];
        }
    }
    qn_seq_free(s);
    out->nll = got / (g->n_text - 1);
    out->nll_golden = want / (g->n_text - 1);
    return st;
}

enum qn_status parity_run(struct qn_engine *e, const struct golden *g,
                          const struct parity_params *p, struct parity *out, struct qn_err *err)
{
    struct run r = {.e = e, .margin = p->margin, .vocab = qn_engine_info(e)->n_vocab};
    *out = (struct parity){.nll = NAN, .nll_golden = NAN};
    r.logits = malloc((size_t)CHUNK * (size_t)r.vocab * sizeof *r.logits);
    if (!r.logits)
        QN_FAIL(err, QN_NO_MEMORY, "parity", "out of memory for %d rows of logits", CHUNK);
    enum qn_status st = QN_OK;
    for (int32_t i = 0; st == QN_OK && i < g->n; i++) {
        if (p->cancelled && p->cancelled())
            st = err_set(err, QN_CANCELLED, "parity", "interrupted");
        r.p = &g->p[i];
        r.row = &out->rows[i];
        if (st == QN_OK)
            st = run_prompt(&r, err);
        out->n = i + 1;
        if (p->progress)
            p->progress(p->arg, (double)out->n / g->n);
    }
    if (st == QN_OK && g->n_text)
        st = run_text(&r, g, out, err);
    add_up(out);
    free(r.logits);
    return st;
}
