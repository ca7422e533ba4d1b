/*
 * test_spec_cache.c - what guesses has its part of the prompt cache: a draft head whose sequence
 * began in the cache guesses the tokens, with the bits of probability, that it guesses where all
 * was computed: at the same line again, further on, where lines part, in a fork, after a long time
 * without guesses. A draft model's sequences begin in a cache of its own. Answers, and counts of
 * guesses that held, are the cold ones'.
 */
#include <string.h>

#include "../check.h"
#include "base/fault.h"
#include "model/engine.h"
#include "sched/sched.h"
#include "scripted.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* the arithmetic is slow there */
#else
#define SANITIZED 0
#endif

enum { LINE = 330, GUESSES = 5, STEP = 64, INTERVAL = 64 };

static struct qn_engine *engine;
static struct qn_cache *cache;
static struct lm lm;

static void open_engine(const char *dir, int64_t cache_bytes)
{
    struct qn_engine_params p = {
        .model_dir = dir, .n_thread = 2, .n_ctx = 700, .weights_only = true, .mtp = QN_MTP_DEFAULT};
    const struct qn_cache_params cp = {.bytes = cache_bytes, .interval = INTERVAL};
    struct qn_err err;
    CHECK_OK(qn_engine_open(&p, &engine, &err), err);
    CHECK_OK(qn_cache_create(engine, &cp, &cache, &err), err);
    lm = lm_of_cache(cache);
}

/* Nothing is left when the cache has gone. */
static void close_engine(void)
{
    struct qn_cache_stats st;
    qn_cache_trim(cache, 0);
    qn_cache_stats(cache, &st);
    assert_int_equal(st.bytes, 0);
    assert_int_equal(qn_kv_bytes_used(engine), 0);
    qn_cache_free(cache);
    qn_engine_free(engine);
}

static void make_line(int32_t *ids, int32_t parts_at, uint32_t seed)
{
    uint32_t a = 5;
    for (int32_t i = 0; i < LINE + 1; i++) {
        if (i == parts_at)
            a = seed;
        a = a * 1664525u + 1013904223u;
        ids[i] = (int32_t)(a >> 8) % 512;
    }
}

/* Steps of a sequence from what it holds up to n tokens. The head is asked now and then, as an
 * answer asks it, or (ask 0) not at all. */
static void feed(void *seq, const int32_t *ids, int32_t n, int32_t ask)
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

static void guess(void *seq, const int32_t *ids, struct guesses *g)
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
static void cold(const int32_t *ids, int32_t n, struct guesses *g)
{
    struct qn_err err;
    void *seq;
    CHECK_OK(lm.ops->seq_create(lm.self, &seq, &err), err);
    CHECK_OK(lm.ops->mtp_open(lm.self, seq, &err), err);
    feed(seq, ids, n, 1);
    guess(seq, ids, g);
    lm.ops->seq_free(lm.self, seq);
}

static void *begin(const int32_t *ids, int32_t n, int32_t *have)
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

static void keep(void *seq, const int32_t *ids)
{
    const struct qn_line line = {"", ids, qn_seq_len(seq)};
    lm.ops->cache_keep(lm.self, &line, seq);
}

static void same_guesses(const char *what, const struct guesses *got, const struct guesses *want)
{
    if (memcmp(got, want, sizeof *got) != 0)
        fail_msg("%s: guesses %d %d %d, sure %a; without the cache %d %d %d, sure %a", what,
                 got->ids[0], got->ids[1], got->ids[2], (double)got->p[0], want->ids[0],
                 want->ids[1], want->ids[2], (double)want->p[0]);
}

/* A line up to n that holds at least `least` tokens of the cache. */
static void warm(const char *what, const int32_t *ids, int32_t n, int32_t least, bool keeps)
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
static void fill(const int32_t *ids, int32_t n, int32_t every, int32_t ask)
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

static void check_fork(const int32_t *ids)
{
    struct guesses got, want;
    struct qn_err err;
    int32_t have;
    void *seq = begin(ids, 200, &have), *other;
    feed(seq, ids, 200, 1);
    CHECK_OK(lm.ops->seq_fork(lm.self, seq, &other, &err), err);
    lm.ops->seq_free(lm.self, seq);
    CHECK_OK(lm.ops->mtp_open(lm.self, other, &err), err);
    cold(ids, 200, &want);
    guess(other, ids, &got);
    same_guesses("a fork", &got, &want);
    lm.ops->seq_free(lm.self, other);
}

/* Memory fails here and there: there may be no context, or one with less; never a wrong answer,
 * and nothing is lost. */
static void check_faults(const int32_t *ids)
{
    static const char *const points[] = {"mtp.alloc", "cache.alloc", "kv.alloc"};
    for (int p = 0; p < 3; p++)
        for (int k = 1; k < 12; k++) {
            const struct qn_line line = {"", ids, 260};
            struct lm_reuse r;
            struct qn_err err;
            void *seq;
            fault_arm(points[p], k);
            enum qn_status st = lm.ops->cache_seq(lm.self, &line, &seq, &r, &err);
            if (st == QN_OK) {
                fault_disarm();
                feed(seq, ids, 260, 0);
                fault_arm(points[p], k);
                keep(seq, ids);
                lm.ops->seq_free(lm.self, seq);
            }
            fault_disarm();
        }
}

/* A folder under QUERN_SHARED; false = it is not there. */
static bool model_dir(const char *name, char dir[600])
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

static void check_head(const char *name, bool anywhere)
{
    static int32_t a[LINE + 1], b[LINE + 1], c[LINE + 1];
    char dir[600];
    if (!model_dir(name, dir))
        skip();
    open_engine(dir, 64 << 20);
    make_line(a, -1, 0);
    make_line(b, 150, 99);
    make_line(c, 0, 77);
    fill(a, 200, INTERVAL, 1);
    warm("the same again", a, 200, anywhere ? 198 : 192, false);
    warm("the same again", a, 200, anywhere ? 198 : 192, false);
    warm("further on", a, 300, 200, true);
    warm("further on still", a, 310, 300, false);
    warm("another end", b, 260, anywhere ? 149 : 128, true);
    warm("the other end again", b, 270, 260, false);
    check_fork(a);
    fill(c, LINE, 320, 0); /* the head is asked only when the line is kept, behind 320 tokens */
    warm("after a long silence", c, LINE, anywhere ? LINE - 2 : 320, false);
    check_faults(b);
    warm("after faults", a, 310, 300, false);
    close_engine();
}

static void test_heads(void **state)
{
    check_head("goldens/tiny/qwen3_5-q4", false);
    check_head("goldens/tiny/glm_moe_dsa-shared-q4", true);
}

/* ---- answers --------------------------------------------------------------------------------- */

struct answer {
    struct spec_counts spec;
    int32_t cached, ids[64], n;
};

static void ask(struct sched *s, const int32_t *ids, int32_t n, bool cache_off, struct answer *a)
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

/* Two turns, without the cache and with it; every answer's tokens and guesses are the same. Returns
 * how many guesses held. */
static int64_t check_turns(const struct spec_params *spec)
{
    static int32_t ids[LINE + 1];
    const struct sched_params params = {.n_lane = 1, .spec = *spec};
    struct scripted_params sp = {0};
    struct answer want, got;
    struct buf json = BUF_INIT;
    struct sched *s;
    struct tok *tok;
    struct qn_err err;
    int64_t accepted = 0;
    scripted_tok_json(&sp, &json);
    CHECK_OK(tok_from_json(buf_str(&json), scripted_tok_config(), &tok, &err), err);
    buf_free(&json);
    CHECK_OK(sched_create(&lm, tok, &params, &s, &err), err);
    make_line(ids, -1, 0);
    for (int k = 0; k < 3; k++) { /* the first turn, the same again, a second turn */
        int32_t n = k < 2 ? 190 : 260;
        ask(s, ids, n, true, &want);
        ask(s, ids, n, false, &got);
        assert_int_equal(want.cached, 0);
        assert_true(k == 0 ? got.cached == 0 : got.cached >= 128);
        assert_int_equal(got.n, want.n);
        assert_memory_equal(got.ids, want.ids, sizeof got.ids);
        assert_memory_equal(&got.spec, &want.spec, sizeof got.spec);
        accepted += want.spec.accepted;
        if (k == 1)
            memcpy(ids + 190, want.ids, (size_t)want.n * sizeof *ids);
    }
    sched_free(s);
    tok_free(tok);
    return accepted;
}

/* The head of a model that was trained, so that many guesses hold. */
static void test_trained_head(void **state)
{
    const struct spec_params p = {.kind = SPEC_MTP, .n_draft = 4, .fixed = true};
    char dir[600];
    if (SANITIZED) {
        print_message("skipped under a sanitizer: a trained model\n");
        skip();
    }
    if (!model_dir("models/tiny-qwen3_5-mtp", dir))
        skip();
    open_engine(dir, 64 << 20);
    assert_true(check_turns(&p) > 30);
    close_engine();
}

/* Draft models with every kind of memory, each with a cache of its own. */
static void check_model(const char *target, const char *draft)
{
    char dir[600];
    struct qn_engine_params p = {
        .model_dir = dir, .n_thread = 1, .n_ctx = 700, .weights_only = true};
    const struct qn_cache_params cp = {.bytes = 64 << 20, .interval = INTERVAL};
    struct qn_engine *d;
    struct qn_cache *dc;
    struct qn_cache_stats st;
    struct qn_err err;
    snprintf(dir, sizeof dir, "%s/%s", TINY_DIR, draft);
    CHECK_OK(qn_engine_open(&p, &d, &err), err);
    CHECK_OK(qn_cache_create(d, &cp, &dc, &err), err);
    snprintf(dir, sizeof dir, "%s/%s", TINY_DIR, target);
    open_engine(dir, 64 << 20);
    struct lm draft_lm = lm_of_cache(dc);
    const struct spec_params spec = {
        .kind = SPEC_MODEL, .draft = &draft_lm, .n_draft = 4, .fixed = true};
    int64_t accepted = check_turns(&spec);
    assert_true(strcmp(target, draft) != 0 || accepted > 60);
    qn_cache_stats(dc, &st);
    assert_true(st.hits >= 2 && st.reused_tokens >= 2 * 128);
    qn_cache_free(dc);
    assert_int_equal(qn_kv_bytes_used(d), 0);
    close_engine();
    qn_engine_free(d);
}

static void test_draft_models(void **state)
{
    check_model("llama-tied-llama3-q4", "llama-tied-llama3-q4");
    check_model("llama-tied-llama3-q4", "gemma3_text-q4");
    check_model("gemma3_text-q4", "qwen3_5-moe-q4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_trained_head),
        cmocka_unit_test(test_draft_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
