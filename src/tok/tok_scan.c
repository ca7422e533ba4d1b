/*
 * tok_scan.c - see tok_scan.h. Each function follows its pattern's alternatives in order, with the
 * backtracking of a regex engine worked out by hand; tests compare them with PCRE2.
 */
#include "tok_scan.h"

#include "tok/unicode_data.h"

const char tok_pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static inline unsigned flags_at(const uint8_t *p, size_t i, size_t n, size_t *len)
{
    return uni_flags(tok_cp(p, i, n, len));
}

/* End of the longest run from i of characters having a flag of `mask`. */
static inline size_t run_of(const uint8_t *p, size_t i, size_t n, unsigned mask)
{
    size_t len;
    while (i < n && (flags_at(p, i, n, &len) & mask))
        i += len;
    return i;
}

/* ... having no flag of `mask`. */
static inline size_t run_not(const uint8_t *p, size_t i, size_t n, unsigned mask)
{
    size_t len;
    while (i < n && !(flags_at(p, i, n, &len) & mask))
        i += len;
    return i;
}

static inline bool is_nl(uint8_t c)
{
    return c == '\r' || c == '\n';
}

/* \s+(?!\S)|\s+ : all of the run but its last character, unless the text ends there. */
static size_t spaces(const uint8_t *p, size_t i, size_t n)
{
    size_t last = i, j = i, len;
    while (j < n && (flags_at(p, j, n, &len) & UNI_WS)) {
        last = j;
        j += len;
    }
    return j == n || last == i ? j : last;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t spaces_nl(const uint8_t *p, size_t i, size_t n)
{
    size_t last = i, j = i, nl = i, len;
    while (j < n && (flags_at(p, j, n, &len) & UNI_WS)) {
        last = j;
        if (is_nl(p[j]))
            nl = j + 1;
        j += len;
    }
    if (nl > i)
        return nl;
    return j == n || last == i ? j : last;
}

/* 's|'t|'re|'ve|'m|'ll|'d at an apostrophe; fold: case-insensitive, where U+017F is also an s. */
static size_t contraction(const uint8_t *p, size_t i, size_t n, bool fold)
{
    if (n - i < 2 || p[i] != '\'')
        return i;
    uint8_t or = fold ? 0x20 : 0;
    uint8_t a = p[i + 1] | or ;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return i + 2;
    if (n - i < 3)
        return i;
    uint8_t b = p[i + 2] | or ;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return i + 3;
    if (fold && p[i + 1] == 0xC5 && p[i + 2] == 0xBF)
        return i + 3;
    return i;
}

static size_t scan_gpt2(const uint8_t *p, size_t i, size_t n)
{
    size_t len, j = i;
    if (p[i] == '\'') {
        size_t e = contraction(p, i, n, false);
        if (e > i)
            return e;
    }
    if (p[i] == ' ' && i + 1 < n)
        j = i + 1;
    unsigned f = flags_at(p, j, n, &len);
    if (f & UNI_WS)
        return spaces(p, i, n);
    if (f & UNI_L)
        return run_of(p, j + len, n, UNI_L);
    if (f & UNI_N)
        return run_of(p, j + len, n, UNI_N);
    return run_not(p, j + len, n, UNI_WS | UNI_L | UNI_N);
}

/* \p{N}{1,max} at i, whose first character is known to be one and takes len bytes. */
static inline size_t digits(const uint8_t *p, size_t i, size_t n, size_t len, int max)
{
    i += len;
    while (--max > 0 && i < n && (flags_at(p, i, n, &len) & UNI_N))
        i += len;
    return i;
}

/*
 * (?i:'s|...)|[^\r\n\p{L}\p{N}]?LETTER+|\p{N}{1,max}| ?[^\s LETTER \p{N}]+[\r\n]*|\s*[\r\n]+|
 * \s+(?!\S)|\s+     with LETTER = \p{L}, or [\p{L}\p{M}].
 */
static inline __attribute__((always_inline)) size_t scan_llama(const uint8_t *p, size_t i, size_t n,
                                                               unsigned letter, int max)
{
    size_t len, len2 = 0;
    if (p[i] == '\'') {
        size_t e = contraction(p, i, n, true);
        if (e > i)
            return e;
    }
    unsigned f = flags_at(p, i, n, &len);
    if (f & UNI_L)
        return run_of(p, i + len, n, letter);
    if (f & UNI_N)
        return digits(p, i, n, len, max);
    unsigned f2 = i + len < n ? flags_at(p, i + len, n, &len2) : UNI_WS;
    if (!is_nl(p[i]) && (f2 & letter))
        return run_of(p, i + len + len2, n, letter);
    if (f & letter)
        return i + len;
    size_t j;
    if (!(f & UNI_WS))
        j = i + len;
    else if (p[i] == ' ' && i + 1 < n && !(f2 & (UNI_WS | UNI_N | letter)))
        j = i + 1 + len2;
    else
        return spaces_nl(p, i, n);
    j = run_not(p, j, n, UNI_WS | UNI_N | letter);
    while (j < n && is_nl(p[j]))
        j++;
    return j;
}

static size_t scan_llama3(const uint8_t *p, size_t i, size_t n)
{
    return scan_llama(p, i, n, UNI_L, 3);
}

static size_t scan_qwen2(const uint8_t *p, size_t i, size_t n)
{
    return scan_llama(p, i, n, UNI_L, 1);
}

static size_t scan_qwen35(const uint8_t *p, size_t i, size_t n)
{
    return scan_llama(p, i, n, UNI_L | UNI_M, 1);
}

enum {
    UPPERISH = UNI_LU | UNI_LT | UNI_LM | UNI_LO | UNI_M,
    LOWERISH = UNI_LL | UNI_LM | UNI_LO | UNI_M,
    BOTH = UPPERISH & LOWERISH,
};

/* UPPERISH*LOWERISH+ from s, or s. Where no small letter follows the first run, the match is what
 * backtracking leaves: up to the last character of the run that belongs to both sets. */
static size_t o200k_word_low(const uint8_t *p, size_t s, size_t n)
{
    size_t u = s, end = s, len;
    unsigned f = 0;
    while (u < n && ((f = flags_at(p, u, n, &len)) & UPPERISH)) {
        u += len;
        if (f & BOTH)
            end = u;
    }
    if (u < n && (f & LOWERISH))
        return run_of(p, u, n, LOWERISH);
    return end;
}

static size_t o200k_word(const uint8_t *p, size_t i, size_t n)
{
    size_t len;
    unsigned f = flags_at(p, i, n, &len);
    bool prefix = !(f & (UNI_L | UNI_N)) && !is_nl(p[i]);
    size_t e = 0;
    if (prefix && (e = o200k_word_low(p, i + len, n)) > i + len)
        return contraction(p, e, n, true);
    if ((e = o200k_word_low(p, i, n)) > i)
        return contraction(p, e, n, true);
    if (prefix && (e = run_of(p, i + len, n, UPPERISH)) > i + len)
        return contraction(p, e, n, true);
    if ((e = run_of(p, i, n, UPPERISH)) > i)
        return contraction(p, e, n, true);
    return i;
}

static size_t scan_o200k(const uint8_t *p, size_t i, size_t n)
{
    size_t e = o200k_word(p, i, n);
    if (e > i)
        return e;
    size_t len, len2, j;
    unsigned f = flags_at(p, i, n, &len);
    if (f & UNI_N)
        return digits(p, i, n, len, 3);
    if (!(f & UNI_WS))
        j = i + len;
    else if (p[i] == ' ' && i + 1 < n && !(flags_at(p, i + 1, n, &len2) & (UNI_WS | UNI_N | UNI_L)))
        j = i + 1 + len2;
    else
        return spaces_nl(p, i, n);
    j = run_not(p, j, n, UNI_WS | UNI_N | UNI_L);
    while (j < n && (is_nl(p[j]) || p[j] == '/'))
        j++;
    return j;
}

static size_t scan_n3(const uint8_t *p, size_t i, size_t n)
{
    size_t len;
    return flags_at(p, i, n, &len) & UNI_N ? digits(p, i, n, len, 3) : i;
}

/* Chinese and Japanese runs of DeepSeek-V3's second pattern. */
static size_t scan_cjk(const uint8_t *p, size_t i, size_t n)
{
    while (i < n && p[i] >= 0xE3) {
        size_t len;
        uint32_t c = tok_cp(p, i, n, &len);
        if (!((c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF)))
            break;
        i += len;
    }
    return i;
}

static inline bool is_az(uint8_t c)
{
    return (uint8_t)((c | 0x20) - 'a') < 26;
}

static inline bool is_ascii_punct(uint8_t c)
{
    return c > ' ' && c < 0x7F && !is_az(c) && !(c >= '0' && c <= '9');
}

static size_t scan_deepseek(const uint8_t *p, size_t i, size_t n)
{
    size_t len, len2 = 0;
    if (i + 1 < n && is_ascii_punct(p[i]) && is_az(p[i + 1])) {
        size_t j = i + 2;
        while (j < n && is_az(p[j]))
            j++;
        return j;
    }
    unsigned f = flags_at(p, i, n, &len);
    if (!(f & (UNI_L | UNI_P | UNI_S)) && !is_nl(p[i]) && i + len < n &&
        (flags_at(p, i + len, n, &len2) & (UNI_L | UNI_M)))
        return run_of(p, i + len + len2, n, UNI_L | UNI_M);
    if (f & (UNI_L | UNI_M))
        return run_of(p, i + len, n, UNI_L | UNI_M);
    size_t j = i;
    if (f & (UNI_P | UNI_S))
        j = i + len;
    else if (p[i] == ' ' && i + 1 < n && (flags_at(p, i + 1, n, &len2) & (UNI_P | UNI_S)))
        j = i + 1 + len2;
    if (j > i) {
        j = run_of(p, j, n, UNI_P | UNI_S);
        while (j < n && is_nl(p[j]))
            j++;
        return j;
    }
    return f & UNI_WS ? spaces_nl(p, i, n) : i;
}

#define TAIL_NL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define FOLD    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define O200_U  "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200_L  "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const struct {
    const char *pattern;
    tok_scan_fn fn;
} known[] = {
    {tok_pattern_gpt2, scan_gpt2},
    {FOLD "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL_NL,
     scan_llama3},
    {FOLD "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" TAIL_NL,
     scan_qwen2},
    {FOLD
     "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL_NL,
     scan_qwen35},
    {"[^\\r\\n\\p{L}\\p{N}]?" O200_U "*" O200_L "+" FOLD "?|[^\\r\\n\\p{L}\\p{N}]?" O200_U
     "+" O200_L "*" FOLD "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" TAIL_NL,
     scan_o200k},
    {"\\p{N}{1,3}", scan_n3},
    {"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", scan_cjk},
    {"[!\"#$%&'()*+,\\-./"
     ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]"
     "+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     scan_deepseek},
};

tok_scan_fn tok_scan_find(struct str pattern)
{
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
        if (str_eqz(pattern, known[k].pattern))
            return known[k].fn;
    return NULL;
}
