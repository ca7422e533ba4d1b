/*
 * prompt.h - what is said to the servers: prompts of a wanted length that differ from each other
 * from the first word on, so that no cache of prefixes helps by accident, and the bodies of
 * requests. Everything follows from the seed: the same seed makes the same bytes.
 */
#ifndef BENCH_PROMPT_H
#define BENCH_PROMPT_H

#include "base/buf.h"

#define CHARS_PER_TOKEN 3.6 /* of English filler; the true count comes from the server's usage */

/* 12 hex digits from SHA-256 of the JSON array [seed, phase, attempt, index]. */
struct nonce {
    char z[13];
};
struct nonce nonce_make(const char *seed, const char *phase, int attempt, int index);

/* About n_token tokens of English words drawn from `salt`. Appends. */
void prompt_filler(struct buf *out, const char *salt, int n_token);

struct body_params {
    const char *model;   /* "" or NULL: not stated */
    bool chat;           /* messages, else a prompt */
    struct str content;  /* of the one user message, or the prompt */
    struct str system;   /* n = 0: none */
    struct str messages; /* instead of content: a JSON array */
    struct str tools;    /* a JSON array; n = 0: none */
    int64_t max_tokens;
    bool thinking;   /* chat_template_kwargs.enable_thinking true */
    bool ignore_eos; /* ask for exactly max_tokens */
};
/* Temperature 0, streamed, usage asked for. Appends. */
void prompt_body(struct buf *out, const struct body_params *p);

#endif
