/*
 * kc_bench.c - times the kernels on a model's shapes: ns a call, GB/s of weights (or KV), billions
 * of multiply-adds a second, and both as shares of the roofs of kc_roof.c. Best of RUNS runs of
 * about RUN_NS: on a shared machine the best is what repeats. One thread.
 */
#include "kcheck.h"
#include "kernels/kvq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"

enum { RUNS = 25, RUN_NS = 4000000 };

struct timed {
    const struct kernels *k;
    struct packed w;
    struct qact q;
    float *x, *y, *z;
    struct attn_tile tile;
    struct kv_head kv;
    void *scratch;
    int32_t m, n;
};

static double time_ns(void (*fn)(struct timed *), struct timed *t)
{
    long calls = 1;
    for (;; calls *= 2) {
        int64_t at = clock_ns();
        for (long i = 0; i < calls; i++)
            fn(t);
        if (clock_ns() - at > RUN_NS)
            break;
    }
    double best = 1e300;
    for (int r = 0; r < RUNS; r++) {
        int64_t at = clock_ns();
        for (long i = 0; i < calls; i++)
            fn(t);
        double ns = (double)(clock_ns() - at) / (double)calls;
        best = ns < best ? ns : best;
    }
    return best;
}

static void line(struct kc *c, double ns, double bytes, double macs, double mac_roof)
{
    double gbs = bytes / ns, gmacs = macs / ns;
    if (c->json) {
        printf("%s\n  {\"isa\":\"%s\",\"kernel\":\"%s\",\"shape\":\"%s\",\"ns\":%.1f,\"gb_s\":%.3f,"
               "\"gmac_s\":%.3f,\"read_share\":%.3f,\"mac_share\":%.3f}",
               c->n_json++ ? "," : "", cpu_isa_name(c->k->isa), c->at->name, c->shape, ns, gbs,
               gmacs, c->roof.read_gbs > 0 ? gbs / c->roof.read_gbs : 0,
               mac_roof > 0 ? gmacs / mac_roof : 0);
    } else {
        printf("%-8s %-9s %-32s %12.0f ns", cpu_isa_name(c->k->isa), c->at->name, c->shape, ns);
        if (bytes > 0)
            printf(" %7.2f GB/s", gbs);
        if (macs > 0)
            printf(" %8.2f GMAC/s", gmacs);
        if (mac_roof > 0)
            printf(" %4.0f%%", 100 * gmacs / mac_roof);
        printf("\n");
    }
    fflush(stdout);
}

static float *floats(struct kc *c, size_t n)
{
    float *p = kc_alloc(c, n * 4, 64, KC_OUT);
    kc_fill(c, GEN_NORMAL, p, n);
    return p;
}

static void do_gemm_q(struct timed *t)
{
    t->k->gemm_q(&t->w, 0, pack_n_block(t->w.n), &t->q, 0, t->m, t->y, (size_t)t->w.n, t->scratch);
}

static void do_gemm_f(struct timed *t)
{
    t->k->gemm_f(&t->w, 0, pack_n_block(t->w.n), t->x, (size_t)t->w.k, t->m, t->y, (size_t)t->w.n,
                 t->scratch);
}

static void do_quantize(struct timed *t)
{
    t->k->quantize(t->x, &t->q, 0);
}

static void do_rmsnorm(struct timed *t)
{
    t->k->rmsnorm(t->y, t->x, t->z, 0, 1e-5f, t->n);
}

static void do_swiglu(struct timed *t)
{
    t->k->swiglu(t->y, t->x, t->z, t->n);
}

static void do_add(struct timed *t)
{
    t->k->add(t->y, t->x, t->z, t->n);
}

static void do_rope(struct timed *t)
{
    t->k->rope(t->y, t->x, 64, 64, t->z, false);
}

static void do_attn(struct timed *t)
{
    t->k->attn(&t->tile, &t->kv);
}

static void bench_gemm_q(struct kc *c, uint32_t i, const struct packed *w, int32_t m)
{
    if (!kc_case(c, "gemm_q", i))
        return;
    struct kc_weight kw = {.w = *w};
    kc_shape(c, "%s g%d %dx%d m%d", kc_kind_name(w->kind), w->group, w->n, w->k, m);
    kc_weight_q(c, &kw, GEN_NORMAL);
    size_t mk = (size_t)m * (size_t)w->k, g = (size_t)w->group;
    struct timed t = {.k = c->k, .w = kw.w, .m = m, .x = floats(c, mk)};
    t.q = (struct qact){kc_alloc(c, mk * 2, 64, KC_OUT), kc_alloc(c, mk / g * 4, 64, KC_OUT),
                        kc_alloc(c, mk / g * 4, 64, KC_OUT), w->k, w->group};
    t.y = kc_alloc(c, (size_t)m * (size_t)w->n * 4, 64, KC_OUT);
    t.scratch = kc_alloc(c, GEMM_SCRATCH, 64, KC_OUT);
    for (int32_t r = 0; r < m; r++)
        c->k->quantize(t.x + (size_t)r * (size_t)w->k, &t.q, r);
    double bytes = (double)kw.w.block_bytes * pack_n_block(w->n);
    line(c, time_ns(do_gemm_q, &t), bytes, (double)m * w->n * w->k, c->roof.gmacs);
}

static void bench_gemm_f(struct kc *c, uint32_t i, int32_t n, int32_t k, int32_t m)
{
    if (!kc_case(c, "gemm_f", i))
        return;
    struct kc_weight kw = {.w = {.kind = PACK_BF16, .n = n, .k = k}};
    kc_shape(c, "bf16 %dx%d m%d", n, k, m);
    kc_weight_f(c, &kw, GEN_NORMAL);
    struct timed t = {.k = c->k, .w = kw.w, .m = m, .x = floats(c, (size_t)m * (size_t)k)};
    t.y = kc_alloc(c, (size_t)m * (size_t)n * 4, 64, KC_OUT);
    t.scratch = kc_alloc(c, GEMM_SCRATCH, 64, KC_OUT);
    line(c, time_ns(do_gemm_f, &t), (double)n * k * 2, (double)m * n * k, c->roof.f32_gmacs);
}

/* SmolLM2's head: 9 query heads of 64 over 3 kv heads; a kv head's 3 queries. */
static void bench_attn(struct kc *c, uint32_t i, int32_t pos, int32_t rows,
                       const struct kv_head *like)
{
    if (!kc_case(c, "attn", i))
        return;
    enum { D = 64, HEADS = 3 };
    struct timed t = {.k = c->k};
    int32_t n_page = (pos + rows + KV_PAGE - 1) / KV_PAGE;
    struct kv_head h = *like;
    h.dk = h.dv = D;
    h.v_off = kv_key_bytes(h.type, &h.form, D);
    size_t page = h.v_off + kv_value_bytes(h.type, &h.form, D);
    uint8_t *kv = kc_alloc(c, page * (size_t)n_page, 64, KC_OUT);
    const uint8_t **pages = kc_alloc(c, (size_t)n_page * sizeof *pages, 8, KC_OUT);
    float *x = floats(c, 2 * D);
    for (int32_t s = 0; s < n_page * KV_PAGE; s++) {
        pages[s / KV_PAGE] = kv + (size_t)(s / KV_PAGE) * page;
        kc_fill(c, GEN_NORMAL, x, 2 * D);
        uint8_t *k = kv + (size_t)(s / KV_PAGE) * page;
        if (h.type == KV_CODED)
            c->k->kv_code(&h, k, k + h.v_off, s % KV_PAGE, x, x + D);
        else
            c->k->kv_put(k, k + h.v_off, s % KV_PAGE, x, x + D, D, D, h.type);
    }
    h.pages = pages;
    t.kv = h;
    t.tile = (struct attn_tile){.n_row = rows,
                                .n_head = HEADS,
                                .pos = pos,
                                .scale = 0.125f,
                                .q_stride = HEADS * D,
                                .out_stride = HEADS * D};
    t.tile.q = floats(c, (size_t)rows * HEADS * D);
    t.tile.out = floats(c, (size_t)rows * HEADS * D);
    t.tile.scratch = kc_alloc(c, ATTN_SCRATCH, 64, KC_OUT);
    kc_shape(c, "%s%d%d d64 heads 3 rows %d at %d",
             h.type == KV_F32    ? "f32"
             : h.type == KV_BF16 ? "bf16"
                                 : "k",
             h.form.k_bits, h.form.v_bits, rows, pos);
    line(c, time_ns(do_attn, &t), (double)page * (pos + rows) / KV_PAGE,
         (double)rows * HEADS * 2 * D * (pos + rows), c->roof.f32_gmacs);
}

static void bench_rows(struct kc *c)
{
    static const struct {
        const char *name;
        void (*fn)(struct timed *);
        int32_t n;
        int streams;
    } ops[] = {{"quantize", do_quantize, 576, 1},
               {"rmsnorm", do_rmsnorm, 576, 2},
               {"swiglu", do_swiglu, 1536, 2},
               {"add", do_add, 576, 2},
               {"rope", do_rope, 64, 1}};
    for (uint32_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (!kc_case(c, ops[i].name, i))
            continue;
        size_t n = (size_t)ops[i].n;
        struct timed t = {.k = c->k, .n = ops[i].n, .x = floats(c, n), .z = floats(c, n)};
        t.y = floats(c, n);
        t.q = (struct qact){kc_alloc(c, n * 2, 64, KC_OUT), floats(c, n / 32 + 1),
                            floats(c, n / 32 + 1), ops[i].n, 32};
        kc_shape(c, "n%d", ops[i].n);
        line(c, time_ns(ops[i].fn, &t), (double)n * 4 * ops[i].streams, 0, 0);
    }
}

void kc_bench(struct kc *c)
{
    static const int32_t rows[] = {1, 2, 3, 4, 8, 12, 16, 32, 64, 128, 256};
    static const struct packed shapes[] = {
        {.kind = PACK_U4, .scale = SCALE_BF16, .group = 32, .n = 1536, .k = 576},
        {.kind = PACK_U4, .scale = SCALE_BF16, .group = 64, .n = 2048, .k = 2048},
        {.kind = PACK_U8, .scale = SCALE_BF16, .group = 64, .n = 1536, .k = 576},
    };
    static const struct packed head = {
        .kind = PACK_U8, .scale = SCALE_BF16, .group = 32, .n = 49152, .k = 576};
    kc_roof(c);
    if (!c->list && !c->json)
        printf("%-8s roofs, one thread: read %.1f GB/s, integers %.0f GMAC/s, floats %.0f GMAC/s\n",
               cpu_isa_name(c->k->isa), c->roof.read_gbs, c->roof.gmacs, c->roof.f32_gmacs);
    uint32_t i = 0;
    bool slow = c->k->isa == CPU_GENERIC; /* seconds a call with many rows */
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t m = 0; m < sizeof rows / sizeof *rows; m++, i++)
            if (!slow || (rows[m] == 1 && s != 1))
                bench_gemm_q(c, i, &shapes[s], rows[m]);
    if (!slow) {
        bench_gemm_q(c, i++, &head, 1);
        bench_gemm_q(c, i++, &head, 4);
    }
    static const int32_t few[] = {1, 4, 16, 64};
    for (size_t m = 0; m < (slow ? 1 : 4); m++)
        bench_gemm_f(c, i++, 1536, 576, few[m]);
    bench_rows(c);
    static const struct kv_head kinds[] = {{.type = KV_BF16},
                                           {.type = KV_F32},
                                           {.type = KV_CODED, .form = {8, 8, 64, false}},
                                           {.type = KV_CODED, .form = {4, 4, 64, false}},
                                           {.type = KV_CODED, .form = {8, 4, 32, true}},
                                           {.type = KV_CODED, .form = {8, 3, 32, true}}};
    for (size_t t = 0; t < sizeof kinds / sizeof *kinds; t++) {
        bench_attn(c, i++, 511, 1, &kinds[t]);
        bench_attn(c, i++, 4095, 1, &kinds[t]);
        bench_attn(c, i++, 16383, 1, &kinds[t]);
        bench_attn(c, i++, 502, 10, &kinds[t]);
    }
    kc_formats(c);
}
