/*
 * scripted_lm.c - see scripted_lm.h. Runs in the scheduler's thread.
 */
#include "scripted_lm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/rng.h"

#define MAX_ROWS 256
#define HIGH     40.0f /* logit of a dictated token: certain at any temperature up to 2 */

struct script {
    int32_t *ids;
    int32_t n, fail, nan;
    int delay_us, pdelay_us;
    bool dictated;
};

struct seq {
    struct ids ids;
    int32_t n_prompt; /* length when the first answer token was asked for; 0 = not yet */
    struct script s;
};

struct scripted_lm {
    const struct tok *tok;
    int32_t n_vocab, n_ctx, eos;
};

struct scripted_lm *scripted_lm_create(const struct tok *tok, int32_t n_vocab, int32_t n_ctx,
                                       int32_t eos)
{
    struct scripted_lm *m = calloc(1, sizeof *m);
    if (m)
        *m = (struct scripted_lm){tok, n_vocab, n_ctx, eos};
    return m;
}

void scripted_lm_free(struct scripted_lm *m)
{
    free(m);
}

static enum qn_status seq_create(void *self, void **out, struct qn_err *err)
{
    struct seq *q = calloc(1, sizeof *q);
    if (!q)
        QN_FAIL(err, QN_NO_MEMORY, "scripted", "no memory");
    *out = q;
    return QN_OK;
}

static void seq_free(void *self, void *seq)
{
    struct seq *q = seq;
    if (!q)
        return;
    ids_free(&q->ids);
    free(q->s.ids);
    free(q);
}

static enum qn_status seq_truncate(void *self, void *seq, int32_t n, struct qn_err *err)
{
    struct seq *q = seq;
    q->ids.n = (size_t)n;
    if (n <= q->n_prompt)
        q->n_prompt = 0;
    return QN_OK;
}

static int32_t number_of(const char *text, const char *key, int32_t def)
{
    const char *p = strstr(text, key);
    return p ? atoi(p + strlen(key)) : def;
}

static void read_ids(struct script *s, const char *p)
{
    s->dictated = true;
    s->ids = calloc(strlen(p) + 1, sizeof *s->ids);
    QN_ASSERT(s->ids);
    while (*p >= '0' && *p <= '9') {
        char *end;
        s->ids[s->n++] = (int32_t)strtol(p, &end, 10);
        p = *end == ',' ? end + 1 : end;
    }
}

/* The last directive before the answer. */
static void read_script(const struct scripted_lm *m, struct seq *q)
{
    struct buf b = BUF_INIT;
    free(q->s.ids);
    q->s = (struct script){.fail = -1, .nan = -1};
    tok_decode(m->tok, q->ids.v, q->ids.n, false, &b);
    char *text = (char *)buf_z(&b), *open = NULL, *next = text;
    for (size_t i = 0; i < b.n; i++)
        if (text[i] == 0)
            text[i] = ' ';
    while ((next = strstr(next, "[[")))
        open = next++;
    char *close = open ? strstr(open, "]]") : NULL;
    if (close) {
        *close = 0;
        q->s.delay_us = number_of(open, "[delay=", number_of(open, ";delay=", 0));
        q->s.pdelay_us = number_of(open, "pdelay=", 0);
        q->s.fail = number_of(open, "fail=", -1);
        q->s.nan = number_of(open, "nan=", -1);
        const char *ids = strstr(open, "ids=");
        if (ids)
            read_ids(&q->s, ids + 4);
    }
    buf_free(&b);
}

static void free_logits(const struct scripted_lm *m, const struct seq *q, float *out)
{
    uint64_t key = 0;
    for (size_t i = q->ids.n > 3 ? q->ids.n - 3 : 0; i < q->ids.n; i++)
        key = key * 1000003 + (uint64_t)q->ids.v[i];
    for (int32_t t = 0; t < m->n_vocab; t++) {
        bool shown = t >= 32 && t < 127 && t != '[' && t != ']';
        out[t] = (float)(4 * rng_unit(key, 1, (uint64_t)t)) - (shown ? 0 : 30);
    }
}

static enum qn_status next_logits(const struct scripted_lm *m, const struct seq *q, float *out,
                                  struct qn_err *err)
{
    int32_t at = (int32_t)q->ids.n - q->n_prompt;
    free_logits(m, q, out);
    if (q->s.fail == at)
        QN_FAIL(err, QN_INTERNAL, "scripted", "scripted failure at /secret/path.c:%d", at);
    if (q->s.dictated)
        out[at < q->s.n ? q->s.ids[at] : m->eos] = HIGH;
    if (q->s.nan == at)
        out[7] = NAN;
    return QN_OK;
}

static enum qn_status push(struct seq *q, const int32_t *ids, int32_t n)
{
    size_t want = q->ids.n + (size_t)n;
    if (want > q->ids.cap) {
        int32_t *p = realloc(q->ids.v, want * 2 * sizeof *p);
        if (!p)
            return QN_NO_MEMORY;
        q->ids.v = p;
        q->ids.cap = want * 2;
    }
    memcpy(q->ids.v + q->ids.n, ids, (size_t)n * sizeof *ids);
    q->ids.n = want;
    return QN_OK;
}

/* Appends an item's tokens; logits of the last rows as asked. Returns how long a model would take.
 */
static enum qn_status run_item(const struct scripted_lm *m, struct qn_step_item *it, int *sleep_us,
                               struct qn_err *err)
{
    struct seq *q = (struct seq *)it->seq;
    bool prompt = q->n_prompt == 0;
    for (int32_t i = 0; i < it->n_ids; i++) {
        QN_TRY(push(q, it->ids + i, 1));
        int32_t row = i - (it->n_ids - it->n_logits);
        bool last = i == it->n_ids - 1;
        if (row < 0)
            continue;
        if (last && q->n_prompt == 0) {
            q->n_prompt = (int32_t)q->ids.n;
            read_script(m, q);
        }
        if (last)
            QN_TRY(next_logits(m, q, it->logits + (size_t)row * (size_t)m->n_vocab, err));
        else
            free_logits(m, q, it->logits + (size_t)row * (size_t)m->n_vocab);
    }
    if (prompt)
        read_script(m, q);
    int us = prompt ? q->s.pdelay_us : q->s.delay_us;
    *sleep_us = us > *sleep_us ? us : *sleep_us;
    return QN_OK;
}

/* As lm.h wants it: a step that fails has changed nothing. */
static enum qn_status step(void *self, struct qn_step_item *items, int32_t n, struct qn_err *err)
{
    int sleep_us = 0;
    for (int32_t i = 0; i < n; i++) {
        struct seq *q = (struct seq *)items[i].seq;
        size_t n_ids = q->ids.n;
        int32_t n_prompt = q->n_prompt;
        enum qn_status st = run_item(self, &items[i], &sleep_us, err);
        if (st == QN_OK)
            continue;
        q->ids.n = n_ids;
        q->n_prompt = n_prompt;
        while (i-- > 0) {
            q = (struct seq *)items[i].seq;
            q->ids.n -= (size_t)items[i].n_ids;
            if (q->ids.n < (size_t)q->n_prompt)
                q->n_prompt = 0;
        }
        return st;
    }
    if (sleep_us > 0)
        usleep((useconds_t)sleep_us);
    return QN_OK;
}

static const struct lm_ops ops = {
    .seq_create = seq_create, .seq_free = seq_free, .seq_truncate = seq_truncate, .step = step};

struct lm scripted_lm_as(struct scripted_lm *m)
{
    return (struct lm){
        .ops = &ops,
        .self = m,
        .n_vocab = m->n_vocab,
        .n_ctx = m->n_ctx,
        .max_rows = MAX_ROWS,
        .eos_ids = &m->eos,
        .n_eos = 1,
    };
}
