/*
 * gguf_arch.h - what each GGUF architecture means in MLX terms: dimensions, the name, place and
 * transformation of every tensor, and config.json. One table row per architecture and per tensor;
 * whatever a table does not know is refused by name, never dropped.
 * Reads struct gguf only; any thread.
 */
#ifndef IMPORT_GGUF_ARCH_H
#define IMPORT_GGUF_ARCH_H

#include "import/gguf.h"

struct arch_def; /* a row of the table of architectures */

struct arch_model {
    const struct gguf *g;
    const struct arch_def *def;
    int64_t n_layer, n_embd, n_ff, n_head, n_kv, head_dim, n_vocab, n_ctx;
    int64_t n_expert, n_expert_used, n_ff_exp; /* 0 without experts */
    bool tied;                                 /* no output.weight */
    struct str rope_type;                      /* "", "linear", "yarn", "llama3", "longrope" */
    double rope_factor;
    int64_t rope_orig_ctx;
    int64_t rope_dims;                                /* of a head, from its start */
    const struct gguf_tensor *rope_long, *rope_short; /* longrope: checked; otherwise NULL */
};

/* How one tensor of the file goes into the checkpoint. */
struct arch_tensor {
    char module[96];         /* "model.layers.0.self_attn.q_proj" */
    bool is_bias;            /* module.bias, otherwise module.weight */
    bool skip;               /* its content went into config.json */
    bool minus_one;          /* 1 is subtracted: the file holds the factor, MLX adds 1 itself */
    int64_t unpermute_heads; /* > 0: rows were re-paired for interleaved rope; see convert.c */
};

/* Facts about how weights were stored that config.json must tell. */
struct arch_quant {
    int default_bits;       /* the most frequent code width; 0 = nothing quantized */
    const char *float_name; /* "float16", "bfloat16", "float32" */
    /* Appends `"module": {"group_size": 32, "bits": b},` for modules of another width. */
    struct str overrides_json;
};

/* Finds the architecture, reads and checks its dimensions and keys. */
enum qn_status arch_open(const struct gguf *g, struct arch_model *m, struct qn_err *err);
const char *arch_model_type(const struct arch_model *m); /* MLX's name, static */
/* Maps a tensor and checks its shape. */
enum qn_status arch_map(const struct arch_model *m, const struct gguf_tensor *t,
                        struct arch_tensor *out, struct qn_err *err);
/* Fails naming the first tensor the architecture needs that the file lacks. */
enum qn_status arch_check_complete(const struct arch_model *m, struct qn_err *err);
/* The token ids that end an answer, in the order eos, eot, eom; *n <= 3. */
enum qn_status arch_eos(const struct gguf *g, int64_t n_vocab, int64_t ids[3], int *n,
                        struct qn_err *err);
/* config.json and generation_config.json. */
enum qn_status arch_config(const struct arch_model *m, const struct arch_quant *q, struct buf *out,
                           struct qn_err *err);
enum qn_status arch_generation_config(const struct arch_model *m, struct buf *out,
                                      struct qn_err *err);

#endif
