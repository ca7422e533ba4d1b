/*
 * qwen3_5.c - Qwen 3.5, its MoE form and Qwen 3 Next, text only: the decoder of decoder.h with two
 * kinds of layers.
 * Every full_attention_interval-th has gated attention, the others a gated delta net:
 *
 *     attention   o( attn(q, k, v) * sigmoid(gate) )      q_proj gives each head's q, then its gate
 *     delta net   u = in_proj_qkv n;  q, k, v = silu(conv(u));  q, k made unit (q * dk^-1/2)
 *                 g = e^(-e^A_log softplus(a + dt_bias));  beta = sigmoid(b)
 *                 S = g S;  S += beta (v - S k) k^T;  out_proj( rms(S q) w * silu(z) )
 *
 * The MoE form adds sigmoid(shared_expert_gate n) * shared_expert(n) to the routed sum.
 * docs/families/qwen3_5.md.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "model/decoder.h"

static const char CFG[] = "config.json";

struct q35_layer {
    bool linear;
    struct weight *qkv, *z, *b, *a, *conv, *dt_bias, *a_log, *norm;
    struct weight *shared_gate, *shared_in, *shared_up, *shared_down;
};

struct q35 {
    struct decoder dec; /* first: decoder.c sees only this */
    struct delta_shape delta;
    bool fused;     /* qwen3_next's matrices */
    bool norm_topk; /* what an absent norm_topk_prob means */
    struct q35_layer *layers;
    struct tensor *u, *mixed, *z, *ab, *gates, *o, *gated; /* delta net: rows of its heads */
    struct tensor *pairs, *att; /* attention: q and gate of each head, k, v; gated output */
    struct tensor *o_wanted, *att_wanted; /* the rows whose logits are wanted */
    struct tensor *shared, *sum, *weight;
    /* draft head */
    struct weight *norm_e, *norm_h, *fc;
    struct tensor *e, *pair;
};

/* ---- config.json ------------------------------------------------------------------------ */

/* Layer i is linear unless (i+1) % full_attention_interval == 0; layer_types, if there, agrees. */
static enum qn_status read_layers(struct model *m, const struct json *c, struct qn_err *err)
{
    struct q35 *s = m->state;
    const struct json *types = json_has(c, "layer_types") ? json_get(c, "layer_types") : NULL;
    int32_t every;
    QN_TRY(json_opt_i32(c, CFG, "full_attention_interval", 4, 1, 1024, &every, err));
    if (types && json_len(types) != (size_t)m->n_layer)
        QN_FAIL(err, QN_BAD_INPUT, s->dec.name,
                "config.json: layer_types has %zu entries for %d layers", json_len(types),
                m->n_layer);
    s->layers = calloc((size_t)m->n_layer, sizeof *s->layers);
    if (!s->layers)
        QN_FAIL(err, QN_NO_MEMORY, s->dec.name, "out of memory for %d layers", m->n_layer);
    for (int32_t i = 0; i < m->n_layer; i++) {
        bool linear = s->layers[i].linear = (i + 1) % every != 0;
        struct str t = json_str(json_at(types, (size_t)i));
        if (types && !str_eqz(t, linear ? "linear_attention" : "full_attention"))
            QN_FAIL(err, QN_UNSUPPORTED, s->dec.name,
                    "config.json: layer_types[%d] is \"" STR_FMT "\"; full_attention_interval %d "
                    "makes it %s",
                    i, STR_ARG(t), every, linear ? "linear_attention" : "full_attention");
        s->dec.layers[i].routed = s->dec.experts.n > 0;
        if (linear)
            s->dec.kv[i] = (struct kv_layer){.delta = s->delta};
    }
    return QN_OK;
}

static enum qn_status read_delta(struct q35 *s, const struct json *c, struct qn_err *err)
{
    struct delta_shape *d = &s->delta;
    QN_TRY(json_opt_i32(c, CFG, "linear_num_value_heads", 64, 1, 1024, &d->n_v, err));
    QN_TRY(json_opt_i32(c, CFG, "linear_num_key_heads", 16, 1, 1024, &d->n_k, err));
    QN_TRY(json_opt_i32(c, CFG, "linear_key_head_dim", 192, 1, DELTA_HEAD_MAX, &d->dk, err));
    QN_TRY(json_opt_i32(c, CFG, "linear_value_head_dim", 128, 1, DELTA_HEAD_MAX, &d->dv, err));
    QN_TRY(json_opt_i32(c, CFG, "linear_conv_kernel_dim", 4, 1, DELTA_TAPS_MAX, &d->taps, err));
    if (delta_channels(d) > WEIGHT_DIM_MAX || d->n_v % d->n_k)
        QN_FAIL(err, QN_BAD_INPUT, s->dec.name,
                "config.json: %d key heads of %d and %d value heads of %d: value heads must be a "
                "multiple of key heads, channels at most %d",
                d->n_k, d->dk, d->n_v, d->dv, WEIGHT_DIM_MAX);
    return QN_OK;
}

/* The dense part of an MoE layer is its shared expert: the sizes of decoder.h's are its sizes. */
static enum qn_status read_experts(struct q35 *s, const struct json *c, struct qn_err *err)
{
    struct decoder_experts *e = &s->dec.experts;
    bool norm;
    QN_TRY(json_opt_i32(c, CFG, "num_experts", 0, 0, MOE_EXPERT_MAX, &e->n, err));
    if (e->n == 0)
        return QN_OK;
    e->router = "mlp.gate";
    e->experts = "mlp.switch_mlp";
    QN_TRY(json_req_i32(c, CFG, "num_experts_per_tok", 1, MOE_TOP_MAX, &e->top_k, err));
    QN_TRY(json_req_i32(c, CFG, "moe_intermediate_size", 1, WEIGHT_DIM_MAX, &e->n_ff, err));
    QN_TRY(json_req_i32(c, CFG, "shared_expert_intermediate_size", 1, WEIGHT_DIM_MAX, &s->dec.n_ff,
                        err));
    QN_TRY(json_opt_bool(c, CFG, "norm_topk_prob", s->norm_topk, &norm, err));
    e->weights = norm ? ROUTE_OF_CHOSEN : ROUTE_OF_ALL;
    return QN_OK;
}

/* partial_rotary_factor beside rope_theta: in rope_parameters, in qwen3_next at the top. */
static enum qn_status read_rope(struct q35 *s, const struct json *c, struct qn_err *err)
{
    const struct json *r = json_has(c, "rope_parameters") ? json_get(c, "rope_parameters") : NULL;
    double part;
    QN_TRY(json_opt_real(c, CFG, "partial_rotary_factor", 0.25, 0, 1, &part, err));
    QN_TRY(json_opt_real(r, "config.json: rope_parameters", "partial_rotary_factor", part, 0, 1,
                         &part, err));
    s->dec.rope[0].dims = (int32_t)((double)s->dec.d_head * part);
    if (s->dec.rope[0].dims < 2 || s->dec.rope[0].dims % 2)
        QN_FAIL(err, QN_UNSUPPORTED, s->dec.name,
                "config.json: partial_rotary_factor %g of heads of %d rotates %d dimensions; an "
                "even number of at least 2 is needed",
                part, s->dec.d_head, s->dec.rope[0].dims);
    return QN_OK;
}

static void draft_input(struct model *m);

/* A draft head is one layer with attention, of the model's own sizes. */
static void make_draft(struct model *m)
{
    struct q35 *s = m->state;
    m->n_layer = 1;
    s->layers[0].linear = false;
    s->dec.kv[0] =
        (struct kv_layer){.n_head = s->dec.n_kv, .dk = s->dec.d_head, .dv = s->dec.d_head};
    s->dec.parts.embed = draft_input;
}

static enum qn_status load_mix(struct model *m, struct loader *l, int32_t i, struct qn_err *err);
static enum qn_status load_shared(struct model *m, struct loader *l, int32_t i, struct qn_err *err);
static const struct tensor *mix(struct model *m, int32_t i);
static void add_shared(struct model *m, int32_t i);

static enum qn_status common(struct model *m, const struct json *text, struct qn_err *err)
{
    static const char *const silu[] = {"silu", "swish", NULL};
    struct q35 *s = m->state;
    bool gate;
    QN_TRY(decoder_activation(&s->dec, text, "hidden_act", silu, err));
    QN_TRY(decoder_refuse(&s->dec, text, "attention_bias", err));
    QN_TRY(json_opt_bool(text, CFG, "attn_output_gate", true, &gate, err));
    if (!gate)
        QN_FAIL(err, QN_UNSUPPORTED, s->dec.name,
                "config.json: attn_output_gate is false; this family is supported with the gate");
    QN_TRY(read_rope(s, text, err));
    QN_TRY(read_delta(s, text, err));
    QN_TRY(read_experts(s, text, err));
    s->dec.parts = (struct decoder_parts){.load_mix = load_mix, .mix = mix};
    if (s->dec.experts.n) {
        s->dec.parts.load_shared = load_shared;
        s->dec.parts.add_shared = add_shared;
    }
    QN_TRY(read_layers(m, text, err));
    if (m->target)
        make_draft(m);
    return QN_OK;
}

static enum qn_status config(struct model *m, const struct json *c, struct qn_err *err)
{
    const struct decoder_defaults d = {.family = m->family->name,
                                       .eps = 1e-6,
                                       .theta = 1e5,
                                       .has_head_dim = true,
                                       .n_head = 32,
                                       .n_kv = 8,
                                       .n_ff = 14336,
                                       .state_bytes = sizeof(struct q35)};
    const struct json *text = json_has(c, "text_config") ? json_get(c, "text_config") : c;
    QN_TRY(decoder_config(m, text, &d, err));
    struct q35 *s = m->state;
    s->dec.prefix = "language_model.";
    s->norm_topk = true;
    return common(m, text, err);
}

/* The same maths; names without a prefix, fused projections, and experts in every layer. */
static enum qn_status next_config(struct model *m, const struct json *c, struct qn_err *err)
{
    const struct decoder_defaults d = {.family = m->family->name,
                                       .eps = 1e-6,
                                       .theta = 1e4,
                                       .has_head_dim = true,
                                       .state_bytes = sizeof(struct q35)};
    int32_t every;
    QN_TRY(decoder_config(m, c, &d, err));
    struct q35 *s = m->state;
    s->fused = true;
    QN_TRY(common(m, c, err));
    QN_TRY(json_opt_i32(c, CFG, "decoder_sparse_step", 1, 1, 1024, &every, err));
    size_t dense = json_has(c, "mlp_only_layers") ? json_len(json_get(c, "mlp_only_layers")) : 0;
    if (s->dec.experts.n && (every != 1 || dense))
        QN_FAIL(err, QN_UNSUPPORTED, s->dec.name,
                "config.json: decoder_sparse_step %d and %zu mlp_only_layers: some layers without "
                "experts; this family is supported with experts in every layer or in none",
                every, dense);
    return QN_OK;
}

/* ---- weights ---------------------------------------------------------------------------- */

#define LAYER "%smodel.layers.%d."

/* qwen3_next keeps one matrix for all of a key head's parts, one key head behind the other: q, k,
 * and v and z of its r value heads; another for b and a. Output i of ours is row rows[i] of theirs.
 */
static int32_t put_rows(int32_t *rows, int32_t from, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        rows[i] = from + i;
    return n;
}

static void order_of_qkvz(const struct delta_shape *d, int32_t *qkv, int32_t *z)
{
    int32_t r = d->n_v / d->n_k, head = 2 * d->dk + 2 * r * d->dv;
    for (int32_t part = 0; part < 2; part++)
        for (int32_t h = 0; h < d->n_k; h++)
            qkv += put_rows(qkv, h * head + part * d->dk, d->dk);
    for (int32_t h = 0; h < d->n_k; h++) {
        int32_t v = h * head + 2 * d->dk;
        qkv += put_rows(qkv, v, r * d->dv);
        z += put_rows(z, v + r * d->dv, r * d->dv);
    }
}

static void order_of_ba(const struct delta_shape *d, int32_t *b, int32_t *a)
{
    int32_t r = d->n_v / d->n_k;
    for (int32_t h = 0; h < d->n_k; h++) {
        b += put_rows(b, 2 * h * r, r);
        a += put_rows(a, (2 * h + 1) * r, r);
    }
}

static enum qn_status load_fused(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct q35 *s = m->state;
    struct q35_layer *w = &s->layers[i];
    const struct delta_shape *d = &s->delta;
    const char *p = s->dec.prefix;
    int32_t h = m->n_embd, c = delta_channels(d), v = d->n_v * d->dv;
    int32_t *rows = calloc((size_t)c + (size_t)v + 2 * (size_t)d->n_v, sizeof *rows);
    if (!rows)
        QN_FAIL(err, QN_NO_MEMORY, s->dec.name, "out of memory for the order of %d rows", c + v);
    int32_t *z = rows + c, *b = z + v, *a = b + d->n_v;
    order_of_qkvz(d, rows, z);
    order_of_ba(d, b, a);
    const struct {
        struct weight **w;
        const char *name;
        struct row_choice rows;
    } parts[] = {{&w->qkv, "in_proj_qkvz", {c + v, c, h, rows}},
                 {&w->z, "in_proj_qkvz", {c + v, v, h, z}},
                 {&w->b, "in_proj_ba", {2 * d->n_v, d->n_v, h, b}},
                 {&w->a, "in_proj_ba", {2 * d->n_v, d->n_v, h, a}}};
    enum qn_status st = QN_OK;
    for (size_t j = 0; j < sizeof parts / sizeof parts[0] && st == QN_OK; j++)
        st = load_rows(l, parts[j].w, &parts[j].rows, err, LAYER "linear_attn.%s", p, i,
                       parts[j].name);
    free(rows);
    return st;
}

static enum qn_status load_split(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct q35 *s = m->state;
    struct q35_layer *w = &s->layers[i];
    const struct delta_shape *d = &s->delta;
    const struct {
        struct weight **w;
        const char *name;
        int32_t n;
    } parts[] = {{&w->qkv, "in_proj_qkv", delta_channels(d)},
                 {&w->z, "in_proj_z", d->n_v * d->dv},
                 {&w->a, "in_proj_a", d->n_v},
                 {&w->b, "in_proj_b", d->n_v}};
    for (size_t j = 0; j < sizeof parts / sizeof parts[0]; j++)
        QN_TRY(load_matrix(l, parts[j].w, parts[j].n, m->n_embd, err, LAYER "linear_attn.%s",
                           s->dec.prefix, i, parts[j].name));
    return QN_OK;
}

static enum qn_status load_delta(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct q35 *s = m->state;
    struct q35_layer *w = &s->layers[i];
    const struct delta_shape *d = &s->delta;
    const char *p = s->dec.prefix;
    QN_TRY((s->fused ? load_fused : load_split)(m, l, i, err));
    QN_TRY(load_matrix(l, &s->dec.layers[i].o, m->n_embd, d->n_v * d->dv, err,
                       LAYER "linear_attn.out_proj", p, i));
    QN_TRY(load_taps(l, &w->conv, delta_channels(d), d->taps, err,
                     LAYER "linear_attn.conv1d.weight", p, i));
    QN_TRY(load_vec(l, &w->dt_bias, d->n_v, err, LAYER "linear_attn.dt_bias", p, i));
    QN_TRY(load_vec(l, &w->a_log, d->n_v, err, LAYER "linear_attn.A_log", p, i));
    return load_vec(l, &w->norm, d->dv, err, LAYER "linear_attn.norm.weight", p, i);
}

static enum qn_status load_gated_attn(struct model *m, struct loader *l, int32_t i,
                                      struct qn_err *err)
{
    struct q35 *s = m->state;
    struct decoder_layer *w = &s->dec.layers[i];
    const char *p = s->dec.prefix;
    int32_t h = m->n_embd, q = s->dec.n_head * s->dec.d_head, kv = s->dec.n_kv * s->dec.d_head;
    QN_TRY(load_matrix(l, &w->q, 2 * q, h, err, LAYER "self_attn.q_proj", p, i));
    QN_TRY(load_matrix(l, &w->k, kv, h, err, LAYER "self_attn.k_proj", p, i));
    QN_TRY(load_matrix(l, &w->v, kv, h, err, LAYER "self_attn.v_proj", p, i));
    QN_TRY(load_vec(l, &w->q_norm, s->dec.d_head, err, LAYER "self_attn.q_norm.weight", p, i));
    QN_TRY(load_vec(l, &w->k_norm, s->dec.d_head, err, LAYER "self_attn.k_norm.weight", p, i));
    return load_matrix(l, &w->o, h, q, err, LAYER "self_attn.o_proj", p, i);
}

static enum qn_status load_mix(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct q35 *s = m->state;
    return (s->layers[i].linear ? load_delta : load_gated_attn)(m, l, i, err);
}

static enum qn_status load_shared(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct q35 *s = m->state;
    struct q35_layer *w = &s->layers[i];
    const char *p = s->dec.prefix;
    int32_t h = m->n_embd, f = s->dec.n_ff;
    QN_TRY(load_matrix(l, &w->shared_in, f, h, err, LAYER "mlp.shared_expert.gate_proj", p, i));
    QN_TRY(load_matrix(l, &w->shared_up, f, h, err, LAYER "mlp.shared_expert.up_proj", p, i));
    QN_TRY(load_matrix(l, &w->shared_down, h, f, err, LAYER "mlp.shared_expert.down_proj", p, i));
    return load_matrix(l, &w->shared_gate, 1, h, err, LAYER "mlp.shared_expert_gate", p, i);
}

static enum qn_status create_tensors(struct model *m, struct qn_err *err)
{
    struct q35 *s = m->state;
    int32_t q = s->dec.n_head * s->dec.d_head, kv = s->dec.n_kv * s->dec.d_head;
    int32_t c = delta_channels(&s->delta), v = s->delta.n_v * s->delta.dv;
    bool moe = s->dec.experts.n > 0, net = !m->target; /* a draft head has only attention */
    struct {
        struct tensor **t;
        int32_t cols;
    } const list[] = {
        {net ? &s->u : NULL, c},
        {net ? &s->mixed : NULL, c},
        {net ? &s->z : NULL, v},
        {net ? &s->ab : NULL, 2 * s->delta.n_v},
        {net ? &s->gates : NULL, 2 * s->delta.n_v},
        {net ? &s->o : NULL, v},
        {net ? &s->gated : NULL, v},
        {net ? &s->o_wanted : NULL, v},
        {&s->pairs, 2 * q + 2 * kv},
        {&s->att, q},
        {&s->att_wanted, q},
        {moe ? &s->shared : NULL, m->n_embd},
        {moe ? &s->sum : NULL, m->n_embd},
        {moe ? &s->weight : NULL, 1},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].t)
            QN_TRY(tensor_create(m->ex, list[i].cols, list[i].t, err));
    return QN_OK;
}

/* Where the tensors of a draft head are: "mtp." or "language_model.mtp.". */
static const char *draft_prefix(const struct loader *l)
{
    static const char *const prefixes[] = {"mtp.", "language_model.mtp.", "model.mtp."};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (loader_has(l, "%sfc.weight", prefixes[i]))
            return prefixes[i];
    return NULL;
}

static bool has_draft(const struct model *m, const struct loader *l)
{
    return draft_prefix(l) != NULL;
}

static enum qn_status load_draft(struct model *m, struct loader *l, struct qn_err *err)
{
    struct q35 *s = m->state;
    const char *p = draft_prefix(l);
    char mine[2][64], theirs[2][64];
    int32_t h = m->n_embd;
    snprintf(mine[0], sizeof mine[0], LAYER, s->dec.prefix, 0);
    snprintf(theirs[0], sizeof theirs[0], "%slayers.0.", p);
    snprintf(mine[1], sizeof mine[1], "%smodel.norm.", s->dec.prefix);
    snprintf(theirs[1], sizeof theirs[1], "%snorm.", p);
    QN_TRY(load_vec(l, &s->norm_e, h, err, "%spre_fc_norm_embedding.weight", p));
    QN_TRY(load_vec(l, &s->norm_h, h, err, "%spre_fc_norm_hidden.weight", p));
    QN_TRY(load_matrix(l, &s->fc, h, 2 * h, err, "%sfc", p));
    QN_TRY(tensor_create(m->ex, h, &m->hidden_in, err));
    QN_TRY(tensor_create(m->ex, h, &s->e, err));
    QN_TRY(tensor_create(m->ex, 2 * h, &s->pair, err));
    for (int i = 0; i < 2; i++)
        loader_alias(l, mine[i], theirs[i]);
    enum qn_status st = decoder_load(m, l, err);
    loader_alias(l, NULL, NULL);
    return st;
}

static enum qn_status load(struct model *m, struct loader *l, struct qn_err *err)
{
    static const char *const others[] = {"*mtp.*", "vision_tower.*", "model.visual.*"};
    int32_t n = 0;
    QN_TRY(create_tensors(m, err));
    if (m->target)
        return load_draft(m, l, err);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        n += loader_skip(l, others[i]);
    if (n)
        log_line(LOG_INFO, m->family->name,
                 "text only: %d tensors of the vision tower and of the draft head are left out", n);
    return decoder_load(m, l, err);
}

/* ---- one step --------------------------------------------------------------------------- */

/* x = fc( rms(embed(next token)) norm_e | rms(state) norm_h ) */
static void draft_input(struct model *m)
{
    struct q35 *s = m->state;
    struct decoder *dec = &s->dec;
    struct exec *ex = m->ex;
    float eps = (float)dec->eps;
    op_embed(ex, dec->n, dec->embed, 1);
    op_rmsnorm(ex, s->e, dec->n, s->norm_e, 0, eps);
    op_rmsnorm(ex, dec->n, m->hidden_in, s->norm_h, 0, eps);
    op_join(ex, s->pair, s->e, dec->n);
    op_linear(ex, &(struct linear){dec->h[0], 0, s->fc, NULL}, 1, s->pair);
}

static const struct tensor *delta_net(struct model *m, int32_t i)
{
    struct q35 *s = m->state;
    struct exec *ex = m->ex;
    const struct q35_layer *w = &s->layers[i];
    struct linear parts[] = {
        {s->u, 0, w->qkv, NULL},
        {s->z, 0, w->z, NULL},
        {s->ab, 0, w->a, NULL},
        {s->ab, s->delta.n_v, w->b, NULL},
    };
    op_linear(ex, parts, 4, s->dec.n);
    struct delta_op d = {.layer = i, .conv = w->conv, .dt_bias = w->dt_bias, .a_log = w->a_log};
    op_delta_mix(ex, s->mixed, s->gates, s->u, s->ab, &d);
    op_delta(ex, s->o, s->mixed, s->gates, &d);
    op_norm_gated(ex, s->gated, s->o, s->z, w->norm, (float)s->dec.eps);
    return s->gated;
}

static const struct tensor *gated_attention(struct model *m, int32_t i)
{
    struct q35 *s = m->state;
    struct decoder *dec = &s->dec;
    struct exec *ex = m->ex;
    const struct decoder_layer *w = &dec->layers[i];
    int32_t d = dec->d_head, q = 2 * dec->n_head * d, kv = dec->n_kv * d;
    struct linear parts[] = {
        {s->pairs, 0, w->q, NULL}, {s->pairs, q, w->k, NULL}, {s->pairs, q + kv, w->v, NULL}};
    op_linear(ex, parts, 3, dec->n);
    struct attn_op a = decoder_attn(dec, i);
    a.gated = true;
    op_rope_append(ex, dec->q, s->pairs, &a);
    if (decoder_narrows(m, i) && exec_wanted(ex) == 0)
        return NULL;
    op_attn(ex, dec->att, dec->q, &a);
    op_gate(ex, s->att, dec->att, s->pairs, &(struct gate_at){.col = d, .stride = 2 * d, .d = d});
    return s->att;
}

static const struct tensor *mix(struct model *m, int32_t i)
{
    struct q35 *s = m->state;
    bool linear = s->layers[i].linear;
    const struct tensor *all = (linear ? delta_net : gated_attention)(m, i);
    if (!decoder_narrows(m, i) || exec_wanted(m->ex) == 0)
        return all;
    struct tensor *wanted = linear ? s->o_wanted : s->att_wanted;
    op_take(m->ex, wanted, all);
    return wanted;
}

static void add_shared(struct model *m, int32_t i)
{
    struct q35 *s = m->state;
    struct decoder *dec = &s->dec;
    struct exec *ex = m->ex;
    const struct q35_layer *w = &s->layers[i];
    struct linear parts[] = {{dec->gu, 0, w->shared_in, NULL},
                             {dec->gu, dec->n_ff, w->shared_up, NULL},
                             {s->weight, 0, w->shared_gate, NULL}};
    op_linear(ex, parts, 3, dec->n);
    op_glu(ex, dec->act_out, dec->gu, dec->act);
    op_linear(ex, &(struct linear){s->shared, 0, w->shared_down, NULL}, 1, dec->act_out);
    op_add_gated(ex, s->sum, dec->delta, s->shared, s->weight);
    struct tensor *t = dec->delta;
    dec->delta = s->sum;
    s->sum = t;
}

static void free_state(struct model *m)
{
    struct q35 *s = m->state;
    if (s)
        free(s->layers);
    decoder_free(m);
}

const struct family family_qwen3_5 = {
    .name = "qwen3_5",
    .model_types = (const char *const[]){"qwen3_5", NULL},
    .config = config,
    .load = load,
    .forward = decoder_forward,
    .free = free_state,
    .has_draft = has_draft,
};

const struct family family_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .model_types = (const char *const[]){"qwen3_5_moe", NULL},
    .config = config,
    .load = load,
    .forward = decoder_forward,
    .free = free_state,
    .has_draft = has_draft,
};

const struct family family_qwen3_next = {
    .name = "qwen3_next",
    .model_types = (const char *const[]){"qwen3_next", NULL},
    .config = next_config,
    .load = load,
    .forward = decoder_forward,
    .free = free_state,
    .has_draft = has_draft,
};
