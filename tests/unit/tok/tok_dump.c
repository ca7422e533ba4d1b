/*
 * tok_dump.c - a driver for the differential tests: reads length-prefixed records and answers each.
 *   tok_dump DIR [CACHE]
 *   record:  u8 op, u32 flags, u32 n, n bytes      (little endian)
 *     op 'E': text -> ids;   'D': ids -> text (flags bit 0: keep special tokens);
 *     op 'S': as 'D', but through the streaming detokenizer, pieces joined
 *   answer:  u32 n, n bytes (ids as i32, or text);  n = 0xFFFFFFFF: an error, message on stderr
 */
#include <stdio.h>
#include <stdlib.h>

#include "tok/tok.h"

static void answer(const void *p, size_t n)
{
    uint32_t len = (uint32_t)n;
    fwrite(&len, 4, 1, stdout);
    fwrite(p, 1, n, stdout);
}

static void stream(const struct tok *t, const int32_t *ids, size_t n, bool keep, struct buf *out)
{
    struct detok *d = detok_create(t, keep);
    for (size_t i = 0; d && i < n; i++)
        detok_push(d, ids[i], out);
    if (d)
        detok_end(d, out);
    detok_free(d);
}

static bool one(const struct tok *t, uint8_t op, uint32_t flags, struct str in)
{
    struct qn_err err;
    struct buf text = BUF_INIT;
    struct ids ids = {0};
    if (op == 'E') {
        if (tok_encode(t, in, flags, &ids, &err) == QN_OK) {
            answer(ids.v, ids.n * sizeof *ids.v);
        } else {
            uint32_t bad = UINT32_MAX;
            fprintf(stderr, "%s\n", err.msg);
            fwrite(&bad, 4, 1, stdout);
        }
    } else if (op == 'D') {
        tok_decode(t, (const int32_t *)in.p, in.n / 4, flags & 1, &text);
        answer(text.p, text.n);
    } else if (op == 'S') {
        stream(t, (const int32_t *)in.p, in.n / 4, flags & 1, &text);
        answer(text.p, text.n);
    }
    buf_free(&text);
    ids_free(&ids);
    return op == 'E' || op == 'D' || op == 'S';
}

int main(int argc, char **argv)
{
    struct tok *t = NULL;
    struct qn_err err;
    struct {
        uint8_t op;
        uint32_t flags, n;
    } __attribute__((packed)) head;
    if (argc < 2)
        return 2;
    if (tok_open(argv[1], argc > 2 ? argv[2] : NULL, &t, &err) != QN_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.msg);
        return 1;
    }
    while (fread(&head, sizeof head, 1, stdin) == 1) {
        char *p = malloc(head.n + 1);
        if (!p || fread(p, 1, head.n, stdin) != head.n)
            return 3;
        if (!one(t, head.op, head.flags, (struct str){p, head.n}))
            return 4;
        fflush(stdout);
        free(p);
    }
    tok_free(t);
    return 0;
}
