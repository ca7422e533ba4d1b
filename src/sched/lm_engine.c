/* lm_engine.c - the engine behind the scheduler's table of functions; see lm.h. */
#include "base/err.h"
#include "model/engine.h"
#include "sched/lm.h"

static enum qn_status seq_create(void *self, void **seq, struct qn_err *err)
{
    struct qn_seq *q = NULL;
    enum qn_status st = qn_seq_create(self, &q, err);
    *seq = q;
    return st;
}

static void seq_free(void *self, void *seq)
{
    if (seq)
        qn_mtp_free(qn_seq_mtp(seq));
    qn_seq_free(seq);
}

static enum qn_status seq_truncate(void *self, void *seq, int32_t n, struct qn_err *err)
{
    return qn_seq_truncate(seq, n, err);
}

static enum qn_status step(void *self, struct qn_step_item *items, int32_t n, struct qn_err *err)
{
    return qn_engine_step(self, items, n, err);
}

static int64_t seq_bytes(const void *self, int32_t n)
{
    return qn_seq_bytes(self, n) + qn_mtp_bytes(self, n);
}

static enum qn_status mtp_open(void *self, void *seq, struct qn_err *err)
{
    struct qn_mtp *m;
    return qn_seq_mtp(seq) ? QN_OK : qn_mtp_create(seq, &m, err); /* from the cache: has one */
}

static enum qn_status mtp_step(void *self, struct lm_mtp_item *items, int32_t n, struct qn_err *err)
{
    return lm_mtp_run(self, items, n, err);
}

static int64_t step_bytes(const void *self, int32_t n_logits)
{
    return qn_transient_bytes(self, n_logits);
}

static enum qn_status seq_fork(void *self, void *seq, void **out, struct qn_err *err)
{
    struct qn_seq *q = NULL;
    struct qn_err ignored;
    enum qn_status st = qn_seq_fork(seq, qn_seq_len(seq), &q, err);
    if (st == QN_OK)
        engine_mtp_fork(seq, q, &ignored); /* without memory there are no guesses */
    *out = q;
    return st;
}

struct lm lm_of_engine(struct qn_engine *e)
{
#define OPS                                                                                        \
    .seq_create = seq_create, .seq_free = seq_free, .seq_truncate = seq_truncate, .step = step,    \
    .seq_bytes = seq_bytes, .step_bytes = step_bytes, .seq_fork = seq_fork
    static const struct lm_ops plain = {OPS};
    static const struct lm_ops heads = {OPS, .mtp_open = mtp_open, .mtp_step = mtp_step};
#undef OPS
    const struct qn_model_info *info = qn_engine_info(e);
    return (struct lm){
        .ops = qn_mtp_available(e) ? &heads : &plain,
        .self = e,
        .n_vocab = info->n_vocab,
        .n_ctx = info->n_ctx,
        .max_rows = qn_step_max_rows(e),
        .eos_ids = info->eos_ids,
        .n_eos = info->n_eos,
    };
}

/* ---- with a prompt cache: self is the cache ---------------------------------------------------
 */

static enum qn_status cached_create(void *self, void **seq, struct qn_err *err)
{
    return seq_create(qn_cache_engine(self), seq, err);
}

/* What the sequence held may now be the cache's alone. */
static void cached_free(void *self, void *seq)
{
    seq_free(NULL, seq);
    qn_cache_trim(self, INT64_MAX);
}

static enum qn_status cached_step(void *self, struct qn_step_item *items, int32_t n,
                                  struct qn_err *err)
{
    return qn_engine_step(qn_cache_engine(self), items, n, err);
}

static int64_t cached_seq_bytes(const void *self, int32_t n)
{
    return seq_bytes(qn_cache_engine(self), n);
}

static enum qn_status cached_mtp_step(void *self, struct lm_mtp_item *items, int32_t n,
                                      struct qn_err *err)
{
    return lm_mtp_run(qn_cache_engine(self), items, n, err);
}

static int64_t cached_step_bytes(const void *self, int32_t n_logits)
{
    return qn_transient_bytes(qn_cache_engine(self), n_logits);
}

static enum qn_status cache_seq(void *self, const struct qn_line *line, void **seq,
                                struct lm_reuse *reuse, struct qn_err *err)
{
    struct qn_seq *q = NULL;
    QN_TRY(qn_cache_seq(self, line, &q, &reuse->n_match, err));
    reuse->n_have = qn_seq_len(q);
    *seq = q;
    return QN_OK;
}

static void cache_keep(void *self, const struct qn_line *line, void *seq)
{
    struct qn_err ignored;
    struct lm_mtp_item it = {.seq = seq, .ids = line->ids, .n_ids = line->n_ids};
    if (qn_seq_mtp(seq)) /* its draft head takes what it has not taken yet */
        lm_mtp_run(qn_cache_engine(self), &it, 1, &ignored);
    qn_cache_keep(self, line, seq, &ignored);
}

static void cache_trim(void *self, int64_t bytes)
{
    qn_cache_trim(self, bytes);
}

static void cache_stats(void *self, struct qn_cache_stats *out)
{
    qn_cache_stats(self, out);
}

static int32_t cache_tick(void *self, bool busy)
{
    return qn_cache_tick(self, busy);
}

static bool cache_loading(void *self, const struct qn_line *line)
{
    return qn_cache_loading(self, line);
}

static bool cache_flush(void *self, bool begin, struct qn_cache_flush *out)
{
    return qn_cache_flush(self, begin, out);
}

static bool cache_file(void *self, const struct cache_file_ask *ask, struct cache_file_told *out)
{
    return pcache_file(self, ask, out);
}

struct lm lm_of_cache(struct qn_cache *c)
{
#define OPS                                                                                        \
    .seq_create = cached_create, .seq_free = cached_free, .seq_truncate = seq_truncate,            \
    .step = cached_step, .seq_bytes = cached_seq_bytes, .step_bytes = cached_step_bytes,           \
    .seq_fork = seq_fork, .cache_seq = cache_seq, .cache_keep = cache_keep,                        \
    .cache_trim = cache_trim, .cache_stats = cache_stats
#define DISK  .cache_tick = cache_tick, .cache_loading = cache_loading, .cache_flush = cache_flush
#define HEADS .mtp_open = mtp_open, .mtp_step = cached_mtp_step
#define FILES .cache_file = cache_file
    /* [with files][on disk too][with a draft head] */
    static const struct lm_ops ops[2][2][2] = {
        {{{OPS}, {OPS, HEADS}}, {{OPS, DISK}, {OPS, DISK, HEADS}}},
        {{{OPS, FILES}, {OPS, FILES, HEADS}}, {{OPS, FILES, DISK}, {OPS, FILES, DISK, HEADS}}}};
#undef OPS
#undef DISK
#undef HEADS
#undef FILES
    struct qn_cache_stats st;
    qn_cache_stats(c, &st);
    struct lm lm = lm_of_engine(qn_cache_engine(c));
    lm.ops = &ops[pcache_has_files(c)][st.disk.on][qn_mtp_available(qn_cache_engine(c))];
    lm.fingerprint = pcache_fingerprint(c);
    lm.self = c;
    lm.cache_interval = qn_cache_interval(c);
    lm.cache_reach = qn_cache_reach(c);
    return lm;
}
