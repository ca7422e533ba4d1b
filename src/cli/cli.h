/*
 * cli.h - the frame of the quern program: option tables, verbs, help, messages, exit codes.
 *
 * A verb is one row (struct cli_verb) that points at a table of options (struct cli_opt). The
 * parser fills the verb's own struct through offsets, checks types and ranges, and names flag,
 * value and limits when something is wrong; `--help`, docs/cli.md and suggestions come from the
 * same tables. Only this folder prints or chooses an exit code. Main thread only.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/pool.h"

enum cli_exit { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_INTERRUPTED = 130 };

/* The C type of the field an option fills stands beside each; CLI_AT checks it at compile time. */
enum cli_type {
    CLI_END = 0, /* closes a table */
    CLI_GROUP,   /* a heading in the help: only `help` is used */
    CLI_FLAG,    /* bool */
    CLI_INT,     /* int64_t, min..max */
    CLI_REAL,    /* double, min..max */
    CLI_STR,     /* const char * */
    CLI_SIZE,    /* int64_t bytes: 512, 64KiB, 4GiB, 2GB; min..max */
    CLI_ENUM,    /* int, index into choices */
    CLI_INTS,    /* struct cli_ints: 1,2,4; each min..max */
    CLI_STRS,    /* struct cli_strs: the option may be repeated */
};

#define CLI_LIST_MAX 32
#define CLI_ROWS_MAX 128 /* rows of an option table */
struct cli_ints {
    int64_t v[CLI_LIST_MAX];
    int n;
};
struct cli_strs {
    const char *v[CLI_LIST_MAX];
    int n;
};

struct cli_opt {
    const char *name; /* "max-tokens", without dashes */
    char short_name;  /* 'n' for -n; 0 = none */
    enum cli_type type;
    const char *arg;            /* placeholder in the help: "N", "DIR" */
    double min, max;            /* inclusive limits; both 0 = no limits */
    const char *const *choices; /* CLI_ENUM: NULL-terminated */
    const char *def;            /* default, parsed as if it had been given; NULL = zero */
    const char *def_text;       /* shown as the default instead of def, e.g. "one per CPU" */
    const char *env;            /* environment variable read when the option is absent */
    bool is_config;   /* CLI_STR: names a file of options, for those that nothing else has set */
    const char *help; /* what it does, one sentence or two; wrapped by the printer */
    size_t off;       /* CLI_AT(struct, field, type) */
};

/* Offset of field f of struct S; a negative array size when f is not of type T. */
#define CLI_AT(S, f, T)                                                                            \
    (offsetof(S, f) +                                                                              \
     0 * sizeof(char[__builtin_types_compatible_p(__typeof__(((S *)0)->f), T) ? 1 : -1]))
#define CLI_AT_FLAG(S, f) CLI_AT(S, f, bool)
#define CLI_AT_INT(S, f)  CLI_AT(S, f, int64_t)
#define CLI_AT_REAL(S, f) CLI_AT(S, f, double)
#define CLI_AT_STR(S, f)  CLI_AT(S, f, const char *)
#define CLI_AT_SIZE(S, f) CLI_AT(S, f, int64_t)
#define CLI_AT_ENUM(S, f) CLI_AT(S, f, int)
#define CLI_AT_INTS(S, f) CLI_AT(S, f, struct cli_ints)
#define CLI_AT_STRS(S, f) CLI_AT(S, f, struct cli_strs)

/* Options that several verbs share: one wording, one default. S is the verb's own struct. */
#define CLI_OPT_MODEL(S)                                                                           \
    {                                                                                              \
        .name = "model", .short_name = 'm', .type = CLI_STR, .arg = "DIR|NAME",                    \
        .env = "QUERN_MODEL", .def_text = "smollm2",                                               \
        .help = "Model folder, or the name of a model that `quern get` fetched.",                  \
        .off = CLI_AT_STR(S, model)                                                                \
    }
#define CLI_OPT_THREADS(S)                                                                         \
    {                                                                                              \
        .name = "threads", .short_name = 't', .type = CLI_INT, .arg = "N", .min = 1,               \
        .max = POOL_THREAD_MAX, .env = "QUERN_THREADS", .def_text = "one per available CPU",       \
        .help = "Worker threads. The answer does not depend on it.", .off = CLI_AT_INT(S, threads) \
    }
/* Answers made together; memory for everything, under the verb's own name for it. */
#define CLI_OPT_BATCH(S, HELP)                                                                     \
    {                                                                                              \
        .name = "batch", .type = CLI_INT, .arg = "N", .min = 1, .max = 64, .def = "8",             \
        .help = (HELP), .off = CLI_AT_INT(S, batch)                                                \
    }
#define CLI_OPT_MEMORY(S, NAME, HELP)                                                              \
    {                                                                                              \
        .name = (NAME), .type = CLI_SIZE, .arg = "SIZE", .min = 1 << 20, .max = 1e15,              \
        .def_text = "80 % of the machine's memory, or of the control group's", .help = (HELP),     \
        .off = CLI_AT_SIZE(S, memory)                                                              \
    }
#define CLI_OPT_KV_QUANT(S)                                                                        \
    {                                                                                              \
        .name = "kv-quant", .type = CLI_STR, .arg = "FORMAT", .def_text = "off",                   \
        .help = "How keys and values are kept: off (16 bits), 8 or 4 (bits), config (as the "      \
                "model's kv_config.json says, layer by layer), turbo or turbo:k8v4 (bits of keys " \
                "and of rotated values).",                                                         \
        .off = CLI_AT_STR(S, kv_quant)                                                             \
    }
#define CLI_OPT_CTX(S)                                                                             \
    {                                                                                              \
        .name = "ctx", .short_name = 'c', .type = CLI_INT, .arg = "N", .min = 1, .max = 16777216,  \
        .def_text = "the model's own maximum", .help = "Tokens a sequence can hold.",              \
        .off = CLI_AT_INT(S, ctx)                                                                  \
    }

struct cli; /* one parsed command line */

struct cli_verb {
    const char *name;
    const char *summary;        /* one line of the overall help, no full stop */
    const char *usage;          /* what follows `quern NAME`: "[options] DIR" */
    const char *about;          /* one paragraph or more ("\n\n" between them); wrapped */
    const char *examples;       /* lines, printed as they are after two blanks */
    const struct cli_opt *opts; /* ends with a CLI_END row; NULL = none */
    size_t opts_size;           /* bytes of the struct that opts fill */
    int pos_min, pos_max;       /* positional arguments; pos_max -1 = any number */
    const char *pos_name;       /* how messages call a positional: "DIR" */
    bool hidden;                /* works, but is not listed */
    /* Runs with its filled struct; returns an enum cli_exit. */
    int (*run)(const struct cli *c, void *opts);
};

enum cli_source { CLI_BY_DEFAULT = 0, CLI_BY_FLAG, CLI_BY_ENV, CLI_BY_FILE };

struct cli {
    const struct cli_verb *verb;
    const char **pos; /* positional arguments, borrowed from argv; n_pos of them */
    int n_pos;
    bool help;                   /* --help or -h was seen: nothing else was checked */
    uint8_t given[CLI_ROWS_MAX]; /* what set row i: enum cli_source */
    char *config;                /* text of the --config file, which values point into; owned */
};

/* ---- verbs -------------------------------------------------------------------------------- */

/* Every verb of the program, in the order of the help; *n of them. */
const struct cli_verb *const *cli_verbs(size_t *n);
const struct cli_verb *cli_verb_find(const char *name); /* NULL = none of that name */
/* The verb that the first words name, two ("bench serve") before one; *n: how many they are. */
const struct cli_verb *cli_verb_of_words(int argc, char **argv, int *n);

/* ---- parsing (opt.c): no printing, no exit -------------------------------------------------- */

/* Precedence: flag, environment, --config file, default.
 * Parses argv[0..argc) (after the verb) for v into opts (v->opts_size bytes, zeroed by the caller);
 * c->pos is malloc'd, freed with cli_parsed_free. QN_BAD_INPUT with the message otherwise. */
enum qn_status cli_parse(const struct cli_verb *v, int argc, char **argv, struct cli *c, void *opts,
                         struct qn_err *err);
void cli_parsed_free(struct cli *c);
/* True when the option (name without dashes) was set by flag, environment or file. */
bool cli_given(const struct cli *c, const char *name);
bool cli_flagged(const struct cli *c, const char *name); /* on the command line itself */
/* Sets one option by name to a value, checked as on the command line, and marks it given. */
enum qn_status cli_set(struct cli *c, const char *name, const char *value, void *opts,
                       struct qn_err *err);
/* "4GiB" -> bytes. Units: none or B, K/M/G/T with iB (1024) or B (1000); a bare letter is 1024s.
 * A fraction is allowed: 1.5GiB. False when it is not a size or does not fit. */
bool cli_parse_size(const char *s, int64_t *out);
/* Appends bytes for people: "4 GiB", "1.5 MiB", "812 B". */
void cli_size_text(struct buf *out, int64_t bytes);

/* ---- suggestions (suggest.c) ---------------------------------------------------------------- */

/* Edits between a and b: insert, delete, replace, swap of neighbours (optimal string alignment);
 * letters' case is ignored. Strings are read up to 64 bytes. */
int cli_distance(const char *a, const char *b);
struct cli_guess {
    const char *best; /* NULL = nothing near enough */
    int dist;
};
/* Offers one candidate for `word`; keeps the nearest within a third of its length (at least 1). */
void cli_guess_offer(struct cli_guess *g, const char *word, const char *candidate);

/* ---- help (help.c) -------------------------------------------------------------------------- */

void cli_help_overall(struct buf *out);
void cli_help_verb(const struct cli_verb *v, struct buf *out);
void cli_help_markdown(struct buf *out); /* docs/cli.md */

/* ---- messages ------------------------------------------------------------------------------- */

/* "quern VERB: message" on stderr; c NULL = just "quern: ". */
void cli_say(const struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints *err the same way. Returns CLI_INTERRUPTED for QN_CANCELLED, otherwise CLI_FAILED. */
int cli_fail(const struct cli *c, const struct qn_err *err);
/* Prints a usage message and where to find the help. Returns CLI_USAGE. */
int cli_usage(const struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Writes everything to stdout and flushes; false (with a message, unless the reader has closed the
 * pipe) when it could not. */
bool cli_write(const struct cli *c, struct str s);

#endif
