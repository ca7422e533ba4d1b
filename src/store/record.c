/* record.c - see record.h. Bytes are taken apart one by one: a header may lie at any address. */
#include "store/record.h"

#include "base/le.h"

static const char magic[8] = {'Q', 'U', 'E', 'R', 'N', 'K', 'V', '\n'};

enum { PART_BYTES = 24, SUM_BYTES = 16 };

bool record_name_eq(const struct record_name *a, const struct record_name *b)
{
    return memcmp(a->b, b->b, sizeof a->b) == 0;
}

bool record_name_none(const struct record_name *n)
{
    static const struct record_name none;
    return record_name_eq(n, &none);
}

void record_name_hex(const struct record_name *n, char out[65])
{
    for (size_t i = 0; i < sizeof n->b; i++) {
        out[2 * i] = "0123456789abcdef"[n->b[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[n->b[i] & 15];
    }
    out[64] = 0;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool record_name_parse(struct str hex, struct record_name *out)
{
    if (hex.n != 2 * sizeof out->b)
        return false;
    for (size_t i = 0; i < sizeof out->b; i++) {
        int hi = digit(hex.p[2 * i]), lo = digit(hex.p[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        out->b[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static void put_tokens(struct buf *b, const struct record_id *id)
{
    for (int32_t i = 0; i < id->n_token; i++)
        le_add32(b, (uint32_t)id->tokens[i]);
}

static void put_name(struct buf *b, const struct record_name *n)
{
    buf_add(b, n->b, sizeof n->b);
}

/* ---- names ---------------------------------------------------------------------------------- */

static void put_place(struct buf *b, const struct record_id *id)
{
    put_name(b, &id->model);
    put_name(b, &id->parent);
    le_add32(b, (uint32_t)id->from);
    le_add32(b, (uint32_t)id->n_token);
    le_add32(b, (uint32_t)id->note.n);
}

/* From the bytes that are hashed. */
static bool name_of_bytes(const struct buf *b, struct record_name *out)
{
    char hex[65];
    if (b->failed)
        return false;
    sha256(b->p, b->n, hex);
    return record_name_parse((struct str){hex, 64}, out);
}

bool record_name_of(const struct record_id *id, struct record_name *out)
{
    struct buf b = BUF_INIT;
    put_place(&b, id);
    put_tokens(&b, id);
    buf_add_str(&b, id->note);
    bool ok = name_of_bytes(&b, out);
    buf_free(&b);
    return ok;
}

/* ---- writing -------------------------------------------------------------------------------- */

static uint64_t header_bytes_of(uint64_t n_token, uint64_t n_part, uint64_t note_bytes)
{
    return RECORD_HEAD + 4 * n_token + note_bytes + PART_BYTES * n_part + SUM_BYTES;
}

static uint64_t aligned(uint64_t n)
{
    return (n + RECORD_ALIGN - 1) / RECORD_ALIGN * RECORD_ALIGN;
}

uint64_t record_payload_off(const struct record_id *id, uint32_t n_part)
{
    return aligned(header_bytes_of((uint64_t)id->n_token, n_part, id->note.n));
}

enum qn_status record_write(const struct record_id *id, const struct record_name *name,
                            const struct record_sum *parts, uint32_t n_part, struct buf *out,
                            struct qn_err *err)
{
    QN_ASSERT(id->n_token >= 0 && id->n_token <= RECORD_TOKEN_MAX && n_part <= RECORD_PART_MAX &&
              id->note.n <= RECORD_NOTE_MAX && id->from >= 0);
    uint64_t payload = 0, off = record_payload_off(id, n_part);
    for (uint32_t i = 0; i < n_part; i++)
        payload += parts[i].bytes;
    buf_clear(out);
    buf_add(out, magic, sizeof magic);
    le_add32(out, RECORD_VERSION);
    le_add32(out, (uint32_t)header_bytes_of((uint64_t)id->n_token, n_part, id->note.n));
    put_name(out, name);
    put_name(out, &id->model);
    put_name(out, &id->parent);
    le_add32(out, (uint32_t)id->from);
    le_add32(out, (uint32_t)id->n_token);
    le_add32(out, n_part);
    le_add32(out, (uint32_t)id->note.n);
    le_add64(out, off);
    le_add64(out, payload);
    put_tokens(out, id);
    buf_add_str(out, id->note);
    for (uint32_t i = 0; i < n_part; i++) {
        le_add64(out, parts[i].bytes);
        le_add64(out, parts[i].sum.lo);
        le_add64(out, parts[i].sum.hi);
    }
    if (out->failed)
        return buf_ok(out, "a record's header", err);
    struct hash128 sum = hash128(out->p, out->n);
    le_add64(out, sum.lo);
    le_add64(out, sum.hi);
    if (buf_reserve(out, off - out->n)) {
        memset(out->p + out->n, 0, off - out->n);
        out->n = off;
    }
    return buf_ok(out, "a record's header", err);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Lengths as stated, unchecked. */
struct lengths {
    uint32_t header, n_token, n_part, note;
};

static enum qn_status lengths_read(const uint8_t *p, size_t n, struct lengths *l,
                                   struct qn_err *err)
{
    if (n < RECORD_HEAD || memcmp(p, magic, sizeof magic) != 0)
        QN_FAIL(err, QN_BAD_INPUT, "record", "is no record of a cache");
    uint32_t version = le_get32(p + 8);
    if (version != RECORD_VERSION)
        QN_FAIL(err, QN_UNSUPPORTED, "record", "is a record of format %u; this build reads %d",
                version, RECORD_VERSION);
    *l =
        (struct lengths){le_get32(p + 12), le_get32(p + 116), le_get32(p + 120), le_get32(p + 124)};
    if (l->n_token > RECORD_TOKEN_MAX || l->n_part > RECORD_PART_MAX || l->note > RECORD_NOTE_MAX ||
        l->header > RECORD_HEADER_MAX ||
        l->header != header_bytes_of(l->n_token, l->n_part, l->note))
        QN_FAIL(err, QN_BAD_INPUT, "record", "the header's lengths do not agree");
    return QN_OK;
}

enum qn_status record_measure(const uint8_t *p, size_t n, uint64_t *header_bytes,
                              struct qn_err *err)
{
    struct lengths l = {0};
    QN_TRY(lengths_read(p, n, &l, err));
    *header_bytes = l.header;
    return QN_OK;
}

/* The payload that the parts add up to must be what the header says and the file has. */
static enum qn_status check_payload(const struct record *r, uint64_t header, uint64_t file_bytes,
                                    struct qn_err *err)
{
    uint64_t sum = 0, end;
    for (uint32_t i = 0; i < r->n_part; i++)
        if (__builtin_add_overflow(sum, le_get64(r->parts + (size_t)i * PART_BYTES), &sum))
            QN_FAIL(err, QN_BAD_INPUT, "record", "the parts are larger than any file");
    if (sum != r->payload_bytes || r->payload_off != aligned(header) ||
        __builtin_add_overflow(r->payload_off, sum, &end))
        QN_FAIL(err, QN_BAD_INPUT, "record", "the payload's place does not agree with its parts");
    if (end != file_bytes)
        QN_FAIL(err, QN_BAD_INPUT, "record", "has %llu bytes; its header says %llu",
                (unsigned long long)file_bytes, (unsigned long long)end);
    return QN_OK;
}

static enum qn_status check_name(const struct record *r, struct qn_err *err)
{
    struct record_name name;
    struct buf b = BUF_INIT;
    put_place(&b, &r->id);
    buf_add(&b, r->token_bytes, 4 * (size_t)r->id.n_token);
    buf_add_str(&b, r->id.note);
    bool ok = name_of_bytes(&b, &name);
    buf_free(&b);
    if (!ok)
        QN_FAIL(err, QN_NO_MEMORY, "record", "out of memory for a header");
    if (!record_name_eq(&name, &r->name))
        QN_FAIL(err, QN_BAD_INPUT, "record", "the name is not that of the contents");
    return QN_OK;
}

enum qn_status record_read(const uint8_t *p, size_t n, uint64_t file_bytes, struct record *out,
                           struct qn_err *err)
{
    struct lengths l = {0};
    QN_TRY(lengths_read(p, n, &l, err));
    if (n < l.header)
        QN_FAIL(err, QN_BAD_INPUT, "record", "is cut off inside its header");
    size_t body = l.header - SUM_BYTES;
    struct hash128 sum = hash128(p, body);
    if (sum.lo != le_get64(p + body) || sum.hi != le_get64(p + body + 8))
        QN_FAIL(err, QN_BAD_INPUT, "record", "the header's checksum is wrong");
    struct record r = {.id = {.from = (int32_t)le_get32(p + 112), .n_token = (int32_t)l.n_token},
                       .token_bytes = p + RECORD_HEAD,
                       .n_part = l.n_part,
                       .payload_off = le_get64(p + 128),
                       .payload_bytes = le_get64(p + 136)};
    memcpy(r.name.b, p + 16, sizeof r.name.b);
    memcpy(r.id.model.b, p + 48, sizeof r.id.model.b);
    memcpy(r.id.parent.b, p + 80, sizeof r.id.parent.b);
    r.id.note = (struct str){(const char *)r.token_bytes + 4 * (size_t)l.n_token, l.note};
    r.parts = (const uint8_t *)r.id.note.p + l.note;
    if (r.id.from < 0 || r.id.from > INT32_MAX - r.id.n_token)
        QN_FAIL(err, QN_BAD_INPUT, "record", "begins at token %d", r.id.from);
    if (record_name_none(&r.id.parent) && r.id.from)
        QN_FAIL(err, QN_BAD_INPUT, "record", "begins at token %d and continues nothing", r.id.from);
    QN_TRY(check_payload(&r, l.header, file_bytes, err));
    QN_TRY(check_name(&r, err));
    *out = r;
    return QN_OK;
}

void record_tokens(const struct record *r, int32_t *out)
{
    for (int32_t i = 0; i < r->id.n_token; i++)
        out[i] = (int32_t)le_get32(r->token_bytes + 4 * (size_t)i);
}

struct record_sum record_part(const struct record *r, uint32_t i)
{
    QN_ASSERT(i < r->n_part);
    const uint8_t *p = r->parts + (size_t)i * PART_BYTES;
    return (struct record_sum){le_get64(p), {.lo = le_get64(p + 8), .hi = le_get64(p + 16)}};
}
