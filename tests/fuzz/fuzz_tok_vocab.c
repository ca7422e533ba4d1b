/*
 * fuzz_tok_vocab.c - a hostile compiled vocabulary. The checksums are made right first, as an enemy
 * would, so that the checks behind them are what is tested.
 */
#include <stdlib.h>

#include "tok/tok_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(struct tok *t)
{
    struct qn_err err;
    struct ids ids = {0};
    struct buf out = BUF_INIT;
    if (tok_encode(t, STR_LIT(" the <s> \xF0\x9F\x99\x82 aab  \n1'll"), 3, &ids, &err) == QN_OK)
        for (size_t i = 0; i < ids.n; i++)
            QN_ASSERT(ids.v[i] >= 0 && ids.v[i] < tok_size(t));
    tok_decode(t, ids.v, ids.n, true, &out);
    for (int32_t id = 0; id < tok_size(t) && id < 1000; id++) {
        tok_bytes(t, id, &out);
        tok_id(t, tok_piece(t, id));
    }
    buf_free(&out);
    ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tok_head h;
    if (n < sizeof h || n > 1 << 20)
        return 0;
    uint8_t *p = malloc(n);
    struct tok *t;
    struct qn_err err;
    QN_ASSERT(p);
    memcpy(p, data, n);
    memcpy(&h, p, sizeof h);
    memcpy(h.magic, TOK_IMAGE_MAGIC, 8);
    h.version = TOK_IMAGE_VERSION;
    h.byte_order = 0x01020304;
    h.total = n;
    h.body_sum = tok_image_sum(p + sizeof h, n - sizeof h);
    h.head_sum = tok_image_sum(&h, offsetof(struct tok_head, head_sum));
    memcpy(p, &h, sizeof h);
    if (tok_from_image((struct str){(const char *)p, n}, &t, &err) == QN_OK) {
        use(t);
        tok_free(t);
    }
    free(p);
    return 0;
}
