/*
 * round.c - one round: plan a step (one row for each generation that decodes, a chunk for those
 * that still read their prompt, at most max_rows), run it, deliver. The round robin over running
 * generations starts one further each time. The scheduler's thread.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "sched/sched_int.h"

/* ---- planning ------------------------------------------------------------------------------- */

/* What g's sequence lacks, at most `rows` tokens. */
static struct qn_step_item chunk_of(struct sched *s, struct gen *g, int32_t rows, float *out)
{
    int32_t left = g->n_ids - g->n_fed;
    int32_t n = rows < s->chunk ? rows : s->chunk;
    n = sched_reuse_cut(s, g, n < left ? n : left);
    struct qn_step_item item = {.seq = g->seq, .ids = g->ids + g->n_fed, .n_ids = n};
    if (g->p.prompt_logprobs) {
        item.n_logits = n;
        item.logits = s->echo_rows;
    } else if (n == left) {
        item.n_logits = 1;
        item.logits = out;
    }
    return item;
}

static bool ready(const struct gen *g, enum gen_phase phase)
{
    return g->seq && g->phase == phase && g->room > 0;
}

/* Prompt tokens that this step may read. The prompt of which most was read counts for all. */
static int32_t prompt_rows(struct sched *s)
{
    int32_t decoding = 0, reading = 0;
    s->depth = 0;
    for (int32_t i = 0; i < s->n_run; i++) {
        decoding += ready(s->run[i], PHASE_DECODE);
        if (!ready(s->run[i], PHASE_PREFILL))
            continue;
        reading++;
        s->depth = s->run[i]->n_fed > s->depth ? s->run[i]->n_fed : s->depth;
    }
    if (decoding > s->n_lane - 1 && reading > 0)
        decoding = s->n_lane - 1;
    int32_t most = s->lm.max_rows - decoding;
    return s->paced && reading > 0 ? pace_rows(&s->pace, decoding, s->depth, most) : most;
}

/* Rows of an echo: as many as have room for their events. */
static int32_t echo_rows(const struct gen *g, int32_t rows)
{
    int32_t most = g->room - ECHO_MORE + 1;
    rows = rows < ECHO_ROWS ? rows : ECHO_ROWS;
    return rows < most ? rows : most;
}

/*
 * Chooses up to n_lane ready generations, from s->turn on. Prompts share the rows that the decoding
 * ones leave, so nobody who decodes ever waits for more than one chunk. At most one echo at a time.
 */
static void plan(struct sched *s)
{
    bool echo = false;
    int32_t spare = prompt_rows(s);
    s->n_item = s->n_decode = s->n_prompt = 0;
    s->turn = s->n_run ? (s->turn + 1) % s->n_run : 0;
    for (int32_t k = 0; k < s->n_run && s->n_item < s->n_lane; k++) {
        struct gen *g = s->run[(s->turn + k) % s->n_run];
        float *out = s->rows + (size_t)s->n_item * (size_t)s->lm.n_vocab;
        if (ready(g, PHASE_DECODE)) {
            s->items[s->n_item] = (struct qn_step_item){
                .seq = g->seq, .ids = &g->ids[g->n_fed], .n_ids = 1, .n_logits = 1, .logits = out};
            s->n_decode++;
        } else if (ready(g, PHASE_PREFILL) && !(g->p.prompt_logprobs && echo)) {
            int32_t rows = g->p.prompt_logprobs ? echo_rows(g, spare) : spare;
            if (rows < 1)
                continue;
            echo |= g->p.prompt_logprobs;
            s->items[s->n_item] = chunk_of(s, g, rows, out);
            spare -= s->items[s->n_item].n_ids;
            s->n_prompt += s->items[s->n_item].n_ids;
        } else {
            continue;
        }
        s->who[s->n_item++] = g;
    }
}

/* Guesses behind the answers' tokens, where no prompt waits to be read: its rows cost as much, and
 * pace.h wants to know what answers cost alone. */
static void speculate(struct sched *s)
{
    bool reading = false;
    for (int32_t i = 0; i < s->n_run; i++)
        reading |= ready(s->run[i], PHASE_PREFILL);
    if (s->n_item > 0)
        spec_plan(s->spec, s->items, s->who, s->n_item, reading, s->rows);
}

/* ---- delivering ----------------------------------------------------------------------------- */

static void count_window(struct sched *s, int32_t window, int32_t accepted)
{
    pthread_mutex_lock(&s->mu);
    spec_count(&s->stats.spec, window, accepted);
    pthread_mutex_unlock(&s->mu);
}

static void count(struct sched *s, int32_t prompt, int32_t made)
{
    pthread_mutex_lock(&s->mu);
    s->stats.prompt_tokens += prompt;
    s->stats.completion_tokens += made;
    s->stats.kv_planned = s->kv_planned;
    pthread_mutex_unlock(&s->mu);
}

void sched_token(struct sched *s, struct gen *g, float *logits)
{
    struct gen_verdict verdict;
    struct qn_err err = {0};
    int32_t made = g->n_made;
    enum qn_status st = gen_token(g, &s->lm, logits, &verdict, &err);
    count(s, 0, g->n_made - made);
    if (st != QN_OK)
        sched_fail(s, g, &err);
    else if (verdict.over)
        sched_finish(s, g, verdict);
}

/* Row i tells about the token after it. What a parked generation reads again was told already. */
static enum qn_status echo_events(struct sched *s, struct gen *g, const struct qn_step_item *item,
                                  struct qn_err *err)
{
    for (; g->n_echoed <= g->n_fed + item->n_ids && g->n_echoed < g->p.n_prompt; g->n_echoed++) {
        int32_t row = g->n_echoed - g->n_fed - 1;
        const float *logits =
            g->n_echoed ? item->logits + (size_t)row * (size_t)s->lm.n_vocab : NULL;
        QN_TRY(gen_emit_prompt(g, g->n_echoed, logits, err));
    }
    return QN_OK;
}

/* The prompt's tokens count once, however often they are read. */
static void told(struct sched *s, struct gen *g)
{
    int32_t at = g->n_fed < g->p.n_prompt ? g->n_fed : g->p.n_prompt;
    if (at <= g->n_read)
        return;
    count(s, at - g->n_read, 0);
    g->n_read = at;
    gen_emit_progress(g);
}

static void prompt_chunk(struct sched *s, struct gen *g, const struct qn_step_item *item)
{
    struct qn_err err = {0};
    if (g->p.prompt_logprobs && echo_events(s, g, item, &err) != QN_OK) {
        sched_fail(s, g, &err);
        return;
    }
    g->n_fed += item->n_ids;
    spec_fed(s->spec, g); /* before it is kept, with what the drafter makes of it */
    sched_keep(s, g);
    told(s, g);
    if (g->n_fed < g->n_ids)
        return;
    float *last = item->logits + (size_t)(item->n_logits - 1) * (size_t)s->lm.n_vocab;
    g->phase = PHASE_DECODE;
    if (g->first_us == 0) {
        g->first_us = clock_us();
        g->usage.prefill_us = g->first_us - g->start_us;
    }
    sched_share_fill(s, g, last);
    if (g->p.max_tokens == 0)
        sched_finish_as(s, g, GEN_LENGTH);
    else
        sched_token(s, g, last);
}

/* Takes back the rows of g's step behind the tokens that g has. */
static enum qn_status take_back(struct sched *s, struct gen *g, int32_t held, struct qn_err *err)
{
    if (held == g->n_fed)
        return QN_OK;
    return s->lm.ops->seq_truncate(s->lm.self, g->seq, g->n_fed, err);
}

/* The draws of an answer's rows, in order, up to the first that is not the token that the next row
 * was computed with. */
static void answer(struct sched *s, struct gen *g, const struct qn_step_item *item)
{
    struct gen_verdict verdict = {0};
    struct qn_err err = {0};
    int32_t held = g->n_fed + item->n_ids, made = g->n_made, drawn[QN_ROLLBACK], n = 0;
    enum qn_status st;
    do {
        float *row = item->logits + (size_t)n * (size_t)s->lm.n_vocab;
        g->n_fed++;
        st = gen_token(g, &s->lm, row, &verdict, &err);
        drawn[n] = g->ids[g->n_ids - 1];
    } while (st == QN_OK && !verdict.over && ++n < item->n_ids && drawn[n - 1] == item->ids[n]);
    made = g->n_made - made;
    count(s, 0, made);
    int32_t accepted = spec_learn(s->spec, g, item->n_ids - 1, drawn, made);
    if (item->n_ids > 1)
        count_window(s, item->n_ids - 1, accepted);
    enum qn_status back = take_back(s, g, held, &err);
    st = st == QN_OK ? back : st;
    if (back == QN_OK)
        sched_keep(s, g);
    else
        g->n_kept = INT32_MAX; /* it holds more than is known to be right */
    if (st != QN_OK)
        sched_fail(s, g, &err);
    else if (verdict.over)
        sched_finish(s, g, verdict);
}

static void deliver(struct sched *s, struct gen *g, const struct qn_step_item *item)
{
    if (g->phase == PHASE_PREFILL) {
        prompt_chunk(s, g, item);
        return;
    }
    answer(s, g, item);
}

/* A step that fails has changed nothing. For want of memory, somebody gives some and the step is
 * planned anew. Otherwise its items are tried one by one: only those that fail alone end, the
 * others do not notice. */
static void step(struct sched *s)
{
    struct qn_err err = {0};
    enum qn_status st = s->lm.ops->step(s->lm.self, s->items, s->n_item, &err);
    if ((st == QN_NO_MEMORY || st == QN_BUSY) && spec_strip(s->spec, s->items, s->n_item))
        st = s->lm.ops->step(s->lm.self, s->items, s->n_item, &err);
    if ((st == QN_NO_MEMORY || st == QN_BUSY) && (sched_reuse_yield(s) || sched_give_memory(s)))
        return;
    for (int32_t i = 0; i < s->n_item; i++) {
        if (st != QN_OK && s->n_item > 1)
            err.code = s->lm.ops->step(s->lm.self, &s->items[i], 1, &err);
        if (st != QN_OK && err.code != QN_OK)
            sched_fail(s, s->who[i], &err);
        else
            deliver(s, s->who[i], &s->items[i]);
    }
}

bool sched_round(struct sched *s)
{
    for (int32_t i = 0; s->kv_budget && i < s->n_run; i++)
        if (ready(s->run[i], PHASE_DECODE))
            sched_extend(s, s->run[i]);
    sched_reuse_settle(s);
    plan(s);
    if (s->n_item == 0)
        return false;
    speculate(s);
    int32_t rows = 0;
    for (int32_t i = 0; i < s->n_item; i++)
        rows += s->items[i].n_ids;
    int64_t t = clock_us();
    step(s);
    int64_t us = clock_us() - t;
    spec_note(s->spec, rows, s->n_prompt, us);
    if (rows == s->n_decode + s->n_prompt) /* no guesses among them */
        pace_note(&s->pace, &(struct pace_step){s->n_decode, s->n_prompt, s->depth, us});
    return true;
}
