/*
 * gen_defaults.c - see gen_defaults.h. Keys follow transformers' GenerationConfig; those that are
 * not about sampling (lengths, beams, token ids) are left to others. Pure apart from the read.
 */
#include "sched/gen_defaults.h"

#define WHAT             "generation_config.json"
#define CONFIG_BYTES_MAX (1u << 20)

static enum qn_status real_field(const struct json *config, const char *key, double min, double max,
                                 float *io, struct qn_err *err)
{
    double v;
    QN_TRY(json_opt_real(config, WHAT, key, (double)*io, min, max, &v, err));
    *io = (float)v;
    return QN_OK;
}

enum qn_status gen_defaults_apply(const struct json *config, struct sample_params *io,
                                  struct qn_err *err)
{
    if (json_type(config) != JSON_OBJ)
        QN_FAIL(err, QN_BAD_INPUT, "gen_defaults", WHAT ": is %s; expected an object",
                json_type_name(config));
    bool do_sample;
    int32_t top_k;
    struct sample_params p = *io;
    QN_TRY(json_opt_bool(config, WHAT, "do_sample", true, &do_sample, err));
    QN_TRY(real_field(config, "temperature", 0, 2, &p.temperature, err));
    QN_TRY(real_field(config, "top_p", 0, 1, &p.top_p, err));
    QN_TRY(real_field(config, "min_p", 0, 1, &p.min_p, err));
    QN_TRY(real_field(config, "repetition_penalty", 0.01, 100, &p.repetition_penalty, err));
    QN_TRY(json_opt_i32(config, WHAT, "top_k", p.top_k, -1, INT32_MAX, &top_k, err));
    p.top_k = top_k > 0 ? top_k : 0; /* 0 and -1 both mean "off" in the wild */
    if (p.top_p <= 0)                /* likewise */
        p.top_p = 1;
    if (!do_sample)
        p.temperature = 0;
    *io = p;
    return QN_OK;
}

enum qn_status gen_defaults_load(const char *dir, struct sample_params *io, struct qn_err *err)
{
    struct json *doc = NULL;
    QN_TRY(json_load_if(dir, WHAT, CONFIG_BYTES_MAX, &doc, err));
    enum qn_status st = doc ? gen_defaults_apply(doc, io, err) : QN_OK;
    json_free(doc);
    return st;
}
