/*
 * tok_double.c - a stand-in for the tokenizer library that reads only what scripted_tok_json
 * writes: bytes, four specials and pieces. Linked after the real one, it is used only where that is
 * missing.
 */
#include <stdlib.h>

#include "base/json.h"
#include "base/utf8.h"
#include "tok/tok.h"

struct tok {
    struct buf *bytes; /* [n] what each id stands for */
    bool *special;
    int32_t n;
    struct json *config;
};

struct detok {
    const struct tok *t;
    bool keep;
    struct buf held;
};

/* The byte behind a letter of the byte-level alphabet. */
static int byte_of(uint32_t cp)
{
    uint32_t next = 256;
    for (uint32_t i = 0; i < 256; i++) {
        bool plain = (i >= '!' && i <= '~') || (i >= 0xa1 && i <= 0xac) || i >= 0xae;
        if (cp == (plain ? i : next))
            return (int)i;
        next += !plain;
    }
    return '?';
}

enum qn_status tok_from_json(struct str tokenizer_json, struct str tokenizer_config,
                             struct tok **out, struct qn_err *err)
{
    struct json *doc = NULL;
    QN_TRY(json_parse(tokenizer_json, "tokenizer.json", JSON_DEPTH_MAX, &doc, err));
    const struct json *vocab = json_get(json_get(doc, "model"), "vocab");
    struct tok *t = calloc(1, sizeof *t);
    QN_ASSERT(t);
    t->n = (int32_t)json_len(vocab);
    t->bytes = calloc((size_t)t->n, sizeof *t->bytes);
    t->special = calloc((size_t)t->n, sizeof *t->special);
    QN_ASSERT(t->bytes && t->special);
    struct json_iter it = {0};
    while (json_next(vocab, &it)) {
        int64_t id = 0;
        json_i64(it.val, &id);
        t->special[id] = id >= 256 && id < 260;
        for (size_t i = 0; i < it.key.n;) {
            uint32_t cp = utf8_next(it.key, &i);
            buf_addc(&t->bytes[id], t->special[id] ? (char)cp : (char)byte_of(cp));
        }
    }
    json_free(doc);
    if (tokenizer_config.n)
        QN_TRY(
            json_parse(tokenizer_config, "tokenizer_config.json", JSON_DEPTH_MAX, &t->config, err));
    *out = t;
    return QN_OK;
}

void tok_free(struct tok *t)
{
    for (int32_t i = 0; t && i < t->n; i++)
        buf_free(&t->bytes[i]);
    if (t) {
        free(t->bytes);
        free(t->special);
        json_free(t->config);
    }
    free(t);
}

void ids_free(struct ids *a)
{
    free(a->v);
    *a = (struct ids){0};
}

static int32_t special_at(const struct tok *t, struct str text)
{
    for (int32_t i = 256; i < 260; i++)
        if (str_starts(text, buf_str(&t->bytes[i])))
            return i;
    return -1;
}

enum qn_status tok_encode(const struct tok *t, struct str text, unsigned flags, struct ids *out,
                          struct qn_err *err)
{
    struct buf clean = BUF_INIT;
    utf8_sanitize(&clean, text);
    for (size_t i = 0; i < clean.n;) {
        struct str rest = {clean.p + i, clean.n - i};
        int32_t id = flags & TOK_PARSE_SPECIAL ? special_at(t, rest) : -1;
        i += id < 0 ? 1 : t->bytes[id].n;
        out->v = realloc(out->v, (out->n + 1) * sizeof *out->v);
        QN_ASSERT(out->v);
        out->v[out->n++] = id < 0 ? (unsigned char)rest.p[0] : id;
    }
    out->cap = out->n;
    buf_free(&clean);
    return QN_OK;
}

void tok_bytes(const struct tok *t, int32_t id, struct buf *out)
{
    if (id >= 0 && id < t->n)
        buf_add_str(out, buf_str(&t->bytes[id]));
}

void tok_decode(const struct tok *t, const int32_t *ids, size_t n, bool keep_special,
                struct buf *out)
{
    struct buf raw = BUF_INIT;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < t->n && (keep_special || !t->special[ids[i]]))
            tok_bytes(t, ids[i], &raw);
    utf8_sanitize(out, buf_str(&raw));
    buf_free(&raw);
}

int32_t tok_size(const struct tok *t)
{
    return t->n;
}

int32_t tok_id(const struct tok *t, struct str piece)
{
    return special_at(t, piece);
}

struct str tok_piece(const struct tok *t, int32_t id)
{
    return id >= 0 && id < t->n ? buf_str(&t->bytes[id]) : (struct str){0};
}

bool tok_is_special(const struct tok *t, int32_t id)
{
    return id >= 0 && id < t->n && t->special[id];
}

int32_t tok_bos(const struct tok *t)
{
    return 257;
}

int32_t tok_eos(const struct tok *t)
{
    return 256;
}

const struct json *tok_config(const struct tok *t)
{
    return t->config;
}

struct detok *detok_create(const struct tok *t, bool keep_special)
{
    struct detok *d = calloc(1, sizeof *d);
    QN_ASSERT(d);
    d->t = t;
    d->keep = keep_special;
    return d;
}

void detok_free(struct detok *d)
{
    if (d)
        buf_free(&d->held);
    free(d);
}

void detok_reset(struct detok *d)
{
    buf_clear(&d->held);
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    if (!d->keep && tok_is_special(d->t, id))
        return;
    tok_bytes(d->t, id, &d->held);
    size_t tail = utf8_tail(buf_str(&d->held)), n = d->held.n - tail;
    utf8_sanitize(out, (struct str){d->held.p, n});
    if (n)
        memmove(d->held.p, d->held.p + n, tail);
    d->held.n = tail;
}

void detok_end(struct detok *d, struct buf *out)
{
    utf8_sanitize(out, buf_str(&d->held));
    buf_clear(&d->held);
}
