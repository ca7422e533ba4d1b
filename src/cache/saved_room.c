/*
 * saved_room.c - memory for a line that comes back from a file: what the trees have of it already,
 * whether the rest fits, what gives way to it, and the taking, a slice at a time. The scheduler's
 * thread.
 *
 * A draft head's part never stands in the way of the model's: where it does not fit it is left in
 * the file.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "cache/kv_parts.h"
#include "cache/saved_int.h"

#define WHERE "conversation"

/* ---- what is there -------------------------------------------------------------------------- */

/* The line up to where record i ends, to be gone on from there, with its tail if it has one. */
static bool is_there(const struct coming *c, int32_t i)
{
    struct ptree_found f;
    const struct tier_tree *is = &c->side->is;
    int32_t end = c->shapes[i].end;
    ptree_peek(is->tree, &(struct ptree_line){c->ns, c->line.ids, end}, &f);
    if (f.n_usable != end)
        return false;
    const void *last = f.parts[f.n_part - 1];
    return !c->tailed[i] || (kv_prefix_end(tier_kv(is, last)) == end && tier_tail(is, last));
}

bool restoring_look(struct saved *s)
{
    int64_t until = clock_us() + SAVED_SLICE_US;
    for (int32_t k = 0; k < s->in->n_side; k++) {
        struct coming *c = &s->in->sides[k];
        while (!c->lacks && c->there < c->n) {
            c->lacks = !is_there(c, c->n - 1 - c->there);
            c->there += !c->lacks;
            if (clock_us() > until)
                return false;
        }
    }
    return true;
}

/* ---- whether it fits ------------------------------------------------------------------------ */

static int64_t need_of(const struct coming *c)
{
    return coming_lacks(c) ? c->need : 0;
}

enum qn_status restoring_room(struct saved *s, struct qn_err *err)
{
    struct restoring *in = s->in;
    const struct coming *m = &in->sides[TIER_MODEL];
    int64_t need = need_of(m), limit = m->side->limit;
    if (need > limit)
        QN_FAIL(err, QN_NO_MEMORY, WHERE,
                "%s: %d tokens take %lld bytes of memory; the prompt cache may have %lld: start "
                "the server with a larger --prompt-cache",
                s->name, s->info.n_token, (long long)need, (long long)limit);
    if (s->room && need > s->room)
        QN_FAIL(err, QN_BUSY, WHERE,
                "%s: %d tokens take %lld bytes of memory; %lld are left beside running requests",
                s->name, s->info.n_token, (long long)need, (long long)s->room);
    for (int32_t k = TIER_HEAD; k < in->n_side; k++) {
        struct coming *c = &in->sides[k];
        c->left = false;
        c->left = need_of(c) > c->side->limit || (s->room && need_of(c) > s->room - need);
    }
    return QN_OK;
}

/* ---- taking --------------------------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The trees give way, so that with what comes they are within their bounds, and all of it within
 * what running requests leave. */
static void make_room(struct saved *s)
{
    int64_t rest = s->room ? s->room : INT64_MAX, limits = 0; /* rest: for what is idle */
    for (int32_t k = 0; k < s->n_side; k++) {
        limits += s->sides[k].limit;
        rest -= k < s->in->n_side ? need_of(&s->in->sides[k]) : 0;
    }
    for (int32_t k = 0; k < s->n_side; k++) {
        const struct saved_side *sd = &s->sides[k];
        int64_t need = k < s->in->n_side ? need_of(&s->in->sides[k]) : 0;
        double share = (double)rest * (double)sd->limit / (double)limits;
        ptree_trim(sd->is.tree, least(sd->limit - need, share < 9e18 ? (int64_t)share : rest));
    }
}

void coming_drop(struct coming *c)
{
    for (int32_t i = 0; i < c->n; i++) {
        if (c->imports)
            kv_prefix_free(c->side->is.ex, c->imports[i]);
        if (c->parts)
            free(c->parts[i]);
        if (c->tails)
            free(c->tails[i]);
    }
    free(c->imports);
    free(c->parts);
    free(c->tails);
    c->imports = NULL;
    c->parts = NULL;
    c->tails = NULL;
}

static void *take_bytes(size_t n)
{
    return fault_point("cache.alloc") ? NULL : calloc(1, n ? n : 1);
}

static enum qn_status take_one(struct coming *c, int32_t i, struct qn_err *err)
{
    const struct tier_tree *is = &c->side->is;
    int32_t n = kv_shape_parts(is->ex, &c->shapes[i]);
    QN_TRY(kv_parts_import(is->ex, is->tree, &c->shapes[i], &c->imports[i], err));
    c->parts[i] = take_bytes(((size_t)n + 1) * sizeof **c->parts);
    if (c->tailed[i])
        c->tails[i] = take_bytes(is->tail_bytes);
    if (!c->parts[i] || (c->tailed[i] && !c->tails[i]))
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for a list of %d pages", n);
    kv_import_parts(is->ex, c->imports[i], c->parts[i]);
    if (c->tailed[i])
        c->parts[i][n] = (struct iovec){c->tails[i], is->tail_bytes};
    return QN_OK;
}

static enum qn_status take_side(struct coming *c, int64_t until, struct qn_err *err)
{
    size_t n = (size_t)c->n;
    if (!c->imports) {
        c->imports = take_bytes(n * sizeof(*c->imports));
        c->parts = take_bytes(n * sizeof(*c->parts));
        c->tails = take_bytes(n * sizeof(*c->tails));
    }
    if (!c->imports || !c->parts || !c->tails)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for a list of %d records", c->n);
    do {
        QN_TRY(take_one(c, c->taken, err));
        c->taken++;
    } while (c->taken < c->n && clock_us() < until);
    return QN_OK;
}

enum qn_status restoring_take(struct saved *s, bool *ready, struct qn_err *err)
{
    struct restoring *in = s->in;
    int64_t until = clock_us() + SAVED_SLICE_US;
    if (!in->taking)
        make_room(s);
    in->taking = true;
    *ready = true;
    for (int32_t k = 0; k < in->n_side; k++) {
        struct coming *c = &in->sides[k];
        if (!coming_lacks(c) || c->taken == c->n)
            continue;
        enum qn_status st = clock_us() < until ? take_side(c, until, err) : QN_OK;
        if (st != QN_OK && k == TIER_MODEL)
            return st;
        c->left = st != QN_OK;
        if (c->left)
            coming_drop(c);
        *ready = *ready && (c->left || c->taken == c->n);
    }
    return QN_OK;
}
