/*
 * fuzz_tok_encode.c - any bytes as text for several pipelines: ids stay in range, decoding gives
 * valid UTF-8, and the streamed text is the whole. The first byte picks the pipeline and the flags.
 */
#include <stdlib.h>

#include "base/err.h"
#include "base/utf8.h"
#include "tok/tok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define VOCAB                                                                                      \
    "\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"      \
    "{\"id\":9,\"content\":\"aa\",\"lstrip\":true,\"rstrip\":true,\"single_word\":true}],"         \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<u>\",\"vocab\":{\"<s>\":0,\"<u>\":1,\"a\":2,"    \
    "\"b\":3,\"\u0120\":4,\"\u2581\":5,\"ab\":6,\"\u0120a\":7,\"\u2581a\":8},\"merges\":[\"a b\"," \
    "\"\u0120 a\",\"\u2581 a\"]}"

static const char *const pipelines[] = {
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\"},\"decoder\":{\"type\":\"ByteLevel\"}," VOCAB "}",
    "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{"
    "\"Regex\":"
    "\"\\\\s?\\\\p{L}+|.\"},\"behavior\":\"MergedWithNext\",\"invert\":false}," VOCAB "}",
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},{\"type\":"
    "\"Lowercase\"},{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true},{\"type\":"
    "\"Replace\",\"pattern\":{\"Regex\":\"b*\"},\"content\":\"a\"}]},\"pre_tokenizer\":{\"type\":"
    "\"Metaspace\",\"replacement\":\"\u2581\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{"
    "\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\"a\","
    "\"start\":"
    "2,\"stop\":3}]}," VOCAB "}",
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\","
    "\"behavior\":"
    "\"Contiguous\"},{\"type\":\"Digits\"},{\"type\":\"Whitespace\"}]},\"decoder\":{\"type\":"
    "\"Metaspace\",\"replacement\":\"\u2581\"}," VOCAB "}",
};

enum { N = sizeof pipelines / sizeof *pipelines };

static void check(const struct tok *t, struct str text, unsigned flags)
{
    struct qn_err err;
    struct ids ids = {0};
    struct buf whole = BUF_INIT, joined = BUF_INIT;
    if (tok_encode(t, text, flags, &ids, &err) != QN_OK)
        return;
    struct detok *d = detok_create(t, flags & 4);
    QN_ASSERT(d);
    for (size_t i = 0; i < ids.n; i++) {
        QN_ASSERT(ids.v[i] >= 0 && ids.v[i] < tok_size(t));
        detok_push(d, ids.v[i], &joined);
    }
    detok_end(d, &joined);
    tok_decode(t, ids.v, ids.n, flags & 4, &whole);
    QN_ASSERT(str_eq(buf_str(&whole), buf_str(&joined)));
    QN_ASSERT(utf8_valid(buf_str(&whole)));
    detok_free(d);
    buf_free(&whole);
    buf_free(&joined);
    ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct tok *all[N]; /* made once: the fuzzer has one thread */
    if (n == 0 || n > 1 << 16)
        return 0;
    int k = data[0] % N;
    struct qn_err err;
    if (!all[k])
        QN_ASSERT(tok_from_json(str_of(pipelines[k]), (struct str){NULL, 0}, &all[k], &err) ==
                  QN_OK);
    check(all[k], (struct str){(const char *)data + 1, n - 1}, data[0] >> 5);
    return 0;
}
