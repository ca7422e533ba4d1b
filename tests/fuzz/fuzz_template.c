/*
 * fuzz_template.c - any template over any variables: the template's text, a NUL, and JSON (a fixed
 * object when there is none). Limits are small, so that what is slow is seen as slow.
 */
#include "base/json.h"
#include "tmpl/tmpl.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char fixed[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi \\u00e9\"},{\"role\":\"assistant\","
        "\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":[1,2."
        "5,"
        "true]}}}]}],\"tools\":null,\"add_generation_prompt\":true,\"n\":3,\"s\":\"a,b c\"}";
    struct str text = {(const char *)p, n}, json = {fixed, sizeof fixed - 1};
    struct tmpl_limits limits = {.steps = 20000, .bytes = 1 << 20, .depth = 40};
    size_t cut = str_find(text, (struct str){"", 1}, 0);
    struct json *vars = NULL;
    struct tmpl *t = NULL;
    struct buf out = {0};
    struct qn_err err;
    if (cut != (size_t)-1) {
        json = (struct str){text.p + cut + 1, text.n - cut - 1};
        text.n = cut;
    }
    if (json_parse(json, "vars", JSON_DEPTH_MAX, &vars, &err) == QN_OK &&
        tmpl_compile(text, &t, &err) == QN_OK) {
        enum qn_status s = tmpl_render(t, vars, &limits, 1721053800, &out, &err);
        QN_ASSERT(s == QN_OK || out.n == 0);
        QN_ASSERT(s == QN_OK || s == QN_BAD_INPUT);
    }
    tmpl_free(t);
    json_free(vars);
    buf_free(&out);
    return 0;
}
