/*
 * decoder.h - the transformer decoder that most families share: pre-norm blocks of grouped-query
 * attention and a gated feed-forward part, with switches for what differs. A family's file reads
 * its config.json into the switches and states its maths; loading and the step are decoder.c's.
 *
 *     h += [post_attn] o( attn( rope(qnorm(q(n))), rope(knorm(k(n))), v(n) ) )   n = rms(h) w1
 *     h += [post_mlp]  down( act(gate(n), up(n)) )                               n = rms(h) w2
 *          or the weighted sum of the chosen experts' such parts
 *
 * A family with other parts in some layers puts a struct decoder first in its own state and its
 * functions into struct decoder_parts.
 */
#ifndef MODEL_DECODER_H
#define MODEL_DECODER_H

#include "model/loader.h"
#include "model/model.h"
#include "model/rope_config.h"

struct decoder_layer {
    bool local;     /* rotates by rope[1] */
    bool routed;    /* experts instead of one feed-forward part */
    int32_t window; /* 0 = sees everything before it */
    int32_t n_ff;   /* of this layer's feed-forward part; 0 = the decoder's */
    struct weight *norm1, *norm2, *post_attn, *post_mlp;
    struct weight *q, *k, *v, *o, *q_bias, *k_bias, *v_bias, *o_bias; /* fused: q is all three */
    struct weight *q_norm, *k_norm, *sinks;
    struct weight *gate, *up, *down, *gate_bias, *up_bias, *down_bias; /* fused: gate is both */
    struct weight *router, *router_bias;
};

/* Routed experts; n 0 = none. */
struct decoder_experts {
    int32_t n, top_k, n_ff;
    const char *router, *experts; /* names below a layer: "mlp.gate", "mlp.switch_mlp" */
    bool bias;                    /* on router and experts */
    enum route_weights weights;
};

/* What a family does differently inside a layer; NULL = as above. */
struct decoder_parts {
    /* Fills h[0] of every row. */
    void (*embed)(struct model *m);
    /* Loads what mixes tokens: attention or what stands in its place, o included. */
    enum qn_status (*load_mix)(struct model *m, struct loader *l, int32_t layer,
                               struct qn_err *err);
    /* From n to the input of o: every row, in the last layer only those whose logits are wanted. */
    const struct tensor *(*mix)(struct model *m, int32_t layer);
    /* Behind the routed experts, whose sum is in delta. */
    enum qn_status (*load_shared)(struct model *m, struct loader *l, int32_t layer,
                                  struct qn_err *err);
    void (*add_shared)(struct model *m, int32_t layer);
};

struct decoder {
    const char *name;   /* for messages */
    const char *prefix; /* of tensor names; "" or "language_model." */
    int32_t n_head, n_kv, d_head, n_ff;
    double eps;
    float norm_add, embed_scale, attn_scale;
    enum glu act;
    bool tied;
    bool head_if_present; /* tied exactly when lm_head is absent */
    bool qkv_bias, o_bias, mlp_bias;
    bool fused;      /* qkv_proj and gate_up_proj */
    bool qk_norm;    /* q_norm and k_norm before rotation */
    bool post_norms; /* gemma: norms behind attention and feed-forward too */
    bool sinks;
    enum attn_sees sees;
    struct decoder_experts experts;
    struct decoder_parts parts;
    struct rope_params rope[2]; /* of all layers; of local ones (dims 0 = no such) */

    struct decoder_layer *layers;
    struct kv_layer *kv;
    struct weight *embed, *norm, *head;
    struct rope *turn[2];
    struct moe *moe;
    struct tensor *h[2], *n, *qkv, *q, *att, *delta, *post, *gu, *act_out, *route, *logits;
};

/* ---- decoder_config.c: reading config.json ----------------------------------------------------
 */

/* What a family assumes when its config.json does not say. */
struct decoder_defaults {
    const char *family;
    double eps, theta;
    bool tied;
    bool has_head_dim;      /* the key head_dim counts; otherwise hidden_size / heads */
    int32_t n_head, n_kv;   /* 0 = required; 0 = n_head */
    int32_t d_head;         /* 0 = hidden_size / heads */
    int32_t n_vocab, n_ctx; /* 0 = required; 0 = 4096 */
    int32_t n_ff;           /* 0 = required */
    size_t state_bytes;     /* of the family's state, a struct decoder first; 0 = only that */
};
/* Creates m->state: sizes, eps, ties, rotation of whole heads (rope_scaling or rope_parameters),
 * attention scale d^-0.5, SiLU. Switches start as false. */
enum qn_status decoder_config(struct model *m, const struct json *cfg,
                              const struct decoder_defaults *d, struct qn_err *err);
/* Windows by layer_types; layers without it see everything. */
enum qn_status decoder_windows(struct model *m, const struct json *cfg, struct qn_err *err);
/* Fails unless the activation called KEY is absent or one of names (NULL-terminated). */
enum qn_status decoder_activation(const struct decoder *s, const struct json *cfg, const char *key,
                                  const char *const *names, struct qn_err *err);
/* Fails when the boolean or number KEY is there and neither null, false nor 0: the family's maths
 * here has no such thing. */
enum qn_status decoder_refuse(const struct decoder *s, const struct json *cfg, const char *key,
                              struct qn_err *err);

/* ---- decoder.c: struct family's functions -----------------------------------------------------
 */

enum qn_status decoder_load(struct model *m, struct loader *l, struct qn_err *err);
const struct tensor *decoder_forward(struct model *m);
void decoder_free(struct model *m);

/* From this layer on only the rows whose logits are wanted go on. */
bool decoder_narrows(const struct model *m, int32_t layer);
/* For parts of a family: attention over q and n_kv heads as the switches say. */
struct attn_op decoder_attn(const struct decoder *s, int32_t layer);

#endif
