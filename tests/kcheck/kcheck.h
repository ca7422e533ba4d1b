/*
 * kcheck.h - the frame of the kernel checker: every entry of the kernel table, on every level this
 * machine runs, against the portable kernels (bit for bit) and against double (within a bound
 * whose reason stands beside it).
 *
 * Buffers lie against PROT_NONE pages, inputs are read-only while a kernel runs, outputs are
 * poisoned, and a crash is caught and reported as "kernel, shape". One thread.
 */
#ifndef TESTS_KCHECK_H
#define TESTS_KCHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum { KC_FN_MAX = 32, KC_SHAPE_MAX = 160, KC_SLOTS = 24 };

struct kc_fn { /* what is known about one kernel on one level */
    const char *name;
    long cases, fails;
    double worst; /* largest error as a share of its bound */
};

struct kc_roof {     /* what this machine can do on the level at hand, one thread */
    double read_gbs; /* sum over an array far larger than any cache */
    double gmacs;    /* 16-bit x 16-bit integer multiply-adds (8-bit digits in tiles: halved) */
    double f32_gmacs;
};

struct kc {
    const struct kernels *k, *judge;
    uint64_t seed, state;
    const char *glob;
    int repeat;
    bool list, bench, json, quiet;

    struct kc_fn fn[KC_FN_MAX], *at;
    int n_fn;
    char shape[KC_SHAPE_MAX];
    bool failed; /* this case */
    long fails;
    int n_slot;
    bool at_begin; /* buffers of this case start at a guard page instead of ending at one */
    struct kc_roof roof;
    int n_json;
};

/* ---- cases ----------------------------------------------------------------------------------- */

/* Starts case i of kernel fn: false when --func leaves it out. All draws of the case depend on
 * (seed, fn, i) only. Frees the buffers of the case before. */
bool kc_case(struct kc *c, const char *fn, uint32_t i);
void kc_shape(struct kc *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kc_fail(struct kc *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Calls fn(arg) with inputs read-only: false (and a failure) when it crashed, wrote an input,
 * changed the rounding or flush control, or left tiles configured. */
bool kc_run(struct kc *c, void (*fn)(void *), void *arg);

/* ---- buffers --------------------------------------------------------------------------------- */

enum kc_role { KC_IN, KC_OUT };
/* n bytes, aligned to `align`, as near to a guard page as that allows. KC_OUT: poisoned. */
void *kc_alloc(struct kc *c, size_t n, size_t align, enum kc_role role);
/* Equal bits, NaN equal to NaN; otherwise a failure naming the first index. */
bool kc_same(struct kc *c, const char *what, const float *got, const float *want, size_t n);
bool kc_same_bytes(struct kc *c, const char *what, const void *got, const void *want, size_t n);
/* |got - want| <= bound, both NaN, or the same infinity; keeps the largest share. */
bool kc_near(struct kc *c, const char *what, double got, double want, double bound);

/* ---- draws ----------------------------------------------------------------------------------- */

uint64_t kc_u64(struct kc *c);
int32_t kc_int(struct kc *c, int32_t lo, int32_t hi); /* [lo, hi] */
double kc_normal(struct kc *c);                       /* about normal: sum of four uniforms */

enum kc_gen {
    GEN_NORMAL,
    GEN_EQUAL,
    GEN_EXTREME, /* alternating signs of one magnitude */
    GEN_ONE_HOT,
    GEN_DENORMAL,
    GEN_ZERO,
    GEN_WILD,    /* neighbouring groups 2^-20 .. 2^20 apart */
    GEN_SPECIAL, /* normal with a NaN, +Inf or -Inf here and there */
    GEN_N
};
const char *kc_gen_name(enum kc_gen g);
void kc_fill(struct kc *c, enum kc_gen g, float *x, size_t n);
/* A case's generator: the first GEN_N cases walk through them, later ones draw. */
enum kc_gen kc_gen_of(struct kc *c, uint32_t i);

/* ---- packed weights made here, from the layout's description --------------------------------- */

struct kc_weight {
    struct packed w;
    uint8_t *code; /* [n][k] */
    float *scale;  /* [n][k/group] as stored, in float32 */
    float *bias;
    float *value; /* float formats: [n][k] */
};
void kc_weight_q(struct kc *c, struct kc_weight *t, enum kc_gen gen);
void kc_weight_f(struct kc *c, struct kc_weight *t, enum kc_gen gen);
const char *kc_kind_name(enum pack_kind k);
const char *kc_scale_name(enum scale_type t);

/* ---- families -------------------------------------------------------------------------------- */

void kc_gemm(struct kc *c);  /* quantize, pack_row_f32, gemm_q */
void kc_float(struct kc *c); /* gemm_f */
void kc_rows(struct kc *c);  /* rmsnorm, gates, add, scale, softcap, rope */
void kc_attn(struct kc *c);  /* kv_put, attn */
void kc_delta(struct kc *c); /* l2norm, conv_silu, delta_gates, delta */

void kc_roof(struct kc *c);
void kc_bench(struct kc *c);
void kc_formats(struct kc *c); /* weight formats beyond the caches, one and two threads */
/* Runs the checks over deliberately broken kernels: the number of faults that went unnoticed. */
int kc_self_test(uint64_t seed);

#endif
