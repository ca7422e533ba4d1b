/*
 * line.h - lines typed by a person: editing and persistent history where the terminal allows it,
 * plain lines otherwise. Main thread. Ctrl-C must be caught (term_catch_interrupt) by the caller.
 */
#ifndef CLI_LINE_H
#define CLI_LINE_H

#include "base/buf.h"

struct line_editor;

enum line_result {
    LINE_OK,
    LINE_END,         /* end of input: Ctrl-D on an empty line, or the pipe's end */
    LINE_INTERRUPTED, /* Ctrl-C: what was typed is dropped */
    LINE_FAILED,      /* a read error or out of memory */
};

/* history = file that keeps lines between runs, NULL = keep none. NULL when out of memory. */
struct line_editor *line_open(const char *history);
void line_close(struct line_editor *e); /* NULL is fine */
/* Reads one line without its line break into out (cleared first). The prompt is shown only when
 * standard input is a terminal. */
enum line_result line_read(struct line_editor *e, const char *prompt, struct buf *out);
/* Remembers an entry (several lines are one entry) and writes the history file. */
void line_remember(struct line_editor *e, const char *entry);

/* A whole message: a line; lines joined by a backslash at their end; or everything between a line
 * that begins with three double quotes and the next three. */
enum line_result line_message(struct line_editor *e, const char *prompt, const char *more,
                              struct buf *out);

/* The editing part, present when the build has libedit (line_edit.c), otherwise line_noedit.c. */
struct line_edit;
struct line_edit *line_edit_open(const char *history); /* NULL = no editing here */
void line_edit_close(struct line_edit *e);
enum line_result line_edit_read(struct line_edit *e, const char *prompt, struct buf *out);
void line_edit_remember(struct line_edit *e, const char *entry);

/* Waits for a byte of standard input: 1 = read into *c, 0 = end, -1 = interrupted, -2 = error.
 * Never misses a Ctrl-C that came just before the wait. */
int line_read_byte(unsigned char *c);

#endif
