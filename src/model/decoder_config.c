/*
 * decoder_config.c - config.json of the families that decoder.h serves: the keys they share.
 */
#include <math.h>
#include <stdlib.h>

#include "model/decoder.h"

static const char CFG[] = "config.json";

/* A key that may have a default; def 0 = required. */
static enum qn_status size_key(const struct json *c, const char *key, int32_t def, int32_t max,
                               int32_t *out, struct qn_err *err)
{
    if (def)
        return json_opt_i32(c, CFG, key, def, 1, max, out, err);
    return json_req_i32(c, CFG, key, 1, max, out, err);
}

static enum qn_status read_sizes(struct model *m, struct decoder *s, const struct json *c,
                                 const struct decoder_defaults *d, struct qn_err *err)
{
    QN_TRY(json_req_i32(c, CFG, "hidden_size", 16, WEIGHT_DIM_MAX, &m->n_embd, err));
    QN_TRY(json_req_i32(c, CFG, "num_hidden_layers", 1, 1024, &m->n_layer, err));
    QN_TRY(size_key(c, "intermediate_size", d->n_ff, WEIGHT_DIM_MAX, &s->n_ff, err));
    QN_TRY(size_key(c, "num_attention_heads", d->n_head, 1024, &s->n_head, err));
    QN_TRY(size_key(c, "vocab_size", d->n_vocab, 1 << 24, &m->n_vocab, err));
    QN_TRY(size_key(c, "num_key_value_heads", d->n_kv ? d->n_kv : s->n_head, 1024, &s->n_kv, err));
    QN_TRY(size_key(c, "max_position_embeddings", d->n_ctx ? d->n_ctx : 4096, 1 << 24,
                    &m->n_ctx_max, err));
    s->d_head = d->d_head ? d->d_head : m->n_embd / s->n_head;
    if (d->has_head_dim)
        QN_TRY(json_opt_i32(c, CFG, "head_dim", s->d_head, 1, HEAD_DIM_MAX, &s->d_head, err));
    if (s->n_head % s->n_kv)
        QN_FAIL(err, QN_BAD_INPUT, s->name,
                "config.json: num_attention_heads %d is not a multiple of num_key_value_heads %d",
                s->n_head, s->n_kv);
    return QN_OK;
}

/* rope_theta and rope_scaling, or both inside rope_parameters as newer files have it. */
static enum qn_status read_rope(struct model *m, struct decoder *s, const struct json *c,
                                const struct decoder_defaults *d, struct qn_err *err)
{
    struct rope_params *r = &s->rope[0];
    const struct json *both =
        json_has(c, "rope_parameters") ? json_get(c, "rope_parameters") : NULL;
    double theta;
    *r = (struct rope_params){
        .what = "config.json: rope_scaling", .dims = s->d_head, .max_pos = m->n_ctx_max};
    QN_TRY(json_opt_real(both, "config.json: rope_parameters", "rope_theta", d->theta, 1.0001, 1e12,
                         &theta, err));
    QN_TRY(json_opt_real(c, CFG, "rope_theta", theta, 1.0001, 1e12, &r->theta, err));
    QN_TRY(json_opt_bool(c, CFG, "rope_traditional", false, &r->interleaved, err));
    if (json_has(c, "rope_scaling"))
        r->scaling = json_get(c, "rope_scaling");
    else if (both) {
        r->scaling = both;
        r->what = "config.json: rope_parameters";
    }
    return QN_OK;
}

enum qn_status decoder_config(struct model *m, const struct json *c,
                              const struct decoder_defaults *d, struct qn_err *err)
{
    struct decoder *s = calloc(1, d->state_bytes ? d->state_bytes : sizeof *s);
    if (!s)
        QN_FAIL(err, QN_NO_MEMORY, d->family, "out of memory");
    m->state = s;
    s->name = d->family;
    s->prefix = "";
    QN_TRY(read_sizes(m, s, c, d, err));
    QN_TRY(read_rope(m, s, c, d, err));
    QN_TRY(json_opt_real(c, CFG, "rms_norm_eps", d->eps, 0, 1, &s->eps, err));
    QN_TRY(json_opt_bool(c, CFG, "tie_word_embeddings", d->tied, &s->tied, err));
    s->attn_scale = 1 / sqrtf((float)s->d_head);
    s->embed_scale = 1;
    s->layers = calloc((size_t)m->n_layer, sizeof *s->layers);
    s->kv = calloc((size_t)m->n_layer, sizeof *s->kv);
    if (!s->layers || !s->kv)
        QN_FAIL(err, QN_NO_MEMORY, s->name, "out of memory for %d layers", m->n_layer);
    for (int32_t i = 0; i < m->n_layer; i++)
        s->kv[i] = (struct kv_layer){.n_head = s->n_kv, .dk = s->d_head, .dv = s->d_head};
    m->kv = s->kv;
    return QN_OK;
}

enum qn_status decoder_windows(struct model *m, const struct json *c, struct qn_err *err)
{
    struct decoder *s = m->state;
    const struct json *types = json_has(c, "layer_types") ? json_get(c, "layer_types") : NULL;
    int32_t window;
    QN_TRY(json_opt_i32(c, CFG, "sliding_window", 0, 1, 1 << 24, &window, err));
    if (types && json_len(types) != (size_t)m->n_layer)
        QN_FAIL(err, QN_BAD_INPUT, s->name,
                "config.json: layer_types has %zu entries for %d layers", json_len(types),
                m->n_layer);
    for (int32_t i = 0; types && i < m->n_layer; i++) {
        struct str t = json_str(json_at(types, (size_t)i));
        if (str_eqz(t, "full_attention"))
            continue;
        if (!str_eqz(t, "sliding_attention") || !window)
            QN_FAIL(err, QN_UNSUPPORTED, s->name,
                    "config.json: layer_types[%d] \"" STR_FMT "\" with sliding_window %d", i,
                    STR_ARG(t), window);
        s->layers[i].window = s->kv[i].window = window;
    }
    return QN_OK;
}

enum qn_status decoder_activation(const struct decoder *s, const struct json *c, const char *key,
                                  const char *const *names, struct qn_err *err)
{
    struct str act;
    QN_TRY(json_opt_str(c, CFG, key, str_of(names[0]), &act, err));
    for (const char *const *n = names; *n; n++)
        if (str_eqz(act, *n))
            return QN_OK;
    QN_FAIL(err, QN_UNSUPPORTED, s->name,
            "config.json: %s \"" STR_FMT "\" is not supported; this family has %s", key,
            STR_ARG(act), names[0]);
}

enum qn_status decoder_refuse(const struct decoder *s, const struct json *c, const char *key,
                              struct qn_err *err)
{
    const struct json *v = json_has(c, key) ? json_get(c, key) : NULL;
    if (json_type(v) == JSON_NULL || (json_type(v) == JSON_BOOL && !json_bool(v)) ||
        ((json_type(v) == JSON_INT || json_type(v) == JSON_REAL) && json_real(v) == 0))
        return QN_OK;
    QN_FAIL(err, QN_UNSUPPORTED, s->name,
            "config.json: %s is set, which changes the maths; this family is supported without it",
            key);
}
