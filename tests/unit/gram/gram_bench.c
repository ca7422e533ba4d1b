/*
 * gram_bench.c - what masks cost with a real tokenizer (docs/measurements/grammar.md).
 *
 * usage: gram_bench MODEL_DIR SCHEMA_FILE [TEXT_FILE]
 *
 * Without a text: random walks. With one (an answer that the schema accepts): its tokens in order,
 * once with nothing known (a schema's first request) and then again (the next ones). Prints times
 * per token of mask and accept together, and of compiling and of the vocabulary.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "gram/gram.h"
#include "tok/tok.h"

struct bench {
    struct tok *tok;
    struct gram_vocab *vocab;
    struct gram *g;
    int32_t eos, n_vocab;
};

static int die(const char *what, const struct qn_err *err)
{
    fprintf(stderr, "gram_bench: %s: %s\n", what, err->msg);
    return 2;
}

static bool make_vocab(struct bench *b, struct qn_err *err)
{
    struct buf text = BUF_INIT;
    struct gram_token *t = calloc((size_t)b->n_vocab, sizeof *t);
    size_t at = 0;
    QN_ASSERT(t);
    for (int32_t i = 0; i < b->n_vocab; i++) {
        size_t from = text.n;
        tok_bytes(b->tok, i, &text);
        t[i] = (struct gram_token){{NULL, text.n - from}, tok_is_special(b->tok, i)};
    }
    for (int32_t i = 0; i < b->n_vocab; i++) {
        t[i].bytes.p = text.p + at;
        at += t[i].bytes.n;
    }
    bool ok = gram_vocab_create(t, b->n_vocab, &b->vocab, err) == QN_OK;
    free(t);
    buf_free(&text);
    return ok;
}

struct times {
    int64_t us, worst_us;
    int32_t tokens;
};

/* The next token: the text's, or any that the mask has. */
static int32_t next_of(const struct bench *b, const uint64_t *bits, const struct ids *text,
                       int32_t at, uint64_t seed)
{
    if (text->n)
        return at < (int32_t)text->n ? text->v[at] : -1;
    uint64_t from = rng_u64(seed, 1, (uint64_t)at) % (uint64_t)b->n_vocab;
    for (int32_t k = 0; k < b->n_vocab; k++) {
        int32_t id = (int32_t)((from + (uint64_t)k) % (uint64_t)b->n_vocab);
        if (id != b->eos && (bits[id / 64] >> (id % 64) & 1))
            return id;
    }
    return -1;
}

static bool answer(struct bench *b, const struct ids *text, uint64_t seed, struct times *t,
                   struct qn_err *err)
{
    struct gram_run *r = NULL;
    bool ok = gram_run_create(b->g, b->vocab, &b->eos, 1, &r, err) == QN_OK;
    for (int32_t i = 0; ok && i < 400 && !gram_run_must_stop(r); i++) {
        const uint64_t *bits;
        int64_t from = clock_us();
        ok = gram_run_mask(r, &bits, err) == QN_OK;
        int64_t us = clock_us() - from;
        int32_t id = ok ? next_of(b, bits, text, i, seed) : -1;
        if (id < 0)
            break;
        from = clock_us();
        ok = gram_run_accept(r, id, err) == QN_OK;
        us += clock_us() - from;
        t->us += us;
        t->worst_us = us > t->worst_us ? us : t->worst_us;
        t->tokens++;
    }
    gram_run_free(r);
    return ok;
}

static void show(const char *what, const struct times *t)
{
    printf("%-24s %6d tokens  mean %8.1f us  worst %6lld us\n", what, t->tokens,
           t->tokens ? (double)t->us / t->tokens : 0, (long long)t->worst_us);
}

static int run(struct bench *b, const struct json *schema, const struct ids *text)
{
    struct qn_err err = {0};
    struct gram_spec spec = {.kind = GRAM_JSON_SCHEMA, .json = schema};
    struct times cold = {0}, warm = {0};
    int64_t from = clock_us();
    if (!make_vocab(b, &err))
        return die("vocabulary", &err);
    printf("vocabulary of %d tokens  %lld us\n", b->n_vocab, (long long)(clock_us() - from));
    int64_t compile = INT64_MAX;
    for (int i = 0; i < 5; i++) {
        gram_unref(b->g);
        from = clock_us();
        if (gram_compile(&spec, &b->g, NULL, &err) != QN_OK)
            return die("schema", &err);
        int64_t us = clock_us() - from;
        compile = us < compile ? us : compile;
    }
    printf("compile                  %lld us\n", (long long)compile);
    if (!answer(b, text, 1, &cold, &err))
        return die("answer", &err);
    show("first answer", &cold);
    for (uint64_t i = 2; i < 12; i++)
        if (!answer(b, text, text->n ? 1 : i, &warm, &err))
            return die("answer", &err);
    show("ten more", &warm);
    struct gram_stats s;
    gram_stats(b->g, &s);
    printf("nodes %lld  states %lld  masks %lld  memory %lld KiB\n", (long long)s.nodes,
           (long long)s.states, (long long)s.masks, (long long)s.bytes / 1024);
    return 0;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct qn_err err = {0};
    struct buf schema = BUF_INIT, text = BUF_INIT;
    struct json *doc = NULL;
    struct ids ids = {0};
    if (argc < 3) {
        fprintf(stderr, "usage: gram_bench MODEL_DIR SCHEMA_FILE [TEXT_FILE]\n");
        return 2;
    }
    if (tok_open(argv[1], NULL, &b.tok, &err) != QN_OK ||
        file_read(argv[2], 1 << 24, &schema, &err) != QN_OK ||
        json_parse(buf_str(&schema), argv[2], JSON_DEPTH_MAX, &doc, &err) != QN_OK ||
        (argc > 3 && file_read(argv[3], 1 << 24, &text, &err) != QN_OK) ||
        tok_encode(b.tok, buf_str(&text), 0, &ids, &err) != QN_OK)
        return die("input", &err);
    b.n_vocab = tok_size(b.tok);
    b.eos = tok_eos(b.tok);
    int rc = run(&b, doc, &ids);
    gram_unref(b.g);
    gram_vocab_unref(b.vocab);
    ids_free(&ids);
    json_free(doc);
    buf_free(&schema);
    buf_free(&text);
    tok_free(b.tok);
    return rc;
}
