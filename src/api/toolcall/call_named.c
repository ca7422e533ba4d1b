/*
 * call_named.c - calls of the form HEADER{arguments}: the function's name stands in a header before
 * a JSON object (Mistral, DeepSeek, Gemma, Kimi), by a table (struct named_form). The arguments
 * stream; nearly JSON is mended.
 */
#include "api/toolcall/call.h"

enum { OPEN, HEADER, ARGS, AFTER };

static const struct named_form *form_of(const struct call_parser *p)
{
    return p->syn->form;
}

static void go(struct call_parser *p, int state)
{
    p->state = state;
    buf_clear(&p->text);
}

static bool name_read(struct call_parser *p)
{
    struct str name = form_of(p)->name_of(buf_str(&p->name));
    return name.n > 0 && call_begin(p, name);
}

static enum call_feed next_call(struct call_parser *p)
{
    const struct named_form *f = form_of(p);
    call_parser_reset(p);
    go(p, AFTER);
    return f->call_close || f->section_close || !f->once ? CALL_MORE : CALL_DONE;
}

/* Before the header of a call; the first byte of the section may say that it is JSON. */
static enum call_feed at_header(struct call_parser *p, char c);

static enum call_feed at_open(struct call_parser *p, char c)
{
    const struct named_form *f = form_of(p);
    if (call_space(c))
        return CALL_MORE;
    if (f->json_list && p->text.n == 0 && (c == '{' || c == '['))
        return call_json_switch(p, c);
    if (!f->call_open || strcmp(p->syn->begin[p->marker], f->call_open) == 0) {
        go(p, HEADER);
        return at_header(p, c);
    }
    const char *lits[] = {f->call_open};
    switch (call_expect(&p->text, c, lits, 1)) {
    case 0:
        go(p, HEADER);
        return CALL_MORE;
    case -2:
        return CALL_FAIL;
    default:
        return CALL_MORE;
    }
}

static enum call_feed at_header(struct call_parser *p, char c)
{
    const struct named_form *f = form_of(p);
    const char *const closers[] = {f->call_close, f->section_close};
    if (p->name.n > CALL_NAME_MAX)
        return CALL_FAIL;
    if (c == '{') {
        if (!name_read(p))
            return CALL_FAIL;
        go(p, ARGS);
        jsonfix_feed(&p->fix, c);
        call_send_fix(p, p->fix.out.n);
        return CALL_MORE;
    }
    buf_addc(&p->name, c);
    for (int i = 0; i < 2; i++) {
        if (!closers[i] || !str_ends(buf_str(&p->name), str_of(closers[i])))
            continue;
        p->name.n -= strlen(closers[i]); /* no arguments */
        if (!name_read(p))
            return CALL_FAIL;
        call_end(p);
        return i == 1 ? CALL_DONE : next_call(p);
    }
    return CALL_MORE;
}

static enum call_feed at_after(struct call_parser *p, char c)
{
    const struct named_form *f = form_of(p);
    /* a fence around the arguments ends here too */
    const char *lits[] = {f->section_close, f->call_open, f->call_close, "```"};
    switch (call_expect(&p->text, c, lits, 4)) {
    case 0:
        return CALL_DONE;
    case 1:
        go(p, HEADER);
        return CALL_MORE;
    case 2:
        buf_clear(&p->text);
        return f->section_close ? CALL_MORE : CALL_DONE;
    case 3:
        buf_clear(&p->text);
        return CALL_MORE;
    case -2:
        return CALL_FAIL;
    default:
        return CALL_MORE;
    }
}

static enum call_feed at_args(struct call_parser *p, char c)
{
    enum jsonfix_result r = jsonfix_feed(&p->fix, c);
    if (r == JSONFIX_BAD)
        jsonfix_close(&p->fix, 0);
    call_send_fix(p, p->fix.out.n);
    if (r == JSONFIX_MORE)
        return CALL_MORE;
    p->keep = r == JSONFIX_BAD;
    call_end(p);
    p->keep = false;
    enum call_feed next = next_call(p);
    return r == JSONFIX_BAD && next == CALL_MORE ? at_after(p, c) : next;
}

enum call_feed call_named_feed(struct call_parser *p, char c)
{
    switch (p->state) {
    case OPEN:
        return at_open(p, c);
    case HEADER:
        return at_header(p, c);
    case ARGS:
        return at_args(p, c);
    default:
        return at_after(p, c);
    }
}

bool call_named_end(struct call_parser *p, bool cut)
{
    if (p->state == AFTER)
        return true;
    if (p->state != ARGS)
        return p->state == HEADER && !cut && name_read(p) ? (call_end(p), true) : false;
    if (cut)
        return true;
    jsonfix_close(&p->fix, 0);
    call_send_fix(p, p->fix.out.n);
    call_end(p);
    return true;
}
