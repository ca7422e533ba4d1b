/*
 * gram_keywords.c - JSON Schema: the keywords of all schemas that describe one value, and of what
 * they refer to by $ref and allOf, put together in one struct sum. A keyword that restricts values
 * in a way that is not followed is refused by name; what only annotates is passed over.
 */
#include <stdlib.h>

#include "gram/gram_schema.h"

#define PARTS_MAX 2000 /* schemas that describe one value */

/* ---- small helpers --------------------------------------------------------------------------- */

bool schema_bad(struct compiler *c, const char *keyword, const struct json *v, const char *expected)
{
    struct buf t = {.limit = 4096};
    json_w_value(&t, v);
    gb_fail(c->b, QN_BAD_INPUT, keyword, "%.*s; expected %s", t.failed || t.n > 60 ? 60 : (int)t.n,
            buf_z(&t), expected);
    buf_free(&t);
    return false;
}

bool schema_refuse(struct compiler *c, const char *keyword, const char *why)
{
    if (!c->b->lenient)
        gb_fail(c->b, QN_UNSUPPORTED, keyword, "%s", why);
    return c->b->lenient;
}

#define PUSH(c, list, item)                                                                        \
    (VEC_ROOM(list, 1) ? ((list)->v[(list)->n++] = (item), true) : (gb_no_memory((c)->b), false))

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
const struct json *schema_resolve(struct compiler *c, const struct json *ref)
{
    struct str s = json_str(ref), id = json_str(json_get(c->root, "$id"));
    const struct json *at = c->root;
    if (id.n && str_starts(s, id))
        s = (struct str){s.p + id.n, s.n - id.n};
    if (json_type(ref) != JSON_STR || (s.n && s.p[0] != '#')) {
        schema_bad(c, "$ref", ref, "a reference inside the schema, such as \"#/$defs/name\"");
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
            return schema_bad(c, "type", v,
                              "null, boolean, integer, number, string, array or object");
        types |= names[k].types;
    }
    if (!types)
        return schema_bad(c, "type", v, "a type's name or an array of them");
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
        return schema_bad(c, keyword, v, "an integer of at least 0");
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
        return schema_bad(c, "pattern", v, "a regular expression as a string");
    return PUSH(c, &s->patterns, json_str(v));
}

static bool k_format(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_STR;
    if (json_type(v) != JSON_STR)
        return schema_bad(c, "format", v, "a string");
    return PUSH(c, &s->formats, json_str(v));
}

static bool bound(struct compiler *c, struct sum *s, const char *keyword, struct bound k)
{
    s->hints |= T_INT | T_NUM;
    if (json_type(k.v) != JSON_INT && json_type(k.v) != JSON_REAL)
        return schema_bad(c, keyword, k.v, "a number");
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
        return schema_bad(c, "multipleOf", v, "a number above 0");
    return PUSH(c, &s->multiples, v);
}

static bool k_enum(struct compiler *c, struct sum *s, const struct json *v)
{
    if (json_type(v) != JSON_ARR || json_len(v) == 0)
        return schema_bad(c, "enum", v, "a non-empty array");
    return PUSH(c, &s->enums, v);
}

static bool k_required(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_OBJ;
    if (json_type(v) == JSON_BOOL)
        return true; /* draft 3 */
    if (json_type(v) != JSON_ARR)
        return schema_bad(c, "required", v, "an array of names");
    for (size_t i = 0; i < json_len(v); i++) {
        if (json_type(json_at(v, i)) != JSON_STR)
            return schema_bad(c, "required", v, "an array of names");
        if (!PUSH(c, &s->required, json_str(json_at(v, i))))
            return false;
    }
    return true;
}

static bool alternatives_ok(struct compiler *c, const char *keyword, const struct json *v)
{
    bool ok = json_type(v) == JSON_ARR && json_len(v) > 0;
    for (size_t i = 0; ok && i < json_len(v); i++)
        ok = is_schema(json_at(v, i));
    return ok || schema_bad(c, keyword, v, "a non-empty array of schemas");
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
        if (!PUSH(c, &s->parts, ((struct part_schema){json_at(v, i), false, 0})))
            return false;
    return true;
}

static bool k_ref(struct compiler *c, struct sum *s, const struct json *v)
{
    const struct json *to = schema_resolve(c, v);
    if (to && !is_schema(to))
        return schema_bad(c, "$ref", v, "the place of a schema");
    return to && PUSH(c, &s->parts, ((struct part_schema){to, false, 0}));
}

static bool k_unique(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_ARR;
    return json_type(v) != JSON_BOOL || !json_bool(v) ||
           schema_refuse(c, "uniqueItems", "comparing items with each other is not supported");
}

static bool k_unevaluated(struct compiler *c, struct sum *s, const struct json *v)
{
    s->hints |= T_OBJ;
    if (json_type(v) == JSON_BOOL) {
        s->sealed |= !json_bool(v);
        return true;
    }
    return schema_refuse(c, "unevaluatedProperties", "only true and false are supported");
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
            return schema_refuse(c, refused[i], "this keyword is not supported");
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
        return schema_bad(c, "schema", p.s, "an object or a boolean");
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

void schema_sum_free(struct sum *s)
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

/* Was part i looked at already, or its alternatives chosen when the conj was made? An alternative
 * that leads back to the schema it was chosen for gives no value. */
static bool was_seen(struct compiler *c, struct sum *s, struct conj k, int32_t i)
{
    struct part_schema p = s->parts.v[i];
    for (int32_t j = 0; j < i; j++)
        if (s->parts.v[j].s == p.s && s->parts.v[j].bare <= p.bare)
            return true;
    for (int32_t j = 0; j < k.n && i >= k.n; j++) {
        if (k.v[j].s != p.s)
            continue;
        s->never |= !k.v[p.origin].bare && schema_leads_to(c, k, j, p.origin);
        return true;
    }
    return false;
}

bool schema_sum(struct compiler *c, struct conj k, struct sum *s)
{
    *s = (struct sum){.types = T_ALL, .max_len = -1, .max_items = -1, .max_props = -1};
    for (int32_t i = 0; i < k.n; i++)
        if (!PUSH(c, &s->parts, ((struct part_schema){k.v[i].s, k.v[i].bare, i})))
            return false;
    for (int32_t i = 0; i < s->parts.n; i++) {
        int32_t more = s->parts.n;
        if (i > PARTS_MAX) {
            gb_fail(c->b, QN_UNSUPPORTED, "allOf", "more than %d schemas for one value", PARTS_MAX);
            return false;
        }
        if (!was_seen(c, s, k, i) && !one_schema(c, s, s->parts.v[i]))
            return false;
        for (; more < s->parts.n; more++)
            s->parts.v[more].origin = s->parts.v[i].origin;
    }
    return !s->sealed || schema_seals(c, s);
}
