/*
 * test_bench_reply.c - streamed answers read byte by byte with made-up clocks: exact figures,
 * and every way of breaking the protocol by its name.
 */
#include <math.h>

#include "../check.h"
#include "bench/streamed.h"

#define MS 1000000LL
#define DELTA                                                                                      \
    "data: "                                                                                       \
    "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"ab\"},\"finish_reason\":null}]}\n\n"
#define STOP "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
#define USAGE                                                                                      \
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3,"                \
    "\"total_tokens\":10,\"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n"
#define DONE "data: [DONE]\n\n"

/* The whole text in pieces of n bytes, a millisecond apart. */
static struct reply read_in(const char *text, size_t n, int64_t max_tokens)
{
    struct reply r;
    int64_t now = 100 * MS;
    reply_init(&r, true, max_tokens, now);
    for (size_t at = 0, all = strlen(text); at < all; at += n) {
        size_t k = all - at < n ? all - at : n;
        now += MS;
        if (!reply_feed(&r, (struct str){text + at, k}, now))
            break;
    }
    reply_end(&r, now);
    return r;
}

static void test_figures(void **state)
{
    static const struct {
        int64_t at_ms;
        const char *text;
    } steps[] = {
        {30, ": hello\n\n"},
        {40, "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"},
        {50, DELTA},
        {70, DELTA},
        {150, DELTA},
        {151, STOP USAGE},
        {160, DONE}};
    struct reply r;
    reply_init(&r, true, 3, 0);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        assert_true(reply_feed(&r, str_of(steps[i].text), steps[i].at_ms * MS));
    reply_end(&r, 160 * MS);
    assert_int_equal(r.fault, FAULT_NONE);
    assert_int_equal(r.n_output, 3);
    assert_int_equal(r.first_byte_ns, 30 * MS);
    assert_int_equal(r.first_event_ns, 40 * MS);
    assert_float_equal(reply_ttft_ms(&r), 50, 1e-9); /* the empty first delta does not count */
    assert_float_equal(reply_wall_ms(&r), 160, 1e-9);
    assert_float_equal(reply_decode_tps(&r), 2 / 0.1, 1e-9);
    assert_float_equal(reply_tpot_ms(&r), 50, 1e-9);
    assert_float_equal(reply_e2e_tps(&r), 3 / 0.16, 1e-9);
    assert_float_equal(reply_prefill_tps(&r), 7 / 0.05, 1e-9);
    assert_int_equal(r.cached_tokens, 2);
    CHECK_STR(buf_str(&r.text), "ababab");
    reply_free(&r);
}

/* However the bytes are cut, the same answer. */
static void test_pieces(void **state)
{
    static const char text[] =
        "data: {\"choices\":[{\"delta\":{\"content\":\"\u00e4\u6f22\"}}]}\r\n\r\n" DELTA DELTA
        ": comment\n\nevent: message\nid: 7\n" STOP USAGE DONE;
    for (size_t n = 1; n < sizeof text; n++) {
        struct reply r = read_in(text, n, 3);
        if (r.fault != FAULT_NONE || r.n_output != 3)
            fail_msg("pieces of %zu: %s %s, %d outputs", n, fault_name(r.fault), r.why, r.n_output);
        CHECK_STR(buf_str(&r.text), "\u00e4\u6f22"
                                    "abab");
        reply_free(&r);
    }
}

static const struct {
    const char *text;
    enum fault fault;
    const char *why;
} broken[] = {
    {DELTA DELTA DELTA STOP DONE, FAULT_NO_USAGE, "no usage"},
    {DELTA DELTA DELTA STOP USAGE, FAULT_NO_DONE, "no [DONE]"},
    {DELTA DELTA DELTA USAGE DONE, FAULT_NO_FINISH, "no finish_reason"},
    {STOP USAGE DONE, FAULT_NO_OUTPUT, "nothing was said"},
    {DELTA DELTA DELTA STOP USAGE DONE DELTA, FAULT_AFTER_DONE, "after [DONE]"},
    {DELTA "data: {\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}\n\n", FAULT_BAD_UTF8,
     "event 2"},
    {DELTA "data: {\"choices\":[{\"delta\":\n\n", FAULT_BAD_JSON, "event 2"},
    {DELTA "HTTP/1.1 500 Internal Server Error\n\n", FAULT_BAD_SSE, "HTTP/1.1 500"},
    {DELTA "\xff\xfe\n\n", FAULT_BAD_UTF8, "no event field"},
    {DELTA "data: {\"error\":{\"message\":\"out of cheese\"}}\n\n", FAULT_ERROR_EVENT,
     "out of cheese"},
    {DELTA "data: [1]\n\n", FAULT_BAD_SHAPE, "array"},
    {DELTA "data: {\"id\":1}\n\n", FAULT_BAD_SHAPE, "without choices"},
    {"data: {\"choices\":[{\"text\":\"x\"}]}\n\n", FAULT_BAD_SHAPE, "delta"},
    {DELTA DELTA STOP "data: {\"cho", FAULT_TRUNCATED, "middle of event 4"},
    {DELTA DELTA STOP "data: [DONE]\n", FAULT_TRUNCATED, "middle of event 4"},
    {DELTA "data: {\"usage\":{\"prompt_tokens\":-1,\"completion_tokens\":1}}\n\n", FAULT_BAD_USAGE,
     "-1"},
    {DELTA "data: {\"usage\":{\"prompt_tokens\":1}}\n\n", FAULT_BAD_USAGE,
     "completion_tokens is absent"},
    {DELTA "data: {\"usage\":{\"prompt_tokens\":1.5,\"completion_tokens\":1}}\n\n", FAULT_BAD_USAGE,
     "1.5"},
    {DELTA "data: {\"usage\":7}\n\n", FAULT_BAD_USAGE, "integer"},
    {DELTA STOP
     "data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":3}}\n\n" DONE,
     FAULT_WRONG_COUNTS, "make 3"},
    {DELTA DELTA DELTA DELTA STOP
     "data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n" DONE,
     FAULT_WRONG_COUNTS, "1 completion tokens for 4 output events"},
    {DELTA STOP "data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":0}}\n\n" DONE,
     FAULT_WRONG_COUNTS, "0 completion tokens"},
    {DELTA STOP "data: {\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":9}}\n\n" DONE,
     FAULT_WRONG_COUNTS, "at most 3"},
    {DELTA STOP "data: {\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":1}}\n\n" DONE,
     FAULT_WRONG_COUNTS, "0 prompt tokens"},
    {DELTA STOP "data: {\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":1,"
                "\"prompt_tokens_details\":{\"cached_tokens\":5}}}\n\n" DONE,
     FAULT_WRONG_COUNTS, "5 cached tokens"},
};

static void test_broken(void **state)
{
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        for (size_t n = 1; n < 4096; n = n * 7 + 1) {
            struct reply r = read_in(broken[i].text, n, 3);
            if (r.fault != broken[i].fault || !strstr(r.why, broken[i].why))
                fail_msg("case %zu in pieces of %zu: %s \"%s\"; expected %s \"%s\"", i, n,
                         fault_name(r.fault), r.why, fault_name(broken[i].fault), broken[i].why);
            reply_free(&r);
        }
    }
}

static void test_tools_and_reasoning(void **state)
{
    struct reply r = read_in(
        "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n"
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\","
        "\"arguments\":\"\"}}]}}]}\n\n"
        "data: "
        "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{}\"}"
        "}"
        "]}}]}\n\n" STOP USAGE DONE,
        9999, 3);
    assert_int_equal(r.fault, FAULT_NONE);
    assert_int_equal(r.n_output, 3);
    assert_int_equal(r.n_tool_event, 2);
    CHECK_STR(buf_str(&r.reasoning), "hm");
    CHECK_STR(buf_str(&r.tools), "f {}");
    reply_free(&r);
}

static void test_figures_that_do_not_exist(void **state)
{
    struct reply r;
    reply_init(&r, true, 3, 0);
    reply_end(&r, 5 * MS);
    assert_true(isnan(reply_ttft_ms(&r)) && isnan(reply_decode_tps(&r)) &&
                isnan(reply_tpot_ms(&r)));
    assert_true(isnan(reply_e2e_tps(&r)));
    reply_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_tools_and_reasoning),
        cmocka_unit_test(test_figures_that_do_not_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
