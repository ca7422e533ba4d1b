/*
 * kv_io.c - the memory of a prefix as a list of pieces: to be written by another thread without a
 * copy, and to be read back straight into fresh pages. Page bytes are opaque here: their sizes come
 * from the layout, and kv_layout_describe says what else must agree.
 *
 * A full page of a prefix never changes while it is held. The one in which a prefix ends may still
 * be appended to, behind what the prefix relies on, so an export copies that one.
 */
#include <stdlib.h>
#include <string.h>

#include "base/le.h"
#include "exec/exec_int.h"

_Static_assert(KV_SHAPE_GROUPS == (int)KV_GROUP_MAX, "a shape has room for every group");

/* ---- shapes --------------------------------------------------------------------------------- */

void kv_prefix_shape(const struct kv_prefix *p, struct kv_shape *out)
{
    *out = (struct kv_shape){.from = p->from, .end = p->end, .state = p->has_state};
    for (int32_t g = 0; g < KV_GROUP_MAX; g++) {
        out->runs[g].first = p->runs[g].n ? p->runs[g].first : 0;
        out->runs[g].n = p->runs[g].n;
    }
}

void kv_shape_write(const struct kv_shape *s, uint8_t out[KV_SHAPE_BYTES])
{
    le_put32(out, (uint32_t)s->from);
    le_put32(out + 4, (uint32_t)s->end);
    le_put32(out + 8, (uint32_t)s->state);
    for (int32_t g = 0; g < KV_SHAPE_GROUPS; g++) {
        le_put32(out + 12 + 8 * g, (uint32_t)s->runs[g].first);
        le_put32(out + 16 + 8 * g, (uint32_t)s->runs[g].n);
    }
}

/* Whether pages [first, first + n) can be of a prefix that ends at token `end`. */
static bool run_fits(int32_t first, int32_t n, int32_t end)
{
    return n == 0 ? first == 0 : first >= 0 && n > 0 && first <= kv_pages(end) - n;
}

bool kv_shape_read(const struct exec *ex, const uint8_t *p, size_t n, struct kv_shape *out)
{
    if (n != KV_SHAPE_BYTES)
        return false;
    struct kv_shape s = {.from = (int32_t)le_get32(p),
                         .end = (int32_t)le_get32(p + 4),
                         .state = le_get32(p + 8) == 1};
    bool ok = s.from >= 0 && s.from <= s.end && s.end <= ex->n_ctx && le_get32(p + 8) <= 1 &&
              (!s.state || ex->kv.state_bytes);
    for (int32_t g = 0; g < KV_SHAPE_GROUPS; g++) {
        s.runs[g].first = (int32_t)le_get32(p + 12 + 8 * g);
        s.runs[g].n = (int32_t)le_get32(p + 16 + 8 * g);
        ok = ok && run_fits(s.runs[g].first, s.runs[g].n, s.end) &&
             (g < ex->kv.n_group || !s.runs[g].n);
    }
    *out = s;
    return ok;
}

int32_t kv_shape_parts(const struct exec *ex, const struct kv_shape *s)
{
    int32_t n = s->state;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        n += s->runs[g].n;
    return n;
}

int64_t kv_shape_bytes(const struct exec *ex, const struct kv_shape *s)
{
    int64_t bytes = s->state ? (int64_t)ex->kv.state_bytes : 0;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        bytes += (int64_t)s->runs[g].n * (int64_t)ex->kv.groups[g].page_bytes;
    return bytes;
}

int64_t kv_shape_part_bytes(const struct exec *ex, const struct kv_shape *s, int32_t i)
{
    int32_t g = 0;
    while (g < ex->kv.n_group && i >= s->runs[g].n)
        i -= s->runs[g++].n;
    return (int64_t)(g < ex->kv.n_group ? ex->kv.groups[g].page_bytes : ex->kv.state_bytes);
}

void kv_shape_cut(struct kv_shape *s, int32_t end)
{
    if (end >= s->end)
        return;
    s->end = end;
    s->state = false;
    for (int32_t g = 0; g < KV_SHAPE_GROUPS; g++) {
        int32_t most = kv_pages(end) - s->runs[g].first;
        if (s->runs[g].n > most)
            s->runs[g].n = most > 0 ? most : 0;
        if (!s->runs[g].n)
            s->runs[g].first = 0;
    }
}

void kv_shape_thin(const struct exec *ex, struct kv_shape *s)
{
    s->state = false;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        if (ex->kv.groups[g].window)
            s->runs[g].first = s->runs[g].n = 0;
}

void kv_shape_whole(const struct exec *ex, int32_t from, int32_t n, struct kv_shape *out)
{
    *out = (struct kv_shape){.from = from, .end = n, .state = n && ex->kv.state_bytes};
    for (int32_t g = 0; g < ex->kv.n_group; g++) {
        const struct kv_group *k = &ex->kv.groups[g];
        int32_t first = k->window ? kv_first_page(k, n) : from / KV_PAGE;
        out->runs[g].n = kv_pages(n) - first;
        out->runs[g].first = out->runs[g].n ? first : 0;
    }
}

/* Prefixes that have no memory, only say what they would have. */
static void hollow(const struct kv_shape *s, struct kv_prefix *p)
{
    *p = (struct kv_prefix){.from = s->from, .end = s->end, .has_state = s->state};
    for (int32_t g = 0; g < KV_GROUP_MAX; g++) {
        p->runs[g].first = s->runs[g].first;
        p->runs[g].n = s->runs[g].n;
    }
}

int32_t kv_shapes_usable(const struct exec *ex, const struct kv_shape *s, int32_t n_shape,
                         int32_t n)
{
    struct kv_prefix *p = calloc((size_t)n_shape + 1, sizeof *p);
    const struct kv_prefix **parts = calloc((size_t)n_shape + 1, sizeof(*parts));
    int32_t usable = 0;
    for (int32_t i = 0; p && parts && i < n_shape; i++) {
        hollow(&s[i], &p[i]);
        parts[i] = &p[i];
    }
    if (p && parts)
        usable = kv_chain_usable(ex, &(struct kv_chain){parts, n_shape}, n);
    free(parts);
    free(p);
    return usable;
}

int32_t kv_shapes_page(const struct kv_shape *s, int32_t n_shape, int32_t g, int32_t i, int32_t n)
{
    int32_t need = (i + 1) * KV_PAGE < n ? (i + 1) * KV_PAGE : n;
    for (int32_t k = n_shape - 1; k >= 0; k--)
        if (i >= s[k].runs[g].first && i < s[k].runs[g].first + s[k].runs[g].n)
            return s[k].end >= need ? k : -1;
    return -1;
}

int32_t kv_n_group(const struct exec *ex)
{
    return ex->kv.n_group;
}

int32_t kv_group_window(const struct exec *ex, int32_t g)
{
    return ex->kv.groups[g].window;
}

/* ---- out ------------------------------------------------------------------------------------ */

struct kv_export {
    struct kv_prefix *p; /* holds the pages */
    struct iovec *parts;
    int32_t n_part;
    uint8_t *copy[KV_GROUP_MAX]; /* of the page where the prefix ends; NULL = it is full */
};

/* The pieces in their order. */
static void list_parts(const struct exec *ex, const struct kv_prefix *p, struct iovec *out)
{
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        for (int32_t i = 0; i < p->runs[g].n; i++)
            *out++ = (struct iovec){p->runs[g].pages[i]->data, ex->kv.groups[g].page_bytes};
    if (p->state)
        *out = (struct iovec){p->state->data, ex->kv.state_bytes};
}

/* The last page of each group, when tokens may still come into it. */
static bool copy_open_pages(const struct exec *ex, struct kv_export *x)
{
    int32_t at = 0, open = x->p->end / KV_PAGE;
    for (int32_t g = 0; g < ex->kv.n_group; g++) {
        const struct kv_run *r = &x->p->runs[g];
        at += r->n;
        if (!r->n || r->first + r->n - 1 < open)
            continue;
        struct iovec *v = &x->parts[at - 1];
        x->copy[g] = mem_alloc(v->iov_len);
        if (!x->copy[g])
            return false;
        memcpy(x->copy[g], v->iov_base, v->iov_len);
        v->iov_base = x->copy[g];
    }
    return true;
}

enum qn_status kv_export_create(struct exec *ex, const struct kv_prefix *p, struct kv_export **out,
                                struct qn_err *err)
{
    struct kv_shape s;
    struct kv_export *x = calloc(1, sizeof *x);
    if (!x)
        QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for a list of pages");
    enum qn_status st = kv_prefix_part(ex, p, p->from, p->end, &x->p, err);
    if (st == QN_OK) {
        kv_prefix_shape(x->p, &s);
        x->n_part = kv_shape_parts(ex, &s);
        x->parts = calloc((size_t)x->n_part + 1, sizeof *x->parts);
        if (x->parts)
            list_parts(ex, x->p, x->parts);
        if (!x->parts || !copy_open_pages(ex, x))
            st =
                err_set(err, QN_NO_MEMORY, "kv", "out of memory for a list of %d pages", x->n_part);
    }
    if (st != QN_OK) {
        kv_export_free(ex, x);
        return st;
    }
    *out = x;
    return QN_OK;
}

const struct iovec *kv_export_parts(const struct kv_export *x, int32_t *n)
{
    *n = x->n_part;
    return x->parts;
}

void kv_export_free(struct exec *ex, struct kv_export *x)
{
    if (!x)
        return;
    for (int32_t g = 0; g < ex->kv.n_group; g++)
        mem_free(x->copy[g], ex->kv.groups[g].page_bytes);
    kv_prefix_free(ex, x->p);
    free(x->parts);
    free(x);
}

/* ---- in ------------------------------------------------------------------------------------- */

static bool take_pages(struct exec *ex, int32_t g, struct kv_run *r, int32_t n)
{
    r->n = 0;
    r->pages = malloc((size_t)n * sizeof *r->pages);
    while (r->pages && r->n < n) {
        struct kv_page *p = kv_page_take(ex, g);
        if (!p)
            return false;
        p->claimed = KV_PAGE;
        r->pages[r->n++] = p;
    }
    return r->pages != NULL;
}

enum qn_status kv_import_create(struct exec *ex, const struct kv_shape *s, struct kv_prefix **out,
                                struct qn_err *err)
{
    struct kv_store *kv = &ex->kv;
    int64_t need = kv_shape_bytes(ex, s);
    if (kv->budget_bytes && need > kv->budget_bytes - kv->used_bytes)
        QN_FAIL(err, QN_BUSY, "kv",
                "%lld bytes of KV memory to be read; %lld of the budget of %lld are in use",
                (long long)need, (long long)kv->used_bytes, (long long)kv->budget_bytes);
    struct kv_prefix *p = calloc(1, sizeof *p);
    bool ok = p != NULL;
    if (ok) {
        hollow(s, p);
        for (int32_t g = 0; g < kv->n_group; g++)
            p->runs[g].n = 0;
    }
    for (int32_t g = 0; ok && g < kv->n_group; g++)
        if (s->runs[g].n)
            ok = take_pages(ex, g, &p->runs[g], s->runs[g].n);
    if (ok && s->state) {
        p->state = kv_state_take(ex);
        ok = p->state != NULL;
    }
    if (!ok) {
        kv_prefix_free(ex, p);
        QN_FAIL(err, QN_NO_MEMORY, "kv", "out of memory for %lld bytes of KV pages",
                (long long)need);
    }
    *out = p;
    return QN_OK;
}

void kv_import_parts(const struct exec *ex, struct kv_prefix *p, struct iovec *out)
{
    list_parts(ex, p, out);
}

/* ---- what must agree ------------------------------------------------------------------------ */

void kv_layout_describe(const struct exec *ex, struct buf *out)
{
    const struct kv_store *kv = &ex->kv;
    buf_addf(out, "kv type %d page %d state %zu\n", (int)kv->type, (int)KV_PAGE, kv->state_bytes);
    for (int32_t g = 0; g < kv->n_group; g++)
        buf_addf(out, "group %d window %d page %zu\n", g, kv->groups[g].window,
                 kv->groups[g].page_bytes);
    for (int32_t i = 0; i < kv->n_layer; i++) {
        const struct kv_layer *l = &kv->layers[i];
        buf_addf(out,
                 "layer %d group %d at %zu: %d x %d%c%d window %d code %d,%d of %d rotated %d\n", i,
                 (int)kv->layer_group[i], kv->layer_off[i], l->n_head, l->dk, l->latent ? '/' : '+',
                 l->dv, l->window, (int)l->form.k_bits, (int)l->form.v_bits, (int)l->form.group,
                 (int)l->form.rotated);
        if (l->delta.n_v)
            buf_addf(out, "  delta %d,%d x %d,%d taps %d\n", l->delta.n_k, l->delta.n_v,
                     l->delta.dk, l->delta.dv, l->delta.taps);
    }
}
