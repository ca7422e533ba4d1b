/*
 * store_int.h - what the files of store/ share. Everything in struct store below `mu` is under it;
 * files are only touched without it. Records in the index are never moved.
 */
#ifndef STORE_STORE_INT_H
#define STORE_STORE_INT_H

#include <pthread.h>

#include "store/store.h"

/* A record that is on the disk, or waits to be written. */
struct entry {
    struct record_name name, model;
    struct entry *parent, *child, *next, **link; /* link: what points at it among its siblings */
    int32_t from, end;
    int64_t bytes;   /* of its file */
    int64_t used_ns; /* store_now_ns */
    int32_t pins;    /* readers */
    bool stored;
    bool held; /* scratch of evict_room */
};

struct recs {
    struct entry **slots; /* open addressing; n_slot is a power of two */
    size_t n_slot, n;
};

struct entry *recs_find(const struct recs *ix, const struct record_name *name);
bool recs_add(struct recs *ix, struct entry *e); /* false: no memory */
void recs_remove(struct recs *ix, const struct entry *e);
void recs_free(struct recs *ix); /* entries too */

void entry_adopt(struct entry *parent, struct entry *e); /* NULL: a root, in no list */
void entry_leave(struct entry *e);

/* A record that waits. */
struct item {
    struct item *next;
    struct entry *e;
    struct record_id id; /* tokens and note are its own */
    struct iovec *parts;
    int32_t n_part;
    int64_t payload;
    void *owner;
    struct record_name name;
    bool durable, no_room;
};
void item_free(struct item *it);

struct store {
    char *dir;
    int lock_fd;
    struct record_name models[STORE_MODELS]; /* whose records are served */
    char *abouts[STORE_MODELS];
    int32_t n_model;
    int64_t start_ns, start_us; /* wall clock and monotonic clock when it opened */
    int64_t queue_max;
    pthread_t thread;
    bool running;

    pthread_mutex_t mu;
    pthread_cond_t work, idle; /* something to write; nothing left */
    struct recs index;
    struct item *queue, **queue_end;
    struct item *done, **done_end;
    struct item *writing;
    int32_t waiters; /* in store_wait: full speed */
    bool closing;
    int64_t checks_wanted, checks_done; /* looks at the folder */
    int64_t pace;                       /* bytes a second; 0 = free */
    int64_t rest_us;                    /* monotonic: until then nothing is written */
    struct store_stats stats;
};

/* store.c */
void folder_path(struct buf *out, const char *dir, const struct record_name *model);
void record_path(struct buf *out, const char *dir, const struct record_name *model,
                 const struct record_name *name);
/* The wall clock of the start, going on evenly: whoever sets the clock changes nobody's age. */
int64_t store_now_ns(const struct store *st);
/* The folder of the store's model i, with the line about it. */
enum qn_status folder_make(const struct store *st, int32_t i, struct qn_err *err);
bool serves(const struct store *st, const struct record_name *model);

/* store_evict.c: all with the lock held; files are unlinked by evict_files without it. */
struct victims {
    struct entry *first; /* chained through next */
};
/* Room for `bytes` more by removing what was last used before used_ns, oldest first and nothing
 * before what continues it; false: cannot be, and everything stays. */
bool evict_room(struct store *st, int64_t bytes, int64_t used_ns, struct victims *out);
/* An entry and all that continues it leave the index. */
void evict_tree(struct store *st, struct entry *e, struct victims *out);
void evict_files(struct store *st, struct victims *v);

/* store_scan.c */
enum qn_status scan_open(struct store *st, store_each *each, void *arg, struct qn_err *err);
/* Tells of the last model's records, which scan_open has put into the index. */
enum qn_status scan_join(struct store *st, store_each *each, void *arg, struct qn_err *err);

/* store_read.c: reads a file's header into *out; *r leads into it. Closes nothing. */
enum qn_status header_read(int fd, const char *path, struct buf *out, struct record *r,
                           struct qn_err *err);
/* Reads and checks parts; parts NULL: all, into scratch. */
enum qn_status payload_read(int fd, const char *path, const struct record *r,
                            const struct iovec *parts, struct qn_err *err);

/* store_check.c, the writing thread: what others do to the folder. check_run with the lock held,
 * which it gives away meanwhile. */
void check_run(struct store *st);
/* Whether the folder is still this process's: a lock that was removed is taken again. QN_BUSY:
 * another one has it now. */
enum qn_status check_lock(struct store *st, struct qn_err *err);

/* store_write.c */
void *writer_main(void *arg);

#endif
