/*
 * message.c - what the program says on stderr and writes to stdout; see cli.h. The progress line,
 * when one stands, is removed first so that messages never run into it.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/progress.h"

static void say_head(const struct cli *c)
{
    progress_hide();
    if (c && c->verb)
        fprintf(stderr, "quern %s: ", c->verb->name);
    else
        fputs("quern: ", stderr);
}

void cli_say(const struct cli *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say_head(c);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

int cli_fail(const struct cli *c, const struct qn_err *err)
{
    if (err->code == QN_CANCELLED)
        return CLI_INTERRUPTED;
    cli_say(c, "%s", err->msg[0] ? err->msg : "failed without a message");
    return CLI_FAILED;
}

int cli_usage(const struct cli *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say_head(c);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    if (c && c->verb)
        fprintf(stderr, "\nRun `quern %s --help` for its options.\n", c->verb->name);
    else
        fputs("\nRun `quern help` for the list of verbs.\n", stderr);
    return CLI_USAGE;
}

/* Ctrl-C must not lose text: a write that a signal interrupts goes on. stdio would drop it. */
static bool write_all(struct str s)
{
    while (fflush(stdout) != 0) {
        if (errno != EINTR)
            return false;
        clearerr(stdout);
    }
    while (s.n) {
        ssize_t n = write(STDOUT_FILENO, s.p, s.n);
        if (n < 0 && errno != EINTR)
            return false;
        if (n > 0)
            s = (struct str){s.p + n, s.n - (size_t)n};
    }
    return true;
}

bool cli_write(const struct cli *c, struct str s)
{
    if (write_all(s))
        return true;
    if (errno != EPIPE)
        cli_say(c, "standard output: %s", strerror(errno));
    return false;
}
