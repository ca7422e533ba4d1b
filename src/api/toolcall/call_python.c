/*
 * call_python.c - calls as a Python list: [f(a=1, b="x"), g()], between markers or as the whole
 * answer; and f.call(a=1) after a marker that announces code. Values are Python literals, which
 * jsonfix writes as JSON. Only keyword arguments have names to tell.
 */
#include "api/toolcall/call.h"

enum { OPEN, NAME, ARG, KEY, VALUE, AFTER_VALUE, AFTER_CALL, CLOSE };

static const struct python_form *form_of(const struct call_parser *p)
{
    return p->syn->form;
}

static bool name_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != 0 && strchr("_.-", c));
}

/* n_param tells about parameters, raw here: the calls are inside brackets. */
static enum call_feed at_open(struct call_parser *p, char c)
{
    const struct python_form *f = form_of(p);
    if (call_space(c))
        return CALL_MORE;
    if (f->json && p->marker >= 0 && c == '{')
        return call_json_switch(p, c);
    p->state = NAME;
    if (c == '[')
        return CALL_MORE;
    buf_addc(&p->name, c);
    return p->marker >= 0 && name_char(c) ? CALL_MORE : CALL_FAIL;
}

static enum call_feed at_name(struct call_parser *p, char c)
{
    if (p->name.n == 0 && call_space(c))
        return CALL_MORE;
    if (p->name.n > CALL_NAME_MAX)
        return CALL_FAIL;
    if (c != '(') {
        buf_addc(&p->name, c);
        return name_char(c) ? CALL_MORE : CALL_FAIL;
    }
    struct str name = buf_str(&p->name);
    if (!call_host_knows(p->host, name) && str_ends(name, STR_LIT(".call")))
        name.n -= 5;
    p->state = ARG;
    return name.n > 0 && call_begin(p, name) ? CALL_MORE : CALL_FAIL;
}

static enum call_feed call_over(struct call_parser *p)
{
    call_params_end(p);
    call_parser_reset(p);
    p->state = AFTER_CALL;
    return CALL_MORE;
}

static enum call_feed at_arg(struct call_parser *p, char c)
{
    if (c == ')')
        return call_over(p);
    if (call_space(c) || c == ',')
        return CALL_MORE;
    buf_clear(&p->key);
    buf_addc(&p->key, c);
    p->state = KEY;
    return CALL_MORE;
}

static enum call_feed at_key(struct call_parser *p, char c)
{
    if (c == ')') /* a value without a name: it cannot be told */
        return call_over(p);
    if (c != '=') {
        buf_addc(&p->key, c);
        return CALL_MORE;
    }
    p->spelled = call_param_key(p, call_trim(buf_str(&p->key)));
    jsonfix_start(&p->fix);
    p->sent = 0;
    p->state = VALUE;
    return CALL_MORE;
}

static void send_value(struct call_parser *p)
{
    if (p->spelled)
        call_send_fix(p, p->fix.out.n);
}

static enum call_feed at_after_value(struct call_parser *p, char c)
{
    if (c == ',')
        p->state = ARG;
    return c == ')' ? call_over(p) : CALL_MORE;
}

static enum call_feed at_value(struct call_parser *p, char c)
{
    enum jsonfix_result r = jsonfix_feed(&p->fix, c);
    if (r == JSONFIX_BAD) {
        if (p->fix.state == JF_VALUE && p->fix.depth == 0)
            buf_addz(&p->fix.out, "null");
        jsonfix_close(&p->fix, 0);
    }
    send_value(p);
    if (r == JSONFIX_MORE)
        return CALL_MORE;
    p->state = AFTER_VALUE;
    return r == JSONFIX_DONE ? CALL_MORE : at_after_value(p, c);
}

static enum call_feed at_after_call(struct call_parser *p, char c)
{
    const struct python_form *f = form_of(p);
    if (call_space(c))
        return CALL_MORE;
    if (c == ',' || c == ';') {
        p->state = NAME;
        return CALL_MORE;
    }
    bool close = p->marker >= 0 && f->close;
    if (c == ']') {
        p->state = CLOSE;
        return close ? CALL_MORE : CALL_DONE;
    }
    if (!close)
        return CALL_FAIL;
    p->state = CLOSE;
    return call_python_feed(p, c);
}

static enum call_feed at_close(struct call_parser *p, char c)
{
    const char *lits[] = {form_of(p)->close};
    int hit = call_expect(&p->text, c, lits, 1);
    return hit == 0 ? CALL_DONE : hit == -2 ? CALL_FAIL : CALL_MORE;
}

enum call_feed call_python_feed(struct call_parser *p, char c)
{
    switch (p->state) {
    case OPEN:
        return at_open(p, c);
    case NAME:
        return at_name(p, c);
    case ARG:
        return at_arg(p, c);
    case KEY:
        return at_key(p, c);
    case VALUE:
        return at_value(p, c);
    case AFTER_VALUE:
        return at_after_value(p, c);
    case AFTER_CALL:
        return at_after_call(p, c);
    default:
        return at_close(p, c);
    }
}

bool call_python_end(struct call_parser *p, bool cut)
{
    if (p->state == AFTER_CALL || p->state == CLOSE)
        return true;
    if (!p->told)
        return false;
    if (cut)
        return true;
    if (p->state == VALUE) {
        if (p->fix.state == JF_VALUE && p->fix.depth == 0)
            buf_addz(&p->fix.out, "null");
        jsonfix_close(&p->fix, 0);
        send_value(p);
    }
    call_params_end(p);
    return true;
}
