/*
 * tools_gram.h - tool calls that have to come (tool_choice required or a name) or have to fit their
 * schema (strict), as a grammar in the model's own syntax.
 */
#ifndef API_TOOLS_GRAM_H
#define API_TOOLS_GRAM_H

#include "api/ir.h"

/* Fills r->grammar where tool_choice or a strict tool asks for one; called once the prompt is
 * rendered. A schema that cannot be enforced is a 400 when its tool is strict, and is followed as
 * far as it goes otherwise. */
enum qn_status api_tools_compile(const struct api_model *m, struct api_request *r,
                                 struct api_error *e);
/* Where an answer has to fit response_format and tools may be called (tool_choice auto): lets *spec
 * accept calls instead. *tags has to live as long as *spec; the rest is in the request's arena. */
struct gram_spec;
struct gram_tags;
enum qn_status api_tools_beside(const struct api_model *m, struct api_request *r,
                                struct gram_spec *spec, struct gram_tags *tags,
                                struct api_error *e);
/* The tokens that end reasoning whose budget is used up, and what the watch needs beside; false
 * where there is no budget. *end is malloc'd. */
struct gen_thinking;
bool api_thinking_limit(const struct api_model *m, const struct api_request *r,
                        struct gen_thinking *t, struct ids *end);

#endif
