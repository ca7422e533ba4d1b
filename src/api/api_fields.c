/*
 * api_fields.c - typed reads of a request's fields, with refusals that say what is wrong. Knows
 * JSON and field names, no dialect's answer.
 */
#include "api/api_fields.h"

#include "base/rng.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#define SHOWN_MAX 60 /* bytes of a value quoted in a message */

enum qn_status field_bad(struct api_error *e, const char *param, const struct json *v,
                         const char *expected)
{
    if (!v || json_type(v) == JSON_NULL)
        return api_refuse(e, 400, "invalid_value", param, "%s is missing; expected %s", param,
                          expected);
    if (json_type(v) == JSON_ARR || json_type(v) == JSON_OBJ)
        return api_refuse(e, 400, "invalid_type", param, "%s is an %s; expected %s", param,
                          json_type_name(v), expected);
    struct buf b = {.limit = 1 << 16};
    json_w_value(&b, v);
    size_t n = b.failed ? 0 : b.n;
    bool cut = n > SHOWN_MAX;
    if (cut)
        for (n = SHOWN_MAX; n > 0 && ((unsigned char)b.p[n] & 0xC0) == 0x80; n--)
            ;
    api_refuse(e, 400, "invalid_value", param, "%s is %.*s%s; expected %s", param, (int)n,
               buf_z(&b), cut ? "..." : "", expected);
    buf_free(&b);
    return QN_BAD_INPUT;
}

struct field_name field_name(const char *fmt, ...)
{
    struct field_name n;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(n.s, sizeof n.s, fmt, ap);
    va_end(ap);
    return n;
}

enum qn_status field_bool(const struct json *o, const char *key, bool *io, struct api_error *e)
{
    const struct json *v = json_get(o, key);
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    if (json_type(v) != JSON_BOOL)
        return field_bad(e, key, v, "true or false");
    *io = json_bool(v);
    return QN_OK;
}

enum qn_status field_float(const struct json *o, const char *key, struct field_range r, float *io,
                           struct api_error *e)
{
    const struct json *v = json_get(o, key);
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    double d = json_real(v);
    bool number = json_type(v) == JSON_INT || json_type(v) == JSON_REAL;
    if (number && isfinite(d) && (r.min_open ? d > r.min : d >= r.min) && d <= r.max) {
        *io = (float)d;
        return QN_OK;
    }
    char want[96];
    snprintf(want, sizeof want, "a number %s %g and at most %g",
             r.min_open ? "above" : "of at least", r.min, r.max);
    return field_bad(e, key, v, want);
}

enum qn_status field_i32(const struct json *o, const char *key, int32_t min, int32_t max,
                         int32_t *io, struct api_error *e)
{
    const struct json *v = json_get(o, key);
    int64_t i;
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    if (json_i64(v, &i) && i >= min && i <= max) {
        *io = (int32_t)i;
        return QN_OK;
    }
    char want[96];
    if (max == INT32_MAX)
        snprintf(want, sizeof want, "an integer of at least %d", min);
    else
        snprintf(want, sizeof want, "an integer from %d to %d", min, max);
    return field_bad(e, key, v, want);
}

enum qn_status field_str(const struct json *o, const char *key, struct str *io, struct api_error *e)
{
    const struct json *v = json_get(o, key);
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    if (json_type(v) != JSON_STR)
        return field_bad(e, key, v, "a string");
    *io = json_str(v);
    return QN_OK;
}

enum qn_status field_obj(const struct json *o, const char *key, const struct json **io,
                         struct api_error *e)
{
    const struct json *v = json_get(o, key);
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    if (json_type(v) != JSON_OBJ)
        return field_bad(e, key, v, "an object");
    *io = v;
    return QN_OK;
}

enum qn_status field_arr(const struct json *o, const char *key, const struct json **io,
                         struct api_error *e)
{
    const struct json *v = json_get(o, key);
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    if (json_type(v) != JSON_ARR)
        return field_bad(e, key, v, "an array");
    *io = v;
    return QN_OK;
}

enum qn_status fields_max(const struct json *o, const char *key, int32_t *io, struct api_error *e)
{
    const struct json *v = json_get(o, key);
    int64_t i;
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    if (!json_i64(v, &i) || i < 0)
        return field_bad(e, key, v, "an integer of at least 0");
    *io = i > INT32_MAX ? INT32_MAX : (int32_t)i;
    return QN_OK;
}

enum qn_status fields_max_tokens(const struct json *o, struct api_request *r, struct api_error *e)
{
    r->max_tokens = -1;
    QN_TRY(fields_max(o, "max_tokens", &r->max_tokens, e));
    return fields_max(o, "max_completion_tokens", &r->max_tokens, e);
}

static enum qn_status seed_of(const struct json *o, struct api_request *r, struct api_error *e)
{
    const struct json *v = json_get(o, "seed");
    int64_t i;
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    if (json_i64(v, &i))
        r->sample.seed = (uint64_t)i;
    else if (!json_u64(v, &r->sample.seed))
        return field_bad(e, "seed", v, "a 64-bit integer");
    r->seeded = true;
    return QN_OK;
}

/* A key of logit_bias: a token id in plain decimal. */
static bool token_id_of(struct str s, int32_t limit, int32_t *id)
{
    int64_t v = 0;
    if (s.n == 0 || s.n > 10 || (s.n > 1 && s.p[0] == '0'))
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        v = v * 10 + (s.p[i] - '0');
    }
    *id = (int32_t)v;
    return v < limit;
}

static enum qn_status logit_bias_of(const struct api_model *m, const struct json *o,
                                    struct api_request *r, struct api_error *e)
{
    const struct json *map = NULL;
    QN_TRY(field_obj(o, "logit_bias", &map, e));
    size_t n = json_len(map);
    if (n == 0)
        return QN_OK;
    int32_t limit = tok_size(m->tok) < m->n_vocab ? tok_size(m->tok) : m->n_vocab;
    r->bias = arena_zalloc_n(r->arena, n, sizeof *r->bias);
    if (!r->bias)
        return api_refuse(e, 503, "no_memory", "logit_bias", "no memory for logit_bias");
    struct json_iter it = {0};
    for (size_t i = 0; i < n && json_next(map, &it); i++) {
        double d = json_real(it.val);
        bool number = json_type(it.val) == JSON_INT || json_type(it.val) == JSON_REAL;
        if (!token_id_of(it.key, limit, &r->bias[i].id))
            return api_refuse(e, 400, "invalid_value", "logit_bias",
                              "logit_bias names token \"%.*s\"; the ids of this model are 0 to %d",
                              it.key.n > 40 ? 40 : (int)it.key.n, it.key.p, limit - 1);
        if (!number || !(d >= -100 && d <= 100)) {
            struct field_name name = field_name("logit_bias.%d", r->bias[i].id);
            field_bad(e, name.s, it.val, "a number from -100 to 100");
            snprintf(e->param, sizeof e->param, "logit_bias");
            return QN_BAD_INPUT;
        }
        r->bias[i].bias = (float)d;
        r->sample.n_bias = (int32_t)i + 1;
    }
    r->sample.bias = r->bias;
    return QN_OK;
}

enum qn_status fields_sampling(const struct api_model *m, const struct json *o,
                               struct api_request *r, struct api_error *e)
{
    struct sample_params *s = &r->sample;
    *s = m->defaults;
    s->n_top = -1;
    QN_TRY(field_float(o, "temperature", (struct field_range){0, 2, false}, &s->temperature, e));
    QN_TRY(field_float(o, "top_p", (struct field_range){0, 1, true}, &s->top_p, e));
    QN_TRY(field_float(o, "min_p", (struct field_range){0, 1, false}, &s->min_p, e));
    QN_TRY(field_i32(o, "top_k", 0, INT32_MAX, &s->top_k, e));
    QN_TRY(field_float(o, "presence_penalty", (struct field_range){-2, 2, false},
                       &s->presence_penalty, e));
    QN_TRY(field_float(o, "frequency_penalty", (struct field_range){-2, 2, false},
                       &s->frequency_penalty, e));
    QN_TRY(field_float(o, "repetition_penalty", (struct field_range){0, 100, true},
                       &s->repetition_penalty, e));
    QN_TRY(field_i32(o, "repetition_context_size", 0, INT32_MAX, &s->repetition_window, e));
    QN_TRY(field_float(o, "xtc_probability", (struct field_range){0, 1, false}, &s->xtc_probability,
                       e));
    QN_TRY(
        field_float(o, "xtc_threshold", (struct field_range){0, 0.5, false}, &s->xtc_threshold, e));
    QN_TRY(seed_of(o, r, e));
    if (!r->seeded)
        s->seed = rng_seed_fresh();
    QN_TRY(field_bool(o, "ignore_eos", &r->ignore_eos, e));
    return logit_bias_of(m, o, r, e);
}

enum qn_status fields_stop(const struct json *o, const char *key, struct api_request *r,
                           struct api_error *e)
{
    const struct json *v = json_get(o, key);
    if (json_type(v) == JSON_NULL)
        return QN_OK;
    bool one = json_type(v) == JSON_STR;
    if (!one && json_type(v) != JSON_ARR)
        return field_bad(e, key, v, "a non-empty string or an array of up to 16 of them");
    size_t n = one ? 1 : json_len(v);
    if (n > GEN_STOP_MAX)
        return api_refuse(e, 400, "invalid_value", key, "%s holds %zu strings; expected at most %d",
                          key, n, GEN_STOP_MAX);
    for (size_t i = 0; i < n; i++) {
        const struct json *s = one ? v : json_at(v, i);
        if (json_type(s) != JSON_STR)
            return field_bad(e, key, s, "non-empty strings");
        if (json_str(s).n == 0)
            return api_refuse(e, 400, "invalid_value", key,
                              "%s holds an empty string; expected non-empty strings", key);
        if (json_str(s).n > GEN_STOP_BYTES_MAX)
            return api_refuse(e, 400, "invalid_value", key,
                              "%s holds a string of %zu bytes; expected at most %d", key,
                              json_str(s).n, GEN_STOP_BYTES_MAX);
        r->stop[r->n_stop++] = json_str(s);
    }
    return QN_OK;
}

enum qn_status fields_control(const struct json *o, struct api_request *r, struct api_error *e)
{
    const struct json *opt = NULL;
    r->n = 1;
    QN_TRY(field_bool(o, "stream", &r->stream, e));
    QN_TRY(field_obj(o, "stream_options", &opt, e));
    if (opt && !r->stream)
        return api_refuse(e, 400, "invalid_value", "stream_options",
                          "stream_options is only allowed together with \"stream\": true");
    QN_TRY(field_bool(opt, "include_usage", &r->include_usage, e));
    QN_TRY(field_i32(o, "n", 1, API_N_MAX, &r->n, e));
    QN_TRY(field_str(o, "user", &r->user, e));
    QN_TRY(field_str(o, "cache_salt", &r->cache_salt, e));
    return fields_stop(o, "stop", r, e);
}
