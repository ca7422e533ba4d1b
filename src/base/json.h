/*
 * json.h - JSON behind one small face, so that the library under it (json-c) can be replaced.
 *
 * Reading is strict (RFC 8259): valid UTF-8 only, no lone surrogate escapes, no byte-order mark, no
 * trailing data, depth at most `depth_max`, duplicate keys: the last wins. The order of keys is
 * kept. A key may not contain \u0000. A document is immutable after parsing and may be read from
 * several threads. A null value is a NULL pointer: parsing "null" succeeds with *out = NULL.
 * Borrowed: every `struct str` and `const struct json *` lives as long as its document.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include "buf.h"

struct json; /* one value inside a document */

enum json_type { JSON_NULL, JSON_BOOL, JSON_INT, JSON_REAL, JSON_STR, JSON_ARR, JSON_OBJ };

#define JSON_DEPTH_MAX 64 /* what to ask for; at most 1024 */

/* Parses text. `what` names the source in messages ("config.json", "body"); errors are
 * QN_BAD_INPUT with the byte offset. The document is freed with json_free(*out). */
enum qn_status json_parse(struct str text, const char *what, int depth_max, struct json **out,
                          struct qn_err *err);
/* Parses DIR/NAME of at most max bytes, nested JSON_DEPTH_MAX deep; errors name the file. */
enum qn_status json_load(const char *dir, const char *name, size_t max, struct json **out,
                         struct qn_err *err);
/* The same; a file that is not there leaves *out NULL. */
enum qn_status json_load_if(const char *dir, const char *name, size_t max, struct json **out,
                            struct qn_err *err);
void json_free(struct json *doc); /* NULL is fine */
/* About how many bytes json_parse would take for the values of text (any text, valid or not): a
 * pair of brackets costs hundreds of them. To be asked before text from a stranger is parsed. */
size_t json_memory(struct str text);
/* The strict grammar check alone, without building anything. */
enum qn_status json_check(struct str text, const char *what, int depth_max, struct qn_err *err);

/* A NULL value reads as JSON_NULL everywhere below, so lookups can be chained. */
enum json_type json_type(const struct json *v);
const char *json_type_name(const struct json *v); /* "null", "boolean", "integer", ... */
const struct json *json_get(const struct json *obj, const char *key); /* NULL when absent */
const struct json *json_get_str(const struct json *obj, struct str key);
bool json_has(const struct json *obj, const char *key);     /* present, and not null */
bool json_is_null(const struct json *obj, const char *key); /* present, and null */
size_t json_len(const struct json *v); /* elements of an array or members of an object, else 0 */
const struct json *json_at(const struct json *arr, size_t i);

/* Values without conversion: JSON_STR -> view, otherwise {NULL,0}. */
struct str json_str(const struct json *v);
bool json_bool(const struct json *v);   /* false unless JSON_BOOL true */
double json_real(const struct json *v); /* INT or REAL, else 0 */
/* JSON_INT, or JSON_REAL with an integral value such as 3.0, that fits; false otherwise. A literal
 * beyond 64 bits has type JSON_REAL. */
bool json_i64(const struct json *v, int64_t *out);
bool json_u64(const struct json *v, uint64_t *out);
/* The number as it was written, for tool arguments and templates: valid JSON text. */
void json_number_text(const struct json *v, struct buf *out);

/* Iterates an object in order: `struct json_iter it = {0}; while (json_next(obj, &it)) ...` */
struct json_iter {
    struct str key;
    const struct json *val;
    const void *state;
    bool started;
};
bool json_next(const struct json *obj, struct json_iter *it);

/* Typed getters for configs: a missing (or null) key gives the default; a wrong type or a value out
 * of [min,max] fails with "WHAT: KEY is ...; expected ...". `what` is the file's name. */
enum qn_status json_opt_i64(const struct json *obj, const char *what, const char *key, int64_t def,
                            int64_t min, int64_t max, int64_t *out, struct qn_err *err);
enum qn_status json_opt_i32(const struct json *obj, const char *what, const char *key, int32_t def,
                            int32_t min, int32_t max, int32_t *out, struct qn_err *err);
enum qn_status json_opt_real(const struct json *obj, const char *what, const char *key, double def,
                             double min, double max, double *out, struct qn_err *err);
enum qn_status json_opt_bool(const struct json *obj, const char *what, const char *key, bool def,
                             bool *out, struct qn_err *err);
/* {NULL,0} as default is allowed. */
enum qn_status json_opt_str(const struct json *obj, const char *what, const char *key,
                            struct str def, struct str *out, struct qn_err *err);
/* Required: fails when absent. */
enum qn_status json_req_i32(const struct json *obj, const char *what, const char *key, int32_t min,
                            int32_t max, int32_t *out, struct qn_err *err);

/* ---- writing: plain appends; the caller places commas through the helpers below ------------- */

/* "text" with quotes and escapes; invalid UTF-8 becomes U+FFFD. Non-ASCII stays as it is. */
void json_w_str(struct buf *out, struct str s);
void json_w_strz(struct buf *out, const char *z);
/* Shortest text that reads back equal, whole numbers with ".0"; NaN and infinities: null. */
void json_w_real(struct buf *out, double v);
void json_w_i64(struct buf *out, int64_t v);
/* The value as compact JSON (no spaces), numbers as written. */
void json_w_value(struct buf *out, const struct json *v);

/* A small state machine for objects and arrays: handles commas. Depth at most 32. */
struct jw {
    struct buf *out;
    uint32_t more; /* bit d: something was already written at depth d */
    int depth;
};
void jw_init(struct jw *w, struct buf *out);
void jw_obj(struct jw *w);
void jw_obj_end(struct jw *w);
void jw_arr(struct jw *w);
void jw_arr_end(struct jw *w);
void jw_key(struct jw *w, const char *key);
void jw_str(struct jw *w, struct str s);
void jw_strz(struct jw *w, const char *z); /* NULL writes null */
void jw_i64(struct jw *w, int64_t v);
void jw_real(struct jw *w, double v);
void jw_bool(struct jw *w, bool v);
void jw_null(struct jw *w);
void jw_raw(struct jw *w, struct str json_text); /* one complete value */
void jw_value(struct jw *w, const struct json *v);
/* key + value in one call */
void jw_kstr(struct jw *w, const char *key, struct str s);
void jw_kstrz(struct jw *w, const char *key, const char *z);
void jw_ki64(struct jw *w, const char *key, int64_t v);
void jw_kreal(struct jw *w, const char *key, double v);
void jw_kbool(struct jw *w, const char *key, bool v);
void jw_knull(struct jw *w, const char *key);

#endif
