/*
 * openai_messages.h - checks of OpenAI-style messages and tools, and the request that the chat
 * template is rendered from. Other dialects build the same shape from theirs.
 */
#ifndef API_OPENAI_MESSAGES_H
#define API_OPENAI_MESSAGES_H

#include "api/ir.h"

/* Refuses messages that no template can mean. */
enum qn_status openai_check_messages(const struct json *body, struct api_error *e);
/* Checks tools, tool_choice and parallel_tool_calls; fills r->tool_choice, tool_name (borrowed from
 * the body) and parallel_tool_calls. */
enum qn_status openai_check_tools(const struct json *body, struct api_request *r,
                                  struct api_error *e);
/* Builds r->chat, and r->tools inside it (NULL with tool_choice none); after openai_check_tools.
 * Reads chat_template_kwargs, reasoning_effort and thinking_budget. A dialect of another shape
 * makes a body of this one from its own. */
enum qn_status openai_chat_request(const struct api_model *m, const struct json *body,
                                   struct api_request *r, struct api_error *e);

#endif
