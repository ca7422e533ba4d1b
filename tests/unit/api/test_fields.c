/*
 * test_fields.c - bodies to requests: what is refused, naming which field, and what accepted fields
 * become. Both OpenAI dialects.
 */
#include "../check.h"

#include "api_fixture.h"

#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TEXT "\"prompt\":\"hi\""

static struct api_model model;

static int setup(void **state)
{
    model = fixture_model();
    return 0;
}

static int teardown(void **state)
{
    fixture_free(&model);
    return 0;
}

/* Puts FIELDS into a body that is right otherwise, for both dialects when both is set. */
struct row {
    const char *fields;
    const char *param; /* NULL = accepted */
};

static void check_row(const struct api_dialect *d, const char *base, const struct row *r)
{
    struct buf b = BUF_INIT;
    struct api_request rq;
    struct api_error e = {0};
    buf_addf(&b, "{%s,%s}", base, r->fields);
    enum qn_status st = api_request_read(d, &model, buf_str(&b), &rq, &e);
    if (!r->param && st != QN_OK)
        fail_msg("%s: refused: %s", buf_z(&b), e.msg);
    if (r->param) {
        if (st == QN_OK)
            fail_msg("%s: accepted", buf_z(&b));
        if (strcmp(e.param, r->param) != 0 || !strstr(e.msg, r->param) || e.status / 100 != 4)
            fail_msg("%s: %d param \"%s\" message \"%s\"", buf_z(&b), e.status, e.param, e.msg);
    }
    api_request_free(&rq);
    buf_free(&b);
}

static const struct row both[] = {
    {"\"temperature\":-0.01", "temperature"},
    {"\"temperature\":2.01", "temperature"},
    {"\"temperature\":\"1\"", "temperature"},
    {"\"temperature\":1e999", "temperature"},
    {"\"temperature\":0", NULL},
    {"\"temperature\":2", NULL},
    {"\"temperature\":null", NULL},
    {"\"top_p\":0", "top_p"},
    {"\"top_p\":1.001", "top_p"},
    {"\"top_p\":1e-9", NULL},
    {"\"top_k\":-1", "top_k"},
    {"\"top_k\":2.5", "top_k"},
    {"\"top_k\":0", NULL},
    {"\"min_p\":1.5", "min_p"},
    {"\"presence_penalty\":-2.5", "presence_penalty"},
    {"\"frequency_penalty\":2.5", "frequency_penalty"},
    {"\"repetition_penalty\":0", "repetition_penalty"},
    {"\"repetition_penalty\":0.1", NULL},
    {"\"xtc_probability\":2", "xtc_probability"},
    {"\"xtc_threshold\":0.6", "xtc_threshold"},
    {"\"seed\":1.5", "seed"},
    {"\"seed\":\"1\"", "seed"},
    {"\"seed\":18446744073709551616", "seed"},
    {"\"seed\":18446744073709551615", NULL},
    {"\"seed\":-9223372036854775808", NULL},
    {"\"n\":0", "n"},
    {"\"n\":129", "n"},
    {"\"n\":128", NULL},
    {"\"max_tokens\":-1", "max_tokens"},
    {"\"max_tokens\":1.5", "max_tokens"},
    {"\"max_tokens\":99999999999999999999", "max_tokens"},
    {"\"max_tokens\":1e12", NULL},
    {"\"max_completion_tokens\":-1", "max_completion_tokens"},
    {"\"logit_bias\":{\"-1\":1}", "logit_bias"},
    {"\"logit_bias\":{\"1 \":1}", "logit_bias"},
    {"\"logit_bias\":{\"01\":1}", "logit_bias"},
    {"\"logit_bias\":{\"9999999\":1}", "logit_bias"},
    {"\"logit_bias\":{\"4294967297\":1}", "logit_bias"},
    {"\"logit_bias\":{\"1\":100.5}", "logit_bias"},
    {"\"logit_bias\":{\"1\":null}", "logit_bias"},
    {"\"logit_bias\":{\"1\":100,\"0\":-100}", NULL},
    {"\"logit_bias\":{}", NULL},
    {"\"stop\":\"\"", "stop"},
    {"\"stop\":[\"a\",\"\"]", "stop"},
    {"\"stop\":[1]", "stop"},
    {"\"stop\":{}", "stop"},
    {"\"stop\":[]", NULL},
    {"\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\","
     "\"e\",\"f\",\"g\"]",
     NULL},
    {"\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\","
     "\"e\",\"f\",\"g\",\"h\"]",
     "stop"},
    {"\"stream\":1", "stream"},
    {"\"stream_options\":{}", "stream_options"},
    {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "include_usage"},
    {"\"stream\":true,\"stream_options\":{\"include_usage\":true}", NULL},
    {"\"user\":1", "user"},
    {"\"model\":1", "model"},
    {"\"model\":\"other-name\"", NULL},
    {"\"unknown\":{\"a\":[1,2]}", NULL},
};

static void test_both(void **state)
{
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        check_row(&dialect_openai_chat, CHAT, &both[i]);
        check_row(&dialect_openai_completions, TEXT, &both[i]);
    }
}

static const struct row chat[] = {
    {"\"top_logprobs\":2", "top_logprobs"},
    {"\"logprobs\":false,\"top_logprobs\":2", "top_logprobs"},
    {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
    {"\"logprobs\":true,\"top_logprobs\":20", NULL},
    {"\"logprobs\":1", "logprobs"},
    {"\"response_format\":{\"type\":\"json_object\"}", NULL},
    {"\"response_format\":{\"type\":\"text\"}", NULL},
    {"\"response_format\":1", "response_format"},
    {"\"guided_json\":3", "guided_json"},
    {"\"tool_choice\":\"required\"", "tool_choice"},
    {"\"tool_choice\":\"none\"", NULL},
    {"\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"x\"}}", "tool_choice"},
    {"\"tools\":{}", "tools"},
    {"\"tools\":[{}]", "tools[0].type"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":1}}]",
     "tools[0].function.parameters"},
    {"\"reasoning_effort\":\"most\"", "reasoning_effort"},
    {"\"reasoning_effort\":\"none\"", NULL},
    {"\"chat_template_kwargs\":1", "chat_template_kwargs"},
    {"\"messages\":[]", "messages"},
    {"\"messages\":1", "messages"},
    {"\"messages\":[{\"role\":\"x\",\"content\":\"\"}]", "messages[0].role"},
    {"\"messages\":[{\"role\":\"user\"}]", "messages[0].content"},
    {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
     "messages[0].content[0].type"},
    {"\"messages\":[{\"role\":\"tool\",\"content\":\"\",\"tool_call_id\":1}]",
     "messages[0].tool_call_id"},
};

static void test_chat(void **state)
{
    for (size_t i = 0; i < sizeof chat / sizeof *chat; i++)
        check_row(&dialect_openai_chat, CHAT, &chat[i]);
}

static const struct row text[] = {
    {"\"logprobs\":21", "logprobs"},
    {"\"logprobs\":true", "logprobs"},
    {"\"logprobs\":0", NULL},
    {"\"suffix\":\"x\"", "suffix"},
    {"\"suffix\":null", NULL},
    {"\"best_of\":2", "best_of"},
    {"\"best_of\":2,\"n\":2", NULL},
    {"\"echo\":1", "echo"},
    {"\"prompt\":[]", "prompt"},
    {"\"prompt\":[[]]", "prompt"},
    {"\"prompt\":[1,\"a\"]", "prompt"},
    {"\"prompt\":[\"a\",1]", "prompt"},
    {"\"prompt\":[\"a\",[1]]", NULL},
    {"\"prompt\":[-1]", "prompt"},
    {"\"prompt\":[99999999]", "prompt"},
    {"\"prompt\":[1.0]", "prompt"},
    {"\"prompt\":[0,1,2]", NULL},
    {"\"prompt\":{}", "prompt"},
    {"\"prompt\":null", "prompt"},
};

static void test_completions(void **state)
{
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        check_row(&dialect_openai_completions, TEXT, &text[i]);
}

/* ---- what fields become ---------------------------------------------------------------------- */

static struct api_request read_ok(const struct api_dialect *d, const char *body)
{
    struct api_request r;
    struct api_error e = {0};
    if (api_request_read(d, &model, str_of(body), &r, &e) != QN_OK)
        fail_msg("%s: %s", body, e.msg);
    return r;
}

static void test_values(void **state)
{
    struct api_request r = read_ok(
        &dialect_openai_chat,
        "{" CHAT ",\"temperature\":0.25,\"top_p\":0.5,\"top_k\":7,\"min_p\":0.125,\"seed\":-1,"
        "\"n\":3,\"max_tokens\":9,\"max_completion_tokens\":4,\"stop\":[\"x\",\"yy\"],"
        "\"logit_bias\":{\"5\":-3},\"logprobs\":true,\"top_logprobs\":2,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true},\"user\":\"me\"}");
    assert_true(r.sample.temperature == 0.25f && r.sample.top_p == 0.5f);
    assert_true(r.sample.min_p == 0.125f && r.sample.top_k == 7);
    assert_true(r.sample.seed == UINT64_MAX && r.seeded);
    assert_int_equal(r.n, 3);
    assert_int_equal(r.max_tokens, 4);
    assert_int_equal(r.n_stop, 2);
    CHECK_STR(r.stop[1], "yy");
    assert_int_equal(r.sample.n_bias, 1);
    assert_int_equal(r.sample.bias[0].id, 5);
    assert_true(r.sample.bias[0].bias == -3.0f);
    assert_int_equal(r.sample.n_top, 2);
    assert_true(r.stream && r.include_usage);
    CHECK_STR(r.user, "me");
    assert_memory_equal(r.id, "chatcmpl-", 9);
    api_request_free(&r);

    r = read_ok(&dialect_openai_chat, "{" CHAT "}");
    assert_true(r.sample.temperature == model.defaults.temperature);
    assert_int_equal(r.max_tokens, -1);
    assert_int_equal(r.n, 1);
    assert_int_equal(r.sample.n_top, -1);
    assert_false(r.seeded || r.stream || r.include_usage);
    uint64_t seed = r.sample.seed;
    api_request_free(&r);
    r = read_ok(&dialect_openai_chat, "{" CHAT "}");
    assert_true(r.sample.seed != seed);
    api_request_free(&r);
}

static void check_chat_json(const char *body, const char *want)
{
    struct buf b = BUF_INIT;
    struct api_request r = read_ok(&dialect_openai_chat, body);
    json_w_value(&b, r.chat);
    CHECK_STR(buf_str(&b), want);
    buf_free(&b);
    api_request_free(&r);
}

static void test_template_request(void **state)
{
#define END  ",\"add_generation_prompt\":true,\"continue_final_message\":false"
#define M(r) "\"messages\":[{\"role\":\"" r "\",\"content\":\"x\"}]"
#define TOOL "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
    check_chat_json("{" M("user") "}", "{" M("user") END "}");
    check_chat_json("{" M("assistant") "}", "{" M("assistant") ",\"add_generation_prompt\":false,"
                                                               "\"continue_final_message\":true}");
    check_chat_json("{" M("user") "," TOOL "}", "{" M("user") "," TOOL END "}");
    check_chat_json("{" M("user") "," TOOL ",\"tool_choice\":\"none\"}", "{" M("user") END "}");
    check_chat_json("{" M("user") ",\"reasoning_effort\":\"none\"}",
                    "{" M("user") END ",\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    check_chat_json("{" M("user") ",\"reasoning_effort\":\"minimal\",\"chat_template_kwargs\":"
                                  "{\"enable_thinking\":false,\"x\":1.50}}",
                    "{" M("user") END ",\"chat_template_kwargs\":{\"reasoning_effort\":\"low\","
                                      "\"enable_thinking\":false,\"x\":1.50}}");
}

static void test_unknown_model_and_json(void **state)
{
    struct api_request r;
    struct api_error e = {0};
    const char *body = "{" CHAT ",\"model\":\"gpt-4\"}";
    assert_int_equal(api_request_read(&dialect_openai_chat, &model, str_of(body), &r, &e),
                     QN_NOT_FOUND);
    assert_int_equal(e.status, 404);
    api_request_free(&r);
    static const char *const bad[] = {"", "{", "[]", "null", "1", "{} x", "{\"a\":\"\\ud800\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(api_request_read(&dialect_openai_chat, &model, str_of(bad[i]), &r, &e),
                         QN_BAD_INPUT);
        assert_int_equal(e.status, 400);
        api_request_free(&r);
    }
}

/* ---- prompts to ids -------------------------------------------------------------------------- */

static void test_window(void **state)
{
    struct buf b = BUF_INIT;
    for (int n = 63; n <= 65; n++) {
        struct api_error e = {0};
        buf_clear(&b);
        buf_addf(&b, "{\"prompt\":\"%0*d\"}", n, 0);
        struct api_request r = read_ok(&dialect_openai_completions, buf_z(&b));
        enum qn_status st = api_tokenise(&model, &r, &e);
        int32_t got = r.prompts[0].n_ids;
        if (got < 64) {
            assert_int_equal(st, QN_OK);
        } else {
            assert_int_equal(st, QN_BAD_INPUT);
            assert_string_equal(e.code, "context_length_exceeded");
            assert_non_null(strstr(e.msg, "64"));
        }
        api_request_free(&r);
    }
    buf_free(&b);
}

/* A tokenizer with more ids than the model: refused before anything runs, in a later prompt too. */
static void test_ids_beyond_the_model(void **state)
{
    struct api_error e = {0};
    struct api_model small = model;
    struct api_request r = read_ok(&dialect_openai_completions, "{\"prompt\":[\"a\",\"z\"]}");
    assert_int_equal(api_tokenise(&model, &r, &e), QN_OK);
    int32_t a = r.prompts[0].ids[0], z = r.prompts[1].ids[0];
    assert_true(a < z);
    api_request_free(&r);
    for (small.n_vocab = z; small.n_vocab <= z + 1; small.n_vocab++) {
        r = read_ok(&dialect_openai_completions, "{\"prompt\":[\"a\",\"z\"]}");
        enum qn_status st = api_tokenise(&small, &r, &e);
        assert_int_equal(st, small.n_vocab > z ? QN_OK : QN_BAD_INPUT);
        if (st != QN_OK) {
            assert_int_equal(e.status, 400);
            assert_string_equal(e.param, "prompt");
            assert_non_null(strstr(e.msg, "\"z\""));
        }
        api_request_free(&r);
    }
}

static void test_no_template(void **state)
{
    struct api_error e = {0};
    struct api_request r = read_ok(&dialect_openai_chat, "{" CHAT "}");
    assert_int_equal(api_tokenise(&model, &r, &e), QN_BAD_INPUT);
    assert_string_equal(e.code, "no_chat_template");
    api_request_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both),
        cmocka_unit_test(test_ids_beyond_the_model),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_completions),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_template_request),
        cmocka_unit_test(test_unknown_model_and_json),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_no_template),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
