/*
 * pool.h - a fixed team of threads for regions of microseconds, made to stay fast on a busy
 * machine.
 *
 * The calling thread leads; workers help. A region is cut into chunks. Each thread walks its own
 * share in order, then takes unclaimed chunks of the others from their far ends. If a chunk that a
 * worker claimed is still unfinished when the leader has nothing else to do, the leader computes it
 * again: the system may have taken the worker's processor away, and waiting for it would cost a
 * whole scheduler slice. A worker therefore writes to private scratch and copies its result out
 * only after winning the chunk's state word by compare-and-swap; a late worker loses and drops its
 * work.
 */
/*
 * Contract for a chunk function:
 *  - a pure function of its inputs: computing a chunk twice gives the same bits;
 *  - it writes only through the regions it is handed (never in place over its inputs);
 *  - it may run late, on inputs that are being overwritten: it must stay memory-safe whatever the
 *    values are. Everything reachable from args lives until pool_quiesce() has returned.
 */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/err.h"

struct pool;

enum { POOL_REGION_MAX = 4, POOL_ARGS_MAX = 512, POOL_CHUNK_MAX = 4096, POOL_THREAD_MAX = 256 };

/* A rectangle of output bytes. */
struct pool_region {
    char *p;
    int32_t rows;
    size_t row_bytes, stride;
};

struct pool_job {
    /* Fills r[] with the real destinations of a chunk; returns how many, 1..POOL_REGION_MAX. */
    int (*regions)(const void *args, int chunk, struct pool_region *r);
    /* Computes a chunk into r[] (same rectangles, maybe moved into scratch with another stride).
     * work: the thread's own work memory, 64-byte aligned. */
    void (*run)(const void *args, int chunk, const struct pool_region *r, void *work);
    const void *args; /* copied: at most POOL_ARGS_MAX bytes */
    size_t args_bytes;
    int n_chunk; /* 1..POOL_CHUNK_MAX */
};

/* n_thread includes the leader. out_bytes: the largest output of one chunk (each row rounded up to
 * 64); work_bytes: work memory a chunk function gets. */
enum qn_status pool_create(int n_thread, size_t out_bytes, size_t work_bytes, struct pool **out,
                           struct qn_err *err);
void pool_free(struct pool *p); /* NULL is fine */
int pool_n_thread(const struct pool *p);
/* Runs a region; returns when every chunk's output is in place. Leader thread only. */
void pool_run(struct pool *p, const struct pool_job *job);
/* Waits until no worker is inside a chunk function. Before freeing anything they may read. */
void pool_quiesce(struct pool *p);

#endif
