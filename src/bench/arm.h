/*
 * arm.h - an arm: a server under test and how it is started. Every arm, built in or the user's own,
 * is a small text of "name = value" lines (docs/bench-serve.md), so that nothing about a server is
 * known to the harness that a file could not say.
 */
#ifndef BENCH_ARM_H
#define BENCH_ARM_H

#include "base/buf.h"

enum { ARM_WORDS_MAX = 64, ARM_ENV_MAX = 16, ARM_NEEDS_MAX = 8 };

struct arm {
    char *text; /* owned; the values below point into it */
    const char *name, *about;
    const char *command; /* words with {placeholders}; NULL = it runs already, at url */
    const char *url;     /* http://host:port, of a server that runs already */
    const char *health;  /* path that answers 200 when the server is ready */
    const char *model;   /* what requests call the model; "" = leave it out */
    const char *key_env; /* environment variable that holds the API key */
    const char *probe;   /* command that must end with status 0 */
    const char *help;    /* command whose output must name every flag in needs_flag */
    const char *needs_flag[ARM_NEEDS_MAX];
    const char *needs_file[ARM_NEEDS_MAX];
    char *env[ARM_ENV_MAX + 1];
    int n_flag, n_file, n_env;
    bool thinking_field; /* send chat_template_kwargs.enable_thinking */
};

/* What {placeholders} stand for. */
struct arm_values {
    const char *quern;        /* {quern}: our own program */
    const char *model;        /* {model}: folder */
    const char *gguf;         /* {gguf}: file; NULL = not given */
    const char *llama_server; /* {llama-server} */
    const char *python;       /* {python} */
    int threads;              /* {threads} */
    int ctx;                  /* {ctx}: tokens of one sequence */
    int users;                /* {users}: answers at a time; {ctx-all} = ctx * users */
    int port;                 /* {port} */
    const char *cache;        /* {cache}: an empty folder of this cell */
};

/* Names of the built-in arms, NULL-terminated. */
const char *const *arm_names(void);
const char *arm_builtin_text(const char *name); /* NULL = no such arm */

/* Reads an arm's text; `what` names it in messages. */
enum qn_status arm_parse(const char *what, struct str text, struct arm *out, struct qn_err *err);
/* A built-in arm's name, a URL (http://...), or a file; with NAME= before it the arm is called so,
 * and one arm can take part several times. */
enum qn_status arm_open(const char *word, struct arm *out, struct qn_err *err);
void arm_free(struct arm *a);

/* The command's words with every placeholder filled, NULL-terminated; freed with arm_argv_free.
 * A value that is not known is an error that says which option gives it. */
enum qn_status arm_argv(const struct arm *a, const char *command, const struct arm_values *v,
                        char ***out, struct qn_err *err);
void arm_argv_free(char **argv);
/* Whether it can run here; otherwise QN_UNSUPPORTED (or what else failed) with the reason. */
enum qn_status arm_check(const struct arm *a, const struct arm_values *v, struct qn_err *err);

#endif
