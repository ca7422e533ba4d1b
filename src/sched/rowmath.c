/*
 * rowmath.c - passes over a row of logits; see rowmath.h.
 *
 * The loops run over whole blocks in vectors of four floats (the compilers' generic vectors, which
 * every target has; left to themselves they do not vectorise these loops). A short last block is
 * padded on the stack with values that change nothing.
 */
#include "sched/rowmath.h"

#include <math.h>
#include <string.h>

typedef float vec __attribute__((vector_size(16)));
typedef int32_t ivec __attribute__((vector_size(16)));

#define W     4           /* floats in a vector */
#define CHAIN 4           /* vectors in flight: independent chains hide the latency */
#define STEP  (W * CHAIN) /* floats per turn of a loop */

static inline vec load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline vec splat(float v)
{
    return (vec){v, v, v, v};
}

/* a where the mask's bits are set, otherwise b. */
static inline vec choose(ivec mask, vec a, vec b)
{
    return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
}

/* ---- maximum ------------------------------------------------------------------------------ */

static float block_max(const float *x, ivec *nan)
{
    vec m[CHAIN];
    ivec bad = {0};
    for (int j = 0; j < CHAIN; j++)
        m[j] = splat(-INFINITY);
    for (int i = 0; i < ROW_BLOCK; i += STEP) {
        for (int j = 0; j < CHAIN; j++) {
            vec v = load(x + i + j * W);
            m[j] = choose(v > m[j], v, m[j]);
            bad |= v != v;
        }
    }
    *nan |= bad;
    float best = -INFINITY;
    for (int j = 0; j < STEP; j++)
        best = m[j / W][j % W] > best ? m[j / W][j % W] : best;
    return best;
}

/* The block's elements, or a padded copy of them when the row ends inside it. */
static const float *block_at(const float *x, int32_t n, int32_t at, float *pad)
{
    if (n - at >= ROW_BLOCK)
        return x + at;
    for (int32_t i = 0; i < ROW_BLOCK; i++)
        pad[i] = at + i < n ? x[at + i] : -INFINITY;
    return pad;
}

struct row_max row_scan(const float *x, int32_t n, float *bmax)
{
    float pad[ROW_BLOCK];
    ivec nan = {0};
    int32_t best_at = 0, n_block = row_blocks(n);
    float best = -INFINITY;
    for (int32_t b = 0; b < n_block; b++) {
        bmax[b] = block_max(block_at(x, n, b * ROW_BLOCK, pad), &nan);
        if (bmax[b] > best) {
            best = bmax[b];
            best_at = b * ROW_BLOCK;
        }
    }
    struct row_max r = {.v = best, .id = best_at, .nan = (nan[0] | nan[1] | nan[2] | nan[3]) != 0};
    while (!r.nan && x[r.id] != best) /* the block holds it, unless every element is -inf */
        r.id++;
    return r;
}

/* ---- exponentials ------------------------------------------------------------------------- */

#define EXP_LOW -86.0f /* e^-86 is still a normal float32 */

/*
 * exp(d) for d <= 0: d = k ln2 + r with |r| <= ln2 / 2, exp(r) by its series to r^7 (remainder
 * under 6e-9), then k added to the exponent bits. k is rounded by adding 1.5 * 2^23, which leaves
 * it in the low mantissa bits.
 */
static inline vec exp_neg(vec d)
{
    const vec magic = splat(12582912.0f);
    vec c = choose(d < splat(EXP_LOW), splat(EXP_LOW), d);
    vec kf = c * 1.44269504f + magic;
    ivec k = (ivec)kf << 23;
    kf -= magic;
    vec r = c - kf * 0.693359375f; /* the high part has few bits: the product is exact */
    r -= kf * -2.12194440e-4f;
    vec p = r * 1.98412698e-4f + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (vec)(((ivec)p + k) & ~(ivec)(d < splat(EXP_LOW)));
}

static double block_exp(const float *x, float top, float inv_t, float *w)
{
    vec sum[CHAIN] = {{0}};
    for (int i = 0; i < ROW_BLOCK; i += STEP) {
        for (int j = 0; j < CHAIN; j++) {
            vec e = exp_neg((load(x + i + j * W) - top) * inv_t);
            memcpy(w + i + j * W, &e, sizeof e);
            sum[j] += e;
        }
    }
    double s = 0;
    for (int j = 0; j < STEP; j++)
        s += (double)sum[j / W][j % W];
    return s;
}

double row_exp(const float *x, int32_t n, float top, float inv_t, float *w, double *bsum)
{
    float pad[ROW_BLOCK], out[ROW_BLOCK];
    double total = 0;
    for (int32_t at = 0; at < n; at += ROW_BLOCK) {
        bool whole = n - at >= ROW_BLOCK;
        const float *src = block_at(x, n, at, pad);
        double s = block_exp(src, top, inv_t, w && whole ? w + at : out);
        if (w && !whole)
            memcpy(w + at, out, (size_t)(n - at) * sizeof *w);
        if (bsum)
            bsum[at / ROW_BLOCK] = s;
        total += s;
    }
    return total;
}

/* ---- selection ---------------------------------------------------------------------------- */

void row_top(const float *x, int32_t n, const float *bmax, int32_t k, int32_t *ids)
{
    int32_t have = 0;
    for (int32_t b = 0; b < row_blocks(n); b++) {
        if (have == k && (k == 0 || !(bmax[b] > x[ids[k - 1]])))
            continue;
        int32_t end = n - b * ROW_BLOCK < ROW_BLOCK ? n : (b + 1) * ROW_BLOCK;
        for (int32_t i = b * ROW_BLOCK; i < end; i++) {
            if (have == k && !(x[i] > x[ids[k - 1]]))
                continue;
            int32_t at = have < k ? have++ : k - 1;
            for (; at > 0 && x[i] > x[ids[at - 1]]; at--)
                ids[at] = ids[at - 1];
            ids[at] = i;
        }
    }
}

/* Bits of v in an order that integers compare like the floats; -0 counts as +0. */
static inline uint32_t key_of(float v)
{
    uint32_t u;
    v += 0.0f;
    memcpy(&u, &v, sizeof u);
    return (u & 0x80000000u) ? ~u : u | 0x80000000u;
}

static float key_value(uint32_t k)
{
    float v;
    k = (k & 0x80000000u) ? k & 0x7fffffffu : ~k;
    memcpy(&v, &k, sizeof v);
    return v;
}

/* From the highest bin down, the one in which the running weight reaches the target, or the lowest
 * that weighs anything; -1 when none does. *above is the weight over it, before and after. */
static int reach(const double *hist, int bins, double target, double *above)
{
    int hit = -1;
    double before = *above, sum = *above;
    for (int b = bins - 1; b >= 0; b--) {
        if (hist[b] <= 0)
            continue;
        hit = b;
        before = sum;
        sum += hist[b];
        if (sum >= target)
            break;
    }
    *above = before;
    return hit;
}

/* Radix selection from the top digit down: each level finds the digit in which the running weight,
 * taken from the highest value, reaches the target. */
static float radix_select(const float *x, const float *w, int32_t n, double target)
{
    static const struct {
        int shift, bins;
    } level[3] = {{21, 2048}, {10, 2048}, {0, 1024}};
    double hist[2048], above = 0;
    uint32_t prefix = 0, mask = 0;
    for (int l = 0; l < 3; l++) {
        int shift = level[l].shift, bins = level[l].bins;
        memset(hist, 0, (size_t)bins * sizeof *hist);
        for (int32_t i = 0; i < n; i++) {
            uint32_t k = key_of(x[i]);
            if ((k & mask) == prefix)
                hist[(k >> shift) & (uint32_t)(bins - 1)] += w ? (double)w[i] : 1.0;
        }
        int hit = reach(hist, bins, target, &above);
        if (hit < 0) /* nothing weighs anything: everything passes */
            return -INFINITY;
        prefix |= (uint32_t)hit << shift;
        mask |= (uint32_t)(bins - 1) << shift;
    }
    return key_value(prefix);
}

#define BINS      1024
#define BIN_RANGE 32.0f /* below top; what lies deeper falls into the lowest bin */
#define FEW       1024

/* Higher values, higher bins; monotone, so equal values share one. */
static inline int bin_of(float x, float top)
{
    float d = (top - x) * (BINS / BIN_RANGE);
    return BINS - 1 - (int)(d < BINS - 1 ? d : BINS - 1);
}

/* One histogram of even width leaves few elements in the bin that matters; the radix works on those
 * alone. When they are many (long ties, far below the top) it takes the whole row. */
float row_select(const float *x, const float *w, int32_t n, float top, double target)
{
    double hist[BINS] = {0}, above = 0;
    float few_x[FEW + 1], few_w[FEW + 1];
    if (n <= FEW)
        return radix_select(x, w, n, target);
    for (int32_t i = 0; i < n; i++)
        hist[bin_of(x[i], top)] += w ? (double)w[i] : 1.0;
    int hit = reach(hist, BINS, target, &above);
    int32_t n_few = 0;
    for (int32_t i = 0; i < n && n_few <= FEW;
         i++) { /* without a branch: the last place is spare */
        few_x[n_few] = x[i];
        few_w[n_few] = w ? w[i] : 1.0f;
        n_few += bin_of(x[i], top) == hit;
    }
    if (n_few == 0 || n_few > FEW)
        return radix_select(x, w, n, target);
    return radix_select(few_x, few_w, n_few, target - above);
}
