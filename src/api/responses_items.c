/*
 * responses_items.c - GET /v1/responses/{id}/input_items: the items of a kept talk before the
 * answer, a page at a time. Pure; runs in the connection's thread.
 */
#include <stdio.h>

#include "api/openai_responses.h"
#include "api/resp_store.h"

/* Of an answer's output items, those that were added to the talk. */
static size_t said_items(struct str response)
{
    struct json *doc = NULL;
    size_t n = 0;
    if (json_parse(response, "response", JSON_DEPTH_MAX + 8, &doc, NULL) != QN_OK)
        return 0;
    const struct json *list = json_get(doc, "output");
    for (size_t i = 0; i < json_len(list); i++)
        n += !str_eqz(json_str(json_get(json_at(list, i), "type")), "reasoning");
    json_free(doc);
    return n;
}

static void item_id(struct str id, size_t i, char out[96])
{
    snprintf(out, 96, "item_%.*s_%zu", id.n > 60 ? 60 : (int)id.n, id.p, i);
}

/* An item with what the client may have left out: an id, a type, parts of the content. */
static void write_input(struct jw *w, const struct json *item, const char *id)
{
    struct json_iter it = {0};
    struct buf b = BUF_INIT;
    bool assistant = str_eqz(json_str(json_get(item, "role")), "assistant");
    buf_addc(&b, '{');
    if (!json_has(item, "id"))
        buf_addf(&b, "\"id\":\"%s\",", id);
    if (!json_has(item, "type"))
        buf_addz(&b, "\"type\":\"message\",");
    if (!json_has(item, "status"))
        buf_addz(&b, "\"status\":\"completed\",");
    while (json_next(item, &it)) {
        json_w_str(&b, it.key);
        buf_addc(&b, ':');
        bool text = str_eqz(it.key, "content") && json_type(it.val) == JSON_STR;
        if (text)
            buf_addf(&b, "[{\"type\":\"%s\",\"text\":", assistant ? "output_text" : "input_text");
        json_w_value(&b, it.val);
        buf_addz(&b, text ? "}]," : ",");
    }
    b.p[b.n - 1] = '}';
    jw_raw(w, buf_str(&b));
    w->out->failed |= b.failed;
    buf_free(&b);
}

static enum qn_status page_limit(struct str text, size_t *limit, struct api_error *e)
{
    *limit = 20;
    if (!text.p)
        return QN_OK;
    *limit = 0;
    for (size_t i = 0; i < text.n && i < 4; i++)
        *limit =
            text.p[i] >= '0' && text.p[i] <= '9' ? *limit * 10 + (size_t)(text.p[i] - '0') : 1000;
    if (*limit < 1 || *limit > 100 || text.n > 3)
        return api_refuse(e, 400, "invalid_value", "limit", "limit is %.*s; expected 1 to 100",
                          text.n > 20 ? 20 : (int)text.n, text.p);
    return QN_OK;
}

/* items[0, n) from the newest or the oldest, after the item of that id. */
static enum qn_status write_page(const struct json *items, size_t n, struct str id,
                                 const struct responses_page *page, struct buf *out,
                                 struct api_error *e)
{
    bool asc = str_eqz(page->order, "asc");
    size_t limit, from = 0, i = 0;
    char name[96], first[96] = "", last[96] = "";
    struct jw w;
    QN_TRY(page_limit(page->limit, &limit, e));
    if (page->order.p && !asc && !str_eqz(page->order, "desc"))
        return api_refuse(e, 400, "invalid_value", "order", "order has to be asc or desc");
    for (; page->after.p && i < n && from == 0; i++) {
        size_t at = asc ? i : n - 1 - i;
        struct str own = json_str(json_get(json_at(items, at), "id"));
        item_id(id, at, name);
        from = str_eqz(page->after, name) || (own.p && str_eq(own, page->after)) ? i + 1 : 0;
    }
    if (page->after.p && from == 0)
        return api_refuse(e, 400, "invalid_value", "after", "after names no item of this response");
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "object", "list");
    jw_key(&w, "data");
    jw_arr(&w);
    for (i = from; i < n && i - from < limit; i++) {
        const struct json *item = json_at(items, asc ? i : n - 1 - i);
        struct str own = json_str(json_get(item, "id"));
        item_id(id, asc ? i : n - 1 - i, last);
        if (own.p)
            snprintf(last, sizeof last, "%.*s", own.n > 90 ? 90 : (int)own.n, own.p);
        if (i == from)
            memcpy(first, last, sizeof first);
        write_input(&w, item, last);
    }
    jw_arr_end(&w);
    jw_kstrz(&w, "first_id", first);
    jw_kstrz(&w, "last_id", last);
    jw_kbool(&w, "has_more", i < n);
    jw_obj_end(&w);
    return QN_OK;
}

enum qn_status responses_input_items(const struct api_model *m, struct str id,
                                     const struct responses_page *page, struct buf *out,
                                     struct api_error *e)
{
    struct buf response = BUF_INIT, items = BUF_INIT;
    struct json *doc = NULL;
    struct qn_err err = {0};
    buf_addc(&items, '[');
    if (!m->responses || !resp_store_get(m->responses, id, &response, &items)) {
        buf_free(&response);
        buf_free(&items);
        return responses_unknown(id, e);
    }
    buf_addc(&items, ']');
    enum qn_status st = buf_ok(&items, "items", &err);
    if (st == QN_OK)
        st = json_parse(buf_str(&items), "items", JSON_DEPTH_MAX + 8, &doc, &err);
    size_t said = said_items(buf_str(&response)), n = json_len(doc);
    st = st == QN_OK ? write_page(doc, n > said ? n - said : 0, id, page, out, e)
                     : api_refuse_err(e, &err, NULL);
    json_free(doc);
    buf_free(&response);
    buf_free(&items);
    return st;
}
