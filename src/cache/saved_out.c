/*
 * saved_out.c - from the tree to a file. The parts of the line are held by reference at once, so
 * that the tree may change meanwhile; then they are cut into records and exported, a slice at a
 * time: of a page that may still be written to an export makes a copy.
 *
 * A record ends where a sequence can go on; where that is anywhere, after so many tokens. A page is
 * in one record alone: of a window in the first that has all of it, where one ends inside it in the
 * next.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "cache/saved_int.h"

enum { RECORD_TOK = 512 };

/* A record to be. */
struct cut {
    struct kv_export *pages;
    struct kv_shape all; /* of the export; what is written may be less */
    struct iovec *parts;
    uint8_t note[SHAPES_NOTE_MAX];
};

struct saving {
    struct kv_prefix **held; /* [n_held] the line's parts in the tree */
    int32_t n_held;
    int32_t *ids, n;
    char ns[SHAPES_NS_MAX + 1];
    struct cut *cuts;          /* [n_cut] */
    struct conv_piece *pieces; /* [n_cut] */
    struct kv_shape *shapes;   /* [n_cut] as written */
    int32_t n_cut, at;         /* at: gathered so far */
};

void saving_free(struct saved *s)
{
    struct saving *o = s->out;
    if (!o)
        return;
    for (int32_t i = 0; o->cuts && i < o->n_cut; i++) {
        kv_export_free(s->ex, o->cuts[i].pages);
        free(o->cuts[i].parts);
    }
    for (int32_t i = 0; o->held && i < o->n_held; i++)
        kv_prefix_free(s->ex, o->held[i]);
    free(o->cuts);
    free(o->pieces);
    free(o->shapes);
    free(o->held);
    free(o->ids);
    free(o);
    s->out = NULL;
}

int32_t saving_tokens(const struct saving *o)
{
    return o->n;
}

static enum qn_status no_memory(struct qn_err *err)
{
    return err_set(err, QN_NO_MEMORY, "conversation", "no memory for a list of records");
}

/* ---- the line is held ----------------------------------------------------------------------- */

static enum qn_status hold(struct saved *s, const struct ptree_found *f, struct qn_err *err)
{
    struct saving *o = s->out;
    o->held = calloc((size_t)f->n_part + 1, sizeof(*o->held));
    if (!o->held)
        return no_memory(err);
    for (int32_t i = 0; i < f->n_part; i++) {
        const struct kv_prefix *p = f->parts[i];
        QN_TRY(kv_prefix_part(s->ex, p, kv_prefix_from(p), kv_prefix_end(p), &o->held[i], err));
        o->n_held = i + 1;
    }
    return QN_OK;
}

/* Where records end; NULL out: only how many. */
static int32_t choose_cuts(const struct saved *s, struct conv_piece *out)
{
    const struct saving *o = s->out;
    bool anywhere = !kv_end_bytes(s->ex);
    int32_t n_cut = 0, from = 0;
    int32_t n_end = anywhere ? o->n / RECORD_TOK : o->n_held;
    for (int32_t i = 0; i <= n_end; i++) {
        bool last = i == n_end;
        int32_t end = last ? o->n : anywhere ? (i + 1) * RECORD_TOK : kv_prefix_end(o->held[i]);
        if (end <= from || end > o->n || (end == o->n && !last) ||
            (!last && !anywhere && !kv_prefix_complete(s->ex, o->held[i])))
            continue;
        if (out)
            out[n_cut].id =
                (struct record_id){.from = from, .n_token = end - from, .tokens = o->ids + from};
        n_cut++;
        from = end;
    }
    return n_cut;
}

static enum qn_status plan(struct saved *s, struct qn_err *err)
{
    struct saving *o = s->out;
    int32_t n = choose_cuts(s, NULL);
    if (n > CONV_RECORD_MAX)
        QN_FAIL(err, QN_UNSUPPORTED, "conversation",
                "%s: %d places to go on from; a file holds at most %d", s->name, n,
                CONV_RECORD_MAX);
    o->cuts = calloc((size_t)n, sizeof *o->cuts);
    o->pieces = calloc((size_t)n, sizeof *o->pieces);
    o->shapes = calloc((size_t)n, sizeof *o->shapes);
    o->n_cut = o->cuts ? n : 0;
    if (!o->cuts || !o->pieces || !o->shapes)
        return no_memory(err);
    choose_cuts(s, o->pieces);
    return QN_OK;
}

enum qn_status saving_begin(struct saved *s, const struct qn_line *line, struct qn_err *err)
{
    struct ptree_found f;
    struct ptree_line l = {line->ns, line->ids, line->n_ids};
    ptree_peek(s->tree, &l, &f);
    if (f.n_usable < 1)
        QN_FAIL(err, QN_NOT_FOUND, "conversation",
                "nothing of these %d tokens is in the prompt cache: ask for an answer to them "
                "first",
                l.n);
    struct saving *o = s->out = fault_point("cache.alloc") ? NULL : calloc(1, sizeof *o);
    if (!o)
        return no_memory(err);
    o->n = f.n_usable;
    o->ids = malloc((size_t)o->n * sizeof *o->ids);
    if (!o->ids || (line->ns && strlen(line->ns) > SHAPES_NS_MAX))
        return no_memory(err);
    memcpy(o->ids, line->ids, (size_t)o->n * sizeof *o->ids);
    if (line->ns)
        memcpy(o->ns, line->ns, strlen(line->ns));
    QN_TRY(hold(s, &f, err));
    return plan(s, err);
}

/* ---- records -------------------------------------------------------------------------------- */

static enum qn_status gather_one(struct saved *s, int32_t i, struct qn_err *err)
{
    struct saving *o = s->out;
    const struct record_id *id = &o->pieces[i].id;
    struct kv_chain chain = {(const struct kv_prefix *const *)o->held, o->n_held};
    struct kv_prefix *p;
    QN_TRY(kv_chain_prefix(s->ex, &chain, id->from, id->from + id->n_token, &p, err));
    kv_prefix_shape(p, &o->cuts[i].all);
    enum qn_status st = kv_export_create(s->ex, p, &o->cuts[i].pages, err);
    kv_prefix_free(s->ex, p);
    o->shapes[i] = o->cuts[i].all;
    shapes_leave_out(s->ex, o->shapes, i, &o->shapes[i]);
    return st;
}

/* What record i is made of, once the one behind it is known. */
static enum qn_status compose(struct saved *s, int32_t i, struct qn_err *err)
{
    struct saving *o = s->out;
    struct cut *c = &o->cuts[i];
    struct conv_piece *piece = &o->pieces[i];
    int32_t n;
    const struct iovec *pages = kv_export_parts(c->pages, &n);
    if (i + 1 < o->n_cut)
        shapes_leave_last(s->ex, &o->shapes[i + 1], &o->shapes[i]);
    c->parts = fault_point("cache.alloc") ? NULL : calloc((size_t)n + 1, sizeof *c->parts);
    if (!c->parts)
        return no_memory(err);
    piece->n_part = shapes_choose(s->ex, &c->all, &o->shapes[i], pages, c->parts);
    piece->parts = c->parts;
    piece->id.note = shapes_note(c->note, &o->shapes[i], NULL, o->ns);
    return QN_OK;
}

enum qn_status saving_gather(struct saved *s, bool *ready, struct qn_err *err)
{
    struct saving *o = s->out;
    int64_t until = clock_us() + SAVED_SLICE_US;
    do {
        QN_TRY(gather_one(s, o->at, err));
        if (o->at)
            QN_TRY(compose(s, o->at - 1, err));
        o->at++;
    } while (o->at < o->n_cut && clock_us() < until);
    *ready = o->at == o->n_cut;
    return *ready ? compose(s, o->n_cut - 1, err) : QN_OK;
}

enum qn_status saving_write(struct saved *s, struct qn_err *err)
{
    const struct conv_text t = {.model = s->model,
                                .about = str_of(s->about),
                                .pieces = s->out->pieces,
                                .n_piece = s->out->n_cut};
    return conv_write(s->dir, s->name, &t, &s->stop, &s->info, err);
}
