/*
 * tok.h - tokenizers read from tokenizer.json: byte-level BPE and SentencePiece-style BPE with byte
 * fallback, with the normalizers, pre-tokenizers, decoders and post-processors that real model
 * folders use. Ids equal those of the PyPI package `tokenizers`.
 *
 * A tokenizer.json is compiled once into a binary vocabulary (keyed by the hash of its bytes,
 * beside the model or in the user's cache folder) and memory-mapped after that; when neither place
 * can be written, it is compiled in memory.
 *
 * Threads: a struct tok is immutable after tok_open and may be used from any number of threads.
 */
#ifndef TOK_TOK_H
#define TOK_TOK_H

#include "base/buf.h"

struct tok;

/* Opens DIR/tokenizer.json (+ tokenizer_config.json, special_tokens_map.json when present).
 * cache = folder for compiled vocabularies, NULL = do not keep them. */
enum qn_status tok_open(const char *dir, const char *cache, struct tok **out, struct qn_err *err);
/* From JSON texts in memory (config may be {NULL,0}); never cached. For tests and fuzzing. */
enum qn_status tok_from_json(struct str tokenizer_json, struct str tokenizer_config,
                             struct tok **out, struct qn_err *err);
void tok_free(struct tok *t); /* NULL is fine */

struct ids {
    int32_t *v; /* malloc'd */
    size_t n, cap;
};
void ids_free(struct ids *a);

enum { TOK_ADD_SPECIAL = 1, TOK_PARSE_SPECIAL = 2 }; /* = enum qn_tok_flags */

/* Appends the ids of text. Invalid UTF-8 is read as U+FFFD. Fails only for memory. */
enum qn_status tok_encode(const struct tok *t, struct str text, unsigned flags, struct ids *out,
                          struct qn_err *err);
/* Appends the text of ids; ids outside the vocabulary are skipped. */
void tok_decode(const struct tok *t, const int32_t *ids, size_t n, bool keep_special,
                struct buf *out);

int32_t tok_size(const struct tok *t);                 /* 1 + highest id */
int32_t tok_id(const struct tok *t, struct str piece); /* exact piece text; -1 = none */
struct str tok_piece(const struct tok *t, int32_t id); /* as in the file: "Ġhello" */
bool tok_is_special(const struct tok *t, int32_t id);  /* an added token marked special */
/* The bytes this token stands for in running text ("Ġhello" -> " hello", "<0xE2>" -> one byte). */
void tok_bytes(const struct tok *t, int32_t id, struct buf *out);
int32_t tok_bos(const struct tok *t); /* -1 = none; from tokenizer_config.json */
int32_t tok_eos(const struct tok *t);
/* tokenizer_config.json as parsed, or NULL; for chat templates and tool parser hints. */
struct json;
const struct json *tok_config(const struct tok *t);

/* ---- streaming: text leaves as soon as its bytes are certain --------------------------------
 * Joined pieces equal tok_decode of all ids. Incomplete UTF-8 is held back until it completes or
 * detok_end flushes it as U+FFFD. */
struct detok;
struct detok *detok_create(const struct tok *t, bool keep_special); /* NULL: out of memory */
void detok_free(struct detok *d);
void detok_reset(struct detok *d);
void detok_push(struct detok *d, int32_t id, struct buf *out); /* appends what became certain */
/* Appends bytes as they are, after what was held back; no token, so spaces at its border stay. */
void detok_literal(struct detok *d, struct str bytes, struct buf *out);
void detok_end(struct detok *d, struct buf *out); /* flushes the rest */

#endif
