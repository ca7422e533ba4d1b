/*
 * kv.c - KV memory: pages of KV_PAGE tokens over all layers, and the page table of a sequence.
 *
 * A page of a model is, per layer: K of each head, then V of each head (layouts: kernels.h). Pages
 * are handed out zeroed, because attention multiplies lanes behind the last token by zero and a
 * stale NaN would survive that. Freed pages go to a stack and are reused.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"

enum qn_status kv_setup(struct exec *ex, const struct kv_layer *layers, int32_t n_layer,
                        struct qn_err *err)
{
    struct kv_store *kv = &ex->kv;
    QN_ASSERT(!kv->layers);
    kv->type = ex->reference ? KV_F32 : KV_BF16;
    kv->n_layer = n_layer;
    kv->n_page_max = (ex->n_ctx + KV_PAGE - 1) / KV_PAGE;
    /* A late worker may pair an old position with a new row count: its look-ups must stay inside.
     */
    kv->n_page_slots = kv->n_page_max + ex->max_rows / KV_PAGE + ATTN_BLOCK / KV_PAGE + 1;
    kv->layers = calloc((size_t)n_layer, sizeof *kv->layers);
    kv->layer_off = calloc((size_t)n_layer, sizeof *kv->layer_off);
    if (!kv->layers || !kv->layer_off)
        QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for %d layers", n_layer);
    size_t elem = kv_elem_bytes(kv->type);
    for (int32_t i = 0; i < n_layer; i++) {
        const struct kv_layer *l = &layers[i];
        if (l->dk % 16 || l->dv % 16 || l->dk > HEAD_DIM_MAX || l->dv > HEAD_DIM_MAX ||
            l->dk < 16 || l->dv < 16)
            QN_FAIL(err, QN_UNSUPPORTED, "kv",
                    "layer %d: head sizes %d (keys) and %d (values); supported are multiples of 16 "
                    "up to %d",
                    i, l->dk, l->dv, HEAD_DIM_MAX);
        kv->layers[i] = *l;
        kv->layer_off[i] = kv->token_bytes * KV_PAGE;
        kv->token_bytes += (size_t)l->n_head * (size_t)(l->dk + l->dv) * elem;
    }
    kv->page_bytes = kv->token_bytes * KV_PAGE;
    kv->zero_page = mem_alloc(kv->page_bytes);
    if (!kv->zero_page)
        QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for a KV page of %zu bytes",
                kv->page_bytes);
    return QN_OK;
}

void kv_store_free(struct kv_store *kv)
{
    for (size_t i = 0; i < kv->n_free; i++)
        mem_free(kv->free_pages[i], kv->page_bytes);
    free(kv->free_pages);
    mem_free(kv->zero_page, kv->page_bytes);
    free(kv->layers);
    free(kv->layer_off);
}

size_t kv_token_bytes(const struct exec *ex)
{
    return ex->kv.token_bytes;
}

static uint8_t *page_take(struct kv_store *kv)
{
    if (!kv->n_free)
        return mem_alloc(kv->page_bytes);
    uint8_t *p = kv->free_pages[--kv->n_free];
    memset(p, 0, kv->page_bytes);
    return p;
}

static void page_give(struct kv_store *kv, uint8_t *p)
{
    if (kv->n_free == kv->cap_free) {
        size_t cap = kv->cap_free ? kv->cap_free * 2 : 64;
        uint8_t **v = realloc(kv->free_pages, cap * sizeof *v);
        if (!v) {
            mem_free(p, kv->page_bytes);
            return;
        }
        kv->free_pages = v;
        kv->cap_free = cap;
    }
    kv->free_pages[kv->n_free++] = p;
}

enum qn_status kv_seq_create(struct exec *ex, struct kv_seq **out, struct qn_err *err)
{
    struct kv_store *kv = &ex->kv;
    struct kv_seq *s = calloc(1, sizeof *s);
    uint8_t **pages = malloc((size_t)kv->n_page_slots * sizeof *pages);
    if (!s || !pages) {
        free(s);
        free(pages);
        QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for a sequence's page table");
    }
    for (int32_t i = 0; i < kv->n_page_slots; i++)
        pages[i] = kv->zero_page;
    s->pages = pages;
    *out = s;
    return QN_OK;
}

/* Pages [n_page, ...) of s go back. */
static void pages_drop(struct kv_store *kv, struct kv_seq *s, int32_t n_page)
{
    while (s->n_page > n_page) {
        uint8_t *p = s->pages[--s->n_page];
        s->pages[s->n_page] = kv->zero_page;
        page_give(kv, p);
    }
}

void kv_seq_free(struct exec *ex, struct kv_seq *s)
{
    if (!s)
        return;
    pool_quiesce(ex->pool);
    pages_drop(&ex->kv, s, 0);
    free(s->pages);
    free(s);
}

int32_t kv_seq_len(const struct kv_seq *s)
{
    return s->len;
}

void kv_seq_truncate(struct exec *ex, struct kv_seq *s, int32_t n)
{
    QN_ASSERT(n >= 0 && n <= s->len);
    pool_quiesce(ex->pool);
    s->len = n;
    pages_drop(&ex->kv, s, (n + KV_PAGE - 1) / KV_PAGE);
}

enum qn_status kv_seq_grow(struct exec *ex, struct kv_seq *s, int32_t n, struct qn_err *err)
{
    int32_t had = s->n_page, want = (s->len + n + KV_PAGE - 1) / KV_PAGE;
    if (n > ex->n_ctx - s->len)
        QN_FAIL(err, QN_BAD_INPUT, "kv",
                "context full: %d tokens held and %d more; one sequence holds %d", s->len, n,
                ex->n_ctx);
    while (s->n_page < want) {
        uint8_t *p = page_take(&ex->kv);
        if (!p) {
            pages_drop(&ex->kv, s, had);
            QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for %d KV pages of %zu bytes",
                    want - had, ex->kv.page_bytes);
        }
        s->pages[s->n_page++] = p;
    }
    s->pending = n;
    return QN_OK;
}
