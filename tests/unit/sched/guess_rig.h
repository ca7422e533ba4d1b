/*
 * guess_rig.h - what the tests of kept guesses share: an engine with a prompt cache and a draft
 * head, lines through it, guesses behind them with the cache and without, and answers of a
 * scheduler. One engine at a time.
 */
#ifndef TESTS_GUESS_RIG_H
#define TESTS_GUESS_RIG_H

#include <string.h>

#include "../check.h"
#include "model/engine.h"
#include "sched/sched.h"
#include "scripted.h"

enum { LINE = 330, GUESSES = 5, STEP = 64, INTERVAL = 64 };

static struct qn_engine *engine;
static struct qn_cache *cache;
static struct lm lm;

/* What guesses, of these params; disk: a folder for the cache, or NULL. */
static inline void open_with(const struct qn_engine_params *of, int64_t cache_bytes,
                             const char *disk)
{
    struct qn_engine_params p = *of;
    const struct qn_cache_params cp = {.bytes = cache_bytes, .interval = INTERVAL};
    const struct qn_disk_params dp = {.dir = disk};
    struct qn_err err;
    p.n_thread = 2;
    p.n_ctx = 700;
    p.weights_only = true;
    CHECK_OK(qn_engine_open(&p, &engine, &err), err);
    CHECK_OK(qn_cache_create(engine, &cp, &cache, &err), err);
    if (disk)
        CHECK_OK(qn_cache_disk_open(cache, &dp, &err), err);
    lm = lm_of_cache(cache);
}

static inline void open_engine(const char *dir, int64_t cache_bytes)
{
    const struct qn_engine_params p = {.model_dir = dir, .mtp = QN_MTP_DEFAULT};
    open_with(&p, cache_bytes, NULL);
}

/* Nothing is left when the cache has gone; who still asks the engine fails at once. */
static inline void close_engine(void)
{
    struct qn_cache_stats st;
    qn_cache_trim(cache, 0);
    qn_cache_stats(cache, &st);
    assert_int_equal(st.bytes, 0);
    assert_int_equal(qn_kv_bytes_used(engine), 0);
    qn_cache_free(cache);
    qn_engine_free(engine);
    cache = NULL;
    engine = NULL;
}

static inline void make_line(int32_t *ids, int32_t parts_at, uint32_t seed)
{
    uint32_t a = 5;
    int32_t v = qn_engine_info(engine)->n_vocab < 512 ? qn_engine_info(engine)->n_vocab : 512;
    for (int32_t i = 0; i < LINE + 1; i++) {
        if (i == parts_at)
            a = seed;
        a = a * 1664525u + 1013904223u;
        ids[i] = (int32_t)(a >> 8) % v;
    }
}

/* Steps of a sequence from what it holds up to n tokens. The head is asked now and then, as an
 * answer asks it, or (ask 0) not at all. */
static inline void feed(void *seq, const int32_t *ids, int32_t n, int32_t ask)
{
    struct qn_err err;
    while (qn_seq_len(seq) < n) {
        int32_t at = qn_seq_len(seq), k = n - at < STEP ? n - at : STEP;
        struct qn_step_item it = {seq, ids + at, k, 0, NULL};
        CHECK_OK(lm.ops->step(lm.self, &it, 1, &err), err);
        struct lm_mtp_item m = {.seq = seq, .ids = ids, .n_ids = at + k};
        if (ask)
            CHECK_OK(lm.ops->mtp_step(lm.self, &m, 1, &err), err);
    }
}

struct guesses {
    int32_t n, ids[GUESSES];
    float p[GUESSES];
};

static inline void guess(void *seq, const int32_t *ids, struct guesses *g)
{
    struct qn_err err;
    *g = (struct guesses){0};
    struct lm_mtp_item m = {.seq = seq,
                            .ids = ids,
                            .n_ids = qn_seq_len(seq) + 1,
                            .n_draft = GUESSES,
                            .drafts = g->ids,
                            .probs = g->p};
    CHECK_OK(lm.ops->mtp_step(lm.self, &m, 1, &err), err);
    assert_int_equal(m.n_draft, GUESSES);
    g->n = m.n_draft;
}

/* All computed, nothing kept. */
static inline void cold(const int32_t *ids, int32_t n, struct guesses *g)
{
    struct qn_err err;
    void *seq;
    CHECK_OK(lm.ops->seq_create(lm.self, &seq, &err), err);
    CHECK_OK(lm.ops->mtp_open(lm.self, seq, &err), err);
    feed(seq, ids, n, 1);
    guess(seq, ids, g);
    lm.ops->seq_free(lm.self, seq);
}

static inline void *begin(const int32_t *ids, int32_t n, int32_t *have)
{
    struct lm_reuse r;
    struct qn_err err;
    const struct qn_line line = {"", ids, n};
    void *seq;
    CHECK_OK(lm.ops->cache_seq(lm.self, &line, &seq, &r, &err), err);
    CHECK_OK(lm.ops->mtp_open(lm.self, seq, &err), err);
    *have = r.n_have;
    return seq;
}

static inline void keep(void *seq, const int32_t *ids)
{
    const struct qn_line line = {"", ids, qn_seq_len(seq)};
    lm.ops->cache_keep(lm.self, &line, seq);
}

static inline void same_guesses(const char *what, const struct guesses *got,
                                const struct guesses *want)
{
    if (memcmp(got, want, sizeof *got) != 0)
        fail_msg("%s: guesses %d %d %d, sure %a; without the cache %d %d %d, sure %a", what,
                 got->ids[0], got->ids[1], got->ids[2], (double)got->p[0], want->ids[0],
                 want->ids[1], want->ids[2], (double)want->p[0]);
}

/* A line up to n that holds at least `least` tokens of the cache. */
static inline void warm(const char *what, const int32_t *ids, int32_t n, int32_t least, bool keeps)
{
    struct guesses got, want;
    int32_t have;
    void *seq = begin(ids, n, &have);
    if (have < least)
        fail_msg("%s: %d tokens of the cache; expected %d", what, have, least);
    feed(seq, ids, n, 1);
    guess(seq, ids, &got);
    cold(ids, n, &want);
    same_guesses(what, &got, &want);
    if (keeps)
        keep(seq, ids);
    lm.ops->seq_free(lm.self, seq);
}

/* A line is read with keeps on the way. */
static inline void fill(const int32_t *ids, int32_t n, int32_t every, int32_t ask)
{
    int32_t have;
    void *seq = begin(ids, n, &have);
    for (int32_t at = have / every * every + every; at <= n; at += every) {
        feed(seq, ids, at, ask);
        keep(seq, ids);
    }
    feed(seq, ids, n, ask);
    keep(seq, ids);
    lm.ops->seq_free(lm.self, seq);
}

/* A folder under QUERN_SHARED; false = it is not there. */
static inline bool model_dir(const char *name, char dir[600])
{
    struct buf path = BUF_INIT;
    char config[600];
    snprintf(config, sizeof config, "%s/config.json", name);
    bool there = check_shared(&path, config);
    if (there)
        snprintf(dir, 600, "%.*s", (int)(path.n - strlen("/config.json")), buf_z(&path));
    buf_free(&path);
    return there;
}

struct answer {
    struct spec_counts spec;
    int32_t cached, ids[64], n;
};

static inline void ask(struct sched *s, const int32_t *ids, int32_t n, bool cache_off,
                       struct answer *a)
{
    struct gen *g = NULL;
    struct gen_event ev;
    struct qn_err err;
    struct gen_params p = {.prompt = ids,
                           .n_prompt = n,
                           .max_tokens = 40,
                           .ignore_eos = true,
                           .cache_off = cache_off,
                           .sample = sample_params_default()};
    p.sample.temperature = 0;
    *a = (struct answer){0};
    CHECK_OK(sched_submit(s, &p, &g, &err), err);
    do {
        gen_wait(g, -1, &ev);
        if (ev.kind == GEN_ERROR)
            fail_msg("%s", ev.err.msg);
        if (ev.kind == GEN_TOKEN)
            a->ids[a->n++] = ev.token.id;
    } while (ev.kind != GEN_DONE);
    a->spec = ev.usage.spec;
    a->cached = ev.usage.cached_tokens;
    gen_free(g);
}

/* A scheduler over the rig's model; *tok goes after it. */
static inline struct sched *make_sched(const struct spec_params *spec, struct tok **tok)
{
    const struct sched_params params = {.n_lane = 1, .spec = *spec};
    struct scripted_params sp = {0};
    struct buf json = BUF_INIT;
    struct sched *s;
    struct qn_err err;
    scripted_tok_json(&sp, &json);
    CHECK_OK(tok_from_json(buf_str(&json), scripted_tok_config(), tok, &err), err);
    buf_free(&json);
    CHECK_OK(sched_create(&lm, *tok, &params, &s, &err), err);
    return s;
}

#endif
