/*
 * import_gguf.h - converts one GGUF file into an MLX checkpoint folder.
 *
 * Weights keep their exact values where MLX's affine groups of 32 can hold them; the report says
 * for every tensor whether they do, and by how much not. The folder appears whole or not at all.
 * Memory: a few rows at a time, whatever the file's size. One call, one thread.
 */
#ifndef IMPORT_IMPORT_GGUF_H
#define IMPORT_IMPORT_GGUF_H

#include <stdatomic.h>

#include "import/mlx_write.h"

enum import_dtype {
    IMPORT_AUTO, /* per tensor: float16 where that is exact, then bfloat16, then float32 */
    IMPORT_F16,
    IMPORT_BF16,
    IMPORT_F32,
};

struct import_params {
    const char *src, *dst;
    bool force;                               /* replace an existing model folder */
    enum import_dtype dtype;                  /* of scales, biases and unquantized tensors */
    uint64_t shard_max;                       /* bytes per weight file; 0 = 5 GiB */
    void (*progress)(void *arg, double done); /* bytes of source read; may be NULL */
    void (*start)(void *arg, double total);   /* bytes of source in all; may be NULL */
    void *arg;
    const atomic_bool *cancel; /* may be NULL */
};

/* One tensor of the file. Errors are against the file's exact values, in float32. */
struct import_tensor {
    char name[112];       /* in the checkpoint, "model.layers.0.mlp.up_proj.weight" */
    const char *format;   /* in the file: static, "Q4_K" */
    enum mlx_dtype dtype; /* of scales and biases, or of the values when bits = 0 */
    int bits;             /* code width; 0 = not quantized */
    int64_t n_elem;
    uint64_t n_bytes;               /* written */
    bool exact;                     /* every value is equal */
    double err_max, err_sq, val_sq; /* largest |error|, sums of squared errors and values */
};

struct import_report {
    struct import_tensor *t;
    size_t n;
    int64_t n_elem;
    uint64_t n_bytes;
    const char *arch; /* MLX model_type, static */
};

/* *rep is filled on success; free it with import_report_free. QN_CANCELLED when *cancel was seen.
 * On failure nothing is left of dst. */
enum qn_status import_gguf(const struct import_params *p, struct import_report *rep,
                           struct qn_err *err);
void import_report_free(struct import_report *rep);

#endif
