/*
 * test_tmpl.c - what the goldens cannot say: the limits and their messages, lines in messages,
 * where this engine differs from Python on purpose, and that a template can be rendered again.
 */
#include "../check.h"

#include "base/json.h"
#include "tmpl/tmpl.h"

static enum qn_status render(struct str text, const struct tmpl_limits *lim, struct buf *out,
                             struct qn_err *err)
{
    struct tmpl *t = NULL;
    struct json *vars = NULL;
    *err = (struct qn_err){0};
    buf_clear(out);
    CHECK_OK(
        json_parse(STR_LIT("{\"l\":[3,1,2],\"s\":\"abc\",\"d\":{\"k\":1}}"), "vars", 8, &vars, err),
        *err);
    enum qn_status s = tmpl_compile(text, &t, err);
    if (s == QN_OK)
        s = tmpl_render(t, vars, lim, 0, out, err);
    if (s != QN_OK)
        assert_int_equal(out->n, 0); /* nothing half-done is handed over */
    tmpl_free(t);
    json_free(vars);
    return s;
}

static const struct {
    const char *text, *error;
} FAILURES[] = {
    {"a\n{{ 1 | nosuch }}", "line 2: No filter named 'nosuch'"},
    {"\n\n{{ 1 is nosuch }}", "line 3: No test named 'nosuch'"},
    {"\n{% if true %}\n{{ s | nosuch }}{% endif %}", "line 3: No filter named 'nosuch'"},
    {"\n{{ nosuch(1) }}", "line 2: 'nosuch' is undefined"},
    {"{{ s.nosuch() }}", "line 1: 'str object' has no attribute 'nosuch'"},
    {"{{ l.append(1) }}", "line 1: access to attribute 'append' of 'list object' is unsafe"},
    {"{{ d.pop('k') }}", "is unsafe"},
    {"{{ s.__class__.__mro__ }}", "is unsafe"},
    {"{{ l[7].x }}", "list object has no element 7"},
    {"{% include 'x' %}", "'include' is not supported"},
    {"{% import 'x' as y %}", "'import' is not supported"},
    {"{% from 'x' import y %}", "'from' is not supported"},
    {"{% extends 'x' %}", "'extends' is not supported"},
    {"{% autoescape true %}{% endautoescape %}", "'autoescape' is not supported"},
    {"x\n{% for a in l %}\n", "Unexpected end of template: looking for 'endfor' or 'else'"},
    {"{{ [1, 2 }}", "unexpected '}', expected ']'"},
    {"{% nope %}", "Encountered unknown tag 'nope'"},
    {"{% break %}", "'break' outside loop"},
    {"{{ lipsum() }}", "lipsum() is not supported"},
    {"{{ l | random }}", "not supported"},
    {"{{ l | pprint }}", "not supported"},
    /* where Python would go on */
    {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
    {"{{ 3 ** 50 }}", "beyond 64 bits"},
    {"{{ 99999999999999999999 }}", "beyond 64 bits"},
    {"{{ '\\ud83d' }}", "illegal Unicode character"},
    {"{{ '\\N{BULLET}' }}", "\\N escapes are not supported"},
    /* limits */
    {"{{ 'a' * 10 ** 9 }}", "need more than 67108864 bytes"},
    {"{{ [0] * 10 ** 9 }}", "need more than 67108864 bytes"},
    {"{{ '%1000000000d' % 1 }}", "need more than"},
    {"{{ '{:1000000000}'.format(1) }}", "need more than"},
    {"{{ 'a'.center(1000000000) }}", "need more than"},
    {"{{ range(10 ** 9) }}", "Range too big"},
    {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
     "more than 10000000 steps"},
    {"{% set ns = namespace(s='abcdefgh') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}"
     "{% endfor %}",
     "need more than"},
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "deep"},
    {"{% for x in [l] recursive %}{{ loop([l]) }}{% endfor %}", "deep"},
    {"{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}"
     "{{ ns.x }}",
     "nested too deeply"},
    {"{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}"
     "{{ ns.x | tojson }}",
     "nested too deeply"},
    {"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", "nested too deeply"},
    {"{% set ns = namespace(x=l) %}{% for i in range(5000) %}{% set ns.x = ns.x | map('string') %}"
     "{% endfor %}{{ ns.x | list }}",
     "deep"},
};

static void test_failures(void **state)
{
    struct buf out = BUF_INIT;
    struct qn_err err;
    for (size_t i = 0; i < sizeof FAILURES / sizeof FAILURES[0]; i++) {
        if (render(str_of(FAILURES[i].text), NULL, &out, &err) == QN_OK)
            fail_msg("%s: rendered", FAILURES[i].text);
        CHECK_FAILS(render(str_of(FAILURES[i].text), NULL, &out, &err), QN_BAD_INPUT, err,
                    FAILURES[i].error);
    }
    buf_free(&out);
}

/* Python lets values that have items, an undefined one among them, be left over by %. */
static void test_percent_leftovers(void **state)
{
    static const char *const texts[] = {"{{ 'a' % nope }}", "{{ 'a' % {} }}", "{{ 'a' % [1] }}"};
    struct buf out = BUF_INIT;
    struct qn_err err;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        buf_clear(&out);
        if (render(str_of(texts[i]), NULL, &out, &err) != QN_OK)
            fail_msg("%s: %s", texts[i], err.msg);
        assert_string_equal(buf_z(&out), "a");
    }
    CHECK_FAILS(render(STR_LIT("{{ 'a' % 1 }}"), NULL, &out, &err), QN_BAD_INPUT, err,
                "not all arguments converted");
    buf_free(&out);
}

static void nested(struct buf *b, const char *open, const char *middle, const char *close, int n)
{
    buf_clear(b);
    buf_addz(b, open[0] == '{' && open[1] == '%' ? "" : "{{ ");
    for (int i = 0; i < n; i++)
        buf_addz(b, open);
    buf_addz(b, middle);
    for (int i = 0; i < n; i++)
        buf_addz(b, close);
    buf_addz(b, open[0] == '{' && open[1] == '%' ? "" : " }}");
}

/* Deep nesting of every kind is refused, not followed to the end of the stack. */
static void test_deep_source(void **state)
{
    static const char *const kinds[][3] = {
        {"(", "1", ")"},          {"[", "1", "]"},           {"not ", "1", ""},
        {"-", "1", ""},           {"{1:", "1", "}"},         {"s[", "1", "]"},
        {"s(", "1", ")"},         {"1 if 1 else ", "1", ""}, {"{% if 1 %}", "x", "{% endif %}"},
        {"1|default(", "1", ")"},
    };
    struct buf text = BUF_INIT, out = BUF_INIT;
    struct qn_err err;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        nested(&text, kinds[i][0], kinds[i][1], kinds[i][2], 60000);
        CHECK_FAILS(render(buf_str(&text), NULL, &out, &err), QN_BAD_INPUT, err, "");
        nested(&text, kinds[i][0], kinds[i][1], kinds[i][2], 20);
        enum qn_status s = render(buf_str(&text), NULL, &out, &err);
        if (s != QN_OK && strstr(err.msg, "nested"))
            fail_msg("20 levels of %s: %s", kinds[i][0], err.msg);
    }
    buf_free(&text);
    buf_free(&out);
}

/* Long flat chains are not deep. */
static void test_long_chains(void **state)
{
    struct buf text = BUF_INIT, out = BUF_INIT;
    struct qn_err err;
    buf_addz(&text, "{{ 0");
    for (int i = 0; i < 5000; i++)
        buf_addz(&text, " + 1");
    buf_addz(&text, " }}{{ ''");
    for (int i = 0; i < 5000; i++)
        buf_addz(&text, " ~ 'x'");
    buf_addz(&text, " == '' }}{% if 0 %}");
    for (int i = 0; i < 2000; i++)
        buf_addz(&text, "{% elif 0 %}");
    buf_addz(&text, "{% else %}end{% endif %}");
    CHECK_OK(render(buf_str(&text), NULL, &out, &err), err);
    CHECK_STR(buf_str(&out), "5000Falseend");
    buf_free(&text);
    buf_free(&out);
}

static void test_own_limits(void **state)
{
    struct buf out = BUF_INIT;
    struct qn_err err;
    struct tmpl_limits steps = {.steps = 100}, bytes = {.bytes = 100000}, depth = {.depth = 5};
    struct str loop = STR_LIT("{% for i in range(200) %}{{ i }}{% endfor %}");
    struct str text = STR_LIT("{{ 'x' * 50000 }}{{ 'y' * 50001 }}");
    struct str calls = STR_LIT("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{% endif %}{{ n }}"
                               "{% endmacro %}{{ m(2) }}|{{ m(9) }}");
    CHECK_FAILS(render(loop, &steps, &out, &err), QN_BAD_INPUT, err, "more than 100 steps");
    CHECK_OK(render(loop, NULL, &out, &err), err);
    CHECK_FAILS(render(text, &bytes, &out, &err), QN_BAD_INPUT, err, "more than 100000 bytes");
    CHECK_FAILS(render(calls, &depth, &out, &err), QN_BAD_INPUT, err, "deep");
    CHECK_OK(render(calls, NULL, &out, &err), err);
    CHECK_STR(buf_str(&out), "012|0123456789");
    buf_free(&out);
}

/* Building a string piece by piece costs memory in proportion to its length. */
static void test_growing_string(void **state)
{
    struct buf out = BUF_INIT;
    struct qn_err err;
    struct str t =
        STR_LIT("{% set ns = namespace(s='') %}{% for i in range(50000) %}"
                "{% set ns.s = ns.s + 'twenty bytes of text' %}{% endfor %}{{ ns.s | length }}");
    CHECK_OK(render(t, NULL, &out, &err), err);
    CHECK_STR(buf_str(&out), "1000000");
    /* two strings that grow from the same beginning do not overwrite each other */
    t = STR_LIT("{% set a = 'x' * 300 + 'y' %}{% set b = a + '1' %}{% set c = a + '2' %}"
                "{% set d = b + '3' %}{{ b[-2:] }}{{ c[-2:] }}{{ d[-2:] }}{{ a[-1] }}");
    CHECK_OK(render(t, NULL, &out, &err), err);
    CHECK_STR(buf_str(&out), "y1y213y");
    buf_free(&out);
}

static void test_raise(void **state)
{
    struct buf out = BUF_INIT;
    struct qn_err err;
    struct str t = STR_LIT("{{ raise_exception('exactly this') }}");
    assert_int_equal(render(t, NULL, &out, &err), QN_BAD_INPUT);
    assert_string_equal(err.msg, "exactly this");
    CHECK_FAILS(render(STR_LIT("{{ '\xff' }}"), NULL, &out, &err), QN_BAD_INPUT, err, "UTF-8");
    buf_free(&out);
}

/* A compiled template keeps nothing from one rendering to the next; text goes after the old. */
static void test_again(void **state)
{
    struct tmpl *t = NULL;
    struct buf out = BUF_INIT;
    struct qn_err err = {0};
    struct str text = STR_LIT("{% if x is defined %}old{% endif %}{% set x = 1 %}{{ x }}");
    CHECK_OK(tmpl_compile(text, &t, &err), err);
    for (int i = 0; i < 3; i++)
        CHECK_OK(tmpl_render(t, NULL, NULL, 0, &out, &err), err);
    CHECK_STR(buf_str(&out), "111");
    tmpl_free(t);
    tmpl_free(NULL);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failures),    cmocka_unit_test(test_percent_leftovers),
        cmocka_unit_test(test_deep_source), cmocka_unit_test(test_long_chains),
        cmocka_unit_test(test_own_limits),  cmocka_unit_test(test_growing_string),
        cmocka_unit_test(test_raise),       cmocka_unit_test(test_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
