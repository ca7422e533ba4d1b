/*
 * test_anthropic.c - the Anthropic dialect: bodies to the chat that templates see, neutral events
 * to streams and answers, all byte for byte.
 */
#include "../check.h"

#include "api/anthropic.h"
#include "api_fixture.h"

#define BODY(rest) "{\"max_tokens\":9," rest "}"
#define USER       "{\"role\":\"user\",\"content\":\"u\"}"
#define TOOL                                                                                       \
    "\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"}}]"

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

static void read_body(const char *body, struct api_request *r)
{
    struct api_error e = {0};
    if (api_request_read(&dialect_anthropic, &model, str_of(body), r, &e) != QN_OK)
        fail_msg("%s: %s", body, e.msg);
    snprintf(r->id, sizeof r->id, "ID");
    r->prompts = arena_zalloc_n(r->arena, 1, sizeof *r->prompts);
    assert_non_null(r->prompts);
    r->prompts[0].n_ids = 5;
    r->n_prompts = 1;
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static void expect_chat(const char *body, const char *member, const char *want)
{
    struct api_request r;
    struct buf b = BUF_INIT;
    read_body(body, &r);
    json_w_value(&b, json_get(r.chat, member));
    if (strcmp(buf_z(&b), want) != 0)
        fail_msg("%s\ngave     %s\nexpected %s", body, buf_z(&b), want);
    buf_free(&b);
    api_request_free(&r);
}

static void test_messages(void **state)
{
    static const struct {
        const char *body, *want;
    } cases[] = {
        {BODY("\"messages\":[" USER "]"), "[{\"role\":\"user\",\"content\":\"u\"}]"},
        {BODY("\"system\":\"s\",\"messages\":[" USER "]"),
         "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"}]"},
        {BODY("\"system\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}],"
              "\"messages\":[" USER "]"),
         "[{\"role\":\"system\",\"content\":\"a\\n\\nb\"},{\"role\":\"user\",\"content\":\"u\"}]"},
        {BODY("\"system\":\"\",\"messages\":[" USER "," USER "]"),
         "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"user\",\"content\":\"u\"}]"},
        {BODY("\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
              "\"thinking\":\"t\",\"signature\":\"\"},{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
              "\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{\"x\":[1,2.50]}}]},{\"role\":"
              "\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":"
              "\"r\"},{\"type\":\"text\",\"text\":\"go on\"}]}]"),
         "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"reasoning_content\":"
         "\"t\",\"content\":\"a\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
         "{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":[1,2.50]}\"}}]},{\"role\":\"tool\","
         "\"tool_call_id\":\"1\",\"name\":\"f\",\"content\":\"r\"},{\"role\":\"user\",\"content\":"
         "\"go on\"}]"},
        /* results in the order of the calls, text after them, an unknown one last */
        {BODY("\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":"
              "\"1\",\"name\":\"f\",\"input\":{}},{\"type\":\"tool_use\",\"id\":\"2\",\"name\":"
              "\"g\",\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
              "\"t\"},{\"type\":\"tool_result\",\"tool_use_id\":\"9\"},{\"type\":\"tool_result\","
              "\"tool_use_id\":\"2\",\"content\":\"b\",\"is_error\":true},{\"type\":"
              "\"tool_result\",\"tool_use_id\":\"1\",\"content\":[{\"type\":\"text\",\"text\":"
              "\"a\"}]}]}]"),
         "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":"
         "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"id\":\"2\",\"type\":"
         "\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\","
         "\"tool_call_id\":\"1\",\"name\":\"f\",\"content\":\"a\"},{\"role\":\"tool\","
         "\"tool_call_id\":\"2\",\"name\":\"g\",\"content\":\"Error: b\"},{\"role\":\"tool\","
         "\"tool_call_id\":\"9\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"t\"}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_chat(cases[i].body, "messages", cases[i].want);
}

static void test_tools(void **state)
{
    struct api_request r;
    expect_chat(BODY(TOOL ",\"messages\":[" USER "]"), "tools",
                "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
                "\"parameters\":{\"type\":\"object\"}}}]");
    expect_chat(BODY(TOOL ",\"tool_choice\":{\"type\":\"none\"},\"messages\":[" USER "]"), "tools",
                "null");
    read_body(BODY(TOOL ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true},"
                        "\"messages\":[" USER "]"),
              &r);
    assert_int_equal(r.tool_choice, API_TOOLS_AUTO);
    assert_false(r.parallel_tool_calls);
    assert_int_equal(json_len(r.tools), 1);
    api_request_free(&r);
}

static void test_fields(void **state)
{
    struct api_request r;
    read_body(BODY("\"messages\":[" USER "],\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":"
                   "1024},\"stop_sequences\":[\"a\",\"b\"],\"metadata\":{\"user_id\":\"me\"},"
                   "\"stream\":true,\"temperature\":0.5,\"top_k\":3"),
              &r);
    assert_int_equal(r.thinking, API_THINKING_ON);
    assert_int_equal(r.thinking_budget, 1024);
    assert_int_equal(r.n_stop, 2);
    assert_true(str_eqz(r.user, "me") && r.stream && r.sample.top_k == 3);
    assert_int_equal(r.max_tokens, 9);
    api_request_free(&r);
    read_body(BODY("\"messages\":[" USER "],\"thinking\":{\"type\":\"disabled\"}"), &r);
    assert_int_equal(r.thinking, API_THINKING_OFF);
    assert_true(r.split_reasoning);
    api_request_free(&r);
    read_body(BODY("\"messages\":[" USER "],\"output_config\":{\"effort\":\"max\"}"), &r);
    assert_true(str_eqz(r.reasoning_effort, "xhigh"));
    api_request_free(&r);
}

/* ---- answers --------------------------------------------------------------------------------- */

static const struct str stop_text = {"STOP", 4};

#define EV(k, ...)                                                                                 \
    {                                                                                              \
        .kind = API_EV_##k, __VA_ARGS__                                                            \
    }
#define CALL(i, z) EV(CALL, .call = i, .call_id = STR_LIT(z), .call_name = STR_LIT("f"))
#define ARGS(i, z) EV(CALL_ARGS, .call = i, .text = STR_LIT(z))
#define USAGE                                                                                      \
    {                                                                                              \
        .prompt_tokens = 5, .cached_tokens = 2, .completion_tokens = 3                             \
    }
#define END EV(END, .usage = USAGE)

#define START                                                                                      \
    "event: message_start\n"                                                                       \
    "data: {\"type\":\"message_start\",\"message\":{\"id\":\"ID\",\"type\":\"message\",\"role\":"  \
    "\"assistant\",\"model\":\"fixture\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":"   \
    "null,\"usage\":{\"input_tokens\":5,\"cache_creation_input_tokens\":0,"                        \
    "\"cache_read_input_tokens\":0,\"output_tokens\":0,\"output_tokens_details\":"                 \
    "{\"thinking_tokens\":0}}}}\n\n"
#define BLOCK(i, z)                                                                                \
    "event: content_block_start\n"                                                                 \
    "data: {\"type\":\"content_block_start\",\"index\":" #i ",\"content_block\":" z "}\n\n"
#define DELTA(i, type, key, z)                                                                     \
    "event: content_block_delta\n"                                                                 \
    "data: {\"type\":\"content_block_delta\",\"index\":" #i ",\"delta\":{\"type\":\"" type         \
    "\",\"" key "\":\"" z "\"}}\n\n"
#define STOP(i)                                                                                    \
    "event: content_block_stop\n"                                                                  \
    "data: {\"type\":\"content_block_stop\",\"index\":" #i "}\n\n"
#define TAIL(reason, seq)                                                                          \
    "event: message_delta\n"                                                                       \
    "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"" reason                       \
    "\",\"stop_sequence\":" seq "},\"usage\":{\"input_tokens\":3,"                                 \
    "\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":2,\"output_tokens\":3,"         \
    "\"output_tokens_details\":{\"thinking_tokens\":0}}}\n\n"                                      \
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
#define TEXT_BLOCK     "{\"type\":\"text\",\"text\":\"\"}"
#define THINK          "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
#define TOOL_BLOCK(id) "{\"type\":\"tool_use\",\"id\":\"" id "\",\"name\":\"f\",\"input\":{}}"

static const struct script {
    const char *name;
    struct api_event ev[12];
    int n;
    const char *stream, *content, *reason, *seq;
} scripts[] = {
    {"text",
     {EV(TEXT, .text = STR_LIT("a")), EV(TEXT, .text = STR_LIT("")),
      EV(FINISH, .text = STR_LIT("b"), .finish = API_FINISH_STOP), END},
     4,
     START BLOCK(0, TEXT_BLOCK) DELTA(0, "text_delta", "text", "a")
         DELTA(0, "text_delta", "text", "b") STOP(0) TAIL("end_turn", "null"),
     "[{\"type\":\"text\",\"text\":\"ab\"}]",
     "end_turn",
     "null"},
    {"nothing",
     {EV(FINISH, .finish = API_FINISH_LENGTH), END},
     2,
     START BLOCK(0, TEXT_BLOCK) STOP(0) TAIL("max_tokens", "null"),
     "[{\"type\":\"text\",\"text\":\"\"}]",
     "max_tokens",
     "null"},
    {"stop string",
     {EV(TEXT, .text = STR_LIT("a")), EV(FINISH, .finish = API_FINISH_STOP, .stop = &stop_text),
      END},
     3,
     START BLOCK(0, TEXT_BLOCK) DELTA(0, "text_delta", "text", "a") STOP(0)
         TAIL("stop_sequence", "\"STOP\""),
     "[{\"type\":\"text\",\"text\":\"a\"}]",
     "stop_sequence",
     "\"STOP\""},
    {"thinking, text, two calls",
     {EV(REASONING, .text = STR_LIT("h")), EV(REASONING, .text = STR_LIT("m")),
      EV(TEXT, .text = STR_LIT("a")), CALL(0, "1"), ARGS(0, "{\"x\":"), ARGS(0, "1}"), CALL(1, "2"),
      ARGS(1, "{}"), EV(FINISH, .finish = API_FINISH_TOOL_CALLS), END},
     10,
     START BLOCK(0, THINK) DELTA(0, "thinking_delta", "thinking", "h") DELTA(
         0, "thinking_delta", "thinking", "m") DELTA(0, "signature_delta", "signature", "") STOP(0)
         BLOCK(1, TEXT_BLOCK) DELTA(1, "text_delta", "text", "a") STOP(1) BLOCK(2, TOOL_BLOCK("1"))
             DELTA(2, "input_json_delta", "partial_json", "{\\\"x\\\":")
                 DELTA(2, "input_json_delta", "partial_json", "1}") STOP(2)
                     BLOCK(3, TOOL_BLOCK("2")) DELTA(3, "input_json_delta", "partial_json", "{}")
                         STOP(3) TAIL("tool_use", "null"),
     "[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"},{\"type\":\"text\",\"text\":"
     "\"a\"},{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{\"x\":1}},{\"type\":"
     "\"tool_use\",\"id\":\"2\",\"name\":\"f\",\"input\":{}}]",
     "tool_use",
     "null"},
    {"a call cut off",
     {CALL(0, "1"), ARGS(0, "{\"x\":"), EV(FINISH, .finish = API_FINISH_LENGTH), END},
     4,
     START BLOCK(0, TOOL_BLOCK("1")) DELTA(0, "input_json_delta", "partial_json", "{\\\"x\\\":")
         STOP(0) TAIL("max_tokens", "null"),
     "[{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{}}]",
     "max_tokens",
     "null"},
    {"thinking alone",
     {EV(REASONING, .text = STR_LIT("h")), EV(FINISH, .finish = API_FINISH_LENGTH), END},
     3,
     START BLOCK(0, THINK) DELTA(0, "thinking_delta", "thinking", "h")
         DELTA(0, "signature_delta", "signature", "") STOP(0) TAIL("max_tokens", "null"),
     "[{\"type\":\"thinking\",\"thinking\":\"h\",\"signature\":\"\"}]",
     "max_tokens",
     "null"},
};

static void test_streams(void **state)
{
    for (size_t k = 0; k < sizeof scripts / sizeof *scripts; k++) {
        const struct script *s = &scripts[k];
        struct api_request r;
        struct buf out = BUF_INIT;
        read_body(BODY("\"messages\":[" USER "]"), &r);
        struct api_stream *st = dialect_anthropic.stream_begin(&model, &r, &out);
        assert_non_null(st);
        for (int i = 0; i < s->n; i++)
            dialect_anthropic.stream_event(st, &s->ev[i], &out);
        dialect_anthropic.stream_free(st);
        if (strcmp(buf_z(&out), s->stream) != 0)
            fail_msg("%s gave\n%s\nexpected\n%s", s->name, buf_z(&out), s->stream);
        buf_free(&out);
        api_request_free(&r);
    }
}

static void test_answers(void **state)
{
    for (size_t k = 0; k < sizeof scripts / sizeof *scripts; k++) {
        const struct script *s = &scripts[k];
        struct api_request r;
        struct api_answer a;
        struct buf out = BUF_INIT, want = BUF_INIT;
        read_body(BODY("\"messages\":[" USER "]"), &r);
        assert_int_equal(api_answer_init(&a, 1), QN_OK);
        for (int i = 0; i < s->n; i++)
            assert_int_equal(api_answer_add(&a, &s->ev[i]), QN_OK);
        dialect_anthropic.answer(&model, &r, &a, &out);
        buf_addf(&want,
                 "{\"id\":\"ID\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"fixture\","
                 "\"content\":%s,\"stop_reason\":\"%s\",\"stop_sequence\":%s,\"usage\":"
                 "{\"input_tokens\":3,\"cache_creation_input_tokens\":0,"
                 "\"cache_read_input_tokens\":2,\"output_tokens\":3,\"output_tokens_details\":"
                 "{\"thinking_tokens\":0}}}",
                 s->content, s->reason, s->seq);
        if (strcmp(buf_z(&out), buf_z(&want)) != 0)
            fail_msg("%s gave\n%s\nexpected\n%s", s->name, buf_z(&out), buf_z(&want));
        buf_free(&out);
        buf_free(&want);
        api_answer_free(&a);
        api_request_free(&r);
    }
}

static void test_refusals(void **state)
{
    static const struct {
        int status;
        const char *type;
    } cases[] = {
        {400, "invalid_request_error"}, {401, "authentication_error"},
        {403, "permission_error"},      {404, "not_found_error"},
        {405, "invalid_request_error"}, {413, "request_too_large"},
        {429, "rate_limit_error"},      {500, "api_error"},
        {503, "overloaded_error"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct api_error e;
        struct buf out = BUF_INIT, want = BUF_INIT;
        api_refuse(&e, cases[i].status, NULL, NULL, "why");
        e.request_id = "req_1";
        dialect_anthropic.error(&e, &out);
        buf_addf(&want,
                 "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"why\"},"
                 "\"request_id\":\"req_1\"}",
                 cases[i].type);
        assert_string_equal(buf_z(&out), buf_z(&want));
        buf_free(&out);
        buf_free(&want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages), cmocka_unit_test(test_tools),
        cmocka_unit_test(test_fields),   cmocka_unit_test(test_streams),
        cmocka_unit_test(test_answers),  cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
