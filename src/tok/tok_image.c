/*
 * tok_image.c - checks a compiled vocabulary and points a struct tok into it. The file may be cut,
 * damaged or made by an enemy: after success every offset and index that readers follow without a
 * check of their own is within bounds. Ids inside the hash tables are checked where they are read.
 */
#include "tok_int.h"

#include "base/hash.h"

uint64_t tok_image_sum(const void *p, size_t n)
{
    return hash64(p, n, 0x51756572);
}

#define BAD(err, ...) err_set(err, QN_BAD_INPUT, "compiled vocabulary", __VA_ARGS__)

static enum qn_status head_check(const struct tok *t, const uint64_t key[2], struct qn_err *err)
{
    const struct tok_head *h = (const struct tok_head *)t->base;
    if (t->size < sizeof *h)
        return BAD(err, "%zu bytes; its head alone has %zu", t->size, sizeof *h);
    if (memcmp(h->magic, TOK_IMAGE_MAGIC, 8) != 0 || h->byte_order != 0x01020304)
        return BAD(err, "not a compiled vocabulary of this machine");
    if (h->version != TOK_IMAGE_VERSION)
        return BAD(err, "version %u; this build reads %u", h->version, TOK_IMAGE_VERSION);
    if (h->total != t->size)
        return BAD(err, "%zu bytes; its head says %llu", t->size, (unsigned long long)h->total);
    if (h->head_sum != tok_image_sum(h, offsetof(struct tok_head, head_sum)))
        return BAD(err, "the head's checksum is wrong");
    if (key && memcmp(h->key, key, sizeof h->key) != 0)
        return BAD(err, "made from another tokenizer.json");
    if (h->n_id < 1 || h->n_id > TOK_ID_MAX)
        return BAD(err, "%d ids; expected 1 to %d", h->n_id, TOK_ID_MAX);
    const int32_t one[] = {h->unk, h->bos, h->eos};
    for (int i = 0; i < 3; i++)
        if (one[i] < -1 || one[i] >= h->n_id)
            return BAD(err, "a special id is %d of %d", one[i], h->n_id);
    for (int i = 0; i < SEC_N; i++) {
        uint64_t end;
        if (h->sec[i].off % 16 || h->sec[i].off < sizeof *h ||
            __builtin_add_overflow(h->sec[i].off, h->sec[i].n, &end) || end > t->size)
            return BAD(err, "section %d lies outside the file", i);
    }
    if (h->body_sum != tok_image_sum(t->base + sizeof *h, t->size - sizeof *h))
        return BAD(err, "the body's checksum is wrong");
    return QN_OK;
}

static const void *section(const struct tok *t, enum tok_sec s)
{
    return t->base + t->head->sec[s].off;
}

static uint64_t section_n(const struct tok *t, enum tok_sec s)
{
    return t->head->sec[s].n;
}

/* An offset table rises from 0 and ends inside its section. */
static enum qn_status offsets(const struct tok *t, enum tok_sec tab, enum tok_sec data,
                              const uint32_t **out, struct qn_err *err)
{
    size_t n = (size_t)t->head->n_id;
    const uint32_t *off = section(t, tab);
    if (section_n(t, tab) != (n + 1) * 4)
        return BAD(err, "section %d has a wrong size", tab);
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= off[i] > off[i + 1];
    if (bad || off[n] > section_n(t, data))
        return BAD(err, "section %d has offsets out of order", tab);
    *out = off;
    return QN_OK;
}

static enum qn_status table(const struct tok *t, enum tok_sec s, uint32_t *mask, struct qn_err *err)
{
    uint64_t n = section_n(t, s) / 4;
    if (n == 0 || n > 1u << 30 || (n & (n - 1)) || n * 4 != section_n(t, s))
        return BAD(err, "section %d is not a table", s);
    *mask = (uint32_t)n - 1;
    return QN_OK;
}

static enum qn_status byte_table(const struct tok *t, enum tok_sec s, const int32_t **out,
                                 struct qn_err *err)
{
    const int32_t *v = section(t, s);
    if (section_n(t, s) != 256 * 4)
        return BAD(err, "section %d has a wrong size", s);
    for (int i = 0; i < 256; i++)
        if (v[i] < -1 || v[i] >= t->head->n_id)
            return BAD(err, "section %d has an id out of range", s);
    *out = v;
    return QN_OK;
}

static enum qn_status trie(struct tok *t, struct tok_trie *tr, enum tok_sec nodes,
                           enum tok_sec edges, struct qn_err *err)
{
    uint64_t n = section_n(t, nodes) / sizeof *tr->node, ne = section_n(t, edges) / 4;
    tr->node = section(t, nodes);
    tr->edge = section(t, edges);
    if (n > 1 << 24 || n * sizeof *tr->node != section_n(t, nodes) || ne * 4 != section_n(t, edges))
        return BAD(err, "section %d has a wrong size", nodes);
    tr->n_node = (uint32_t)n;
    for (uint64_t i = 0; i < n; i++) {
        const struct tok_node *d = &tr->node[i];
        if (d->edge > ne || d->n_edge > ne - d->edge || d->added < -1 ||
            d->added >= (int64_t)t->n_added)
            return BAD(err, "section %d: node %llu is out of range", nodes, (unsigned long long)i);
    }
    for (uint64_t i = 0; i < ne; i++)
        if ((tr->edge[i] & 0xFFFFFF) >= n)
            return BAD(err, "section %d: edge %llu is out of range", edges, (unsigned long long)i);
    for (uint32_t i = 0; n && i < tr->node[0].n_edge; i++)
        tr->start[tr->edge[tr->node[0].edge + i] >> 24] = true;
    return QN_OK;
}

static enum qn_status added_check(struct tok *t, struct qn_err *err)
{
    uint64_t n = section_n(t, SEC_ADDED) / sizeof *t->added;
    t->added = section(t, SEC_ADDED);
    if (n > TOK_ID_MAX || n * sizeof *t->added != section_n(t, SEC_ADDED))
        return BAD(err, "the list of added tokens has a wrong size");
    t->n_added = (uint32_t)n;
    for (uint64_t i = 0; i < n; i++)
        if (t->added[i].id < 0 || t->added[i].id >= t->head->n_id)
            return BAD(err, "an added token has id %d of %d", t->added[i].id, t->head->n_id);
    QN_TRY(trie(t, &t->raw, SEC_TRIE_RAW, SEC_EDGE_RAW, err));
    return trie(t, &t->norm, SEC_TRIE_NORM, SEC_EDGE_NORM, err);
}

static enum qn_status documents(struct tok *t, struct qn_err *err)
{
    struct str steps = {section(t, SEC_STEPS), section_n(t, SEC_STEPS)};
    struct str config = {section(t, SEC_CONFIG), section_n(t, SEC_CONFIG)};
    QN_TRY(json_parse(steps, "tokenizer.json", JSON_DEPTH_MAX, &t->steps_doc, err));
    QN_TRY(tok_steps_parse(t->steps_doc, &t->steps, err));
    for (int i = 0; i < t->steps.n_before; i++)
        if (t->steps.before[i] >= t->head->n_id)
            return BAD(err, "the post-processor adds id %d of %d", t->steps.before[i],
                       t->head->n_id);
    for (int i = 0; i < t->steps.n_after; i++)
        if (t->steps.after[i] >= t->head->n_id)
            return BAD(err, "the post-processor adds id %d of %d", t->steps.after[i],
                       t->head->n_id);
    if (config.n)
        QN_TRY(json_parse(config, "tokenizer_config.json", JSON_DEPTH_MAX, &t->config, err));
    return QN_OK;
}

enum qn_status tok_image_open(struct tok *t, const uint64_t key[2], struct qn_err *err)
{
    QN_TRY(head_check(t, key, err));
    t->head = (const struct tok_head *)t->base;
    QN_TRY(offsets(t, SEC_PIECE_OFF, SEC_PIECE, &t->piece_off, err));
    QN_TRY(offsets(t, SEC_KEY_OFF, SEC_KEY, &t->key_off, err));
    QN_TRY(offsets(t, SEC_DEC_OFF, SEC_DEC, &t->dec_off, err));
    if (section_n(t, SEC_ID_FLAGS) != (uint64_t)t->head->n_id)
        return BAD(err, "the table of id flags has a wrong size");
    if (section_n(t, SEC_PAIRS) != (t->head->flags & MODEL_CUTTABLE ? TOK_PAIR_BITS / 8 : 0))
        return BAD(err, "the table of pairs has a wrong size");
    t->id_flags = section(t, SEC_ID_FLAGS);
    t->piece_map = section(t, SEC_PIECE_MAP);
    t->key_map = section(t, SEC_KEY_MAP);
    t->merges = section(t, SEC_MERGES);
    t->pairs = section(t, SEC_PAIRS);
    QN_TRY(table(t, SEC_PIECE_MAP, &t->piece_mask, err));
    QN_TRY(table(t, SEC_KEY_MAP, &t->key_mask, err));
    uint64_t n_merge = section_n(t, SEC_MERGES) / sizeof *t->merges;
    if (n_merge == 0 || n_merge > 1u << 30 ||
        n_merge * sizeof *t->merges != section_n(t, SEC_MERGES))
        return BAD(err, "the table of merges has a wrong size");
    t->n_merge = (uint32_t)n_merge;
    QN_TRY(byte_table(t, SEC_BYTE_ID, &t->byte_id, err));
    QN_TRY(byte_table(t, SEC_FALLBACK, &t->fallback, err));
    QN_TRY(added_check(t, err));
    return documents(t, err);
}
