/*
 * json_check.h - what the strict grammar check tells json.c besides yes or no. Internal to json.
 */
#ifndef BASE_JSON_CHECK_H
#define BASE_JSON_CHECK_H

#include "json.h"

/* One complete, valid number literal. */
bool json_is_integer(struct str lit);   /* no fraction, no exponent */
bool json_integer_fits(struct str lit); /* an integer literal within int64 or uint64, not "-0" */

/* Same check as json_check. *kept: integer literals that the library under json.c would not give
 * back as written (beyond 64 bits, "-0", or looking like our mark for those). */
enum qn_status json_check_count(struct str text, const char *what, int depth_max, size_t *kept,
                                struct qn_err *err);
/* Integer digits followed by "e+00" and any more zeros: the shape of the mark, see json.c. */
bool json_is_marked(struct str lit);
size_t json_number_len(struct str text, size_t at); /* length of the literal at a valid number */

#endif
