/*
 * chat.h - messages to prompt: finds a model folder's chat template, normalises OpenAI-style
 * messages the way the templates expect, and renders.
 *
 * Normalisation (product.md, wire.md): role developer -> system; text-only content parts -> one
 * string; assistant tool_calls[].function.arguments given as a JSON string -> object; null content
 * -> as transformers would see it; `reasoning` and `reasoning_content` are aliases of each other.
 */
#ifndef TMPL_CHAT_H
#define TMPL_CHAT_H

#include "tmpl/tmpl.h"

struct chat_tmpl;

/* The template of a folder: chat_template.jinja, else chat_template.json, else "chat_template" of
 * tokenizer_config.json (a string, or a list of {name, template}: "default", and "tool_use" when
 * tools are given). QN_NOT_FOUND when the folder has none. special tokens (bos_token, eos_token...)
 * come from tokenizer_config / special_tokens_map. */
enum qn_status chat_tmpl_open(const char *dir, struct chat_tmpl **out, struct qn_err *err);
enum qn_status chat_tmpl_from_json(struct str tokenizer_config, struct chat_tmpl **out,
                                   struct qn_err *err);
void chat_tmpl_free(struct chat_tmpl *c);
/* The template's source (the default one): tool and reasoning parsers look into it. */
struct str chat_tmpl_source(const struct chat_tmpl *c);

/* request: an object with "messages" (required, non-empty array) and optionally "tools",
 * "documents", "add_generation_prompt" (default true; false when the last message is the
 * assistant's and "continue_final_message" is true), "chat_template_kwargs" (object, its members
 * become variables). Appends the prompt to out. */
enum qn_status chat_render(const struct chat_tmpl *c, const struct json *request, int64_t now_unix,
                           struct buf *out, struct qn_err *err);

#endif
