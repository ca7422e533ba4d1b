/*
 * main.c - finds the verb, parses its options, runs it. Exit status: 0 done, 1 failed, 2 wrong
 * usage, 130 interrupted.
 */
#include <signal.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/progress.h"

static int print_help(const struct cli_verb *v, FILE *to)
{
    struct buf b = BUF_INIT;
    if (v)
        cli_help_verb(v, &b);
    else
        cli_help_overall(&b);
    bool ok = fwrite(buf_z(&b), 1, b.n, to) == b.n && fflush(to) == 0;
    buf_free(&b);
    return ok ? CLI_OK : CLI_FAILED;
}

static int unknown_verb(const char *word)
{
    struct cli_guess g = {0};
    size_t n;
    const struct cli_verb *const *v = cli_verbs(&n);
    for (size_t i = 0; i < n; i++)
        if (!v[i]->hidden)
            cli_guess_offer(&g, word, v[i]->name);
    if (word[0] == '-')
        return cli_usage(NULL, "unknown option %.60s; options follow a verb: quern VERB [options]",
                         word);
    if (g.best)
        return cli_usage(NULL, "unknown verb %.60s; did you mean %s?", word, g.best);
    return cli_usage(NULL, "unknown verb %.60s", word);
}

static int run_verb(const struct cli_verb *v, int argc, char **argv)
{
    struct cli c = {.verb = v};
    struct qn_err err = {0};
    void *opts = calloc(1, v->opts_size + 1);
    if (!opts) {
        cli_say(&c, "out of memory");
        return CLI_FAILED;
    }
    int rc;
    if (cli_parse(v, argc, argv, &c, opts, &err) != QN_OK)
        rc = cli_usage(&c, "%s", err.msg);
    else if (c.help)
        rc = print_help(v, stdout);
    else
        rc = v->run(&c, opts);
    progress_hide();
    cli_parsed_free(&c);
    free(opts);
    return rc;
}

int main(int argc, char **argv)
{
    /* a reader that closes its pipe is seen as EPIPE where we write, and ends the verb tidily */
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        print_help(NULL, stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return print_help(NULL, stdout);
    int n = 1;
    const struct cli_verb *v = strcmp(argv[1], "--version") == 0
                                   ? cli_verb_find("version")
                                   : cli_verb_of_words(argc - 1, argv + 1, &n);
    if (!v)
        return unknown_verb(argv[1]);
    return run_verb(v, argc - 1 - n, argv + 1 + n);
}
