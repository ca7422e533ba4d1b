/*
 * gguf_arch_int.h - what gguf_arch.c (tables, checks) and gguf_config.c (config.json) share.
 */
#ifndef IMPORT_GGUF_ARCH_INT_H
#define IMPORT_GGUF_ARCH_INT_H

#include "import/gguf_arch.h"

enum {
    ROW_GLOBAL = 1,  /* not inside blk.N */
    ROW_OPT = 2,     /* may be absent */
    ROW_BIAS = 4,    /* name.bias instead of name.weight */
    ROW_PERM = 8,    /* q/k rows re-paired: llama only */
    ROW_MINUS1 = 16, /* gemma norms */
    ROW_CONFIG = 32, /* read into config.json, no tensor */
};

struct row {
    const char *gguf, *mlx, *shape;
    int flags;
};

enum arch_kind { ARCH_PLAIN, ARCH_LLAMA, ARCH_GEMMA, ARCH_PHI }; /* keys of its own */

struct arch_def {
    const char *name, *model_type, *hf_class;
    const struct row *rows;
    enum arch_kind kind;
    bool own_head_dim; /* config.json has head_dim */
    bool moe;
    double rope_base; /* when the file does not say */
};

struct gguf_key {
    char z[160];
};

/* The architecture's name before the suffix: "llama.block_count". */
struct gguf_key arch_key(const struct arch_model *m, const char *suffix);
/* A size from 1 to max; fails when it is missing or out of range. */
enum qn_status arch_need(const struct arch_model *m, const char *suffix, int64_t max, int64_t *out,
                         struct qn_err *err);
/* The same, but def when it is missing. */
enum qn_status arch_opt(const struct arch_model *m, const char *suffix, int64_t def, int64_t max,
                        int64_t *out, struct qn_err *err);
/* Value i of an F32 tensor whose size was checked. */
float arch_factor(const struct gguf_tensor *t, int64_t i);

#endif
