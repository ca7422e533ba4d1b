/*
 * gguf_config.c - config.json and generation_config.json of a converted model; see gguf_arch.h.
 * Numbers are written with the fewest digits that give the file's own float32 again.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "import/gguf_arch_int.h"

static double shortest(double v)
{
    char z[40];
    for (int prec = 1; prec <= 9; prec++) {
        snprintf(z, sizeof z, "%.*g", prec, v);
        if (strtof(z, NULL) == (float)v)
            break;
    }
    return strtod(z, NULL);
}

static void kfloat(struct jw *w, const char *key, double v)
{
    jw_kreal(w, key, shortest(v));
}

static bool has_tensor(const struct arch_model *m, const char *name)
{
    return gguf_find_tensor(m->g, name) != NULL;
}

enum qn_status arch_eos(const struct gguf *g, int64_t n_vocab, int64_t ids[3], int *n,
                        struct qn_err *err)
{
    static const char *const KEY[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                      "tokenizer.ggml.eom_token_id"};
    *n = 0;
    for (int i = 0; i < 3; i++) {
        int64_t v;
        QN_TRY(gguf_i64(g, KEY[i], -1, 0, n_vocab - 1, &v, err));
        bool dup = v < 0;
        for (int j = 0; j < *n; j++)
            dup |= ids[j] == v;
        if (!dup)
            ids[(*n)++] = v;
    }
    return QN_OK;
}

static enum qn_status write_ids(const struct arch_model *m, struct jw *w, struct qn_err *err)
{
    int64_t eos[3], v;
    int n;
    QN_TRY(gguf_i64(m->g, "tokenizer.ggml.bos_token_id", -1, 0, m->n_vocab - 1, &v, err));
    if (v >= 0)
        jw_ki64(w, "bos_token_id", v);
    QN_TRY(arch_eos(m->g, m->n_vocab, eos, &n, err));
    if (n == 1)
        jw_ki64(w, "eos_token_id", eos[0]);
    if (n > 1) {
        jw_key(w, "eos_token_id");
        jw_arr(w);
        for (int i = 0; i < n; i++)
            jw_i64(w, eos[i]);
        jw_arr_end(w);
    }
    QN_TRY(gguf_i64(m->g, "tokenizer.ggml.padding_token_id", -1, 0, m->n_vocab - 1, &v, err));
    if (v >= 0)
        jw_ki64(w, "pad_token_id", v);
    return QN_OK;
}

static void write_factors(struct jw *w, const char *key, const struct gguf_tensor *t)
{
    jw_key(w, key);
    jw_arr(w);
    for (int64_t i = 0; i < t->n_elem; i++)
        jw_real(w, shortest((double)arch_factor(t, i)));
    jw_arr_end(w);
}

static enum qn_status write_rope(const struct arch_model *m, struct jw *w, struct qn_err *err)
{
    double v;
    QN_TRY(gguf_f64(m->g, arch_key(m, "rope.freq_base").z, m->def->rope_base, &v, err));
    kfloat(w, "rope_theta", v);
    jw_key(w, "rope_scaling");
    if (!m->rope_type.n) {
        jw_null(w);
        return QN_OK;
    }
    jw_obj(w);
    /* both spellings: mlx-lm reads either, older readers only "type" */
    jw_kstr(w, "type", m->rope_type);
    jw_kstr(w, "rope_type", m->rope_type);
    if (m->rope_long) {
        write_factors(w, "long_factor", m->rope_long);
        write_factors(w, "short_factor", m->rope_short);
        jw_obj_end(w);
        return QN_OK;
    }
    kfloat(w, "factor", m->rope_factor);
    if (!str_eqz(m->rope_type, "linear"))
        jw_ki64(w, "original_max_position_embeddings", m->rope_orig_ctx);
    if (str_eqz(m->rope_type, "llama3")) {
        jw_kreal(w, "low_freq_factor", 1);
        jw_kreal(w, "high_freq_factor", 4);
    }
    if (str_eqz(m->rope_type, "yarn")) {
        QN_TRY(gguf_f64(m->g, arch_key(m, "rope.scaling.yarn_beta_fast").z, 32, &v, err));
        kfloat(w, "beta_fast", v);
        QN_TRY(gguf_f64(m->g, arch_key(m, "rope.scaling.yarn_beta_slow").z, 1, &v, err));
        kfloat(w, "beta_slow", v);
    }
    jw_obj_end(w);
    return QN_OK;
}

static enum qn_status write_gemma(const struct arch_model *m, struct jw *w, struct qn_err *err)
{
    int64_t window, pattern;
    double local;
    QN_TRY(arch_need(m, "attention.sliding_window", INT32_MAX, &window, err));
    QN_TRY(arch_opt(m, "attention.sliding_window_pattern", 6, 4096, &pattern, err));
    QN_TRY(gguf_f64(m->g, arch_key(m, "rope.freq_base_swa").z, 10000, &local, err));
    jw_ki64(w, "sliding_window", window);
    jw_ki64(w, "sliding_window_pattern", pattern);
    kfloat(w, "rope_local_base_freq", local);
    /* The file has no key for it: the 27B model (the one with 62 layers) divides by the width per
     * head, all others by the head size. */
    jw_ki64(w, "query_pre_attn_scalar", m->n_layer == 62 ? m->n_embd / m->n_head : m->head_dim);
    jw_kstrz(w, "hidden_activation", "gelu_pytorch_tanh");
    return QN_OK;
}

/* The window is kept though neither mlx-lm nor quern applies it without layer_types. */
static enum qn_status write_phi(const struct arch_model *m, struct jw *w, struct qn_err *err)
{
    int64_t window;
    double part = (double)m->rope_dims / (double)m->head_dim;
    QN_TRY(
        gguf_i64(m->g, arch_key(m, "attention.sliding_window").z, 0, 0, INT32_MAX, &window, err));
    if (window)
        jw_ki64(w, "sliding_window", window);
    if ((int64_t)((double)m->head_dim * part) < m->rope_dims) /* readers cut off the fraction */
        part = nextafter(part, 1);
    jw_kreal(w, "partial_rotary_factor", part);
    jw_ki64(w, "original_max_position_embeddings", m->rope_orig_ctx);
    return QN_OK;
}

static void write_moe(const struct arch_model *m, struct jw *w)
{
    jw_ki64(w, "num_experts", m->n_expert);
    jw_ki64(w, "num_experts_per_tok", m->n_expert_used);
    jw_ki64(w, "moe_intermediate_size", m->n_ff_exp);
    jw_ki64(w, "decoder_sparse_step", 1);
    jw_key(w, "mlp_only_layers");
    jw_arr(w);
    jw_arr_end(w);
    jw_kbool(w, "norm_topk_prob", true); /* every released model of the family */
}

static void write_quant(const struct arch_quant *q, struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_obj(w);
    jw_ki64(w, "group_size", 32);
    jw_ki64(w, "bits", q->default_bits);
    jw_kstrz(w, "mode", "affine");
    if (q->overrides_json.n) {
        buf_addc(w->out, ',');
        buf_add_str(w->out, q->overrides_json);
    }
    jw_obj_end(w);
}

enum qn_status arch_config(const struct arch_model *m, const struct arch_quant *q, struct buf *out,
                           struct qn_err *err)
{
    struct jw w;
    double eps;
    QN_TRY(gguf_f64(m->g, arch_key(m, "attention.layer_norm_rms_epsilon").z, 1e-6, &eps, err));
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "model_type", m->def->model_type);
    jw_key(&w, "architectures");
    jw_arr(&w);
    jw_strz(&w, m->def->hf_class);
    jw_arr_end(&w);
    jw_ki64(&w, "hidden_size", m->n_embd);
    jw_ki64(&w, "num_hidden_layers", m->n_layer);
    jw_ki64(&w, "intermediate_size", m->n_ff);
    jw_ki64(&w, "num_attention_heads", m->n_head);
    jw_ki64(&w, "num_key_value_heads", m->n_kv);
    if (m->def->own_head_dim)
        jw_ki64(&w, "head_dim", m->head_dim);
    kfloat(&w, "rms_norm_eps", eps);
    jw_ki64(&w, "vocab_size", m->n_vocab);
    jw_ki64(&w, "max_position_embeddings", m->n_ctx);
    jw_kbool(&w, "tie_word_embeddings", m->tied);
    if (m->def->kind == ARCH_GEMMA)
        QN_TRY(write_gemma(m, &w, err));
    else
        jw_kstrz(&w, "hidden_act", "silu");
    if (m->def->kind == ARCH_PHI)
        QN_TRY(write_phi(m, &w, err));
    if (m->def->moe)
        write_moe(m, &w);
    if (m->def->kind == ARCH_LLAMA) {
        jw_kbool(&w, "attention_bias", has_tensor(m, "blk.0.attn_q.bias"));
        jw_kbool(&w, "mlp_bias", has_tensor(m, "blk.0.ffn_up.bias"));
    }
    QN_TRY(write_rope(m, &w, err));
    QN_TRY(write_ids(m, &w, err));
    jw_kstrz(&w, "torch_dtype", q->float_name);
    if (q->default_bits) {
        write_quant(q, &w, "quantization");
        write_quant(q, &w, "quantization_config");
    }
    jw_obj_end(&w);
    buf_addc(out, '\n');
    return buf_ok(out, "config.json", err);
}

enum qn_status arch_generation_config(const struct arch_model *m, struct buf *out,
                                      struct qn_err *err)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    QN_TRY(write_ids(m, &w, err));
    jw_obj_end(&w);
    buf_addc(out, '\n');
    return buf_ok(out, "generation_config.json", err);
}
