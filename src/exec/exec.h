/*
 * exec.h - where a model's arithmetic runs. Model files see opaque tensors, weights and KV memory
 * and a short list of operations; a backend (CPU now, a GPU later) implements the same table.
 *
 * A step: exec_begin() states the rows (which tokens of which sequences at which positions), then
 * the model calls operations in order. Activations are float32 [rows, cols]; `rows` follows the
 * data (op_take narrows it). No operation works in place: the destination is never one of its
 * sources.
 *
 * Errors are possible while loading and while growing KV memory; operations on loaded data cannot
 * fail. One thread at a time uses an exec.
 */
#ifndef EXEC_EXEC_H
#define EXEC_EXEC_H

#include "base/err.h"
#include "kernels/kernels.h"

struct exec;
struct tensor; /* activations: [rows <= max_rows, cols] float32 on the backend */
struct weight; /* an immutable matrix or vector of the model */
struct rope;   /* rotary embedding: frequencies and form */
struct kv_seq; /* KV memory of one sequence */
struct index;  /* which tokens a row attends to, chosen by scores */
struct moe;    /* choices of routed experts and their activations */

struct exec_params {
    int32_t n_thread;
    enum cpu_isa isa;
    bool reference;          /* double sums, float32 KV: the truth, slowly */
    int32_t max_rows;        /* rows of one step */
    int32_t n_ctx;           /* tokens of one sequence */
    int64_t kv_budget_bytes; /* most bytes of KV memory in use; 0 = no limit */
};
enum qn_status exec_create(const struct exec_params *p, struct exec **out, struct qn_err *err);
/* An exec for a model that runs between the steps of another one's: threads and kernels are those
 * of `of`, weights, tensors, KV memory and rows its own. Freed before `of`. */
enum qn_status exec_create_beside(struct exec *of, int32_t n_ctx, struct exec **out,
                                  struct qn_err *err);
void exec_free(struct exec *ex); /* frees tensors, weights, ropes too; sequences before */
/* Bytes of activations and work memory that the largest step touches. Constant once loaded. */
int64_t exec_transient_bytes(const struct exec *ex);

/* ---- weights -------------------------------------------------------------------------------- */

enum { WEIGHT_DIM_MAX = 1 << 16 }; /* inputs of a matrix */

enum weight_format {
    WEIGHT_F32,
    WEIGHT_F16,
    WEIGHT_BF16,
    WEIGHT_AFFINE, /* bits 2,3,4,5,6,8; group 32,64,128 */
    WEIGHT_MXFP4,  /* group 32, E8M0 scales */
    WEIGHT_MXFP8,
    WEIGHT_NVFP4, /* group 16, E4M3 scales */
};
/* Bytes as they lie in the checkpoint (mapped, not kept after loading), row-major. */
struct weight_src {
    const char *name; /* for messages */
    enum weight_format format;
    int32_t n, k; /* outputs, inputs; a vector is n = 1 */
    int32_t bits, group;
    enum scale_type scale_type; /* of scales and biases, WEIGHT_AFFINE */
    const uint8_t *data, *scales, *biases;
    int32_t n_stack; /* so many matrices of n x k behind each other (experts); 0 = one */
    int32_t active;  /* of them read for one row */
    const uint8_t *global_scales; /* [n_stack] float32 for WEIGHT_NVFP4 stacks, or NULL */
    float global_scale; /* WEIGHT_NVFP4: w = code*scale*global_scale/2688; 0 = absent (factor 1) */
    bool transpose;     /* weight_load_vec of [n, k]: keep it as [k, n] */
};
/* Address space for all matrices to come, in the order they will be read. Call once, first. */
enum qn_status exec_reserve(struct exec *ex, size_t bytes, struct qn_err *err);
/* A thread that fell behind may still read the source afterwards: exec_quiesce() before it is
 * unmapped or freed. */
enum qn_status weight_load(struct exec *ex, const struct weight_src *s, struct weight **out,
                           struct qn_err *err);
/* Waits until no thread is at work on behalf of ex; not during a step. */
void exec_quiesce(struct exec *ex);
/* A vector as float32 (norms, biases, sinks). */
enum qn_status weight_load_vec(struct exec *ex, const struct weight_src *s, struct weight **out,
                               struct qn_err *err);
/* Makes ready to multiply by a matrix that another exec loaded and keeps. */
enum qn_status weight_share(struct exec *ex, const struct weight *w, struct qn_err *err);
size_t weight_bytes(const struct weight *w);
int32_t weight_rows(const struct weight *w);

/* ---- tensors -------------------------------------------------------------------------------- */

enum qn_status tensor_create(struct exec *ex, int32_t cols, struct tensor **out,
                             struct qn_err *err);
int32_t tensor_rows(const struct tensor *t);
/* Copies rows [row, row+n) to host memory. */
void tensor_read(struct exec *ex, const struct tensor *t, int32_t row, int32_t n, float *dst);

/* Rows of a sequence that outlive their step: those of its last tokens, up to `cap`, on the
 * backend. A row is named by its token's position. */
struct kept;
enum qn_status kept_create(struct exec *ex, int32_t cols, int32_t cap, struct kept **out,
                           struct qn_err *err);
void kept_free(struct kept *k); /* NULL is fine */
/* Rows [row, row+n) of t are those of positions [pos, pos+n). Unless they follow what is there
 * everything else is forgotten; what does not fit is forgotten from the front. */
void kept_add(struct kept *k, const struct tensor *t, int32_t row, int32_t n, int32_t pos);
/* Forgets positions from pos on; those before pos. */
void kept_truncate(struct kept *k, int32_t pos);
void kept_forget(struct kept *k, int32_t pos);
/* Positions [first, end) are there; when empty both are where it was cut. */
int32_t kept_first(const struct kept *k);
int32_t kept_end(const struct kept *k);
/* Positions [pos, pos+n), all there, into rows [row, row+n) of t, which then has row+n rows. */
void kept_get(const struct kept *k, int32_t pos, int32_t n, struct tensor *t, int32_t row);
/* The row of one position, which is there: out, or in as kept_add does it. [cols] */
void kept_read(const struct kept *k, int32_t pos, float *row);
void kept_put(struct kept *k, int32_t pos, const float *row);
/* What `from` holds, in a k of the same size. */
void kept_copy(struct kept *k, const struct kept *from);

/* ---- rotary embedding ----------------------------------------------------------------------- */

/* angle of pair i at position p: p * inv_freq[i] (copied; 0 = not rotated). cos and sin are
 * multiplied by mscale. The first `dims` of a head rotate. */
enum qn_status rope_create(struct exec *ex, const double *inv_freq, int32_t dims, double mscale,
                           bool interleaved, struct rope **out, struct qn_err *err);

/* ---- KV memory ------------------------------------------------------------------------------ */

/* A gated delta net: what a sequence carries from token to token instead of keys and values. */
enum { DELTA_TAPS_MAX = 16, DELTA_HEAD_MAX = 256 };
struct delta_shape {
    int32_t n_k, n_v; /* key (and query) heads, value heads: n_v a multiple of n_k */
    int32_t dk, dv;   /* multiples of 16 */
    int32_t taps;     /* tokens the convolution sees, the row's own included */
};
/* Channels of the convolution: queries, keys, values. */
static inline int32_t delta_channels(const struct delta_shape *d)
{
    return 2 * d->n_k * d->dk + d->n_v * d->dv;
}

/* Floats of its state: inputs the convolution still sees, and a matrix for each value head. */
static inline size_t delta_state_floats(const struct delta_shape *d)
{
    return (size_t)(d->taps - 1) * (size_t)delta_channels(d) +
           (size_t)d->n_v * (size_t)d->dk * (size_t)d->dv;
}

struct kv_layer {
    int32_t n_head, dk, dv;   /* n_head 0: no keys and values; dv 0: keys only */
    bool latent;              /* the one head's value is the first dv of its key: kept once */
    int32_t window;           /* tokens a row sees, itself included; older ones go. 0 = all */
    struct delta_shape delta; /* n_v 0: no recurrent state */
    struct kv_form form;      /* how keys and values are coded; k_bits 0: not, bf16 or float32 */
};
/* States the model's layers, once, before the first sequence. */
enum qn_status kv_setup(struct exec *ex, const struct kv_layer *layers, int32_t n_layer,
                        struct qn_err *err);
/* Instead: ex, an exec beside `of`, reads the memory of its sequences (exec_begin_past) and holds
 * none itself. `of` is set up. */
enum qn_status kv_borrow(struct exec *ex, const struct exec *of, struct qn_err *err);
size_t kv_token_bytes(const struct exec *ex);
/* Bytes of recurrent state a sequence carries whatever its length; a sequence holds it twice. */
size_t kv_state_bytes(const struct exec *ex);
enum qn_status kv_seq_create(struct exec *ex, struct kv_seq **out, struct qn_err *err);
void kv_seq_free(struct exec *ex, struct kv_seq *s); /* NULL is fine */
int32_t kv_seq_len(const struct kv_seq *s);
/* So many of a sequence's last tokens can always be taken back from layers with a window. */
enum { KV_ROLLBACK = 16 };
/* n = 0 (a fresh start) and n = len are always possible. Otherwise recurrent state goes back only
 * into the last step, when its span had 2..KV_ROLLBACK tokens and no later step had such spans; and
 * a window must still hold what token n sees of it. */
bool kv_seq_can_truncate(const struct exec *ex, const struct kv_seq *s, int32_t n);
void kv_seq_truncate(struct exec *ex, struct kv_seq *s, int32_t n);

/* ---- a step --------------------------------------------------------------------------------- */

struct exec_span {
    struct kv_seq *kv;
    const int32_t *ids; /* [n] */
    int32_t n;
    int32_t n_logits; /* rows wanted at the end of the span */
};
/* Grows KV memory for the new tokens and fixes the rows; on failure nothing has changed. The new
 * tokens count once exec_commit has been called. */
enum qn_status exec_begin(struct exec *ex, const struct exec_span *spans, int32_t n,
                          struct qn_err *err);
void exec_commit(struct exec *ex);
/* The new tokens do not count: what the step computed stays readable until the next one. */
void exec_cancel(struct exec *ex);
/* Instead of exec_begin: rows of no sequence, for operations that need none; all are wanted. */
void exec_begin_rows(struct exec *ex, const int32_t *ids, int32_t n);
/* Instead, with borrowed memory: a row ids[i] behind the last token of each of n sequences, that
 * sees what is there (SEES_PAST, ATTN_KV_KEPT), at least one token; nothing is appended. All rows
 * are wanted. */
void exec_begin_past(struct exec *ex, struct kv_seq *const *seqs, const int32_t *ids, int32_t n);
int32_t exec_wanted(const struct exec *ex); /* rows whose logits are wanted */
/* From here to the step's end its rows are only those whose logits are wanted: for layers that
 * append nothing. What was computed for all rows goes through op_take first. */
void exec_narrow(struct exec *ex);

/* ---- operations ----------------------------------------------------------------------------- */

/* dst = rows of the table named by the step's ids, times scale. */
void op_embed(struct exec *ex, struct tensor *dst, const struct weight *table, float scale);
/* y = rms(x, eps) * (w + add) */
void op_rmsnorm(struct exec *ex, struct tensor *y, const struct tensor *x, const struct weight *w,
                float add, float eps);
/* s = a + b;  y = rms(s, eps) * (w + add) */
void op_add_rmsnorm(struct exec *ex, struct tensor *s, struct tensor *y, const struct tensor *a,
                    const struct tensor *b, const struct weight *w, float add, float eps);

/* One product of a shared input: dst[:, col .. col+n) = x W^T (+ bias). */
struct linear {
    struct tensor *dst;
    int32_t col;
    const struct weight *w, *bias; /* bias may be NULL */
};
enum { LINEAR_MAX = 4 };
void op_linear(struct exec *ex, const struct linear *parts, int32_t n, const struct tensor *x);

/* One product per head: head i's input is the first w.k values of slot i of x, its output slot i of
 * dst. Slots are x.cols / H and w.n wide; w is a stack of H matrices. */
void op_linear_heads(struct exec *ex, struct tensor *dst, const struct weight *w,
                     const struct tensor *x);

/* Query heads [H,D], key heads [K,D], value heads [K,Dv] lie behind each other in qkv. Each query
 * and key head is normed when the model does so, rms(head, eps) * (norm + norm_add), then rotated;
 * q goes into q_out, k and v are appended to the step's sequences. rope NULL = no rotation. */
enum attn_kv {
    ATTN_KV,       /* as above */
    ATTN_KV_EQUAL, /* no value heads in qkv: they are the key heads as they come, before the norm */
    ATTN_KV_KEPT,  /* qkv is queries only: an earlier layer has filled the memory of `layer` */
};
/* What a row sees of its sequence. */
enum attn_sees {
    SEES_SELF, /* itself and what came before it */
    SEES_SPAN, /* what came before its span, and all of the span */
    SEES_PAST, /* what came before its span; at least one token did */
};
struct attn_op {
    int32_t layer;  /* of KV memory */
    int32_t n_head; /* op_rope_append: 0 = only keys and values, q_out is NULL */
    int32_t n_kv, dk, dv;
    int32_t window; /* 0 = full */
    float scale;
    const struct rope *rope;
    const struct weight *sinks;           /* NULL = none */
    const struct index *index;            /* latent layers: only what it chose last; or NULL */
    const struct weight *q_norm, *k_norm; /* [dk]; NULL = none */
    float norm_add, norm_eps;
    bool gated;  /* in qkv each query head is followed by d more values: a gate (op_gate) */
    bool v_norm; /* value heads are divided by their rms */
    enum attn_kv kv;
    enum attn_sees sees; /* other than SEES_SELF: no index, no latent */
};
void op_rope_append(struct exec *ex, struct tensor *q_out, const struct tensor *qkv,
                    const struct attn_op *a);
/* dst[rows, H*Dv] = attention of the rotated queries over the step's sequences. */
void op_attn(struct exec *ex, struct tensor *dst, const struct tensor *q, const struct attn_op *a);

/* Attention over a latent (DeepSeek's MLA): one key head [rms(c) norm | rope(pe)] and one value
 * head rms(c) norm for all query heads, kept in a latent KV layer, dk = d_latent + d_rope, dv =
 * d_latent.   kv: [rows, c | pe];   q_out head i = [latent head i | rope(pe of q's head i)] with
 * latent [rows, H d_latent] and q [rows, H (d_nope | d_rope)]. op_attn follows. */
struct latent_op {
    int32_t layer;
    int32_t n_head, d_latent, d_nope, d_rope;
    const struct rope *rope; /* of d_rope dims */
    const struct weight *norm;
    float norm_eps;
};
void op_latent_append(struct exec *ex, struct tensor *q_out, const struct tensor *latent,
                      const struct tensor *q, const struct tensor *kv, const struct latent_op *a);

/* Sparse attention's index (DeepSeek V3.2). Per row, over heads h of q [rows, n_head d_head] and
 * the one key head k [rows, d_head]:
 *     key = rope( layernorm(k, eps) norm + norm_bias )
 *     score_t = sum_h w_h scale relu( rope(q_h) . key_t )
 * Keys go into a KV layer of 1 head, dk = d_head, dv = 0. Each row chooses itself and its earlier
 * tokens when there are at most top_k, else the top_k largest scores, among equals the later
 * tokens. The choice holds until the next op_index. One index for an exec, after kv_setup's
 * parameters are known; q_cols = n_head d_head. */
struct index_op {
    int32_t layer; /* of KV memory */
    int32_t n_head, d_head;
    float scale, norm_eps;
    const struct rope *rope;
    const struct weight *norm, *norm_bias;
    const struct tensor *q, *k, *w; /* w: [rows, n_head] */
};
enum qn_status index_create(struct exec *ex, int32_t top_k, int32_t q_cols, struct index **out,
                            struct qn_err *err);
void op_index(struct exec *ex, struct index *ix, const struct index_op *a);

/* dst[rows, a.cols + b.cols] = a | b */
void op_join(struct exec *ex, struct tensor *dst, const struct tensor *a, const struct tensor *b);

/* dst = a + b */
void op_add(struct exec *ex, struct tensor *dst, const struct tensor *a, const struct tensor *b);

/* dst = act(g) * u, g = gu[:, 0..n), u = gu[:, n..2n) */
enum glu {
    GLU_SILU,
    GLU_GELU,    /* tanh form */
    GLU_CLAMPED, /* gpt-oss: g = min(g,7), u = clip(u,-7,7): g sigmoid(1.702 g) (u+1) */
};
void op_glu(struct exec *ex, struct tensor *dst, const struct tensor *gu, enum glu act);
/* The same with u in columns [col, col + n) of another tensor. */
void op_glu_at(struct exec *ex, struct tensor *dst, const struct tensor *g, const struct tensor *u,
               int32_t col, enum glu act);

/* ---- routed experts ---- */

enum { MOE_EXPERT_MAX = 1024, MOE_TOP_MAX = 64 };
struct moe_shape {
    int32_t n_expert, top_k; /* top_k experts for each row */
    int32_t n_embd, n_ff;
};
enum qn_status moe_create(struct exec *ex, const struct moe_shape *s, struct moe **out,
                          struct qn_err *err);
/* The top_k largest logits[row, n_expert] of each row; among equal ones the higher ids. */
enum route_weights {
    ROUTE_OF_CHOSEN, /* softmax over the chosen */
    ROUTE_OF_ALL,    /* softmax over all experts, the chosen as they are */
};
void op_route(struct exec *ex, struct moe *moe, const struct tensor *logits,
              enum route_weights kind);
/* As ROUTE_OF_CHOSEN with logits times logit_scale in the softmax; then weights times the chosen
 * expert's scale[n_expert]. */
struct route_scales {
    float logit_scale;
    const struct weight *expert;
};
void op_route_scaled(struct exec *ex, struct moe *moe, const struct tensor *logits,
                     const struct route_scales *s);
/* The choice by groups: s = sigmoid(logits), b = s + bias. Experts come in n_group groups of
 * neighbours; unless a group is among the n_keep with the largest sum of their two largest b (among
 * equals the higher ones), its b count as 0. The top_k largest b are chosen, among equals the lower
 * ids; their weights are s, divided by their sum when `normed`, times scale. */
struct route_groups {
    const struct weight *bias; /* [n_expert] */
    int32_t n_group, n_keep;
    bool normed;
    float scale;
};
enum { ROUTE_GROUP_MAX = 256 };
void op_route_groups(struct exec *ex, struct moe *moe, const struct tensor *logits,
                     const struct route_groups *g);
/* dst = sum over the row's chosen experts e, by rising e, of
 *       weight_e * (down_e act(gate_e x + b, up_e x + b) + b).
 * Matrices are stacks; biases [n_expert, n] or NULL. Experts that no row chose are not read. */
struct experts {
    const struct weight *gate, *up, *down, *gate_bias, *up_bias, *down_bias;
    enum glu act;
};
void op_experts(struct exec *ex, struct tensor *dst, const struct tensor *x, struct moe *moe,
                const struct experts *w);

/* ---- gated delta net ---- */

/* Every layer with recurrent state takes both operations in every step, in this order; the state
 * they leave counts once exec_commit has been called. */
struct delta_op {
    int32_t layer;
    const struct weight *conv;            /* [taps, channels] */
    const struct weight *dt_bias, *a_log; /* [n_v] */
};
/* mixed[rows, channels] = silu of the causal convolution of u over the sequence, query and key
 * heads then scaled to length dk^-1/2 and 1 (eps 1e-6 under the root).
 * gates[rows, 2 n_v] = forget gates g and write gates beta of the heads, from ab[rows, 2 n_v] = a
 * and b. */
void op_delta_mix(struct exec *ex, struct tensor *mixed, struct tensor *gates,
                  const struct tensor *u, const struct tensor *ab, const struct delta_op *d);
/* dst[rows, n_v*dv] = per value head and token: S = g S; S += beta (v - S k) k^T; S q. */
void op_delta(struct exec *ex, struct tensor *dst, const struct tensor *mixed,
              const struct tensor *gates, const struct delta_op *d);
/* y = rms(head of x, eps) * w * silu(z), heads of w's size. */
void op_norm_gated(struct exec *ex, struct tensor *y, const struct tensor *x,
                   const struct tensor *z, const struct weight *w, float eps);

/* ---- sigmoid gates ---- */

/* dst = x * sigmoid(gate): the gates of head h, d wide, at column col + h*stride of g. */
struct gate_at {
    int32_t col, stride, d;
};
void op_gate(struct exec *ex, struct tensor *dst, const struct tensor *x, const struct tensor *g,
             const struct gate_at *at);
/* dst = a + sigmoid(g[:, 0]) * b */
void op_add_gated(struct exec *ex, struct tensor *dst, const struct tensor *a,
                  const struct tensor *b, const struct tensor *g);

/* ---- rows with factors ---- */

/* dst = (a + b) * w[0] */
void op_add_scale(struct exec *ex, struct tensor *dst, const struct tensor *a,
                  const struct tensor *b, const struct weight *w);
/* dst = (rms(head of x, eps) * w + b) * scale, heads of w's size. */
struct norm_heads {
    const struct weight *w;
    const struct tensor *b;
    float eps, scale;
};
void op_norm_heads_add(struct exec *ex, struct tensor *dst, const struct tensor *x,
                       const struct norm_heads *n);
/* dst = cap * tanh(x / cap) */
void op_softcap(struct exec *ex, struct tensor *dst, const struct tensor *x, float cap);

/* Keeps the rows whose logits are wanted. */
void op_take(struct exec *ex, struct tensor *dst, const struct tensor *src);
/* Row i of dst = row rows[i] of src. */
void op_pick(struct exec *ex, struct tensor *dst, const struct tensor *src, const int32_t *rows,
             int32_t n);
/* dst[:, col .. col + src.cols) = src; the other columns stay. */
void op_place(struct exec *ex, struct tensor *dst, int32_t col, const struct tensor *src);

#endif
