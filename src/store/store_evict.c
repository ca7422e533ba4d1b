/*
 * store_evict.c - records that have to go: the oldest that nothing continues, to stay within the
 * bound; or a damaged one with all that continues it. An entry leaves the index first, under the
 * lock, and its file afterwards without it: unlinking a large file takes milliseconds.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "store/store_int.h"

static bool leaf(const struct entry *e)
{
    return e->stored && !e->child && !e->pins;
}

static struct entry *oldest_leaf(const struct store *st)
{
    struct entry *best = NULL;
    for (size_t i = 0; i < st->index.n_slot; i++) {
        struct entry *e = st->index.slots[i];
        if (e && leaf(e) && (!best || e->used_ns < best->used_ns))
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

bool evict_room(struct store *st, int64_t bytes, struct victims *out)
{
    int64_t max = st->stats.max_bytes;
    if (!max)
        return true;
    if (bytes > max)
        return false;
    while (st->stats.bytes > max - bytes) {
        struct entry *e = oldest_leaf(st);
        if (!e)
            return false;
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
