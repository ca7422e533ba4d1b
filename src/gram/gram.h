/*
 * gram.h - constrained output: a JSON Schema, regular expression, list of choices, GBNF text or a
 * set of tool-call tags is compiled into a byte automaton with a stack, and that automaton answers,
 * before each token of an answer, which tokens of a vocabulary may come next.
 *
 * A struct gram is immutable to its users and reference counted; what it learns while running
 * (states, masks) is kept inside behind a lock, so several answers share it and any thread may use
 * it. A struct gram_run is the state of one answer and has one user at a time.
 *
 * docs/structured-output.md says what is accepted and what is refused.
 */
#ifndef GRAM_GRAM_H
#define GRAM_GRAM_H

#include "base/json.h"

/* ---- vocabulary ------------------------------------------------------------------------------ */

struct gram_vocab; /* immutable: the tokens' bytes as a trie */

/* One token's bytes. Control tokens (special) match only where a grammar asks for them by their
 * text, never as ordinary text. n == 0, or a byte 0xFF: the token can never come (padding, EOS). */
struct gram_token {
    struct str bytes;
    bool special;
};

/* tokens[n_vocab], borrowed during the call. A token longer than 255 bytes can never come. Several
 * runs and grams may share it; freed with gram_vocab_unref. */
enum qn_status gram_vocab_create(const struct gram_token *tokens, int32_t n_vocab,
                                 struct gram_vocab **out, struct qn_err *err);
struct gram_vocab *gram_vocab_ref(struct gram_vocab *v);
void gram_vocab_unref(struct gram_vocab *v); /* NULL is fine */
int32_t gram_vocab_size(const struct gram_vocab *v);

/* ---- compiling ------------------------------------------------------------------------------- */

struct gram;

enum gram_kind {
    GRAM_JSON_OBJECT, /* any JSON object */
    GRAM_JSON_SCHEMA, /* json: the schema */
    GRAM_REGEX,       /* text: the whole answer must match */
    GRAM_CHOICE,      /* json: array of strings */
    GRAM_GBNF,        /* text: rules; the answer is "root" */
    GRAM_TAGS,        /* tags: tool calls in a model's own markup */
};

/* What stands between the two literals of a tag. */
enum gram_body {
    GRAM_BODY_JSON, /* a value of the schema */
    GRAM_BODY_XML,  /* the schema's properties one by one, as `style` says */
    GRAM_BODY_TEXT, /* anything up to `end` */
};

/* How parameters are written that are no JSON object: in the schema's order, the optional ones or
 * not. Text is raw, everything else JSON. */
struct gram_style {
    struct str open;     /* before a name */
    struct str mid;      /* between a name and its value */
    struct str mid_text; /* the same before text; {NULL,0} = mid */
    struct str close;    /* after a value; text ends at the first of it */
    struct str gap;      /* may stand between two parameters */
    struct str comma;    /* has to stand between them */
    bool python;         /* strings in quotes, True, False and None */
    struct str quote;    /* around text instead, a control token; {NULL,0} = none */
};
extern const struct gram_style gram_style_qwen; /* <parameter=NAME>\nVALUE\n</parameter> */

struct gram_tag {
    struct str begin, end;
    enum gram_body body;
    const struct json *schema;      /* of the arguments; NULL = any object */
    const struct gram_style *style; /* GRAM_BODY_XML; NULL = Qwen's */
    bool lenient;                   /* as of a specification, for this schema */
};

struct gram_tags {
    const struct gram_tag *tags;
    int32_t n;
    /* Text before the first tag: anything that does not hold `trigger`, which is `open` or what
     * every `begin` starts with. {NULL,0}: the answer begins with a tag. */
    struct str trigger;
    bool optional;          /* with a trigger: no tag at all is fine */
    bool several;           /* more tags may follow, with white space between or `separator` */
    struct str separator;   /* {NULL,0} = white space */
    struct str open, close; /* around all tags ("[", "]"); may be {NULL,0} */
};

struct gram_spec {
    enum gram_kind kind;
    struct str text;              /* GRAM_REGEX, GRAM_GBNF */
    const struct json *json;      /* GRAM_JSON_SCHEMA, GRAM_CHOICE */
    const struct gram_tags *tags; /* GRAM_TAGS; with another kind: calls instead are fine, too */
    struct str lead;              /* before an answer that is not tags; may be {NULL,0} */
    /* JSON without any white space between its tokens. */
    bool compact;
    /* Tool schemas that nobody promised to honour: what is not supported is ignored. */
    bool lenient;
    /* Thinking comes first: anything up to and including this text (then a little white space) is
     * free, and the grammar begins after it. {NULL,0}: from the first byte. */
    struct str after;
    /* With `after`: thinking is optional and begins with this text. {NULL,0}: the prompt has
     * already opened it. */
    struct str open;
};

/* Where a specification is wrong, for a front end's message: the keyword, and for schemas the
 * JSON pointer of the place. Both may be empty. */
struct gram_fault {
    char keyword[48];
    char where[160];
};

/* QN_BAD_INPUT: malformed or impossible; QN_UNSUPPORTED: well-formed, but not handled; the message
 * names the keyword. Bounded in time (about a second) and memory whatever the input. *fault (may be
 * NULL) is filled on failure. */
enum qn_status gram_compile(const struct gram_spec *spec, struct gram **out,
                            struct gram_fault *fault, struct qn_err *err);
struct gram *gram_ref(struct gram *g);
void gram_unref(struct gram *g); /* NULL is fine */

/* ---- running --------------------------------------------------------------------------------- */

struct gram_run;

#define GRAM_ROLLBACK_MAX 64 /* tokens that can be taken back */

/* eos[n_eos]: tokens that end an answer, copied. Takes references of g and v. */
enum qn_status gram_run_create(struct gram *g, struct gram_vocab *v, const int32_t *eos,
                               int32_t n_eos, struct gram_run **out, struct qn_err *err);
void gram_run_free(struct gram_run *r); /* NULL is fine */

/* The tokens that may come next: bit id of bits[id / 64]; EOS exactly when the answer is complete.
 * The words live until the next call on this run. Fails (QN_UNSUPPORTED) when no token of the
 * vocabulary can go on or the grammar is too ambiguous to follow here: the run is at its end. */
enum qn_status gram_run_mask(struct gram_run *r, const uint64_t **bits, struct qn_err *err);
/* The token was drawn. QN_BAD_INPUT when the mask did not allow it: nothing has changed. */
enum qn_status gram_run_accept(struct gram_run *r, int32_t id, struct qn_err *err);
/* Takes back the last n tokens; false when that many are not remembered. */
bool gram_run_rollback(struct gram_run *r, int32_t n);
bool gram_run_complete(const struct gram_run *r); /* the text so far is a whole answer */
/* Complete, and nothing can follow (or EOS was accepted): the answer should stop now. */
bool gram_run_must_stop(const struct gram_run *r);

/* Bytes instead of tokens, for tests: how many of text's bytes are accepted from the beginning;
 * *complete tells whether the whole text is an answer. SIZE_MAX for lack of memory. */
size_t gram_match(struct gram *g, struct str text, bool *complete);

struct gram_stats {
    int64_t nodes, states, frames, masks; /* masks: computed and kept */
    int64_t bytes;                        /* of memory, about */
    int64_t mask_hits;                    /* mask requests answered without walking the trie */
};
void gram_stats(struct gram *g, struct gram_stats *out);

#endif
