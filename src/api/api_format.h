/*
 * api_format.h - structured output in requests: response_format and the fields that other servers
 * have for it, to one struct api_format, and that to a compiled grammar. Any dialect's thread.
 */
#ifndef API_API_FORMAT_H
#define API_API_FORMAT_H

#include "api/ir.h"
#include "gram/gram.h"

/* Reads response_format, guided_json, guided_regex, guided_choice, guided_grammar,
 * structured_outputs, json_schema and grammar into r->format; at most one of them may ask for
 * something. */
enum qn_status fields_format(const struct json *o, struct api_request *r, struct api_error *e);

/* Another dialect's format, rewritten as response_format; `param` is its name there. */
enum qn_status fields_format_as(const char *param, const struct json *o, struct api_request *r,
                                struct api_error *e);

/* Compiles r->format, where there is one, into r->grammar; called once the prompt is rendered. A
 * fault is a 400 whose param ends with the keyword. */
enum qn_status api_format_compile(const struct api_model *m, struct api_request *r,
                                  struct api_error *e);
/* The same for any specification (tool calls): fills r->grammar. `param` names the field that asked
 * for it. Thinking that the prompt has opened, or may open, comes before. */
enum qn_status api_grammar_set(const struct api_model *m, struct api_request *r,
                               struct gram_spec *spec, const char *param, struct api_error *e);

#endif
