/*
 * turns.c - see turns.h. Writes JSON only; what a message means to a template is tmpl/chat.h's.
 */
#include "api/turns.h"

#include <stdlib.h>

#define LOOK_BACK 4096 /* calls searched for a result's name: hostile bodies have millions */
#define ORDER_MAX 4096 /* results of one turn that are put in order */

static void begin(struct turns *t, const char *role)
{
    if (t->out.n > 0)
        buf_addc(&t->out, ',');
    buf_addz(&t->out, "{\"role\":");
    json_w_strz(&t->out, role);
}

static void member(struct buf *b, const char *key, struct str text)
{
    buf_addc(b, ',');
    json_w_strz(b, key);
    buf_addc(b, ':');
    json_w_str(b, text);
}

/* ---- results --------------------------------------------------------------------------------- */

static struct str name_of(const struct turns *t, struct str id)
{
    for (size_t i = t->n_seen, k = 0; i > 0 && k < LOOK_BACK; i--, k++)
        if (str_eq(t->seen[i - 1].id, id))
            return t->seen[i - 1].name;
    return (struct str){NULL, 0};
}

static void write_result(struct turns *t, struct turn_result *r)
{
    struct str name = name_of(t, r->id);
    r->written = true;
    begin(t, "tool");
    member(&t->out, "tool_call_id", r->id);
    if (name.p)
        member(&t->out, "name", name);
    struct str all = buf_str(&t->result_text);
    member(&t->out, "content", r->n ? (struct str){all.p + r->at, r->n} : STR_LIT(""));
    buf_addc(&t->out, '}');
}

/* Templates that show no ids tie results to calls by their order. */
static void flush_results(struct turns *t)
{
    for (size_t c = t->last; t->n_results <= ORDER_MAX && c < t->n_seen && c - t->last < ORDER_MAX;
         c++)
        for (size_t i = 0; i < t->n_results; i++)
            if (!t->results[i].written && str_eq(t->results[i].id, t->seen[c].id))
                write_result(t, &t->results[i]);
    for (size_t i = 0; i < t->n_results; i++)
        if (!t->results[i].written)
            write_result(t, &t->results[i]);
    t->n_results = 0;
    buf_clear(&t->result_text);
}

void turns_result(struct turns *t, struct str id, struct str text)
{
    turns_close(t);
    if (t->n_results == t->cap_results) {
        size_t cap = t->cap_results ? t->cap_results * 2 : 8;
        struct turn_result *p = realloc(t->results, cap * sizeof *p);
        if (!p) {
            t->failed = true;
            return;
        }
        t->results = p;
        t->cap_results = cap;
    }
    t->results[t->n_results++] = (struct turn_result){id, t->result_text.n, text.n, false};
    buf_add_str(&t->result_text, text);
    t->failed |= t->result_text.failed;
}

/* ---- messages -------------------------------------------------------------------------------- */

void turns_close(struct turns *t)
{
    if (!t->open)
        return;
    t->open = false;
    begin(t, "assistant");
    if (t->reasoning.n > 0)
        member(&t->out, "reasoning_content", buf_str(&t->reasoning));
    if (t->has_text)
        member(&t->out, "content", buf_str(&t->text));
    else
        buf_addz(&t->out, t->calls.n > 0 ? ",\"content\":null" : ",\"content\":\"\"");
    if (t->calls.n > 0) {
        buf_addz(&t->out, ",\"tool_calls\":[");
        buf_add_str(&t->out, buf_str(&t->calls));
        buf_addc(&t->out, ']');
    }
    buf_addc(&t->out, '}');
    t->failed |= t->text.failed || t->reasoning.failed || t->calls.failed;
    buf_clear(&t->text);
    buf_clear(&t->reasoning);
    buf_clear(&t->calls);
    t->has_text = false;
}

/* An assistant message to add to; a new one when `fresh`. */
static void open_turn(struct turns *t, bool fresh)
{
    if (fresh)
        turns_close(t);
    if (t->open)
        return;
    flush_results(t);
    t->open = true;
    t->last = t->n_seen;
}

void turns_message(struct turns *t, const char *role, struct str text)
{
    turns_close(t);
    flush_results(t);
    begin(t, role);
    member(&t->out, "content", text);
    buf_addc(&t->out, '}');
}

void turns_reasoning(struct turns *t, struct str text)
{
    open_turn(t, t->has_text || t->calls.n > 0);
    buf_add_str(&t->reasoning, text);
}

void turns_text(struct turns *t, struct str text)
{
    open_turn(t, t->calls.n > 0);
    t->has_text = true;
    buf_add_str(&t->text, text);
}

void turns_call(struct turns *t, struct str id, struct str name, struct str args)
{
    open_turn(t, false);
    if (t->n_seen == t->cap_seen) {
        size_t cap = t->cap_seen ? t->cap_seen * 2 : 8;
        struct turn_call *p = realloc(t->seen, cap * sizeof *p);
        if (!p) {
            t->failed = true;
            return;
        }
        t->seen = p;
        t->cap_seen = cap;
    }
    t->seen[t->n_seen++] = (struct turn_call){id, name};
    if (t->calls.n > 0)
        buf_addc(&t->calls, ',');
    buf_addz(&t->calls, "{\"id\":");
    json_w_str(&t->calls, id);
    buf_addz(&t->calls, ",\"type\":\"function\",\"function\":{\"name\":");
    json_w_str(&t->calls, name);
    member(&t->calls, "arguments", args);
    buf_addz(&t->calls, "}}");
}

bool turns_end(struct turns *t)
{
    turns_close(t);
    flush_results(t);
    return !t->failed && !t->out.failed;
}

void turns_free(struct turns *t)
{
    buf_free(&t->out);
    buf_free(&t->text);
    buf_free(&t->reasoning);
    buf_free(&t->calls);
    buf_free(&t->result_text);
    free(t->seen);
    free(t->results);
    *t = (struct turns){0};
}
