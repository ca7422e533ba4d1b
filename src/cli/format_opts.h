/*
 * format_opts.h - the options of generate and chat that constrain an answer: rows for their tables,
 * and the grammar that is compiled once for all answers of a session.
 */
#ifndef CLI_FORMAT_OPTS_H
#define CLI_FORMAT_OPTS_H

#include "cli/cli.h"
#include "cli/session.h"

struct format_opts {
    const char *json_schema, *regex, *grammar;
};

/* Rows for a table over struct S, which holds a `struct format_opts format`. */
#define CLI_OPTS_FORMAT(S)                                                                         \
    {.type = CLI_GROUP, .help = "Form of the answer"},                                             \
        {.name = "json-schema",                                                                    \
         .type = CLI_STR,                                                                          \
         .arg = "FILE",                                                                            \
         .help = "JSON Schema that the answer has to fit.",                                        \
         .off = CLI_AT_STR(S, format.json_schema)},                                                \
        {.name = "regex",                                                                          \
         .type = CLI_STR,                                                                          \
         .arg = "PATTERN",                                                                         \
         .help = "Regular expression that the whole answer has to match.",                         \
         .off = CLI_AT_STR(S, format.regex)},                                                      \
    {                                                                                              \
        .name = "grammar", .type = CLI_STR, .arg = "FILE",                                         \
        .help = "GBNF grammar whose rule \"root\" the answer has to follow.",                      \
        .off = CLI_AT_STR(S, format.grammar)                                                       \
    }

struct format {
    struct gram *gram; /* NULL = any text */
    struct gram_vocab *vocab;
};

/* Compiles what the options ask for; one of them at most. Reasoning that the model opens with a
 * token of its own may come before. raw: no template, no reasoning. *out is {0} or to be freed. */
enum qn_status format_make(const struct format_opts *o, const struct session *s, bool raw,
                           struct format *out, struct qn_err *err);
void format_free(struct format *f);

#endif
