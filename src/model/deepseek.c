/*
 * deepseek.c - DeepSeek V3 and its kin: attention over a latent (MLA) and routed experts chosen by
 * groups, with shared experts beside them. docs/families/deepseek.md.
 *
 * MLA runs in its absorbed form for any number of rows, so that a row takes the same steps whether
 * a prompt is read or a token written: with the latent c and one rotated part pe for all heads,
 *
 *     score = (embed_q q_nope) . c + rope(q_pe) . rope(pe)        out = unembed_out sum p c
 *
 * which is attention of H query heads over a single key head [c | rope(pe)] and value head c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/loader.h"
#include "model/model.h"
#include "model/rope_config.h"

static const char CFG[] = "config.json";
static const float LATENT_EPS =
    1e-6f; /* of the norms of q's and kv's latents, whatever the file says */

static const float INDEX_EPS = 1e-5f; /* of the indexer's layer norm, as mlx-lm has it */

struct mlp {
    struct weight *gate, *up, *down;
};

struct deepseek_layer {
    bool routed;
    struct weight *norm1, *norm2;
    struct weight *q_a, *q_a_bias, *q_a_norm, *q_b; /* q_b alone = plain q_proj */
    struct weight *kv_a, *kv_a_bias, *kv_a_norm, *embed_q, *unembed_out, *o, *o_bias;
    struct mlp mlp; /* dense, or the experts' stacks */
    struct mlp shared;
    bool sparse;      /* has an indexer; otherwise the last one's choice holds */
    int32_t index_kv; /* its layer of KV memory */
    struct weight *index_q, *index_k, *index_w, *index_norm, *index_norm_bias;
    struct weight *router, *router_bias;
};

struct deepseek {
    const char *name;                                     /* for messages */
    int32_t n_head, d_nope, d_rope, d_v, q_rank, kv_rank; /* q_rank 0 = no latent of queries */
    int32_t n_ff, n_ff_expert, n_ff_shared;
    int32_t n_expert, top_k, n_group, n_keep;
    int32_t n_draft; /* layers behind the model's, for drafting */
    int32_t at;      /* the number of the first layer in tensor names: a draft head's is n_layer */
    int32_t n_dense, routed_every;
    bool bias, normed;
    double eps, route_scale;
    float attn_scale;
    struct rope_params rope;
    int32_t n_index_head, d_index, index_top_k; /* 0 = attention to everything */
    bool index_interleaved;

    struct deepseek_layer *layers;
    struct kv_layer *kv;
    struct weight *embed, *norm, *head;
    struct rope *turn;
    struct rope *index_turn;
    struct index *index;
    struct tensor *index_q, *index_k, *index_w;
    struct moe *moe;
    struct tensor *h[2], *n, *q_lat, *q_lat_n, *q, *q_emb, *kv_lat, *q_rot, *o_lat, *att, *delta;
    struct tensor *gu, *act, *gu_shared, *act_shared, *routed, *shared, *route, *logits;
    /* draft head */
    struct weight *norm_e, *norm_h, *fc;
    struct tensor *e, *pair;
};

/* ---- config.json ------------------------------------------------------------------------------
 */

struct key {
    const char *name;
    int32_t def, min, max;
    int32_t *out;
};

/* null counts as 0, where 0 is allowed */
static enum qn_status read_keys(const struct json *c, const struct key *k, struct qn_err *err)
{
    for (; k->name; k++)
        if (k->min == 0 && json_is_null(c, k->name))
            *k->out = 0;
        else
            QN_TRY(json_opt_i32(c, CFG, k->name, k->def, k->min, k->max, k->out, err));
    return QN_OK;
}

static enum qn_status read_sizes(struct model *m, const struct json *c, struct qn_err *err)
{
    struct deepseek *s = m->state;
    int32_t shared;
    const struct key keys[] = {
        {"hidden_size", 4096, 16, WEIGHT_DIM_MAX, &m->n_embd},
        {"num_hidden_layers", 30, 1, 1024, &m->n_layer},
        {"vocab_size", 102400, 1, 1 << 24, &m->n_vocab},
        {"max_position_embeddings", 2048, 1, 1 << 24, &m->n_ctx_max},
        {"intermediate_size", 11008, 1, WEIGHT_DIM_MAX, &s->n_ff},
        {"moe_intermediate_size", 1407, 1, WEIGHT_DIM_MAX, &s->n_ff_expert},
        {"num_attention_heads", 32, 1, 1024, &s->n_head},
        {"kv_lora_rank", 512, 1, HEAD_DIM_MAX, &s->kv_rank},
        {"q_lora_rank", 1536, 0, WEIGHT_DIM_MAX, &s->q_rank},
        {"qk_rope_head_dim", 64, 2, HEAD_DIM_MAX, &s->d_rope},
        {"qk_nope_head_dim", 128, 1, HEAD_DIM_MAX, &s->d_nope},
        {"v_head_dim", 128, 1, HEAD_DIM_MAX, &s->d_v},
        {"n_routed_experts", 0, 0, MOE_EXPERT_MAX, &s->n_expert},
        {"n_shared_experts", 0, 0, 1024, &shared},
        {"num_experts_per_tok", 1, 1, MOE_TOP_MAX, &s->top_k},
        {"n_group", 1, 1, ROUTE_GROUP_MAX, &s->n_group},
        {"topk_group", 1, 1, ROUTE_GROUP_MAX, &s->n_keep},
        {"num_nextn_predict_layers", 1, 0, 16, &s->n_draft},
        {0},
    };
    QN_TRY(read_keys(c, keys, err));
    s->n_ff_shared = shared * s->n_ff_expert;
    if (s->n_ff_shared > WEIGHT_DIM_MAX)
        QN_FAIL(err, QN_UNSUPPORTED, s->name, "config.json: %d shared experts of width %d", shared,
                s->n_ff_expert);
    return QN_OK;
}

static bool is_routed(const struct deepseek *s, int32_t i)
{
    return s->n_expert && i >= s->n_dense && i % s->routed_every == 0;
}

/* The only routing there is: sigmoid, and groups chosen by their two best. */
static enum qn_status read_routing(struct model *m, const struct json *c, struct qn_err *err)
{
    static const char *const only[][2] = {
        {"topk_method", "noaux_tc"}, {"scoring_func", "sigmoid"}, {"hidden_act", "silu"}};
    struct deepseek *s = m->state;
    for (size_t i = 0; i < sizeof only / sizeof only[0]; i++) {
        struct str v;
        QN_TRY(json_opt_str(c, CFG, only[i][0], str_of(only[i][1]), &v, err));
        if (!str_eqz(v, only[i][1]))
            QN_FAIL(err, QN_UNSUPPORTED, s->name,
                    "config.json: %s \"" STR_FMT "\" is not supported; this family has %s",
                    only[i][0], STR_ARG(v), only[i][1]);
    }
    if (s->n_expert && (s->n_expert % s->n_group || s->n_keep > s->n_group ||
                        (s->n_group > 1 && s->n_expert / s->n_group < 2)))
        QN_FAIL(err, QN_BAD_INPUT, s->name,
                "config.json: %d experts in %d groups, %d of them used, is not a grouping of two "
                "or more experts each",
                s->n_expert, s->n_group, s->n_keep);
    QN_TRY(json_opt_bool(c, CFG, "norm_topk_prob", true, &s->normed, err));
    s->normed = s->normed && s->top_k > 1;
    QN_TRY(json_opt_real(c, CFG, "routed_scaling_factor", 1, 0, 1e6, &s->route_scale, err));
    QN_TRY(json_opt_i32(c, CFG, "first_k_dense_replace", 0, 0, 1024, &s->n_dense, err));
    QN_TRY(json_opt_i32(c, CFG, "moe_layer_freq", 1, 1, 1024, &s->routed_every, err));
    for (int32_t i = 0; i < m->n_layer; i++)
        s->layers[i].routed = is_routed(s, i);
    return QN_OK;
}

/* The scale of scores: 1/sqrt of a head's size, times yarn's m^2 with mscale_all_dim. */
static enum qn_status read_rope(struct model *m, const struct json *c, struct qn_err *err)
{
    struct deepseek *s = m->state;
    double all, factor;
    bool pairs;
    QN_TRY(json_opt_bool(c, CFG, "rope_interleave", true, &pairs, err));
    if (!pairs)
        QN_FAIL(err, QN_UNSUPPORTED, s->name,
                "config.json: rope_interleave is false; this family is supported with pairs that "
                "lie side by side");
    s->rope = (struct rope_params){.what = "config.json: rope_scaling",
                                   .dims = s->d_rope,
                                   .max_pos = m->n_ctx_max,
                                   .interleaved = true};
    QN_TRY(json_opt_real(c, CFG, "rope_theta", 1e4, 1.0001, 1e12, &s->rope.theta, err));
    if (json_has(c, "rope_parameters")) { /* GLM: theta too, and it counts */
        s->rope.scaling = json_get(c, "rope_parameters");
        s->rope.what = "config.json: rope_parameters";
        QN_TRY(json_opt_real(s->rope.scaling, s->rope.what, "rope_theta", s->rope.theta, 1.0001,
                             1e12, &s->rope.theta, err));
    } else if (json_has(c, "rope_scaling"))
        s->rope.scaling = json_get(c, "rope_scaling");
    QN_TRY(json_opt_real(s->rope.scaling, s->rope.what, "mscale_all_dim", 0, 0, 1e3, &all, err));
    QN_TRY(json_opt_real(s->rope.scaling, s->rope.what, "factor", 1, 1e-3, 1e6, &factor, err));
    double scale = 1 / sqrt(s->d_nope + s->d_rope);
    if (all > 0 && factor > 1)
        scale *= pow(0.1 * all * log(factor) + 1, 2);
    s->attn_scale = (float)scale;
    return QN_OK;
}

static enum qn_status common(struct model *m, const struct json *c, const char *name,
                             struct qn_err *err)
{
    struct deepseek *s = calloc(1, sizeof *s);
    if (!s)
        QN_FAIL(err, QN_NO_MEMORY, name, "out of memory");
    m->state = s;
    s->name = name;
    QN_TRY(read_sizes(m, c, err));
    QN_TRY(json_opt_real(c, CFG, "rms_norm_eps", 1e-6, 0, 1, &s->eps, err));
    QN_TRY(json_opt_bool(c, CFG, "attention_bias", false, &s->bias, err));
    s->layers = calloc((size_t)m->n_layer, sizeof *s->layers);
    s->kv = calloc(2 * (size_t)m->n_layer, sizeof *s->kv); /* the indexers' keys behind */
    if (!s->layers || !s->kv)
        QN_FAIL(err, QN_NO_MEMORY, s->name, "out of memory for %d layers", m->n_layer);
    for (int32_t i = 0; i < m->n_layer; i++)
        s->kv[i] = (struct kv_layer){
            .n_head = 1, .latent = true, .dk = s->kv_rank + s->d_rope, .dv = s->kv_rank};
    m->kv = s->kv;
    QN_TRY(read_routing(m, c, err));
    return read_rope(m, c, err);
}

/* A draft head is the layer behind the last one, with an indexer of its own where there are any. */
static enum qn_status make_draft(struct model *m, enum qn_status st)
{
    struct deepseek *s = m->state;
    if (st != QN_OK || !m->target)
        return st;
    bool sparse = s->index_top_k > 0;
    s->at = m->n_layer;
    s->layers[0].routed = is_routed(s, s->at);
    s->layers[0].sparse = sparse;
    s->layers[0].index_kv = 1;
    s->kv[1] = (struct kv_layer){.n_head = sparse, .dk = sparse ? s->d_index : 0};
    m->n_layer = 1;
    m->n_kv = sparse ? 2 : 1;
    return QN_OK;
}

static enum qn_status v3_config(struct model *m, const struct json *c, struct qn_err *err)
{
    return make_draft(m, common(m, c, "deepseek_v3", err));
}

/* Layer i has an indexer of its own: by indexer_types, else by index_topk_pattern, else one in
 * index_topk_freq layers behind the first few. */
static enum qn_status is_full(const struct json *c, int32_t i, bool *full, struct qn_err *err)
{
    static const char what[] = "config.json: %s says \"" STR_FMT "\" of layer %d; known are %s";
    const struct json *types = json_get(c, "indexer_types");
    struct str pattern = json_str(json_get(c, "index_topk_pattern"));
    int32_t freq, offset;
    QN_TRY(json_opt_i32(c, CFG, "index_topk_freq", 1, 1, 1024, &freq, err));
    QN_TRY(json_opt_i32(c, CFG, "index_skip_topk_offset", 2, 0, 1024, &offset, err));
    if (types || pattern.p) {
        const char *key = types ? "indexer_types" : "index_topk_pattern";
        struct str kind = types                   ? json_str(json_at(types, (size_t)i))
                          : pattern.n > (size_t)i ? (struct str){pattern.p + i, 1}
                                                  : STR_LIT("");
        *full = str_eqz(kind, types ? "full" : "F");
        if (!*full && !str_eqz(kind, types ? "shared" : "S"))
            QN_FAIL(err, QN_UNSUPPORTED, "deepseek", what, key, STR_ARG(kind), i,
                    types ? "full and shared" : "F and S");
    } else
        *full = (i - offset + 1 > 0 ? i - offset + 1 : 0) % freq == 0;
    return QN_OK;
}

static enum qn_status read_index(struct model *m, const struct json *c, bool interleaved,
                                 struct qn_err *err)
{
    struct deepseek *s = m->state;
    const struct key keys[] = {
        {"index_n_heads", 64, 1, 1024, &s->n_index_head},
        {"index_head_dim", 128, 16, HEAD_DIM_MAX, &s->d_index},
        {"index_topk", 2048, 1, 1 << 24, &s->index_top_k},
        {0},
    };
    QN_TRY(read_keys(c, keys, err));
    QN_TRY(
        json_opt_bool(c, CFG, "indexer_rope_interleave", interleaved, &s->index_interleaved, err));
    if (!s->q_rank || s->d_rope > s->d_index)
        QN_FAIL(err, QN_BAD_INPUT, s->name,
                "config.json: q_lora_rank %d and qk_rope_head_dim %d do not serve an indexer of "
                "head size %d",
                s->q_rank, s->d_rope, s->d_index);
    m->n_kv = m->n_layer;
    for (int32_t i = 0; i < m->n_layer; i++) {
        QN_TRY(is_full(c, i, &s->layers[i].sparse, err));
        if (!s->layers[i].sparse)
            continue;
        s->layers[i].index_kv = m->n_kv;
        s->kv[m->n_kv++] = (struct kv_layer){.n_head = 1, .dk = s->d_index};
    }
    if (!s->layers[0].sparse)
        QN_FAIL(err, QN_BAD_INPUT, s->name,
                "config.json: the first layer shares an indexer; there is none before it");
    return QN_OK;
}

static enum qn_status v32_config(struct model *m, const struct json *c, struct qn_err *err)
{
    QN_TRY(common(m, c, "deepseek_v32", err));
    return make_draft(m, read_index(m, c, false, err));
}

static enum qn_status glm_config(struct model *m, const struct json *c, struct qn_err *err)
{
    QN_TRY(common(m, c, "glm_moe_dsa", err));
    return make_draft(m, read_index(m, c, true, err));
}

/* ---- weights ----------------------------------------------------------------------------------
 */

#define LAYER "model.layers.%d."
#define ATTN  LAYER "self_attn."

static enum qn_status load_query(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct deepseek *s = m->state;
    struct deepseek_layer *w = &s->layers[i];
    int32_t q = s->n_head * (s->d_nope + s->d_rope);
    if (!s->q_rank)
        return load_matrix(l, &w->q_b, q, m->n_embd, err, ATTN "q_proj", s->at + i);
    QN_TRY(load_matrix(l, &w->q_a, s->q_rank, m->n_embd, err, ATTN "q_a_proj", s->at + i));
    if (s->bias)
        QN_TRY(load_vec(l, &w->q_a_bias, s->q_rank, err, ATTN "q_a_proj.bias", s->at + i));
    QN_TRY(load_vec(l, &w->q_a_norm, s->q_rank, err, ATTN "q_a_layernorm.weight", s->at + i));
    return load_matrix(l, &w->q_b, q, s->q_rank, err, ATTN "q_b_proj", s->at + i);
}

#define INDEX ATTN "indexer."

static enum qn_status load_index(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct deepseek *s = m->state;
    struct deepseek_layer *w = &s->layers[i];
    int32_t h = s->n_index_head, d = s->d_index;
    QN_TRY(load_matrix(l, &w->index_q, h * d, s->q_rank, err, INDEX "wq_b", s->at + i));
    QN_TRY(load_matrix(l, &w->index_k, d, m->n_embd, err, INDEX "wk", s->at + i));
    QN_TRY(load_matrix(l, &w->index_w, h, m->n_embd, err, INDEX "weights_proj", s->at + i));
    QN_TRY(load_vec(l, &w->index_norm, d, err, INDEX "k_norm.weight", s->at + i));
    return load_vec(l, &w->index_norm_bias, d, err, INDEX "k_norm.bias", s->at + i);
}

static enum qn_status load_attn(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct deepseek *s = m->state;
    struct deepseek_layer *w = &s->layers[i];
    int32_t h = s->n_head, r = s->kv_rank, kv = r + s->d_rope;
    QN_TRY(load_query(m, l, i, err));
    if (w->sparse)
        QN_TRY(load_index(m, l, i, err));
    QN_TRY(load_matrix(l, &w->kv_a, kv, m->n_embd, err, ATTN "kv_a_proj_with_mqa", s->at + i));
    QN_TRY(load_vec(l, &w->kv_a_norm, r, err, ATTN "kv_a_layernorm.weight", s->at + i));
    QN_TRY(load_stack(l, &w->embed_q, &(struct stack_shape){h, h, r, s->d_nope}, err,
                      ATTN "embed_q", s->at + i));
    QN_TRY(load_stack(l, &w->unembed_out, &(struct stack_shape){h, h, s->d_v, r}, err,
                      ATTN "unembed_out", s->at + i));
    QN_TRY(load_matrix(l, &w->o, m->n_embd, h * s->d_v, err, ATTN "o_proj", s->at + i));
    if (s->bias) {
        QN_TRY(load_vec(l, &w->kv_a_bias, kv, err, ATTN "kv_a_proj_with_mqa.bias", s->at + i));
        QN_TRY(load_vec(l, &w->o_bias, m->n_embd, err, ATTN "o_proj.bias", s->at + i));
    }
    return QN_OK;
}

/* A gated part; stack 0 = one. */
static enum qn_status load_mlp(struct model *m, struct loader *l, struct mlp *w,
                               const struct stack_shape *in, const char *name, struct qn_err *err)
{
    struct stack_shape out = {in->n_stack, in->active, in->k, in->n};
    QN_TRY(load_stack(l, &w->gate, in, err, "%s.gate_proj", name));
    QN_TRY(load_stack(l, &w->up, in, err, "%s.up_proj", name));
    return load_stack(l, &w->down, &out, err, "%s.down_proj", name);
}

static enum qn_status load_ff(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct deepseek *s = m->state;
    struct deepseek_layer *w = &s->layers[i];
    char name[64];
    snprintf(name, sizeof name, LAYER "mlp", s->at + i);
    if (!w->routed)
        return load_mlp(m, l, &w->mlp, &(struct stack_shape){0, 0, s->n_ff, m->n_embd}, name, err);
    QN_TRY(load_matrix(l, &w->router, s->n_expert, m->n_embd, err, LAYER "mlp.gate", s->at + i));
    QN_TRY(load_vec(l, &w->router_bias, s->n_expert, err, LAYER "mlp.gate.e_score_correction_bias",
                    s->at + i));
    snprintf(name, sizeof name, LAYER "mlp.switch_mlp", s->at + i);
    struct stack_shape experts = {s->n_expert, s->top_k, s->n_ff_expert, m->n_embd};
    QN_TRY(load_mlp(m, l, &w->mlp, &experts, name, err));
    if (!s->n_ff_shared)
        return QN_OK;
    snprintf(name, sizeof name, LAYER "mlp.shared_experts", s->at + i);
    struct stack_shape shared = {0, 0, s->n_ff_shared, m->n_embd};
    return load_mlp(m, l, &w->shared, &shared, name, err);
}

static enum qn_status create_moe(struct model *m, struct qn_err *err)
{
    struct deepseek *s = m->state;
    struct moe_shape shape = {s->n_expert, s->top_k, m->n_embd, s->n_ff_expert};
    QN_TRY(tensor_create(m->ex, s->n_expert, &s->route, err));
    QN_TRY(moe_create(m->ex, &shape, &s->moe, err));
    if (!s->n_ff_shared)
        return QN_OK;
    QN_TRY(tensor_create(m->ex, 2 * s->n_ff_shared, &s->gu_shared, err));
    QN_TRY(tensor_create(m->ex, s->n_ff_shared, &s->act_shared, err));
    QN_TRY(tensor_create(m->ex, m->n_embd, &s->routed, err));
    return tensor_create(m->ex, m->n_embd, &s->shared, err);
}

static enum qn_status create_tensors(struct model *m, struct qn_err *err)
{
    struct deepseek *s = m->state;
    int32_t h = s->n_head, r = s->kv_rank;
    struct {
        struct tensor **t;
        int32_t cols;
    } const list[] = {
        {&s->h[0], m->n_embd},
        {&s->h[1], m->n_embd},
        {&s->n, m->n_embd},
        {&s->q_lat, s->q_rank},
        {&s->q_lat_n, s->q_rank},
        {&s->q, h * (s->d_nope + s->d_rope)},
        {&s->q_emb, h * r},
        {&s->kv_lat, r + s->d_rope},
        {&s->q_rot, h * (r + s->d_rope)},
        {&s->o_lat, h * r},
        {&s->att, h * s->d_v},
        {&s->delta, m->n_embd},
        {&s->index_q, s->n_index_head * s->d_index},
        {&s->index_k, s->d_index},
        {&s->index_w, s->n_index_head},
        {&s->gu, 2 * s->n_ff},
        {&s->act, s->n_ff},
        {&s->logits, m->n_vocab},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].cols)
            QN_TRY(tensor_create(m->ex, list[i].cols, list[i].t, err));
    return s->n_expert ? create_moe(m, err) : QN_OK;
}

/* A draft head's input; it has its target's table and head, of which some files carry copies. */
static enum qn_status load_draft(struct model *m, struct loader *l, struct qn_err *err)
{
    struct deepseek *s = m->state;
    const struct deepseek *of = m->target->state;
    int32_t h = m->n_embd;
    s->embed = of->embed;
    s->head = of->head;
    QN_TRY(weight_share(m->ex, s->head, err));
    QN_TRY(load_vec(l, &s->norm_e, h, err, LAYER "enorm.weight", s->at));
    QN_TRY(load_vec(l, &s->norm_h, h, err, LAYER "hnorm.weight", s->at));
    QN_TRY(load_matrix(l, &s->fc, h, 2 * h, err, LAYER "eh_proj", s->at));
    QN_TRY(load_vec(l, &s->norm, h, err, LAYER "shared_head.norm.weight", s->at));
    QN_TRY(tensor_create(m->ex, h, &m->hidden_in, err));
    QN_TRY(tensor_create(m->ex, h, &s->e, err));
    return tensor_create(m->ex, 2 * h, &s->pair, err);
}

static bool has_draft(const struct model *m, const struct loader *l)
{
    return loader_has(l, LAYER "eh_proj.weight", m->n_layer);
}

static enum qn_status load_ends(struct model *m, struct loader *l, struct qn_err *err)
{
    struct deepseek *s = m->state;
    QN_TRY(load_matrix(l, &s->embed, m->n_vocab, m->n_embd, err, "model.embed_tokens"));
    QN_TRY(load_vec(l, &s->norm, m->n_embd, err, "model.norm.weight"));
    QN_TRY(load_matrix(l, &s->head, m->n_vocab, m->n_embd, err, "lm_head"));
    loader_skip(l, "*rotary_emb.inv_freq");
    for (int32_t i = 0; i < s->n_draft; i++) {
        char pattern[48];
        snprintf(pattern, sizeof pattern, LAYER "*", m->n_layer + i);
        loader_skip(l, pattern);
    }
    return QN_OK;
}

static enum qn_status deepseek_load(struct model *m, struct loader *l, struct qn_err *err)
{
    struct deepseek *s = m->state;
    QN_TRY((m->target ? load_draft : load_ends)(m, l, err));
    for (int32_t i = 0; i < m->n_layer; i++) {
        struct deepseek_layer *w = &s->layers[i];
        int32_t n = s->at + i;
        QN_TRY(load_vec(l, &w->norm1, m->n_embd, err, LAYER "input_layernorm.weight", n));
        QN_TRY(load_vec(l, &w->norm2, m->n_embd, err, LAYER "post_attention_layernorm.weight", n));
        QN_TRY(load_attn(m, l, i, err));
        QN_TRY(load_ff(m, l, i, err));
    }
    QN_TRY(rope_from_config(m->ex, &s->rope, &s->turn, err));
    if (s->index_top_k) {
        struct rope_params r = s->rope;
        r.interleaved = s->index_interleaved;
        QN_TRY(rope_from_config(m->ex, &r, &s->index_turn, err));
        QN_TRY(index_create(m->ex, s->index_top_k, s->n_index_head * s->d_index, &s->index, err));
    }
    return create_tensors(m, err);
}

/* ---- one step ---------------------------------------------------------------------------------
 */

/* h += delta;  n = rms(h) next */
static void residual(struct exec *ex, struct deepseek *s, const struct weight *next)
{
    op_add_rmsnorm(ex, s->h[1], s->n, s->h[0], s->delta, next, 0, (float)s->eps);
    struct tensor *t = s->h[0];
    s->h[0] = s->h[1];
    s->h[1] = t;
}

/* Which tokens the layers from here to the next indexer attend to. */
static void choose(struct exec *ex, struct deepseek *s, const struct deepseek_layer *w)
{
    struct linear in[] = {{s->index_k, 0, w->index_k, NULL}, {s->index_w, 0, w->index_w, NULL}};
    op_linear(ex, in, 2, s->n);
    op_linear(ex, &(struct linear){s->index_q, 0, w->index_q, NULL}, 1, s->q_lat_n);
    struct index_op a = {.layer = w->index_kv,
                         .n_head = s->n_index_head,
                         .d_head = s->d_index,
                         .scale = 1 / sqrtf((float)s->n_index_head * (float)s->d_index),
                         .norm_eps = INDEX_EPS,
                         .rope = s->index_turn,
                         .norm = w->index_norm,
                         .norm_bias = w->index_norm_bias,
                         .q = s->index_q,
                         .k = s->index_k,
                         .w = s->index_w};
    op_index(ex, s->index, &a);
}

/* Queries, and keys and values into memory. */
static void project(struct exec *ex, struct deepseek *s, int32_t i)
{
    const struct deepseek_layer *w = &s->layers[i];
    struct linear kv = {s->kv_lat, 0, w->kv_a, w->kv_a_bias};
    if (w->q_a) {
        op_linear(ex, (struct linear[]){kv, {s->q_lat, 0, w->q_a, w->q_a_bias}}, 2, s->n);
        op_rmsnorm(ex, s->q_lat_n, s->q_lat, w->q_a_norm, 0, LATENT_EPS);
        op_linear(ex, &(struct linear){s->q, 0, w->q_b, NULL}, 1, s->q_lat_n);
    } else {
        op_linear(ex, (struct linear[]){kv, {s->q, 0, w->q_b, NULL}}, 2, s->n);
    }
    op_linear_heads(ex, s->q_emb, w->embed_q, s->q);
    struct latent_op a = {.layer = i,
                          .n_head = s->n_head,
                          .d_latent = s->kv_rank,
                          .d_nope = s->d_nope,
                          .d_rope = s->d_rope,
                          .rope = s->turn,
                          .norm = w->kv_a_norm,
                          .norm_eps = LATENT_EPS};
    op_latent_append(ex, s->q_rot, s->q_emb, s->q, s->kv_lat, &a);
    if (w->sparse)
        choose(ex, s, w);
}

static void attend(struct exec *ex, struct deepseek *s, int32_t i)
{
    struct attn_op a = {.layer = i,
                        .n_head = s->n_head,
                        .n_kv = 1,
                        .dk = s->kv_rank + s->d_rope,
                        .dv = s->kv_rank,
                        .scale = s->attn_scale,
                        .index = s->index};
    op_attn(ex, s->o_lat, s->q_rot, &a);
}

static void dense(struct exec *ex, struct tensor *dst, const struct mlp *w, struct tensor *gu,
                  struct tensor *act, const struct tensor *x)
{
    struct linear in[] = {{gu, 0, w->gate, NULL}, {gu, weight_rows(w->gate), w->up, NULL}};
    op_linear(ex, in, 2, x);
    op_glu(ex, act, gu, GLU_SILU);
    op_linear(ex, &(struct linear){dst, 0, w->down, NULL}, 1, act);
}

static void feed_forward(struct exec *ex, struct deepseek *s, const struct deepseek_layer *w)
{
    if (!w->routed) {
        dense(ex, s->delta, &w->mlp, s->gu, s->act, s->n);
        return;
    }
    struct route_groups g = {w->router_bias, s->n_group, s->n_keep, s->normed,
                             (float)s->route_scale};
    struct experts e = {.gate = w->mlp.gate, .up = w->mlp.up, .down = w->mlp.down, .act = GLU_SILU};
    op_linear(ex, &(struct linear){s->route, 0, w->router, NULL}, 1, s->n);
    op_route_groups(ex, s->moe, s->route, &g);
    op_experts(ex, s->n_ff_shared ? s->routed : s->delta, s->n, s->moe, &e);
    if (!s->n_ff_shared)
        return;
    dense(ex, s->shared, &w->shared, s->gu_shared, s->act_shared, s->n);
    op_add(ex, s->delta, s->routed, s->shared);
}

/* x = fc( rms(embed(next token)) norm_e | rms(state) norm_h ) */
static void draft_input(struct model *m)
{
    struct deepseek *s = m->state;
    struct exec *ex = m->ex;
    op_embed(ex, s->n, s->embed, 1);
    op_rmsnorm(ex, s->e, s->n, s->norm_e, 0, (float)s->eps);
    op_rmsnorm(ex, s->n, m->hidden_in, s->norm_h, 0, (float)s->eps);
    op_join(ex, s->pair, s->e, s->n);
    op_linear(ex, &(struct linear){s->h[0], 0, s->fc, NULL}, 1, s->pair);
}

/* Attention's output behind unembed_out, and the residual: of all rows, or narrowed to those whose
 * logits are wanted. */
static void attend_rows(struct model *m, int32_t i, bool narrow)
{
    struct deepseek *s = m->state;
    struct exec *ex = m->ex;
    const struct tensor *o = s->o_lat;
    attend(ex, s, i);
    if (narrow) {
        op_take(ex, s->q_emb, s->o_lat);
        op_take(ex, s->h[1], s->h[0]);
        struct tensor *t = s->h[0];
        s->h[0] = s->h[1];
        s->h[1] = t;
        o = s->q_emb;
    }
    op_linear_heads(ex, s->att, s->layers[i].unembed_out, o);
}

static const struct tensor *deepseek_forward(struct model *m)
{
    struct deepseek *s = m->state;
    struct exec *ex = m->ex;
    if (m->target)
        draft_input(m);
    else
        op_embed(ex, s->h[0], s->embed, 1);
    taps_take(m, -1, s->h[0]);
    op_rmsnorm(ex, s->n, s->h[0], s->layers[0].norm1, 0, (float)s->eps);
    for (int32_t i = 0; i < m->n_layer; i++) {
        const struct deepseek_layer *w = &s->layers[i];
        bool last = i == m->n_layer - 1, narrow = last && !m->keep_hidden;
        project(ex, s, i);
        if (narrow && exec_wanted(ex) == 0)
            return NULL;
        attend_rows(m, i, narrow);
        op_linear(ex, &(struct linear){s->delta, 0, w->o, w->o_bias}, 1, s->att);
        residual(ex, s, w->norm2);
        feed_forward(ex, s, w);
        residual(ex, s, last ? s->norm : s->layers[i + 1].norm1);
        taps_take(m, i, s->h[0]);
    }
    return forward_end(m, &(struct forward_end){.h = s->h[0],
                                                .n = s->n,
                                                .every_row = m->keep_hidden,
                                                .wanted = s->delta,
                                                .logits = s->logits,
                                                .head = s->head});
}

static void deepseek_free(struct model *m)
{
    struct deepseek *s = m->state;
    if (!s)
        return;
    free(s->layers);
    free(s->kv);
    free(s);
}

const struct family family_deepseek_v3 = {
    .name = "deepseek_v3",
    .model_types = (const char *const[]){"deepseek_v3", "kimi_k2", "joyai_llm_flash", NULL},
    .config = v3_config,
    .load = deepseek_load,
    .forward = deepseek_forward,
    .free = deepseek_free,
    .has_draft = has_draft,
};

const struct family family_deepseek_v32 = {
    .name = "deepseek_v32",
    .model_types = (const char *const[]){"deepseek_v32", NULL},
    .config = v32_config,
    .load = deepseek_load,
    .forward = deepseek_forward,
    .free = deepseek_free,
    .has_draft = has_draft,
};

const struct family family_glm_moe_dsa = {
    .name = "glm_moe_dsa",
    .model_types = (const char *const[]){"glm_moe_dsa", NULL},
    .config = glm_config,
    .load = deepseek_load,
    .forward = deepseek_forward,
    .free = deepseek_free,
    .has_draft = has_draft,
};
