/*
 * fuzz_gguf.c - any bytes through the GGUF reader, the architecture tables and the tokenizer
 * writer; tensors of an accepted file are read to their last byte.
 */
#include "base/json.h"
#include "import/gguf_arch.h"
#include "import/gguf_blocks.h"
#include "import/gguf_tok.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void read_tensor(const struct gguf_tensor *t)
{
    float w[256];
    const struct blk_format *f = t->fmt;
    if (f->kind == BLK_REFUSED)
        return;
    for (uint64_t at = 0; at < t->n_bytes; at += (uint64_t)f->n_bytes)
        blk_dequant(f, t->p + at, (size_t)f->n_elem, w);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct gguf g;
    struct arch_model m;
    struct qn_err err;
    if (gguf_open_mem(p, n, "input", &g, &err) != QN_OK)
        return 0;
    for (size_t i = 0; i < g.n_tensor; i++)
        read_tensor(&g.tensor[i]);
    if (arch_open(&g, &m, &err) == QN_OK) {
        struct arch_tensor map;
        struct arch_quant q = {.float_name = "float16"};
        struct buf a = BUF_INIT, b = BUF_INIT;
        struct json *doc = NULL;
        for (size_t i = 0; i < g.n_tensor; i++)
            arch_map(&m, &g.tensor[i], &map, &err);
        arch_check_complete(&m, &err);
        if (arch_config(&m, &q, &a, &err) == QN_OK) {
            QN_ASSERT(json_parse(buf_str(&a), "config", 16, &doc, &err) == QN_OK);
            json_free(doc);
        }
        buf_clear(&a);
        doc = NULL;
        if (gguf_tok_write(&g, m.n_vocab, m.n_ctx, &a, &b, &err) == QN_OK) {
            QN_ASSERT(json_parse(buf_str(&a), "tokenizer", 16, &doc, &err) == QN_OK);
            json_free(doc);
        }
        buf_free(&a);
        buf_free(&b);
    }
    gguf_close(&g);
    return 0;
}
