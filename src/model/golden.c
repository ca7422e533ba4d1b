/*
 * golden.c - see golden.h. Two spellings of keys are read: those of goldens of token ids ("prompt",
 * "greedy") and of texts ("ids", "greedy_ids").
 */
#include "model/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define JSON_BYTES_MAX ((size_t)256 << 20)

static enum qn_status read_ids(const struct json *v, const char *what, int32_t n_vocab,
                               int32_t **out, int32_t *n, struct qn_err *err)
{
    size_t len = json_len(v);
    if (v && json_type(v) != JSON_ARR)
        QN_FAIL(err, QN_BAD_INPUT, "golden", "%s is %s; expected a list of token ids", what,
                json_type_name(v));
    if (len > GOLDEN_IDS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "golden", "%s has %zu ids; at most %d", what, len,
                GOLDEN_IDS_MAX);
    *out = calloc(len + 1, sizeof **out);
    if (!*out)
        QN_FAIL(err, QN_NO_MEMORY, "golden", "out of memory for %zu ids", len);
    for (size_t i = 0; i < len; i++) {
        int64_t id = -1;
        if (!json_i64(json_at(v, i), &id) || id < 0 || id >= (n_vocab ? n_vocab : INT32_MAX))
            QN_FAIL(err, QN_BAD_INPUT, "golden",
                    "%s[%zu] is not a token id of this model (0 to %d): is the golden of another "
                    "model?",
                    what, i, (n_vocab ? n_vocab : INT32_MAX) - 1);
        (*out)[i] = (int32_t)id;
    }
    *n = (int32_t)len;
    return QN_OK;
}

/* A list of exactly n numbers; an absent list reads as zeros. */
static enum qn_status read_reals(const struct json *v, const char *what, int32_t n, double **out,
                                 struct qn_err *err)
{
    *out = calloc((size_t)n + 1, sizeof **out);
    if (!*out)
        QN_FAIL(err, QN_NO_MEMORY, "golden", "out of memory for %d numbers", n);
    if (v && json_len(v) != (size_t)n)
        QN_FAIL(err, QN_BAD_INPUT, "golden", "%s has %zu numbers; %d ids need as many", what,
                json_len(v), n);
    for (int32_t i = 0; v && i < n; i++)
        (*out)[i] = json_real(json_at(v, (size_t)i));
    return QN_OK;
}

/* The values of t where float can be read: in the file, or in *copy when they lie unaligned. */
static enum qn_status aligned(const struct st_tensor *t, const float **out, float **copy,
                              struct qn_err *err)
{
    *out = (const float *)t->data;
    if (!t->data || (uintptr_t)t->data % _Alignof(float) == 0)
        return QN_OK;
    *copy = malloc(t->bytes);
    if (!*copy)
        QN_FAIL(err, QN_NO_MEMORY, "golden", "out of memory for %zu bytes of logits", t->bytes);
    memcpy(*copy, t->data, t->bytes);
    *out = *copy;
    return QN_OK;
}

struct rows {
    const float **at;
    int32_t *n;
    float **copy;
};

/* p<i>.<kind> as [rows, n_vocab]; none when it is not there. */
static enum qn_status read_array(struct golden *g, int32_t i, const char *kind, int32_t n_vocab,
                                 const struct rows *to, struct qn_err *err)
{
    char name[64], shape[128];
    snprintf(name, sizeof name, "p%d.%s", i, kind);
    const struct st_tensor *t = g->arrays ? st_find(g->arrays, str_of(name)) : NULL;
    *to->n = 0;
    if (!t)
        return QN_OK;
    if (t->dtype != ST_F32 || t->n_dim != 2 || t->shape[0] > GOLDEN_IDS_MAX ||
        t->shape[1] > INT32_MAX || (n_vocab && t->shape[1] != n_vocab))
        QN_FAIL(err, QN_BAD_INPUT, "golden",
                "%s is %s %s; expected F32 [tokens, %d]: is the golden of another model?", name,
                t->dtype_name, st_shape_text(t, shape, sizeof shape), n_vocab);
    *to->n = (int32_t)t->shape[0];
    g->p[i].n_vocab = (int32_t)t->shape[1];
    return aligned(t, to->at, to->copy, err);
}

static const struct json *either(const struct json *v, const char *a, const char *b)
{
    const struct json *x = json_get(v, a);
    return x ? x : json_get(v, b);
}

static void read_top(const struct json *v, struct golden_prompt *p)
{
    size_t n = json_len(v);
    p->n_top = (int32_t)(n < GOLDEN_TOP_MAX ? n : GOLDEN_TOP_MAX);
    for (int32_t i = 0; i < p->n_top; i++) {
        const struct json *pair = json_at(v, (size_t)i);
        int64_t id = 0;
        json_i64(json_at(pair, 0), &id);
        p->top_id[i] = id >= 0 && id < INT32_MAX ? (int32_t)id : 0;
        p->top_logprob[i] = json_real(json_at(pair, 1));
    }
}

static enum qn_status read_prompt(struct golden *g, int32_t i, int32_t n_vocab,
                                  const struct json *v, struct qn_err *err)
{
    struct golden_prompt *p = &g->p[i];
    int32_t rows = 0;
    QN_TRY(read_ids(either(v, "prompt", "ids"), "prompt", n_vocab, &p->ids, &p->n_ids, err));
    QN_TRY(read_ids(either(v, "greedy", "greedy_ids"), "greedy", n_vocab, &p->greedy, &p->n_greedy,
                    err));
    if (p->n_ids < 1)
        QN_FAIL(err, QN_BAD_INPUT, "golden", "prompt %d has no ids", i);
    QN_TRY(read_reals(json_get(v, "margins"), "margins", p->n_greedy, &p->margins, err));
    const struct rows full = {&p->full, &rows, &p->copy[0]};
    const struct rows decode = {&p->decode, &p->n_decode, &p->copy[1]};
    QN_TRY(read_array(g, i, "full", n_vocab, &full, err));
    if (p->full && rows != p->n_ids)
        QN_FAIL(err, QN_BAD_INPUT, "golden", "p%d.full has %d rows for a prompt of %d ids", i, rows,
                p->n_ids);
    QN_TRY(read_array(g, i, "decode", n_vocab, &decode, err));
    if (p->n_decode > p->n_greedy)
        QN_FAIL(err, QN_BAD_INPUT, "golden", "p%d.decode has %d rows for %d greedy ids", i,
                p->n_decode, p->n_greedy);
    read_top(either(v, "top8", "top"), p);
    for (int32_t j = 0; n_vocab && j < p->n_top; j++)
        if (p->top_id[j] >= n_vocab)
            QN_FAIL(err, QN_BAD_INPUT, "golden", "prompt %d: top id %d; the model has %d", i,
                    p->top_id[j], n_vocab);
    return QN_OK;
}

static enum qn_status read_text(struct golden *g, int32_t n_vocab, struct qn_err *err)
{
    const struct json *text = json_get(g->doc, "text");
    if (!text)
        return QN_OK;
    QN_TRY(read_ids(json_get(text, "ids"), "text.ids", n_vocab, &g->text, &g->n_text, err));
    if (g->n_text < 2) {
        g->n_text = 0;
        return QN_OK;
    }
    return read_reals(json_get(text, "nll"), "text.nll", g->n_text - 1, &g->nll, err);
}

/* A golden may allow more than others, and says why: {"kl": 0.01, "why": "..."}. */
static enum qn_status read_limits(struct golden *g, struct qn_err *err)
{
    const struct json *v = json_get(g->doc, "limits");
    QN_TRY(json_opt_real(v, "golden: limits", "kl", 0, 0, 1000, &g->kl, err));
    QN_TRY(json_opt_str(v, "golden: limits", "why", (struct str){0}, &g->kl_why, err));
    if (g->kl > 0 && !g->kl_why.n)
        QN_FAIL(err, QN_BAD_INPUT, "golden", "limits has kl %g without its reason, \"why\"", g->kl);
    return QN_OK;
}

/* PATH without ".json". */
static void stem(struct buf *b, const char *path)
{
    struct str s = str_of(path);
    if (str_ends(s, STR_LIT(".json")))
        s.n -= 5;
    buf_add_str(b, s);
}

static enum qn_status open_files(const char *path, struct golden *g, struct qn_err *err)
{
    struct buf text = BUF_INIT, name = BUF_INIT;
    stem(&name, path);
    buf_addz(&name, ".json");
    enum qn_status st = buf_ok(&name, "path", err);
    if (st == QN_OK)
        st = file_read(buf_z(&name), JSON_BYTES_MAX, &text, err);
    if (st == QN_OK)
        st = json_parse(buf_str(&text), buf_z(&name), JSON_DEPTH_MAX, &g->doc, err);
    buf_clear(&name);
    stem(&name, path);
    buf_addz(&name, ".safetensors");
    if (st == QN_OK)
        st = buf_ok(&name, "path", err);
    if (st == QN_OK && file_exists(buf_z(&name)))
        st = st_open_file(buf_z(&name), &g->arrays, err);
    buf_free(&text);
    buf_free(&name);
    return st;
}

enum qn_status golden_open(const char *path, int32_t n_vocab, struct golden *g, struct qn_err *err)
{
    *g = (struct golden){0};
    enum qn_status st = open_files(path, g, err);
    const struct json *prompts = st == QN_OK ? json_get(g->doc, "prompts") : NULL;
    size_t n = json_len(prompts);
    if (st == QN_OK && (n < 1 || n > GOLDEN_PROMPTS_MAX))
        st = err_set(err, QN_BAD_INPUT, "golden",
                     "%s: \"prompts\" has %zu entries; expected 1 to %d (docs/parity.md)", path, n,
                     GOLDEN_PROMPTS_MAX);
    for (size_t i = 0; st == QN_OK && i < n; i++) {
        g->n = (int32_t)i + 1;
        st = read_prompt(g, (int32_t)i, n_vocab, json_at(prompts, i), err);
    }
    if (st == QN_OK)
        st = read_text(g, n_vocab, err);
    if (st == QN_OK)
        st = read_limits(g, err);
    if (st != QN_OK)
        golden_close(g);
    return st;
}

void golden_close(struct golden *g)
{
    for (int32_t i = 0; i < g->n; i++) {
        free(g->p[i].ids);
        free(g->p[i].greedy);
        free(g->p[i].margins);
        free(g->p[i].copy[0]);
        free(g->p[i].copy[1]);
    }
    free(g->text);
    free(g->nll);
    st_free(g->arrays);
    json_free(g->doc);
    *g = (struct golden){0};
}
