/*
 * verbs.h - the verbs' rows, one per cmd_NAME.c; verbs.c lists them in the order of the help.
 */
#ifndef CLI_VERBS_H
#define CLI_VERBS_H

#include "cli/cli.h"

extern const struct cli_verb verb_convert;
extern const struct cli_verb verb_bench;
extern const struct cli_verb verb_bench_compare;
extern const struct cli_verb verb_bench_history;
extern const struct cli_verb verb_bench_native;
extern const struct cli_verb verb_bench_serve;
extern const struct cli_verb verb_bench_show;
extern const struct cli_verb verb_cache;
extern const struct cli_verb verb_chat;
extern const struct cli_verb verb_engine;
extern const struct cli_verb verb_generate;
extern const struct cli_verb verb_get;
extern const struct cli_verb verb_inspect;
extern const struct cli_verb verb_fit;
extern const struct cli_verb verb_help;
extern const struct cli_verb verb_kl;
extern const struct cli_verb verb_parity;
extern const struct cli_verb verb_serve;
extern const struct cli_verb verb_tokenize;
extern const struct cli_verb verb_version;

#endif
