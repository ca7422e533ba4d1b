/*
 * saved_out.c - from the trees to a file. The parts of the line are held by reference at once, so
 * that the trees may change meanwhile (a tail is copied); then they are cut into records and
 * exported, a slice at a time: of a page that may still be written to an export makes a copy.
 *
 * A record ends where a sequence can go on, a head's where it has a tail; where that is anywhere,
 * after so many tokens. A page is in one record alone: of a window in the first that has all of it,
 * where one ends inside it in the next.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "cache/heads.h"
#include "cache/saved_int.h"

#define WHERE "conversation"

enum { RECORD_TOK = 512 };

/* A record to be. */
struct cut {
    struct kv_export *pages;
    struct kv_shape all; /* of the export; what is written may be less */
    const void *tail;
    struct iovec *parts;
    uint8_t note[SHAPES_NOTE_MAX];
};

/* A chain of records to be, from one tree. */
struct going {
    const struct tier_tree *is;
    struct kv_prefix **held; /* [n_held] the line's parts in the tree */
    void **tails;            /* [n_held] copies; NULL = it has none */
    int32_t n_held;
    const int32_t *ids;
    int32_t n; /* tokens; 0 = nothing of it goes */
    char ns[SHAPES_NS_MAX + 1];
    struct cut *cuts;          /* [n_cut] */
    struct conv_piece *pieces; /* [n_cut] */
    struct kv_shape *shapes;   /* [n_cut] as written */
    int32_t n_cut, at;         /* at: gathered so far */
};

struct saving {
    int32_t *ids; /* of the model's line */
    struct going sides[TIER_SIDES];
};

static void going_free(struct going *g)
{
    for (int32_t i = 0; g->cuts && i < g->n_cut; i++) {
        kv_export_free(g->is->ex, g->cuts[i].pages);
        free(g->cuts[i].parts);
    }
    for (int32_t i = 0; i < g->n_held; i++) {
        kv_prefix_free(g->is->ex, g->held[i]);
        free(g->tails[i]);
    }
    free(g->cuts);
    free(g->pieces);
    free(g->shapes);
    free(g->held);
    free(g->tails);
    *g = (struct going){0};
}

void saving_free(struct saved *s)
{
    if (!s->out)
        return;
    for (int32_t k = 0; k < TIER_SIDES; k++)
        going_free(&s->out->sides[k]);
    free(s->out->ids);
    free(s->out);
    s->out = NULL;
}

static enum qn_status no_memory(struct qn_err *err)
{
    return err_set(err, QN_NO_MEMORY, WHERE, "no memory for a list of records");
}

/* ---- the line is held ----------------------------------------------------------------------- */

static enum qn_status hold_one(struct going *g, const void *part, struct qn_err *err)
{
    const struct kv_prefix *p = tier_kv(g->is, part);
    const void *tail = tier_tail(g->is, part);
    int32_t i = g->n_held;
    if (tail) {
        g->tails[i] = fault_point("cache.alloc") ? NULL : malloc(g->is->tail_bytes);
        if (!g->tails[i])
            return no_memory(err);
        memcpy(g->tails[i], tail, g->is->tail_bytes);
    }
    enum qn_status st =
        kv_prefix_part(g->is->ex, p, kv_prefix_from(p), kv_prefix_end(p), &g->held[i], err);
    if (st != QN_OK) {
        free(g->tails[i]);
        return st;
    }
    g->n_held++;
    return QN_OK;
}

static enum qn_status hold(struct going *g, const struct ptree_found *f, struct qn_err *err)
{
    g->held = calloc((size_t)f->n_part + 1, sizeof(*g->held));
    g->tails = calloc((size_t)f->n_part + 1, sizeof(*g->tails));
    if (!g->held || !g->tails)
        return no_memory(err);
    for (int32_t i = 0; i < f->n_part; i++)
        QN_TRY(hold_one(g, f->parts[i], err));
    return QN_OK;
}

/* A record is to end where part i of the line does. */
static bool is_end(const struct going *g, int32_t i)
{
    return (!g->is->parts || g->tails[i]) && kv_prefix_complete(g->is->ex, g->held[i]);
}

/* Where records end; NULL out: only how many. */
static int32_t choose_cuts(const struct going *g, struct conv_piece *out)
{
    bool anywhere = !g->is->parts && !kv_end_bytes(g->is->ex);
    int32_t n_cut = 0, from = 0;
    int32_t n_end = anywhere ? g->n / RECORD_TOK : g->n_held;
    for (int32_t i = 0; i <= n_end; i++) {
        bool last = i == n_end;
        int32_t end = last ? g->n : anywhere ? (i + 1) * RECORD_TOK : kv_prefix_end(g->held[i]);
        if (end <= from || end > g->n || (end == g->n && !last) ||
            (!last && !anywhere && !is_end(g, i)))
            continue;
        if (out)
            out[n_cut].id =
                (struct record_id){.from = from, .n_token = end - from, .tokens = g->ids + from};
        n_cut++;
        from = end;
    }
    return n_cut;
}

/* The tail of where a record ends; NULL = there is none. */
static const void *tail_at(const struct going *g, int32_t end)
{
    for (int32_t i = 0; i < g->n_held; i++)
        if (kv_prefix_end(g->held[i]) == end)
            return g->tails[i];
    return NULL;
}

static enum qn_status plan(const struct saved *s, struct going *g, struct qn_err *err)
{
    int32_t n = choose_cuts(g, NULL);
    if (n > CONV_RECORD_MAX)
        QN_FAIL(err, QN_UNSUPPORTED, WHERE, "%s: %d places to go on from; a file holds at most %d",
                s->name, n, CONV_RECORD_MAX);
    g->cuts = calloc((size_t)n, sizeof *g->cuts);
    g->pieces = calloc((size_t)n, sizeof *g->pieces);
    g->shapes = calloc((size_t)n, sizeof *g->shapes);
    g->n_cut = g->cuts ? n : 0;
    if (!g->cuts || !g->pieces || !g->shapes)
        return no_memory(err);
    choose_cuts(g, g->pieces);
    for (int32_t i = 0; i < n; i++)
        g->cuts[i].tail = tail_at(g, g->pieces[i].id.from + g->pieces[i].id.n_token);
    return QN_OK;
}

/* As much of the line as the tree has. */
static enum qn_status begin_side(const struct saved *s, int32_t k, const struct ptree_line *line,
                                 struct qn_err *err)
{
    struct ptree_found f;
    struct going *g = &s->out->sides[k];
    g->is = &s->sides[k].is;
    g->ids = line->ids;
    ptree_peek(g->is->tree, line, &f);
    g->n = f.n_usable;
    if (line->ns)
        memcpy(g->ns, line->ns, strlen(line->ns));
    if (!g->n)
        return QN_OK;
    QN_TRY(hold(g, &f, err));
    return plan(s, g, err);
}

/* The head's part of the first n tokens. */
static enum qn_status begin_head(const struct saved *s, int32_t n, struct qn_err *err)
{
    char ns[PTREE_NS_MAX + 1];
    const struct qn_line line = {s->out->sides[TIER_MODEL].ns, s->out->ids, n};
    struct ptree_line rows = heads_rows(&line, n, ns);
    return begin_side(s, TIER_HEAD, &rows, err);
}

enum qn_status saving_begin(struct saved *s, const struct qn_line *line, struct qn_err *err)
{
    struct ptree_found f;
    struct ptree_line l = {line->ns, line->ids, line->n_ids};
    if (line->ns && strlen(line->ns) > SHAPES_NS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%s: a namespace of %zu bytes; at most %d", s->name,
                strlen(line->ns), SHAPES_NS_MAX);
    ptree_peek(s->sides[TIER_MODEL].is.tree, &l, &f);
    if (f.n_usable < 1)
        QN_FAIL(err, QN_NOT_FOUND, WHERE,
                "nothing of these %d tokens is in the prompt cache: ask for an answer to them "
                "first",
                l.n);
    struct saving *o = s->out = fault_point("cache.alloc") ? NULL : calloc(1, sizeof *o);
    if (!o)
        return no_memory(err);
    o->ids = malloc((size_t)f.n_usable * sizeof *o->ids);
    if (!o->ids)
        return no_memory(err);
    memcpy(o->ids, line->ids, (size_t)f.n_usable * sizeof *o->ids);
    l = (struct ptree_line){line->ns, o->ids, f.n_usable};
    QN_TRY(begin_side(s, TIER_MODEL, &l, err));
    return s->n_side > TIER_HEAD ? begin_head(s, l.n, err) : QN_OK;
}

/* ---- records -------------------------------------------------------------------------------- */

static enum qn_status gather_one(struct going *g, int32_t i, struct qn_err *err)
{
    struct exec *ex = g->is->ex;
    const struct record_id *id = &g->pieces[i].id;
    struct kv_chain chain = {(const struct kv_prefix *const *)g->held, g->n_held};
    struct kv_prefix *p;
    QN_TRY(kv_chain_prefix(ex, &chain, id->from, id->from + id->n_token, &p, err));
    kv_prefix_shape(p, &g->cuts[i].all);
    enum qn_status st = kv_export_create(ex, p, &g->cuts[i].pages, err);
    kv_prefix_free(ex, p);
    g->shapes[i] = g->cuts[i].all;
    shapes_leave_out(ex, g->shapes, i, &g->shapes[i]);
    return st;
}

/* What record i is made of, once the one behind it is known. */
static enum qn_status compose(struct going *g, int32_t i, struct qn_err *err)
{
    const struct exec *ex = g->is->ex;
    struct cut *c = &g->cuts[i];
    struct conv_piece *piece = &g->pieces[i];
    bool tail = c->tail != NULL;
    int32_t n;
    const struct iovec *pages = kv_export_parts(c->pages, &n);
    if (i + 1 < g->n_cut)
        shapes_leave_last(ex, &g->shapes[i + 1], &g->shapes[i]);
    c->parts = fault_point("cache.alloc") ? NULL : calloc((size_t)n + 2, sizeof *c->parts);
    if (!c->parts)
        return no_memory(err);
    piece->n_part = shapes_choose(ex, &c->all, &g->shapes[i], pages, c->parts);
    if (tail)
        c->parts[piece->n_part++] = (struct iovec){(void *)(uintptr_t)c->tail, g->is->tail_bytes};
    piece->parts = c->parts;
    piece->id.note = shapes_note(c->note, &g->shapes[i], g->is->parts ? &tail : NULL, g->ns);
    return QN_OK;
}

static enum qn_status gather_side(struct going *g, int64_t until, struct qn_err *err)
{
    while (g->at < g->n_cut && clock_us() < until) {
        QN_TRY(gather_one(g, g->at, err));
        if (g->at)
            QN_TRY(compose(g, g->at - 1, err));
        g->at++;
        if (g->at == g->n_cut)
            return compose(g, g->n_cut - 1, err);
    }
    return QN_OK;
}

enum qn_status saving_gather(struct saved *s, bool *ready, struct qn_err *err)
{
    int64_t until = clock_us() + SAVED_SLICE_US;
    *ready = true;
    for (int32_t k = 0; k < s->n_side; k++) {
        struct going *g = &s->out->sides[k];
        QN_TRY(gather_side(g, until, err));
        *ready = *ready && g->at == g->n_cut;
    }
    return QN_OK;
}

enum qn_status saving_write(struct saved *s, struct qn_err *err)
{
    struct conv_text t = {.about = str_of(s->about)};
    struct conv_chain *chains[TIER_SIDES] = {&t.model, &t.draft};
    for (int32_t k = 0; k < s->n_side; k++) {
        const struct going *g = &s->out->sides[k];
        *chains[k] = (struct conv_chain){
            .model = s->sides[k].is.model, .pieces = g->pieces, .n_piece = g->n_cut};
    }
    return conv_write(s->dir, s->name, &t, &s->stop, &s->info, err);
}
