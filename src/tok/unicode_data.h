/*
 * unicode_data.h - character classes as the PyPI package `tokenizers` sees them (its parts follow
 * several Unicode versions; tools/gen_unicode.py asks each and writes unicode_data.c).
 * Constant data only.
 */
#ifndef TOK_UNICODE_DATA_H
#define TOK_UNICODE_DATA_H

#include <stddef.h>
#include <stdint.h>

enum {
    UNI_LU = 1 << 0, /* general categories, as the Split patterns' regex engine has them */
    UNI_LL = 1 << 1,
    UNI_LT = 1 << 2,
    UNI_LM = 1 << 3,
    UNI_LO = 1 << 4,
    UNI_M = 1 << 5,
    UNI_N = 1 << 6,
    UNI_P = 1 << 7,
    UNI_S = 1 << 8,
    UNI_WS = 1 << 9,          /* White_Space */
    UNI_NUMERIC = 1 << 10,    /* the Digits pre-tokenizer */
    UNI_PUNCT = 1 << 11,      /* the Punctuation pre-tokenizer */
    UNI_WORD = 1 << 12,       /* \w of the Whitespace pre-tokenizer */
    UNI_NFC_ACTIVE = 1 << 13, /* changes under NFC or composes with or reorders after its left */
    UNI_NORM_ODD = 1 << 14,   /* utf8proc's normal forms differ: leave it as it is */
    UNI_L = UNI_LU | UNI_LL | UNI_LT | UNI_LM | UNI_LO,
};

extern const uint16_t uni_class_flags[];
extern const uint16_t uni_index[8704];
extern const uint8_t uni_blocks[][128];

/* Code points start, start+step, ... (n of them) have the lower-case form cp + delta. */
struct uni_lower_run {
    uint32_t start;
    uint16_t n, step;
    int32_t delta;
};
extern const struct uni_lower_run uni_lower_runs[];
extern const size_t uni_lower_n;

static inline unsigned uni_flags(uint32_t cp)
{
    if (cp > 0x10FFFF)
        return 0;
    return uni_class_flags[uni_blocks[uni_index[cp >> 7]][cp & 127]];
}

#endif
