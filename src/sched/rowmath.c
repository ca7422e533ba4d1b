/*
 * rowmath.c - passes over a row of logits; see rowmath.h.
 *
 * The loops run over whole blocks of a fixed size with independent lanes, which is the shape that
 * gcc and clang vectorise without licence to reorder float arithmetic; a short last block is padded
 * on the stack with values that change nothing.
 */
#include "sched/rowmath.h"

#include <math.h>
#include <string.h>

#define LANES 16

/* ---- maximum ------------------------------------------------------------------------------ */

static float block_max(const float *x, int32_t *nan)
{
    float m[LANES];
    int32_t bad[LANES] = {0};
    for (int j = 0; j < LANES; j++)
        m[j] = -INFINITY;
    for (int i = 0; i < ROW_BLOCK; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            float v = x[i + j];
            m[j] = v > m[j] ? v : m[j];
            bad[j] |= v != v;
        }
    }
    float best = m[0];
    for (int j = 0; j < LANES; j++) {
        best = m[j] > best ? m[j] : best;
        *nan |= bad[j];
    }
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
    int32_t nan = 0, best_at = 0, n_block = row_blocks(n);
    float best = -INFINITY;
    for (int32_t b = 0; b < n_block; b++) {
        bmax[b] = block_max(block_at(x, n, b * ROW_BLOCK, pad), &nan);
        if (bmax[b] > best) {
            best = bmax[b];
            best_at = b * ROW_BLOCK;
        }
    }
    struct row_max r = {.v = best, .id = best_at, .nan = nan != 0};
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
static inline float exp_neg(float d)
{
    const float magic = 12582912.0f;
    float c = d < EXP_LOW ? EXP_LOW : d;
    float kf = c * 1.44269504f + magic;
    int32_t k, y;
    memcpy(&k, &kf, sizeof k);
    kf -= magic;
    float r = c - kf * 0.693359375f; /* the high part has few bits: the product is exact */
    r -= kf * -2.12194440e-4f;
    float p = 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    memcpy(&y, &p, sizeof y);
    y += (int32_t)((uint32_t)k << 23);
    y = d < EXP_LOW ? 0 : y;
    memcpy(&p, &y, sizeof p);
    return p;
}

float row_exp1(float d)
{
    return exp_neg(d);
}

static double block_exp(const float *x, float top, float inv_t, float *w)
{
    float sum[LANES] = {0};
    for (int i = 0; i < ROW_BLOCK; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            float e = exp_neg((x[i + j] - top) * inv_t);
            w[i + j] = e;
            sum[j] += e;
        }
    }
    double s = 0;
    for (int j = 0; j < LANES; j++)
        s += sum[j];
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

/* Radix selection from the top digit down: each level finds the digit in which the running weight,
 * taken from the highest value, reaches the target. */
float row_select(const float *x, const float *w, int32_t n, double target)
{
    static const struct {
        int shift, bins;
    } level[3] = {{21, 2048}, {10, 2048}, {0, 1024}};
    double hist[2048], above = 0;
    uint32_t prefix = 0, mask = 0;
    for (int l = 0; l < 3; l++) {
        int shift = level[l].shift, bins = level[l].bins, hit = -1;
        memset(hist, 0, (size_t)bins * sizeof *hist);
        for (int32_t i = 0; i < n; i++) {
            uint32_t k = key_of(x[i]);
            if ((k & mask) == prefix)
                hist[(k >> shift) & (uint32_t)(bins - 1)] += w ? (double)w[i] : 1.0;
        }
        double before = above;
        for (int b = bins - 1; b >= 0; b--) {
            if (hist[b] <= 0)
                continue;
            hit = b;
            before = above;
            above += hist[b];
            if (above >= target)
                break;
        }
        if (hit < 0) /* nothing weighs anything: everything passes */
            return -INFINITY;
        above = before;
        prefix |= (uint32_t)hit << shift;
        mask |= (uint32_t)(bins - 1) << shift;
    }
    return key_value(prefix);
}
