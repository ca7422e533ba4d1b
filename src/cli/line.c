/*
 * line.c - see line.h: plain reading, and messages of several lines over either reader.
 */
#include "cli/line.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/term.h"

#define LINE_BYTES_MAX ((size_t)4 << 20)

struct line_editor {
    struct line_edit *edit; /* NULL = plain lines */
    bool prompts;           /* standard input is a terminal */
    unsigned char in[4096]; /* plain reading's own buffer */
    size_t n_in, at;
};

struct line_editor *line_open(const char *history)
{
    struct line_editor *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->prompts = isatty(STDIN_FILENO);
    if (e->prompts && term_can_redraw(STDOUT_FILENO))
        e->edit = line_edit_open(history);
    return e;
}

void line_close(struct line_editor *e)
{
    if (e && e->edit)
        line_edit_close(e->edit);
    free(e);
}

/* Polling with a time limit closes the gap between looking at the flag and blocking in read. */
static int wait_readable(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        if (term_interrupted())
            return -1;
        int n = poll(&p, 1, 100);
        if (n > 0)
            return 1;
        if (n < 0 && errno != EINTR)
            return -2;
    }
}

int line_read_byte(unsigned char *c)
{
    for (;;) {
        int ready = wait_readable();
        if (ready != 1)
            return ready;
        ssize_t n = read(STDIN_FILENO, c, 1);
        if (n >= 0)
            return n == 1;
        if (errno != EINTR && errno != EAGAIN)
            return -2;
    }
}

static int plain_byte(struct line_editor *e, char *c)
{
    if (e->at == e->n_in) {
        int ready = wait_readable();
        if (ready != 1)
            return ready;
        ssize_t n = read(STDIN_FILENO, e->in, sizeof e->in);
        if (n <= 0)
            return n == 0 ? 0 : errno == EINTR ? -1 : -2;
        e->n_in = (size_t)n;
        e->at = 0;
    }
    *c = (char)e->in[e->at++];
    return 1;
}

static enum line_result plain_read(struct line_editor *e, const char *prompt, struct buf *out)
{
    if (e->prompts) {
        for (; *prompt; prompt++)
            if (*prompt != '\001') /* marks for the line editor */
                putchar(*prompt);
        fflush(stdout);
    }
    for (;;) {
        char c = 0;
        int n = plain_byte(e, &c);
        if (n == -1)
            return LINE_INTERRUPTED;
        if (n == -2)
            return LINE_FAILED;
        if (n == 0)
            return out->n ? LINE_OK : LINE_END;
        if (c == '\n')
            return LINE_OK;
        buf_addc(out, c);
    }
}

enum line_result line_read(struct line_editor *e, const char *prompt, struct buf *out)
{
    buf_clear(out);
    out->limit = LINE_BYTES_MAX;
    enum line_result r =
        e->edit ? line_edit_read(e->edit, prompt, out) : plain_read(e, prompt, out);
    if (r == LINE_INTERRUPTED && e->prompts) {
        fputs(e->edit ? "^C\n" : "\n", stdout); /* without editing the terminal echoes it */
        fflush(stdout);
    }
    if (r == LINE_OK && out->failed)
        r = LINE_FAILED;
    if (r == LINE_OK && out->n && out->p[out->n - 1] == '\r')
        out->p[--out->n] = 0;
    return r;
}

void line_remember(struct line_editor *e, const char *entry)
{
    if (e->edit)
        line_edit_remember(e->edit, entry);
}

static const struct str quotes = {"\"\"\"", 3};

/* The rest of a quoted message; out holds the first line without its opening quotes. */
static enum line_result quoted(struct line_editor *e, const char *more, struct buf *out)
{
    struct buf line = BUF_INIT;
    enum line_result r = LINE_OK;
    size_t end;
    while ((end = str_find(buf_str(out), quotes, 0)) == (size_t)-1) {
        r = line_read(e, more, &line);
        if (r == LINE_END) /* an unclosed quotation ends with the input */
            r = LINE_OK;
        else if (r == LINE_OK) {
            if (out->n)
                buf_addc(out, '\n');
            buf_add_str(out, buf_str(&line));
            if (!out->failed)
                continue;
        }
        break;
    }
    if (end != (size_t)-1) {
        out->n = end;
        out->p[end] = 0;
        if (out->n && out->p[out->n - 1] == '\n')
            out->p[--out->n] = 0;
    }
    buf_free(&line);
    return out->failed ? LINE_FAILED : r;
}

enum line_result line_message(struct line_editor *e, const char *prompt, const char *more,
                              struct buf *out)
{
    struct buf line = BUF_INIT;
    buf_clear(out);
    enum line_result r = line_read(e, prompt, &line);
    if (r == LINE_OK && str_starts(buf_str(&line), quotes)) {
        buf_add(out, line.p + 3, line.n - 3);
        r = quoted(e, more, out);
        buf_free(&line);
        return r;
    }
    while (r == LINE_OK && line.n && line.p[line.n - 1] == '\\') {
        buf_add(out, line.p, line.n - 1);
        buf_addc(out, '\n');
        r = line_read(e, more, &line);
        if (r == LINE_END) {
            buf_clear(&line);
            r = LINE_OK;
        }
    }
    if (r == LINE_OK)
        buf_add_str(out, buf_str(&line));
    buf_free(&line);
    return out->failed ? LINE_FAILED : r;
}
