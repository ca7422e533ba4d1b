/*
 * bench_mask.c - see bench_mask.h. The answer is fixed and is drawn greedily from noise in which
 * its own token stands out, so a mask that forbids it fails the measurement instead of being fast.
 */
#include "cli/bench_mask.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "bench/quantile.h"
#include "sched/gram_store.h"
#include "sched/sample.h"

#define WHERE "bench"
enum { ANSWERS = 10, PLAIN_DRAWS = 16, SEED = 7 };

static const char schema_text[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":60},\"age\":"
    "{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"email\":{\"type\":\"string\","
    "\"pattern\":\"^[a-z.]+@[a-z]+[.](com|org)$\"},\"role\":{\"enum\":[\"reader\",\"writer\","
    "\"owner\"]},\"address\":{\"type\":\"object\",\"properties\":{\"street\":{\"type\":\"string\"},"
    "\"city\":{\"type\":\"string\"}},\"required\":[\"street\",\"city\"],"
    "\"additionalProperties\":false},\"notes\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"
    "},\"required\":[\"name\",\"age\",\"email\",\"role\",\"address\",\"notes\"],"
    "\"additionalProperties\":false}";
static const char answer_text[] =
    "{\"name\": \"Anna Lindqvist\", \"age\": 42, \"email\": \"anna.lindqvist@example.org\", "
    "\"role\": \"writer\", \"address\": {\"street\": \"12 Harbour Lane\", \"city\": "
    "\"Lindesund\"}, "
    "\"notes\": [\"Writes about lighthouses and old ships.\", \"Answers letters on Mondays.\"]}";

struct rig {
    struct tok *tok;
    struct gram_store *store;
    struct gram_vocab *vocab;
    struct gram *gram;
    struct ids answer;
    struct sampler *sampler;
    int32_t n_vocab;
    float *noise, *logits; /* [n_vocab]; a draw destroys what it gets */
};

/* ---- one answer ------------------------------------------------------------------------------ */

static double lap_us(int64_t *from)
{
    int64_t now = clock_ns();
    double us = (double)(now - *from) / 1e3;
    *from = now;
    return us;
}

static void fill(struct rig *r, int32_t id)
{
    memcpy(r->logits, r->noise, (size_t)r->n_vocab * sizeof *r->logits);
    r->logits[id] = 50;
}

/* A draw without a mask, the median of some. */
static enum qn_status plain_us(struct rig *r, double *us, struct qn_err *err)
{
    double v[PLAIN_DRAWS];
    for (int i = 0; i < PLAIN_DRAWS; i++) {
        struct sampled t;
        fill(r, r->answer.v[0]);
        int64_t from = clock_ns();
        QN_TRY(sampler_draw(r->sampler, r->logits, i, &t, err));
        v[i] = lap_us(&from);
    }
    *us = quantile_of(v, PLAIN_DRAWS, 0.5);
    return QN_OK;
}

static enum qn_status token(struct rig *r, struct gram_run *run, int32_t at, double *us,
                            struct qn_err *err)
{
    const uint64_t *bits;
    struct sampled t;
    fill(r, r->answer.v[at]);
    int64_t from = clock_ns();
    QN_TRY(gram_run_mask(run, &bits, err));
    sampler_allow(r->sampler, bits);
    QN_TRY(sampler_draw(r->sampler, r->logits, at, &t, err));
    if (t.id != r->answer.v[at])
        QN_FAIL(err, QN_UNSUPPORTED, WHERE, "mask: token %d of the answer is not allowed", at);
    QN_TRY(gram_run_accept(run, t.id, err));
    *us = lap_us(&from);
    return QN_OK;
}

/* us: of a token, the mean over the answer. */
static enum qn_status answer(struct rig *r, double *us, double *worst, struct qn_err *err)
{
    struct gram_run *run = NULL;
    double sum = 0, one = 0;
    *worst = 0;
    enum qn_status st = gram_run_create(r->gram, r->vocab, NULL, 0, &run, err);
    for (size_t i = 0; st == QN_OK && i < r->answer.n; i++) {
        st = token(r, run, (int32_t)i, &one, err);
        sum += one;
        *worst = fmax(*worst, one);
    }
    gram_run_free(run);
    *us = sum / (double)r->answer.n;
    return st;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static enum qn_status make_grammar(struct rig *r, struct qn_err *err)
{
    struct json *schema = NULL;
    QN_TRY(json_parse((struct str){schema_text, sizeof schema_text - 1}, "schema", JSON_DEPTH_MAX,
                      &schema, err));
    struct gram_spec spec = {.kind = GRAM_JSON_SCHEMA, .json = schema};
    enum qn_status st = gram_store_vocab(r->store, &r->vocab, err);
    if (st == QN_OK)
        st = gram_store_get(r->store, &spec, &r->gram, NULL, err);
    json_free(schema);
    return st;
}

static enum qn_status make_rig(struct rig *r, const char *dir, struct qn_err *err)
{
    struct sample_params p = sample_params_default();
    size_t n = (size_t)r->n_vocab;
    QN_TRY(tok_open(dir, NULL, &r->tok, err));
    QN_TRY(
        tok_encode(r->tok, (struct str){answer_text, sizeof answer_text - 1}, 0, &r->answer, err));
    p.temperature = 0;
    p.n_top = -1;
    QN_TRY(sampler_create(&p, r->n_vocab, NULL, 0, &r->sampler, err));
    r->store = gram_store_create(r->tok, r->n_vocab);
    r->noise = malloc(n * sizeof *r->noise);
    r->logits = malloc(n * sizeof *r->logits);
    if (!r->store || !r->noise || !r->logits)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory for a row of %zu logits", n);
    for (size_t i = 0; i < n; i++)
        r->noise[i] = (float)(rng_u64(SEED, 0, i) % 1000) / 100;
    for (size_t i = 0; i < r->answer.n; i++)
        if (r->answer.v[i] < 0 || r->answer.v[i] >= r->n_vocab)
            QN_FAIL(err, QN_UNSUPPORTED, WHERE, "mask: token %d is outside the model's vocabulary",
                    r->answer.v[i]);
    return QN_OK;
}

static void free_rig(struct rig *r)
{
    sampler_free(r->sampler);
    gram_unref(r->gram);
    gram_vocab_unref(r->vocab);
    gram_store_free(r->store);
    ids_free(&r->answer);
    tok_free(r->tok);
    free(r->noise);
    free(r->logits);
}

static enum qn_status measure(struct rig *r, struct bench_mask *out, struct qn_err *err)
{
    double plain, again[ANSWERS], worst;
    int64_t from = clock_ns();
    QN_TRY(make_grammar(r, err));
    out->start_us = lap_us(&from);
    QN_TRY(plain_us(r, &plain, err));
    QN_TRY(answer(r, &out->first_us, &out->worst_us, err));
    for (int i = 0; i < ANSWERS; i++)
        QN_TRY(answer(r, &again[i], &worst, err));
    out->first_us = fmax(0, out->first_us - plain);
    out->worst_us = fmax(0, out->worst_us - plain);
    out->again_us = fmax(0, quantile_of(again, ANSWERS, 0.5) - plain);
    out->n_token = (int)r->answer.n;
    return QN_OK;
}

enum qn_status bench_mask(const char *dir, int32_t n_vocab, struct bench_mask *out,
                          struct qn_err *err)
{
    struct rig r = {.n_vocab = n_vocab};
    struct buf path = BUF_INIT;
    *out = (struct bench_mask){0};
    buf_addf(&path, "%s/tokenizer.json", dir);
    bool there = file_exists(buf_z(&path));
    buf_free(&path);
    if (!there)
        return QN_OK;
    enum qn_status st = make_rig(&r, dir, err);
    if (st == QN_OK)
        st = measure(&r, out, err);
    if (st != QN_OK)
        *out = (struct bench_mask){0};
    free_rig(&r);
    return st;
}
