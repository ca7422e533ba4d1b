/*
 * mtp.c - quern.h's draft heads: finding and loading one, contexts, steps.
 *
 * A head is a struct model of one layer with an exec beside the target's, so its KV memory grows
 * and goes back by itself. A context's rows are numbered from 0; its row of the state at position p
 * takes the token at p+1. Rows [0, n_true) have the target's states, rows behind them the head's
 * own. The scheduler's thread alone.
 */
#include <stdlib.h>

#include "base/cpu.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "exec/kv.h"
#include "model/engine_int.h"
#include "model/guess_stop.h"
#include "model/loader.h"
#include "model/logits.h"

/* ---- loading ---------------------------------------------------------------------------------
 */

/* Heads come inside the model's files, or in one of these. */
static enum qn_status open_files(const char *dir, struct st **out, struct qn_err *err)
{
    static const char *const names[] = {"mtp.safetensors", "mtp/weights.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct buf path = BUF_INIT;
        path_join(&path, dir, names[i]);
        enum qn_status st = buf_ok(&path, "path", err);
        bool there = st == QN_OK && file_exists(buf_z(&path));
        if (there)
            st = st_open_file(buf_z(&path), out, err);
        buf_free(&path);
        if (there || st != QN_OK)
            return st;
    }
    return st_open(dir, out, err);
}

static enum qn_status load_head(struct qn_engine *e, struct st *st, struct qn_err *err)
{
    struct model *d = &e->draft, *m = &e->model;
    struct loader *l = NULL;
    QN_TRY(exec_create_beside(e->ex, e->info.n_ctx + QN_MTP_DRAFT_MAX, &d->ex, err));
    QN_TRY(d->family->config(d, e->cfg, err));
    QN_TRY(kv_setup(d->ex, d->kv, d->n_kv ? d->n_kv : d->n_layer, err));
    QN_TRY(loader_create(d->ex, st, e->cfg, &l, err));
    enum qn_status s = QN_OK;
    if (!m->family->has_draft(m, l)) {
        d->family->free(d);
        exec_free(d->ex);
        d->ex = NULL;
        d->state = NULL;
    } else
        s = d->family->load(d, l, err);
    if (s == QN_OK && d->ex) {
        struct loader_totals t;
        loader_totals(l, &t);
        e->info.weight_bytes += t.packed_bytes;
    }
    loader_free(l);
    return s;
}

enum qn_status mtp_load(struct qn_engine *e, const struct qn_engine_params *p, struct qn_err *err)
{
    struct model *d = &e->draft, *m = &e->model;
    struct st *st = NULL;
    if (p->mtp == QN_MTP_OFF || !m->family->has_draft)
        return QN_OK;
    *d = (struct model){.family = m->family, .target = m};
    e->state_cols = m->n_embd;
    m->hidden_normed = d->hidden_normed = p->mtp == QN_MTP_BEHIND_NORM;
    QN_TRY(open_files(p->model_dir, &st, err));
    enum qn_status s = load_head(e, st, err);
    if (d->ex)
        exec_quiesce(d->ex); /* a late thread may still read the mapped files */
    st_free(st);
    QN_TRY(s);
    if (!d->ex)
        return QN_OK;
    e->draft_logits = calloc((size_t)e->model.n_vocab, sizeof *e->draft_logits);
    if (!e->draft_logits)
        QN_FAIL(err, QN_NO_MEMORY, "mtp", "out of memory for %d logits", e->model.n_vocab);
    return QN_OK;
}

void mtp_unload(struct qn_engine *e)
{
    if (e->draft.family)
        e->draft.family->free(&e->draft);
    dspark_unload(e);
    assistant_unload(e);
    exec_free(e->draft.ex);
    free(e->draft_logits);
}

enum qn_status draft_load_folder(struct qn_engine *e, const char *dir, const struct json *c,
                                 draft_fill *fill, struct qn_err *err)
{
    struct st *st = NULL;
    struct loader *l = NULL;
    struct loader_totals t;
    QN_TRY(draft_vocab_check(e, dir, err));
    QN_TRY(st_open(dir, &st, err));
    enum qn_status s = loader_create(e->draft.ex, st, c, &l, err);
    if (s == QN_OK)
        s = fill(e, l, c, err);
    if (s == QN_OK)
        s = loader_done(l, err);
    if (s == QN_OK) {
        loader_totals(l, &t);
        e->info.weight_bytes += t.packed_bytes;
    }
    loader_free(l);
    exec_quiesce(e->draft.ex); /* a late thread may still read the mapped files */
    st_free(st);
    return s;
}

bool qn_mtp_available(const struct qn_engine *e)
{
    return e->draft.ex != NULL;
}

/* ---- contexts --------------------------------------------------------------------------------
 */

/* kv NULL: an empty one; else it is taken, also on failure. */
static enum qn_status create(struct qn_seq *seq, struct kv_seq *kv, struct qn_mtp **out,
                             struct qn_err *err)
{
    struct qn_engine *e = seq->e;
    struct qn_mtp *m = fault_point("mtp.alloc") ? NULL : calloc(1, sizeof *m);
    enum qn_status st = QN_OK;
    if (!m) {
        kv_seq_free(e->draft.ex, kv);
        QN_FAIL(err, QN_NO_MEMORY, "mtp", "out of memory");
    }
    m->kv = kv;
    m->seq = seq;
    if (!kv && !e->assistant)
        st = kv_seq_create(e->draft.ex, &m->kv, err);
    if (st == QN_OK)
        st = kept_create(e->ex, e->state_cols, e->state_rows, &m->states, err);
    if (st == QN_OK)
        st = kept_create(e->ex, e->model.n_embd, 1, &m->own, err);
    if (st != QN_OK) {
        qn_mtp_free(m);
        return st;
    }
    m->next = qn_seq_len(seq);
    kept_truncate(m->states, m->next);
    seq->mtp = *out = m;
    return QN_OK;
}

enum qn_status qn_mtp_create(struct qn_seq *seq, struct qn_mtp **out, struct qn_err *err)
{
    if (!seq->e->draft.ex)
        QN_FAIL(err, QN_UNSUPPORTED, "mtp", "no draft head is loaded for this model");
    if (seq->mtp)
        QN_FAIL(err, QN_BAD_INPUT, "mtp", "this sequence has a draft context already");
    return create(seq, NULL, out, err);
}

void qn_mtp_free(struct qn_mtp *m)
{
    if (!m)
        return;
    if (m->seq->mtp == m)
        m->seq->mtp = NULL;
    kv_seq_free(m->seq->e->draft.ex, m->kv);
    kept_free(m->states);
    kept_free(m->own);
    free(m);
}

struct qn_mtp *qn_seq_mtp(const struct qn_seq *seq)
{
    return seq->mtp;
}

int32_t mtp_next_state(const struct qn_mtp *m)
{
    int32_t first = kept_first(m->states);
    return m->next < first ? first : m->next;
}

int32_t qn_mtp_next(const struct qn_mtp *m)
{
    return mtp_next_state(m) + 1;
}

int32_t qn_mtp_waiting(const struct qn_mtp *m)
{
    return kept_end(m->states) - mtp_next_state(m);
}

int64_t qn_mtp_bytes(const struct qn_engine *e, int32_t n_tokens)
{
    int64_t rows =
        ((int64_t)e->state_rows * e->state_cols + e->model.n_embd) * (int64_t)sizeof(float);
    return e->draft.ex ? rows + kv_seq_bytes(e->draft.ex, n_tokens) : 0;
}

/* ---- contexts that go on from others' ---------------------------------------------------------
 */

struct exec *engine_mtp_exec(const struct qn_engine *e)
{
    return e->assistant ? NULL : e->draft.ex;
}

int32_t engine_mtp_width(const struct qn_engine *e)
{
    return e->state_cols;
}

struct kv_seq *engine_mtp_kv(const struct qn_mtp *m)
{
    return m->kv;
}

int32_t engine_mtp_rows(const struct qn_mtp *m)
{
    return m->n_true == m->next ? m->n_true : -1;
}

bool engine_mtp_state(const struct qn_mtp *m, int32_t pos, float *state)
{
    bool there = pos >= kept_first(m->states) && pos < kept_end(m->states);
    if (there)
        kept_read(m->states, pos, state);
    return there;
}

enum qn_status engine_mtp_resume(struct qn_seq *seq, struct kv_seq *kv, const float *state,
                                 struct qn_err *err)
{
    struct qn_mtp *m;
    int32_t rows = kv_seq_len(kv);
    QN_ASSERT(seq->e->draft.ex && !seq->mtp && rows <= qn_seq_len(seq));
    QN_TRY(create(seq, kv, &m, err));
    m->n_true = rows;
    if (!state)
        return QN_OK;
    QN_ASSERT(rows == m->next - 1);
    m->next = rows;
    kept_put(m->states, rows, state);
    return QN_OK;
}

enum qn_status engine_mtp_fork(struct qn_seq *src, struct qn_seq *dst, struct qn_err *err)
{
    struct qn_mtp *from = src->mtp, *m;
    struct kv_seq *kv = NULL;
    if (!from)
        return QN_OK;
    if (from->kv)
        QN_TRY(kv_seq_fork(src->e->draft.ex, from->kv, from->n_true, &kv, err));
    QN_TRY(create(dst, kv, &m, err));
    m->next = from->next;
    m->n_true = from->n_true;
    kept_copy(m->states, from->states);
    return QN_OK;
}

/* Row p took the token at p+1: of the first n tokens, n-1 rows stay. */
void mtp_cut(struct qn_seq *s, int32_t n)
{
    struct qn_mtp *m = s->mtp;
    if (!m)
        return;
    int32_t keep = n > 0 ? n - 1 : 0, drop = m->next > keep ? m->next - keep : 0;
    m->next -= drop;
    m->n_true -= drop < m->n_true ? drop : m->n_true;
    if (m->kv && kv_seq_len(m->kv) > m->n_true)
        kv_seq_truncate(s->e->draft.ex, m->kv, m->n_true);
    kept_truncate(m->states, n);
    kept_truncate(m->own, 0);
}

void mtp_before(struct qn_engine *e, const struct qn_step_item *items, int32_t n)
{
    struct model *m = &e->model;
    bool any = false, last = m->taps.n == 0 && !e->assistant;
    for (int32_t i = 0; i < n; i++)
        any |= items[i].seq->mtp != NULL;
    for (int32_t i = 0; i < m->taps.n; i++)
        last |= m->taps.layer[i] == m->n_layer - 1;
    m->keep_hidden = any && last;
    m->taps.on = any && m->taps.n > 0;
}

/* Rows [row, row + n) of hidden are those of the tokens from pos on. A few states that were taken
 * stay, for a target that goes back a little. */
static void keep_states(struct qn_mtp *m, const struct tensor *hidden, int32_t row, int32_t n,
                        int32_t pos)
{
    if (kept_end(m->states) - kept_first(m->states) + n > m->seq->e->state_rows)
        kept_forget(m->states, m->next - QN_ROLLBACK);
    kept_add(m->states, hidden, row, n, pos);
}

/* Of an item's rows only the wanted ones, which are its last, have states. */
static void keep_wanted(const struct qn_engine *e, const struct qn_step_item *items, int32_t n)
{
    int32_t row = 0;
    for (int32_t i = 0; i < n; row += items[i++].n_logits) {
        struct qn_mtp *m = items[i].seq->mtp;
        int32_t end = qn_seq_len(items[i].seq) + items[i].n_ids, k = items[i].n_logits;
        if (m && k)
            keep_states(m, e->model.hidden, row, k, end - k);
        else if (m) {
            kept_truncate(m->states, 0);
            kept_truncate(m->states, end);
        }
    }
}

void mtp_after(struct qn_engine *e, const struct qn_step_item *items, int32_t n)
{
    const struct tensor *states = e->model.taps.n ? e->model.taps.t : e->model.hidden;
    int32_t row = 0;
    if (e->assistant) {
        keep_wanted(e, items, n);
        return;
    }
    for (int32_t i = 0; i < n; row += items[i++].n_ids)
        if (items[i].seq->mtp)
            keep_states(items[i].seq->mtp, states, row, items[i].n_ids, qn_seq_len(items[i].seq));
}

/* ---- steps -----------------------------------------------------------------------------------
 */

static enum qn_status check_item(const struct qn_engine *e, const struct qn_mtp_item *it, int32_t i,
                                 struct qn_err *err)
{
    if (!it->mtp || it->mtp->seq->e != e || it->n_ids < 1 || it->n_ids > MAX_ROWS ||
        it->n_logits < 0 || it->n_logits > it->n_ids || (it->n_logits && !it->logits) ||
        it->n_draft < 0 || it->n_draft > QN_MTP_DRAFT_MAX || (it->n_draft && !it->drafts) ||
        (it->odds && !it->probs))
        QN_FAIL(err, QN_BAD_INPUT, "mtp",
                "item %d: %d ids, %d rows of logits, %d drafts; at most %d ids and %d drafts", i,
                it->n_ids, it->n_logits, it->n_draft, MAX_ROWS, QN_MTP_DRAFT_MAX);
    if ((e->dspark || e->assistant) && (it->n_logits || it->own))
        QN_FAIL(err, QN_UNSUPPORTED, "mtp",
                "item %d: a draft model gives no logits and continues no guesses", i);
    for (int32_t j = 0; j < it->n_ids; j++)
        if (it->ids[j] < 0 || it->ids[j] >= e->info.n_vocab)
            QN_FAIL(err, QN_BAD_INPUT, "mtp", "item %d: token id %d; ids are 0 to %d", i,
                    it->ids[j], e->info.n_vocab - 1);
    if (it->own && (it->n_ids != 1 || kept_end(it->mtp->own) == 0))
        QN_FAIL(err, QN_BAD_INPUT, "mtp",
                "item %d: %d ids on the head's own state; that takes one, after a guess", i,
                it->n_ids);
    if (!it->own && it->n_ids > qn_mtp_waiting(it->mtp))
        QN_FAIL(err, QN_BAD_INPUT, "mtp",
                "item %d: %d ids from position %d on; the states of %d tokens wait for theirs", i,
                it->n_ids, qn_mtp_next(it->mtp), qn_mtp_waiting(it->mtp));
    return QN_OK;
}

static enum qn_status check_items(const struct qn_engine *e, const struct qn_mtp_item *items,
                                  int32_t n, struct qn_err *err)
{
    if (!e->draft.ex)
        QN_FAIL(err, QN_UNSUPPORTED, "mtp", "no draft head is loaded for this model");
    if (n < 1 || n > MAX_ROWS)
        QN_FAIL(err, QN_BAD_INPUT, "mtp", "%d items; a step has 1 to %d", n, MAX_ROWS);
    for (int32_t i = 0; i < n; i++) {
        QN_TRY(check_item(e, &items[i], i, err));
        for (int32_t j = 0; j < i; j++)
            if (items[j].mtp == items[i].mtp)
                QN_FAIL(err, QN_BAD_INPUT, "mtp", "items %d and %d are the same context", j, i);
    }
    return QN_OK;
}

/* An item's rows in one run of the head. */
struct rows {
    struct qn_mtp_item *it;
    const int32_t *ids;
    int32_t n, n_logits; /* of the last n_logits rows: logits wanted, or a guess */
    bool own;
};

/* Own rows are no longer wanted once true ones come. */
static enum qn_status begin(struct qn_engine *e, const struct rows *r, int32_t n,
                            struct qn_err *err)
{
    struct exec_span spans[MAX_ROWS];
    for (int32_t i = 0; i < n; i++) {
        struct qn_mtp *m = r[i].it->mtp;
        if (!r[i].own && kv_seq_len(m->kv) > m->n_true) {
            kv_seq_truncate(e->draft.ex, m->kv, m->n_true);
            kept_truncate(m->own, 0);
        }
        spans[i] = (struct exec_span){m->kv, r[i].ids, r[i].n, r[i].n_logits};
    }
    return exec_begin(e->draft.ex, spans, n, err);
}

/* One run of the head. Logits of all items' wanted rows, in their order; hidden states likewise. */
static enum qn_status run(struct qn_engine *e, const struct rows *r, int32_t n,
                          const struct tensor **logits, struct qn_err *err)
{
    struct model *d = &e->draft;
    int32_t row = 0, wanted = 0;
    QN_TRY(begin(e, r, n, err));
    for (int32_t i = 0; i < n; row += r[i++].n) {
        struct qn_mtp *m = r[i].it->mtp;
        kept_get(r[i].own ? m->own : m->states, r[i].own ? 0 : mtp_next_state(m), r[i].n,
                 d->hidden_in, row);
    }
    *logits = d->family->forward(d);
    exec_commit(d->ex);
    for (int32_t i = 0; i < n; wanted += r[i++].n_logits) {
        struct qn_mtp *m = r[i].it->mtp;
        kept_truncate(m->own, 0);
        if (r[i].n_logits)
            kept_add(m->own, d->hidden, wanted + r[i].n_logits - 1, 1, 0);
        if (r[i].own)
            continue;
        m->next = mtp_next_state(m) + r[i].n;
        m->n_true = kv_seq_len(m->kv);
    }
    return QN_OK;
}

/* Guess k of every item among r. */
static void guess_all(struct qn_engine *e, const struct rows *r, int32_t n,
                      const struct tensor *logits, int32_t k)
{
    int32_t wanted = 0;
    for (int32_t i = 0; i < n; wanted += r[i++].n_logits) {
        struct qn_mtp_item *it = r[i].it;
        if (it->n_draft <= k)
            continue;
        tensor_read(e->draft.ex, logits, wanted + r[i].n_logits - 1, 1, e->draft_logits);
        it->drafts[k] = logits_best(e->draft_logits, e->info.n_vocab);
        if (it->probs)
            it->probs[k] = logits_best_prob(e->draft_logits, e->info.n_vocab, it->drafts[k]);
        if (!guess_goes_on(it->odds, it->least, it->probs, k + 1))
            it->n_draft = k + 1;
    }
}

/* The rows as asked for, with their logits and first guesses. */
static enum qn_status first_run(struct qn_engine *e, struct qn_mtp_item *items, int32_t n,
                                struct qn_err *err)
{
    struct rows r[MAX_ROWS] = {0};
    const struct tensor *logits;
    for (int32_t i = 0; i < n; i++) {
        struct qn_mtp_item *it = &items[i];
        int32_t wanted = it->n_logits ? it->n_logits : it->n_draft ? 1 : 0;
        r[i] = (struct rows){it, it->ids, it->n_ids, wanted, it->own};
    }
    QN_TRY(run(e, r, n, &logits, err));
    int32_t row = 0;
    for (int32_t i = 0; i < n; row += r[i++].n_logits)
        if (items[i].n_logits)
            tensor_read(e->draft.ex, logits, row, items[i].n_logits, items[i].logits);
    guess_all(e, r, n, logits, 0);
    return QN_OK;
}

/* Guess k of those who want so many, from their guesses before; n_more: how many those are. */
static enum qn_status next_run(struct qn_engine *e, struct qn_mtp_item *items, int32_t n, int32_t k,
                               int32_t *n_more, struct qn_err *err)
{
    struct rows r[MAX_ROWS] = {0};
    const struct tensor *logits;
    int32_t n_rows = 0;
    for (int32_t i = 0; i < n; i++)
        if (items[i].n_draft > k)
            r[n_rows++] = (struct rows){&items[i], &items[i].drafts[k - 1], 1, 1, true};
    *n_more = n_rows;
    if (n_rows == 0)
        return QN_OK;
    QN_TRY(run(e, r, n_rows, &logits, err));
    guess_all(e, r, n_rows, logits, k);
    return QN_OK;
}

enum qn_status qn_mtp_step(struct qn_engine *e, struct qn_mtp_item *items, int32_t n,
                           struct qn_err *err)
{
    QN_TRY(check_items(e, items, n, err));
    unsigned fp = cpu_fp_begin();
    enum qn_status st = QN_OK;
    if (e->assistant)
        assistant_step(e, items, n);
    else if (e->dspark)
        st = dspark_step(e, items, n, err);
    else
        st = first_run(e, items, n, err);
    for (int32_t k = 1, more = n; more && st == QN_OK && !e->dspark && !e->assistant; k++)
        st = next_run(e, items, n, k, &more, err);
    cpu_fp_restore(fp);
    return st;
}
