/*
 * gram_tags.c - tool calls in a model's own markup: text, then tags of { literal, arguments,
 * literal }. The markup of a literal may be a control token or plain text alike.
 */
#include <stdlib.h>

#include "gram/gram_int.h"

/* ---- arguments as <parameter=NAME> ----------------------------------------------------------- */

static bool is_text(const struct json *schema)
{
    const struct json *type = json_get(schema, "type");
    return str_eqz(json_str(type), "string") && !json_get(schema, "enum") &&
           !json_get(schema, "const") && !json_get(schema, "pattern");
}

static bool all_strings(const struct json *list)
{
    for (size_t i = 0; i < json_len(list); i++)
        if (json_type(json_at(list, i)) != JSON_STR)
            return false;
    return json_len(list) > 0;
}

/* Values as the model writes them: strings raw, everything else as JSON. */
static int32_t raw_value(struct gb *b, const struct json *schema, struct str end)
{
    const struct json *choices = json_get(schema, "enum");
    if (is_text(schema))
        return x_search(b, end, SEARCH_TEXT);
    if (all_strings(choices)) {
        size_t n = json_len(choices);
        struct str *v = malloc(n * sizeof *v);
        if (!v)
            return gb_no_memory(b);
        for (size_t i = 0; i < n; i++)
            v[i] = json_str(json_at(choices, i));
        int32_t x = x_strset(b, v, n, ENC_RAW);
        free(v);
        return X_SEQ(b, x, x_markup(b, end));
    }
    if (json_type(json_get(schema, "type")) == JSON_NULL && !json_get(schema, "properties") &&
        !json_get(schema, "items") && !json_get(schema, "anyOf") && !json_get(schema, "$ref"))
        return x_search(b, end, SEARCH_TEXT); /* of no stated type: text */
    return X_SEQ(b, x_schema(b, schema), x_markup(b, end));
}

static bool is_required(const struct json *schema, struct str name)
{
    const struct json *list = json_get(schema, "required");
    for (size_t i = 0; i < json_len(list); i++)
        if (str_eq(json_str(json_at(list, i)), name))
            return true;
    return false;
}

/* <parameter=NAME>\nVALUE\n</parameter> and a line end, in the schema's order. */
static int32_t xml_body(struct gb *b, const struct json *schema)
{
    const struct json *props = json_get(schema, "properties");
    struct json_iter it = {0};
    int32_t x = X_EMPTY;
    size_t n = json_len(props);
    int32_t *v = malloc((n + 1) * sizeof *v), k = 0;
    if (!v)
        return gb_no_memory(b);
    while (b->st == QN_OK && json_type(props) == JSON_OBJ && json_next(props, &it)) {
        struct buf head = BUF_INIT;
        buf_addz(&head, "<parameter=");
        buf_add_str(&head, it.key);
        buf_addz(&head, ">\n");
        int32_t one =
            X_SEQ(b, x_lit(b, buf_str(&head)), raw_value(b, it.val, STR_LIT("\n</parameter>")),
                  x_opt(b, x_litz(b, "\n")));
        if (head.failed)
            gb_no_memory(b);
        buf_free(&head);
        int32_t r = x_rule(b);
        x_rule_set(b, r, one);
        one = x_ref(b, r);
        v[k++] = is_required(schema, it.key) ? one : x_opt(b, one);
    }
    x = k ? x_seq(b, v, k) : X_EMPTY;
    free(v);
    return x;
}

/* ---- tags ------------------------------------------------------------------------------------ */

static int32_t one_tag(struct gb *b, const struct gram_tag *t, struct str begin)
{
    int32_t head = x_markup(b, begin), body = X_NONE;
    switch (t->body) {
    case GRAM_BODY_JSON:
        body = t->schema ? x_schema(b, t->schema) : x_json_object(b);
        break;
    case GRAM_BODY_XML:
        body = xml_body(b, t->schema);
        break;
    case GRAM_BODY_TEXT:
        return X_SEQ(b, head, x_search(b, t->end, SEARCH_FREE));
    }
    return X_SEQ(b, head, body, x_markup(b, t->end));
}

/* One of the tags; `cut` bytes of every begin have been read. */
static int32_t any_tag(struct gb *b, const struct gram_tags *t, size_t cut)
{
    int32_t *v = malloc(((size_t)t->n + 1) * sizeof *v);
    if (!v)
        return gb_no_memory(b);
    for (int32_t i = 0; i < t->n; i++) {
        struct str begin = t->tags[i].begin;
        v[i] = one_tag(b, &t->tags[i], (struct str){begin.p + cut, begin.n - cut});
    }
    int32_t x = x_alt(b, v, t->n), r = x_rule(b);
    free(v);
    x_rule_set(b, r, x);
    return x_ref(b, r);
}

int32_t x_tags(struct gb *b, const struct gram_tags *t)
{
    struct byteset blank = {0};
    byteset_add(&blank, ' ');
    byteset_add(&blank, '\n');
    if (t->n < 1)
        return gb_fail(b, QN_BAD_INPUT, "tools", "there is no tool to call");
    for (int32_t i = 0; i < t->n; i++)
        if (!str_starts(t->tags[i].begin, t->trigger))
            return gb_fail(b, QN_INTERNAL, NULL, "a tag does not begin with its trigger");
    int32_t space = x_rep(b, x_set(b, &blank), 0, 4), first = any_tag(b, t, 0), more = X_EMPTY;
    if (t->several) {
        int32_t between = t->separator.n ? X_SEQ(b, x_markup(b, t->separator), space) : space;
        more = x_rep(b, X_SEQ(b, between, first), 0, -1);
    }
    int32_t open = x_markup(b, t->open), close = x_markup(b, t->close);
    if (t->trigger.n == 0)
        return X_SEQ(b, space, open, first, more, close);
    int32_t led =
        X_SEQ(b, x_search(b, t->trigger, SEARCH_FREE), any_tag(b, t, t->trigger.n), more, close);
    return t->optional ? X_ALT(b, x_search(b, t->trigger, SEARCH_WITHOUT), led) : led;
}
