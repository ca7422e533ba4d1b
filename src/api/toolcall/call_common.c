/*
 * call_common.c - what several parsers of tool calls do alike: telling a call, writing parameters
 * by the tool's schema, looking for literals. No syntax of its own.
 */
#include "api/toolcall/call.h"

void call_parser_init(struct call_parser *p, const struct call_syntax *syn, struct call_host *host)
{
    *p = (struct call_parser){.syn = syn, .host = host};
    jsonfix_start(&p->fix);
}

void call_parser_begin(struct call_parser *p, const struct call_syntax *syn, int marker)
{
    p->syn = syn;
    p->feed = syn->feed;
    p->end = syn->end;
    p->marker = marker;
    p->state = 0;
    call_parser_reset(p);
}

void call_parser_free(struct call_parser *p)
{
    buf_free(&p->name);
    buf_free(&p->key);
    buf_free(&p->keys);
    buf_free(&p->text);
    jsonfix_free(&p->fix);
}

void call_parser_reset(struct call_parser *p)
{
    struct call_parser old = *p;
    *p = (struct call_parser){.syn = old.syn,
                              .host = old.host,
                              .feed = old.feed,
                              .end = old.end,
                              .state = old.state,
                              .marker = old.marker,
                              .keep = old.keep,
                              .name = old.name,
                              .key = old.key,
                              .keys = old.keys,
                              .text = old.text,
                              .fix = old.fix};
    buf_clear(&p->name);
    buf_clear(&p->key);
    buf_clear(&p->keys);
    buf_clear(&p->text);
    jsonfix_start(&p->fix);
}

/* ---- telling ---- */

bool call_begin(struct call_parser *p, struct str name)
{
    p->told = call_host_begin(p->host, name, &p->schema);
    return p->told;
}

void call_args(struct call_parser *p, struct str piece)
{
    if (piece.n == 0)
        return;
    p->opened = true;
    call_host_args(p->host, piece);
}

void call_send_fix(struct call_parser *p, size_t upto)
{
    if (upto > p->sent)
        call_args(p, (struct str){p->fix.out.p + p->sent, upto - p->sent});
    p->sent = upto;
}

void call_end(struct call_parser *p)
{
    if (!p->opened)
        call_args(p, STR_LIT("{}"));
    call_host_mark(p->host, p->keep);
}

bool call_whole(struct call_parser *p, struct str name, const struct json *args)
{
    struct buf b = BUF_INIT;
    if (!name.p || (args && json_type(args) != JSON_OBJ) || !call_begin(p, name))
        return false;
    if (args)
        json_w_value(&b, args);
    call_args(p, buf_str(&b));
    call_end(p);
    buf_free(&b);
    return true;
}

/* ---- parameters ---- */

static bool key_seen(const struct buf *keys, struct str key)
{
    for (size_t at = 0; at < keys->n;) {
        const char *end = memchr(keys->p + at, 0, keys->n - at);
        size_t n = (size_t)(end - (keys->p + at));
        if (n == key.n && memcmp(keys->p + at, key.p, n) == 0)
            return true;
        at += n + 1;
    }
    return false;
}

bool call_param_key(struct call_parser *p, struct str key)
{
    struct buf b = BUF_INIT;
    if (memchr(key.p ? key.p : "", 0, key.n) || key_seen(&p->keys, key))
        return false;
    buf_add_str(&p->keys, key);
    buf_addc(&p->keys, 0);
    buf_addc(&b, p->n_param++ ? ',' : '{');
    json_w_str(&b, key);
    buf_addc(&b, ':');
    call_args(p, buf_str(&b));
    buf_free(&b);
    return true;
}

void call_params_end(struct call_parser *p)
{
    call_args(p, p->n_param ? STR_LIT("}") : STR_LIT("{}"));
    call_end(p);
}

/* "string", or ["string", "null"]; alternatives that are all text; an enum of texts. */
static bool is_text(const struct json *s, int depth)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const struct json *type = json_get(s, "type");
    if (json_type(s) != JSON_OBJ || depth > 4)
        return false;
    if (json_type(type) == JSON_STR)
        return str_eqz(json_str(type), "string") || (depth > 0 && str_eqz(json_str(type), "null"));
    for (size_t i = 0; i < json_len(type); i++)
        if (!str_eqz(json_str(json_at(type, i)), "string") &&
            !str_eqz(json_str(json_at(type, i)), "null"))
            return false;
    if (json_len(type) > 0)
        return true;
    for (size_t u = 0; u < 2; u++) {
        const struct json *list = json_get(s, unions[u]);
        size_t text = 0;
        for (size_t i = 0; i < json_len(list); i++)
            text += is_text(json_at(list, i), depth + 1);
        if (json_len(list) > 0)
            return text == json_len(list);
    }
    const struct json *values = json_get(s, "enum");
    for (size_t i = 0; i < json_len(values); i++)
        if (json_type(json_at(values, i)) != JSON_STR)
            return false;
    return json_len(values) > 0 || json_type(json_get(s, "const")) == JSON_STR;
}

bool call_param_is_text(const struct json *schema, struct str key)
{
    return is_text(json_get_str(json_get(schema, "properties"), key), 0);
}

/* Nearly JSON from its first byte to its last. */
static bool mend(struct call_parser *p, struct str v)
{
    jsonfix_start(&p->fix);
    enum jsonfix_result r = JSONFIX_MORE;
    for (size_t i = 0; i < v.n; i++) {
        if (r != JSONFIX_MORE)
            return false;
        r = jsonfix_feed(&p->fix, v.p[i]);
    }
    return r == JSONFIX_DONE;
}

void call_param_value(struct call_parser *p, struct str value)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    struct str v = call_trim(value);
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < 3; i++)
        if (str_eqz(v, words[i][0]))
            buf_addz(&b, words[i][1]);
    bool nested = v.n > 0 && (v.p[0] == '{' || v.p[0] == '[');
    if (b.n == 0 && json_check(v, "value", JSON_DEPTH_MAX, NULL) == QN_OK)
        buf_add_str(&b, v);
    else if (b.n == 0 && nested && mend(p, v))
        buf_add_str(&b, buf_str(&p->fix.out));
    else if (b.n == 0)
        json_w_str(&b, value);
    call_args(p, buf_str(&b));
    buf_free(&b);
}

/* ---- text ---- */

bool call_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

struct str call_trim(struct str s)
{
    while (s.n > 0 && call_space(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n > 0 && call_space(s.p[s.n - 1]))
        s.n--;
    return s;
}

size_t call_overlap(struct str s, const char *lit)
{
    size_t most = strlen(lit) - 1;
    for (size_t n = s.n < most ? s.n : most; n > 0; n--)
        if (memcmp(s.p + s.n - n, lit, n) == 0)
            return n;
    return 0;
}

static bool may_become(const struct buf *held, const char *const *lits, int n)
{
    for (int i = 0; i < n; i++)
        if (lits[i] && strncmp(lits[i], held->p, held->n) == 0)
            return true;
    return false;
}

int call_scan(struct buf *held, char c, const char *const *lits, int n)
{
    buf_addc(held, c);
    while (held->n > 0 && !held->failed) {
        for (int i = 0; i < n; i++)
            if (lits[i] && strlen(lits[i]) == held->n && memcmp(lits[i], held->p, held->n) == 0)
                return i;
        if (may_become(held, lits, n))
            break;
        memmove(held->p, held->p + 1, --held->n);
    }
    return -1;
}

int call_expect(struct buf *held, char c, const char *const *lits, int n)
{
    if (held->n == 0 && call_space(c))
        return -1;
    buf_addc(held, c);
    for (int i = 0; i < n; i++)
        if (lits[i] && str_eqz(buf_str(held), lits[i]))
            return i;
    return may_become(held, lits, n) ? -1 : -2;
}
