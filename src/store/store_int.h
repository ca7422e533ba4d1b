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
    int64_t used_ns; /* wall clock */
    int32_t pins;    /* readers */
    bool stored;
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
    bool durable;
};
void item_free(struct item *it);

struct store {
    char *dir;
    int lock_fd;
    struct record_name models[STORE_MODELS]; /* whose records are served */
    int32_t n_model;
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
    int64_t pace;    /* bytes a second; 0 = free */
    int64_t rest_us; /* monotonic: until then nothing is written */
    struct store_stats stats;
};

/* store.c */
void folder_path(struct buf *out, const char *dir, const struct record_name *model);
void record_path(struct buf *out, const char *dir, const struct record_name *model,
                 const struct record_name *name);
int64_t wall_ns(void);
bool serves(const struct store *st, const struct record_name *model);

/* store_evict.c: all with the lock held; files are unlinked by evict_files without it. */
struct victims {
    struct entry *first; /* chained through next */
};
/* Room for `bytes` more by removing leaves, oldest first; false: cannot be. */
bool evict_room(struct store *st, int64_t bytes, struct victims *out);
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

/* store_write.c */
void *writer_main(void *arg);

#endif
