/*
 * qwen.c - Qwen 2, 2.5 and 3, dense: the decoder of decoder.h. Qwen 2 has biases on q, k and v only
 * and heads of hidden_size / heads; Qwen 3 norms each query and key head before rotation.
 * docs/families/qwen.md.
 */
#include "model/decoder.h"

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
