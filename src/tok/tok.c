/*
 * tok.c - opening a tokenizer (compiled vocabulary, cached by the hash of its source files) and
 * encoding: added tokens first, text between them through the stages of tok_int.h.
 */
#include "tok_int.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/utf8.h"
#include "tok/unicode_data.h"

enum { JSON_MAX = 512 << 20, CONFIG_MAX = 64 << 20 };

/* ---- opening --------------------------------------------------------------------------------- */

static struct tok *tok_new(struct qn_err *err)
{
    struct tok *t = calloc(1, sizeof *t);
    if (t)
        t->cache_mem = calloc(1, TOK_CACHE_SLOTS * sizeof *t->cache + 64);
    if (!t || !t->cache_mem) {
        free(t);
        err_set(err, QN_NO_MEMORY, "tok", "out of memory for a tokenizer");
        return NULL;
    }
    /* one line of the processor's cache a slot */
    t->cache = (struct tok_slot *)(((uintptr_t)t->cache_mem + 63) & ~(uintptr_t)63);
    return t;
}

void tok_free(struct tok *t)
{
    if (!t)
        return;
    tok_steps_free(&t->steps);
    json_free(t->steps_doc);
    json_free(t->config);
    file_map_close(&t->map);
    free(t->owned);
    free(t->cache_mem);
    free(t);
}

static enum qn_status from_source(const struct tok_source *src, const uint64_t key[2],
                                  struct tok **out, struct qn_err *err)
{
    struct tok *t = tok_new(err);
    *out = NULL;
    if (!t)
        return QN_NO_MEMORY;
    enum qn_status st = tok_compile(src, key, &t->owned, &t->size, err);
    t->base = t->owned;
    if (st == QN_OK)
        st = tok_image_open(t, key, err);
    if (st != QN_OK) {
        tok_free(t);
        return st;
    }
    *out = t;
    return QN_OK;
}

enum qn_status tok_from_json(struct str tokenizer_json, struct str tokenizer_config,
                             struct tok **out, struct qn_err *err)
{
    struct tok_source src = {tokenizer_json, tokenizer_config, {NULL, 0}};
    return from_source(&src, NULL, out, err);
}

enum qn_status tok_from_image(struct str image, struct tok **out, struct qn_err *err)
{
    struct tok *t = tok_new(err);
    *out = NULL;
    if (!t)
        return QN_NO_MEMORY;
    enum qn_status st = QN_OK;
    t->size = image.n;
    t->base = t->owned = aligned_alloc(64, (image.n + 64) & ~(size_t)63);
    if (!t->owned)
        st = err_set(err, QN_NO_MEMORY, "tok", "out of memory for a vocabulary");
    else if (image.n)
        memcpy(t->owned, image.p, image.n);
    if (st == QN_OK)
        st = tok_image_open(t, NULL, err);
    if (st != QN_OK) {
        tok_free(t);
        return st;
    }
    *out = t;
    return QN_OK;
}

/* A missing file is an empty view; *m keeps the bytes. */
static enum qn_status map_optional(const char *dir, const char *name, struct file_map *m,
                                   struct str *s, struct qn_err *err)
{
    struct buf path = BUF_INIT;
    *s = (struct str){NULL, 0};
    path_join(&path, dir, name);
    enum qn_status st = buf_ok(&path, name, err);
    if (st == QN_OK && file_exists(buf_z(&path)))
        st = file_map_open(buf_z(&path), m, err);
    if (st == QN_OK && m->n > CONFIG_MAX)
        st = err_set(err, QN_BAD_INPUT, name, "%zu bytes; at most %d are read", m->n, CONFIG_MAX);
    if (st == QN_OK && m->p)
        *s = (struct str){(const char *)m->p, m->n};
    buf_free(&path);
    return st;
}

/* The key covers the bytes of all three files and the format's version. */
static void source_key(const struct tok_source *s, uint64_t key[2])
{
    const struct str parts[] = {s->tokenizer, s->config, s->special_map};
    uint64_t all[10] = {TOK_IMAGE_VERSION, sizeof(struct tok_head)};
    for (int i = 0; i < 3; i++) {
        struct hash128 h = hash128(parts[i].p, parts[i].n);
        all[2 + 2 * i] = h.lo ^ parts[i].n;
        all[3 + 2 * i] = h.hi;
    }
    struct hash128 h = hash128(all, sizeof all);
    key[0] = h.lo;
    key[1] = h.hi;
}

static bool open_cached(const char *path, const uint64_t key[2], struct tok **out)
{
    struct qn_err err;
    struct tok *t = tok_new(&err);
    if (!t)
        return false;
    if (file_map_open(path, &t->map, &err) == QN_OK) {
        t->base = t->map.p;
        t->size = t->map.n;
        if (tok_image_open(t, key, &err) == QN_OK) {
            /* checking its sum has read all of it; most pages are not needed again soon */
            file_map_drop(&t->map, 0, t->map.n);
            *out = t;
            return true;
        }
        log_line(LOG_WARN, "tok", "%s: %s; it is made anew", path, err.msg);
    }
    tok_free(t);
    return false;
}

/* A folder that cannot be written costs the next start its time, no more. */
static void save(const char *cache, const char *path, const struct tok *t)
{
    struct qn_err err;
    struct str data = {(const char *)t->base, t->size};
    if (dir_make(cache, &err) != QN_OK || file_write_atomic(path, data, &err) != QN_OK)
        log_line(LOG_WARN, "tok", "the compiled vocabulary was not kept: %s", err.msg);
}

static enum qn_status open_source(const struct tok_source *src, const char *cache, struct tok **out,
                                  struct qn_err *err)
{
    uint64_t key[2];
    struct buf path = BUF_INIT;
    source_key(src, key);
    if (!cache)
        return from_source(src, key, out, err);
    char name[64];
    snprintf(name, sizeof name, "%016llx%016llx.qntokv", (unsigned long long)key[1],
             (unsigned long long)key[0]);
    path_join(&path, cache, name);
    enum qn_status st = buf_ok(&path, "a path", err);
    if (st == QN_OK && !(file_exists(buf_z(&path)) && open_cached(buf_z(&path), key, out))) {
        st = from_source(src, key, out, err);
        if (st == QN_OK)
            save(cache, buf_z(&path), *out);
    }
    buf_free(&path);
    return st;
}

enum qn_status tok_open(const char *dir, const char *cache, struct tok **out, struct qn_err *err)
{
    struct file_map m[3] = {{0}};
    struct tok_source src;
    struct buf path = BUF_INIT;
    *out = NULL;
    path_join(&path, dir, "tokenizer.json");
    enum qn_status st = buf_ok(&path, "a path", err);
    if (st == QN_OK)
        st = file_map_open(buf_z(&path), &m[0], err);
    if (st == QN_OK && m[0].n > JSON_MAX)
        st = err_set(err, QN_BAD_INPUT, "tokenizer.json", "%zu bytes; at most %d are read", m[0].n,
                     JSON_MAX);
    src.tokenizer = (struct str){(const char *)m[0].p, m[0].n};
    if (st == QN_OK)
        st = map_optional(dir, "tokenizer_config.json", &m[1], &src.config, err);
    if (st == QN_OK)
        st = map_optional(dir, "special_tokens_map.json", &m[2], &src.special_map, err);
    if (st == QN_OK)
        st = open_source(&src, cache, out, err);
    for (int i = 0; i < 3; i++)
        file_map_close(&m[i]);
    buf_free(&path);
    return st;
}

/* ---- facts ----------------------------------------------------------------------------------- */

static bool has_id(const struct tok *t, int32_t id)
{
    return id >= 0 && id < t->head->n_id && (t->id_flags[id] & ID_USED);
}

int32_t tok_size(const struct tok *t)
{
    return t->head->n_id;
}

int32_t tok_id(const struct tok *t, struct str piece)
{
    uint32_t at = (uint32_t)tok_hash(piece.p, piece.n) & t->piece_mask;
    for (uint32_t k = 0; k <= t->piece_mask; k++, at = (at + 1) & t->piece_mask) {
        uint32_t id = t->piece_map[at];
        if (id == 0 || id > (uint32_t)t->head->n_id)
            return -1;
        if (str_eq(tok_slice(t, SEC_PIECE, t->piece_off, (int32_t)id - 1), piece))
            return (int32_t)id - 1;
    }
    return -1;
}

struct str tok_piece(const struct tok *t, int32_t id)
{
    return has_id(t, id) ? tok_slice(t, SEC_PIECE, t->piece_off, id) : (struct str){"", 0};
}

bool tok_is_special(const struct tok *t, int32_t id)
{
    return has_id(t, id) && (t->id_flags[id] & ID_SPECIAL);
}

void tok_bytes(const struct tok *t, int32_t id, struct buf *out)
{
    if (has_id(t, id))
        buf_add_str(out, tok_slice(t, SEC_DEC, t->dec_off, id));
}

int32_t tok_bos(const struct tok *t)
{
    return t->head->bos;
}

int32_t tok_eos(const struct tok *t)
{
    return t->head->eos;
}

const struct json *tok_config(const struct tok *t)
{
    return t->config;
}

/* ---- encoding -------------------------------------------------------------------------------- */

struct enc {
    const struct tok *t;
    unsigned flags;
    struct ids *out;
    struct qn_err *err;
    struct buf norm[2];
};

typedef enum qn_status (*text_fn)(struct enc *e, struct str s, bool at_start);

static bool word_char(struct str s, size_t i)
{
    size_t len;
    return uni_flags(tok_cp((const uint8_t *)s.p, i, s.n, &len)) & UNI_WORD;
}

static size_t char_before(struct str s, size_t i)
{
    i--;
    while (i > 0 && ((unsigned char)s.p[i] & 0xC0) == 0x80)
        i--;
    return i;
}

static bool is_space(struct str s, size_t i, size_t *len)
{
    return uni_flags(tok_cp((const uint8_t *)s.p, i, s.n, len)) & UNI_WS;
}

/* Widens [*a,*b) over white space, or says that the match does not count. `done`: text before it
 * belongs to the previous match. */
static bool accept(const struct enc *e, const struct tok_added *ad, struct str s, size_t done,
                   size_t *a, size_t *b)
{
    if ((ad->flags & ADDED_SPECIAL) && !(e->flags & TOK_PARSE_SPECIAL))
        return false;
    if ((ad->flags & ADDED_WORD) &&
        ((*a > 0 && word_char(s, char_before(s, *a))) || (*b < s.n && word_char(s, *b))))
        return false;
    size_t len;
    if (ad->flags & ADDED_LSTRIP) {
        size_t k = *a;
        while (k > 0 && is_space(s, char_before(s, k), &len))
            k = char_before(s, k);
        *a = k > done ? k : done;
    }
    if (ad->flags & ADDED_RSTRIP)
        while (*b < s.n && is_space(s, *b, &len))
            *b += len;
    return true;
}

/* Cuts s at the added tokens of one trie; the text between goes to `text`. */
static enum qn_status cut_added(struct enc *e, const struct tok_trie *tr, struct str s,
                                bool at_start, text_fn text)
{
    size_t done = 0, from = 0, end = 0;
    for (;;) {
        size_t a = from, b;
        int32_t k = tok_trie_find(tr, s, &a, &end);
        if (k < 0)
            break;
        from = b = end;
        const struct tok_added *ad = &e->t->added[k];
        if (!accept(e, ad, s, done, &a, &b))
            continue;
        if (done < a)
            QN_TRY(text(e, (struct str){s.p + done, a - done}, at_start && done == 0));
        if (!ids_reserve(e->out, 1))
            return err_set(e->err, QN_NO_MEMORY, "tok", "out of memory while tokenizing");
        e->out->v[e->out->n++] = ad->id;
        done = b;
    }
    if (done >= s.n)
        return QN_OK;
    return text(e, (struct str){s.p + done, s.n - done}, at_start && done == 0);
}

static enum qn_status normal_text(struct enc *e, struct str s, bool at_start)
{
    return tok_pre_run(e->t, s, at_start, e->out, e->err);
}

static enum qn_status raw_text(struct enc *e, struct str s, bool at_start)
{
    struct str n;
    QN_TRY(tok_normalize(&e->t->steps.norm, s, e->norm, &n, e->err));
    bool cut = n.p > s.p && n.p < s.p + s.n; /* Strip took the input's first characters */
    return cut_added(e, &e->t->norm, n, at_start && !cut, normal_text);
}

static enum qn_status add_ids(struct enc *e, const int32_t *v, int n)
{
    if (!(e->flags & TOK_ADD_SPECIAL))
        return QN_OK;
    if (!ids_reserve(e->out, (size_t)n))
        return err_set(e->err, QN_NO_MEMORY, "tok", "out of memory while tokenizing");
    for (int i = 0; i < n; i++)
        e->out->v[e->out->n++] = v[i];
    return QN_OK;
}

enum qn_status tok_encode(const struct tok *t, struct str text, unsigned flags, struct ids *out,
                          struct qn_err *err)
{
    struct enc e = {.t = t, .flags = flags, .out = out, .err = err};
    struct buf clean = BUF_INIT;
    enum qn_status st = QN_OK;
    if (!utf8_valid(text)) {
        utf8_sanitize(&clean, text);
        st = buf_ok(&clean, "text", err);
        text = buf_str(&clean);
    }
    size_t before = out->n;
    if (st == QN_OK)
        st = add_ids(&e, t->steps.before, t->steps.n_before);
    if (st == QN_OK && text.n)
        st = cut_added(&e, &t->raw, text, true, raw_text);
    if (st == QN_OK)
        st = add_ids(&e, t->steps.after, t->steps.n_after);
    if (st != QN_OK)
        out->n = before;
    buf_free(&e.norm[0]);
    buf_free(&e.norm[1]);
    buf_free(&clean);
    return st;
}
