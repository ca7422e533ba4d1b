/*
 * config.c - the file of --config: options as `name = value` lines, one each, for options that
 * neither a flag nor the environment has set.
 *
 * The text is changed in place (names and values become C strings) and lives in struct cli, because
 * options borrow their values. Nothing is printed.
 */
#include "cli/config.h"

#include <stdlib.h>

#include "base/file.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)

static char *trim(char *s)
{
    s += strspn(s, " \t\r");
    size_t n = strlen(s);
    while (n && strchr(" \t\r", s[n - 1]))
        n--;
    s[n] = 0;
    return s;
}

/* "text" -> text: quotes keep blanks at the ends. */
static char *unquote(char *s)
{
    size_t n = strlen(s);
    if (n < 2 || s[0] != '"' || s[n - 1] != '"')
        return s;
    s[n - 1] = 0;
    return s + 1;
}

static enum qn_status take_line(struct config *cf, char *line, int no, struct qn_err *err)
{
    char *name = trim(line), *eq = strchr(name, '=');
    if (!*name || *name == '#')
        return QN_OK;
    if (!eq)
        QN_FAIL(err, QN_BAD_INPUT, "config", "%s:%d: expected NAME = VALUE, found %.60s", cf->path,
                no, name);
    *eq = 0;
    name = trim(name);
    enum qn_status st = cf->set(cf->arg, name, unquote(trim(eq + 1)), err);
    return st == QN_OK ? QN_OK : err_prefix(err, "%s:%d", cf->path, no);
}

enum qn_status config_read(struct config *cf, char **text, struct qn_err *err)
{
    struct buf b = BUF_INIT;
    *text = NULL;
    enum qn_status st = file_read(cf->path, CONFIG_BYTES_MAX, &b, err);
    if (st == QN_OK && memchr(b.p ? b.p : "", 0, b.n))
        st = err_set(err, QN_BAD_INPUT, "config", "%s: holds a NUL byte; expected text", cf->path);
    if (st == QN_OK) {
        buf_addc(&b, '\n'); /* also an empty file has a line, and memory of its own */
        st = buf_ok(&b, "configuration", err);
    }
    if (st != QN_OK) {
        buf_free(&b);
        return st;
    }
    size_t n;
    *text = buf_give(&b, &n);
    int no = 1;
    for (char *line = *text, *end; (end = strchr(line, '\n')); line = end + 1, no++) {
        *end = 0;
        QN_TRY(take_line(cf, line, no, err));
    }
    return QN_OK;
}
