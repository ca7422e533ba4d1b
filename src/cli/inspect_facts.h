/*
 * inspect_facts.h - what a model folder says about itself besides its tensors: sizes, context,
 * memory per token, tokenizer, chat template, end tokens.
 */
#ifndef CLI_INSPECT_FACTS_H
#define CLI_INSPECT_FACTS_H

#include "base/json.h"

#define EOS_MAX 32

/* Numbers are -1 when config.json does not state them. */
struct inspect_facts {
    struct json *config;             /* owned */
    const struct json *quantization; /* in config, NULL = none */
    struct str family;
    int32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, context;
    int32_t experts, experts_used; /* 0 = dense */
    int32_t window;                /* sliding layers' tokens; 0 = none */
    int32_t sliding_layers;        /* of `kv_layers` */
    int32_t kv_layers;             /* layers that keep keys and values for each token */
    int64_t kv_layer_bytes; /* bytes per token in one of those layers, bfloat16; -1 unknown */
    int64_t kv_full_bytes;  /* the same in one without a window */
    int64_t eos[EOS_MAX];
    int n_eos;
    bool has_tokenizer;
    char tokenizer[64]; /* "BPE, byte-level", ... */
    char template[200]; /* "yes", "no", or why it cannot be used */
};

enum qn_status inspect_facts_read(const char *dir, struct inspect_facts *f, struct qn_err *err);
void inspect_facts_free(struct inspect_facts *f);
/* Bytes of keys and values at n tokens; -1 when the config does not say enough. */
int64_t inspect_kv_bytes(const struct inspect_facts *f, int64_t n);

#endif
