/*
 * api_fields.h - typed reads of a request's fields. A missing or null field leaves *io as it is; a
 * wrong type or a value out of range is a 400 that names the field, the value and what is allowed.
 */
#ifndef API_API_FIELDS_H
#define API_API_FIELDS_H

#include "api/ir.h"

struct field_range {
    double min, max;
    bool min_open; /* min itself is not allowed */
};

enum qn_status field_bool(const struct json *o, const char *key, bool *io, struct api_error *e);
enum qn_status field_float(const struct json *o, const char *key, struct field_range r, float *io,
                           struct api_error *e);
enum qn_status field_i32(const struct json *o, const char *key, int32_t min, int32_t max,
                         int32_t *io, struct api_error *e);
enum qn_status field_str(const struct json *o, const char *key, struct str *io,
                         struct api_error *e);
/* NULL (absent or null) is fine. */
enum qn_status field_obj(const struct json *o, const char *key, const struct json **io,
                         struct api_error *e);
enum qn_status field_arr(const struct json *o, const char *key, const struct json **io,
                         struct api_error *e);
/* The name of a nested field, cut at a readable length: "messages[3].content[0].type". */
struct field_name {
    char s[96];
};
struct field_name field_name(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* 400 "param is VALUE; expected EXPECTED", the value cut to a readable length. */
enum qn_status field_bad(struct api_error *e, const char *param, const struct json *v,
                         const char *expected);

/* A limit of tokens under `key`: an integer of at least 0, huge ones cut to what fits. */
enum qn_status fields_max(const struct json *o, const char *key, int32_t *io, struct api_error *e);
/* max_tokens and, winning, max_completion_tokens. */
enum qn_status fields_max_tokens(const struct json *o, struct api_request *r, struct api_error *e);
/* temperature, top_p, ... seed, logit_bias, penalties, over the model's defaults. */
enum qn_status fields_sampling(const struct api_model *m, const struct json *o,
                               struct api_request *r, struct api_error *e);
/* Stop strings under `key`: one, or an array of them. */
enum qn_status fields_stop(const struct json *o, const char *key, struct api_request *r,
                           struct api_error *e);
/* stop, n, stream, stream_options, user. */
enum qn_status fields_control(const struct json *o, struct api_request *r, struct api_error *e);

#endif
