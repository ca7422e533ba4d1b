/*
 * test_responses.c - the OpenAI Responses dialect: bodies to the chat that templates see, neutral
 * events to streams and answers, and what is kept for later answers.
 */
#include "../check.h"

#include "api/openai_responses.h"
#include "api/resp_store.h"
#include "api_fixture.h"

#define USER "{\"role\":\"user\",\"content\":\"u\"}"

static struct api_model model;

static int setup(void **state)
{
    model = fixture_model();
    model.responses = resp_store_create(1 << 20, 60);
    return model.responses ? 0 : -1;
}

static int teardown(void **state)
{
    resp_store_free(model.responses);
    fixture_free(&model);
    return 0;
}

static void read_body(const char *body, struct api_request *r)
{
    struct api_error e = {0};
    if (api_request_read(&dialect_openai_responses, &model, str_of(body), r, &e) != QN_OK)
        fail_msg("%s: %s", body, e.msg);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static void expect_messages(const char *body, const char *want)
{
    struct api_request r;
    struct buf b = BUF_INIT;
    read_body(body, &r);
    json_w_value(&b, json_get(r.chat, "messages"));
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
        {"{\"input\":\"u\"}", "[" USER "]"},
        {"{\"instructions\":\"i\",\"input\":[" USER ",{\"role\":\"developer\",\"content\":\"d\"}]}",
         "[{\"role\":\"system\",\"content\":\"i\\n\\nd\"}," USER "]"},
        /* what the assistant did in a row is one message, its results in the order of the calls */
        {"{\"input\":[" USER ",{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\","
         "\"text\":\"t\"}]},{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":"
         "\"output_text\",\"text\":\"a\"}]},{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":"
         "\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call\",\"call_id\":\"2\",\"name\":"
         "\"g\",\"arguments\":\"\"},{\"type\":\"function_call_output\",\"call_id\":\"2\","
         "\"output\":\"y\"},{\"type\":\"function_call_output\",\"call_id\":\"1\",\"output\":"
         "\"x\"}]}",
         "[" USER ",{\"role\":\"assistant\",\"reasoning_content\":\"t\",\"content\":\"a\","
         "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":\"{}\"}},{\"id\":\"2\",\"type\":\"function\",\"function\":{\"name\":\"g\","
         "\"arguments\":\"\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"name\":\"f\","
         "\"content\":\"x\"},{\"role\":\"tool\",\"tool_call_id\":\"2\",\"name\":\"g\",\"content\":"
         "\"y\"}]"},
        /* two messages stay two; reasoning after text begins another */
        {"{\"input\":[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\","
         "\"content\":\"b\"},{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":"
         "\"reasoning_text\",\"text\":\"t\"}]},{\"type\":\"function_call\",\"call_id\":\"1\","
         "\"name\":\"f\",\"arguments\":\"{}\"}," USER "]}",
         "[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
         "{\"role\":\"assistant\",\"reasoning_content\":\"t\",\"content\":null,\"tool_calls\":"
         "[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]"
         "}," USER "]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_messages(cases[i].body, cases[i].want);
}

static void test_fields(void **state)
{
    struct api_request r;
    read_body("{\"input\":\"u\",\"max_output_tokens\":7,\"reasoning\":{\"effort\":\"high\"},"
              "\"safety_identifier\":\"me\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},"
              "{\"type\":\"function\",\"name\":\"g\"},{\"type\":\"web_search\"}],\"tool_choice\":"
              "{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":\"function\","
              "\"name\":\"g\"}]},\"parallel_tool_calls\":false}",
              &r);
    assert_int_equal(r.max_tokens, 7);
    assert_true(str_eqz(r.user, "me") && str_eqz(r.reasoning_effort, "high"));
    assert_int_equal(json_len(r.tools), 1);
    assert_true(
        str_eqz(json_str(json_get(json_get(json_at(r.tools, 0), "function"), "name")), "g"));
    assert_false(r.parallel_tool_calls);
    assert_true(r.split_reasoning && r.sample.n_top == -1);
    api_request_free(&r);
}

/* ---- streams and answers --------------------------------------------------------------------- */

#define EV(k, ...)                                                                                 \
    {                                                                                              \
        .kind = API_EV_##k, __VA_ARGS__                                                            \
    }
#define CALL(i, z) EV(CALL, .call = i, .call_id = STR_LIT(z), .call_name = STR_LIT("f"))
#define ARGS(i, z) EV(CALL_ARGS, .call = i, .text = STR_LIT(z))
#define TEXT(z)    EV(TEXT, .text = STR_LIT(z))
#define THINK(z)   EV(REASONING, .text = STR_LIT(z))
#define END        EV(END, .usage = {.prompt_tokens = 5, .completion_tokens = 3})

/* One line of an item: its type and status, its text or name and arguments. */
static void item_line(const struct json *it, struct buf *b)
{
    const struct json *parts = json_get(it, "content");
    struct str type = json_str(json_get(it, "type")), st = json_str(json_get(it, "status"));
    struct str args = json_str(json_get(it, "arguments"));
    buf_addf(b, "%.*s %.*s", STR_ARG(type), STR_ARG(st));
    if (!parts)
        parts = json_get(it, "summary");
    for (size_t i = 0; i < json_len(parts); i++)
        buf_addf(b, " '%.*s'", STR_ARG(json_str(json_get(json_at(parts, i), "text"))));
    if (args.p)
        buf_addf(b, " %.*s/%.*s %.*s", STR_ARG(json_str(json_get(it, "call_id"))),
                 STR_ARG(json_str(json_get(it, "name"))), STR_ARG(args));
}

/* Checks an event's number and, while an item is open, its place; writes what it says as a line. */
static void event_line(const struct json *ev, int64_t n, struct buf *b)
{
    int64_t seq = -1, index;
    struct str type = json_str(json_get(ev, "type"));
    assert_true(json_i64(json_get(ev, "sequence_number"), &seq) && seq == n);
    assert_true(str_starts(type, STR_LIT("response.")));
    buf_addf(b, "%.*s", (int)type.n - 9, type.p + 9);
    if (json_i64(json_get(ev, "output_index"), &index))
        buf_addf(b, " %d", (int)index);
    const char *const texts[] = {"delta", "text", "arguments"};
    for (int i = 0; i < 3; i++)
        if (json_has(ev, texts[i]))
            buf_addf(b, " '%.*s'", STR_ARG(json_str(json_get(ev, texts[i]))));
    if (json_has(ev, "part"))
        buf_addf(b, " '%.*s'", STR_ARG(json_str(json_get(json_get(ev, "part"), "text"))));
    if (json_has(ev, "item")) {
        buf_addc(b, ' ');
        item_line(json_get(ev, "item"), b);
    }
    const struct json *out = json_get(json_get(ev, "response"), "output");
    for (size_t i = 0; i < json_len(out); i++) {
        buf_addz(b, "\n  ");
        item_line(json_at(out, i), b);
    }
    buf_addc(b, '\n');
}

static void lines_of(struct str s, struct buf *b)
{
    size_t at = 0;
    for (int64_t n = 0;; n++) {
        struct json *ev = NULL;
        size_t from = str_find(s, STR_LIT("data: "), at);
        if (from == SIZE_MAX)
            return;
        at = str_find(s, STR_LIT("\n\n"), from);
        assert_true(at != SIZE_MAX);
        struct str json = {s.p + from + 6, at - from - 6};
        assert_int_equal(json_parse(json, "event", 64, &ev, NULL), QN_OK);
        event_line(ev, n, b);
        json_free(ev);
    }
}

static const struct script {
    const char *name;
    struct api_event ev[12];
    int n;
    const char *stream; /* between in_progress and the last event */
    const char *last;   /* its type */
    const char *output; /* lines of the items, in it and in the whole answer */
} scripts[] = {
    {"text",
     {TEXT("a"), TEXT(""), EV(FINISH, .text = STR_LIT("b")), END},
     4,
     "output_item.added 0 message in_progress\ncontent_part.added 0 ''\n"
     "output_text.delta 0 'a'\noutput_text.delta 0 'b'\noutput_text.done 0 'ab'\n"
     "content_part.done 0 'ab'\noutput_item.done 0 message completed 'ab'\n",
     "completed",
     "\n  message completed 'ab'"},
    {"cut",
     {TEXT("a"), EV(FINISH, .finish = API_FINISH_LENGTH), END},
     3,
     "output_item.added 0 message in_progress\ncontent_part.added 0 ''\n"
     "output_text.delta 0 'a'\noutput_text.done 0 'a'\ncontent_part.done 0 'a'\n"
     "output_item.done 0 message incomplete 'a'\n",
     "incomplete",
     "\n  message incomplete 'a'"},
    {"reasoning, text, two calls",
     {THINK("h"), THINK("m"), TEXT("a"), CALL(0, "1"), ARGS(0, "{"), ARGS(0, "}"), CALL(1, "2"),
      ARGS(1, "{}"), EV(FINISH, .finish = API_FINISH_TOOL_CALLS), END},
     10,
     "output_item.added 0 reasoning in_progress\nreasoning_summary_part.added 0 ''\n"
     "reasoning_summary_text.delta 0 'h'\nreasoning_summary_text.delta 0 'm'\n"
     "reasoning_summary_text.done 0 'hm'\nreasoning_summary_part.done 0 'hm'\n"
     "output_item.done 0 reasoning completed 'hm'\n"
     "output_item.added 1 message in_progress\ncontent_part.added 1 ''\n"
     "output_text.delta 1 'a'\noutput_text.done 1 'a'\ncontent_part.done 1 'a'\n"
     "output_item.done 1 message completed 'a'\n"
     "output_item.added 2 function_call in_progress 1/f \n"
     "function_call_arguments.delta 2 '{'\nfunction_call_arguments.delta 2 '}'\n"
     "function_call_arguments.done 2 '{}'\n"
     "output_item.done 2 function_call completed 1/f {}\n"
     "output_item.added 3 function_call in_progress 2/f \n"
     "function_call_arguments.delta 3 '{}'\nfunction_call_arguments.done 3 '{}'\n"
     "output_item.done 3 function_call completed 2/f {}\n",
     "completed",
     "\n  reasoning completed 'hm'\n  message completed 'a'\n  function_call completed 1/f {}"
     "\n  function_call completed 2/f {}"},
    {"a call alone",
     {CALL(0, "1"), ARGS(0, "{}"), EV(FINISH, .finish = API_FINISH_TOOL_CALLS), END},
     4,
     "output_item.added 0 function_call in_progress 1/f \n"
     "function_call_arguments.delta 0 '{}'\nfunction_call_arguments.done 0 '{}'\n"
     "output_item.done 0 function_call completed 1/f {}\n",
     "completed",
     "\n  function_call completed 1/f {}"},
    {"a call cut off",
     {TEXT("a"), CALL(0, "1"), ARGS(0, "{\\\"x"), EV(FINISH, .finish = API_FINISH_LENGTH), END},
     5,
     "output_item.added 0 message in_progress\ncontent_part.added 0 ''\n"
     "output_text.delta 0 'a'\noutput_text.done 0 'a'\ncontent_part.done 0 'a'\n"
     "output_item.done 0 message completed 'a'\n"
     "output_item.added 1 function_call in_progress 1/f \n"
     "function_call_arguments.delta 1 '{\\\"x'\nfunction_call_arguments.done 1 '{\\\"x'\n"
     "output_item.done 1 function_call incomplete 1/f {\\\"x\n",
     "incomplete",
     "\n  message completed 'a'\n  function_call incomplete 1/f {\\\"x"},
    {"nothing but reasoning",
     {THINK("h"), EV(FINISH, .finish = API_FINISH_LENGTH), END},
     3,
     "output_item.added 0 reasoning in_progress\nreasoning_summary_part.added 0 ''\n"
     "reasoning_summary_text.delta 0 'h'\nreasoning_summary_text.done 0 'h'\n"
     "reasoning_summary_part.done 0 'h'\noutput_item.done 0 reasoning completed 'h'\n"
     "output_item.added 1 message in_progress\ncontent_part.added 1 ''\noutput_text.done 1 ''\n"
     "content_part.done 1 ''\noutput_item.done 1 message incomplete ''\n",
     "incomplete",
     "\n  reasoning completed 'h'\n  message incomplete ''"},
};

static void test_streams(void **state)
{
    for (size_t k = 0; k < sizeof scripts / sizeof *scripts; k++) {
        const struct script *s = &scripts[k];
        struct api_request r;
        struct buf out = BUF_INIT, got = BUF_INIT, want = BUF_INIT;
        read_body("{\"input\":\"u\"}", &r);
        struct api_stream *st = dialect_openai_responses.stream_begin(&model, &r, &out);
        assert_non_null(st);
        for (int i = 0; i < s->n; i++)
            dialect_openai_responses.stream_event(st, &s->ev[i], &out);
        dialect_openai_responses.stream_free(st);
        assert_false(out.failed);
        lines_of(buf_str(&out), &got);
        buf_addf(&want, "created\nin_progress\n%s%s%s\n", s->stream, s->last, s->output);
        if (strcmp(buf_z(&got), buf_z(&want)) != 0)
            fail_msg("%s gave\n%s\nexpected\n%s", s->name, buf_z(&got), buf_z(&want));
        buf_free(&out);
        buf_free(&got);
        buf_free(&want);
        api_request_free(&r);
    }
}

static void test_answers(void **state)
{
    for (size_t k = 0; k < sizeof scripts / sizeof *scripts; k++) {
        const struct script *s = &scripts[k];
        struct api_request r;
        struct api_answer a;
        struct buf out = BUF_INIT, got = BUF_INIT;
        struct json *doc = NULL;
        read_body("{\"input\":\"u\"}", &r);
        assert_int_equal(api_answer_init(&a, 1), QN_OK);
        for (int i = 0; i < s->n; i++)
            assert_int_equal(api_answer_add(&a, &s->ev[i]), QN_OK);
        dialect_openai_responses.answer(&model, &r, &a, &out);
        assert_int_equal(json_parse(buf_str(&out), "answer", 64, &doc, NULL), QN_OK);
        assert_true(str_eqz(json_str(json_get(doc, "status")), s->last));
        for (size_t i = 0; i < json_len(json_get(doc, "output")); i++) {
            buf_addz(&got, "\n  ");
            item_line(json_at(json_get(doc, "output"), i), &got);
        }
        if (strcmp(buf_z(&got), s->output) != 0)
            fail_msg("%s gave%s\nexpected%s", s->name, buf_z(&got), s->output);
        json_free(doc);
        buf_free(&out);
        buf_free(&got);
        api_answer_free(&a);
        api_request_free(&r);
    }
}

/* A later answer sees the input, the text and the calls of this one, but not its reasoning. */
static void test_history(void **state)
{
    const struct script *s = &scripts[2];
    struct api_request r;
    struct buf out = BUF_INIT;
    read_body("{\"input\":\"first\",\"instructions\":\"old\"}", &r);
    snprintf(r.id, sizeof r.id, "resp_1");
    struct api_stream *st = dialect_openai_responses.stream_begin(&model, &r, &out);
    for (int i = 0; i < s->n; i++)
        dialect_openai_responses.stream_event(st, &s->ev[i], &out);
    dialect_openai_responses.stream_free(st);
    api_request_free(&r);
    expect_messages(
        "{\"previous_response_id\":\"resp_1\",\"input\":[{\"type\":\"function_call_output\","
        "\"call_id\":\"1\",\"output\":\"r\"}]}",
        "[{\"role\":\"user\",\"content\":\"first\"},{\"role\":\"assistant\",\"content\":\"a\","
        "\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{}\"}},{\"id\":\"2\",\"type\":\"function\",\"function\":{\"name\":\"f\","
        "\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"name\":\"f\","
        "\"content\":\"r\"}]");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages), cmocka_unit_test(test_fields),
        cmocka_unit_test(test_streams),  cmocka_unit_test(test_answers),
        cmocka_unit_test(test_history),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
