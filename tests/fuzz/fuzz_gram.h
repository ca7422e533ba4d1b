/*
 * fuzz_gram.h - what the fuzz targets of gram share: compile, then a short walk of tokens that the
 * masks allow, with what must hold after every step. The vocabulary is all bytes, some pairs and
 * EOS; it is made once.
 */
#ifndef TESTS_FUZZ_GRAM_H
#define TESTS_FUZZ_GRAM_H

#include "base/rng.h"
#include "gram/gram.h"

#define FUZZ_VOCAB 288
#define FUZZ_EOS   (FUZZ_VOCAB - 1)
#define FUZZ_STEPS 40

static inline struct gram_vocab *fuzz_vocab(void)
{
    static char store[FUZZ_VOCAB][4];
    static const char pairs[] = "\": , {\"\"}[1],abaa0.\\n\\u";
    struct gram_token t[FUZZ_VOCAB] = {{{NULL, 0}, false}};
    struct gram_vocab *v = NULL;
    for (int i = 0; i < FUZZ_EOS; i++) {
        size_t at = (size_t)(i < 256 ? 0 : (i - 256) % (int)(sizeof pairs - 2));
        store[i][0] = i < 256 ? (char)i : pairs[at];
        store[i][1] = i < 256 ? 0 : pairs[at + 1];
        t[i].bytes = (struct str){store[i], i < 256 ? 1 : 2};
    }
    QN_ASSERT(gram_vocab_create(t, FUZZ_VOCAB, &v, NULL) == QN_OK);
    return v;
}

static inline int32_t fuzz_pick(const uint64_t *bits, uint64_t seed, uint64_t step)
{
    uint64_t from = rng_u64(seed, 1, step) % FUZZ_EOS;
    for (uint64_t k = 0; k < FUZZ_EOS; k++) {
        uint64_t id = (from + k) % FUZZ_EOS;
        if (bits[id / 64] >> (id % 64) & 1)
            return (int32_t)id;
    }
    return -1;
}

static inline void fuzz_walk(struct gram *g, struct gram_vocab *v, uint64_t seed)
{
    const int32_t eos = FUZZ_EOS;
    struct gram_run *r = NULL;
    QN_ASSERT(gram_run_create(g, v, &eos, 1, &r, NULL) == QN_OK);
    for (uint64_t step = 0; step < FUZZ_STEPS && !gram_run_must_stop(r); step++) {
        const uint64_t *bits;
        struct qn_err err = {0};
        enum qn_status st = gram_run_mask(r, &bits, &err);
        QN_ASSERT(st == QN_OK || st == QN_UNSUPPORTED);
        if (st != QN_OK)
            break;
        bool end = bits[eos / 64] >> (eos % 64) & 1;
        QN_ASSERT(end == gram_run_complete(r));
        int32_t id = fuzz_pick(bits, seed, step);
        QN_ASSERT(id >= 0 || end);
        int32_t other = (int32_t)(rng_u64(seed, 2, step) % FUZZ_EOS);
        bool allowed = bits[other / 64] >> (other % 64) & 1;
        st = gram_run_accept(r, other, NULL);
        QN_ASSERT(st == QN_UNSUPPORTED || allowed == (st == QN_OK));
        if (st == QN_OK)
            QN_ASSERT(gram_run_rollback(r, 1));
        if (id < 0 || gram_run_accept(r, id, NULL) != QN_OK)
            break;
    }
    gram_run_free(r);
}

static inline void fuzz_gram(enum gram_kind kind, struct str text)
{
    static struct gram_vocab *v;
    struct json *doc = NULL;
    struct gram *g = NULL;
    struct gram_fault fault;
    struct qn_err err = {0};
    struct gram_spec spec = {.kind = kind, .text = text, .lenient = text.n % 2 == 1};
    if (!v)
        v = fuzz_vocab();
    if (kind == GRAM_JSON_SCHEMA && json_parse(text, "schema", JSON_DEPTH_MAX, &doc, NULL) != QN_OK)
        return;
    spec.json = doc;
    enum qn_status st = gram_compile(&spec, &g, &fault, &err);
    QN_ASSERT(st == QN_OK || st == QN_BAD_INPUT || st == QN_UNSUPPORTED);
    QN_ASSERT(st == QN_OK || err.msg[0]);
    if (st == QN_OK)
        fuzz_walk(g, v, text.n);
    gram_unref(g);
    json_free(doc);
}

#endif
