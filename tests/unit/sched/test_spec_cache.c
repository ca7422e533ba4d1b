/*
 * test_spec_cache.c - what guesses has its part of the prompt cache: a draft head whose sequence
 * began in the cache guesses the tokens, with the bits of probability, that it guesses where all
 * was computed: at the same line again, further on, where lines part, in a fork, after a long time
 * without guesses. A draft model's sequences begin in a cache of its own. Answers, and counts of
 * guesses that held, are the cold ones'.
 */
#include "base/fault.h"
#include "guess_rig.h"

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

/* Two turns, without the cache and with it; every answer's tokens and guesses are the same. Returns
 * how many guesses held. */
static int64_t check_turns(const struct spec_params *spec)
{
    static int32_t ids[LINE + 1];
    struct answer want, got;
    struct tok *tok;
    struct sched *s = make_sched(spec, &tok);
    int64_t accepted = 0;
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
    if (FEWER) {
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
