/*
 * tools_plain.h - tools for chat templates that know none: the functions are described in the
 * system message, calls and results of the history become text that any template renders.
 */
#ifndef API_TOOLS_PLAIN_H
#define API_TOOLS_PLAIN_H

#include "base/json.h"

/* Appends a messages array in which nothing but system, user and assistant texts is left. Calls are
 * written as {"name", "arguments"}, the form that answers are read in. tools may be empty or NULL.
 */
void tools_plain_messages(struct jw *w, const struct json *messages, const struct json *tools);

#endif
