/*
 * kv.c - the store of KV memory: groups of layers that forget alike, their pages, recurrent states,
 * and the accounts.
 *
 * A page of a group is, per layer of it: K of each head, then V of each head, or the latent that is
 * both (layouts: kernels.h, kvq.h). Latents in few bits lie as K and V.
 * Pages are handed out zeroed, because attention multiplies lanes behind the last token by zero and
 * a stale NaN would survive that. A page nobody holds goes to its group's stack for reuse; past a
 * bound it goes back to the system, behind a quiesce, because a late worker may still read it.
 *
 * Layers of a gated delta net have no part in pages: their recurrent state lies apart. Per layer:
 * [taps-1][channels] inputs of the convolution, oldest first, then S of each value head.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec_int.h"
#include "kernels/kvq.h"

enum { FREE_MAX_BYTES = 64 << 20 };

static bool head_fits(int32_t d, int32_t max)
{
    return d >= 16 && d <= max && d % 16 == 0;
}

static bool bits_known(int bits)
{
    return (bits >= 2 && bits <= 6) || bits == 8;
}

static enum qn_status check_form(const struct kv_layer *l, int32_t i, struct qn_err *err)
{
    const struct kv_form *f = &l->form;
    if (!bits_known(f->k_bits) || !bits_known(f->v_bits))
        QN_FAIL(err, QN_UNSUPPORTED, "kv",
                "layer %d: KV memory in %d and %d bits; possible are 2, 3, 4, 5, 6 and 8", i,
                f->k_bits, f->v_bits);
    if (f->group != 32 && f->group != 64 && f->group != 128)
        QN_FAIL(err, QN_UNSUPPORTED, "kv",
                "layer %d: KV memory in groups of %d; possible are 32, 64 and 128", i, f->group);
    if (l->dk % f->group || l->dv % f->group)
        QN_FAIL(err, QN_UNSUPPORTED, "kv",
                "layer %d: head sizes %d (keys) and %d (values) are no multiples of the KV "
                "format's group of %d: keep this model's KV memory unquantized",
                i, l->dk, l->dv, f->group);
    if (f->rotated && !kv_sign(l->dv))
        QN_FAIL(err, QN_UNSUPPORTED, "kv",
                "layer %d: value heads of %d; the rotation of values needs 64, 128, 256 or 512: "
                "take 8 or 4 bits without rotation",
                i, l->dv);
    return QN_OK;
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
    if (l->n_head && l->form.k_bits)
        QN_TRY(check_form(l, i, err));
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

/* ---- groups -----------------------------------------------------------------------------------
 */

/* The group of a window. Past KV_GROUP_MAX different ones the rest goes where everything is kept:
 * keeping more than a window is always right. */
static int32_t group_of(struct kv_store *kv, int32_t window)
{
    for (int32_t g = 0; g < kv->n_group; g++)
        if (kv->groups[g].window == window)
            return g;
    if (kv->n_group == KV_GROUP_MAX) {
        if (window)
            return group_of(kv, 0);
        kv->groups[0].window = 0;
        return 0;
    }
    kv->groups[kv->n_group].window = window;
    return kv->n_group++;
}

static enum qn_status place_layer(struct kv_store *kv, const struct kv_layer *l, int32_t i,
                                  struct qn_err *err)
{
    QN_TRY(check_layer(l, i, err));
    kv->layers[i] = *l;
    if (l->delta.n_v) {
        QN_ASSERT(!l->n_head); /* one offset serves either */
        kv->layer_off[i] = kv->state_bytes;
        kv->state_bytes += delta_state_floats(&l->delta) * sizeof(float);
        return QN_OK;
    }
    enum kv_type type = l->form.k_bits ? KV_CODED : kv->type;
    bool latent = l->latent && type != KV_CODED;
    QN_ASSERT(!latent || (l->n_head == 1 && l->dv <= l->dk && !l->window));
    kv->layers[i].latent = latent;
    size_t bytes =
        kv_key_bytes(type, &l->form, l->dk) + (latent ? 0 : kv_value_bytes(type, &l->form, l->dv));
    bytes = (size_t)l->n_head * (bytes / KV_PAGE);
    int32_t g = bytes ? group_of(kv, l->window) : 0;
    kv->layer_group[i] = (int8_t)g;
    kv->layer_off[i] = kv->groups[g].token_bytes * KV_PAGE;
    kv->groups[g].token_bytes += bytes;
    kv->token_bytes += bytes;
    return QN_OK;
}

static enum qn_status zero_memory(struct exec *ex, struct qn_err *err)
{
    struct kv_store *kv = &ex->kv;
    for (int32_t g = 0; g < kv->n_group; g++) {
        struct kv_group *k = &kv->groups[g];
        k->page_bytes = k->token_bytes * KV_PAGE;
        k->zero_page = mem_alloc(k->page_bytes);
        if (!k->zero_page)
            QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for a KV page of %zu bytes",
                    k->page_bytes);
    }
    if (!kv->state_bytes)
        return QN_OK;
    kv->zero_state = kv_state_take(ex);
    if (!kv->zero_state)
        QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for a recurrent state of %zu bytes",
                kv->state_bytes);
    kv->used_bytes = 0;
    return QN_OK;
}

/* Room for what is known of n layers. */
static enum qn_status create_layers(struct kv_store *kv, int32_t n, struct qn_err *err)
{
    QN_ASSERT(!kv->layers);
    kv->n_layer = n;
    kv->layers = calloc((size_t)n, sizeof *kv->layers);
    kv->layer_off = calloc((size_t)n, sizeof *kv->layer_off);
    kv->layer_group = calloc((size_t)n, sizeof *kv->layer_group);
    if (!kv->layers || !kv->layer_off || !kv->layer_group)
        QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for %d layers", n);
    return QN_OK;
}

static enum qn_status create_tiles(struct exec *ex, struct qn_err *err)
{
    for (int32_t g = 0; g < ex->kv.n_group; g++) {
        ex->step.tiles[g] = calloc((size_t)ex->max_rows, sizeof *ex->step.tiles[g]);
        if (!ex->step.tiles[g])
            QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for steps of %d rows", ex->max_rows);
    }
    return QN_OK;
}

enum qn_status kv_setup(struct exec *ex, const struct kv_layer *layers, int32_t n_layer,
                        struct qn_err *err)
{
    struct kv_store *kv = &ex->kv;
    kv->type = ex->reference ? KV_F32 : KV_BF16;
    kv->n_page_max = kv_pages(ex->n_ctx);
    /* A late worker may pair an old position with a new row count: its look-ups must stay inside.
     */
    kv->n_page_slots = kv->n_page_max + ex->max_rows / KV_PAGE + ATTN_BLOCK / KV_PAGE + 1;
    kv->free_max_bytes = FREE_MAX_BYTES;
    QN_TRY(create_layers(kv, n_layer, err));
    for (int32_t i = 0; i < n_layer; i++)
        QN_TRY(place_layer(kv, &layers[i], i, err));
    QN_TRY(create_tiles(ex, err));
    return zero_memory(ex, err);
}

/* Where things lie in pages; the groups' bytes stay 0, because ex has no pages. */
enum qn_status kv_borrow(struct exec *ex, const struct exec *of, struct qn_err *err)
{
    const struct kv_store *from = &of->kv;
    struct kv_store *kv = &ex->kv;
    size_t n = (size_t)from->n_layer;
    QN_ASSERT(from->layers && ex->pool == of->pool && ex->max_rows <= of->max_rows);
    QN_TRY(create_layers(kv, from->n_layer, err));
    memcpy(kv->layers, from->layers, n * sizeof *kv->layers);
    memcpy(kv->layer_off, from->layer_off, n * sizeof *kv->layer_off);
    memcpy(kv->layer_group, from->layer_group, n * sizeof *kv->layer_group);
    kv->type = from->type;
    kv->n_group = from->n_group;
    for (int32_t g = 0; g < kv->n_group; g++)
        kv->groups[g].window = from->groups[g].window;
    return create_tiles(ex, err);
}

static void page_free(struct kv_store *kv, int32_t g, struct kv_page *p)
{
    slab_give(&kv->groups[g].slabs, p->data, kv->groups[g].page_bytes);
    free(p);
}

static void state_free(struct kv_store *kv, struct kv_state *st)
{
    mem_free(st->data, kv->state_bytes);
    free(st);
}

/* Until at most `bytes` are kept for reuse. */
static void trim(struct exec *ex, int64_t bytes)
{
    struct kv_store *kv = &ex->kv;
    if (kv->free_bytes <= bytes)
        return;
    pool_quiesce(ex->pool);
    while (kv->n_spare && kv->free_bytes > bytes) {
        state_free(kv, kv->spare[--kv->n_spare]);
        kv->free_bytes -= (int64_t)kv->state_bytes;
    }
    for (int32_t g = 0; g < kv->n_group; g++) {
        struct kv_group *k = &kv->groups[g];
        while (k->n_free && kv->free_bytes > bytes) {
            page_free(kv, g, k->free[--k->n_free]);
            kv->free_bytes -= (int64_t)k->page_bytes;
        }
    }
}

void kv_store_free(struct exec *ex)
{
    struct kv_store *kv = &ex->kv;
    for (int32_t g = 0; g < kv->n_group; g++) {
        struct kv_group *k = &kv->groups[g];
        while (k->n_free)
            page_free(kv, g, k->free[--k->n_free]);
        free(k->free);
        mem_free(k->zero_page, k->page_bytes);
    }
    while (kv->n_spare)
        state_free(kv, kv->spare[--kv->n_spare]);
    if (kv->zero_state)
        state_free(kv, kv->zero_state);
    free(kv->spare);
    free(kv->layers);
    free(kv->layer_off);
    free(kv->layer_group);
}

/* ---- pages and states -------------------------------------------------------------------------
 */

/* Room in the budget for `bytes` more: what is kept for reuse elsewhere counts too. */
static void make_room(struct exec *ex, size_t bytes)
{
    const struct kv_store *kv = &ex->kv;
    if (kv->budget_bytes)
        trim(ex, kv->budget_bytes - kv->used_bytes - (int64_t)bytes);
}

/* Only a cache holds it. */
static bool idle(int32_t refs, int32_t cached)
{
    return cached && refs == cached;
}

/* References change by `refs`, those of a cache by `cached`. */
static void count_refs(struct exec *ex, int32_t *n, int32_t *n_cached, int32_t refs, int32_t cached,
                       size_t bytes)
{
    bool was = idle(*n, *n_cached);
    *n += refs;
    *n_cached += cached;
    QN_ASSERT(*n >= *n_cached && *n_cached >= 0);
    ex->kv.idle_bytes += ((int64_t)idle(*n, *n_cached) - was) * (int64_t)bytes;
}

void kv_page_share(struct exec *ex, int32_t g, struct kv_page *p, int32_t slots)
{
    count_refs(ex, &p->refs, &p->cached, 1, 0, ex->kv.groups[g].page_bytes);
    if (p->claimed < slots)
        p->claimed = slots;
}

void kv_page_cache(struct exec *ex, int32_t g, struct kv_page *p, int32_t by)
{
    count_refs(ex, &p->refs, &p->cached, 0, by, ex->kv.groups[g].page_bytes);
}

void kv_state_share(struct exec *ex, struct kv_state *st)
{
    count_refs(ex, &st->refs, &st->cached, 1, 0, ex->kv.state_bytes);
}

void kv_state_cache(struct exec *ex, struct kv_state *st, int32_t by)
{
    count_refs(ex, &st->refs, &st->cached, 0, by, ex->kv.state_bytes);
}

struct kv_page *kv_page_take(struct exec *ex, int32_t g)
{
    struct kv_store *kv = &ex->kv;
    struct kv_group *k = &kv->groups[g];
    struct kv_page *p;
    if (k->n_free) {
        p = k->free[--k->n_free];
        kv->free_bytes -= (int64_t)k->page_bytes;
        memset(p->data, 0, k->page_bytes);
    } else {
        make_room(ex, k->page_bytes);
        p = malloc(sizeof *p);
        uint8_t *data = p ? slab_take(&k->slabs, k->page_bytes) : NULL;
        if (!data) {
            free(p);
            return NULL;
        }
        p->data = data;
    }
    p->refs = 1;
    p->cached = p->claimed = 0;
    p->writer = NULL;
    kv->used_bytes += (int64_t)k->page_bytes;
    return p;
}

void kv_page_give(struct exec *ex, int32_t g, struct kv_page *p)
{
    struct kv_store *kv = &ex->kv;
    struct kv_group *k = &kv->groups[g];
    QN_ASSERT(p->refs > 0);
    count_refs(ex, &p->refs, &p->cached, -1, 0, k->page_bytes);
    if (p->refs)
        return;
    kv->used_bytes -= (int64_t)k->page_bytes;
    if (!list_push((void ***)&k->free, &k->n_free, &k->cap_free, p)) {
        pool_quiesce(ex->pool);
        page_free(kv, g, p);
        return;
    }
    kv->free_bytes += (int64_t)k->page_bytes;
    trim(ex, kv->free_max_bytes);
}

struct kv_state *kv_state_take(struct exec *ex)
{
    struct kv_store *kv = &ex->kv;
    struct kv_state *st;
    if (kv->n_spare) {
        st = kv->spare[--kv->n_spare];
        kv->free_bytes -= (int64_t)kv->state_bytes;
    } else {
        make_room(ex, kv->state_bytes);
        st = malloc(sizeof *st);
        float *data = st ? mem_alloc(kv->state_bytes) : NULL;
        if (!data) {
            free(st);
            return NULL;
        }
        st->data = data;
    }
    st->refs = 1;
    st->cached = 0;
    kv->used_bytes += (int64_t)kv->state_bytes;
    return st;
}

void kv_state_give(struct exec *ex, struct kv_state *st)
{
    struct kv_store *kv = &ex->kv;
    if (!st)
        return;
    count_refs(ex, &st->refs, &st->cached, -1, 0, kv->state_bytes);
    if (st->refs)
        return;
    kv->used_bytes -= (int64_t)kv->state_bytes;
    if (!list_push((void ***)&kv->spare, &kv->n_spare, &kv->cap_spare, st)) {
        pool_quiesce(ex->pool);
        state_free(kv, st);
        return;
    }
    kv->free_bytes += (int64_t)kv->state_bytes;
    trim(ex, kv->free_max_bytes);
}

/* ---- heads ------------------------------------------------------------------------------------
 */

struct kv_head kv_head_of(const struct exec *ex, int32_t layer, int32_t head)
{
    const struct kv_layer *l = &ex->kv.layers[layer];
    struct kv_head h = {
        .dk = l->dk, .dv = l->dv, .type = l->form.k_bits ? KV_CODED : ex->kv.type, .form = l->form};
    size_t k = kv_key_bytes(h.type, &h.form, h.dk), v = kv_value_bytes(h.type, &h.form, h.dv);
    h.k_off = ex->kv.layer_off[layer] + (size_t)head * k;
    h.v_off = ex->kv.layer_off[layer] + (size_t)l->n_head * k + (size_t)head * v;
    h.latent = l->latent;
    return h;
}

void kv_append(struct exec *ex, const struct kv_seq *s, const struct kv_head *h, int32_t layer,
               int32_t pos, const float *kx, const float *vx)
{
    uint8_t *page = kv_page_of(ex, s, layer, pos), *k = page + h->k_off, *v = page + h->v_off;
    if (h->type == KV_CODED)
        ex->kern->kv_code(h, k, v, pos % KV_PAGE, kx, vx);
    else if (h->latent)
        ex->kern->latent_put(k + (size_t)(pos % KV_PAGE) * (size_t)h->dk * kv_elem_bytes(h->type),
                             kx, h->dk, h->type);
    else
        ex->kern->kv_put(k, v, pos % KV_PAGE, kx, vx, h->dk, h->dv, h->type);
}

/* ---- amounts ----------------------------------------------------------------------------------
 */

size_t kv_token_bytes(const struct exec *ex)
{
    return ex->kv.token_bytes;
}

size_t kv_state_bytes(const struct exec *ex)
{
    return ex->kv.state_bytes;
}

int64_t kv_bytes_used(const struct exec *ex)
{
    return ex->kv.used_bytes;
}

int64_t kv_bytes_free(const struct exec *ex)
{
    return ex->kv.free_bytes;
}

int64_t kv_bytes_idle(const struct exec *ex)
{
    return ex->kv.idle_bytes;
}

int32_t kv_first_page(const struct kv_group *g, int32_t n)
{
    int32_t seen = n - KV_ROLLBACK - g->window + 1;
    return g->window && seen > 0 ? seen / KV_PAGE : 0;
}

/* Within a step of max_rows a windowed group holds all that its first row sees, and the rows. */
int64_t kv_seq_bytes(const struct exec *ex, int32_t n)
{
    const struct kv_store *kv = &ex->kv;
    int64_t bytes = n > 0 ? 2 * (int64_t)kv->state_bytes : 0;
    n = n < 0 ? 0 : n < ex->n_ctx ? n : ex->n_ctx;
    for (int32_t g = 0; g < kv->n_group; g++) {
        const struct kv_group *k = &kv->groups[g];
        int64_t pages = kv_pages(n);
        int64_t span = (int64_t)k->window - 1 + KV_ROLLBACK + ex->max_rows;
        int64_t most = (span + KV_PAGE - 2) / KV_PAGE + 1; /* pages that so many tokens touch */
        if (k->window && pages > most)
            pages = most;
        bytes += pages * (int64_t)k->page_bytes;
    }
    return bytes;
}

int64_t kv_end_bytes(const struct exec *ex)
{
    int64_t bytes = (int64_t)ex->kv.state_bytes;
    for (int32_t g = 0; g < ex->kv.n_group; g++) {
        const struct kv_group *k = &ex->kv.groups[g];
        if (k->window) /* tokens seen, and the pages that so many can touch */
            bytes += ((k->window - 1 + KV_ROLLBACK + KV_PAGE - 2) / KV_PAGE + 1) *
                     (int64_t)k->page_bytes;
    }
    return bytes;
}

int64_t kv_full_token_bytes(const struct exec *ex)
{
    int64_t bytes = 0;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        if (!ex->kv.groups[g].window)
            bytes += (int64_t)ex->kv.groups[g].token_bytes;
    return bytes;
}
