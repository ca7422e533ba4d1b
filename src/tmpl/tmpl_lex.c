/*
 * tmpl_lex.c - template text to tokens. Outside tags it finds the next {{, {% or {# and trims the
 * text before it; raw blocks and comments never leave this file. Works on a copy of the source in
 * the template's arena, in which line ends are \n already; string tokens are unescaped there.
 */
#include "tmpl/tmpl_lex.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "tmpl/tmpl_ustr.h"

void lex_error(int32_t line, struct qn_err *err, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(err, QN_BAD_INPUT, "template", "chat template: line %d: %s", line, text);
}

enum qn_status lex_init(struct lex *l, struct arena *a, struct str source, struct qn_err *err)
{
    memset(l, 0, sizeof *l);
    if (!utf8_valid(source))
        QN_FAIL(err, QN_BAD_INPUT, "template", "chat template: the text is not valid UTF-8");
    char *p = arena_alloc(a, source.n + 1);
    if (!p)
        QN_FAIL(err, QN_NO_MEMORY, "template", "chat template: no memory for %zu bytes", source.n);
    size_t n = 0;
    for (size_t i = 0; i < source.n; i++) {
        char c = source.p[i];
        if (c == '\r') {
            c = '\n';
            if (i + 1 < source.n && source.p[i + 1] == '\n')
                i++;
        }
        p[n++] = c;
    }
    if (n && p[n - 1] == '\n')
        n--;
    p[n] = 0;
    l->src = (struct str){p, n};
    l->line = 1;
    l->a = a;
    l->line_starting = true;
    return QN_OK;
}

static char at(const struct lex *l, size_t i)
{
    return i < l->src.n ? l->src.p[i] : 0;
}

static bool is(const struct lex *l, size_t i, const char *z)
{
    return str_starts(
        (struct str){l->src.p + (i < l->src.n ? i : l->src.n), i < l->src.n ? l->src.n - i : 0},
        str_of(z));
}

static size_t skip_space(const struct lex *l, size_t i)
{
    while (i < l->src.n) {
        size_t j = i;
        if (!us_space(us_next(l->src, &j)))
            break;
        i = j;
    }
    return i;
}

/* Moves to `to`, counting lines. */
static void advance(struct lex *l, size_t to)
{
    for (; l->pos < to; l->pos++)
        l->line += l->src.p[l->pos] == '\n';
}

/* `word` between optional spaces at i; the offset after them, or 0. */
static size_t word_at(const struct lex *l, size_t i, const char *word)
{
    i = skip_space(l, i);
    if (!is(l, i, word))
        return 0;
    return skip_space(l, i + strlen(word));
}

/* The end of a raw begin tag whose "{%" is at i, or 0. */
static size_t raw_begin(const struct lex *l, size_t i)
{
    i += 2;
    if (at(l, i) == '-' || at(l, i) == '+')
        i++;
    i = word_at(l, i, "raw");
    if (!i)
        return 0;
    if (is(l, i, "-%}"))
        return skip_space(l, i + 3);
    return is(l, i, "%}") ? i + 2 : 0;
}

/* After "%}" or "#}" preceded by sign: what trim_blocks and '-' swallow. */
static size_t after_close(const struct lex *l, size_t i, char sign)
{
    if (sign == '-')
        return skip_space(l, i);
    if (sign != '+' && at(l, i) == '\n')
        return i + 1;
    return i;
}

/* Text before a tag, trimmed as the tag's sign says. */
static struct str trimmed(const struct lex *l, struct str text, char sign, bool variable)
{
    if (sign == '-')
        return us_strip(text, (struct str){0}, 2);
    if (sign == '+' || variable)
        return text;
    size_t line = text.n;
    while (line && text.p[line - 1] != '\n')
        line--;
    if (line == 0 && !l->line_starting)
        return text;
    struct str rest = {text.p + line, text.n - line};
    if (us_strip(rest, (struct str){0}, 1).n == 0)
        text.n = line;
    return text;
}

static void mark_line_start(struct lex *l)
{
    l->line_starting = l->pos && l->src.p[l->pos - 1] == '\n';
}

/* The position of the end tag of a raw block from i; *end is after it, *sign its sign. */
static size_t raw_end(const struct lex *l, size_t i, size_t *end, char *sign)
{
    for (;; i++) {
        i = str_find(l->src, STR_LIT("{%"), i);
        if (i == (size_t)-1)
            return i;
        size_t j = i + 2;
        *sign = at(l, j) == '-' || at(l, j) == '+' ? at(l, j) : 0;
        j = word_at(l, j + (*sign != 0), "endraw");
        if (!j)
            continue;
        char s2 = at(l, j) == '-' || at(l, j) == '+' ? at(l, j) : 0;
        if (!is(l, j + (s2 != 0), "%}"))
            continue;
        *end = after_close(l, j + (s2 != 0) + 2, s2);
        return i;
    }
}

static enum qn_status skip_comment(struct lex *l, struct qn_err *err)
{
    size_t end = str_find(l->src, STR_LIT("#}"), l->pos);
    if (end == (size_t)-1)
        return lex_fail(l->line, err, "Missing end of comment tag");
    char sign = end > l->pos ? l->src.p[end - 1] : 0;
    advance(l, after_close(l, end + 2, sign));
    mark_line_start(l);
    return QN_OK;
}

static struct tok data_tok(int32_t line, struct str s)
{
    return (struct tok){.kind = T_DATA, .line = line, .s = s};
}

/* One data token, or a begin token, or both (the second stays pending). *made = false after a
 * comment or an empty raw block. */
static enum qn_status lex_root(struct lex *l, struct tok *out, bool *made, struct qn_err *err)
{
    int32_t line = l->line;
    size_t i = l->pos;
    *made = true;
    while (i < l->src.n && !(l->src.p[i] == '{' && strchr("{%#", at(l, i + 1)) && at(l, i + 1)))
        i++;
    struct str text = {l->src.p + l->pos, i - l->pos};
    if (i >= l->src.n) {
        *out = text.n ? data_tok(line, text) : (struct tok){.kind = T_EOF, .line = line};
        advance(l, l->src.n);
        return QN_OK;
    }
    char kind = l->src.p[i + 1];
    char sign = at(l, i + 2) == '-' || at(l, i + 2) == '+' ? at(l, i + 2) : 0;
    text = trimmed(l, text, sign, kind == '{');
    size_t raw = kind == '%' ? raw_begin(l, i) : 0;
    advance(l, raw ? raw : i + 2 + (sign != 0));
    mark_line_start(l);
    if (kind == '#') {
        QN_TRY(skip_comment(l, err));
    } else if (raw) {
        size_t end = 0;
        size_t stop = raw_end(l, l->pos, &end, &sign);
        if (stop == (size_t)-1)
            return lex_fail(l->line, err, "Missing end of raw directive");
        struct str body = {l->src.p + l->pos, stop - l->pos};
        body = trimmed(l, body, sign, false);
        l->next = data_tok(l->line, body);
        l->pending = body.n > 0;
        advance(l, end);
        mark_line_start(l);
    } else {
        l->state = kind == '{' ? LEX_VAR : LEX_BLOCK;
        l->next = (struct tok){.kind = kind == '{' ? T_VAR_BEGIN : T_BLOCK_BEGIN, .line = l->line};
        l->pending = true;
    }
    *out = data_tok(line, text);
    *made = text.n > 0;
    return QN_OK;
}

/* The end of the tag at l->pos, or 0. */
static size_t tag_end(const struct lex *l)
{
    size_t i = l->pos;
    char sign = at(l, i) == '-' || at(l, i) == '+' ? at(l, i) : 0;
    if (l->state == LEX_VAR) {
        if (sign == '+' || !is(l, i + (sign != 0), "}}"))
            return 0;
        return sign ? skip_space(l, i + 3) : i + 2;
    }
    if (!is(l, i + (sign != 0), "%}"))
        return 0;
    return after_close(l, i + (sign != 0) + 2, sign);
}

static bool digit_in(char c, int base)
{
    if (base <= 10)
        return c >= '0' && c < '0' + base;
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

/* Digits with single underscores between; `lead` allows one before the first. */
static size_t digits(const struct lex *l, size_t i, int base, bool lead)
{
    size_t start = i;
    for (;;) {
        size_t j = i + (at(l, i) == '_' && (lead || i > start));
        if (!digit_in(at(l, j), base))
            return i;
        i = j + 1;
    }
}

static size_t float_end(const struct lex *l, size_t i)
{
    if (i && l->src.p[i - 1] == '.')
        return 0;
    size_t j = digits(l, i, 10, false), k = j;
    if (j == i)
        return 0;
    if (at(l, j) == '.') {
        k = digits(l, j + 1, 10, false);
        if (k == j + 1)
            k = j;
    }
    if ((at(l, k) | 32) == 'e') {
        size_t x = k + 1 + (at(l, k + 1) == '+' || at(l, k + 1) == '-');
        size_t y = digits(l, x, 10, false);
        if (y > x)
            return y;
    }
    return k > j ? k : 0;
}

static enum qn_status lex_number(struct lex *l, struct tok *out, struct qn_err *err)
{
    size_t i = l->pos, end = float_end(l, i);
    int base = 10;
    out->kind = end ? T_REAL : T_INT;
    if (!end) {
        char c = at(l, i) == '0' ? (char)(at(l, i + 1) | 32) : 0;
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        end = base == 10 ? i : digits(l, i + 2, base, true);
        if (base != 10 && end == i + 2)
            base = 10;
        if (base == 10 && at(l, i) == '0') /* 0, 00, 0_0, but not 07 */
            for (end = i + 1; at(l, end + (at(l, end) == '_')) == '0';)
                end += 1 + (at(l, end) == '_');
        else if (base == 10)
            end = digits(l, i, 10, false);
    }
    char text[80];
    size_t n = 0;
    for (size_t k = i + (base == 10 ? 0 : 2); k < end; k++)
        if (l->src.p[k] != '_' && n < sizeof text - 1)
            text[n++] = l->src.p[k];
    text[n] = 0;
    errno = 0;
    if (out->kind == T_REAL)
        out->d = strtod(text, NULL);
    else
        out->i = strtoll(text, NULL, base);
    if ((errno == ERANGE && out->kind == T_INT) || n == sizeof text - 1)
        return lex_fail(l->line, err, "the number " STR_FMT " is beyond 64 bits",
                        (int)(end - i > 60 ? 60 : end - i), l->src.p + i);
    out->s = (struct str){l->src.p + i, end - i};
    advance(l, end);
    return QN_OK;
}

static int hex_digits(struct str s, size_t i, int n, uint32_t *out)
{
    *out = 0;
    for (int k = 0; k < n; k++) {
        char c = i + (size_t)k < s.n ? s.p[i + (size_t)k] : 0;
        if (!digit_in(c, 16))
            return k;
        *out = *out * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return n;
}

/* One escape at s[*i] (after the backslash). Appends its text. NULL, or what is wrong with it. */
static const char *unescape_one(struct buf *b, struct str s, size_t *i)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s.p[*i];
    uint32_t cp = 0;
    if ((unsigned char)c >= 0x80) { /* Python escapes it first: a backslash and its code remain */
        cp = us_next(s, i);
        buf_addf(b, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        return NULL;
    }
    ++*i;
    const char *hit = c ? strchr(from, c) : NULL;
    if (hit) {
        buf_addc(b, to[hit - from]);
        return NULL;
    }
    if (c == '\n')
        return NULL;
    if (c >= '0' && c <= '7') {
        cp = (uint32_t)(c - '0');
        for (int k = 0; k < 2 && *i < s.n && digit_in(s.p[*i], 8); k++)
            cp = cp * 8 + (uint32_t)(s.p[(*i)++] - '0');
        buf_add_utf8(b, cp);
        return NULL;
    }
    if (c == 'N')
        return "\\N escapes are not supported: write the character or its \\u escape";
    int n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (!n) {
        buf_addc(b, '\\');
        buf_addc(b, c);
        return NULL;
    }
    if (hex_digits(s, *i, n, &cp) < n)
        return "truncated escape";
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return "illegal Unicode character";
    *i += (size_t)n;
    buf_add_utf8(b, cp);
    return NULL;
}

static enum qn_status lex_string(struct lex *l, struct tok *out, struct qn_err *err)
{
    char quote = at(l, l->pos);
    size_t i = l->pos + 1;
    bool escapes = false;
    for (; i < l->src.n && l->src.p[i] != quote; i++)
        if (l->src.p[i] == '\\') {
            escapes = true;
            i++;
        }
    if (i >= l->src.n)
        return lex_fail(l->line, err, "unexpected char '%c': the string never ends", quote);
    struct str raw = {l->src.p + l->pos + 1, i - l->pos - 1};
    out->kind = T_STRING;
    out->s = raw;
    if (escapes) {
        struct buf b = {0};
        const char *bad = NULL;
        for (size_t k = 0; k < raw.n && !bad;) {
            char c = raw.p[k++];
            if (c == '\\')
                bad = unescape_one(&b, raw, &k);
            else
                buf_addc(&b, c);
        }
        enum qn_status s = bad ? lex_fail(l->line, err, "%s", bad) : buf_ok(&b, "template", err);
        out->s = s == QN_OK ? arena_str(l->a, buf_str(&b)) : raw;
        buf_free(&b);
        QN_TRY(s);
        if (!out->s.p)
            QN_FAIL(err, QN_NO_MEMORY, "template", "chat template: no memory for a string");
    }
    advance(l, i + 1);
    return QN_OK;
}

static const struct {
    const char *z;
    enum tok_kind kind;
} OPERATORS[] = {
    /* the longer first */
    {"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},      {"!=", T_NE},      {">=", T_GE},
    {"<=", T_LE},       {"+", T_ADD},    {"-", T_SUB},      {"/", T_DIV},      {"*", T_MUL},
    {"%", T_MOD},       {"~", T_TILDE},  {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"(", T_LPAREN},
    {")", T_RPAREN},    {"{", T_LBRACE}, {"}", T_RBRACE},   {">", T_GT},       {"<", T_LT},
    {"=", T_ASSIGN},    {".", T_DOT},    {":", T_COLON},    {"|", T_PIPE},     {",", T_COMMA},
    {";", T_SEMICOLON},
};
#define N_OPERATORS (sizeof OPERATORS / sizeof OPERATORS[0])

const char *tok_name(enum tok_kind k)
{
    static const char *const names[] = {
        [T_EOF] = "end of template",
        [T_DATA] = "template data / text",
        [T_VAR_BEGIN] = "begin of print statement",
        [T_VAR_END] = "end of print statement",
        [T_BLOCK_BEGIN] = "begin of statement block",
        [T_BLOCK_END] = "end of statement block",
        [T_NAME] = "name",
        [T_STRING] = "string",
        [T_INT] = "integer",
        [T_REAL] = "float",
    };
    if (k <= T_REAL)
        return names[k];
    for (size_t i = 0; i < N_OPERATORS; i++)
        if (OPERATORS[i].kind == k)
            return OPERATORS[i].z;
    return "?";
}

static enum qn_status balance(struct lex *l, enum tok_kind k, struct qn_err *err)
{
    char close = k == T_LBRACE ? '}' : k == T_LPAREN ? ')' : k == T_LBRACKET ? ']' : 0;
    if (close) {
        if (l->n_close == LEX_NEST_MAX)
            return lex_fail(l->line, err, "more than %d nested brackets", LEX_NEST_MAX);
        l->close[l->n_close++] = close;
        return QN_OK;
    }
    if (k != T_RBRACE && k != T_RPAREN && k != T_RBRACKET)
        return QN_OK;
    char got = *tok_name(k);
    if (!l->n_close)
        return lex_fail(l->line, err, "unexpected '%c'", got);
    char want = l->close[--l->n_close];
    if (want != got)
        return lex_fail(l->line, err, "unexpected '%c', expected '%c'", got, want);
    return QN_OK;
}

static enum qn_status lex_operator(struct lex *l, struct tok *out, struct qn_err *err)
{
    for (size_t i = 0; i < N_OPERATORS; i++)
        if (is(l, l->pos, OPERATORS[i].z)) {
            out->kind = OPERATORS[i].kind;
            QN_TRY(balance(l, out->kind, err));
            advance(l, l->pos + strlen(OPERATORS[i].z));
            return QN_OK;
        }
    size_t j = l->pos;
    us_next(l->src, &j);
    return lex_fail(l->line, err, "unexpected char '%.*s'", (int)(j - l->pos), l->src.p + l->pos);
}

static enum qn_status lex_tag(struct lex *l, struct tok *out, struct qn_err *err)
{
    size_t end = l->n_close ? 0 : tag_end(l);
    *out = (struct tok){.line = l->line};
    if (!end) {
        advance(l, skip_space(l, l->pos));
        out->line = l->line;
        end = l->n_close ? 0 : tag_end(l);
    }
    if (end) {
        out->kind = l->state == LEX_VAR ? T_VAR_END : T_BLOCK_END;
        l->state = LEX_ROOT;
        advance(l, end);
        mark_line_start(l);
        return QN_OK;
    }
    if (l->pos >= l->src.n)
        return QN_OK; /* T_EOF: the parser knows what is missing */
    char c = at(l, l->pos);
    if (c >= '0' && c <= '9')
        return lex_number(l, out, err);
    if (c == '\'' || c == '"')
        return lex_string(l, out, err);
    size_t i = l->pos;
    while (i < l->src.n) {
        size_t j = i;
        if (!us_word(us_next(l->src, &j)))
            break;
        i = j;
    }
    if (i == l->pos)
        return lex_operator(l, out, err);
    out->kind = T_NAME;
    out->s = (struct str){l->src.p + l->pos, i - l->pos};
    if (!us_identifier(out->s))
        return lex_fail(l->line, err, "Invalid character in identifier");
    advance(l, i);
    return QN_OK;
}

enum qn_status lex_next(struct lex *l, struct tok *out, struct qn_err *err)
{
    if (l->pending) {
        l->pending = false;
        *out = l->next;
        return QN_OK;
    }
    if (l->state != LEX_ROOT)
        return lex_tag(l, out, err);
    for (;;) {
        bool made;
        QN_TRY(lex_root(l, out, &made, err));
        if (made)
            return QN_OK;
        if (l->pending) {
            l->pending = false;
            *out = l->next;
            return QN_OK;
        }
    }
}
