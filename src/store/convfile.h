/*
 * convfile.h - one conversation in one file: its tokens and the memory that a model made of them,
 * as records (record.h) that continue each other from token 0, perhaps a second such chain of what
 * guesses for the model, behind a head that says whose they are and has the checksum of each
 * record's header. Payloads are opaque here.
 *
 * Every byte of a file is covered by a checksum or has to be zero. A file is written under another
 * name, synced and renamed, so that a name never shows half of one; two writers of one name do not
 * mix, the last rename wins. Any thread; nothing is remembered between calls.
 */
/*
 * Layout, little endian:
 *
 *     0  "QUERNCV\n"   8 version u32, head_bytes u32
 *    16  model[32]
 *    48  n_record u32, n_token i32, about_bytes u32, n_draft_record u32
 *    64  file_bytes u64
 *    72  version 2: draft[32], n_draft_token i32, 0 u32
 *        a line about the model, a row for each record {bytes u64, sum lo u64, sum hi u64}
 *        XXH3-128 of all that: head_bytes ends here
 *        records, each at a multiple of 4096, with zeros before it: as in a file of its own; the
 *        sum is of its header with the zeros up to its payload; the draft's behind the model's
 *
 * A file without a draft's records is of version 1, which builds from before there were any read.
 */
#ifndef STORE_CONVFILE_H
#define STORE_CONVFILE_H

#include <stdatomic.h>

#include "store/record.h"

enum {
    CONV_VERSION = 1,
    CONV_VERSION_DRAFT = 2, /* with a draft's records */
    CONV_NAME_MAX = 64,
    CONV_ABOUT_MAX = 255,
    CONV_RECORD_MAX = 1 << 14, /* of a chain */
    CONV_TOKEN_MAX = 1 << 24,
    CONV_HEADERS_MAX = 256 << 20, /* bytes of all records' headers together */
};
#define CONV_SUFFIX ".qconv"
/* In a folder of conversations (and of a disk cache), that of a second model that guesses for the
 * first: what it has of a conversation is a file of the same name there. */
#define CONV_DRAFT_DIR "draft"

/* 1 to 64 of A-Z a-z 0-9 . _ -, not beginning with a dot. */
bool conv_name_ok(struct str name);
/* DIR/NAME.qconv; clears out first. */
void conv_path(struct buf *out, const char *dir, const char *name);

struct conv_info {
    struct record_name model, draft; /* draft: none = it has no records */
    char about[CONV_ABOUT_MAX + 1];
    int32_t n_record, n_token;
    int32_t n_draft_record, n_draft_token;
    int64_t bytes, modified_unix;
    char sum[33]; /* of the head, which has the sums of all else: 32 digits */
};

/* ---- writing -------------------------------------------------------------------------------- */

/* A record to be; its parent and model are the chain's affair. */
struct conv_piece {
    struct record_id id;
    const struct iovec *parts;
    int32_t n_part;
};
/* The first begins at token 0, each other one where the one before ends. */
struct conv_chain {
    struct record_name model;
    const struct conv_piece *pieces;
    int32_t n_piece;
};
struct conv_text {
    struct str about;        /* cut at CONV_ABOUT_MAX */
    struct conv_chain model; /* at least one piece */
    struct conv_chain draft; /* no piece: none */
};
/* Writes dir/name.qconv. Once *stop is true it gives up (QN_CANCELLED). After a failure nothing of
 * it is left, except that a folder which cannot be synced keeps the new file. */
enum qn_status conv_write(const char *dir, const char *name, const struct conv_text *t,
                          const atomic_bool *stop, struct conv_info *out, struct qn_err *err);

/* ---- reading -------------------------------------------------------------------------------- */

/* The head alone: what a list shows. QN_NOT_FOUND: no such file; QN_UNSUPPORTED: another version;
 * QN_BAD_INPUT: damaged, or not ours. */
enum qn_status conv_look(const char *path, struct conv_info *out, struct qn_err *err);

struct conv;
/* Reads and checks the head and every record's header; as conv_look otherwise. */
enum qn_status conv_open(const char *path, struct conv **out, struct qn_err *err);
void conv_close(struct conv *c); /* NULL is fine */
const struct conv_info *conv_info(const struct conv *c);
/* Of n_record of the model, and then n_draft_record. */
const struct record *conv_record(const struct conv *c, int32_t i);
/* Reads record i's payload into parts [n_part of it], which have the sizes that the record says;
 * NULL: only checks it. QN_OK means that every byte is what was written. */
enum qn_status conv_read(const struct conv *c, int32_t i, const struct iovec *parts,
                         struct qn_err *err);

/* ---- a folder ------------------------------------------------------------------------------- */

/* Makes it, for the owner alone, when it is not there; checks that files can be made in it; removes
 * what writers that have died left half-written. */
enum qn_status conv_folder(const char *dir, struct qn_err *err);

struct conv_found {
    const char *name; /* without the suffix */
    const char *path;
    enum qn_status status; /* of conv_look, or of reading all of it */
    struct conv_info info;
    struct qn_err err;
};
/* Tells of each conversation file, in order of names; whole: reads every byte. */
enum qn_status conv_each(const char *dir, bool whole,
                         void (*found)(void *arg, const struct conv_found *f), void *arg,
                         struct qn_err *err);
/* Reads every byte of one file. */
enum qn_status conv_verify(const char *path, struct conv_info *out, struct qn_err *err);
/* QN_NOT_FOUND when there is none of that name. */
enum qn_status conv_remove(const char *dir, const char *name, struct qn_err *err);
/* What a second model has of it, if there is any. */
void conv_remove_guesses(const char *dir, const char *name);

#endif
