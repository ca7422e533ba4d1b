/*
 * gram_tags.c - tool calls in a model's own markup: text, then tags of { literal, arguments,
 * literal }. The markup of a literal may be a control token or plain text alike.
 */
#include <stdlib.h>

#include "gram/gram_int.h"

/* ---- arguments one by one -------------------------------------------------------------------- */

const struct gram_style gram_style_qwen = {
    .open = {"<parameter=", 11},
    .mid = {">\n", 2},
    .close = {"\n</parameter>", 13},
    .gap = {"\n", 1},
};

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

static int32_t one_of_texts(struct gb *b, const struct json *choices)
{
    size_t n = json_len(choices);
    struct str *v = malloc(n * sizeof *v);
    if (!v)
        return gb_no_memory(b);
    for (size_t i = 0; i < n; i++)
        v[i] = json_str(json_at(choices, i));
    int32_t x = x_strset(b, v, n, ENC_RAW);
    free(v);
    return x;
}

/* Of no stated type: text. */
static bool is_anything(const struct json *schema)
{
    return json_type(json_get(schema, "type")) == JSON_NULL && !json_get(schema, "properties") &&
           !json_get(schema, "items") && !json_get(schema, "anyOf") && !json_get(schema, "$ref") &&
           !json_get(schema, "enum") && !json_get(schema, "const");
}

/* Text between two control tokens, or one of a list of texts. */
static int32_t quoted_value(struct gb *b, const struct json *schema, struct str quote)
{
    const struct json *choices = json_get(schema, "enum");
    int32_t mark = x_lit(b, quote);
    if (all_strings(choices))
        return X_SEQ(b, mark, one_of_texts(b, choices), mark);
    struct byteset any = {{~0ull, ~0ull, ~0ull, ~0ull >> 1}}; /* but the byte of control tokens */
    return X_SEQ(b, mark, x_rep(b, x_set(b, &any), 0, -1), mark);
}

static int32_t python_value(struct gb *b, const struct json *schema)
{
    struct str type = json_str(json_get(schema, "type"));
    if (json_get(schema, "enum") || json_get(schema, "const"))
        return x_schema(b, schema);
    if (str_eqz(type, "boolean"))
        return X_ALT(b, x_litz(b, "True"), x_litz(b, "False"));
    return str_eqz(type, "null") ? x_litz(b, "None") : x_schema(b, schema);
}

/* Values as the model writes them: strings raw, everything else as JSON. *text tells which. */
static int32_t raw_value(struct gb *b, const struct json *schema, const struct gram_style *s,
                         bool *text)
{
    int32_t close = x_markup(b, s->close);
    *text = is_text(schema) || all_strings(json_get(schema, "enum")) ||
            (is_anything(schema) && !s->quote.n);
    if (s->python)
        return X_SEQ(b, python_value(b, schema), close);
    if (*text && s->quote.n)
        return X_SEQ(b, quoted_value(b, schema, s->quote), close);
    if (*text && !is_text(schema) && !is_anything(schema))
        return X_SEQ(b, one_of_texts(b, json_get(schema, "enum")), close);
    return *text ? x_search(b, s->close, SEARCH_TEXT) : X_SEQ(b, x_schema(b, schema), close);
}

static bool is_required(const struct json *schema, struct str name)
{
    const struct json *list = json_get(schema, "required");
    for (size_t i = 0; i < json_len(list); i++)
        if (str_eq(json_str(json_at(list, i)), name))
            return true;
    return false;
}

static int32_t one_parameter(struct gb *b, const struct gram_style *s, const struct json_iter *it)
{
    bool text = false;
    int32_t value = raw_value(b, it->val, s, &text), r = x_rule(b);
    struct str mid = text && s->mid_text.n ? s->mid_text : s->mid;
    int32_t gap = s->gap.n ? x_opt(b, x_lit(b, s->gap)) : X_EMPTY;
    x_rule_set(b, r,
               X_SEQ(b, x_markup(b, s->open), x_lit(b, it->key), x_markup(b, mid), value, gap));
    return x_ref(b, r);
}

/* The parameters from the last to the first: `later` after some other one, `first` before any. */
struct params {
    int32_t later, first;
};

static void put_before(struct gb *b, struct params *p, int32_t one, bool required, struct str comma)
{
    int32_t led = X_SEQ(b, x_lit(b, comma), one);
    int32_t first = X_SEQ(b, one, p->later), r = x_rule(b);
    first = required ? first : X_ALT(b, first, p->first);
    x_rule_set(b, r, X_SEQ(b, required ? led : x_opt(b, led), p->later));
    p->later = x_ref(b, r);
    r = x_rule(b);
    x_rule_set(b, r, first);
    p->first = x_ref(b, r);
}

/* In the schema's order. */
static int32_t xml_body(struct gb *b, const struct json *schema, const struct gram_style *s)
{
    const struct json *props = json_get(schema, "properties");
    struct json_iter it = {0};
    struct params p = {X_EMPTY, X_EMPTY};
    size_t n = json_type(props) == JSON_OBJ ? json_len(props) : 0, k = 0;
    struct json_iter *v = malloc((n + 1) * sizeof *v);
    if (!v)
        return gb_no_memory(b);
    while (k < n && json_next(props, &it))
        v[k++] = it;
    while (k-- > 0 && b->st == QN_OK)
        put_before(b, &p, one_parameter(b, s, &v[k]), is_required(schema, v[k].key), s->comma);
    free(v);
    return p.first;
}

/* ---- tags ------------------------------------------------------------------------------------ */

static int32_t one_tag(struct gb *b, const struct gram_tag *t, struct str begin)
{
    int32_t head = x_markup(b, begin), body = X_NONE;
    bool lenient = b->lenient;
    b->lenient |= t->lenient;
    switch (t->body) {
    case GRAM_BODY_JSON:
        body = t->schema ? x_schema(b, t->schema) : x_json_object(b);
        break;
    case GRAM_BODY_XML:
        body = xml_body(b, t->schema, t->style ? t->style : &gram_style_qwen);
        break;
    case GRAM_BODY_TEXT:
        body = x_search(b, t->end, SEARCH_FREE);
        break;
    }
    b->lenient = lenient;
    if (t->body == GRAM_BODY_TEXT)
        return X_SEQ(b, head, body);
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

/* Without the byte that control tokens begin with: a search reads them as their text. */
static struct str spelled(struct str lit)
{
    bool token = lit.n > 0 && (unsigned char)lit.p[0] == SPECIAL_BYTE;
    return token ? (struct str){lit.p + 1, lit.n - 1} : lit;
}

/* Text with tags in it, or without any. */
static int32_t among_text(struct gb *b, const struct gram_tags *t, int32_t rest)
{
    struct str trigger = spelled(t->trigger);
    bool wrapped = t->open.n > 0;
    int32_t led = X_SEQ(b, x_search(b, trigger, SEARCH_FREE),
                        any_tag(b, t, wrapped ? 0 : t->trigger.n), rest);
    return t->optional ? X_ALT(b, x_search(b, trigger, SEARCH_WITHOUT), led) : led;
}

static int32_t tags(struct gb *b, const struct gram_tags *t)
{
    struct byteset blank = {0};
    byteset_add(&blank, ' ');
    byteset_add(&blank, '\n');
    int32_t space = x_rep(b, x_set(b, &blank), 0, 4), first = any_tag(b, t, 0), more = X_EMPTY;
    if (t->several) {
        int32_t between = t->separator.n ? X_SEQ(b, x_markup(b, t->separator), space) : space;
        more = x_rep(b, X_SEQ(b, between, first), 0, -1);
    }
    int32_t rest = X_SEQ(b, more, x_markup(b, t->close));
    return t->trigger.n ? among_text(b, t, rest)
                        : X_SEQ(b, space, x_markup(b, t->open), first, rest);
}

int32_t x_tags(struct gb *b, const struct gram_tags *t)
{
    if (t->n < 1)
        return gb_fail(b, QN_BAD_INPUT, "tools", "there is no tool to call");
    for (int32_t i = 0; i < t->n; i++)
        if (!str_starts(t->open.n ? t->open : t->tags[i].begin, t->trigger))
            return gb_fail(b, QN_INTERNAL, NULL, "a tag does not begin with its trigger");
    return tags(b, t);
}
