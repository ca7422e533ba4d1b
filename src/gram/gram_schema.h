/*
 * gram_schema.h - what the files that compile JSON Schema share. A value is described by several
 * schemas at once (allOf, $ref beside other keywords, two properties of one name): a conj. Each
 * distinct conj becomes one rule, made from a work list, so nothing recurses however deep it goes.
 */
#ifndef GRAM_GRAM_SCHEMA_H
#define GRAM_GRAM_SCHEMA_H

#include "base/arena.h"
#include "gram/gram_int.h"

enum {
    T_NULL = 1,
    T_BOOL = 2,
    T_INT = 4,
    T_NUM = 8, /* with T_INT: any number */
    T_STR = 16,
    T_ARR = 32,
    T_OBJ = 64,
    T_ALL = 127
};

/* One schema of a conj; bare: without its anyOf and oneOf, which were dealt with. */
struct part_schema {
    const struct json *s;
    bool bare;
    int32_t origin; /* in a sum's parts: the one of the conj that led here */
};

struct conj {
    struct part_schema *v;
    int32_t n;
};

struct bound {
    const struct json *v;
    bool upper, open;
};

/* All keywords of a conj, put together. Lists are in arena memory or freed by sum_free. */
struct sum {
    bool never; /* false among them */
    int types;  /* allowed by "type" */
    bool typed;
    int hints;                      /* types that other keywords speak about */
    VEC(const struct json *) enums; /* arrays */
    VEC(const struct json *) consts;
    VEC(struct bound) bounds;
    VEC(const struct json *) multiples;
    VEC(struct str) patterns, formats;
    int64_t min_len, max_len, min_items, max_items, min_props, max_props; /* max -1: none */
    VEC(const struct json *) arrays, objects; /* schemas with keywords about their parts */
    VEC(struct str) required;
    VEC(const struct json *) any_of, one_of; /* arrays of alternatives */
    VEC(struct part_schema) parts;           /* every schema looked at */
    bool sealed;                             /* unevaluatedProperties: false */
};

struct job {
    struct conj c;
    int32_t rule;
    struct str where;
};

struct compiler {
    struct gb *b;
    const struct json *root;
    struct arena *mem;
    VEC(struct job) jobs; /* every conj, made or still to be */
    struct itab tab;
    int32_t done;     /* jobs made */
    int64_t steps;    /* of schema_leads_to */
    struct str where; /* of the job being made */
};

static inline bool is_schema(const struct json *v)
{
    return json_type(v) == JSON_OBJ || json_type(v) == JSON_BOOL;
}

/* All keywords of a conj, and of what it refers to, into *s, which schema_sum_free frees in either
 * case; false: the builder has the error. */
bool schema_sum(struct compiler *c, struct conj k, struct sum *s);
void schema_sum_free(struct sum *s);
/* Notes that a keyword's value is not what it must be; false. */
bool schema_bad(struct compiler *c, const char *keyword, const struct json *v,
                const char *expected);
/* Refuses what is not supported, and returns false; a lenient builder passes over it: true. */
bool schema_refuse(struct compiler *c, const char *keyword, const char *why);

/* A reference to the rule of a conj; step (may be {NULL,0}) names the way from here. */
int32_t schema_ref(struct compiler *c, struct conj k, const char *step, struct str name);
int32_t schema_string(struct compiler *c, const struct sum *s);
int32_t schema_number(struct compiler *c, const struct sum *s, bool integer);
int32_t schema_array(struct compiler *c, const struct sum *s);
int32_t schema_object(struct compiler *c, const struct sum *s);
/* The conditions that a string (number) has to meet, each a factor. narrow: a format may be
 * followed in a form with fewer texts, where that keeps to the limit on the length. */
void schema_string_factors(struct compiler *c, const struct sum *s, bool narrow, struct product *p);
bool schema_number_fits(const struct sum *s, const struct json *v);

/* What a $ref names; NULL (with a message) when it is not in the schema. */
const struct json *schema_resolve(struct compiler *c, const struct json *ref);
int schema_type_of(const struct json *v); /* T_... */
/* Equal as JSON values: 1 is 1.0, the order of members does not count. */
bool schema_same(const struct json *a, const struct json *b);
bool schema_in_list(const struct json *list, const struct json *v);
/* Refuses a oneOf whose alternatives could hold at once, together with the rest of the sum. */
void schema_one_of(struct compiler *c, const struct sum *s, const struct json *list);
/* Do keywords that apply schemas to the same value lead from one schema of a conj to another? */
bool schema_leads_to(struct compiler *c, struct conj k, int32_t from, int32_t to);
/* Refuses unevaluatedProperties: false where members are declared out of its sight. */
bool schema_seals(struct compiler *c, const struct sum *s);

/* Adds a schema to a conj that has room for it. */
static inline void conj_add(struct conj *k, const struct json *s)
{
    k->v[k->n++] = (struct part_schema){s, false, 0};
}
struct conj conj_room(struct compiler *c, int32_t n);

/* A non-negative integer keyword into *io where it is stricter. */
#define LEN_MAX 1000000000

#endif
