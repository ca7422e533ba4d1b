/*
 * openai_responses.h - what the two files of the OpenAI Responses dialect share:
 * openai_responses_request.c reads bodies, openai_responses.c writes answers and streams. Also the
 * routes that read and delete kept answers.
 */
#ifndef API_OPENAI_RESPONSES_H
#define API_OPENAI_RESPONSES_H

#include "api/ir.h"

enum qn_status responses_parse(const struct api_model *m, struct api_request *r,
                               struct api_error *e);
/* Whether the answer is to be kept. */
bool responses_stores(const struct api_model *m, const struct api_request *r);
/* The items that the answer's output is added to: the earlier talk's and this input's, with commas.
 */
void responses_items(const struct api_request *r, struct buf *out);
/* A tool of the body that models can call; others are left out. */
bool responses_is_function(const struct json *tool);

/* 404: no such answer is kept. */
enum qn_status responses_unknown(struct str id, struct api_error *e);
/* GET and DELETE /v1/responses/{id}; 404 when it is not kept. */
enum qn_status responses_get(const struct api_model *m, struct str id, struct buf *out,
                             struct api_error *e);
enum qn_status responses_delete(const struct api_model *m, struct str id, struct buf *out,
                                struct api_error *e);
/* GET /v1/responses/{id}/input_items: what the answer was given, without what it said. page:
 * the query's texts as the client wrote them, each may be {NULL,0}. */
struct responses_page {
    struct str after, limit, order;
};
enum qn_status responses_input_items(const struct api_model *m, struct str id,
                                     const struct responses_page *page, struct buf *out,
                                     struct api_error *e);

#endif
