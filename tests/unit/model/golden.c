/*
 * golden.c - see golden.h.
 */
#include "golden.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

static const float *array(const struct golden *g, int32_t *rows, int32_t *cols, const char *fmt,
                          int32_t i)
{
    char name[64];
    snprintf(name, sizeof name, fmt, i);
    const struct st_tensor *t = st_find(g->arrays, str_of(name));
    if (!t || t->dtype != ST_F32 || t->n_dim != 2)
        return NULL;
    *rows = (int32_t)t->shape[0];
    *cols = (int32_t)t->shape[1];
    return (const float *)t->data;
}

static int32_t ints(const struct json *v, int32_t **out)
{
    int32_t n = (int32_t)json_len(v);
    *out = calloc((size_t)n + 1, sizeof **out);
    for (int32_t i = 0; i < n; i++)
        (*out)[i] = (int32_t)json_real(json_at(v, (size_t)i));
    return n;
}

static void read_prompt(struct golden *g, int32_t i, const struct json *v)
{
    struct golden_prompt *p = &g->p[i];
    int32_t rows = 0;
    p->n_ids = ints(json_get(v, "prompt"), &p->ids);
    p->n_greedy = ints(json_get(v, "greedy"), &p->greedy);
    const struct json *m = json_get(v, "margins");
    p->margins = calloc((size_t)p->n_greedy + 1, sizeof *p->margins);
    for (int32_t j = 0; j < p->n_greedy; j++)
        p->margins[j] = json_real(json_at(m, (size_t)j));
    p->full = array(g, &rows, &p->n_vocab, "p%d.full", i);
    p->decode = array(g, &p->n_decode, &p->n_vocab, "p%d.decode", i);
}

enum qn_status golden_open(const char *dir, const char *name, struct golden *g, struct qn_err *err)
{
    char path[1024];
    struct buf text = BUF_INIT;
    *g = (struct golden){0};
    snprintf(path, sizeof path, "%s/%s.json", dir, name);
    enum qn_status st = file_read(path, 64 << 20, &text, err);
    if (st == QN_OK)
        st = json_parse(buf_str(&text), path, JSON_DEPTH_MAX, &g->doc, err);
    buf_free(&text);
    snprintf(path, sizeof path, "%s/%s.safetensors", dir, name);
    if (st == QN_OK)
        st = st_open_file(path, &g->arrays, err);
    if (st != QN_OK) {
        golden_close(g);
        return st;
    }
    const struct json *prompts = json_get(g->doc, "prompts");
    g->n = (int32_t)json_len(prompts);
    if (g->n > GOLDEN_PROMPTS_MAX)
        g->n = GOLDEN_PROMPTS_MAX;
    for (int32_t i = 0; i < g->n; i++)
        read_prompt(g, i, json_at(prompts, (size_t)i));
    return QN_OK;
}

void golden_close(struct golden *g)
{
    for (int32_t i = 0; i < g->n; i++) {
        free(g->p[i].ids);
        free(g->p[i].greedy);
        free(g->p[i].margins);
    }
    st_free(g->arrays);
    json_free(g->doc);
    *g = (struct golden){0};
}
