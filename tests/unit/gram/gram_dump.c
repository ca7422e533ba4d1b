/*
 * gram_dump.c - answers for the differential test against other packages
 * (tests/oracle/test_gram_diff.py). Reads one JSON object a line from standard input:
 *   {"kind": "schema"|"object"|"regex"|"choice"|"gbnf", "spec": ..., "texts": [...],
 *    "vocab": [...]?, "masks": [ids before the mask, ...]?, "walks": n?, "seed": s?}
 * and writes one a line: {"error": ...} or {"accept": [bool...], "masks": [[ids...]...],
 * "outputs": [text...]}; outputs are n random walks through the masks.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/rng.h"
#include "gram/gram.h"

struct vocab {
    struct gram_vocab *v;
    struct gram_token *t;
    int32_t n;
};

static bool spec_of(const struct json *o, struct gram_spec *s)
{
    static const struct {
        const char *name;
        enum gram_kind kind;
    } kinds[] = {{"schema", GRAM_JSON_SCHEMA},
                 {"object", GRAM_JSON_OBJECT},
                 {"regex", GRAM_REGEX},
                 {"choice", GRAM_CHOICE},
                 {"gbnf", GRAM_GBNF}};
    *s = (struct gram_spec){.json = json_get(o, "spec"), .text = json_str(json_get(o, "spec"))};
    s->compact = json_bool(json_get(o, "compact"));
    s->lenient = json_bool(json_get(o, "lenient"));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (str_eqz(json_str(json_get(o, "kind")), kinds[i].name)) {
            s->kind = kinds[i].kind;
            return true;
        }
    return false;
}

/* The last vocabulary is kept: lines of one run mostly share it. The tokens are texts whose
 * characters U+0000 to U+00FF stand for bytes. */
static void read_vocab(struct vocab *v, const struct json *list)
{
    struct buf text = BUF_INIT;
    v->n = (int32_t)json_len(list);
    v->t = calloc((size_t)v->n + 1, sizeof *v->t);
    QN_ASSERT(v->t);
    for (int32_t i = 0; i < v->n; i++) {
        struct str s = json_str(json_at(list, (size_t)i));
        size_t from = text.n;
        for (size_t k = 0; k < s.n; k++) {
            unsigned c = (unsigned char)s.p[k];
            if (c >= 0xC0 && k + 1 < s.n)
                c = (c & 3) << 6 | ((unsigned char)s.p[++k] & 63);
            buf_addc(&text, (char)c);
        }
        v->t[i].bytes.n = text.n - from;
    }
    size_t at = 0;
    for (int32_t i = 0; i < v->n; i++) {
        v->t[i].bytes.p = text.p + at;
        at += v->t[i].bytes.n;
    }
    QN_ASSERT(gram_vocab_create(v->t, v->n, &v->v, NULL) == QN_OK);
    v->t[0].bytes.p = text.p; /* kept to the end of the program */
}

static void write_mask(struct jw *w, struct gram_run *r, int32_t n)
{
    const uint64_t *bits;
    jw_arr(w);
    if (gram_run_mask(r, &bits, NULL) == QN_OK)
        for (int32_t i = 0; i < n; i++)
            if (bits[i / 64] >> (i % 64) & 1)
                jw_i64(w, i);
    jw_arr_end(w);
}

static void masks(struct jw *w, struct gram *g, const struct vocab *v, const struct json *list)
{
    int32_t eos = v->n - 1;
    jw_key(w, "masks");
    jw_arr(w);
    for (size_t i = 0; i < json_len(list); i++) {
        const struct json *ids = json_at(list, i);
        struct gram_run *r = NULL;
        QN_ASSERT(gram_run_create(g, v->v, &eos, 1, &r, NULL) == QN_OK);
        bool ok = true;
        for (size_t k = 0; ok && k < json_len(ids); k++) {
            int64_t id = -1;
            json_i64(json_at(ids, k), &id);
            ok = gram_run_accept(r, (int32_t)id, NULL) == QN_OK;
        }
        if (ok)
            write_mask(w, r, v->n);
        else
            jw_null(w);
        gram_run_free(r);
    }
    jw_arr_end(w);
}

/* A random answer: tokens drawn evenly from the mask, EOS preferred after a while. False: stuck. */
static bool random_walk(struct gram *g, const struct vocab *v, uint64_t seed, struct buf *out)
{
    struct gram_run *r = NULL;
    int32_t eos = v->n - 1;
    bool done = false;
    QN_ASSERT(gram_run_create(g, v->v, &eos, 1, &r, NULL) == QN_OK);
    for (uint64_t step = 0; step < 3000 && !done; step++) {
        const uint64_t *bits;
        int32_t pick = -1, seen = 0;
        if (gram_run_must_stop(r)) {
            done = true;
            break;
        }
        if (gram_run_mask(r, &bits, NULL) != QN_OK)
            break;
        bool end = bits[eos / 64] >> (eos % 64) & 1;
        if (end && (step > 60 || rng_unit(seed, 2, step) < 0.3)) {
            done = true;
            break;
        }
        for (int32_t i = 0; i < v->n - 1; i++)
            if (bits[i / 64] >> (i % 64) & 1) {
                /* what closes things is likelier later on, so that walks end */
                char c = v->t[i].bytes.n ? v->t[i].bytes.p[v->t[i].bytes.n - 1] : 0;
                int32_t weight = step > 40 && (c == '"' || c == '}' || c == ']') ? 2000 : 1;
                seen += weight;
                if (rng_unit(seed, step + 10, (uint64_t)i) * seen < weight)
                    pick = i;
            }
        if (pick < 0 || gram_run_accept(r, pick, NULL) != QN_OK)
            break;
        buf_add_str(out, v->t[pick].bytes);
    }
    gram_run_free(r);
    return done;
}

static void walks(struct jw *w, struct gram *g, const struct vocab *v, const struct json *o)
{
    int64_t n = 0, seed = 1;
    json_i64(json_get(o, "walks"), &n);
    json_i64(json_get(o, "seed"), &seed);
    jw_key(w, "outputs");
    jw_arr(w);
    for (int64_t i = 0; i < n; i++) {
        struct buf out = BUF_INIT;
        if (random_walk(g, v, (uint64_t)(seed * 1000 + i), &out))
            jw_str(w, buf_str(&out));
        else
            jw_null(w);
        buf_free(&out);
    }
    jw_arr_end(w);
}

static void answer(const struct json *o, struct vocab *v, struct buf *out)
{
    struct gram_spec spec;
    struct gram *g = NULL;
    struct gram_fault fault = {0};
    struct qn_err err = {0};
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    int64_t from = clock_us();
    if (!spec_of(o, &spec)) {
        jw_kstrz(&w, "error", "unknown kind");
    } else if (gram_compile(&spec, &g, &fault, &err) != QN_OK) {
        jw_kstrz(&w, "error", err.msg);
        jw_kstrz(&w, "keyword", fault.keyword);
        jw_kstrz(&w, "where", fault.where);
    } else {
        jw_ki64(&w, "compile_us", clock_us() - from);
        const struct json *texts = json_get(o, "texts");
        jw_key(&w, "accept");
        jw_arr(&w);
        for (size_t i = 0; i < json_len(texts); i++) {
            bool whole;
            gram_match(g, json_str(json_at(texts, i)), &whole);
            jw_bool(&w, whole);
        }
        jw_arr_end(&w);
        if (json_has(o, "vocab"))
            read_vocab(v, json_get(o, "vocab"));
        if (v->v) {
            masks(&w, g, v, json_get(o, "masks"));
            walks(&w, g, v, o);
        }
    }
    jw_obj_end(&w);
    gram_unref(g);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    struct vocab v = {0};
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct json *o = NULL;
        struct qn_err err = {0};
        struct buf out = BUF_INIT;
        if (json_parse((struct str){line, (size_t)n}, "line", 1000, &o, &err) != QN_OK)
            buf_addf(&out, "{\"error\":\"bad line: %s\"}", err.msg);
        else
            answer(o, &v, &out);
        puts(buf_z(&out));
        fflush(stdout);
        buf_free(&out);
        json_free(o);
    }
    free(line);
    return 0;
}
