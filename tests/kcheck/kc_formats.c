/*
 * kc_formats.c - bench of gemm_q on weights that no cache holds: each format with one row, then the
 * 4-bit format with 1 to 8 rows, at one and at two threads. All configurations take turns, so that
 * a round compares them under the same circumstances, and each finds its weights evicted by the
 * others'. Reported are medians over the rounds, and the time per byte next to one 4-bit row's.
 *
 * The weights are random bits; a second thread takes the other half of the outputs.
 */
#include "kcheck.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/ref/ref.h"

enum { N = 16384, K = 4096, ROUNDS = 15, ROWS_MAX = 8, CONFIGS_MAX = 16 };

struct config {
    const char *name;
    struct packed w;
    int32_t rows;
    size_t bytes;
    double ns[ROUNDS], share[ROUNDS]; /* share: time per byte over that of config 0 */
};

struct pair { /* the thread that helps, and what it is to do */
    const struct kernels *k;
    const struct config *at;
    struct qact q[4]; /* by group: 16, 32, 64, 128 */
    float *y;
    void *scratch[2];
    atomic_int turn, done; /* rises with each call; -1 = leave */
};

static void half(struct pair *p, int i, int n)
{
    const struct config *c = p->at;
    int32_t blocks = pack_n_block(c->w.n), b0 = blocks / n * i, b1 = blocks / n * (i + 1);
    p->k->gemm_q(&c->w, b0, b1, &p->q[__builtin_ctz((unsigned)c->w.group) - 4], 0, c->rows,
                 p->y + b0 * PACK_ROWS, (size_t)c->w.n, p->scratch[i]);
}

static void *helper(void *arg)
{
    struct pair *p = arg;
    int seen = 0;
    cpu_fp_begin();
    for (;;) {
        int turn = atomic_load(&p->turn);
        if (turn < 0)
            return NULL;
        if (turn == seen)
            continue;
        seen = turn;
        half(p, 1, 2);
        atomic_store(&p->done, seen);
    }
}

static double call_ns(struct pair *p, const struct config *c, int threads)
{
    p->at = c;
    int64_t t0 = clock_ns();
    if (threads == 2) {
        int turn = atomic_fetch_add(&p->turn, 1) + 1;
        half(p, 0, 2);
        while (atomic_load(&p->done) != turn)
            ;
    } else {
        half(p, 0, 1);
    }
    return (double)(clock_ns() - t0);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v)
{
    qsort(v, ROUNDS, sizeof *v, by_value);
    return v[ROUNDS / 2];
}

static void *room(size_t n)
{
    void *p = aligned_alloc(64, (n + 8191) & ~(size_t)63); /* prefetches run ahead */
    if (!p) {
        fprintf(stderr, "kcheck: no memory for a bench buffer of %zu bytes\n", n);
        exit(2);
    }
    return p;
}

static void random_weights(struct kc *c, struct packed *w)
{
    w->block_bytes = pack_block_bytes(w);
    size_t n = (size_t)pack_n_block(w->n) * w->block_bytes, head, gb;
    uint8_t *p = room(n);
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t u = kc_u64(c);
        memcpy(p + i, &u, 8);
    }
    head = pack_head_bytes(w->kind, w->scale, w->centred);
    gb = pack_group_bytes(w);
    for (size_t g = 0; g < n; g += gb)
        for (size_t i = 0; i < head; i += 2) { /* bf16 near 0.01 */
            uint16_t h = (uint16_t)(0x3C00 + (p[g + i] & 0x7F));
            memcpy(p + g + i, &h, 2);
        }
    w->p = p;
}

/* other: a product that is not timed, before each that is: it takes the caches. */
static void run(struct kc *c, struct pair *p, struct config *v, int n, int threads,
                const struct config *other)
{
    for (int r = -1; r < ROUNDS; r++)
        for (int i = 0; i < n; i++) {
            if (other)
                call_ns(p, other, threads);
            double ns = call_ns(p, &v[i], threads);
            if (r < 0)
                continue;
            v[i].ns[r] = ns;
            v[i].share[r] = ns / v[0].ns[r] * (double)v[0].bytes / (double)v[i].bytes;
        }
    for (int i = 0; i < n; i++) {
        double ns = median(v[i].ns), share = median(v[i].share);
        double bits = 8.0 * (double)v[i].bytes / ((double)N * K), gbs = (double)v[i].bytes / ns;
        if (c->json)
            printf("%s\n  {\"isa\":\"%s\",\"kernel\":\"formats\",\"format\":\"%s\",\"group\":%d,"
                   "\"rows\":%d,\"threads\":%d,\"bits\":%.3f,\"ns\":%.0f,\"gb_s\":%.3f,"
                   "\"times_of_4_bit_per_byte\":%.3f}",
                   c->n_json++ ? "," : "", cpu_isa_name(c->k->isa), v[i].name, v[i].w.group,
                   v[i].rows, threads, bits, ns, gbs, share);
        else
            printf("%-8s formats   %-5s g%-3d rows %d, %d thread%s %5.2f bits %10.0f ns %6.2f GB/s "
                   "%7.2f GMAC/s  %.2f x u4's time a byte\n",
                   cpu_isa_name(c->k->isa), v[i].name, v[i].w.group, v[i].rows, threads,
                   threads == 1 ? ": " : "s:", bits, ns, gbs, (double)N * K * v[i].rows / ns,
                   share);
    }
    fflush(stdout);
}

static void activations(struct kc *c, struct pair *p)
{
    float *x = room((size_t)ROWS_MAX * K * 4);
    kc_fill(c, GEN_NORMAL, x, (size_t)ROWS_MAX * K);
    for (int i = 0; i < 4; i++) {
        int32_t group = 16 << i;
        size_t n = (size_t)ROWS_MAX * K, ng = n / (size_t)group;
        p->q[i] = (struct qact){room(n * 2), room(ng * 4), room(ng * 4), K, group};
        for (int32_t r = 0; r < ROWS_MAX; r++)
            c->k->quantize(x + (size_t)r * K, &p->q[i], r);
    }
    free(x);
}

void kc_formats(struct kc *c)
{
    static const enum pack_kind kinds[] = {PACK_U4, PACK_U2, PACK_U3,  PACK_U5,
                                           PACK_U6, PACK_U8, PACK_E2M1};
    static const int32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct config f[CONFIGS_MAX] = {{0}}, m[CONFIGS_MAX] = {{0}};
    struct pair p = {.k = c->k};
    pthread_t t;
    int n = 0;
    if (c->k->isa == CPU_GENERIC || !kc_case(c, "formats", 0))
        return;
    activations(c, &p);
    p.y = room((size_t)ROWS_MAX * N * 4);
    p.scratch[0] = room(GEMM_SCRATCH);
    p.scratch[1] = room(GEMM_SCRATCH);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++, n++) {
        f[n] = (struct config){.name = kc_kind_name(kinds[i]), .rows = 1};
        f[n].w = (struct packed){.kind = kinds[i],
                                 .scale = SCALE_BF16,
                                 .group = kinds[i] == PACK_E2M1 ? 32 : 64,
                                 .n = N,
                                 .k = K};
        random_weights(c, &f[n].w);
        f[n].bytes = f[n].w.block_bytes * N / PACK_ROWS;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        m[i] = f[0];
        m[i].rows = rows[i];
    }
    run(c, &p, f, n, 1, NULL);
    run(c, &p, m, sizeof rows / sizeof *rows, 1, &f[n - 2]);
    if (cpu_count() > 1) {
        if (pthread_create(&t, NULL, helper, &p) != 0) {
            fprintf(stderr, "kcheck: no second thread\n");
            exit(2);
        }
        run(c, &p, f, n, 2, NULL);
        run(c, &p, m, sizeof rows / sizeof *rows, 2, &f[n - 2]);
        atomic_store(&p.turn, -1);
        pthread_join(t, NULL);
    }
    for (int i = 0; i < n; i++)
        free((void *)f[i].w.p);
    for (int i = 0; i < 4; i++) {
        free(p.q[i].a);
        free(p.q[i].scale);
        free(p.q[i].sum);
    }
    free(p.y);
    free(p.scratch[0]);
    free(p.scratch[1]);
}
