/*
 * test_qwen3_5.c - sequences with a recurrent state: what truncation refuses, that a step which
 * fails leaves the state as it was, that sequences do not share it, and what config.json may not
 * say. The maths itself is test_parity.c's.
 */
#include <string.h>
#include <unistd.h>

#include "../check.h"
#include "base/file.h"
#include "quern.h"

enum { N_CTX = 100, V = 512, N = 60 };

static struct qn_engine *engine;
static int32_t ids[300]; /* i * 7 % V */

static struct qn_seq *make_seq(void)
{
    struct qn_seq *s = NULL;
    struct qn_err err;
    CHECK_OK(qn_seq_create(engine, &s, &err), err);
    return s;
}

static void step(struct qn_seq *s, const int32_t *v, int32_t n, float *logits)
{
    struct qn_step_item it = {s, v, n, logits ? 1 : 0, logits};
    struct qn_err err;
    CHECK_OK(qn_engine_step(engine, &it, 1, &err), err);
}

static void logits_after(int32_t n, float *out)
{
    struct qn_seq *s = make_seq();
    step(s, ids, n, out);
    qn_seq_free(s);
}

static void test_truncate(void **state)
{
    static float want[V], got[V];
    struct qn_seq *s = make_seq();
    struct qn_err err;
    logits_after(N, want);
    step(s, ids + 100, 50, NULL);
    static const int32_t keeps[] = {49, 1};
    for (int i = 0; i < 2; i++)
        CHECK_FAILS(qn_seq_truncate(s, keeps[i], &err), QN_UNSUPPORTED, err, "truncate to 0");
    assert_int_equal(qn_seq_len(s), 50);
    CHECK_OK(qn_seq_truncate(s, 50, &err), err); /* nothing to forget */
    CHECK_OK(qn_seq_truncate(s, 0, &err), err);
    assert_int_equal(qn_seq_len(s), 0);
    step(s, ids, N, got);
    assert_memory_equal(got, want, sizeof want);
    step(s, ids + 100, 1, got);
    assert_int_not_equal(memcmp(got, want, sizeof want), 0);
    qn_seq_free(s);
}

/* The second sequence does not fit: the first one's state stays. Refused tokens leave no trace. */
static void test_failed_step(void **state)
{
    static float want[V], got[V];
    struct qn_seq *a = make_seq(), *full = make_seq();
    struct qn_err err;
    logits_after(N, want);
    step(full, ids, N_CTX - 1, NULL);
    for (int32_t done = 0; done < N; done += 20) {
        struct qn_step_item items[] = {{a, ids + 200, 5, 0, NULL}, {full, ids, 2, 0, NULL}};
        CHECK_FAILS(qn_engine_step(engine, items, 2, &err), QN_BAD_INPUT, err, "context full");
        step(a, ids + done, 20, done + 20 == N ? got : NULL);
    }
    assert_memory_equal(got, want, sizeof want);
    qn_seq_free(a);
    qn_seq_free(full);
}

/* Steps without logits carry the state on, and neighbours do not touch it. */
static void test_side_by_side(void **state)
{
    static float want[2][V], got[2][V];
    struct qn_seq *s[2] = {make_seq(), make_seq()};
    struct qn_err err;
    for (int i = 0; i < 2; i++) {
        struct qn_seq *alone = make_seq();
        step(alone, ids + 100 * i, N, want[i]);
        qn_seq_free(alone);
    }
    for (int32_t at = 0; at < N; at += 3) {
        bool last = at + 3 == N;
        struct qn_step_item items[] = {{s[0], ids + at, 3, last, last ? got[0] : NULL},
                                       {s[1], ids + 100 + at, 3, last, last ? got[1] : NULL}};
        CHECK_OK(qn_engine_step(engine, items, 2, &err), err);
    }
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(got[i], want[i], sizeof want[i]);
        qn_seq_free(s[i]);
    }
}

static void test_info(void **state)
{
    const struct qn_model_info *i = qn_engine_info(engine);
    assert_string_equal(i->family, "qwen3_5_moe");
    assert_int_equal(i->kv_token_bytes, 2 * 2 * 64 * 2); /* one layer of four: K, V; bf16 */
    /* three layers, twice, float32: 3 rows of 2*2*64 + 4*64 channels; 4 heads of 64 x 64 */
    assert_int_equal(i->seq_state_bytes, 3 * 2 * 4 * (3 * 512 + 4 * 64 * 64));
}

/* --- config.json --- */

static void write_config(const char *dir, const char *old, const char *new)
{
    char path[600];
    struct buf text = BUF_INIT, out = BUF_INIT;
    struct qn_err err;
    CHECK_OK(file_read(GOLDEN_DIR "/tiny/qwen3_5-moe-q4/config.json", 1 << 20, &text, &err), err);
    char *at = strstr(buf_z(&text), old);
    assert_non_null(at);
    buf_addf(&out, "%.*s%s%s", (int)(at - buf_z(&text)), buf_z(&text), new, at + strlen(old));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(buf_z(&out), 1, buf_str(&out).n, f), buf_str(&out).n);
    fclose(f);
    buf_free(&text);
    buf_free(&out);
}

static void test_refused_configs(void **state)
{
    static const struct {
        const char *old, *new, *part;
        enum qn_status st;
    } cases[] = {
        {"\"attn_output_gate\": true", "\"attn_output_gate\": false", "attn_output_gate",
         QN_UNSUPPORTED},
        {"\"attention_bias\": false", "\"attention_bias\": true", "attention_bias", QN_UNSUPPORTED},
        {"\"full_attention_interval\": 4", "\"full_attention_interval\": 2", "layer_types[1]",
         QN_UNSUPPORTED},
        {"\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 3", "multiple of key heads",
         QN_BAD_INPUT},
        {"\"linear_key_head_dim\": 64", "\"linear_key_head_dim\": 24", "multiples of 16",
         QN_UNSUPPORTED},
        {"\"linear_key_head_dim\": 64", "\"linear_key_head_dim\": 512", "linear_key_head_dim",
         QN_BAD_INPUT},
        {"\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 0", "linear_conv_kernel_dim",
         QN_BAD_INPUT},
        {"\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 0.05",
         "partial_rotary_factor", QN_UNSUPPORTED},
        {"\"partial_rotary_factor\": 0.25", "\"partial_rotary_factor\": 2", "partial_rotary_factor",
         QN_BAD_INPUT},
        {"\"rope_type\": \"default\"", "\"rope_type\": \"spiral\"", "\"spiral\"", QN_UNSUPPORTED},
        {"\"attn_output_gate\": true", "\"hidden_act\": \"gelu\"", "hidden_act \"gelu\"",
         QN_UNSUPPORTED},
        {"\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5", "4 entries for 5 layers",
         QN_BAD_INPUT},
        {"\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9", "8 experts, 9 of them",
         QN_UNSUPPORTED},
        {"\"num_experts\": 8", "\"num_experts\": 7", "mlp.gate", QN_BAD_INPUT},
        {"\"num_experts_per_tok\": 2", "\"x\": 2", "num_experts_per_tok", QN_BAD_INPUT},
        {"\"linear_value_head_dim\": 64", "\"linear_value_head_dim\": 32", "in_proj_qkv",
         QN_BAD_INPUT},
        {"\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 3", "conv1d.weight",
         QN_BAD_INPUT},
        {"\"shared_expert_intermediate_size\": 64", "\"x\": 64", "shared_expert_intermediate_size",
         QN_BAD_INPUT},
    };
    char *dir = check_tmp_dir(), weights[600];
    struct qn_err err;
    snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
    assert_int_equal(symlink(GOLDEN_DIR "/tiny/qwen3_5-moe-q4/model.safetensors", weights), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct qn_engine *e = NULL;
        struct qn_engine_params p = {.model_dir = dir, .n_thread = 1, .weights_only = true};
        write_config(dir, cases[i].old, cases[i].new);
        CHECK_FAILS(qn_engine_open(&p, &e, &err), cases[i].st, err, cases[i].part);
        assert_null(e);
    }
    assert_int_equal(dir_remove(dir, &err), QN_OK);
    free(dir);
}

int main(void)
{
    struct qn_engine_params p = {.model_dir = GOLDEN_DIR "/tiny/qwen3_5-moe-q4",
                                 .n_thread = 2,
                                 .n_ctx = N_CTX,
                                 .weights_only = true};
    struct qn_err err;
    for (int32_t i = 0; i < 300; i++)
        ids[i] = i * 7 % V;
    if (qn_engine_open(&p, &engine, &err) != QN_OK) {
        printf("FAILED: %s\n", err.msg);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncate),        cmocka_unit_test(test_failed_step),
        cmocka_unit_test(test_side_by_side),    cmocka_unit_test(test_info),
        cmocka_unit_test(test_refused_configs),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    qn_engine_free(engine);
    return failed;
}
