/*
 * test_pool.c - the thread pool: every chunk computed and in place for all thread and chunk counts,
 * regions with strides, chunks the leader takes over from a stuck worker, late workers that must
 * not write, quiescing, and many short-lived pools. Runs under the thread sanitizer too.
 */
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "../check.h"
#include "base/clock.h"
#include "base/cpu.h"

enum { OUT_BYTES = 64 << 10, WORK_BYTES = 4096 };

static struct pool *make_pool(int n_thread)
{
    struct pool *p = NULL;
    struct qn_err err;
    CHECK_OK(pool_create(n_thread, OUT_BYTES, WORK_BYTES, &p, &err), err);
    assert_int_equal(pool_n_thread(p), n_thread);
    return p;
}

/* ---- results --------------------------------------------------------------------------------- */

/* Chunk c owns `per` numbers in each of two columns of a matrix: a strided and a plain region. */
struct square_args {
    const uint32_t *in;
    uint32_t *a, *b; /* a: [rows][stride], chunk c holds columns [c*per, c*per+per); b: [n*per] */
    int rows, per, stride;
    uint32_t salt;
};

static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    return (x ^ x >> 15) * 0x846ca68bu;
}

static int square_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct square_args *a = args;
    size_t at = (size_t)chunk * (size_t)a->per, bytes = (size_t)a->per * 4;
    r[0] = (struct pool_region){(char *)(a->a + at), a->rows, bytes, (size_t)a->stride * 4};
    r[1] = (struct pool_region){(char *)(a->b + at), 1, bytes, bytes};
    return 2;
}

static void square_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct square_args *a = args;
    QN_ASSERT((uintptr_t)work % 64 == 0);
    memset(work, chunk, WORK_BYTES); /* it is the thread's own */
    for (int row = 0; row < r[0].rows; row++)
        for (int i = 0; i < a->per; i++) {
            uint32_t x = a->in[chunk * a->per + i] + a->salt + (uint32_t)row;
            memcpy(r[0].p + (size_t)row * r[0].stride + (size_t)i * 4, &(uint32_t){mix(x)}, 4);
        }
    for (int i = 0; i < a->per; i++)
        memcpy(r[1].p + (size_t)i * 4, &(uint32_t){a->in[chunk * a->per + i] ^ a->salt}, 4);
}

static void check_squares(const struct square_args *a, int n_chunk)
{
    for (int i = 0; i < n_chunk * a->per; i++) {
        for (int row = 0; row < a->rows; row++)
            if (a->a[row * a->stride + i] != mix(a->in[i] + a->salt + (uint32_t)row))
                fail_msg("%d chunks: row %d, column %d is wrong", n_chunk, row, i);
        if (a->b[i] != (a->in[i] ^ a->salt))
            fail_msg("%d chunks: element %d is wrong", n_chunk, i);
    }
    for (int row = 0; row < a->rows; row++) /* the gap behind the last chunk is nobody's */
        assert_int_equal(a->a[row * a->stride + n_chunk * a->per], 0xdeadbeef);
}

static void run_squares(struct pool *p, int n_chunk, int per, uint32_t salt)
{
    int n = n_chunk * per, stride = n + 5, rows = 3;
    uint32_t *in = malloc((size_t)n * 4), *a = malloc((size_t)(rows * stride) * 4);
    uint32_t *b = malloc((size_t)n * 4);
    for (int i = 0; i < n; i++)
        in[i] = mix((uint32_t)i + salt);
    for (int i = 0; i < rows * stride; i++)
        a[i] = 0xdeadbeef;
    memset(b, 0, (size_t)n * 4);
    struct square_args args = {in, a, b, rows, per, stride, salt};
    struct pool_job job = {square_regions, square_run, &args, sizeof args, n_chunk};
    pool_run(p, &job);
    check_squares(&args, n_chunk);
    pool_quiesce(p); /* a late worker may still read `in` */
    free(in);
    free(a);
    free(b);
}

static void test_results(void **state)
{
    static const int chunks[] = {1, 2, 3, 4, 5, 7, 16, 63, 64, 65, 1000, 4095, POOL_CHUNK_MAX};
    for (int nth = 1; nth <= 4; nth++) {
        struct pool *p = make_pool(nth);
        for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++)
            for (int per = 1; per <= 33; per += 16)
                run_squares(p, chunks[i], per, (uint32_t)(nth * 100 + per));
        pool_free(p);
    }
}

/* Regions back to back, each reading what the one before wrote. A late worker reads inputs that are
 * being overwritten, and drops what it made of them: allowed (pool.h), but a race to the thread
 * sanitizer. */
static void test_chain(void **state)
{
    enum { N = 64, PER = 16, ROUNDS = 2000 };
    static uint32_t x[N * PER], a[3 * (N * PER + 5)], y[N * PER];
    struct pool *p = make_pool(3);
    for (int i = 0; i < N * PER; i++)
        x[i] = (uint32_t)i;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t *in = round % 2 ? y : x, *out = round % 2 ? x : y;
        struct square_args args = {in, a, out, 3, PER, N * PER + 5, round};
        struct pool_job job = {square_regions, square_run, &args, sizeof args, N};
        pool_run(p, &job);
        if (RACES)
            pool_quiesce(p);
    }
    uint32_t all = 0;
    for (uint32_t round = 0; round < ROUNDS; round++)
        all ^= round;
    for (int i = 0; i < N * PER; i++)
        assert_int_equal(x[i], (uint32_t)i ^ all);
    pool_free(p);
}

/* ---- hedging --------------------------------------------------------------------------------- */

/* Workers get stuck in their chunk until they are let go; the leader has to finish alone. */
struct stuck {
    atomic_int gate, entered, by_leader;
    pthread_t leader;
};
struct stuck_args {
    struct stuck *s;
    uint32_t *out;
    uint32_t value;
};

static int stuck_regions(const void *args, int chunk, struct pool_region *r)
{
    const struct stuck_args *a = args;
    r[0] = (struct pool_region){(char *)(a->out + chunk), 1, 4, 4};
    return 1;
}

static void nap(int64_t ns)
{
    nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

static void stuck_run(const void *args, int chunk, const struct pool_region *r, void *work)
{
    const struct stuck_args *a = args;
    uint32_t v = a->value + (uint32_t)chunk;
    if (pthread_equal(pthread_self(), a->s->leader)) {
        atomic_fetch_add(&a->s->by_leader, 1);
        nap(200000); /* so that workers get their chance */
    } else {
        atomic_fetch_add(&a->s->entered, 1);
        while (!atomic_load(&a->s->gate))
            nap(1000000);
        v = 0xbad; /* a late result that differs would show */
    }
    memcpy(r[0].p, &v, 4);
}

static void test_hedge(void **state)
{
    enum { N = 24 };
    for (int nth = 2; nth <= 4; nth++) {
        struct pool *p = make_pool(nth);
        struct stuck s = {.leader = pthread_self()};
        static uint32_t out[N];
        int64_t t0 = clock_ns(), entered = 0;
        /* A worker may sleep through a region on a busy machine; again until one was caught. */
        for (int round = 0; !entered && clock_ns() - t0 < 20000000000; round++) {
            memset(out, 0, sizeof out);
            struct stuck_args args = {&s, out, (uint32_t)round * 1000};
            struct pool_job job = {stuck_regions, stuck_run, &args, sizeof args, N};
            pool_run(p, &job); /* returns although workers are stuck */
            for (int i = 0; i < N; i++)
                assert_int_equal(out[i], round * 1000 + i);
            entered = atomic_load(&s.entered);
        }
        assert_true(entered > 0);
        assert_true(atomic_load(&s.by_leader) >= N);
        uint32_t before[N];
        memset(out, 0x5a, sizeof out); /* now it belongs to someone else */
        memcpy(before, out, sizeof out);
        atomic_store(&s.gate, 1);
        pool_quiesce(p);
        assert_memory_equal(out, before, sizeof out); /* the late workers wrote nothing */
        run_squares(p, 100, 8, 7);                    /* and work again */
        pool_free(p);
    }
}

/* Freed while a worker is stuck: waits for it. */
static void test_free_waits(void **state)
{
    static uint32_t out[8];
    struct pool *p = make_pool(2);
    struct stuck s = {.leader = pthread_self()};
    struct stuck_args args = {&s, out, 1};
    struct pool_job job = {stuck_regions, stuck_run, &args, sizeof args, 8};
    pool_run(p, &job);
    atomic_store(&s.gate, 1);
    pool_free(p);
    for (int i = 0; i < 8; i++)
        assert_int_equal(out[i], 1 + i);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void test_create(void **state)
{
    struct pool *p = NULL;
    struct qn_err err;
    CHECK_FAILS(pool_create(0, 64, 64, &p, &err), QN_BAD_INPUT, err, "1 to 256");
    CHECK_FAILS(pool_create(POOL_THREAD_MAX + 1, 64, 64, &p, &err), QN_BAD_INPUT, err, "257");
    assert_null(p);
    pool_free(NULL);
    for (int i = 0; i < 60; i++) {
        p = make_pool(1 + i % 4);
        if (i % 3)
            run_squares(p, 1 + i, 3, (uint32_t)i);
        pool_quiesce(p);
        pool_free(p);
    }
}

/* Outputs that do not fit a worker's scratch are done by the leader. */
static void test_large_outputs(void **state)
{
    struct pool *p = NULL;
    struct qn_err err;
    CHECK_OK(pool_create(3, 256, WORK_BYTES, &p, &err), err);
    for (uint32_t i = 0; i < 20; i++)
        run_squares(p, 9, 40, i);
    pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results), cmocka_unit_test(test_chain),
        cmocka_unit_test(test_hedge),   cmocka_unit_test(test_free_waits),
        cmocka_unit_test(test_create),  cmocka_unit_test(test_large_outputs),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
