/*
 * tok_compile.c - tokenizer.json to an image (tok_int.h). Runs once per tokenizer; nothing of the
 * JSON is trusted: ids, counts and lengths are bounded before memory is taken for them.
 * Single-threaded; owns everything in struct comp until the image is handed over.
 */
#include "tok_int.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/utf8.h"

#define FILE_NAME "tokenizer.json"

enum { TRIE_TEXT_MAX = 8 << 20 };

/* Strings to ids while compiling; open addressing, 0 = free. */
struct smap {
    uint32_t *slot;
    uint32_t mask;
};

struct added_src {
    struct str content, pattern;
    struct tok_added a;
    bool normalized, special;
};

struct comp {
    struct qn_err *err;
    struct arena *mem;
    struct json *doc, *config, *special;
    struct tok_steps steps;
    const struct json *model;
    struct str *piece; /* [n_id] p = NULL: no such id; of the model's vocabulary, then added ones */
    uint8_t *flags;    /* [n_id] enum tok_id_flag */
    bool *model_id;    /* [n_id] the id is in the model's vocabulary */
    int32_t n_id, n_alloc;
    size_t n_vocab;
    struct smap vocab;
    struct added_src *added;
    size_t n_added;
    struct buf sec[SEC_N];
    struct tok_head head;
    bool own_key; /* the keys are not simply the pieces: byte level */
    bool own_map; /* some id has a piece but no key */
};

static enum qn_status no_memory(struct comp *c)
{
    return err_set(c->err, QN_NO_MEMORY, "tok", "out of memory while compiling " FILE_NAME);
}

static uint32_t pow2_above(size_t n)
{
    uint32_t m = 16;
    while (m < n)
        m *= 2;
    return m;
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

static int32_t smap_get(const struct comp *c, struct str s)
{
    uint32_t at = (uint32_t)tok_hash(s.p, s.n) & c->vocab.mask;
    for (; c->vocab.slot[at]; at = (at + 1) & c->vocab.mask) {
        int32_t id = (int32_t)c->vocab.slot[at] - 1;
        if (str_eq(c->piece[id], s))
            return id;
    }
    return -1;
}

static void smap_put(uint32_t *slot, uint32_t mask, struct str s, int32_t id)
{
    uint32_t at = (uint32_t)tok_hash(s.p, s.n) & mask;
    while (slot[at])
        at = (at + 1) & mask;
    slot[at] = (uint32_t)id + 1;
}

static enum qn_status vocab_read(struct comp *c)
{
    const struct json *v = json_get(c->model, "vocab");
    const struct json *a = json_get(c->doc, "added_tokens");
    struct json_iter it = {0};
    int64_t id, top = -1;
    if (json_type(v) != JSON_OBJ)
        QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME, "model.vocab is %s; expected an object",
                json_type_name(v));
    c->n_vocab = json_len(v);
    int64_t limit = 4 * (int64_t)c->n_vocab + 65536;
    if (limit > TOK_ID_MAX)
        limit = TOK_ID_MAX;
    while (json_next(v, &it)) {
        if (!json_i64(it.val, &id) || id < 0 || id >= limit)
            QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME,
                    "model.vocab: the id of \"" STR_FMT "\" is not in 0..%lld", STR_ARG(it.key),
                    (long long)limit - 1);
        top = id > top ? id : top;
    }
    c->n_id = (int32_t)top + 1;
    size_t total = (size_t)c->n_id + c->n_vocab + json_len(a) + 1;
    if (total > TOK_ID_MAX)
        QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME, "%zu tokens; at most %d", total, TOK_ID_MAX);
    c->n_alloc = (int32_t)total;
    c->piece = arena_zalloc_n(c->mem, total, sizeof *c->piece);
    c->flags = arena_zalloc_n(c->mem, total, 1);
    c->model_id = arena_zalloc_n(c->mem, total, sizeof *c->model_id);
    c->vocab.mask = pow2_above(2 * c->n_vocab + 2) - 1;
    c->vocab.slot = arena_zalloc_n(c->mem, (size_t)c->vocab.mask + 1, 4);
    if (!c->piece || !c->flags || !c->model_id || !c->vocab.slot)
        return no_memory(c);
    it = (struct json_iter){0};
    while (json_next(v, &it)) {
        json_i64(it.val, &id);
        if (c->flags[id])
            QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME,
                    "model.vocab: \"" STR_FMT "\" and \"" STR_FMT "\" share id %lld",
                    STR_ARG(c->piece[id]), STR_ARG(it.key), (long long)id);
        c->piece[id] = it.key;
        c->flags[id] = ID_USED;
        c->model_id[id] = true;
        smap_put(c->vocab.slot, c->vocab.mask, it.key, (int32_t)id);
    }
    return QN_OK;
}

/* ---- added tokens ---------------------------------------------------------------------------- */

static enum qn_status added_one(struct comp *c, const struct json *o, struct added_src *s)
{
    bool word, left, right;
    if (json_type(json_get(o, "content")) != JSON_STR)
        QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME, "added_tokens: a token has no content");
    s->content = s->pattern = json_str(json_get(o, "content"));
    QN_TRY(json_opt_bool(o, FILE_NAME, "single_word", false, &word, c->err));
    QN_TRY(json_opt_bool(o, FILE_NAME, "lstrip", false, &left, c->err));
    QN_TRY(json_opt_bool(o, FILE_NAME, "rstrip", false, &right, c->err));
    QN_TRY(json_opt_bool(o, FILE_NAME, "normalized", true, &s->normalized, c->err));
    QN_TRY(json_opt_bool(o, FILE_NAME, "special", false, &s->special, c->err));
    s->a.flags = (word ? ADDED_WORD : 0) | (left ? ADDED_LSTRIP : 0) | (right ? ADDED_RSTRIP : 0) |
                 (s->special ? ADDED_SPECIAL : 0);
    if (!s->normalized)
        return QN_OK;
    struct buf tmp[2] = {BUF_INIT, BUF_INIT};
    struct str out;
    enum qn_status st = tok_normalize(&c->steps.norm, s->content, tmp, &out, c->err);
    if (st == QN_OK && !str_eq(out, s->content)) {
        s->pattern = arena_str(c->mem, out);
        if (!s->pattern.p)
            st = no_memory(c);
    }
    buf_free(&tmp[0]);
    buf_free(&tmp[1]);
    return st;
}

/* As `tokenizers` does: the vocabulary's id when the content is in it, otherwise the next free one
 * counted from the vocabulary's size; a repeated content replaces the earlier entry. */
static enum qn_status added_read(struct comp *c)
{
    const struct json *a = json_get(c->doc, "added_tokens");
    size_t n = json_len(a);
    int32_t next = (int32_t)c->n_vocab;
    c->added = arena_zalloc_n(c->mem, n ? n : 1, sizeof *c->added);
    if (!c->added)
        return no_memory(c);
    for (size_t i = 0; i < n; i++) {
        struct added_src s = {0};
        QN_TRY(added_one(c, json_at(a, i), &s));
        if (s.content.n == 0)
            continue;
        int32_t id = smap_get(c, s.content);
        if (id < 0) {
            id = next++;
            if (c->flags[id])
                QN_FAIL(c->err, QN_UNSUPPORTED, FILE_NAME,
                        "added token \"" STR_FMT "\" would get id %d, which \"" STR_FMT
                        "\" has: the vocabulary has gaps",
                        STR_ARG(s.content), id, STR_ARG(c->piece[id]));
            c->piece[id] = s.content;
            smap_put(c->vocab.slot, c->vocab.mask, s.content, id);
            if (id >= c->n_id)
                c->n_id = id + 1;
        }
        s.a.id = id;
        size_t k = c->n_added;
        if (c->flags[id] & ID_ADDED)
            for (k = 0; c->added[k].a.id != id;)
                k++;
        else
            c->n_added++;
        c->added[k] = s;
        c->flags[id] = (uint8_t)(ID_USED | ID_ADDED | (c->flags[id] & ID_SPECIAL) |
                                 (s.special ? ID_SPECIAL : 0));
    }
    return QN_OK;
}

/* ---- pieces, keys, bytes --------------------------------------------------------------------- */

static void add_u32(struct buf *b, uint32_t v)
{
    buf_add(b, &v, 4);
}

/* The raw bytes of a token written in the byte alphabet; false when it holds another character. */
static bool raw_key(struct str s, struct buf *out)
{
    size_t before = out->n;
    for (size_t i = 0; i < s.n;) {
        int b = tok_char_byte(utf8_next(s, &i));
        if (b < 0) {
            out->n = before;
            return false;
        }
        buf_addc(out, (char)b);
    }
    return true;
}

static bool ends_in_bytes(const struct comp *c)
{
    int n = c->steps.pre.n;
    return n > 0 && c->steps.pre.v[n - 1].kind == OP_BYTES;
}

static int32_t byte_char_id(const struct comp *c, int b)
{
    struct buf one = BUF_INIT;
    buf_add_utf8(&one, tok_byte_char((uint8_t)b));
    int32_t id = smap_get(c, buf_str(&one));
    buf_free(&one);
    return id >= 0 && c->model_id[id] ? id : -1;
}

static void byte_tables(struct comp *c)
{
    bool all = true, fall = true;
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        int32_t id = byte_char_id(c, b), fb = smap_get(c, str_of(name));
        if (fb >= 0 && !c->model_id[fb])
            fb = -1;
        all &= id >= 0;
        fall &= fb >= 0;
        buf_add(&c->sec[SEC_BYTE_ID], &id, 4);
        buf_add(&c->sec[SEC_FALLBACK], &fb, 4);
    }
    uint32_t *f = &c->head.flags;
    if (ends_in_bytes(c) && (all || (c->head.unk < 0 && !(*f & MODEL_FALLBACK))))
        *f |= MODEL_BYTES;
    else if ((*f & MODEL_FALLBACK) ? fall : c->head.unk >= 0 && !(*f & MODEL_FUSE_UNK))
        *f |= MODEL_CUTTABLE;
}

static enum qn_status pieces_write(struct comp *c)
{
    struct buf *s = c->sec;
    c->own_key = c->head.flags & MODEL_BYTES;
    for (int32_t id = 0; id < c->n_id; id++)
        c->own_map |= c->own_key || ((c->flags[id] & ID_USED) && !c->model_id[id]);
    for (int32_t id = 0; id <= c->n_id; id++) {
        add_u32(&s[SEC_PIECE_OFF], (uint32_t)s[SEC_PIECE].n);
        if (c->own_key)
            add_u32(&s[SEC_KEY_OFF], (uint32_t)s[SEC_KEY].n);
        if (id == c->n_id || !(c->flags[id] & ID_USED))
            continue;
        buf_add_str(&s[SEC_PIECE], c->piece[id]);
        if (c->own_key && c->model_id[id])
            raw_key(c->piece[id], &s[SEC_KEY]);
    }
    if (s[SEC_PIECE].n > UINT32_MAX)
        QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME, "the texts of all tokens take %zu bytes",
                s[SEC_PIECE].n);
    return buf_ok(&s[SEC_PIECE], FILE_NAME, c->err);
}

/* What each id decodes to. Added tokens with a normalized form decode from that, and are hidden
 * when that form is the content of a special token: as `tokenizers` has it. */
static enum qn_status decs_write(struct comp *c)
{
    struct buf *s = c->sec;
    struct str *form = arena_zalloc_n(c->mem, (size_t)c->n_id, sizeof *form);
    if (!form)
        return no_memory(c);
    for (int32_t id = 0; id < c->n_id; id++)
        form[id] = c->piece[id];
    for (size_t k = 0; k < c->n_added; k++)
        form[c->added[k].a.id] = c->added[k].pattern;
    for (int32_t id = 0; id < c->n_id; id++) {
        add_u32(&s[SEC_DEC_OFF], (uint32_t)s[SEC_DEC].n);
        if (!(c->flags[id] & ID_USED))
            continue;
        QN_TRY(tok_token_bytes(&c->steps.dec, form[id], false, &s[SEC_DEC], c->err));
        int32_t named = smap_get(c, form[id]);
        if (named >= 0 && (c->flags[named] & ID_SPECIAL))
            c->flags[id] |= ID_HIDDEN;
        if (s[SEC_DEC].n > UINT32_MAX)
            QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME, "the decoded tokens take more than 4 GiB");
    }
    add_u32(&s[SEC_DEC_OFF], (uint32_t)s[SEC_DEC].n);
    buf_add(&s[SEC_ID_FLAGS], c->flags, (size_t)c->n_id);
    return buf_ok(&s[SEC_DEC_OFF], FILE_NAME, c->err);
}

static enum qn_status zeros(struct comp *c, enum tok_sec sec, size_t n)
{
    struct buf *b = &c->sec[sec];
    if (!buf_reserve(b, n))
        return no_memory(c);
    memset(b->p, 0, n);
    b->n = n;
    return QN_OK;
}

static enum qn_status maps_write(struct comp *c)
{
    uint32_t m = pow2_above((size_t)c->n_id + (size_t)c->n_id / 2);
    QN_TRY(zeros(c, SEC_PIECE_MAP, (size_t)m * 4));
    if (c->own_map)
        QN_TRY(zeros(c, SEC_KEY_MAP, (size_t)m * 4));
    const uint32_t *off = (const uint32_t *)c->sec[SEC_KEY_OFF].p;
    for (int32_t id = 0; id < c->n_id; id++) {
        if (!(c->flags[id] & ID_USED))
            continue;
        smap_put((uint32_t *)c->sec[SEC_PIECE_MAP].p, m - 1, c->piece[id], id);
        struct str key = c->piece[id];
        if (c->own_key)
            key = (struct str){c->sec[SEC_KEY].p + off[id], off[id + 1] - off[id]};
        if (c->own_map && c->model_id[id] && key.n)
            smap_put((uint32_t *)c->sec[SEC_KEY_MAP].p, m - 1, key, id);
    }
    return QN_OK;
}

static enum qn_status pairs_write(struct comp *c)
{
    if (!(c->head.flags & MODEL_CUTTABLE))
        return QN_OK;
    QN_TRY(zeros(c, SEC_PAIRS, TOK_PAIR_BITS / 8));
    uint64_t *bits = (uint64_t *)c->sec[SEC_PAIRS].p;
    for (int32_t id = 0; id < c->n_id; id++) {
        if (!c->model_id[id])
            continue;
        struct str s = c->piece[id];
        uint32_t a = 0;
        for (size_t i = 0; i < s.n;) {
            bool first = i == 0;
            uint32_t b = utf8_next(s, &i), bit = tok_pair_hash(a, b) & (TOK_PAIR_BITS - 1);
            if (!first)
                bits[bit >> 6] |= 1ull << (bit & 63);
            a = b;
        }
    }
    return QN_OK;
}

/* ---- merges ---------------------------------------------------------------------------------- */

static enum qn_status merge_sides(struct comp *c, const struct json *m, size_t i, struct str *l,
                                  struct str *r)
{
    if (json_type(m) == JSON_STR) {
        struct str s = json_str(m);
        size_t sp = str_find(s, STR_LIT(" "), 0);
        if (sp != (size_t)-1 && str_find(s, STR_LIT(" "), sp + 1) == (size_t)-1) {
            *l = (struct str){s.p, sp};
            *r = (struct str){s.p + sp + 1, s.n - sp - 1};
            return QN_OK;
        }
    } else if (json_len(m) == 2 && json_type(json_at(m, 0)) == JSON_STR &&
               json_type(json_at(m, 1)) == JSON_STR) {
        *l = json_str(json_at(m, 0));
        *r = json_str(json_at(m, 1));
        return QN_OK;
    }
    QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME,
            "model.merges[%zu] is neither \"left right\" nor [\"left\", \"right\"]", i);
}

static enum qn_status merge_put(struct comp *c, uint32_t slots, size_t rank, struct str l,
                                struct str r, struct buf *joined)
{
    struct tok_merge *tab = (struct tok_merge *)c->sec[SEC_MERGES].p;
    buf_clear(joined);
    buf_add_str(joined, l);
    buf_add_str(joined, r);
    QN_TRY(buf_ok(joined, FILE_NAME, c->err));
    int32_t a = smap_get(c, l), b = smap_get(c, r), id = smap_get(c, buf_str(joined));
    if (a < 0 || b < 0 || id < 0)
        QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME,
                "model.merges[%zu]: \"" STR_FMT "\" + \"" STR_FMT "\" is not in the vocabulary",
                rank, STR_ARG(l), STR_ARG(r));
    const int32_t *fb = (const int32_t *)c->sec[SEC_FALLBACK].p;
    bool odd = a == c->head.unk || b == c->head.unk;
    if ((l.n == 6 && l.p[0] == '<') || (r.n == 6 && r.p[0] == '<'))
        for (int k = 0; k < 256; k++)
            odd |= fb[k] == a || fb[k] == b;
    if (odd) /* its bytes are not its characters: cutting by characters would not be safe */
        c->head.flags &= ~(uint32_t)MODEL_CUTTABLE;
    uint32_t at = tok_pair_slot((uint32_t)a, (uint32_t)b, slots);
    while (tab[at].left != UINT32_MAX &&
           !(tab[at].left == (uint32_t)a && tab[at].right == (uint32_t)b))
        at = at + 1 == slots ? 0 : at + 1;
    tab[at] = (struct tok_merge){(uint32_t)a, (uint32_t)b, (uint32_t)rank, (uint32_t)id};
    return QN_OK;
}

static enum qn_status merges_write(struct comp *c)
{
    const struct json *a = json_get(c->model, "merges");
    size_t n = json_len(a), skipped = 0;
    if (n > TOK_ID_MAX)
        QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME, "%zu merges; at most %d", n, TOK_ID_MAX);
    uint32_t slots = (uint32_t)(n + n / 3 * 2 + 16);
    QN_TRY(zeros(c, SEC_MERGES, (size_t)slots * sizeof(struct tok_merge)));
    for (uint32_t i = 0; i < slots; i++)
        ((struct tok_merge *)c->sec[SEC_MERGES].p)[i].left = UINT32_MAX;
    struct buf joined = BUF_INIT;
    enum qn_status st = QN_OK;
    for (size_t i = 0; i < n && st == QN_OK; i++) {
        const struct json *m = json_at(a, i);
        struct str l = {NULL, 0}, r = {NULL, 0};
        if (str_starts(json_str(m), STR_LIT("#version"))) {
            skipped++;
            continue;
        }
        st = merge_sides(c, m, i, &l, &r);
        if (st == QN_OK)
            st = merge_put(c, slots, i - skipped, l, r, &joined);
    }
    buf_free(&joined);
    return st;
}

/* ---- tries of added tokens ------------------------------------------------------------------- */

struct trie_item {
    struct str s;
    int32_t added;
};

static int item_cmp(const void *a, const void *b)
{
    const struct trie_item *x = a, *y = b;
    size_t n = x->s.n < y->s.n ? x->s.n : y->s.n;
    int d = memcmp(x->s.p, y->s.p, n);
    return d ? d : (x->s.n > y->s.n) - (x->s.n < y->s.n);
}

/* Nodes are made breadth first; each waits in the queue with its slice of the sorted items. */
struct trie_todo {
    uint32_t lo, hi;
    uint32_t depth;
};

static void trie_node(const struct trie_item *it, struct trie_todo w, struct tok_node *node,
                      struct buf *queue, struct buf *edges)
{
    uint32_t i = w.lo;
    *node = (struct tok_node){.edge = (uint32_t)(edges->n / 4), .added = -1};
    if (i < w.hi && it[i].s.n == w.depth)
        node->added = it[i++].added;
    while (i < w.hi) {
        uint8_t b = (uint8_t)it[i].s.p[w.depth];
        struct trie_todo next = {i, i, w.depth + 1};
        while (next.hi < w.hi && (uint8_t)it[next.hi].s.p[w.depth] == b)
            next.hi++;
        add_u32(edges, (uint32_t)b << 24 | (uint32_t)(queue->n / sizeof next));
        buf_add(queue, &next, sizeof next);
        node->n_edge++;
        i = next.hi;
    }
}

static enum qn_status trie_write(struct comp *c, bool normalized, enum tok_sec nodes,
                                 enum tok_sec edges)
{
    struct trie_item *it = arena_zalloc_n(c->mem, c->n_added + 1, sizeof *it);
    size_t n = 0, bytes = 0;
    if (!it)
        return no_memory(c);
    for (size_t k = 0; k < c->n_added; k++)
        if (c->added[k].normalized == normalized && c->added[k].pattern.n) {
            it[n++] = (struct trie_item){c->added[k].pattern, (int32_t)k};
            bytes += c->added[k].pattern.n;
        }
    if (n == 0)
        return QN_OK;
    if (bytes > TRIE_TEXT_MAX)
        QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME, "added tokens of %zu bytes in all; at most %d",
                bytes, TRIE_TEXT_MAX);
    qsort(it, n, sizeof *it, item_cmp);
    for (size_t k = 1; k < n; k++)
        if (str_eq(it[k].s, it[k - 1].s))
            QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME,
                    "two added tokens match the same text \"" STR_FMT "\"", STR_ARG(it[k].s));
    struct buf queue = BUF_INIT;
    struct trie_todo root = {0, (uint32_t)n, 0};
    buf_add(&queue, &root, sizeof root);
    for (size_t k = 0; k * sizeof root < queue.n && !queue.failed; k++) {
        struct trie_todo w;
        struct tok_node node;
        memcpy(&w, queue.p + k * sizeof w, sizeof w);
        trie_node(it, w, &node, &queue, &c->sec[edges]);
        buf_add(&c->sec[nodes], &node, sizeof node);
    }
    enum qn_status st = buf_ok(&queue, FILE_NAME, c->err);
    buf_free(&queue);
    return st;
}

static enum qn_status added_write(struct comp *c)
{
    for (size_t k = 0; k < c->n_added; k++)
        buf_add(&c->sec[SEC_ADDED], &c->added[k].a, sizeof c->added[k].a);
    QN_TRY(trie_write(c, false, SEC_TRIE_RAW, SEC_EDGE_RAW));
    return trie_write(c, true, SEC_TRIE_NORM, SEC_EDGE_NORM);
}

/* ---- documents ------------------------------------------------------------------------------- */

static void steps_write(struct comp *c)
{
    static const char *const keys[] = {"normalizer", "pre_tokenizer", "decoder", "post_processor"};
    struct jw w;
    jw_init(&w, &c->sec[SEC_STEPS]);
    jw_obj(&w);
    for (int k = 0; k < 4; k++) {
        jw_key(&w, keys[k]);
        if (json_has(c->doc, keys[k]))
            jw_value(&w, json_get(c->doc, keys[k]));
        else
            jw_null(&w);
    }
    jw_obj_end(&w);
}

/* The list of added tokens again fills most of real files and says nothing new. */
static void config_write(struct comp *c)
{
    struct buf *b = &c->sec[SEC_CONFIG];
    struct json_iter it = {0};
    if (!c->config)
        return;
    buf_addc(b, '{');
    while (json_next(c->config, &it)) {
        if (str_eqz(it.key, "added_tokens_decoder"))
            continue;
        if (b->n > 1)
            buf_addc(b, ',');
        json_w_str(b, it.key);
        buf_addc(b, ':');
        json_w_value(b, it.val);
    }
    buf_addc(b, '}');
}

static int32_t named_id(const struct comp *c, const char *key)
{
    const struct json *docs[] = {c->config, c->special};
    for (int i = 0; i < 2; i++) {
        const struct json *v = json_get(docs[i], key);
        if (json_type(v) == JSON_OBJ)
            v = json_get(v, "content");
        if (json_type(v) == JSON_STR)
            return smap_get(c, json_str(v));
    }
    return -1;
}

/* ---- all together ---------------------------------------------------------------------------- */

static enum qn_status model_read(struct comp *c)
{
    const struct json *m = c->model;
    struct str type, s;
    double dropout;
    bool fuse, fallback, ignore;
    if (json_type(m) != JSON_OBJ)
        QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME, "no \"model\" object");
    QN_TRY(json_opt_str(m, FILE_NAME, "type", STR_LIT("BPE"), &type, c->err));
    if (!str_eqz(type, "BPE"))
        QN_FAIL(c->err, QN_UNSUPPORTED, FILE_NAME,
                "model of type \"" STR_FMT "\" is not supported; only BPE is", STR_ARG(type));
    QN_TRY(json_opt_real(m, FILE_NAME, "dropout", 0, 0, 1, &dropout, c->err));
    if (dropout != 0)
        QN_FAIL(c->err, QN_UNSUPPORTED, FILE_NAME, "model.dropout %g is not supported; remove it",
                dropout);
    static const char *const affix[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int k = 0; k < 2; k++) {
        QN_TRY(json_opt_str(m, FILE_NAME, affix[k], STR_LIT(""), &s, c->err));
        if (s.n)
            QN_FAIL(c->err, QN_UNSUPPORTED, FILE_NAME, "model.%s \"" STR_FMT "\" is not supported",
                    affix[k], STR_ARG(s));
    }
    QN_TRY(json_opt_bool(m, FILE_NAME, "fuse_unk", false, &fuse, c->err));
    QN_TRY(json_opt_bool(m, FILE_NAME, "byte_fallback", false, &fallback, c->err));
    QN_TRY(json_opt_bool(m, FILE_NAME, "ignore_merges", false, &ignore, c->err));
    c->head.flags = (fuse ? MODEL_FUSE_UNK : 0) | (fallback ? MODEL_FALLBACK : 0) |
                    (ignore ? MODEL_IGNORE_MERGES : 0);
    QN_TRY(vocab_read(c));
    QN_TRY(json_opt_str(m, FILE_NAME, "unk_token", (struct str){NULL, 0}, &s, c->err));
    c->head.unk = s.p ? smap_get(c, s) : -1;
    return QN_OK;
}

static enum qn_status sections_write(struct comp *c)
{
    byte_tables(c);
    QN_TRY(pieces_write(c));
    QN_TRY(merges_write(c));
    QN_TRY(decs_write(c));
    QN_TRY(maps_write(c));
    QN_TRY(pairs_write(c));
    QN_TRY(added_write(c));
    steps_write(c);
    config_write(c);
    for (int i = 0; i < SEC_N; i++)
        QN_TRY(buf_ok(&c->sec[i], FILE_NAME, c->err));
    return QN_OK;
}

static void seal(uint8_t *p, size_t n)
{
    struct tok_head *h = (struct tok_head *)p;
    h->body_sum = tok_image_sum(p + sizeof *h, n - sizeof *h);
    h->head_sum = tok_image_sum(p, offsetof(struct tok_head, head_sum));
}

static enum qn_status assemble(struct comp *c, const uint64_t key[2], uint8_t **image, size_t *n)
{
    struct tok_head *h = &c->head;
    size_t at = (sizeof *h + 15) & ~(size_t)15;
    memcpy(h->magic, TOK_IMAGE_MAGIC, 8);
    h->version = TOK_IMAGE_VERSION;
    h->byte_order = 0x01020304;
    h->n_id = c->n_id;
    h->bos = named_id(c, "bos_token");
    h->eos = named_id(c, "eos_token");
    if (key)
        memcpy(h->key, key, sizeof h->key);
    for (int i = 0; i < SEC_N; i++) {
        h->sec[i] = (struct tok_span){at, c->sec[i].n};
        at += (c->sec[i].n + 15) & ~(size_t)15;
    }
    static const enum tok_sec same[][2] = {
        {SEC_KEY_OFF, SEC_PIECE_OFF}, {SEC_KEY, SEC_PIECE}, {SEC_KEY_MAP, SEC_PIECE_MAP}};
    for (int i = 0; i < 3; i++)
        if (!(i < 2 ? c->own_key : c->own_map))
            h->sec[same[i][0]] = h->sec[same[i][1]];
    h->total = at;
    uint8_t *p = calloc(1, at);
    if (!p)
        return no_memory(c);
    memcpy(p, h, sizeof *h);
    for (int i = 0; i < SEC_N; i++)
        if (c->sec[i].n) /* an aliased section is empty here */
            memcpy(p + h->sec[i].off, c->sec[i].p, c->sec[i].n);
    seal(p, at);
    *image = p;
    *n = at;
    return QN_OK;
}

/* Marks the tokens that are what their own text encodes to, so that a word that is in the
 * vocabulary needs no merging. */
static enum qn_status mark_whole(uint8_t *image, size_t n, struct qn_err *err)
{
    struct tok t = {.base = image, .size = n};
    struct ids ids = {0};
    enum qn_status st = tok_image_open(&t, NULL, err);
    uint8_t *flags = image + (st == QN_OK ? t.head->sec[SEC_ID_FLAGS].off : 0);
    for (int32_t id = 0; st == QN_OK && id < t.head->n_id; id++) {
        struct str key = tok_slice(&t, SEC_KEY, t.key_off, id);
        if (key.n == 0 || key.n > 256) /* longer words are rare, and n log n each */
            continue;
        ids.n = 0;
        st = tok_word_merge(&t, key.p, key.n, &ids, err);
        if (st == QN_OK && ids.n == 1 && ids.v[0] == id)
            flags[id] |= ID_WHOLE;
    }
    seal(image, n);
    ids_free(&ids);
    tok_steps_free(&t.steps);
    json_free(t.steps_doc);
    json_free(t.config);
    return st;
}

static enum qn_status run(struct comp *c, const struct tok_source *src, const uint64_t key[2],
                          uint8_t **image, size_t *n)
{
    if (!c->mem)
        return no_memory(c);
    QN_TRY(json_parse(src->tokenizer, FILE_NAME, JSON_DEPTH_MAX, &c->doc, c->err));
    if (src->config.p)
        QN_TRY(
            json_parse(src->config, "tokenizer_config.json", JSON_DEPTH_MAX, &c->config, c->err));
    if (src->special_map.p)
        QN_TRY(json_parse(src->special_map, "special_tokens_map.json", JSON_DEPTH_MAX, &c->special,
                          c->err));
    c->model = json_get(c->doc, "model");
    QN_TRY(tok_steps_parse(c->doc, &c->steps, c->err));
    QN_TRY(model_read(c));
    QN_TRY(added_read(c));
    if (c->n_id < 1)
        QN_FAIL(c->err, QN_BAD_INPUT, FILE_NAME, "the vocabulary is empty");
    QN_TRY(sections_write(c));
    QN_TRY(assemble(c, key, image, n));
    return mark_whole(*image, *n, c->err);
}

enum qn_status tok_compile(const struct tok_source *src, const uint64_t key[2], uint8_t **image,
                           size_t *n, struct qn_err *err)
{
    struct comp c = {.err = err, .mem = arena_create(0)};
    *image = NULL;
    enum qn_status st = run(&c, src, key, image, n);
    if (st != QN_OK) {
        free(*image);
        *image = NULL;
    }
    for (int i = 0; i < SEC_N; i++)
        buf_free(&c.sec[i]);
    tok_steps_free(&c.steps);
    json_free(c.special);
    json_free(c.config);
    json_free(c.doc);
    arena_free(c.mem);
    return st;
}
