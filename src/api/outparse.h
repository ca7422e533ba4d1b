/*
 * outparse.h - from the text a model writes to reasoning, content and tool calls. One per choice;
 * it stands between the generation's events and the dialects, which therefore know no markup.
 *
 * Streaming: text leaves as soon as it cannot be the beginning of a marker, arguments as soon as
 * they are certain. What comes out joined does not depend on how the text was cut.
 *
 * Special tokens that are markers arrive between the bytes 0xFE and 0xFF (gen_params.mark), all
 * others are hidden as usual.
 */
#ifndef API_OUTPARSE_H
#define API_OUTPARSE_H

#include "api/ir.h"
#include "api/toolcall/call.h"

/* How a model marks its reasoning. */
struct think_syntax {
    const char *open, *close;
    const char *title; /* a line after open that is not reasoning, or NULL */
    const char *seen;  /* in a template: the syntax is used */
};

/* How a model writes. Immutable once detected; lives as long as the api_model. */
struct out_syntax {
    const struct call_syntax *calls;
    const struct think_syntax *think; /* NULL = no reasoning */
    bool knows_tools;                 /* the template shows tools to the model */
    int32_t mark[GEN_MARK_MAX];       /* special tokens that are markers */
    int32_t n_mark;
};

/* From the template's text (may be empty) and the vocabulary. parser: a syntax by name, or NULL for
 * what the template shows; QN_BAD_INPUT lists the names when there is no such one. */
enum qn_status out_syntax_detect(struct out_syntax *s, struct str source, const struct tok *tok,
                                 const char *parser, struct qn_err *err);

struct outparse;

/* For one choice of r, whose prompt has been rendered. *out = NULL when there is nothing to parse:
 * the events can be used as they are. */
enum qn_status outparse_create(const struct api_model *m, const struct api_request *r,
                               struct outparse **out);
void outparse_free(struct outparse *p); /* NULL is fine */
/* Takes an event of its choice; all events it leads to are then read with outparse_next. The event
 * and what it points to stay valid until then. */
void outparse_feed(struct outparse *p, const struct api_event *ev);
/* False when there is none left. Text lives until the next outparse_feed. */
bool outparse_next(struct outparse *p, struct api_event *ev);
/* True when the rest of the answer is of no interest: only one call was wanted and it is over. */
bool outparse_over(const struct outparse *p);
/* Tokens of reasoning so far. */
int64_t outparse_reasoning(const struct outparse *p);
/* True when the prompt ends inside reasoning: the answer goes on with it. */
bool outparse_begins_inside(const struct api_model *m, const struct api_request *r);

#endif
