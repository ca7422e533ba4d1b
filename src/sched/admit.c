/*
 * admit.c - who runs: starts and ends, and the memory that running ones are promised. The
 * scheduler's thread, except where sched_int.h says otherwise.
 *
 * Invariant: kv_planned is the sum of plan_bytes of all generations with a sequence and of all
 * shares that are ready. It stays within kv_budget unless a lone generation needs more.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "sched/sched_int.h"

#define RESERVE        512    /* tokens that an answer without a limit is planned ahead */
#define PARK_PAUSED_US 250000 /* a reader that is only slow is not worth reading all again */

/* ---- memory: what is planned ---------------------------------------------------------------- */

static int64_t bytes_of(const struct sched *s, int32_t n_tokens)
{
    if (!s->kv_budget)
        return 0;
    return s->lm.ops->seq_bytes(s->lm.self, n_tokens) + spec_bytes(s->spec, n_tokens);
}

int32_t sched_fit_tokens(const struct sched *s)
{
    int32_t low = 0, high = s->lm.n_ctx;
    while (low < high) {
        int32_t mid = low + (high - low + 1) / 2;
        if (bytes_of(s, mid) <= s->kv_budget)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

enum qn_status sched_check_memory(const struct sched *s, struct gen *g, struct qn_err *err)
{
    int32_t n_prompt = g->p.n_prompt, total = n_prompt + g->p.max_tokens;
    if (total <= s->fit_tokens)
        return QN_OK;
    if (g->open_end && n_prompt < s->fit_tokens) {
        g->p.max_tokens = s->fit_tokens - n_prompt;
        return QN_OK;
    }
    QN_FAIL(err, QN_BAD_INPUT, SCHED_WHERE,
            "%d prompt tokens and %d for the answer need %lld MiB of memory for keys and values; "
            "the server may use %lld MiB, which is enough for %d tokens: shorten the prompt, ask "
            "for fewer, or raise --kv-budget",
            n_prompt, g->p.max_tokens, (long long)(bytes_of(s, total) >> 20),
            (long long)(s->kv_budget >> 20), s->fit_tokens);
}

/* The length that g's memory is planned for, with `more` tokens beside those it has. */
static int32_t plan_of(const struct gen *g, int32_t more)
{
    int32_t total = g->p.n_prompt + g->p.max_tokens;
    return !g->open_end || total - g->n_ids < more ? total : g->n_ids + more;
}

static struct gen_share *ready_share(const struct gen *g)
{
    struct gen_share *sh = g->p.share;
    return sh && sh->state == SHARE_READY ? sh : NULL;
}

/* A copy of a share's sequence holds the prompt in the share's memory, but for a page. */
static int64_t need_of(const struct sched *s, const struct gen *g, int32_t plan)
{
    const struct gen_share *sh = ready_share(g);
    return bytes_of(s, plan) - (sh ? sh->bytes - bytes_of(s, 1) : 0);
}

static int32_t n_holding(const struct sched *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_run; i++)
        n += s->run[i]->seq != NULL;
    return n;
}

static bool fits(const struct sched *s, int64_t more)
{
    return !s->kv_budget || s->kv_planned + more <= s->kv_budget;
}

static void plan_bytes(struct sched *s, struct gen *g, int64_t bytes)
{
    s->kv_planned += bytes - g->plan_bytes;
    g->plan_bytes = bytes;
}

/* Takes g's sequence away. */
static void give_back(struct sched *s, struct gen *g)
{
    struct gen_share *sh = g->p.share;
    sched_keep_all(s, g);
    spec_end(s->spec, g);
    if (g->seq) {
        s->lm.ops->seq_free(s->lm.self, g->seq);
        s->n_ended++;
    }
    if (sh && sh->state == SHARE_READING && sh->reader == g) {
        sh->state = SHARE_OPEN;
        sh->reader = NULL;
    }
    g->seq = NULL;
    g->forked = false;
    g->n_fed = 0;
    plan_bytes(s, g, 0);
}

static void park(struct sched *s, struct gen *g)
{
    give_back(s, g);
    g->phase = PHASE_PARKED;
    pthread_mutex_lock(&s->mu);
    s->stats.parked++;
    pthread_mutex_unlock(&s->mu);
}

/* Whom to park: the one paused longest, if for `least_us`, else the youngest, but none older than
 * `keep`; not `keep` itself. */
static struct gen *victim(const struct sched *s, const struct gen *keep, int64_t least_us)
{
    struct gen *paused = NULL, *young = NULL;
    int64_t before = clock_us() - least_us;
    for (int32_t i = 0; i < s->n_run; i++) {
        struct gen *g = s->run[i];
        if (!g->seq || g == keep)
            continue;
        if (g->paused_us && g->paused_us <= before && (!paused || g->paused_us < paused->paused_us))
            paused = g;
        if ((!keep || g->order > keep->order) && (!young || g->order > young->order))
            young = g;
    }
    return paused ? paused : young;
}

/* When a paused generation may be parked for others; 0 = none is paused. */
static int64_t park_time(const struct sched *s)
{
    int64_t first = 0;
    for (int32_t i = 0; i < s->n_run; i++)
        if (s->run[i]->seq && s->run[i]->paused_us && (!first || s->run[i]->paused_us < first))
            first = s->run[i]->paused_us;
    return first ? first + PARK_PAUSED_US : 0;
}

/* Parks generations paused for a while until `need` fits. True as well when there is nobody left to
 * wait for. */
static bool make_room(struct sched *s, int64_t need)
{
    while (!fits(s, need) && n_holding(s) > 0) {
        int64_t at = park_time(s);
        if (at == 0 || at > clock_us()) {
            if (at && (!s->look_us || at < s->look_us))
                s->look_us = at;
            return false;
        }
        park(s, victim(s, NULL, PARK_PAUSED_US));
    }
    return true;
}

bool sched_extend(struct sched *s, struct gen *g)
{
    if (!s->kv_budget || g->n_fed < g->plan_tokens)
        return true;
    int32_t plan = plan_of(g, RESERVE);
    int64_t held = g->plan_bytes;
    int64_t want = held + bytes_of(s, plan) - bytes_of(s, g->plan_tokens);
    while (!fits(s, want - held) && n_holding(s) > 1) {
        struct gen *other = victim(s, g, PARK_PAUSED_US);
        park(s, other ? other : g);
        if (!other)
            return false;
    }
    plan_bytes(s, g, want);
    g->plan_tokens = plan;
    return true;
}

bool sched_give_memory(struct sched *s)
{
    struct gen *g = n_holding(s) > 1 ? victim(s, NULL, 0) : NULL;
    if (!g)
        return false;
    park(s, g);
    g->hold_until = s->n_ended + 1;
    return true;
}

/* ---- ends ----------------------------------------------------------------------------------- */

/* Takes g off the lanes and frees all it used, before its client can learn that it ended. */
static void retire(struct sched *s, struct gen *g, int64_t *counter)
{
    int64_t now = clock_us();
    g->usage.completion_tokens = g->n_made;
    if (g->first_us)
        g->usage.decode_us = now - g->first_us;
    else
        g->usage.prefill_us = now - g->start_us;
    for (int32_t i = 0; i < s->n_run; i++) {
        if (s->run[i] != g)
            continue;
        memmove(&s->run[i], &s->run[i + 1], (size_t)(s->n_run - i - 1) * sizeof s->run[0]);
        s->n_run--;
        break;
    }
    give_back(s, g);
    sched_reuse_settle(s);
    if (g->p.share)
        gen_share_unref(g->p.share);
    g->p.share = NULL;
    gen_drop_work(g);
    pthread_mutex_lock(&s->mu);
    g->place = PLACE_ENDED;
    s->stats.running--;
    s->stats.kv_planned = s->kv_planned;
    (*counter)++;
    sched_tell_idle(s);
    pthread_mutex_unlock(&s->mu);
}

void sched_fail(struct sched *s, struct gen *g, const struct qn_err *err)
{
    log_line(LOG_WARN, "sched", "a generation failed after %d of %d prompt tokens and %d made: %s",
             g->n_read, g->p.n_prompt, g->n_made, err->msg);
    retire(s, g, &s->stats.failed);
    gen_publish_error(g, err);
    gen_unref(g);
}

void sched_finish(struct sched *s, struct gen *g, struct gen_verdict verdict)
{
    struct buf text = BUF_INIT;
    struct qn_err err = {0};
    if (gen_flush(g, &verdict, &text, &err) != QN_OK) {
        buf_free(&text);
        sched_fail(s, g, &err);
        return;
    }
    bool cancelled = verdict.finish == GEN_CANCELLED;
    retire(s, g, cancelled ? &s->stats.cancelled : &s->stats.finished);
    gen_publish_done(g, &verdict, &text);
    gen_unref(g);
}

void sched_finish_as(struct sched *s, struct gen *g, enum gen_finish why)
{
    sched_finish(s, g, (struct gen_verdict){true, why, -1});
}

/* ---- shares --------------------------------------------------------------------------------- */

void sched_share_fill(struct sched *s, struct gen *g, const float *logits)
{
    struct gen_share *sh = g->p.share;
    struct qn_err err = {0};
    if (!sh || sh->reader != g || sh->state != SHARE_READING)
        return;
    sh->reader = NULL;
    sh->state = SHARE_BROKEN;
    size_t bytes = (size_t)s->lm.n_vocab * sizeof *sh->logits;
    sh->logits = fault_point("sched.alloc") ? NULL : malloc(bytes);
    if (!sh->logits || s->lm.ops->seq_fork(s->lm.self, g->seq, &sh->seq, &err) != QN_OK)
        return;
    memcpy(sh->logits, logits, bytes);
    sh->state = SHARE_READY;
    sh->n_cached = g->usage.cached_tokens;
    sh->bytes = bytes_of(s, g->p.n_prompt);
    s->kv_planned += sh->bytes;
    plan_bytes(s, g, g->plan_bytes - sh->bytes + bytes_of(s, 1)); /* it shares that memory now */
}

void sched_free_shares(struct sched *s)
{
    pthread_mutex_lock(&s->mu);
    struct gen_share *sh = s->dead;
    s->dead = NULL;
    pthread_mutex_unlock(&s->mu);
    while (sh) {
        struct gen_share *next = sh->next_dead;
        if (sh->seq) {
            s->lm.ops->seq_free(s->lm.self, sh->seq);
            s->n_ended++;
        }
        s->kv_planned -= sh->bytes;
        free(sh->logits);
        free(sh);
        sh = next;
    }
}

/* ---- starting ------------------------------------------------------------------------------- */

/* A sequence that holds the first *n_have tokens that g lacks: all of the prompt from a share, else
 * what the prompt cache has. */
static enum qn_status obtain_seq(struct sched *s, struct gen *g, void **seq, int32_t *n_have,
                                 struct qn_err *err)
{
    struct gen_share *sh = ready_share(g);
    *n_have = g->n_began = g->n_kept = g->p.n_prompt;
    g->forked = sh && s->lm.ops->seq_fork(s->lm.self, sh->seq, seq, err) == QN_OK;
    return g->forked ? QN_OK : sched_reuse(s, g, seq, n_have, err);
}

static enum qn_status need_echo_rows(struct sched *s, struct qn_err *err)
{
    size_t bytes;
    if (s->echo_rows)
        return QN_OK;
    if (!__builtin_mul_overflow((size_t)s->lm.n_vocab, ECHO_ROWS * sizeof *s->echo_rows, &bytes) &&
        !fault_point("sched.alloc"))
        s->echo_rows = malloc(bytes);
    if (!s->echo_rows)
        QN_FAIL(err, QN_NO_MEMORY, SCHED_WHERE, "no memory for %d rows of prompt logits",
                ECHO_ROWS);
    return QN_OK;
}

/* The reader's logits are there already: the first token follows at once. */
static void go_on_from_share(struct sched *s, struct gen *g)
{
    memcpy(s->rows, g->p.share->logits, (size_t)s->lm.n_vocab * sizeof *s->rows);
    g->phase = PHASE_DECODE;
    g->n_read = g->p.n_prompt;
    g->first_us = clock_us();
    g->usage.prefill_us = g->first_us - g->start_us;
    g->usage.cached_tokens = g->p.share->n_cached;
    sched_token(s, g, s->rows);
}

/* g has no sequence: gets one, or waits for another one to read. False: there is no memory for it
 * now. It may end here. */
static bool try_begin(struct sched *s, struct gen *g)
{
    struct qn_err err = {0};
    struct gen_share *sh = g->p.share;
    g->wait_order = 0;
    if ((sh && sh->state == SHARE_READING) ||
        (!ready_share(g) && (sched_reuse_later(s, g) || sched_disk_loading(s, g)))) {
        g->phase = PHASE_WAITS;
        return true;
    }
    int32_t plan = plan_of(g, RESERVE);
    int64_t need = need_of(s, g, plan);
    g->phase = PHASE_PARKED;
    if (!make_room(s, need))
        return false;
    if (obtain_seq(s, g, &g->seq, &g->n_fed, &err) != QN_OK) {
        sched_fail(s, g, &err);
        return true;
    }
    g->plan_tokens = plan;
    plan_bytes(s, g, g->forked ? need : bytes_of(s, plan));
    if (sh && sh->state == SHARE_OPEN) {
        sh->state = SHARE_READING;
        sh->reader = g;
    }
    if (g->n_made == 0 && !g->forked)
        g->usage.cached_tokens = g->n_fed;
    if (g->n_read < g->n_fed)
        g->n_read = g->n_fed;
    g->phase = PHASE_PREFILL;
    g->room = gen_room(g, ECHO_MORE);
    spec_begin(s->spec, g);
    if (g->n_fed == g->n_ids)
        go_on_from_share(s, g);
    return true;
}

/* g has left the queue; it may end here. */
static void start(struct sched *s, struct gen *g)
{
    struct qn_err err = {0};
    g->start_us = clock_us();
    g->usage.queue_us = g->start_us - g->submit_us;
    g->order = ++s->order;
    s->run[s->n_run++] = g;
    if (g->p.max_tokens == 0 && !g->p.prompt_logprobs) {
        sched_finish_as(s, g, GEN_LENGTH);
        return;
    }
    enum qn_status st = gen_start(g, &s->lm, s->tok, &s->newline, &err);
    if (st == QN_OK && g->p.prompt_logprobs)
        st = need_echo_rows(s, &err);
    if (st != QN_OK)
        sched_fail(s, g, &err);
    else
        try_begin(s, g);
}

/* The next in the queue, if there is memory for it; otherwise *need says how much it wants. */
static struct gen *next_waiting(struct sched *s, int64_t *need)
{
    pthread_mutex_lock(&s->mu);
    struct gen *g = (struct gen *)fairq_head(&s->queue);
    *need = 0;
    if (g && g->p.max_tokens > 0 && !(g->p.share && g->p.share->state == SHARE_READING))
        *need = need_of(s, g, plan_of(g, RESERVE));
    if (g && !fits(s, *need) && n_holding(s) > 0 && !s->quit)
        g = NULL;
    if (g) {
        fairq_pop(&s->queue);
        g->place = PLACE_RUNNING;
        s->stats.waiting--;
        s->stats.running++;
        *need = 0;
    }
    pthread_mutex_unlock(&s->mu);
    return g;
}

static bool on_lane(const struct gen *g)
{
    return g->seq && g->room > 0;
}

static int32_t n_active(const struct sched *s)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_run; i++)
        n += on_lane(s->run[i]);
    return n;
}

/* Fills lanes that nobody ready occupies from the queue. */
static void fill(struct sched *s)
{
    int64_t need;
    while (n_active(s) < s->n_lane && s->n_run < s->run_max) {
        struct gen *g = next_waiting(s, &need);
        if (g)
            start(s, g);
        else if (need == 0 || !make_room(s, need))
            break;
    }
}

/* Those who gave their memory back come before the queue, the oldest first, but not while their
 * client does not read. False while one waits. */
static bool readmit(struct sched *s)
{
    for (;;) {
        struct gen *g = NULL;
        for (int32_t i = 0; i < s->n_run; i++) {
            struct gen *c = s->run[i];
            if (c->phase == PHASE_PARKED && c->room > 0 && (!g || c->order < g->order))
                g = c;
        }
        if (!g)
            return true;
        int32_t active = n_active(s);
        if (active >= s->n_lane || (active > 0 && g->hold_until > s->n_ended) || !try_begin(s, g))
            return false;
    }
}

/* Those whose reader is through, or gone. */
static void wake(struct sched *s)
{
    for (int32_t i = s->n_run - 1; i >= 0; i--)
        if (s->run[i]->phase == PHASE_WAITS)
            try_begin(s, s->run[i]);
}

/* With a lane free and no sequence left for those who wait: ends the generation paused longest, if
 * it has been so for pause_max_us; otherwise look_us says when that will be. True when one ended.
 */
static bool make_way(struct sched *s)
{
    struct gen *g = NULL;
    struct qn_err err = {0};
    pthread_mutex_lock(&s->mu);
    bool needed = s->stats.waiting > 0 && s->n_run == s->run_max;
    pthread_mutex_unlock(&s->mu);
    for (int32_t i = 0; needed && i < s->n_run; i++)
        if (s->run[i]->paused_us && (!g || s->run[i]->paused_us < g->paused_us))
            g = s->run[i];
    if (!g)
        return false;
    int64_t now = clock_us();
    if (now - g->paused_us < s->pause_max_us) {
        int64_t at = g->paused_us + s->pause_max_us;
        s->look_us = s->look_us && s->look_us < at ? s->look_us : at;
        return false;
    }
    err_set(&err, QN_CANCELLED, SCHED_WHERE,
            "the client did not read for %lld s while others waited",
            (long long)((now - g->paused_us) / 1000000));
    sched_fail(s, g, &err);
    return true;
}

/* Which running ones can take events. */
static void look_at_readers(struct sched *s)
{
    for (int32_t i = 0; i < s->n_run; i++) {
        struct gen *g = s->run[i];
        if (g->phase == PHASE_WAITS)
            continue;
        g->room = gen_room(g, g->phase == PHASE_DECODE ? 1 : ECHO_MORE);
        g->paused_us = g->room > 0 ? 0 : g->paused_us ? g->paused_us : clock_us();
    }
}

void sched_admit(struct sched *s)
{
    s->look_us = 0;
    sched_free_shares(s);
    for (int32_t i = s->n_run - 1; i >= 0; i--)
        if (atomic_load(&s->run[i]->cancel))
            sched_finish_as(s, s->run[i], GEN_CANCELLED);
    look_at_readers(s);
    wake(s);
    do
        if (readmit(s))
            fill(s);
    while (n_active(s) < s->n_lane && make_way(s));
}

void sched_end_all(struct sched *s)
{
    int64_t need;
    while (s->n_run > 0)
        sched_finish_as(s, s->run[s->n_run - 1], GEN_CANCELLED);
    for (struct gen *g; (g = next_waiting(s, &need)) != NULL;) {
        g->start_us = clock_us();
        g->usage.queue_us = g->start_us - g->submit_us;
        s->run[s->n_run++] = g;
        sched_finish_as(s, g, GEN_CANCELLED);
    }
}
