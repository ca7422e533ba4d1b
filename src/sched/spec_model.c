/*
 * spec_model.c - guesses of a second, smaller model with the same vocabulary: its likeliest token,
 * step by step. Its sequences follow the target's.
 *
 * A sequence holds true tokens and, behind them, the guesses of the last call, which are taken back
 * as far as they were wrong. Where the model cannot take single steps back (a recurrent state) the
 * guessing is done on a copy.
 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/fault.h"
#include "model/guess_stop.h"
#include "model/logits.h"
#include "sched/drafter.h"
#include "sched/spec.h"

#define WHERE "draft model"
#define ITEMS SPEC_ROWS

struct spec_model {
    struct lm lm;
    int32_t n_vocab; /* ids that both models have */
    bool copies;     /* steps cannot be taken back */
    float *logits;   /* [ITEMS, lm.n_vocab] */
};

/* Of a generation: the sequence holds n tokens, the last n_own of them guesses. */
struct follower {
    void *seq, *copy; /* copy: during a call */
    int32_t n, n_own;
    int32_t own[SPEC_DRAFT_MAX];
    float probs[SPEC_DRAFT_MAX]; /* of the guesses of a call */
};

enum qn_status spec_model_create(const struct lm *draft, const struct lm *target,
                                 struct spec_model **out, struct qn_err *err)
{
    struct spec_model *m = calloc(1, sizeof *m);
    size_t bytes = 0;
    if (m && !__builtin_mul_overflow((size_t)draft->n_vocab, ITEMS * sizeof(float), &bytes))
        m->logits = malloc(bytes);
    if (!m || !m->logits) {
        free(m);
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for %d rows of logits", ITEMS);
    }
    m->lm = *draft;
    m->n_vocab = draft->n_vocab < target->n_vocab ? draft->n_vocab : target->n_vocab;
    *out = m;
    return QN_OK;
}

static void free_model(void *self)
{
    struct spec_model *m = self;
    if (!m)
        return;
    free(m->logits);
    free(m);
}

static enum qn_status open(void *self, void *seq, void **ctx, struct qn_err *err)
{
    struct spec_model *m = self;
    struct follower *f = fault_point("sched.alloc") ? NULL : calloc(1, sizeof *f);
    if (!f)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for a sequence");
    enum qn_status st = m->lm.ops->seq_create(m->lm.self, &f->seq, err);
    if (st != QN_OK) {
        free(f);
        return st;
    }
    *ctx = f;
    return QN_OK;
}

static void close_follower(void *self, void *ctx)
{
    struct spec_model *m = self;
    struct follower *f = ctx;
    if (f->seq)
        m->lm.ops->seq_free(m->lm.self, f->seq);
    free(f);
}

/* Guesses that turned out wrong are taken back; the sequence then holds true tokens only, at most
 * the first n_ids. */
static enum qn_status settle(struct spec_model *m, struct follower *f, const int32_t *ids,
                             int32_t n_ids, struct qn_err *err)
{
    int32_t n_true = f->n - f->n_own, right = 0;
    while (right < f->n_own && n_true + right < n_ids && f->own[right] == ids[n_true + right])
        right++;
    int32_t n = n_true + right < n_ids ? n_true + right : n_ids;
    if (n < f->n && m->lm.ops->seq_truncate(m->lm.self, f->seq, n, err) != QN_OK) {
        m->copies = m->lm.ops->seq_fork != NULL;
        m->lm.ops->seq_free(m->lm.self, f->seq);
        f->seq = NULL;
        n = 0;
        QN_TRY(m->lm.ops->seq_create(m->lm.self, &f->seq, err));
    }
    f->n = n;
    f->n_own = 0;
    return QN_OK;
}

/* Reads ids up to n, but for the last `but` tokens, alone. */
static enum qn_status read_on(struct spec_model *m, struct follower *f, const int32_t *ids,
                              int32_t n, int32_t but, struct qn_err *err)
{
    while (n - f->n > but) {
        int32_t k = n - f->n - but;
        struct qn_step_item it = {.seq = f->seq, .ids = ids + f->n};
        it.n_ids = k < m->lm.max_rows ? k : m->lm.max_rows;
        QN_TRY(m->lm.ops->step(m->lm.self, &it, 1, err));
        f->n += it.n_ids;
    }
    return QN_OK;
}

static bool can_read(const struct spec_model *m, const struct draft *d)
{
    for (int32_t i = ((const struct follower *)d->ctx)->n; i < d->n_ids; i++)
        if (d->ids[i] >= m->lm.n_vocab)
            return false;
    return d->n_ids + d->most <= m->lm.n_ctx;
}

/* One step for d[n], each with its next tokens; the guesses behind it. */
static enum qn_status guess_one(struct spec_model *m, struct draft **d, int32_t n,
                                struct qn_err *err)
{
    struct qn_step_item items[ITEMS];
    for (int32_t i = 0; i < n; i++) {
        struct follower *f = d[i]->ctx;
        int32_t k = d[i]->n; /* guesses there are */
        items[i] = (struct qn_step_item){
            .seq = f->copy ? f->copy : f->seq,
            .ids = k ? &d[i]->out[k - 1] : d[i]->ids + f->n,
            .n_ids = k ? 1 : d[i]->n_ids - f->n,
            .n_logits = 1,
            .logits = m->logits + (size_t)i * (size_t)m->lm.n_vocab,
        };
    }
    QN_TRY(m->lm.ops->step(m->lm.self, items, n, err));
    for (int32_t i = 0; i < n; i++) {
        struct follower *f = d[i]->ctx;
        if (d[i]->n == 0)
            f->n = d[i]->n_ids;
        else if (!f->copy) {
            f->own[f->n_own++] = d[i]->out[d[i]->n - 1];
            f->n++;
        }
        int32_t best = logits_best(items[i].logits, m->n_vocab);
        d[i]->out[d[i]->n] = best;
        f->probs[d[i]->n] = logits_best_prob(items[i].logits, m->n_vocab, best);
        d[i]->sure[d[i]->n] = (uint8_t)guess_level(f->probs[d[i]->n]);
        d[i]->n++;
    }
    return QN_OK;
}

/* Those of d[n] that want more guesses; a first guess made on copies where steps stay. */
static enum qn_status more(struct spec_model *m, struct draft **d, int32_t *n, struct qn_err *err)
{
    int32_t left = 0;
    for (int32_t i = 0; i < *n; i++) {
        struct follower *f = d[i]->ctx;
        if (d[i]->n >= d[i]->most || !guess_goes_on(d[i]->odds, d[i]->least, f->probs, d[i]->n))
            continue;
        if (m->copies && !f->copy)
            QN_TRY(m->lm.ops->seq_fork(m->lm.self, f->seq, &f->copy, err));
        d[left++] = d[i];
    }
    *n = left;
    return QN_OK;
}

static enum qn_status guess_all(struct spec_model *m, struct draft **d, int32_t n,
                                struct qn_err *err)
{
    while (n > 0) {
        QN_TRY(guess_one(m, d, n, err));
        QN_TRY(more(m, d, &n, err));
    }
    return QN_OK;
}

static enum qn_status draft(void *self, struct draft *d, int32_t n, struct qn_err *err)
{
    struct spec_model *m = self;
    struct draft *on[ITEMS];
    int32_t n_on = 0;
    for (int32_t i = 0; i < n && n_on < ITEMS && n_on < m->lm.max_rows / 2; i++) {
        struct follower *f = d[i].ctx;
        d[i].n = 0;
        if (!f->seq)
            continue;
        QN_TRY(settle(m, f, d[i].ids, d[i].n_ids - 1, err)); /* the last is read for its logits */
        if (!can_read(m, &d[i]))
            continue;
        QN_TRY(read_on(m, f, d[i].ids, d[i].n_ids, 2, err)); /* so that the first step is small */
        on[n_on++] = &d[i];
    }
    enum qn_status st = guess_all(m, on, n_on, err);
    for (int32_t i = 0; i < n; i++) {
        struct follower *f = d[i].ctx;
        if (f->copy)
            m->lm.ops->seq_free(m->lm.self, f->copy);
        f->copy = NULL;
    }
    return st;
}

/* Prompts are read beside the target, chunk by chunk. */
static enum qn_status fed(void *self, void *ctx, const int32_t *ids, int32_t n_fed,
                          struct qn_err *err)
{
    struct spec_model *m = self;
    struct follower *f = ctx;
    struct draft d = {.ctx = f, .ids = ids, .n_ids = n_fed};
    if (f->n_own > 0 || !f->seq || !can_read(m, &d))
        return QN_OK;
    return read_on(m, f, ids, n_fed, 0, err);
}

static bool takes(const struct spec_model *m, const struct qn_line *line)
{
    for (int32_t i = 0; i < line->n_ids; i++)
        if (line->ids[i] >= m->lm.n_vocab)
            return false;
    return line->n_ids <= m->lm.n_ctx;
}

/* The beginning of a sequence from the draft model's own prompt cache, which keeps what is kept of
 * the target. */
static void resume(void *self, void *ctx, const struct qn_line *line, int32_t n)
{
    struct spec_model *m = self;
    struct follower *f = ctx;
    struct lm_reuse r = {0};
    struct qn_err ignored;
    void *seq = NULL;
    if (!m->lm.ops->cache_seq || !f->seq || f->n > 0)
        return;
    if (!takes(m, line) || m->lm.ops->cache_seq(m->lm.self, line, &seq, &r, &ignored) != QN_OK)
        return;
    m->lm.ops->seq_free(m->lm.self, f->seq);
    f->seq = seq;
    f->n = r.n_have;
}

static void keep(void *self, void *ctx, const struct qn_line *line)
{
    struct spec_model *m = self;
    struct follower *f = ctx;
    struct qn_err ignored;
    if (!m->lm.ops->cache_keep || !f->seq ||
        settle(m, f, line->ids, line->n_ids, &ignored) != QN_OK || f->n == 0)
        return;
    const struct qn_line own = {line->ns, line->ids, f->n};
    m->lm.ops->cache_keep(m->lm.self, &own, f->seq);
}

static int64_t trim(void *self, int64_t most)
{
    struct spec_model *m = self;
    struct qn_cache_stats st = {0};
    if (!m->lm.ops->cache_seq)
        return 0;
    m->lm.ops->cache_stats(m->lm.self, &st);
    if (st.bytes > most) {
        m->lm.ops->cache_trim(m->lm.self, most);
        m->lm.ops->cache_stats(m->lm.self, &st);
    }
    return st.bytes;
}

static int32_t tick(void *self, bool busy)
{
    const struct spec_model *m = self;
    return m->lm.ops->cache_tick ? m->lm.ops->cache_tick(m->lm.self, busy) : 0;
}

static bool loading(void *self, const struct qn_line *line)
{
    const struct spec_model *m = self;
    return m->lm.ops->cache_loading && takes(m, line) && m->lm.ops->cache_loading(m->lm.self, line);
}

static bool flush(void *self, bool begin, struct qn_cache_flush *out)
{
    const struct spec_model *m = self;
    return !m->lm.ops->cache_flush || m->lm.ops->cache_flush(m->lm.self, begin, out);
}

static void disk_stats(void *self, struct qn_disk_stats *out)
{
    const struct spec_model *m = self;
    struct qn_cache_stats st = {0};
    if (m->lm.ops->cache_stats)
        m->lm.ops->cache_stats(m->lm.self, &st);
    *out = st.disk;
}

static bool file(void *self, const struct cache_file_ask *ask, struct cache_file_told *out)
{
    const struct spec_model *m = self;
    bool saves = !ask->go_on && !ask->restore;
    if (m->lm.ops->cache_file && (!saves || takes(m, &ask->line)))
        return m->lm.ops->cache_file(m->lm.self, ask, out);
    *out = (struct cache_file_told){0};
    err_set(&out->err, QN_NOT_FOUND, WHERE, "it keeps nothing of this conversation");
    return true;
}

static int64_t bytes(const void *self, int32_t n_tokens)
{
    const struct spec_model *m = self;
    int32_t n = n_tokens < m->lm.n_ctx ? n_tokens : m->lm.n_ctx;
    return m->lm.ops->seq_bytes ? m->lm.ops->seq_bytes(m->lm.self, n) : 0;
}

const struct drafter_ops drafter_model = {
    .name = "two-model",
    .n_draft = 8,
    .costs = true,
    .prior = {0.1F, 0.3F, 0.45F, 0.6F, 0.7F, 0.8F, 0.9F, 0.95F},
    .open = open,
    .close = close_follower,
    .draft = draft,
    .fed = fed,
    .resume = resume,
    .keep = keep,
    .trim = trim,
    .tick = tick,
    .loading = loading,
    .flush = flush,
    .disk_stats = disk_stats,
    .file = file,
    .bytes = bytes,
    .free = free_model,
};
