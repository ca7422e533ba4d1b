/*
 * utf8.h - validation, decoding, and the incremental decoder used for streamed tokens.
 */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include "buf.h"

/* Decodes one scalar value at s[*i] and moves *i past it. Invalid or cut sequences give U+FFFD and
 * move past the maximal invalid prefix (WHATWG rule, as Python's errors="replace" does). */
uint32_t utf8_next(struct str s, size_t *i);
bool utf8_valid(struct str s);
size_t utf8_valid_prefix(struct str s); /* bytes before the first invalid sequence; s.n if none */
/* Appends s with every invalid sequence replaced by U+FFFD. */
void utf8_sanitize(struct buf *out, struct str s);
/* Bytes at the end of s that begin a sequence which more bytes could still complete: 0..3. */
size_t utf8_tail(struct str s);
size_t utf8_count(struct str s); /* scalar values, invalid sequences counted as one each */

#endif
