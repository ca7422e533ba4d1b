/*
 * fuzz_anthropic_body.c - any bytes as the body of /v1/messages (first byte even) or of
 * count_tokens: what is accepted has become a chat that templates can read, what is refused says
 * why in valid JSON.
 */
#include "api/anthropic.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const char tokenizer[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}}";

static void check_request(const struct api_request *r)
{
    const struct json *list = json_get(r->chat, "messages");
    QN_ASSERT(r->n == 1 && r->max_tokens >= -1);
    QN_ASSERT(r->n_stop >= 0 && r->n_stop <= GEN_STOP_MAX);
    QN_ASSERT(json_len(list) > 0);
    for (size_t i = 0; i < json_len(list); i++)
        QN_ASSERT(json_type(json_get(json_at(list, i), "role")) == JSON_STR);
    for (size_t i = 0; i < json_len(r->tools); i++)
        QN_ASSERT(json_str(json_get(json_get(json_at(r->tools, i), "function"), "name")).n > 0);
}

static void check_refusal(const struct api_error *e)
{
    struct buf b = BUF_INIT;
    QN_ASSERT(e->status >= 400 && e->msg[0]);
    dialect_anthropic.error(e, &b);
    QN_ASSERT(json_check(buf_str(&b), "refusal", 8, NULL) == QN_OK);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static struct tok *tok;
    struct qn_err err = {0};
    if (!tok)
        QN_ASSERT(tok_from_json(str_of(tokenizer), (struct str){NULL, 0}, &tok, &err) == QN_OK);
    if (n == 0)
        return 0;
    struct api_model m = {
        .name = "m", .tok = tok, .n_ctx = 100, .n_vocab = 3, .defaults = sample_params_default()};
    struct api_request r;
    struct api_error e = {0};
    struct str body = {(const char *)p + 1, n - 1};
    struct api_dialect d = dialect_anthropic;
    if (p[0] & 1)
        d.parse = anthropic_parse_count;
    if (api_request_read(&d, &m, body, &r, &e) == QN_OK)
        check_request(&r);
    else
        check_refusal(&e);
    api_request_free(&r);
    return 0;
}
