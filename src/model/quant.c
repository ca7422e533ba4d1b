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

/* group = inputs / scales a row;  bits = words a row * 32 / inputs. False when they do not fit. */
static bool divide_row(const struct quant_row *row, int64_t k, struct quant_spec *out)
{
    int64_t row_bits;
    if (row->words < 1 || row->scales < 1 || k < 1 || k % row->scales ||
        __builtin_mul_overflow(row->words, 32, &row_bits) || row_bits % k || row_bits / k > 32 ||
        k / row->scales > INT32_MAX)
        return false;
    out->group = (int32_t)(k / row->scales);
    out->bits = (int32_t)(row_bits / k);
    out->format = WEIGHT_AFFINE;
    return true;
}

/* Byte scales are those of a mode with these bits and this group. False when there is none. */
static bool name_mode(const struct quant_row *row, struct quant_spec *io)
{
    for (size_t i = 1; row->byte_scales && i < sizeof modes / sizeof modes[0]; i++)
        if (modes[i].bits == io->bits && modes[i].group == io->group) {
            io->format = modes[i].format;
            return true;
        }
    return !row->byte_scales;
}

/* One of bits and group must be known from elsewhere: k. */
static enum qn_status from_shapes(struct str module, const struct st_tensor *w,
                                  const struct st_tensor *scales, int32_t k, struct quant_spec *out,
                                  struct qn_err *err)
{
    struct quant_row row = {.words = w->n_dim ? w->shape[w->n_dim - 1] : 0,
                            .scales = scales->n_dim ? scales->shape[scales->n_dim - 1] : 0,
                            .byte_scales = scales->dtype == ST_U8};
    if (w->dtype != ST_U32 || !divide_row(&row, k, out))
        QN_FAIL(err, QN_BAD_INPUT, "loader",
                STR_FMT ": %lld words and %lld scales a row do not fit %d inputs", STR_ARG(module),
                (long long)row.words, (long long)row.scales, k);
    if (name_mode(&row, out))
        return QN_OK;
    QN_FAIL(err, QN_UNSUPPORTED, "loader",
            STR_FMT ": %d bits in groups of %d with byte scales is no known format",
            STR_ARG(module), out->bits, out->group);
}

const char *quant_mode(enum weight_format f)
{
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (modes[i].format == f)
            return modes[i].mode;
    return NULL;
}

/* Inputs of a row whose scales are bytes: each mode has its own number of words for one scale. */
static bool byte_row_inputs(const struct quant_row *row, int64_t *k)
{
    int64_t row_bits = row->words * 32;
    for (size_t i = 1; i < sizeof modes / sizeof modes[0]; i++) {
        int64_t each = modes[i].bits * modes[i].group;
        if (row_bits % each == 0 && row_bits / each == row->scales) {
            *k = row->scales * modes[i].group;
            return true;
        }
    }
    return false;
}

enum qn_status quant_guess(const struct json *quantization, struct str module,
                           const struct quant_row *row, struct quant_spec *out, int64_t *k,
                           struct qn_err *err)
{
    const struct json *own = json_get_str(quantization, module);
    bool listed = json_type(own) == JSON_OBJ;
    struct quant_spec said = {.group = 64};
    if (row->words < 1 || row->scales < 1 || row->words > INT64_MAX / 32 ||
        row->scales > INT64_MAX / 128)
        QN_FAIL(err, QN_BAD_INPUT, "loader", "empty or too large");
    if (listed)
        QN_TRY(from_dict(own, module, &said, err));
    else
        QN_TRY(json_opt_i32(quantization, "config.json: quantization", "group_size", 64, 16, 128,
                            &said.group, err));
    if (listed || !row->byte_scales)
        *k = row->scales * said.group;
    else if (!byte_row_inputs(row, k))
        QN_FAIL(err, QN_BAD_INPUT, "loader", "byte scales that are of no known format");
    if (!divide_row(row, *k, out) || out->bits > 8 || !name_mode(row, out))
        QN_FAIL(err, QN_BAD_INPUT, "loader",
                "the packed row is not 1 to 8 bits for each weight of its groups");
    if (listed && (said.bits != out->bits || said.format != out->format))
        QN_FAIL(err, QN_BAD_INPUT, "loader",
                "config.json says %s of %d bits in groups of %d, the shapes say %s of %d bits",
                quant_mode(said.format), said.bits, said.group, quant_mode(out->format), out->bits);
    return QN_OK;
}

/* What config.json says for all modules: shapes decide, but a mode must be one of ours. */
static enum qn_status check_said(const struct json *q, const struct json *own, struct str module,
                                 struct qn_err *err)
{
    struct str mode = STR_LIT("affine");
    if (q && json_type(q) != JSON_OBJ)
        QN_FAIL(err, QN_BAD_INPUT, "loader", "config.json: quantization is of type %s; expected %s",
                json_type_name(q), "an object with group_size and bits");
    if (own && json_type(own) != JSON_OBJ && json_type(own) != JSON_BOOL)
        QN_FAIL(err, QN_BAD_INPUT, "loader",
                "config.json: quantization of " STR_FMT " is of type %s; expected false or an "
                "object with group_size and bits",
                STR_ARG(module), json_type_name(own));
    QN_TRY(json_opt_str(q, "config.json: quantization", "mode", mode, &mode, err));
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (str_eqz(mode, modes[i].mode))
            return QN_OK;
    QN_FAIL(err, QN_UNSUPPORTED, "loader",
            "config.json: quantization: mode \"" STR_FMT
            "\" is not known; known are affine, mxfp4, mxfp8, nvfp4",
            STR_ARG(mode));
}

enum qn_status quant_resolve(const struct json *cfg, struct str module,
                             const struct st_tensor *weight, const struct st_tensor *scales,
                             int32_t k, struct quant_spec *out, struct qn_err *err)
{
    const struct json *q = json_get(cfg, "quantization");
    if (!q)
        q = json_get(cfg, "quantization_config");
    const struct json *own = json_get_str(q, module);
    QN_TRY(check_said(q, own, module, err));
    if (json_type(own) == JSON_BOOL && !json_bool(own))
        return float_format(module, weight, out, err);
    if (json_type(own) == JSON_OBJ)
        return from_dict(own, module, out, err);
    if (!scales)
        return float_format(module, weight, out, err);
    return from_shapes(module, weight, scales, k, out, err);
}
