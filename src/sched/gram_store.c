/*
 * gram_store.c - see gram_store.h. A grammar is known by the hash of everything that went into it;
 * the one used longest ago makes way for a new one, and so do others while all together are large.
 * Compiling happens outside the lock.
 */
#include "sched/gram_store.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/hash.h"

#define KEPT       16
#define KEPT_BYTES ((int64_t)96 << 20)

struct kept {
    struct hash128 key;
    struct gram *g; /* NULL = free */
    uint64_t used;
};

struct gram_store {
    const struct tok *tok;
    int32_t n_vocab;
    pthread_mutex_t mu; /* everything below */
    struct gram_vocab *vocab;
    struct kept kept[KEPT];
    uint64_t clock;
};

struct gram_store *gram_store_create(const struct tok *tok, int32_t n_vocab)
{
    struct gram_store *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->tok = tok;
    s->n_vocab = n_vocab;
    pthread_mutex_init(&s->mu, NULL);
    return s;
}

void gram_store_free(struct gram_store *s)
{
    if (!s)
        return;
    for (int i = 0; i < KEPT; i++)
        gram_unref(s->kept[i].g);
    gram_vocab_unref(s->vocab);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

static enum qn_status make_vocab(const struct gram_store *s, struct gram_vocab **out,
                                 struct qn_err *err)
{
    int32_t known = tok_size(s->tok) < s->n_vocab ? tok_size(s->tok) : s->n_vocab;
    struct gram_token *t = calloc((size_t)s->n_vocab, sizeof *t);
    struct buf text = BUF_INIT;
    size_t at = 0;
    for (int32_t i = 0; t && i < known; i++) {
        size_t from = text.n;
        tok_bytes(s->tok, i, &text);
        t[i].bytes.n = text.n - from;
        t[i].special = tok_is_special(s->tok, i);
    }
    enum qn_status st = !t || text.failed
                            ? err_set(err, QN_NO_MEMORY, "grammar", "no memory for the vocabulary")
                            : QN_OK;
    for (int32_t i = 0; st == QN_OK && i < known; i++) {
        t[i].bytes.p = text.p + at;
        at += t[i].bytes.n;
    }
    if (st == QN_OK)
        st = gram_vocab_create(t, s->n_vocab, out, err);
    buf_free(&text);
    free(t);
    return st;
}

enum qn_status gram_store_vocab(struct gram_store *s, struct gram_vocab **out, struct qn_err *err)
{
    enum qn_status st = QN_OK;
    pthread_mutex_lock(&s->mu);
    if (!s->vocab)
        st = make_vocab(s, &s->vocab, err);
    *out = st == QN_OK ? gram_vocab_ref(s->vocab) : NULL;
    pthread_mutex_unlock(&s->mu);
    return st;
}

/* ---- grammars -------------------------------------------------------------------------------- */

static void key_str(struct buf *b, struct str s)
{
    buf_addf(b, "%zu:", s.n);
    buf_add_str(b, s);
}

static void key_json(struct buf *b, const struct json *v)
{
    size_t from = b->n;
    json_w_value(b, v);
    buf_addf(b, ":%zu", b->n - from);
}

static void key_style(struct buf *b, const struct gram_style *s)
{
    const struct str all[] = {s->open, s->mid, s->mid_text, s->close, s->gap, s->comma, s->quote};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        key_str(b, all[i]);
    buf_addc(b, s->python ? 'p' : '-');
}

static void key_tags(struct buf *b, const struct gram_tags *t)
{
    buf_addf(b, "tags %d %d %d ", t->n, t->optional, t->several);
    key_str(b, t->trigger);
    key_str(b, t->separator);
    key_str(b, t->open);
    key_str(b, t->close);
    for (int32_t i = 0; i < t->n; i++) {
        buf_addf(b, "%d %d ", (int)t->tags[i].body, t->tags[i].lenient);
        key_str(b, t->tags[i].begin);
        key_str(b, t->tags[i].end);
        key_json(b, t->tags[i].schema);
        if (t->tags[i].style)
            key_style(b, t->tags[i].style);
    }
}

/* Everything that gram_compile looks at. False without memory. */
static bool key_of(const struct gram_spec *spec, struct hash128 *key)
{
    struct buf b = BUF_INIT;
    buf_addf(&b, "%d %d %d ", (int)spec->kind, spec->compact, spec->lenient);
    key_str(&b, spec->text);
    key_str(&b, spec->after);
    key_str(&b, spec->open);
    if (spec->kind == GRAM_JSON_SCHEMA || spec->kind == GRAM_CHOICE)
        key_json(&b, spec->json);
    key_str(&b, spec->lead);
    if (spec->tags)
        key_tags(&b, spec->tags);
    bool ok = !b.failed;
    if (ok)
        *key = hash128(b.p, b.n);
    buf_free(&b);
    return ok;
}

static struct gram *find(struct gram_store *s, struct hash128 key)
{
    struct gram *g = NULL;
    pthread_mutex_lock(&s->mu);
    for (int i = 0; i < KEPT && !g; i++) {
        struct kept *k = &s->kept[i];
        if (k->g && k->key.lo == key.lo && k->key.hi == key.hi) {
            k->used = ++s->clock;
            g = gram_ref(k->g);
        }
    }
    pthread_mutex_unlock(&s->mu);
    return g;
}

/* Under mu: the place used longest ago. */
static struct kept *oldest(struct gram_store *s)
{
    struct kept *best = &s->kept[0];
    for (int i = 1; i < KEPT; i++)
        if (s->kept[i].used < best->used)
            best = &s->kept[i];
    return best;
}

/* Under mu: lets go of the oldest until the rest is small enough. */
static void shrink(struct gram_store *s)
{
    for (;;) {
        int64_t bytes = 0;
        struct kept *old = NULL;
        for (int i = 0; i < KEPT; i++) {
            struct gram_stats st;
            if (!s->kept[i].g)
                continue;
            gram_stats(s->kept[i].g, &st);
            bytes += st.bytes + st.nodes * 24;
            if (!old || s->kept[i].used < old->used)
                old = &s->kept[i];
        }
        if (!old || bytes <= KEPT_BYTES)
            return;
        gram_unref(old->g);
        *old = (struct kept){.used = 0};
    }
}

static void keep(struct gram_store *s, struct hash128 key, struct gram *g)
{
    pthread_mutex_lock(&s->mu);
    shrink(s);
    struct kept *k = oldest(s);
    gram_unref(k->g);
    *k = (struct kept){key, gram_ref(g), ++s->clock};
    pthread_mutex_unlock(&s->mu);
}

enum qn_status gram_store_get(struct gram_store *s, const struct gram_spec *spec, struct gram **out,
                              struct gram_fault *fault, struct qn_err *err)
{
    struct hash128 key;
    *out = NULL;
    if (!key_of(spec, &key))
        QN_FAIL(err, QN_NO_MEMORY, "grammar", "no memory for a grammar");
    *out = find(s, key);
    if (*out)
        return QN_OK;
    QN_TRY(gram_compile(spec, out, fault, err));
    keep(s, key, *out);
    return QN_OK;
}
