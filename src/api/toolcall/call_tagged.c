/*
 * call_tagged.c - calls whose parameters are tags of their own: <function=f><parameter=k>v
 * </parameter></function> and its relatives, by a table of literals (struct tagged_form). Values of
 * text parameters stream; others are told when they are complete. A value is text, not markup: no
 * entities are decoded except where the form says so, and only the closing tag ends it.
 */
#include "api/toolcall/call.h"

#include "base/utf8.h"

#define CDATA "<![CDATA["

enum { OPEN, NAME, BODY, KEY, MID, VALUE, CDATA_TEXT, AFTER, JSON };

static const struct tagged_form *form_of(const struct call_parser *p)
{
    return p->syn->form;
}

static void go(struct call_parser *p, int state)
{
    p->state = state;
    buf_clear(&p->text);
}

static enum call_feed call_over(struct call_parser *p)
{
    call_params_end(p);
    call_parser_reset(p);
    go(p, AFTER);
    return form_of(p)->section_close ? CALL_MORE : CALL_DONE;
}

/* Begun by <function= itself, or the name follows the marker. */
static bool name_first(const struct call_parser *p)
{
    const struct tagged_form *f = form_of(p);
    const char *marker = p->syn->begin[p->marker];
    return f->call_open && strcmp(marker, f->call_open) == 0;
}

/* The name is complete in p->name. */
static enum call_feed name_read(struct call_parser *p)
{
    struct str name = call_trim(buf_str(&p->name));
    go(p, BODY);
    return call_begin(p, name) ? CALL_MORE : CALL_FAIL;
}

static enum call_feed at_name(struct call_parser *p, char c);

static enum call_feed at_open(struct call_parser *p, char c)
{
    const struct tagged_form *f = form_of(p);
    const char *lits[] = {f->call_open, f->section_close, f->json_inside ? "{" : NULL,
                          p->syn->begin[0]};
    if (!f->call_open || name_first(p)) {
        if (call_space(c))
            return CALL_MORE;
        if (c == '{' && f->json_inside && !name_first(p))
            return call_json_switch(p, c);
        go(p, NAME);
        return at_name(p, c);
    }
    int hit = call_scan(&p->text, c, lits, 4);
    if (hit < 0)
        return CALL_MORE;
    if (hit == 2)
        return call_json_switch(p, c);
    go(p, NAME);
    return hit == 0 ? CALL_MORE : CALL_FAIL;
}

static enum call_feed at_name(struct call_parser *p, char c)
{
    const struct tagged_form *f = form_of(p);
    size_t end = strlen(f->name_end);
    if (p->name.n > CALL_NAME_MAX)
        return CALL_FAIL;
    buf_addc(&p->name, c);
    if (str_ends(buf_str(&p->name), str_of(f->name_end))) {
        p->name.n -= end;
        return name_read(p);
    }
    if (f->mid && c == '<' && p->name.n > 1) { /* no line break after the name */
        p->name.n--;
        enum call_feed r = name_read(p);
        if (r == CALL_MORE)
            buf_addc(&p->text, c);
        return r;
    }
    return CALL_MORE;
}

static void key_over(struct call_parser *p)
{
    struct str key = buf_str(&p->key);
    const char *quote = memchr(key.p ? key.p : "", '"', key.n);
    p->raw = false;
    if (quote) { /* city" string="true */
        struct str rest = {quote, key.n - (size_t)(quote - key.p)};
        key.n = (size_t)(quote - key.p);
        p->raw = str_find(rest, STR_LIT("string=\"true"), 0) != (size_t)-1;
        if (!p->raw && str_find(rest, STR_LIT("string="), 0) == (size_t)-1)
            p->raw = call_param_is_text(p->schema, key);
    } else {
        key = form_of(p)->mid ? call_trim(key) : key;
        p->raw = call_param_is_text(p->schema, key);
    }
    p->spelled = call_param_key(p, key); /* false: a second value of the same key is dropped */
    p->started = false;
    if (p->raw && p->spelled)
        call_args(p, STR_LIT("\""));
}

static enum call_feed at_key(struct call_parser *p, char c)
{
    const struct tagged_form *f = form_of(p);
    buf_addc(&p->key, c);
    if (str_ends(buf_str(&p->key), str_of(f->key_end))) {
        p->key.n -= strlen(f->key_end);
        if (!f->mid)
            key_over(p);
        go(p, f->mid ? MID : VALUE);
    }
    return CALL_MORE;
}

/* ---- values ---- */

static void send_text(struct call_parser *p, struct str s)
{
    struct buf b = BUF_INIT;
    if (p->spelled && s.n > 0) {
        jsonfix_escape(&b, s);
        call_args(p, buf_str(&b));
    }
    buf_free(&b);
}

/* &lt; &gt; &amp; &quot; &apos; &#38; &#x26; */
static void decode_entities(struct str s, struct buf *out)
{
    static const char *const names[][2] = {
        {"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}, {"&quot;", "\""}, {"&apos;", "'"}};
    for (size_t i = 0; i < s.n;) {
        struct str rest = {s.p + i, s.n - i};
        size_t k = 0;
        while (k < 5 && !str_starts(rest, str_of(names[k][0])))
            k++;
        uint32_t cp = 0;
        size_t n = 2, base = rest.n > 2 && (rest.p[2] == 'x' || rest.p[2] == 'X') ? 16 : 10;
        n += base == 16;
        for (; k == 5 && str_starts(rest, STR_LIT("&#")) && n < rest.n && n < 10; n++) {
            const char *digits = "0123456789abcdef", *d = strchr(digits, rest.p[n] | 0x20);
            if (!d || rest.p[n] == 0 || (size_t)(d - digits) >= base)
                break;
            cp = cp * (uint32_t)base + (uint32_t)(d - digits);
        }
        if (k < 5) {
            buf_addz(out, names[k][1]);
            i += strlen(names[k][0]);
        } else if (cp > 0 && n < rest.n && rest.p[n] == ';' && cp <= 0x10FFFF &&
                   (cp < 0xD800 || cp > 0xDFFF)) {
            buf_add_utf8(out, cp);
            i += n + 1;
        } else {
            buf_addc(out, s.p[i++]);
        }
    }
}

static struct str unframed(const struct call_parser *p, struct str v, bool first, bool last)
{
    if (form_of(p)->newlines && first && v.n > 0 && v.p[0] == '\n') {
        v.p++;
        v.n--;
    }
    if (form_of(p)->newlines && last && v.n > 0 && v.p[v.n - 1] == '\n')
        v.n--;
    return v;
}

/* The value is complete: what is left of it in v. */
static void value_over(struct call_parser *p, struct str v)
{
    struct buf b = BUF_INIT;
    v = unframed(p, v, !p->started, true);
    if (form_of(p)->entities && p->state != CDATA_TEXT) {
        decode_entities(v, &b);
        v = buf_str(&b);
    }
    if (p->raw) {
        send_text(p, v);
        if (p->spelled)
            call_args(p, STR_LIT("\""));
    } else if (p->spelled) {
        call_param_value(p, v);
    }
    buf_free(&b);
    buf_clear(&p->key);
}

/* A closing tag of the parameter was forgotten and the whole call closes. */
static size_t closes_all(const struct call_parser *p, struct str v)
{
    const struct tagged_form *f = form_of(p);
    if (!f->call_close || !f->section_close || !str_ends(v, str_of(f->section_close)))
        return 0;
    struct str s = {v.p, v.n - strlen(f->section_close)};
    while (s.n > 0 && call_space(s.p[s.n - 1]))
        s.n--;
    if (!str_ends(s, str_of(f->call_close)))
        return 0;
    return v.n - (s.n - strlen(f->call_close));
}

/* Text that cannot belong to a closing tag any more, nor be the line break before it. */
static void stream_value(struct call_parser *p, const char *end)
{
    struct str v = buf_str(&p->text);
    const struct tagged_form *f = form_of(p);
    size_t keep = call_overlap(v, end);
    if (!p->raw || (f->entities && p->state != CDATA_TEXT))
        return;
    if (f->call_close && p->state == VALUE) {
        size_t other = call_overlap(v, f->call_close);
        /* the forgotten closing tag: everything since the call's closer waits */
        for (size_t i = v.n; i-- > 0 && v.n - i <= 64;)
            if (str_starts((struct str){v.p + i, v.n - i}, str_of(f->call_close)))
                other = v.n - i;
        keep = other > keep ? other : keep;
    }
    if (f->newlines && keep < v.n && v.p[v.n - keep - 1] == '\n')
        keep++;
    struct str ready = unframed(p, (struct str){v.p, v.n - keep}, !p->started, false);
    if (v.n == keep)
        return;
    send_text(p, ready);
    p->started = true;
    memmove(p->text.p, p->text.p + (v.n - keep), keep);
    p->text.n = keep;
}

static enum call_feed at_value(struct call_parser *p, char c)
{
    const struct tagged_form *f = form_of(p);
    const char *end = p->state == CDATA_TEXT ? "]]>" : f->value_end;
    buf_addc(&p->text, c);
    struct str v = buf_str(&p->text);
    if (f->entities && p->state == VALUE && !p->started && str_eqz(call_trim(v), CDATA)) {
        go(p, CDATA_TEXT);
        return CALL_MORE;
    }
    size_t all = p->state == VALUE ? closes_all(p, v) : 0;
    if (all > 0) {
        value_over(p, (struct str){v.p, v.n - all});
        call_params_end(p);
        return CALL_DONE;
    }
    if (str_ends(v, str_of(end))) {
        value_over(p, (struct str){v.p, v.n - strlen(end)});
        go(p, BODY);
    } else {
        stream_value(p, end);
    }
    return CALL_MORE;
}

/* ---- between ---- */

static enum call_feed at_after(struct call_parser *p, char c);

static enum call_feed at_body(struct call_parser *p, char c)
{
    const struct tagged_form *f = form_of(p);
    const char *json = f->json_inside && p->n_param == 0 ? "{" : NULL;
    const char *lits[] = {f->param_open, f->call_close, f->section_close, json};
    switch (call_scan(&p->text, c, lits, 4)) {
    case 0:
        go(p, KEY);
        return CALL_MORE;
    case 1:
        return call_over(p);
    case 2:
        call_params_end(p);
        return CALL_DONE;
    case 3:
        go(p, JSON);
        jsonfix_start(&p->fix);
        jsonfix_feed(&p->fix, c);
        call_send_fix(p, p->fix.out.n);
        return CALL_MORE;
    default:
        return CALL_MORE;
    }
}

static enum call_feed at_mid(struct call_parser *p, char c)
{
    const char *lits[] = {form_of(p)->mid};
    if (call_scan(&p->text, c, lits, 1) == 0) {
        key_over(p);
        go(p, VALUE);
    }
    return CALL_MORE;
}

/* <function=f>{"a": 1}</function> */
static enum call_feed at_json(struct call_parser *p, char c)
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
    call_parser_reset(p);
    go(p, AFTER);
    return r == JSONFIX_BAD ? at_after(p, c) : CALL_MORE;
}

static enum call_feed at_after(struct call_parser *p, char c)
{
    const struct tagged_form *f = form_of(p);
    const char *lits[] = {f->section_close, f->call_open, f->call_close};
    switch (call_expect(&p->text, c, lits, 3)) {
    case 0:
        return CALL_DONE;
    case 1:
        go(p, NAME);
        return CALL_MORE;
    case 2: /* after JSON inside */
        buf_clear(&p->text);
        return f->section_close ? CALL_MORE : CALL_DONE;
    case -2:
        return CALL_FAIL;
    default:
        return CALL_MORE;
    }
}

enum call_feed call_tagged_feed(struct call_parser *p, char c)
{
    switch (p->state) {
    case OPEN:
        return at_open(p, c);
    case NAME:
        return at_name(p, c);
    case BODY:
        return at_body(p, c);
    case KEY:
        return at_key(p, c);
    case MID:
        return at_mid(p, c);
    case VALUE:
    case CDATA_TEXT:
        return at_value(p, c);
    case JSON:
        return at_json(p, c);
    default:
        return at_after(p, c);
    }
}

bool call_tagged_end(struct call_parser *p, bool cut)
{
    if (p->state == AFTER)
        return true;
    if (p->state == NAME && !cut)
        return false;
    if (!p->told)
        return false;
    if (cut)
        return true; /* what came is out */
    if (p->state == VALUE || p->state == CDATA_TEXT)
        value_over(p, buf_str(&p->text));
    if (p->state == JSON) {
        jsonfix_close(&p->fix, 0);
        call_send_fix(p, p->fix.out.n);
        call_end(p);
    } else {
        call_params_end(p);
    }
    return true;
}
