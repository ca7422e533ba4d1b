/*
 * gram_schema.c - JSON Schema: the keywords of all schemas that describe one value are put together
 * (struct sum), alternatives are multiplied out, and the rest goes to the type's own file. See
 * gram_schema.h for how nothing recurses.
 */
#include "gram/gram_schema.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/utf8.h"

#define UNION_MAX  512  /* combinations of anyOf and oneOf in one place */
#define PARTS_MAX  2000 /* schemas that describe one value */
#define ENUM_BYTES (8 << 20)

/* ---- small helpers --------------------------------------------------------------------------- */

static bool bad(struct compiler *c, const char *keyword, const struct json *v, const char *expected)
{
    struct buf t = {.limit = 4096};
    json_w_value(&t, v);
    gb_fail(c->b, QN_BAD_INPUT, keyword, "%.*s; expected %s", t.failed || t.n > 60 ? 60 : (int)t.n,
            buf_z(&t), expected);
    buf_free(&t);
    return false;
}

static bool unsupported(struct compiler *c, const char *keyword, const char *why)
{
    if (!c->b->lenient)
        gb_fail(c->b, QN_UNSUPPORTED, keyword, "%s", why);
    return c->b->lenient;
}

#define PUSH(c, list, item)                                                                        \
    (VEC_ROOM(list, 1) ? ((list)->v[(list)->n++] = (item), true) : (gb_no_memory((c)->b), false))

struct conj conj_room(struct compiler *c, int32_t n)
{
    struct conj k = {arena_alloc(c->mem, ((size_t)n + 1) * sizeof *k.v), 0};
    if (!k.v)
        gb_no_memory(c->b);
    return k;
}

/* ---- references ------------------------------------------------------------------------------ */

static const struct json *child(const struct json *v, struct str key)
{
    size_t i = 0;
    if (json_type(v) == JSON_OBJ)
        return json_get_str(v, key);
    if (json_type(v) != JSON_ARR || key.n == 0 || key.n > 9)
        return NULL;
    for (size_t k = 0; k < key.n; k++) {
        if (key.p[k] < '0' || key.p[k] > '9')
            return NULL;
        i = i * 10 + (size_t)(key.p[k] - '0');
    }
    return json_at(v, i);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* A step of a pointer without ~0, ~1 and %XX. */
static void unescape(struct buf *out, struct str s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '%' && i + 2 < s.n && hex(s.p[i + 1]) >= 0 && hex(s.p[i + 2]) >= 0) {
            buf_addc(out, (char)(hex(s.p[i + 1]) * 16 + hex(s.p[i + 2])));
            i += 2;
        } else if (s.p[i] == '~' && i + 1 < s.n && (s.p[i + 1] == '0' || s.p[i + 1] == '1')) {
            buf_addc(out, s.p[++i] == '0' ? '~' : '/');
        } else {
            buf_addc(out, s.p[i]);
        }
    }
}

/* "#name": a schema under $defs with that $anchor. */
static const struct json *by_anchor(const struct json *root, struct str name)
{
    static const char *const places[] = {"$defs", "definitions"};
    for (int i = 0; i < 2; i++) {
        const struct json *defs = json_get(root, places[i]);
        struct json_iter it = {0};
        while (json_type(defs) == JSON_OBJ && json_next(defs, &it))
            if (json_type(it.val) == JSON_OBJ &&
                str_eq(json_str(json_get(it.val, "$anchor")), name))
                return it.val;
    }
    return NULL;
}

/* What a $ref names; NULL (with a message) when it is not in the schema. */
static const struct json *resolve(struct compiler *c, const struct json *ref)
{
    struct str s = json_str(ref), id = json_str(json_get(c->root, "$id"));
    const struct json *at = c->root;
    if (id.n && str_starts(s, id))
        s = (struct str){s.p + id.n, s.n - id.n};
    if (json_type(ref) != JSON_STR || (s.n && s.p[0] != '#')) {
        bad(c, "$ref", ref, "a reference inside the schema, such as \"#/$defs/name\"");
        return NULL;
    }
    if (s.n > 1 && s.p[1] != '/')
        at = by_anchor(c->root, (struct str){s.p + 1, s.n - 1});
    for (size_t i = 2; s.n > 1 && s.p[1] == '/' && i <= s.n && at;) {
        const char *slash = i < s.n ? memchr(s.p + i, '/', s.n - i) : NULL;
        size_t end = slash ? (size_t)(slash - s.p) : s.n;
        struct buf key = BUF_INIT;
        unescape(&key, (struct str){s.p + i, end - i});
        at = key.failed ? NULL : child(at, buf_str(&key));
        buf_free(&key);
        i = end + 1;
    }
    if (!at)
        gb_fail(c->b, QN_BAD_INPUT, "$ref", "\"%.*s\" names nothing in the schema",
                (int)(s.n > 100 ? 100 : s.n), s.p ? s.p : "");
    return at;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static uint64_t conj_hash(struct conj k)
{
    uint64_t h = 0;
    for (int32_t i = 0; i < k.n; i++) {
        uintptr_t w[2] = {(uintptr_t)k.v[i].s, k.v[i].bare};
        h = hash64(w, sizeof w, h);
    }
    return h;
}

static bool same_conj(struct conj a, struct conj b)
{
    if (a.n != b.n)
        return false;
    for (int32_t i = 0; i < a.n; i++)
        if (a.v[i].s != b.v[i].s || a.v[i].bare != b.v[i].bare)
            return false;
    return true;
}

static bool jobs_room(struct compiler *c)
{
    if ((c->tab.n + 1) * 2 <= c->tab.cap)
        return true;
    int32_t cap = c->tab.cap ? c->tab.cap * 2 : 64;
    int32_t *v = calloc((size_t)cap, sizeof *v);
    if (!v)
        return false;
    for (int32_t i = 0; i < c->jobs.n; i++) {
        uint64_t h = conj_hash(c->jobs.v[i].c);
        while (v[h & (uint64_t)(cap - 1)])
            h++;
        v[h & (uint64_t)(cap - 1)] = i + 1;
    }
    free(c->tab.v);
    c->tab.v = v;
    c->tab.cap = cap;
    return true;
}

static struct str path(struct compiler *c, const char *step, struct str name)
{
    struct buf t = {.limit = 400};
    if (!step)
        return c->where;
    buf_add_str(&t, c->where);
    buf_addf(&t, "/%s", step);
    if (name.p) {
        buf_addc(&t, '/');
        buf_add_str(&t, name);
    }
    struct str s = t.failed ? c->where : arena_str(c->mem, buf_str(&t));
    buf_free(&t);
    return s.p ? s : c->where;
}

int32_t schema_ref(struct compiler *c, struct conj k, const char *step, struct str name)
{
    int32_t n = 0;
    if (c->b->st != QN_OK)
        return X_NONE;
    for (int32_t i = 0; i < k.n; i++) { /* each once; their order is that of properties */
        int32_t j = 0;
        while (j < n && (k.v[j].s != k.v[i].s || k.v[j].bare != k.v[i].bare))
            j++;
        if (j == n)
            k.v[n++] = k.v[i];
    }
    k.n = n;
    if (n == 0)
        return x_json_value(c->b);
    if (!jobs_room(c) || !VEC_ROOM(&c->jobs, 1))
        return gb_no_memory(c->b);
    for (uint64_t h = conj_hash(k);; h++) {
        int32_t *slot = &c->tab.v[h & (uint64_t)(c->tab.cap - 1)];
        if (*slot && same_conj(c->jobs.v[*slot - 1].c, k))
            return x_ref(c->b, c->jobs.v[*slot - 1].rule);
        if (*slot)
            continue;
        int32_t rule = x_rule(c->b);
        c->jobs.v[c->jobs.n] = (struct job){k, rule, path(c, step, name)};
        *slot = ++c->jobs.n;
        c->tab.n++;
        return x_ref(c->b, rule);
    }
}

/* ---- keywords -------------------------------------------------------------------------------- */

static bool k_type(struct compiler *c, struct sum *s, const struct json *v)
{
    static const struct {
        const char *name;
        int types;
    } names[] = {{"null", T_NULL},          {"boolean", T_BOOL}, {"integer", T_INT},
                 {"number", T_INT | T_NUM}, {"string", T_STR},   {"array", T_ARR},
                 {"object", T_OBJ}};
    bool one = json_type(v) == JSON_STR;
    int types = 0;
    for (size_t i = 0; i < (one ? 1 : json_len(v)); i++) {
        struct str name = json_str(one ? v : json_at(v, i));
        size_t k = 0;
        while (k < 7 && !str_eqz(name, names[k].name))
            k++;
        if (k == 7)
            return bad(c, "type", v, "null, boolean, integer, number, string, array or object");
        types |= names[k].types;
    }
    if (!types)
        return bad(c, "type", v, "a type's name or an array of them");
    s->types &= types;
    s->typed = true;
    return true;
}

/* A count: *io is where the limit stands; upper: the smaller counts. */
static bool count(struct compiler *c, const char *keyword, const struct json *v, bool upper,
                  int64_t *io)
{
    int64_t i;
    double d = json_real(v);
    if ((json_type(v) != JSON_INT && json_type(v) != JSON_REAL) || d < 0)
        return bad(c, keyword, v, "an integer of at least 0");
    if (!json_i64(v, &i))
        i = LEN_MAX + (int64_t)1;
    if (i > LEN_MAX && upper)
        return true; /* as good as no limit */
    if (i > LEN_MAX) {
        gb_fail(c->b, QN_UNSUPPORTED, keyword, "more than %d", LEN_MAX);
        return false;
    }
    if (upper ? *io < 0 || i < *io : i > *io)
        *io = i;
    return true;
}

static bool k_min_len(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_STR;
    return count(c, "minLength", v, false, &s->min_len);
}

static bool k_max_len(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_STR;
    return count(c, "maxLength", v, true, &s->max_len);
}

static bool k_min_items(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_ARR;
    return count(c, "minItems", v, false, &s->min_items);
}

static bool k_max_items(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_ARR;
    return count(c, "maxItems", v, true, &s->max_items);
}

static bool k_min_props(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_OBJ;
    return count(c, "minProperties", v, false, &s->min_props);
}

static bool k_max_props(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_OBJ;
    return count(c, "maxProperties", v, true, &s->max_props);
}

static bool k_pattern(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_STR;
    if (json_type(v) != JSON_STR)
        return bad(c, "pattern", v, "a regular expression as a string");
    return PUSH(c, &s->patterns, json_str(v));
}

static bool k_format(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_STR;
    if (json_type(v) != JSON_STR)
        return bad(c, "format", v, "a string");
    return PUSH(c, &s->formats, json_str(v));
}

static bool bound(struct compiler *c, struct sum *s, const char *keyword, struct bound k)
{
    s->hints |= T_INT | T_NUM;
    if (json_type(k.v) != JSON_INT && json_type(k.v) != JSON_REAL)
        return bad(c, keyword, k.v, "a number");
    return PUSH(c, &s->bounds, k);
}

static bool k_minimum(struct compiler *c, struct sum *s, const struct json *v)
{
    return bound(c, s, "minimum", (struct bound){v, false, false});
}

static bool k_maximum(struct compiler *c, struct sum *s, const struct json *v)
{
    return bound(c, s, "maximum", (struct bound){v, true, false});
}

/* Draft 4 had true here, beside minimum. */
static bool exclusive(struct compiler *c, struct sum *s, const char *keyword, const struct json *v,
                      const struct json *plain, bool upper)
{
    if (json_type(v) != JSON_BOOL)
        return bound(c, s, keyword, (struct bound){v, upper, true});
    if (!json_bool(v) || !plain)
        return true;
    return bound(c, s, keyword, (struct bound){plain, upper, true});
}

static bool k_multiple(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_INT | T_NUM;
    if (!(json_real(v) > 0))
        return bad(c, "multipleOf", v, "a number above 0");
    return PUSH(c, &s->multiples, v);
}

static bool k_enum(struct compiler *c, struct sum *s, const struct json *v)
{
    if (json_type(v) != JSON_ARR || json_len(v) == 0)
        return bad(c, "enum", v, "a non-empty array");
    return PUSH(c, &s->enums, v);
}

static bool k_required(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_OBJ;
    if (json_type(v) == JSON_BOOL)
        return true; /* draft 3 */
    if (json_type(v) != JSON_ARR)
        return bad(c, "required", v, "an array of names");
    for (size_t i = 0; i < json_len(v); i++) {
        if (json_type(json_at(v, i)) != JSON_STR)
            return bad(c, "required", v, "an array of names");
        if (!PUSH(c, &s->required, json_str(json_at(v, i))))
            return false;
    }
    return true;
}

static bool is_schema(const struct json *v)
{
    return json_type(v) == JSON_OBJ || json_type(v) == JSON_BOOL;
}

static bool alternatives_ok(struct compiler *c, const char *keyword, const struct json *v)
{
    bool ok = json_type(v) == JSON_ARR && json_len(v) > 0;
    for (size_t i = 0; ok && i < json_len(v); i++)
        ok = is_schema(json_at(v, i));
    return ok || bad(c, keyword, v, "a non-empty array of schemas");
}

static bool k_any_of(struct compiler *c, struct sum *s, const struct json *v)
{
    return alternatives_ok(c, "anyOf", v) && PUSH(c, &s->any_of, v);
}

static bool k_one_of(struct compiler *c, struct sum *s, const struct json *v)
{
    return alternatives_ok(c, "oneOf", v) && PUSH(c, &s->one_of, v);
}

static bool k_all_of(struct compiler *c, struct sum *s, const struct json *v)
{
    if (!alternatives_ok(c, "allOf", v))
        return false;
    for (size_t i = 0; i < json_len(v); i++)
        if (!PUSH(c, &s->parts, ((struct part_schema){json_at(v, i), false})))
            return false;
    return true;
}

static bool k_ref(struct compiler *c, struct sum *s, const struct json *v)
{
    const struct json *to = resolve(c, v);
    if (to && !is_schema(to))
        return bad(c, "$ref", v, "the place of a schema");
    return to && PUSH(c, &s->parts, ((struct part_schema){to, false}));
}

static bool k_unique(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_ARR;
    return json_type(v) != JSON_BOOL || !json_bool(v) ||
           unsupported(c, "uniqueItems", "comparing items with each other is not supported");
}

static bool k_unevaluated(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_OBJ;
    if (json_type(v) == JSON_BOOL) {
        s->sealed |= !json_bool(v);
        return true;
    }
    return unsupported(c, "unevaluatedProperties", "only true and false are supported");
}

static bool k_nullable(struct compiler *c, struct sum *s, const struct json *v)
{
    return true; /* seen together with "type" */
}

/* Keywords with a function of their own. `part`: 1 = about an array's parts, 2 = an object's. */
static const struct keyword {
    const char *name;
    bool (*f)(struct compiler *, struct sum *, const struct json *);
    int part;
} keywords[] = {
    {"type", k_type, 0},
    {"enum", k_enum, 0},
    {"$ref", k_ref, 0},
    {"anyOf", k_any_of, 0},
    {"oneOf", k_one_of, 0},
    {"allOf", k_all_of, 0},
    {"minLength", k_min_len, 0},
    {"maxLength", k_max_len, 0},
    {"pattern", k_pattern, 0},
    {"format", k_format, 0},
    {"minimum", k_minimum, 0},
    {"maximum", k_maximum, 0},
    {"multipleOf", k_multiple, 0},
    {"minItems", k_min_items, 0},
    {"maxItems", k_max_items, 0},
    {"uniqueItems", k_unique, 0},
    {"items", NULL, 1},
    {"prefixItems", NULL, 1},
    {"additionalItems", NULL, 1},
    {"properties", NULL, 2},
    {"patternProperties", NULL, 2},
    {"additionalProperties", NULL, 2},
    {"unevaluatedProperties", k_unevaluated, 0},
    {"required", k_required, 0},
    {"minProperties", k_min_props, 0},
    {"maxProperties", k_max_props, 0},
    {"nullable", k_nullable, 0},
};

/* Keywords that restrict values in ways that are not followed. */
static const char *const refused[] = {
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
};

static bool keyword(struct compiler *c, struct sum *s, const struct json *schema,
                    const struct json_iter *it)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        if (!str_eqz(it->key, keywords[i].name))
            continue;
        if (keywords[i].f)
            return keywords[i].f(c, s, it->val);
        s->hints |= keywords[i].part == 1 ? T_ARR : T_OBJ;
        return true;
    }
    if (str_eqz(it->key, "const"))
        return PUSH(c, &s->consts, it->val);
    if (str_eqz(it->key, "exclusiveMinimum"))
        return exclusive(c, s, "exclusiveMinimum", it->val, json_get(schema, "minimum"), false);
    if (str_eqz(it->key, "exclusiveMaximum"))
        return exclusive(c, s, "exclusiveMaximum", it->val, json_get(schema, "maximum"), true);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (str_eqz(it->key, refused[i]))
            return unsupported(c, refused[i], "this keyword is not supported");
    return true; /* an annotation */
}

static bool one_schema(struct compiler *c, struct sum *s, struct part_schema p)
{
    struct json_iter it = {0};
    if (json_type(p.s) == JSON_BOOL) {
        s->never |= !json_bool(p.s);
        return true;
    }
    if (json_type(p.s) != JSON_OBJ)
        return bad(c, "schema", p.s, "an object or a boolean");
    while (json_next(p.s, &it)) {
        if (p.bare && (str_eqz(it.key, "anyOf") || str_eqz(it.key, "oneOf")))
            continue;
        if (!keyword(c, s, p.s, &it))
            return false;
    }
    if (json_type(json_get(p.s, "nullable")) == JSON_BOOL && json_bool(json_get(p.s, "nullable")) &&
        json_get(p.s, "type"))
        s->types |= T_NULL;
    bool arr = json_get(p.s, "items") || json_get(p.s, "prefixItems");
    bool obj = json_get(p.s, "properties") || json_get(p.s, "patternProperties") ||
               json_get(p.s, "additionalProperties");
    return (!arr || PUSH(c, &s->arrays, p.s)) && (!obj || PUSH(c, &s->objects, p.s));
}

static void sum_free(struct sum *s)
{
    free(s->enums.v);
    free(s->consts.v);
    free(s->bounds.v);
    free(s->multiples.v);
    free(s->patterns.v);
    free(s->formats.v);
    free(s->arrays.v);
    free(s->objects.v);
    free(s->required.v);
    free(s->any_of.v);
    free(s->one_of.v);
    free(s->parts.v);
}

static bool is_alternative(const struct json *of, const struct json *p)
{
    static const char *const lists[] = {"anyOf", "oneOf"};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < json_len(json_get(of, lists[k])); i++)
            if (json_at(json_get(of, lists[k]), i) == p)
                return true;
    return false;
}

/* Was part i looked at already, or its alternatives chosen when the conj was made? An alternative
 * that leads back to the schema it was chosen for adds nothing to it. */
static bool was_seen(struct sum *s, struct conj k, int32_t i)
{
    struct part_schema p = s->parts.v[i];
    for (int32_t j = 0; j < i; j++)
        if (s->parts.v[j].s == p.s && s->parts.v[j].bare <= p.bare)
            return true;
    for (int32_t j = 0; j < k.n && i >= k.n; j++) {
        if (k.v[j].s != p.s)
            continue;
        for (int32_t m = 0; m < k.n && k.v[j].bare; m++)
            s->never |= !k.v[m].bare && is_alternative(p.s, k.v[m].s);
        return true;
    }
    return false;
}

/* All keywords of a conj, and of what it refers to. */
static bool sum_up(struct compiler *c, struct conj k, struct sum *s)
{
    *s = (struct sum){.types = T_ALL, .max_len = -1, .max_items = -1, .max_props = -1};
    for (int32_t i = 0; i < k.n; i++)
        if (!PUSH(c, &s->parts, k.v[i]))
            return false;
    for (int32_t i = 0; i < s->parts.n; i++) {
        if (i > PARTS_MAX) {
            gb_fail(c->b, QN_UNSUPPORTED, "allOf", "more than %d schemas for one value", PARTS_MAX);
            return false;
        }
        if (!was_seen(s, k, i) && !one_schema(c, s, s->parts.v[i]))
            return false;
    }
    return true;
}

/* ---- enum and const -------------------------------------------------------------------------- */

static int type_of(const struct json *v)
{
    int64_t i;
    switch (json_type(v)) {
    case JSON_NULL:
        return T_NULL;
    case JSON_BOOL:
        return T_BOOL;
    case JSON_INT:
        return T_INT;
    case JSON_REAL:
        return json_i64(v, &i) ? T_INT : T_NUM;
    case JSON_STR:
        return T_STR;
    case JSON_ARR:
        return T_ARR;
    default:
        return T_OBJ;
    }
}

static bool same_text(const struct json *a, const struct json *b)
{
    struct buf x = BUF_INIT, y = BUF_INIT;
    json_w_value(&x, a);
    json_w_value(&y, b);
    bool same = !x.failed && !y.failed && str_eq(buf_str(&x), buf_str(&y));
    buf_free(&x);
    buf_free(&y);
    return same;
}

static bool in_list(const struct json *list, const struct json *v)
{
    for (size_t i = 0; i < json_len(list); i++)
        if (same_text(json_at(list, i), v))
            return true;
    return false;
}

/* Does a value of enum or const meet the other keywords? */
static bool fits(struct compiler *c, const struct sum *s, const struct json *v, struct product *p)
{
    int type = type_of(v);
    if (s->typed && !(s->types & type))
        return false;
    if (type == T_INT || type == T_NUM)
        return schema_number_fits(s, v);
    if (type == T_STR)
        return p->n == 0 || product_has(p, json_str(v));
    if ((type == T_OBJ && (s->hints & T_OBJ)) || (type == T_ARR && (s->hints & T_ARR)))
        gb_fail(c->b, QN_UNSUPPORTED, "enum",
                "objects and arrays beside keywords about their parts are not supported");
    return true;
}

/* The values that enum and const leave; those of the first list that all others have too. */
static int32_t literals(struct compiler *c, const struct sum *s)
{
    struct gb *b = c->b;
    const struct json *list = s->enums.n ? s->enums.v[0] : NULL;
    size_t n = s->consts.n ? 1 : json_len(list), kept = 0;
    struct str *v = malloc((n + 1) * sizeof *v);
    struct product p;
    size_t bytes = 0;
    if (!v)
        return gb_no_memory(b);
    product_init(&p, b, "enum");
    schema_string_factors(c, s, &p);
    for (size_t i = 0; i < n && b->st == QN_OK; i++) {
        const struct json *x = s->consts.n ? s->consts.v[0] : json_at(list, i);
        bool in = fits(c, s, x, &p);
        for (int32_t k = 0; in && k < s->consts.n; k++)
            in = same_text(x, s->consts.v[k]);
        for (int32_t k = s->consts.n ? 0 : 1; in && k < s->enums.n; k++)
            in = in_list(s->enums.v[k], x);
        struct buf t = BUF_INIT;
        if (in)
            json_w_value(&t, x);
        bytes += t.n;
        v[kept] = arena_str(c->mem, buf_str(&t));
        if (t.failed || !v[kept].p || bytes > ENUM_BYTES)
            gb_no_memory(b);
        buf_free(&t);
        kept += in;
    }
    if (p.src.st != QN_OK && b->st == QN_OK)
        b->st = p.src.st;
    gb_free(&p.src);
    int32_t x = b->st == QN_OK ? x_strset(b, v, kept, ENC_RAW) : X_NONE;
    free(v);
    if (x == X_NONE && b->st == QN_OK)
        gb_none(b, s->consts.n ? "const" : "enum", "no value meets the other keywords");
    return x;
}

/* ---- alternatives ---------------------------------------------------------------------------- */

/* Can one value meet both? false only when surely not. */
static bool may_overlap(struct compiler *c, const struct sum *a, const struct sum *b);

static const struct json *prop_of(const struct sum *s, struct str name)
{
    for (int32_t i = 0; i < s->objects.n; i++) {
        const struct json *p = json_get_str(json_get(s->objects.v[i], "properties"), name);
        if (p)
            return p;
    }
    return NULL;
}

static bool requires(const struct sum *s, struct str name)
{
    for (int32_t i = 0; i < s->required.n; i++)
        if (str_eq(s->required.v[i], name))
            return true;
    return false;
}

/* Objects without names of their own beyond the declared ones. */
static bool is_closed(const struct sum *s)
{
    bool named = false, open = false;
    for (int32_t i = 0; i < s->objects.n; i++) {
        const struct json *more = json_get(s->objects.v[i], "additionalProperties");
        named |= json_len(json_get(s->objects.v[i], "properties")) > 0;
        open |= json_get(s->objects.v[i], "patternProperties") != NULL;
        open |= more && !(json_type(more) == JSON_BOOL && !json_bool(more));
    }
    return named && !open;
}

/* b's objects need a property that a's never have. */
static bool needs_foreign(const struct sum *a, const struct sum *b)
{
    if (!is_closed(a))
        return false;
    for (int32_t i = 0; i < b->required.n; i++)
        if (!prop_of(a, b->required.v[i]))
            return true;
    return false;
}

static bool values_overlap(struct compiler *c, const struct json *x, const struct json *y)
{
    struct part_schema px = {x, false}, py = {y, false};
    struct sum a, b;
    bool ok = sum_up(c, (struct conj){&px, 1}, &a), overlap = true;
    if (ok && sum_up(c, (struct conj){&py, 1}, &b)) {
        bool lists = (a.enums.n || a.consts.n) && (b.enums.n || b.consts.n);
        if (!(a.types & b.types))
            overlap = false;
        else if (lists)
            overlap = may_overlap(c, &a, &b);
        sum_free(&b);
    }
    sum_free(&a);
    return overlap;
}

static bool lists_overlap(const struct sum *a, const struct sum *b)
{
    const struct json *x = a->enums.n ? a->enums.v[0] : NULL;
    for (size_t i = 0; i < (a->consts.n ? 1 : json_len(x)); i++) {
        const struct json *v = a->consts.n ? a->consts.v[0] : json_at(x, i);
        bool in_consts = b->consts.n && same_text(b->consts.v[0], v);
        if (b->consts.n ? in_consts : in_list(b->enums.v[0], v))
            return true;
    }
    return false;
}

static bool may_overlap(struct compiler *c, const struct sum *a, const struct sum *b)
{
    int x = a->typed || !a->hints ? a->types : a->hints;
    int y = b->typed || !b->hints ? b->types : b->hints;
    int both = x & y;
    if (a->never || b->never)
        return false;
    if ((a->enums.n || a->consts.n) && (b->enums.n || b->consts.n))
        return lists_overlap(a, b);
    if (!both)
        return false;
    if (both != T_OBJ)
        return true;
    if (needs_foreign(a, b) && needs_foreign(b, a))
        return false;
    for (int32_t i = 0; i < a->required.n; i++) {
        struct str name = a->required.v[i];
        const struct json *p = prop_of(a, name), *q = prop_of(b, name);
        if (p && q && requires(b, name) && !values_overlap(c, p, q))
            return false;
    }
    return true;
}

/* exactly one of them: only where no value can meet two. */
static void check_one_of(struct compiler *c, const struct json *list)
{
    size_t n = json_len(list);
    struct sum *v = calloc(n, sizeof *v);
    if (!v || n > 100) {
        free(v);
        unsupported(c, "oneOf", "more than 100 alternatives");
        return;
    }
    size_t made = 0;
    for (; made < n && c->b->st == QN_OK; made++) {
        struct part_schema p = {json_at(list, made), false};
        if (!sum_up(c, (struct conj){&p, 1}, &v[made]))
            break;
    }
    for (size_t i = 0; i < n && c->b->st == QN_OK; i++)
        for (size_t k = 0; k < i && c->b->st == QN_OK; k++)
            if (may_overlap(c, &v[k], &v[i]))
                gb_fail(c->b, QN_UNSUPPORTED, "oneOf",
                        "alternatives %zu and %zu may hold at once; use anyOf, or a required "
                        "property with a different const in each",
                        k, i);
    for (size_t i = 0; i < n && (i < made || i == made); i++)
        sum_free(&v[i]);
    free(v);
}

/* Every way to choose one alternative of each anyOf and oneOf. */
static int32_t unions(struct compiler *c, const struct sum *s)
{
    struct gb *b = c->b;
    const struct json *lists[16];
    int32_t n_list = 0;
    int64_t ways = 1;
    for (int32_t i = 0; i < s->one_of.n && !b->lenient && b->st == QN_OK; i++)
        check_one_of(c, s->one_of.v[i]);
    for (int32_t i = 0; i < s->any_of.n + s->one_of.n; i++) {
        const struct json *l = i < s->any_of.n ? s->any_of.v[i] : s->one_of.v[i - s->any_of.n];
        ways *= (int64_t)json_len(l);
        if (n_list == 16 || (ways > UNION_MAX && n_list > 0))
            return gb_fail(b, QN_UNSUPPORTED, i < s->any_of.n ? "anyOf" : "oneOf",
                           "more than %d combinations of alternatives in one place", UNION_MAX);
        lists[n_list++] = l;
    }
    int32_t *v = malloc((size_t)ways * sizeof *v);
    if (!v)
        return gb_no_memory(b);
    for (int64_t w = 0; w < ways && b->st == QN_OK; w++) {
        struct conj k = conj_room(c, s->parts.n + n_list);
        int64_t left = w;
        if (!k.v)
            break;
        for (int32_t i = 0; i < s->parts.n; i++)
            k.v[k.n++] = (struct part_schema){s->parts.v[i].s, true};
        for (int32_t i = 0; i < n_list; i++) {
            int64_t n = (int64_t)json_len(lists[i]);
            conj_add(&k, json_at(lists[i], (size_t)(left % n)));
            left /= n;
        }
        v[w] = schema_ref(c, k, s->any_of.n ? "anyOf" : "oneOf", (struct str){NULL, 0});
    }
    int32_t x = b->st == QN_OK ? x_alt(b, v, (int32_t)ways) : X_NONE;
    free(v);
    return x;
}

/* ---- one value ------------------------------------------------------------------------------- */

static int32_t typed_value(struct compiler *c, const struct sum *s)
{
    struct gb *b = c->b;
    int types = s->typed || !s->hints ? s->types : s->types & s->hints;
    int32_t v[8], n = 0;
    if (s->never)
        return gb_none(b, "false", "a schema that is false allows no value");
    if (s->typed && s->types == 0)
        return gb_none(b, "type", "the types asked for exclude each other");
    if (types == T_ALL && !s->hints)
        return x_json_value(b);
    if (types & T_NULL)
        v[n++] = x_litz(b, "null");
    if (types & T_BOOL)
        v[n++] = X_ALT(b, x_litz(b, "true"), x_litz(b, "false"));
    if (types & (T_NUM | T_INT))
        v[n++] = schema_number(c, s, !(types & T_NUM));
    if (types & T_STR)
        v[n++] = schema_string(c, s);
    if (types & T_ARR)
        v[n++] = schema_array(c, s);
    if (types & T_OBJ)
        v[n++] = schema_object(c, s);
    return x_alt(b, v, n);
}

static int32_t value(struct compiler *c, struct conj k)
{
    struct sum s;
    int32_t x = X_NONE;
    if (sum_up(c, k, &s)) {
        if (s.never || (s.any_of.n == 0 && s.one_of.n == 0 && s.enums.n == 0 && s.consts.n == 0))
            x = typed_value(c, &s);
        else if (s.any_of.n || s.one_of.n)
            x = unions(c, &s);
        else
            x = literals(c, &s);
    }
    sum_free(&s);
    return x;
}

static void note_where(struct compiler *c)
{
    if (c->b->fault && c->where.p)
        snprintf(c->b->fault->where, sizeof c->b->fault->where, "%.*s",
                 (int)(c->where.n > 159 ? 159 : c->where.n), c->where.p);
}

int32_t x_schema(struct gb *b, const struct json *schema)
{
    struct compiler c = {.b = b, .root = schema, .mem = arena_create((size_t)256 << 20)};
    struct part_schema p = {schema, false};
    if (!c.mem)
        return gb_no_memory(b);
    if (!is_schema(schema)) {
        bad(&c, "schema", schema, "an object");
        arena_free(c.mem);
        return X_NONE;
    }
    struct conj k = conj_room(&c, 1);
    if (k.v)
        k.v[k.n++] = p;
    int32_t x = schema_ref(&c, k, NULL, (struct str){NULL, 0});
    for (; c.done < c.jobs.n && b->st == QN_OK; c.done++) {
        struct job j = c.jobs.v[c.done];
        c.where = j.where;
        note_where(&c);
        int32_t body = value(&c, j.c);
        x_rule_set(b, j.rule, body);
    }
    if (b->st == QN_OK && b->fault)
        b->fault->where[0] = 0;
    free(c.jobs.v);
    free(c.tab.v);
    arena_free(c.mem);
    return x;
}
