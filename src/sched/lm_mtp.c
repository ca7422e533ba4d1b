/*
 * lm_mtp.c - lines of tokens for an engine's draft head: a context gets the tokens that came since
 * it was last asked, as many contexts as fit into one call together. See lm.h.
 */
#include "base/err.h"
#include "sched/lm.h"

#define ITEMS 64

/* Tokens of the line that the context can take now. */
static int32_t waiting(const struct lm_mtp_item *it, const struct qn_mtp *m)
{
    int32_t n = it->n_ids - qn_mtp_next(m), have = qn_mtp_waiting(m);
    return n < 0 ? 0 : n < have ? n : have;
}

/* All but what one call takes. */
static enum qn_status catch_up(struct qn_engine *e, const struct lm_mtp_item *it, struct qn_mtp *m,
                               int32_t most, struct qn_err *err)
{
    for (int32_t n; (n = waiting(it, m)) > most;) {
        struct qn_mtp_item r = {.mtp = m, .ids = it->ids + qn_mtp_next(m), .n_ids = most};
        QN_TRY(qn_mtp_step(e, &r, 1, err));
    }
    return QN_OK;
}

static enum qn_status run(struct qn_engine *e, struct lm_mtp_item **of, struct qn_mtp_item *r,
                          int32_t n, struct qn_err *err)
{
    if (n == 0)
        return QN_OK;
    QN_TRY(qn_mtp_step(e, r, n, err));
    for (int32_t i = 0; i < n; i++)
        of[i]->n_draft = r[i].n_draft;
    return QN_OK;
}

enum qn_status lm_mtp_run(struct qn_engine *e, struct lm_mtp_item *items, int32_t n,
                          struct qn_err *err)
{
    struct qn_mtp_item r[ITEMS];
    struct lm_mtp_item *of[ITEMS];
    int32_t n_run = 0, rows = 0, most = qn_step_max_rows(e);
    for (int32_t i = 0; i < n; i++) {
        struct lm_mtp_item *it = &items[i];
        struct qn_mtp *m = qn_seq_mtp(it->seq);
        int32_t wanted = it->n_draft;
        it->n_draft = 0;
        if (!m)
            continue;
        QN_TRY(catch_up(e, it, m, most, err));
        int32_t k = waiting(it, m), next = qn_mtp_next(m);
        if (k == 0)
            continue;
        if (rows + k > most || n_run == ITEMS) {
            QN_TRY(run(e, of, r, n_run, err));
            n_run = rows = 0;
        }
        of[n_run] = it;
        r[n_run++] = (struct qn_mtp_item){.mtp = m,
                                          .ids = it->ids + next,
                                          .n_ids = k,
                                          .n_draft = next + k == it->n_ids ? wanted : 0,
                                          .drafts = it->drafts,
                                          .probs = it->probs,
                                          .odds = it->odds,
                                          .least = it->least};
        rows += k;
    }
    return run(e, of, r, n_run, err);
}
