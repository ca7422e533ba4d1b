/*
 * qwen.c - Qwen 2, 2.5, 3 and 3 MoE: the decoder of decoder.h. Qwen 2 has biases on q, k and v only
 * and heads of hidden_size / heads; Qwen 3 norms each query and key head before rotation; its MoE
 * form has routed experts in the layers that mlp_only_layers and decoder_sparse_step leave them.
 * docs/families/qwen.md.
 */
#include "model/decoder.h"

static const char CFG[] = "config.json";

static enum qn_status common(struct model *m, const struct json *c, struct qn_err *err)
{
    static const char *const silu[] = {"silu", "swish", NULL};
    struct decoder *s = m->state;
    QN_TRY(decoder_activation(s, c, "hidden_act", silu, err));
    QN_TRY(decoder_refuse(s, c, "use_sliding_window", err));
    return decoder_windows(m, c, err);
}

static enum qn_status qwen2_config(struct model *m, const struct json *c, struct qn_err *err)
{
    static const struct decoder_defaults d = {
        .family = "qwen2", .eps = 1e-6, .theta = 1e6, .tied = true};
    QN_TRY(decoder_config(m, c, &d, err));
    struct decoder *s = m->state;
    s->qkv_bias = true;
    return common(m, c, err);
}

static enum qn_status qwen3_config(struct model *m, const struct json *c, struct qn_err *err)
{
    static const struct decoder_defaults d = {
        .family = "qwen3", .eps = 1e-6, .theta = 1e6, .has_head_dim = true};
    QN_TRY(decoder_config(m, c, &d, err));
    struct decoder *s = m->state;
    s->qk_norm = true;
    QN_TRY(decoder_refuse(s, c, "attention_bias", err));
    return common(m, c, err);
}

/* Layer i has experts unless mlp_only_layers lists it or decoder_sparse_step skips it. */
static enum qn_status read_sparse(struct model *m, const struct json *c, struct qn_err *err)
{
    struct decoder *s = m->state;
    int32_t step;
    QN_TRY(json_opt_i32(c, CFG, "decoder_sparse_step", 1, 1, 1024, &step, err));
    const struct json *dense = json_get(c, "mlp_only_layers");
    for (int32_t i = 0; i < m->n_layer; i++) {
        s->layers[i].routed = (i + 1) % step == 0;
        for (size_t j = 0; j < json_len(dense); j++)
            if ((int32_t)json_real(json_at(dense, j)) == i)
                s->layers[i].routed = false;
    }
    return QN_OK;
}

static enum qn_status qwen3_moe_config(struct model *m, const struct json *c, struct qn_err *err)
{
    QN_TRY(qwen3_config(m, c, err));
    struct decoder *s = m->state;
    struct decoder_experts *e = &s->experts;
    bool norm;
    s->name = "qwen3_moe";
    e->router = "mlp.gate";
    e->experts = "mlp.switch_mlp";
    QN_TRY(json_req_i32(c, CFG, "num_experts", 0, MOE_EXPERT_MAX, &e->n, err));
    if (e->n == 0)
        return QN_OK;
    QN_TRY(json_req_i32(c, CFG, "num_experts_per_tok", 1, MOE_TOP_MAX, &e->top_k, err));
    QN_TRY(json_req_i32(c, CFG, "moe_intermediate_size", 1, WEIGHT_DIM_MAX, &e->n_ff, err));
    QN_TRY(json_opt_bool(c, CFG, "norm_topk_prob", false, &norm, err));
    e->weights =
        norm ? ROUTE_OF_CHOSEN : ROUTE_OF_ALL; /* softmax over all, then made to sum to 1 */
    return read_sparse(m, c, err);
}

const struct family family_qwen2 = {
    .name = "qwen2",
    .model_types = (const char *const[]){"qwen2", NULL},
    .config = qwen2_config,
    .load = decoder_load,
    .forward = decoder_forward,
    .free = decoder_free,
};

const struct family family_qwen3 = {
    .name = "qwen3",
    .model_types = (const char *const[]){"qwen3", NULL},
    .config = qwen3_config,
    .load = decoder_load,
    .forward = decoder_forward,
    .free = decoder_free,
};

const struct family family_qwen3_moe = {
    .name = "qwen3_moe",
    .model_types = (const char *const[]){"qwen3_moe", NULL},
    .config = qwen3_moe_config,
    .load = decoder_load,
    .forward = decoder_forward,
    .free = decoder_free,
};
