/*
 * phi3.c - Phi-3, 3.5 and 4-mini: the decoder of decoder.h with q, k, v in one matrix and gate, up
 * in another, no biases, and only the first partial_rotary_factor of each head rotated. longrope
 * uses its long factors always; sliding_window without layer_types is ignored: both as mlx-lm does.
 * docs/families/phi3.md.
 */
#include "model/decoder.h"

/* Other types would be read as none by mlx-lm and as something else by their authors. */
static enum qn_status check_scaling(const struct rope_params *r, struct qn_err *err)
{
    static const char *const known[] = {"longrope", "su", "linear", "default"};
    struct str type = json_str(json_get(r->scaling, "type"));
    if (!type.p)
        type = json_str(json_get(r->scaling, "rope_type"));
    if (!type.p)
        return QN_OK;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (str_eqz(type, known[i]))
            return QN_OK;
    QN_FAIL(err, QN_UNSUPPORTED, "phi3",
            "%s: type \"" STR_FMT "\"; this family has longrope, su and linear", r->what,
            STR_ARG(type));
}

static enum qn_status phi3_config(struct model *m, const struct json *c, struct qn_err *err)
{
    static const struct decoder_defaults d = {
        .family = "phi3", .eps = 1e-5, .theta = 10000, .n_ctx = 131072};
    static const char *const silu[] = {"silu", "swish", NULL};
    QN_TRY(decoder_config(m, c, &d, err));
    struct decoder *s = m->state;
    struct rope_params *r = &s->rope[0];
    double part;
    s->fused = true;
    QN_TRY(json_opt_real(c, "config.json", "partial_rotary_factor", 1, 0.01, 1, &part, err));
    QN_TRY(json_opt_i32(c, "config.json", "original_max_position_embeddings", 4096, 2, 1 << 24,
                        &r->orig_max_pos, err));
    r->dims = (int32_t)(s->d_head * part);
    QN_TRY(check_scaling(r, err));
    QN_TRY(decoder_refuse(s, c, "attention_bias", err));
    QN_TRY(decoder_activation(s, c, "hidden_act", silu, err));
    return decoder_windows(m, c, err);
}

const struct family family_phi3 = {
    .name = "phi3",
    .model_types = (const char *const[]){"phi3", NULL},
    .config = phi3_config,
    .load = decoder_load,
    .forward = decoder_forward,
    .free = decoder_free,
};
