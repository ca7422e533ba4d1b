/*
 * cmd_help.c - `quern help` and `quern version`.
 */
#include "cli/verbs.h"

struct help_opts {
    bool markdown;
};

static int run_help(const struct cli *c, void *opts)
{
    const struct help_opts *o = opts;
    int n = 0;
    const struct cli_verb *v =
        c->n_pos ? cli_verb_of_words(c->n_pos, (char **)(uintptr_t)c->pos, &n) : NULL;
    if (n < c->n_pos || (c->n_pos && !v))
        return cli_usage(NULL, "unknown verb %.60s", c->pos[v ? n : 0]);
    struct buf b = BUF_INIT;
    if (o->markdown)
        cli_help_markdown(&b);
    else if (v)
        cli_help_verb(v, &b);
    else
        cli_help_overall(&b);
    bool ok = cli_write(c, buf_str(&b));
    buf_free(&b);
    return ok ? CLI_OK : CLI_FAILED;
}

static const struct cli_opt help_opts[] = {
    {.name = "markdown",
     .type = CLI_FLAG,
     .help = "Print the description of every verb as Markdown (docs/cli.md).",
     .off = CLI_AT_FLAG(struct help_opts, markdown)},
    {.type = CLI_END},
};

const struct cli_verb verb_help = {
    .name = "help",
    .summary = "list the verbs, or describe one",
    .usage = "[VERB]",
    .about = "Prints the list of verbs, or the help page of one verb.",
    .examples = "quern help\nquern help version",
    .opts = help_opts,
    .opts_size = sizeof(struct help_opts),
    .pos_max = 2,
    .pos_name = "VERB",
    .run = run_help,
};

static int run_version(const struct cli *c, void *opts)
{
    struct buf b = BUF_INIT;
    buf_addf(&b, "quern %s\n", QUERN_VERSION);
    bool ok = cli_write(c, buf_str(&b));
    buf_free(&b);
    return ok ? CLI_OK : CLI_FAILED;
}

const struct cli_verb verb_version = {
    .name = "version",
    .summary = "print the version",
    .usage = "",
    .about = "Prints the program's name and version.",
    .pos_name = "argument",
    .run = run_version,
};
