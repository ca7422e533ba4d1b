/*
 * sample.c - penalties, filters and the draw; see sample.h for the order and the rules.
 *
 * top_p, min_p and top_k each keep an upper part of the row, so each is a threshold on the logit
 * (top_k also a count among equals). A first cut that provably keeps all survivors leaves few
 * candidates, in id order; everything after works on those. All scratch memory is allocated with
 * the sampler; a draw allocates only when its history grows.
 */
#include "sched/sample.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/rng.h"
#include "sched/rowmath.h"
#include "sched/tally.h"

#define WHERE "sample"
enum { STREAM_DRAW = 0, STREAM_XTC = 1 };

struct cands {
    int32_t *id; /* ascending */
    float *x;    /* logits */
    float *w;    /* weights: exp(x - top), at the end with temperature */
    int32_t n;
};

struct sampler {
    struct sample_params p;
    int32_t n_vocab;
    struct logit_bias *bias;
    int32_t *no_xtc; /* sorted */
    int32_t n_no_xtc;
    int32_t *hist; /* prompt and answer, while the repetition penalty has a window */
    int64_t n_hist, cap_hist;
    struct tally seen;     /* prompt and answer inside the window */
    struct tally made;     /* answer */
    float *bmax;           /* [row_blocks(n_vocab)] */
    double *bsum;          /* same; sums of weights */
    float *w;              /* [n_vocab] weights of the unfiltered row; NULL when filtered */
    struct cands c;        /* [n_vocab + 1] when filtered */
    const uint64_t *allow; /* of the next draw */
    float *raw; /* [n_vocab] the row before `allow`, for its logprobs; made when needed */
    bool no_memory;
};

struct sample_params sample_params_default(void)
{
    return (struct sample_params){
        .temperature = 0.7f, .top_p = 1, .repetition_penalty = 1, .n_top = -1};
}

/* ---- parameters --------------------------------------------------------------------------- */

enum qn_status sample_params_check(const struct sample_params *p, int32_t n_vocab,
                                   struct qn_err *err)
{
    const struct {
        const char *name;
        double v, min, max;
        bool open; /* min itself is out */
    } range[] = {
        {"temperature", p->temperature, 0, 2, false},
        {"top_p", p->top_p, 0, 1, true},
        {"min_p", p->min_p, 0, 1, false},
        {"top_k", p->top_k, 0, INT32_MAX, false},
        {"xtc_probability", p->xtc_probability, 0, 1, false},
        {"xtc_threshold", p->xtc_threshold, 0, 0.5, false},
        {"repetition_penalty", p->repetition_penalty, 0, FLT_MAX, true},
        {"repetition_window", p->repetition_window, 0, INT32_MAX, false},
        {"presence_penalty", p->presence_penalty, -2, 2, false},
        {"frequency_penalty", p->frequency_penalty, -2, 2, false},
        {"top_logprobs", p->n_top, -1, SAMPLE_TOP_MAX, false},
        {"logit_bias count", p->n_bias, 0, INT32_MAX, false},
    };
    for (size_t i = 0; i < sizeof range / sizeof range[0]; i++) {
        if (range[i].v >= range[i].min && range[i].v <= range[i].max &&
            !(range[i].open && range[i].v == range[i].min))
            continue; /* written so that NaN fails */
        if (range[i].max >= INT32_MAX)
            QN_FAIL(err, QN_BAD_INPUT, WHERE, "%s is %g; expected a number %s %g", range[i].name,
                    range[i].v, range[i].open ? "above" : "of at least", range[i].min);
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%s is %g; expected a number %s %g and at most %g",
                range[i].name, range[i].v, range[i].open ? "above" : "of at least", range[i].min,
                range[i].max);
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        struct logit_bias b = p->bias[i];
        if (b.id < 0 || b.id >= n_vocab)
            QN_FAIL(err, QN_BAD_INPUT, WHERE,
                    "logit_bias names token %d; the model's ids are 0 to %d", b.id, n_vocab - 1);
        if (!(b.bias >= -100 && b.bias <= 100))
            QN_FAIL(err, QN_BAD_INPUT, WHERE, "logit_bias of token %d is %g; expected -100 to 100",
                    b.id, (double)b.bias);
    }
    return QN_OK;
}

static bool has_filter(const struct sample_params *p)
{
    return p->top_p < 1 || p->min_p > 0 || p->top_k > 0 || p->xtc_probability > 0;
}

/* ---- life --------------------------------------------------------------------------------- */

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* malloc(count * size) that succeeds for 0 and fails on overflow. */
static void *alloc_n(int64_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow((size_t)count, size, &bytes) || fault_point("sched.alloc"))
        return NULL;
    return malloc(bytes ? bytes : 1);
}

/* Scratch for one draw, only what these parameters use. */
static bool alloc_scratch(struct sampler *s)
{
    int64_t n = s->n_vocab;
    s->bmax = alloc_n(row_blocks(s->n_vocab), sizeof *s->bmax);
    s->bsum = alloc_n(row_blocks(s->n_vocab), sizeof *s->bsum);
    if (!s->bmax || !s->bsum)
        return false;
    if (s->p.temperature <= 0)
        return true;
    if (!has_filter(&s->p)) {
        s->w = alloc_n(n, sizeof *s->w);
        return s->w != NULL;
    }
    s->c.id = alloc_n(n + 1, sizeof *s->c.id);
    s->c.x = alloc_n(n + 1, sizeof *s->c.x);
    s->c.w = alloc_n(n + 1, sizeof *s->c.w);
    return s->c.id && s->c.x && s->c.w;
}

enum qn_status sampler_create(const struct sample_params *p, int32_t n_vocab, const int32_t *no_xtc,
                              int32_t n_no_xtc, struct sampler **out, struct qn_err *err)
{
    QN_ASSERT(n_vocab >= 1 && n_vocab < INT32_MAX);
    QN_TRY(sample_params_check(p, n_vocab, err));
    struct sampler *s = fault_point("sched.alloc") ? NULL : calloc(1, sizeof *s);
    if (!s)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for a sampler");
    s->p = *p;
    s->p.bias = NULL;
    s->n_vocab = n_vocab;
    s->bias = alloc_n(p->n_bias, sizeof *s->bias);
    s->no_xtc = alloc_n(n_no_xtc, sizeof *s->no_xtc);
    if (!s->bias || !s->no_xtc || !alloc_scratch(s)) {
        sampler_free(s);
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory to sample from %d tokens", n_vocab);
    }
    if (p->n_bias > 0)
        memcpy(s->bias, p->bias, (size_t)p->n_bias * sizeof *s->bias);
    for (int32_t i = 0; i < n_no_xtc; i++)
        s->no_xtc[s->n_no_xtc++] = no_xtc[i];
    qsort(s->no_xtc, (size_t)s->n_no_xtc, sizeof *s->no_xtc, by_id);
    *out = s;
    return QN_OK;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->bias);
    free(s->no_xtc);
    free(s->hist);
    free(s->bmax);
    free(s->bsum);
    free(s->w);
    free(s->raw);
    free(s->c.id);
    free(s->c.x);
    free(s->c.w);
    tally_free(&s->seen);
    tally_free(&s->made);
    free(s);
}

/* ---- history ------------------------------------------------------------------------------ */

/* One more token of prompt or answer; the one that leaves the window is counted off. */
static bool hist_add(struct sampler *s, int32_t id)
{
    if (s->p.repetition_penalty == 1)
        return true;
    if (!tally_add(&s->seen, id, 1))
        return false;
    if (s->p.repetition_window == 0)
        return true;
    if (s->n_hist == s->cap_hist) {
        int64_t cap = s->cap_hist ? s->cap_hist * 2 : 256;
        int32_t *hist =
            fault_point("sched.alloc") ? NULL : realloc(s->hist, (size_t)cap * sizeof *hist);
        if (!hist)
            return false;
        s->hist = hist;
        s->cap_hist = cap;
    }
    s->hist[s->n_hist++] = id;
    int64_t leaves = s->n_hist - 1 - s->p.repetition_window;
    return leaves < 0 || tally_add(&s->seen, s->hist[leaves], -1);
}

void sampler_prompt(struct sampler *s, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n && !s->no_memory; i++)
        if (ids[i] >= 0 && ids[i] < s->n_vocab)
            s->no_memory = !hist_add(s, ids[i]);
}

static void penalise(struct sampler *s, float *x)
{
    const struct sample_params *p = &s->p;
    for (int32_t i = 0; i < p->n_bias; i++)
        x[s->bias[i].id] += s->bias[i].bias;
    for (int32_t i = 0; i < s->seen.n; i++) {
        float *l = &x[s->seen.e[i].id];
        if (s->seen.e[i].count > 0)
            *l = *l < 0 ? *l * p->repetition_penalty : *l / p->repetition_penalty;
        if (*l > 1e30f && *l <= INFINITY) /* a tiny penalty must not overflow to infinity */
            *l = 1e30f;
    }
    for (int32_t i = 0; i < s->made.n; i++) {
        float *l = &x[s->made.e[i].id];
        *l -= p->presence_penalty;
        *l -= p->frequency_penalty * (float)s->made.e[i].count;
    }
}

/* ---- logprobs ----------------------------------------------------------------------------- */

static enum qn_status scan(struct sampler *s, const float *x, struct row_max *top,
                           struct qn_err *err)
{
    *top = row_scan(x, s->n_vocab, s->bmax);
    if (top->nan)
        QN_FAIL(err, QN_INTERNAL, WHERE, "the model gave NaN logits");
    if (!isfinite(top->v))
        QN_FAIL(err, QN_INTERNAL, WHERE, "the model gave %s",
                top->v > 0 ? "an infinite logit" : "no finite logit");
    return QN_OK;
}

static float logprob_of(float x, float top, double log_sum)
{
    double lp = ((double)x - (double)top) - log_sum;
    if (!(lp > SAMPLE_LOGPROB_FLOOR))
        return SAMPLE_LOGPROB_FLOOR;
    return lp < 0 ? (float)lp : 0;
}

/* Fills logprob and the alternatives of out->id; n_top >= 0. */
static void report(struct sampler *s, const float *x, float top, struct sampled *out)
{
    double log_sum = log(row_exp(x, s->n_vocab, top, 1, NULL, NULL));
    int32_t ids[SAMPLE_TOP_MAX];
    out->logprob = logprob_of(x[out->id], top, log_sum);
    out->n_top = s->p.n_top < s->n_vocab ? s->p.n_top : s->n_vocab;
    row_top(x, s->n_vocab, s->bmax, out->n_top, ids);
    for (int32_t i = 0; i < out->n_top; i++) {
        out->top[i].id = ids[i];
        out->top[i].logprob = logprob_of(x[ids[i]], top, log_sum);
    }
}

enum qn_status sampler_score(struct sampler *s, const float *logits, int32_t id,
                             struct sampled *out, struct qn_err *err)
{
    struct row_max top;
    *out = (struct sampled){.id = id, .n_top = -1};
    QN_ASSERT(id >= 0 && id < s->n_vocab);
    QN_TRY(scan(s, logits, &top, err));
    if (s->p.n_top >= 0)
        report(s, logits, top.v, out);
    return QN_OK;
}

/* ---- filters ------------------------------------------------------------------------------ */

/* A value that no survivor lies under: from top_p, min_p and, while xtc takes nothing from the top,
 * top_k. *mass gets the sum of exp(x - top) over the whole row when top_p needs it. */
static float first_cut(const struct sampler *s, const float *x, float top, bool xtc, double *mass)
{
    float cut = -FLT_MAX;
    *mass = 0;
    if (s->p.top_p < 1) {
        /* n tokens under top - d weigh at most n e^-d; with d = ln(n / ((1 - p) mass)) the rest
         * still holds p of the mass. The margin covers the rounding of the sums. */
        *mass = row_exp(x, s->n_vocab, top, 1, NULL, NULL);
        double d = log(s->n_vocab / ((1.0 - (double)s->p.top_p) * *mass));
        cut = fmaxf(cut, top - (float)fmax(d, 0) - 0.01f);
    }
    if (s->p.min_p > 0)
        cut = fmaxf(cut, top + logf(s->p.min_p));
    /* The k highest block maxima are k different tokens. */
    if (s->p.top_k > 0 && !xtc && s->p.top_k <= row_blocks(s->n_vocab))
        cut = fmaxf(cut, row_select(s->bmax, NULL, row_blocks(s->n_vocab), top, s->p.top_k));
    return cut;
}

static void gather(struct sampler *s, const float *x, float cut)
{
    struct cands *c = &s->c;
    int32_t n = 0;
    for (int32_t b = 0; b < row_blocks(s->n_vocab); b++) {
        if (s->bmax[b] < cut)
            continue;
        int32_t from = b * ROW_BLOCK;
        int32_t end = s->n_vocab - from < ROW_BLOCK ? s->n_vocab : from + ROW_BLOCK;
        for (int32_t i = from; i < end; i++) { /* without a branch: the arrays have one to spare */
            c->id[n] = i;
            c->x[n] = x[i];
            n += x[i] >= cut;
        }
    }
    c->n = n;
}

static void keep(struct cands *c, int32_t i, int32_t *n)
{
    c->id[*n] = c->id[i];
    c->x[*n] = c->x[i];
    c->w[*n] = c->w[i];
    (*n)++;
}

static void cut_top_p(struct cands *c, float top, double target)
{
    float t = row_select(c->x, c->w, c->n, top, target);
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++)
        if (c->x[i] >= t)
            keep(c, i, &n);
    c->n = n;
}

/* Equal to `p > threshold` on the softmax of what is left; nothing goes unless two tokens pass. */
static void cut_xtc(struct sampler *s)
{
    struct cands *c = &s->c;
    double total = 0;
    for (int32_t i = 0; i < c->n; i++)
        total += (double)c->w[i];
    double bar = (double)s->p.xtc_threshold * total;
    float least = INFINITY;
    for (int32_t i = 0; i < c->n; i++)
        if ((double)c->w[i] > bar && c->w[i] < least)
            least = c->w[i];
    int32_t n = 0;
    for (int32_t i = 0; i < c->n; i++)
        if (c->w[i] <= least ||
            bsearch(&c->id[i], s->no_xtc, (size_t)s->n_no_xtc, sizeof *s->no_xtc, by_id))
            keep(c, i, &n);
    c->n = n;
}

static void cut_top_k(struct cands *c, float top, int32_t k)
{
    if (k >= c->n)
        return;
    float t = row_select(c->x, NULL, c->n, top, k);
    int32_t above = 0, n = 0;
    for (int32_t i = 0; i < c->n; i++)
        above += c->x[i] > t;
    int32_t equal = k - above;
    for (int32_t i = 0; i < c->n; i++)
        if (c->x[i] > t || (c->x[i] == t && equal-- > 0))
            keep(c, i, &n);
    c->n = n;
}

/* The tokens that may come, with their weights at this temperature; returns the weights' sum. */
static double survivors(struct sampler *s, const float *x, float top, int64_t position)
{
    struct cands *c = &s->c;
    const struct sample_params *p = &s->p;
    double mass;
    bool xtc = p->xtc_probability > 0 &&
               rng_unit(p->seed, STREAM_XTC, (uint64_t)position) < (double)p->xtc_probability;
    gather(s, x, first_cut(s, x, top, xtc, &mass));
    if (p->top_p < 1 || xtc)
        row_exp(c->x, c->n, top, 1, c->w, NULL);
    if (p->top_p < 1)
        cut_top_p(c, top, (double)p->top_p * mass);
    if (xtc)
        cut_xtc(s);
    if (p->top_k > 0)
        cut_top_k(c, top, p->top_k);
    float high = -FLT_MAX;
    for (int32_t i = 0; i < c->n; i++)
        high = c->x[i] > high ? c->x[i] : high;
    row_exp(c->x, c->n, high, 1 / fmaxf(p->temperature, 1e-5f), c->w, NULL);
    double total = 0;
    for (int32_t i = 0; i < c->n; i++)
        total += (double)c->w[i];
    return total;
}

/* ---- the draw ----------------------------------------------------------------------------- */

/* The first index whose running sum passes u * total; rounding at the end falls on the last one
 * that weighs anything. */
static int32_t walk(const float *w, int32_t n, double at)
{
    int32_t last = 0;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        if (w[i] <= 0)
            continue;
        sum += (double)w[i];
        last = i;
        if (sum > at)
            break;
    }
    return last;
}

static int32_t draw_plain(struct sampler *s, const float *x, float top, double u)
{
    double total = row_exp(x, s->n_vocab, top, 1 / fmaxf(s->p.temperature, 1e-5f), s->w, s->bsum);
    double at = u * total;
    int32_t b = 0, last = 0;
    for (; b < row_blocks(s->n_vocab); b++) {
        if (s->bsum[b] > 0)
            last = b;
        if (s->bsum[b] > at)
            break;
        at -= s->bsum[b];
    }
    if (b == row_blocks(s->n_vocab)) { /* u * total rounded up to the sum */
        b = last;
        at = INFINITY;
    }
    int32_t from = b * ROW_BLOCK, left = s->n_vocab - from;
    return from + walk(s->w + from, left < ROW_BLOCK ? left : ROW_BLOCK, at);
}

static int32_t draw(struct sampler *s, const float *x, const struct row_max *top, int64_t position)
{
    if (s->p.temperature <= 0)
        return top->id;
    double u = rng_unit(s->p.seed, STREAM_DRAW, (uint64_t)position);
    if (!has_filter(&s->p))
        return draw_plain(s, x, top->v, u);
    double total = survivors(s, x, top->v, position);
    return s->c.id[walk(s->c.w, s->c.n, u * total)];
}

void sampler_allow(struct sampler *s, const uint64_t *bits)
{
    s->allow = bits;
}

/* The logit of what may not come: finite, so that no filter meets a difference of infinities, and
 * low enough for a weight of exactly 0. */
#define SHUT (-1e30f)

/* False without memory. */
static bool restrict_row(struct sampler *s, float *x)
{
    if (s->p.n_top >= 0) {
        if (!s->raw)
            s->raw = malloc((size_t)s->n_vocab * sizeof *s->raw);
        if (!s->raw)
            return false;
        memcpy(s->raw, x, (size_t)s->n_vocab * sizeof *x);
    }
    for (int32_t from = 0; from < s->n_vocab; from += 64) {
        uint64_t bits = s->allow[from / 64];
        int32_t end = s->n_vocab - from < 64 ? s->n_vocab : from + 64;
        if (bits == ~(uint64_t)0)
            continue;
        for (int32_t i = from; i < end; i++, bits >>= 1)
            x[i] = bits & 1 ? x[i] : SHUT;
    }
    return true;
}

/* Logprobs are those of the row as it was before the restriction. */
static enum qn_status report_raw(struct sampler *s, struct sampled *out, struct qn_err *err)
{
    struct row_max top;
    QN_TRY(scan(s, s->raw, &top, err));
    report(s, s->raw, top.v, out);
    return QN_OK;
}

enum qn_status sampler_draw(struct sampler *s, float *logits, int64_t position, struct sampled *out,
                            struct qn_err *err)
{
    struct row_max top;
    if (s->no_memory)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for the penalties' history");
    penalise(s, logits);
    bool restricted = s->allow != NULL;
    if (restricted && !restrict_row(s, logits))
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for a row of logits");
    s->allow = NULL;
    QN_TRY(scan(s, logits, &top, err));
    *out = (struct sampled){.n_top = -1};
    out->id = draw(s, logits, &top, position);
    if (s->p.n_top >= 0 && restricted)
        QN_TRY(report_raw(s, out, err));
    else if (s->p.n_top >= 0)
        report(s, logits, top.v, out);
    bool counts = s->p.presence_penalty != 0 || s->p.frequency_penalty != 0;
    if (!hist_add(s, out->id) || (counts && !tally_add(&s->made, out->id, 1)))
        s->no_memory = true; /* this token is sound; the next draw says so */
    return QN_OK;
}

enum qn_status sampler_dist(struct sampler *s, float *logits, int64_t position, float *prob,
                            struct qn_err *err)
{
    struct row_max top;
    penalise(s, logits);
    if (s->allow && !restrict_row(s, logits))
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for a row of logits");
    s->allow = NULL;
    QN_TRY(scan(s, logits, &top, err));
    memset(prob, 0, (size_t)s->n_vocab * sizeof *prob);
    if (s->p.temperature <= 0) {
        prob[top.id] = 1;
        return QN_OK;
    }
    if (!has_filter(&s->p)) {
        float inv_t = 1 / fmaxf(s->p.temperature, 1e-5f);
        double total = row_exp(logits, s->n_vocab, top.v, inv_t, prob, NULL);
        for (int32_t i = 0; i < s->n_vocab; i++)
            prob[i] = (float)((double)prob[i] / total);
        return QN_OK;
    }
    double total = survivors(s, logits, top.v, position);
    for (int32_t i = 0; i < s->c.n; i++)
        prob[s->c.id[i]] = (float)((double)s->c.w[i] / total);
    return QN_OK;
}
