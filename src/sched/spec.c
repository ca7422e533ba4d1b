/*
 * spec.c - see spec.h. Guesses are asked for all answers together, then as many of them are put
 * into the step as spec_policy.h finds worth it; with drafters whose guesses cost time the number
 * is settled before they are made. What was guessed but left out is compared with what came all the
 * same, so sureness is learned also where nothing is verified.
 */
#include "sched/spec.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/json.h"
#include "base/log.h"
#include "sched/gen.h"

#define WHERE       "speculation"
#define OWN_FADE    0.9F
#define ALL_FADE    0.98F
#define AGE         0.98F /* of places that no window reached */
#define FIRST_PLACE 0.8   /* how often the first guess holds, before anything is known */
#define PROBE_FIRST 32    /* steps without guesses before they are tried again */
#define PROBE_MOST  512   /* after tries that failed */
#define PROBE_N     2     /* guesses of a try */
#define BEHIND      64    /* tokens that a drafter is not made to catch up with */
#define PLAIN_EVERY 64    /* steps with guesses before one without: what does that cost now? */

/* What a generation keeps. */
struct spec_gen {
    void *ctx;
    struct spec_odds sure, place; /* by sureness; by place in the window */
    int32_t out[SPEC_DRAFT_MAX];
    uint8_t level[SPEC_DRAFT_MAX];
    int32_t n;     /* guesses of this round */
    int32_t n_fed; /* tokens that the drafter has heard of */
};

struct spec {
    const struct drafter_ops *ops;
    void *self;
    struct lm target;
    int32_t n_draft, n_lane, n_vocab;
    int32_t rows;     /* of guesses in a step, at most */
    int32_t interval; /* tokens between places where sequences are kept */
    bool fixed, warned;
    struct spec_odds sure, place;
    struct spec_cost cost;
    int32_t quiet, wait;      /* steps without guesses; how many until a try */
    int32_t streak;           /* steps with guesses on end */
    bool trying, late;        /* late: guessing had to catch up first */
    bool planned;             /* the step has guesses */
    int32_t *window;          /* [n_lane, QN_ROLLBACK] a step's tokens */
    struct draft *drafts;     /* [n_lane] */
    struct spec_lane *lanes;  /* [n_lane] */
    double *p;                /* [n_lane, SPEC_DRAFT_MAX] */
    float (*odds)[SPEC_SURE]; /* [n_lane] how often guesses hold, by sureness */
    double rate;              /* what a step that is planned promises (spec_choose) */
    double spent;             /* on its guesses, in steps of one row */
    int32_t *item_of;         /* [n_lane + 1] draft -> item, -1 behind the last */
};

/* ---- life ----------------------------------------------------------------------------------- */

static enum qn_status choose_kind(struct spec *sp, const struct spec_params *p, const struct lm *lm,
                                  struct qn_err *err)
{
    switch (p->kind) {
    case SPEC_NGRAM:
        sp->ops = &drafter_ngram;
        return QN_OK;
    case SPEC_MTP:
    case SPEC_DSPARK:
    case SPEC_ASSISTANT:
        if (!lm->ops->mtp_step)
            QN_FAIL(err, QN_UNSUPPORTED, WHERE, "this model has no draft head (mtp.safetensors)");
        sp->target = *lm;
        sp->ops = p->kind == SPEC_MTP      ? &drafter_mtp
                  : p->kind == SPEC_DSPARK ? &drafter_dspark
                                           : &drafter_assistant;
        sp->self = &sp->target;
        return QN_OK;
    case SPEC_MODEL: {
        struct spec_model *m = NULL;
        QN_TRY(spec_model_create(p->draft, lm, &m, err));
        sp->ops = &drafter_model;
        sp->self = m;
        return QN_OK;
    }
    case SPEC_CUSTOM:
        sp->ops = p->ops;
        sp->self = p->self;
        return QN_OK;
    default:
        QN_FAIL(err, QN_UNSUPPORTED, WHERE, "this kind of guessing is not there");
    }
}

enum qn_status spec_create(const struct spec_params *p, const struct lm *lm, int32_t n_lane,
                           struct spec **out, struct qn_err *err)
{
    *out = NULL;
    if (p->kind == SPEC_OFF)
        return QN_OK;
    if (p->n_draft < 0 || p->n_draft > SPEC_DRAFT_MAX)
        QN_FAIL(err, QN_BAD_INPUT, WHERE,
                "%d draft tokens; expected 1 to %d, or 0 for the kind's own number", p->n_draft,
                SPEC_DRAFT_MAX);
    struct spec *sp = calloc(1, sizeof *sp);
    if (!sp)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for speculation");
    size_t n = (size_t)n_lane;
    sp->n_lane = n_lane;
    sp->n_vocab = lm->n_vocab;
    sp->interval = lm->cache_interval > 0 ? lm->cache_interval : INT32_MAX;
    sp->rows = lm->max_rows - n_lane < SPEC_STEP_ROWS ? lm->max_rows - n_lane : SPEC_STEP_ROWS;
    sp->fixed = p->fixed;
    sp->wait = PROBE_FIRST;
    sp->window = calloc(n * QN_ROLLBACK, sizeof *sp->window);
    sp->drafts = calloc(n, sizeof *sp->drafts);
    sp->lanes = calloc(n, sizeof *sp->lanes);
    sp->p = calloc(n * SPEC_DRAFT_MAX, sizeof *sp->p);
    sp->item_of = calloc(n + 1, sizeof *sp->item_of);
    sp->odds = calloc(n, sizeof *sp->odds);
    enum qn_status st = QN_OK;
    if (!sp->window || !sp->drafts || !sp->lanes || !sp->p || !sp->item_of || !sp->odds)
        st = err_set(err, QN_NO_MEMORY, WHERE, "no memory for speculation in %d lanes", n_lane);
    if (st == QN_OK)
        st = choose_kind(sp, p, lm, err);
    if (st != QN_OK) {
        spec_free(sp);
        return st;
    }
    sp->n_draft = p->n_draft ? p->n_draft : sp->ops->n_draft;
    *out = sp;
    return QN_OK;
}

void spec_free(struct spec *sp)
{
    if (!sp)
        return;
    if (sp->ops && sp->ops->free)
        sp->ops->free(sp->self);
    free(sp->window);
    free(sp->drafts);
    free(sp->lanes);
    free(sp->p);
    free(sp->item_of);
    free(sp->odds);
    free(sp);
}

int32_t spec_rows(const struct spec *sp)
{
    return sp ? sp->rows : 0;
}

int64_t spec_bytes(const struct spec *sp, int32_t n_tokens)
{
    return sp && sp->ops->bytes ? sp->ops->bytes(sp->self, n_tokens) : 0;
}

const char *spec_name(const struct spec *sp)
{
    return sp ? sp->ops->name : NULL;
}

/* ---- contexts ------------------------------------------------------------------------------- */

/* Guesses are never worth an answer: it goes on without. */
static void do_without(struct spec *sp, struct gen *g, const struct qn_err *err)
{
    if (!sp->warned)
        log_line(LOG_WARN, "sched", "no guesses for an answer: %s", err->msg);
    sp->warned = true;
    spec_end(sp, g);
}

void spec_begin(struct spec *sp, struct gen *g)
{
    struct qn_err err = {0};
    if (!sp || g->spec)
        return;
    g->spec = fault_point("sched.alloc") ? NULL : calloc(1, sizeof *g->spec);
    if (!g->spec)
        return;
    if (sp->ops->open(sp->self, g->seq, &g->spec->ctx, &err) != QN_OK) {
        do_without(sp, g, &err);
        return;
    }
    g->spec->n_fed = g->n_fed;
    if (sp->ops->resume && g->n_fed > 0 && !g->p.cache_off) {
        int32_t n = g->n_fed < g->n_ids ? g->n_fed + 1 : g->n_ids;
        const struct qn_line line = {g->cache_ns, g->ids, n};
        sp->ops->resume(sp->self, g->spec->ctx, &line, g->n_fed);
    }
}

void spec_keep(struct spec *sp, struct gen *g, const struct qn_line *line)
{
    if (sp && g->spec && sp->ops->keep)
        sp->ops->keep(sp->self, g->spec->ctx, line);
}

int64_t spec_trim(struct spec *sp, int64_t bytes)
{
    return sp && sp->ops->trim ? sp->ops->trim(sp->self, bytes) : 0;
}

int32_t spec_disk_tick(struct spec *sp, bool busy)
{
    return sp && sp->ops->tick ? sp->ops->tick(sp->self, busy) : 0;
}

bool spec_disk_loading(struct spec *sp, const struct qn_line *line)
{
    return sp && sp->ops->loading && sp->ops->loading(sp->self, line);
}

bool spec_disk_flush(struct spec *sp, bool begin, struct qn_cache_flush *out)
{
    *out = (struct qn_cache_flush){0};
    return !sp || !sp->ops->flush || sp->ops->flush(sp->self, begin, out);
}

void spec_disk_stats(struct spec *sp, struct qn_disk_stats *out)
{
    *out = (struct qn_disk_stats){0};
    if (sp && sp->ops->disk_stats)
        sp->ops->disk_stats(sp->self, out);
}

bool spec_has_files(const struct spec *sp)
{
    return sp && sp->ops->file;
}

bool spec_file(struct spec *sp, const struct cache_file_ask *ask, struct cache_file_told *out)
{
    return sp->ops->file(sp->self, ask, out);
}

void spec_end(struct spec *sp, struct gen *g)
{
    if (!sp || !g->spec)
        return;
    if (g->spec->ctx && sp->ops->close)
        sp->ops->close(sp->self, g->spec->ctx);
    free(g->spec);
    g->spec = NULL;
}

void spec_fed(struct spec *sp, struct gen *g)
{
    struct qn_err err = {0};
    if (!sp || !g->spec || !sp->ops->fed)
        return;
    g->spec->n_fed = g->n_fed;
    if (sp->ops->fed(sp->self, g->spec->ctx, g->ids, g->n_fed, &err) != QN_OK)
        do_without(sp, g, &err);
}

/* Drafters that follow are not left behind by answers that have no guesses for long. False: g has
 * no context. */
static bool follow(struct spec *sp, struct gen *g)
{
    if (g->spec && sp->ops->lag > 0 && g->n_fed - g->spec->n_fed >= sp->ops->lag)
        spec_fed(sp, g);
    return g->spec != NULL;
}

/* ---- planning ------------------------------------------------------------------------------- */

/* Guesses that could be used: the last token of an answer needs none, its events need room, its
 * memory is planned, and no window goes over a place where the sequence is kept for reuse. */
static int32_t most_of(const struct spec *sp, const struct gen *g)
{
    int32_t most = sp->n_draft, left = g->p.max_tokens - g->n_made - 1, room = g->room - 1;
    most = most < left ? most : left;
    most = most < room ? most : room;
    if (g->plan_bytes > 0 && most > g->plan_tokens - g->n_fed - 1)
        most = g->plan_tokens - g->n_fed - 1;
    int32_t place = sp->interval - 1 - g->n_fed % sp->interval;
    most = most < place ? most : place;
    return most > 0 ? most : 0;
}

static double odds_of(const struct spec *sp, const struct spec_gen *sg, int32_t sure)
{
    return spec_odds_of(&sg->sure, &sp->sure, sure, sp->ops->prior[sure]);
}

static void fill_chances(struct spec *sp, int32_t k, bool by_place)
{
    const struct draft *d = &sp->drafts[k];
    struct spec_lane *l = &sp->lanes[k];
    const struct spec_gen *sg = ((const struct gen *)d->ctx)->spec;
    double *p = sp->p + (size_t)k * SPEC_DRAFT_MAX;
    *l = (struct spec_lane){.p = p, .n = by_place ? d->most : d->n};
    /* A place where little is known is as good as the one before it: so windows grow until they
     * do not pay. */
    for (int32_t j = 0; j < l->n; j++)
        p[j] = by_place ? spec_odds_of(&sg->place, &sp->place, j, j ? p[j - 1] : FIRST_PLACE)
                        : odds_of(sp, sg, d->sure[j]);
}

/* Sets lanes[].take; with the number of guesses that there are, or could be. */
static void choose(struct spec *sp, int32_t n, bool by_place)
{
    int32_t total = 0;
    for (int32_t k = 0; k < n; k++)
        fill_chances(sp, k, by_place);
    if (sp->fixed) {
        for (int32_t k = 0; k < n; k++) {
            int32_t left = sp->rows - total;
            sp->lanes[k].take = sp->lanes[k].n < left ? sp->lanes[k].n : left;
            total += sp->lanes[k].take;
        }
        return;
    }
    struct spec_bounds b = {.rows = sp->rows, .spent = by_place ? 0 : sp->spent};
    if (by_place)
        b.runs = sp->ops->block ? 1 : SPEC_DRAFT_MAX;
    sp->rate = spec_choose(&sp->cost, sp->lanes, n, &b);
    for (int32_t k = 0; k < n; k++)
        total += sp->lanes[k].take;
    sp->trying = false;
    if (total > 0) {
        if (++sp->streak <= PLAIN_EVERY)
            return;
        for (int32_t k = 0; k < n; k++)
            sp->lanes[k].take = 0;
    } else if (++sp->quiet >= sp->wait && sp->lanes[0].n > 0) {
        sp->lanes[0].take = sp->lanes[0].n < PROBE_N ? sp->lanes[0].n : PROBE_N;
        sp->trying = true;
        sp->quiet = 0;
    }
    sp->streak = 0;
}

/* Guesses of all drafts with most > 0; those have ctx set to their generation until here. */
static bool guess(struct spec *sp, int32_t n)
{
    struct draft *asked[SPEC_ROWS];
    struct draft work[SPEC_ROWS];
    struct qn_err err = {0};
    int32_t n_asked = 0, longest = 0;
    bool late = false; /* there is more to read than steps with guesses leave */
    for (int32_t k = 0; k < n && n_asked < SPEC_ROWS; k++) {
        struct draft *d = &sp->drafts[k];
        d->n = 0;
        if (d->most < 1)
            continue;
        const struct gen *of = d->ctx;
        late |= of->n_fed - of->spec->n_fed > QN_ROLLBACK;
        asked[n_asked] = d;
        work[n_asked] = *d;
        work[n_asked++].ctx = ((struct gen *)d->ctx)->spec->ctx;
    }
    if (n_asked == 0)
        return false;
    int64_t t = clock_us();
    enum qn_status st = sp->ops->draft(sp->self, work, n_asked, &err);
    t = clock_us() - t;
    if (st != QN_OK && !sp->warned)
        log_line(LOG_WARN, "sched", "no guesses for a step: %s", err.msg);
    sp->warned |= st != QN_OK;
    for (int32_t i = 0; i < n_asked; i++) {
        struct gen *g = asked[i]->ctx;
        asked[i]->n = st == QN_OK ? work[i].n : 0;
        longest = asked[i]->n > longest ? asked[i]->n : longest;
        g->spec->n = asked[i]->n;
        g->spec->n_fed = g->n_fed;
    }
    sp->late = late;
    if (sp->ops->costs && longest > 0 && !late)
        spec_cost_guess(&sp->cost, sp->ops->block ? 1 : longest, t);
    sp->spent = !sp->ops->costs ? 0 : spec_cost_runs(&sp->cost, sp->ops->block ? 1 : longest);
    return st == QN_OK;
}

/* The answers that may have guesses, as drafts. */
static int32_t gather(struct spec *sp, struct gen **who, int32_t n)
{
    int32_t n_draft = 0;
    for (int32_t i = 0; i < n; i++) {
        struct gen *g = who[i];
        if (g->phase != PHASE_DECODE || !follow(sp, g))
            continue;
        g->spec->n = 0;
        /* Where guesses do not pay, reading what came meanwhile would cost more than they bring. */
        bool lost = sp->ops->costs && !sp->ops->lag && g->n_fed - g->spec->n_fed > BEHIND;
        sp->item_of[n_draft] = i;
        sp->drafts[n_draft++] = (struct draft){.ctx = g,
                                               .ids = g->ids,
                                               .n_ids = g->n_ids,
                                               .most = lost ? 0 : most_of(sp, g),
                                               .out = g->spec->out,
                                               .sure = g->spec->level};
    }
    sp->item_of[n_draft] = -1;
    return n_draft;
}

/* Rows of logits lie one behind the other, item by item. */
static void place_windows(struct spec *sp, struct qn_step_item *items, struct gen **who, int32_t n,
                          float *rows)
{
    for (int32_t i = 0, k = 0; i < n; i++) {
        struct qn_step_item *it = &items[i];
        int32_t take = 0, *w = sp->window + (size_t)i * QN_ROLLBACK;
        if (sp->item_of[k] == i)
            take = sp->lanes[k++].take;
        it->logits = rows;
        rows += (size_t)(1 + take) * (size_t)sp->n_vocab;
        if (take < 1)
            continue;
        w[0] = it->ids[0];
        memcpy(w + 1, who[i]->spec->out, (size_t)take * sizeof *w);
        it->ids = w;
        it->n_ids = it->n_logits = 1 + take;
        sp->planned = true;
    }
}

/* How many guesses are wanted of a drafter whose guesses cost time: none where they promise
 * nothing, few for a try, else as long as they hold together often enough. */
static void ask(struct spec *sp, int32_t n)
{
    choose(sp, n, true);
    double least = spec_least(&sp->cost, sp->lanes, n, sp->rate);
    for (int32_t k = 0; k < n; k++) {
        struct draft *d = &sp->drafts[k];
        const struct spec_gen *sg = ((const struct gen *)d->ctx)->spec;
        if (sp->lanes[k].take == 0 || (sp->trying && !sp->ops->block))
            d->most = sp->lanes[k].take;
        if (sp->trying || sp->ops->block)
            continue;
        for (int32_t l = 0; l < SPEC_SURE; l++)
            sp->odds[k][l] = (float)odds_of(sp, sg, l);
        d->odds = sp->odds[k];
        d->least = (float)least;
    }
}

void spec_plan(struct spec *sp, struct qn_step_item *items, struct gen **who, int32_t n, bool plain,
               float *rows)
{
    if (!sp)
        return;
    sp->planned = false;
    int32_t n_draft = gather(sp, who, n);
    if (n_draft == 0 || plain)
        return;
    if (sp->ops->costs && !sp->fixed)
        ask(sp, n_draft);
    if (!guess(sp, n_draft))
        return;
    if (sp->ops->costs && !sp->fixed && sp->trying)
        for (int32_t k = 0; k < n_draft; k++)
            sp->lanes[k].take = sp->drafts[k].n < PROBE_N ? sp->drafts[k].n : PROBE_N;
    else
        choose(sp, n_draft, false);
    place_windows(sp, items, who, n, rows);
}

/* A step with guesses has answers only. */
bool spec_strip(struct spec *sp, struct qn_step_item *items, int32_t n)
{
    bool any = false;
    for (int32_t i = 0; sp && sp->planned && i < n; i++) {
        any |= items[i].n_ids > 1;
        items[i].n_ids = items[i].n_logits = 1;
    }
    return any;
}

/* ---- learning ------------------------------------------------------------------------------- */

void spec_count(struct spec_counts *c, int32_t drafted, int32_t accepted)
{
    if (drafted < 1)
        return;
    c->rounds++;
    c->drafted += drafted;
    c->accepted += accepted;
    for (int32_t j = 0; j < accepted; j++)
        c->accepted_at[j]++;
}

void spec_counts_add(struct spec_counts *to, const struct spec_counts *c)
{
    to->rounds += c->rounds;
    to->drafted += c->drafted;
    to->accepted += c->accepted;
    for (int32_t j = 0; j < SPEC_DRAFT_MAX; j++)
        to->accepted_at[j] += c->accepted_at[j];
}

void spec_counts_json(struct jw *w, const struct spec_counts *c)
{
    int32_t n = SPEC_DRAFT_MAX;
    if (c->rounds == 0)
        return;
    while (n > 0 && c->accepted_at[n - 1] == 0)
        n--;
    jw_key(w, "speculation");
    jw_obj(w);
    jw_ki64(w, "rounds", c->rounds);
    jw_ki64(w, "drafted", c->drafted);
    jw_ki64(w, "accepted", c->accepted);
    jw_key(w, "accepted_by_position");
    jw_arr(w);
    for (int32_t j = 0; j < n; j++)
        jw_i64(w, c->accepted_at[j]);
    jw_arr_end(w);
    jw_obj_end(w);
}

int32_t spec_learn(struct spec *sp, struct gen *g, int32_t window, const int32_t *drawn, int32_t n)
{
    if (!sp || !g->spec)
        return 0;
    struct spec_gen *sg = g->spec;
    int32_t held = 0;
    for (int32_t j = 0; j < n && j < sg->n; j++) {
        bool hit = drawn[j] == sg->out[j];
        spec_odds_note(&sg->sure, sg->level[j], hit, OWN_FADE);
        spec_odds_note(&sp->sure, sg->level[j], hit, ALL_FADE);
        spec_odds_note(&sg->place, j, hit, OWN_FADE);
        spec_odds_note(&sp->place, j, hit, ALL_FADE);
        held += hit;
    }
    if (sg->n > 0) {
        spec_odds_age(&sg->place, sg->n, AGE);
        spec_odds_age(&sp->place, sg->n, AGE);
    }
    held = held < window ? held : window;
    spec_count(&g->usage.spec, window, held);
    if (window > 0 && sp->trying) {
        bool hope = held > 0 && (!sp->ops->costs || spec_may_pay(&sp->cost, sp->n_draft));
        if (sp->late) /* what it took says nothing: once more, now that it is up to date */
            sp->quiet = sp->wait;
        else
            sp->wait = hope ? PROBE_FIRST / 8 : sp->wait < PROBE_MOST ? sp->wait * 2 : PROBE_MOST;
    } else if (window > 0)
        sp->wait = PROBE_FIRST;
    return held;
}

void spec_note(struct spec *sp, int32_t rows, int32_t n_prompt, int64_t us)
{
    if (!sp)
        return;
    if (n_prompt > 0)
        spec_cost_break(&sp->cost);
    else
        spec_cost_note(&sp->cost, rows, us);
}
