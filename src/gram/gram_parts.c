/*
 * gram_parts.c - arrays and objects of a JSON Schema. Members come in the order in which the schema
 * names them, optional ones may be left out, others follow at the end; each step of that order is a
 * rule that goes on to the next, so a thousand members nest no deeper than one.
 */
#include <stdlib.h>

#include "gram/gram_schema.h"

#define COUNTED_MAX 20000 /* rules of one object whose members are counted */

/* ---- arrays ---------------------------------------------------------------------------------- */

/* The positional schemas of one schema: prefixItems, or items as an array (before 2020). */
static const struct json *prefix_of(const struct json *s)
{
    const struct json *p = json_get(s, "prefixItems"), *items = json_get(s, "items");
    return p ? p : json_type(items) == JSON_ARR ? items : NULL;
}

/* Of the items after those; NULL = anything. */
static const struct json *rest_of(const struct json *s)
{
    const struct json *items = json_get(s, "items");
    return json_type(items) == JSON_ARR ? json_get(s, "additionalItems") : items;
}

static bool is_false(const struct json *v)
{
    return json_type(v) == JSON_BOOL && !json_bool(v);
}

/* The item at a position; past every prefix when at is INT32_MAX. */
static int32_t item_at(struct compiler *c, const struct sum *s, int32_t at, bool *none)
{
    struct conj k = conj_room(c, s->arrays.n);
    *none = false;
    if (!k.v)
        return X_NONE;
    for (int32_t i = 0; i < s->arrays.n; i++) {
        const struct json *p = prefix_of(s->arrays.v[i]);
        const struct json *v =
            (size_t)at < json_len(p) ? json_at(p, (size_t)at) : rest_of(s->arrays.v[i]);
        if (is_false(v))
            *none = true;
        if (v || (size_t)at < json_len(p))
            conj_add(&k, v);
    }
    return *none ? X_NONE : schema_ref(c, k, "items", (struct str){NULL, 0});
}

static int32_t prefix_len(const struct sum *s)
{
    size_t n = 0;
    for (int32_t i = 0; i < s->arrays.n; i++)
        if (json_len(prefix_of(s->arrays.v[i])) > n)
            n = json_len(prefix_of(s->arrays.v[i]));
    return (int32_t)n;
}

/* What follows after all positional items; `first`: nothing stands before it. */
static int32_t items_after(struct compiler *c, const struct sum *s, int32_t n)
{
    struct gb *b = c->b;
    bool none;
    int64_t min = s->min_items > n ? s->min_items - n : 0;
    int64_t max = s->max_items < 0 ? -1 : s->max_items > n ? s->max_items - n : 0;
    int32_t ws = x_ws(b), item = item_at(c, s, INT32_MAX, &none);
    if (none)
        return min > 0 ? gb_none(b, "minItems", "%lld items, but only %d are described",
                                 (long long)s->min_items, n)
                       : X_EMPTY;
    int32_t next = X_SEQ(b, x_litz(b, ","), ws, item);
    if (n > 0)
        return x_rep(b, next, (int32_t)min, (int32_t)max);
    if (max == 0)
        return X_EMPTY;
    int32_t more =
        x_rep(b, next, (int32_t)(min > 0 ? min - 1 : 0), (int32_t)(max < 0 ? -1 : max - 1));
    int32_t some = X_SEQ(b, item, more);
    return min > 0 ? some : x_opt(b, some);
}

int32_t schema_array(struct compiler *c, const struct sum *s)
{
    struct gb *b = c->b;
    int32_t n = prefix_len(s), ws = x_ws(b);
    if (s->max_items >= 0 && s->min_items > s->max_items)
        return gb_none(b, "minItems", "%lld is above maxItems %lld", (long long)s->min_items,
                       (long long)s->max_items);
    int32_t cut = s->max_items >= 0 && s->max_items < n ? (int32_t)s->max_items : n;
    int32_t tail = cut < n ? X_EMPTY : items_after(c, s, n);
    for (int32_t i = cut - 1; i >= 0 && b->st == QN_OK; i--) {
        bool none;
        int32_t item = item_at(c, s, i, &none), r = x_rule(b);
        int32_t here = X_SEQ(b, i ? x_litz(b, ",") : X_EMPTY, i ? ws : X_EMPTY, item, tail);
        if (none && i < s->min_items)
            gb_none(b, "minItems", "item %d may not be there", i);
        x_rule_set(b, r, i < s->min_items ? here : X_ALT(b, here, X_EMPTY));
        tail = x_ref(b, r);
    }
    return X_SEQ(b, x_litz(b, "["), ws, tail, ws, x_litz(b, "]"));
}

/* ---- keys ------------------------------------------------------------------------------------ */

struct member {
    struct str name;
    bool required;
    int32_t x; /* "name": value, as a rule */
};

struct object {
    struct compiler *c;
    const struct sum *s;
    VEC(struct member) members;
    VEC(struct str) patterns; /* of patternProperties, all schemas together */
    VEC(const struct json *) pattern_schemas;
    VEC(int32_t) pattern_owner; /* index in s->objects */
    bool closed;                /* no names beyond members and patterns */
    int32_t extra;              /* a member of another name; X_NONE = none */
    int64_t min, max;           /* max -1: none */
    int32_t *rules;             /* [n_members + 1][counts][2] */
    int32_t counts;
};

static bool collect_patterns(struct object *o)
{
    struct gb *b = o->c->b;
    for (int32_t i = 0; i < o->s->objects.n; i++) {
        const struct json *map = json_get(o->s->objects.v[i], "patternProperties");
        struct json_iter it = {0};
        while (json_type(map) == JSON_OBJ && json_next(map, &it)) {
            if (!VEC_ROOM(&o->patterns, 1) || !VEC_ROOM(&o->pattern_schemas, 1) ||
                !VEC_ROOM(&o->pattern_owner, 1)) {
                gb_no_memory(b);
                return false;
            }
            o->patterns.v[o->patterns.n++] = it.key;
            o->pattern_schemas.v[o->pattern_schemas.n++] = it.val;
            o->pattern_owner.v[o->pattern_owner.n++] = i;
        }
    }
    if (o->patterns.n > 4 && !b->lenient)
        gb_fail(b, QN_UNSUPPORTED, "patternProperties", "more than 4 patterns for one object");
    if (o->patterns.n > 4)
        o->patterns.n = 0;
    return b->st == QN_OK;
}

static bool matches(struct object *o, struct str pattern, struct str name)
{
    struct product p;
    product_init(&p, o->c->b, "patternProperties");
    product_add(&p, x_regex(&p.src, pattern, false, ENC_RAW), false);
    bool yes = product_has(&p, name);
    if (p.src.st != QN_OK && o->c->b->st == QN_OK)
        o->c->b->st = p.src.st;
    gb_free(&p.src);
    return yes;
}

/* The schemas of a member; hit: which patterns its name matches. False when it may not be there. */
static bool member_schemas(struct object *o, struct str name, unsigned hit, struct conj *k)
{
    const struct sum *s = o->s;
    for (int32_t i = 0; i < s->objects.n; i++) {
        const struct json *own = NULL, *obj = s->objects.v[i];
        const struct json *props = json_get(obj, "properties"), *more;
        bool found = false;
        struct json_iter it = {0};
        if (name.p && json_type(props) == JSON_OBJ && (own = json_get_str(props, name)))
            found = true;
        (void)it;
        if (found)
            conj_add(k, own);
        for (int32_t j = 0; j < o->patterns.n; j++) {
            if (!(hit >> j & 1) || o->pattern_owner.v[j] != i)
                continue;
            conj_add(k, o->pattern_schemas.v[j]);
            found = true;
        }
        more = json_get(obj, "additionalProperties");
        if (!found && is_false(more))
            return false;
        if (!found && json_type(more) == JSON_OBJ)
            conj_add(k, more);
    }
    return true;
}

static unsigned hits(struct object *o, struct str name)
{
    unsigned hit = 0;
    for (int32_t i = 0; i < o->patterns.n; i++)
        if (matches(o, o->patterns.v[i], name))
            hit |= 1u << i;
    return hit;
}

static struct conj member_room(struct object *o)
{
    return conj_room(o->c, 2 * o->s->objects.n + o->patterns.n + 1);
}

/* key : value as a rule of its own. */
static int32_t pair(struct object *o, int32_t key, int32_t value)
{
    struct gb *b = o->c->b;
    int32_t r = x_rule(b);
    x_rule_set(b, r, X_SEQ(b, key, x_litz(b, ":"), x_ws(b), value));
    return b->st == QN_OK && key != X_NONE && value != X_NONE ? x_ref(b, r) : X_NONE;
}

static void add_member(struct object *o, struct str name, bool required)
{
    struct gb *b = o->c->b;
    struct conj k = member_room(o);
    struct buf key = BUF_INIT;
    if (!k.v || !VEC_ROOM(&o->members, 1)) {
        gb_no_memory(b);
        return;
    }
    int32_t x = X_NONE;
    if (member_schemas(o, name, hits(o, name), &k)) {
        json_w_str(&key, name);
        x = key.failed ? gb_no_memory(b)
                       : pair(o, x_lit(b, buf_str(&key)), schema_ref(o->c, k, "properties", name));
    }
    buf_free(&key);
    if (x == X_NONE && required)
        gb_none(b, "required", "\"%.*s\" is required, but additionalProperties forbids it",
                (int)(name.n > 60 ? 60 : name.n), name.p);
    o->members.v[o->members.n++] = (struct member){name, required, x};
}

static int by_name(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int c = n ? memcmp(x->p, y->p, n) : 0;
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* A sorted list of names to ask quickly. */
static bool has_name(const struct str *v, size_t n, struct str name)
{
    return n && bsearch(&name, v, n, sizeof *v, by_name) != NULL;
}

static struct str *sorted_required(struct object *o)
{
    size_t n = (size_t)o->s->required.n;
    struct str *v = malloc((n + 1) * sizeof *v);
    if (!v) {
        gb_no_memory(o->c->b);
        return NULL;
    }
    if (n) {
        memcpy(v, o->s->required.v, n * sizeof *v);
        qsort(v, n, sizeof *v, by_name);
    }
    return v;
}

static bool declared_before(const struct object *o, int32_t source, struct str name)
{
    for (int32_t i = 0; i < source; i++)
        if (json_get_str(json_get(o->s->objects.v[i], "properties"), name))
            return true;
    return false;
}

static void collect_members(struct object *o)
{
    const struct sum *s = o->s;
    struct str *need = sorted_required(o);
    if (!need)
        return;
    for (int32_t i = 0; i < s->objects.n && o->c->b->st == QN_OK; i++) {
        const struct json *props = json_get(s->objects.v[i], "properties");
        struct json_iter it = {0};
        if (props && json_type(props) != JSON_OBJ)
            gb_fail(o->c->b, QN_BAD_INPUT, "properties", "of type %s; expected an object",
                    json_type_name(props));
        while (json_type(props) == JSON_OBJ && o->c->b->st == QN_OK && json_next(props, &it))
            if (!declared_before(o, i, it.key))
                add_member(o, it.key, has_name(need, (size_t)s->required.n, it.key));
    }
    for (int32_t i = 0; i < s->required.n && o->c->b->st == QN_OK; i++) {
        bool again = i > 0 && str_eq(need[i], need[i - 1]);
        if (!again && !declared_before(o, s->objects.n, need[i]))
            add_member(o, need[i], true);
    }
    free(need);
}

/* ---- other names ----------------------------------------------------------------------------- */

/* Keys that match the patterns of `hit` and no other, and are no member's name. */
static int32_t other_key(struct object *o, unsigned hit)
{
    struct gb *b = o->c->b;
    struct product p;
    size_t n = (size_t)o->members.n;
    if (n == 0 && o->patterns.n == 0)
        return x_json_string(b);
    struct str *names = malloc((n + 1) * sizeof *names);
    if (!names)
        return gb_no_memory(b);
    for (size_t i = 0; i < n; i++)
        names[i] = o->members.v[i].name;
    product_init(&p, b, o->patterns.n ? "patternProperties" : "additionalProperties");
    product_add(&p, x_rep(&p.src, x_any_char(&p.src, ENC_RAW), 0, -1), false);
    if (n)
        product_add(&p, x_strset(&p.src, names, n, ENC_RAW), true);
    for (int32_t i = 0; i < o->patterns.n; i++)
        product_add(&p, x_regex(&p.src, o->patterns.v[i], false, ENC_RAW), !(hit >> i & 1));
    free(names);
    int32_t x = product_end(&p, b, ENC_JSON), quote = x_litz(b, "\"");
    return X_SEQ(b, quote, x, quote);
}

/* A member of a name that is not declared. */
static void make_extra(struct object *o)
{
    struct gb *b = o->c->b;
    unsigned sets = 1u << o->patterns.n;
    o->extra = X_NONE;
    for (unsigned hit = 0; hit < sets && b->st == QN_OK; hit++) {
        struct conj k = member_room(o);
        if (!k.v || (hit == 0 && o->closed) || !member_schemas(o, (struct str){NULL, 0}, hit, &k))
            continue;
        const char *step = hit ? "patternProperties" : "additionalProperties";
        int32_t value = schema_ref(o->c, k, step, (struct str){NULL, 0});
        o->extra = X_ALT(b, o->extra, pair(o, other_key(o, hit), value));
    }
}

/* Without a word about others, an object that declares members has only those. */
static bool closes(const struct sum *s)
{
    bool named = false, open = false;
    for (int32_t i = 0; i < s->objects.n; i++) {
        const struct json *more = json_get(s->objects.v[i], "additionalProperties");
        named |= json_len(json_get(s->objects.v[i], "properties")) > 0;
        named |= json_len(json_get(s->objects.v[i], "patternProperties")) > 0;
        open |= more && !is_false(more);
    }
    return s->sealed || (named && !open);
}

/* ---- order ----------------------------------------------------------------------------------- */

static int32_t *cell(const struct object *o, int32_t i, int32_t count, int some)
{
    return &o->rules[((int64_t)i * o->counts + count) * 2 + some];
}

/* Counts stop mattering at the lower limit when there is no upper one. */
static int32_t one_more(const struct object *o, int32_t count)
{
    return count + 1 < o->counts ? count + 1 : o->max < 0 ? o->counts - 1 : -1;
}

/* The other members, after `count` declared ones. Their names may be alike, which makes them one
 * property for whoever reads the answer: towards the lower limit all of them count as one. */
static int32_t others(struct object *o, int32_t count, int some)
{
    struct gb *b = o->c->b;
    int64_t min = o->min > count ? o->min - count : 0;
    int64_t max = o->max < 0 ? -1 : o->max > count ? o->max - count : 0;
    if (min > 1 && !b->lenient)
        return X_NONE;
    if (o->extra == X_NONE)
        return min > 0 ? X_NONE : X_EMPTY;
    int32_t next = X_SEQ(b, x_litz(b, ","), x_ws(b), o->extra);
    if (some)
        return x_rep(b, next, (int32_t)min, (int32_t)max);
    if (max == 0)
        return X_EMPTY;
    int32_t rest =
        x_rep(b, next, (int32_t)(min > 0 ? min - 1 : 0), (int32_t)(max < 0 ? -1 : max - 1));
    int32_t x = X_SEQ(b, o->extra, rest);
    return min > 0 ? x : x_opt(b, x);
}

static int32_t step(struct object *o, int32_t i, int32_t count, int some)
{
    struct gb *b = o->c->b;
    const struct member *m = &o->members.v[i];
    int32_t to = one_more(o, count), with = X_NONE;
    if (m->x != X_NONE && to >= 0)
        with = X_SEQ(b, some ? X_SEQ(b, x_litz(b, ","), x_ws(b)) : X_EMPTY, m->x,
                     x_ref(b, *cell(o, i + 1, to, 1)));
    if (m->required)
        return with;
    return X_ALT(b, with, x_ref(b, *cell(o, i + 1, count, some)));
}

static int32_t order(struct object *o)
{
    struct gb *b = o->c->b;
    int32_t n = o->members.n;
    o->counts = o->min <= 1 && o->max < 0 ? (int32_t)o->min + 1
                : o->max >= 0             ? (int32_t)(o->max < n ? o->max : n) + 1
                                          : (int32_t)(o->min < n ? o->min : n) + 1;
    if ((int64_t)(n + 1) * o->counts > COUNTED_MAX && o->counts > 1)
        return gb_fail(b, QN_UNSUPPORTED, o->max >= 0 ? "maxProperties" : "minProperties",
                       "%d declared properties are too many to be counted", n);
    o->rules = malloc((size_t)(n + 1) * (size_t)o->counts * 2 * sizeof *o->rules);
    if (!o->rules)
        return gb_no_memory(b);
    for (int32_t i = 0; i < (n + 1) * o->counts * 2; i++)
        o->rules[i] = x_rule(b);
    for (int32_t count = 0; count < o->counts && b->st == QN_OK; count++) {
        for (int some = 0; some < 2 && b->st == QN_OK; some++) {
            x_rule_set(b, *cell(o, n, count, some), others(o, count, some));
            for (int32_t i = 0; i < n && b->st == QN_OK; i++)
                x_rule_set(b, *cell(o, i, count, some), step(o, i, count, some));
        }
    }
    return x_ref(b, *cell(o, 0, 0, 0));
}

static int32_t build(struct object *o)
{
    struct gb *b = o->c->b;
    if (o->max >= 0 && o->min > o->max)
        return gb_none(b, "minProperties", "%lld is above maxProperties %lld", (long long)o->min,
                       (long long)o->max);
    if (!collect_patterns(o))
        return X_NONE;
    collect_members(o);
    make_extra(o);
    if (b->st != QN_OK)
        return X_NONE;
    if (o->min > o->members.n && o->extra == X_NONE)
        return gb_none(b, "minProperties", "%lld properties, but only %d are described",
                       (long long)o->min, o->members.n);
    if (o->min > o->members.n + 1 && !b->lenient)
        return gb_fail(b, QN_UNSUPPORTED, "minProperties",
                       "%lld, but only %d are described; those of other names could be alike, so "
                       "they count as one",
                       (long long)o->min, o->members.n);
    int32_t ws = x_ws(b), inner = order(o);
    return X_SEQ(b, x_litz(b, "{"), ws, inner, ws, x_litz(b, "}"));
}

int32_t schema_object(struct compiler *c, const struct sum *s)
{
    struct object o = {.c = c, .s = s, .min = s->min_props, .max = s->max_props};
    if (s->objects.n + s->required.n == 0 && o.min == 0 && o.max < 0 && !s->sealed)
        return x_json_object(c->b);
    o.closed = closes(s);
    int32_t x = build(&o);
    free(o.members.v);
    free(o.patterns.v);
    free(o.pattern_schemas.v);
    free(o.pattern_owner.v);
    free(o.rules);
    return x;
}
