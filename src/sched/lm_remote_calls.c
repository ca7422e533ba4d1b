/*
 * lm_remote_calls.c - the language model's functions as calls to a child: each holds `io`, fails
 * with QN_LOST when its sequence belongs to a child that has gone, and copies through the shared
 * region of lm_wire.h.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "sched/lm_remote_int.h"

#define WAIT_US 30000000 /* a new sequence waits that long for the next child */

struct remote_seq {
    int64_t epoch;
    uint64_t handle;
};

/* ---- calls ---------------------------------------------------------------------------------- */

static enum qn_status lost(struct qn_err *err)
{
    return err_set(err, QN_LOST, REMOTE_WHERE,
                   "the engine process ended while it worked on this request; it is being started "
                   "again");
}

/* Begins a call on the child of that epoch: io is held on QN_OK, to be ended with call_end. */
static enum qn_status call_begin(struct lm_remote *r, int64_t epoch, struct qn_err *err)
{
    pthread_mutex_lock(&r->io);
    pthread_mutex_lock(&r->mu);
    bool here = r->up && r->epoch == epoch;
    pthread_mutex_unlock(&r->mu);
    if (here)
        return QN_OK;
    pthread_mutex_unlock(&r->io);
    return lost(err);
}

/* One byte there, one byte back; false when the child is gone. */
static bool exchange(int fd)
{
    char byte = 0;
    ssize_t n;
    do
        n = send(fd, &byte, 1, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n != 1)
        return false;
    do
        n = recv(fd, &byte, 1, 0);
    while (n < 0 && errno == EINTR);
    return n == 1;
}

/* Runs the call that r->child.w->call describes. io stays held. */
static enum qn_status call_run(struct lm_remote *r, struct qn_err *err)
{
    struct wire_call *c = &r->child.w->call;
    if (!exchange(r->child.fd)) {
        pthread_mutex_lock(&r->mu);
        r->up = false; /* the keeper sees the end a moment later */
        pthread_mutex_unlock(&r->mu);
        return lost(err);
    }
    r->cache = r->child.w->cache;
    if (c->status == QN_OK)
        return QN_OK;
    return err_set(err, c->status, REMOTE_WHERE, "%.470s", c->err.msg);
}

static void call_end(struct lm_remote *r)
{
    pthread_mutex_unlock(&r->io);
}

/* The running child's epoch, waiting for one to be ready. */
static enum qn_status current(struct lm_remote *r, int64_t *epoch, struct qn_err *err)
{
    struct timespec t = clock_in(WAIT_US);
    pthread_mutex_lock(&r->mu);
    int rc = 0;
    while (!r->up && !r->stop && rc == 0)
        rc = pthread_cond_timedwait(&r->change, &r->mu, &t);
    bool up = r->up;
    *epoch = r->epoch;
    pthread_mutex_unlock(&r->mu);
    if (!up)
        QN_FAIL(err, QN_BUSY, REMOTE_WHERE, "the engine process is being started again; try later");
    return QN_OK;
}

/* Runs a call that makes a sequence on the child of that epoch. */
static enum qn_status make_seq(struct lm_remote *r, int64_t epoch, const struct wire_call *what,
                               void **seq, struct qn_err *err)
{
    struct remote_seq *q = calloc(1, sizeof *q);
    if (!q)
        QN_FAIL(err, QN_NO_MEMORY, REMOTE_WHERE, "out of memory");
    q->epoch = epoch;
    enum qn_status st = call_begin(r, epoch, err);
    if (st == QN_OK) {
        r->child.w->call = *what;
        st = call_run(r, err);
        q->handle = r->child.w->call.seq;
        call_end(r);
    }
    if (st != QN_OK) {
        free(q);
        return st;
    }
    *seq = q;
    return QN_OK;
}

static enum qn_status seq_create(void *self, void **seq, struct qn_err *err)
{
    struct lm_remote *r = self;
    int64_t epoch;
    QN_TRY(current(r, &epoch, err));
    return make_seq(r, epoch, &(struct wire_call){.op = WIRE_SEQ_CREATE}, seq, err);
}

static enum qn_status seq_fork(void *self, void *seq, void **out, struct qn_err *err)
{
    const struct remote_seq *q = seq;
    const struct wire_call what = {.op = WIRE_SEQ_FORK, .seq = q->handle};
    return make_seq(self, q->epoch, &what, out, err);
}

/* Rounded up to a page, as the memory is. */
static int64_t seq_bytes(const void *self, int32_t n)
{
    const struct lm_remote *r = self;
    size_t page = n <= 0 ? 0 : ((size_t)n + WIRE_PAGE - 1) / WIRE_PAGE,
           pages = wire_pages(r->facts.n_ctx);
    return r->seq_bytes[page < pages ? page : pages - 1];
}

/* Grows evenly with the rows. */
static int64_t step_bytes(const void *self, int32_t n_logits)
{
    const int64_t *b = ((const struct lm_remote *)self)->facts.step_bytes;
    return b[0] + (b[1] - b[0]) * n_logits;
}

static void seq_free(void *self, void *seq)
{
    struct lm_remote *r = self;
    struct remote_seq *q = seq;
    struct qn_err ignored;
    if (q && call_begin(r, q->epoch, &ignored) == QN_OK) {
        r->child.w->call = (struct wire_call){.op = WIRE_SEQ_FREE, .seq = q->handle};
        call_run(r, &ignored);
        call_end(r);
    }
    free(q);
}

static enum qn_status seq_truncate(void *self, void *seq, int32_t n, struct qn_err *err)
{
    struct lm_remote *r = self;
    struct remote_seq *q = seq;
    QN_TRY(call_begin(r, q->epoch, err));
    r->child.w->call = (struct wire_call){.op = WIRE_SEQ_TRUNCATE, .seq = q->handle, .n = n};
    enum qn_status st = call_run(r, err);
    call_end(r);
    return st;
}

/* Items of one epoch, so far as they fit the region. */
static enum qn_status check_items(const struct lm_remote *r, const struct qn_step_item *items,
                                  int32_t n, struct qn_err *err)
{
    int32_t rows = 0;
    if (n < 1 || n > WIRE_ITEMS_MAX)
        QN_FAIL(err, QN_BAD_INPUT, REMOTE_WHERE, "a step of %d items; 1 to %d are possible", n,
                WIRE_ITEMS_MAX);
    for (int32_t i = 0; i < n; i++) {
        const struct remote_seq *a = (const void *)items[0].seq, *b = (const void *)items[i].seq;
        if (a->epoch != b->epoch)
            return lost(err);
        if (items[i].n_ids < 1 || items[i].n_ids > r->facts.max_rows - rows ||
            items[i].n_logits < 0 || items[i].n_logits > items[i].n_ids)
            QN_FAIL(err, QN_BAD_INPUT, REMOTE_WHERE, "a step of more than %d rows",
                    r->facts.max_rows);
        rows += items[i].n_ids;
    }
    return QN_OK;
}

static enum qn_status step(void *self, struct qn_step_item *items, int32_t n, struct qn_err *err)
{
    struct lm_remote *r = self;
    QN_TRY(check_items(r, items, n, err));
    QN_TRY(call_begin(r, ((const struct remote_seq *)(const void *)items[0].seq)->epoch, err));
    struct wire *w = r->child.w;
    int32_t *ids = wire_ids(w, &r->facts);
    for (int32_t i = 0; i < n; i++) {
        const struct remote_seq *q = (const void *)items[i].seq;
        w->items[i] = (struct wire_item){q->handle, items[i].n_ids, items[i].n_logits};
        memcpy(ids, items[i].ids, (size_t)items[i].n_ids * sizeof *ids);
        ids += items[i].n_ids;
    }
    w->call = (struct wire_call){.op = WIRE_STEP, .n = n};
    enum qn_status st = call_run(r, err);
    const float *logits = wire_logits(w, &r->facts);
    for (int32_t i = 0; st == QN_OK && i < n; i++) {
        size_t values = (size_t)items[i].n_logits * (size_t)r->facts.n_vocab;
        if (values)
            memcpy(items[i].logits, logits, values * sizeof *logits);
        logits += values;
    }
    call_end(r);
    return st;
}

/* ---- the prompt cache ----------------------------------------------------------------------- */

/* A call about a line, without its ids. */
static struct wire_call line_call(enum wire_op op, const struct qn_line *line)
{
    struct wire_call c = {.op = op, .n = line->n_ids};
    snprintf(c.ns, sizeof c.ns, "%s", line->ns ? line->ns : "");
    return c;
}

/* The call's ids into the region, under io. */
static void put_line(struct lm_remote *r, const struct qn_line *line)
{
    memcpy(wire_ids(r->child.w, &r->facts), line->ids, (size_t)line->n_ids * sizeof *line->ids);
}

static bool line_fits(const struct lm_remote *r, const struct qn_line *line)
{
    return line->n_ids >= 0 && (size_t)line->n_ids <= wire_n_ids(&r->facts);
}

static enum qn_status cache_seq(void *self, const struct qn_line *line, void **seq,
                                struct lm_reuse *reuse, struct qn_err *err)
{
    struct lm_remote *r = self;
    int64_t epoch;
    if (!line_fits(r, line))
        QN_FAIL(err, QN_BAD_INPUT, REMOTE_WHERE, "a prompt of %d tokens; the context holds %d",
                line->n_ids, r->facts.n_ctx);
    struct remote_seq *q = calloc(1, sizeof *q);
    if (!q)
        QN_FAIL(err, QN_NO_MEMORY, REMOTE_WHERE, "out of memory");
    enum qn_status st = current(r, &epoch, err);
    if (st == QN_OK)
        st = call_begin(r, epoch, err);
    if (st == QN_OK) {
        put_line(r, line);
        r->child.w->call = line_call(WIRE_CACHE_SEQ, line);
        st = call_run(r, err);
        *q = (struct remote_seq){epoch, r->child.w->call.seq};
        *reuse = (struct lm_reuse){r->child.w->call.n_have, r->child.w->call.n_match};
        call_end(r);
    }
    if (st != QN_OK) {
        free(q);
        return st;
    }
    *seq = q;
    return QN_OK;
}

static void cache_keep(void *self, const struct qn_line *line, void *seq)
{
    struct lm_remote *r = self;
    const struct remote_seq *q = seq;
    struct qn_err ignored;
    if (!line_fits(r, line) || call_begin(r, q->epoch, &ignored) != QN_OK)
        return;
    put_line(r, line);
    r->child.w->call = line_call(WIRE_CACHE_KEEP, line);
    r->child.w->call.seq = q->handle;
    call_run(r, &ignored);
    call_end(r);
}

static void cache_trim(void *self, int64_t bytes)
{
    struct lm_remote *r = self;
    struct qn_err ignored;
    pthread_mutex_lock(&r->mu);
    int64_t epoch = r->epoch;
    pthread_mutex_unlock(&r->mu);
    if (call_begin(r, epoch, &ignored) != QN_OK)
        return;
    r->child.w->call = (struct wire_call){.op = WIRE_CACHE_TRIM, .bytes = bytes};
    call_run(r, &ignored);
    call_end(r);
}

/* Of a child that is gone: nothing. */
static void cache_stats(void *self, struct qn_cache_stats *out)
{
    struct lm_remote *r = self;
    pthread_mutex_lock(&r->io);
    *out = r->cache;
    pthread_mutex_unlock(&r->io);
}

static enum qn_status mtp_open(void *self, void *seq, struct qn_err *err)
{
    struct lm_remote *r = self;
    struct remote_seq *q = seq;
    QN_TRY(call_begin(r, q->epoch, err));
    r->child.w->call = (struct wire_call){.op = WIRE_MTP_OPEN, .seq = q->handle};
    enum qn_status st = call_run(r, err);
    call_end(r);
    return st;
}

/* Tokens that a head may lack: it holds the states of no more. */
static int32_t tail_from(const struct lm_remote *r, const struct lm_mtp_item *it)
{
    int32_t most = 2 * r->facts.max_rows + 1;
    return it->n_ids > most ? it->n_ids - most : 0;
}

/* As many items as fit the region, from items on. */
static int32_t put_lines(struct lm_remote *r, const struct lm_mtp_item *items, int32_t n)
{
    struct wire *w = r->child.w;
    int32_t *ids = wire_ids(w, &r->facts);
    size_t left = wire_n_ids(&r->facts);
    for (int32_t i = 0; i < n; i++) {
        const struct remote_seq *q = items[i].seq;
        int32_t from = tail_from(r, &items[i]), k = items[i].n_ids - from;
        if (i == WIRE_GUESSES_MAX || (size_t)k > left ||
            q->epoch != ((const struct remote_seq *)items[0].seq)->epoch)
            return i;
        memcpy(ids, items[i].ids + from, (size_t)k * sizeof *ids);
        w->items[i] = (struct wire_item){q->handle, k, 0};
        w->guesses[i].from = from;
        w->guesses[i].n_draft = items[i].n_draft;
        w->guesses[i].least = items[i].least;
        w->guesses[i].stops = items[i].odds != NULL;
        if (items[i].odds)
            memcpy(w->guesses[i].odds, items[i].odds, sizeof w->guesses[i].odds);
        ids += k;
        left -= (size_t)k;
    }
    return n;
}

static enum qn_status mtp_step(void *self, struct lm_mtp_item *items, int32_t n, struct qn_err *err)
{
    struct lm_remote *r = self;
    for (int32_t at = 0, k; at < n; at += k) {
        QN_TRY(call_begin(r, ((const struct remote_seq *)items[at].seq)->epoch, err));
        k = put_lines(r, items + at, n - at);
        r->child.w->call = (struct wire_call){.op = WIRE_MTP_STEP, .n = k};
        enum qn_status st = k > 0 ? call_run(r, err)
                                  : err_set(err, QN_INTERNAL, REMOTE_WHERE, "a line is too long");
        for (int32_t i = 0; st == QN_OK && i < k; i++) {
            struct lm_mtp_item *it = &items[at + i];
            const struct wire_guess *g = &r->child.w->guesses[i];
            it->n_draft = g->n_draft < it->n_draft ? g->n_draft : it->n_draft;
            it->n_draft = it->n_draft < 0 ? 0 : it->n_draft;
            memcpy(it->drafts, g->drafts, (size_t)it->n_draft * sizeof *it->drafts);
            memcpy(it->probs, g->probs, (size_t)it->n_draft * sizeof *it->probs);
        }
        call_end(r);
        QN_TRY(st);
    }
    return QN_OK;
}

/* A call to the tier on disk; its answer, or `lost` when the child is gone. io is held by the
 * caller's line, if any, only inside. */
static int32_t disk_call(struct lm_remote *r, const struct wire_call *call,
                         const struct qn_line *line, int32_t lost_is, struct qn_cache_flush *flush)
{
    struct qn_err ignored;
    int32_t answer = lost_is;
    pthread_mutex_lock(&r->mu);
    int64_t epoch = r->epoch;
    pthread_mutex_unlock(&r->mu);
    if (call_begin(r, epoch, &ignored) != QN_OK)
        return answer;
    if (line)
        put_line(r, line);
    r->child.w->call = *call;
    if (call_run(r, &ignored) == QN_OK) {
        answer = r->child.w->call.n_have;
        if (flush)
            *flush = r->child.w->flush;
    }
    call_end(r);
    return answer;
}

static int32_t cache_tick(void *self, bool busy)
{
    struct wire_call c = {.op = WIRE_CACHE_TICK, .n = busy};
    return disk_call(self, &c, NULL, 1000, NULL);
}

static bool cache_loading(void *self, const struct qn_line *line)
{
    if (!line_fits(self, line))
        return false;
    struct wire_call c = line_call(WIRE_CACHE_LOADING, line);
    return disk_call(self, &c, line, 0, NULL);
}

/* With the child gone nothing of its memory is there any more. */
static bool cache_flush(void *self, bool begin, struct qn_cache_flush *out)
{
    struct wire_call c = {.op = WIRE_CACHE_FLUSH, .n = begin};
    *out = (struct qn_cache_flush){.error = "the engine's process has died"};
    return disk_call(self, &c, NULL, 1, out);
}

/* With the child gone a file is as it was, or whole; what was restored is gone. */
static bool cache_file(void *self, const struct cache_file_ask *ask, struct cache_file_told *out)
{
    struct lm_remote *r = self;
    struct qn_err err;
    bool begins = ask && !ask->go_on;
    const struct qn_line *line = begins && !ask->restore ? &ask->line : NULL;
    struct wire_call c = {.op = WIRE_CACHE_FILE};
    bool done = true;
    if (line)
        c = line_call(WIRE_CACHE_FILE, line);
    c.bytes = ask ? ask->room : 0;
    if (begins) {
        c.file = ask->restore ? WIRE_FILE_RESTORE : WIRE_FILE_SAVE;
        memcpy(c.name, ask->name, sizeof c.name);
    }
    *out = (struct cache_file_told){0};
    pthread_mutex_lock(&r->mu);
    int64_t epoch = r->epoch;
    pthread_mutex_unlock(&r->mu);
    if (line && !line_fits(r, line)) {
        err_set(&out->err, QN_BAD_INPUT, REMOTE_WHERE, "a line of %d tokens; the context holds %d",
                line->n_ids, r->facts.n_ctx);
        return true;
    }
    enum qn_status st = call_begin(r, epoch, &err);
    if (st == QN_OK) {
        if (line)
            put_line(r, line);
        r->child.w->call = c;
        st = call_run(r, &err);
        if (st == QN_OK) {
            done = r->child.w->call.n_have;
            *out = r->child.w->file;
            out->err.where = REMOTE_WHERE;
        }
        call_end(r);
    }
    if (st != QN_OK)
        out->err = err;
    return done;
}

struct lm lm_remote_lm(struct lm_remote *r)
{
    r->ops = (struct lm_ops){
        .seq_create = seq_create,
        .seq_free = seq_free,
        .seq_truncate = seq_truncate,
        .step = step,
        .seq_bytes = r->facts.plans ? seq_bytes : NULL,
        .step_bytes = r->facts.plans ? step_bytes : NULL,
        .seq_fork = r->facts.forks ? seq_fork : NULL,
    };
    if (r->facts.caches) {
        r->ops.cache_seq = cache_seq;
        r->ops.cache_keep = cache_keep;
        r->ops.cache_trim = cache_trim;
        r->ops.cache_stats = cache_stats;
    }
    if (r->facts.drafts) {
        r->ops.mtp_open = mtp_open;
        r->ops.mtp_step = mtp_step;
    }
    if (r->facts.disk) {
        r->ops.cache_tick = cache_tick;
        r->ops.cache_loading = cache_loading;
        r->ops.cache_flush = cache_flush;
    }
    if (r->facts.files)
        r->ops.cache_file = cache_file;
    return (struct lm){
        .ops = &r->ops,
        .self = r,
        .n_vocab = r->facts.n_vocab,
        .n_ctx = r->facts.n_ctx,
        .max_rows = r->facts.max_rows,
        .eos_ids = r->facts.eos_ids,
        .n_eos = r->facts.n_eos,
        .cache_interval = r->facts.cache_interval,
        .cache_reach = r->facts.cache_reach,
        .fingerprint = r->facts.disk || r->facts.files ? r->facts.fingerprint : NULL,
    };
}
