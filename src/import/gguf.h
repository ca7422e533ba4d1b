/*
 * gguf.h - read-only view of a GGUF file (versions 2 and 3, little-endian): metadata and tensors.
 *
 * The file is mapped; strings, arrays and tensor data are views into the map and live as long as
 * the struct gguf. Opening checks everything a later reader relies on: every count against the
 * bytes left, every string and array inside the file, every tensor's extent inside the data
 * section, aligned, of a known type, overlapping no other. Immutable after opening; any thread.
 */
#ifndef IMPORT_GGUF_H
#define IMPORT_GGUF_H

#include "base/file.h"

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_ARR,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPE,
};

struct gguf_kv {
    struct str key;
    enum gguf_type type; /* of the value, or of the elements when is_arr */
    bool is_arr;
    uint64_t n;       /* elements; 1 when not an array */
    const uint8_t *p; /* the value's bytes (little-endian; strings: u64 length and bytes each) */
};

#define GGUF_DIM_MAX 4

struct gguf_tensor {
    struct str name;
    const struct blk_format *fmt;
    int32_t n_dim;
    int64_t dim[GGUF_DIM_MAX]; /* dim[0] is the innermost (row length); unused ones are 1 */
    int64_t n_elem, n_row;     /* n_row = n_elem / dim[0] */
    uint64_t n_bytes;
    const uint8_t *p;
};

struct gguf {
    struct file_map map;
    struct str name; /* last component of the path, for messages */
    uint32_t version;
    uint64_t alignment;
    struct gguf_kv *kv; /* sorted by key */
    size_t n_kv;
    struct gguf_tensor *tensor; /* sorted by offset in the file */
    size_t n_tensor;
    char *path_copy;
};

/* Maps and checks `path`. On success free with gguf_close. QN_BAD_INPUT names file, field, value.
 */
enum qn_status gguf_open(const char *path, struct gguf *g, struct qn_err *err);
/* The same over bytes the caller keeps (tests, fuzzing); `name` is used in messages. */
enum qn_status gguf_open_mem(const uint8_t *p, size_t n, const char *name, struct gguf *g,
                             struct qn_err *err);
void gguf_close(struct gguf *g);

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* Typed getters. An absent key gives `def`; a wrong type or a value out of [min,max] fails. Any
 * integer type is accepted for i64 and also, where its value is whole, any float type. */
enum qn_status gguf_i64(const struct gguf *g, const char *key, int64_t def, int64_t min,
                        int64_t max, int64_t *out, struct qn_err *err);
enum qn_status gguf_f64(const struct gguf *g, const char *key, double def, double *out,
                        struct qn_err *err);
enum qn_status gguf_bool(const struct gguf *g, const char *key, bool def, bool *out,
                         struct qn_err *err);
enum qn_status gguf_str(const struct gguf *g, const char *key, struct str def, struct str *out,
                        struct qn_err *err);
/* An array of strings as views; *out is malloc'd (free it). Fails when absent. */
enum qn_status gguf_strs(const struct gguf *g, const char *key, struct str **out, size_t *n,
                         struct qn_err *err);
/* Element i of an integer array value; i < kv->n. */
int64_t gguf_arr_i64(const struct gguf_kv *kv, uint64_t i);
float gguf_arr_f32(const struct gguf_kv *kv, uint64_t i); /* kv->type is GGUF_F32 */
const char *gguf_type_name(enum gguf_type t);

#endif
