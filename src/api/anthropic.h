/*
 * anthropic.h - what the two files of the Anthropic dialect share: anthropic_request.c reads
 * bodies, anthropic.c writes answers, streams and refusals.
 */
#ifndef API_ANTHROPIC_H
#define API_ANTHROPIC_H

#include "api/ir.h"

/* Bodies of /v1/messages, and of count_tokens, which has no max_tokens. */
enum qn_status anthropic_parse(const struct api_model *m, struct api_request *r,
                               struct api_error *e);
enum qn_status anthropic_parse_count(const struct api_model *m, struct api_request *r,
                                     struct api_error *e);

/* /v1/messages/count_tokens: body to {"input_tokens": n}. */
enum qn_status anthropic_count_tokens(const struct api_model *m, struct str body, struct buf *out,
                                      struct api_error *e);

#endif
