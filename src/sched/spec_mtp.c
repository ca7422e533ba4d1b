/*
 * spec_mtp.c - guesses of the model's own draft head, each fed back to it for the next, or of the
 * draft model that is loaded in its place. self is the target's lm; a context is the generation's
 * sequence, to which the head's belongs.
 */
#include "base/err.h"
#include "model/guess_stop.h"
#include "sched/drafter.h"
#include "sched/spec_policy.h"

static enum qn_status open(void *self, void *seq, void **ctx, struct qn_err *err)
{
    const struct lm *lm = self;
    QN_TRY(lm->ops->mtp_open(lm->self, seq, err));
    *ctx = seq;
    return QN_OK;
}

static enum qn_status draft(void *self, struct draft *d, int32_t n, struct qn_err *err)
{
    const struct lm *lm = self;
    struct lm_mtp_item items[SPEC_ROWS];
    float probs[SPEC_ROWS][SPEC_DRAFT_MAX];
    n = n < SPEC_ROWS ? n : SPEC_ROWS;
    for (int32_t i = 0; i < n; i++)
        items[i] = (struct lm_mtp_item){.seq = d[i].ctx,
                                        .ids = d[i].ids,
                                        .n_ids = d[i].n_ids,
                                        .n_draft = d[i].most,
                                        .drafts = d[i].out,
                                        .probs = probs[i],
                                        .odds = d[i].odds,
                                        .least = d[i].least};
    QN_TRY(lm->ops->mtp_step(lm->self, items, n, err));
    for (int32_t i = 0; i < n; i++) {
        d[i].n = items[i].n_draft;
        for (int32_t j = 0; j < d[i].n; j++)
            d[i].sure[j] = (uint8_t)guess_level(probs[i][j]);
    }
    return QN_OK;
}

static enum qn_status fed(void *self, void *ctx, const int32_t *ids, int32_t n_fed,
                          struct qn_err *err)
{
    const struct lm *lm = self;
    struct lm_mtp_item it = {.seq = ctx, .ids = ids, .n_ids = n_fed};
    return lm->ops->mtp_step(lm->self, &it, 1, err);
}

/* All three are asked alike, by the lm's head. */
#define HEAD_OPS                                                                                   \
    .costs = true, .lag = 64, .prior = {0.1F, 0.3F, 0.5F, 0.65F, 0.78F, 0.87F, 0.94F, 0.98F},      \
    .open = open, .draft = draft, .fed = fed

const struct drafter_ops drafter_mtp = {.name = "mtp", .n_draft = 12, HEAD_OPS};
const struct drafter_ops drafter_dspark = {
    .name = "dspark", .n_draft = SPEC_DRAFT_MAX, .block = true, HEAD_OPS};
const struct drafter_ops drafter_assistant = {.name = "assistant", .n_draft = 8, HEAD_OPS};
