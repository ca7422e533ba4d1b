/*
 * ir.h - the protocol-neutral request and answer. A dialect (openai_chat.c, ...) translates a body
 * into a struct api_request and api_events into its own JSON; everything between the two knows no
 * protocol. A new dialect is a new file with one struct api_dialect.
 *
 * Ownership: a request owns its documents, its strings and its arena (api_request_free). Every
 * struct str in it points into them. One thread per request.
 */
#ifndef API_IR_H
#define API_IR_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"
#include "sched/sched.h"
#include "tmpl/chat.h"
#include "tok/tok.h"

#define API_PROMPTS_MAX 2048 /* prompts of one completions body */
#define API_CHOICES_MAX 2048 /* prompts times n */
#define API_N_MAX       128

/* ---- what is served -------------------------------------------------------------------------- */

struct resp_store; /* resp_store.h */
struct out_syntax; /* outparse.h: how a model spells reasoning and tool calls */
struct gram_store; /* sched/gram_store.h */

enum api_thinking { API_THINKING_UNSET, API_THINKING_OFF, API_THINKING_ON };

/* The model behind the server. Everything is borrowed and immutable while requests run. */
struct api_model {
    const char *name;
    const char *const *aliases; /* other names a request may use; NULL-terminated, may be NULL */
    const struct tok *tok;
    const struct chat_tmpl *chat; /* NULL: the model has no chat template */
    int32_t n_ctx, n_vocab;
    struct sample_params defaults;    /* where a request says nothing */
    const struct out_syntax *syntax;  /* of its answers; NULL = plain text */
    const char *reasoning_field;      /* in OpenAI chat answers; NULL = "reasoning" */
    enum api_thinking thinking;       /* where a request says nothing */
    struct resp_store *responses;     /* where /v1/responses keeps answers; NULL = nowhere */
    const struct qn_model_info *info; /* sizes, for /stats; NULL = not known */
    struct gram_store *grams;         /* NULL = no constrained output */
    const char *conversations;        /* folder of /admin/conversations; NULL = none */
    const uint8_t *kv_fingerprint;    /* [32] by which files of KV memory know the model; or NULL */
    bool (*up)(void *arg);            /* any thread; NULL = always: the engine can answer now */
    void *up_arg;
    int64_t created;      /* Unix seconds */
    char fingerprint[24]; /* system_fingerprint: same weights and program, same value */
};

/* Fills m->fingerprint from the name, the vocabulary and the program's version. */
void api_model_fingerprint(struct api_model *m);
/* True when `name` may be used for this model. */
bool api_model_is(const struct api_model *m, struct str name);

/* ---- refusals -------------------------------------------------------------------------------- */

/* Why a request is refused, for any dialect to word. */
struct api_error {
    int status;       /* HTTP status; 0 = nothing is wrong */
    const char *code; /* static machine-readable reason or NULL */
    char param[96];   /* the field at fault; "" = none */
    char msg[512];
    int retry_after_s;      /* > 0: worth trying again after that many seconds */
    const char *request_id; /* borrowed; set where the HTTP request is answered, or NULL */
};

/* Fills *e and returns the status that goes with `http`, to be forwarded by QN_TRY. param may be
 * NULL. */
enum qn_status api_refuse(struct api_error *e, int http, const char *code, const char *param,
                          const char *fmt, ...) __attribute__((format(printf, 5, 6)));
enum qn_status api_no_memory(struct api_error *e); /* 503: this request does not fit now */
/* From an engine or scheduler error: input errors keep their message, internal ones do not. */
enum qn_status api_refuse_err(struct api_error *e, const struct qn_err *err, const char *param);

/* ---- request --------------------------------------------------------------------------------- */

struct api_dialect;

/* One prompt: text still to be tokenised, or ids. */
struct api_prompt {
    struct str text; /* p == NULL: ids were given */
    int32_t *ids;    /* in the arena for given ids, malloc'd by api_tokenise otherwise */
    int32_t n_ids;
    bool ids_owned;
};

enum api_tool_choice { API_TOOLS_AUTO, API_TOOLS_NONE, API_TOOLS_REQUIRED, API_TOOLS_NAMED };

/* What the answer's text has to look like. json and text are borrowed from the request's body. */
enum api_format_kind {
    API_FORMAT_NONE,
    API_FORMAT_JSON_OBJECT,
    API_FORMAT_JSON_SCHEMA, /* json: the schema */
    API_FORMAT_REGEX,       /* text */
    API_FORMAT_CHOICE,      /* json: an array of strings */
    API_FORMAT_GRAMMAR,     /* text */
};
struct api_format {
    enum api_format_kind kind;
    const struct json *json;
    struct str text;
    bool no_whitespace; /* JSON without white space between its tokens */
    char param[64];     /* the field that asked for it; "" = response_format */
};

struct api_request {
    const struct api_dialect *dialect;
    struct arena *arena;
    struct json *body; /* owned */

    struct json *shaped;  /* owned; an OpenAI-shaped body made of another dialect's, or NULL */
    struct json *history; /* owned; items of an earlier answer that this one follows, or NULL */
    struct resp_store *lender; /* of lent_bytes for history; NULL = none */
    size_t lent_bytes;
    struct json *chat; /* owned; what chat_render takes; NULL for raw completions */
    struct buf chat_prompt;
    struct api_prompt *prompts; /* [n_prompts] in the arena */
    int32_t n_prompts;

    /* Tools the model sees: an array of {type, function: {name, description, parameters}}, borrowed
     * from `chat`; NULL = none, and then nothing in the answer is read as a call. */
    const struct json *tools;
    enum api_tool_choice tool_choice;
    struct str tool_name; /* API_TOOLS_NAMED */
    bool parallel_tool_calls;

    bool truncate;               /* a talk that is too long loses its oldest turns */
    bool split_reasoning;        /* reasoning comes as API_EV_REASONING, not as text */
    enum api_thinking thinking;  /* what the template was asked for */
    struct str reasoning_effort; /* as given; {NULL,0} = not */
    int32_t thinking_budget;     /* most tokens of reasoning; -1 = no limit */
    struct api_format format;
    struct json *format_doc;  /* owned; a schema that came as text, or NULL */
    struct gram *grammar;     /* a reference; what the answer must match, or NULL */
    struct gram_vocab *vocab; /* a reference; with grammar */

    int32_t n;                   /* choices per prompt */
    int32_t max_tokens;          /* -1 = to the end of the context */
    struct sample_params sample; /* sample.n_top: -1 = no logprobs */
    struct logit_bias *bias;     /* in the arena */
    struct str stop[GEN_STOP_MAX];
    int32_t n_stop;
    bool ignore_eos;
    bool seeded;
    bool stream, include_usage;
    bool echo;
    bool any_length; /* only counted: the prompt may be longer than the window */
    /* Requests with different ones share no cached prompts; {NULL,0} = none. */
    struct str cache_salt;
    struct str user; /* names one of several users behind a connection; {NULL,0} = none */

    char id[40];     /* "chatcmpl-..." */
    int64_t created; /* Unix seconds */
};

/* A request's body, which has to be a JSON object; *out is freed by the caller in every case. */
enum qn_status api_body_read(struct str body, struct json **out, struct api_error *e);
/* Makes r->shaped of the chat body a dialect has written; field: the one its refusals name. */
enum qn_status api_request_shaped(struct api_request *r, const struct buf *body, const char *field,
                                  struct api_error *e);
void api_request_free(struct api_request *r);

/* ---- answer ---------------------------------------------------------------------------------- */

struct api_usage {
    int64_t prompt_tokens, cached_tokens, completion_tokens;
    int64_t reasoning_tokens; /* of completion_tokens */
    struct spec_counts spec;  /* guesses; see sched/spec.h */
};

enum api_finish { API_FINISH_STOP, API_FINISH_LENGTH, API_FINISH_TOOL_CALLS };

enum api_event_kind {
    API_EV_NONE = 0,     /* nothing yet */
    API_EV_PROGRESS,     /* n_done of n_total prompt tokens read */
    API_EV_PROMPT_TOKEN, /* echo with logprobs: one token of the prompt */
    API_EV_TEXT,         /* content of a choice, and/or its token */
    API_EV_REASONING,    /* text: a piece of the reasoning */
    API_EV_CALL,         /* a tool call begins: call, call_id, call_name */
    API_EV_CALL_ARGS,    /* text: a piece of the arguments of `call`; the pieces of a call, joined,
                            are a JSON object unless the answer was cut */
    API_EV_FINISH,       /* a choice is over; text = what was held back */
    API_EV_END,          /* all choices are over; usage */
    API_EV_ERROR,        /* the request failed; nothing follows */
};

struct api_event {
    enum api_event_kind kind;
    int32_t choice;
    int64_t n_done, n_total;
    struct str text;             /* lives until the next event */
    const struct sampled *token; /* NULL unless logprobs were asked for; any kind of text has it */
    int32_t call;                /* which call of the choice, from 0 */
    struct str call_id, call_name;
    enum api_finish finish;
    const struct str *stop; /* FINISH: the request's stop string that ended it, or NULL */
    struct api_usage usage;
    struct api_error err;
};

struct api_call {
    struct buf id, name, args; /* args: JSON text */
};

/* A whole choice, for answers that are not streamed. */
struct api_choice {
    struct buf text, reasoning;
    struct api_call *calls; /* [n_calls] */
    size_t n_calls, cap_calls;
    struct sampled *tokens; /* [n_tokens] generated, only with logprobs */
    size_t n_tokens, cap_tokens;
    struct sampled *prompt_tokens; /* echo with logprobs */
    size_t n_prompt_tokens, cap_prompt_tokens;
    enum api_finish finish;
    const struct str *stop; /* as in the event */
};

struct api_answer {
    struct api_choice *choices; /* [n_choices] */
    int32_t n_choices;
    struct api_usage usage;
};

enum qn_status api_answer_init(struct api_answer *a, int32_t n_choices);
void api_answer_free(struct api_answer *a);
/* Adds one event to the answer. */
enum qn_status api_answer_add(struct api_answer *a, const struct api_event *ev);

/* ---- dialects -------------------------------------------------------------------------------- */

struct api_stream; /* a dialect's own state of one streamed answer */

struct api_dialect {
    const char *name;
    const char *id_prefix;    /* "chatcmpl-" */
    const char *prompt_field; /* what refusals of the prompt name; NULL = messages, prompt */
    /* Body (r->body, already parsed) to request. */
    enum qn_status (*parse)(const struct api_model *m, struct api_request *r, struct api_error *e);
    /* A whole answer as JSON. */
    void (*answer)(const struct api_model *m, const struct api_request *r,
                   const struct api_answer *a, struct buf *out);
    /* Streams: begin appends the first bytes, event those of one event (END closes the stream, and
     * so does ERROR). NULL when out of memory. */
    struct api_stream *(*stream_begin)(const struct api_model *m, const struct api_request *r,
                                       struct buf *out);
    void (*stream_event)(struct api_stream *s, const struct api_event *ev, struct buf *out);
    void (*stream_free)(struct api_stream *s);
    /* The JSON body of a refusal. */
    void (*error)(const struct api_error *e, struct buf *out);
};

extern const struct api_dialect dialect_openai_chat;
extern const struct api_dialect dialect_openai_completions;
extern const struct api_dialect dialect_openai_responses;
extern const struct api_dialect dialect_anthropic;

/* A fresh random id: the prefix and 24 letters and digits. */
void api_make_id(const char *prefix, char out[40]);
/* Parses a body for a dialect: JSON, model name, fields. *r is filled also on failure and is to be
 * freed with api_request_free in every case. */
enum qn_status api_request_read(const struct api_dialect *d, const struct api_model *m,
                                struct str body, struct api_request *r, struct api_error *e);
/* Appends the rendered chat to r->chat_prompt. A turn that only calls tools gets the text "" where
 * the template cannot do without one. now: seconds since 1970. */
enum qn_status api_chat_render(const struct api_model *m, struct api_request *r, int64_t now,
                               struct qn_err *err);
/* Renders and tokenises the prompts and checks them against the context window. */
enum qn_status api_tokenise(const struct api_model *m, struct api_request *r, struct api_error *e);

#endif
