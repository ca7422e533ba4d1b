/*
 * gguf_tok.h - tokenizer.json and tokenizer_config.json from a GGUF file's metadata.
 *
 * Byte-level BPE ("gpt2") carries its merges; the splitting rule is named by tokenizer.ggml.pre.
 * SentencePiece BPE ("llama") carries scores, from which the merges are derived. Any other model
 * and any unknown splitting rule is refused. Reads struct gguf only; any thread.
 */
#ifndef IMPORT_GGUF_TOK_H
#define IMPORT_GGUF_TOK_H

#include "import/gguf.h"

/* n_vocab = rows of the embedding: every token id must be below. n_ctx goes into the config. */
enum qn_status gguf_tok_write(const struct gguf *g, int64_t n_vocab, int64_t n_ctx,
                              struct buf *tokenizer, struct buf *config, struct qn_err *err);

#endif
