/*
 * openai_common.h - pieces that the OpenAI routes share: error bodies, usage, finish reasons,
 * logprobs, the models list.
 */
#ifndef API_OPENAI_COMMON_H
#define API_OPENAI_COMMON_H

#include "api/ir.h"

/* {"error":{"message","type","param","code"}} */
void openai_error(const struct api_error *e, struct buf *out);
/* The event that ends a stream that failed. */
void openai_error_event(const struct api_error *e, struct buf *out);
/* The same object as a member of an object that is being written. */
void openai_error_member(struct jw *w, const struct api_error *e);

const char *openai_finish(enum api_finish f);
/* "usage": {...} */
void openai_usage(struct jw *w, const struct api_usage *u);

/* A float32 as the shortest text that reads back equal; minus infinity becomes -9999. */
void openai_logprob(struct jw *w, float v);
/* The text of a token as clients see it: special tokens by name, cut characters as U+FFFD. */
void openai_token_text(const struct tok *t, int32_t id, struct buf *out);
/* {token,logprob,bytes,top_logprobs} of n tokens, with commas, into an array that is open or to be
 * put around them. */
void openai_logprob_rows(struct jw *w, const struct tok *t, const struct sampled *v, size_t n);
/* {"content":[{token,logprob,bytes,top_logprobs}],"refusal":null} of n tokens. */
void openai_chat_logprobs(struct jw *w, const struct tok *t, const struct sampled *v, size_t n);

/* Where each token of a choice begins in its text, counted in characters. Start with {0}. */
struct openai_offset {
    int64_t chars;
    bool failed; /* no memory: offsets are not known from here on */
};
/* The offset of token id; moves past it. Special tokens have no text. */
int64_t openai_offset_next(struct openai_offset *o, const struct tok *t, int32_t id,
                           bool keep_special);

/* Members that begin every answer and chunk: id, object, created, model, system_fingerprint. */
void openai_head(struct jw *w, const struct api_model *m, const struct api_request *r,
                 const char *object);

/* /v1/models and /v1/models/{id}. */
void openai_models(const struct api_model *m, struct buf *out);
void openai_model_row(struct jw *w, const struct api_model *m);

#endif
