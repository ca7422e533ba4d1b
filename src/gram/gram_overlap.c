/*
 * gram_overlap.c - the keywords of JSON Schema whose meaning spans several schemas: oneOf (can two
 * alternatives hold at once?) and unevaluatedProperties (which members can it see?). Both are
 * answered carefully: what cannot be shown is refused, so that an answer which came to its end is
 * always valid.
 */
#include <stdlib.h>

#include "gram/gram_schema.h"

#define ONE_OF_MAX 100

int schema_type_of(const struct json *v)
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

/* ---- equality of JSON values ----------------------------------------------------------------- */

/* A number as sign, digits without zeros at either end, and power of ten. */
struct decimal {
    struct buf digits;
    int64_t power;
    bool minus;
};

static bool decimal_of(const struct json *v, struct decimal *d)
{
    struct buf text = BUF_INIT;
    int64_t power = 0;
    size_t i = 0;
    bool point = false, minus = false;
    *d = (struct decimal){.digits = BUF_INIT};
    json_number_text(v, &text);
    for (; i < text.n && text.p[i] != 'e' && text.p[i] != 'E'; i++) {
        char k = text.p[i];
        d->minus |= k == '-';
        point |= k == '.';
        d->power -= point && k != '.';
        if (k >= '0' && k <= '9' && (k != '0' || d->digits.n))
            buf_addc(&d->digits, k);
    }
    for (; i < text.n; i++) {
        minus |= text.p[i] == '-';
        if (text.p[i] >= '0' && text.p[i] <= '9' && power < 1000000)
            power = power * 10 + (text.p[i] - '0');
    }
    bool ok = !text.failed && !d->digits.failed;
    buf_free(&text);
    d->power += minus ? -power : power;
    for (; ok && d->digits.n && d->digits.p[d->digits.n - 1] == '0'; d->digits.n--)
        d->power++;
    if (d->digits.n == 0)
        d->power = d->minus = 0;
    return ok;
}

static bool same_number(const struct json *a, const struct json *b)
{
    struct decimal x, y;
    bool ok = decimal_of(a, &x);
    ok &= decimal_of(b, &y);
    ok = ok && x.minus == y.minus && x.power == y.power &&
         str_eq(buf_str(&x.digits), buf_str(&y.digits));
    buf_free(&x.digits);
    buf_free(&y.digits);
    return ok;
}

static bool same_members(const struct json *a, const struct json *b)
{
    struct json_iter i = {0};
    while (json_next(a, &i)) {
        struct json_iter k = {0};
        bool found = false;
        while (!found && json_next(b, &k))
            found = str_eq(i.key, k.key) && schema_same(i.val, k.val);
        if (!found)
            return false;
    }
    return true;
}

/* As deep as the parser lets a document be. */
bool schema_same(const struct json *a, const struct json *b)
{
    enum json_type x = json_type(a), y = json_type(b);
    bool numbers = (x == JSON_INT || x == JSON_REAL) && (y == JSON_INT || y == JSON_REAL);
    if (numbers)
        return same_number(a, b);
    if (x != y || json_len(a) != json_len(b))
        return false;
    switch (x) {
    case JSON_BOOL:
        return json_bool(a) == json_bool(b);
    case JSON_STR:
        return str_eq(json_str(a), json_str(b));
    case JSON_OBJ:
        return same_members(a, b);
    case JSON_ARR:
        for (size_t i = 0; i < json_len(a); i++)
            if (!schema_same(json_at(a, i), json_at(b, i)))
                return false;
        return true;
    default:
        return true;
    }
}

bool schema_in_list(const struct json *list, const struct json *v)
{
    for (size_t i = 0; i < json_len(list); i++)
        if (schema_same(json_at(list, i), v))
            return true;
    return false;
}

/* ---- oneOf ----------------------------------------------------------------------------------- */

/* Two alternatives and what holds beside them; around may be NULL: nothing. */
struct pair {
    struct compiler *c;
    const struct sum *a, *b, *around;
};

static const struct json *prop_of(const struct sum *s, struct str name)
{
    for (int32_t i = 0; s && i < s->objects.n; i++) {
        const struct json *p = json_get_str(json_get(s->objects.v[i], "properties"), name);
        if (p)
            return p;
    }
    return NULL;
}

static bool declares(const struct sum *s, struct str name)
{
    for (int32_t i = 0; s && i < s->objects.n; i++) {
        struct json_iter it = {0};
        while (json_next(json_get(s->objects.v[i], "properties"), &it))
            if (str_eq(it.key, name))
                return true;
    }
    return false;
}

static bool requires(const struct sum *s, struct str name)
{
    for (int32_t i = 0; s && i < s->required.n; i++)
        if (str_eq(s->required.v[i], name))
            return true;
    return false;
}

/* Could an object of s have members that none of its schemas declares? Their names may also come
 * from alternatives that are not chosen yet. */
static bool is_open(const struct sum *s)
{
    bool open = s->any_of.n + s->one_of.n > 0;
    for (int32_t i = 0; i < s->objects.n; i++) {
        const struct json *more = json_get(s->objects.v[i], "additionalProperties");
        open |= json_has(s->objects.v[i], "patternProperties");
        open |= more && !(json_type(more) == JSON_BOOL && !json_bool(more));
    }
    return open;
}

static bool names_some(const struct sum *s)
{
    for (int32_t i = 0; i < s->objects.n; i++)
        if (json_len(json_get(s->objects.v[i], "properties")) > 0)
            return true;
    return false;
}

/* The objects that a's alternative gives never have a property that b's need: the answer's objects
 * have only declared members, as long as no schema around them says otherwise. */
static bool needs_foreign(const struct pair *p, const struct sum *a, const struct sum *b)
{
    const struct sum *around = p->around;
    bool others = around && (around->any_of.n + around->one_of.n > 1);
    if (!names_some(a) || is_open(a) || others)
        return false;
    for (int32_t i = 0; around && i < around->objects.n; i++) {
        const struct json *more = json_get(around->objects.v[i], "additionalProperties");
        if (json_has(around->objects.v[i], "patternProperties") ||
            (more && !(json_type(more) == JSON_BOOL && !json_bool(more))))
            return false;
    }
    for (int32_t i = 0; i < b->required.n; i++) {
        struct str name = b->required.v[i];
        if (!declares(a, name) && !requires(a, name) && !declares(around, name) &&
            !requires(around, name))
            return true;
    }
    return false;
}

/* The types that s allows. */
static int allows(const struct sum *s)
{
    const struct json *list = s->enums.n ? s->enums.v[0] : NULL;
    int types = 0;
    if (s->consts.n)
        return s->types & schema_type_of(s->consts.v[0]);
    for (size_t i = 0; i < json_len(list); i++)
        types |= schema_type_of(json_at(list, i));
    return list ? s->types & types : s->types;
}

/* The types that are written for s: where nobody names one, those that the other keywords are
 * about. */
static int gives(const struct sum *s, const struct sum *around)
{
    int hints = s->hints | (around ? around->hints : 0);
    bool typed = s->typed || (around && around->typed);
    return typed || !s->hints ? allows(s) : allows(s) & hints;
}

static bool may_overlap(const struct pair *p);

static bool values_overlap(struct compiler *c, const struct json *x, const struct json *y)
{
    struct part_schema px = {x, false, 0}, py = {y, false, 0};
    struct sum a, b = {0};
    bool overlap = true;
    if (schema_sum(c, (struct conj){&px, 1}, &a) && schema_sum(c, (struct conj){&py, 1}, &b)) {
        bool lists = (a.enums.n || a.consts.n) && (b.enums.n || b.consts.n);
        if (!(allows(&a) & allows(&b)))
            overlap = false;
        else if (lists)
            overlap = may_overlap(&(struct pair){c, &a, &b, NULL});
    }
    schema_sum_free(&a);
    schema_sum_free(&b);
    return overlap;
}

static bool lists_overlap(const struct sum *a, const struct sum *b)
{
    const struct json *x = a->enums.n ? a->enums.v[0] : NULL;
    for (size_t i = 0; i < (a->consts.n ? 1 : json_len(x)); i++) {
        const struct json *v = a->consts.n ? a->consts.v[0] : json_at(x, i);
        if (b->consts.n ? schema_same(b->consts.v[0], v) : schema_in_list(b->enums.v[0], v))
            return true;
    }
    return false;
}

/* Can one value meet both? false only when surely not. */
static bool may_overlap(const struct pair *p)
{
    const struct sum *a = p->a, *b = p->b;
    int around = p->around ? p->around->types : T_ALL;
    int both = (gives(a, p->around) & allows(b)) | (allows(a) & gives(b, p->around));
    if (a->never || b->never)
        return false;
    if ((a->enums.n || a->consts.n) && (b->enums.n || b->consts.n))
        return lists_overlap(a, b);
    if (!(both & around))
        return false;
    if ((both & around) != T_OBJ)
        return true;
    if (needs_foreign(p, a, b) && needs_foreign(p, b, a))
        return false;
    for (int32_t i = 0; i < a->required.n; i++) {
        struct str name = a->required.v[i];
        const struct json *x = prop_of(a, name), *y = prop_of(b, name);
        if (x && y && requires(b, name) && !values_overlap(p->c, x, y))
            return false;
    }
    return true;
}

void schema_one_of(struct compiler *c, const struct sum *s, const struct json *list)
{
    size_t n = json_len(list);
    if (n > ONE_OF_MAX) {
        gb_fail(c->b, QN_UNSUPPORTED, "oneOf", "%zu alternatives; at most %d", n, ONE_OF_MAX);
        return;
    }
    struct sum *v = calloc(n, sizeof *v);
    if (!v) {
        gb_no_memory(c->b);
        return;
    }
    for (size_t i = 0; i < n && c->b->st == QN_OK; i++) {
        struct part_schema p = {json_at(list, i), false, 0};
        schema_sum(c, (struct conj){&p, 1}, &v[i]);
    }
    for (size_t i = 0; i < n && c->b->st == QN_OK; i++)
        for (size_t k = 0; k < i && c->b->st == QN_OK; k++)
            if (may_overlap(&(struct pair){c, &v[k], &v[i], s}))
                gb_fail(c->b, QN_UNSUPPORTED, "oneOf",
                        "alternatives %zu and %zu may hold at once; use anyOf, or give each its "
                        "own type, or a required property with a different const",
                        k, i);
    for (size_t i = 0; i < n; i++)
        schema_sum_free(&v[i]);
    free(v);
}

/* ---- which schemas of one value lead to which ------------------------------------------------ */

#define STEPS_MAX 20000000

/* x says, by a keyword of its own, that p holds for the same value. */
static bool applies(struct compiler *c, const struct json *x, const struct json *p)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    const struct json *ref = json_get(x, "$ref");
    if (ref && schema_resolve(c, ref) == p)
        return true;
    for (int k = 0; k < 3; k++) {
        const struct json *list = json_get(x, lists[k]);
        for (size_t m = 0; m < json_len(list); m++)
            if (json_at(list, m) == p)
                return true;
        c->steps += (int64_t)json_len(list);
    }
    return false;
}

/* Marks what the schemas that are marked lead to; marks has room for 2 n. */
static void spread(struct compiler *c, const struct part_schema *v, int32_t n, bool *marks)
{
    bool *done = marks + n;
    for (int32_t k = 0; k < n; k++) {
        if (!marks[k] || done[k])
            continue;
        for (int32_t i = 0; i < n; i++)
            marks[i] = marks[i] || applies(c, v[k].s, v[i].s);
        done[k] = true;
        k = -1;
        c->steps += n;
        if (c->steps > STEPS_MAX) {
            gb_fail(c->b, QN_UNSUPPORTED, "$ref", "too many schemas describe one value");
            return;
        }
    }
}

bool schema_leads_to(struct compiler *c, struct conj k, int32_t from, int32_t to)
{
    bool *marks = calloc((size_t)k.n * 2, sizeof *marks), hit;
    if (!marks)
        return gb_no_memory(c->b), false;
    marks[from] = true;
    spread(c, k.v, k.n, marks);
    hit = marks[to];
    free(marks);
    return hit;
}

static bool declares_members(const struct json *s)
{
    return json_has(s, "properties") || json_has(s, "patternProperties") ||
           json_has(s, "additionalProperties");
}

bool schema_seals(struct compiler *c, const struct sum *s)
{
    int32_t n = s->parts.n;
    bool *seen = malloc((size_t)n * 2 * sizeof *seen), ok = true;
    if (!seen)
        return gb_no_memory(c->b), false;
    for (int32_t i = 0; i < n && ok; i++) {
        const struct json *v = json_get(s->parts.v[i].s, "unevaluatedProperties");
        if (json_type(v) != JSON_BOOL || json_bool(v))
            continue;
        memset(seen, 0, (size_t)n * 2 * sizeof *seen);
        seen[i] = true;
        spread(c, s->parts.v, n, seen);
        for (int32_t k = 0; k < n && ok; k++)
            if (!seen[k] && declares_members(s->parts.v[k].s))
                ok = schema_refuse(c, "unevaluatedProperties",
                                   "false is supported only where it stands around every schema "
                                   "that declares properties of the same object");
    }
    free(seen);
    return ok && c->b->st == QN_OK;
}
