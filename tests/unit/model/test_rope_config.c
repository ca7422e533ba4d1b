/*
 * test_rope_config.c - rotary types to frequencies, against rope_vectors.json: what mlx-lm makes of
 * the same settings (tests/oracle/rope_vectors.py). Its angles are float32 with its own exp, hence
 * the tolerance.
 */
#include <math.h>
#include <string.h>

#include "../check.h"
#include "base/file.h"
#include "model/rope_config.h"

static int32_t i32_of(const struct json *c, const char *key, int32_t def)
{
    int64_t v = def;
    json_i64(json_get(c, key), &v);
    return (int32_t)v;
}

static void check_case(const struct json *c, int at)
{
    double inv[HEAD_DIM_MAX / 2], mscale = 0;
    struct qn_err err;
    struct rope_params p = {.scaling = json_get(c, "scaling"),
                            .what = "scaling",
                            .theta = json_real(json_get(c, "base")),
                            .dims = i32_of(c, "dims", 0),
                            .max_pos = i32_of(c, "max_pos", 4096)};
    CHECK_OK(rope_frequencies(&p, inv, &mscale, &err), err);
    const struct json *want = json_get(c, "inv_freq");
    assert_int_equal(json_len(want), p.dims / 2);
    for (int32_t i = 0; i < p.dims / 2; i++) {
        double w = json_real(json_at(want, (size_t)i));
        if (!(fabs(inv[i] - w) <= 3e-6 * fabs(w) + 1e-12))
            fail_msg("case %d: pair %d turns %.9g a position, expected %.9g", at, i, inv[i], w);
    }
    if (!(fabs(mscale - json_real(json_get(c, "mscale"))) < 3e-6))
        fail_msg("case %d: factor %.9g, expected %.9g", at, mscale,
                 json_real(json_get(c, "mscale")));
}

static void test_vectors(void **state)
{
    struct buf text = BUF_INIT;
    struct json *doc = NULL;
    struct qn_err err;
    CHECK_OK(file_read(ROPE_VECTORS, 1 << 20, &text, &err), err);
    CHECK_OK(json_parse(buf_str(&text), ROPE_VECTORS, JSON_DEPTH_MAX, &doc, &err), err);
    const struct json *cases = json_get(doc, "cases");
    assert_true(json_len(cases) >= 11);
    for (size_t i = 0; i < json_len(cases); i++)
        check_case(json_at(cases, i), (int)i);
    json_free(doc);
    buf_free(&text);
}

/* Types that are the default within the context: dynamic and mrope. "type" wins over "rope_type".
 */
static void test_plain(void **state)
{
    static const char *const texts[] = {
        "{\"type\": \"default\"}",
        "{\"rope_type\": \"dynamic\", \"factor\": 2}",
        "{\"type\": \"mrope\", \"mrope_section\": [1, 2]}",
        "{\"type\": \"default\", \"rope_type\": \"linear\", \"factor\": 2}",
        "{}",
        "null"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct json *doc = NULL;
        double inv[32], mscale;
        struct qn_err err;
        CHECK_OK(json_parse(str_of(texts[i]), "s", JSON_DEPTH_MAX, &doc, &err), err);
        struct rope_params p = {
            .scaling = doc, .what = "s", .theta = 10000, .dims = 64, .max_pos = 4096};
        CHECK_OK(rope_frequencies(&p, inv, &mscale, &err), err);
        assert_true(mscale == 1 && inv[0] == 1 && fabs(inv[16] - 0.01) < 1e-15);
        json_free(doc);
    }
}

static void test_refused(void **state)
{
    double inv[HEAD_DIM_MAX / 2], mscale;
    struct qn_err err;
    static const int32_t dims[] = {-2, 0, 1, 7, HEAD_DIM_MAX + 2, INT32_MAX};
    struct rope_params p = {.what = "here", .theta = 10000, .dims = 64, .max_pos = 4096};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        p.dims = dims[i];
        CHECK_FAILS(rope_frequencies(&p, inv, &mscale, &err), QN_BAD_INPUT, err, "rotated dims");
    }
    p.dims = 64;
    static const double bases[] = {0, 1, -5, NAN};
    for (size_t i = 0; i < sizeof bases / sizeof bases[0]; i++) {
        p.theta = bases[i];
        CHECK_FAILS(rope_frequencies(&p, inv, &mscale, &err), QN_BAD_INPUT, err, "here");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors), cmocka_unit_test(test_plain),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests_name("rope_config", tests, NULL, NULL);
}
