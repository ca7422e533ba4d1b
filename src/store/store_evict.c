/*
 * store_evict.c - records that have to go: the oldest that nothing continues, to stay within the
 * bound, but never for something that was not used since; or a damaged one with all that continues
 * it. An entry leaves the index first, under the lock, and its file afterwards without it:
 * unlinking a large file takes milliseconds.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "store/store_int.h"

/* Bytes of what may go for something that was last used at used_ns: not what is newer, being read
 * or waiting to be written, and not what such a thing continues. The others are marked held. */
static int64_t may_go(const struct store *st, int64_t used_ns)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < st->index.n_slot; i++)
        if (st->index.slots[i])
            st->index.slots[i]->held = false;
    for (size_t i = 0; i < st->index.n_slot; i++) {
        struct entry *e = st->index.slots[i];
        if (e && (!e->stored || e->pins || e->used_ns >= used_ns))
            for (; e && !e->held; e = e->parent)
                e->held = true;
    }
    for (size_t i = 0; i < st->index.n_slot; i++)
        if (st->index.slots[i] && !st->index.slots[i]->held)
            bytes += st->index.slots[i]->bytes;
    return bytes;
}

static struct entry *oldest_leaf(const struct store *st)
{
    struct entry *best = NULL;
    for (size_t i = 0; i < st->index.n_slot; i++) {
        struct entry *e = st->index.slots[i];
        if (e && !e->held && !e->child && (!best || e->used_ns < best->used_ns))
            best = e;
    }
    return best;
}

static void out_of_index(struct store *st, struct entry *e, struct victims *out)
{
    recs_remove(&st->index, e);
    entry_leave(e);
    st->stats.records--;
    st->stats.bytes -= e->bytes;
    e->next = out->first;
    out->first = e;
}

bool evict_room(struct store *st, int64_t bytes, int64_t used_ns, struct victims *out)
{
    int64_t max = st->stats.max_bytes;
    if (!max)
        return true;
    if (bytes > max)
        return false;
    int64_t over = st->stats.bytes - (max - bytes);
    if (over > 0 && may_go(st, used_ns) < over)
        return false;
    while (st->stats.bytes > max - bytes) {
        struct entry *e = oldest_leaf(st);
        QN_ASSERT(e);
        out_of_index(st, e, out);
        st->stats.evicted++;
    }
    return true;
}

/* Entries that still wait stay: the writer finds their parent gone and gives them up. */
void evict_tree(struct store *st, struct entry *e, struct victims *out)
{
    struct entry *top = e;
    for (;;) {
        while (e->child)
            e = e->child;
        struct entry *up = e == top ? NULL : e->parent;
        if (e->stored)
            out_of_index(st, e, out);
        else
            entry_leave(e); /* an orphan from here on */
        if (!up)
            return;
        e = up;
    }
}

void evict_files(struct store *st, struct victims *v)
{
    struct buf path = BUF_INIT;
    while (v->first) {
        struct entry *e = v->first;
        v->first = e->next;
        record_path(&path, st->dir, &e->model, &e->name);
        if (!path.failed && unlink(buf_z(&path)) != 0 && errno != ENOENT)
            log_line(LOG_WARN, "store", "%s: cannot remove: %s", buf_z(&path), strerror(errno));
        free(e);
    }
    buf_free(&path);
}
