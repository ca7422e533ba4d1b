/*
 * test_census.c - modules, formats and totals from tensor headers; scales that do not fit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "cli/inspect_census.h"

#define T(name_, dtype_, bytes_, ...)                                                              \
    {                                                                                              \
        .name = STR_LIT(name_), .dtype = dtype_, .file = "model.safetensors",                      \
        .n_dim = (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), .shape = {__VA_ARGS__},              \
        .bytes = bytes_                                                                            \
    }

static struct json *config(const char *text)
{
    struct json *doc = NULL;
    assert_int_equal(json_parse(str_of(text), "config", 8, &doc, NULL), QN_OK);
    return doc;
}

static void test_formats(void **state)
{
    static const struct census_tensor t[] = {
        T("a.biases", "BF16", 2048, 512, 2),
        T("a.scales", "BF16", 2048, 512, 2),
        T("a.weight", "U32", 32768, 512, 16),
        T("b.scales", "U8", 2048, 512, 4),
        T("b.weight", "U32", 32768, 512, 16),
        T("c.global_scale", "F32", 4, 1),
        T("c.scales", "U8", 4096, 512, 8),
        T("c.weight", "U32", 32768, 512, 16),
        T("d.biases", "BF16", 2560, 2, 128, 5),
        T("d.scales", "BF16", 2560, 2, 128, 5),
        T("d.weight", "U32", 2 * 128 * 60 * 4, 2, 128, 60),
        T("e.scales", "U8", 4096, 512, 8), /* nvfp4 that config.json does not list */
        T("e.weight", "U32", 32768, 512, 16),
        T("f.scales", "U8", 2048, 512, 4),
        T("f.weight", "U32", 65536, 512, 32),
        T("g.scales", "U8", 4096, 512, 8), /* listed, but without the group */
        T("g.weight", "U32", 32768, 512, 16),
        T("norm.weight", "BF16", 256, 128),
        T("odd.scales", "F32", 16, 4),
    };
    struct json *q = config(
        "{\"group_size\":64,\"bits\":4,\"c\":{\"group_size\":16,\"bits\":4,\"mode\":\"nvfp4\"},"
        "\"d\":{\"group_size\":64,\"bits\":6},"
        "\"g\":{\"mode\":\"nvfp4\"}}");
    struct census c;
    struct qn_err err = {0};
    assert_int_equal(census_take(t, sizeof t / sizeof t[0], q, &c, &err), QN_OK);
    static const struct {
        const char *name, *format;
        int64_t n_weight, bytes;
    } want[] = {
        {"a.weight", "affine 4-bit g64", 65536, 36864},
        {"b.weight", "mxfp4", 65536, 34816},
        {"c.weight", "nvfp4", 65536, 36868},
        {"d.weight", "affine 6-bit g64", 81920, 66560},
        {"e.weight", "nvfp4", 65536, 36864},
        {"f.weight", "mxfp8", 65536, 67584},
        {"g.weight", "nvfp4", 65536, 36864},
        {"norm.weight", "bf16", 128, 256},
        {"odd.scales", "f32", 4, 16}, /* no weight beside it: a tensor of its own */
    };
    int n = sizeof want / sizeof want[0];
    assert_int_equal(c.n, n);
    for (int i = 0; i < n; i++) {
        assert_true(str_eqz(c.modules[i].name, want[i].name));
        assert_string_equal(c.modules[i].format, want[i].format);
        assert_int_equal(c.modules[i].n_weight, want[i].n_weight);
        assert_int_equal(c.modules[i].bytes, want[i].bytes);
    }
    assert_int_equal(c.modules[3].shape[2], 320);
    assert_int_equal(c.n_weight, 65536 * 6 + 81920 + 128 + 4);
    assert_string_equal(c.totals[0].format, "nvfp4");
    int64_t bytes = 0;
    for (int i = 0; i < c.n_total; i++)
        bytes += c.totals[i].bytes;
    assert_int_equal(bytes, c.bytes);
    census_free(&c);
    json_free(q);
}

static void test_misfits(void **state)
{
    static const struct {
        struct census_tensor t[2];
        const char *part;
    } bad[] = {
        {{T("a.scales", "BF16", 0, 512, 2), T("a.weight", "BF16", 0, 512, 128)}, "U32"},
        {{T("a.scales", "BF16", 0, 511, 2), T("a.weight", "U32", 0, 512, 16)}, "rows"},
        {{T("a.scales", "BF16", 0, 2), T("a.weight", "U32", 0, 512, 16)}, "dimensions"},
        {{T("a.scales", "BF16", 0, 512, 3), T("a.weight", "U32", 0, 512, 16)}, "1 to 8 bits"},
        {{T("a.scales", "BF16", 0, 512, 0), T("a.weight", "U32", 0, 512, 16)}, "empty"},
        {{T("a.scales", "U8", 0, 512, 5), T("a.weight", "U32", 0, 512, 16)}, "no known format"},
        {{T("b.scales", "BF16", 0, 512, 2), T("b.weight", "U32", 0, 512, 16)}, "config.json says"},
        {{T("a.scales", "BF16", 0, 512, INT64_MAX), T("a.weight", "U32", 0, 512, 16)}, "large"},
    };
    struct json *q = config("{\"b\":{\"group_size\":64,\"bits\":8}}");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct census c;
        struct qn_err err = {0};
        if (census_take(bad[i].t, 2, q, &c, &err) != QN_BAD_INPUT)
            fail_msg("case %zu was accepted", i);
        assert_non_null(strstr(err.msg, "model.safetensors: "));
        assert_non_null(strstr(err.msg, ".weight: "));
        if (!strstr(err.msg, bad[i].part))
            fail_msg("case %zu: %s", i, err.msg);
    }
    json_free(q);
    static const struct census_tensor huge[] = {T("x", "F32", 0, INT64_MAX, 3)};
    struct census c;
    struct qn_err err = {0};
    assert_int_equal(census_take(huge, 1, NULL, &c, &err), QN_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_misfits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
