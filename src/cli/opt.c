/*
 * opt.c - reads a command line against a verb's option table.
 *
 * Order of precedence: flag, environment, --config file, default; the last of a repeated flag wins
 * (CLI_STRS collects). Values are checked completely here, so a verb never sees one outside its
 * limits. Nothing is printed; messages go to the caller's qn_err. Strings stay borrowed from argv
 * and the file's text.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/config.h"

/* Where a value came from, for messages: "--temperature" or "QUERN_MODEL". */
struct source {
    char name[80];
};

static struct source from_flag(const struct cli_opt *o)
{
    struct source s;
    snprintf(s.name, sizeof s.name, "--%s", o->name);
    return s;
}

bool cli_parse_size(const char *s, int64_t *out)
{
    static const struct {
        const char *unit;
        double mul;
    } units[] = {
        {"", 1},       {"b", 1},        {"k", 0x1p10},   {"kib", 0x1p10}, {"kb", 1e3},
        {"m", 0x1p20}, {"mib", 0x1p20}, {"mb", 1e6},     {"g", 0x1p30},   {"gib", 0x1p30},
        {"gb", 1e9},   {"t", 0x1p40},   {"tib", 0x1p40}, {"tb", 1e12},
    };
    if (!isdigit((unsigned char)s[0]))
        return false;
    size_t n = strspn(s, "0123456789.");
    char num[40];
    if (n >= sizeof num)
        return false;
    memcpy(num, s, n);
    num[n] = 0;
    char *end;
    double v = strtod(num, &end);
    if (*end)
        return false;
    s += n;
    while (*s == ' ')
        s++;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcasecmp(s, units[i].unit) != 0)
            continue;
        v *= units[i].mul;
        if (!(v >= 0 && v < 0x1p62))
            return false;
        *out = (int64_t)llround(v);
        return true;
    }
    return false;
}

void cli_size_text(struct buf *out, int64_t bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    int u = 0;
    while (fabs(v) >= 1024 && u < 6) {
        v /= 1024;
        u++;
    }
    char num[32];
    snprintf(num, sizeof num, u == 0 ? "%.0f" : fabs(v) < 10 ? "%.2f" : "%.1f", v);
    if (strchr(num, '.')) {
        size_t n = strlen(num);
        while (num[n - 1] == '0')
            num[--n] = 0;
        if (num[n - 1] == '.')
            num[n - 1] = 0;
    }
    buf_addf(out, "%s %s", num, unit[u]);
}

static bool parse_i64(const char *s, size_t n, int64_t *out)
{
    char t[32];
    if (n == 0 || n >= sizeof t || isspace((unsigned char)s[0]))
        return false;
    memcpy(t, s, n);
    t[n] = 0;
    char *end;
    errno = 0;
    long long v = strtoll(t, &end, 10);
    if (errno || *end)
        return false;
    *out = v;
    return true;
}

static bool has_limits(const struct cli_opt *o)
{
    return o->min != 0 || o->max != 0;
}

/* Limits in words: "from 0 to 2"; sizes with their units. */
static void limits_text(const struct cli_opt *o, struct buf *b)
{
    if (o->type == CLI_SIZE) {
        buf_addz(b, "from ");
        cli_size_text(b, (int64_t)o->min);
        buf_addz(b, " to ");
        cli_size_text(b, (int64_t)o->max);
        return;
    }
    buf_addf(b, "from %.15g to %.15g", o->min, o->max);
}

static enum qn_status bad_value(const struct cli_opt *o, const char *src, const char *val,
                                const char *expected, struct qn_err *err)
{
    struct buf b = BUF_INIT;
    buf_addf(&b, "%s %.60s: expected %s", src, *val ? val : "''", expected);
    if (has_limits(o)) {
        buf_addc(&b, ' ');
        limits_text(o, &b);
    }
    enum qn_status st = err_set(err, QN_BAD_INPUT, "cli", "%s", buf_z(&b));
    buf_free(&b);
    return st;
}

static bool in_limits(const struct cli_opt *o, double v)
{
    return !has_limits(o) || (v >= o->min && v <= o->max);
}

/* Where nothing is said about limits (seeds) all 64 bits can be had, with and without a sign. */
static bool parse_int(const struct cli_opt *o, const char *s, int64_t *out)
{
    char *end;
    if (parse_i64(s, strlen(s), out))
        return in_limits(o, (double)*out);
    if (has_limits(o) || !isdigit((unsigned char)s[0]))
        return false;
    errno = 0;
    *out = (int64_t)strtoull(s, &end, 10);
    return !errno && !*end;
}

static enum qn_status set_enum(const struct cli_opt *o, const char *src, const char *val, int *out,
                               struct qn_err *err)
{
    struct cli_guess g = {0};
    struct buf b = BUF_INIT;
    for (int i = 0; o->choices[i]; i++) {
        if (strcmp(o->choices[i], val) == 0) {
            buf_free(&b);
            *out = i;
            return QN_OK;
        }
        cli_guess_offer(&g, val, o->choices[i]);
        buf_addf(&b, "%s%s", i ? ", " : "", o->choices[i]);
    }
    enum qn_status st;
    if (g.best)
        st = err_set(err, QN_BAD_INPUT, "cli", "%s %.60s: expected one of %s; did you mean %s?",
                     src, *val ? val : "''", buf_z(&b), g.best);
    else
        st = err_set(err, QN_BAD_INPUT, "cli", "%s %.60s: expected one of %s", src,
                     *val ? val : "''", buf_z(&b));
    buf_free(&b);
    return st;
}

static enum qn_status set_ints(const struct cli_opt *o, const char *src, const char *val,
                               struct cli_ints *out, struct qn_err *err)
{
    struct cli_ints got = {.n = 0};
    for (const char *s = val;; s++) {
        size_t n = strcspn(s, ",");
        int64_t v;
        if (got.n == CLI_LIST_MAX)
            QN_FAIL(err, QN_BAD_INPUT, "cli", "%s %.60s: at most %d values", src, val,
                    CLI_LIST_MAX);
        if (!parse_i64(s, n, &v) || !in_limits(o, (double)v))
            return bad_value(o, src, val, "whole numbers separated by commas, each", err);
        got.v[got.n++] = v;
        s += n;
        if (!*s)
            break;
    }
    *out = got;
    return QN_OK;
}

static enum qn_status set_bool(const struct cli_opt *o, const char *src, const char *val, bool *out,
                               struct qn_err *err)
{
    static const char *const word[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    for (int i = 0; i < 8; i++) {
        if (strcasecmp(word[i], val) == 0) {
            *out = i & 1;
            return QN_OK;
        }
    }
    return bad_value(o, src, val, "0 or 1", err);
}

static enum qn_status set_value(const struct cli_opt *o, const char *src, const char *val,
                                void *opts, struct qn_err *err)
{
    void *dst = (char *)opts + o->off;
    int64_t i;
    switch (o->type) {
    case CLI_FLAG:
        return set_bool(o, src, val, dst, err);
    case CLI_INT:
        if (!parse_int(o, val, &i))
            return bad_value(o, src, val, "a whole number", err);
        *(int64_t *)dst = i;
        return QN_OK;
    case CLI_SIZE:
        if (!cli_parse_size(val, &i) || !in_limits(o, (double)i))
            return bad_value(o, src, val, "a size such as 512MiB or 4GiB", err);
        *(int64_t *)dst = i;
        return QN_OK;
    case CLI_REAL: {
        char *end;
        double v = strtod(val, &end);
        if (!*val || *end || isspace((unsigned char)*val) || !isfinite(v) || !in_limits(o, v))
            return bad_value(o, src, val, "a number", err);
        *(double *)dst = v;
        return QN_OK;
    }
    case CLI_STR:
        *(const char **)dst = val;
        return QN_OK;
    case CLI_ENUM:
        return set_enum(o, src, val, dst, err);
    case CLI_INTS:
        return set_ints(o, src, val, dst, err);
    case CLI_STRS: {
        struct cli_strs *list = dst;
        if (list->n == CLI_LIST_MAX)
            QN_FAIL(err, QN_BAD_INPUT, "cli", "%s: given more than %d times", src, CLI_LIST_MAX);
        list->v[list->n++] = val;
        return QN_OK;
    }
    case CLI_END:
    case CLI_GROUP:
        break;
    }
    QN_FAIL(err, QN_INTERNAL, "cli", "%s: option type %d", src, (int)o->type);
}

static int find_long(const struct cli_verb *v, const char *name, size_t n)
{
    for (int i = 0; v->opts && v->opts[i].type != CLI_END; i++)
        if (v->opts[i].name && strlen(v->opts[i].name) == n &&
            strncmp(v->opts[i].name, name, n) == 0)
            return i;
    return -1;
}

static int find_short(const struct cli_verb *v, char c)
{
    for (int i = 0; v->opts && v->opts[i].type != CLI_END; i++)
        if (v->opts[i].short_name == c && c)
            return i;
    return -1;
}

static enum qn_status unknown_long(const struct cli_verb *v, const char *name, size_t n,
                                   struct qn_err *err)
{
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)(n < 60 ? n : 60), name);
    for (char *p = word; *p; p++)
        if (*p == '_')
            *p = '-';
    struct cli_guess g = {0};
    for (int i = 0; v->opts && v->opts[i].type != CLI_END; i++)
        if (v->opts[i].name)
            cli_guess_offer(&g, word, v->opts[i].name);
    cli_guess_offer(&g, word, "help");
    if (g.best)
        QN_FAIL(err, QN_BAD_INPUT, "cli", "unknown option --%.*s; did you mean --%s?",
                (int)(n < 60 ? n : 60), name, g.best);
    QN_FAIL(err, QN_BAD_INPUT, "cli", "unknown option --%.*s", (int)(n < 60 ? n : 60), name);
}

/* The words still to be read. */
struct words {
    char **v;
    int n, i;
};

/* The value of option o that must be the next word. A word that is itself one of the verb's long
 * options is refused: a forgotten value is likelier than such a text. */
static enum qn_status next_value(const struct cli_verb *v, const struct cli_opt *o, struct words *w,
                                 const char **val, struct qn_err *err)
{
    const char *next = w->i + 1 < w->n ? w->v[w->i + 1] : NULL;
    if (!next)
        QN_FAIL(err, QN_BAD_INPUT, "cli", "--%s: needs a value (%s)", o->name, o->arg);
    if (strncmp(next, "--", 2) == 0 &&
        (!next[2] || find_long(v, next + 2, strcspn(next + 2, "=")) >= 0))
        QN_FAIL(err, QN_BAD_INPUT, "cli",
                "--%s: needs a value (%s), found %s; write --%s=%s if that is the value", o->name,
                o->arg, next, o->name, next);
    *val = next;
    w->i++;
    return QN_OK;
}

static enum qn_status take_option(struct cli *c, int row, const char *val, void *opts,
                                  struct qn_err *err)
{
    const struct cli_opt *o = &c->verb->opts[row];
    c->given[row] = CLI_BY_FLAG;
    if (o->type == CLI_FLAG) {
        *(bool *)((char *)opts + o->off) = true;
        return QN_OK;
    }
    struct source src = from_flag(o);
    return set_value(o, src.name, val, opts, err);
}

static enum qn_status take_long(struct cli *c, struct words *w, void *opts, struct qn_err *err)
{
    const char *name = w->v[w->i] + 2;
    size_t n = strcspn(name, "=");
    const char *val = name[n] ? name + n + 1 : NULL;
    int row = find_long(c->verb, name, n);
    if (row < 0)
        return unknown_long(c->verb, name, n, err);
    const struct cli_opt *o = &c->verb->opts[row];
    if (o->type == CLI_FLAG && val)
        QN_FAIL(err, QN_BAD_INPUT, "cli", "--%s: takes no value, found %.60s", o->name, val);
    if (o->type != CLI_FLAG && !val)
        QN_TRY(next_value(c->verb, o, w, &val, err));
    return take_option(c, row, val, opts, err);
}

/* -n 5, -n5, and flags together: -ab. */
static enum qn_status take_short(struct cli *c, struct words *w, void *opts, struct qn_err *err)
{
    for (const char *s = w->v[w->i] + 1; *s; s++) {
        int row = find_short(c->verb, *s);
        if (row < 0)
            QN_FAIL(err, QN_BAD_INPUT, "cli", "unknown option -%c", *s);
        const struct cli_opt *o = &c->verb->opts[row];
        if (o->type == CLI_FLAG) {
            QN_TRY(take_option(c, row, NULL, opts, err));
            continue;
        }
        const char *val = s[1] ? s + 1 : NULL;
        if (!val)
            QN_TRY(next_value(c->verb, o, w, &val, err));
        return take_option(c, row, val, opts, err);
    }
    return QN_OK;
}

static enum qn_status fill_from_environment(struct cli *c, void *opts, struct qn_err *err)
{
    for (int i = 0; c->verb->opts && c->verb->opts[i].type != CLI_END; i++) {
        const struct cli_opt *o = &c->verb->opts[i];
        const char *env = o->env ? getenv(o->env) : NULL;
        if (c->given[i] || !env || !*env)
            continue;
        QN_TRY(set_value(o, o->env, env, opts, err));
        c->given[i] = CLI_BY_ENV;
    }
    return QN_OK;
}

struct from_file {
    struct cli *c;
    void *opts;
    uint8_t before[CLI_ROWS_MAX]; /* given by a flag or the environment */
};

static enum qn_status set_from_file(void *arg, const char *name, const char *value,
                                    struct qn_err *err)
{
    struct from_file *f = arg;
    int row = find_long(f->c->verb, name, strlen(name));
    if (row < 0)
        return unknown_long(f->c->verb, name, strlen(name), err);
    if (f->c->verb->opts[row].is_config)
        QN_FAIL(err, QN_BAD_INPUT, "cli", "%s cannot be set in such a file", name);
    if (f->before[row])
        return QN_OK;
    f->c->given[row] = CLI_BY_FILE;
    return set_value(&f->c->verb->opts[row], name, value, f->opts, err);
}

static enum qn_status fill_from_file(struct cli *c, void *opts, struct qn_err *err)
{
    struct from_file f = {.c = c, .opts = opts};
    memcpy(f.before, c->given, sizeof f.before);
    for (int i = 0; c->verb->opts && c->verb->opts[i].type != CLI_END; i++) {
        const struct cli_opt *o = &c->verb->opts[i];
        if (!o->is_config || !c->given[i])
            continue;
        const char *path = *(const char **)((char *)opts + o->off);
        struct config cf = {.path = path, .set = set_from_file, .arg = &f};
        return config_read(&cf, &c->config, err);
    }
    return QN_OK;
}

static enum qn_status fill_defaults(struct cli *c, void *opts, struct qn_err *err)
{
    for (int i = 0; c->verb->opts && c->verb->opts[i].type != CLI_END; i++) {
        const struct cli_opt *o = &c->verb->opts[i];
        struct source src = from_flag(o);
        if (o->type != CLI_GROUP && o->def && !c->given[i])
            QN_TRY(set_value(o, src.name, o->def, opts, err));
    }
    return QN_OK;
}

static enum qn_status check_positionals(const struct cli *c, struct qn_err *err)
{
    const struct cli_verb *v = c->verb;
    if (c->n_pos < v->pos_min)
        QN_FAIL(err, QN_BAD_INPUT, "cli", "%s is missing", v->pos_name);
    if (v->pos_max < 0 || c->n_pos <= v->pos_max)
        return QN_OK;
    if (v->pos_max == 0)
        QN_FAIL(err, QN_BAD_INPUT, "cli", "unexpected argument %.60s", c->pos[0]);
    QN_FAIL(err, QN_BAD_INPUT, "cli", "unexpected argument %.60s after %d of %s",
            c->pos[v->pos_max], v->pos_max, v->pos_name);
}

static bool wants_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

enum qn_status cli_parse(const struct cli_verb *v, int argc, char **argv, struct cli *c, void *opts,
                         struct qn_err *err)
{
    *c = (struct cli){.verb = v, .help = wants_help(argc, argv)};
    if (c->help)
        return QN_OK;
    c->pos = calloc((size_t)argc + 1, sizeof *c->pos);
    if (!c->pos)
        QN_FAIL(err, QN_NO_MEMORY, "cli", "out of memory for %d arguments", argc);
    struct words w = {argv, argc, 0};
    bool only_pos = false;
    for (; w.i < w.n; w.i++) {
        const char *a = w.v[w.i];
        if (only_pos || a[0] != '-' || !a[1])
            c->pos[c->n_pos++] = a;
        else if (strcmp(a, "--") == 0)
            only_pos = true;
        else if (a[1] == '-')
            QN_TRY(take_long(c, &w, opts, err));
        else
            QN_TRY(take_short(c, &w, opts, err));
    }
    QN_TRY(check_positionals(c, err));
    QN_TRY(fill_from_environment(c, opts, err));
    QN_TRY(fill_from_file(c, opts, err));
    return fill_defaults(c, opts, err);
}

void cli_parsed_free(struct cli *c)
{
    free(c->pos);
    free(c->config);
    c->config = NULL;
    c->pos = NULL;
    c->n_pos = 0;
}

bool cli_given(const struct cli *c, const char *name)
{
    int row = find_long(c->verb, name, strlen(name));
    QN_ASSERT(row >= 0);
    return c->given[row] != CLI_BY_DEFAULT;
}

bool cli_flagged(const struct cli *c, const char *name)
{
    int row = find_long(c->verb, name, strlen(name));
    QN_ASSERT(row >= 0);
    return c->given[row] == CLI_BY_FLAG;
}

enum qn_status cli_set(struct cli *c, const char *name, const char *value, void *opts,
                       struct qn_err *err)
{
    int row = find_long(c->verb, name, strlen(name));
    if (row < 0)
        return unknown_long(c->verb, name, strlen(name), err);
    if (c->verb->opts[row].type != CLI_FLAG)
        return take_option(c, row, value, opts, err);
    c->given[row] = CLI_BY_FLAG;
    return set_value(&c->verb->opts[row], name, value, opts, err);
}
