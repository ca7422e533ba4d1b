/*
 * fuzz_openai_body.c - any bytes as the body of the OpenAI routes: the first byte picks the
 * dialect, the rest is the body. What is accepted must respect the limits that the layers below
 * rely on; what is refused must say why in valid JSON.
 */
#include "api/ir.h"
#include "api/openai_common.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static const char tokenizer[] =
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2},\"merges\":[]}}";

static void check_request(const struct api_model *m, const struct api_request *r)
{
    QN_ASSERT(r->n >= 1 && r->n <= API_N_MAX);
    QN_ASSERT(r->max_tokens >= -1);
    QN_ASSERT(r->n_stop >= 0 && r->n_stop <= GEN_STOP_MAX);
    QN_ASSERT(r->sample.n_top >= -1 && r->sample.n_top <= 20);
    QN_ASSERT(r->sample.temperature >= 0 && r->sample.temperature <= 2);
    QN_ASSERT((int64_t)r->n_prompts * r->n <= API_CHOICES_MAX);
    for (int32_t i = 0; i < r->sample.n_bias; i++)
        QN_ASSERT(r->sample.bias[i].id >= 0 && r->sample.bias[i].id < m->n_vocab);
    for (int32_t i = 0; i < r->n_prompts; i++)
        for (int32_t k = 0; !r->prompts[i].text.p && k < r->prompts[i].n_ids; k++)
            QN_ASSERT(r->prompts[i].ids[k] >= 0 && r->prompts[i].ids[k] < m->n_vocab);
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
    struct qn_err err = {0};
    if (!tok)
        QN_ASSERT(tok_from_json(str_of(tokenizer), (struct str){NULL, 0}, &tok, &err) == QN_OK);
    if (n == 0)
        return 0;
    struct api_model m = {
        .name = "m", .tok = tok, .n_ctx = 100, .n_vocab = 3, .defaults = sample_params_default()};
    struct api_request r;
    struct api_error e = {0};
    const struct api_dialect *d = p[0] & 1 ? &dialect_openai_completions : &dialect_openai_chat;
    struct str body = {(const char *)p + 1, n - 1};
    enum qn_status st = api_request_read(d, &m, body, &r, &e);
    if (st == QN_OK)
        check_request(&m, &r);
    else
        check_refusal(&e);
    api_request_free(&r);
    return 0;
}
