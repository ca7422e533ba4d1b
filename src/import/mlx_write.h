/*
 * mlx_write.h - writes an MLX checkpoint folder so that it appears whole or not at all.
 *
 * Everything goes into a temporary folder beside the wanted one; mlx_out_commit renames it into
 * place. mlx_out_free without a commit removes every trace; what a killed process left is removed
 * by the next one that writes to the same folder. Weights are streamed into safetensors shards at
 * fixed offsets: the tensor list, with types and shapes, is declared first.
 * One owner, one thread.
 */
#ifndef IMPORT_MLX_WRITE_H
#define IMPORT_MLX_WRITE_H

#include "base/file.h"

enum mlx_dtype { MLX_U32, MLX_F32, MLX_F16, MLX_BF16 };

size_t mlx_dtype_bytes(enum mlx_dtype t);
const char *mlx_dtype_name(enum mlx_dtype t); /* "F16": as safetensors spells it */

struct mlx_tensor {
    const char *name; /* borrowed until mlx_out_free */
    enum mlx_dtype dtype;
    int32_t n_dim;
    int64_t dim[4]; /* outermost first, as safetensors writes shapes */
    /* filled in by mlx_out_declare: */
    int32_t shard;
    uint64_t off; /* of the first byte in the shard's file */
    uint64_t n_bytes;
};

struct mlx_out;

/* Makes the temporary folder. `dir` may be absent or empty; anything else in it is refused, unless
 * `force` and it holds a config.json, when the commit replaces it. */
enum qn_status mlx_out_create(const char *dir, bool force, struct mlx_out **out,
                              struct qn_err *err);
void mlx_out_free(struct mlx_out *o); /* NULL is fine */

/* Lays out the tensors in shards of at most shard_max bytes (0 = 5 GiB), writes headers and the
 * index, and reserves the disk space (a full disk shows here). `t` is borrowed until
 * mlx_out_free. */
enum qn_status mlx_out_declare(struct mlx_out *o, struct mlx_tensor *t, size_t n,
                               uint64_t shard_max, struct qn_err *err);
/* Writes n bytes of tensor t at byte `at` of its data. */
enum qn_status mlx_out_put(struct mlx_out *o, const struct mlx_tensor *t, uint64_t at,
                           const void *p, size_t n, struct qn_err *err);
/* A whole small file of the folder. */
enum qn_status mlx_out_file(struct mlx_out *o, const char *name, struct str data,
                            struct qn_err *err);
/* Flushes everything to the disk and puts the folder in place. */
enum qn_status mlx_out_commit(struct mlx_out *o, struct qn_err *err);

#endif
