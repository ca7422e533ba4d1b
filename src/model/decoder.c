/*
 * decoder.c - loading and one step of the decoder of decoder.h.
 */
#include "model/decoder.h"

#include <math.h>
#include <stdlib.h>

/* ---- weights ----------------------------------------------------------------------------------
 */

/* Tensor names: the layer's folder of names, and what is in it. */
#define LAYER "%smodel.layers.%d."

static enum qn_status load_norms(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct decoder *s = m->state;
    struct decoder_layer *w = &s->layers[i];
    const char *p = s->prefix;
    int32_t h = m->n_embd, d = s->d_head;
    QN_TRY(load_vec(l, &w->norm1, h, err, LAYER "input_layernorm.weight", p, i));
    struct weight **second = s->post_norms ? &w->post_attn : &w->norm2;
    QN_TRY(load_vec(l, second, h, err, LAYER "post_attention_layernorm.weight", p, i));
    if (s->post_norms) {
        QN_TRY(load_vec(l, &w->norm2, h, err, LAYER "pre_feedforward_layernorm.weight", p, i));
        QN_TRY(load_vec(l, &w->post_mlp, h, err, LAYER "post_feedforward_layernorm.weight", p, i));
    }
    if (s->qk_norm) {
        QN_TRY(load_vec(l, &w->q_norm, d, err, LAYER "self_attn.q_norm.weight", p, i));
        QN_TRY(load_vec(l, &w->k_norm, d, err, LAYER "self_attn.k_norm.weight", p, i));
    }
    if (s->sinks)
        QN_TRY(load_vec(l, &w->sinks, s->n_head, err, LAYER "self_attn.sinks", p, i));
    return QN_OK;
}

/* A matrix and, when there is one, its bias. */
struct place {
    struct weight **w, **bias; /* bias NULL = none */
    const char *name;
    int32_t n, k;
};

static enum qn_status load_places(const struct decoder *s, struct loader *l, int32_t i,
                                  const struct place *v, struct qn_err *err)
{
    for (; v->name; v++) {
        QN_TRY(load_matrix(l, v->w, v->n, v->k, err, LAYER "%s", s->prefix, i, v->name));
        if (v->bias)
            QN_TRY(load_vec(l, v->bias, v->n, err, LAYER "%s.bias", s->prefix, i, v->name));
    }
    return QN_OK;
}

static enum qn_status load_attn(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct decoder *s = m->state;
    struct decoder_layer *w = &s->layers[i];
    int32_t q = s->n_head * s->d_head, kv = s->n_kv * s->d_head, h = m->n_embd;
    bool b = s->qkv_bias;
    struct place o = {&w->o, s->o_bias ? &w->o_bias : NULL, "self_attn.o_proj", h, q};
    if (s->fused)
        return load_places(
            s, l, i, (struct place[]){{&w->q, NULL, "self_attn.qkv_proj", q + 2 * kv, h}, o, {0}},
            err);
    struct place v[] = {{&w->q, b ? &w->q_bias : NULL, "self_attn.q_proj", q, h},
                        {&w->k, b ? &w->k_bias : NULL, "self_attn.k_proj", kv, h},
                        {&w->v, b ? &w->v_bias : NULL, "self_attn.v_proj", kv, h},
                        o,
                        {0}};
    return load_places(s, l, i, v, err);
}

static enum qn_status load_mlp(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct decoder *s = m->state;
    struct decoder_layer *w = &s->layers[i];
    int32_t f = w->n_ff ? w->n_ff : s->n_ff, h = m->n_embd;
    bool b = s->mlp_bias;
    struct place down = {&w->down, b ? &w->down_bias : NULL, "mlp.down_proj", h, f};
    if (s->fused)
        return load_places(
            s, l, i, (struct place[]){{&w->gate, NULL, "mlp.gate_up_proj", 2 * f, h}, down, {0}},
            err);
    struct place v[] = {{&w->gate, b ? &w->gate_bias : NULL, "mlp.gate_proj", f, h},
                        {&w->up, b ? &w->up_bias : NULL, "mlp.up_proj", f, h},
                        down,
                        {0}};
    return load_places(s, l, i, v, err);
}

static enum qn_status load_experts(struct model *m, struct loader *l, int32_t i, struct qn_err *err)
{
    struct decoder *s = m->state;
    struct decoder_layer *w = &s->layers[i];
    const struct decoder_experts *e = &s->experts;
    const char *p = s->prefix;
    QN_TRY(load_matrix(l, &w->router, e->n, m->n_embd, err, LAYER "%s", p, i, e->router));
    if (e->bias)
        QN_TRY(load_vec(l, &w->router_bias, e->n, err, LAYER "%s.bias", p, i, e->router));
    struct stack_shape in = {e->n, e->top_k, e->n_ff, m->n_embd};
    struct stack_shape out = {e->n, e->top_k, m->n_embd, e->n_ff};
    const struct {
        struct weight **w, **bias;
        const char *name;
        const struct stack_shape *shape;
    } v[] = {{&w->gate, &w->gate_bias, "gate_proj", &in},
             {&w->up, &w->up_bias, "up_proj", &in},
             {&w->down, &w->down_bias, "down_proj", &out}};
    for (size_t j = 0; j < sizeof v / sizeof v[0]; j++) {
        QN_TRY(load_stack(l, v[j].w, v[j].shape, err, LAYER "%s.%s", p, i, e->experts, v[j].name));
        if (e->bias)
            QN_TRY(load_stack_vec(l, v[j].bias, v[j].shape, err, LAYER "%s.%s.bias", p, i,
                                  e->experts, v[j].name));
    }
    return QN_OK;
}

static enum qn_status create_moe(struct model *m, struct qn_err *err)
{
    struct decoder *s = m->state;
    struct moe_shape shape = {s->experts.n, s->experts.top_k, m->n_embd, s->experts.n_ff};
    QN_TRY(tensor_create(m->ex, s->experts.n, &s->route, err));
    return moe_create(m->ex, &shape, &s->moe, err);
}

static enum qn_status create_tensors(struct model *m, struct qn_err *err)
{
    struct decoder *s = m->state;
    int32_t q = s->n_head * s->d_head, kv = s->n_kv * s->d_head;
    struct {
        struct tensor **t;
        int32_t cols;
    } const list[] = {
        {&s->h[0], m->n_embd},
        {&s->h[1], m->n_embd},
        {&s->n, m->n_embd},
        {&s->qkv, q + 2 * kv},
        {&s->q, q},
        {&s->att, q},
        {&s->delta, m->n_embd},
        {s->post_norms ? &s->post : NULL, m->n_embd},
        {&s->gu, 2 * s->n_ff},
        {&s->act_out, s->n_ff},
        {m->no_logits ? NULL : &s->logits, m->n_vocab},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].t)
            QN_TRY(tensor_create(m->ex, list[i].cols, list[i].t, err));
    return QN_OK;
}

/* A draft head has its target's table and head. */
static enum qn_status share_ends(struct model *m, struct qn_err *err)
{
    struct decoder *s = m->state;
    const struct decoder *of = m->target->state;
    s->embed = of->embed;
    s->head = of->head;
    return weight_share(m->ex, s->head, err);
}

static enum qn_status load_head(struct model *m, struct loader *l, struct qn_err *err)
{
    struct decoder *s = m->state;
    const char *p = s->prefix;
    if (s->head_if_present)
        s->tied = !loader_has(l, "%slm_head.weight", p);
    s->head = s->embed;
    if (!s->tied)
        return load_matrix(l, &s->head, m->n_vocab, m->n_embd, err, "%slm_head", p);
    loader_skip(l, "*lm_head.*");
    return QN_OK;
}

enum qn_status decoder_load(struct model *m, struct loader *l, struct qn_err *err)
{
    struct decoder *s = m->state;
    const char *p = s->prefix;
    if (m->target)
        QN_TRY(share_ends(m, err));
    else
        QN_TRY(load_matrix(l, &s->embed, m->n_vocab, m->n_embd, err, "%smodel.embed_tokens", p));
    for (int32_t i = 0; i < m->n_layer; i++) {
        QN_TRY(load_norms(m, l, i, err));
        QN_TRY((s->parts.load_mix ? s->parts.load_mix : load_attn)(m, l, i, err));
        QN_TRY((s->layers[i].routed ? load_experts : load_mlp)(m, l, i, err));
        if (s->parts.load_shared)
            QN_TRY(s->parts.load_shared(m, l, i, err));
    }
    QN_TRY(load_vec(l, &s->norm, m->n_embd, err, "%smodel.norm.weight", p));
    if (!m->target)
        QN_TRY(load_head(m, l, err));
    loader_skip(l, "*rotary_emb.inv_freq");
    for (int i = 0; i < 2; i++)
        if (s->rope[i].dims)
            QN_TRY(rope_from_config(m->ex, &s->rope[i], &s->turn[i], err));
    if (s->experts.n)
        QN_TRY(create_moe(m, err));
    return create_tensors(m, err);
}

/* ---- one step ---------------------------------------------------------------------------------
 */

static void swap(struct decoder *s)
{
    struct tensor *t = s->h[0];
    s->h[0] = s->h[1];
    s->h[1] = t;
}

/* h += [post](delta);  n = rms(h) next */
static void residual(struct exec *ex, struct decoder *s, const struct weight *post,
                     const struct weight *next)
{
    const struct tensor *d = s->delta;
    if (post) {
        op_rmsnorm(ex, s->post, d, post, s->norm_add, (float)s->eps);
        d = s->post;
    }
    op_add_rmsnorm(ex, s->h[1], s->n, s->h[0], d, next, s->norm_add, (float)s->eps);
    swap(s);
}

struct attn_op decoder_attn(const struct decoder *s, int32_t i)
{
    const struct decoder_layer *w = &s->layers[i];
    return (struct attn_op){.layer = i,
                            .n_head = s->n_head,
                            .n_kv = s->n_kv,
                            .dk = s->d_head,
                            .dv = s->d_head,
                            .window = w->window,
                            .scale = s->attn_scale,
                            .rope = s->turn[w->local],
                            .sinks = w->sinks,
                            .q_norm = w->q_norm,
                            .k_norm = w->k_norm,
                            .norm_add = s->norm_add,
                            .norm_eps = (float)s->eps,
                            .sees = s->sees};
}

/* q, k, v of n; k and v into memory. */
static struct attn_op project(struct exec *ex, struct decoder *s, int32_t i)
{
    const struct decoder_layer *w = &s->layers[i];
    int32_t q = s->n_head * s->d_head, kv = s->n_kv * s->d_head;
    struct linear parts[] = {{s->qkv, 0, w->q, w->q_bias},
                             {s->qkv, q, w->k, w->k_bias},
                             {s->qkv, q + kv, w->v, w->v_bias}};
    op_linear(ex, parts, w->k ? 3 : 1, s->n);
    struct attn_op a = decoder_attn(s, i);
    op_rope_append(ex, s->q, s->qkv, &a);
    return a;
}

static void mlp(struct exec *ex, struct decoder *s, const struct decoder_layer *w)
{
    if (w->routed) {
        op_linear(ex, &(struct linear){s->route, 0, w->router, w->router_bias}, 1, s->n);
        op_route(ex, s->moe, s->route, s->experts.weights);
        op_experts(ex, s->delta, s->n, s->moe,
                   &(struct experts){w->gate, w->up, w->down, w->gate_bias, w->up_bias,
                                     w->down_bias, s->act});
        return;
    }
    struct linear parts[] = {{s->gu, 0, w->gate, w->gate_bias},
                             {s->gu, s->n_ff, w->up, w->up_bias}};
    op_linear(ex, parts, w->up ? 2 : 1, s->n);
    op_glu(ex, s->act_out, s->gu, s->act);
    op_linear(ex, &(struct linear){s->delta, 0, w->down, w->down_bias}, 1, s->act_out);
}

bool decoder_narrows(const struct model *m, int32_t layer)
{
    return layer == m->n_layer - 1 && !m->keep_hidden;
}

/* decoder_parts' mix for plain attention. */
static const struct tensor *attend(struct model *m, int32_t i)
{
    struct decoder *s = m->state;
    struct attn_op a = project(m->ex, s, i);
    if (decoder_narrows(m, i) && exec_wanted(m->ex) == 0)
        return NULL;
    op_attn(m->ex, s->att, s->q, &a);
    if (!decoder_narrows(m, i))
        return s->att;
    op_take(m->ex, s->q, s->att);
    return s->q;
}

/* The residual stream alternates between h[0] and h[1]: operations never work in place. */
const struct tensor *decoder_forward(struct model *m)
{
    struct decoder *s = m->state;
    struct exec *ex = m->ex;
    if (s->parts.embed)
        s->parts.embed(m);
    else
        op_embed(ex, s->h[0], s->embed, s->embed_scale);
    taps_take(m, -1, s->h[0]);
    op_rmsnorm(ex, s->n, s->h[0], s->layers[0].norm1, s->norm_add, (float)s->eps);
    for (int32_t i = 0; i < m->n_layer; i++) {
        const struct decoder_layer *w = &s->layers[i];
        bool last = i == m->n_layer - 1;
        const struct tensor *att = (s->parts.mix ? s->parts.mix : attend)(m, i);
        bool narrow = decoder_narrows(m, i);
        if (narrow && exec_wanted(ex) == 0)
            return NULL;
        if (narrow) { /* from here on only the rows whose logits are wanted */
            op_take(ex, s->h[1], s->h[0]);
            swap(s);
        }
        op_linear(ex, &(struct linear){s->delta, 0, w->o, w->o_bias}, 1, att);
        residual(ex, s, w->post_attn, w->norm2);
        mlp(ex, s, w);
        if (s->parts.add_shared)
            s->parts.add_shared(m, i);
        residual(ex, s, w->post_mlp, last ? s->norm : s->layers[i + 1].norm1);
        taps_take(m, i, s->h[0]);
    }
    return forward_end(m, &(struct forward_end){.h = s->h[0],
                                                .n = s->n,
                                                .every_row = m->keep_hidden,
                                                .wanted = s->delta,
                                                .logits = s->logits,
                                                .head = s->head});
}

void decoder_free(struct model *m)
{
    struct decoder *s = m->state;
    if (!s)
        return;
    free(s->layers);
    free(s->kv);
    free(s);
}
