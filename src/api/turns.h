/*
 * turns.h - puts the messages of an OpenAI-shaped body together from another dialect's items: what
 * the assistant says, thinks and calls in a row becomes one message, results follow in the order of
 * their calls and carry the tool's name, as the templates expect. One thread; strings are borrowed
 * until turns_end.
 */
#ifndef API_TURNS_H
#define API_TURNS_H

#include "base/buf.h"
#include "base/json.h"

struct turn_call {
    struct str id, name;
};
struct turn_result {
    struct str id;
    size_t at, n; /* its text in result_text */
    bool written;
};

/* Start with {0}. */
struct turns {
    struct buf out; /* the messages written so far, with commas */
    bool failed;    /* out of memory */

    bool open; /* an assistant message is being put together in these: */
    bool has_text;
    struct buf text, reasoning, calls;

    struct turn_call *seen;        /* [n_seen] every call so far */
    size_t n_seen, cap_seen, last; /* last: the first one of the last assistant message */
    struct turn_result *results;   /* [n_results] not written yet */
    size_t n_results, cap_results;
    struct buf result_text;
};

/* A message of the system or the user. */
void turns_message(struct turns *t, const char *role, struct str text);
/* Pieces of an assistant message. A new message begins where text follows calls, or reasoning
 * follows either, and after anything else's message. */
void turns_reasoning(struct turns *t, struct str text);
void turns_text(struct turns *t, struct str text);
/* args: JSON text of an object, or any text that a model once made of it. */
void turns_call(struct turns *t, struct str id, struct str name, struct str args);
/* What a call returned. */
void turns_result(struct turns *t, struct str id, struct str text);
/* Ends the assistant message that is open, if one is. */
void turns_close(struct turns *t);
/* Finishes: t->out holds the elements of the array. False when out of memory. */
bool turns_end(struct turns *t);
void turns_free(struct turns *t);

#endif
