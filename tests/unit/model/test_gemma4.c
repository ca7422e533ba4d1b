/*
 * test_gemma4.c - Gemma 4 beyond what test_parity.c proves: rows left out where nothing appends to
 * KV memory give the same logits and leave the same memory; what a sequence weighs; wrappers and
 * their towers; and what config.json and tensors may not say, on a model made up here: a sliding
 * and a full layer, and a full one that shares the second's keys and values, with per-layer inputs.
 */
#include <string.h>

#include "../check.h"
#include "base/file.h"
#include "fake_model.h"
#include "quern.h"

static char *dir;

static struct qn_engine *open_golden(const char *name)
{
    char path[1024];
    struct qn_engine *e = NULL;
    struct qn_err err;
    snprintf(path, sizeof path, "%s/tiny/%s", GOLDEN_DIR, name);
    struct qn_engine_params p = {.model_dir = path, .n_thread = 2, .weights_only = true};
    CHECK_OK(qn_engine_open(&p, &e, &err), err);
    return e;
}

static struct qn_seq *make_seq(struct qn_engine *e)
{
    struct qn_seq *s = NULL;
    struct qn_err err;
    CHECK_OK(qn_seq_create(e, &s, &err), err);
    return s;
}

/* ---- rows whose logits nobody wants ----------------------------------------------------- */

enum { V = 64, N = 45, SEQS = 3 };

static void ids_of(int seq, int32_t *ids)
{
    for (int32_t i = 0; i < N; i++)
        ids[i] = (i * (7 + 2 * seq) + 5 * seq) % V;
}

/* Three sequences side by side, in steps of `chunk` tokens each, wanting the last `want[seq]` rows
 * of each step: every one must be the row that a sequence alone, wanting all, has there. */
static void check_narrow(struct qn_engine *e, int32_t chunk, const int32_t *want)
{
    static float all[SEQS][N * V], got[SEQS][N * V];
    struct qn_seq *s[SEQS];
    struct qn_err err;
    int32_t ids[SEQS][N];
    for (int q = 0; q < SEQS; q++) {
        ids_of(q, ids[q]);
        struct qn_seq *alone = make_seq(e);
        struct qn_step_item it = {alone, ids[q], N, N, all[q]};
        CHECK_OK(qn_engine_step(e, &it, 1, &err), err);
        qn_seq_free(alone);
        s[q] = make_seq(e);
    }
    for (int32_t at = 0; at < N; at += chunk) {
        struct qn_step_item items[SEQS];
        int32_t n = N - at < chunk ? N - at : chunk;
        for (int q = 0; q < SEQS; q++)
            items[q] = (struct qn_step_item){s[q], ids[q] + at, n, want[q] < n ? want[q] : n,
                                             want[q] ? got[q] : NULL};
        CHECK_OK(qn_engine_step(e, items, SEQS, &err), err);
        for (int q = 0; q < SEQS; q++) {
            size_t rows = (size_t)items[q].n_logits;
            const float *expected = all[q] + ((size_t)(at + n) - rows) * V;
            if (memcmp(got[q], expected, rows * V * sizeof(float)) != 0)
                fail_msg("chunk %d at %d: sequence %d, %zu rows wanted: logits differ", chunk, at,
                         q, rows);
        }
    }
    for (int q = 0; q < SEQS; q++)
        qn_seq_free(s[q]);
}

static void test_narrow(void **state)
{
    static const char *const names[] = {"gemma4-ple-q4", "gemma4-experts-q4"};
    static const int32_t wants[][SEQS] = {{1, 1, 1}, {0, 1, 0}, {3, 0, 2}, {0, 0, 45}, {2, 9, 0}};
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++) {
        struct qn_engine *e = open_golden(names[m]);
        for (size_t w = 0; w < sizeof wants / sizeof wants[0]; w++) {
            check_narrow(e, 1, wants[w]);
            check_narrow(e, 8, wants[w]);
            check_narrow(e, N, wants[w]);
        }
        qn_engine_free(e);
    }
}

static void test_info(void **state)
{
    struct qn_engine *e = open_golden("gemma4-ple-q4");
    const struct qn_model_info *i = qn_engine_info(e);
    assert_string_equal(i->family, "gemma4");
    /* four of six layers have keys and values: one head of 16 in three, of 32 in one; bf16 */
    assert_int_equal(i->kv_token_bytes, 3 * 2 * 16 * 2 + 2 * 32 * 2);
    /* the table of per-layer inputs is not read: 64 rows of 6*32 values, half a byte and a
     * bf16 scale and bias for 32 each */
    assert_true(i->step_bytes <= i->weight_bytes - 64 * 6 * (32 / 2 + 4));
    qn_engine_free(e);
}

/* ---- a model to lie about --------------------------------------------------------------- */

static const char TEXT[] =
    "\"model_type\": \"gemma4_text\", \"hidden_size\": 32, \"intermediate_size\": 32, "
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"head_dim\": 16, \"global_head_dim\": 32, \"num_kv_shared_layers\": 1, "
    "\"hidden_size_per_layer_input\": 16, \"vocab_size_per_layer_input\": 128, "
    "\"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", \"full_attention\", "
    "\"full_attention\"]";

static void put(struct fake *f, int layer, const char *name, int64_t n, int64_t k)
{
    char full[96];
    if (layer >= 0)
        snprintf(full, sizeof full, "language_model.model.layers.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "language_model.model.%s", name);
    fake_put(f, full, "BF16", (int64_t[]){n, k, 0});
}

static void put_layer(struct fake *f, int i)
{
    static const char *const norms[] = {"input_layernorm.weight", "post_attention_layernorm.weight",
                                        "pre_feedforward_layernorm.weight",
                                        "post_feedforward_layernorm.weight",
                                        "post_per_layer_input_norm.weight"};
    int64_t d = i ? 32 : 16, ff = i == 2 ? 64 : 32;
    for (size_t n = 0; n < sizeof norms / sizeof norms[0]; n++)
        put(f, i, norms[n], 32, 0);
    put(f, i, "self_attn.q_proj.weight", 2 * d, 32);
    put(f, i, "self_attn.q_norm.weight", d, 0);
    if (i < 2) {
        put(f, i, "self_attn.k_proj.weight", d, 32);
        put(f, i, "self_attn.v_proj.weight", d, 32);
        put(f, i, "self_attn.k_norm.weight", d, 0);
    }
    put(f, i, "self_attn.o_proj.weight", 32, 2 * d);
    put(f, i, "mlp.gate_proj.weight", ff, 32);
    put(f, i, "mlp.up_proj.weight", ff, 32);
    put(f, i, "mlp.down_proj.weight", 32, ff);
    put(f, i, "per_layer_input_gate.weight", 16, 32);
    put(f, i, "per_layer_projection.weight", 32, 16);
    put(f, i, "layer_scalar", 1, 0);
}

static void set_text(struct fake *f, const char *more)
{
    char text[1024];
    snprintf(text, sizeof text, "{%s%s%s}", TEXT, *more ? ", " : "", more);
    fake_set(f, "text_config", text);
}

static void make(struct fake *f)
{
    memset(f, 0, sizeof *f);
    fake_set(f, "model_type", "\"gemma4\"");
    fake_set(f, "vocab_size", "128");
    set_text(f, "");
    put(f, -1, "embed_tokens.weight", 128, 32);
    put(f, -1, "norm.weight", 32, 0);
    put(f, -1, "embed_tokens_per_layer.weight", 128, 48);
    put(f, -1, "per_layer_model_projection.weight", 48, 32);
    put(f, -1, "per_layer_projection_norm.weight", 16, 0);
    for (int i = 0; i < 3; i++)
        put_layer(f, i);
}

static void expect(struct fake *f, const char *what, enum qn_status want, const char *part)
{
    struct qn_engine *e = NULL;
    struct qn_engine_params p = {.model_dir = dir, .n_thread = 1, .weights_only = true};
    struct qn_err err = {0};
    fake_write(f, dir);
    enum qn_status st = qn_engine_open(&p, &e, &err);
    qn_engine_free(e);
    if (st != want || (st != QN_OK && !strstr(err.msg, part)))
        fail_msg("%s: status %d (expected %d), message \"%s\" (expected \"%s\" in it)", what, st,
                 want, err.msg, part);
    fake_free(f);
}

#define FULL_ROPE "\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1e6}"
static const struct {
    const char *more; /* at the end of text_config: later keys win */
    enum qn_status want;
    const char *part;
} configs[] = {
    {"", QN_OK, ""},
    {"\"attention_bias\": true", QN_UNSUPPORTED, "attention_bias is set"},
    {"\"attention_bias\": false", QN_OK, ""},
    {"\"attn_logit_softcapping\": 50.0", QN_UNSUPPORTED, "attn_logit_softcapping is set"},
    {"\"rope_scaling\": {\"type\": \"linear\"}", QN_UNSUPPORTED, "rope_scaling is set"},
    {"\"use_bidirectional_attention\": \"all\"", QN_UNSUPPORTED,
     "use_bidirectional_attention is \"all\""},
    {"\"use_bidirectional_attention\": true", QN_BAD_INPUT, "use_bidirectional_attention"},
    {"\"use_bidirectional_attention\": \"vision\"", QN_OK, ""},
    {"\"use_bidirectional_attention\": null", QN_OK, ""},
    {"\"hidden_activation\": \"silu\"", QN_UNSUPPORTED, "hidden_activation \"silu\""},
    {"\"layer_types\": [\"full_attention\"]", QN_BAD_INPUT, "1 entries for 3 layers"},
    {"\"layer_types\": [\"full_attention\", \"chunked_attention\", \"full_attention\"]",
     QN_UNSUPPORTED, "layer_types[1] is \"chunked_attention\""},
    {"\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"]", QN_BAD_INPUT,
     "layers.0.self_attn.q_proj.weight: found BF16 [32, 32], expected BF16 [64, 32]"},
    {"\"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\"]",
     QN_BAD_INPUT, "layer 2 shares the keys and values of an earlier full_attention layer"},
    {"\"num_kv_shared_layers\": 2", QN_BAD_INPUT, "none of the first 1 is one"},
    {"\"num_kv_shared_layers\": 3", QN_BAD_INPUT, "num_kv_shared_layers"},
    {"\"num_kv_shared_layers\": -1", QN_BAD_INPUT, "num_kv_shared_layers"},
    {"\"num_kv_shared_layers\": 0", QN_BAD_INPUT, "layers.2.self_attn.k_proj.weight is missing"},
    {"\"use_double_wide_mlp\": false", QN_BAD_INPUT,
     "layers.2.mlp.gate_proj.weight: found BF16 [64, 32], expected BF16 [32, 32]"},
    {"\"global_head_dim\": null", QN_BAD_INPUT, "layers.1.self_attn.q_proj.weight: found BF16 [64"},
    {"\"global_head_dim\": 24", QN_UNSUPPORTED, "head sizes 24"},
    {"\"global_head_dim\": 1024", QN_BAD_INPUT, "global_head_dim"},
    {"\"num_global_key_value_heads\": 2", QN_OK, ""}, /* counts with attention_k_eq_v only */
    {"\"attention_k_eq_v\": true, \"num_global_key_value_heads\": 3", QN_BAD_INPUT,
     "2 is not a multiple of num_global_key_value_heads 3"},
    {"\"attention_k_eq_v\": true, \"num_global_key_value_heads\": 2", QN_BAD_INPUT,
     "layers.1.self_attn.k_proj.weight: found BF16 [32, 32], expected BF16 [64, 32]"},
    {"\"attention_k_eq_v\": true", QN_BAD_INPUT, "layers.1.self_attn.v_proj.weight"},
    {"\"hidden_size_per_layer_input\": 0", QN_BAD_INPUT, "belongs to no part of this model"},
    {"\"hidden_size_per_layer_input\": null", QN_BAD_INPUT, "belongs to no part of this model"},
    {"\"hidden_size_per_layer_input\": 8", QN_BAD_INPUT,
     "embed_tokens_per_layer.weight: found BF16 [128, 48], expected BF16 [128, 24]"},
    {"\"hidden_size_per_layer_input\": 100000", QN_BAD_INPUT, "hidden_size_per_layer_input"},
    {"\"vocab_size_per_layer_input\": 100", QN_UNSUPPORTED,
     "vocab_size_per_layer_input 100 is less than vocab_size 128"},
    {"\"vocab_size_per_layer_input\": 256", QN_BAD_INPUT, "expected BF16 [256, 48]"},
    {"\"final_logit_softcapping\": -1", QN_BAD_INPUT, "final_logit_softcapping"},
    {"\"final_logit_softcapping\": \"30\"", QN_BAD_INPUT, "final_logit_softcapping"},
    {"\"final_logit_softcapping\": null", QN_OK, ""},
    {"\"final_logit_softcapping\": 0", QN_OK, ""},
    {"\"rope_parameters\": {" FULL_ROPE "}", QN_BAD_INPUT,
     "rope_parameters.sliding_attention with a rope_theta is missing"},
    {"\"rope_parameters\": {" FULL_ROPE ", \"sliding_attention\": {}}", QN_BAD_INPUT,
     "rope_parameters.sliding_attention with a rope_theta is missing"},
    {"\"rope_parameters\": {" FULL_ROPE ", \"sliding_attention\": {\"rope_theta\": 1e4, "
     "\"partial_rotary_factor\": 0.5}}",
     QN_UNSUPPORTED, "partial_rotary_factor 0.5"},
    {"\"rope_parameters\": {" FULL_ROPE ", \"sliding_attention\": {\"rope_theta\": 0}}",
     QN_BAD_INPUT, "rope_theta"},
    {"\"rope_parameters\": {" FULL_ROPE ", \"sliding_attention\": {\"rope_theta\": 1e4, "
     "\"rope_type\": \"spiral\"}}",
     QN_UNSUPPORTED, "\"spiral\""},
    {"\"rope_parameters\": {" FULL_ROPE ", \"sliding_attention\": {\"rope_theta\": 1e4}}", QN_OK,
     ""},
    {"\"enable_moe_block\": true", QN_BAD_INPUT, "num_experts"},
    {"\"enable_moe_block\": true, \"num_experts\": 4, \"top_k_experts\": 2, "
     "\"moe_intermediate_size\": 16",
     QN_BAD_INPUT, "layers.0.router.proj.weight is missing"},
    {"\"tie_word_embeddings\": false", QN_BAD_INPUT, "lm_head.weight is missing"},
    {"\"num_attention_heads\": 3", QN_BAD_INPUT, "expected BF16 [48, 32]"},
    {"\"sliding_window\": 0", QN_BAD_INPUT, "sliding_window"},
};

static void test_config(void **state)
{
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct fake f;
        make(&f);
        set_text(&f, configs[i].more);
        expect(&f, configs[i].more, configs[i].want, configs[i].part);
    }
}

static void test_wrappers(void **state)
{
    struct fake f;
    make(&f);
    fake_set(&f, "model_type", "\"gemma4_unified\"");
    fake_put(&f, "vision_embedder.a.weight", "BF16", (int64_t[]){4, 0});
    fake_put(&f, "vision_tower.b.c.weight", "BF16", (int64_t[]){4, 4, 0});
    fake_put(&f, "audio_tower.weight", "BF16", (int64_t[]){4, 0});
    fake_put(&f, "embed_vision.x.weight", "BF16", (int64_t[]){4, 0});
    fake_put(&f, "embed_audio.x.weight", "BF16", (int64_t[]){4, 0});
    fake_put(&f, "multi_modal_projector.x.weight", "BF16", (int64_t[]){4, 0});
    expect(&f, "towers", QN_OK, "");
    make(&f);
    fake_put(&f, "vision_castle.weight", "BF16", (int64_t[]){4, 0});
    expect(&f, "no tower", QN_BAD_INPUT, "vision_castle.weight");
    make(&f);
    fake_set(&f, "text_config", NULL);
    expect(&f, "no text_config", QN_BAD_INPUT, "needs text_config");
    make(&f);
    fake_set(&f, "vocab_size", NULL); /* the outer one's default counts, not 128 */
    set_text(&f, "\"vocab_size\": 128, \"vocab_size_per_layer_input\": 262144");
    expect(&f, "outer vocab_size", QN_BAD_INPUT, "[262144, ");
}

static void test_tensors(void **state)
{
    struct fake f;
    make(&f);
    int n = f.n;
    fake_free(&f);
    for (int i = 0; i < n; i++) { /* any of them missing, any of them of another shape */
        char name[96];
        make(&f);
        snprintf(name, sizeof name, "%s", f.t[i].name);
        fake_drop(&f, name);
        expect(&f, name, QN_BAD_INPUT, name);
        make(&f);
        fake_put(&f, name, "BF16", (int64_t[]){f.t[i].shape[0] + 16, f.t[i].shape[1], 0});
        expect(&f, name, QN_BAD_INPUT, name);
    }
    make(&f);
    put(&f, 0, "router.scale", 32, 0);
    expect(&f, "a router", QN_BAD_INPUT, "layers.0.router.scale in model.safetensors");
    make(&f); /* leftovers that nothing reads */
    put(&f, 2, "self_attn.k_proj.weight", 32, 32);
    put(&f, 2, "self_attn.v_proj.weight", 32, 32);
    put(&f, 2, "self_attn.k_norm.weight", 32, 0);
    put(&f, 0, "mlp.up_proj.input_max", 1, 0);
    expect(&f, "leftovers", QN_OK, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_narrow),  cmocka_unit_test(test_info),
        cmocka_unit_test(test_config),  cmocka_unit_test(test_wrappers),
        cmocka_unit_test(test_tensors),
    };
    dir = check_tmp_dir();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    dir_remove(dir, NULL);
    free(dir);
    return failed;
}
