/*
 * test_bench.c - statistics and the three printed forms of a bench report.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "cli/bench_report.h"
#include "cli/bench_roof.h"

static void test_stats(void **state)
{
    const double odd[] = {5, 1, 4, 2, 100}, even[] = {4, 1, 3, 2}, one[] = {7};
    struct spread s = spread_of(odd, 5);
    assert_true(s.median == 4 && s.min == 1 && s.max == 100 && s.mad == 2);
    s = spread_of(even, 4);
    assert_true(s.median == 2.5 && s.min == 1 && s.max == 4 && s.mad == 1);
    s = spread_of(one, 1);
    assert_true(s.median == 7 && s.mad == 0);
    s = spread_of(NULL, 0);
    assert_true(s.median == 0 && s.min == 0);
    assert_true(odd[0] == 5); /* the order of the rounds is kept */
}

static double decode_samples[] = {100, 110, 90}, prefill_samples[] = {1000, 1200, 1100};
static double read_samples[] = {10e9, 12e9, 11e9}, peak_samples[] = {100e9, 200e9, 150e9};
static const struct qn_model_info info = {
    .family = "llama",
    .name = "toy",
    .isa = "avx2",
    .arith = "canonical",
    .kv_format = "bf16",
    .n_vocab = 100,
    .n_param = 134000000,
    .weight_bytes = 75 << 20,
    .step_bytes = 75 << 20,
    .kv_token_bytes = 1000,
    .bits_per_weight = 4.5,
};

static struct bench_report sample_report(struct bench_row rows[2], struct bench_roof *roof)
{
    rows[0] = (struct bench_row){
        .n = 512, .threads = 2, .n_sample = 3, .samples = prefill_samples, .ops_per_token = 50e6};
    rows[1] = (struct bench_row){.decode = true,
                                 .batch = 4,
                                 .n = 128,
                                 .depth = 64,
                                 .threads = 2,
                                 .n_sample = 3,
                                 .samples = decode_samples,
                                 .bytes_per_token = 55e6,
                                 .ops_per_token = 200e6};
    *roof = (struct bench_roof){
        .threads = 2, .n_sample = 3, .read = read_samples, .peak = peak_samples};
    return (struct bench_report){.info = &info,
                                 .cpu = "Test CPU",
                                 .n_cpu = 2,
                                 .repeat = 3,
                                 .rows = rows,
                                 .n_row = 2,
                                 .roofs = roof,
                                 .n_roof = 1,
                                 .roof_bytes = 256 << 20,
                                 .cache_bytes = 32 << 20};
}

static void test_tables(void **state)
{
    struct bench_row rows[2];
    struct bench_roof roof;
    struct bench_report r = sample_report(rows, &roof);
    struct buf b = BUF_INIT;
    bench_report_write(&r, BENCH_TABLE, &b);
    /* 4 tokens in 40 ms; 100 tok/s * 55 MB = 5.5 GB/s of a median of 11; 20 GOP/s of 200 */
    assert_non_null(
        strstr(buf_z(&b), "    100.00      90.00     110.00    10.00   40.00    50.0 %   10.0 %"));
    assert_non_null(strstr(buf_z(&b), "prefill 512"));
    assert_non_null(strstr(buf_z(&b), "Test CPU, 2 CPUs usable, kernels avx2"));
    for (const char *s = buf_z(&b); *s;) {
        size_t n = strcspn(s, "\n");
        assert_true(n <= 100);
        s += n + (s[n] == '\n');
    }
    buf_clear(&b);
    bench_report_write(&r, BENCH_MARKDOWN, &b);
    assert_non_null(strstr(buf_z(&b), "| 2 | decode 128 x4 | 64 | 100.00 | 90.00 | 110.00 | 10.00 "
                                      "| 40.00 | 50.0 % |"));
    buf_free(&b);
}

/* A mask's share is of one sequence's step, not of four sequences'. */
static void test_mask(void **state)
{
    struct bench_row rows[2];
    struct bench_roof roof;
    struct bench_report r = sample_report(rows, &roof);
    struct buf b = BUF_INIT;
    struct json *doc = NULL;
    struct qn_err err;
    r.mask = (struct bench_mask){83, 120, 30, 900, 12345};
    bench_report_write(&r, BENCH_TABLE, &b);
    assert_non_null(strstr(buf_z(&b), "120 us more"));
    assert_null(strstr(buf_z(&b), "quickest step"));
    rows[1].batch = 1; /* a step of 10 ms */
    buf_clear(&b);
    bench_report_write(&r, BENCH_TABLE, &b);
    assert_non_null(strstr(buf_z(&b), "1.2 % and 0.3 % of the quickest step"));
    buf_clear(&b);
    bench_report_write(&r, BENCH_JSON, &b);
    assert_int_equal(json_parse(buf_str(&b), "report", 16, &doc, &err), QN_OK);
    const struct json *mask = json_get(doc, "mask");
    assert_true(json_real(json_get(mask, "again_us")) == 30);
    assert_true(json_real(json_get(mask, "first_share_of_step")) == 0.012);
    json_free(doc);
    buf_free(&b);
}

static void test_json(void **state)
{
    struct bench_row rows[2];
    struct bench_roof roof;
    struct bench_report r = sample_report(rows, &roof);
    struct buf b = BUF_INIT;
    struct json *doc = NULL;
    struct qn_err err;
    bench_report_write(&r, BENCH_JSON, &b);
    assert_int_equal(json_parse(buf_str(&b), "report", 16, &doc, &err), QN_OK);
    const struct json *results = json_get(doc, "results");
    assert_int_equal(json_len(results), 2);
    const struct json *decode = json_at(results, 1);
    assert_true(str_eqz(json_str(json_get(decode, "kind")), "decode"));
    assert_true(json_real(json_get(json_get(decode, "tok_s"), "median")) == 100);
    assert_int_equal(json_len(json_get(decode, "samples")), 3);
    assert_true(json_real(json_get(decode, "batch")) == 4);
    assert_true(json_real(json_get(decode, "step_ms")) == 40);
    assert_true(json_real(json_get(decode, "share_of_read")) == 0.5);
    assert_false(json_has(json_at(results, 0), "share_of_read"));
    const struct json *machine = json_get(doc, "machine");
    assert_int_equal(json_len(json_get(machine, "roofs")), 1);
    json_free(doc);
    buf_free(&b);
}

/* The roofs are real measurements: positive, and plausible for any machine of this century. */
static void test_roofs(void **state)
{
    struct roof *r = NULL;
    struct qn_err err;
    assert_int_equal(roof_open(2, &r, &err), QN_OK);
    assert_true(roof_bytes(r) > 0);
    double read = roof_read(r, 2);
    assert_true(read > 50e6 && read < 100e12);
    assert_true(roof_peak("no such level", 1) == 0);
    roof_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stats), cmocka_unit_test(test_tables), cmocka_unit_test(test_mask),
        cmocka_unit_test(test_json),  cmocka_unit_test(test_roofs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
