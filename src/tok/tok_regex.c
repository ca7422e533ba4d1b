/*
 * tok_regex.c - see tok_regex.h. Differences handled here: \s is White_Space (PCRE2 adds U+180E),
 * \h is a hex digit, \v the vertical tab, ^ and $ match at lines, (?m) lets the dot match newlines.
 * PCRE2 10.42 knows Unicode 14; code points assigned later are unassigned to it on this path (the
 * hand-written matchers of tok_scan.c use our own tables).
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tok_regex.h"

#include <pcre2.h>
#include <stdlib.h>

struct tok_re {
    pcre2_code *code;
    bool jit;
};

enum { PATTERN_MAX = 64 * 1024, STEP_MAX = 20 * 1000 * 1000 };

#define REFUSE(err, what, at)                                                                      \
    err_set(err, QN_UNSUPPORTED, "tokenizer.json",                                                 \
            "regular expression: %s at byte %zu is not supported here", what, at)

/* One escape at p[*i] == '\\'. Inside a class the same rewrites are valid. */
static enum qn_status escape(struct str p, size_t *i, struct buf *out, struct qn_err *err)
{
    size_t at = *i;
    if (at + 1 >= p.n)
        return REFUSE(err, "a lone backslash", at);
    char c = p.p[at + 1];
    *i = at + 2;
    if (!((c | 0x20) >= 'a' && (c | 0x20) <= 'z') && !(c >= '0' && c <= '9')) {
        if (c == '<' || c == '>' || (unsigned char)c >= 0x80)
            buf_addc(out, c);
        else
            buf_add(out, p.p + at, 2);
        return QN_OK;
    }
    switch (c) {
    case 's':
        buf_addz(out, "\\p{White_Space}");
        return QN_OK;
    case 'S':
        buf_addz(out, "\\P{White_Space}");
        return QN_OK;
    case 'h':
        buf_addz(out, "\\p{AHex}");
        return QN_OK;
    case 'H':
        buf_addz(out, "\\P{AHex}");
        return QN_OK;
    case 'v':
        buf_addz(out, "\\x0b");
        return QN_OK;
    case 'u':
        if (p.n - at < 6)
            return REFUSE(err, "\\u without four digits", at);
        buf_addf(out, "\\x{%.4s}", p.p + at + 2);
        *i = at + 6;
        return QN_OK;
    case 'p':
    case 'P':
    case 'x': {
        bool brace = *i < p.n && p.p[*i] == '{';
        size_t end = brace ? str_find(p, STR_LIT("}"), *i) : *i - 1;
        if (end == (size_t)-1 || (c != 'x' && !brace))
            return REFUSE(err, "\\p or \\x without closed braces", at);
        buf_add(out, p.p + at, end + 1 - at);
        *i = end + 1;
        return QN_OK;
    }
    case 'd':
    case 'D':
    case 'w':
    case 'W':
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'a':
    case 'e':
    case 'b':
    case 'B':
    case 'A':
    case 'z':
    case 'Z':
        buf_add(out, p.p + at, 2);
        return QN_OK;
    default: {
        char name[4] = {'\\', c, 0, 0};
        return REFUSE(err, name, at);
    }
    }
}

/* Copies "(?flags" with Ruby's m turned into PCRE2's s. */
static enum qn_status group_open(struct str p, size_t *i, struct buf *out, struct qn_err *err)
{
    size_t j = *i + 2;
    buf_addz(out, "(?");
    while (j < p.n && (p.p[j] == 'i' || p.p[j] == 'm' || p.p[j] == 'x' || p.p[j] == '-')) {
        if (p.p[j] == 'x')
            return REFUSE(err, "the x flag", j);
        buf_addc(out, p.p[j] == 'm' ? 's' : p.p[j]);
        j++;
    }
    if (j < p.n && !strchr(":=!<>)", p.p[j]))
        return REFUSE(err, "this kind of group", *i);
    *i = j;
    return QN_OK;
}

static enum qn_status class_copy(struct str p, size_t *i, struct buf *out, struct qn_err *err)
{
    size_t open = *i;
    buf_addc(out, '[');
    (*i)++;
    if (*i < p.n && p.p[*i] == '^') {
        buf_addc(out, '^');
        (*i)++;
    }
    bool first = true;
    while (*i < p.n && (p.p[*i] != ']' || first)) {
        char c = p.p[*i];
        if (c == '\\') {
            QN_TRY(escape(p, i, out, err));
        } else if (c == '[' && *i + 1 < p.n && p.p[*i + 1] != ':') {
            return REFUSE(err, "a class inside a class", *i);
        } else if (c == '&' && *i + 1 < p.n && p.p[*i + 1] == '&') {
            return REFUSE(err, "a class intersection", *i);
        } else if (c == '[') {
            size_t end = str_find(p, STR_LIT(":]"), *i + 2);
            if (end == (size_t)-1)
                return REFUSE(err, "an unclosed [: name", *i);
            buf_add(out, p.p + *i, end + 2 - *i);
            *i = end + 2;
        } else {
            buf_addc(out, c);
            (*i)++;
        }
        first = false;
    }
    if (*i >= p.n)
        return REFUSE(err, "an unclosed class", open);
    buf_addc(out, ']');
    (*i)++;
    return QN_OK;
}

static enum qn_status translate(struct str p, struct buf *out, struct qn_err *err)
{
    for (size_t i = 0; i < p.n;) {
        char c = p.p[i];
        if (c == '\\') {
            QN_TRY(escape(p, &i, out, err));
        } else if (c == '[') {
            QN_TRY(class_copy(p, &i, out, err));
        } else if (c == '(' && i + 1 < p.n && p.p[i + 1] == '?') {
            QN_TRY(group_open(p, &i, out, err));
        } else if (c == '(' && i + 1 < p.n && p.p[i + 1] == '*') {
            return REFUSE(err, "a group that begins with a quantifier", i);
        } else if (c == '}' && i + 1 < p.n && p.p[i + 1] == '+') {
            return REFUSE(err, "'+' after a counted repeat", i);
        } else {
            buf_addc(out, c);
            i++;
        }
    }
    return buf_ok(out, "a regular expression", err);
}

enum qn_status tok_re_compile(struct str pattern, struct tok_re **out, struct qn_err *err)
{
    *out = NULL;
    if (pattern.n > PATTERN_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "tokenizer.json",
                "regular expression of %zu bytes; at most %d are read", pattern.n, PATTERN_MAX);
    struct buf b = {.limit = 32 * PATTERN_MAX};
    enum qn_status st = translate(pattern, &b, err);
    struct tok_re *re = NULL;
    if (st != QN_OK)
        goto done;
    re = calloc(1, sizeof *re);
    if (!re) {
        st = err_set(err, QN_NO_MEMORY, "tok_regex", "out of memory for a pattern");
        goto done;
    }
    int code;
    PCRE2_SIZE off;
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    if (cc) {
        pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
        pcre2_set_parens_nest_limit(cc, 100);
    }
    re->code = pcre2_compile((PCRE2_SPTR)buf_z(&b), b.n,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &code, &off, cc);
    pcre2_compile_context_free(cc);
    if (!re->code) {
        PCRE2_UCHAR text[160];
        pcre2_get_error_message(code, text, sizeof text);
        st = err_set(
            err, QN_BAD_INPUT, "tokenizer.json", "regular expression \"%.*s\": %s (near byte %zu)",
            (int)(pattern.n > 120 ? 120 : pattern.n), pattern.p, (char *)text, (size_t)off);
        goto done;
    }
    re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0;
    *out = re;
    re = NULL;
done:
    free(re);
    buf_free(&b);
    return st;
}

void tok_re_free(struct tok_re *re)
{
    if (!re)
        return;
    pcre2_code_free(re->code);
    free(re);
}

static int match(const struct tok_re *re, struct str text, size_t from, pcre2_match_data *md,
                 pcre2_match_context *mc)
{
    PCRE2_SPTR s = (PCRE2_SPTR)(text.n ? text.p : "");
    int rc = pcre2_match(re->code, s, text.n, from, PCRE2_NO_UTF_CHECK, md, mc);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || !mc)
        return rc;
    pcre2_jit_stack *stack = pcre2_jit_stack_create(32 * 1024, 4 * 1024 * 1024, NULL);
    if (stack) {
        pcre2_jit_stack_assign(mc, NULL, stack);
        rc = pcre2_match(re->code, s, text.n, from, PCRE2_NO_UTF_CHECK, md, mc);
        pcre2_jit_stack_assign(mc, NULL, NULL);
        pcre2_jit_stack_free(stack);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re->code, s, text.n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, md, mc);
    return rc;
}

enum qn_status tok_re_find(const struct tok_re *re, struct str text, size_t from, size_t *s,
                           size_t *e, struct qn_err *err)
{
    *s = *e = (size_t)-1;
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    pcre2_match_context *mc = pcre2_match_context_create(NULL);
    enum qn_status st = QN_OK;
    if (!md || !mc) {
        st = err_set(err, QN_NO_MEMORY, "tok_regex", "out of memory for a match");
        goto done;
    }
    pcre2_set_match_limit(mc, STEP_MAX);
    pcre2_set_heap_limit(mc, 64 * 1024);
    int rc = match(re, text, from, md, mc);
    if (rc >= 0) {
        PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);
        *s = ov[0];
        *e = ov[1] < ov[0] ? ov[0] : ov[1];
    } else if (rc == PCRE2_ERROR_NOMEMORY) {
        st = err_set(err, QN_NO_MEMORY, "tok_regex", "out of memory for a match");
    } else if (rc != PCRE2_ERROR_NOMATCH) {
        st = err_set(err, QN_UNSUPPORTED, "tok_regex",
                     "a split pattern of tokenizer.json needs more than %d steps on this text "
                     "(PCRE2 error %d)",
                     (int)STEP_MAX, rc);
    }
done:
    pcre2_match_context_free(mc);
    pcre2_match_data_free(md);
    return st;
}
