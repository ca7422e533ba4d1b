/*
 * call.h - what the parsers of tool calls share. A parser reads the bytes after the marker that
 * begins calls, one at a time, and tells its host which calls with which arguments it sees.
 *
 * Once call_begin succeeded the call is told and nothing of it can be taken back; before that a
 * parser may give up (CALL_FAIL), and the host returns the bytes since the end of the last call (or
 * since the marker, and with it) to the text. So an unknown function is never reported as a call.
 *
 * Special tokens reach a parser between the bytes 0xFE and 0xFF where a syntax is strict about
 * them (outparse.h); no text holds these bytes. One thread per parser.
 */
#ifndef API_CALL_H
#define API_CALL_H

#include "api/toolcall/jsonfix.h"
#include "base/json.h"

#define CALL_NAME_MAX 1024 /* bytes of a header or a name that is still being read */
#define CALL_MARKERS  4

/* A special token that only counts as the token itself, not as its text. */
#define SPECIAL(s) "\xFE" s "\xFF"

enum call_feed {
    CALL_MORE,
    CALL_DONE, /* the calls ended with this byte */
    CALL_FAIL, /* what has been read since the last call is no call; nothing of it was told */
};

struct call_host;
struct call_syntax;

struct call_parser {
    const struct call_syntax *syn;
    struct call_host *host;
    enum call_feed (*feed)(struct call_parser *p, char c);
    bool (*end)(struct call_parser *p, bool cut);
    int state;
    int marker;   /* which of syn->begin it was; -1 = none: the answer's first byte */
    bool keep;    /* the byte that is read does not belong to the call that ends */
    bool noise;   /* JSON: something that is neither call nor white space came after one */
    bool told;    /* call_begin succeeded for the call that is read */
    bool opened;  /* its arguments have been opened: "{" is out */
    bool in_args; /* JSON: the value that is read is the arguments */
    bool spelled; /* JSON: the arguments are a string with JSON in it */
    bool raw;     /* a parameter's value is plain text */
    bool started; /* something of that value has been read */
    int n_param;  /* parameters of the call so far */
    size_t sent;  /* bytes of fix.out or text that are out */
    const struct json *schema; /* of the tool's parameters; may be NULL */
    struct buf name, key, keys, text;
    struct jsonfix fix;
};

void call_parser_init(struct call_parser *p, const struct call_syntax *syn, struct call_host *host);
void call_parser_free(struct call_parser *p);
/* At a marker. */
void call_parser_begin(struct call_parser *p, const struct call_syntax *syn, int marker);
/* For the next call of the section; keeps memory and state. */
void call_parser_reset(struct call_parser *p);

/* ---- syntaxes -------------------------------------------------------------------------------- */

enum call_bare {
    CALL_BARE_NONE,
    CALL_BARE_JSON, /* an answer that is a {"name", "arguments"} object is a call */
    CALL_BARE_LIST, /* an answer that is [f(a=1)] is one */
};

struct call_syntax {
    const char *name;
    const char *begin[CALL_MARKERS]; /* any of them begins calls */
    const char *needles[2];          /* a template that has all of these uses the syntax */
    enum call_feed (*feed)(struct call_parser *p, char c);
    /* The answer is over. cut: at the token limit, otherwise by the model's own end: then open
     * calls are completed. False: nothing was told of the last one; its bytes are text. */
    bool (*end)(struct call_parser *p, bool cut);
    enum call_bare bare;
    const char *json_close; /* what ends calls in the JSON form, or NULL */
    const void *form;       /* the parser's own table */
    const char *quote;      /* a special token that quotes strings, read as JSONFIX_QUOTE */
    int id_len;             /* 9: ids of nine letters and digits, which some templates insist on */
    bool channels;          /* harmony: the whole answer is messages in channels */
};

extern const struct call_syntax
    *const call_syntaxes[]; /* NULL-terminated; the order of detection */
/* NULL when there is none of that name. */
const struct call_syntax *call_syntax_named(struct str name);
/* By the text of a chat template; plain JSON where nothing is recognised. */
const struct call_syntax *call_syntax_of_template(struct str source);
/* The syntax for bare JSON in an answer. */
extern const struct call_syntax call_json_bare, call_list_bare;

/* ---- what parsers tell; outparse.c ---- */

/* A call to `name` begins. False when there is no such tool. */
bool call_host_begin(struct call_host *h, struct str name, const struct json **schema);
bool call_host_knows(const struct call_host *h, struct str name);
void call_host_args(struct call_host *h, struct str piece);
/* What was read until now will not be returned to the text; keep: except for the last byte. */
void call_host_mark(struct call_host *h, bool keep);

/* ---- helpers; call_common.c ---- */

bool call_begin(struct call_parser *p, struct str name);
void call_args(struct call_parser *p, struct str piece);
/* The rest of fix.out up to `upto`. */
void call_send_fix(struct call_parser *p, size_t upto);
/* The call is complete: "{}" where it had no arguments. */
void call_end(struct call_parser *p);
/* A call known as a whole; false when there is no such tool or the arguments are no object. */
bool call_whole(struct call_parser *p, struct str name, const struct json *args);

/* Parameters one by one: {"key":value,...}. False when the key was there already. */
bool call_param_key(struct call_parser *p, struct str key);
/* True when values of this parameter are text as they are: its schema says string. */
bool call_param_is_text(const struct json *schema, struct str key);
/* A value that is not text: JSON or nearly, otherwise text. */
void call_param_value(struct call_parser *p, struct str value);
void call_params_end(struct call_parser *p);

bool call_space(char c);
struct str call_trim(struct str s);
/* Length of the longest end of s that begins `lit`, shorter than lit. */
size_t call_overlap(struct str s, const char *lit);

/* Scanning for literals with noise between: appends c to `held`; the index of the literal that
 * held now is, -1 while it may become one or noise was dropped. NULL entries are skipped. */
int call_scan(struct buf *held, char c, const char *const *lits, int n);
/* The same with white space between only: -2 for anything else. */
int call_expect(struct buf *held, char c, const char *const *lits, int n);

/* call_json.c */
enum call_feed call_json_feed(struct call_parser *p, char c);
bool call_json_end(struct call_parser *p, bool cut);
/* From here on, beginning with c, the section is in the JSON form. */
enum call_feed call_json_switch(struct call_parser *p, char c);
/* call_tagged.c, call_named.c, call_python.c */
enum call_feed call_tagged_feed(struct call_parser *p, char c);
bool call_tagged_end(struct call_parser *p, bool cut);
enum call_feed call_named_feed(struct call_parser *p, char c);
bool call_named_end(struct call_parser *p, bool cut);
enum call_feed call_python_feed(struct call_parser *p, char c);
bool call_python_end(struct call_parser *p, bool cut);

struct tagged_form {
    const char *call_open, *name_end;
    const char *param_open, *key_end;
    const char *mid; /* between key and value, or NULL */
    const char *value_end;
    const char *call_close, *section_close; /* NULL = none */
    bool json_inside;                       /* a body that begins with { is the JSON form */
    bool entities;                          /* &lt; and CDATA */
    bool newlines;                          /* one line break frames the value at each end */
};

/* HEADER {arguments} tail */
struct named_form {
    const char *call_open; /* before each header; NULL = it follows the marker or the last call */
    const char *call_close, *section_close;
    bool once;      /* one call per section; the marker comes again for the next */
    bool json_list; /* a section that begins with [ or { is the JSON form */
    /* The function's name in a header. */
    struct str (*name_of)(struct str header);
};

struct python_form {
    const char *close; /* NULL = none */
    bool json;         /* a section that begins with { is the JSON form */
};

#endif
