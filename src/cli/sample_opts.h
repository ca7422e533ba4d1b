/*
 * sample_opts.h - the sampling options that generate and chat share: rows for their tables, and
 * their merge with what the model folder asks for (flag > generation_config.json > 0.7).
 */
#ifndef CLI_SAMPLE_OPTS_H
#define CLI_SAMPLE_OPTS_H

#include "cli/cli.h"
#include "sched/sched.h"

struct sample_opts {
    double temperature, top_p, min_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, seed, max_tokens;
    struct cli_strs stop;
};

/* Rows for a table over struct S, which holds a `struct sample_opts sample`. */
#define CLI_OPTS_SAMPLING(S)                                                                       \
    {.type = CLI_GROUP, .help = "Sampling"},                                                       \
        {.name = "max-tokens",                                                                     \
         .short_name = 'n',                                                                        \
         .type = CLI_INT,                                                                          \
         .arg = "N",                                                                               \
         .min = 0,                                                                                 \
         .max = 16777216,                                                                          \
         .def_text = "to the end of the context",                                                  \
         .help = "Most tokens of an answer.",                                                      \
         .off = CLI_AT_INT(S, sample.max_tokens)},                                                 \
        {.name = "temperature",                                                                    \
         .type = CLI_REAL,                                                                         \
         .arg = "T",                                                                               \
         .min = 0,                                                                                 \
         .max = 2,                                                                                 \
         .def_text = "the model's own, else 0.7",                                                  \
         .help = "0 always takes the likeliest token.",                                            \
         .off = CLI_AT_REAL(S, sample.temperature)},                                               \
        {.name = "top-p",                                                                          \
         .type = CLI_REAL,                                                                         \
         .arg = "P",                                                                               \
         .min = 0.0001,                                                                            \
         .max = 1,                                                                                 \
         .def_text = "the model's own, else 1 (off)",                                              \
         .help = "Draw from the likeliest tokens that hold this much of the probability.",         \
         .off = CLI_AT_REAL(S, sample.top_p)},                                                     \
        {.name = "top-k",                                                                          \
         .type = CLI_INT,                                                                          \
         .arg = "K",                                                                               \
         .min = 0,                                                                                 \
         .max = 1000000,                                                                           \
         .def_text = "the model's own, else 0 (off)",                                              \
         .help = "Draw from the K likeliest tokens.",                                              \
         .off = CLI_AT_INT(S, sample.top_k)},                                                      \
        {.name = "min-p",                                                                          \
         .type = CLI_REAL,                                                                         \
         .arg = "P",                                                                               \
         .min = 0,                                                                                 \
         .max = 1,                                                                                 \
         .def_text = "the model's own, else 0 (off)",                                              \
         .help = "Leave out tokens less likely than P times the likeliest one.",                   \
         .off = CLI_AT_REAL(S, sample.min_p)},                                                     \
        {.name = "repetition-penalty",                                                             \
         .type = CLI_REAL,                                                                         \
         .arg = "X",                                                                               \
         .min = 0.01,                                                                              \
         .max = 100,                                                                               \
         .def_text = "the model's own, else 1 (off)",                                              \
         .help = "Above 1: tokens already seen become less likely.",                               \
         .off = CLI_AT_REAL(S, sample.repetition_penalty)},                                        \
        {.name = "presence-penalty",                                                               \
         .type = CLI_REAL,                                                                         \
         .arg = "X",                                                                               \
         .min = -2,                                                                                \
         .max = 2,                                                                                 \
         .def = "0",                                                                               \
         .help = "Taken off the logit of every token the answer already has.",                     \
         .off = CLI_AT_REAL(S, sample.presence_penalty)},                                          \
        {.name = "frequency-penalty",                                                              \
         .type = CLI_REAL,                                                                         \
         .arg = "X",                                                                               \
         .min = -2,                                                                                \
         .max = 2,                                                                                 \
         .def = "0",                                                                               \
         .help = "Taken off once for each time the answer already has the token.",                 \
         .off = CLI_AT_REAL(S, sample.frequency_penalty)},                                         \
        {.name = "seed",                                                                           \
         .type = CLI_INT,                                                                          \
         .arg = "N",                                                                               \
         .def_text = "different at each run",                                                      \
         .help = "The same seed, prompt and options give the same answer.",                        \
         .off = CLI_AT_INT(S, sample.seed)},                                                       \
    {                                                                                              \
        .name = "stop", .type = CLI_STRS, .arg = "TEXT",                                           \
        .help = "End the answer before this text.", .off = CLI_AT_STRS(S, sample.stop)             \
    }

/* Fills the sampling part of *out: the folder's defaults with the given options over them, a fresh
 * seed unless one was given, stops and max_tokens. */
enum qn_status sample_opts_apply(const struct cli *c, const struct sample_opts *o,
                                 const struct sample_params *defaults, struct gen_params *out,
                                 struct qn_err *err);

#endif
