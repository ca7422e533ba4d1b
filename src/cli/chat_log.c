/*
 * chat_log.c - see chat_log.h.
 */
#include "cli/chat_log.h"

#include <stdlib.h>

void chat_log_free(struct chat_log *l)
{
    chat_log_clear(l);
    free(l->turns);
    buf_free(&l->system);
    *l = (struct chat_log){0};
}

enum qn_status chat_log_add(struct chat_log *l, bool assistant, struct str text, struct qn_err *err)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        struct chat_turn *v = realloc(l->turns, cap * sizeof *v);
        if (!v)
            QN_FAIL(err, QN_NO_MEMORY, "chat", "out of memory for %zu turns", cap);
        l->turns = v;
        l->cap = cap;
    }
    struct chat_turn t = {.assistant = assistant};
    buf_add_str(&t.text, text);
    enum qn_status st = buf_ok(&t.text, "message", err);
    if (st != QN_OK) {
        buf_free(&t.text);
        return st;
    }
    l->turns[l->n++] = t;
    return QN_OK;
}

void chat_log_pop(struct chat_log *l)
{
    if (l->n)
        buf_free(&l->turns[--l->n].text);
}

void chat_log_clear(struct chat_log *l)
{
    while (l->n)
        chat_log_pop(l);
}

bool chat_log_undo(struct chat_log *l)
{
    while (l->n) {
        bool user = !l->turns[l->n - 1].assistant;
        chat_log_pop(l);
        if (user)
            return true;
    }
    return false;
}

bool chat_log_ends_with_user(const struct chat_log *l)
{
    return l->n && !l->turns[l->n - 1].assistant;
}

static void message(struct jw *w, const char *role, struct str text)
{
    jw_obj(w);
    jw_kstrz(w, "role", role);
    jw_kstr(w, "content", text);
    jw_obj_end(w);
}

enum qn_status chat_log_json(const struct chat_log *l, const char *kwargs, struct buf *out,
                             struct qn_err *err)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_key(&w, "messages");
    jw_arr(&w);
    if (l->system.n)
        message(&w, "system", buf_str(&l->system));
    for (size_t i = 0; i < l->n; i++)
        message(&w, l->turns[i].assistant ? "assistant" : "user", buf_str(&l->turns[i].text));
    jw_arr_end(&w);
    if (kwargs) {
        jw_key(&w, "chat_template_kwargs");
        jw_raw(&w, str_of(kwargs));
    }
    jw_obj_end(&w);
    return buf_ok(out, "conversation", err);
}
