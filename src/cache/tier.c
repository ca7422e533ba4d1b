/*
 * tier.c - a tier's life and its way out: which nodes of the trees are not on disk yet, and handing
 * them to the store. The way back is tier_load.c.
 *
 * A record is a node's part without the pages of windows that its ancestors' records hold; where
 * parts have tails, the last piece of a record may be one, and its note says so. A node's
 * mark says in which epoch it was seen to be on disk or on its way; when a write fails or a record
 * turns out to be gone, a new epoch begins and every node is looked at again.
 */
#include "cache/tier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cache/shapes.h"
#include "cache/tier_int.h"

#define WHERE "disk cache"

enum { LOOK_IDLE_US = 20 * 1000, LOOK_BUSY_US = 500 * 1000, REAP = 64 };
/* While work goes on: of lines that grow, whole pages; what is in their last page too. A page that
 * is written before it is full is written again. */
enum { PAGES_BUSY_US = 4 * 1000 * 1000, ENDS_BUSY_US = 30 * 1000 * 1000 };
enum { BUSY_BYTES_PER_S = 64 << 20, RECORD_TOK = 512 };
enum { FLUSH_LOOKS = 50 };

/* A record in the store's hands. */
struct put {
    struct side *sd;
    struct kv_export *pages;
    void *tail; /* a copy: its part may go before it is written */
    struct dnode *node;
};

/* ---- what the folder held at the start ------------------------------------------------------ */

/* Records by name while they are linked. */
struct names {
    struct dnode **slots;
    size_t n, cap;
};

struct opening {
    struct side *sd;
    struct names names;
    int64_t refused;
};

static struct dnode **name_slot(const struct names *m, const struct record_name *name)
{
    uint64_t h;
    memcpy(&h, name->b, sizeof h);
    size_t i = (size_t)h & (m->cap - 1);
    while (m->slots[i] && !record_name_eq(&m->slots[i]->name, name))
        i = (i + 1) & (m->cap - 1);
    return &m->slots[i];
}

static bool names_add(struct names *m, struct dnode *n)
{
    if (2 * (m->n + 1) > m->cap) {
        struct names big = {.cap = m->cap ? 2 * m->cap : 256, .n = m->n};
        big.slots = calloc(big.cap, sizeof(*big.slots));
        if (!big.slots)
            return false;
        for (size_t i = 0; i < m->cap; i++)
            if (m->slots[i])
                *name_slot(&big, &m->slots[i]->name) = m->slots[i];
        free(m->slots);
        *m = big;
    }
    *name_slot(m, &n->name) = n;
    m->n++;
    return true;
}

/* A record that says what no prefix of this model can be is left out, and what continues it. */
static void seen(void *arg, const struct record *r)
{
    struct opening *o = arg;
    struct side *sd = o->sd;
    struct shapes_note note;
    const struct kv_shape *s = &note.shape;
    struct dnode *parent = NULL, *n = NULL;
    bool root = record_name_none(&r->id.parent);
    if (!root && o->names.cap)
        parent = *name_slot(&o->names, &r->id.parent);
    int32_t *ids = malloc(((size_t)r->id.n_token + 1) * sizeof *ids);
    if (ids && (root || parent) &&
        shapes_note_read(sd->is.ex, r->id.note, sd->is.parts != NULL, &note) &&
        s->from == r->id.from && s->end == r->id.from + r->id.n_token && s->end > s->from &&
        (uint32_t)(kv_shape_parts(sd->is.ex, s) + note.tail) == r->n_part) {
        record_tokens(r, ids);
        n = dtree_add(&sd->disk, note.ns, parent, s, ids);
    }
    free(ids);
    if (!n) {
        o->refused++;
        return;
    }
    n->name = r->name;
    n->tail = note.tail;
    if (!names_add(&o->names, n))
        dtree_drop(&sd->disk, n);
}

static void kept(void *side, struct ptree_node *node)
{
    const struct side *sd = side;
    ptree_node_set_mark(node, 0);
    sd->t->dirty = true;
}

/* The folder is opened for the first side, and joined by the others. */
static enum qn_status open_side(struct tier *t, const struct tier_params *p,
                                const struct tier_tree *tree, struct qn_err *err)
{
    struct side *sd = &t->sides[t->n_side];
    struct opening o = {.sd = sd};
    *sd = (struct side){.t = t, .is = *tree, .disk = {.ex = tree->ex}};
    sd->is.about = (struct str){0};
    struct store_params sp = {
        .dir = p->dir, .model = tree->model, .about = tree->about, .max_bytes = p->max_bytes};
    enum qn_status s = t->store ? store_join(t->store, &tree->model, tree->about, seen, &o, err)
                                : store_open(&sp, seen, &o, &t->store, err);
    t->n_side++;
    free(o.names.slots);
    if (s == QN_OK && o.refused)
        log_line(LOG_WARN, "store", "%s: %lld records do not fit this model's memory; left out",
                 p->dir, (long long)o.refused);
    return s;
}

enum qn_status tier_open(const struct tier_params *p, struct tier **out, struct qn_err *err)
{
    struct tier *t = calloc(1, sizeof *t);
    if (!t)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory");
    t->anywhere = !kv_end_bytes(p->trees[0].ex);
    t->epoch = 1;
    t->dirty = true;
    t->idle_us = p->idle_us;
    enum qn_status s = QN_OK;
    for (int32_t i = 0; s == QN_OK && i < p->n_tree; i++)
        s = open_side(t, p, &p->trees[i], err);
    if (s == QN_OK)
        s = load_open(t, err);
    if (s != QN_OK) {
        tier_close(t);
        return s;
    }
    for (int32_t i = 0; i < t->n_side; i++) {
        struct side *sd = &t->sides[i];
        struct ptree_tier calls = {.self = sd, .kept = kept, .find = load_find};
        ptree_set_tier(sd->is.tree, &calls);
    }
    *out = t;
    return QN_OK;
}

/* ---- writing behind ------------------------------------------------------------------------- */

void tier_again(struct tier *t)
{
    t->epoch++;
    t->dirty = true;
}

void tier_forget(struct side *sd, struct dnode *n)
{
    dtree_drop(&sd->disk, n);
    tier_again(sd->t);
}

static void put_free(struct put *p)
{
    kv_export_free(p->sd->is.ex, p->pages);
    free(p->tail);
    free(p);
}

/* The writing of p's record has ended. */
static void put_end(struct tier *t, const struct store_done *d)
{
    struct put *p = d->owner;
    struct dnode *n = p->node;
    n->waits = false;
    t->n_put--;
    t->puts_ended++;
    if (n->dead) {
        dnode_free(n);
    } else if (!d->durable) {
        dtree_drop(&p->sd->disk, n);
        if (!d->no_room) {
            t->n_failed++;
            tier_again(t);
        }
    }
    put_free(p);
}

static void reap(struct tier *t)
{
    struct store_done d[REAP];
    int32_t n;
    do {
        n = store_reap(t->store, d, REAP);
        for (int32_t i = 0; i < n; i++)
            put_end(t, &d[i]);
    } while (n == REAP);
}

/* A record to be: its memory, and where it belongs. */
struct job {
    const struct kv_prefix *p;
    const struct ptree_line *line;
    const struct dchain *before; /* the records that it continues, up to its first token */
    const void *tail;            /* NULL = none */
    bool now;
    int64_t idle_us; /* nobody used it for so long */
};

static enum store_answer hand_over(struct side *sd, const struct job *j,
                                   const struct kv_shape *shape, struct put *p)
{
    struct kv_shape all;
    uint8_t note[SHAPES_NOTE_MAX];
    bool tail = p->tail != NULL;
    int32_t n;
    const struct iovec *from = kv_export_parts(p->pages, &n);
    struct iovec *parts = calloc((size_t)n + 2, sizeof *parts);
    if (!parts)
        return STORE_FULL;
    kv_prefix_shape(j->p, &all);
    struct store_item item = {
        .id = {.model = sd->is.model,
               .from = shape->from,
               .n_token = shape->end - shape->from,
               .tokens = j->line->ids + shape->from,
               .note = shapes_note(note, shape, sd->is.parts ? &tail : NULL, j->line->ns)},
        .parts = parts,
        .n_part = shapes_choose(sd->is.ex, &all, shape, from, parts),
        .owner = p,
        .now = j->now,
        .idle_us = j->idle_us,
    };
    if (p->tail)
        parts[item.n_part++] = (struct iovec){p->tail, sd->is.tail_bytes};
    if (j->before->n)
        item.id.parent = j->before->v[j->before->n - 1]->name;
    enum store_answer a = store_put(sd->t->store, &item, &p->node->name);
    free(parts);
    return a;
}

static bool copy_tail(struct put *p, const void *tail)
{
    if (!tail)
        return true;
    p->tail = malloc(p->sd->is.tail_bytes);
    if (p->tail)
        memcpy(p->tail, tail, p->sd->is.tail_bytes);
    return p->tail != NULL;
}

/* One record goes to the store. */
static enum store_answer put(struct side *sd, const struct job *j)
{
    struct qn_err ignored;
    struct kv_shape shape;
    struct put *p = calloc(1, sizeof *p);
    if (!p)
        return STORE_FULL;
    p->sd = sd;
    kv_prefix_shape(j->p, &shape);
    shapes_leave_out(sd->is.ex, j->before->shapes, j->before->n, &shape);
    p->node =
        dtree_add(&sd->disk, j->line->ns, j->before->n ? j->before->v[j->before->n - 1] : NULL,
                  &shape, j->line->ids + shape.from);
    enum store_answer a = STORE_FULL;
    if (p->node && copy_tail(p, j->tail) &&
        kv_export_create(sd->is.ex, j->p, &p->pages, &ignored) == QN_OK)
        a = hand_over(sd, j, &shape, p);
    if (p->node)
        p->node->tail = p->tail != NULL;
    if (a == STORE_QUEUED) {
        p->node->waits = true;
        sd->t->n_put++;
        sd->t->puts++;
        return a;
    }
    /* There already, although this tree did not know of it: from here on it does. */
    if (p->node && a != STORE_HAVE)
        dtree_drop(&sd->disk, p->node);
    put_free(p);
    return a;
}

/* Records that the store has aged away are forgotten here too. False: there were some. No reason to
 * write them again: others would have to go for them, and so on without an end. */
static bool all_there(struct side *sd, const struct dchain *c)
{
    for (int32_t i = 0; i < c->n; i++)
        if (!c->v[i]->waits && !store_has(sd->t->store, &c->v[i]->name)) {
            dtree_drop(&sd->disk, c->v[i]);
            return false;
        }
    return true;
}

bool tier_chain(struct side *sd, const struct ptree_line *line, bool most, struct dchain *out)
{
    while (dtree_find(&sd->disk, line->ns, line->ids, line->n, most, out)) {
        if (all_there(sd, out))
            return true;
        dchain_free(out);
    }
    return false;
}

/* What a line lacks on disk: memory from token `from` on, and the tail of its end. */
struct rest {
    const struct kv_prefix *all;
    const void *tail;
    int32_t from;
    bool now;
    int64_t idle_us;
};

/* All of it, as records of at most RECORD_TOK tokens. */
static enum store_answer put_rest(struct side *sd, const struct ptree_line *line,
                                  const struct rest *r)
{
    struct qn_err ignored;
    enum store_answer a = STORE_HAVE;
    for (int32_t at = r->from, n; at < line->n; at = n) {
        struct kv_prefix *p;
        struct dchain before = {0};
        struct ptree_line front = {line->ns, line->ids, at};
        n = (at / RECORD_TOK + 1) * RECORD_TOK;
        n = n < line->n ? n : line->n;
        if (at && (!tier_chain(sd, &front, true, &before) || before.n_match < at)) {
            dchain_free(&before);
            return STORE_ORPHAN;
        }
        a = STORE_FULL;
        if (kv_prefix_part(sd->is.ex, r->all, at, n, &p, &ignored) == QN_OK) {
            if (n < line->n)
                kv_prefix_thin(sd->is.ex, p);
            const void *tail = n == line->n ? r->tail : NULL;
            a = put(sd, &(struct job){p, line, &before, tail, r->now, r->idle_us});
            kv_prefix_free(sd->is.ex, p);
        }
        dchain_free(&before);
        if (a != STORE_QUEUED && a != STORE_HAVE)
            return a;
    }
    return a;
}

/* Where what is missing of a line begins. Where all tokens are there and only its end is not: at
 * the last record. */
static int32_t missing_from(const struct dchain *c, int32_t n)
{
    return c->n_match < n ? c->n_match : c->n ? c->shapes[c->n - 1].from : 0;
}

/* How much of a line is written. Where it can be gone on from at its end alone: all or nothing. */
enum extent { FULL_RECORDS, WHOLE_PAGES, ENDS };

static int32_t cut_to(const struct tier *t, enum extent extent, int32_t n)
{
    if (extent == ENDS || (extent == WHOLE_PAGES && !t->anywhere))
        return n;
    return !t->anywhere ? 0 : n - n % (extent == WHOLE_PAGES ? KV_PAGE : RECORD_TOK);
}

/* One pass over the tree. */
struct pass {
    struct tier *t;
    struct side *sd;
    enum extent extent;
    bool now;
    int64_t idle_us; /* of the node that is looked at */
    bool stopped;    /* the store takes nothing more at present */
    bool later;      /* something was left for later */
};

/* One prefix of tokens [from, n) of what was found. */
static bool gather(const struct side *sd, const struct ptree_found *f, int32_t from, int32_t n,
                   struct kv_prefix **out)
{
    struct qn_err ignored;
    const struct kv_prefix **kv = calloc((size_t)f->n_part + 1, sizeof(*kv));
    for (int32_t i = 0; kv && i < f->n_part; i++)
        kv[i] = side_kv(sd, f->parts[i]);
    struct kv_chain chain = {kv, f->n_part};
    bool ok = kv && kv_chain_prefix(sd->is.ex, &chain, from, n, out, &ignored) == QN_OK;
    free(kv);
    return ok;
}

/* What is not on disk of a line that memory can go on behind goes there, as far as the pass wants
 * it; tail: of its end. What the store said; STORE_HAVE also when there is nothing to do. */
static enum store_answer offer(struct pass *pass, const struct ptree_line *line, const void *tail)
{
    struct side *sd = pass->sd;
    struct dchain c;
    struct kv_prefix *all;
    struct ptree_found f;
    struct ptree_line l = *line;
    if (!tier_chain(sd, &l, false, &c))
        return STORE_FULL;
    struct rest r = {.from = missing_from(&c, l.n), .now = pass->now, .idle_us = pass->idle_us};
    bool tokens = c.n_usable >= l.n, there = tokens && (c.tail || !tail);
    dchain_free(&c);
    if (there)
        return STORE_HAVE;
    l.n = cut_to(pass->t, pass->extent, l.n);
    pass->later = pass->later || l.n < line->n;
    if (l.n < line->n && (tokens || l.n <= r.from))
        return STORE_HAVE;
    ptree_peek(sd->is.tree, &l, &f);
    if (f.n_usable < l.n)
        return STORE_ORPHAN; /* cannot be: memory holds it */
    if (!gather(sd, &f, r.from, l.n, &all))
        return STORE_FULL;
    r.all = all;
    r.tail = l.n == line->n ? tail : NULL;
    enum store_answer a = put_rest(sd, &l, &r);
    kv_prefix_free(sd->is.ex, all);
    return a;
}

/* Ends that memory can go on behind are worth a record; where the model can do so everywhere, the
 * ends of lines are enough. */
static bool worth(const struct tier *t, const struct ptree_node *node)
{
    return t->anywhere ? ptree_node_leaf(node) : ptree_node_good(node);
}

static void look_at(void *arg, struct ptree_node *node)
{
    struct pass *p = arg;
    struct tier *t = p->t;
    if (p->stopped || ptree_node_mark(node) == t->epoch || !worth(t, node))
        return;
    int32_t n = ptree_node_end(node);
    int32_t *ids = malloc(((size_t)n + 1) * sizeof *ids);
    if (!ids) {
        p->stopped = true;
        return;
    }
    ptree_node_line(node, ids);
    uint64_t epoch = t->epoch;
    bool before = p->later;
    p->later = false;
    p->idle_us = clock_us() - ptree_node_used_us(node);
    const void *tail = side_tail(p->sd, ptree_node_part(node));
    enum store_answer a = offer(p, &(struct ptree_line){ptree_node_ns(node), ids, n}, tail);
    free(ids);
    if (a == STORE_FULL || a == STORE_RESTING)
        p->stopped = true;
    else if (!p->later && epoch == t->epoch)
        ptree_node_set_mark(node, epoch);
    p->later = p->later || before;
}

/* Hands over what is new, as much as the store takes. */
static void look(struct tier *t, enum extent extent, bool now)
{
    struct pass p = {.t = t, .extent = extent, .now = now};
    uint64_t epoch = t->epoch;
    int64_t clock = clock_us();
    for (int32_t i = 0; i < t->n_side; i++) {
        p.sd = &t->sides[i];
        ptree_each(p.sd->is.tree, look_at, &p);
    }
    t->dirty = p.stopped || p.later || t->epoch != epoch;
    t->look_us = clock;
    if (extent >= WHOLE_PAGES || !t->dirty)
        t->pages_us = clock;
    if (extent == ENDS || !t->dirty)
        t->ends_us = clock;
}

static enum extent due(const struct tier *t, bool busy)
{
    int64_t now = clock_us();
    if (!busy || now - t->ends_us > ENDS_BUSY_US)
        return ENDS;
    return now - t->pages_us > PAGES_BUSY_US ? WHOLE_PAGES : FULL_RECORDS;
}

/* What the store found damaged or gone by itself is in memory, perhaps. */
static void heed_damage(struct tier *t)
{
    struct store_stats st;
    store_stats(t->store, &st);
    if (st.damaged != t->damaged)
        tier_again(t);
    t->damaged = st.damaged;
}

int32_t tier_tick(struct tier *t, bool busy)
{
    if (busy != t->busy && !t->flushing)
        store_pace(t->store, busy ? BUSY_BYTES_PER_S : 0);
    t->busy = busy;
    if (t->n_put)
        reap(t);
    int64_t every = busy ? LOOK_BUSY_US : LOOK_IDLE_US, since = clock_us() - t->look_us;
    if (t->dirty && since >= every) {
        look(t, due(t, busy), false);
        since = 0;
    }
    load_tick(t);
    heed_damage(t);
    if (t->flushing || load_busy(t))
        return 2;
    int32_t old = demote_tick(t);
    return t->dirty ? (int32_t)((every - since) / 1000) + 1 : t->n_put ? 50 : old;
}

/* ---- flushing ------------------------------------------------------------------------------- */

struct count {
    struct side *sd;
    struct tier_flush *f;
};

/* Whether the line is on disk with all it continues: so that it can be gone on from, or, without
 * `end`, its tokens; and, if there is to be one, its tail. */
static bool line_durable(struct side *sd, const struct ptree_line *line, bool end, bool tail)
{
    struct dchain c;
    if (!tier_chain(sd, line, !end, &c))
        return false;
    bool yes = (end ? c.n_usable : c.n_match) >= line->n && (c.tail || !tail);
    for (int32_t i = 0; yes && i < c.n; i++)
        yes = !c.v[i]->waits;
    dchain_free(&c);
    return yes;
}

bool tier_durable(struct side *sd, const struct ptree_node *node)
{
    int32_t n = ptree_node_end(node);
    bool tail = worth(sd->t, node) && side_tail(sd, ptree_node_part(node)), yes = false;
    int32_t *ids = malloc(((size_t)n + 1) * sizeof *ids);
    if (ids) {
        struct ptree_line line = {ptree_node_ns(node), ids, n};
        ptree_node_line(node, ids);
        yes = line_durable(sd, &line, ptree_node_good(node), tail);
    }
    free(ids);
    return yes;
}

/* A node whose end nobody can go on behind serves only those behind it: it is no end of its own,
 * and its tokens count when they are there. */
static void count_node(void *arg, struct ptree_node *node)
{
    struct count *c = arg;
    int32_t own = ptree_node_end(node) - ptree_node_from(node);
    bool end = ptree_node_good(node), kept = tier_durable(c->sd, node);
    c->f->nodes += end;
    c->f->durable_nodes += end && kept;
    if (c->sd != &c->sd->t->sides[TIER_MODEL])
        return;
    c->f->tokens += end || kept ? own : 0;
    c->f->durable_tokens += kept ? own : 0;
}

bool tier_flush(struct tier *t, bool begin, struct tier_flush *out)
{
    if (begin) {
        store_check(t->store); /* what was written is there still, or is written again */
        t->checking = t->flushing = true;
        t->n_failed = 0;
        t->flush_to = -1;
        t->waited = 0;
        store_pace(t->store, 0);
    }
    if (!t->flushing)
        return true;
    if (t->checking && !store_checked(t->store))
        return false;
    if (t->checking)
        tier_again(t);
    t->checking = false;
    reap(t);
    if (t->flush_to < 0 && t->n_failed == 0) { /* after a failure once is enough: it is told */
        if (t->dirty)
            look(t, ENDS, true);
        if (t->dirty && (t->n_put || t->waited++ < FLUSH_LOOKS)) /* the queue was full */
            return false;
    }
    if (t->flush_to < 0)
        t->flush_to = t->puts;
    if (t->puts_ended < t->flush_to)
        return false;
    struct store_stats st;
    *out = (struct tier_flush){0};
    for (int32_t i = 0; i < t->n_side; i++)
        ptree_each(t->sides[i].is.tree, count_node, &(struct count){&t->sides[i], out});
    store_stats(t->store, &st);
    snprintf(out->error, sizeof out->error, "%s",
             out->durable_nodes == out->nodes ? ""
             : st.error[0]                    ? st.error
             : t->dirty || t->n_put           ? "more came in meanwhile; ask again"
                                              : "it does not fit within the bound of the folder");
    t->flushing = false;
    store_pace(t->store, t->busy ? BUSY_BYTES_PER_S : 0);
    return true;
}

/* ---- ending --------------------------------------------------------------------------------- */

void tier_close(struct tier *t)
{
    if (!t)
        return;
    for (int32_t i = 0; i < t->n_side; i++)
        ptree_set_tier(t->sides[i].is.tree, NULL);
    load_close(t);
    store_stop(t->store);
    if (t->store)
        reap(t);
    store_close(t->store);
    for (int32_t i = 0; i < t->n_side; i++)
        dtree_free(&t->sides[i].disk);
    free(t);
}

void tier_stats(const struct tier *t, struct tier_stats *out)
{
    *out = t->stats;
    out->known_tokens = t->sides[TIER_MODEL].disk.tokens;
    store_stats(t->store, &out->store);
}
