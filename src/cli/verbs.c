/*
 * verbs.c - the list of verbs. A verb that this build does not have is not in it.
 */
#include <stdio.h>

#include "cli/verbs.h"

static const struct cli_verb *const verbs[] = {
    &verb_serve,         &verb_generate,   &verb_chat,          &verb_get,
    &verb_convert,       &verb_inspect,    &verb_fit,           &verb_tokenize,
    &verb_parity,        &verb_kl,         &verb_bench,         &verb_bench_serve,
    &verb_bench_history, &verb_bench_show, &verb_bench_compare, &verb_bench_native,
    &verb_cache,         &verb_version,    &verb_help,          &verb_engine,
};

const struct cli_verb *const *cli_verbs(size_t *n)
{
    *n = sizeof verbs / sizeof verbs[0];
    return verbs;
}

const struct cli_verb *cli_verb_of_words(int argc, char **argv, int *n)
{
    char two[64];
    const struct cli_verb *v = NULL;
    *n = 2;
    if (argc > 1 && snprintf(two, sizeof two, "%s %s", argv[0], argv[1]) < (int)sizeof two)
        v = cli_verb_find(two);
    if (v)
        return v;
    *n = 1;
    return argc ? cli_verb_find(argv[0]) : NULL;
}

const struct cli_verb *cli_verb_find(const char *name)
{
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(verbs[i]->name, name) == 0)
            return verbs[i];
    return NULL;
}
