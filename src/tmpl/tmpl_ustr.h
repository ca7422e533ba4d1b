/*
 * tmpl_ustr.h - Python's view of text over UTF-8: code points, white space, case, character
 * classes. Strings are valid UTF-8 (the JSON reader and the template compiler see to that).
 */
#ifndef TMPL_USTR_H
#define TMPL_USTR_H

#include "base/buf.h"

size_t us_len(struct str s);                 /* code points */
size_t us_off(struct str s, size_t i);       /* byte offset of code point i (or the end) */
uint32_t us_next(struct str s, size_t *i);   /* decodes at *i and moves on */
uint32_t us_prev(struct str s, size_t *end); /* decodes the one before *end and moves back */
bool us_space(uint32_t cp);                  /* str.isspace */
bool us_linebreak(uint32_t cp);              /* str.splitlines */
bool us_printable(uint32_t cp);              /* str.isprintable */
bool us_word(uint32_t cp);                   /* \w */
bool us_alpha(uint32_t cp);
bool us_decimal(uint32_t cp);
bool us_digit(uint32_t cp);
bool us_numeric(uint32_t cp);
bool us_upper_p(uint32_t cp);
bool us_lower_p(uint32_t cp);
bool us_title_p(uint32_t cp);

enum us_case { US_UPPER, US_LOWER, US_TITLE, US_CAPITALIZE, US_SWAP, US_FOLD };
void us_convert(struct buf *out, struct str s, enum us_case how);

/* chars with p == NULL means white space. sides: 1 left, 2 right. */
struct str us_strip(struct str s, struct str chars, int sides);
bool us_identifier(struct str s);

#endif
