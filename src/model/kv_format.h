/*
 * kv_format.h - which form the keys and values of each layer have: --kv-quant off, 8, 4, config or
 * turbo[:kKvV], resolved for a model when its engine opens.
 */
#ifndef MODEL_KV_FORMAT_H
#define MODEL_KV_FORMAT_H

#include "exec/exec.h"

enum { KV_FORMAT_ID_MAX = 24 };

struct kv_format {
    struct kv_layer *layers;   /* [n] as the model states them, with their forms; owned */
    char id[KV_FORMAT_ID_MAX]; /* equal exactly when the forms of all layers are; e.g. "kv8" */
    int32_t n_coded;           /* layers with a form */
};

/* spec NULL or "" is "off". layers [n] are the model's, the first n_model of them its own (config's
 * layer_idx counts those). dir: where kv_config.json would be. Free with kv_format_free. */
struct kv_format_in {
    const char *spec, *dir;
    const struct kv_layer *layers;
    int32_t n, n_model;
    bool reference; /* plain memory is float32 */
};
enum qn_status kv_format_resolve(const struct kv_format_in *in, struct kv_format *out,
                                 struct qn_err *err);
void kv_format_free(struct kv_format *f); /* {0} is fine */

/* Whether spec is well-formed, without a model. */
enum qn_status kv_format_check(const char *spec, struct qn_err *err);

#endif
