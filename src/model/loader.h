/*
 * loader.h - binds the tensors of a folder to a family's weights: names, shapes, quantization, and
 * the accounting behind `quern inspect`. Every tensor must be asked for or be known as skippable.
 */
#ifndef MODEL_LOADER_H
#define MODEL_LOADER_H

#include "exec/exec.h"
#include "model/safetensors.h"
#include "base/json.h"

struct loader;

enum qn_status loader_create(struct exec *ex, const struct st *st, const struct json *cfg,
                             struct loader **out, struct qn_err *err);
void loader_free(struct loader *l);
void loader_progress(struct loader *l, void (*fn)(void *arg, const char *what, double done),
                     void *arg);
bool loader_has(const struct loader *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The matrix MODULE.weight (+ scales and biases as config.json's quantization says), n outputs of k
 * inputs. Errors name the tensor, what was found and what was expected. */
enum qn_status load_matrix(struct loader *l, struct weight **out, int32_t n, int32_t k,
                           struct qn_err *err, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
/* The same for a table of which a step reads single rows: not counted as read per step. */
enum qn_status load_table(struct loader *l, struct weight **out, int32_t n, int32_t k,
                          struct qn_err *err, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
/* The same for n rows of a matrix of n_module rows, in the order of rows[n], all < n_module. */
struct row_choice {
    int32_t n_module, n, k;
    const int32_t *rows;
};
enum qn_status load_rows(struct loader *l, struct weight **out, const struct row_choice *c,
                         struct qn_err *err, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* The same for a stack of matrices [n_stack, n, k], `active` of which are read for one row. */
struct stack_shape {
    int32_t n_stack, active, n, k;
};
enum qn_status load_stack(struct loader *l, struct weight **out, const struct stack_shape *shape,
                          struct qn_err *err, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* A stack of vectors [n_stack, n]. */
enum qn_status load_stack_vec(struct loader *l, struct weight **out,
                              const struct stack_shape *shape, struct qn_err *err, const char *fmt,
                              ...) __attribute__((format(printf, 5, 6)));
/* The vector of n floats with this full tensor name. */
enum qn_status load_vec(struct loader *l, struct weight **out, int32_t n, struct qn_err *err,
                        const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* The taps [n, taps, 1] of a depthwise convolution, kept as [taps, n]. */
enum qn_status load_taps(struct loader *l, struct weight **out, int32_t n, int32_t taps,
                         struct qn_err *err, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
/* The n integers below `end` with this full tensor name, I32, U32 or I64, into out[n]. */
enum qn_status load_ids(struct loader *l, int32_t *out, int32_t n, int32_t end, struct qn_err *err,
                        const char *fmt, ...) __attribute__((format(printf, 6, 7)));
/* From now on tensors asked for by names that begin with `name` are those that begin with `file`;
 * the strings live until the aliases are dropped with NULL. At most LOADER_ALIAS_MAX. */
enum { LOADER_ALIAS_MAX = 4 };
void loader_alias(struct loader *l, const char *name, const char *file);
/* Marks tensors whose name matches this shell pattern as known and not needed; how many. */
int32_t loader_skip(struct loader *l, const char *pattern);
/* Fails naming the first tensor that nothing asked for. */
enum qn_status loader_done(struct loader *l, struct qn_err *err);

struct loader_totals {
    int64_t n_param;      /* elements of the matrices and vectors loaded */
    int64_t stored_bytes; /* as they lie in the checkpoint */
    int64_t packed_bytes; /* in memory */
    int64_t step_bytes;   /* of those, read for one row: of a stack only the active part */
};
void loader_totals(const struct loader *l, struct loader_totals *out);

/* ---- quantization as config.json and the tensors state it; also used by `quern inspect` --------
 */

struct quant_spec {
    enum weight_format format;
    int32_t bits, group; /* 0 for float formats */
};
/* What MODULE ("model.layers.0.mlp.up_proj") is, by models.md's rule: listed in config.json, else
 * unquantized without scales, else inferred from the shapes; weight and scales (NULL = none) are
 * its tensors, k its inputs (0 = unknown). */
enum qn_status quant_resolve(const struct json *cfg, struct str module,
                             const struct st_tensor *weight, const struct st_tensor *scales,
                             int32_t k, struct quant_spec *out, struct qn_err *err);

/* One row of a quantized matrix, as its shapes state it. */
struct quant_row {
    int64_t words, scales; /* 32-bit words of codes; scales */
    bool byte_scales;      /* U8: one of the modes with fixed bits and group */
};
/* The same rule for one who does not know the inputs: *k becomes the number that follows.
 * quantization is config.json's object of that name, or NULL. QN_BAD_INPUT says only what is wrong
 * with the row; the caller names the tensor. */
enum qn_status quant_guess(const struct json *quantization, struct str module,
                           const struct quant_row *row, struct quant_spec *out, int64_t *k,
                           struct qn_err *err);
const char *quant_mode(enum weight_format f); /* "affine", "mxfp4", ...; NULL for floats */

#endif
