/*
 * safetensors.h - reads the tensors of a model folder: every model*.safetensors file in it, mapped,
 * never copied. Nothing in a file is trusted: sizes, shapes and offsets are checked against each
 * other and against the file before a tensor is handed out.
 */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include "base/err.h"
#include "base/str.h"

enum st_dtype {
    ST_F32,
    ST_F16,
    ST_BF16,
    ST_U8,
    ST_U32,
    ST_OTHER, /* a known type no weight uses (I64, F64, BOOL...): listed, not loadable */
};
enum { ST_DIM_MAX = 8 };

struct st_tensor {
    struct str name;
    enum st_dtype dtype;
    const char *dtype_name; /* as in the file, e.g. "BF16" */
    int32_t n_dim;
    int64_t shape[ST_DIM_MAX];
    const uint8_t *data; /* in the map; NULL for an empty tensor */
    size_t bytes;
    int32_t file; /* index of its file */
};

struct st;

/* Opens all files of a folder. QN_NOT_FOUND when there is none; QN_BAD_INPUT naming file, tensor
 * and values when one is broken, or when two files hold the same name. */
enum qn_status st_open(const char *dir, struct st **out, struct qn_err *err);
/* One file. For tests and tools. */
enum qn_status st_open_file(const char *path, struct st **out, struct qn_err *err);
void st_free(struct st *s); /* NULL is fine; tensors die with it */

int32_t st_count(const struct st *s);
const struct st_tensor *st_at(const struct st *s, int32_t i);         /* sorted by name */
const struct st_tensor *st_find(const struct st *s, struct str name); /* NULL = none */
const char *st_file_name(const struct st *s, int32_t file);
int32_t st_file_count(const struct st *s);
/* "[49152, 576]" into out; returns out. */
const char *st_shape_text(const struct st_tensor *t, char *out, size_t cap);
/* The bytes of t will not be read again soon: drops them from resident memory. */
void st_drop(const struct st *s, const struct st_tensor *t);

#endif
