/*
 * test_late.c - threads that lose their processor in the middle of a step: whatever a worker of the
 * pool makes too late is dropped, and logits keep their bits, for families of every kind.
 */
#include <string.h>

#include "../check.h"
#include "base/fault.h"
#include "quern.h"

enum { LINE = 48, READ = 37, VOCAB = 512 };

static const char *const models[] = {
    "gemma4-ple-q4", /* windows, shared layers, inputs of each layer */
    "qwen3_5-moe-q4",
#if !FEWER
    "llama-tied-llama3-q4", "gemma3_text-q4",        "gemma4-experts-q4", "gpt_oss-mxfp4-experts",
    "deepseek_v3-q4",       "glm_moe_dsa-shared-q4", "qwen3_next-q4",
#endif
};
enum { MODELS = sizeof models / sizeof *models };

/* Logits of all rows of a prompt read at once, then of single steps; returns their number. */
static size_t run(const char *name, int32_t n_thread, float *logits)
{
    char dir[600];
    struct qn_engine_params p = {
        .model_dir = dir, .n_thread = n_thread, .n_ctx = 128, .weights_only = true};
    struct qn_engine *e;
    struct qn_seq *s;
    struct qn_err err;
    int32_t ids[LINE];
    snprintf(dir, sizeof dir, "%s/tiny/%s", GOLDEN_DIR, name);
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    CHECK_OK(qn_seq_create(e, &s, &err), err);
    const size_t v = (size_t)qn_engine_info(e)->n_vocab;
    assert_true(v <= VOCAB);
    for (int32_t i = 0; i < LINE; i++)
        ids[i] = (i * 29 + 5) % (int32_t)v;
    for (int32_t at = 0, n = READ; at < LINE; at += n, n = 1) {
        struct qn_step_item it = {s, ids + at, n, n, logits + (size_t)at * v};
        CHECK_OK(qn_engine_step(e, &it, 1, &err), err);
    }
    qn_seq_free(s);
    qn_engine_free(e);
    return LINE * v;
}

static void test_late(void **state)
{
    static float want[LINE * VOCAB], got[LINE * VOCAB];
    int64_t late = 0;
    for (int i = 0; i < MODELS; i++) {
        size_t n = run(models[i], 1, want);
        for (int32_t round = 0; round < 6; round++) {
            int32_t threads = 2 + round % 2;
            memset(got, 0, sizeof got);
            fault_arm_from("pool.late", 1);
            assert_int_equal(run(models[i], threads, got), n);
            late += fault_disarm();
            if (memcmp(want, got, n * sizeof *want) != 0)
                fail_msg("%s with %d threads: other bits", models[i], threads);
        }
    }
    assert_true(late > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_late)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
