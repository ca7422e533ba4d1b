/*
 * fuzz_tokenizer_json.c - a hostile tokenizer.json: it is refused, or it makes a tokenizer that
 * encodes and decodes within its own ids.
 */
#include <stdlib.h>

#include "base/err.h"
#include "tok/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct tok *t;
    struct qn_err err;
    struct ids ids = {0};
    struct buf out = BUF_INIT;
    if (n > 1 << 18 || tok_from_json((struct str){(const char *)data, n}, (struct str){NULL, 0}, &t,
                                     &err) != QN_OK)
        return 0;
    if (tok_encode(t, STR_LIT(" the <s> \xF0\x9F\x99\x82 aab  \n1'll"), 3, &ids, &err) == QN_OK)
        for (size_t i = 0; i < ids.n; i++)
            QN_ASSERT(ids.v[i] >= 0 && ids.v[i] < tok_size(t));
    tok_decode(t, ids.v, ids.n, true, &out);
    buf_free(&out);
    ids_free(&ids);
    tok_free(t);
    return 0;
}
