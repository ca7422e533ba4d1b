/*
 * llama.c - the llama family: Llama 2/3, SmolLM2, Mistral, MiniCPM5 and whatever else has
 * model_type llama or mistral. The plain decoder of decoder.h; biases by attention_bias and
 * mlp_bias.
 *
 * Layers whose layer_types entry is "sliding_attention" see sliding_window tokens. Mistral's
 * sliding_window without layer_types is ignored, as mlx-lm does. docs/families/llama.md.
 */
#include "model/decoder.h"

static enum qn_status llama_config(struct model *m, const struct json *c, struct qn_err *err)
{
    static const struct decoder_defaults d = {
        .family = "llama", .eps = 1e-6, .theta = 10000, .tied = true, .has_head_dim = true};
    static const char *const silu[] = {"silu", "swish", NULL};
    QN_TRY(decoder_config(m, c, &d, err));
    struct decoder *s = m->state;
    QN_TRY(json_opt_bool(c, "config.json", "attention_bias", false, &s->qkv_bias, err));
    QN_TRY(json_opt_bool(c, "config.json", "mlp_bias", false, &s->mlp_bias, err));
    s->o_bias = s->qkv_bias;
    QN_TRY(decoder_activation(s, c, "hidden_act", silu, err));
    return decoder_windows(m, c, err);
}

const struct family family_llama = {
    .name = "llama",
    .model_types = (const char *const[]){"llama", "mistral", "iquestcoder", "xverse", NULL},
    .config = llama_config,
    .load = decoder_load,
    .forward = decoder_forward,
    .free = decoder_free,
};
