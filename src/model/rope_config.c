/*
 * rope_config.c - see rope_config.h. f_i = theta^(2i/dims) is the wavelength over 2 pi of pair i;
 * the angle at position p is p / f_i for the default type.
 */
#include "model/rope_config.h"

#include <math.h>

struct scaling {
    const struct rope_params *p;
    double *inv; /* out */
    double *mscale;
};

static enum qn_status real_key(const struct scaling *s, const char *key, double def, double min,
                               double max, double *out, struct qn_err *err)
{
    return json_opt_real(s->p->scaling, s->p->what, key, def, min, max, out, err);
}

static double wave(const struct rope_params *p, int32_t i)
{
    return pow(p->theta, 2.0 * i / p->dims);
}

static enum qn_status plain(const struct scaling *s, struct qn_err *err)
{
    for (int32_t i = 0; i < s->p->dims / 2; i++)
        s->inv[i] = 1.0 / wave(s->p, i);
    return QN_OK;
}

static enum qn_status linear_scaling(const struct scaling *s, struct qn_err *err)
{
    double factor;
    QN_TRY(real_key(s, "factor", 1, 1e-3, 1e6, &factor, err));
    for (int32_t i = 0; i < s->p->dims / 2; i++)
        s->inv[i] = 1.0 / (wave(s->p, i) * factor);
    return QN_OK;
}

/* Llama 3: long waves are stretched by factor, short ones kept, a smooth ramp between. */
static enum qn_status llama3(const struct scaling *s, struct qn_err *err)
{
    double factor, low, high, orig;
    QN_TRY(real_key(s, "factor", 1, 1e-3, 1e6, &factor, err));
    QN_TRY(real_key(s, "low_freq_factor", 1, 1e-3, 1e6, &low, err));
    QN_TRY(real_key(s, "high_freq_factor", 4, 1e-3, 1e6, &high, err));
    QN_TRY(real_key(s, "original_max_position_embeddings", 8192, 1, 1e9, &orig, err));
    if (high <= low)
        QN_FAIL(err, QN_BAD_INPUT, "rope", "%s: high_freq_factor %g must exceed low_freq_factor %g",
                s->p->what, high, low);
    for (int32_t i = 0; i < s->p->dims / 2; i++) {
        double f = wave(s->p, i), length = 2 * M_PI * f;
        if (length > orig / low)
            f *= factor;
        else if (length > orig / high) {
            double smooth = (orig / length - low) / (high - low);
            f /= (1 - smooth) / factor + smooth;
        }
        s->inv[i] = 1.0 / f;
    }
    return QN_OK;
}

static double yarn_mscale(double a, double factor)
{
    return factor > 1 ? 0.1 * a * log(factor) + 1 : 1;
}

static enum qn_status yarn(const struct scaling *s, struct qn_err *err)
{
    double factor, orig, fast, slow, m, m_all, n = s->p->dims, lb = log(s->p->theta);
    QN_TRY(real_key(s, "factor", 1, 1e-3, 1e6, &factor, err));
    QN_TRY(real_key(s, "original_max_position_embeddings", 4096, 1, 1e9, &orig, err));
    QN_TRY(real_key(s, "beta_fast", 32, 1e-3, 1e6, &fast, err));
    QN_TRY(real_key(s, "beta_slow", 1, 1e-3, 1e6, &slow, err));
    QN_TRY(real_key(s, "mscale", 1, 0, 1e3, &m, err));
    QN_TRY(real_key(s, "mscale_all_dim", 0, 0, 1e3, &m_all, err));
    double lo = floor(n * log(orig / (2 * M_PI * fast)) / (2 * lb));
    double hi = ceil(n * log(orig / (2 * M_PI * slow)) / (2 * lb));
    lo = lo > 0 ? lo : 0;
    hi = hi < n - 1 ? hi : n - 1;
    if (hi == lo)
        hi += 0.001;
    for (int32_t i = 0; i < s->p->dims / 2; i++) {
        double ramp = (i - lo) / (hi - lo), f = wave(s->p, i);
        double keep = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
        s->inv[i] = (factor * f * keep + f * (1 - keep)) / (factor * f * f);
    }
    *s->mscale = yarn_mscale(m, factor) / yarn_mscale(m_all, factor);
    return QN_OK;
}

/* Always the long factors, as mlx-lm does. */
static enum qn_status longrope(const struct scaling *s, struct qn_err *err)
{
    const struct json *v = json_get(s->p->scaling, "long_factor");
    double orig = s->p->orig_max_pos ? s->p->orig_max_pos : 4096;
    QN_TRY(real_key(s, "original_max_position_embeddings", orig, 2, 1e9, &orig, err));
    if (json_len(v) != (size_t)s->p->dims / 2)
        QN_FAIL(err, QN_BAD_INPUT, "rope", "%s: long_factor has %zu entries; expected %d",
                s->p->what, json_len(v), s->p->dims / 2);
    for (int32_t i = 0; i < s->p->dims / 2; i++) {
        double f = json_real(json_at(v, (size_t)i));
        if (!(f >= 1e-6 && f <= 1e6))
            QN_FAIL(err, QN_BAD_INPUT, "rope",
                    "%s: long_factor[%d] is %g; expected a number from 1e-6 to 1e6", s->p->what, i,
                    f);
        s->inv[i] = 1.0 / (f * wave(s->p, i));
    }
    if (s->p->max_pos > orig)
        *s->mscale = sqrt(1 + log(s->p->max_pos / orig) / log(orig));
    return QN_OK;
}

/* The first part of the pairs of the whole head rotates; the rest stands still. */
static enum qn_status proportional(const struct scaling *s, struct qn_err *err)
{
    double part, factor;
    QN_TRY(real_key(s, "partial_rotary_factor", 1, 0, 1, &part, err));
    QN_TRY(real_key(s, "factor", 1, 1e-3, 1e6, &factor, err));
    int32_t n = (int32_t)(s->p->dims * part);
    for (int32_t i = 0; i < s->p->dims / 2; i++)
        s->inv[i] = i < n / 2 ? 1.0 / (factor * wave(s->p, i)) : 0;
    return QN_OK;
}

static const struct {
    const char *name;
    enum qn_status (*fill)(const struct scaling *s, struct qn_err *err);
} types[] = {
    {"default", plain},         {"mrope", plain},   /* its sections concern images only */
    {"linear", linear_scaling}, {"dynamic", plain}, /* up to max_position_embeddings, which bounds
                                                       the context, it is plain */
    {"llama3", llama3},         {"yarn", yarn},     {"deepseek_yarn", yarn},
    {"longrope", longrope},     {"su", longrope},   {"proportional", proportional},
};

/* "type", else "rope_type", else "default". */
static enum qn_status type_of(const struct rope_params *p, struct str *out, struct qn_err *err)
{
    if (p->scaling && json_type(p->scaling) != JSON_OBJ)
        QN_FAIL(err, QN_BAD_INPUT, "rope", "%s is of type %s; expected an object or null", p->what,
                json_type_name(p->scaling));
    QN_TRY(json_opt_str(p->scaling, p->what, "rope_type", STR_LIT("default"), out, err));
    return json_opt_str(p->scaling, p->what, "type", *out, out, err);
}

enum qn_status rope_frequencies(const struct rope_params *p, double *inv_freq, double *mscale,
                                struct qn_err *err)
{
    struct str type;
    QN_TRY(type_of(p, &type, err));
    if (p->dims < 2 || p->dims % 2 || p->dims > HEAD_DIM_MAX || !(p->theta > 1))
        QN_FAIL(err, QN_BAD_INPUT, "rope",
                "%s: %d rotated dims and base %g; dims are even, 2 to %d, the base above 1",
                p->what, p->dims, p->theta, HEAD_DIM_MAX);
    *mscale = 1;
    struct scaling s = {p, inv_freq, mscale};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (str_eqz(type, types[i].name))
            return types[i].fill(&s, err);
    QN_FAIL(err, QN_UNSUPPORTED, "rope",
            "%s: type \"" STR_FMT "\" is not known; known are default, linear, dynamic, llama3, "
            "yarn, deepseek_yarn, longrope, su, proportional, mrope",
            p->what, STR_ARG(type));
}

enum qn_status rope_from_config(struct exec *ex, const struct rope_params *p, struct rope **out,
                                struct qn_err *err)
{
    double inv[HEAD_DIM_MAX / 2], mscale;
    QN_TRY(rope_frequencies(p, inv, &mscale, err));
    return rope_create(ex, inv, p->dims, mscale, p->interleaved, out, err);
}
