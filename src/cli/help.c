/*
 * help.c - help pages made from the verb and option tables: plain text of at most 100 columns for
 * the terminal, Markdown for docs/cli.md. Appends to a buffer; prints nothing.
 */
#include "cli/cli.h"

#define COLUMNS  96
#define HELP_COL 30 /* where the description of an option begins */
#define VERB_COL 17

/* Appends words of text, breaking lines before `width`; lines after the first begin with `indent`
 * blanks. `col` is where the first line stands already. */
static void wrap(struct buf *out, const char *text, int col, int indent, int width)
{
    bool first = true;
    while (*text) {
        text += strspn(text, " ");
        int n = (int)strcspn(text, " \n");
        if (n && !first && col + 1 + n > width) {
            buf_addf(out, "\n%*s", indent, "");
            col = indent;
            first = true;
        }
        if (n) {
            buf_addf(out, "%s%.*s", first ? "" : " ", n, text);
            col += n + !first;
            first = false;
        }
        text += n;
        if (*text == '\n') {
            int k = (int)strspn(text, "\n");
            buf_addz(out, k > 1 ? "\n\n" : "\n");
            buf_addf(out, "%*s", indent, "");
            col = indent;
            first = true;
            text += k;
        }
    }
}

/* "Sentence. Choices: a, b. From 0 to 2. Default: x. Environment: Y." */
static void describe(const struct cli_opt *o, struct buf *b)
{
    buf_addz(b, o->help);
    if (o->type == CLI_ENUM) {
        buf_addz(b, " One of ");
        for (int i = 0; o->choices[i]; i++)
            buf_addf(b, "%s%s", i ? ", " : "", o->choices[i]);
        buf_addc(b, '.');
    }
    bool numeric = o->type == CLI_INT || o->type == CLI_REAL || o->type == CLI_INTS;
    if (numeric && (o->min != 0 || o->max != 0))
        buf_addf(b, " From %.10g to %.10g.", o->min, o->max);
    if (o->type == CLI_STRS)
        buf_addz(b, " May be repeated.");
    const char *def = o->def_text ? o->def_text : o->def;
    if (def)
        buf_addf(b, " Default: %s.", def);
    if (o->env)
        buf_addf(b, " Environment: %s.", o->env);
}

static void option_head(const struct cli_opt *o, struct buf *b)
{
    if (o->short_name)
        buf_addf(b, "-%c, ", o->short_name);
    buf_addf(b, "--%s", o->name);
    if (o->type != CLI_FLAG)
        buf_addf(b, " %s", o->arg);
}

static void option_text(const struct cli_opt *o, struct buf *out)
{
    struct buf head = BUF_INIT, text = BUF_INIT;
    buf_addz(&head, o->short_name ? "  " : "      ");
    option_head(o, &head);
    describe(o, &text);
    buf_add_str(out, buf_str(&head));
    if (head.n + 2 > HELP_COL)
        buf_addf(out, "\n%*s", HELP_COL, "");
    else
        buf_addf(out, "%*s", HELP_COL - (int)head.n, "");
    wrap(out, buf_z(&text), HELP_COL, HELP_COL, COLUMNS);
    buf_addc(out, '\n');
    buf_free(&head);
    buf_free(&text);
}

static const struct cli_opt help_row = {
    .name = "help", .short_name = 'h', .type = CLI_FLAG, .help = "Print this help."};

void cli_help_verb(const struct cli_verb *v, struct buf *out)
{
    buf_addf(out, "usage: quern %s", v->name);
    if (v->usage && *v->usage) {
        buf_addc(out, ' ');
        int indent = (int)strlen("usage: quern ") + (int)strlen(v->name) + 1;
        wrap(out, v->usage, indent, indent, COLUMNS);
    }
    buf_addz(out, "\n\n");
    wrap(out, v->about, 0, 0, COLUMNS);
    buf_addc(out, '\n');
    bool heading = v->opts && v->opts[0].type == CLI_GROUP;
    if (!heading)
        buf_addz(out, "\nOptions:\n");
    for (const struct cli_opt *o = v->opts; o && o->type != CLI_END; o++) {
        if (o->type == CLI_GROUP)
            buf_addf(out, "\n%s:\n", o->help);
        else
            option_text(o, out);
    }
    option_text(&help_row, out);
    if (!v->examples)
        return;
    buf_addz(out, "\nExamples:\n");
    for (const char *s = v->examples; *s;) {
        int n = (int)strcspn(s, "\n");
        buf_addf(out, "  %.*s\n", n, s);
        s += n + (s[n] == '\n');
    }
}

void cli_help_overall(struct buf *out)
{
    buf_addf(out,
             "quern %s: language models in the MLX checkpoint format, on the CPU\n\n"
             "usage: quern VERB [options]\n\nVerbs:\n",
             QUERN_VERSION);
    size_t n;
    const struct cli_verb *const *v = cli_verbs(&n);
    for (size_t i = 0; i < n; i++)
        if (!v[i]->hidden)
            buf_addf(out, "  %-*s%s\n", VERB_COL - 2, v[i]->name, v[i]->summary);
    buf_addz(out, "\n`quern VERB --help` describes a verb and its options.\n");
}

/* A table cell: "|" would end it. */
static void cell(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '|')
            buf_addc(out, '\\');
        buf_addc(out, *s);
    }
}

static void markdown_option(const struct cli_opt *o, struct buf *out)
{
    struct buf head = BUF_INIT, text = BUF_INIT;
    option_head(o, &head);
    describe(o, &text);
    buf_addz(out, "| `");
    cell(out, buf_z(&head));
    buf_addz(out, "` | ");
    cell(out, buf_z(&text));
    buf_addz(out, " |\n");
    buf_free(&head);
    buf_free(&text);
}

static void markdown_verb(const struct cli_verb *v, struct buf *out)
{
    buf_addf(out, "\n## quern %s\n\n    quern %s %s\n\n%s\n", v->name, v->name,
             v->usage ? v->usage : "", v->about);
    bool heading = v->opts && v->opts[0].type == CLI_GROUP;
    if (!heading)
        buf_addz(out, "\n| Option | Meaning |\n|---|---|\n");
    for (const struct cli_opt *o = v->opts; o && o->type != CLI_END; o++) {
        if (o->type == CLI_GROUP)
            buf_addf(out, "\n### %s\n\n| Option | Meaning |\n|---|---|\n", o->help);
        else
            markdown_option(o, out);
    }
    markdown_option(&help_row, out);
    if (v->examples)
        buf_addf(out, "\n```sh\n%s\n```\n", v->examples);
}

/* A heading's anchor has dashes for blanks. */
static void anchor_row(const struct cli_verb *v, struct buf *out)
{
    buf_addf(out, "| [%s](#quern-", v->name);
    for (const char *s = v->name; *s; s++)
        buf_addc(out, *s == ' ' ? '-' : *s);
    buf_addf(out, ") | %s |\n", v->summary);
}

void cli_help_markdown(struct buf *out)
{
    buf_addz(
        out,
        "# The quern command line\n\n"
        "Made by `quern help --markdown` from the program's own option tables; a test keeps it "
        "up to date.\n\n"
        "`quern VERB [options]`. Values follow their option after a blank or `=`; `--` ends "
        "the options. An option that is absent is read from its environment variable, if it "
        "has one. Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.\n\n"
        "| Verb | Purpose |\n|---|---|\n");
    size_t n;
    const struct cli_verb *const *v = cli_verbs(&n);
    for (size_t i = 0; i < n; i++)
        if (!v[i]->hidden)
            anchor_row(v[i], out);
    for (size_t i = 0; i < n; i++)
        if (!v[i]->hidden)
            markdown_verb(v[i], out);
}
