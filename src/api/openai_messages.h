/*
 * openai_messages.h - checks of OpenAI-style messages and tools, and the request that the chat
 * template is rendered from. Other dialects build the same shape from theirs.
 */
#ifndef API_OPENAI_MESSAGES_H
#define API_OPENAI_MESSAGES_H

#include "api/ir.h"

/* Refuses messages that no template can mean. */
enum qn_status openai_check_messages(const struct json *body, struct api_error *e);
/* tools and tool_choice; *use_tools = the template shall see the tools. */
enum qn_status openai_check_tools(const struct json *body, bool *use_tools, struct api_error *e);
/* Builds r->chat. */
enum qn_status openai_chat_request(const struct json *body, bool use_tools, struct api_request *r,
                                   struct api_error *e);

#endif
