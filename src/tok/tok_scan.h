/*
 * tok_scan.h - hand-written matchers for the split patterns that real tokenizers use. Each is
 * recognised by the exact text of its regular expression; every other pattern goes through PCRE2
 * (tok_regex.h). Pure functions, any thread. Text must be valid UTF-8.
 */
#ifndef TOK_TOK_SCAN_H
#define TOK_TOK_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* End of the match that begins exactly at i (i < n), or i when the pattern does not match there. */
typedef size_t (*tok_scan_fn)(const uint8_t *p, size_t i, size_t n);

/* NULL when the pattern is not one of the known ones. */
tok_scan_fn tok_scan_find(struct str pattern);
extern const char tok_pattern_gpt2[]; /* ByteLevel with use_regex */

/* Decodes the scalar value at p[i] of valid UTF-8; *len = its bytes. Cut input gives U+FFFD, 1. */
static inline uint32_t tok_cp(const uint8_t *p, size_t i, size_t n, size_t *len)
{
    uint32_t c = p[i];
    if (c < 0x80) {
        *len = 1;
        return c;
    }
    if (c >= 0xC2 && c < 0xE0 && n - i >= 2) {
        *len = 2;
        return (c & 31) << 6 | (p[i + 1] & 63u);
    }
    if (c >= 0xE0 && c < 0xF0 && n - i >= 3) {
        *len = 3;
        return (c & 15) << 12 | (p[i + 1] & 63u) << 6 | (p[i + 2] & 63u);
    }
    if (c >= 0xF0 && n - i >= 4) {
        *len = 4;
        return (c & 7) << 18 | (p[i + 1] & 63u) << 12 | (p[i + 2] & 63u) << 6 | (p[i + 3] & 63u);
    }
    *len = 1;
    return 0xFFFD;
}

#endif
