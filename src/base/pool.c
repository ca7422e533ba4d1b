/*
 * pool.c - see pool.h for the scheme.
 *
 * One job slot. Its arguments are guarded by a sequence number (epoch): a worker copies them, then
 * checks that the epoch has not moved. Each chunk has a state word (epoch << 2 | state), so a
 * worker that wakes up in a later epoch fails every compare-and-swap and can neither claim nor
 * commit:
 *
 *   FREE --leader/worker claims--> CLAIMED --owner commits--> COPYING --> DONE
 *                                  CLAIMED --leader recomputes and wins--> DONE
 *
 * The leader never leaves a region while a chunk is COPYING (a short memcpy), so scratch is copied
 * into buffers that still belong to this region.
 */
#include "pool.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "cpu.h"
#include "fault.h"
#include "pool_score.h"

enum chunk_state { FREE, CLAIMED, COPYING, DONE };
enum { SPIN_NS = 100000, HEDGE_MIN_NS = 3000, CACHE_LINE = 64 };

struct slot {
    struct pool_job job; /* job.args is set by the reader, to its own args */
    _Alignas(16) char args[POOL_ARGS_MAX];
};
enum { SLOT_WORDS = sizeof(struct slot) / 8 };
_Static_assert(sizeof(struct slot) % 8 == 0, "copied by words");

struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;                                  /* 1.. */
    char *scratch;                              /* scratch_bytes for outputs, then work_bytes */
    _Alignas(CACHE_LINE) _Atomic uint32_t busy; /* inside a chunk function */
    uint32_t n_late;
};

struct pool {
    int n_thread, n_started;
    size_t scratch_bytes, work_bytes;
    char *leader_work;
    struct pool_score score;
    struct worker *workers; /* [n_thread - 1] */

    _Alignas(CACHE_LINE) _Atomic uint32_t epoch; /* futex word; odd while the slot is written */
    _Atomic uint32_t sleepers;
    _Atomic bool quit;

    _Alignas(CACHE_LINE) _Atomic uint64_t shared[SLOT_WORDS]; /* what workers copy from */
    struct slot slot;                                         /* the leader's own */
    _Alignas(CACHE_LINE) _Atomic uint64_t state[POOL_CHUNK_MAX];
};

static uint64_t word(uint32_t epoch, enum chunk_state s)
{
    return (uint64_t)epoch << 2 | s;
}

static bool state_cas(_Atomic uint64_t *w, uint64_t from, uint64_t to)
{
    return atomic_compare_exchange_strong_explicit(w, &from, to, memory_order_acq_rel,
                                                   memory_order_acquire);
}

static void futex_wait(_Atomic uint32_t *word_, uint32_t seen)
{
    syscall(SYS_futex, word_, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word_)
{
    syscall(SYS_futex, word_, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* First chunk of a thread's own share. */
static int share_begin(int n_chunk, int n_thread, int i)
{
    return (int)((int64_t)n_chunk * i / n_thread);
}

/* Visits chunks in the order thread `self` should try them: its share forwards, then the others'
 * shares backwards. Returns the k-th chunk. */
static int visit(int n_chunk, int n_thread, int self, int k)
{
    int lo = share_begin(n_chunk, n_thread, self);
    int hi = share_begin(n_chunk, n_thread, self + 1);
    if (k < hi - lo)
        return lo + k;
    int back = k - (hi - lo); /* 0.. over all chunks outside [lo,hi), from the far end */
    int c = n_chunk - 1 - back;
    return c >= hi ? c : c - (hi - lo);
}

/* ---- workers -------------------------------------------------------------------------------- */

/* Moves the regions into scratch, rows packed at 64-byte multiples. False when they do not fit: the
 * job's inputs are torn (or the chunk too large), and the leader will do the chunk. */
static bool regions_to_scratch(struct pool_region *r, int n, char *scratch, size_t cap)
{
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        size_t stride = (r[i].row_bytes + 63) & ~(size_t)63, bytes;
        if (r[i].rows < 0 || __builtin_mul_overflow(stride, (size_t)r[i].rows, &bytes) ||
            bytes > cap - used)
            return false;
        r[i].p = scratch + used;
        r[i].stride = stride;
        used += bytes;
    }
    return true;
}

static void regions_copy(const struct pool_region *to, const struct pool_region *from, int n)
{
    for (int i = 0; i < n; i++)
        for (int32_t row = 0; row < to[i].rows; row++)
            memcpy(to[i].p + (size_t)row * to[i].stride, from[i].p + (size_t)row * from[i].stride,
                   to[i].row_bytes);
}

/* For tests: here the system took the processor away, shortly or for many regions. */
static void may_be_late(struct worker *w)
{
    if (fault_point("pool.late"))
        usleep(20u << w->n_late++ % 7);
}

static void worker_chunk(struct worker *w, const struct pool_job *job, uint32_t epoch, int c)
{
    struct pool *p = w->pool;
    if (!state_cas(&p->state[c], word(epoch, FREE), word(epoch, CLAIMED)))
        return;
    struct pool_region real[POOL_REGION_MAX], mine[POOL_REGION_MAX];
    may_be_late(w);
    int n = job->regions(job->args, c, real);
    memcpy(mine, real, sizeof mine);
    if (!regions_to_scratch(mine, n, w->scratch, p->scratch_bytes))
        return;
    job->run(job->args, c, mine, w->scratch + p->scratch_bytes);
    may_be_late(w);
    if (!state_cas(&p->state[c], word(epoch, CLAIMED), word(epoch, COPYING)))
        return; /* the leader did it meanwhile */
    regions_copy(real, mine, n);
    atomic_store_explicit(&p->state[c], word(epoch, DONE), memory_order_release);
}

static void worker_region(struct worker *w, uint32_t epoch)
{
    struct pool *p = w->pool;
    union {
        struct slot slot;
        uint64_t words[SLOT_WORDS];
    } copy;
    for (int i = 0; i < SLOT_WORDS; i++)
        copy.words[i] = atomic_load_explicit(&p->shared[i], memory_order_acquire);
    if (atomic_load_explicit(&p->epoch, memory_order_relaxed) != epoch)
        return; /* torn: the slot is being rewritten */
    struct pool_job *job = &copy.slot.job;
    job->args = copy.slot.args;
    for (int k = 0; k < job->n_chunk; k++)
        worker_chunk(w, job, epoch, visit(job->n_chunk, p->n_thread, w->index, k));
}

static uint32_t worker_wait(struct pool *p, uint32_t seen)
{
    int64_t until = 0;
    for (int spins = 0;; spins++) {
        uint32_t e = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if ((e != seen && !(e & 1)) || atomic_load_explicit(&p->quit, memory_order_relaxed))
            return e;
        cpu_relax();
        if (spins & 63)
            continue;
        int64_t now = clock_ns();
        if (!until)
            until = now + SPIN_NS;
        if (now < until || (e & 1))
            continue;
        atomic_fetch_add(&p->sleepers, 1);
        futex_wait(&p->epoch, seen);
        atomic_fetch_sub(&p->sleepers, 1);
        until = 0;
    }
}

/* Each worker stays on a processor of its own. Left free, a worker that is woken tends to be put on
 * the leader's processor and to take turns with it: on a loaded two-processor machine that made two
 * threads 0.6 times as fast as one, pinned 0.9 to 1. The leader is the caller's thread and stays
 * free to move. */
static void worker_pin(int index)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) <= index)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && index-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    worker_pin(w->index);
    cpu_fp_begin();
    uint32_t seen = 0;
    while (!atomic_load_explicit(&p->quit, memory_order_acquire)) {
        seen = worker_wait(p, seen);
        if (atomic_load_explicit(&p->quit, memory_order_acquire))
            break;
        atomic_store(&w->busy, 1);
        worker_region(w, seen);
        atomic_store_explicit(&w->busy, 0, memory_order_release);
    }
    return NULL;
}

/* ---- leader --------------------------------------------------------------------------------- */

static void post(struct pool *p, const struct pool_job *job)
{
    QN_ASSERT(job->n_chunk >= 1 && job->n_chunk <= POOL_CHUNK_MAX);
    QN_ASSERT(job->args_bytes <= POOL_ARGS_MAX);
    uint32_t e = atomic_load_explicit(&p->epoch, memory_order_relaxed);
    atomic_store_explicit(&p->epoch, e + 1, memory_order_relaxed);
    p->slot.job = *job;
    p->slot.job.args = p->slot.args;
    memcpy(p->slot.args, job->args, job->args_bytes);
    uint64_t words[SLOT_WORDS];
    memcpy(words, &p->slot, sizeof words);
    for (int i = 0; i < SLOT_WORDS; i++)
        atomic_store_explicit(&p->shared[i], words[i], memory_order_release);
    for (int c = 0; c < job->n_chunk; c++)
        atomic_store_explicit(&p->state[c], word(e + 2, FREE), memory_order_relaxed);
    atomic_store_explicit(&p->epoch, e + 2, memory_order_seq_cst);
    if (atomic_load_explicit(&p->sleepers, memory_order_seq_cst))
        futex_wake(&p->epoch);
}

static void leader_compute(struct pool *p, int c)
{
    struct pool_region r[POOL_REGION_MAX];
    p->slot.job.regions(p->slot.args, c, r);
    p->slot.job.run(p->slot.args, c, r, p->leader_work);
}

/* Claims and computes what it can; returns the mean time of a chunk in ns. */
static int64_t leader_walk(struct pool *p, uint32_t epoch)
{
    int64_t t0 = clock_ns();
    int done = 0;
    for (int k = 0; k < p->slot.job.n_chunk; k++) {
        int c = visit(p->slot.job.n_chunk, p->n_thread, 0, k);
        if (!state_cas(&p->state[c], word(epoch, FREE), word(epoch, CLAIMED)))
            continue;
        leader_compute(p, c);
        atomic_store_explicit(&p->state[c], word(epoch, DONE), memory_order_release);
        done++;
    }
    return done ? (clock_ns() - t0) / done : 0;
}

/* The leader's destination is the real one, and the worker's copy carries the same bits, so the
 * leader takes the chunk first (the worker can no longer copy) and then computes it: true. */
static bool leader_finish(struct pool *p, uint32_t epoch, int c, int64_t patience_ns)
{
    int64_t until = 0;
    for (;;) {
        uint64_t s = atomic_load_explicit(&p->state[c], memory_order_acquire);
        if (s == word(epoch, DONE))
            return false;
        cpu_relax();
        int64_t now = clock_ns();
        if (!until)
            until = now + patience_ns;
        if (s == word(epoch, CLAIMED) && now >= until &&
            state_cas(&p->state[c], s, word(epoch, DONE))) {
            leader_compute(p, c);
            return true;
        }
    }
}

static void run_alone(struct pool *p, const struct pool_job *job)
{
    struct pool_region r[POOL_REGION_MAX];
    for (int c = 0; c < job->n_chunk; c++) {
        job->regions(job->args, c, r);
        job->run(job->args, c, r, p->leader_work);
    }
}

static void run_team(struct pool *p, const struct pool_job *job, struct pool_ran *ran)
{
    post(p, job);
    uint32_t epoch = atomic_load_explicit(&p->epoch, memory_order_relaxed);
    ran->chunk_ns = leader_walk(p, epoch);
    int64_t patience = ran->chunk_ns > HEDGE_MIN_NS ? ran->chunk_ns : HEDGE_MIN_NS;
    for (int k = job->n_chunk - 1; k >= 0; k--)
        ran->hedges += leader_finish(p, epoch, visit(job->n_chunk, p->n_thread, 0, k), patience);
}

void pool_run(struct pool *p, const struct pool_job *job)
{
    if (p->n_thread == 1 || job->n_chunk == 1) {
        run_alone(p, job);
        return;
    }
    struct pool_ran ran = {.chunks = job->n_chunk};
    int64_t t0 = clock_ns();
    if (pool_score_alone(&p->score))
        run_alone(p, job);
    else
        run_team(p, job, &ran);
    ran.ns = clock_ns() - t0;
    pool_score_add(&p->score, &ran);
}

void pool_quiesce(struct pool *p)
{
    for (int i = 0; i < p->n_started; i++)
        while (atomic_load_explicit(&p->workers[i].busy, memory_order_acquire)) {
            cpu_relax();
            if (clock_ns() & 1)
                sched_yield();
        }
}

int pool_n_thread(const struct pool *p)
{
    return p->n_thread;
}

static enum qn_status worker_start(struct pool *p, int i, struct qn_err *err)
{
    struct worker *w = &p->workers[i];
    memset(w, 0, sizeof *w);
    w->pool = p;
    w->index = i + 1;
    w->scratch = aligned_alloc(CACHE_LINE, p->scratch_bytes + p->work_bytes + CACHE_LINE);
    if (!w->scratch || pthread_create(&w->thread, NULL, worker_main, w) != 0) {
        free(w->scratch);
        QN_FAIL(err, QN_NO_MEMORY, "pool", "cannot start worker thread %d of %d", i + 1,
                p->n_thread - 1);
    }
    p->n_started++;
    return QN_OK;
}

static size_t round_line(size_t n)
{
    return (n + CACHE_LINE - 1) & ~(size_t)(CACHE_LINE - 1);
}

enum qn_status pool_create(int n_thread, size_t out_bytes, size_t work_bytes, struct pool **out,
                           struct qn_err *err)
{
    if (n_thread < 1 || n_thread > POOL_THREAD_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "pool", "threads = %d; allowed are 1 to %d", n_thread,
                POOL_THREAD_MAX);
    struct pool *p = aligned_alloc(CACHE_LINE, round_line(sizeof *p));
    if (!p)
        QN_FAIL(err, QN_NO_MEMORY, "pool", "out of memory for a pool of %d threads", n_thread);
    memset(p, 0, sizeof *p);
    p->n_thread = n_thread;
    p->scratch_bytes = round_line(out_bytes);
    p->work_bytes = round_line(work_bytes);
    p->leader_work = aligned_alloc(CACHE_LINE, p->work_bytes + CACHE_LINE);
    p->workers = aligned_alloc(CACHE_LINE, sizeof *p->workers * (size_t)n_thread);
    enum qn_status st = QN_OK;
    if (!p->workers || !p->leader_work)
        st = err_set(err, QN_NO_MEMORY, "pool", "out of memory for %d threads", n_thread);
    for (int i = 0; st == QN_OK && i < n_thread - 1; i++)
        st = worker_start(p, i, err);
    if (st != QN_OK) {
        pool_free(p);
        return st;
    }
    *out = p;
    return QN_OK;
}

void pool_free(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->quit, true);
    atomic_fetch_add(&p->epoch, 2);
    futex_wake(&p->epoch);
    for (int i = 0; i < p->n_started; i++) {
        pthread_join(p->workers[i].thread, NULL);
        free(p->workers[i].scratch);
    }
    free(p->workers);
    free(p->leader_work);
    free(p);
}
