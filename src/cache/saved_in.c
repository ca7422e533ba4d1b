/*
 * saved_in.c - from a file to the tree. The thread reads the headers and checks that they are this
 * model's and fit together, then every byte behind them; only then does this thread take memory,
 * and others give way; the thread reads all of it once more, checking again what may have been
 * changed meanwhile; then it comes into the tree. What is all there already only counts as used.
 * Pages that records share are shared there too.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "cache/kv_parts.h"
#include "cache/saved_int.h"

#define WHERE "conversation"

struct restoring {
    struct conv *file;
    int32_t n; /* records */
    int32_t *ids;
    char ns[SHAPES_NS_MAX + 1];
    struct kv_shape *shapes;    /* [n] */
    struct kv_prefix **imports; /* [n] */
    struct iovec **parts;       /* [n] */
    int64_t need;               /* bytes of memory */
    int32_t there; /* records, from the last on, that the tree has; until it `lacks` one */
    bool lacks;
    int32_t taken, added;
    enum { IN_OPENED, IN_CHECKED, IN_READ } got; /* what the thread has done last */
};

void restoring_free(struct saved *s)
{
    struct restoring *in = s->in;
    if (!in)
        return;
    for (int32_t i = 0; i < in->n; i++) {
        if (in->imports)
            kv_prefix_free(s->ex, in->imports[i]);
        if (in->parts)
            free(in->parts[i]);
    }
    free(in->imports);
    free(in->parts);
    free(in->shapes);
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
    if (record_name_eq(&s->info.model, &s->model))
        return QN_OK;
    record_name_hex(&s->info.model, got);
    record_name_hex(&s->model, want);
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

static enum qn_status read_shape(const struct saved *s, int32_t i, struct qn_err *err)
{
    struct restoring *in = s->in;
    const struct record *r = conv_record(in->file, i);
    struct kv_shape *sh = &in->shapes[i];
    struct shapes_note note;
    bool ok = shapes_note_read(s->ex, r->id.note, false, &note);
    *sh = note.shape;
    if (!ok || sh->from != r->id.from || sh->end != r->id.from + r->id.n_token ||
        (uint32_t)kv_shape_parts(s->ex, sh) != r->n_part || (i && strcmp(note.ns, in->ns) != 0))
        return misfit(s, i, err);
    for (uint32_t k = 0; k < r->n_part; k++)
        if (record_part(r, k).bytes != (uint64_t)kv_shape_part_bytes(s->ex, sh, (int32_t)k))
            return misfit(s, i, err);
    if (!i)
        memcpy(in->ns, note.ns, sizeof note.ns);
    in->need += kv_shape_bytes(s->ex, sh);
    record_tokens(r, in->ids + r->id.from);
    return QN_OK;
}

enum qn_status restoring_open(struct saved *s, struct qn_err *err)
{
    struct restoring *in = s->in;
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
    size_t n = (size_t)s->info.n_record;
    in->shapes = calloc(n, sizeof *in->shapes);
    in->imports = calloc(n, sizeof(*in->imports));
    in->parts = calloc(n, sizeof(*in->parts));
    in->ids = malloc((size_t)s->info.n_token * sizeof *in->ids);
    in->n = s->info.n_record;
    if (!in->shapes || !in->imports || !in->parts || !in->ids)
        return no_memory(err);
    for (int32_t i = 0; i < in->n; i++)
        QN_TRY(read_shape(s, i, err));
    for (int32_t i = 0; i < in->n; i++) {
        int32_t end = in->shapes[i].end;
        if (kv_shapes_usable(s->ex, in->shapes, in->n, end) != end)
            return misfit(s, i, err);
    }
    return QN_OK;
}

/* Of every record, and then what the thread has done. */
static enum qn_status read_all(struct saved *s, bool keeps, struct qn_err *err)
{
    for (int32_t i = 0; i < s->in->n; i++) {
        if (atomic_load(&s->stop))
            QN_FAIL(err, QN_CANCELLED, WHERE, "%s: not finished, the server stops", s->name);
        QN_TRY(conv_read(s->in->file, i, keeps ? s->in->parts[i] : NULL, err));
    }
    s->in->got = keeps ? IN_READ : IN_CHECKED;
    return QN_OK;
}

enum qn_status restoring_check(struct saved *s, struct qn_err *err)
{
    return read_all(s, false, err);
}

enum qn_status restoring_read(struct saved *s, struct qn_err *err)
{
    return read_all(s, true, err);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* What it may take: the cache's bound, and what running requests leave of the memory. */
static enum qn_status check_room(const struct saved *s, struct qn_err *err)
{
    int64_t need = s->in->need;
    if (need > s->limit)
        QN_FAIL(err, QN_NO_MEMORY, WHERE,
                "%s: %d tokens take %lld bytes of memory; the prompt cache may have %lld: start "
                "the server with a larger --prompt-cache",
                s->name, s->info.n_token, (long long)need, (long long)s->limit);
    if (s->room && need > s->room)
        QN_FAIL(err, QN_BUSY, WHERE,
                "%s: %d tokens take %lld bytes of memory; %lld are left beside running requests",
                s->name, s->info.n_token, (long long)need, (long long)s->room);
    return QN_OK;
}

/* Whether the tree has the line up to where record i ends, to be gone on from there. */
static bool is_there(const struct saved *s, int32_t i)
{
    const struct restoring *in = s->in;
    struct ptree_found f;
    ptree_peek(s->tree, &(struct ptree_line){in->ns, in->ids, in->shapes[i].end}, &f);
    return f.n_usable == in->shapes[i].end;
}

/* The next slice: whether all places to go on from are there; true when that is known. */
static bool look(struct saved *s)
{
    struct restoring *in = s->in;
    int64_t until = clock_us() + SAVED_SLICE_US;
    while (in->there < in->n && clock_us() < until) {
        if (!is_there(s, in->n - 1 - in->there)) {
            in->lacks = true;
            return true;
        }
        in->there++;
    }
    return in->there == in->n;
}

/* The tree gives way, so that with what comes it is within its bound. */
static void make_room(struct saved *s)
{
    int64_t most = s->room && s->room < s->limit ? s->room : s->limit;
    if (kv_bytes_idle(s->ex) > most - s->in->need)
        ptree_trim(s->tree, most - s->in->need);
}

static enum qn_status take_one(struct saved *s, int32_t i, struct qn_err *err)
{
    struct restoring *in = s->in;
    QN_TRY(kv_parts_import(s->ex, s->tree, &in->shapes[i], &in->imports[i], err));
    in->parts[i] = calloc((size_t)kv_shape_parts(s->ex, &in->shapes[i]) + 1, sizeof **in->parts);
    if (!in->parts[i])
        return no_memory(err);
    kv_import_parts(s->ex, in->imports[i], in->parts[i]);
    return QN_OK;
}

/* The next slice: memory for all that will be read; true when it is there. */
static enum qn_status take(struct saved *s, bool *ready, struct qn_err *err)
{
    struct restoring *in = s->in;
    int64_t until = clock_us() + SAVED_SLICE_US;
    do {
        QN_TRY(take_one(s, in->taken, err));
        in->taken++;
    } while (in->taken < in->n && clock_us() < until);
    *ready = in->taken == in->n;
    return QN_OK;
}

/* ---- into the tree -------------------------------------------------------------------------- */

static enum qn_status adopt_one(struct saved *s, int32_t i, struct qn_err *err)
{
    struct restoring *in = s->in;
    const struct kv_shape *sh = &in->shapes[i];
    struct kv_chain chain = {(const struct kv_prefix *const *)in->imports, in->n};
    struct ptree_line line = {in->ns, in->ids, sh->end};
    struct kv_prefix *p;
    QN_TRY(kv_chain_prefix(s->ex, &chain, sh->from, sh->end, &p, err));
    kv_prefix_cached(s->ex, p);
    return ptree_add(s->tree, &line, sh->from, p, err);
}

/* How much of it can be used; from here on the tree treats it as used just now. */
static int32_t find_all(const struct saved *s)
{
    struct ptree_found f;
    struct ptree_line line = {s->in->ns, s->in->ids, s->info.n_token};
    ptree_touch(s->tree, &line, &f);
    return f.n_usable;
}

/* The next slice: into the tree; true when all is there, *tokens: how much can be used. */
static enum qn_status adopt(struct saved *s, bool *ready, int32_t *tokens, struct qn_err *err)
{
    struct restoring *in = s->in;
    int64_t until = clock_us() + SAVED_SLICE_US;
    do {
        QN_TRY(adopt_one(s, in->added, err));
        in->added++;
    } while (in->added < in->n && clock_us() < until);
    *ready = in->added == in->n;
    if (!*ready)
        return QN_OK;
    for (int32_t i = 0; i < in->n; i++) { /* from here on the tree alone has them */
        kv_prefix_free(s->ex, in->imports[i]);
        in->imports[i] = NULL;
    }
    ptree_settle(s->tree);
    *tokens = find_all(s);
    return QN_OK;
}

/* ---- the order of it ------------------------------------------------------------------------ */

static enum qn_status step_taking(struct saved *s, enum saved_task *next, bool *done,
                                  int32_t *tokens, struct qn_err *err)
{
    bool ready = false;
    if (!s->in->lacks && !look(s))
        return QN_OK;
    if (!s->in->lacks) {
        *tokens = find_all(s);
        *done = true;
        return QN_OK;
    }
    if (!s->in->taken) { /* requests may have come since it was opened */
        QN_TRY(check_room(s, err));
        make_room(s);
    }
    QN_TRY(take(s, &ready, err));
    *next = ready ? SAVED_READ : SAVED_REST;
    return QN_OK;
}

enum qn_status restoring_step(struct saved *s, enum saved_task *next, bool *done, int32_t *tokens,
                              struct qn_err *err)
{
    switch (s->in->got) {
    case IN_OPENED:
        if (!is_there(s, s->in->n - 1))
            QN_TRY(check_room(s, err)); /* before it is read for nothing */
        *next = SAVED_CHECK;
        return QN_OK;
    case IN_CHECKED:
        return step_taking(s, next, done, tokens, err);
    default:
        return adopt(s, done, tokens, err);
    }
}
