/*
 * gemma3.c - Gemma 3 text models, and the text half of the multimodal checkpoints (model_type
 * gemma3: config under text_config, tensors under language_model., towers skipped). The decoder of
 * decoder.h with norms of 1 + w, norms behind attention and feed-forward too, head norms, GELU, and
 * two rotations: layers that see a window turn by rope_local_base_freq without scaling.
 * docs/families/gemma3.md.
 */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "model/decoder.h"

static const char CFG[] = "config.json";

/* mlx-lm rounds the factor sqrt(hidden) to bf16, whatever the weights are. */
static float bf16_round(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    u = (u + 0x7FFFu + (u >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Layer i is local unless (i+1) % sliding_window_pattern == 0. Newer files say layer_types instead;
 * when both are there they must agree. */
static enum qn_status read_pattern(struct model *m, const struct json *c, struct qn_err *err)
{
    struct decoder *s = m->state;
    const struct json *types = json_has(c, "layer_types") ? json_get(c, "layer_types") : NULL;
    int32_t window, every;
    QN_TRY(json_opt_i32(c, CFG, "sliding_window", 512, 1, 1 << 24, &window, err));
    QN_TRY(json_opt_i32(c, CFG, "_sliding_window_pattern", 6, 1, 1 << 10, &every, err));
    QN_TRY(json_opt_i32(c, CFG, "sliding_window_pattern", every, 1, 1 << 10, &every, err));
    bool said = json_has(c, "sliding_window_pattern") || json_has(c, "_sliding_window_pattern");
    if (types && json_len(types) != (size_t)m->n_layer)
        QN_FAIL(err, QN_BAD_INPUT, s->name,
                "config.json: layer_types has %zu entries for %d layers", json_len(types),
                m->n_layer);
    for (int32_t i = 0; i < m->n_layer; i++) {
        bool local = (i + 1) % every != 0;
        struct str t = json_str(json_at(types, (size_t)i));
        bool sliding = str_eqz(t, "sliding_attention");
        if (types && ((said && sliding != local) || (!sliding && !str_eqz(t, "full_attention"))))
            QN_FAIL(err, QN_UNSUPPORTED, s->name,
                    "config.json: layer_types[%d] is \"" STR_FMT "\"; sliding_window_pattern %d "
                    "makes it %s",
                    i, STR_ARG(t), every, local ? "sliding_attention" : "full_attention");
        s->layers[i].local = types ? sliding : local;
        if (s->layers[i].local)
            s->layers[i].window = s->kv[i].window = window;
    }
    return QN_OK;
}

/* rope_theta with rope_scaling, and rope_local_base_freq without; or, in newer files,
 * rope_parameters with one object per layer type. */
static enum qn_status read_ropes(struct decoder *s, const struct json *c, struct qn_err *err)
{
    const struct json *both =
        json_has(c, "rope_parameters") ? json_get(c, "rope_parameters") : NULL;
    const struct json *full = json_get(both, "full_attention");
    const struct json *local = json_get(both, "sliding_attention");
    struct rope_params *r = s->rope;
    double theta;
    QN_TRY(json_opt_real(full, "config.json: rope_parameters.full_attention", "rope_theta", 1e6,
                         1.0001, 1e12, &theta, err));
    QN_TRY(json_opt_real(c, CFG, "rope_theta", theta, 1.0001, 1e12, &r[0].theta, err));
    QN_TRY(json_opt_real(local, "config.json: rope_parameters.sliding_attention", "rope_theta", 1e4,
                         1.0001, 1e12, &theta, err));
    r[1] = r[0];
    r[1].scaling = NULL;
    QN_TRY(json_opt_real(c, CFG, "rope_local_base_freq", theta, 1.0001, 1e12, &r[1].theta, err));
    if (full && !json_has(c, "rope_scaling"))
        r[0].scaling = full;
    return QN_OK;
}

static enum qn_status text_config(struct model *m, const struct json *c,
                                  const struct decoder_defaults *d, struct qn_err *err)
{
    static const char *const gelu[] = {"gelu_pytorch_tanh", NULL};
    static const char *const unknown[] = {"attention_bias", "attn_logit_softcapping",
                                          "final_logit_softcapping", "use_bidirectional_attention"};
    double q;
    QN_TRY(decoder_config(m, c, d, err));
    struct decoder *s = m->state;
    QN_TRY(json_opt_real(c, CFG, "query_pre_attn_scalar", 256, 1, 1e6, &q, err));
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        QN_TRY(decoder_refuse(s, c, unknown[i], err));
    QN_TRY(decoder_activation(s, c, "hidden_activation", gelu, err));
    s->act = GLU_GELU;
    s->norm_add = 1;
    s->qk_norm = s->post_norms = true;
    s->head_if_present = true;
    s->embed_scale = bf16_round(sqrtf((float)m->n_embd));
    s->attn_scale = (float)(1 / sqrt(q));
    QN_TRY(read_ropes(s, c, err));
    return read_pattern(m, c, err);
}

static enum qn_status gemma3_config(struct model *m, const struct json *c, struct qn_err *err)
{
    struct decoder_defaults d = {.family = "gemma3",
                                 .eps = 1e-6,
                                 .theta = 1e6,
                                 .tied = true,
                                 .has_head_dim = true,
                                 .n_head = 4,
                                 .n_kv = 1,
                                 .d_head = 256,
                                 .n_vocab = 262144,
                                 .n_ctx = 32768,
                                 .n_ff = 6912};
    if (!str_eqz(json_str(json_get(c, "model_type")), "gemma3"))
        return text_config(m, c, &d, err);
    const struct json *text = json_get(c, "text_config");
    if (json_type(text) != JSON_OBJ)
        QN_FAIL(err, QN_BAD_INPUT, "gemma3", "config.json: model_type gemma3 needs text_config");
    d.n_head = 8;
    d.n_kv = 4;
    d.n_vocab = 262208;
    QN_TRY(text_config(m, text, &d, err));
    /* mlx-lm lets the outer vocab_size win, default and all. */
    QN_TRY(json_opt_i32(c, CFG, "vocab_size", 262208, 1, 1 << 24, &m->n_vocab, err));
    struct decoder *s = m->state;
    s->prefix = "language_model.";
    return QN_OK;
}

static enum qn_status gemma3_load(struct model *m, struct loader *l, struct qn_err *err)
{
    int32_t n = loader_skip(l, "vision_tower.*") + loader_skip(l, "multi_modal_projector.*");
    if (n)
        log_line(LOG_INFO, "gemma3", "text only: %d tensors of the vision tower are left out", n);
    return decoder_load(m, l, err);
}

const struct family family_gemma3 = {
    .name = "gemma3",
    .model_types = (const char *const[]){"gemma3_text", "gemma3", NULL},
    .config = gemma3_config,
    .load = gemma3_load,
    .forward = decoder_forward,
    .free = decoder_free,
};
