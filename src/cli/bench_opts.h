/*
 * bench_opts.h - options that `quern bench serve` and `quern bench native` share: what one measures
 * through HTTP the other measures without, so both ask the same prompts for the same amounts.
 */
#ifndef CLI_BENCH_OPTS_H
#define CLI_BENCH_OPTS_H

#include "cli/cli.h"

#define BENCH_SEED "quern-bench-1"

#define CLI_OPT_BENCH_TOKENS(S)                                                                    \
    {                                                                                              \
        .name = "tokens", .short_name = 'n', .type = CLI_INT, .arg = "N", .min = 2, .max = 100000, \
        .def = "192", .help = "Tokens of a decode answer.", .off = CLI_AT_INT(S, tokens)           \
    }

#define CLI_OPT_BENCH_TTFT(S)                                                                      \
    {                                                                                              \
        .name = "ttft-tokens", .type = CLI_INT, .arg = "N", .min = 8, .max = 1000000,              \
        .def = "1024", .help = "About how long the prompts are whose first token is waited for.",  \
        .off = CLI_AT_INT(S, ttft_tokens)                                                          \
    }

#endif
