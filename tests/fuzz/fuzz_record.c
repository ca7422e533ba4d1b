/*
 * fuzz_record.c - any bytes as a record of the disk cache: refused with a reason, or every token
 * and part can be read and writing it again gives the same header. The first input byte says
 * whether the checksum and the name are put right, so that the checks behind them are reached.
 */
#include <endian.h>
#include <stdlib.h>

#include "store/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void use(const struct record *r, const uint8_t *p)
{
    int32_t *tokens = malloc(((size_t)r->id.n_token + 1) * sizeof *tokens);
    struct record_sum *parts = malloc(((size_t)r->n_part + 1) * sizeof *parts);
    struct buf again = BUF_INIT;
    struct qn_err err;
    QN_ASSERT(tokens && parts);
    record_tokens(r, tokens);
    for (uint32_t i = 0; i < r->n_part; i++)
        parts[i] = record_part(r, i);
    struct record_id id = r->id;
    id.tokens = tokens;
    QN_ASSERT(record_write(&id, &r->name, parts, r->n_part, &again, &err) == QN_OK);
    QN_ASSERT(memcmp(again.p, p, RECORD_HEAD + (size_t)id.n_token * 4 + id.note.n) == 0);
    buf_free(&again);
    free(tokens);
    free(parts);
}

/* Puts the name of the contents in its place. */
static void name_right(uint8_t *p)
{
    uint32_t v[4]; /* from, tokens, parts, bytes of the note */
    struct record_id id = {0};
    struct record_name name;
    memcpy(v, p + 112, sizeof v);
    int32_t *tokens = malloc(((size_t)le32toh(v[1]) + 1) * sizeof *tokens);
    QN_ASSERT(tokens);
    for (size_t i = 0; i < le32toh(v[1]); i++) {
        uint32_t t;
        memcpy(&t, p + RECORD_HEAD + 4 * i, 4);
        tokens[i] = (int32_t)le32toh(t);
    }
    id.from = (int32_t)le32toh(v[0]);
    id.n_token = (int32_t)le32toh(v[1]);
    id.tokens = tokens;
    id.note = (struct str){(char *)p + RECORD_HEAD + 4 * (size_t)id.n_token, le32toh(v[3])};
    memcpy(id.model.b, p + 48, sizeof id.model.b);
    memcpy(id.parent.b, p + 80, sizeof id.parent.b);
    QN_ASSERT(record_name_of(&id, &name));
    memcpy(p + 16, name.b, sizeof name.b);
    free(tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n)
{
    if (!n)
        return 0;
    bool repair = in[0] & 1;
    struct record r;
    struct qn_err err = {0};
    uint64_t header, size = n - 1;
    uint8_t *p = malloc(n);
    QN_ASSERT(p);
    memcpy(p, in + 1, n - 1);
    if (record_measure(p, n - 1, &header, &err) == QN_OK && header <= n - 1 && repair) {
        uint64_t off, bytes;
        name_right(p);
        struct hash128 sum = hash128(p, header - 16);
        sum.lo = htole64(sum.lo);
        sum.hi = htole64(sum.hi);
        memcpy(p + header - 16, &sum, 16);
        memcpy(&off, p + 128, 8);
        memcpy(&bytes, p + 136, 8);
        size = le64toh(off) + le64toh(bytes);
    }
    if (record_read(p, n - 1, size, &r, &err) == QN_OK)
        use(&r, p);
    else
        QN_ASSERT(err.msg[0]);
    free(p);
    return 0;
}
