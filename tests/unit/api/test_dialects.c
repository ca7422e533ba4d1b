/*
 * test_dialects.c - neutral events to OpenAI chunks and answers, byte for byte.
 */
#include "../check.h"

#include "api_fixture.h"
#include "api/openai_common.h"
#include "api/sse.h"

#include <math.h>

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

static void read_fixed(const struct api_dialect *d, const char *body, struct api_request *r)
{
    struct api_error e = {0};
    if (api_request_read(d, &model, str_of(body), r, &e) != QN_OK)
        fail_msg("%s", e.msg);
    snprintf(r->id, sizeof r->id, "ID");
    r->created = 7;
    if (r->chat) { /* as api_tokenise leaves it */
        r->prompts = arena_zalloc_n(r->arena, 1, sizeof *r->prompts);
        assert_non_null(r->prompts);
        r->n_prompts = 1;
    }
}

static struct api_event text_event(int32_t choice, const char *text)
{
    return (struct api_event){.kind = API_EV_TEXT, .choice = choice, .text = str_of(text)};
}

static struct api_event finish_event(int32_t choice, const char *text, enum api_finish f)
{
    return (struct api_event){
        .kind = API_EV_FINISH, .choice = choice, .text = str_of(text), .finish = f};
}

static const struct api_event end_event = {
    .kind = API_EV_END, .usage = {.prompt_tokens = 5, .cached_tokens = 2, .completion_tokens = 3}};

static void run_stream(const struct api_dialect *d, const char *body, const struct api_event *ev,
                       size_t n, struct buf *out)
{
    struct api_request r;
    read_fixed(d, body, &r);
    struct api_stream *s = d->stream_begin(&model, &r, out);
    assert_non_null(s);
    for (size_t i = 0; i < n; i++)
        d->stream_event(s, &ev[i], out);
    d->stream_free(s);
    api_request_free(&r);
    assert_false(out->failed);
}

/* The chunks of a stream without the members that are alike in all of them. */
static void reduce(const struct buf *in, struct buf *out)
{
    struct buf head = BUF_INIT;
    struct str s = buf_str(in), mark;
    for (int k = 0; k < 2; k++) {
        buf_clear(&head);
        buf_addf(&head,
                 "\"id\":\"ID\",\"object\":\"%s\",\"created\":7,\"model\":\"fixture\","
                 "\"system_fingerprint\":\"%s\",",
                 k ? "chat.completion.chunk" : "text_completion", model.fingerprint);
        mark = buf_str(&head);
        if (str_find(s, mark, 0) != SIZE_MAX)
            break;
    }
    for (size_t at = 0, hit; at < s.n; at = hit + mark.n) {
        hit = str_find(s, mark, at);
        if (hit == SIZE_MAX)
            hit = s.n;
        buf_add(out, s.p + at, hit - at);
        if (hit == s.n)
            break;
    }
    buf_free(&head);
}

static void check_stream(const struct api_dialect *d, const char *body, const struct api_event *ev,
                         size_t n, const char *want)
{
    struct buf raw = BUF_INIT, got = BUF_INIT;
    run_stream(d, body, ev, n, &raw);
    reduce(&raw, &got);
    if (!str_eqz(buf_str(&got), want))
        fail_msg("got:\n%s\nexpected:\n%s", buf_z(&got), want);
    buf_free(&raw);
    buf_free(&got);
}

#define CHAT_BODY "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"stream\":true"
#define C(i, delta, finish)                                                                        \
    "data: {\"choices\":[{\"index\":" #i ",\"delta\":{" delta "},\"logprobs\":null,"               \
    "\"finish_reason\":" finish "}]}\n\n"

static void test_chat_stream(void **state)
{
    const struct api_event ev[] = {
        {.kind = API_EV_PROGRESS, .n_done = 1, .n_total = 5},
        text_event(0, "He"),
        text_event(0, ""), /* held back: no chunk */
        text_event(0, "llo\n\"\xF0\x9F\x99\x82\""),
        finish_event(0, "!", API_FINISH_LENGTH),
        end_event,
    };
    check_stream(
        &dialect_openai_chat, CHAT_BODY "}", ev, 6,
        C(0, "\"role\":\"assistant\",\"content\":\"\"", "null") C(0, "\"content\":\"He\"", "null")
            C(0, "\"content\":\"llo\\n\\\"\xF0\x9F\x99\x82\\\"\"", "null")
                C(0, "\"content\":\"!\"", "null") C(0, "", "\"length\"") "data: [DONE]\n\n");
}

static void test_chat_stream_choices_and_usage(void **state)
{
#define U(i, delta, finish)                                                                        \
    "data: {\"choices\":[{\"index\":" #i ",\"delta\":{" delta "},\"logprobs\":null,"               \
    "\"finish_reason\":" finish "}],\"usage\":null}\n\n"
    const struct api_event ev[] = {
        text_event(1, "b"),
        finish_event(1, "", API_FINISH_STOP),
        finish_event(0, "", API_FINISH_STOP),
        end_event,
    };
    check_stream(
        &dialect_openai_chat, CHAT_BODY ",\"n\":2,\"stream_options\":{\"include_usage\":true}}", ev,
        4,
        U(0, "\"role\":\"assistant\",\"content\":\"\"",
          "null") U(1, "\"role\":\"assistant\",\"content\":\"\"",
                    "null") U(1, "\"content\":\"b\"", "null") U(1, "", "\"stop\"")
            U(0, "",
              "\"stop\"") "data: "
                          "{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3,"
                          "\"total_tokens\":8,\"prompt_tokens_details\":{\"cached_tokens\":2},"
                          "\"completion_tokens_details\":{\"reasoning_tokens\":0}}}\n\n"
                          "data: [DONE]\n\n");
}

static void test_chat_stream_calls(void **state)
{
#define CALL(i, members) "\"tool_calls\":[{\"index\":" #i "," members "}]"
    const struct api_event ev[] = {
        {.kind = API_EV_REASONING, .text = str_of("hm")},
        text_event(0, "ok"),
        {.kind = API_EV_CALL, .call_id = str_of("call_1"), .call_name = str_of("f")},
        {.kind = API_EV_CALL_ARGS, .text = str_of("{\"a\":")},
        {.kind = API_EV_CALL_ARGS, .text = str_of("1}")},
        {.kind = API_EV_CALL, .call = 1, .call_id = str_of("call_2"), .call_name = str_of("g")},
        {.kind = API_EV_CALL_ARGS, .call = 1, .text = str_of("{}")},
        finish_event(0, "", API_FINISH_TOOL_CALLS),
        end_event,
    };
    check_stream(
        &dialect_openai_chat, CHAT_BODY "}", ev, sizeof ev / sizeof *ev,
        C(0, "\"role\":\"assistant\",\"content\":\"\"",
          "null") C(0, "\"reasoning\":\"hm\"", "null") C(0, "\"content\":\"ok\"", "null")
            C(0,
              CALL(0, "\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                      "\"arguments\":\"\"}"),
              "null") C(0, CALL(0, "\"function\":{\"arguments\":\"{\\\"a\\\":\"}"),
                        "null") C(0, CALL(0, "\"function\":{\"arguments\":\"1}\"}"), "null")
                C(0,
                  CALL(1, "\"id\":\"call_2\",\"type\":\"function\",\"function\":{\"name\":\"g\","
                          "\"arguments\":\"\"}"),
                  "null") C(0, CALL(1, "\"function\":{\"arguments\":\"{}\"}"), "null")
                    C(0, "", "\"tool_calls\"") "data: [DONE]\n\n");
}

static void test_answer_calls(void **state)
{
    struct api_request r;
    struct buf out = BUF_INIT;
    const struct api_event ev[] = {
        {.kind = API_EV_REASONING, .text = str_of("hm")},
        {.kind = API_EV_CALL, .call_id = str_of("call_1"), .call_name = str_of("f")},
        {.kind = API_EV_CALL_ARGS, .text = str_of("{\"a\":")},
        {.kind = API_EV_CALL_ARGS, .text = str_of("1}")},
        finish_event(0, "", API_FINISH_TOOL_CALLS),
    };
    struct api_model m = model;
    m.reasoning_field = "reasoning_content";
    read_fixed(&dialect_openai_chat, CHAT_BODY "}", &r);
    for (int with_text = 0; with_text < 2; with_text++) {
        struct api_answer a;
        assert_int_equal(api_answer_init(&a, 1), QN_OK);
        for (size_t i = 0; i < sizeof ev / sizeof *ev; i++)
            assert_int_equal(api_answer_add(&a, &ev[i]), QN_OK);
        struct api_event text = text_event(0, "x");
        if (with_text)
            assert_int_equal(api_answer_add(&a, &text), QN_OK);
        buf_clear(&out);
        dialect_openai_chat.answer(&m, &r, &a, &out);
        const char *content = with_text ? "\"x\"" : "null";
        char want[512];
        snprintf(want, sizeof want,
                 "\"message\":{\"role\":\"assistant\",\"content\":%s,\"refusal\":null,"
                 "\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"call_1\",\"type\":"
                 "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},"
                 "\"logprobs\":null,\"finish_reason\":\"tool_calls\"",
                 content);
        if (str_find(buf_str(&out), str_of(want), 0) == SIZE_MAX)
            fail_msg("got:\n%s\nexpected in it:\n%s", buf_z(&out), want);
        api_answer_free(&a);
    }
    api_request_free(&r);
    buf_free(&out);
}

static void test_stream_error(void **state)
{
    struct api_event ev = {.kind = API_EV_ERROR};
    api_refuse(&ev.err, 500, "internal_error", NULL, "broken");
    struct buf raw = BUF_INIT;
    run_stream(&dialect_openai_completions, "{\"prompt\":\"q\",\"stream\":true}", &ev, 1, &raw);
    CHECK_STR(buf_str(&raw), "data: {\"error\":{\"message\":\"broken\",\"type\":\"server_error\","
                             "\"param\":null,\"code\":\"internal_error\"}}\n\n");
    buf_free(&raw);
}

#define T(i, text, finish)                                                                         \
    "data: {\"choices\":[{\"index\":" #i ",\"text\":\"" text "\",\"logprobs\":null,"               \
    "\"finish_reason\":" finish "}]}\n\n"

static void test_completions_stream(void **state)
{
    const struct api_event ev[] = {
        text_event(1, "B"),
        text_event(0, "A"),
        finish_event(0, "", API_FINISH_STOP),
        finish_event(1, "", API_FINISH_LENGTH),
        end_event,
    };
    check_stream(&dialect_openai_completions,
                 "{\"prompt\":[\"p \",\"q \"],\"stream\":true,\"echo\":true}", ev, 5,
                 T(1, "q B", "null") T(0, "p A", "null") T(0, "", "\"stop\"")
                     T(1, "", "\"length\"") "data: [DONE]\n\n");
}

/* ---- logprobs -------------------------------------------------------------------------------- */

static void test_logprob_text(void **state)
{
    static const struct {
        float v;
        const char *want;
    } rows[] = {{0.0f, "0"},          {-0.5f, "-0.5"},        {-1.0f / 3, "-0.33333334"},
                {-INFINITY, "-9999"}, {NAN, "-9999"},         {-12345678.0f, "-9999"},
                {-0.1f, "-0.1"},      {-16777.217f, "-9999"}, {-9.5e-7f, "-9.5e-07"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b = BUF_INIT;
        struct jw w;
        jw_init(&w, &b);
        openai_logprob(&w, rows[i].v);
        CHECK_STR(buf_str(&b), rows[i].want);
        buf_free(&b);
    }
}

static void test_offsets(void **state)
{
    /* a, the four bytes of an emoji, a two-byte letter, a special token without text, z */
    static const int32_t ids[] = {'a', 0xF0, 0x9F, 0x99, 0x82, 0xC3, 0xA9, SCRIPTED_EOS, 'z'};
    static const int64_t want[] = {0, 1, 1, 1, 1, 2, 2, 3, 3};
    struct openai_offset at = {0};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        assert_int_equal(openai_offset_next(&at, model.tok, ids[i], false), want[i]);
    assert_int_equal(at.chars, 4);
}

static void test_whole_answer(void **state)
{
    struct api_request r;
    struct api_answer a;
    struct buf out = BUF_INIT;
    struct sampled t = {.id = 0xE9, .logprob = -0.5f, .n_top = 1, .top = {{'e', -0.25f}}};
    read_fixed(&dialect_openai_chat, CHAT_BODY ",\"logprobs\":true,\"top_logprobs\":1}", &r);
    assert_int_equal(api_answer_init(&a, 1), QN_OK);
    struct api_event ev = text_event(0, "x");
    ev.token = &t;
    assert_int_equal(api_answer_add(&a, &ev), QN_OK);
    ev = finish_event(0, "y", API_FINISH_STOP);
    assert_int_equal(api_answer_add(&a, &ev), QN_OK);
    assert_int_equal(api_answer_add(&a, &end_event), QN_OK);
    dialect_openai_chat.answer(&model, &r, &a, &out);
    char want[1024];
    snprintf(want, sizeof want,
             "{\"id\":\"ID\",\"object\":\"chat.completion\",\"created\":7,\"model\":\"fixture\","
             "\"system_fingerprint\":\"%s\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
             "\"assistant\",\"content\":\"xy\",\"refusal\":null},\"logprobs\":{\"content\":[{"
             "\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.5,\"bytes\":[233],\"top_logprobs\":[{"
             "\"token\":\"e\",\"logprob\":-0.25,\"bytes\":[101]}]}],\"refusal\":null},"
             "\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3,"
             "\"total_tokens\":8,\"prompt_tokens_details\":{\"cached_tokens\":2},"
             "\"completion_tokens_details\":{\"reasoning_tokens\":0}}}",
             model.fingerprint);
    CHECK_STR(buf_str(&out), want);
    api_answer_free(&a);
    api_request_free(&r);
    buf_free(&out);
}

static void test_sse(void **state)
{
    struct buf b = BUF_INIT;
    sse_data(&b, STR_LIT("{}"));
    sse_comment(&b, "keepalive %d/%d", 1, 2);
    sse_done(&b);
    CHECK_STR(buf_str(&b), "data: {}\n\n: keepalive 1/2\n\ndata: [DONE]\n\n");
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_stream),
        cmocka_unit_test(test_chat_stream_choices_and_usage),
        cmocka_unit_test(test_stream_error),
        cmocka_unit_test(test_completions_stream),
        cmocka_unit_test(test_logprob_text),
        cmocka_unit_test(test_offsets),
        cmocka_unit_test(test_whole_answer),
        cmocka_unit_test(test_sse),
        cmocka_unit_test(test_chat_stream_calls),
        cmocka_unit_test(test_answer_calls),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
