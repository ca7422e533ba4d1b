/*
 * test_tmpl_golden.c - every line of tests/golden/tmpl renders as Python's jinja2 under
 * transformers' settings did (tests/oracle/tmpl_golden.py made them). Where Python failed, this
 * must fail too, and with the same message when the template raised it itself.
 */
#include "../check.h"

#include "base/file.h"
#include "base/json.h"
#include "tmpl/chat.h"

#define NOW 1721053800 /* as in tmpl_golden.py */

static struct tally {
    int passed, failed, skipped;
} tally;

static void compare(const struct json *want, enum qn_status s, struct str got,
                    const struct qn_err *err)
{
    const struct json *out = json_get(want, "out"), *error = json_get(want, "error");
    struct str name = json_str(json_get(want, json_get(want, "name") ? "name" : "template"));
    bool ok = out ? s == QN_OK && str_eq(got, json_str(out))
                  : s == QN_BAD_INPUT &&
                        (json_type(error) == JSON_BOOL || str_eqz(json_str(error), err->msg));
    tally.passed += ok;
    tally.failed += !ok;
    if (ok || tally.failed > 10)
        return;
    struct str expected = json_str(out ? out : error);
    print_error("%.*s\n  expected %s \"%.*s\"\n  got %s \"%.*s\"\n", STR_ARG(name),
                out ? "text" : "error", STR_ARG(expected), s == QN_OK ? "text" : err->msg,
                STR_ARG(got));
}

static void run_plain(const struct json *line, const struct json *vars)
{
    struct tmpl *t = NULL;
    struct buf out = BUF_INIT;
    struct qn_err err = {0};
    enum qn_status s = tmpl_compile(json_str(json_get(line, "template")), &t, &err);
    if (s == QN_OK)
        s = tmpl_render(t, vars, NULL, NOW, &out, &err);
    compare(line, s, buf_str(&out), &err);
    tmpl_free(t);
    buf_free(&out);
}

/* The tokenizer_config.json of a chat line; false when it is not on this machine. */
static bool config_of(const struct json *line, struct buf *config)
{
    struct buf path = BUF_INIT, text = BUF_INIT;
    struct qn_err err = {0};
    struct str file = json_str(json_get(line, "file")), shared = json_str(json_get(line, "shared"));
    const char *root = getenv("QUERN_SHARED");
    bool there = file.n || (root && *root);
    if (file.n)
        buf_addf(&path, "%s/templates/%.*s", GOLDEN_DIR, STR_ARG(file));
    else if (there)
        buf_addf(&path, "%s/%.*s/tokenizer_config.json", root, STR_ARG(shared));
    there = there && (file.n || file_exists(buf_z(&path)));
    if (there)
        CHECK_OK(file_read(buf_z(&path), 1 << 24, &text, &err), err);
    if (file.n) {
        buf_addz(config, "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},"
                         "\"add_bos_token\":true,\"pad_token\":null,\"chat_template\":");
        json_w_str(config, buf_str(&text));
        buf_addc(config, '}');
    } else {
        buf_add_str(config, buf_str(&text));
    }
    buf_free(&path);
    buf_free(&text);
    return there;
}

static void run_chat(const struct json *line)
{
    struct chat_tmpl *c = NULL;
    struct buf config = BUF_INIT, out = BUF_INIT;
    struct qn_err err = {0};
    if (config_of(line, &config)) {
        CHECK_OK(chat_tmpl_from_json(buf_str(&config), &c, &err), err);
        enum qn_status s = chat_render(c, json_get(line, "request"), NOW, &out, &err);
        compare(line, s, buf_str(&out), &err);
    } else {
        tally.skipped++;
    }
    chat_tmpl_free(c);
    buf_free(&config);
    buf_free(&out);
}

static void run_file(const char *name, int at_least)
{
    struct buf path = BUF_INIT, text = BUF_INIT;
    struct json *vars = NULL;
    struct qn_err err = {0};
    tally = (struct tally){0};
    path_join(&path, GOLDEN_DIR, name);
    CHECK_OK(file_read(buf_z(&path), 1 << 24, &text, &err), err);
    for (size_t i = 0, end; i < text.n; i = end + 1) {
        struct json *line = NULL;
        end = str_find(buf_str(&text), STR_LIT("\n"), i);
        assert_true(end != (size_t)-1);
        CHECK_OK(json_parse((struct str){text.p + i, end - i}, name, 100, &line, &err), err);
        if (json_get(line, "vars")) {
            vars = line;
            continue;
        }
        if (json_get(line, "template"))
            run_plain(line, json_get(vars, "vars"));
        else
            run_chat(line);
        json_free(line);
    }
    json_free(vars);
    buf_free(&text);
    buf_free(&path);
    if (tally.skipped)
        print_message("SKIP: %d of the lines of %s need QUERN_SHARED\n", tally.skipped, name);
    assert_int_equal(tally.failed, 0);
    assert_true(tally.passed >= at_least);
}

static void test_plain(void **state)
{
    run_file("plain.jsonl", 390);
}

static void test_chat(void **state)
{
    run_file("chat.jsonl", 300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_chat)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
