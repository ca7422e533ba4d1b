/*
 * test_bench_report.c - reports of a hostile record: everything is escaped, the winner is named, a
 * peer's win is said; ticks of axes.
 */
#include "../check.h"
#include "base/json.h"
#include "bench/report.h"
#include "bench/svg.h"
#include "bench/view.h"

static const char record[] =
    "{\"schema\":1,\"status\":\"complete\",\"label\":\"<script>alert(1)</"
    "script>\",\"version\":\"1\","
    "\"command\":\"quern `x`\",\"machine\":{\"processor\":\"a & b\",\"processors\":2},"
    "\"workload\":{\"threads\":2,\"rounds\":2},\"marks\":[\"it was <b>busy</b>\"],\"summary\":["
    "{\"arm\":\"quern\",\"workload\":\"matrix\",\"point\":\"\",\"metric\":\"decode_tps\","
    "\"title\":\"decode\",\"unit\":\"tok/s\",\"better\":\"higher\",\"headline\":true,\"n\":2,"
    "\"median\":100,\"min\":90,\"max\":110,\"mad\":10,\"stable\":false,\"samples\":[90,110]},"
    "{\"arm\":\"x\\\"><img "
    "src=y>|\",\"workload\":\"matrix\",\"point\":\"\",\"metric\":\"decode_tps\","
    "\"title\":\"decode\",\"unit\":\"tok/s\",\"better\":\"higher\",\"headline\":true,\"n\":1,"
    "\"median\":150,\"min\":150,\"max\":150,\"mad\":0,\"stable\":true,\"samples\":[150]}],"
    "\"parity\":[{\"arm\":\"quern\",\"probe\":\"chat\",\"round\":0,\"text\":\"</td><script>\"}],"
    "\"failures\":[{\"arm\":\"quern\",\"workload\":\"matrix\",\"phase\":\"ttft\",\"attempt\":0,"
    "\"message\":\"<i>no</i>\"}],\"arms\":[{\"name\":\"mlx-lm\",\"ran\":false,\"why_not\":\"not "
    "<here>\"}],"
    "\"cells\":[{\"arm\":\"quern\",\"workload\":\"matrix\",\"round\":0,\"rss\":[[0,1048576],[1000,"
    "2097152]]}],"
    "\"requests\":[]}";

static struct json *open_record(void)
{
    struct json *doc;
    struct qn_err err;
    CHECK_OK(json_parse(str_of(record), "record", 64, &doc, &err), err);
    return doc;
}

static void test_html(void **state)
{
    struct json *doc = open_record();
    struct buf b = BUF_INIT;
    report_html(doc, &b);
    static const char *const absent[] = {"<script", "<img",    "<b>busy",
                                         "<i>no",   "http://", "https://"};
    static const char *const present[] = {"&lt;script&gt;alert(1)",
                                          "a &amp; b",
                                          "x&quot;&gt;&lt;img",
                                          "<svg",
                                          "prefers-color-scheme:dark",
                                          "Where a peer wins",
                                          "1.50",
                                          "class=\"whisker\"",
                                          "†",
                                          "not &lt;here&gt;",
                                          "Memory over time"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        if (strstr(buf_z(&b), absent[i]))
            fail_msg("the page holds %s", absent[i]);
    for (size_t i = 0; i < sizeof present / sizeof present[0]; i++)
        if (!strstr(buf_z(&b), present[i]))
            fail_msg("the page does not hold %s", present[i]);
    buf_free(&b);
    json_free(doc);
}

static void test_markdown(void **state)
{
    struct json *doc = open_record();
    struct buf b = BUF_INIT;
    report_markdown(doc, &b);
    static const char *const present[] = {"| decode | tok/s | 100 (90.0–110) † | **150** |",
                                          "1.50 times as good",
                                          "it was \\<b\\>busy",
                                          "mlx-lm: not",
                                          "\\|",
                                          "\\<script\\>"};
    for (size_t i = 0; i < sizeof present / sizeof present[0]; i++)
        if (!strstr(buf_z(&b), present[i]))
            fail_msg("the text does not hold %s:\n%s", present[i], buf_z(&b));
    buf_free(&b);
    json_free(doc);
}

/* Documents that are no records do no harm. */
static void test_nonsense(void **state)
{
    static const char *const docs[] = {"{}", "[]", "7",
                                       "{\"summary\":[1,{},[]],\"cells\":{},\"marks\":3}",
                                       "{\"summary\":[{\"arm\":1}],\"requests\":[null,{}]}"};
    for (size_t i = 0; i < sizeof docs / sizeof docs[0]; i++) {
        struct json *doc;
        struct qn_err err;
        struct buf b = BUF_INIT;
        CHECK_OK(json_parse(str_of(docs[i]), "doc", 64, &doc, &err), err);
        report_html(doc, &b);
        report_markdown(doc, &b);
        assert_true(b.n > 0 && !b.failed);
        buf_free(&b);
        json_free(doc);
    }
}

static void test_gains(void **state)
{
    const struct view_noise noise = {.time = 0.05, .other = 0.02, .n_test = 10};
    struct view_row fast = {.better = BETTER_LOWER, .n = 5, .median = 10, .min = 9.8, .max = 10.2};
    struct view_row slow = {.better = BETTER_LOWER, .n = 5, .median = 20, .min = 10.1, .max = 30};
    assert_float_equal(view_gain(&fast, &slow), 2, 1e-12);
    assert_int_equal(view_differ(&noise, &fast, &slow), VERDICT_SAME);
    slow.min = 19;
    slow.max = 21;
    assert_int_equal(view_differ(&noise, &fast, &slow), VERDICT_APART);
    slow =
        (struct view_row){.better = BETTER_LOWER, .n = 1, .median = 10.4, .min = 10.4, .max = 10.4};
    assert_int_equal(view_differ(&noise, &fast, &slow), VERDICT_FEW);
}

/* Equal figures have no winner, and a lone arm is none. */
static void test_best(void **state)
{
    static const struct {
        double a, b, c; /* 0 = not measured */
        int best;       /* -1 = none */
    } cases[] = {{1, 2, 3, 2},  {3, 2, 1, 0},  {3, 3, 1, -1}, {1, 3, 3, -1},
                 {3, 1, 3, -1}, {2, 0, 0, -1}, {0, 2, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double v[3] = {cases[i].a, cases[i].b, cases[i].c};
        struct buf b = BUF_INIT;
        struct json *doc;
        struct qn_err err;
        struct view view;
        buf_addz(&b, "{\"summary\":[");
        for (int k = 0, n = 0; k < 3; k++)
            if (v[k] > 0)
                buf_addf(&b,
                         "%s{\"arm\":\"%c\",\"metric\":\"m\",\"better\":\"higher\",\"median\":%g}",
                         n++ ? "," : "", 'a' + k, v[k]);
        buf_addz(&b, "]}");
        CHECK_OK(json_parse(buf_str(&b), "record", 64, &doc, &err), err);
        assert_true(view_open(doc, &view));
        const struct view_row *r = view_best(&view, STR_LIT(""), STR_LIT(""), STR_LIT("m"));
        if ((r ? r->arm.p[0] - 'a' : -1) != cases[i].best)
            fail_msg("case %zu", i);
        view_close(&view);
        json_free(doc);
        buf_free(&b);
    }
}

static void test_steps(void **state)
{
    static const double cases[][2] = {{10, 2}, {7, 2}, {100, 20}, {0.3, 0.1}, {23, 5}, {1e6, 2e5}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_float_equal(svg_step(cases[i][0], 5), cases[i][1], cases[i][1] * 1e-9);
    assert_float_equal(svg_step(0, 5), 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_html),     cmocka_unit_test(test_markdown),
        cmocka_unit_test(test_nonsense), cmocka_unit_test(test_gains),
        cmocka_unit_test(test_steps),    cmocka_unit_test(test_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
