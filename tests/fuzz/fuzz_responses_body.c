/*
 * fuzz_responses_body.c - any bytes as the body of /v1/responses: what is accepted has become a
 * chat that templates can read, and its items a talk that a later body can follow; what is refused
 * says why in valid JSON. The store holds one answer, "resp_1", with the last accepted items.
 */
#include "api/openai_common.h"
#include "api/openai_responses.h"
#include "api/resp_store.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const char tokenizer[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}}";

static void check_request(const struct api_model *m, const struct api_request *r)
{
    const struct json *list = json_get(r->chat, "messages");
    struct buf items = BUF_INIT, whole = BUF_INIT;
    QN_ASSERT(r->n == 1 && r->max_tokens >= -1);
    QN_ASSERT(r->n_stop >= 0 && r->n_stop <= GEN_STOP_MAX);
    QN_ASSERT(json_len(list) > 0);
    for (size_t i = 0; i < json_len(list); i++)
        QN_ASSERT(json_type(json_get(json_at(list, i), "role")) == JSON_STR);
    responses_items(r, &items);
    buf_addc(&whole, '[');
    buf_add_str(&whole, buf_str(&items));
    buf_addc(&whole, ']');
    QN_ASSERT(json_check(buf_str(&whole), "items", JSON_DEPTH_MAX + 2, NULL) == QN_OK);
    if (items.n < 4000)
        resp_store_put(m->responses, STR_LIT("resp_1"), STR_LIT("{}"), buf_str(&items));
    buf_free(&items);
    buf_free(&whole);
}

static void check_refusal(const struct api_error *e)
{
    struct buf b = BUF_INIT;
    QN_ASSERT(e->status >= 400 && e->msg[0]);
    openai_error(e, &b);
    QN_ASSERT(json_check(buf_str(&b), "refusal", 8, NULL) == QN_OK);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static struct tok *tok;
    static struct resp_store *store;
    struct qn_err err = {0};
    if (!tok) {
        QN_ASSERT(tok_from_json(str_of(tokenizer), (struct str){NULL, 0}, &tok, &err) == QN_OK);
        store = resp_store_create(1 << 16, 3600);
        QN_ASSERT(store);
        resp_store_put(store, STR_LIT("resp_1"), STR_LIT("{}"),
                       STR_LIT("{\"role\":\"user\",\"content\":\"hi\"}"));
    }
    struct api_model m = {.name = "m",
                          .tok = tok,
                          .n_ctx = 100,
                          .n_vocab = 3,
                          .defaults = sample_params_default(),
                          .responses = store};
    struct api_request r;
    struct api_error e = {0};
    struct str body = {(const char *)p, n};
    if (api_request_read(&dialect_openai_responses, &m, body, &r, &e) == QN_OK)
        check_request(&m, &r);
    else
        check_refusal(&e);
    api_request_free(&r);
    return 0;
}
