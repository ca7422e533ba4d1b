/*
 * llama.c - the llama family: Llama 2/3, SmolLM2, Mistral, MiniCPM5 and whatever else has
 * model_type llama or mistral. Pre-norm blocks, grouped-query attention with rotary positions,
 * SwiGLU.
 *
 *     h += o( attn( rope(q(n)), rope(k(n)), v(n) ) )    n = rms(h) w1
 *     h += down( silu(gate(n)) * up(n) )                n = rms(h) w2
 *
 * Layers whose layer_types entry is "sliding_attention" see sliding_window tokens. Mistral's
 * sliding_window without layer_types is ignored, as mlx-lm does. docs/families/llama.md.
 */
#include <math.h>
#include <stdlib.h>

#include "model/loader.h"
#include "model/model.h"
#include "model/rope_config.h"

struct llama_layer {
    struct weight *norm1, *norm2;
    struct weight *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias;
    struct weight *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
    int32_t window;
};

struct llama {
    int32_t n_head, n_kv, d_head, n_ff;
    double eps, theta;
    bool attn_bias, mlp_bias, tied, interleaved;
    const struct json *rope_scaling;
    struct kv_layer *kv;
    struct llama_layer *layers;
    struct weight *embed, *norm, *head;
    struct rope *rope;
    struct tensor *h[2], *n, *qkv, *q, *att, *delta, *gu, *act, *logits;
};

/* ---- config -----------------------------------------------------------------------------------
 */

static const char CFG[] = "config.json";

static enum qn_status read_sizes(struct model *m, struct llama *s, const struct json *c,
                                 struct qn_err *err)
{
    QN_TRY(json_req_i32(c, CFG, "hidden_size", 16, WEIGHT_DIM_MAX, &m->n_embd, err));
    QN_TRY(json_req_i32(c, CFG, "num_hidden_layers", 1, 1024, &m->n_layer, err));
    QN_TRY(json_req_i32(c, CFG, "intermediate_size", 16, WEIGHT_DIM_MAX, &s->n_ff, err));
    QN_TRY(json_req_i32(c, CFG, "num_attention_heads", 1, 1024, &s->n_head, err));
    QN_TRY(json_req_i32(c, CFG, "vocab_size", 1, 1 << 24, &m->n_vocab, err));
    QN_TRY(json_opt_i32(c, CFG, "num_key_value_heads", s->n_head, 1, 1024, &s->n_kv, err));
    QN_TRY(
        json_opt_i32(c, CFG, "head_dim", m->n_embd / s->n_head, 1, HEAD_DIM_MAX, &s->d_head, err));
    QN_TRY(json_opt_i32(c, CFG, "max_position_embeddings", 4096, 1, 1 << 24, &m->n_ctx_max, err));
    if (s->n_head % s->n_kv)
        QN_FAIL(err, QN_BAD_INPUT, "llama",
                "config.json: num_attention_heads %d is not a multiple of num_key_value_heads %d",
                s->n_head, s->n_kv);
    return QN_OK;
}

static enum qn_status read_switches(struct llama *s, const struct json *c, struct qn_err *err)
{
    struct str act;
    QN_TRY(json_opt_real(c, CFG, "rms_norm_eps", 1e-6, 0, 1, &s->eps, err));
    QN_TRY(json_opt_real(c, CFG, "rope_theta", 10000, 1.0001, 1e12, &s->theta, err));
    QN_TRY(json_opt_bool(c, CFG, "rope_traditional", false, &s->interleaved, err));
    QN_TRY(json_opt_bool(c, CFG, "attention_bias", false, &s->attn_bias, err));
    QN_TRY(json_opt_bool(c, CFG, "mlp_bias", false, &s->mlp_bias, err));
    QN_TRY(json_opt_bool(c, CFG, "tie_word_embeddings", true, &s->tied, err));
    QN_TRY(json_opt_str(c, CFG, "hidden_act", STR_LIT("silu"), &act, err));
    if (!str_eqz(act, "silu") && !str_eqz(act, "swish"))
        QN_FAIL(err, QN_UNSUPPORTED, "llama",
                "config.json: hidden_act \"" STR_FMT "\"; this family has silu", STR_ARG(act));
    s->rope_scaling = json_has(c, "rope_scaling") ? json_get(c, "rope_scaling") : NULL;
    return QN_OK;
}

static enum qn_status read_windows(struct model *m, struct llama *s, const struct json *c,
                                   struct qn_err *err)
{
    const struct json *types = json_has(c, "layer_types") ? json_get(c, "layer_types") : NULL;
    int32_t window;
    QN_TRY(json_opt_i32(c, CFG, "sliding_window", 0, 1, 1 << 24, &window, err));
    if (types && json_len(types) != (size_t)m->n_layer)
        QN_FAIL(err, QN_BAD_INPUT, "llama",
                "config.json: layer_types has %zu entries for %d layers", json_len(types),
                m->n_layer);
    for (int32_t i = 0; types && i < m->n_layer; i++) {
        struct str t = json_str(json_at(types, (size_t)i));
        if (str_eqz(t, "full_attention"))
            continue;
        if (!str_eqz(t, "sliding_attention") || !window)
            QN_FAIL(err, QN_UNSUPPORTED, "llama",
                    "config.json: layer_types[%d] \"" STR_FMT "\" with sliding_window %d", i,
                    STR_ARG(t), window);
        s->layers[i].window = window;
    }
    return QN_OK;
}

static enum qn_status llama_config(struct model *m, const struct json *c, struct qn_err *err)
{
    struct llama *s = calloc(1, sizeof *s);
    if (!s)
        QN_FAIL(err, QN_NO_MEMORY, "llama", "out of memory");
    m->state = s;
    QN_TRY(read_sizes(m, s, c, err));
    QN_TRY(read_switches(s, c, err));
    s->layers = calloc((size_t)m->n_layer, sizeof *s->layers);
    s->kv = calloc((size_t)m->n_layer, sizeof *s->kv);
    if (!s->layers || !s->kv)
        QN_FAIL(err, QN_NO_MEMORY, "llama", "out of memory for %d layers", m->n_layer);
    for (int32_t i = 0; i < m->n_layer; i++)
        s->kv[i] = (struct kv_layer){s->n_kv, s->d_head, s->d_head};
    m->kv = s->kv;
    return read_windows(m, s, c, err);
}

/* ---- weights ----------------------------------------------------------------------------------
 */

static enum qn_status load_attn(struct model *m, struct llama *s, struct loader *l, int32_t i,
                                struct qn_err *err)
{
    struct llama_layer *w = &s->layers[i];
    int32_t q = s->n_head * s->d_head, kv = s->n_kv * s->d_head;
    QN_TRY(load_vec(l, &w->norm1, m->n_embd, err, "model.layers.%d.input_layernorm.weight", i));
    QN_TRY(load_matrix(l, &w->q, q, m->n_embd, err, "model.layers.%d.self_attn.q_proj", i));
    QN_TRY(load_matrix(l, &w->k, kv, m->n_embd, err, "model.layers.%d.self_attn.k_proj", i));
    QN_TRY(load_matrix(l, &w->v, kv, m->n_embd, err, "model.layers.%d.self_attn.v_proj", i));
    QN_TRY(load_matrix(l, &w->o, m->n_embd, q, err, "model.layers.%d.self_attn.o_proj", i));
    if (!s->attn_bias)
        return QN_OK;
    QN_TRY(load_vec(l, &w->q_bias, q, err, "model.layers.%d.self_attn.q_proj.bias", i));
    QN_TRY(load_vec(l, &w->k_bias, kv, err, "model.layers.%d.self_attn.k_proj.bias", i));
    QN_TRY(load_vec(l, &w->v_bias, kv, err, "model.layers.%d.self_attn.v_proj.bias", i));
    return load_vec(l, &w->o_bias, m->n_embd, err, "model.layers.%d.self_attn.o_proj.bias", i);
}

static enum qn_status load_mlp(struct model *m, struct llama *s, struct loader *l, int32_t i,
                               struct qn_err *err)
{
    struct llama_layer *w = &s->layers[i];
    QN_TRY(load_vec(l, &w->norm2, m->n_embd, err, "model.layers.%d.post_attention_layernorm.weight",
                    i));
    QN_TRY(load_matrix(l, &w->gate, s->n_ff, m->n_embd, err, "model.layers.%d.mlp.gate_proj", i));
    QN_TRY(load_matrix(l, &w->up, s->n_ff, m->n_embd, err, "model.layers.%d.mlp.up_proj", i));
    QN_TRY(load_matrix(l, &w->down, m->n_embd, s->n_ff, err, "model.layers.%d.mlp.down_proj", i));
    if (!s->mlp_bias)
        return QN_OK;
    QN_TRY(load_vec(l, &w->gate_bias, s->n_ff, err, "model.layers.%d.mlp.gate_proj.bias", i));
    QN_TRY(load_vec(l, &w->up_bias, s->n_ff, err, "model.layers.%d.mlp.up_proj.bias", i));
    return load_vec(l, &w->down_bias, m->n_embd, err, "model.layers.%d.mlp.down_proj.bias", i);
}

static enum qn_status create_tensors(struct model *m, struct llama *s, struct qn_err *err)
{
    int32_t q = s->n_head * s->d_head, kv = s->n_kv * s->d_head;
    struct {
        struct tensor **t;
        int32_t cols;
    } const list[] = {
        {&s->h[0], m->n_embd},
        {&s->h[1], m->n_embd},
        {&s->n, m->n_embd},
        {&s->qkv, q + 2 * kv},
        {&s->q, q},
        {&s->att, q},
        {&s->delta, m->n_embd},
        {&s->gu, 2 * s->n_ff},
        {&s->act, s->n_ff},
        {&s->logits, m->n_vocab},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        QN_TRY(tensor_create(m->ex, list[i].cols, list[i].t, err));
    return QN_OK;
}

static enum qn_status llama_load(struct model *m, struct loader *l, struct qn_err *err)
{
    struct llama *s = m->state;
    QN_TRY(load_matrix(l, &s->embed, m->n_vocab, m->n_embd, err, "model.embed_tokens"));
    for (int32_t i = 0; i < m->n_layer; i++) {
        QN_TRY(load_attn(m, s, l, i, err));
        QN_TRY(load_mlp(m, s, l, i, err));
    }
    QN_TRY(load_vec(l, &s->norm, m->n_embd, err, "model.norm.weight"));
    s->head = s->embed;
    if (s->tied)
        loader_skip(l, "lm_head.*");
    else
        QN_TRY(load_matrix(l, &s->head, m->n_vocab, m->n_embd, err, "lm_head"));
    loader_skip(l, "*rotary_emb.inv_freq");
    struct rope_params rp = {.scaling = s->rope_scaling,
                             .what = "config.json: rope_scaling",
                             .theta = s->theta,
                             .dims = s->d_head,
                             .max_pos = m->n_ctx_max,
                             .interleaved = s->interleaved};
    QN_TRY(rope_from_config(m->ex, &rp, &s->rope, err));
    return create_tensors(m, s, err);
}

/* ---- one step ---------------------------------------------------------------------------------
 */

/* The residual stream alternates between h[0] and h[1]: operations never work in place. */
static const struct tensor *llama_forward(struct model *m)
{
    struct llama *s = m->state;
    struct exec *ex = m->ex;
    int32_t q = s->n_head * s->d_head, kv = s->n_kv * s->d_head;
    float eps = (float)s->eps;
    struct tensor *h = s->h[0], *h2 = s->h[1];
    op_embed(ex, h, s->embed, 1);
    op_rmsnorm(ex, s->n, h, s->layers[0].norm1, 0, eps);
    for (int32_t i = 0; i < m->n_layer; i++) {
        const struct llama_layer *w = &s->layers[i];
        bool last = i == m->n_layer - 1;
        op_linear(ex,
                  (struct linear[]){{s->qkv, 0, w->q, w->q_bias},
                                    {s->qkv, q, w->k, w->k_bias},
                                    {s->qkv, q + kv, w->v, w->v_bias}},
                  3, s->n);
        struct attn_op a = {.layer = i,
                            .n_head = s->n_head,
                            .n_kv = s->n_kv,
                            .dk = s->d_head,
                            .dv = s->d_head,
                            .window = w->window,
                            .scale = 1 / sqrtf((float)s->d_head),
                            .rope = s->rope};
        op_rope_append(ex, s->q, s->qkv, &a);
        if (last && exec_wanted(ex) == 0)
            return NULL;
        op_attn(ex, s->att, s->q, &a);
        if (last) { /* from here on only the rows whose logits are wanted */
            op_take(ex, s->q, s->att);
            op_take(ex, h2, h);
            op_linear(ex, &(struct linear){s->delta, 0, w->o, w->o_bias}, 1, s->q);
            op_add_rmsnorm(ex, h, s->n, h2, s->delta, w->norm2, 0, eps);
        } else {
            op_linear(ex, &(struct linear){s->delta, 0, w->o, w->o_bias}, 1, s->att);
            op_add_rmsnorm(ex, h2, s->n, h, s->delta, w->norm2, 0, eps);
            struct tensor *t = h;
            h = h2;
            h2 = t;
        }
        op_linear(ex,
                  (struct linear[]){{s->gu, 0, w->gate, w->gate_bias},
                                    {s->gu, s->n_ff, w->up, w->up_bias}},
                  2, s->n);
        op_swiglu(ex, s->act, s->gu);
        op_linear(ex, &(struct linear){s->delta, 0, w->down, w->down_bias}, 1, s->act);
        op_add_rmsnorm(ex, h2, s->n, h, s->delta, last ? s->norm : s->layers[i + 1].norm1, 0, eps);
        struct tensor *t = h;
        h = h2;
        h2 = t;
    }
    op_linear(ex, &(struct linear){s->logits, 0, s->head, NULL}, 1, s->n);
    return s->logits;
}

static void llama_free(struct model *m)
{
    struct llama *s = m->state;
    if (!s)
        return;
    free(s->layers);
    free(s->kv);
    free(s);
}

const struct family family_llama = {
    .name = "llama",
    .model_types = (const char *const[]){"llama", "mistral", "iquestcoder", "xverse", NULL},
    .config = llama_config,
    .load = llama_load,
    .forward = llama_forward,
    .free = llama_free,
};
