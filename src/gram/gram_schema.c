/*
 * gram_schema.c - JSON Schema: each set of schemas that describes a value becomes a rule. Their
 * keywords come put together (gram_keywords.c); alternatives are multiplied out, lists of values
 * are sifted, and the rest goes to the type's own file. See gram_schema.h for how nothing recurses.
 */
#include "gram/gram_schema.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"

#define UNION_MAX  512 /* combinations of anyOf and oneOf in one place */
#define ENUM_BYTES (8 << 20)

struct conj conj_room(struct compiler *c, int32_t n)
{
    struct conj k = {arena_alloc(c->mem, ((size_t)n + 1) * sizeof *k.v), 0};
    if (!k.v)
        gb_no_memory(c->b);
    return k;
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

/* ---- enum and const -------------------------------------------------------------------------- */

/* Does a value of enum or const meet the other keywords? */
static bool fits(struct compiler *c, const struct sum *s, const struct json *v, struct product *p)
{
    int type = schema_type_of(v);
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
    schema_string_factors(c, s, false, &p);
    for (size_t i = 0; i < n && b->st == QN_OK; i++) {
        const struct json *x = s->consts.n ? s->consts.v[0] : json_at(list, i);
        bool in = fits(c, s, x, &p);
        for (int32_t k = 0; in && k < s->consts.n; k++)
            in = schema_same(x, s->consts.v[k]);
        for (int32_t k = s->consts.n ? 0 : 1; in && k < s->enums.n; k++)
            in = schema_in_list(s->enums.v[k], x);
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

/* Every way to choose one alternative of each anyOf and oneOf. */
static int32_t unions(struct compiler *c, const struct sum *s)
{
    struct gb *b = c->b;
    const struct json *lists[16];
    int32_t n_list = 0;
    int64_t ways = 1;
    for (int32_t i = 0; i < s->one_of.n && !b->lenient && b->st == QN_OK; i++)
        schema_one_of(c, s, s->one_of.v[i]);
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
            k.v[k.n++] = (struct part_schema){s->parts.v[i].s, true, 0};
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
    if (schema_sum(c, k, &s)) {
        if (s.never || (s.any_of.n == 0 && s.one_of.n == 0 && s.enums.n == 0 && s.consts.n == 0))
            x = typed_value(c, &s);
        else if (s.any_of.n || s.one_of.n)
            x = unions(c, &s);
        else
            x = literals(c, &s);
    }
    schema_sum_free(&s);
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
    struct part_schema p = {schema, false, 0};
    if (!c.mem)
        return gb_no_memory(b);
    if (!is_schema(schema)) {
        schema_bad(&c, "schema", schema, "an object");
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
