/*
 * tok_pre.c - the pre-tokenizers as a pipeline: each level cuts its piece and hands the parts to
 * the next level at once; below the last one a part is a word. Nothing is collected, so a text of
 * any size needs only the buffers of levels that change it (prefix space, Metaspace). Its state
 * lives on the caller's stack; any thread.
 */
#include "tok_int.h"

#include "base/utf8.h"
#include "tok/unicode_data.h"

struct run {
    const struct tok *t;
    struct ids *out;
    struct qn_err *err;
    struct buf tmp[TOK_OPS_MAX];
};

struct piece {
    struct str s;
    bool at_start; /* begins where the whole input begins */
};

static enum qn_status level(struct run *r, int k, struct piece p);

/*
 * The five ways a split treats its delimiters, over a stream of alternating parts. A part waits in
 * [s,e) until it is known whether it grows.
 */
struct merger {
    struct run *r;
    int next;
    struct piece src;
    enum tok_behavior how;
    size_t s, e;
    bool waiting, prev_match;
};

static enum qn_status emit(struct merger *m, size_t s, size_t e)
{
    if (s == e)
        return QN_OK;
    struct piece p = {{m->src.s.p + s, e - s}, m->src.at_start && s == 0};
    return level(m->r, m->next, p);
}

static enum qn_status merger_flush(struct merger *m)
{
    if (!m->waiting)
        return QN_OK;
    m->waiting = false;
    return emit(m, m->s, m->e);
}

static enum qn_status part(struct merger *m, size_t s, size_t e, bool match)
{
    bool grow = false;
    switch (m->how) {
    case SPLIT_ISOLATED:
        return emit(m, s, e);
    case SPLIT_REMOVED:
        return match ? QN_OK : emit(m, s, e);
    case SPLIT_CONTIGUOUS:
        grow = match == m->prev_match;
        break;
    case SPLIT_PREVIOUS:
        grow = match && !m->prev_match;
        break;
    case SPLIT_NEXT:
        grow = !match && m->prev_match;
        break;
    }
    m->prev_match = match;
    if (grow && m->waiting) {
        m->e = e;
        return QN_OK;
    }
    QN_TRY(merger_flush(m));
    m->waiting = true;
    m->s = s;
    m->e = e;
    return QN_OK;
}

static enum qn_status split_scan(struct merger *m, const struct tok_op *op)
{
    const uint8_t *p = (const uint8_t *)m->src.s.p;
    size_t n = m->src.s.n, gap = 0, i = 0;
    while (i < n) {
        size_t e = op->scan(p, i, n);
        if (e == i) {
            size_t len;
            tok_cp(p, i, n, &len);
            i += len;
            continue;
        }
        if (gap < i)
            QN_TRY(part(m, gap, i, op->invert));
        QN_TRY(part(m, i, e, !op->invert));
        gap = i = e;
    }
    return gap < n ? part(m, gap, n, op->invert) : QN_OK;
}

static enum qn_status split_find(struct merger *m, const struct tok_op *op)
{
    struct str s = m->src.s;
    size_t gap = 0, from = 0, a, b;
    while (from <= s.n) {
        if (op->re) {
            QN_TRY(tok_re_find(op->re, s, from, &a, &b, m->r->err));
        } else {
            a = op->text.n ? str_find(s, op->text, from) : (size_t)-1;
            b = a + op->text.n;
        }
        if (a == (size_t)-1)
            break;
        if (gap < a)
            QN_TRY(part(m, gap, a, op->invert));
        QN_TRY(part(m, a, b, !op->invert));
        gap = from = b;
        if (a == b) {
            size_t len = 1;
            if (b < s.n)
                tok_cp((const uint8_t *)s.p, b, s.n, &len);
            from = b + len;
        }
    }
    return gap < s.n ? part(m, gap, s.n, op->invert) : QN_OK;
}

static enum qn_status split_class(struct merger *m, const struct tok_op *op)
{
    const uint8_t *p = (const uint8_t *)m->src.s.p;
    size_t n = m->src.s.n, gap = 0, len;
    for (size_t i = 0; i < n; i += len) {
        uint32_t c = tok_cp(p, i, n, &len);
        if (op->mask ? !(uni_flags(c) & op->mask) : c != op->delim)
            continue;
        if (gap < i)
            QN_TRY(part(m, gap, i, false));
        QN_TRY(part(m, i, i + len, true));
        gap = i + len;
    }
    return gap < n ? part(m, gap, n, false) : QN_OK;
}

/* \w+|[^\w\s]+ : the matches are the words. */
static enum qn_status split_words(struct merger *m)
{
    const uint8_t *p = (const uint8_t *)m->src.s.p;
    size_t n = m->src.s.n, len;
    for (size_t i = 0; i < n;) {
        size_t s = i;
        unsigned kind = uni_flags(tok_cp(p, i, n, &len)) & (UNI_WORD | UNI_WS);
        do {
            i += len;
        } while (i < n && (uni_flags(tok_cp(p, i, n, &len)) & (UNI_WORD | UNI_WS)) == kind);
        if (kind & UNI_WORD || !kind)
            QN_TRY(emit(m, s, i));
    }
    return QN_OK;
}

/* Spaces become the replacement, one is put in front, and words begin at it. */
static enum qn_status metaspace(struct run *r, int k, const struct tok_op *op, struct piece p)
{
    struct buf *b = &r->tmp[k];
    buf_clear(b);
    for (size_t i = 0, gap = 0; i <= p.s.n; i++)
        if (i == p.s.n || p.s.p[i] == ' ') {
            buf_add(b, p.s.p + gap, i - gap);
            if (i < p.s.n)
                buf_add_str(b, op->text);
            gap = i + 1;
        }
    bool prepend = op->prepend == PREPEND_ALWAYS || (op->prepend == PREPEND_FIRST && p.at_start);
    if (prepend && !str_starts(buf_str(b), op->text) && buf_reserve(b, op->text.n)) {
        memmove(b->p + op->text.n, b->p, b->n + 1);
        memcpy(b->p, op->text.p, op->text.n);
        b->n += op->text.n;
    }
    QN_TRY(buf_ok(b, "text", r->err));
    p.s = buf_str(b);
    if (!op->split)
        return level(r, k + 1, p);
    struct merger m = {.r = r, .next = k + 1, .src = p, .how = SPLIT_NEXT};
    struct tok_op find = {.text = op->text};
    QN_TRY(split_find(&m, &find));
    return merger_flush(&m);
}

/* Its byte mapping is left to the model when this is the last step of a byte-level tokenizer. */
static enum qn_status byte_level(struct run *r, int k, const struct tok_op *op, struct piece p)
{
    struct buf *b = &r->tmp[k];
    if (op->prefix_space && p.s.n && p.s.p[0] != ' ') {
        buf_clear(b);
        buf_addc(b, ' ');
        buf_add_str(b, p.s);
        QN_TRY(buf_ok(b, "text", r->err));
        p.s = buf_str(b);
    }
    if (!op->scan)
        return level(r, k + 1, p);
    struct merger m = {.r = r, .next = k + 1, .src = p, .how = SPLIT_ISOLATED};
    return split_scan(&m, op);
}

static enum qn_status bytes(struct run *r, int k, struct piece p)
{
    struct buf *b = &r->tmp[k];
    buf_clear(b);
    for (size_t i = 0; i < p.s.n; i++)
        buf_add_utf8(b, tok_byte_char((uint8_t)p.s.p[i]));
    QN_TRY(buf_ok(b, "text", r->err));
    p.s = buf_str(b);
    return level(r, k + 1, p);
}

static enum qn_status level(struct run *r, int k, struct piece p)
{
    const struct tok_ops *ops = &r->t->steps.pre;
    if (p.s.n == 0)
        return QN_OK;
    if (k >= ops->n)
        return tok_word(r->t, p.s.p, p.s.n, r->out, r->err);
    const struct tok_op *op = &ops->v[k];
    struct merger m = {.r = r, .next = k + 1, .src = p, .how = op->behavior};
    switch (op->kind) {
    case OP_SPLIT:
        QN_TRY(op->scan ? split_scan(&m, op) : split_find(&m, op));
        return merger_flush(&m);
    case OP_CLASS:
        QN_TRY(split_class(&m, op));
        return merger_flush(&m);
    case OP_WORDS:
        return split_words(&m);
    case OP_METASPACE:
        return metaspace(r, k, op, p);
    case OP_BYTE_LEVEL:
        return byte_level(r, k, op, p);
    case OP_BYTES:
        if (k + 1 == ops->n && (r->t->head->flags & MODEL_BYTES))
            return level(r, k + 1, p);
        return bytes(r, k, p);
    default:
        return level(r, k + 1, p);
    }
}

enum qn_status tok_pre_run(const struct tok *t, struct str text, bool at_start, struct ids *out,
                           struct qn_err *err)
{
    struct run r = {.t = t, .out = out, .err = err};
    enum qn_status st = level(&r, 0, (struct piece){text, at_start});
    for (int i = 0; i < TOK_OPS_MAX; i++)
        buf_free(&r.tmp[i]);
    return st;
}
