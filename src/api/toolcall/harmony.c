/*
 * harmony.c - see harmony.h. The prompt ends with <|start|>assistant, so an answer begins inside a
 * header. Markers are special tokens only; text that looks like them is text.
 */
#include "api/toolcall/harmony.h"

#define HEADER_MAX 4096

void harmony_start(struct harmony *y, struct call_host *host)
{
    *y = (struct harmony){.host = host};
}

void harmony_free(struct harmony *y)
{
    buf_free(&y->header);
    jsonfix_free(&y->fix);
}

bool harmony_thinks(const struct harmony *y)
{
    return y->state == HARMONY_ANALYSIS;
}

static void text(struct harmony *y, bool final, struct str s)
{
    if (s.n == 0)
        return;
    if (y->gap[!final] && y->any[!final])
        harmony_host_text(y->host, final, STR_LIT("\n"));
    y->gap[!final] = false;
    y->any[!final] = true;
    harmony_host_text(y->host, final, s);
}

/* The word after `mark` in the header. */
static struct str word_after(const struct harmony *y, const char *mark)
{
    struct str h = buf_str(&y->header);
    size_t at = str_find(h, str_of(mark), 0);
    if (at == (size_t)-1)
        return (struct str){NULL, 0};
    at += strlen(mark);
    size_t end = at;
    while (end < h.n && !call_space(h.p[end]) && h.p[end] != '<')
        end++;
    return (struct str){h.p + at, end - at};
}

/* <|message|>: the header is complete. */
static void body(struct harmony *y)
{
    struct str channel = word_after(y, "<|channel|>"), to = word_after(y, "to=");
    const struct json *schema = NULL;
    struct str name = to;
    if (str_starts(name, STR_LIT("functions."))) {
        name.p += 10;
        name.n -= 10;
    }
    y->state = str_eqz(channel, "analysis") && !to.p ? HARMONY_ANALYSIS : HARMONY_FINAL;
    y->gap[y->state == HARMONY_ANALYSIS] = true;
    if (to.p && harmony_host_tools(y->host) && call_host_begin(y->host, name, &schema)) {
        y->state = HARMONY_CALL;
        y->opened = false;
        y->sent = 0;
        jsonfix_start(&y->fix);
    } else if (to.p && !str_starts(to, STR_LIT("assistant"))) {
        buf_addz(&y->header, "<|message|>"); /* no such tool: the markup is content */
        text(y, true, buf_str(&y->header));
    }
    buf_clear(&y->header);
}

static void send(struct harmony *y)
{
    struct buf *o = &y->fix.out;
    if (o->n > y->sent) {
        call_host_args(y->host, (struct str){o->p + y->sent, o->n - y->sent});
        y->opened = true;
    }
    y->sent = o->n;
}

static void message_over(struct harmony *y, bool cut)
{
    if (y->state == HARMONY_CALL && !cut) {
        jsonfix_close(&y->fix, 0);
        send(y);
        if (!y->opened)
            call_host_args(y->host, STR_LIT("{}"));
    }
    if (y->state == HARMONY_CALL || y->state == HARMONY_SKIP)
        call_host_mark(y->host, false);
    y->state = HARMONY_HEADER;
    buf_clear(&y->header);
}

static void args_byte(struct harmony *y, char c)
{
    if (!y->opened && y->fix.out.n == 0 && c != '{')
        return; /* white space or a fence before the object */
    enum jsonfix_result r = jsonfix_feed(&y->fix, c);
    if (r == JSONFIX_BAD)
        jsonfix_close(&y->fix, 0);
    send(y);
    if (r != JSONFIX_MORE)
        y->state = HARMONY_SKIP;
}

void harmony_byte(struct harmony *y, char c)
{
    switch (y->state) {
    case HARMONY_HEADER:
        if (y->header.n < HEADER_MAX)
            buf_addc(&y->header, c);
        break;
    case HARMONY_CALL:
        args_byte(y, c);
        break;
    case HARMONY_SKIP:
        break;
    default:
        text(y, y->state == HARMONY_FINAL, (struct str){&c, 1});
        break;
    }
}

void harmony_special(struct harmony *y, struct str framed)
{
    struct str s = {framed.p + 1, framed.n - 2};
    if (y->state == HARMONY_HEADER) {
        if (str_eqz(s, "<|message|>"))
            body(y);
        else if (str_eqz(s, "<|start|>") || str_eqz(s, "<|end|>"))
            buf_clear(&y->header);
        else if (y->header.n < HEADER_MAX)
            buf_add_str(&y->header, s);
        return;
    }
    if (str_eqz(s, "<|constrain|>") || str_eqz(s, "<|message|>"))
        return;
    message_over(y, false);
    if (str_eqz(s, "<|channel|>"))
        buf_add_str(&y->header, s);
}

void harmony_end(struct harmony *y, bool cut)
{
    struct str h = call_trim(buf_str(&y->header));
    /* an answer that never said its channel is plain text */
    if (y->state == HARMONY_HEADER && !y->any[0] && !y->any[1] &&
        str_find(h, STR_LIT("<|channel|>"), 0) == (size_t)-1)
        text(y, true, h);
    else
        message_over(y, cut);
}
