/*
 * gemma4.c - Gemma 4, text, and the text half of the multimodal checkpoints (gemma4,
 * gemma4_unified). Loads through decoder.h's decoder, but has its own step:
 *
 *     h = E[id] sqrt(hidden)
 *     h += post_attn( o( attn( rope(qnorm(q(n))), rope(knorm(k(n))), rms(v(n)) ) ) )    scale 1
 *     h += post_ff( y )      y = mlp(n), or post_1(mlp(n)) + post_2(experts(rms(h) pre_2))
 *     h += post_ple( proj( gelu(gate h) * ple_i ) )                  when the model has them
 *     h *= layer_scalar;     logits = cap tanh(head(rms(h)) / cap)
 *
 * Full and sliding layers differ in head size, KV heads and rotation. The last layers may have no
 * keys and values of their own, but read those of the last earlier layer of their type: only rows
 * whose logits are wanted go through them. Of a draft model with a lender (model.h) no layer has
 * any. docs/families/gemma4.md.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "model/decoder.h"

static const char CFG[] = "config.json";

/* Attention of one type of layer. */
struct g4_kind {
    int32_t d, n_kv; /* head size, KV heads */
    bool k_eq_v;
    struct tensor *qkv, *q; /* what op_rope_append takes: q, k, v or fewer; ready queries */
    struct tensor *q_only;  /* of layers that read another's KV */
    struct tensor *wanted;  /* queries of the rows whose logits are wanted */
    struct tensor *att;
};
enum { FULL, SLIDING };

struct g4_layer {
    int32_t kv;                        /* whose keys and values it reads; itself if below n_owner */
    struct weight *gate, *up, *down;   /* the dense part beside the experts */
    struct weight *post_1, *post_2;    /* norms behind the dense part and the experts */
    struct weight *pre_2;              /* norm before the experts */
    struct weight *scale, *per_expert; /* router */
    struct weight *ple_gate, *ple_proj, *ple_norm;
    struct weight *scalar;
};

struct g4 {
    struct decoder dec; /* first: decoder.c sees only this */
    int32_t n_owner;    /* layers with keys and values of their own, the first ones */
    int32_t n_ple;      /* width of a layer's own input; 0 = none */
    int32_t n_ple_vocab;
    double cap; /* of logits; 0 = none */
    struct g4_kind kind[2];
    struct g4_layer *layers;
    struct json *default_ropes;
    struct weight *ple_table, *ple_model, *ple_model_norm;
    struct tensor *ple_rows, *ple_in, *ple, *ple_gated, *ple_act; /* [N P] three times; [P] twice */
    struct tensor *wide_gu, *wide_act; /* double-wide feed-forward part */
    struct tensor *n2, *dense, *dense_n, *routed_n, *router_in;
    struct tensor *capped;
};

/* ---- config.json ----------------------------------------------------------------------- */

/* layer_types, else every sliding_window_pattern-th layer is full. */
static enum qn_status read_types(struct model *m, const struct json *c, struct qn_err *err)
{
    struct decoder *s = m->state;
    const struct json *types = json_has(c, "layer_types") ? json_get(c, "layer_types") : NULL;
    int32_t window, every;
    QN_TRY(json_opt_i32(c, CFG, "sliding_window", 512, 1, 1 << 24, &window, err));
    QN_TRY(json_opt_i32(c, CFG, "sliding_window_pattern", 5, 1, 1 << 10, &every, err));
    if (types && json_len(types) != (size_t)m->n_layer)
        QN_FAIL(err, QN_BAD_INPUT, s->name,
                "config.json: layer_types has %zu entries for %d layers", json_len(types),
                m->n_layer);
    for (int32_t i = 0; i < m->n_layer; i++) {
        struct str t = json_str(json_at(types, (size_t)i));
        bool sliding = types ? str_eqz(t, "sliding_attention") : (i + 1) % every != 0;
        if (types && !sliding && !str_eqz(t, "full_attention"))
            QN_FAIL(err, QN_UNSUPPORTED, s->name,
                    "config.json: layer_types[%d] is \"" STR_FMT
                    "\"; known are sliding_attention and full_attention",
                    i, STR_ARG(t));
        s->layers[i].local = sliding;
        s->layers[i].window = sliding ? window : 0;
    }
    return QN_OK;
}

/* Head sizes and KV heads of both types; which layer's keys and values each layer reads. */
static enum qn_status read_heads(struct model *m, const struct json *c, struct qn_err *err)
{
    struct g4 *s = m->state;
    struct decoder *dec = &s->dec;
    struct g4_kind *full = &s->kind[FULL];
    int32_t d = dec->d_head, n_kv = dec->n_kv;
    s->kind[SLIDING] = (struct g4_kind){.d = d, .n_kv = n_kv};
    QN_TRY(json_opt_i32(c, CFG, "global_head_dim", json_is_null(c, "global_head_dim") ? d : 512, 0,
                        HEAD_DIM_MAX, &full->d, err));
    QN_TRY(json_opt_bool(c, CFG, "attention_k_eq_v", false, &full->k_eq_v, err));
    QN_TRY(json_opt_i32(c, CFG, "num_global_key_value_heads", n_kv, 1, 1024, &full->n_kv, err));
    full->d = full->d ? full->d : d;
    if (!full->k_eq_v)
        full->n_kv = n_kv;
    if (dec->n_head % full->n_kv)
        QN_FAIL(err, QN_BAD_INPUT, dec->name,
                "config.json: num_attention_heads %d is not a multiple of "
                "num_global_key_value_heads %d",
                dec->n_head, full->n_kv);
    return QN_OK;
}

static enum qn_status read_sharing(struct model *m, const struct json *c, struct qn_err *err)
{
    struct g4 *s = m->state;
    struct decoder *dec = &s->dec;
    int32_t shared, last[2] = {-1, -1};
    bool wide;
    QN_TRY(json_opt_i32(c, CFG, "num_kv_shared_layers", 20, 0, m->n_layer - 1, &shared, err));
    QN_TRY(json_opt_bool(c, CFG, "use_double_wide_mlp", true, &wide, err));
    s->n_owner = m->n_kv = m->n_layer - shared;
    for (int32_t i = 0; i < m->n_layer; i++) {
        bool local = dec->layers[i].local;
        const struct g4_kind *k = &s->kind[local];
        if (i < s->n_owner) {
            last[local] = i;
            dec->kv[i] = (struct kv_layer){
                .n_head = k->n_kv, .dk = k->d, .dv = k->d, .window = dec->layers[i].window};
        } else if (wide)
            dec->layers[i].n_ff = 2 * dec->n_ff;
        if (last[local] < 0)
            QN_FAIL(err, QN_BAD_INPUT, dec->name,
                    "config.json: layer %d shares the keys and values of an earlier %s layer, but "
                    "none of the first %d is one (num_kv_shared_layers %d)",
                    i, local ? "sliding_attention" : "full_attention", s->n_owner, shared);
        s->layers[i].kv = last[local];
    }
    return QN_OK;
}

/* Of a draft model: what it reads has to be what it was made for. */
static enum qn_status borrow(struct model *m, int32_t i, struct qn_err *err)
{
    struct g4 *s = m->state;
    const struct g4 *of = m->lender->state;
    const struct decoder_layer *w = &s->dec.layers[i], *from = NULL;
    const struct g4_kind *k = &s->kind[w->local], *its = &of->kind[w->local];
    const char *type = w->local ? "sliding_attention" : "full_attention";
    for (int32_t j = 0; j < of->n_owner; j++)
        if (of->dec.layers[j].local == w->local) {
            from = &of->dec.layers[j];
            s->layers[i].kv = j;
        }
    if (!from)
        QN_FAIL(err, QN_BAD_INPUT, s->dec.name,
                "config.json: layer_types[%d] is %s; the model has no such layer to read from", i,
                type);
    if (k->d != its->d || k->n_kv != its->n_kv)
        QN_FAIL(err, QN_BAD_INPUT, s->dec.name,
                "config.json: %s layers read %d heads of %d; the model's have %d heads of %d "
                "(num_key_value_heads, head_dim, global_head_dim)",
                type, k->n_kv, k->d, its->n_kv, its->d);
    if (w->window > from->window)
        QN_FAIL(err, QN_BAD_INPUT, s->dec.name,
                "config.json: sliding_window %d; the model keeps %d tokens", w->window,
                from->window);
    return QN_OK;
}

static enum qn_status read_borrowing(struct model *m, const struct json *c, struct qn_err *err)
{
    struct g4 *s = m->state;
    int32_t shared;
    bool wide;
    QN_TRY(json_opt_i32(c, CFG, "num_kv_shared_layers", 0, 0, 1024, &shared, err));
    QN_TRY(json_opt_bool(c, CFG, "use_double_wide_mlp", false, &wide, err));
    if (shared && shared != m->n_layer)
        QN_FAIL(err, QN_UNSUPPORTED, s->dec.name,
                "config.json: num_kv_shared_layers %d of %d layers; a draft model reads the "
                "model's keys and values in all of them",
                shared, m->n_layer);
    if (wide || s->n_ple || s->dec.experts.n)
        QN_FAIL(err, QN_UNSUPPORTED, s->dec.name,
                "config.json: %s is set; draft models are supported without it",
                wide       ? "use_double_wide_mlp"
                : s->n_ple ? "hidden_size_per_layer_input"
                           : "enable_moe_block");
    s->cap = 0; /* it would change no guess, and they are made without */
    for (int32_t i = 0; i < m->n_layer; i++)
        QN_TRY(borrow(m, i, err));
    s->dec.sees = SEES_PAST;
    return QN_OK;
}

static const char DEFAULT_ROPES[] =
    "{\"full_attention\": {\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25, "
    "\"rope_theta\": 1000000.0}, "
    "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}";

/* rope_parameters: one object for each type of layer. */
static enum qn_status read_rope(struct g4 *s, const struct json *all, int kind, struct qn_err *err)
{
    static const struct {
        const char *key, *what;
    } names[] = {
        {"full_attention", "config.json: rope_parameters.full_attention"},
        {"sliding_attention", "config.json: rope_parameters.sliding_attention"},
    };
    struct rope_params *r = &s->dec.rope[kind];
    const struct json *v = json_get(all, names[kind].key);
    bool interleaved = s->dec.rope[0].interleaved;
    double part;
    if (json_type(v) != JSON_OBJ || !json_has(v, "rope_theta"))
        QN_FAIL(err, QN_BAD_INPUT, s->dec.name, "%s with a rope_theta is missing",
                names[kind].what);
    *r = (struct rope_params){.what = names[kind].what,
                              .scaling = v,
                              .dims = s->kind[kind].d,
                              .max_pos = s->dec.rope[0].max_pos,
                              .interleaved = interleaved};
    QN_TRY(json_opt_real(v, r->what, "rope_theta", 0, 1.0001, 1e12, &r->theta, err));
    QN_TRY(json_opt_real(v, r->what, "partial_rotary_factor", 1, 0, 1, &part, err));
    if (part < 1 && !str_eqz(json_str(json_get(v, "rope_type")), "proportional"))
        QN_FAIL(err, QN_UNSUPPORTED, s->dec.name,
                "%s: partial_rotary_factor %g; other than 1 it is known for rope_type "
                "proportional only",
                r->what, part);
    return QN_OK;
}

static enum qn_status read_ropes(struct g4 *s, const struct json *c, struct qn_err *err)
{
    const struct json *all = json_get(c, "rope_parameters");
    if (!json_has(c, "rope_parameters")) {
        QN_TRY(json_parse(str_of(DEFAULT_ROPES), "default rope_parameters", 4, &s->default_ropes,
                          err));
        all = s->default_ropes;
    }
    QN_TRY(read_rope(s, all, SLIDING, err));
    return read_rope(s, all, FULL, err);
}

static enum qn_status read_ple(struct model *m, const struct json *c, struct qn_err *err)
{
    struct g4 *s = m->state;
    bool none = json_is_null(c, "hidden_size_per_layer_input");
    QN_TRY(json_opt_i32(c, CFG, "hidden_size_per_layer_input", none ? 0 : 256, 0, 1 << 13,
                        &s->n_ple, err));
    if (!s->n_ple)
        return QN_OK;
    QN_TRY(json_opt_i32(c, CFG, "vocab_size_per_layer_input", 262144, 1, 1 << 24, &s->n_ple_vocab,
                        err));
    if (s->n_ple > WEIGHT_DIM_MAX / m->n_layer)
        QN_FAIL(err, QN_UNSUPPORTED, s->dec.name,
                "config.json: hidden_size_per_layer_input %d for each of %d layers; at most %d in "
                "all",
                s->n_ple, m->n_layer, WEIGHT_DIM_MAX);
    return QN_OK;
}

static enum qn_status read_experts(struct model *m, const struct json *c, struct qn_err *err)
{
    struct decoder *s = m->state;
    struct decoder_experts *e = &s->experts;
    bool on;
    QN_TRY(json_opt_bool(c, CFG, "enable_moe_block", false, &on, err));
    if (!on)
        return QN_OK;
    e->router = "router.proj";
    e->experts = "experts.switch_glu";
    QN_TRY(json_req_i32(c, CFG, "num_experts", 1, MOE_EXPERT_MAX, &e->n, err));
    QN_TRY(json_req_i32(c, CFG, "top_k_experts", 1, MOE_TOP_MAX, &e->top_k, err));
    QN_TRY(json_req_i32(c, CFG, "moe_intermediate_size", 1, WEIGHT_DIM_MAX, &e->n_ff, err));
    for (int32_t i = 0; i < m->n_layer; i++)
        s->layers[i].routed = true;
    return QN_OK;
}

/* What would change the maths and is not implemented; "vision" concerns images only. */
static enum qn_status refuse_others(struct g4 *s, const struct json *c, struct qn_err *err)
{
    static const char *const gelu[] = {"gelu_pytorch_tanh", NULL};
    static const char *const unknown[] = {"attention_bias", "attn_logit_softcapping",
                                          "rope_scaling"};
    struct str both;
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        QN_TRY(decoder_refuse(&s->dec, c, unknown[i], err));
    QN_TRY(json_opt_str(c, CFG, "use_bidirectional_attention", STR_LIT("vision"), &both, err));
    if (!str_eqz(both, "vision"))
        QN_FAIL(err, QN_UNSUPPORTED, s->dec.name,
                "config.json: use_bidirectional_attention is \"" STR_FMT
                "\"; text is supported with null or \"vision\"",
                STR_ARG(both));
    return decoder_activation(&s->dec, c, "hidden_activation", gelu, err);
}

static enum qn_status load_attn(struct model *m, struct loader *l, int32_t i, struct qn_err *err);
static enum qn_status load_rest(struct model *m, struct loader *l, int32_t i, struct qn_err *err);

static enum qn_status text_config(struct model *m, const struct json *c,
                                  const struct decoder_defaults *d, struct qn_err *err)
{
    QN_TRY(decoder_config(m, c, d, err));
    struct g4 *s = m->state;
    struct decoder *dec = &s->dec;
    bool none = json_is_null(c, "final_logit_softcapping");
    s->layers = calloc((size_t)m->n_layer, sizeof *s->layers);
    if (!s->layers)
        QN_FAIL(err, QN_NO_MEMORY, dec->name, "out of memory for %d layers", m->n_layer);
    QN_TRY(refuse_others(s, c, err));
    QN_TRY(json_opt_real(c, CFG, "final_logit_softcapping", none ? 0 : 30, 0, 1e6, &s->cap, err));
    QN_TRY(read_types(m, c, err));
    QN_TRY(read_heads(m, c, err));
    QN_TRY(read_ropes(s, c, err));
    QN_TRY(read_ple(m, c, err));
    QN_TRY(read_experts(m, c, err));
    QN_TRY((m->lender ? read_borrowing : read_sharing)(m, c, err));
    dec->act = GLU_GELU;
    dec->post_norms = true;
    dec->attn_scale = 1;
    dec->embed_scale = sqrtf((float)m->n_embd);
    dec->parts = (struct decoder_parts){.load_mix = load_attn, .load_shared = load_rest};
    return QN_OK;
}

static enum qn_status config(struct model *m, const struct json *c, struct qn_err *err)
{
    const struct decoder_defaults d = {.family = "gemma4",
                                       .eps = 1e-6,
                                       .theta = 1e6,
                                       .tied = true,
                                       .has_head_dim = true,
                                       .n_head = 8,
                                       .n_kv = 1,
                                       .d_head = 256,
                                       .n_vocab = 262144,
                                       .n_ctx = 131072,
                                       .n_ff = 6144,
                                       .state_bytes = sizeof(struct g4)};
    if (m->lender || str_eqz(json_str(json_get(c, "model_type")), "gemma4_text"))
        return text_config(m, c, &d, err);
    const struct json *text = json_get(c, "text_config");
    if (json_type(text) != JSON_OBJ)
        QN_FAIL(err, QN_BAD_INPUT, "gemma4",
                "config.json: model_type " STR_FMT " needs text_config",
                STR_ARG(json_str(json_get(c, "model_type"))));
    QN_TRY(text_config(m, text, &d, err));
    /* mlx-lm lets the outer vocab_size win, default and all. */
    QN_TRY(json_opt_i32(c, CFG, "vocab_size", 262144, 1, 1 << 24, &m->n_vocab, err));
    struct g4 *s = m->state;
    s->dec.prefix = "language_model.";
    return QN_OK;
}

/* ---- weights --------------------------------------------------------------------------- */

#define LAYER "%smodel.layers.%d."

/* Shared layers of some checkpoints carry keys and values that nothing reads. */
static void skip_kv(struct loader *l, const char *prefix, int32_t i)
{
    static const char *const names[] = {"k_proj", "v_proj", "k_norm"};
    for (size_t j = 0; j < sizeof names / sizeof names[0]; j++) {
        char pattern[128];
        snprintf(pattern, sizeof pattern, LAYER "self_attn.%s.*", prefix, i, names[j]);
        loader_skip(l, pattern);
    }
}

static enum qn_status load_attn(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct g4 *s = m->state;
    struct decoder_layer *w = &s->dec.layers[i];
    const struct g4_kind *k = &s->kind[w->local];
    const char *p = s->dec.prefix;
    int32_t h = m->n_embd, q = s->dec.n_head * k->d, kv = k->n_kv * k->d;
    QN_TRY(load_matrix(l, &w->q, q, h, err, LAYER "self_attn.q_proj", p, i));
    if (i < s->n_owner) {
        QN_TRY(load_matrix(l, &w->k, kv, h, err, LAYER "self_attn.k_proj", p, i));
        if (!k->k_eq_v)
            QN_TRY(load_matrix(l, &w->v, kv, h, err, LAYER "self_attn.v_proj", p, i));
        QN_TRY(load_vec(l, &w->k_norm, k->d, err, LAYER "self_attn.k_norm.weight", p, i));
    } else
        skip_kv(l, p, i);
    QN_TRY(load_vec(l, &w->q_norm, k->d, err, LAYER "self_attn.q_norm.weight", p, i));
    return load_matrix(l, &w->o, h, q, err, LAYER "self_attn.o_proj", p, i);
}

/* What stands beside the routed experts: the dense part and the norms of both. */
static enum qn_status load_dense(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct g4 *s = m->state;
    struct g4_layer *w = &s->layers[i];
    const char *p = s->dec.prefix;
    int32_t h = m->n_embd, f = s->dec.layers[i].n_ff ? s->dec.layers[i].n_ff : s->dec.n_ff;
    QN_TRY(load_matrix(l, &w->gate, f, h, err, LAYER "mlp.gate_proj", p, i));
    QN_TRY(load_matrix(l, &w->up, f, h, err, LAYER "mlp.up_proj", p, i));
    QN_TRY(load_matrix(l, &w->down, h, f, err, LAYER "mlp.down_proj", p, i));
    const struct {
        struct weight **w;
        const char *name;
        int32_t n;
    } v[] = {{&w->post_1, "post_feedforward_layernorm_1.weight", h},
             {&w->post_2, "post_feedforward_layernorm_2.weight", h},
             {&w->pre_2, "pre_feedforward_layernorm_2.weight", h},
             {&w->scale, "router.scale", h},
             {&w->per_expert, "router.per_expert_scale", s->dec.experts.n}};
    for (size_t j = 0; j < sizeof v / sizeof v[0]; j++)
        QN_TRY(load_vec(l, v[j].w, v[j].n, err, LAYER "%s", p, i, v[j].name));
    return QN_OK;
}

static enum qn_status load_rest(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct g4 *s = m->state;
    struct g4_layer *w = &s->layers[i];
    struct decoder_layer *d = &s->dec.layers[i];
    const char *p = s->dec.prefix;
    int32_t h = m->n_embd;
    if (d->routed)
        QN_TRY(load_dense(m, l, i, err));
    else {
        w->gate = d->gate;
        w->up = d->up;
        w->down = d->down;
    }
    if (s->n_ple) {
        QN_TRY(load_matrix(l, &w->ple_gate, s->n_ple, h, err, LAYER "per_layer_input_gate", p, i));
        QN_TRY(load_matrix(l, &w->ple_proj, h, s->n_ple, err, LAYER "per_layer_projection", p, i));
        QN_TRY(load_vec(l, &w->ple_norm, h, err, LAYER "post_per_layer_input_norm.weight", p, i));
    }
    return load_vec(l, &w->scalar, 1, err, LAYER "layer_scalar", p, i);
}

static enum qn_status load_ple(struct model *m, struct loader *l, struct qn_err *err)
{
    struct g4 *s = m->state;
    const char *p = s->dec.prefix;
    int32_t all = m->n_layer * s->n_ple;
    if (!s->n_ple)
        return QN_OK;
    if (s->n_ple_vocab < m->n_vocab)
        QN_FAIL(err, QN_UNSUPPORTED, s->dec.name,
                "config.json: vocab_size_per_layer_input %d is less than vocab_size %d",
                s->n_ple_vocab, m->n_vocab);
    QN_TRY(load_table(l, &s->ple_table, s->n_ple_vocab, all, err, "%smodel.embed_tokens_per_layer",
                      p));
    QN_TRY(load_matrix(l, &s->ple_model, all, m->n_embd, err, "%smodel.per_layer_model_projection",
                       p));
    return load_vec(l, &s->ple_model_norm, s->n_ple, err,
                    "%smodel.per_layer_projection_norm.weight", p);
}

static enum qn_status create_kind(struct model *m, int kind, struct qn_err *err)
{
    struct g4 *s = m->state;
    struct g4_kind *k = &s->kind[kind];
    int32_t q = s->dec.n_head * k->d, kv = k->n_kv * k->d;
    QN_TRY(tensor_create(m->ex, q + (k->k_eq_v ? 1 : 2) * kv, &k->qkv, err));
    QN_TRY(tensor_create(m->ex, q, &k->q, err));
    QN_TRY(tensor_create(m->ex, q, &k->q_only, err));
    QN_TRY(tensor_create(m->ex, q, &k->wanted, err));
    return tensor_create(m->ex, q, &k->att, err);
}

static enum qn_status create_tensors(struct model *m, struct qn_err *err)
{
    struct g4 *s = m->state;
    bool moe = s->dec.experts.n > 0, wide = false;
    int32_t h = m->n_embd, p = s->n_ple, all = p * m->n_layer, f = 2 * s->dec.n_ff;
    for (int32_t i = 0; i < m->n_layer; i++)
        wide |= s->dec.layers[i].n_ff > 0;
    struct {
        bool on;
        struct tensor **t;
        int32_t cols;
    } const list[] = {
        {p, &s->ple_rows, all},
        {p, &s->ple_in, all},
        {p, &s->ple, all},
        {p, &s->ple_gated, p},
        {p, &s->ple_act, p},
        {wide, &s->wide_gu, 2 * f},
        {wide, &s->wide_act, f},
        {moe, &s->n2, h},
        {moe, &s->dense, h},
        {moe, &s->dense_n, h},
        {moe, &s->routed_n, h},
        {moe, &s->router_in, h},
        {s->cap > 0, &s->capped, m->n_vocab},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].on)
            QN_TRY(tensor_create(m->ex, list[i].cols, list[i].t, err));
    QN_TRY(create_kind(m, FULL, err));
    return create_kind(m, SLIDING, err);
}

static enum qn_status load(struct model *m, struct loader *l, struct qn_err *err)
{
    static const char *const towers[] = {"vision_tower.*",    "audio_tower.*",
                                         "embed_vision.*",    "embed_audio.*",
                                         "vision_embedder.*", "multi_modal_projector.*"};
    static const char *const ranges[] = {"*.input_min", "*.input_max", "*.output_min",
                                         "*.output_max"};
    struct g4 *s = m->state;
    int32_t n = 0;
    for (size_t i = 0; s->dec.prefix[0] && i < sizeof towers / sizeof towers[0]; i++)
        n += loader_skip(l, towers[i]);
    if (n)
        log_line(LOG_INFO, "gemma4",
                 "text only: %d tensors of the vision and audio towers are left out", n);
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        loader_skip(l, ranges[i]);
    QN_TRY(load_ple(m, l, err));
    QN_TRY(create_tensors(m, err));
    return decoder_load(m, l, err);
}

/* ---- one step -------------------------------------------------------------------------- */

static void swap(struct tensor **a, struct tensor **b)
{
    struct tensor *t = *a;
    *a = *b;
    *b = t;
}

/* ple = (rms(model_projection(h0) hidden^-1/2) + table[id] sqrt(P)) 2^-1/2. The factor inside the
 * norm is in eps: rms(c x, eps) = rms(x, eps/c^2). */
static void layer_inputs(struct model *m)
{
    struct g4 *s = m->state;
    struct exec *ex = m->ex;
    if (!s->n_ple)
        return;
    op_embed(ex, s->ple_rows, s->ple_table, sqrtf((float)s->n_ple));
    op_linear(ex, &(struct linear){s->ple_in, 0, s->ple_model, NULL}, 1, s->dec.h[0]);
    op_norm_heads_add(ex, s->ple, s->ple_in,
                      &(struct norm_heads){.w = s->ple_model_norm,
                                           .b = s->ple_rows,
                                           .eps = (float)(s->dec.eps * m->n_embd),
                                           .scale = (float)M_SQRT1_2});
}

/* Only the rows whose logits are wanted go on: nothing behind this appends to KV memory. */
static void narrow(struct model *m)
{
    struct g4 *s = m->state;
    op_take(m->ex, s->dec.h[1], s->dec.h[0]);
    swap(&s->dec.h[0], &s->dec.h[1]);
    if (s->n_ple) {
        op_take(m->ex, s->ple_in, s->ple);
        swap(&s->ple, &s->ple_in);
    }
    exec_narrow(m->ex);
}

/* From n to the input of o. False: no logits are wanted, and all keys and values are in memory.
 * While states are taken all rows go on to the end. */
static bool attend(struct model *m, int32_t i)
{
    struct g4 *s = m->state;
    struct exec *ex = m->ex;
    const struct decoder_layer *w = &s->dec.layers[i];
    struct g4_kind *k = &s->kind[w->local];
    bool own = i < s->n_owner;
    int32_t q = s->dec.n_head * k->d, kv = k->n_kv * k->d;
    struct attn_op a = decoder_attn(&s->dec, i);
    a.layer = s->layers[i].kv;
    a.n_kv = k->n_kv;
    a.dk = a.dv = k->d;
    a.v_norm = true;
    a.kv = !own ? ATTN_KV_KEPT : k->k_eq_v ? ATTN_KV_EQUAL : ATTN_KV;
    struct tensor *in = own ? k->qkv : k->q_only;
    struct linear parts[] = {{in, 0, w->q, NULL}, {in, q, w->k, NULL}, {in, q + kv, w->v, NULL}};
    op_linear(ex, parts, !own ? 1 : k->k_eq_v ? 2 : 3, s->dec.n);
    op_rope_append(ex, k->q, in, &a);
    if (i != s->n_owner - 1 || m->taps.on) {
        op_attn(ex, k->att, k->q, &a);
        return true;
    }
    if (exec_wanted(ex) == 0)
        return false;
    op_take(ex, k->wanted, k->q);
    narrow(m);
    op_attn(ex, k->att, k->wanted, &a);
    return true;
}

/* The dense feed-forward part of n into dst. */
static void dense(struct model *m, int32_t i, struct tensor *dst)
{
    struct g4 *s = m->state;
    const struct g4_layer *w = &s->layers[i];
    bool wide = s->dec.layers[i].n_ff > 0;
    struct tensor *gu = wide ? s->wide_gu : s->dec.gu, *act = wide ? s->wide_act : s->dec.act_out;
    struct linear parts[] = {{gu, 0, w->gate, NULL}, {gu, weight_rows(w->gate), w->up, NULL}};
    op_linear(m->ex, parts, 2, s->dec.n);
    op_glu(m->ex, act, gu, GLU_GELU);
    op_linear(m->ex, &(struct linear){dst, 0, w->down, NULL}, 1, act);
}

/* delta = post_1(mlp(n)) + post_2(experts(rms(h) pre_2)); the router sees rms(h) scale hidden^-1/2.
 */
static void feed_routed(struct model *m, int32_t i)
{
    struct g4 *s = m->state;
    struct exec *ex = m->ex;
    struct decoder *dec = &s->dec;
    const struct decoder_layer *d = &dec->layers[i];
    const struct g4_layer *w = &s->layers[i];
    float eps = (float)dec->eps;
    dense(m, i, s->dense);
    op_rmsnorm(ex, s->dense_n, s->dense, w->post_1, 0, eps);
    op_rmsnorm(ex, s->router_in, dec->h[0], w->scale, 0, eps);
    op_linear(ex, &(struct linear){dec->route, 0, d->router, NULL}, 1, s->router_in);
    op_route_scaled(ex, dec->moe, dec->route,
                    &(struct route_scales){1 / sqrtf((float)m->n_embd), w->per_expert});
    op_rmsnorm(ex, s->n2, dec->h[0], w->pre_2, 0, eps);
    op_experts(ex, s->dense, s->n2, dec->moe,
               &(struct experts){.gate = d->gate, .up = d->up, .down = d->down, .act = GLU_GELU});
    op_rmsnorm(ex, s->routed_n, s->dense, w->post_2, 0, eps);
    op_add(ex, dec->delta, s->dense_n, s->routed_n);
}

/* h = (h + [per-layer input's part]) scalar, h being what the feed-forward part left. */
static void close_layer(struct model *m, int32_t i)
{
    struct g4 *s = m->state;
    struct exec *ex = m->ex;
    struct decoder *dec = &s->dec;
    const struct g4_layer *w = &s->layers[i];
    op_rmsnorm(ex, dec->post, dec->delta, dec->layers[i].post_mlp, 0, (float)dec->eps);
    if (s->n_ple) {
        op_add(ex, dec->h[1], dec->h[0], dec->post);
        swap(&dec->h[0], &dec->h[1]);
        op_linear(ex, &(struct linear){s->ple_gated, 0, w->ple_gate, NULL}, 1, dec->h[0]);
        op_glu_at(ex, s->ple_act, s->ple_gated, s->ple, i * s->n_ple, GLU_GELU);
        op_linear(ex, &(struct linear){dec->delta, 0, w->ple_proj, NULL}, 1, s->ple_act);
        op_rmsnorm(ex, dec->post, dec->delta, w->ple_norm, 0, (float)dec->eps);
    }
    op_add_scale(ex, dec->h[1], dec->h[0], dec->post, w->scalar);
    swap(&dec->h[0], &dec->h[1]);
}

static const struct tensor *forward(struct model *m)
{
    struct g4 *s = m->state;
    struct exec *ex = m->ex;
    struct decoder *dec = &s->dec;
    float eps = (float)dec->eps;
    if (m->lender)
        op_place(ex, dec->h[0], 0, m->hidden_in);
    else
        op_embed(ex, dec->h[0], dec->embed, dec->embed_scale);
    taps_take(m, -1, dec->h[0]);
    layer_inputs(m);
    for (int32_t i = 0; i < m->n_layer; i++) {
        const struct decoder_layer *w = &dec->layers[i];
        op_rmsnorm(ex, dec->n, dec->h[0], w->norm1, 0, eps);
        if (!attend(m, i))
            return NULL;
        op_linear(ex, &(struct linear){dec->delta, 0, w->o, NULL}, 1, s->kind[w->local].att);
        op_rmsnorm(ex, dec->post, dec->delta, w->post_attn, 0, eps);
        op_add_rmsnorm(ex, dec->h[1], dec->n, dec->h[0], dec->post, w->norm2, 0, eps);
        swap(&dec->h[0], &dec->h[1]);
        if (w->routed)
            feed_routed(m, i);
        else
            dense(m, i, dec->delta);
        close_layer(m, i);
        taps_take(m, i, dec->h[0]);
    }
    op_rmsnorm(ex, dec->n, dec->h[0], dec->norm, 0, eps);
    const struct tensor *logits = forward_end(m, &(struct forward_end){.h = dec->h[0],
                                                                       .n = dec->n,
                                                                       .every_row = m->taps.on,
                                                                       .wanted = dec->delta,
                                                                       .logits = dec->logits,
                                                                       .head = dec->head});
    if (!logits || !(s->cap > 0))
        return logits;
    op_softcap(ex, s->capped, dec->logits, (float)s->cap);
    return s->capped;
}

static void free_state(struct model *m)
{
    struct g4 *s = m->state;
    if (s) {
        free(s->layers);
        json_free(s->default_ropes);
    }
    decoder_free(m);
}

const struct family family_gemma4 = {
    .name = "gemma4",
    .model_types = (const char *const[]){"gemma4", "gemma4_text", "gemma4_unified", NULL},
    .config = config,
    .load = load,
    .forward = forward,
    .free = free_state,
};
