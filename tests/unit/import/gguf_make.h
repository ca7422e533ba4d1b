/*
 * gguf_make.h - builds tiny GGUF files in memory for tests. Header-only; each test links its own.
 */
#ifndef GGUF_MAKE_H
#define GGUF_MAKE_H

#include "base/buf.h"

static inline void mk_u32(struct buf *b, uint32_t v)
{
    buf_add(b, &v, 4);
}

static inline void mk_u64(struct buf *b, uint64_t v)
{
    buf_add(b, &v, 8);
}

static inline void mk_str(struct buf *b, const char *z)
{
    mk_u64(b, strlen(z));
    buf_addz(b, z);
}

static inline void mk_head(struct buf *b, uint32_t version, uint64_t n_tensor, uint64_t n_kv)
{
    buf_add(b, "GGUF", 4);
    mk_u32(b, version);
    mk_u64(b, n_tensor);
    mk_u64(b, n_kv);
}

static inline void mk_kv_u32(struct buf *b, const char *key, uint32_t v)
{
    mk_str(b, key);
    mk_u32(b, 4);
    mk_u32(b, v);
}

static inline void mk_kv_str(struct buf *b, const char *key, const char *v)
{
    mk_str(b, key);
    mk_u32(b, 8);
    mk_str(b, v);
}

static inline void mk_tensor(struct buf *b, const char *name, uint64_t d0, uint64_t d1,
                             uint32_t type, uint64_t off)
{
    mk_str(b, name);
    mk_u32(b, d1 ? 2 : 1);
    mk_u64(b, d0);
    if (d1)
        mk_u64(b, d1);
    mk_u32(b, type);
    mk_u64(b, off);
}

static inline void mk_pad(struct buf *b, size_t align)
{
    while (b->n % align)
        buf_addc(b, 0);
}

/* ---- a whole llama of one layer: 64 wide, 2 heads of 32, 8 tokens, matrices Q8_0 ------------- */

#define MK_WIDTH 64
#define MK_VOCAB 8

struct mk_llama {
    const char *arch, *pre, *extra_tensor; /* extra_tensor NULL = none */
    const char *drop_tensor;               /* NULL = none */
    uint32_t extra_key;                    /* 1: a metadata key nobody knows */
    uint16_t scale;                        /* half bits of every block's scale */
};

static inline void mk_tokens(struct buf *b)
{
    static const char *const tok[MK_VOCAB] = {"<s>", "</s>", "a", "b", "ab", "c", "Ġ", "Ġa"};
    static const char *const merge[2] = {"a b", "Ġ a"};
    static const int32_t type[MK_VOCAB] = {3, 3, 1, 1, 1, 1, 1, 1};
    mk_str(b, "tokenizer.ggml.tokens");
    mk_u32(b, 9);
    mk_u32(b, 8);
    mk_u64(b, MK_VOCAB);
    for (int i = 0; i < MK_VOCAB; i++)
        mk_str(b, tok[i]);
    mk_str(b, "tokenizer.ggml.merges");
    mk_u32(b, 9);
    mk_u32(b, 8);
    mk_u64(b, 2);
    mk_str(b, merge[0]);
    mk_str(b, merge[1]);
    mk_str(b, "tokenizer.ggml.token_type");
    mk_u32(b, 9);
    mk_u32(b, 5);
    mk_u64(b, MK_VOCAB);
    buf_add(b, type, sizeof type);
}

static inline void mk_llama_file(struct buf *b, const struct mk_llama *m)
{
    static const struct {
        const char *name;
        uint32_t d0, d1;
    } T[] = {
        {"token_embd.weight", 64, 8},         {"output_norm.weight", 64, 0},
        {"blk.0.attn_norm.weight", 64, 0},    {"blk.0.attn_q.weight", 64, 64},
        {"blk.0.attn_k.weight", 64, 64},      {"blk.0.attn_v.weight", 64, 64},
        {"blk.0.attn_output.weight", 64, 64}, {"blk.0.ffn_norm.weight", 64, 0},
        {"blk.0.ffn_gate.weight", 64, 128},   {"blk.0.ffn_up.weight", 64, 128},
        {"blk.0.ffn_down.weight", 128, 64},
    };
    enum { N = sizeof T / sizeof *T };
    char key[64];
    uint64_t off = 0;
    bool extra = m->extra_tensor != NULL, drop = m->drop_tensor != NULL;
    mk_head(b, 3, N + extra - drop, 13 + m->extra_key);
    mk_kv_str(b, "general.architecture", m->arch);
    static const struct {
        const char *key;
        uint32_t v;
    } K[] = {{"block_count", 1},          {"context_length", 128},
             {"embedding_length", 64},    {"feed_forward_length", 128},
             {"attention.head_count", 2}, {"attention.head_count_kv", 2}};
    for (size_t i = 0; i < 6; i++) {
        snprintf(key, sizeof key, "%s.%s", m->arch, K[i].key);
        mk_kv_u32(b, key, K[i].v);
    }
    if (m->extra_key) {
        snprintf(key, sizeof key, "%s.logit_softcap", m->arch);
        mk_kv_u32(b, key, 30);
    }
    mk_kv_str(b, "tokenizer.ggml.model", "gpt2");
    mk_kv_str(b, "tokenizer.ggml.pre", m->pre);
    mk_tokens(b);
    mk_kv_u32(b, "tokenizer.ggml.eos_token_id", 1);
    for (size_t i = 0; i < N; i++) {
        if (drop && strcmp(T[i].name, m->drop_tensor) == 0)
            continue;
        mk_tensor(b, T[i].name, T[i].d0, T[i].d1, T[i].d1 ? 8 : 0, off);
        off += T[i].d1 ? (uint64_t)T[i].d0 * T[i].d1 / 32 * 34 : T[i].d0 * 4u;
        off = (off + 31) / 32 * 32;
    }
    if (extra)
        mk_tensor(b, m->extra_tensor, 8, 0, 0, off);
    mk_pad(b, 32);
    for (size_t i = 0; i < N; i++) {
        if (drop && strcmp(T[i].name, m->drop_tensor) == 0)
            continue;
        size_t blocks = (size_t)T[i].d0 * T[i].d1 / 32;
        for (size_t k = 0; k < blocks; k++) {
            buf_add(b, &m->scale, 2);
            for (int j = 0; j < 32; j++) /* the row's number is in every value */
                buf_addc(b, (char)(k / (T[i].d0 / 32)));
        }
        for (size_t k = 0; !blocks && k < T[i].d0; k++) {
            float one = 1;
            buf_add(b, &one, 4);
        }
        mk_pad(b, 32);
    }
    for (int i = 0; extra && i < 32; i++)
        buf_addc(b, 0);
}

/* ---- a phi3 of one layer: 64 wide, 2 heads of 32, one kv head, 24 dims rotate, all F32 ------- */

struct mk_phi3 {
    uint32_t n_ctx, orig_ctx; /* 0 = 256, 64 */
    float gain;               /* rope.scaling.attn_factor; 0 = what follows from the contexts */
    float bad_factor;         /* stands in the long factors' place 3; 0 = 2.5 */
    uint32_t n_factor;        /* 0 = 12 */
    uint32_t n_qkv;           /* rows of attn_qkv; 0 = 128 */
    const char *drop_tensor;  /* NULL = none */
    const char *scaling;      /* rope.scaling.type; NULL = absent */
};

static inline void mk_kv_f32(struct buf *b, const char *key, float v)
{
    mk_str(b, key);
    mk_u32(b, 6);
    buf_add(b, &v, 4);
}

static inline void mk_phi3_keys(struct buf *b, const struct mk_phi3 *m)
{
    const struct {
        const char *key;
        uint32_t v;
    } K[] = {{"phi3.block_count", 1},
             {"phi3.context_length", m->n_ctx ? m->n_ctx : 256},
             {"phi3.rope.scaling.original_context_length", m->orig_ctx ? m->orig_ctx : 64},
             {"phi3.embedding_length", 64},
             {"phi3.feed_forward_length", 96},
             {"phi3.attention.head_count", 2},
             {"phi3.attention.head_count_kv", 1},
             {"phi3.rope.dimension_count", 24},
             {"phi3.attention.sliding_window", 200}};
    for (size_t i = 0; i < sizeof K / sizeof *K; i++)
        mk_kv_u32(b, K[i].key, K[i].v);
    mk_kv_f32(b, "phi3.rope.scaling.attn_factor", m->gain != 0 ? m->gain : 1.1547005f);
    if (m->scaling)
        mk_kv_str(b, "phi3.rope.scaling.type", m->scaling);
}

static inline void mk_phi3_file(struct buf *b, const struct mk_phi3 *m)
{
    uint32_t n_factor = m->n_factor ? m->n_factor : 12;
    const struct {
        const char *name;
        uint32_t d0, d1;
    } T[] = {
        {"token_embd.weight", 64, 8},
        {"output_norm.weight", 64, 0},
        {"output.weight", 64, 8},
        {"rope_factors_long.weight", n_factor, 0},
        {"rope_factors_short.weight", n_factor, 0},
        {"blk.0.attn_norm.weight", 64, 0},
        {"blk.0.attn_qkv.weight", 64, m->n_qkv ? m->n_qkv : 128},
        {"blk.0.attn_output.weight", 64, 64},
        {"blk.0.ffn_norm.weight", 64, 0},
        {"blk.0.ffn_up.weight", 64, 192},
        {"blk.0.ffn_down.weight", 96, 64},
    };
    enum { N = sizeof T / sizeof *T };
    bool drop[N];
    uint64_t off = 0, left = 0;
    for (size_t i = 0; i < N; i++) {
        drop[i] = m->drop_tensor && strcmp(T[i].name, m->drop_tensor) == 0;
        left += !drop[i];
    }
    mk_head(b, 3, left, 17u + (m->scaling != NULL));
    mk_kv_str(b, "general.architecture", "phi3");
    mk_phi3_keys(b, m);
    mk_kv_str(b, "tokenizer.ggml.model", "gpt2");
    mk_kv_str(b, "tokenizer.ggml.pre", "gpt-4o");
    mk_tokens(b);
    mk_kv_u32(b, "tokenizer.ggml.eos_token_id", 1);
    for (size_t i = 0; i < N; i++) {
        if (drop[i])
            continue;
        mk_tensor(b, T[i].name, T[i].d0, T[i].d1, 0, off);
        off += ((uint64_t)T[i].d0 * (T[i].d1 ? T[i].d1 : 1) * 4 + 31) / 32 * 32;
    }
    mk_pad(b, 32);
    for (size_t i = 0; i < N; i++) {
        if (drop[i])
            continue;
        bool factors = T[i].name[0] == 'r', far = T[i].name[13] == 'l';
        for (uint64_t k = 0; k < (uint64_t)T[i].d0 * (T[i].d1 ? T[i].d1 : 1); k++) {
            float v = factors ? (far ? 2.5f : 1.25f) : (float)(k / T[i].d0); /* the row's number */
            if (factors && far && k == 3 && m->bad_factor != 0)
                v = m->bad_factor;
            buf_add(b, &v, 4);
        }
        mk_pad(b, 32);
    }
}

#endif
