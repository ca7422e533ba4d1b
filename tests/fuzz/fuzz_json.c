/*
 * fuzz_json.c - any bytes through the JSON reader. What it accepts must pass the grammar check,
 * and must read back the same after it was written.
 */
#include "base/json.h"

#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct str text = {(const char *)p, n};
    struct json *doc = NULL, *again = NULL;
    struct qn_err err;
    enum qn_status s = json_parse(text, "input", JSON_DEPTH_MAX, &doc, &err);
    QN_ASSERT(s == json_check(text, "input", JSON_DEPTH_MAX, &err));
    if (s != QN_OK)
        return 0;
    struct buf one = BUF_INIT, two = BUF_INIT;
    json_w_value(&one, doc);
    QN_ASSERT(json_parse(buf_str(&one), "output", JSON_DEPTH_MAX, &again, &err) == QN_OK);
    json_w_value(&two, again);
    QN_ASSERT(str_eq(buf_str(&one), buf_str(&two)));
    buf_free(&one);
    buf_free(&two);
    json_free(again);
    json_free(doc);
    return 0;
}
