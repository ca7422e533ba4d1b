/*
 * session.h - a loaded model with its scheduler, as generate and chat use it, and one answer from
 * prompt to end. Main thread; the scheduler's thread works behind it.
 */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H

#include "cli/draft_opts.h"
#include "cli/engine_open.h"
#include "sched/sched.h"
#include "tmpl/chat.h"

struct session {
    struct qn_engine *engine;
    const struct qn_model_info *info;
    const struct tok *tok;
    const struct chat_tmpl *chat; /* NULL = the model has no chat template */
    struct sched *sched;
    struct sample_params defaults; /* 0.7, then generation_config.json */
    int64_t load_us;
    struct served_engine draft; /* {0} = none */
};

/* Finds the model (see model_arg.h), loads it with a progress line, starts the scheduler.
 * draft: see draft_opts.h. On failure *s is closed already. */
enum qn_status session_open(const char *model, const struct engine_args *a,
                            const struct draft_opts *draft, struct session *s, struct qn_err *err);
void session_close(struct session *s); /* {0} is fine */

/* Appends the prompt's ids: `request` is a JSON object as the chat API's ("messages", ...). */
enum qn_status session_chat_ids(const struct session *s, struct str request, struct ids *out,
                                struct qn_err *err);
/* Text as it is, with the tokenizer's own BOS unless the text begins with it. */
enum qn_status session_raw_ids(const struct session *s, struct str text, struct ids *out,
                               struct qn_err *err);

struct answer {
    struct buf text;
    struct sampled *tokens; /* malloc'd, n_token of them; only when gen_params asks for logprobs */
    int32_t n_token;        /* tokens made */
    int32_t cap;
    enum gen_finish finish;
    struct gen_usage usage;
    int64_t first_us;  /* from submission to the first token; 0 = none came */
    int64_t decode_us; /* from the first token to the last one */
    int64_t total_us;
};

struct answer_sink {
    /* Text as it becomes certain; false = stop the answer. NULL = only collect. */
    bool (*write)(void *arg, struct str text);
    void *arg;
    bool progress; /* a progress line also while answering, not only while reading the prompt */
};

/* Runs one generation to its end. Ctrl-C (term_interrupted) stops it: what was made is in *a with
 * finish GEN_CANCELLED and QN_OK comes back. a starts as {0}; free with answer_free. */
enum qn_status session_answer(struct session *s, const struct gen_params *p,
                              const struct answer_sink *sink, struct answer *a, struct qn_err *err);
void answer_free(struct answer *a);

const char *finish_name(enum gen_finish f); /* "stop", "length", "cancelled" */
/* One or more lines of figures about an answer, for --stats and /stats. */
void answer_stats(const struct answer *a, const struct session *s, uint64_t seed, struct buf *out);

#endif
