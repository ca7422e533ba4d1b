/*
 * cpu_ops.h - the CPU backend's operations and the frame of its row-wise ones.
 */
#ifndef EXEC_CPU_OPS_H
#define EXEC_CPU_OPS_H

#include "exec/exec_int.h"
#include "kernels/ref/ref.h"

void cpu_embed(struct exec *ex, struct tensor *dst, const struct weight *table, float scale);
void cpu_rmsnorm(struct exec *ex, struct tensor *y, const struct tensor *x, const struct weight *w,
                 float add, float eps);
void cpu_add_rmsnorm(struct exec *ex, struct tensor *s, struct tensor *y, const struct tensor *a,
                     const struct tensor *b, const struct weight *w, float add, float eps);
void cpu_linear(struct exec *ex, const struct linear *parts, int32_t n, const struct tensor *x);
void cpu_linear_heads(struct exec *ex, struct tensor *dst, const struct weight *w,
                      const struct tensor *x);
void cpu_latent_append(struct exec *ex, struct tensor *q_out, const struct tensor *latent,
                       const struct tensor *q, const struct tensor *kv, const struct latent_op *a);
void cpu_index(struct exec *ex, struct index *ix, const struct index_op *a);
void cpu_join(struct exec *ex, struct tensor *dst, const struct tensor *a, const struct tensor *b);
void cpu_add(struct exec *ex, struct tensor *dst, const struct tensor *a, const struct tensor *b);
void cpu_rope_append(struct exec *ex, struct tensor *q_out, const struct tensor *qkv,
                     const struct attn_op *a);
void cpu_attn(struct exec *ex, struct tensor *dst, const struct tensor *q, const struct attn_op *a);
void cpu_glu(struct exec *ex, struct tensor *dst, const struct tensor *gu, enum glu act);
void cpu_glu_at(struct exec *ex, struct tensor *dst, const struct tensor *g, const struct tensor *u,
                int32_t col, enum glu act);
void cpu_route(struct exec *ex, struct moe *moe, const struct tensor *logits,
               enum route_weights kind);
void cpu_route_scaled(struct exec *ex, struct moe *moe, const struct tensor *logits,
                      const struct route_scales *s);
void cpu_route_groups(struct exec *ex, struct moe *moe, const struct tensor *logits,
                      const struct route_groups *g);
void cpu_experts(struct exec *ex, struct tensor *dst, const struct tensor *x, struct moe *moe,
                 const struct experts *w);
/* cpu_linear.c: the activations of x for a group size, quantized when done[] says not yet. */
struct qact cpu_quantized(struct exec *ex, int32_t group, const struct tensor *x, bool *done);
void cpu_take(struct exec *ex, struct tensor *dst, const struct tensor *src);
void cpu_pick(struct exec *ex, struct tensor *dst, const struct tensor *src, const int32_t *rows,
              int32_t n);
void cpu_place(struct exec *ex, struct tensor *dst, int32_t col, const struct tensor *src);

void cpu_delta_mix(struct exec *ex, struct tensor *mixed, struct tensor *gates,
                   const struct tensor *u, const struct tensor *ab, const struct delta_op *d);
void cpu_delta(struct exec *ex, struct tensor *dst, const struct tensor *mixed,
               const struct tensor *gates, const struct delta_op *d);
void cpu_delta_again(struct exec *ex, const struct delta_rows_of *r);
void cpu_norm_gated(struct exec *ex, struct tensor *y, const struct tensor *x,
                    const struct tensor *z, const struct weight *w, float eps);
void cpu_gate(struct exec *ex, struct tensor *dst, const struct tensor *x, const struct tensor *g,
              const struct gate_at *at);
void cpu_add_gated(struct exec *ex, struct tensor *dst, const struct tensor *a,
                   const struct tensor *b, const struct tensor *g);

void cpu_add_scale(struct exec *ex, struct tensor *dst, const struct tensor *a,
                   const struct tensor *b, const struct weight *w);
void cpu_norm_heads_add(struct exec *ex, struct tensor *dst, const struct tensor *x,
                        const struct norm_heads *n);
void cpu_softcap(struct exec *ex, struct tensor *dst, const struct tensor *x, float cap);

/* A row-wise job: `one` computes one row into out[]. Doubles as the pool job's arguments. */
enum { ROWS_OUT_MAX = 2, ROWS_IN_MAX = 3 };
struct rows_job {
    void (*one)(const struct rows_job *, int32_t row, float *const *out);
    const struct kernels *kern;
    const struct weight *w;
    const int32_t *ids;
    const float *coef;
    const float *in[ROWS_IN_MAX];
    float *out[ROWS_OUT_MAX];
    int32_t in_cols[ROWS_IN_MAX], out_cols[ROWS_OUT_MAX];
    int32_t n_row, n_out, n_chunk_rows;
    const struct qact *q; /* quantizing: written directly, see cpu_linear.c */
    const struct rope *rope;
    int32_t n_head, dk;
    int32_t head_stride;      /* from one head's input to the next */
    const struct span *spans; /* delta net: whose row it is, and where its layer's state lies */
    int32_t n_span;
    size_t state_off;
    struct delta_shape delta;
    const struct weight *dt_bias, *a_log;
    struct gate_at gate;
    float scale, add, eps;
    enum glu act;
    bool reference;
};
/* The kernel of a gated activation: y = act(g) * u over n values. */
typedef void (*glu_fn)(float *y, const float *g, const float *u, int32_t n);
glu_fn glu_of(const struct kernels *kern, bool reference, enum glu act);
void rows_run(struct exec *ex, struct rows_job *j,
              void (*one)(const struct rows_job *, int32_t row, float *const *out));
int rows_regions(const void *args, int chunk, struct pool_region *r);
void rows_chunk(const void *args, int chunk, const struct pool_region *r, void *work);

#endif
