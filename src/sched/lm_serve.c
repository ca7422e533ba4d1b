/*
 * lm_serve.c - see lm_serve.h. One thread. Handles of sequences are indices into a table, so that
 * nothing the other side sends is used as an address.
 */
#include "sched/lm_serve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sched/lm_wire.h"

#define WHERE "engine process"

struct serving {
    const struct lm *lm;
    struct wire *w;
    struct wire_facts facts;
    void **seqs; /* handle - 1 -> sequence, NULL = free */
    size_t n_seq;
    struct qn_step_item items[WIRE_ITEMS_MAX];
    int32_t *line; /* [n_ctx + 1] of a draft head; NULL without one */
};

/* The region's descriptor goes along; -1 = none. */
static bool send_hello(int fd, const struct wire_hello *h, int region)
{
    struct iovec io = {(void *)h, sizeof *h};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
    if (region >= 0) {
        m.msg_control = control.bytes;
        m.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof region);
        memcpy(CMSG_DATA(c), &region, sizeof region);
    }
    ssize_t n;
    do
        n = sendmsg(fd, &m, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof *h;
}

void lm_serve_refuse(int fd, const struct qn_err *why)
{
    struct wire_hello h = {.status = why->code ? why->code : QN_INTERNAL, .err = *why};
    send_hello(fd, &h, -1);
}

static void fill_facts(const struct lm *lm, const struct qn_model_info *info, struct wire_facts *f)
{
    f->n_vocab = lm->n_vocab;
    f->n_ctx = lm->n_ctx;
    f->max_rows = lm->max_rows;
    f->n_eos = lm->n_eos < WIRE_EOS_MAX ? lm->n_eos : WIRE_EOS_MAX;
    for (int32_t i = 0; i < f->n_eos; i++)
        f->eos_ids[i] = lm->eos_ids[i];
    f->plans = lm->ops->seq_bytes != NULL;
    for (int32_t i = 0; i < 2 && lm->ops->step_bytes; i++)
        f->step_bytes[i] = lm->ops->step_bytes(lm->self, i);
    f->forks = lm->ops->seq_fork != NULL;
    f->caches = lm->ops->cache_seq != NULL;
    f->drafts = lm->ops->mtp_step != NULL;
    f->disk = lm->ops->cache_tick != NULL;
    f->files = lm->ops->cache_file != NULL;
    if (lm->fingerprint)
        memcpy(f->fingerprint, lm->fingerprint, sizeof f->fingerprint);
    f->cache_interval = lm->cache_interval;
    f->cache_reach = lm->cache_reach;
    if (!info)
        return;
    f->n_thread = info->n_thread;
    f->n_param = info->n_param;
    f->weight_bytes = info->weight_bytes;
    f->kv_token_bytes = info->kv_token_bytes;
    f->seq_state_bytes = info->seq_state_bytes;
    snprintf(f->name, sizeof f->name, "%s", info->name);
    snprintf(f->family, sizeof f->family, "%s", info->family);
    snprintf(f->isa, sizeof f->isa, "%s", info->isa);
    snprintf(f->arith, sizeof f->arith, "%s", info->arith);
    snprintf(f->kv_format, sizeof f->kv_format, "%s", info->kv_format);
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void *seq_of(const struct serving *s, uint64_t handle)
{
    return handle >= 1 && handle <= s->n_seq ? s->seqs[handle - 1] : NULL;
}

static enum qn_status keep(struct serving *s, void *seq, uint64_t *handle, struct qn_err *err)
{
    size_t i = 0;
    while (i < s->n_seq && s->seqs[i])
        i++;
    if (i == s->n_seq) {
        void **v = realloc(s->seqs, (s->n_seq + 64) * sizeof *v);
        if (!v)
            QN_FAIL(err, QN_NO_MEMORY, WHERE, "out of memory");
        memset(v + s->n_seq, 0, 64 * sizeof *v);
        s->seqs = v;
        s->n_seq += 64;
    }
    s->seqs[i] = seq;
    *handle = i + 1;
    return QN_OK;
}

/* A new sequence, empty or with the tokens of `src`. */
static enum qn_status create(struct serving *s, void *src, struct wire_call *c)
{
    void *seq = NULL;
    if (src)
        QN_TRY(s->lm->ops->seq_fork(s->lm->self, src, &seq, &c->err));
    else
        QN_TRY(s->lm->ops->seq_create(s->lm->self, &seq, &c->err));
    enum qn_status st = keep(s, seq, &c->seq, &c->err);
    if (st != QN_OK)
        s->lm->ops->seq_free(s->lm->self, seq);
    return st;
}

/* The line that a call is about; false when it is none. */
static bool line_of(const struct serving *s, const struct wire_call *c, struct qn_line *out)
{
    *out = (struct qn_line){c->ns, wire_ids(s->w, &s->facts), c->n};
    return s->facts.caches && c->n >= 0 && c->n <= s->facts.n_ctx &&
           memchr(c->ns, 0, sizeof c->ns) != NULL;
}

static enum qn_status cache_call(struct serving *s, struct wire_call *c)
{
    const struct lm_ops *ops = s->lm->ops;
    struct lm_reuse r = {0};
    struct qn_line line;
    void *seq = seq_of(s, c->seq);
    if (!line_of(s, c, &line))
        QN_FAIL(&c->err, QN_INTERNAL, WHERE, "no line of tokens");
    if (c->op == WIRE_CACHE_TRIM) {
        ops->cache_trim(s->lm->self, c->bytes);
        return QN_OK;
    }
    if (c->op == WIRE_CACHE_KEEP) {
        if (seq)
            ops->cache_keep(s->lm->self, &line, seq);
        return QN_OK;
    }
    QN_TRY(ops->cache_seq(s->lm->self, &line, &seq, &r, &c->err));
    enum qn_status st = keep(s, seq, &c->seq, &c->err);
    if (st != QN_OK)
        ops->seq_free(s->lm->self, seq);
    c->n_have = r.n_have;
    c->n_match = r.n_match;
    return st;
}

/* The tier on disk. */
static enum qn_status disk_call(struct serving *s, struct wire_call *c)
{
    const struct lm_ops *ops = s->lm->ops;
    struct qn_line line;
    if (!s->facts.disk || (c->op == WIRE_CACHE_LOADING && !line_of(s, c, &line)))
        QN_FAIL(&c->err, QN_INTERNAL, WHERE, "no cache on disk, or no line of tokens");
    if (c->op == WIRE_CACHE_TICK)
        c->n_have = ops->cache_tick(s->lm->self, c->n != 0);
    else if (c->op == WIRE_CACHE_LOADING)
        c->n_have = ops->cache_loading(s->lm->self, &line);
    else
        c->n_have = ops->cache_flush(s->lm->self, c->n != 0, &s->w->flush);
    return QN_OK;
}

static enum qn_status file_call(struct serving *s, struct wire_call *c)
{
    struct cache_file_ask ask = {.go_on = c->file == WIRE_FILE_GO_ON,
                                 .restore = c->file == WIRE_FILE_RESTORE,
                                 .room = c->bytes};
    if (!s->facts.files || (c->file == WIRE_FILE_SAVE && !line_of(s, c, &ask.line)))
        QN_FAIL(&c->err, QN_INTERNAL, WHERE, "no files of conversations, or no line of tokens");
    memcpy(ask.name, c->name, sizeof ask.name);
    c->n_have = s->lm->ops->cache_file(s->lm->self, &ask, &s->w->file);
    return QN_OK;
}

static enum qn_status step(struct serving *s, struct wire_call *c)
{
    const struct lm *lm = s->lm;
    int32_t n = c->n, ids = 0, rows = 0;
    if (n < 1 || n > WIRE_ITEMS_MAX)
        QN_FAIL(&c->err, QN_INTERNAL, WHERE, "a step of %d items", n);
    for (int32_t i = 0; i < n; i++) {
        const struct wire_item it = s->w->items[i];
        void *seq = seq_of(s, it.seq);
        if (!seq || it.n_ids < 1 || it.n_ids > lm->max_rows - ids || it.n_logits < 0 ||
            it.n_logits > it.n_ids)
            QN_FAIL(&c->err, QN_INTERNAL, WHERE, "item %d of a step is not possible", i);
        s->items[i] = (struct qn_step_item){
            .seq = seq,
            .ids = wire_ids(s->w, &s->facts) + ids,
            .n_ids = it.n_ids,
            .n_logits = it.n_logits,
            .logits = wire_logits(s->w, &s->facts) + (size_t)rows * (size_t)lm->n_vocab,
        };
        ids += it.n_ids;
        rows += it.n_logits;
    }
    return lm->ops->step(lm->self, s->items, n, &c->err);
}

/* Ids that come before a line's tail: never looked at, but they have their places. */
static enum qn_status guess_item(struct serving *s, int32_t i, int32_t at, struct lm_mtp_item *out)
{
    const struct wire_item it = s->w->items[i];
    struct wire_guess *g = &s->w->guesses[i];
    int32_t from = g->from, n_draft = g->n_draft;
    void *seq = seq_of(s, it.seq);
    size_t room = wire_n_ids(&s->facts);
    if (!seq || it.n_ids < 0 || (size_t)it.n_ids > room - (size_t)at || from < 0 ||
        from > s->facts.n_ctx || it.n_ids > s->facts.n_ctx + 1 - from || n_draft < 0 ||
        n_draft > QN_MTP_DRAFT_MAX)
        return QN_INTERNAL;
    memcpy(s->line + from, wire_ids(s->w, &s->facts) + at, (size_t)it.n_ids * sizeof *s->line);
    *out = (struct lm_mtp_item){.seq = seq,
                                .ids = s->line,
                                .n_ids = from + it.n_ids,
                                .n_draft = n_draft,
                                .drafts = g->drafts,
                                .probs = g->probs,
                                .odds = g->stops ? g->odds : NULL,
                                .least = g->least};
    return QN_OK;
}

/* Line by line: `line` holds one. */
static enum qn_status guess(struct serving *s, struct wire_call *c)
{
    int32_t at = 0, n = c->n;
    if (n < 1 || n > WIRE_GUESSES_MAX || !s->line)
        QN_FAIL(&c->err, QN_INTERNAL, WHERE, "guesses for %d lines", n);
    for (int32_t i = 0; i < n; i++) {
        struct lm_mtp_item item;
        int32_t n_ids = s->w->items[i].n_ids;
        if (guess_item(s, i, at, &item) != QN_OK)
            QN_FAIL(&c->err, QN_INTERNAL, WHERE, "line %d of guesses is not possible", i);
        QN_TRY(s->lm->ops->mtp_step(s->lm->self, &item, 1, &c->err));
        s->w->guesses[i].n_draft = item.n_draft;
        at += n_ids;
    }
    return QN_OK;
}

static enum qn_status no_seq(struct wire_call *c)
{
    return err_set(&c->err, QN_INTERNAL, WHERE, "no such sequence");
}

static void fill_seq_bytes(struct serving *s)
{
    int64_t *bytes = wire_seq_bytes(s->w);
    size_t pages = wire_pages(s->facts.n_ctx);
    for (size_t i = 0; s->facts.plans && i < pages; i++) {
        int64_t n = (int64_t)i * WIRE_PAGE;
        int32_t most = n < s->facts.n_ctx ? (int32_t)n : s->facts.n_ctx;
        bytes[i] = s->lm->ops->seq_bytes(s->lm->self, most);
    }
}

static void answer(struct serving *s)
{
    struct wire_call *c = &s->w->call;
    void *seq = seq_of(s, c->seq);
    memset(&c->err, 0, sizeof c->err);
    c->status = QN_OK;
    switch (c->op) {
    case WIRE_SEQ_CREATE:
        c->status = create(s, NULL, c);
        break;
    case WIRE_SEQ_FORK:
        c->status = seq && s->facts.forks ? create(s, seq, c) : no_seq(c);
        break;
    case WIRE_SEQ_FREE:
        if (!seq)
            break;
        s->lm->ops->seq_free(s->lm->self, seq);
        s->seqs[c->seq - 1] = NULL;
        break;
    case WIRE_SEQ_TRUNCATE:
        c->status = seq ? s->lm->ops->seq_truncate(s->lm->self, seq, c->n, &c->err) : no_seq(c);
        break;
    case WIRE_MTP_OPEN:
        c->status =
            seq && s->facts.drafts ? s->lm->ops->mtp_open(s->lm->self, seq, &c->err) : no_seq(c);
        break;
    case WIRE_MTP_STEP:
        c->status = guess(s, c);
        break;
    case WIRE_STEP:
        c->status = step(s, c);
        break;
    case WIRE_CACHE_SEQ:
    case WIRE_CACHE_KEEP:
    case WIRE_CACHE_TRIM:
        c->status = cache_call(s, c);
        break;
    case WIRE_CACHE_TICK:
    case WIRE_CACHE_LOADING:
    case WIRE_CACHE_FLUSH:
        c->status = disk_call(s, c);
        break;
    case WIRE_CACHE_FILE:
        c->status = file_call(s, c);
        break;
    default:
        c->status = err_set(&c->err, QN_INTERNAL, WHERE, "unknown call %d", (int)c->op);
    }
    if (s->facts.caches)
        s->lm->ops->cache_stats(s->lm->self, &s->w->cache);
}

static void loop(struct serving *s, int fd)
{
    char byte;
    for (;;) {
        ssize_t n = recv(fd, &byte, 1, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != 1)
            return;
        answer(s);
        do
            n = send(fd, &byte, 1, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        if (n != 1)
            return;
    }
}

/* The region in memory; the descriptor is *region. */
static struct wire *make_region(size_t bytes, int *region)
{
    *region = bytes ? memfd_create("quern-lm", MFD_CLOEXEC) : -1;
    if (*region < 0 || ftruncate(*region, (off_t)bytes) != 0)
        return NULL;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *region, 0);
    return p == MAP_FAILED ? NULL : p;
}

enum qn_status lm_serve(const struct lm *lm, const struct qn_model_info *info, int fd,
                        struct qn_err *err)
{
    struct serving *s = calloc(1, sizeof *s);
    struct wire_hello h = {.status = QN_OK};
    struct qn_err why = {0};
    int region = -1;
    fill_facts(lm, info, &h.facts);
    h.bytes = wire_region(&h.facts);
    struct wire *w = s ? make_region(h.bytes, &region) : NULL;
    if (w) {
        *s = (struct serving){.lm = lm, .w = w, .facts = h.facts};
        if (h.facts.drafts)
            s->line = calloc((size_t)h.facts.n_ctx + 1, sizeof *s->line);
        fill_seq_bytes(s);
        if (send_hello(fd, &h, region))
            loop(s, fd);
        for (size_t i = 0; i < s->n_seq; i++)
            if (s->seqs[i])
                lm->ops->seq_free(lm->self, s->seqs[i]);
        free(s->seqs);
        free(s->line);
        munmap(w, h.bytes);
    } else {
        err_set(&why, QN_NO_MEMORY, WHERE, "no memory to share %zu bytes of logits", h.bytes);
        lm_serve_refuse(fd, &why);
    }
    if (region >= 0)
        close(region);
    free(s);
    if (why.code && err)
        *err = why;
    return why.code;
}
