/*
 * store.h - a folder of records (record.h) that survives its process: put them, find them by name,
 * read their parts. Writing happens behind, on a thread of the store's own; nothing half-written is
 * ever seen under a record's name, and what is in the folder is believed only after its checks.
 *
 * Records form a tree: one continues another. A record is put only when what it continues is there
 * or waits to be; it is removed, by age, only when nothing continues it. One process at a time.
 *
 * Any thread, except where a function says otherwise. A fault of the disk or of a file is a warning
 * in the log and a miss, never an error of the caller's.
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "store/record.h"

struct store;

struct store_params {
    const char *dir;          /* made when it does not exist */
    struct record_name model; /* records of others are kept, counted and aged, not served */
    struct str about;         /* a line about the model for people, kept beside its records */
    int64_t max_bytes;        /* of all records in dir; 0 = no bound */
    int64_t queue_bytes;      /* most payload that may wait to be written; 0 = 256 MiB */
};

/* A sound record of the model that the folder holds; parents come before what continues them. */
typedef void store_each(void *arg, const struct record *r);

/* Takes the folder for this process, sweeps what a crash has left, and tells `each` what is there.
 * QN_BUSY when another process has it, QN_IO where it cannot be written. */
enum qn_status store_open(const struct store_params *p, store_each *each, void *arg,
                          struct store **out, struct qn_err *err);
/* Serves the records of one model more beside the first; `about` and `each` as in store_open. Kinds
 * of memory that go together share the folder, its bound and its thread. Before the first put; at
 * most STORE_MODELS. */
enum { STORE_MODELS = 4 };
enum qn_status store_join(struct store *st, const struct record_name *model, struct str about,
                          store_each *each, void *arg, struct qn_err *err);
/* Ends the thread after the piece it is writing; what is not durable then ends as failed and can be
 * reaped. Nothing can be put from here on. */
void store_stop(struct store *st);
/* store_stop, and the end. Memory of records that were put is free to go. NULL is fine. */
void store_close(struct store *st);

/* ---- writing -------------------------------------------------------------------------------- */

struct store_item {
    struct record_id id; /* copied; its model is one of the store's, none = the first */
    /* The payload, a part each; the memory stays as it is until store_reap gives `owner` back. */
    const struct iovec *parts;
    int32_t n_part;
    void *owner;
    bool now;        /* also while the store rests after a failure */
    int64_t idle_us; /* nobody used it for so long: it takes the place of nothing newer */
};
enum store_answer {
    STORE_QUEUED,  /* comes back through store_reap */
    STORE_HAVE,    /* it is there, or waits already */
    STORE_FULL,    /* too much waits: later */
    STORE_LARGE,   /* it is larger than the folder may be: never */
    STORE_RESTING, /* the last write failed; tried again after half a minute */
    STORE_ORPHAN,  /* what it continues is not there */
};
/* *name: the record's, whatever the answer. Does not wait for the disk. */
enum store_answer store_put(struct store *st, const struct store_item *item,
                            struct record_name *name);

struct store_done {
    void *owner;
    struct record_name name;
    bool durable; /* synced, under its name, and so is all that it continues */
    bool no_room; /* not durable, since everything else in the folder is newer or goes before it, or
                     what it continues had no room: trying again at once would bring nothing */
};
/* Items whose writing has ended; returns how many. */
int32_t store_reap(struct store *st, struct store_done *out, int32_t max);
/* Waits until nothing waits to be written, at full speed. False: not within timeout_ms. */
bool store_wait(struct store *st, int timeout_ms);
/* Asks the writing thread for a look at the folder before it writes on: records whose files others
 * have removed or cut are forgotten, with what continues them, and count as damaged. */
void store_check(struct store *st);
/* Whether every look that was asked for has ended. */
bool store_checked(struct store *st);
/* At most so many bytes a second from here on (work that must not be disturbed goes on beside);
 * 0 = as fast as it goes. */
void store_pace(struct store *st, int64_t bytes_per_s);

/* ---- reading -------------------------------------------------------------------------------- */

/* Whether it is on the disk, as far as is known without reading. */
bool store_has(struct store *st, const struct record_name *name);
/* Reads parts into memory: parts[i] of the record's n_part, those with iov_base NULL are left out.
 * QN_NOT_FOUND for a miss of any kind (a damaged record goes, with what continues it, and there is
 * a warning): the memory then holds anything. QN_OK means that every byte is what was put. */
enum qn_status store_read(struct store *st, const struct record_name *name,
                          const struct iovec *parts, int32_t n_part, struct qn_err *err);
/* Asks the system to fetch a record's bytes ahead of store_read. */
void store_prefetch(struct store *st, const struct record_name *name);

/* ---- amounts -------------------------------------------------------------------------------- */

struct store_stats {
    int64_t records, bytes, max_bytes; /* on the disk, of all models */
    int64_t queued, queued_bytes;      /* waiting, the one being written included */
    int64_t written, written_bytes;    /* since the start, as all below */
    int64_t read, read_bytes;
    int64_t failed;  /* writes that ended without a record */
    int64_t damaged; /* records that did not pass a check, also at the start */
    int64_t evicted;
    char error[240]; /* the last failure of a write; "" = none since one went well */
};
void store_stats(struct store *st, struct store_stats *out);

/* ---- a folder without a store: for the command line ------------------------------------------ */

/* Something in the folder. */
struct store_find {
    const char *path;
    struct record_name name, model, parent; /* as far as they are known */
    int32_t from, n_token;
    int64_t bytes, used_unix; /* size; when it was last read or written */
    enum qn_status status;    /* QN_OK: a record whose header is sound; QN_UNSUPPORTED: another
                                 format's; QN_NOT_FOUND: not ours at all; otherwise damaged */
    bool left_over;           /* half-written, of a process that has ended or is writing now */
    struct qn_err err;
};
typedef void store_found(void *arg, const struct store_find *f);
/* Tells `found` of every file, in order of names; whole: payloads are read and checked too.
 * Changes nothing, needs no lock. */
enum qn_status store_survey(const char *dir, bool whole, store_found *found, void *arg,
                            struct qn_err *err);
/* The line about a model that has records in dir. */
enum qn_status store_about(const char *dir, const struct record_name *model, struct buf *out,
                           struct qn_err *err);

/* The folder's lock, as store_open takes it: a descriptor, close it to give the lock back. */
enum qn_status store_lock(const char *dir, int wait_ms, int *fd, struct qn_err *err);

#endif
