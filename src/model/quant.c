/*
 * quant.c - which quantization a module has (MLX checkpoints): the rule of loader.h.
 */
#include "model/loader.h"

#include <stdio.h>

static const struct {
    const char *mode;
    enum weight_format format;
    int32_t bits, group; /* fixed by the mode; 0 = free */
} modes[] = {
    {"affine", WEIGHT_AFFINE, 0, 0},
    {"mxfp4", WEIGHT_MXFP4, 4, 32},
    {"mxfp8", WEIGHT_MXFP8, 8, 32},
    {"nvfp4", WEIGHT_NVFP4, 4, 16},
};

static enum qn_status float_format(struct str module, const struct st_tensor *w,
                                   struct quant_spec *out, struct qn_err *err)
{
    out->bits = out->group = 0;
    switch (w->dtype) {
    case ST_F32:
        out->format = WEIGHT_F32;
        return QN_OK;
    case ST_F16:
        out->format = WEIGHT_F16;
        return QN_OK;
    case ST_BF16:
        out->format = WEIGHT_BF16;
        return QN_OK;
    default:
        QN_FAIL(err, QN_BAD_INPUT, "loader",
                STR_FMT ".weight has dtype %s and no scales; a plain matrix is F32, F16 or BF16",
                STR_ARG(module), w->dtype_name);
    }
}

/* {"bits": .., "group_size": .., "mode": ..}; a missing mode means affine. */
static enum qn_status from_dict(const struct json *d, struct str module, struct quant_spec *out,
                                struct qn_err *err)
{
    char what[300];
    snprintf(what, sizeof what, "config.json: quantization of " STR_FMT, STR_ARG(module));
    struct str mode;
    QN_TRY(json_opt_str(d, what, "mode", STR_LIT("affine"), &mode, err));
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (!str_eqz(mode, modes[i].mode))
            continue;
        int32_t bits = modes[i].bits, group = modes[i].group;
        out->format = modes[i].format;
        QN_TRY(json_opt_i32(d, what, "bits", bits ? bits : 4, 1, 8, &out->bits, err));
        QN_TRY(json_opt_i32(d, what, "group_size", group ? group : 64, 16, 128, &out->group, err));
        if ((bits && out->bits != bits) || (group && out->group != group))
            QN_FAIL(err, QN_BAD_INPUT, "loader",
                    "%s: mode %s has %d bits in groups of %d, not %d in %d", what, modes[i].mode,
                    bits, group, out->bits, out->group);
        return QN_OK;
    }
    QN_FAIL(err, QN_UNSUPPORTED, "loader",
            "%s: mode \"" STR_FMT "\" is not known; known are affine, mxfp4, mxfp8, nvfp4", what,
            STR_ARG(mode));
}

/* group = inputs / scales a row;  bits = words a row * 32 / inputs. One of the two must be known
 * from elsewhere: k. */
static enum qn_status from_shapes(struct str module, const struct st_tensor *w,
                                  const struct st_tensor *scales, int32_t k, struct quant_spec *out,
                                  struct qn_err *err)
{
    int64_t words = w->n_dim ? w->shape[w->n_dim - 1] : 0;
    int64_t n_scale = scales->n_dim ? scales->shape[scales->n_dim - 1] : 0;
    if (w->dtype != ST_U32 || words < 1 || n_scale < 1 || k < 1 || k % n_scale || words * 32 % k)
        QN_FAIL(err, QN_BAD_INPUT, "loader",
                STR_FMT ": %lld words and %lld scales a row do not fit %d inputs", STR_ARG(module),
                (long long)words, (long long)n_scale, k);
    out->group = (int32_t)(k / n_scale);
    out->bits = (int32_t)(words * 32 / k);
    out->format = WEIGHT_AFFINE;
    if (scales->dtype != ST_U8)
        return QN_OK;
    for (size_t i = 1; i < sizeof modes / sizeof modes[0]; i++)
        if (modes[i].bits == out->bits && modes[i].group == out->group) {
            out->format = modes[i].format;
            return QN_OK;
        }
    QN_FAIL(err, QN_UNSUPPORTED, "loader",
            STR_FMT ": %d bits in groups of %d with byte scales is no known format",
            STR_ARG(module), out->bits, out->group);
}

enum qn_status quant_resolve(const struct json *cfg, struct str module,
                             const struct st_tensor *weight, const struct st_tensor *scales,
                             int32_t k, struct quant_spec *out, struct qn_err *err)
{
    const struct json *q = json_get(cfg, "quantization");
    if (!q)
        q = json_get(cfg, "quantization_config");
    const struct json *own = json_get_str(q, module);
    if (json_type(own) == JSON_BOOL && !json_bool(own))
        return float_format(module, weight, out, err);
    if (json_type(own) == JSON_OBJ)
        return from_dict(own, module, out, err);
    if (!scales)
        return float_format(module, weight, out, err);
    return from_shapes(module, weight, scales, k, out, err);
}
