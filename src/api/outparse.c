/*
 * outparse.c - see outparse.h. A machine over bytes: CONTENT looks for markers and holds back what
 * may begin one; THINK passes reasoning on until its closer; CALL hands bytes to the parser of the
 * syntax and keeps them until something of them has been told, so that what is no call becomes
 * content again. Belongs to the connection's thread.
 */
#include "api/outparse.h"

#include <stdlib.h>

#include "api/toolcall/harmony.h"
#include "base/rng.h"

#define RESCAN_MAX   1024 /* bytes of a failed call that are looked at for further markers */
#define SPECIAL_MAX  64   /* bytes of a special token's text */
#define MARKERS_MAX  (CALL_MARKERS + 1)
#define ID_BYTES_MAX 32

enum phase { CONTENT, THINK, TITLE, CALL, CHANNELS };

/* One event to come; text and id are in p->out. */
struct pending {
    enum api_event_kind kind;
    int32_t call;
    size_t at, n, id_at, id_n;
};

struct call_host {
    const struct api_model *m;
    const struct api_request *r;
    const struct out_syntax *syn;
    enum phase phase;
    bool tools;    /* calls are looked for */
    bool content;  /* some content that is not white space has come */
    bool thought;  /* reasoning has come: line breaks before the content are dropped */
    bool blank;    /* nothing of the reasoning but line breaks so far */
    bool no_bare;  /* bare JSON was no call: not again before the next line */
    bool dropping; /* a call beyond the one that was wanted is being read */
    bool over;
    bool marked; /* a call of the section has been told */
    bool cut;
    int32_t n_calls;
    int64_t n_think;
    const char *begin[MARKERS_MAX]; /* calls, then reasoning */
    int think_marker;               /* index in begin, -1 = none */
    struct call_parser parser;
    struct harmony harmony;
    struct buf in; /* bytes still to be read */
    size_t pos;
    struct buf special; /* a special token being read, with its frame */
    struct buf held;    /* may begin a marker */
    struct buf space; /* white space that is dropped when a call or the end of reasoning follows */
    struct buf raw;   /* of the section since its marker or the last call told */
    struct buf out;
    struct pending *queue;
    size_t n_queue, cap_queue, next;
    struct api_event last; /* what was fed */
    bool token_due, failed;
};

struct outparse {
    struct call_host h;
};

/* ---- events ---- */

static struct pending *push(struct call_host *h, enum api_event_kind kind)
{
    if (h->n_queue == h->cap_queue) {
        size_t cap = h->cap_queue ? h->cap_queue * 2 : 8;
        struct pending *q = realloc(h->queue, cap * sizeof *q);
        if (!q) {
            h->failed = true;
            return NULL;
        }
        h->queue = q;
        h->cap_queue = cap;
    }
    struct pending *e = &h->queue[h->n_queue++];
    *e = (struct pending){.kind = kind, .at = h->out.n};
    return e;
}

static void emit(struct call_host *h, enum api_event_kind kind, int32_t call, struct str text)
{
    struct pending *e = h->n_queue ? &h->queue[h->n_queue - 1] : NULL;
    if (text.n == 0)
        return;
    if (!e || e->kind != kind || e->call != call || e->at + e->n != h->out.n)
        e = push(h, kind);
    if (!e)
        return;
    size_t before = h->out.n;
    for (size_t i = 0; i < text.n; i++)
        if ((unsigned char)text.p[i] < 0xF8) /* frames of special tokens are no text */
            buf_addc(&h->out, text.p[i]);
    e->call = call;
    e->n += h->out.n - before;
}

/* ---- content and reasoning ---- */

static void content(struct call_host *h, struct str s)
{
    while (s.n > 0 && h->thought && !h->content && (*s.p == '\n' || *s.p == '\r')) {
        s.p++;
        s.n--;
    }
    size_t body = s.n;
    while (body > 0 && call_space(s.p[body - 1]))
        body--;
    if (!h->tools) {
        h->content |= body > 0;
        emit(h, API_EV_TEXT, 0, s);
        return;
    }
    if (body > 0) {
        emit(h, API_EV_TEXT, 0, buf_str(&h->space));
        emit(h, API_EV_TEXT, 0, (struct str){s.p, body});
        buf_clear(&h->space);
        h->content = true;
    }
    buf_add(&h->space, s.p + body, s.n - body);
}

/* Line breaks around reasoning belong to its markers. */
static void reasoning(struct call_host *h, struct str s)
{
    while (s.n > 0 && h->blank && call_space(*s.p)) {
        s.p++;
        s.n--;
    }
    size_t body = s.n;
    while (body > 0 && call_space(s.p[body - 1]))
        body--;
    if (body > 0) {
        emit(h, API_EV_REASONING, 0, buf_str(&h->space));
        emit(h, API_EV_REASONING, 0, (struct str){s.p, body});
        buf_clear(&h->space);
        h->blank = false;
    }
    buf_add(&h->space, s.p + body, s.n - body);
}

/* Markup as text: the frames of special tokens go. */
static void content_markup(struct call_host *h, struct str s)
{
    struct buf b = BUF_INIT;
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] == JSONFIX_QUOTE)
            buf_addz(&b, "<|\"|>");
        else if ((unsigned char)s.p[i] < 0xF8)
            buf_addc(&b, s.p[i]);
    content(h, buf_str(&b));
    buf_free(&b);
}

static void begin_think(struct call_host *h)
{
    buf_clear(&h->space);
    h->thought = true;
    h->blank = true;
    h->phase = h->syn->think->title ? TITLE : THINK;
}

static void end_think(struct call_host *h)
{
    buf_clear(&h->space);
    h->phase = CONTENT;
}

/* ---- calls ---- */

static const struct json *tool_of(const struct call_host *h, struct str name)
{
    for (size_t i = 0; i < json_len(h->r->tools); i++) {
        const struct json *f = json_get(json_at(h->r->tools, i), "function");
        if (str_eq(json_str(json_get(f, "name")), name))
            return f;
    }
    return NULL;
}

bool call_host_knows(const struct call_host *h, struct str name)
{
    return tool_of(h, name) != NULL;
}

static void make_id(int len, struct buf *out)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    uint64_t w = 0;
    if (len == 0)
        buf_addz(out, "call_");
    for (int i = 0; i < (len ? len : 24); i++) {
        if (i % 8 == 0)
            w = rng_seed_fresh();
        buf_addc(out, digits[w % 62]);
        w /= 62;
    }
}

bool call_host_begin(struct call_host *h, struct str name, const struct json **schema)
{
    const struct json *f = tool_of(h, name);
    if (!f)
        return false;
    *schema = json_get(f, "parameters");
    buf_clear(&h->space);
    h->marked = true;
    h->dropping = h->n_calls > 0 && !h->r->parallel_tool_calls;
    if (h->dropping)
        return true;
    struct pending *e = push(h, API_EV_CALL);
    if (!e)
        return true;
    e->call = h->n_calls++;
    e->n = name.n;
    buf_add_str(&h->out, name);
    e->id_at = h->out.n;
    make_id(h->syn->calls->id_len, &h->out);
    e->id_n = h->out.n - e->id_at;
    return true;
}

void call_host_args(struct call_host *h, struct str piece)
{
    if (!h->dropping)
        emit(h, API_EV_CALL_ARGS, h->n_calls - 1, piece);
}

void call_host_mark(struct call_host *h, bool keep)
{
    char last = h->raw.n ? h->raw.p[h->raw.n - 1] : 0;
    buf_clear(&h->raw);
    if (keep)
        buf_addc(&h->raw, last);
    h->over |= !h->r->parallel_tool_calls;
}

static void begin_calls(struct call_host *h, const struct call_syntax *syn, int marker)
{
    call_parser_begin(&h->parser, syn, marker);
    buf_clear(&h->raw);
    h->marked = false;
    h->phase = CALL;
}

/* What was read is no call: the marker is content, the rest is read again. */
static void no_call(struct call_host *h, bool again)
{
    struct buf raw = h->raw;
    h->raw = BUF_INIT;
    h->phase = CONTENT;
    if (!h->marked && h->parser.marker >= 0)
        content_markup(h, str_of(h->parser.syn->begin[h->parser.marker]));
    h->content |= h->parser.marker < 0;
    h->no_bare = h->parser.marker < 0;
    if (!again || raw.n > RESCAN_MAX) {
        content_markup(h, buf_str(&raw));
    } else {
        buf_add(&raw, h->in.p + h->pos, h->in.n - h->pos);
        struct buf old = h->in;
        h->in = raw;
        raw = old;
        h->pos = 0;
    }
    buf_free(&raw);
}

/* Bytes that belong together, for the parser. */
static void call_bytes(struct call_host *h, struct str s)
{
    enum call_feed r = CALL_MORE;
    for (size_t i = 0; i < s.n && r == CALL_MORE; i++) {
        buf_addc(&h->raw, s.p[i]);
        r = h->parser.feed(&h->parser, s.p[i]);
        if (r == CALL_FAIL)
            buf_add(&h->raw, s.p + i + 1, s.n - i - 1);
    }
    if (r == CALL_FAIL)
        no_call(h, true);
    if (r != CALL_DONE)
        return;
    h->phase = CONTENT;
    buf_clear(&h->raw);
}

static void call_byte(struct call_host *h, char c)
{
    call_bytes(h, (struct str){&c, 1});
}

/* ---- markers ---- */

/* Reasoning begins an answer; only special tokens may open it later. */
static bool may_think(const struct call_host *h)
{
    return h->think_marker >= 0 &&
           (!h->content || (unsigned char)h->begin[h->think_marker][0] == 0xFE) && h->n_calls == 0;
}

static bool live(const struct call_host *h, int i)
{
    return h->begin[i] && (i == h->think_marker ? may_think(h) : h->tools);
}

static void at_marker(struct call_host *h, int i)
{
    if (i == h->think_marker)
        begin_think(h);
    else
        begin_calls(h, h->syn->calls, i);
}

static bool line_begins(const struct call_host *h)
{
    return h->space.n > 0 && h->space.p[h->space.n - 1] == '\n';
}

/* A byte of content, of which markers may be made. */
static void content_byte(struct call_host *h, char c)
{
    /* a template without tools: the system message asked for JSON on a line of its own */
    bool plain = !h->syn->knows_tools;
    enum call_bare bare = plain ? CALL_BARE_JSON : h->syn->calls->bare;
    bool first = !h->content && h->n_calls == 0;
    if (c == '\n')
        h->no_bare = false;
    if (h->tools && (first || (plain && line_begins(h))) && !h->no_bare && h->held.n == 0 &&
        h->r->format.kind == API_FORMAT_NONE &&
        ((c == '{' && bare == CALL_BARE_JSON) || (c == '[' && bare == CALL_BARE_LIST))) {
        begin_calls(h, bare == CALL_BARE_JSON ? &call_json_bare : &call_list_bare, -1);
        call_byte(h, c);
        return;
    }
    buf_addc(&h->held, c);
    while (h->held.n > 0 && !h->held.failed) {
        bool may = false;
        for (int i = 0; i < MARKERS_MAX; i++) {
            if (!live(h, i) || strncmp(h->begin[i], h->held.p, h->held.n) != 0)
                continue;
            may = true;
            if (strlen(h->begin[i]) == h->held.n) {
                buf_clear(&h->held);
                at_marker(h, i);
                return;
            }
        }
        if (may)
            return;
        content(h, (struct str){h->held.p, 1});
        memmove(h->held.p, h->held.p + 1, --h->held.n);
    }
}

static void think_byte(struct call_host *h, char c)
{
    const char *close = h->syn->think->close;
    buf_addc(&h->held, c);
    if (str_eqz(buf_str(&h->held), close)) {
        buf_clear(&h->held);
        end_think(h);
        return;
    }
    size_t keep = call_overlap(buf_str(&h->held), close);
    reasoning(h, (struct str){h->held.p, h->held.n - keep});
    memmove(h->held.p, h->held.p + h->held.n - keep, keep);
    h->held.n = keep;
}

/* The line after the opening marker that names the channel. */
static void title_byte(struct call_host *h, char c)
{
    const char *title = h->syn->think->title;
    buf_addc(&h->held, c);
    bool whole = str_eqz(buf_str(&h->held), title);
    if (!whole && strncmp(title, h->held.p, h->held.n) == 0)
        return;
    if (!whole)
        reasoning(h, buf_str(&h->held));
    buf_clear(&h->held);
    h->phase = THINK;
}

/* A whole special token, framed, in h->special. */
static void special(struct call_host *h)
{
    struct buf s = h->special;
    h->special = BUF_INIT;
    const char *quote = h->syn->calls->quote;
    if (h->phase == CHANNELS) {
        harmony_special(&h->harmony, buf_str(&s));
    } else if (h->phase == THINK || h->phase == TITLE) {
        if (str_eqz(buf_str(&s), h->syn->think->close)) {
            reasoning(h, buf_str(&h->held));
            buf_clear(&h->held);
            end_think(h);
        }
    } else if (h->phase == CALL) {
        if (quote && str_eqz(buf_str(&s), quote))
            call_byte(h, JSONFIX_QUOTE);
        else
            call_bytes(h, buf_str(&s));
    } else {
        content(h, buf_str(&h->held));
        buf_clear(&h->held);
        int i = 0;
        while (i < MARKERS_MAX && !(live(h, i) && str_eqz(buf_str(&s), h->begin[i])))
            i++;
        if (i < MARKERS_MAX)
            at_marker(h, i);
        else if (h->tools) /* of a call that was none */
            content_markup(h, buf_str(&s));
    }
    buf_free(&s);
}

/* Whether markers of this syntax have to be the tokens themselves. */
static bool strict(const struct call_host *h)
{
    return h->syn->calls->channels || h->syn->calls->quote;
}

static void byte(struct call_host *h, char c)
{
    unsigned char u = (unsigned char)c;
    if (h->special.n > 0) {
        buf_addc(&h->special, c);
        if (u == 0xFF || h->special.n > SPECIAL_MAX)
            special(h);
        return;
    }
    if (u >= 0xF8) {
        if (u == 0xFE && strict(h))
            buf_addc(&h->special, c);
        else if (c == JSONFIX_QUOTE && h->phase == CALL) /* read again after a failure */
            call_byte(h, c);
        else if (c == JSONFIX_QUOTE)
            content_markup(h, (struct str){&c, 1});
        return;
    }
    switch (h->phase) {
    case CHANNELS:
        harmony_byte(&h->harmony, c);
        break;
    case THINK:
        think_byte(h, c);
        break;
    case TITLE:
        title_byte(h, c);
        break;
    case CALL:
        call_byte(h, c);
        break;
    default:
        content_byte(h, c);
        break;
    }
}

static void run(struct call_host *h)
{
    while (h->pos < h->in.n && !h->over) {
        char c = h->in.p[h->pos++];
        byte(h, c);
    }
    buf_clear(&h->in);
    h->pos = 0;
}

/* ---- the end ---- */

static void end(struct call_host *h)
{
    buf_clear(&h->special);
    switch (h->phase) {
    case CHANNELS:
        harmony_end(&h->harmony, h->cut);
        break;
    case CALL:
        if (!h->parser.end(&h->parser, h->cut))
            no_call(h, false);
        break;
    case THINK:
    case TITLE:
        reasoning(h, buf_str(&h->held));
        break;
    default:
        content(h, buf_str(&h->held));
        break;
    }
    buf_clear(&h->held);
    if (h->phase != THINK && h->phase != TITLE && h->n_calls == 0)
        emit(h, API_EV_TEXT, 0, buf_str(&h->space));
    buf_clear(&h->space);
}

/* ---- harmony's side ---- */

void harmony_host_text(struct call_host *h, bool final, struct str s)
{
    if (final)
        content(h, s);
    else
        emit(h, API_EV_REASONING, 0, s);
}

bool harmony_host_tools(const struct call_host *h)
{
    return h->tools;
}

/* ---- the face ---- */

bool outparse_begins_inside(const struct api_model *m, const struct api_request *r)
{
    const struct think_syntax *t = m->syntax ? m->syntax->think : NULL;
    struct str prompt = call_trim(buf_str(&r->chat_prompt));
    struct buf open = BUF_INIT;
    if (!t || !t->open)
        return false;
    for (const char *c = t->open; *c; c++)
        if ((unsigned char)*c < 0xF8)
            buf_addc(&open, *c);
    bool inside = open.n > 0 && str_ends(prompt, buf_str(&open));
    /* a reply that is continued in the middle of its reasoning */
    const struct json *list = json_get(r->chat, "messages");
    const struct json *msg = json_at(list, json_len(list) - 1);
    struct str text = json_str(json_get(msg, "content"));
    if (!inside && json_bool(json_get(r->chat, "continue_final_message")))
        inside = text.p && str_find(text, buf_str(&open), 0) != (size_t)-1 &&
                 str_find(text, str_of(t->close), 0) == (size_t)-1;
    buf_free(&open);
    return inside;
}

enum qn_status outparse_create(const struct api_model *m, const struct api_request *r,
                               struct outparse **out)
{
    *out = NULL;
    const struct out_syntax *syn = m->syntax;
    bool tools = json_len(r->tools) > 0 && r->tool_choice != API_TOOLS_NONE;
    if (!syn || !r->chat || (!tools && !syn->think && !syn->calls->channels))
        return QN_OK;
    struct outparse *p = calloc(1, sizeof *p);
    if (!p)
        return QN_NO_MEMORY;
    struct call_host *h = &p->h;
    h->m = m;
    h->r = r;
    h->syn = syn;
    h->tools = tools;
    for (int i = 0; i < CALL_MARKERS; i++)
        h->begin[i] = syn->calls->begin[i];
    h->think_marker = syn->think && r->split_reasoning ? CALL_MARKERS : -1;
    if (h->think_marker >= 0)
        h->begin[h->think_marker] = syn->think->open;
    call_parser_init(&h->parser, syn->calls, h);
    if (syn->calls->channels) {
        h->phase = CHANNELS;
        harmony_start(&h->harmony, h);
    } else if (h->think_marker >= 0 && outparse_begins_inside(m, r)) {
        begin_think(h);
        h->phase = THINK;
    }
    *out = p;
    return QN_OK;
}

void outparse_free(struct outparse *p)
{
    if (!p)
        return;
    struct call_host *h = &p->h;
    call_parser_free(&h->parser);
    harmony_free(&h->harmony);
    buf_free(&h->in);
    buf_free(&h->special);
    buf_free(&h->held);
    buf_free(&h->space);
    buf_free(&h->raw);
    buf_free(&h->out);
    free(h->queue);
    free(p);
}

void outparse_feed(struct outparse *p, const struct api_event *ev)
{
    struct call_host *h = &p->h;
    h->n_queue = h->next = 0;
    buf_clear(&h->out);
    h->last = *ev;
    h->token_due = ev->token != NULL && ev->kind != API_EV_PROMPT_TOKEN;
    if (ev->kind != API_EV_TEXT && ev->kind != API_EV_FINISH) {
        push(h, ev->kind);
        return;
    }
    bool inside = h->phase == THINK || h->phase == TITLE ||
                  (h->phase == CHANNELS && harmony_thinks(&h->harmony));
    h->n_think += ev->kind == API_EV_TEXT && inside;
    buf_add_str(&h->in, ev->text);
    run(h);
    if (ev->kind == API_EV_FINISH) {
        h->cut = ev->finish == API_FINISH_LENGTH;
        end(h);
        push(h, API_EV_FINISH);
    } else if (h->n_queue == 0 && h->token_due) {
        push(h, API_EV_TEXT);
    }
    h->failed |= h->in.failed || h->special.failed || h->held.failed || h->space.failed ||
                 h->raw.failed || h->out.failed;
}

bool outparse_next(struct outparse *p, struct api_event *ev)
{
    struct call_host *h = &p->h;
    if (h->failed && h->last.kind != API_EV_ERROR) {
        *ev = (struct api_event){.kind = API_EV_ERROR, .choice = h->last.choice};
        api_no_memory(&ev->err);
        h->last.kind = API_EV_ERROR;
        h->n_queue = h->next = 0;
        return true;
    }
    if (h->next == h->n_queue)
        return false;
    const struct pending *e = &h->queue[h->next++];
    *ev = h->last;
    ev->kind = e->kind;
    ev->call = e->call;
    if (!h->token_due && e->kind != API_EV_PROMPT_TOKEN)
        ev->token = NULL;
    h->token_due = false;
    struct str text = {h->out.p + e->at, e->n};
    if (e->kind == API_EV_CALL) {
        ev->call_name = text;
        ev->call_id = (struct str){h->out.p + e->id_at, e->id_n};
        text.n = 0;
    }
    if (e->kind != API_EV_PROGRESS)
        ev->text = text.n ? text : (struct str){NULL, 0};
    if (e->kind == API_EV_FINISH && h->n_calls > 0 && ev->finish == API_FINISH_STOP)
        ev->finish = API_FINISH_TOOL_CALLS;
    return true;
}

bool outparse_over(const struct outparse *p)
{
    return p->h.over;
}

int64_t outparse_reasoning(const struct outparse *p)
{
    return p->h.n_think;
}
