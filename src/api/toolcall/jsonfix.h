/*
 * jsonfix.h - what models write as JSON, made strict JSON while it arrives, byte by byte: Python's
 * True, False, None and quotes, bare keys, trailing commas, line breaks inside strings, wrong
 * escapes, tuples. What it has appended is certain and valid as far as it goes; jsonfix_close makes
 * it whole. Nothing is ever taken back.
 *
 * White space between tokens is dropped, numbers and strings stay as written. No recursion.
 */
#ifndef API_JSONFIX_H
#define API_JSONFIX_H

#include "base/buf.h"

#define JSONFIX_DEPTH 64
/* A byte that quotes a raw string, in which nothing else is special; no UTF-8 text has it. */
#define JSONFIX_QUOTE '\xFD'

enum jsonfix_state {
    JF_VALUE, /* a value is due */
    JF_KEY,   /* a key is due, or the end of the object */
    JF_BAREKEY,
    JF_COLON,
    JF_AFTER, /* after a value inside a container */
    JF_WORD,  /* inside a number or a literal */
    JF_STRING,
    JF_ESCAPE,
    JF_HEX, /* digits of \u or \x */
    JF_END,
};

enum jsonfix_result {
    JSONFIX_MORE,
    JSONFIX_DONE,   /* the value ended with this byte */
    JSONFIX_BEFORE, /* the value ended before this byte, which was not taken */
    JSONFIX_BAD,    /* this byte has no place here and was not taken */
};

struct jsonfix {
    struct buf out; /* strict JSON so far */
    struct buf word;
    enum jsonfix_state state;
    uint64_t is_obj; /* bit d: the container at depth d + 1 is an object */
    int depth;
    bool comma;       /* one was read and is written once something follows it */
    bool in_key;      /* the string is a key */
    char quote;       /* that ends the string */
    int hex_left;     /* digits still to come */
    uint32_t hex;     /* their value so far */
    uint32_t high;    /* a high surrogate waiting for its other half; 0 = none */
    size_t key_at;    /* in out: where the latest key at depth 1 begins */
    size_t value_at;  /* where the latest value at depth 1 begins... */
    size_t value_end; /* ...and ends, once value_done */
    bool value_done;  /* set when a value at depth 1 ends; the user clears it */
};

void jsonfix_start(struct jsonfix *f); /* also for another value; keeps the memory */
void jsonfix_free(struct jsonfix *f);
enum jsonfix_result jsonfix_feed(struct jsonfix *f, char c);
/* Ends strings and words, then closes containers down to `depth`. */
void jsonfix_close(struct jsonfix *f, int depth);
/* True while a byte would become part of a string. */
bool jsonfix_in_string(const struct jsonfix *f);
/* Appends text as the inside of a JSON string: quotes, backslashes and control characters escaped.
 */
void jsonfix_escape(struct buf *out, struct str text);

#endif
