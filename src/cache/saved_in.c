/*
 * saved_in.c - from a file to the trees. The thread reads the headers and checks that they are this
 * model's and fit together, then every byte behind them; only then does the scheduler's thread take
 * memory, and others give way; the thread reads all of it once more, checking again what may have
 * been changed meanwhile; then it comes into the trees. What is all there already only counts as
 * used. Pages that records share are shared there too.
 *
 * Records of a draft head that is not this server's are checked like the rest and not used.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/le.h"
#include "cache/heads.h"
#include "cache/saved_int.h"

#define WHERE "conversation"

void restoring_free(struct saved *s)
{
    struct restoring *in = s->in;
    if (!in)
        return;
    for (int32_t k = 0; k < in->n_side; k++) {
        coming_drop(&in->sides[k]);
        free(in->sides[k].shapes);
        free(in->sides[k].tailed);
    }
    free(in->ids);
    conv_close(in->file);
    free(in);
    s->in = NULL;
}

static enum qn_status no_memory(struct qn_err *err)
{
    return err_set(err, QN_NO_MEMORY, WHERE, "no memory for a list of records");
}

enum qn_status restoring_begin(struct saved *s, struct qn_err *err)
{
    s->in = fault_point("cache.alloc") ? NULL : calloc(1, sizeof *s->in);
    if (!s->in)
        return no_memory(err);
    saved_task_start(s, SAVED_OPEN);
    return QN_OK;
}

/* ---- what it is: the thread ----------------------------------------------------------------- */

static enum qn_status check_model(const struct saved *s, struct qn_err *err)
{
    char got[65], want[65];
    const struct record_name *model = &s->sides[TIER_MODEL].is.model;
    if (record_name_eq(&s->info.model, model))
        return QN_OK;
    record_name_hex(&s->info.model, got);
    record_name_hex(model, want);
    QN_FAIL(err, QN_UNSUPPORTED, WHERE,
            "%s: was saved with another model, format of KV memory or version: %s, fingerprint "
            "%.12s; this server has %s, %.12s",
            s->name, s->info.about, got, s->about, want);
}

static enum qn_status misfit(const struct saved *s, int32_t i, struct qn_err *err)
{
    return err_set(err, QN_BAD_INPUT, WHERE,
                   "%s: is damaged: record %d does not fit this model's memory", s->name, i);
}

/* The record's parts are pieces of such a shape, and a tail where there is one. */
static bool parts_fit(const struct tier_tree *is, const struct record *r, const struct kv_shape *sh,
                      bool tail)
{
    uint32_t n = (uint32_t)kv_shape_parts(is->ex, sh);
    if (r->n_part != n + tail || (tail && record_part(r, n).bytes != is->tail_bytes))
        return false;
    for (uint32_t k = 0; k < n; k++)
        if (record_part(r, k).bytes != (uint64_t)kv_shape_part_bytes(is->ex, sh, (int32_t)k))
            return false;
    return true;
}

static bool same_tokens(const struct record *r, const int32_t *ids)
{
    for (int32_t i = 0; i < r->id.n_token; i++)
        if ((int32_t)le_get32(r->token_bytes + 4 * (size_t)i) != ids[i])
            return false;
    return true;
}

/* A head's rows are of the tokens and the namespace that the model's are of. */
static enum qn_status read_shape(const struct saved *s, struct coming *c, int32_t i,
                                 struct qn_err *err)
{
    const struct record *r = conv_record(s->in->file, c->first + i);
    const struct tier_tree *is = &c->side->is;
    struct kv_shape *sh = &c->shapes[i];
    struct shapes_note note;
    bool head = c != s->in->sides, ok = shapes_note_read(is->ex, r->id.note, head, &note);
    if (ok && !head && !i)
        memcpy(c->ns, note.ns, sizeof note.ns);
    *sh = note.shape;
    c->tailed[i] = note.tail;
    if (!ok || sh->from != r->id.from || sh->end != r->id.from + r->id.n_token ||
        strcmp(note.ns, c->ns) != 0 || !parts_fit(is, r, sh, note.tail) ||
        (head && !same_tokens(r, c->line.ids + r->id.from)))
        return misfit(s, c->first + i, err);
    c->need += kv_shape_bytes(is->ex, sh) + (note.tail ? (int64_t)is->tail_bytes : 0);
    if (!head)
        record_tokens(r, s->in->ids + r->id.from);
    return QN_OK;
}

static enum qn_status open_side(const struct saved *s, struct coming *c, struct qn_err *err)
{
    const struct exec *ex = c->side->is.ex;
    c->shapes = calloc((size_t)c->n, sizeof *c->shapes);
    c->tailed = calloc((size_t)c->n, sizeof *c->tailed);
    if (!c->shapes || !c->tailed)
        return no_memory(err);
    for (int32_t i = 0; i < c->n; i++)
        QN_TRY(read_shape(s, c, i, err));
    for (int32_t i = 0; i < c->n; i++)
        if (kv_shapes_usable(ex, c->shapes, c->n, c->shapes[i].end) != c->shapes[i].end)
            return misfit(s, c->first + i, err);
    return QN_OK;
}

/* The head's chain, when the head is this server's: its line follows from the model's. */
static enum qn_status open_head(const struct saved *s, struct qn_err *err)
{
    struct restoring *in = s->in;
    const struct coming *m = &in->sides[TIER_MODEL];
    struct coming *c = &in->sides[TIER_HEAD];
    const struct qn_line line = {m->ns, in->ids, s->info.n_token};
    if (s->n_side <= TIER_HEAD || !s->info.n_draft_record ||
        !record_name_eq(&s->info.draft, &s->sides[TIER_HEAD].is.model))
        return QN_OK;
    *c = (struct coming){.side = &s->sides[TIER_HEAD], .first = m->n, .n = s->info.n_draft_record};
    in->n_side = TIER_SIDES;
    c->line = heads_rows(&line, line.n_ids, c->ns);
    if (s->info.n_draft_token > c->line.n)
        return misfit(s, c->first, err);
    c->line.n = s->info.n_draft_token;
    return open_side(s, c, err);
}

enum qn_status restoring_open(struct saved *s, struct qn_err *err)
{
    struct restoring *in = s->in;
    struct coming *m = &in->sides[TIER_MODEL];
    struct buf path = BUF_INIT;
    conv_path(&path, s->dir, s->name);
    enum qn_status st = buf_ok(&path, "a path", err);
    if (st == QN_OK)
        st = conv_open(buf_z(&path), &in->file, err);
    buf_free(&path);
    QN_TRY(st);
    s->info = *conv_info(in->file);
    QN_TRY(check_model(s, err));
    if (s->info.n_token > s->n_ctx)
        QN_FAIL(err, QN_NO_MEMORY, WHERE,
                "%s: has %d tokens; a context here holds %d: start the server with a larger --ctx",
                s->name, s->info.n_token, s->n_ctx);
    *m = (struct coming){.side = &s->sides[TIER_MODEL], .n = s->info.n_record};
    in->n_side = 1;
    in->ids = malloc((size_t)s->info.n_token * sizeof *in->ids);
    if (!in->ids)
        return no_memory(err);
    m->line = (struct ptree_line){m->ns, in->ids, s->info.n_token};
    QN_TRY(open_side(s, m, err));
    return open_head(s, err);
}

static enum qn_status go_on(const struct saved *s, struct qn_err *err)
{
    if (atomic_load(&s->stop))
        QN_FAIL(err, QN_CANCELLED, WHERE, "%s: not finished, the server stops", s->name);
    return QN_OK;
}

enum qn_status restoring_check(struct saved *s, struct qn_err *err)
{
    for (int32_t i = 0; i < s->info.n_record + s->info.n_draft_record; i++) {
        QN_TRY(go_on(s, err));
        QN_TRY(conv_read(s->in->file, i, NULL, err));
    }
    s->in->got = IN_CHECKED;
    return QN_OK;
}

enum qn_status restoring_read(struct saved *s, struct qn_err *err)
{
    for (int32_t k = 0; k < s->in->n_side; k++) {
        const struct coming *c = &s->in->sides[k];
        for (int32_t i = 0; coming_lacks(c) && i < c->n; i++) {
            QN_TRY(go_on(s, err));
            QN_TRY(conv_read(s->in->file, c->first + i, c->parts[i], err));
        }
    }
    s->in->got = IN_READ;
    return QN_OK;
}

/* ---- into the trees ------------------------------------------------------------------------- */

static enum qn_status adopt_one(struct coming *c, int32_t i, struct qn_err *err)
{
    const struct tier_tree *is = &c->side->is;
    const struct kv_shape *sh = &c->shapes[i];
    struct kv_chain chain = {(const struct kv_prefix *const *)c->imports, c->n};
    struct ptree_line line = {c->ns, c->line.ids, sh->end};
    struct kv_prefix *p;
    QN_TRY(kv_chain_prefix(is->ex, &chain, sh->from, sh->end, &p, err));
    void *part = p;
    if (is->parts)
        QN_TRY(is->parts->make(is->self, p, c->tails[i], &part, err));
    else
        kv_prefix_cached(is->ex, p);
    return ptree_add(is->tree, &line, sh->from, part, err);
}

static enum qn_status adopt_side(struct coming *c, int64_t until, struct qn_err *err)
{
    while (c->added < c->n && clock_us() < until) {
        QN_TRY(adopt_one(c, c->added, err));
        c->added++;
    }
    if (c->added == c->n)
        coming_drop(c); /* from here on the tree alone has it */
    return QN_OK;
}

/* How much of it can be used; from here on the tree treats it as used just now. */
static int32_t find_all(const struct coming *c)
{
    struct ptree_found f;
    ptree_touch(c->side->is.tree, &c->line, &f);
    return f.n_usable;
}

static void tell(const struct restoring *in, struct cache_file_told *told)
{
    told->tokens = find_all(&in->sides[TIER_MODEL]);
    if (in->n_side > TIER_HEAD)
        told->draft_tokens = find_all(&in->sides[TIER_HEAD]);
}

/* The next slice; true when all is there. */
static enum qn_status adopt(struct restoring *in, bool *done, struct qn_err *err)
{
    int64_t until = clock_us() + SAVED_SLICE_US;
    *done = true;
    for (int32_t k = 0; k < in->n_side; k++) {
        struct coming *c = &in->sides[k];
        if (!coming_lacks(c))
            continue;
        enum qn_status st = adopt_side(c, until, err);
        if (st != QN_OK && k == TIER_MODEL)
            return st;
        c->left = st != QN_OK;
        *done = *done && (c->left || c->added == c->n);
    }
    for (int32_t k = 0; *done && k < in->n_side; k++)
        ptree_settle(in->sides[k].side->is.tree);
    return QN_OK;
}

/* ---- the order of it ------------------------------------------------------------------------ */

/* After each reading: what the trees lack may have changed, and what requests need. False: there is
 * more to look at. */
static enum qn_status look(struct saved *s, bool *ready, bool *lacks, struct qn_err *err)
{
    *lacks = false;
    *ready = restoring_look(s);
    if (!*ready)
        return QN_OK;
    QN_TRY(restoring_room(s, err));
    for (int32_t k = 0; k < s->in->n_side; k++)
        *lacks = *lacks || coming_lacks(&s->in->sides[k]);
    return QN_OK;
}

static void look_anew(struct restoring *in)
{
    for (int32_t k = 0; k < in->n_side; k++) {
        in->sides[k].there = 0;
        in->sides[k].lacks = false;
    }
}

enum qn_status restoring_step(struct saved *s, enum saved_task *next, bool *done,
                              struct cache_file_told *told, struct qn_err *err)
{
    struct restoring *in = s->in;
    bool ready = true, lacks = true;
    if (in->got == IN_READ) {
        QN_TRY(adopt(in, done, err));
    } else {
        if (!in->taking)
            QN_TRY(look(s, &ready, &lacks, err));
        if (ready && in->got == IN_OPENED) { /* it is not read for nothing */
            look_anew(in);
            *next = SAVED_CHECK;
        } else if (ready && lacks) {
            QN_TRY(restoring_take(s, &ready, err));
            *next = ready ? SAVED_READ : SAVED_REST;
        } else {
            *done = ready;
        }
    }
    if (*done)
        tell(in, told);
    return QN_OK;
}
