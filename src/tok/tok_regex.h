/*
 * tok_regex.h - regular expressions of tokenizer.json. They are written for oniguruma (Ruby
 * syntax); a checked translation brings them to PCRE2, and constructs whose meaning differs between
 * the two are refused by name. A compiled pattern is immutable and may be matched from any thread.
 */
#ifndef TOK_TOK_REGEX_H
#define TOK_TOK_REGEX_H

#include "base/buf.h"

struct tok_re;

enum qn_status tok_re_compile(struct str pattern, struct tok_re **out, struct qn_err *err);
void tok_re_free(struct tok_re *re); /* NULL is fine */
/* First match at or after `from` (a character boundary). *s = SIZE_MAX when there is none. Fails
 * for memory, and when the pattern backtracks beyond its step limit on this text. */
enum qn_status tok_re_find(const struct tok_re *re, struct str text, size_t from, size_t *s,
                           size_t *e, struct qn_err *err);

#endif
