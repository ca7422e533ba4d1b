/*
 * inspect_census.c - see inspect_census.h.
 *
 * A module is quantized when NAME.scales is there; its bits, group and inputs follow from the
 * shapes and config.json by the loader's rule (quant_guess).
 */
#include "cli/inspect_census.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/loader.h"

static const struct str dot_weight = {".weight", 7};

static int by_name(const void *a, const void *b)
{
    const struct str *x = a;
    const struct census_tensor *y = b;
    size_t n = x->n < y->name.n ? x->n : y->name.n;
    int d = memcmp(x->p, y->name.p, n);
    return d ? d : (x->n > y->name.n) - (x->n < y->name.n);
}

/* The tensor STEM + tail, or NULL. */
static const struct census_tensor *sibling(const struct census_tensor *all, size_t n,
                                           struct str stem, const char *tail)
{
    char name[512];
    int len = snprintf(name, sizeof name, STR_FMT "%s", STR_ARG(stem), tail);
    if (len < 0 || (size_t)len >= sizeof name)
        return NULL;
    struct str key = {name, (size_t)len};
    return bsearch(&key, all, n, sizeof *all, by_name);
}

static struct str stem_of(struct str name, const char *tail)
{
    struct str t = str_of(tail);
    return str_ends(name, t) ? (struct str){name.p, name.n - t.n} : (struct str){NULL, 0};
}

/* True for .scales, .biases and .global_scale of a weight that is here: counted with it. */
static bool is_part(const struct census_tensor *all, size_t n, const struct census_tensor *t)
{
    static const char *const tails[] = {".scales", ".biases", ".global_scale"};
    for (int i = 0; i < 3; i++) {
        struct str stem = stem_of(t->name, tails[i]);
        if (stem.p && sibling(all, n, stem, ".weight") && sibling(all, n, stem, ".scales"))
            return true;
    }
    return false;
}

void census_shape_text(const int64_t *shape, int n_dim, struct buf *out)
{
    for (int i = 0; i < n_dim; i++)
        buf_addf(out, "%s%lld", i ? " x " : "", (long long)shape[i]);
    if (n_dim == 0)
        buf_addz(out, "scalar");
}

static enum qn_status product(const struct census_tensor *t, const int64_t *shape, int64_t *out,
                              struct qn_err *err)
{
    int64_t p = 1;
    for (int i = 0; i < t->n_dim; i++)
        if (__builtin_mul_overflow(p, shape[i], &p))
            QN_FAIL(err, QN_BAD_INPUT, "inspect",
                    "%s: " STR_FMT ": its shape has too many elements", t->file, STR_ARG(t->name));
    *out = p;
    return QN_OK;
}

static enum qn_status misfit(const struct census_tensor *w, const struct census_tensor *s,
                             const char *why, struct qn_err *err)
{
    struct buf a = BUF_INIT, b = BUF_INIT;
    census_shape_text(w->shape, w->n_dim, &a);
    census_shape_text(s->shape, s->n_dim, &b);
    enum qn_status st = err_set(err, QN_BAD_INPUT, "inspect",
                                "%s: " STR_FMT ": %s (weight %s of %s, scales %s of %s)", w->file,
                                STR_ARG(w->name), why, buf_z(&a), w->dtype, buf_z(&b), s->dtype);
    buf_free(&a);
    buf_free(&b);
    return st;
}

static void name_format(struct census_module *m, const struct quant_spec *q)
{
    m->bits = q->bits;
    m->group = q->group;
    if (q->format == WEIGHT_AFFINE)
        snprintf(m->format, sizeof m->format, "affine %d-bit g%d", q->bits, q->group);
    else
        snprintf(m->format, sizeof m->format, "%s", quant_mode(q->format));
}

static enum qn_status quantized(const struct census_tensor *w, const struct census_tensor *s,
                                const struct json *quantization, struct census_module *m,
                                struct qn_err *err)
{
    if (strcmp(w->dtype, "U32") != 0)
        return misfit(w, s, "a weight with scales must be packed in U32 words", err);
    if (w->n_dim < 2 || s->n_dim != w->n_dim)
        return misfit(w, s, "the scales do not have the weight's number of dimensions", err);
    for (int i = 0; i < w->n_dim - 1; i++)
        if (w->shape[i] != s->shape[i])
            return misfit(w, s, "the scales do not have the weight's rows", err);
    struct quant_row row = {.words = w->shape[w->n_dim - 1],
                            .scales = s->shape[s->n_dim - 1],
                            .byte_scales = strcmp(s->dtype, "U8") == 0};
    struct quant_spec q = {0};
    struct qn_err why = {0};
    if (quant_guess(quantization, stem_of(w->name, dot_weight.p), &row, &q, &m->shape[m->n_dim - 1],
                    &why) != QN_OK)
        return misfit(w, s, why.msg, err);
    name_format(m, &q);
    return QN_OK;
}

static void plain(const struct census_tensor *t, struct census_module *m)
{
    size_t i = 0;
    for (; t->dtype[i] && i + 1 < sizeof m->format; i++)
        m->format[i] = (char)tolower((unsigned char)t->dtype[i]);
    m->format[i] = 0;
}

static enum qn_status add_module(const struct census_tensor *all, size_t n,
                                 const struct census_tensor *t, const struct json *quantization,
                                 struct census_module *m, struct qn_err *err)
{
    *m = (struct census_module){.name = t->name, .n_dim = t->n_dim, .bytes = t->bytes};
    m->file = t->file;
    memcpy(m->shape, t->shape, sizeof m->shape);
    struct str stem = stem_of(t->name, dot_weight.p);
    const struct census_tensor *s = stem.p ? sibling(all, n, stem, ".scales") : NULL;
    if (s) {
        QN_TRY(quantized(t, s, quantization, m, err));
        const struct census_tensor *b = sibling(all, n, stem, ".biases");
        const struct census_tensor *g = sibling(all, n, stem, ".global_scale");
        m->bytes += s->bytes + (b ? b->bytes : 0) + (g ? g->bytes : 0);
    } else {
        plain(t, m);
    }
    QN_TRY(product(t, m->shape, &m->n_weight, err));
    if (!s && m->n_weight > 0)
        m->bits = (int)(t->bytes * 8 / m->n_weight);
    return QN_OK;
}

static void count_total(struct census *c, const struct census_module *m)
{
    struct census_total *t = NULL;
    for (int i = 0; i < c->n_total && !t; i++)
        if (strcmp(c->totals[i].format, m->format) == 0)
            t = &c->totals[i];
    if (!t && c->n_total < CENSUS_FORMAT_MAX) {
        t = &c->totals[c->n_total++];
        memcpy(t->format, m->format, sizeof t->format);
    }
    c->n_weight += m->n_weight;
    c->bytes += m->bytes;
    if (!t)
        return;
    t->n_module++;
    t->n_weight += m->n_weight;
    t->bytes += m->bytes;
}

static int by_bytes(const void *a, const void *b)
{
    int64_t x = ((const struct census_total *)a)->bytes,
            y = ((const struct census_total *)b)->bytes;
    return (x < y) - (x > y);
}

enum qn_status census_take(const struct census_tensor *tensors, size_t n,
                           const struct json *quantization, struct census *out, struct qn_err *err)
{
    *out = (struct census){0};
    out->modules = calloc(n + 1, sizeof *out->modules);
    if (!out->modules)
        QN_FAIL(err, QN_NO_MEMORY, "inspect", "out of memory for %zu tensors", n);
    enum qn_status st = QN_OK;
    for (size_t i = 0; i < n && st == QN_OK; i++) {
        if (is_part(tensors, n, &tensors[i]))
            continue;
        struct census_module *m = &out->modules[out->n];
        st = add_module(tensors, n, &tensors[i], quantization, m, err);
        if (st == QN_OK) {
            out->n++;
            count_total(out, m);
        }
    }
    qsort(out->totals, (size_t)out->n_total, sizeof out->totals[0], by_bytes);
    if (st != QN_OK)
        census_free(out);
    return st;
}

void census_free(struct census *c)
{
    free(c->modules);
    *c = (struct census){0};
}
