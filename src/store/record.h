/*
 * record.h - the file format of one stored run of tokens: a header that says what it is, and a
 * payload in parts, opaque here.
 *
 * A record is named by a SHA-256 over everything that says what its payload is: the model, the
 * record it continues, its place, its tokens and the owner's note. The header has a checksum, and
 * so has every part. Nothing in a file is believed before its checksum, its length and its name
 * agree. Pure functions, no files, any thread.
 */
/*
 * Layout, little endian:
 *
 *     0  "QUERNKV\n"   8 version u32, header_bytes u32
 *    16  name[32]     48 model[32]      80 parent[32]
 *   112  from i32, n_token i32, n_part u32, note_bytes u32
 *   128  payload_off u64, payload_bytes u64
 *   144  n_token i32 tokens, the note, n_part {bytes u64, sum lo u64, sum hi u64}
 *        XXH3-128 of all that: header_bytes ends here; zeros up to payload_off
 */
#ifndef STORE_RECORD_H
#define STORE_RECORD_H

#include <sys/uio.h>

#include "base/buf.h"
#include "base/hash.h"

enum {
    RECORD_VERSION = 1,
    RECORD_HEAD = 144,   /* bytes before the tokens */
    RECORD_ALIGN = 4096, /* of the payload in its file */
    RECORD_HEADER_MAX = 64 << 20,
    RECORD_TOKEN_MAX = 1 << 20, /* a longer run is several records */
    RECORD_PART_MAX = 1 << 16,
    RECORD_NOTE_MAX = 4096,
};

struct record_name {
    uint8_t b[32]; /* all zero: none */
};

/* What a record is, apart from its payload's bytes. */
struct record_id {
    struct record_name model;  /* which model's, in which format: see the owner */
    struct record_name parent; /* the record it continues; none = it begins at token 0 */
    int32_t from;              /* its first token's place in the line; within its parent's reach */
    int32_t n_token;
    const int32_t *tokens;
    struct str note; /* the owner's, at most RECORD_NOTE_MAX bytes */
};

/* A record's header as read. Pointers lead into the bytes it was read from; `tokens` of id is not
 * set (record_tokens). */
struct record {
    struct record_id id;
    struct record_name name;
    const uint8_t *token_bytes, *parts;
    uint32_t n_part;
    uint64_t payload_off, payload_bytes;
};

bool record_name_eq(const struct record_name *a, const struct record_name *b);
bool record_name_none(const struct record_name *n);
/* 64 digits and a NUL; and back: false when it is anything else. */
void record_name_hex(const struct record_name *n, char out[65]);
bool record_name_parse(struct str hex, struct record_name *out);

/* The name of a record. False: no memory. */
bool record_name_of(const struct record_id *id, struct record_name *out);

struct record_sum {
    uint64_t bytes;
    struct hash128 sum;
};
/* The header, with the bytes up to payload_off. Sizes must be within the limits above. */
enum qn_status record_write(const struct record_id *id, const struct record_name *name,
                            const struct record_sum *parts, uint32_t n_part, struct buf *out,
                            struct qn_err *err);
/* Where the payload of a record begins. */
uint64_t record_payload_off(const struct record_id *id, uint32_t n_part);

/* How long the whole header is, from its first RECORD_HEAD bytes: for reading it. QN_UNSUPPORTED
 * for another version, QN_BAD_INPUT for what is no record. */
enum qn_status record_measure(const uint8_t *p, size_t n, uint64_t *header_bytes,
                              struct qn_err *err);
/* Reads a header of n bytes in a file of file_bytes: checks lengths, checksum and name. */
enum qn_status record_read(const uint8_t *p, size_t n, uint64_t file_bytes, struct record *out,
                           struct qn_err *err);
void record_tokens(const struct record *r, int32_t *out); /* n_token of them */
struct record_sum record_part(const struct record *r, uint32_t i);

#endif
