/*
 * gram_vocab.c - the tokens of a vocabulary as tries in preorder: `all` of them, and `rest`, which
 * leaves out plain tokens (whole characters, none of them a control character, quote or backslash).
 * Those are kept as bit sets by their number of characters, because a JSON string takes them all.
 *
 * Immutable after creation; any thread.
 */
#include <stdlib.h>

#include "base/utf8.h"
#include "gram/gram_int.h"

#define WHERE "vocabulary"

/* ---- collecting ------------------------------------------------------------------------------ */

static enum qn_status copy_tokens(struct gram_vocab *v, const struct gram_token *t,
                                  struct qn_err *err)
{
    size_t total = 0;
    for (int32_t i = 0; i < v->n_vocab; i++)
        total += t[i].bytes.n <= TOKEN_BYTES_MAX - 1 ? t[i].bytes.n + 1 : 0;
    v->text = malloc(total + 1);
    v->begin = malloc(((size_t)v->n_vocab + 1) * sizeof *v->begin);
    if (!v->text || !v->begin || total > INT32_MAX)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for the bytes of %d tokens", v->n_vocab);
    int32_t at = 0;
    for (int32_t i = 0; i < v->n_vocab; i++) {
        v->begin[i] = at;
        if (t[i].bytes.n == 0 || t[i].bytes.n > TOKEN_BYTES_MAX - 1 ||
            memchr(t[i].bytes.p, SPECIAL_BYTE, t[i].bytes.n))
            continue; /* that byte never stands in UTF-8 */
        if (t[i].special)
            v->text[at++] = (char)SPECIAL_BYTE;
        memcpy(v->text + at, t[i].bytes.p, t[i].bytes.n);
        at += (int32_t)t[i].bytes.n;
    }
    v->begin[v->n_vocab] = at;
    return QN_OK;
}

static struct str bytes_of(const struct gram_vocab *v, int32_t id)
{
    return (struct str){v->text + v->begin[id], (size_t)(v->begin[id + 1] - v->begin[id])};
}

/* Characters of a plain token, 0 when it is not plain or has too many. */
static int32_t plain_chars(struct str s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20 || s.p[i] == '"' || s.p[i] == '\\')
            return 0;
    if (s.n == 0 || !utf8_valid(s))
        return 0;
    size_t n = utf8_count(s);
    return n > PLAIN_MAX ? 0 : (int32_t)n;
}

static void mark_plain(struct gram_vocab *v)
{
    for (int32_t i = 0; i < v->n_vocab; i++) {
        int32_t n = plain_chars(bytes_of(v, i));
        if (n == 0)
            continue;
        uint64_t bit = (uint64_t)1 << (i & 63);
        v->plain[(size_t)(n - 1) * (size_t)v->n_words + (size_t)(i >> 6)] |= bit;
        v->plain_all[i >> 6] |= bit;
    }
}

/* ---- tries ----------------------------------------------------------------------------------- */

/* Ids in the order of their bytes: radix by a comparison sort on prefixes packed into a word. */
struct item {
    uint64_t head; /* first 8 bytes, big-endian */
    int32_t id;
};

static const struct gram_vocab *vocab_of(const void *arg)
{
    return arg;
}

static int by_text(const void *a, const void *b, void *arg)
{
    const struct item *x = a, *y = b;
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    struct str s = bytes_of(vocab_of(arg), x->id), t = bytes_of(vocab_of(arg), y->id);
    size_t n = s.n < t.n ? s.n : t.n;
    int c = memcmp(s.p, t.p, n);
    if (c)
        return c;
    if (s.n != t.n)
        return s.n < t.n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static uint64_t head_of(struct str s)
{
    uint64_t h = 0;
    for (size_t i = 0; i < 8; i++)
        h = h << 8 | (i < s.n ? (unsigned char)s.p[i] : 0);
    return h;
}

static size_t common(struct str a, struct str b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && a.p[n] == b.p[n])
        n++;
    return n;
}

static bool trie_room(struct trie *t, size_t n_node, size_t n_item)
{
    t->byte = malloc(n_node + 1);
    t->depth = malloc(n_node + 1);
    t->skip = malloc((n_node + 1) * sizeof *t->skip);
    t->tok = malloc((n_node + 2) * sizeof *t->tok);
    t->ids = malloc((n_item + 1) * sizeof *t->ids);
    return t->byte && t->depth && t->skip && t->tok && t->ids;
}

static void close_from(struct trie *t, int32_t *open, size_t from, size_t *depth)
{
    while (*depth > from)
        t->skip[open[--*depth]] = t->n;
}

/* items in the order of their bytes. */
static bool trie_fill(struct trie *t, const struct gram_vocab *v, const struct item *items,
                      size_t n)
{
    size_t n_node = 0, depth = 0;
    int32_t open[TOKEN_BYTES_MAX + 1], n_ids = 0;
    struct str last = {NULL, 0};
    for (size_t i = 0; i < n; i++) {
        struct str s = bytes_of(v, items[i].id);
        n_node += s.n - common(last, s);
        last = s;
    }
    if (n_node > INT32_MAX / 2 || !trie_room(t, n_node, n))
        return false;
    last = (struct str){NULL, 0};
    for (size_t i = 0; i < n; i++) {
        struct str s = bytes_of(v, items[i].id);
        close_from(t, open, common(last, s), &depth);
        for (; depth < s.n; depth++) {
            t->byte[t->n] = (uint8_t)s.p[depth];
            t->depth[t->n] = (uint8_t)(depth + 1);
            t->tok[t->n] = n_ids;
            open[depth] = t->n++;
        }
        t->ids[n_ids++] = items[i].id;
        last = s;
    }
    close_from(t, open, 0, &depth);
    t->tok[t->n] = n_ids;
    return true;
}

static enum qn_status make_tries(struct gram_vocab *v, struct qn_err *err)
{
    struct item *items = malloc(((size_t)v->n_vocab + 1) * sizeof *items);
    bool ok = items != NULL;
    size_t n = 0, k = 0;
    for (int32_t i = 0; ok && i < v->n_vocab; i++)
        if (bytes_of(v, i).n)
            items[n++] = (struct item){head_of(bytes_of(v, i)), i};
    if (ok) {
        qsort_r(items, n, sizeof *items, by_text, v);
        ok = trie_fill(&v->all, v, items, n);
    }
    for (size_t i = 0; ok && i < n; i++)
        if (!(v->plain_all[items[i].id >> 6] >> (items[i].id & 63) & 1))
            items[k++] = items[i];
    ok = ok && trie_fill(&v->rest, v, items, k);
    free(items);
    if (!ok)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for the trie of %d tokens", v->n_vocab);
    return QN_OK;
}

static void trie_free(struct trie *t)
{
    free(t->byte);
    free(t->depth);
    free(t->skip);
    free(t->tok);
    free(t->ids);
}

/* ---- life ------------------------------------------------------------------------------------ */

enum qn_status gram_vocab_create(const struct gram_token *tokens, int32_t n_vocab,
                                 struct gram_vocab **out, struct qn_err *err)
{
    *out = NULL;
    if (n_vocab < 1 || n_vocab > (1 << 24))
        QN_FAIL(err, QN_BAD_INPUT, WHERE, "%d tokens; expected 1 to %d", n_vocab, 1 << 24);
    struct gram_vocab *v = calloc(1, sizeof *v);
    if (!v)
        QN_FAIL(err, QN_NO_MEMORY, WHERE, "no memory for a vocabulary");
    atomic_init(&v->refs, 1);
    v->n_vocab = n_vocab;
    v->n_words = (n_vocab + 63) / 64;
    v->plain = calloc((size_t)PLAIN_MAX * (size_t)v->n_words, sizeof *v->plain);
    v->plain_all = calloc((size_t)v->n_words, sizeof *v->plain_all);
    enum qn_status st = QN_OK;
    if (!v->plain || !v->plain_all)
        st = err_set(err, QN_NO_MEMORY, WHERE, "no memory for %d tokens", n_vocab);
    if (st == QN_OK)
        st = copy_tokens(v, tokens, err);
    if (st == QN_OK) {
        mark_plain(v);
        st = make_tries(v, err);
    }
    if (st != QN_OK) {
        gram_vocab_unref(v);
        return st;
    }
    *out = v;
    return QN_OK;
}

struct gram_vocab *gram_vocab_ref(struct gram_vocab *v)
{
    atomic_fetch_add(&v->refs, 1);
    return v;
}

void gram_vocab_unref(struct gram_vocab *v)
{
    if (!v || atomic_fetch_sub(&v->refs, 1) != 1)
        return;
    trie_free(&v->all);
    trie_free(&v->rest);
    free(v->plain);
    free(v->plain_all);
    free(v->text);
    free(v->begin);
    free(v);
}

int32_t gram_vocab_size(const struct gram_vocab *v)
{
    return v->n_vocab;
}
