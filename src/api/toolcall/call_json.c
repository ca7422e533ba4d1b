/*
 * call_json.c - calls as JSON objects {"name": ..., "arguments": {...}}, one or several, in a
 * wrapper (<tool_call> ... </tool_call>), in a list, or bare. The arguments stream as they come
 * once the name is known. What models get wrong on the way: a fence or words before the object,
 * Python's literals and quotes, trailing commas, missing closers; "parameters" for "arguments";
 * arguments spelled as a string; the name among the arguments; {"type": "function", "function":
 * {...}}.
 */
#include "api/toolcall/call.h"

enum { SEEK, OBJECT, MAYBE_CLOSE };

static const char *closer(const struct call_parser *p)
{
    return p->marker < 0 ? NULL : p->syn->json_close;
}

static struct str key_of(const struct call_parser *p)
{
    const struct jsonfix *f = &p->fix; /* ends with "key": */
    return (struct str){f->out.p + f->key_at + 1, f->out.n - f->key_at - 3};
}

static bool names_args(struct str key)
{
    return str_eqz(key, "arguments") || str_eqz(key, "parameters") || str_eqz(key, "args");
}

/* ---- a whole object ---- */

static const struct json *args_in(const struct json *o)
{
    static const char *const keys[] = {"arguments", "parameters", "args"};
    for (size_t i = 0; i < 3; i++)
        if (json_has(o, keys[i]))
            return json_get(o, keys[i]);
    return NULL;
}

/* Arguments spelled as JSON text in a string. */
static bool call_spelled(struct call_parser *p, struct str name, struct str text)
{
    struct jsonfix f = {0};
    struct json *doc = NULL;
    enum jsonfix_result r = JSONFIX_MORE;
    text = call_trim(text);
    if (text.n == 0)
        return call_whole(p, name, NULL);
    jsonfix_start(&f);
    for (size_t i = 0; i < text.n && r == JSONFIX_MORE; i++)
        r = jsonfix_feed(&f, text.p[i]);
    if (r == JSONFIX_MORE)
        jsonfix_close(&f, 0);
    bool ok = r != JSONFIX_BAD &&
              json_parse(buf_str(&f.out), "arguments", JSON_DEPTH_MAX, &doc, NULL) == QN_OK &&
              call_whole(p, name, doc);
    json_free(doc);
    jsonfix_free(&f);
    return ok;
}

/* {"arguments": {"name": "f", "x": 1}}: the name is lifted out. */
static bool call_lifted(struct call_parser *p, const struct json *args)
{
    struct json_iter it = {0};
    struct json *doc = NULL;
    struct buf b = BUF_INIT;
    struct str name = json_str(json_get(args, "name"));
    if (!name.p)
        return false;
    if (json_type(args_in(args)) == JSON_OBJ)
        return call_whole(p, name, args_in(args));
    buf_addc(&b, '{');
    while (json_next(args, &it)) {
        if (str_eqz(it.key, "name"))
            continue;
        if (b.n > 1)
            buf_addc(&b, ',');
        json_w_str(&b, it.key);
        buf_addc(&b, ':');
        json_w_value(&b, it.val);
    }
    buf_addc(&b, '}');
    bool ok = json_parse(buf_str(&b), "arguments", JSON_DEPTH_MAX, &doc, NULL) == QN_OK &&
              call_whole(p, name, doc);
    json_free(doc);
    buf_free(&b);
    return ok;
}

/* An object that is over and of which nothing has been told. */
static bool resolve(struct call_parser *p)
{
    struct json *doc = NULL;
    if (json_parse(buf_str(&p->fix.out), "call", JSON_DEPTH_MAX + 2, &doc, NULL) != QN_OK)
        return false;
    const struct json *o = doc;
    if (json_type(json_get(o, "function")) == JSON_OBJ)
        o = json_get(o, "function");
    struct str name = json_str(json_get(o, "name"));
    if (!name.p)
        name = json_str(json_get(o, "function"));
    if (!name.p)
        name = json_str(json_get(o, "tool_name"));
    const struct json *args = args_in(o);
    bool ok = false;
    if (!name.p && json_type(args) == JSON_OBJ)
        ok = call_lifted(p, args);
    else if (json_type(args) == JSON_STR)
        ok = call_spelled(p, name, json_str(args));
    else if (args || p->marker >= 0) /* bare JSON has to look like a call */
        ok = call_whole(p, name, args);
    json_free(doc);
    return ok;
}

/* The object is over, by its brace or by force. */
static bool object_over(struct call_parser *p)
{
    bool ok = true;
    if (p->told)
        call_end(p);
    else
        ok = resolve(p);
    p->state = SEEK;
    call_parser_reset(p);
    p->started = ok; /* SEEK: a call has been told */
    return ok;
}

/* ---- while it arrives ---- */

/* Tells the call once its name and the beginning of its arguments are there. */
static bool tell(struct call_parser *p)
{
    const struct jsonfix *f = &p->fix;
    if (p->told || p->name.n == 0 || !p->in_args)
        return true;
    if (f->out.n <= p->sent)
        return true; /* the value has not begun */
    if (f->out.p[p->sent] != '{') {
        p->in_args = false; /* spelled as a string, or null: when the object is over */
        return true;
    }
    return call_begin(p, buf_str(&p->name));
}

/* After a key and its colon at the first level. */
static bool key_read(struct call_parser *p)
{
    struct str key = key_of(p);
    if (p->marker < 0 && !p->started && !names_args(key) && !str_eqz(key, "name") &&
        !str_eqz(key, "type") && !str_eqz(key, "function") && !str_eqz(key, "id"))
        return false;
    p->started = true;
    buf_clear(&p->key);
    buf_add_str(&p->key, key);
    if (!p->told && names_args(key)) {
        p->in_args = true;
        p->sent = p->fix.out.n;
    }
    return true;
}

static bool value_read(struct call_parser *p)
{
    struct jsonfix *f = &p->fix;
    struct json *doc = NULL;
    struct str v = {f->out.p + f->value_at, f->value_end - f->value_at};
    bool ok = true;
    f->value_done = false;
    if (p->told && p->in_args) {
        call_send_fix(p, f->value_end);
        p->in_args = false;
    } else if (!p->told && p->in_args) {
        p->in_args = false; /* before the name, or spelled: when the object is over */
    } else if (!p->told && str_eqz(buf_str(&p->key), "name") && p->name.n == 0 &&
               json_parse(v, "name", 2, &doc, NULL) == QN_OK && json_type(doc) == JSON_STR) {
        buf_add_str(&p->name, json_str(doc));
        ok = call_host_knows(p->host, json_str(doc));
        json_free(doc);
    } else {
        json_free(doc);
    }
    return ok;
}

static enum call_feed object_byte(struct call_parser *p, char c)
{
    struct jsonfix *f = &p->fix;
    bool colon = f->state == JF_COLON || f->state == JF_BAREKEY;
    enum jsonfix_result r = jsonfix_feed(f, c);
    if (r == JSONFIX_BAD || r == JSONFIX_BEFORE) {
        bool told = p->told;
        jsonfix_close(f, told && p->in_args ? 1 : 0);
        if (told && p->in_args)
            call_send_fix(p, f->out.n);
        p->keep = true;
        bool ok = object_over(p);
        p->keep = false;
        return ok ? call_json_feed(p, c) : CALL_FAIL;
    }
    if (f->value_done && !value_read(p))
        return CALL_FAIL;
    if (r == JSONFIX_DONE)
        return object_over(p) ? CALL_MORE : CALL_FAIL;
    if (colon && f->depth == 1 && f->state == JF_VALUE && !key_read(p))
        return CALL_FAIL;
    if (!tell(p))
        return CALL_FAIL;
    if (p->told && p->in_args)
        call_send_fix(p, f->out.n);
    return CALL_MORE;
}

/* The closer inside a string: most likely the string was left open. It is the end when nothing or
 * another tag follows, and text of the string otherwise. */
static enum call_feed maybe_close(struct call_parser *p, char c)
{
    const char *close = closer(p);
    if (call_space(c)) {
        buf_addc(&p->text, c);
        return CALL_MORE;
    }
    if (c == '<') {
        p->keep = true;
        call_json_end(p, false);
        p->keep = false;
        return CALL_FAIL;
    }
    p->state = OBJECT;
    struct buf held = p->text;
    p->text = BUF_INIT;
    enum call_feed r = CALL_MORE;
    for (size_t i = 0; i < strlen(close) && r == CALL_MORE; i++)
        r = object_byte(p, close[i]);
    for (size_t i = 0; i < held.n && r == CALL_MORE; i++)
        r = object_byte(p, held.p[i]);
    buf_free(&held);
    return r == CALL_MORE ? call_json_feed(p, c) : r;
}

static enum call_feed in_object(struct call_parser *p, char c)
{
    const char *close = closer(p);
    struct buf held = p->text;
    enum call_feed r = CALL_MORE;
    if (!close || (!jsonfix_in_string(&p->fix) && held.n == 0))
        return object_byte(p, c);
    /* inside a string: bytes that may become the closer wait */
    buf_addc(&held, c);
    size_t keep = 0;
    if (held.n >= strlen(close) && str_ends(buf_str(&held), str_of(close))) {
        p->state = MAYBE_CLOSE;
        buf_clear(&held);
        p->text = held;
        return CALL_MORE;
    }
    keep = call_overlap(buf_str(&held), close);
    p->text = BUF_INIT;
    for (size_t i = 0; i + keep < held.n && r == CALL_MORE; i++)
        r = object_byte(p, held.p[i]);
    if (r != CALL_MORE || p->state != OBJECT) { /* the string and the object ended meanwhile */
        buf_free(&held);
        return r;
    }
    memmove(held.p, held.p + held.n - keep, keep);
    held.n = keep;
    p->text = held;
    return r;
}

static enum call_feed seek(struct call_parser *p, char c)
{
    if (c == '{') {
        call_parser_reset(p);
        p->state = OBJECT;
        return object_byte(p, c);
    }
    if (!closer(p)) {
        if (call_space(c) || (c != 0 && strchr(";,[]", c)))
            return CALL_MORE;
        return CALL_FAIL;
    }
    const char *lits[1 + CALL_MARKERS] = {closer(p), p->syn->begin[0], p->syn->begin[1],
                                          p->syn->begin[2], p->syn->begin[3]};
    int hit = call_scan(&p->text, c, lits, 1 + CALL_MARKERS);
    p->noise |= hit < 0 && p->text.n == 0 && !call_space(c);
    if (hit < 0)
        return CALL_MORE;
    bool done = p->started;
    buf_clear(&p->text);
    if (hit == 0)
        return done ? CALL_DONE : CALL_FAIL;
    return done ? CALL_MORE : CALL_FAIL; /* a marker again: the next section, or nothing came */
}

enum call_feed call_json_feed(struct call_parser *p, char c)
{
    switch (p->state) {
    case OBJECT:
        return in_object(p, c);
    case MAYBE_CLOSE:
        return maybe_close(p, c);
    default:
        return seek(p, c);
    }
}

bool call_json_end(struct call_parser *p, bool cut)
{
    struct jsonfix *f = &p->fix;
    if (p->state == SEEK)
        return p->started && !p->noise;
    if (p->told && cut)
        return true; /* what came is out */
    if (p->told) {
        jsonfix_close(f, p->in_args ? 1 : 0);
        if (p->in_args)
            call_send_fix(p, f->out.n);
        return object_over(p);
    }
    if (cut && p->name.n > 0) /* the name alone; told now, with no arguments yet */
        return call_begin(p, buf_str(&p->name));
    if (cut)
        return false;
    jsonfix_close(f, 0);
    return object_over(p);
}

enum call_feed call_json_switch(struct call_parser *p, char c)
{
    p->feed = call_json_feed;
    p->end = call_json_end;
    p->state = SEEK;
    call_parser_reset(p);
    return call_json_feed(p, c);
}
