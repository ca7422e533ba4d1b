/*
 * tok_decode.c - ids to text. The streaming detokenizer is the only decoder: tok_decode pushes all
 * ids through one, so that streamed pieces joined equal the whole by construction.
 *
 * Per-token decoder steps were done when the vocabulary was compiled: each id has the bytes it
 * stands for. What is left is to repair UTF-8 over token borders and to strip the joined text.
 */
#include "tok_int.h"

#include <stdlib.h>

#include "base/utf8.h"

struct detok {
    const struct tok *t;
    bool keep_special, any;
    uint32_t strip_left; /* leading characters that may still be dropped */
    struct buf pend;     /* bytes that may begin a character */
    struct buf tail;     /* trailing strip characters held back */
};

/* ---- one token ------------------------------------------------------------------------------- */

static void strip_token(const struct tok_op *op, struct str *s)
{
    for (uint32_t k = 0; k < op->mask && str_starts(*s, op->text); k++) {
        s->p += op->text.n;
        s->n -= op->text.n;
    }
    for (uint32_t k = 0; k < op->delim && s->n && str_ends(*s, op->text); k++)
        s->n -= op->text.n;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static void final_bytes(enum tok_dec_last last, struct str s, struct buf *out)
{
    if (last == DEC_FALLBACK && s.n == 6 && memcmp(s.p, "<0x", 3) == 0 && s.p[5] == '>' &&
        hex(s.p[3]) >= 0 && hex(s.p[4]) >= 0) {
        buf_addc(out, (char)(hex(s.p[3]) << 4 | hex(s.p[4])));
        return;
    }
    size_t before = out->n;
    for (size_t i = 0; last == DEC_BYTES && i < s.n;) {
        int b = tok_char_byte(utf8_next(s, &i));
        if (b < 0) { /* one foreign character: the whole token stands for itself */
            out->n = before;
            break;
        }
        buf_addc(out, (char)b);
        if (i == s.n)
            return;
    }
    buf_add_str(out, s);
}

enum qn_status tok_token_bytes(const struct tok_decoder *d, struct str token, bool first,
                               struct buf *out, struct qn_err *err)
{
    struct buf tmp[2] = {BUF_INIT, BUF_INIT};
    enum qn_status st = QN_OK;
    for (int i = 0; i < d->each.n && st == QN_OK; i++) {
        struct tok_op op = d->each.v[i];
        if (op.kind == OP_STRIP) {
            strip_token(&op, &token);
            continue;
        }
        if (op.left && first)
            op.with = STR_LIT("");
        struct buf *b = &tmp[i & 1];
        buf_clear(b);
        st = tok_replace(&op, token, b, err);
        if (st == QN_OK)
            st = buf_ok(b, "a token", err);
        token = buf_str(b);
    }
    if (st == QN_OK) {
        final_bytes(d->last, token, out);
        st = buf_ok(out, "a token", err);
    }
    buf_free(&tmp[0]);
    buf_free(&tmp[1]);
    return st;
}

/* ---- streaming ------------------------------------------------------------------------------- */

static void detok_start(struct detok *d, const struct tok *t, bool keep_special)
{
    *d = (struct detok){.t = t, .keep_special = keep_special};
    d->strip_left = t->steps.dec.strip_left;
}

struct detok *detok_create(const struct tok *t, bool keep_special)
{
    struct detok *d = malloc(sizeof *d);
    if (d)
        detok_start(d, t, keep_special);
    return d;
}

static void detok_close(struct detok *d)
{
    buf_free(&d->pend);
    buf_free(&d->tail);
}

void detok_free(struct detok *d)
{
    if (d)
        detok_close(d);
    free(d);
}

void detok_reset(struct detok *d)
{
    d->any = false;
    d->strip_left = d->t->steps.dec.strip_left;
    buf_clear(&d->pend);
    buf_clear(&d->tail);
}

/* Valid text leaves through the whole-text strip. */
static void emit(struct detok *d, struct str s, struct buf *out)
{
    const struct tok_decoder *dec = &d->t->steps.dec;
    while (d->strip_left && s.n) {
        if (!str_starts(s, dec->strip)) {
            d->strip_left = 0;
            break;
        }
        s.p += dec->strip.n;
        s.n -= dec->strip.n;
        d->strip_left--;
    }
    if (dec->strip_right == 0) {
        buf_add_str(out, s);
        return;
    }
    buf_add_str(&d->tail, s);
    struct str all = buf_str(&d->tail);
    size_t keep = 0;
    for (uint32_t k = 0; k < dec->strip_right; k++) {
        struct str rest = {all.p, all.n - keep};
        if (!rest.n || !str_ends(rest, dec->strip))
            break;
        keep += dec->strip.n;
    }
    buf_add(out, all.p, all.n - keep);
    memmove(d->tail.p, d->tail.p + (all.n - keep), keep);
    d->tail.n = keep;
}

/* Bytes of the stream: whole characters leave, repaired; the beginning of one waits. */
static void feed(struct detok *d, struct str s, struct buf *out)
{
    bool plain = d->pend.n == 0 && d->strip_left == 0 && d->t->steps.dec.strip_right == 0;
    if (plain) {
        size_t wait = utf8_tail(s);
        utf8_sanitize(out, (struct str){s.p, s.n - wait});
        buf_add(&d->pend, s.p + s.n - wait, wait);
        out->failed |= d->pend.failed;
        return;
    }
    buf_add_str(&d->pend, s);
    struct str all = buf_str(&d->pend);
    size_t wait = utf8_tail(all);
    struct buf good = BUF_INIT;
    utf8_sanitize(&good, (struct str){all.p, all.n - wait});
    emit(d, buf_str(&good), out);
    out->failed |= good.failed || d->pend.failed || d->tail.failed;
    buf_free(&good);
    memmove(d->pend.p, d->pend.p + (all.n - wait), wait);
    d->pend.n = wait;
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    const struct tok *t = d->t;
    if (id < 0 || id >= t->head->n_id || !(t->id_flags[id] & ID_USED))
        return;
    if (!d->keep_special && (t->id_flags[id] & ID_HIDDEN))
        return;
    bool first = !d->any;
    d->any = true;
    if (first && t->steps.dec.metaspace) {
        struct buf b = BUF_INIT;
        tok_token_bytes(&t->steps.dec, tok_piece(t, id), true, &b, NULL);
        feed(d, buf_str(&b), out);
        out->failed |= b.failed;
        buf_free(&b);
        return;
    }
    if (!first && t->steps.dec.last == DEC_JOIN_SPACE)
        feed(d, STR_LIT(" "), out);
    feed(d, tok_slice(t, SEC_DEC, t->dec_off, id), out);
}

static void flush(struct detok *d, struct buf *out)
{
    if (d->pend.n) {
        struct buf good = BUF_INIT;
        utf8_sanitize(&good, buf_str(&d->pend));
        emit(d, buf_str(&good), out);
        out->failed |= good.failed || d->tail.failed;
        buf_free(&good);
    }
    buf_clear(&d->pend);
}

void detok_literal(struct detok *d, struct str bytes, struct buf *out)
{
    flush(d, out);
    buf_add_str(out, buf_str(&d->tail));
    buf_clear(&d->tail);
    buf_add_str(out, bytes);
}

void detok_end(struct detok *d, struct buf *out)
{
    flush(d, out);
    detok_reset(d);
}

void tok_decode(const struct tok *t, const int32_t *ids, size_t n, bool keep_special,
                struct buf *out)
{
    struct detok d;
    detok_start(&d, t, keep_special);
    for (size_t i = 0; i < n; i++)
        detok_push(&d, ids[i], out);
    detok_end(&d, out);
    detok_close(&d);
}
