/*
 * test_inspect_facts.c - what `quern inspect` computes from config.json alone against what the
 * engine keeps once it has loaded the model: bytes for a token and for a conversation, for every
 * golden of the project; windows by hand.
 */
#include <string.h>

#include "../check.h"
#include "base/file.h"
#include "cli/inspect_facts.h"
#include "quern.h"

static void same_as_engine(const char *dir)
{
    struct inspect_facts f;
    struct qn_engine *e = NULL;
    struct qn_err err;
    CHECK_OK(inspect_facts_read(dir, &f, &err), err);
    struct qn_engine_params p = {.model_dir = dir, .n_thread = 1, .weights_only = true};
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    const struct qn_model_info *info = qn_engine_info(e);
    if (inspect_kv_bytes(&f, 1) != info->kv_token_bytes ||
        2 * inspect_state_bytes(&f) != info->seq_state_bytes)
        fail_msg("%s: %lld bytes a token and state of %lld; the engine has %lld and 2 x %lld", dir,
                 (long long)inspect_kv_bytes(&f, 1), (long long)inspect_state_bytes(&f),
                 (long long)info->kv_token_bytes, (long long)info->seq_state_bytes / 2);
    assert_int_equal(f.layers, info->n_layer);
    qn_engine_free(e);
    inspect_facts_free(&f);
}

static void test_same_as_engine(void **state)
{
    char **names;
    size_t n;
    struct qn_err err;
    CHECK_OK(dir_list(GOLDEN_DIR "/tiny", &names, &n, &err), err);
    assert_true(n >= 10);
    for (size_t i = 0; i < n; i++) {
        char dir[1024];
        snprintf(dir, sizeof dir, "%s/tiny/%s", GOLDEN_DIR, names[i]);
        same_as_engine(dir);
    }
    names_free(names, n);
}

/* By the formulas of docs/families, from the sizes in the config.json files. */
static void test_amounts(void **state)
{
    static const struct {
        const char *golden;
        int64_t tokens, bytes, state;
    } cases[] = {
        /* 6 layers of [c | pe] = 64 + 32, 4 of them with an indexer's key of 64 */
        {"glm_moe_dsa-shared-q4", 1, 6 * 2 * (64 + 32) + 4 * 2 * 64, 0},
        {"glm_moe_dsa-shared-q4", 1000, 1000 * (6 * 2 * (64 + 32) + 4 * 2 * 64), 0},
        {"deepseek_v3-q4", 10, 10 * 4 * 2 * (64 + 32), 0},
        /* 4 of 6 layers see 32 tokens */
        {"gemma3_text-q4", 10, 10 * 1536, 0},
        {"gemma3_text-q4", 100, 256 * (4 * 32 + 2 * 100), 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct inspect_facts f;
        struct qn_err err;
        char dir[1024];
        snprintf(dir, sizeof dir, "%s/tiny/%s", GOLDEN_DIR, cases[i].golden);
        CHECK_OK(inspect_facts_read(dir, &f, &err), err);
        if (inspect_kv_bytes(&f, cases[i].tokens) != cases[i].bytes)
            fail_msg("%s: %lld bytes at %lld tokens, expected %lld", cases[i].golden,
                     (long long)inspect_kv_bytes(&f, cases[i].tokens), (long long)cases[i].tokens,
                     (long long)cases[i].bytes);
        assert_int_equal(inspect_state_bytes(&f), cases[i].state);
        inspect_facts_free(&f);
    }
}

/* What quern cannot run can be looked at: only the memory stays open. */
static void test_unknown(void **state)
{
    static const char *const configs[] = {
        "{\"model_type\": \"unheard_of\", \"num_hidden_layers\": 3}",
        "{\"model_type\": \"llama\", \"num_hidden_layers\": 3, \"hidden_act\": \"odd\"}"};
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        char *dir = check_tmp_dir();
        struct inspect_facts f;
        struct qn_err err;
        struct buf path = BUF_INIT;
        path_join(&path, dir, "config.json");
        FILE *out = fopen(buf_z(&path), "w");
        assert_non_null(out);
        fputs(configs[i], out);
        fclose(out);
        CHECK_OK(inspect_facts_read(dir, &f, &err), err);
        assert_int_equal(f.layers, 3);
        assert_int_equal(inspect_kv_bytes(&f, 1), -1);
        assert_int_equal(inspect_state_bytes(&f), 0);
        inspect_facts_free(&f);
        buf_free(&path);
        CHECK_OK(dir_remove(dir, &err), err);
        free(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_engine),
        cmocka_unit_test(test_amounts),
        cmocka_unit_test(test_unknown),
    };
    return cmocka_run_group_tests_name("inspect_facts", tests, NULL, NULL);
}
