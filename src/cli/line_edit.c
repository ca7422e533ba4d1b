/*
 * line_edit.c - line editing and history over libedit; see line.h.
 *
 * libedit swallows the first interrupted read, so characters come through our own reader, which
 * turns Ctrl-C into an error that ends the line. The history file is private to its user (0600).
 */
#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/utf8.h"
#include "cli/line.h"
#include "cli/term.h"

#define HISTORY_MAX 1000

struct line_edit {
    EditLine *el;
    History *hist;
    HistEvent ev;
    char *file;
    const char *prompt;
    int failed; /* what line_read_byte returned when it was not a byte */
};

static char *show_prompt(EditLine *el)
{
    struct line_edit *e = NULL;
    el_get(el, EL_CLIENTDATA, (void **)&e);
    return (char *)(uintptr_t)e->prompt; /* libedit only reads it */
}

/* One character for libedit: the bytes of one UTF-8 sequence. */
static int read_char(EditLine *el, wchar_t *out)
{
    struct line_edit *e = NULL;
    el_get(el, EL_CLIENTDATA, (void **)&e);
    unsigned char b[4];
    int n = line_read_byte(&b[0]);
    if (n != 1) {
        e->failed = n;
        errno = n == -1 ? EINTR : EIO;
        return n == 0 ? 0 : -1;
    }
    int len = b[0] < 0xC0 ? 1 : b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : 4;
    for (int i = 1; i < len; i++) {
        if (line_read_byte(&b[i]) != 1) {
            len = i;
            break;
        }
    }
    size_t at = 0;
    *out = (wchar_t)utf8_next((struct str){(const char *)b, (size_t)len}, &at);
    return 1;
}

struct line_edit *line_edit_open(const char *file)
{
    struct line_edit *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    setlocale(LC_CTYPE, "");
    e->el = el_init("quern", stdin, stdout, stderr);
    e->hist = history_init();
    e->file = file ? strdup(file) : NULL;
    if (!e->el || !e->hist || (file && !e->file)) {
        line_edit_close(e);
        return NULL;
    }
    history(e->hist, &e->ev, H_SETSIZE, HISTORY_MAX);
    history(e->hist, &e->ev, H_SETUNIQUE, 1);
    if (e->file)
        history(e->hist, &e->ev, H_LOAD, e->file);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT_ESC, show_prompt, '\001');
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_SIGNAL, 0);
    el_set(e->el, EL_HIST, history, e->hist);
    el_set(e->el, EL_GETCFN, read_char);
    el_set(e->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    return e;
}

void line_edit_close(struct line_edit *e)
{
    if (e->el)
        el_end(e->el);
    if (e->hist)
        history_end(e->hist);
    free(e->file);
    free(e);
}

enum line_result line_edit_read(struct line_edit *e, const char *prompt, struct buf *out)
{
    int n = 0;
    e->prompt = prompt;
    e->failed = 1;
    const char *line = el_gets(e->el, &n);
    if (!line || n <= 0) {
        el_reset(e->el);
        return e->failed == -1 ? LINE_INTERRUPTED : e->failed == -2 ? LINE_FAILED : LINE_END;
    }
    size_t len = strlen(line);
    if (len && line[len - 1] == '\n')
        len--;
    buf_add(out, line, len);
    return LINE_OK;
}

void line_edit_remember(struct line_edit *e, const char *entry)
{
    history(e->hist, &e->ev, H_ENTER, entry);
    if (!e->file)
        return;
    mode_t old = umask(077);
    history(e->hist, &e->ev, H_SAVE, e->file);
    umask(old);
}
