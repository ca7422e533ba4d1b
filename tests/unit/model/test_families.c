/*
 * test_families.c - config.json of the families beyond llama: what would change the maths is
 * refused by name, what agrees with the tensors opens, what does not names the tensor. Then the
 * gemma3 wrapper: the same logits, bit for bit, as the text model inside it. On the goldens'
 * checkpoints.
 */
#include <string.h>

#include "../check.h"
#include "../tmp_dir.h"
#include "base/file.h"
#include "base/json.h"
#include "quern.h"

static void read_golden(const char *name, const char *file, struct buf *out)
{
    char path[1024];
    struct qn_err err;
    snprintf(path, sizeof path, "%s/tiny/%s/%s", GOLDEN_DIR, name, file);
    CHECK_OK(file_read(path, 64 << 20, out, &err), err);
}

static void write_file(const char *file, const struct buf *b)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b->p, 1, b->n, f), b->n);
    assert_int_equal(fclose(f), 0);
}

static struct qn_engine *open_engine(const char *path, enum qn_status *st, struct qn_err *err)
{
    struct qn_engine_params p = {.model_dir = path, .n_thread = 1, .weights_only = true};
    struct qn_engine *e = NULL;
    *st = qn_engine_open(&p, &e, err);
    return e;
}

/* ---- config.json ---------------------------------------------------------------------------- */

#define SLIDING "\"sliding_attention\","
static const struct {
    const char *golden, *more; /* put at the end of config.json: later keys win */
    enum qn_status want;
    const char *part;
} cases[] = {
    {"qwen2-q4", "\"use_sliding_window\": true", QN_UNSUPPORTED, "use_sliding_window is set"},
    {"qwen2-q4", "\"use_sliding_window\": false", QN_OK, ""},
    {"qwen2-q4", "\"hidden_act\": \"relu\"", QN_UNSUPPORTED, "hidden_act \"relu\""},
    {"qwen2-q4", "\"num_attention_heads\": 4", QN_BAD_INPUT, "k_proj"},
    {"qwen3-yarn-q4", "\"attention_bias\": true", QN_UNSUPPORTED, "attention_bias is set"},
    {"qwen3-yarn-q4", "\"attention_bias\": false", QN_OK, ""},
    {"qwen3-yarn-q4", "\"rope_scaling\": {\"rope_type\": \"spiral\"}", QN_UNSUPPORTED, "spiral"},
    {"qwen3-yarn-q4", "\"model_type\": \"qwen2\"", QN_BAD_INPUT, "q_proj.weight"},
    {"phi3-longrope-q4", "\"rope_scaling\": {\"type\": \"yarn\"}", QN_UNSUPPORTED, "yarn"},
    {"phi3-longrope-q4", "\"rope_scaling\": null", QN_OK, ""},
    {"phi3-longrope-q4", "\"partial_rotary_factor\": 0.5", QN_BAD_INPUT,
     "long_factor has 32 entries; expected 16"},
    {"phi3-longrope-q4", "\"num_key_value_heads\": 2", QN_BAD_INPUT, "qkv_proj"},
    {"gemma3_text-q4", "\"final_logit_softcapping\": 30.0", QN_UNSUPPORTED,
     "final_logit_softcapping is set"},
    {"gemma3_text-q4", "\"final_logit_softcapping\": null", QN_OK, ""},
    {"gemma3_text-q4", "\"use_bidirectional_attention\": true", QN_UNSUPPORTED,
     "use_bidirectional_attention is set"},
    {"gemma3_text-q4", "\"hidden_activation\": \"gelu\"", QN_UNSUPPORTED, "hidden_activation"},
    {"gemma3_text-q4",
     "\"layer_types\": [" SLIDING SLIDING "\"full_attention\"," SLIDING SLIDING
     "\"full_attention\"]",
     QN_OK, ""},
    {"gemma3_text-q4",
     "\"layer_types\": [" SLIDING SLIDING SLIDING SLIDING SLIDING "\"full_attention\"]",
     QN_UNSUPPORTED, "layer_types[2]"},
    {"gemma3_text-q4", "\"layer_types\": [\"full_attention\"]", QN_BAD_INPUT, "1 entries"},
    {"qwen3_moe-q4", "\"num_experts\": 9", QN_BAD_INPUT, "mlp.gate"},
    {"qwen3_moe-q4", "\"num_experts_per_tok\": 9", QN_UNSUPPORTED, "9"},
    {"qwen3_moe-q4", "\"num_experts_per_tok\": 0", QN_BAD_INPUT, "num_experts_per_tok"},
    {"qwen3_moe-q4", "\"moe_intermediate_size\": 128", QN_BAD_INPUT, "switch_mlp.gate_proj"},
    {"qwen3_moe-q4", "\"mlp_only_layers\": []", QN_BAD_INPUT, "layers.1.mlp.gate"},
    {"qwen3_moe-q4", "\"decoder_sparse_step\": 0", QN_BAD_INPUT, "decoder_sparse_step"},
    {"gpt_oss-mxfp4-experts", "\"swiglu_limit\": 5.0", QN_UNSUPPORTED, "swiglu_limit 5"},
    {"gpt_oss-mxfp4-experts", "\"swiglu_limit\": 7.0", QN_OK, ""},
    {"gpt_oss-mxfp4-experts", "\"num_local_experts\": 5", QN_BAD_INPUT, "mlp.router"},
    {"deepseek_v3-q4", "\"topk_method\": \"greedy\"", QN_UNSUPPORTED, "topk_method \"greedy\""},
    {"deepseek_v3-q4", "\"scoring_func\": \"softmax\"", QN_UNSUPPORTED, "scoring_func \"softmax\""},
    {"deepseek_v3-q4", "\"hidden_act\": \"gelu\"", QN_UNSUPPORTED, "hidden_act \"gelu\""},
    {"deepseek_v3-q4", "\"n_group\": 3", QN_BAD_INPUT, "8 experts in 3 groups, 2 of them used"},
    {"deepseek_v3-q4", "\"n_group\": 8", QN_BAD_INPUT, "two or more experts each"},
    {"deepseek_v3-q4", "\"topk_group\": 5", QN_BAD_INPUT, "5 of them used"},
    {"deepseek_v3-q4", "\"num_experts_per_tok\": 9", QN_UNSUPPORTED, "8 experts, 9 of them"},
    {"deepseek_v3-q4", "\"q_lora_rank\": null", QN_BAD_INPUT, "layers.0.self_attn.q_proj.weight"},
    {"deepseek_v3-q4", "\"q_lora_rank\": 128", QN_BAD_INPUT, "layers.0.self_attn.q_a_proj.weight"},
    {"deepseek_v3-q4", "\"kv_lora_rank\": 100000", QN_BAD_INPUT, "kv_lora_rank"},
    {"deepseek_v3-q4", "\"kv_lora_rank\": 128", QN_BAD_INPUT, "kv_a_proj_with_mqa.weight"},
    {"deepseek_v3-q4", "\"qk_nope_head_dim\": 32", QN_BAD_INPUT, "q_b_proj.weight"},
    {"deepseek_v3-q4", "\"v_head_dim\": 128", QN_BAD_INPUT, "unembed_out"},
    {"deepseek_v3-q4", "\"moe_intermediate_size\": 128", QN_BAD_INPUT, "switch_mlp.gate_proj"},
    {"deepseek_v3-q4", "\"first_k_dense_replace\": 0", QN_BAD_INPUT, "layers.0.mlp.gate.weight"},
    {"deepseek_v3-q4", "\"n_shared_experts\": 0", QN_BAD_INPUT, "mlp.shared_experts"},
    {"deepseek_v3-q4", "\"attention_bias\": true", QN_BAD_INPUT, ".bias is missing"},
    {"deepseek_v3-q4", "\"routed_scaling_factor\": \"2\"", QN_BAD_INPUT, "routed_scaling_factor"},
    {"deepseek_v3-q4", "\"rope_interleave\": false", QN_UNSUPPORTED, "rope_interleave is false"},
    {"deepseek_v3-q4", "\"rope_interleave\": true", QN_OK, ""},
    {"deepseek_v3-q4", "\"rope_scaling\": {\"type\": \"spiral\"}", QN_UNSUPPORTED, "\"spiral\""},
    {"deepseek_v3-q4", "\"num_nextn_predict_layers\": null", QN_OK, ""},
    {"glm_moe_dsa-shared-q4", "\"indexer_types\": [\"full\"]", QN_UNSUPPORTED,
     "indexer_types says \"\" of layer 1"},
    {"glm_moe_dsa-shared-q4",
     "\"indexer_types\": [\"full\", \"none\", \"full\", \"full\", \"full\", \"full\"]",
     QN_UNSUPPORTED, "indexer_types says \"none\" of layer 1; known are full and shared"},
    {"glm_moe_dsa-shared-q4",
     "\"indexer_types\": [\"shared\", \"full\", \"full\", \"full\", \"full\", \"full\"]",
     QN_BAD_INPUT, "the first layer shares an indexer"},
    {"glm_moe_dsa-shared-q4", "\"indexer_types\": null, \"index_topk_pattern\": \"FFSFSF\"", QN_OK,
     ""},
    {"glm_moe_dsa-shared-q4", "\"indexer_types\": null, \"index_topk_pattern\": \"FFXFSF\"",
     QN_UNSUPPORTED, "index_topk_pattern says \"X\" of layer 2; known are F and S"},
    {"glm_moe_dsa-shared-q4", "\"indexer_types\": null", QN_OK, ""}, /* by index_topk_freq */
    {"glm_moe_dsa-shared-q4", "\"indexer_types\": null, \"index_topk_freq\": 3", QN_BAD_INPUT,
     "indexer"},
    {"glm_moe_dsa-shared-q4", "\"index_topk\": 0", QN_BAD_INPUT, "index_topk"},
    {"glm_moe_dsa-shared-q4", "\"index_n_heads\": 8", QN_BAD_INPUT, "indexer.wq_b"},
    {"glm_moe_dsa-shared-q4", "\"index_head_dim\": 16", QN_BAD_INPUT, "head size 16"},
    {"glm_moe_dsa-shared-q4", "\"rope_parameters\": {\"rope_theta\": 0}", QN_BAD_INPUT,
     "rope_theta"},
};

static void test_config(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct buf cfg = BUF_INIT, weights = BUF_INIT;
        read_golden(cases[i].golden, "config.json", &cfg);
        read_golden(cases[i].golden, "model.safetensors", &weights);
        while (cfg.n && cfg.p[cfg.n - 1] != '}')
            cfg.n--;
        cfg.n--;
        buf_addf(&cfg, ", %s}", cases[i].more);
        write_file("config.json", &cfg);
        write_file("model.safetensors", &weights);
        struct qn_err err = {0};
        enum qn_status st;
        qn_engine_free(open_engine(dir, &st, &err));
        if (st != cases[i].want || (st != QN_OK && !strstr(err.msg, cases[i].part)))
            fail_msg("%s with %s: status %d (expected %d), message \"%s\" (expected \"%s\" in it)",
                     cases[i].golden, cases[i].more, st, cases[i].want, err.msg, cases[i].part);
        buf_free(&cfg);
        buf_free(&weights);
    }
}

/* Every family: an activation and a rotary type that nobody knows, wherever its config.json has
 * them. */
struct odd {
    const char *keys, *part; /* keys: "key": value, ... ; a wrapper's go into text_config */
    const char *names[3];    /* of the keys, which are left out elsewhere */
};

static void write_with(struct buf *out, const struct json *c, const struct odd *o)
{
    struct json_iter it = {0};
    const struct json *text = json_get(c, "text_config");
    buf_addz(out, "{");
    while (json_next(c, &it)) {
        bool replaced = false;
        for (int i = 0; i < 3 && o->names[i]; i++)
            replaced |= str_eqz(it.key, o->names[i]);
        if (replaced)
            continue;
        json_w_str(out, it.key);
        buf_addz(out, ":");
        if (json_type(it.val) == JSON_OBJ && it.val == text)
            write_with(out, text, o);
        else
            json_w_value(out, it.val);
        buf_addz(out, ",");
    }
    buf_addf(out, "%s}", o->keys);
}

static void check_odd(const char *golden, const struct odd *o)
{
    struct buf in = BUF_INIT, out = BUF_INIT, weights = BUF_INIT;
    struct json *cfg;
    struct qn_err err = {0};
    enum qn_status st;
    read_golden(golden, "config.json", &in);
    read_golden(golden, "model.safetensors", &weights);
    CHECK_OK(json_parse(buf_str(&in), "config", JSON_DEPTH_MAX, &cfg, &err), err);
    write_with(&out, cfg, o);
    write_file("config.json", &out);
    write_file("model.safetensors", &weights);
    qn_engine_free(open_engine(dir, &st, &err));
    if (st != QN_UNSUPPORTED || !strstr(err.msg, o->part))
        fail_msg("%s with %s: status %d, message \"%s\"", golden, o->keys, st, err.msg);
    json_free(cfg);
    buf_free(&in);
    buf_free(&out);
    buf_free(&weights);
}

static void test_every_family(void **state)
{
#define ROPE                                                                                       \
    "{\"type\": \"spiral\", \"rope_type\": \"spiral\", \"rope_theta\": 10000.0, \"factor\": 2.0}"
    static const struct odd odds[] = {
        {"\"hidden_act\": \"odd\", \"hidden_activation\": \"odd\"",
         "\"odd\"",
         {"hidden_act", "hidden_activation"}},
        {"\"rope_scaling\": " ROPE ", \"rope_parameters\": " ROPE,
         "rope_",
         {"rope_scaling", "rope_parameters"}},
    };
    char **names;
    size_t n;
    struct qn_err err;
    CHECK_OK(dir_list(GOLDEN_DIR "/tiny", &names, &n, &err), err);
    assert_true(n >= 15);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof odds / sizeof odds[0]; k++)
            check_odd(names[i], &odds[k]);
    names_free(names, n);
}

/* ---- the wrapper ---------------------------------------------------------------------------- */

static const char INNER[] = "gemma3_text-q4";

static void wrap_config(void)
{
    struct buf in = BUF_INIT, out = BUF_INIT;
    struct json *cfg;
    struct qn_err err;
    read_golden(INNER, "config.json", &in);
    CHECK_OK(json_parse(buf_str(&in), "config", JSON_DEPTH_MAX, &cfg, &err), err);
    buf_addz(&out, "{\"model_type\": \"gemma3\", \"vocab_size\": 512, \"vision_config\": {}, "
                   "\"quantization\": ");
    json_w_value(&out, json_get(cfg, "quantization"));
    buf_addz(&out, ", \"text_config\": ");
    json_w_value(&out, cfg);
    buf_addz(&out, "}");
    write_file("config.json", &out);
    json_free(cfg);
    buf_free(&in);
    buf_free(&out);
}

/* Names get the prefix; a tower's tensor is put behind. */
static void wrap_weights(void)
{
    struct buf in = BUF_INIT, head = BUF_INIT, out = BUF_INIT;
    read_golden(INNER, "model.safetensors", &in);
    uint64_t n;
    memcpy(&n, in.p, 8);
    const char *p = in.p + 8, *end = p + n;
    while (end[-1] != '}')
        end--;
    while (p < end - 1) {
        bool name = end - p > 7 && memcmp(p, "\"model.", 7) == 0;
        buf_addz(&head, name ? "\"language_model.model." : "");
        buf_add(&head, name ? "" : p, name ? 0 : 1);
        p += name ? 7 : 1;
    }
    size_t data = in.n - 8 - n;
    buf_addf(&head,
             ",\"vision_tower.a.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":"
             "[%zu,%zu]}}",
             data, data + 4);
    while (head.n % 8)
        buf_addz(&head, " ");
    uint64_t head_n = head.n;
    buf_add(&out, &head_n, 8);
    buf_add(&out, head.p, head.n);
    buf_add(&out, in.p + 8 + n, data);
    buf_add(&out, "\0\0\0\0", 4);
    write_file("model.safetensors", &out);
    buf_free(&in);
    buf_free(&head);
    buf_free(&out);
}

enum { N = 48, VOCAB = 512 }; /* longer than the window of 32 */

static void logits_of(const char *path, float *out)
{
    struct qn_err err;
    enum qn_status st;
    struct qn_engine *e = open_engine(path, &st, &err);
    CHECK_OK(st, err);
    assert_int_equal(qn_engine_info(e)->n_vocab, VOCAB);
    int32_t ids[N];
    for (int32_t i = 0; i < N; i++)
        ids[i] = (i * 37 + 5) % VOCAB;
    struct qn_seq *s;
    CHECK_OK(qn_seq_create(e, &s, &err), err);
    struct qn_step_item it = {s, ids, N, N, out};
    CHECK_OK(qn_engine_step(e, &it, 1, &err), err);
    qn_seq_free(s);
    qn_engine_free(e);
}

static void test_wrapper(void **state)
{
    float *want = malloc(N * VOCAB * sizeof *want), *got = malloc(N * VOCAB * sizeof *got);
    char path[1024];
    snprintf(path, sizeof path, "%s/tiny/%s", GOLDEN_DIR, INNER);
    logits_of(path, want);
    wrap_config();
    wrap_weights();
    logits_of(dir, got);
    assert_memory_equal(want, got, N * VOCAB * sizeof *want);
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_every_family),
        cmocka_unit_test(test_wrapper),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
