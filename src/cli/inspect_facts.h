/*
 * inspect_facts.h - what a model folder says about itself besides its tensors: sizes, context,
 * memory per token, tokenizer, chat template, end tokens.
 */
#ifndef CLI_INSPECT_FACTS_H
#define CLI_INSPECT_FACTS_H

#include "base/json.h"
#include "exec/exec.h"

#define EOS_MAX 32

/* Numbers are -1 when config.json does not state them. */
struct inspect_facts {
    struct json *config;             /* owned */
    const struct json *quantization; /* in config, NULL = none */
    struct str family;
    int32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, context;
    int32_t experts, experts_used; /* 0 = dense */
    int32_t window;                /* sliding layers' tokens; 0 = none */
    int32_t sliding_layers;        /* layers that keep only so many */
    struct kv_layer *kv;           /* [n_kv] what each layer keeps; owned; NULL = not known */
    int32_t n_kv;
    int64_t eos[EOS_MAX];
    int n_eos;
    bool has_tokenizer;
    char tokenizer[64]; /* "BPE, byte-level", ... */
    char template[200]; /* "yes", "no", or why it cannot be used */
};

enum qn_status inspect_facts_read(const char *dir, struct inspect_facts *f, struct qn_err *err);
void inspect_facts_free(struct inspect_facts *f);
/* Bytes of keys and values in bfloat16 at n tokens, of windows what they hold of them; -1 when the
 * family is not known or refuses this config.json. */
int64_t inspect_kv_bytes(const struct inspect_facts *f, int64_t n);
/* Bytes of recurrent state a conversation carries, whatever its length; 0 = none. */
int64_t inspect_state_bytes(const struct inspect_facts *f);

#endif
