/*
 * conversations.h - files of single conversations over HTTP (/admin/conversations): body in, JSON
 * out; refusals in the OpenAI form. Any thread.
 */
#ifndef API_CONVERSATIONS_H
#define API_CONVERSATIONS_H

#include "api/ir.h"

/* The part of the prompt cache that belongs to a body as chat or raw completions take it. */
enum qn_status conversation_save(const struct api_model *m, struct sched *s, struct str name,
                                 struct str body, struct buf *out, struct api_error *e);
enum qn_status conversation_restore(const struct api_model *m, struct sched *s, struct str name,
                                    struct buf *out, struct api_error *e);
enum qn_status conversation_list(const struct api_model *m, struct buf *out, struct api_error *e);
enum qn_status conversation_show(const struct api_model *m, struct str name, struct buf *out,
                                 struct api_error *e);
enum qn_status conversation_delete(const struct api_model *m, struct str name, struct buf *out,
                                   struct api_error *e);

#endif
