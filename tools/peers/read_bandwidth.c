/*
 * Owns: a measurement of sequential memory read bandwidth, the yardstick for decode speed.
 * Each thread is pinned to one CPU, touches its own slice first (so that the pages lie on its
 * node) and then reads it with vector loads, all threads released together by a barrier. One pass
 * reads the whole buffer once; the buffer (1 GiB unless told) is far larger than any cache.
 * Prints one JSON line: the passes in order, best and median, in GB/s (1e9 bytes).
 * Does not measure writes, latency or cached reads. Stand-alone: not part of the product.
 *
 * usage: read_bandwidth THREADS [MIB [PASSES [CPU,CPU,...]]]
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define THREADS_MAX 256
#define PASSES_MAX  1000

/* 32 bytes: one AVX2 load; the compiler splits it where the CPU has only SSE2. */
typedef uint64_t vec __attribute__((vector_size(32)));

struct job {
    pthread_barrier_t *barrier;
    const unsigned char *slice; /* aligned to 4096, size a multiple of 256 */
    size_t slice_bytes;
    int passes;
    int cpu;
    uint64_t sum; /* keeps the loads alive */
};

/* Eight named accumulators: the adds never wait for one another, and GCC 12 at -O2 keeps them in
 * registers (an array of them it would keep in memory). */
static uint64_t read_slice(const unsigned char *p, size_t n_bytes)
{
    vec a = {0}, b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    const vec *v = (const vec *)p;
    const vec *end = v + n_bytes / sizeof(vec);

    for (; end - v >= 8; v += 8) {
        a += v[0];
        b += v[1];
        c += v[2];
        d += v[3];
        e += v[4];
        f += v[5];
        g += v[6];
        h += v[7];
    }
    vec sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
    return sum[0] + sum[1] + sum[2] + sum[3];
}

static void *worker(void *arg)
{
    struct job *job = arg;
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((size_t)job->cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        fprintf(stderr, "read_bandwidth: cannot pin a thread to CPU %d\n", job->cpu);
    memset((void *)(uintptr_t)job->slice, 1, job->slice_bytes);
    for (int pass = 0; pass < job->passes; pass++) {
        pthread_barrier_wait(job->barrier); /* start */
        job->sum += read_slice(job->slice, job->slice_bytes);
        pthread_barrier_wait(job->barrier); /* end */
    }
    return NULL;
}

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* A decimal number in [lo, hi]; leaves the program otherwise. */
static long number(const char *text, long lo, long hi, const char *what)
{
    char *end;
    long v = strtol(text, &end, 10);

    if (end == text || *end != '\0' || v < lo || v > hi) {
        fprintf(stderr, "read_bandwidth: %s is \"%s\"; expected %ld to %ld\n", what, text, lo, hi);
        exit(2);
    }
    return v;
}

/* "0,2,4" into cpus[]; without a list thread i runs on CPU i. */
static void parse_cpus(char *list, int *cpus, int n_threads)
{
    for (int i = 0; i < n_threads; i++) {
        char *item = list ? strtok(i == 0 ? list : NULL, ",") : NULL;

        if (list && !item) {
            fprintf(stderr, "read_bandwidth: %d threads, but the CPU list has %d\n", n_threads, i);
            exit(2);
        }
        cpus[i] = item ? (int)number(item, 0, CPU_SETSIZE - 1, "CPU") : i;
    }
}

static void report(double *gbs, int passes, int n_threads, size_t total, uint64_t sum)
{
    printf("{\"threads\": %d, \"bytes\": %zu, \"check\": %" PRIu64 ", \"gb_per_s\": [", n_threads,
           total, sum);
    for (int i = 0; i < passes; i++)
        printf("%s%.2f", i ? ", " : "", gbs[i]);
    qsort(gbs, (size_t)passes, sizeof gbs[0], compare_double);
    double median = passes % 2 ? gbs[passes / 2] : (gbs[passes / 2 - 1] + gbs[passes / 2]) / 2;
    printf("], \"best\": %.2f, \"median\": %.2f}\n", gbs[passes - 1], median);
}

int main(int argc, char **argv)
{
    static struct job jobs[THREADS_MAX];
    static pthread_t threads[THREADS_MAX];
    static double gbs[PASSES_MAX];
    static int cpus[THREADS_MAX];

    if (argc < 2 || argc > 5) {
        fprintf(stderr, "usage: read_bandwidth THREADS [MIB [PASSES [CPU,CPU,...]]]\n");
        return 2;
    }
    int n = (int)number(argv[1], 1, THREADS_MAX, "THREADS");
    size_t mib = argc > 2 ? (size_t)number(argv[2], 1, 1 << 20, "MIB") : 1024;
    int passes = argc > 3 ? (int)number(argv[3], 1, PASSES_MAX, "PASSES") : 10;
    parse_cpus(argc > 4 ? argv[4] : NULL, cpus, n);

    size_t slice = (mib << 20) / (size_t)n / 4096 * 4096;
    size_t total = slice * (size_t)n;
    if (slice == 0) {
        fprintf(stderr, "read_bandwidth: %zu MiB is too little for %d threads\n", mib, n);
        return 2;
    }
    unsigned char *buf =
        mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buf == MAP_FAILED) {
        fprintf(stderr, "read_bandwidth: cannot allocate %zu MiB\n", mib);
        return 1;
    }
    madvise(buf, total, MADV_HUGEPAGE); /* a refusal only costs TLB misses */

    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)n + 1);
    for (int i = 0; i < n; i++) {
        jobs[i] = (struct job){&barrier, buf + slice * (size_t)i, slice, passes, cpus[i], 0};
        if (pthread_create(&threads[i], NULL, worker, &jobs[i]) != 0) {
            fprintf(stderr, "read_bandwidth: cannot start thread %d\n", i);
            return 1;
        }
    }
    for (int pass = 0; pass < passes; pass++) {
        pthread_barrier_wait(&barrier);
        double start = now_s();
        pthread_barrier_wait(&barrier);
        gbs[pass] = (double)total / (now_s() - start) * 1e-9;
    }
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        sum += jobs[i].sum;
    }
    report(gbs, passes, n, total, sum);
    return 0;
}
