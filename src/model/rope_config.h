/*
 * rope_config.h - rotary embedding types of config.json to plain frequencies. Formulas: the table
 * in docs/families/rope.md.
 */
#ifndef MODEL_ROPE_CONFIG_H
#define MODEL_ROPE_CONFIG_H

#include "base/json.h"
#include "exec/exec.h"

struct rope_params {
    const struct json *scaling; /* config.json's rope_scaling (NULL = default) */
    const char *what;           /* for messages: "config.json: rope_scaling" */
    double theta;
    int32_t dims;         /* rotated part of a head, even */
    int32_t max_pos;      /* max_position_embeddings */
    int32_t orig_max_pos; /* top-level original_max_position_embeddings; 0 = absent */
    bool interleaved;
};
/* Refuses types it does not know: a wrong rotation would still produce fluent nonsense. */
enum qn_status rope_from_config(struct exec *ex, const struct rope_params *p, struct rope **out,
                                struct qn_err *err);
/* The frequencies alone: inv_freq[dims/2] (0 = not rotated) and the factor on the rotated part. */
enum qn_status rope_frequencies(const struct rope_params *p, double *inv_freq, double *mscale,
                                struct qn_err *err);

#endif
