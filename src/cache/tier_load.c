/*
 * tier_load.c - from the disk into the tree: what a line lacks in memory is planned from the
 * records' shapes, read by a thread straight into fresh pages, and put into the tree when every
 * byte has been checked.
 *
 * Of a page that several records have only the last one's is read; of windows and states only what
 * the end needs.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "cache/kv_parts.h"
#include "cache/tier_int.h"

/* WORTH: tokens of the model that a read gains; of the trees that go with it each token counts,
 * as nothing computes it again. */
enum { WORTH = 16, AHEAD = 4, TRY_AGAIN_US = 1000 * 1000 };

/* Parts of a record; those not wanted have no base. */
struct piece {
    struct record_name name;
    struct iovec *parts;
    int32_t n_part, wanted;
};

struct load {
    struct side *sd;
    int32_t *ids;
    char ns[DTREE_NS_MAX + 1];
    struct kv_shape shape; /* what is to be in memory */
    struct kv_prefix *p;
    void *tail;           /* NULL = none is read */
    struct piece *pieces; /* one for each record of the chain */
    int32_t n_piece;
    int32_t n_usable; /* before */
    int64_t start_us;
    bool ok;
};

static void load_free(struct load *l)
{
    if (!l)
        return;
    kv_prefix_free(l->sd->is.ex, l->p);
    free(l->tail);
    for (int32_t i = 0; l->pieces && i < l->n_piece; i++)
        free(l->pieces[i].parts);
    free(l->pieces);
    free(l->ids);
    free(l);
}

/* ---- planning ------------------------------------------------------------------------------- */

/* The place of a page, or of the state (page -1), in the list of a shape's pieces. */
static int32_t part_at(const struct exec *ex, const struct kv_shape *s, int32_t g, int32_t page)
{
    int32_t at = 0;
    for (int32_t k = 0; k < kv_n_group(ex) && (page < 0 || k < g); k++)
        at += s->runs[k].n;
    return page < 0 ? at : at + page - s->runs[g].first;
}

/* Windows begin where the chain has them: at the latest where the token behind the end sees. */
static bool fit_windows(const struct exec *ex, const struct dchain *c, struct kv_shape *s)
{
    for (int32_t g = 0; g < kv_n_group(ex); g++) {
        int32_t end = s->runs[g].first + s->runs[g].n, first = end;
        while (first > s->runs[g].first &&
               kv_shapes_page(c->shapes, c->n, g, first - 1, s->end) >= 0)
            first--;
        if (!kv_group_window(ex, g) && first != s->runs[g].first)
            return false;
        s->runs[g].first = first < end ? first : 0;
        s->runs[g].n = end - first;
    }
    return true;
}

static bool want(struct piece *p, int32_t at, struct iovec to)
{
    if (at >= p->n_part || p->parts[at].iov_base)
        return false;
    p->parts[at] = to;
    p->wanted++;
    return true;
}

/* Where each piece of the memory comes from: of the records that have a page, the last one is
 * right. False: they do not have it. */
static bool plan_reads(const struct dchain *c, struct load *l)
{
    const struct exec *ex = l->sd->is.ex;
    const struct kv_shape *all = &l->shape;
    struct iovec *to = calloc((size_t)kv_shape_parts(ex, all) + 1, sizeof *to), *v = to;
    bool ok = to != NULL;
    if (ok)
        kv_import_parts(ex, l->p, to);
    for (int32_t g = 0; ok && g < kv_n_group(ex); g++)
        for (int32_t i = 0; ok && i < all->runs[g].n; i++) {
            int32_t page = all->runs[g].first + i;
            int32_t k = kv_shapes_page(c->shapes, c->n, g, page, all->end);
            ok = k >= 0 && want(&l->pieces[k], part_at(ex, &c->v[k]->shape, g, page), *v++);
        }
    if (ok && all->state)
        ok = c->shapes[c->n - 1].state &&
             want(&l->pieces[c->n - 1], part_at(ex, &c->v[c->n - 1]->shape, 0, -1), *v);
    if (ok && l->tail) /* the last piece of its record */
        ok = want(&l->pieces[c->n - 1], l->pieces[c->n - 1].n_part - 1,
                  (struct iovec){l->tail, l->sd->is.tail_bytes});
    free(to);
    return ok;
}

static bool plan_pieces(const struct dchain *c, struct load *l)
{
    l->pieces = calloc((size_t)c->n + 1, sizeof *l->pieces);
    for (int32_t k = 0; l->pieces && k < c->n; k++) {
        struct piece *p = &l->pieces[k];
        p->name = c->v[k]->name;
        p->n_part = kv_shape_parts(l->sd->is.ex, &c->v[k]->shape) + c->v[k]->tail;
        p->parts = calloc((size_t)p->n_part + 1, sizeof *p->parts);
        l->n_piece = k + 1;
        if (!p->parts)
            return false;
    }
    return l->pieces != NULL;
}

static bool plan_tail(const struct dchain *c, struct load *l)
{
    if (!c->tail)
        return true;
    l->tail = malloc(l->sd->is.tail_bytes);
    return l->tail != NULL;
}

static bool take_memory(struct load *l)
{
    struct qn_err ignored;
    const struct side *sd = l->sd;
    return kv_parts_import(sd->is.ex, sd->is.tree, &l->shape, &l->p, &ignored) == QN_OK;
}

/* What memory lacks: from where it ends, or, when it has the tokens but cannot go on behind them,
 * from where the node with the last one begins at the earliest. */
static bool plan_shape(const struct dchain *c, int32_t n_match, struct load *l)
{
    const struct exec *ex = l->sd->is.ex;
    int32_t n = c->n_usable, node = (n - 1) / PTREE_NODE_TOK * PTREE_NODE_TOK;
    kv_shape_whole(ex, n > n_match ? n_match : node, n, &l->shape);
    return fit_windows(ex, c, &l->shape);
}

/* The chain up to where it is usable. */
static void cut_chain(struct dchain *c)
{
    while (c->n && c->shapes[c->n - 1].from >= c->n_usable)
        c->n--;
    if (c->n)
        kv_shape_cut(&c->shapes[c->n - 1], c->n_usable);
}

static struct load *plan(struct side *sd, const struct ptree_line *line, const struct dchain *c,
                         const struct ptree_found *here)
{
    struct load *l = fault_point("cache.alloc") ? NULL : calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->sd = sd;
    size_t bytes = (size_t)c->n_usable * sizeof *l->ids;
    l->n_usable = here->n_usable;
    l->start_us = clock_us();
    l->ids = malloc(bytes + 1);
    if (line->ns)
        memcpy(l->ns, line->ns, strlen(line->ns));
    if (l->ids && plan_shape(c, here->n_match, l) && plan_pieces(c, l) && plan_tail(c, l) &&
        take_memory(l) && plan_reads(c, l)) {
        memcpy(l->ids, line->ids, bytes);
        return l;
    }
    load_free(l);
    return NULL;
}

/* Whether the tail at the end of what is here is here too. */
static bool has_tail(const struct side *sd, const struct ptree_found *here)
{
    const void *last = here->n_part ? here->parts[here->n_part - 1] : NULL;
    return last && kv_prefix_end(side_kv(sd, last)) == here->n_usable && side_tail(sd, last);
}

/* Whether what the disk has of a line, beside what is here, is worth reading. */
static bool worth_reading(const struct side *sd, const struct ptree_line *line,
                          const struct dchain *c, const struct ptree_found *here)
{
    int32_t gain = c->n_usable - here->n_usable;
    if (sd != &sd->t->sides[TIER_MODEL] && gain >= 0)
        return gain > 0 || (c->tail && c->n_usable < line->n && !has_tail(sd, here));
    return gain >= WORTH || (gain > 0 && !here->n_usable);
}

/* Something worth reading for the line; NULL = nothing. */
static struct load *begin(struct side *sd, const struct ptree_line *line)
{
    struct dchain c;
    struct ptree_found here;
    struct load *l = NULL;
    if (!sd->disk.nodes || (line->ns && strlen(line->ns) > DTREE_NS_MAX) ||
        !tier_chain(sd, line, false, &c))
        return NULL;
    ptree_peek(sd->is.tree, line, &here);
    bool worth = worth_reading(sd, line, &c, &here);
    cut_chain(&c);
    bool waits = false;
    for (int32_t i = 0; i < c.n; i++)
        waits = waits || c.v[i]->waits; /* then memory has it, or had it a moment ago */
    const struct dnode *last = c.n ? c.v[c.n - 1] : NULL;
    bool again = last && last == sd->tried && c.n_usable == sd->tried_at &&
                 clock_us() - sd->tried_us < TRY_AGAIN_US;
    if (last && !waits && !again && worth) {
        sd->tried = last;
        sd->tried_at = c.n_usable;
        sd->tried_us = clock_us();
        l = plan(sd, line, &c, &here);
    }
    dchain_free(&c);
    return l;
}

/* ---- reading: the reader's thread, or whoever cannot wait ------------------------------------ */

static bool read_all(struct store *st, struct load *l)
{
    struct qn_err err;
    for (int32_t i = 0, ahead = 0; i < l->n_piece; i++) {
        struct piece *p = &l->pieces[i];
        for (ahead = ahead > i + 1 ? ahead : i + 1; ahead < l->n_piece && ahead <= i + AHEAD;
             ahead++)
            if (l->pieces[ahead].wanted)
                store_prefetch(st, &l->pieces[ahead].name);
        if (p->wanted && store_read(st, &p->name, p->parts, p->n_part, &err) != QN_OK)
            return false;
    }
    return true;
}

/* Into the tree. True when it now has more. */
static bool adopt(struct tier *t, struct load *l)
{
    struct qn_err ignored;
    struct side *sd = l->sd;
    struct ptree_line line = {l->ns, l->ids, l->shape.end};
    struct kv_prefix *p = l->p;
    void *part = p;
    if (!l->ok)
        return false;
    l->p = NULL;
    if (!sd->is.parts)
        kv_prefix_cached(sd->is.ex, p);
    else if (sd->is.parts->make(sd->is.self, p, l->tail, &part, &ignored) != QN_OK)
        return false;
    if (ptree_add(sd->is.tree, &line, l->shape.from, part, &ignored) != QN_OK)
        return false;
    if (sd != &t->sides[TIER_MODEL]) {
        t->stats.restored_rows += l->shape.end - l->n_usable;
        return true;
    }
    t->stats.restores++;
    t->stats.restored_tokens += l->shape.end - l->n_usable;
    t->stats.restore_us += clock_us() - l->start_us;
    return true;
}

static void *reader_main(void *arg)
{
    struct tier *t = arg;
    pthread_mutex_lock(&t->mu);
    while (!t->quit) {
        if (!t->reading) {
            pthread_cond_wait(&t->cv, &t->mu);
            continue;
        }
        pthread_mutex_unlock(&t->mu);
        bool ok = read_all(t->store, t->load);
        pthread_mutex_lock(&t->mu);
        t->load->ok = ok;
        t->reading = false;
    }
    pthread_mutex_unlock(&t->mu);
    return NULL;
}

enum qn_status load_open(struct tier *t, struct qn_err *err)
{
    pthread_mutex_init(&t->mu, NULL);
    pthread_cond_init(&t->cv, NULL);
    if (pthread_create(&t->reader, NULL, reader_main, t) != 0)
        QN_FAIL(err, QN_NO_MEMORY, "disk cache", "cannot start the thread that reads");
    t->reads = true;
    return QN_OK;
}

void load_close(struct tier *t)
{
    if (!t->reads)
        return;
    pthread_mutex_lock(&t->mu);
    t->quit = true;
    pthread_cond_signal(&t->cv);
    pthread_mutex_unlock(&t->mu);
    pthread_join(t->reader, NULL);
    load_free(t->load);
    pthread_mutex_destroy(&t->mu);
    pthread_cond_destroy(&t->cv);
}

bool load_busy(const struct tier *t)
{
    return t->load != NULL;
}

void load_tick(struct tier *t)
{
    if (!t->load)
        return;
    pthread_mutex_lock(&t->mu);
    bool reading = t->reading;
    pthread_mutex_unlock(&t->mu);
    if (reading)
        return;
    adopt(t, t->load);
    load_free(t->load);
    t->load = NULL;
}

bool tier_loading(struct tier *t, int32_t tree, const struct ptree_line *line)
{
    load_tick(t);
    if (t->load)
        return true;
    struct load *l = begin(&t->sides[tree], line);
    if (!l)
        return false;
    pthread_mutex_lock(&t->mu);
    t->load = l;
    t->reading = true;
    pthread_cond_signal(&t->cv);
    pthread_mutex_unlock(&t->mu);
    return true;
}

bool load_find(void *side, const struct ptree_line *line, int32_t n_usable)
{
    struct side *sd = side;
    struct tier *t = sd->t;
    if (t->load) /* another line's, which nobody may wait for here */
        return false;
    struct load *l = begin(sd, line);
    if (!l)
        return false;
    l->ok = read_all(t->store, l);
    bool more = adopt(t, l);
    load_free(l);
    return more;
}
