/*
 * inspect_census.h - what a folder's tensors are: every module with its format, logical shape and
 * bytes, and totals by format. Works on headers only; knows nothing of files.
 */
#ifndef CLI_INSPECT_CENSUS_H
#define CLI_INSPECT_CENSUS_H

#include "base/json.h"

#define CENSUS_DIM_MAX 8

/* One tensor as a safetensors header states it. */
struct census_tensor {
    struct str name;   /* borrowed */
    const char *dtype; /* "BF16", "U32", ...; borrowed */
    const char *file;  /* borrowed */
    int n_dim;
    int64_t shape[CENSUS_DIM_MAX];
    int64_t bytes;
};

/* A matrix, vector or table as the model sees it: NAME.weight with its .scales, .biases and
 * .global_scale is one. */
struct census_module {
    struct str name; /* of the tensor, ".weight" included */
    char format[32]; /* "bf16", "affine 4-bit g64", "mxfp4", ... */
    int bits, group; /* bits of one code; group 0 = not quantized */
    int n_dim;
    int64_t shape[CENSUS_DIM_MAX]; /* logical: the last dimension is counted in weights */
    int64_t n_weight;
    int64_t bytes; /* scales and biases included */
    const char *file;
};

struct census_total {
    char format[32];
    int64_t n_module, n_weight, bytes;
};

#define CENSUS_FORMAT_MAX 64
struct census {
    struct census_module *modules; /* malloc'd; in the order of the tensors */
    size_t n;
    struct census_total totals[CENSUS_FORMAT_MAX]; /* most bytes first */
    int n_total;
    int64_t n_weight, bytes;
};

/* tensors sorted by name. quantization: config.json's object of that name, or NULL. A quantized
 * weight whose scales do not fit it is QN_BAD_INPUT naming file, tensor and shapes. */
enum qn_status census_take(const struct census_tensor *tensors, size_t n,
                           const struct json *quantization, struct census *out, struct qn_err *err);
void census_free(struct census *c);
/* "512 x 128" */
void census_shape_text(const int64_t *shape, int n_dim, struct buf *out);

#endif
