/*
 * test_chat.c - where the template comes from, special tokens, and each point of the messages'
 * normalisation by itself.
 */
#include "../check.h"

#include "base/file.h"
#include "base/json.h"
#include "tmpl/chat.h"

static enum qn_status render(const struct chat_tmpl *c, const char *request, struct buf *out,
                             struct qn_err *err)
{
    struct json *r = NULL;
    *err = (struct qn_err){0};
    buf_clear(out);
    CHECK_OK(json_parse(str_of(request), "request", JSON_DEPTH_MAX, &r, err), *err);
    enum qn_status s = chat_render(c, r, 0, out, err);
    json_free(r);
    return s;
}

static struct chat_tmpl *with_template(const char *text)
{
    struct buf config = BUF_INIT;
    struct chat_tmpl *c = NULL;
    struct qn_err err = {0};
    buf_addz(&config, "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
                      "\"unk_token\":null,\"add_bos_token\":true,\"chat_template\":");
    json_w_strz(&config, text);
    buf_addc(&config, '}');
    CHECK_OK(chat_tmpl_from_json(buf_str(&config), &c, &err), err);
    buf_free(&config);
    return c;
}

/* template, request, prompt */
static const char *const CASES[][3] = {
    {"{{ messages[0].role }}", "{\"messages\":[{\"role\":\"developer\",\"content\":\"x\"}]}",
     "system"},
    {"{{ messages[0].content }}",
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
     "{\"type\":\"text\",\"text\":\"b\"}]}]}",
     "ab"},
    {"{{ messages[0].content | length }}{{ messages[0].content[1].type }}",
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
     "{\"type\":\"image_url\"}]}]}",
     "2image_url"},
    {"{{ messages[0].tool_calls[0].function.arguments.a }}",
     "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
     "\"arguments\":\"{\\\"a\\\": [1, 2.0]}\"}}]}]}",
     "[1, 2.0]"},
    {"{{ messages[0].tool_calls[0].function.arguments }}",
     "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
     "\"arguments\":\"[1]\"}}]}]}",
     "[1]"},
    {"{{ messages[0].content is defined }}{{ messages[0].name is defined }}",
     "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"name\":null}]}", "FalseFalse"},
    {"{{ messages[0].reasoning_content }}{{ messages[0].thinking }}{{ messages[0].reasoning }}",
     "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"r\"}]}", "rrr"},
    {"{{ messages[0].reasoning }}",
     "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"r\"}]}", "r"},
    {"{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}{{ add_bos_token is defined }}",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}", "<s></s>FalseFalse"},
    {"{{ tools }}{{ documents }}{{ add_generation_prompt }}",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}", "NoneNoneTrue"},
    {"{{ tools[0].x }}{{ add_generation_prompt }}{{ k }}",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"tools\":[{\"x\":1}],"
     "\"add_generation_prompt\":false,\"chat_template_kwargs\":{\"k\":[true]}}",
     "1False[True]"},
    {"[{{ messages[-1].content }}]{{ add_generation_prompt }}",
     "{\"messages\":[{\"role\":\"assistant\",\"content\":\"so "
     "\"}],\"continue_final_message\":true}",
     "[so "},
    {"[{{ messages[-1].content | trim }}]",
     "{\"messages\":[{\"role\":\"assistant\",\"content\":\"so "
     "\"}],\"continue_final_message\":true}",
     "[so"},
    {"{{ messages[0].content }}", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}",
     NULL},
};

static void test_normalise(void **state)
{
    struct buf out = BUF_INIT;
    struct qn_err err;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct chat_tmpl *c = with_template(CASES[i][0]);
        CHECK_OK(render(c, CASES[i][1], &out, &err), err);
        if (CASES[i][2])
            CHECK_STR(buf_str(&out), CASES[i][2]);
        else
            assert_true(str_eq(buf_str(&out), (struct str){"a\0b", 3}));
        chat_tmpl_free(c);
    }
    buf_free(&out);
}

static void test_refused(void **state)
{
    static const char *const cases[][2] = {
        {"{}", "messages is null; expected a non-empty array"},
        {"{\"messages\":[]}", "messages is empty"},
        {"{\"messages\":[3]}", "messages[0] is integer; expected an object"},
        {"{\"messages\":[{\"content\":\"x\"}]}", "messages[0].role is null; expected a string"},
        {"{\"messages\":[{\"role\":\"user\"}],\"tools\":{}}", "tools is object"},
        {"{\"messages\":[{\"role\":\"user\"}],\"chat_template_kwargs\":1}",
         "chat_template_kwargs is integer"},
        {"{\"messages\":[{\"role\":\"user\"}],\"chat_template_kwargs\":{\"messages\":1}}",
         "chat_template_kwargs.messages is not allowed"},
        {"{\"messages\":[{\"role\":\"assistant\"}],\"continue_final_message\":true}",
         "messages[0] has no content to continue"},
        {"{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}],"
         "\"continue_final_message\":true}",
         "leaves the last message out"},
        {"{\"messages\":[{\"role\":\"bad\"}]}", "no bad ones"},
    };
    struct chat_tmpl *c = with_template(
        "{% if messages[0].role == 'bad' %}{{ raise_exception('no bad ones') }}{% endif %}");
    struct buf out = BUF_INIT;
    struct qn_err err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_FAILS(render(c, cases[i][0], &out, &err), QN_BAD_INPUT, err, cases[i][1]);
    buf_free(&out);
    chat_tmpl_free(c);
}

static void put(const char *dir, const char *name, const char *text)
{
    struct buf path = BUF_INIT;
    struct qn_err err = {0};
    path_join(&path, dir, name);
    CHECK_OK(file_write_atomic(buf_z(&path), str_of(text), &err), err);
    buf_free(&path);
}

static void check_open(const char *dir, const char *request, const char *want)
{
    struct chat_tmpl *c = NULL;
    struct buf out = BUF_INIT;
    struct qn_err err = {0};
    CHECK_OK(chat_tmpl_open(dir, &c, &err), err);
    CHECK_OK(render(c, request, &out, &err), err);
    CHECK_STR(buf_str(&out), want);
    buf_free(&out);
    chat_tmpl_free(c);
}

/* From the weakest source to the strongest. */
static void test_sources(void **state)
{
    static const char plain[] = "{\"messages\":[{\"role\":\"user\"}]}";
    static const char tools[] = "{\"messages\":[{\"role\":\"user\"}],\"tools\":[{}]}";
    char *dir = check_tmp_dir();
    struct chat_tmpl *c = NULL;
    struct qn_err err = {0};
    CHECK_FAILS(chat_tmpl_open(dir, &c, &err), QN_NOT_FOUND, err, "has no chat template");
    assert_null(c);
    put(dir, "tokenizer_config.json",
        "{\"bos_token\":\"B\",\"chat_template\":[{\"name\":\"default\",\"template\":\"plain\"},"
        "{\"name\":\"tool_use\",\"template\":\"tools\"},{\"name\":\"rag\",\"template\":\"{{\"}]}");
    check_open(dir, plain, "plain");
    check_open(dir, tools, "tools");
    put(dir, "special_tokens_map.json", "{\"bos_token\":\"X\",\"eos_token\":{\"content\":\"E\"}}");
    put(dir, "tokenizer_config.json",
        "{\"bos_token\":\"B\",\"chat_template\":\"{{ bos_token }}{{ eos_token }}\"}");
    check_open(dir, tools, "BE");
    put(dir, "chat_template.json", "{\"chat_template\":\"from json\"}");
    check_open(dir, plain, "from json");
    put(dir, "chat_template.jinja", "from jinja {{ bos_token }}\n");
    check_open(dir, plain, "from jinja B");
    CHECK_OK(chat_tmpl_open(dir, &c, &err), err);
    CHECK_STR(chat_tmpl_source(c), "from jinja {{ bos_token }}\n");
    chat_tmpl_free(c);
    put(dir, "chat_template.jinja", "{% if %}");
    CHECK_FAILS(chat_tmpl_open(dir, &c, &err), QN_BAD_INPUT, err, "chat template: line 1");
    put(dir, "tokenizer_config.json", "{\"chat_template\": 3");
    CHECK_FAILS(chat_tmpl_open(dir, &c, &err), QN_BAD_INPUT, err, "tokenizer_config.json");
    CHECK_OK(dir_remove(dir, &err), err);
    free(dir);
    CHECK_FAILS(chat_tmpl_from_json(STR_LIT("{\"chat_template\":[{}]}"), &c, &err), QN_BAD_INPUT,
                err, "chat_template[0]");
    CHECK_FAILS(chat_tmpl_from_json(STR_LIT("{}"), &c, &err), QN_NOT_FOUND, err,
                "no chat template");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normalise),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
