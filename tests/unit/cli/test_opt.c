/*
 * test_opt.c - the option parser: forms, types, limits, messages, suggestions, sizes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "cli/cli.h"

struct o {
    bool json, verbose;
    int64_t n, mem, seed;
    double temp;
    const char *model, *config;
    int fmt;
    struct cli_ints sizes;
    struct cli_strs stop;
};

static const char *const formats[] = {"table", "json", "md", NULL};
static const struct cli_opt rows[] = {
    {.type = CLI_GROUP, .help = "Things"},
    {.name = "json", .short_name = 'j', .type = CLI_FLAG, .off = CLI_AT_FLAG(struct o, json)},
    {.name = "verbose", .short_name = 'v', .type = CLI_FLAG, .off = CLI_AT_FLAG(struct o, verbose)},
    {.name = "max-tokens",
     .short_name = 'n',
     .type = CLI_INT,
     .arg = "N",
     .min = 0,
     .max = 100,
     .def = "7",
     .off = CLI_AT_INT(struct o, n)},
    {.name = "seed", .type = CLI_INT, .arg = "N", .off = CLI_AT_INT(struct o, seed)},
    {.name = "mem",
     .type = CLI_SIZE,
     .arg = "SIZE",
     .min = 1024,
     .max = 0x1p40,
     .off = CLI_AT_SIZE(struct o, mem)},
    {.name = "temperature",
     .type = CLI_REAL,
     .arg = "T",
     .min = 0,
     .max = 2,
     .off = CLI_AT_REAL(struct o, temp)},
    {.name = "model",
     .type = CLI_STR,
     .arg = "DIR",
     .env = "QUERN_TEST_MODEL",
     .off = CLI_AT_STR(struct o, model)},
    {.name = "config",
     .type = CLI_STR,
     .arg = "FILE",
     .is_config = true,
     .off = CLI_AT_STR(struct o, config)},
    {.name = "format",
     .type = CLI_ENUM,
     .arg = "F",
     .choices = formats,
     .def = "md",
     .off = CLI_AT_ENUM(struct o, fmt)},
    {.name = "sizes",
     .type = CLI_INTS,
     .arg = "N,N",
     .min = 1,
     .max = 4096,
     .def = "128,512",
     .off = CLI_AT_INTS(struct o, sizes)},
    {.name = "stop", .type = CLI_STRS, .arg = "TEXT", .off = CLI_AT_STRS(struct o, stop)},
    {.type = CLI_END},
};
static const struct cli_verb verb = {
    .name = "test", .opts = rows, .opts_size = sizeof(struct o), .pos_max = 2, .pos_name = "DIR"};

/* Splits `line` at blanks and parses it. */
static enum qn_status parse(const char *line, struct cli *c, struct o *o, struct qn_err *err)
{
    static char text[512];
    static char *argv[40];
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *p = strtok(text, " "); p; p = strtok(NULL, " "))
        argv[argc++] = p;
    memset(o, 0, sizeof *o);
    memset(err, 0, sizeof *err);
    return cli_parse(&verb, argc, argv, c, o, err);
}

static void test_forms(void **state)
{
    struct cli c;
    struct o o;
    struct qn_err err;
    assert_int_equal(
        parse("a --max-tokens 5 -jv --temperature=1.5 --stop x --stop=y -- --json", &c, &o, &err),
        QN_OK);
    assert_int_equal(o.n, 5);
    assert_true(o.json && o.verbose);
    assert_true(o.temp == 1.5);
    assert_int_equal(o.stop.n, 2);
    assert_string_equal(o.stop.v[1], "y");
    assert_int_equal(c.n_pos, 2);
    assert_string_equal(c.pos[1], "--json");
    assert_true(cli_given(&c, "max-tokens"));
    assert_false(cli_given(&c, "seed"));
    cli_parsed_free(&c);
    assert_int_equal(
        parse("-n9 --seed -1 --mem 1.5KiB --sizes 1,2,4096 --format json", &c, &o, &err), QN_OK);
    assert_int_equal(o.n, 9);
    assert_int_equal(o.seed, -1);
    assert_int_equal(o.mem, 1536);
    assert_int_equal(o.sizes.n, 3);
    assert_int_equal(o.sizes.v[2], 4096);
    assert_int_equal(o.fmt, 1);
    cli_parsed_free(&c);
    assert_int_equal(parse("--max-tokens 1 --max-tokens 2", &c, &o, &err), QN_OK);
    assert_int_equal(o.n, 2);
    cli_parsed_free(&c);
}

static void test_defaults_and_environment(void **state)
{
    struct cli c;
    struct o o;
    struct qn_err err;
    unsetenv("QUERN_TEST_MODEL");
    assert_int_equal(parse("-", &c, &o, &err), QN_OK);
    assert_string_equal(c.pos[0], "-");
    assert_int_equal(o.n, 7);
    assert_int_equal(o.fmt, 2);
    assert_int_equal(o.sizes.v[1], 512);
    assert_null(o.model);
    cli_parsed_free(&c);
    setenv("QUERN_TEST_MODEL", "from-env", 1);
    assert_int_equal(parse("", &c, &o, &err), QN_OK);
    assert_string_equal(o.model, "from-env");
    assert_true(cli_given(&c, "model"));
    cli_parsed_free(&c);
    assert_int_equal(parse("--model flag", &c, &o, &err), QN_OK);
    assert_string_equal(o.model, "flag");
    cli_parsed_free(&c);
    unsetenv("QUERN_TEST_MODEL");
}

static void write_config(const char *text)
{
    FILE *f = fopen("test_opt.conf", "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void test_config_file(void **state)
{
    struct cli c;
    struct o o;
    struct qn_err err;
    unsetenv("QUERN_TEST_MODEL");
    write_config("# a comment\n\n max-tokens = 55\r\nmodel=  from file \njson = yes\n"
                 "stop = \" a \"\nstop = b");
    assert_int_equal(parse("--config test_opt.conf", &c, &o, &err), QN_OK);
    assert_int_equal(o.n, 55);
    assert_string_equal(o.model, "from file");
    assert_true(o.json && !o.verbose);
    assert_int_equal(o.stop.n, 2);
    assert_string_equal(o.stop.v[0], " a ");
    assert_int_equal(o.fmt, 2); /* the table's default */
    assert_true(cli_given(&c, "max-tokens") && !cli_flagged(&c, "max-tokens"));
    cli_parsed_free(&c);
    setenv("QUERN_TEST_MODEL", "from-env", 1);
    assert_int_equal(parse("--stop flag --config test_opt.conf -n 3", &c, &o, &err), QN_OK);
    assert_int_equal(o.n, 3);
    assert_string_equal(o.model, "from-env");
    assert_int_equal(o.stop.n, 1);
    assert_true(cli_flagged(&c, "max-tokens"));
    cli_parsed_free(&c);
    unsetenv("QUERN_TEST_MODEL");
    write_config("");
    assert_int_equal(parse("--config test_opt.conf", &c, &o, &err), QN_OK);
    cli_parsed_free(&c);
}

static void test_config_messages(void **state)
{
    static const struct {
        const char *text, *part[2];
    } cases[] = {
        {"json = maybe\n", {"test_opt.conf:1", "json maybe: expected 0 or 1"}},
        {"\n\nmax-tokens = 101\n", {"test_opt.conf:3", "from 0 to 100"}},
        {"max-token = 1", {"test_opt.conf:1", "did you mean --max-tokens?"}},
        {"max-tokens 5", {"test_opt.conf:1", "expected NAME = VALUE"}},
        {"config = other", {"test_opt.conf:1", "cannot be set in such a file"}},
        {"format = xml", {"test_opt.conf:1", "expected one of"}},
    };
    struct cli c;
    struct o o;
    struct qn_err err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_config(cases[i].text);
        assert_int_equal(parse("--config test_opt.conf", &c, &o, &err), QN_BAD_INPUT);
        for (int k = 0; k < 2; k++)
            if (!strstr(err.msg, cases[i].part[k]))
                fail_msg("%s: \"%s\" lacks \"%s\"", cases[i].text, err.msg, cases[i].part[k]);
        cli_parsed_free(&c);
    }
    assert_int_equal(parse("--config nowhere.conf", &c, &o, &err), QN_NOT_FOUND);
    assert_non_null(strstr(err.msg, "nowhere.conf"));
    cli_parsed_free(&c);
    unlink("test_opt.conf");
}

static void test_messages(void **state)
{
    static const struct {
        const char *line;
        const char *part[3];
    } cases[] = {
        {"--max-tokens 101", {"--max-tokens 101", "whole number", "from 0 to 100"}},
        {"--max-tokens -1", {"--max-tokens -1", "from 0 to 100"}},
        {"--max-tokens 5x", {"--max-tokens 5x", "whole number"}},
        {"--max-tokens 1.5", {"1.5", "whole number"}},
        {"--max-tokens=", {"''", "whole number"}},
        {"--seed 99999999999999999999", {"--seed 99999999999999999999", "whole number"}},
        {"--max-tokens", {"--max-tokens", "needs a value (N)"}},
        {"--model --json", {"--model: needs a value", "--json", "--model=--json"}},
        {"--temperature 2.01", {"--temperature 2.01", "a number from 0 to 2"}},
        {"--temperature nan", {"nan", "a number"}},
        {"--temperature inf", {"inf", "a number"}},
        {"--mem 4XB", {"--mem 4XB", "a size", "from 1 KiB to 1 TiB"}},
        {"--mem 12", {"from 1 KiB"}},
        {"--mem 99999999999TiB", {"a size"}},
        {"--sizes 1,,2", {"--sizes 1,,2", "commas", "from 1 to 4096"}},
        {"--sizes 1,5000", {"5000", "from 1 to 4096"}},
        {"--format jsn", {"--format jsn", "table, json, md", "did you mean json?"}},
        {"--format xyzzy", {"expected one of table, json, md"}},
        {"--temprature 1", {"unknown option --temprature", "did you mean --temperature?"}},
        {"--max_tokens 1", {"did you mean --max-tokens?"}},
        {"--temp 1", {"did you mean --temperature?"}},
        {"--quux", {"unknown option --quux"}},
        {"--json=1", {"--json: takes no value", "1"}},
        {"-jx", {"unknown option -x"}},
        {"a b c", {"unexpected argument c"}},
    };
    struct cli c;
    struct o o;
    struct qn_err err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        enum qn_status st = parse(cases[i].line, &c, &o, &err);
        if (st != QN_BAD_INPUT)
            fail_msg("%s: status %d", cases[i].line, (int)st);
        for (int k = 0; k < 3 && cases[i].part[k]; k++)
            if (!strstr(err.msg, cases[i].part[k]))
                fail_msg("%s: \"%s\" is not in \"%s\"", cases[i].line, cases[i].part[k], err.msg);
        cli_parsed_free(&c);
    }
    assert_int_equal(parse("--quux", &c, &o, &err), QN_BAD_INPUT);
    assert_null(strstr(err.msg, "did you mean"));
    cli_parsed_free(&c);
}

static void test_help_wins(void **state)
{
    struct cli c;
    struct o o;
    struct qn_err err;
    assert_int_equal(parse("--nonsense --help", &c, &o, &err), QN_OK);
    assert_true(c.help);
    cli_parsed_free(&c);
    assert_int_equal(parse("-- --help", &c, &o, &err), QN_OK);
    assert_false(c.help);
    cli_parsed_free(&c);
}

static void test_distance(void **state)
{
    static const struct {
        const char *a, *b;
        int d;
    } cases[] = {
        {"", "", 0},
        {"", "abc", 3},
        {"kitten", "sitting", 3},
        {"genrate", "generate", 1},
        {"chta", "chat", 1},
        {"Chat", "chat", 0},
        {"ca", "abc", 3},
        {"flaw", "lawn", 2},
        {"serve", "verse", 2},
        {"bench", "bench", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cli_distance(cases[i].a, cases[i].b) != cases[i].d)
            fail_msg("%s %s: %d", cases[i].a, cases[i].b, cli_distance(cases[i].a, cases[i].b));
        assert_int_equal(cli_distance(cases[i].b, cases[i].a), cases[i].d);
    }
    char longer[300];
    memset(longer, 'a', sizeof longer);
    longer[299] = 0;
    assert_int_equal(cli_distance(longer, "b"), 64);
}

static void test_sizes(void **state)
{
    static const struct {
        const char *s;
        int64_t v; /* -1 = refused */
    } cases[] = {
        {"0", 0},
        {"512", 512},
        {"64KiB", 65536},
        {"64k", 65536},
        {"1MB", 1000000},
        {"1MiB", 1048576},
        {"1.5GiB", 1610612736},
        {"4 GiB", 4294967296},
        {"2tib", 2199023255552},
        {"", -1},
        {"-1", -1},
        {"1.2.3", -1},
        {"GiB", -1},
        {"1XB", -1},
        {"9999999TiB", -1},
        {"0x10", -1},
        {"1e3", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int64_t v = -1;
        if (!cli_parse_size(cases[i].s, &v))
            v = -1;
        if (v != cases[i].v)
            fail_msg("%s: %lld", cases[i].s, (long long)v);
    }
    static const struct {
        int64_t v;
        const char *s;
    } texts[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1536, "1.5 KiB"},
                 {4294967296, "4 GiB"},
                 {INT64_C(76800) << 20, "75 GiB"}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct buf b = BUF_INIT;
        cli_size_text(&b, texts[i].v);
        assert_string_equal(buf_z(&b), texts[i].s);
        buf_free(&b);
    }
}

/* Every listed verb: rows are well-formed, the page fits, names what it must. */
static void test_tables(void **state)
{
    size_t n;
    const struct cli_verb *const *v = cli_verbs(&n);
    for (size_t i = 0; i < n; i++) {
        assert_ptr_equal(cli_verb_find(v[i]->name), v[i]);
        assert_non_null(v[i]->run);
        assert_non_null(v[i]->about);
        assert_non_null(v[i]->pos_name);
        int rows_n = 0;
        for (const struct cli_opt *o = v[i]->opts; o && o->type != CLI_END; o++, rows_n++) {
            assert_non_null(o->help);
            if (o->type == CLI_GROUP)
                continue;
            assert_non_null(o->name);
            assert_true(o->type == CLI_FLAG || o->arg);
            assert_true(o->type != CLI_ENUM || o->choices);
            assert_true(o->off < v[i]->opts_size);
            for (const struct cli_opt *p = v[i]->opts; p < o; p++) {
                assert_true(!p->name || strcmp(p->name, o->name) != 0);
                assert_true(!o->short_name || p->short_name != o->short_name);
            }
            assert_true(o->short_name != 'h');
        }
        assert_true(rows_n < CLI_ROWS_MAX);
        struct buf b = BUF_INIT;
        cli_help_verb(v[i], &b);
        for (const char *s = buf_z(&b); *s;) {
            size_t len = strcspn(s, "\n");
            if (len > 100)
                fail_msg("%s --help: line of %zu columns: %.*s", v[i]->name, len, (int)len, s);
            s += len + (s[len] == '\n');
        }
        buf_free(&b);
        /* defaults pass their own limits */
        struct cli c;
        struct qn_err err = {0};
        void *opts = calloc(1, v[i]->opts_size + 1);
        enum qn_status st = cli_parse(v[i], 0, NULL, &c, opts, &err);
        if (st != QN_OK && v[i]->pos_min == 0)
            fail_msg("%s: %s", v[i]->name, err.msg);
        cli_parsed_free(&c);
        free(opts);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),       cmocka_unit_test(test_defaults_and_environment),
        cmocka_unit_test(test_config_file), cmocka_unit_test(test_config_messages),
        cmocka_unit_test(test_messages),    cmocka_unit_test(test_help_wins),
        cmocka_unit_test(test_distance),    cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
