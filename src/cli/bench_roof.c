/*
 * bench_roof.c - see bench_roof.h. Threads are made for each measurement, wait for one another and
 * note their own start and end; the time is from the first start to the last end.
 */
#include "cli/bench_roof.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

#define THREAD_MAX 512
#define ALIGN      4096

struct roof {
    uint8_t *p;
    size_t n; /* multiple of ALIGN */
};

struct gate {
    atomic_int ready; /* threads that have arrived */
    atomic_int go;    /* 0 wait, 1 work, -1 leave: not all threads could be started */
};

struct task {
    struct gate *gate;
    const uint8_t *p; /* slice to read or touch; NULL = arithmetic */
    size_t n;
    const char *isa;
    bool touch;
    double ops;
    int64_t start_ns, end_ns;
    uint64_t sink; /* keeps the work alive */
};

/* 32 bytes; the compiler splits it where it may only use SSE2, which still reads at full speed. */
typedef uint64_t vec __attribute__((vector_size(32)));

/* Eight accumulators, so that the loads never wait for the adds. */
static uint64_t read_all(const uint8_t *p, size_t n)
{
    const vec *v = (const vec *)(const void *)p, *end = v + n / sizeof(vec);
    vec a = {0}, b = a, c = a, d = a, e = a, f = a, g = a, h = a;
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
    vec s = ((a + b) + (c + d)) + ((e + f) + (g + h));
    return s[0] + s[1] + s[2] + s[3];
}

static void *work(void *arg)
{
    struct task *t = arg;
    uint32_t sink = 0;
    int go;
    atomic_fetch_add(&t->gate->ready, 1);
    while ((go = atomic_load(&t->gate->go)) == 0)
        sched_yield();
    if (go < 0)
        return NULL;
    t->start_ns = clock_ns();
    if (t->touch)
        memset((uint8_t *)(uintptr_t)t->p, 1, t->n);
    else if (t->p)
        t->sink = read_all(t->p, t->n);
    else
        t->ops = peak_run(t->isa, &sink);
    t->end_ns = clock_ns();
    t->sink += sink;
    return NULL;
}

/* Runs the tasks together, the last one on this thread. Seconds taken; 0 = no threads. */
static double run_together(struct task *t, int n)
{
    struct gate gate = {0};
    pthread_t id[THREAD_MAX];
    int started = 0;
    for (int i = 0; i < n; i++)
        t[i].gate = &gate;
    while (started < n - 1 && pthread_create(&id[started], NULL, work, &t[started]) == 0)
        started++;
    bool all = started == n - 1;
    while (all && atomic_load(&gate.ready) < started)
        sched_yield();
    atomic_store(&gate.go, all ? 1 : -1);
    if (all)
        work(&t[n - 1]);
    int64_t first = t[n - 1].start_ns, last = t[n - 1].end_ns;
    for (int i = 0; i < started; i++) {
        pthread_join(id[i], NULL);
        first = t[i].start_ns < first ? t[i].start_ns : first;
        last = t[i].end_ns > last ? t[i].end_ns : last;
    }
    return all ? (double)(last - first) / 1e9 : 0;
}

static bool read_cache_fact(int index, const char *name, char *out, size_t cap)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    bool ok = fgets(out, (int)cap, f) != NULL;
    fclose(f);
    out[strcspn(out, "\n")] = 0;
    return ok;
}

/* The highest level that /sys states for the first processor; a virtual machine's sysconf can
 * report the whole host's cache. */
int64_t roof_cache_bytes(void)
{
    int64_t best = 0;
    int best_level = 0;
    for (int i = 0; i < 8; i++) {
        char size[32] = "";
        int level = 0;
        int64_t bytes;
        if (read_cache_fact(i, "level", size, sizeof size))
            level = atoi(size);
        if (level > best_level && read_cache_fact(i, "size", size, sizeof size) &&
            cli_parse_size(size, &bytes)) {
            best = bytes;
            best_level = level;
        }
    }
    long l3 = best ? 0 : sysconf(_SC_LEVEL3_CACHE_SIZE);
    return best ? best : l3 > 0 ? l3 : 0;
}

static int64_t available_bytes(void)
{
    char line[128];
    long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

static int slices(const struct roof *r, int n, struct task *t, bool touch)
{
    if (n > THREAD_MAX)
        n = THREAD_MAX;
    size_t each = r->n / (size_t)n / ALIGN * ALIGN;
    for (int i = 0; i < n; i++)
        t[i] = (struct task){.p = r->p + (size_t)i * each, .n = each, .touch = touch};
    return n;
}

enum qn_status roof_open(int n_thread, struct roof **out, struct qn_err *err)
{
    int64_t want = roof_cache_bytes() * 4, most = available_bytes() / 4;
    if (want < (int64_t)256 << 20)
        want = (int64_t)256 << 20;
    if (want > (int64_t)2 << 30)
        want = (int64_t)2 << 30;
    if (most > 0 && want > most)
        want = most;
    size_t n = (size_t)want / ALIGN * ALIGN;
    struct roof *r = calloc(1, sizeof *r);
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!r || p == MAP_FAILED) {
        free(r);
        QN_FAIL(err, QN_NO_MEMORY, "bench", "out of memory for a %lld MiB buffer to read",
                (long long)(n >> 20));
    }
    madvise(p, n, MADV_HUGEPAGE);
    *r = (struct roof){.p = p, .n = n};
    struct task t[THREAD_MAX];
    run_together(t, slices(r, n_thread, t, true));
    *out = r;
    return QN_OK;
}

void roof_close(struct roof *r)
{
    if (r)
        munmap(r->p, r->n);
    free(r);
}

int64_t roof_bytes(const struct roof *r)
{
    return (int64_t)r->n;
}

double roof_read(struct roof *r, int n_thread)
{
    struct task t[THREAD_MAX];
    int n = slices(r, n_thread, t, false);
    double s = run_together(t, n);
    return s > 0 ? (double)t[0].n * n / s : 0;
}

double roof_peak(const char *isa, int n_thread)
{
    struct task t[THREAD_MAX];
    int n = n_thread > THREAD_MAX ? THREAD_MAX : n_thread;
    double ops = 0;
    for (int i = 0; i < n; i++)
        t[i] = (struct task){.isa = isa};
    double s = run_together(t, n);
    for (int i = 0; i < n; i++)
        ops += t[i].ops;
    return s > 0 ? ops / s : 0;
}
