/*
 * gpt_oss.c - gpt-oss: the decoder of decoder.h with biases everywhere, one more logit per head in
 * the softmax of attention (sinks), windows on every other layer, and routed experts in all layers
 * with a clamped activation. docs/families/gpt_oss.md.
 */
#include "model/decoder.h"

static const char CFG[] = "config.json";

static enum qn_status read_experts(struct model *m, const struct json *c, struct qn_err *err)
{
    struct decoder *s = m->state;
    struct decoder_experts *e = &s->experts;
    double limit;
    *e = (struct decoder_experts){.n_ff = s->n_ff,
                                  .router = "mlp.router",
                                  .experts = "mlp.experts",
                                  .bias = true,
                                  .weights = ROUTE_OF_CHOSEN};
    QN_TRY(json_opt_i32(c, CFG, "num_local_experts", 128, 1, MOE_EXPERT_MAX, &e->n, err));
    QN_TRY(json_opt_i32(c, CFG, "num_experts_per_tok", 4, 1, MOE_TOP_MAX, &e->top_k, err));
    QN_TRY(json_opt_real(c, CFG, "swiglu_limit", 7, 0, 1e6, &limit, err));
    if (limit != 7)
        QN_FAIL(err, QN_UNSUPPORTED, s->name, "config.json: swiglu_limit %g; only 7 is supported",
                limit);
    for (int32_t i = 0; i < m->n_layer; i++)
        s->layers[i].routed = true;
    return QN_OK;
}

static enum qn_status gpt_oss_config(struct model *m, const struct json *c, struct qn_err *err)
{
    static const struct decoder_defaults d = {.family = "gpt_oss",
                                              .eps = 1e-5,
                                              .theta = 150000,
                                              .has_head_dim = true,
                                              .n_head = 64,
                                              .n_kv = 8,
                                              .d_head = 64,
                                              .n_vocab = 201088,
                                              .n_ctx = 131072,
                                              .n_ff = 2880};
    static const char *const silu[] = {"silu", NULL};
    QN_TRY(decoder_config(m, c, &d, err));
    struct decoder *s = m->state;
    s->tied = false; /* whatever config.json says: the head is always a matrix of its own */
    s->qkv_bias = s->o_bias = s->sinks = true;
    s->act = GLU_CLAMPED;
    QN_TRY(decoder_activation(s, c, "hidden_act", silu, err));
    QN_TRY(read_experts(m, c, err));
    if (json_has(c, "layer_types"))
        return decoder_windows(m, c, err);
    int32_t window;
    QN_TRY(json_opt_i32(c, CFG, "sliding_window", 128, 1, 1 << 24, &window, err));
    for (int32_t i = 0; i < m->n_layer; i += 2)
        s->layers[i].window = s->kv[i].window = window;
    return QN_OK;
}

const struct family family_gpt_oss = {
    .name = "gpt_oss",
    .model_types = (const char *const[]){"gpt_oss", NULL},
    .config = gpt_oss_config,
    .load = decoder_load,
    .forward = decoder_forward,
    .free = decoder_free,
};
