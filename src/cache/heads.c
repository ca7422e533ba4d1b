/*
 * heads.c - see heads.h. A part is a prefix of the head's memory and perhaps the state behind it; a
 * node is good where the state is there. All of it is counted as idle bytes: the prefixes by the
 * head's KV store, the states here.
 */
#include "cache/heads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/hash.h"
#include "exec/kv.h"
#include "model/engine.h"

#define WHERE "cache"

struct heads {
    struct qn_engine *e;
    struct exec *ex;
    struct ptree *tree;
    size_t width;        /* floats of a state */
    int64_t state_bytes; /* of all states in the tree */
    float *state;        /* [width] of the line that is being kept */
    bool have_state;
    int32_t end; /* rows of that line */
};

struct part {
    struct kv_prefix *kv;
    float *state; /* NULL = none */
};

/* ---- parts ------------------------------------------------------------------------------------
 */

static void part_thin(void *self, void *part)
{
    struct heads *h = self;
    struct part *p = part;
    if (p->state)
        h->state_bytes -= (int64_t)(h->width * sizeof *p->state);
    free(p->state);
    p->state = NULL;
}

static void part_free(void *self, void *part)
{
    struct heads *h = self;
    struct part *p = part;
    part_thin(h, p);
    kv_prefix_free(h->ex, p->kv);
    free(p);
}

/* A part for the tree; kv is taken and marked, also on failure. state may be NULL. */
static enum qn_status wrap(void *self, struct kv_prefix *kv, const void *state, void **out,
                           struct qn_err *err)
{
    struct heads *h = self;
    struct part *p = fault_point("cache.alloc") ? NULL : calloc(1, sizeof *p);
    size_t bytes = h->width * sizeof *p->state;
    if (p && state)
        p->state = fault_point("cache.alloc") ? NULL : malloc(bytes);
    if (!p || (state && !p->state)) {
        kv_prefix_free(h->ex, kv);
        free(p);
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory");
    }
    if (state) {
        memcpy(p->state, state, bytes);
        h->state_bytes += (int64_t)bytes;
    }
    kv_prefix_cached(h->ex, kv);
    p->kv = kv;
    *out = p;
    return QN_OK;
}

/* src: the context's memory. Only the line's end has a state. */
static enum qn_status part_make(void *self, void *src, int32_t from, int32_t n, void **out,
                                struct qn_err *err)
{
    struct heads *h = self;
    struct kv_prefix *kv;
    QN_TRY(kv_prefix_create(h->ex, src, from, n, &kv, err));
    bool end = h->have_state && n == h->end;
    return wrap(h, kv, end ? h->state : NULL, out, err);
}

static enum qn_status part_cut(void *self, const void *of, int32_t from, int32_t n, void **out,
                               struct qn_err *err)
{
    struct heads *h = self;
    const struct part *p = of;
    struct kv_prefix *kv;
    QN_TRY(kv_prefix_part(h->ex, p->kv, from, n, &kv, err));
    return wrap(h, kv, n == kv_prefix_end(p->kv) ? p->state : NULL, out, err);
}

static bool anywhere(void *self)
{
    return false; /* rows serve anywhere, but every line's end has a state to be kept */
}

static bool part_complete(void *self, const void *part)
{
    const struct heads *h = self;
    const struct part *p = part;
    return p->state && kv_prefix_complete(h->ex, p->kv);
}

enum { PARTS_MAX = 1024 };

/* As far as rows go, with a state or without. */
static int32_t parts_usable(void *self, const void *const *parts, int32_t n_part, int32_t n)
{
    const struct heads *h = self;
    const struct kv_prefix *kv[PARTS_MAX];
    n_part = n_part < PARTS_MAX ? n_part : PARTS_MAX;
    for (int32_t i = 0; i < n_part; i++)
        kv[i] = ((const struct part *)parts[i])->kv;
    return kv_chain_usable(h->ex, &(struct kv_chain){kv, n_part}, n);
}

static int64_t idle_all(void *self)
{
    const struct heads *h = self;
    return kv_bytes_idle(h->ex) + h->state_bytes;
}

static int64_t idle_state(const struct heads *h, const struct part *p)
{
    return p->state ? (int64_t)(h->width * sizeof *p->state) : 0;
}

static int64_t part_idle(void *self, const void *part)
{
    const struct heads *h = self;
    const struct part *p = part;
    return kv_prefix_idle(h->ex, p->kv) + idle_state(h, p);
}

static int64_t part_idle_end(void *self, const void *part)
{
    return idle_state(self, part);
}

static bool part_in_use(void *self, const void *part)
{
    const struct heads *h = self;
    return kv_prefix_in_use(h->ex, ((const struct part *)part)->kv);
}

static const struct ptree_ops part_ops = {
    .make = part_make,
    .part = part_cut,
    .free = part_free,
    .anywhere = anywhere,
    .complete = part_complete,
    .thin = part_thin,
    .usable = parts_usable,
    .idle_all = idle_all,
    .idle = part_idle,
    .idle_end = part_idle_end,
    .in_use = part_in_use,
};

/* ---- life -------------------------------------------------------------------------------------
 */

enum qn_status heads_create(struct qn_engine *e, int64_t bytes, struct heads **out,
                            struct qn_err *err)
{
    *out = NULL;
    if (!engine_mtp_exec(e))
        return QN_OK;
    struct heads *h = fault_point("cache.alloc") ? NULL : calloc(1, sizeof *h);
    if (!h)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory");
    h->e = e;
    h->ex = engine_mtp_exec(e);
    h->width = (size_t)engine_mtp_width(e);
    h->state = fault_point("cache.alloc") ? NULL : calloc(h->width, sizeof *h->state);
    enum qn_status st = h->state ? ptree_create(&part_ops, h, bytes, &h->tree, err)
                                 : err_set(err, QN_NO_MEMORY, WHERE, "out of memory");
    if (st != QN_OK) {
        heads_free(h);
        return st;
    }
    *out = h;
    return QN_OK;
}

void heads_free(struct heads *h)
{
    if (!h)
        return;
    ptree_free(h->tree);
    free(h->state);
    free(h);
}

static const struct kv_prefix *kv_of(const void *part)
{
    return ((const struct part *)part)->kv;
}

static const void *tail_of(const void *part)
{
    return ((const struct part *)part)->state;
}

struct tier_tree heads_tree(struct heads *h)
{
    static const struct tier_parts parts = {.kv = kv_of, .tail = tail_of, .make = wrap};
    return (struct tier_tree){.ex = h->ex,
                              .tree = h->tree,
                              .parts = &parts,
                              .self = h,
                              .tail_bytes = h->width * sizeof *h->state};
}

int64_t heads_bytes_idle(const struct heads *h)
{
    return h ? idle_all((void *)h) : 0;
}

void heads_trim(struct heads *h, int64_t bytes)
{
    if (!h)
        return;
    if (bytes == INT64_MAX)
        ptree_settle(h->tree);
    else
        ptree_trim(h->tree, bytes);
}

/* ---- use --------------------------------------------------------------------------------------
 */

struct ptree_line heads_rows(const struct qn_line *line, int32_t n, char ns[PTREE_NS_MAX + 1])
{
    const char *name = line->ns ? line->ns : "";
    size_t len = strlen(name);
    int used = snprintf(ns, PTREE_NS_MAX + 1, "%08x", n ? (unsigned)line->ids[0] : 0U);
    size_t room = PTREE_NS_MAX - (size_t)used;
    if (len > room) {
        used += snprintf(ns + used, 17, "%016llx", (unsigned long long)hash64(name, len, 7));
        room = PTREE_NS_MAX - (size_t)used;
        name += len - room;
    }
    memcpy(ns + used, name, strlen(name) + 1);
    return (struct ptree_line){ns, line->ids + 1, n > 0 ? n - 1 : 0};
}

/* The state that the line's first n rows end with; NULL = not there. */
static const float *state_of(const struct ptree_found *f, int32_t n)
{
    for (int32_t i = 0; i < f->n_part; i++) {
        const struct part *p = f->parts[i];
        if (kv_prefix_end(p->kv) == n && p->state)
            return p->state;
    }
    return NULL;
}

/* The context of the first n rows that were found. */
static void resume(struct heads *h, const struct ptree_found *f, int32_t n, const float *state,
                   struct qn_seq *s)
{
    const struct kv_prefix *kv[PARTS_MAX];
    struct kv_seq *seq;
    struct qn_err ignored;
    int32_t n_part = f->n_part < PARTS_MAX ? f->n_part : PARTS_MAX;
    for (int32_t i = 0; i < n_part; i++)
        kv[i] = ((const struct part *)f->parts[i])->kv;
    if (kv_seq_from(h->ex, &(struct kv_chain){kv, n_part}, n, &seq, &ignored) == QN_OK)
        engine_mtp_resume(s, seq, state, &ignored);
}

bool heads_loading(struct heads *h, struct tier *t, const struct qn_line *line, int32_t len)
{
    char ns[PTREE_NS_MAX + 1];
    if (!h || len < 1)
        return false;
    struct ptree_line rows = heads_rows(line, line->n_ids, ns);
    rows.n = len < rows.n ? len : rows.n;
    return tier_loading(t, TIER_HEAD, &rows);
}

void heads_resume(struct heads *h, const struct qn_line *line, struct qn_seq *s)
{
    char ns[PTREE_NS_MAX + 1];
    struct ptree_found f;
    struct qn_err ignored;
    int32_t len = qn_seq_len(s);
    if (!h || len < 1)
        return;
    struct ptree_line rows = heads_rows(line, line->n_ids, ns);
    ptree_find(h->tree, &rows, len < rows.n ? len : rows.n, &f);
    const float *state = f.n_usable == len - 1 ? state_of(&f, f.n_usable) : NULL;
    if (f.n_usable == len - 1 && !state && len > 1 && qn_seq_can_truncate(s, len - 1))
        qn_seq_truncate(s, len - 1, &ignored);
    if (f.n_usable)
        resume(h, &f, f.n_usable, state, s);
}

void heads_keep(struct heads *h, const struct qn_line *line, struct qn_seq *s)
{
    char ns[PTREE_NS_MAX + 1];
    struct qn_err ignored;
    const struct qn_mtp *m = h ? qn_seq_mtp(s) : NULL;
    if (!m || line->n_ids < 2 || engine_mtp_rows(m) < line->n_ids - 1)
        return;
    struct ptree_line rows = heads_rows(line, line->n_ids, ns);
    h->have_state = engine_mtp_state(m, rows.n, h->state);
    h->end = rows.n;
    ptree_keep(h->tree, &rows, engine_mtp_kv(m), &ignored);
    h->have_state = false;
}
