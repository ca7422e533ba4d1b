/*
 * jsonfix.c - from nearly JSON to strict JSON, one byte at a time; see jsonfix.h. Belongs to
 * whoever owns the struct.
 */
#include "api/toolcall/jsonfix.h"

#include "base/json.h"

void jsonfix_start(struct jsonfix *f)
{
    struct buf out = f->out, word = f->word;
    buf_clear(&out);
    buf_clear(&word);
    *f = (struct jsonfix){.out = out, .word = word, .state = JF_VALUE};
}

void jsonfix_free(struct jsonfix *f)
{
    buf_free(&f->out);
    buf_free(&f->word);
}

bool jsonfix_in_string(const struct jsonfix *f)
{
    return f->state == JF_STRING || f->state == JF_ESCAPE || f->state == JF_HEX;
}

static void put_escaped(struct buf *out, unsigned char c)
{
    if (c == '"' || c == '\\')
        buf_addc(out, '\\');
    if (c >= 0x20)
        buf_addc(out, (char)c);
    else if (c == '\n')
        buf_addz(out, "\\n");
    else if (c == '\t')
        buf_addz(out, "\\t");
    else if (c == '\r')
        buf_addz(out, "\\r");
    else
        buf_addf(out, "\\u%04x", c);
}

void jsonfix_escape(struct buf *out, struct str text)
{
    for (size_t i = 0; i < text.n; i++)
        put_escaped(out, (unsigned char)text.p[i]);
}

static bool space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool in_object(const struct jsonfix *f)
{
    return f->depth > 0 && (f->is_obj >> (f->depth - 1) & 1);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void write_comma(struct jsonfix *f)
{
    if (f->comma)
        buf_addc(&f->out, ',');
    f->comma = false;
}

static void begin_value(struct jsonfix *f)
{
    write_comma(f);
    if (f->depth == 1)
        f->value_at = f->out.n;
}

static enum jsonfix_result end_value(struct jsonfix *f)
{
    if (f->depth == 1) {
        f->value_end = f->out.n;
        f->value_done = true;
    }
    f->state = f->depth > 0 ? JF_AFTER : JF_END;
    return f->depth > 0 ? JSONFIX_MORE : JSONFIX_DONE;
}

static enum jsonfix_result open(struct jsonfix *f, bool object)
{
    if (f->depth == JSONFIX_DEPTH)
        return JSONFIX_BAD;
    begin_value(f);
    buf_addc(&f->out, object ? '{' : '[');
    uint64_t bit = (uint64_t)1 << f->depth;
    f->is_obj = object ? f->is_obj | bit : f->is_obj & ~bit;
    f->depth++;
    f->state = object ? JF_KEY : JF_VALUE;
    return JSONFIX_MORE;
}

static enum jsonfix_result shut(struct jsonfix *f)
{
    f->comma = false; /* a trailing one */
    buf_addc(&f->out, in_object(f) ? '}' : ']');
    f->depth--;
    return end_value(f);
}

static bool quotes(char c)
{
    return c == '"' || c == '\'' || c == JSONFIX_QUOTE;
}

static void open_string(struct jsonfix *f, char quote, bool key)
{
    if (key)
        write_comma(f);
    else
        begin_value(f);
    if (key && f->depth == 1)
        f->key_at = f->out.n;
    buf_addc(&f->out, '"');
    f->quote = quote;
    f->in_key = key;
    f->state = JF_STRING;
}

static enum jsonfix_result end_string(struct jsonfix *f)
{
    if (f->high)
        buf_addz(&f->out, "\\ufffd");
    f->high = 0;
    buf_addc(&f->out, '"');
    if (!f->in_key)
        return end_value(f);
    f->state = JF_COLON;
    return JSONFIX_MORE;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Numbers as Python writes them but JSON does not: +1, .5, 1., 1_000. False: no such number. */
static bool fix_number(struct str w, struct buf *out)
{
    struct buf t = BUF_INIT;
    bool digits = false;
    for (size_t i = 0; i < w.n; i++) {
        bool digit = w.p[i] >= '0' && w.p[i] <= '9';
        if (w.p[i] == '+' && i == 0)
            continue;
        if (w.p[i] == '_' && digits)
            continue;
        if (w.p[i] == '.' && !digits)
            buf_addc(&t, '0');
        buf_addc(&t, w.p[i]);
        if (w.p[i] == '.' && (i + 1 == w.n || w.p[i + 1] < '0' || w.p[i + 1] > '9'))
            buf_addc(&t, '0');
        digits |= digit;
    }
    bool ok = digits && !t.failed && json_check(buf_str(&t), "number", 2, NULL) == QN_OK;
    if (ok)
        buf_add_str(out, buf_str(&t));
    buf_free(&t);
    return ok;
}

static void write_word(struct jsonfix *f)
{
    static const char *const names[][2] = {{"true", "true"},   {"True", "true"}, {"false", "false"},
                                           {"False", "false"}, {"null", "null"}, {"None", "null"}};
    struct str w = buf_str(&f->word);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_eqz(w, names[i][0])) {
            buf_addz(&f->out, names[i][1]);
            return;
        }
    if (fix_number(w, &f->out))
        return;
    buf_addc(&f->out, '"');
    jsonfix_escape(&f->out, w);
    buf_addc(&f->out, '"');
}

static bool ends_word(char c)
{
    return space(c) || memchr(",]}):;", c, 6) || quotes(c);
}

static bool begins_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != 0 && strchr("-+._$", c)) || ((unsigned char)c >= 0xC0 && (unsigned char)c < 0xF8);
}

/* ---- strings --------------------------------------------------------------------------------- */

/* A code point written as an escape; surrogates only in pairs. */
static void put_code(struct jsonfix *f, uint32_t cp)
{
    bool low = cp >= 0xDC00 && cp < 0xE000, high = cp >= 0xD800 && cp < 0xDC00;
    if (f->high && low)
        buf_addf(&f->out, "\\u%04x\\u%04x", f->high, cp);
    else if (f->high || low)
        buf_addz(&f->out, "\\ufffd");
    if (!low && !high)
        buf_addf(&f->out, "\\u%04x", cp);
    f->high = high ? cp : 0;
}

static enum jsonfix_result in_string(struct jsonfix *f, char c)
{
    if (c == f->quote)
        return end_string(f);
    if (c == '\\' && f->quote != JSONFIX_QUOTE) {
        f->state = JF_ESCAPE;
        return JSONFIX_MORE;
    }
    if (f->high)
        buf_addz(&f->out, "\\ufffd");
    f->high = 0;
    if ((unsigned char)c < 0xF8)
        put_escaped(&f->out, (unsigned char)c);
    return JSONFIX_MORE;
}

static enum jsonfix_result in_escape(struct jsonfix *f, char c)
{
    f->state = JF_STRING;
    if (c == 'u' || c == 'x') {
        f->state = JF_HEX;
        f->hex_left = c == 'u' ? 4 : 2;
        f->hex = 0;
        return JSONFIX_MORE;
    }
    if (f->high)
        buf_addz(&f->out, "\\ufffd");
    f->high = 0;
    if (c != 0 && strchr("\"\\/bfnrt", c)) {
        buf_addc(&f->out, '\\');
        buf_addc(&f->out, c);
    } else if (c == '\'') {
        buf_addc(&f->out, c);
    } else { /* "\d" of a pattern: the backslash was meant */
        buf_addz(&f->out, "\\\\");
        return in_string(f, c);
    }
    return JSONFIX_MORE;
}

static enum jsonfix_result in_hex(struct jsonfix *f, char c)
{
    int d = c >= '0' && c <= '9'   ? c - '0'
            : c >= 'a' && c <= 'f' ? c - 'a' + 10
            : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                   : -1;
    if (d < 0) { /* not an escape after all */
        f->state = JF_STRING;
        put_code(f, 0xFFFD);
        return in_string(f, c);
    }
    f->hex = f->hex << 4 | (uint32_t)d;
    if (--f->hex_left > 0)
        return JSONFIX_MORE;
    put_code(f, f->hex);
    f->state = JF_STRING;
    return JSONFIX_MORE;
}

/* ---- one byte -------------------------------------------------------------------------------- */

static enum jsonfix_result at_value(struct jsonfix *f, char c)
{
    if (c == '{')
        return open(f, true);
    if (c == '[' || c == '(')
        return open(f, false);
    if ((c == ']' || c == ')') && f->depth > 0 && !in_object(f))
        return shut(f);
    if (c == ',' && f->comma)
        return JSONFIX_MORE;
    if (quotes(c)) {
        open_string(f, c, false);
        return JSONFIX_MORE;
    }
    if (!begins_word(c))
        return JSONFIX_BAD;
    begin_value(f);
    buf_clear(&f->word);
    buf_addc(&f->word, c);
    f->state = JF_WORD;
    return JSONFIX_MORE;
}

static enum jsonfix_result at_key(struct jsonfix *f, char c)
{
    if (c == '}')
        return shut(f);
    if (c == ',')
        return f->comma ? JSONFIX_MORE : JSONFIX_BAD;
    if (quotes(c)) {
        open_string(f, c, true);
        return JSONFIX_MORE;
    }
    if (!begins_word(c))
        return JSONFIX_BAD;
    buf_clear(&f->word);
    buf_addc(&f->word, c);
    f->state = JF_BAREKEY;
    return JSONFIX_MORE;
}

static void end_barekey(struct jsonfix *f)
{
    struct str w = buf_str(&f->word);
    while (w.n > 0 && space(w.p[w.n - 1]))
        w.n--;
    write_comma(f);
    if (f->depth == 1)
        f->key_at = f->out.n;
    buf_addc(&f->out, '"');
    jsonfix_escape(&f->out, w);
    buf_addc(&f->out, '"');
    f->state = JF_COLON;
}

static enum jsonfix_result at_after(struct jsonfix *f, char c)
{
    bool object = in_object(f);
    if (c == ',') {
        f->comma = true;
        f->state = object ? JF_KEY : JF_VALUE;
        return JSONFIX_MORE;
    }
    if (object ? c == '}' : (c == ']' || c == ')'))
        return shut(f);
    return JSONFIX_BAD;
}

static enum jsonfix_result outside(struct jsonfix *f, char c)
{
    switch (f->state) {
    case JF_VALUE:
        return at_value(f, c);
    case JF_KEY:
        return at_key(f, c);
    case JF_COLON:
        if (c != ':' && c != '=')
            return JSONFIX_BAD;
        buf_addc(&f->out, ':');
        f->state = JF_VALUE;
        return JSONFIX_MORE;
    case JF_AFTER:
        return at_after(f, c);
    default:
        return JSONFIX_BAD;
    }
}

enum jsonfix_result jsonfix_feed(struct jsonfix *f, char c)
{
    switch (f->state) {
    case JF_STRING:
        return in_string(f, c);
    case JF_ESCAPE:
        return in_escape(f, c);
    case JF_HEX:
        return in_hex(f, c);
    case JF_WORD:
        if (!ends_word(c)) {
            buf_addc(&f->word, c);
            return JSONFIX_MORE;
        }
        write_word(f);
        if (end_value(f) == JSONFIX_DONE)
            return JSONFIX_BEFORE;
        break;
    case JF_BAREKEY:
        if (c != ':' && c != '=' && c != '}' && c != ',') {
            buf_addc(&f->word, c);
            return JSONFIX_MORE;
        }
        end_barekey(f);
        break;
    default:
        break;
    }
    return space(c) ? JSONFIX_MORE : outside(f, c);
}

void jsonfix_close(struct jsonfix *f, int depth)
{
    if (f->state == JF_HEX)
        put_code(f, 0xFFFD);
    if (jsonfix_in_string(f))
        end_string(f);
    if (f->state == JF_WORD) {
        write_word(f);
        end_value(f);
    }
    if (f->state == JF_BAREKEY)
        end_barekey(f);
    while (f->depth > depth) {
        if (f->state == JF_COLON)
            buf_addz(&f->out, ":null");
        else if (f->state == JF_VALUE && in_object(f))
            buf_addz(&f->out, "null");
        shut(f);
    }
}
