/*
 * reuse.c - what a prompt need not compute because it was computed before, and what is kept of it
 * for those to come. The scheduler's thread.
 *
 * Models that forget nothing can go on anywhere, and are kept after every chunk. Others only where
 * they were kept, so their chunks end there: at the ends of turns (behind a token that ends
 * answers) that lie TURN_GAP tokens apart, at the first and the last one, at multiples of the
 * cache's interval, where the cache knows more of the line than it can go on from, and, when
 * nothing can be taken back, before the prompt's last token, which has to be read for its logits.
 * Where chunks end changes no bit.
 */
#include "sched/sched_int.h"

enum { TURN_GAP = 128, TURN_LEAST = 32, WORTH_WAITING = 64 };

static bool caches(const struct sched *s, const struct gen *g)
{
    return s->lm.ops->cache_seq && !g->p.cache_off;
}

static struct qn_line line_of(const struct gen *g, int32_t n)
{
    return (struct qn_line){g->cache_ns, g->ids, n};
}

/* ---- beginning -------------------------------------------------------------------------------
 */

/* The end of the first turn, which is what templates begin all conversations with; 0 = none. */
static int32_t first_turn(const struct sched *s, const struct gen *g)
{
    int32_t n = 1;
    while (n < g->n_ids && !lm_is_eos(&s->lm, g->ids[n - 1]))
        n++;
    return n < g->n_ids && n >= TURN_LEAST ? n : 0;
}

/* The end of the last turn in front of the prompt's last token; 0 = none. */
static int32_t last_turn(const struct sched *s, const struct gen *g)
{
    int32_t n = g->n_ids - 1;
    while (n > 0 && !lm_is_eos(&s->lm, g->ids[n - 1]))
        n--;
    return n;
}

enum qn_status sched_reuse(struct sched *s, struct gen *g, void **seq, int32_t *n_have,
                           struct qn_err *err)
{
    struct lm_reuse r = {0};
    struct qn_line line = line_of(g, g->n_ids);
    if (!caches(s, g) || g->p.prompt_logprobs) /* those need the logits of all tokens */
        QN_TRY(s->lm.ops->seq_create(s->lm.self, seq, err));
    else
        QN_TRY(s->lm.ops->cache_seq(s->lm.self, &line, seq, &r, err));
    *n_have = g->n_began = g->n_kept = r.n_have;
    g->n_match = r.n_match;
    g->first_turn = first_turn(s, g);
    g->last_turn = last_turn(s, g);
    return QN_OK;
}

/* Tokens at the beginning of both. */
static int32_t common(const struct gen *a, const struct gen *b)
{
    int32_t n = a->n_ids < b->n_ids ? a->n_ids : b->n_ids, i = 0;
    while (i < n && a->ids[i] == b->ids[i])
        i++;
    return i;
}

bool sched_reuse_later(const struct sched *s, struct gen *g)
{
    g->wait_order = 0;
    if (!caches(s, g) || g->p.prompt_logprobs)
        return false;
    for (int32_t i = 0; i < s->n_run; i++) {
        const struct gen *r = s->run[i];
        if (r == g || !r->seq || r->phase != PHASE_PREFILL || r->room == 0 || !caches(s, r) ||
            strcmp(r->cache_ns, g->cache_ns) != 0)
            continue;
        int32_t n = common(r, g);
        n = n < g->n_ids ? n : g->n_ids - 1;
        if (n <= r->n_fed || n - r->n_began < WORTH_WAITING)
            continue;
        g->wait_order = r->order;
        g->wait_at = n;
        return true;
    }
    return false;
}

/* ---- where to keep ---------------------------------------------------------------------------
 */

/* Whether to stop at token n, with the one before kept at g->n_kept. */
static bool is_place(const struct sched *s, const struct gen *g, int32_t n)
{
    if (n % s->lm.cache_interval == 0 || n == g->n_match || n == g->first_turn)
        return true;
    if (n == g->last_turn)
        return g->n_ids - n > s->lm.cache_reach;
    if (s->lm.cache_reach == 0 && n == g->n_ids - 1)
        return true;
    return lm_is_eos(&s->lm, g->ids[n - 1]) && n - g->n_kept >= TURN_GAP;
}

/* Somebody waits for g to read so far. */
static bool is_awaited(const struct sched *s, const struct gen *g, int32_t n)
{
    for (int32_t i = 0; i < s->n_run; i++) {
        const struct gen *w = s->run[i];
        if (w->phase == PHASE_WAITS && w->wait_order == g->order && w->wait_at == n)
            return true;
    }
    return false;
}

static bool anywhere(const struct sched *s)
{
    return s->lm.cache_reach == INT32_MAX;
}

int32_t sched_reuse_cut(const struct sched *s, const struct gen *g, int32_t n)
{
    if (!caches(s, g) || anywhere(s))
        return n;
    for (int32_t i = 1; i < n; i++)
        if (is_place(s, g, g->n_fed + i) || is_awaited(s, g, g->n_fed + i))
            return i;
    return n;
}

/* ---- keeping ---------------------------------------------------------------------------------
 */

void sched_keep_all(struct sched *s, struct gen *g)
{
    struct qn_line line = line_of(g, g->n_fed);
    if (!caches(s, g) || !g->seq || g->n_fed <= g->n_kept)
        return;
    s->lm.ops->cache_keep(s->lm.self, &line, g->seq);
    spec_keep(s->spec, g, &line);
    g->n_kept = g->n_fed;
}

void sched_keep(struct sched *s, struct gen *g)
{
    int32_t n = g->n_fed;
    if (!caches(s, g))
        return;
    bool reading = g->phase == PHASE_PREFILL;
    /* Where nothing can be taken back, one place before the prompt's end serves as well. */
    bool end = n == g->n_ids && s->lm.cache_reach > 0;
    if (reading ? anywhere(s) || end || is_place(s, g, n) || is_awaited(s, g, n)
                : n % s->lm.cache_interval == 0)
        sched_keep_all(s, g);
}

bool sched_reuse_yield(struct sched *s)
{
    struct qn_cache_stats before, after;
    if (!s->lm.ops->cache_seq)
        return false;
    s->lm.ops->cache_stats(s->lm.self, &before);
    if (before.bytes == 0)
        return false;
    s->lm.ops->cache_trim(s->lm.self, before.bytes / 2);
    s->lm.ops->cache_stats(s->lm.self, &after);
    return after.bytes < before.bytes;
}

/* With what guesses in the disk's part. */
static void show_stats(struct sched *s, struct qn_cache_stats *st)
{
    struct qn_disk_stats guesser;
    spec_disk_stats(s->spec, &guesser);
    st->disk.restored_draft_tokens += guesser.restored_tokens;
    st->disk.damaged += guesser.damaged;
    st->disk.failed += guesser.failed;
    pthread_mutex_lock(&s->mu);
    s->stats.cache = *st;
    pthread_mutex_unlock(&s->mu);
}

void sched_reuse_settle(struct sched *s)
{
    struct qn_cache_stats st;
    if (!s->lm.ops->cache_seq)
        return;
    s->lm.ops->cache_stats(s->lm.self, &st);
    int64_t free = s->kv_budget > s->kv_planned ? s->kv_budget - s->kv_planned : 0;
    if (s->kv_budget) /* a draft model's cache has a part of the same memory */
        free -= spec_trim(s->spec, free / SCHED_DRAFT_PART);
    if (s->kv_budget && st.bytes > free) {
        s->lm.ops->cache_trim(s->lm.self, free);
        s->lm.ops->cache_stats(s->lm.self, &st);
    }
    show_stats(s, &st);
}

void sched_reuse_stats(struct sched *s)
{
    struct qn_cache_stats st;
    s->lm.ops->cache_stats(s->lm.self, &st);
    show_stats(s, &st);
}
