/*
 * json_write.c - writing, see json.h. Only appends to the caller's buffer; a failed growth is seen
 * by the caller's buf_ok. No state besides struct jw. Pure: any thread.
 */
#include "json.h"

#include "utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void add_escape(struct buf *out, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *hit = c ? strchr(from, c) : NULL;
    if (hit) {
        char e[2] = {'\\', to[hit - from]};
        buf_add(out, e, 2);
    } else {
        buf_addf(out, "\\u%04x", c);
    }
}

static void add_valid(struct buf *out, struct str s)
{
    size_t from = 0;
    for (size_t i = 0; i < s.n; i++) {
        unsigned char c = (unsigned char)s.p[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7F)
            continue;
        buf_add(out, s.p + from, i - from);
        add_escape(out, c);
        from = i + 1;
    }
    buf_add(out, s.p + from, s.n - from);
}

void json_w_str(struct buf *out, struct str s)
{
    buf_addc(out, '"');
    for (size_t i = 0; i < s.n;) {
        struct str rest = {s.p + i, s.n - i};
        rest.n = utf8_valid_prefix(rest);
        add_valid(out, rest);
        i += rest.n;
        if (i < s.n) {
            utf8_next(s, &i);
            buf_add_utf8(out, 0xFFFD);
        }
    }
    buf_addc(out, '"');
}

void json_w_strz(struct buf *out, const char *z)
{
    json_w_str(out, str_of(z));
}

/* The fewest significant digits that read back equal: if n digits do, n + 1 do, so bisect. */
static void shortest(char *text, size_t n, double v)
{
    int lo = 1, hi = 17;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        snprintf(text, n, "%.*g", mid, v);
        if (strtod(text, NULL) == v)
            hi = mid;
        else
            lo = mid + 1;
    }
    snprintf(text, n, "%.*g", lo, v);
}

void json_w_real(struct buf *out, double v)
{
    char text[40];
    if (!isfinite(v)) {
        buf_addz(out, "null");
        return;
    }
    if (v == trunc(v) && fabs(v) < 1e15)
        snprintf(text, sizeof text, "%.1f", v);
    else
        shortest(text, sizeof text, v);
    for (char *c = text; *c; c++) {
        if (*c == ',')
            *c = '.'; /* the decimal comma of a locale that a library may have set */
    }
    buf_addz(out, text);
}

void json_w_i64(struct buf *out, int64_t v)
{
    buf_addf(out, "%lld", (long long)v);
}

/* Recursion is bounded by the depth the document was parsed with (at most 1024, json_check.c). */
void json_w_value(struct buf *out, const struct json *v)
{
    const char *sep = "";
    struct json_iter it = {0};
    switch (json_type(v)) {
    case JSON_NULL:
        buf_addz(out, "null");
        break;
    case JSON_BOOL:
        buf_addz(out, json_bool(v) ? "true" : "false");
        break;
    case JSON_INT:
    case JSON_REAL:
        json_number_text(v, out);
        break;
    case JSON_STR:
        json_w_str(out, json_str(v));
        break;
    case JSON_ARR:
        buf_addc(out, '[');
        for (size_t i = 0, n = json_len(v); i < n; i++, sep = ",") {
            buf_addz(out, sep);
            json_w_value(out, json_at(v, i));
        }
        buf_addc(out, ']');
        break;
    case JSON_OBJ:
        buf_addc(out, '{');
        for (; json_next(v, &it); sep = ",") {
            buf_addz(out, sep);
            json_w_str(out, it.key);
            buf_addc(out, ':');
            json_w_value(out, it.val);
        }
        buf_addc(out, '}');
        break;
    }
}

/* ---- struct jw ------------------------------------------------------------------------------ */

void jw_init(struct jw *w, struct buf *out)
{
    *w = (struct jw){.out = out};
}

/* Before a value or key: the comma, when something stands before it at this depth. */
static void comma(struct jw *w)
{
    uint32_t bit = 1u << w->depth;
    if (w->more & bit)
        buf_addc(w->out, ',');
    w->more |= bit;
}

static void open_level(struct jw *w, char c)
{
    comma(w);
    buf_addc(w->out, c);
    QN_ASSERT(w->depth < 31);
    w->depth++;
    w->more &= ~(1u << w->depth);
}

static void close_level(struct jw *w, char c)
{
    QN_ASSERT(w->depth > 0);
    w->depth--;
    buf_addc(w->out, c);
}

void jw_obj(struct jw *w)
{
    open_level(w, '{');
}

void jw_obj_end(struct jw *w)
{
    close_level(w, '}');
}

void jw_arr(struct jw *w)
{
    open_level(w, '[');
}

void jw_arr_end(struct jw *w)
{
    close_level(w, ']');
}

void jw_key(struct jw *w, const char *key)
{
    comma(w);
    json_w_strz(w->out, key);
    buf_addc(w->out, ':');
    w->more &= ~(1u << w->depth); /* its value stands right after the colon */
}

void jw_str(struct jw *w, struct str s)
{
    comma(w);
    json_w_str(w->out, s);
}

void jw_strz(struct jw *w, const char *z)
{
    if (z)
        jw_str(w, str_of(z));
    else
        jw_null(w);
}

void jw_i64(struct jw *w, int64_t v)
{
    comma(w);
    json_w_i64(w->out, v);
}

void jw_real(struct jw *w, double v)
{
    comma(w);
    json_w_real(w->out, v);
}

void jw_bool(struct jw *w, bool v)
{
    comma(w);
    buf_addz(w->out, v ? "true" : "false");
}

void jw_null(struct jw *w)
{
    comma(w);
    buf_addz(w->out, "null");
}

void jw_raw(struct jw *w, struct str json_text)
{
    comma(w);
    buf_add_str(w->out, json_text);
}

void jw_value(struct jw *w, const struct json *v)
{
    comma(w);
    json_w_value(w->out, v);
}

void jw_kstr(struct jw *w, const char *key, struct str s)
{
    jw_key(w, key);
    jw_str(w, s);
}

void jw_kstrz(struct jw *w, const char *key, const char *z)
{
    jw_key(w, key);
    jw_strz(w, z);
}

void jw_ki64(struct jw *w, const char *key, int64_t v)
{
    jw_key(w, key);
    jw_i64(w, v);
}

void jw_kreal(struct jw *w, const char *key, double v)
{
    jw_key(w, key);
    jw_real(w, v);
}

void jw_kbool(struct jw *w, const char *key, bool v)
{
    jw_key(w, key);
    jw_bool(w, v);
}

void jw_knull(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_null(w);
}
