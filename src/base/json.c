/*
 * json.c - reading, see json.h. json-c builds and owns the values; json_check.c has refused
 * everything it would be lenient about. A `struct json *` is a `json_object *`; null is NULL, as
 * in json-c.
 *
 * Numbers keep their text: json-c does so for reals, so integer literals that it would clamp
 * (beyond 64 bits) or rewrite ("-0") are handed to it as reals with the mark "e+00" appended, and
 * the mark is taken off again on the way out. Literals that look marked get one more zero, so the
 * way back is exact.
 */
#include "json.h"

#include "fault.h"
#include "file.h"
#include "json_check.h"

/* json-c has types of the same names as two functions of ours. */
#define json_bool jsonc_bool
#define json_type jsonc_type
#include <json-c/json.h>
#undef json_bool
#undef json_type

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static json_object *obj_of(const struct json *v)
{
    return (json_object *)(uintptr_t)v;
}

static struct json *json_of(json_object *o)
{
    return (struct json *)o;
}

/* ---- parsing -------------------------------------------------------------------------------- */

static void copy_marked(struct buf *out, struct str text)
{
    size_t from = 0;
    for (size_t i = 0; i < text.n;) {
        if (text.p[i] == '"') {
            for (i++; text.p[i] != '"'; i++)
                i += text.p[i] == '\\';
            i++;
        } else if (text.p[i] == '-' || (text.p[i] >= '0' && text.p[i] <= '9')) {
            struct str lit = {text.p + i, json_number_len(text, i)};
            i += lit.n;
            bool keep = json_is_integer(lit) && !json_integer_fits(lit);
            if (!keep && !json_is_marked(lit))
                continue;
            buf_add(out, text.p + from, i - from);
            buf_addz(out, keep ? "e+00" : "0");
            from = i;
        } else {
            i++;
        }
    }
    buf_add(out, text.p + from, text.n - from);
}

static enum qn_status build(struct str text, const char *what, int depth_max, struct json **out,
                            struct qn_err *err)
{
    /* json-c counts the value itself as a level; its own recursion is on the same bound. */
    json_tokener *tok = fault_point("json.build") ? NULL : json_tokener_new_ex(depth_max + 1);
    if (!tok)
        QN_FAIL(err, QN_NO_MEMORY, "json", "%s: no memory to parse %zu bytes", what, text.n);
    json_object *o = json_tokener_parse_ex(tok, text.p, (int)text.n);
    /* A number at the top level ends only at the next character: give it one. */
    if (json_tokener_get_error(tok) == json_tokener_continue)
        o = json_tokener_parse_ex(tok, "", 1);
    enum json_tokener_error e = json_tokener_get_error(tok);
    json_tokener_free(tok);
    if (e != json_tokener_success) {
        json_object_put(o);
        QN_FAIL(err, QN_NO_MEMORY, "json", "%s: no memory for the values of %zu bytes (%s)", what,
                text.n, json_tokener_error_desc(e));
    }
    *out = json_of(o);
    return QN_OK;
}

enum qn_status json_parse(struct str text, const char *what, int depth_max, struct json **out,
                          struct qn_err *err)
{
    size_t kept;
    *out = NULL;
    if (text.n > INT_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "json", "%s: %zu bytes of JSON; the limit is %d", what, text.n,
                INT_MAX);
    QN_TRY(json_check_count(text, what, depth_max, &kept, err));
    if (kept == 0)
        return build(text, what, depth_max, out, err);
    struct buf marked = BUF_INIT;
    marked.limit = INT_MAX;
    copy_marked(&marked, text);
    enum qn_status s = buf_ok(&marked, what, err);
    if (s == QN_OK)
        s = build(buf_str(&marked), what, depth_max, out, err);
    buf_free(&marked);
    return s;
}

static enum qn_status load(const char *dir, const char *name, size_t max, bool may_lack,
                           struct json **out, struct qn_err *err)
{
    struct buf path = BUF_INIT, text = BUF_INIT;
    *out = NULL;
    path_join(&path, dir, name);
    enum qn_status st = buf_ok(&path, "path", err);
    if (st == QN_OK && (!may_lack || file_exists(buf_z(&path)))) {
        st = file_read(buf_z(&path), max, &text, err);
        if (st == QN_OK)
            st = json_parse(buf_str(&text), name, JSON_DEPTH_MAX, out, err);
    }
    buf_free(&path);
    buf_free(&text);
    return st;
}

enum qn_status json_load(const char *dir, const char *name, size_t max, struct json **out,
                         struct qn_err *err)
{
    return load(dir, name, max, false, out, err);
}

enum qn_status json_load_if(const char *dir, const char *name, size_t max, struct json **out,
                            struct qn_err *err)
{
    return load(dir, name, max, true, out, err);
}

void json_free(struct json *doc)
{
    json_object_put(obj_of(doc));
}

/* ---- reading values ------------------------------------------------------------------------- */

/* The text json-c kept for a real. */
static struct str real_text(const struct json *v)
{
    return str_of(json_object_get_userdata(obj_of(v)));
}

enum json_type json_type(const struct json *v)
{
    switch (json_object_get_type(obj_of(v))) {
    case json_type_boolean:
        return JSON_BOOL;
    case json_type_int:
        return JSON_INT;
    case json_type_double:
        return str_eqz(real_text(v), "-0e+00") ? JSON_INT : JSON_REAL;
    case json_type_string:
        return JSON_STR;
    case json_type_array:
        return JSON_ARR;
    case json_type_object:
        return JSON_OBJ;
    default:
        return JSON_NULL;
    }
}

const char *json_type_name(const struct json *v)
{
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    return names[json_type(v)];
}

static bool is(const struct json *v, enum json_type t)
{
    return v && json_type(v) == t;
}

const struct json *json_get(const struct json *obj, const char *key)
{
    json_object *v = NULL;
    if (!is(obj, JSON_OBJ))
        return NULL;
    json_object_object_get_ex(obj_of(obj), key, &v);
    return json_of(v);
}

const struct json *json_get_str(const struct json *obj, struct str key)
{
    char z[256];
    if (key.n && memchr(key.p, 0, key.n))
        return NULL; /* no key holds a NUL: json_check refuses them */
    if (key.n < sizeof z) {
        if (key.n)
            memcpy(z, key.p, key.n);
        z[key.n] = 0;
        return json_get(obj, z);
    }
    struct json_iter it = {0};
    while (json_next(obj, &it)) {
        if (str_eq(it.key, key))
            return it.val;
    }
    return NULL;
}

bool json_has(const struct json *obj, const char *key)
{
    return json_get(obj, key) != NULL;
}

bool json_is_null(const struct json *obj, const char *key)
{
    json_object *v = NULL;
    return is(obj, JSON_OBJ) && json_object_object_get_ex(obj_of(obj), key, &v) && !v;
}

size_t json_len(const struct json *v)
{
    if (is(v, JSON_ARR))
        return json_object_array_length(obj_of(v));
    return is(v, JSON_OBJ) ? (size_t)json_object_object_length(obj_of(v)) : 0;
}

const struct json *json_at(const struct json *arr, size_t i)
{
    return is(arr, JSON_ARR) ? json_of(json_object_array_get_idx(obj_of(arr), i)) : NULL;
}

struct str json_str(const struct json *v)
{
    if (!is(v, JSON_STR))
        return (struct str){NULL, 0};
    return (struct str){json_object_get_string(obj_of(v)),
                        (size_t)json_object_get_string_len(obj_of(v))};
}

bool json_bool(const struct json *v)
{
    return is(v, JSON_BOOL) && json_object_get_boolean(obj_of(v));
}

static bool is_big_u64(const struct json *v)
{
    return json_object_get_uint64(obj_of(v)) > (uint64_t)INT64_MAX;
}

double json_real(const struct json *v)
{
    if (json_object_get_type(obj_of(v)) == json_type_double)
        return json_object_get_double(obj_of(v));
    if (!is(v, JSON_INT))
        return 0;
    return is_big_u64(v) ? (double)json_object_get_uint64(obj_of(v))
                         : (double)json_object_get_int64(obj_of(v));
}

bool json_i64(const struct json *v, int64_t *out)
{
    if (json_object_get_type(obj_of(v)) == json_type_double) {
        double d = json_object_get_double(obj_of(v));
        if (!(d >= -0x1p63 && d < 0x1p63) || d != trunc(d))
            return false;
        *out = (int64_t)d;
        return true;
    }
    if (!is(v, JSON_INT) || is_big_u64(v))
        return false;
    *out = json_object_get_int64(obj_of(v));
    return true;
}

bool json_u64(const struct json *v, uint64_t *out)
{
    if (json_object_get_type(obj_of(v)) == json_type_double) {
        double d = json_object_get_double(obj_of(v));
        if (!(d >= 0 && d < 0x1p64) || d != trunc(d))
            return false;
        *out = (uint64_t)d;
        return true;
    }
    if (!is(v, JSON_INT) || json_object_get_int64(obj_of(v)) < 0)
        return false;
    *out = json_object_get_uint64(obj_of(v));
    return true;
}

void json_number_text(const struct json *v, struct buf *out)
{
    if (json_object_get_type(obj_of(v)) == json_type_double) {
        struct str t = real_text(v);
        if (json_is_marked(t))
            t.n -= t.p[t.n - 3] == '+' ? 4 : 1;
        buf_add_str(out, t);
    } else if (is(v, JSON_INT) && is_big_u64(v)) {
        buf_addf(out, "%llu", (unsigned long long)json_object_get_uint64(obj_of(v)));
    } else if (is(v, JSON_INT)) {
        buf_addf(out, "%lld", (long long)json_object_get_int64(obj_of(v)));
    }
}

bool json_next(const struct json *obj, struct json_iter *it)
{
    const struct lh_entry *e = it->state;
    if (!it->started)
        e = is(obj, JSON_OBJ) ? lh_table_head(json_object_get_object(obj_of(obj))) : NULL;
    else if (e)
        e = lh_entry_next(e);
    it->started = true;
    it->state = e;
    if (!e)
        return false;
    it->key = str_of(lh_entry_k(e));
    it->val = lh_entry_v(e);
    return true;
}

/* ---- typed getters -------------------------------------------------------------------------- */

/* How a wrong value is shown: numbers and booleans as they are, short strings quoted, else the
 * type's name. */
static void show(const struct json *v, struct buf *out)
{
    bool scalar = is(v, JSON_INT) || is(v, JSON_REAL) || is(v, JSON_BOOL);
    if (scalar || (is(v, JSON_STR) && json_str(v).n <= 60))
        json_w_value(out, v);
    else
        buf_addf(out, "%s %s", is(v, JSON_INT) || is(v, JSON_ARR) || is(v, JSON_OBJ) ? "an" : "a",
                 json_type_name(v));
}

static enum qn_status wrong(const struct json *v, const char *what, const char *key,
                            struct qn_err *err, const char *expected)
{
    struct buf seen = BUF_INIT;
    show(v, &seen);
    err_set(err, QN_BAD_INPUT, "json", "%s: %s is %.80s; expected %s", what, key, buf_z(&seen),
            expected);
    buf_free(&seen);
    return QN_BAD_INPUT;
}

enum qn_status json_opt_i64(const struct json *obj, const char *what, const char *key, int64_t def,
                            int64_t min, int64_t max, int64_t *out, struct qn_err *err)
{
    const struct json *v = json_get(obj, key);
    int64_t x = def;
    if (v && (!json_i64(v, &x) || x < min || x > max)) {
        char want[96];
        snprintf(want, sizeof want, "an integer in [%lld, %lld]", (long long)min, (long long)max);
        return wrong(v, what, key, err, want);
    }
    *out = x;
    return QN_OK;
}

enum qn_status json_opt_i32(const struct json *obj, const char *what, const char *key, int32_t def,
                            int32_t min, int32_t max, int32_t *out, struct qn_err *err)
{
    int64_t x = def;
    QN_TRY(json_opt_i64(obj, what, key, def, min, max, &x, err));
    *out = (int32_t)x;
    return QN_OK;
}

enum qn_status json_opt_real(const struct json *obj, const char *what, const char *key, double def,
                             double min, double max, double *out, struct qn_err *err)
{
    const struct json *v = json_get(obj, key);
    double x = def;
    if (v) {
        bool number = is(v, JSON_INT) || is(v, JSON_REAL);
        x = json_real(v);
        if (!number || !(x >= min && x <= max)) {
            char want[96];
            snprintf(want, sizeof want, "a number in [%g, %g]", min, max);
            return wrong(v, what, key, err, want);
        }
    }
    *out = x;
    return QN_OK;
}

enum qn_status json_opt_bool(const struct json *obj, const char *what, const char *key, bool def,
                             bool *out, struct qn_err *err)
{
    const struct json *v = json_get(obj, key);
    if (v && !is(v, JSON_BOOL))
        return wrong(v, what, key, err, "true or false");
    *out = v ? json_bool(v) : def;
    return QN_OK;
}

enum qn_status json_opt_str(const struct json *obj, const char *what, const char *key,
                            struct str def, struct str *out, struct qn_err *err)
{
    const struct json *v = json_get(obj, key);
    if (v && !is(v, JSON_STR))
        return wrong(v, what, key, err, "a string");
    *out = v ? json_str(v) : def;
    return QN_OK;
}

enum qn_status json_req_i32(const struct json *obj, const char *what, const char *key, int32_t min,
                            int32_t max, int32_t *out, struct qn_err *err)
{
    if (!json_has(obj, key))
        QN_FAIL(err, QN_BAD_INPUT, "json", "%s: %s is missing; expected an integer in [%d, %d]",
                what, key, (int)min, (int)max);
    return json_opt_i32(obj, what, key, 0, min, max, out, err);
}
