/*
 * draft_opts.h - the options that make answers faster by guessing, for every verb that answers.
 * Main thread.
 */
#ifndef CLI_DRAFT_OPTS_H
#define CLI_DRAFT_OPTS_H

#include "cli/cli.h"
#include "cli/served.h"
#include "sched/spec.h"

struct draft_opts {
    int kind, head; /* enum spec_kind; as enum qn_mtp_mode less QN_MTP_DEFAULT */
    const char *model;
    int64_t n;
};

extern const char *const draft_kinds[], *const draft_heads[];

#define CLI_OPTS_DRAFT(S)                                                                          \
    {.type = CLI_GROUP, .help = "Speculation: faster answers, never different ones"},              \
        {.name = "draft-kind",                                                                     \
         .type = CLI_ENUM,                                                                         \
         .arg = "KIND",                                                                            \
         .choices = draft_kinds,                                                                   \
         .def = "off",                                                                             \
         .help = "Who guesses the next tokens: ngram, what followed the same words before; mtp, "  \
                 "the model's own draft head; two-model, --draft-model; dspark, a block drafter "  \
                 "made for the model, or assistant, Gemma 4's draft model, in --draft-model. "     \
                 "docs/speculation.md.",                                                           \
         .off = CLI_AT_ENUM(S, draft.kind)},                                                       \
        {.name = "draft-model",                                                                    \
         .type = CLI_STR,                                                                          \
         .arg = "DIR|NAME",                                                                        \
         .help = "Smaller model of the same vocabulary that guesses (implies two-model), or the "  \
                 "folder of a block drafter or assistant.",                                        \
         .off = CLI_AT_STR(S, draft.model)},                                                       \
        {.name = "num-draft-tokens",                                                               \
         .type = CLI_INT,                                                                          \
         .arg = "N",                                                                               \
         .min = 1,                                                                                 \
         .max = SPEC_DRAFT_MAX,                                                                    \
         .def_text = "15 for ngram, 12 for mtp, the block for dspark, else 8",                     \
         .help = "Most tokens guessed at a time; fewer where they do not pay.",                    \
         .off = CLI_AT_INT(S, draft.n)},                                                           \
    {                                                                                              \
        .name = "mtp-state", .type = CLI_ENUM, .arg = "WHERE", .choices = draft_heads,             \
        .def = "auto",                                                                             \
        .help = "What a draft head was trained on: the model's state before or behind its final "  \
                "norm; auto is as usual in the family.",                                           \
        .off = CLI_AT_ENUM(S, draft.head)                                                          \
    }

/* After parsing, first of all: who says "off" means it, whatever a file or the environment names as
 * the draft model. */
void draft_opts_settle(const struct cli *c, struct draft_opts *o);
/* What to load of the model's draft head. */
enum qn_mtp_mode draft_opts_mtp(const struct draft_opts *o);
/* Which draft model to load beside the model, and its folder or name; NULL with QN_DRAFT_NONE. */
enum qn_draft_kind draft_opts_kind(const struct draft_opts *o);
const char *draft_opts_model(const struct draft_opts *o);

/* The model that the guesses are for. */
struct draft_target {
    const struct lm *lm;
    const struct tok *tok;
    int64_t threads, cache_bytes; /* of its prompt cache; a fifth as much is the draft model's */
    const char *disk_dir;         /* where that is kept too; NULL = nowhere */
    int64_t disk_bytes;           /* what the draft model's may take there: draft_opts_disk */
    int64_t disk_idle_s;          /* as served_params has it */
    const char *files_dir;        /* of single conversations; NULL = none */
    bool isolate;
};
/* Of the bytes that prompt caches may take on disk, those of a second model's; 0 = it has none, or
 * there is no bound. */
int64_t draft_opts_disk(const struct draft_opts *o, int64_t bytes);
/* Opens the draft model, if one is asked for, into *draft (to be closed behind the scheduler, also
 * on failure), and says what the scheduler needs. */
enum qn_status draft_opts_open(const struct draft_opts *o, const struct draft_target *t,
                               struct served_engine *draft, struct spec_params *out,
                               struct qn_err *err);

#endif
