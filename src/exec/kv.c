/*
 * kv.c - KV memory: pages of KV_PAGE tokens over all layers, and the page table of a sequence.
 *
 * A page of a model is, per layer: K of each head, then V of each head (layouts: kernels.h). Pages
 * are handed out zeroed, because attention multiplies lanes behind the last token by zero and a
 * stale NaN would survive that. Freed pages go to a stack and are reused.
 *
 * Layers of a gated delta net have no part in pages: their recurrent state lies beside them, twice,
 * because a step may not change what it reads. Per layer: [taps-1][channels] inputs of the
 * convolution, oldest first, then S of each value head (kernels.h).
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"

/* Floats of a layer's recurrent state. */
static size_t state_floats(const struct delta_shape *d)
{
    return (size_t)(d->taps - 1) * (size_t)delta_channels(d) +
           (size_t)d->n_v * (size_t)d->dk * (size_t)d->dv;
}

static bool head_fits(int32_t d, int32_t max)
{
    return d >= 16 && d <= max && d % 16 == 0;
}

static enum qn_status check_layer(const struct kv_layer *l, int32_t i, struct qn_err *err)
{
    const struct delta_shape *d = &l->delta;
    if (l->n_head &&
        (!head_fits(l->dk, HEAD_DIM_MAX) || (l->dv && !head_fits(l->dv, HEAD_DIM_MAX))))
        QN_FAIL(err, QN_UNSUPPORTED, "kv",
                "layer %d: head sizes %d (keys) and %d (values); supported are multiples of 16 "
                "up to %d",
                i, l->dk, l->dv, HEAD_DIM_MAX);
    if (!d->n_v)
        return QN_OK;
    if (!head_fits(d->dk, DELTA_HEAD_MAX) || !head_fits(d->dv, DELTA_HEAD_MAX))
        QN_FAIL(err, QN_UNSUPPORTED, "kv",
                "layer %d: recurrent heads of %d (keys) and %d (values); supported are multiples "
                "of 16 up to %d",
                i, d->dk, d->dv, DELTA_HEAD_MAX);
    if (d->n_k < 1 || d->n_k > 1024 || d->n_v > 1024 || d->n_v % d->n_k || d->taps < 1 ||
        d->taps > DELTA_TAPS_MAX)
        QN_FAIL(err, QN_UNSUPPORTED, "kv",
                "layer %d: %d value heads over %d key heads and a convolution of %d; value heads "
                "must be a multiple of key heads, a convolution has 1 to %d taps",
                i, d->n_v, d->n_k, d->taps, DELTA_TAPS_MAX);
    return QN_OK;
}

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
        QN_TRY(check_layer(l, i, err));
        kv->layers[i] = *l;
        if (l->delta.n_v) {
            QN_ASSERT(!l->n_head); /* one offset serves either */
            kv->layer_off[i] = kv->state_bytes;
            kv->state_bytes += state_floats(&l->delta) * sizeof(float);
            continue;
        }
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

size_t kv_state_bytes(const struct exec *ex)
{
    return ex->kv.state_bytes;
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
    for (int i = 0; i < 2 && kv->state_bytes; i++) {
        s->state[i] = mem_alloc(kv->state_bytes);
        if (!s->state[i]) {
            kv_seq_free(ex, s);
            QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for a recurrent state of %zu bytes",
                    kv->state_bytes);
        }
    }
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
    for (int i = 0; i < 2; i++)
        mem_free(s->state[i], ex->kv.state_bytes);
    free(s->pages);
    free(s);
}

int32_t kv_seq_len(const struct kv_seq *s)
{
    return s->len;
}

bool kv_seq_can_truncate(const struct exec *ex, const struct kv_seq *s, int32_t n)
{
    return n == s->len || n == 0 || ex->kv.state_bytes == 0;
}

void kv_seq_truncate(struct exec *ex, struct kv_seq *s, int32_t n)
{
    QN_ASSERT(n >= 0 && n <= s->len && kv_seq_can_truncate(ex, s, n));
    pool_quiesce(ex->pool);
    if (n < s->len && s->state[0])
        memset(s->state[s->now], 0, ex->kv.state_bytes);
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
