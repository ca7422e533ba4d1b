/*
 * kc_self.c - the checker checked: a table of faults, each a portable kernel with one thing wrong,
 * that the families must report. Faults lie at the edges where real ones do.
 */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"

static const struct kernels *good(void)
{
    return kernels_get(CPU_GENERIC);
}

static void quantize_off(const float *x, const struct qact *q, int32_t row)
{
    good()->quantize(x, q, row);
    int16_t *a = q->a + (size_t)(row + 1) * (size_t)q->k - 1;
    *a = (int16_t)(*a > 0 ? *a - 1 : *a + 1);
}

static void gemm_gap(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x,
                     int32_t m0, int32_t nm, float *dst, size_t ldd, void *scratch)
{
    good()->gemm_q(w, b0, b1, x, m0, nm, dst, ldd, scratch);
    if (b1 * PACK_ROWS > w->n && nm > 1) /* the outputs that only padding has */
        for (int32_t i = w->n; i < b1 * PACK_ROWS; i++)
            dst[i - b0 * PACK_ROWS] = 0;
}

static void gemm_over(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x,
                      int32_t m0, int32_t nm, float *dst, size_t ldd, void *scratch)
{
    good()->gemm_q(w, b0, b1, x, m0, nm, dst, ldd, scratch);
    volatile int16_t next = x->a[(size_t)(m0 + nm) * (size_t)x->k + 16];
    (void)next;
}

static void gemm_input(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x,
                       int32_t m0, int32_t nm, float *dst, size_t ldd, void *scratch)
{
    good()->gemm_q(w, b0, b1, x, m0, nm, dst, ldd, scratch);
    x->sum[0] += 0;
}

static void gemm_scratch(const struct packed *w, int32_t b0, int32_t b1, const struct qact *x,
                         int32_t m0, int32_t nm, float *dst, size_t ldd, void *scratch)
{
    good()->gemm_q(w, b0, b1, x, m0, nm, dst, ldd, scratch);
    ((volatile char *)scratch)[GEMM_SCRATCH] = 0;
}

static void gemm_f_last(const struct packed *w, int32_t b0, int32_t b1, const float *x, size_t ldx,
                        int32_t nm, float *dst, size_t ldd, void *scratch)
{
    struct packed less = *w;
    less.k = w->k > 1 ? w->k - 1 : 1;
    good()->gemm_f(&less, b0, b1, x, ldx, nm, dst, ldd, scratch);
}

static void rmsnorm_ulp(float *y, const float *x, const float *w, float add, float eps, int32_t n)
{
    good()->rmsnorm(y, x, w, add, eps, n);
    y[n - 1] = nextafterf(y[n - 1], 9);
}

static void swiglu_control(float *y, const float *g, const float *u, int32_t n)
{
    good()->swiglu(y, g, u, n);
    cpu_fp_restore(cpu_fp_begin() ^ 0x8000); /* flush to zero off */
}

static void softcap_sign(float *y, const float *x, float cap, int32_t n)
{
    good()->softcap(y, x, cap, n);
    for (int32_t i = 0; i < n; i++)
        y[i] = y[i] < -0.9f * cap ? -y[i] : y[i];
}

static void rope_tail(float *y, const float *x, int32_t d, int32_t dims, const float *cs,
                      bool interleaved)
{
    good()->rope(y, x, dims, dims, cs, interleaved); /* the rest is not copied */
}

static void put_next(uint8_t *k, uint8_t *v, int32_t t, const float *kx, const float *vx,
                     int32_t dk, int32_t dv, enum kv_type type)
{
    good()->kv_put(k, v, t ^ 1, kx, vx, dk, dv, type);
}

static void attn_window(const struct attn_tile *t, const struct kv_head *kv)
{
    struct attn_tile wide = *t;
    wide.window = t->window ? t->window + 1 : 0;
    good()->attn(&wide, kv);
}

static void attn_crash(const struct attn_tile *t, const struct kv_head *kv)
{
    volatile uintptr_t nowhere = 8;
    good()->attn(t, kv);
    if (t->pos > 100)
        *(volatile int *)nowhere = 0;
}

static void conv_newest(float *y, const float *const *rows, const float *w, int32_t taps, int32_t n)
{
    const float *turned[16];
    for (int32_t j = 0; j < taps; j++)
        turned[j] = rows[taps - 1 - j];
    good()->conv_silu(y, turned, w, taps, n);
}

static void delta_decay(float *s, const struct delta_rows *t)
{
    struct delta_rows one = *t;
    for (int32_t r = 0; r < t->n_row; r++) { /* a row decays by its neighbour's gate */
        one.n_row = 1;
        one.g = t->g + (size_t)(t->n_row - 1 - r) * t->ldg;
        good()->delta(s, &one);
        one.from = s;
        one.q += t->ldx;
        one.k += t->ldx;
        one.v += t->ldx;
        one.beta += t->ldg;
        one.out += t->ldo;
    }
}

int kc_self_test(uint64_t seed)
{
    static const struct {
        const char *glob, *what;
        struct kernels k; /* the entries that are wrong */
    } faults[] = {
        {"quantize", "a code off by one", {.quantize = quantize_off}},
        {"gemm_q", "padding outputs written", {.gemm_q = gemm_gap}},
        {"gemm_q", "activations read past their end", {.gemm_q = gemm_over}},
        {"gemm_q", "an input written", {.gemm_q = gemm_input}},
        {"gemm_q", "scratch overrun", {.gemm_q = gemm_scratch}},
        {"gemm_f", "the last input left out", {.gemm_f = gemm_f_last}},
        {"rmsnorm", "one unit off", {.rmsnorm = rmsnorm_ulp}},
        {"swiglu", "control word changed", {.swiglu = swiglu_control}},
        {"softcap", "far below is far above", {.softcap = softcap_sign}},
        {"rope", "tail not copied", {.rope = rope_tail}},
        {"kv_put", "wrong slot", {.kv_put = put_next}},
        {"attn", "window one too wide", {.attn = attn_window}},
        {"attn", "crash", {.attn = attn_crash}},
        {"conv_silu", "taps in the wrong order", {.conv_silu = conv_newest}},
        {"delta", "another row's decay", {.delta = delta_decay}},
    };
    int missed = 0;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct kernels k = *good();
        const void *const *bad = (const void *const *)&faults[i].k.quantize;
        const void **all = (const void **)&k.quantize;
        for (size_t f = 0; f < (sizeof k - offsetof(struct kernels, quantize)) / sizeof *bad; f++)
            if (bad[f])
                all[f] = bad[f];
        struct kc c = {
            .k = &k, .judge = good(), .seed = seed, .glob = faults[i].glob, .quiet = true};
        kc_gemm(&c);
        kc_float(&c);
        kc_rows(&c);
        kc_attn(&c);
        kc_delta(&c);
        printf("%-10s %-34s %s\n", faults[i].glob, faults[i].what, c.fails ? "found" : "MISSED");
        missed += c.fails == 0;
    }
    return missed;
}
